"""Fleets over a day: conservation of requests, limits of replicas, and what start-up, spot loss and zero do."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest

from roofline import Scenario
from roofline.core.errors import RooflineError
from roofline.serving.fleet import DAY, STEP, FleetRun, Scaling, run_fleet
from roofline.serving.load import Trace
from tests.conftest import Run

SCENARIO = Scenario("llama-3.1-8b", "h100-sxm", prompt=1024, generate=256)


@cache
def day(scaling: Scaling, peak: float = 120.0, low: float = 0.2, seed: int = 0) -> FleetRun:
    return run_fleet(SCENARIO, scaling, rate=peak, low=low, seed=seed, ttft=1.0, tpot=0.04)


def test_enough_replicas_all_day_miss_what_a_steady_state_does() -> None:
    found = day(Scaling(10, 10), peak=100.0, low=1.0)
    (each,) = {found.curve.replica.devices}
    assert (found.devices == 10 * each).all()
    assert not found.queue.any()
    part = 10.0 / (found.curve.outcomes[0].saturated_at or 0)
    good = [(each.goodput or 0) / each.requests_per_second for each in found.curve.outcomes]
    parts = [each.requests_per_second / (found.curve.outcomes[0].saturated_at or 1) for each in found.curve.outcomes]
    assert found.missed_share == pytest.approx(1 - np.interp(part, parts, good), abs=0.01)


def test_replicas_follow_the_rate() -> None:
    found = day(Scaling(1, 10))
    assert found.serving.min() >= 1
    assert (found.serving + found.starting).max() <= 10
    assert np.corrcoef(found.rate, found.serving)[0, 1] > 0.95
    assert found.usd is not None
    assert found.usd[0] < found.usd[1]


@pytest.mark.slow
def test_a_slower_start_and_lost_replicas_miss_more() -> None:
    quick, slow = (day(Scaling(1, 10, 0.97, startup=seconds)) for seconds in (60.0, 1200.0))
    lossy = day(Scaling(1, 10, 0.97, loss=0.5))
    assert quick.missed_share < slow.missed_share
    assert lossy.missed_share > day(Scaling(1, 10, 0.97)).missed_share
    expected = 0.5 / 3600 * STEP * float(lossy.serving.sum())
    assert lossy.lost == pytest.approx(expected, abs=4 * np.sqrt(expected))


def test_too_few_replicas_fall_behind_by_what_they_do_not_serve() -> None:
    found = day(Scaling(2, 2), peak=60.0, low=1.0)
    most = 2 * (found.curve.outcomes[0].saturated_at or 0)
    assert found.queue[-1] == pytest.approx((60.0 - most) * DAY, rel=0.01)
    assert 0.99 < found.missed_share <= 1.0


def test_no_replicas_without_requests() -> None:
    trace = Trace((0.0, 10.0, 40_000.0, 60_000.0), (1024,) * 4, (256,) * 4)
    found = run_fleet(SCENARIO, Scaling(0, 2, startup=100.0, hold=600.0), trace=trace, ttft=1.0)
    assert found.serving[1000:3000].max() == 0
    # Each request but the first two finds no replica, and waits for its start.
    assert found.queue.max() >= 1
    assert float((found.serving + found.starting).mean()) < 0.2


def test_ends_are_checked() -> None:
    for arguments in ({}, {"rate": 5.0}, {"rate": 5.0, "ttft": 1.0, "low": 2.0}):
        with pytest.raises(RooflineError):
            run_fleet(SCENARIO, Scaling(), **arguments)  # type: ignore[arg-type]
    for wrong in ({"least": 3, "most": 2}, {"share": 0.0}):
        with pytest.raises(RooflineError):
            Scaling(**wrong)  # type: ignore[arg-type]


def test_the_command(run: Run) -> None:
    asked = ("fleet", "llama-3.1-8b", "h100-sxm", "--rate", "50", "--low", "0.2", "--ttft", "1s")
    status, out, _ = run(*asked)
    assert status == 0
    assert "miss their targets" in out
    document = json.loads(run(*asked, "--format", "json")[1])
    assert len(document["points"]) == 288
    assert run(*asked, "--replicas", "five")[0] == 2
