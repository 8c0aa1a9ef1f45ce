"""Frontiers of serving: points, fronts, refusals; and their figure."""

from __future__ import annotations

import numpy as np
import pytest

from roofline import RooflineError, Scenario, load_hardware, load_model
from roofline.serving import Load, serve
from roofline.whatif.frontiers import USERS, Frontier, frontier
from roofline.whatif.study import make_study

MODEL = {"model": "llama-3.1-8b", "prompt": 500, "generate": 100}


@pytest.fixture(scope="module")
def found() -> Frontier:
    return frontier(make_study({"hw": "l40s,h100-sxm", "tp": "1,2", "batch": "1,8,64"}, price=2.0, **MODEL))


def test_points_are_steady_states_of_each_deployment(found: Frontier) -> None:
    assert len(found.points) == 2 * 2 * 3
    point = next(point for point in found.points if point.place == (1, 0) and point.concurrency == 8)
    scenario = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))
    (expected,) = serve(scenario, Load(500, 100, concurrency=8)).outcomes
    assert point.outcome.tpot.p50.mid == pytest.approx(expected.tpot.p50.mid)
    assert point.cost == pytest.approx(2.0 / 3600 / expected.output_tokens_per_second * 1e6)


def test_no_point_dominates_one_of_the_front(found: Frontier) -> None:
    for cost in (False, True):
        user, other = found.values(cost)
        gain = -other if cost else other
        best = found.front(np.ones(user.size, bool), cost)
        assert (np.diff(user[best]) > 0).all()
        assert (np.diff(gain[best]) < 0).all()
        for row in best:
            assert not ((user > user[row]) & (gain > gain[row])).any()


def test_deployments_that_cannot_run_are_counted() -> None:
    found = frontier(make_study({"hw": "rtx-4090,h100-sxm"}, model="qwen3-32b", prompt=100, generate=20))
    assert {point.place for point in found.points} == {(1,)}
    assert len(found.points) == len(USERS)
    assert "does not fit" in next(iter(found.refused))


@pytest.mark.parametrize(
    ("over", "message"),
    [
        ({"hw": "rtx-4090"}, "no deployment of the study runs"),
        ({"hw": "h200-sxm", "prompt": "1,2"}, "one workload: prompt"),
    ],
)
def test_a_frontier_that_cannot_be(over: dict[str, str], message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        frontier(make_study(over, model="llama-3.1-70b", generate=10))
