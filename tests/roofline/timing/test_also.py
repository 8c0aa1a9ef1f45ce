"""Kernels of an engine that were measured with another (`also` of a profile)."""

from __future__ import annotations

from types import MappingProxyType

import pytest
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.core.errors import SpecError
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.specs.engine import list_engines, load_engine
from roofline.specs.engine_files import parse_engine
from roofline.specs.hardware import Hardware
from roofline.specs.precision import parse_precision
from roofline.timing.chains import load_calibration

B200, H100 = load_hardware("b200"), load_hardware("h100-sxm")
LLAMA = load_model("llama-3.1-8b")


@pytest.mark.parametrize("hardware", [B200, H100])
def test_an_engine_runs_the_faster_of_its_kernels_on_the_named_family_alone(hardware: Hardware) -> None:
    engine = load_engine("tensorrt-llm")
    alone = replace(engine, also=MappingProxyType({}))
    both, one = (
        analyze(Scenario(LLAMA, hardware, batch=1, prompt=1000, generate=1000, engine=each)).decode
        for each in (engine, alone)
    )
    times = [[float(each.time.mid) for each in phase.expected_ops] for phase in (both, one)]
    assert all(left <= right * (1 + 1e-9) for left, right in zip(*times, strict=True))
    assert (both.expected.mid < one.expected.mid) == (hardware is B200)


def test_an_engines_own_second_kernel_comes_before_anothers() -> None:
    """TensorRT-LLM's experts of few tokens in NVFP4 on B200 are in its own tables (min_latency), beside vLLM's."""
    deployment = {"precision": parse_precision("bf16", "nvfp4"), "settings": Settings(parallel=Parallelism(tensor=8))}
    scenario = Scenario(load_model("deepseek-r1"), B200, batch=4, engine="tensorrt-llm", **deployment)
    decode = analyze(scenario).decode
    assert decode is not None
    kernels = [found for run in decode.passes for found in decode.timed(run).kernels]
    second = [found.others["moe"] for found in kernels if "moe" in found.others]
    assert second
    assert {match.fit.format for match in second} == {"nvfp4_min_latency"}


def test_fused_reductions_and_quantization_save_their_launches() -> None:
    """A quantization in a kernel of its own takes 1.6 us (NVIDIA/TensorRT-LLM, pull request 14629)."""
    engine, settings = load_engine("tensorrt-llm"), Settings(parallel=Parallelism(tensor=4))
    plain = tuple("residual_norm" if name == "reduced_norm" else name for name in engine.fusions[:-2])
    reduced = tuple(name for name in engine.fusions if name != "quantization")
    times = [
        analyze(
            Scenario(LLAMA, H100, precision=parse_precision("bf16", "fp8"), settings=settings, engine=each)
        ).decode.expected.mid
        for each in (replace(engine, fusions=names) for names in (plain, reduced, engine.fusions))
    ]
    for saved in (times[0] - times[1], times[1] - times[2]):
        assert 2 * 32 * 1e-6 < saved < 3 * 32 * 4e-6


def test_constants_of_another_engine_cross_no_level_to_it() -> None:
    engine, other = "tensorrt-llm", "vllm"
    own = load_calibration(B200, engine=engine).of_engine(other).find("attention_decode", "bf16")
    measured = load_calibration(B200, engine=other).find("attention_decode", "bf16")
    assert own is not None
    assert measured is not None
    assert own.fit.parameters == measured.fit.parameters
    assert "engine" not in own.crossed


@pytest.mark.parametrize("name", [name for name in list_engines() if load_engine(name).also])
def test_profiles_say_where_further_kernels_were_measured(name: str) -> None:
    engine = load_engine(name)
    assert set(engine.also) <= {"hopper", "blackwell", "ada", "ampere"}
    assert {of for kinds in engine.also.values() for of in kinds.values()} <= set(list_engines())


@pytest.mark.parametrize("also", ["vllm", {"blackwell": "vllm"}, {"blackwell": ["moe"]}, {"blackwell": {"moe": [1]}}])
def test_others_must_be_named_by_kind_and_family(also: object) -> None:
    with pytest.raises(SpecError, match="also"):
        parse_engine({"name": "mine", "also": also}, "mine.yaml")
