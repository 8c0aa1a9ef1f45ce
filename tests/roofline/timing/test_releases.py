"""How young an engine's support of a model was, and what it adds to intervals."""

from __future__ import annotations

import math

import pytest

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.specs.engine import load_engine
from roofline.timing.intervals.releases import support, unsure, young_error


@pytest.mark.parametrize(
    ("engine", "model", "months"),
    [
        ("sglang@0.4.3", "deepseek-v3", 2.0),
        ("vllm@0.10.1", "gpt-oss-120b", 0.0),  # of the release before, 0.10.0
        ("vllm@0.11", "deepseek-v3.2", 1.0),  # its attention is not DeepSeek-V3's
        ("vllm@0.6", "gpt-oss-120b", 0.0),  # before the model: as young as its first
        ("vllm@0.11", "llama-3.1-8b", None),
        ("vllm", "gpt-oss-120b", None),
        ("llama.cpp", "gpt-oss-120b", None),
    ],
)
def test_months_between_an_architecture_and_a_version(engine: str, model: str, months: float | None) -> None:
    found = support(load_engine(engine), load_model(model))
    assert (None if found is None else found.months) == months


def test_versions_long_before_the_fitted_ones_are_less_sure() -> None:
    """DeepSeek-V3, SGLang 0.4.3: 1.14 and 1.44 times as long as expected (sgl-project/sglang, 3602 and 3812)."""
    model = load_model("deepseek-v3")
    assert support(load_engine("sglang@0.4.3"), model) == (2.0, 9.0)
    old, fitted = (young_error(load_engine(engine), model) for engine in ("sglang@0.4.3", "sglang@0.5.6"))
    assert math.log(1.5) < old < math.log(3)
    assert fitted < math.log(1.5)


def test_a_family_of_devices_is_young_too() -> None:
    """Llama 3.3 70B in FP8, two B200, vLLM 0.9: 35 tokens/s (vllm-project/vllm, issue 20710), 2.6 times as long."""
    model = load_model("llama-3.3-70b")
    young = support(load_engine("vllm@0.9"), model, load_hardware("b200-sxm"))
    assert young is not None
    assert young.months == 3.0
    assert support(load_engine("vllm@0.9"), model, load_hardware("h100-sxm")) is None


def test_a_first_release_may_take_several_times_as_long() -> None:
    """gpt-oss-120b on an A100 with vLLM 0.10: 90 tokens/s (vllm-project/vllm, issue 22331), 1.7 times as long."""
    scenario = Scenario(load_model("gpt-oss-120b"), load_hardware("a100-sxm-80gb"), prompt=512, generate=512)
    old, late = (analyze(scenario.changed(engine=engine)).expected.tpot for engine in ("vllm@0.10", "vllm@0.13"))
    assert old.low == pytest.approx(late.low, rel=0.02)
    assert old.mid < 1 / 90 < old.high
    assert late.high < old.high


def test_an_engine_is_less_sure_on_devices_of_a_vendor_where_no_step_of_it_was_measured() -> None:
    """gpt-oss-120b on an MI300X with vLLM took 1.6 times as long as the kernels that were known said (InferenceX)."""
    model, alone = load_model("llama-3.1-8b"), Parallelism()
    errors = {
        (engine, device): unsure(load_engine(engine), model, load_hardware(device), alone)
        for engine in ("vllm", "sglang")
        for device in ("mi300x", "h100-sxm")
    }
    assert errors.pop(("vllm", "mi300x")) == pytest.approx((math.log(1 / 0.88), math.log(1.4)))
    below, above = errors.pop(("sglang", "mi300x"))  # whose kernels are of a few published figures
    assert below > 0
    assert 0 < above < math.log(1.4)
    assert set(errors.values()) == {(0.0, 0.0)}
    vllm, blackwell = load_engine("vllm@0.24"), load_hardware("b200-sxm")
    assert unsure(vllm, load_model("gpt-oss-120b"), blackwell, alone)[0] == below
    assert unsure(vllm, model, blackwell, alone)[0] == 0
