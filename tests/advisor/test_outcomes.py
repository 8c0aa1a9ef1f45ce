"""Outcomes: the best, the front and the nearest, as looking at every choice finds them."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.advisor.search.combine import Choice, Outcomes
from roofline.advisor.search.goal import Goal, Limits, Objective, Quality
from roofline.advisor.search.moves import technique_moves
from roofline.advisor.search.trials import Trial, Trials, level, names
from roofline.scenario.scenario import Scenario

NAMES = ("awq", "fp8", "smoothquant", "fp8-kv", "eagle", "llmlingua")
BATCHES = np.array([1, 4, 64, 512])


def trials(goal: Goal, prompt: int = 512) -> list[Trial]:
    request = Scenario("llama-3.1-8b", "h100-sxm", batch=BATCHES, prompt=prompt, generate=64)
    known = {move.name: move for move in technique_moves()}
    found = Trials(request, goal)
    pairs = [frozenset(known[name] for name in pair) for count in (0, 1, 2) for pair in combinations(NAMES, count)]
    return [trial for pair in pairs if (trial := found.attempt(pair)) is not None]


def within(choice: Choice) -> bool:
    return all(use <= 1 for use in choice.used.values())


def cost(choice: Choice, goal: Goal) -> float:
    return float(level(choice.value if goal.metric.better < 0 else 1 / choice.value))


@given(
    st.sampled_from([Objective.THROUGHPUT, Objective.TPOT, Objective.MEMORY, Objective.COST]),
    st.floats(1e-3, 1.0),
    st.sampled_from([512, 16384]),
)
def test_the_best_and_the_front_are_those_of_all_choices(objective: Objective, tpot: float, prompt: int) -> None:
    goal = Goal(objective, Limits(tpot=tpot), Quality.LOSSY)
    outcomes = Outcomes(trials(goal, prompt))
    choices = list(outcomes)
    feasible = [choice for choice in choices if within(choice)]
    ranked = sorted(feasible, key=lambda choice: (cost(choice, goal), len(choice.moves), names(choice.moves)))
    assert outcomes.best == (ranked[0] if ranked else None)
    front = outcomes.pareto
    for choice in feasible:
        less = choice.used["capacity"] * (1 + 1e-9)
        assert any(cost(one, goal) <= cost(choice, goal) and one.used["capacity"] <= less for one in front)
    for better, worse in pairwise(front):
        assert cost(better, goal) <= cost(worse, goal)
        assert better.used["capacity"] > worse.used["capacity"]
    assert all(within(choice) for choice in front)
    alone = [choice.used for choice in choices if sum(use > 1 for use in choice.used.values()) == 1]
    least = {name: min((use[name] for use in alone if use[name] > 1), default=None) for name in ("capacity", "tpot")}
    assert outcomes.nearest() == {name: use for name, use in least.items() if use is not None}
    together = [choice.broken.values() for choice in choices if choice.broken]
    assert max(outcomes.nearest_together().values(), default=0) == min(map(max, together), default=0)


def test_nothing_tried_has_no_best() -> None:
    nothing = Outcomes([])
    assert (nothing.best, nothing.pareto, list(nothing), nothing.nearest()) == (None, (), [], {})


@pytest.mark.parametrize("value", [0.0, 1.0, 123.456, -7e-12, 3e11])
def test_figures_that_differ_by_rounding_are_one_level(value: float) -> None:
    above = value * (1 + 2e-16)
    assert level(value) == level(above) == pytest.approx(value, rel=1e-9)
    assert value == 0 or level(value) != level(value * (1 + 1e-8))


def test_levels_of_what_is_not_finite() -> None:
    np.testing.assert_array_equal(level([np.inf, -np.inf, np.nan, 0.0]), [np.inf, -np.inf, np.nan, 0.0])


def test_equally_fast_formats_are_chosen_by_name() -> None:
    goal = Goal(Objective.TPOT, quality=Quality.CALIBRATED)
    chosen = Outcomes(trials(goal)).best
    assert chosen is not None
    assert "smoothquant" not in names(chosen.moves)
