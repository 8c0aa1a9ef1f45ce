"""Experts: tiles, launches, and the kernels that engines run for their ranks and versions."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Scenario, UnknownNameError, analyze, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.specs.engine import Engine, load_engine
from roofline.timing.calibration import Calibration, Fit, on_units
from roofline.timing.kernels import kernel_time
from roofline.timing.kernels.common import unit_clocks
from roofline.timing.kernels.moe import PARAMETERS

H100 = load_hardware("h100-sxm")
DEFAULTS = {parameter.name: parameter.default for parameter in PARAMETERS}


@pytest.mark.parametrize(("tokens", "before"), [(1.0, 1.0), (4096.0, 2.0)])
def test_older_tiles_of_triton_take_longer_for_many_tokens(tokens: float, before: float) -> None:
    """Half as wide each way as those since vLLM 0.17, and in FP8 half of each fetch is of the next tile."""
    slow = {**DEFAULTS, "tile_bandwidth": 20e9, "launch": 1e-6}
    columns = {"dtype": "fp8", "tokens": tokens, "hidden": 4096.0, "intermediate": 1536.0, "top_k": 8.0}
    columns |= {"experts": 128.0}
    old, new, best = (float(kernel_time("moe", {**columns, "tiles": kind}, H100, slow)) for kind in (1.0, 2.0, 0.0))
    assert old / new > before
    assert best <= new


def test_few_tokens_save_a_part_of_the_launch() -> None:
    tokens = np.array([1.0, 5.0, 4096.0])
    columns = {"dtype": "bf16", "tokens": tokens, "hidden": 2048.0, "intermediate": 512.0, "top_k": 8.0}
    columns |= {"experts": 128.0}
    whole, less = (kernel_time("moe", columns, H100, {**DEFAULTS, "few_tokens": share}) for share in (0.0, 0.5))
    np.testing.assert_allclose((whole - less) / DEFAULTS["launch"], [0.5, 0.25, 0.0], atol=1e-3)


@pytest.mark.parametrize(("dtype", "faster"), [("int4_wo", 1.9), ("w4a16_mxfp4", 1.9), ("bf16", 7.2)])
def test_marlins_experts_multiply_with_the_instructions_of_ampere(dtype: str, faster: float) -> None:
    """B200 has 1.9 times the clocks of A100's multiprocessors (148 at 1.98 GHz, 108 at 1.41), and 7.2 times its peak.

    SGLang 0.5.10's INT4 experts, fitted alone on each, reach 1,050 FLOP in a clock on A100 and 1,090 on B200.
    """
    columns = {"dtype": dtype, "tokens": 1e6, "hidden": 4096.0, "intermediate": 1536.0, "top_k": 8.0, "experts": 128.0}
    units = {**DEFAULTS, "compute_efficiency": 0.5, "tile_bandwidth": 1e12, "tile_prologue": 1e-8, "launch": 1e-6}
    seconds = [
        float(kernel_time("moe", {**columns, "bare": 1.0}, load_hardware(name), {**units, "sharpness": 20.0}))
        for name in ("a100-sxm-80gb", "b200-sxm")
    ]
    assert seconds[0] / seconds[1] == pytest.approx(faster, rel=0.06)


@pytest.mark.parametrize(
    ("parallel", "version", "format"),
    [
        (Parallelism(tensor=4), "0.24.0", "fp8_block"),
        (Parallelism(tensor=4, expert=4), "0.24.0", "fp8_block_ep"),
        (Parallelism(tensor=4, expert=4), "0.14.0", "fp8_block"),  # which has no such kernel
    ],
)
def test_expert_ranks_run_the_kernel_that_an_engine_has_for_them(
    parallel: Parallelism, version: str, format: str
) -> None:
    def made(*formats: str, version: str) -> Calibration:
        fits = {("moe", one): Fit("moe", one, DEFAULTS, version=version) for one in formats}
        return Calibration("h100-sxm", "calibrated", fits, engine="vllm")

    own = made("fp8_block", version=version)
    newest = made("fp8_block", "fp8_block_ep", version="0.24.0")
    links = (newest,) if version == "0.24.0" else (own, newest)
    chain = Calibration("h100-sxm", "calibrated", links[0].fits, parents=links[1:], engine="vllm")
    scenario = Scenario(load_model("minimax-m2"), H100, settings=Settings(parallel=parallel))
    phase = analyze(scenario, lambda *_: chain).prefill
    kernels = [found for run in phase.passes for found in phase.timed(run).kernels if "moe" in found.matches]
    assert {found.matches["moe"].fit.format for found in kernels} == {format}


@pytest.mark.parametrize(("version", "format"), [("0.14.0", "bf16_triton"), ("0.22.0", "bf16")])
def test_kernels_that_benchmarks_call_by_name_are_those_of_versions_that_run_them(version: str, format: str) -> None:
    """Up to vLLM 0.14 Triton's experts on Blackwell; later versions run FlashInfer's, whatever their tables time."""
    gpu = load_hardware("b200-sxm")
    fits = {("moe", one): Fit("moe", one, DEFAULTS, version="0.24.0") for one in ("bf16", "bf16_triton")}
    measured = Calibration("b200-sxm", "calibrated", fits, engine="vllm", version=version)
    phase = analyze(Scenario(load_model("qwen3-30b-a3b"), gpu), lambda *_: measured).prefill
    kernels = [found for run in phase.passes for found in phase.timed(run).kernels if "moe" in found.matches]
    assert {found.matches["moe"].fit.format for found in kernels} == {format}
    assert {"tiles" in found.shape.texts for found in kernels if found.shape} == {format == "bf16_triton"}


MARLIN = replace(load_engine("vllm"), told={"moe w4a16_mxfp4": "w4a16_mxfp4"})


@pytest.mark.parametrize(
    ("hardware", "engine", "parallel", "format"),
    [
        ("h100-sxm", load_engine("vllm@0.11.0"), Parallelism(), "w4a16_mxfp4"),  # Marlin's: its wheels lack Triton's
        ("h100-sxm", load_engine("vllm@0.11.2"), Parallelism(), "w4a16_mxfp4_triton"),
        ("h100-sxm", load_engine("vllm"), Parallelism(tensor=4, expert=4), "w4a16_mxfp4_triton_ep"),
        ("h100-sxm", MARLIN, Parallelism(), "w4a16_mxfp4"),
        ("h200-sxm", load_engine("tensorrt-llm"), Parallelism(), "w4a16_mxfp4_triton"),
        ("l40s", load_engine("vllm"), Parallelism(tensor=4), "w4a16_mxfp4"),
        ("b200-sxm", load_engine("vllm"), Parallelism(), "w4a16_mxfp4_trtllm"),
        ("b200-sxm", load_engine("sglang"), Parallelism(), "w4a8_mxfp4_mxfp8"),
        ("b200-sxm", load_engine("tensorrt-llm"), Parallelism(), "w4a8_mxfp4_mxfp8"),
        ("rtx-pro-6000-server", load_engine("sglang"), Parallelism(), "w4a16_mxfp4"),
    ],
)
def test_mxfp4_experts_run_the_kernel_of_the_engine_on_the_gpu(
    hardware: str, engine: Engine, parallel: Parallelism, format: str
) -> None:
    """The order of backends in vLLM's oracle/mxfp4.py and its tables; the other engines' documents of gpt-oss."""
    settings = Settings(parallel=parallel)
    scenario = Scenario(load_model("gpt-oss-120b"), load_hardware(hardware), settings=settings, engine=engine)
    phase = analyze(scenario).decode
    kernels = [found for run in phase.passes for found in phase.timed(run).kernels if "moe" in found.matches]
    assert {found.matches["moe"].fit.format for found in kernels} == {format}
    of_ranks = format.removesuffix("_ep")  # the columns of experts that are not divided
    assert {found.shape.texts["dtype"] for found in kernels if found.shape} == {of_ranks}


def test_deepspeed_runs_its_own_grouped_gemms_for_experts_with_no_tiles_of_triton() -> None:
    """A step of 33 tokens took three times as long as one of 32, in tiles of 64 rows on a GPU without matrix units."""
    scenario = Scenario("gpt-oss-20b", "mi50-32gb", engine="deepspeed-mii", quant="awq", prompt=50, generate=50)
    few, more = (analyze(scenario.changed(batch=batch)).expected.tpot.mid for batch in (32, 33))
    assert few <= more < 1.05 * few


@pytest.mark.parametrize("format", ["w4a16_mxfp4", "w4a16_mxfp4_triton", "bf16"])
def test_faster_matrix_units_never_slow_experts_that_were_measured_on_their_family(format: str) -> None:
    """Marlin's instructions do 2,048 FLOP in a clock on any of them, so a larger peak leaves what they achieve."""
    fit, own = Fit("moe", format, {**DEFAULTS, "compute_efficiency": 0.5}, {}), 989.5e12 / unit_clocks(H100)
    columns = {"dtype": format, "tokens": 16384.0, "hidden": 2880.0, "intermediate": 2880.0, "top_k": 4.0}
    times = []
    for factor in (0.15, 1.0, 2.0, 20.0):
        here = replace(H100, tensor={**H100.tensor, "bf16": 989.5e12 * factor})
        carried = on_units(fit, format, {"bf16": (own, own * factor)})
        times.append(float(kernel_time("moe", {**columns, "experts": 128.0}, here, carried.parameters)))
    assert times == sorted(times, reverse=True)


def test_a_device_without_a_clock_has_the_constants_of_its_family() -> None:
    h20 = load_hardware("h20")
    told = [replace(h20, name="own", **less) for less in ({"clock": None}, {"clock": None, "vector": {}})]
    known, unknown = (analyze(Scenario("mixtral-8x7b", each, quant="awq")).expected.tpot.mid for each in told)
    assert unknown == pytest.approx(known, rel=0.2)


def test_experts_of_one_token_are_matrices_times_vectors_in_llama_cpp() -> None:
    """Tiles of 16 tokens would multiply 15 rows of zeros: on Apple's matrix units twice as long as the memory takes."""
    columns = {"dtype": "int8_wo", "tokens": np.array([1.0, 4096.0]), "hidden": 2048.0, "intermediate": 768.0}
    columns |= {"top_k": 8.0, "experts": 128.0, "arithmetic": "fp16", "bare": 1.0}
    apple = load_hardware("m2-ultra")
    best, vectors = (kernel_time("moe", {**columns, "tiles": kind}, apple, DEFAULTS) for kind in (0.0, 3.0))
    assert vectors[0] < 0.8 * best[0]
    assert vectors[1] == pytest.approx(best[1])


def test_experts_of_ranks_cost_what_the_engine_was_told() -> None:
    """vLLM has a kernel for ranks of experts on Hopper; told to run another one, it has that one's cost as well."""
    engine = load_engine("vllm")
    scenario = Scenario("deepseek-r1", "8xh200", dp=8, ep=8, dp_attention=True, batch=64, prompt=1024, generate=2)
    usual, told = (
        analyze(scenario.changed(engine=replace(engine, told={**engine.told, **own}))).expected.tpot.mid
        for own in ({}, {"moe": "reference"})
    )
    assert told > 2 * usual


def test_the_cost_of_an_unknown_kernel_is_refused() -> None:
    engine = replace(load_engine("vllm"), told={"attention_decode": "triten"})
    analysis = analyze(Scenario("llama-3.1-8b", "h100-sxm").changed(engine=engine))
    with pytest.raises(UnknownNameError, match="triton"):
        _ = analysis.expected


@pytest.mark.parametrize("name", ["tokens", "experts", "tp", "ep", "touched"])
def test_rows_that_differ_in_one_column_are_those_alone(name: str) -> None:
    row = {"dtype": "fp8", "tokens": 64.0, "hidden": 4096.0, "intermediate": 1536.0, "top_k": 8.0, "experts": 128.0}
    row |= {"tp": 2.0, "ep": 2.0, "touched": 40.0}
    values = np.array([1.0, 2.0, 4.0]) * row[name]
    together = kernel_time("moe", {**row, name: values}, H100, DEFAULTS)
    alone = [float(kernel_time("moe", {**row, name: each}, H100, DEFAULTS)) for each in values]
    assert together == pytest.approx(alone)
