"""Ratios of prefill to decode: they serve the rate that they state, and no other ratio of their layouts more."""

import math

import pytest
from msgspec.structs import replace

from roofline import Scenario
from roofline.core.errors import RooflineError
from roofline.serving import Load
from roofline.serving.disaggregated import steady_tandem
from roofline.serving.outcome import NO_TARGETS
from roofline.serving.pools import tandem_of
from roofline.serving.ratios import Ratio, ratios_for, ratios_on

SCENARIO = Scenario("llama-3.1-8b", "h100-sxm", prompt=3000, generate=300)
LOAD = Load(prompt=3000, generate=300, rate=1.0)
NONE = NO_TARGETS


def saturation(ratio: Ratio) -> float:
    return steady_tandem(tandem_of(SCENARIO, LOAD, replace(ratio.pools, link="node")), LOAD, 1.0).saturation


def test_the_best_ratio_serves_what_it_states_and_more_than_its_neighbours() -> None:
    best = ratios_on(SCENARIO, LOAD, 8, NONE)[0]
    assert best.devices <= 8
    assert best.rate == pytest.approx(saturation(best), rel=0.01)
    for more in (1, -1):
        prefills, left = best.prefills + more, 8 - (best.prefills + more) * best.prefill.devices
        if prefills and (decodes := left // best.decode.devices) > 0:
            assert saturation(replace(best, prefills=prefills, decodes=decodes)) <= best.rate * 1.01


def test_a_steady_state_has_no_parts_of_prompts() -> None:
    with pytest.raises(RooflineError) as refused:
        ratios_on(SCENARIO.with_(long_prefill_token_threshold=256), LOAD, 8, NONE)
    assert refused.value.options == ("long_prefill_token_threshold",)


def test_the_fewest_replicas_serve_a_rate_and_one_fewer_does_not() -> None:
    found = ratios_for(SCENARIO, LOAD, 30.0, NONE)[0]
    assert saturation(found) >= 30
    for name in ("prefills", "decodes"):
        if (count := getattr(found, name)) > 1:
            assert saturation(replace(found, **{name: count - 1})) < 30


@pytest.mark.slow
def test_limits_take_more_devices_and_experts_are_divided() -> None:
    free, limited = (ratios_for(SCENARIO, LOAD, 30.0, limits)[0] for limits in (NONE, (0.3, 0.012)))
    assert limited.devices > free.devices
    assert not ratios_for(SCENARIO, LOAD, 30.0, (1e-3, math.inf))
    experts = Scenario("deepseek-v2-lite", "h100-sxm")
    assert any(each.decode.data > 1 for each in ratios_on(experts, LOAD, 8, NONE))
