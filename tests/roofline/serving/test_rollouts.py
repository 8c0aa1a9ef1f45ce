"""Rollouts: steps of generations with a long tail, and what partial rollouts save."""

from __future__ import annotations

import pytest

from roofline import RooflineError, Scenario, serve
from roofline.serving.outcome import Outcome

TAILED = Scenario("qwen2.5-7b", "h100-sxm", prompt=512, generate="lognormal:mean=2000,p95=3500")
EVEN = Scenario("qwen2.5-7b", "h100-sxm", prompt=512, generate=500)


def steps(scenario: Scenario, rollouts: str | None, offline: int = 256) -> Outcome:
    return serve(scenario, offline=offline, rollouts=rollouts).outcomes[0]


def test_partial_rollouts_do_not_wait_for_the_longest() -> None:
    """Up to 44% more throughput (APRIL, abstract)."""
    whole, partial = steps(TAILED, "steps=20"), steps(TAILED, "steps=20,over=1.5")
    assert 1.2 < partial.output_tokens_per_second / whole.output_tokens_per_second < 1.6


def test_equal_steps_take_as_long_as_one_of_them() -> None:
    one, four = steps(EVEN, None), steps(EVEN, "4")
    assert four.requests_per_second == pytest.approx(one.requests_per_second, rel=0.02)


def test_weights_come_between_steps() -> None:
    without, with_them = (256 * 4 / steps(EVEN, given).requests_per_second for given in ("4", "steps=4,sync=10s"))
    assert with_them - without == pytest.approx(30, rel=0.01)


@pytest.mark.parametrize("given", ["0", "steps=2,over=0.5", "steps=2,more=3", "steps=x", "2001", "", "steps=2,steps=3"])
def test_steps_that_are_none_are_refused(given: str) -> None:
    with pytest.raises(RooflineError):
        steps(EVEN, given)


def test_rollouts_are_steps_of_an_offline_load() -> None:
    with pytest.raises(RooflineError, match="offline"):
        serve(EVEN, rate=2.0, rollouts="4")
