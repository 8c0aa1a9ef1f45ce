"""Several models on a fleet: which are where, and the search of a placement."""

from collections import Counter

import pytest

from roofline import Scenario, serve
from roofline.core.errors import RooflineError
from roofline.serving.replicas import placed

EIGHT = (1.0,) * 8
LOAD = {"rate": 8.0, "simulate": 1000, "burstiness": 1 / 16, "tenants": EIGHT, "ttft": 0.8}


@pytest.mark.parametrize("shares", [EIGHT, (6.0, 1.0, 1.0), tuple(range(1, 8))])
@pytest.mark.parametrize(("groups", "models"), [(8, 1), (4, 2), (5, 3), (8, 3)])
def test_models_are_on_replicas_by_their_requests(shares: tuple[float, ...], groups: int, models: int) -> None:
    found = placed(shares, groups, models)
    copies = Counter(model for group in found for model in group)
    assert [len(group) for group in found] == [models] * groups
    assert all(len(set(group)) == models for group in found)
    assert len(copies) == len(shares)
    assert copies[shares.index(max(shares))] >= max(copies.values()) - 1


@pytest.mark.slow
def test_a_searched_placement_serves_a_multiple_of_the_rate_of_replicas() -> None:
    """The same devices and models, bursts of a coefficient of variation of 4, five times the latency alone as target.

    Ten times the rate or six times the burstiness for 99% of the requests (AlpaServe, abstract).
    """
    model, hardware, lengths = "opt-2.7b", "v100-sxm2-16gb", {"prompt": 2047, "generate": 1}
    few = LOAD | {"rate": 1.0}
    replicas = serve(Scenario(model, hardware, dp=8, **lengths), **few, policy="alpaserve", models=2)
    searched = serve(Scenario(model, f"8x{hardware}", **lengths), **LOAD, policy="placement")
    shares = [curve.outcomes[0].goodput / curve.outcomes[0].requests_per_second for curve in (replicas, searched)]
    assert shares[1] > 0.99
    assert shares[1] >= shares[0]
    assert searched.replica.devices == 8
    assert max(searched.scenario.settings.parallel.tensor, searched.scenario.settings.parallel.pipeline) > 1


@pytest.mark.parametrize(
    ("hardware", "options"),
    [
        ("v100-sxm2-16gb", {"policy": "placement"}),  # one device has no room for eight models
        ("8xv100-sxm2-16gb", {"policy": "balanced", "models": 2}),
        ("8xv100-sxm2-16gb", {"policy": "alpaserve", "models": 9}),
    ],
)
def test_others_are_refused(hardware: str, options: dict[str, object]) -> None:
    with pytest.raises(RooflineError):
        serve(Scenario("opt-2.7b", hardware, prompt=512, generate=1), **LOAD, **options)
