"""Gains between scenarios: intervals with correlated errors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import analyze, load_hardware, load_model
from roofline.scenario.analysis import Analysis
from roofline.scenario.scenario import Scenario
from roofline.whatif.odds import gain


def request(**options: object) -> Scenario:
    given = {"batch": 4, "prompt": 1024, "generate": 64, **options}
    return Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), **given)


def analysis(asked: Scenario) -> Analysis:
    return analyze(asked)


@pytest.mark.parametrize("metric", ["ttft", "tpot", "total"])
def test_gain_over_itself_is_exactly_1(metric) -> None:
    one = analysis(request())
    assert tuple(gain(one, analysis(request()), metric)) == pytest.approx((1, 1, 1), abs=1e-12)


@given(
    st.sampled_from(["awq", "fp8", "eagle", "residual-norm-fusion", "h2o", "llmlingua"]),
    st.integers(1, 256),
    st.sampled_from(["ttft", "tpot", "total"]),
)
def test_p50_is_the_ratio_of_p50s_and_the_reverse_gain_is_the_inverse(technique, batch, metric) -> None:
    before, after = analysis(request(batch=batch)), analysis(request(batch=batch).with_(techniques=technique))
    there, back = gain(before, after, metric), gain(after, before, metric)
    assert there.mid == pytest.approx(getattr(before.expected, metric).mid / getattr(after.expected, metric).mid)
    assert there.low <= there.mid <= there.high
    assert there.low == pytest.approx(1 / back.high)
    assert there.high == pytest.approx(1 / back.low)


def width(found) -> float:
    return math.log(found.high / found.low)


def test_shared_kernels_narrow_the_interval() -> None:
    before, after = analysis(request()), analysis(request().with_(techniques="residual-norm-fusion"))
    apart = math.hypot(*(math.log(one.expected.total.high / one.expected.total.low) for one in (before, after)))
    assert width(gain(before, after)) < apart / 5


def test_errors_of_other_devices_and_engines_are_independent() -> None:
    one = analysis(request())
    device = analysis(request().with_(hw=load_hardware("h200-sxm")))
    engine = analysis(request(engine="tensorrt-llm"))
    assert width(gain(one, device)) > width(gain(one, one)) + 0.05
    low, high = one.scenario.profile.spread
    assert width(gain(one, engine)) >= high - low


def test_encoder_has_a_gain_of_ttft_alone() -> None:
    asked = Scenario(load_model("bert-base"), load_hardware("h100-sxm"))
    one = analyze(asked)
    two = analyze(asked.with_(hw=load_hardware("a100-sxm-80gb")))
    assert gain(one, two, "ttft").mid == pytest.approx(gain(one, two, "total").mid)
