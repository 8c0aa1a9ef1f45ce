"""Unequal replicas of one model behind a router."""

import pytest

from roofline import Scenario, serve
from roofline.core.errors import RooflineError
from roofline.serving.outcome import Outcome

LENGTHS = {"prompt": 128, "generate": 64}


def outcome(hardware: str, rate: float, **options: object) -> Outcome:
    own = {name: options.pop(name) for name in ("dp", "tp", "techniques") if name in options}
    scenario = Scenario("llama-2-70b", hardware, **LENGTHS, **own)  # type: ignore[arg-type]
    return serve(scenario, rate=rate, simulate=300, policy="balanced", **options).outcomes[0]  # type: ignore[arg-type]


def test_equal_replicas_beside_are_those_of_data_parallelism() -> None:
    one, other = outcome("a6000", 4.0, tp=4, dp=3), outcome("4xa6000", 4.0, beside="2*4xa6000")
    assert (one.devices, one.ttft, one.e2e) == (other.devices, other.ttft, other.e2e)


def test_a_pool_divided_by_kind_answers_sooner_than_stages_of_all_kinds() -> None:
    """Up to 1.8 times lower deadlines than symmetric parallelism on the same GPUs (README of HexGen's code)."""
    apart = outcome("a6000", 8.0, tp=4, dp=2, beside="8xa5000,2*8xrtx-3090-ti")
    mixed = outcome("2xa6000+2xa5000+4xrtx-3090-ti", 8.0, dp=4, techniques=["hexgen"])
    assert apart.devices == mixed.devices == 32
    assert 1.1 < mixed.e2e.p99.mid / apart.e2e.p99.mid < 1.9


def test_a_router_gives_the_faster_replica_more() -> None:
    """The rate of a slow and a fast replica together is served by both, and not by two slow ones."""
    slow, fast = (serve(Scenario("llama-2-70b", hw, **LENGTHS), rate=1.0).outcomes[0] for hw in ("4xa6000", "8xa6000"))
    assert slow.saturated_at is not None
    assert fast.saturated_at is not None
    both = outcome("4xa6000", 0.9 * (slow.saturated_at + fast.saturated_at), beside="8xa6000")
    alike = outcome("4xa6000", 0.9 * (slow.saturated_at + fast.saturated_at), beside="4xa6000")
    assert both.e2e.p95.mid < alike.e2e.p95.mid


@pytest.mark.parametrize(
    ("beside", "options"),
    [
        ("2*", {}),
        ("8xa500", {}),
        ("a6000", {}),
        ("8xa5000", {"policy": "llumnix"}),
        ("8xa5000", {"simulate": None}),
        ("8xa5000", {"disaggregation": "prefills=1,decodes=1"}),
    ],
)
def test_what_no_unequal_fleet_has_is_refused(beside: str, options: dict[str, object]) -> None:
    scenario = Scenario("llama-2-70b", "4xa6000", **LENGTHS)  # type: ignore[arg-type]
    asked = {"rate": 1.0, "simulate": 20, "policy": "balanced", "beside": beside} | options
    with pytest.raises(RooflineError):
        serve(scenario, **asked)  # type: ignore[arg-type]
