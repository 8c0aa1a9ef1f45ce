"""Fleets of sessions: Little's law, what a lost cache costs, and the limits of replicas."""

from __future__ import annotations

import json
import math
from typing import NamedTuple, cast

import numpy as np
import pytest

from roofline import Scenario
from roofline.core.errors import RooflineError
from roofline.serving import fleet
from roofline.serving.fleet import MET, STEP, Holding, Scaling, holding, run_fleet, run_sessions
from roofline.serving.sessions.deployed import deployed_of
from roofline.serving.sessions.served import SessionCurve
from roofline.serving.sessions.theory import Theory
from tests.conftest import Run

SCENARIO = Scenario("llama-3.1-8b", "h100-sxm")
TTFT, HOURS = 1.0, 6

HELD = Holding(
    cast("SessionCurve", None),
    np.array([0.0, 10.0, 20.0, 40.0]),
    np.array([0.0, 0.02, 0.04, 0.05]),
    np.array([1.0, 1.0, MET, 0.2]),
    most=20.0,
    moving=3.0,
)
"""Sessions of 500 s, up to 20 of them a replica."""


class Ran(NamedTuple):
    """Replicas that serve in each step, the part of turns that misses, and replicas lost."""

    serving: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
    missed: float
    lost: int


def hours(full: float, scaling: Scaling, one: Holding = HELD, seed: int = 0) -> Ran:
    """Some hours of the rate that keeps so many replicas full."""
    rates = np.full(round(HOURS * 3600 / STEP), full * one.most / one.lasting)
    serving, _, _, missed, lost = run_sessions(rates, one, TTFT, scaling, np.random.default_rng(seed))
    return Ran(serving, float(missed.sum() / rates.sum() / STEP), lost)


def test_sessions_at_a_time_are_as_many_as_little_says() -> None:
    assert pytest.approx(500.0) == HELD.lasting
    found = hours(3.0, Scaling(1, 30, share=0.8, hold=60.0))
    # The autoscaler rounds up, and follows peaks of a minute.
    assert 3.0 / 0.8 <= found.serving[1000:].mean() <= 3.0 / 0.8 + 1.5
    assert found.missed < 1 - MET


def test_what_a_lost_cache_costs_and_a_shared_store_saves() -> None:
    fixed, lossy = Scaling(5, 5, startup=60.0), Scaling(5, 5, startup=60.0, loss=2.0)
    kept = hours(3.0, fixed)
    assert (kept.serving == 5).all()
    assert kept.lost == 0
    found = hours(3.0, lossy)
    assert found.lost == pytest.approx(5 * 2.0 * HOURS, rel=0.4)
    assert found.missed > kept.missed
    shared = hours(3.0, lossy, HELD._replace(moving=0.1))
    assert kept.missed <= shared.missed < found.missed


def test_replicas_stay_within_limits_and_too_few_miss_most() -> None:
    few, enough = hours(6.0, Scaling(1, 2)), hours(6.0, Scaling(1, 20))
    assert few.serving.max() <= 2
    assert few.missed > 0.5 > enough.missed


def test_replicas_share_the_stores_of_connectors() -> None:
    """One that is each replica's own has no context of a session that comes from another."""

    def moving(tiers: str) -> float:
        asked = {"tiers": tiers, "turns": 6, "first": "30k", "new": "1k", "gap": "5s"}
        deployed = deployed_of(SCENARIO.with_(engine="sglang"), None, asked)
        return fleet._moving(deployed, Theory(deployed), 10)

    own, local, remote = (
        moving(f"dram=100GB{store}") for store in ("", ",nixl=10TB:bandwidth=20GB/s", ",mooncake=10TB")
    )
    assert remote < local == own
    assert moving("dram=100GB,nixl=10TB:bandwidth=20GB/s:shared=true") < own


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steady states at two numbers of sessions: each is a simulation."""
    monkeypatch.setattr(fleet, "SESSION_PARTS", (0.1, 2.0))


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_session_that_moves_is_computed_again_or_loaded() -> None:
    shape = {"turns": 6, "first": "30k", "new": "1k", "gap": "5s"}
    alone = holding(SCENARIO, (3.0, math.inf), shape)
    shared = holding(SCENARIO, (3.0, math.inf), {**shape, "tiers": "remote=10TB:bandwidth=100GB/s"})
    assert shared.moving < alone.moving / 2
    small = holding(SCENARIO, (3.0, math.inf), {**shape, "tiers": "remote=10GB:bandwidth=100GB/s"})
    assert shared.moving < small.moving < alone.moving  # one that holds a part of the contexts
    # About the time that a prompt of its context takes.
    assert alone.moving == pytest.approx(alone.curve.replica.steps.seconds(0.0, 0.0, 33_000.0, 0.0), rel=0.5)
    assert np.interp(alone.most, alone.sessions, alone.good) >= MET - 0.02
    with pytest.raises(RooflineError, match="misses the targets"):
        holding(SCENARIO, (1e-3, math.inf), shape)


@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_the_day_and_the_command(run: Run) -> None:
    with pytest.raises(RooflineError, match="target"):
        run_fleet(SCENARIO, session_rate=0.1, profile="chat")
    with pytest.raises(RooflineError, match="rate alone"):
        run_fleet(SCENARIO, rate=3.0, session_rate=0.1, ttft=1.0)
    shape = ("--turns", "6", "--first", "30k", "--new", "1k", "--gap", "5s")
    asked = ("fleet", "llama-3.1-8b", "h100-sxm", "--session-rate", "0.5", *shape, "--ttft", "3s")
    status, out, error = run(*asked, "--format", "json")
    assert status == 0, error
    document = json.loads(out)
    assert document["of"] == "sessions"
    assert document["sessions"] == pytest.approx(0.5 * 86_400)
    assert len(document["points"]) == 288
