"""Break-even points: the crossing is found to its tolerance, in fewer evaluations than halving takes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.advisor.search import breakeven
from roofline.advisor.search.breakeven import CLOSE, BreakEven, crossing
from roofline.advisor.search.goal import Goal, Objective
from roofline.advisor.search.moves import technique_move
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.scenario import Scenario
from roofline.techniques import check_request


@given(st.floats(0.05, 4.0), st.floats(0.2, 6.0), st.floats(1.001, 10.0))
def test_a_crossing_lies_within_its_tolerance(root: float, power: float, beyond: float) -> None:
    def excess(value: float) -> float:
        return float(value**power - root**power)

    high = root * beyond
    found = crossing(excess, 0.0, high)
    assert found is not None
    assert excess(found) > 0
    assert excess(found * (1 - 1.01 * CLOSE)) <= 1e-12
    assert found <= high


def test_crossings_outside_of_the_range() -> None:
    assert crossing(lambda value: value + 1, 0.0, 3.0) is None
    assert crossing(lambda value: value - 5, 0.0, 3.0) == 3.0


def test_root_finding_takes_half_the_evaluations_of_bisection() -> None:
    # The gain of a draft: a time of which a part is divided by the tokens of a step.
    asked: list[float] = []

    def excess(tokens: float) -> float:
        asked.append(tokens)
        return 10.0 / (0.5 + 14.0 / tokens) - 1.01

    found = crossing(excess, 1.0, 3.5)
    assert found is not None
    assert math.isclose(found, 14.0 / (10.0 / 1.01 - 0.5), rel_tol=CLOSE)
    assert len(asked) <= 0.6 * math.log2(2.5 / (CLOSE * found))


def test_the_request_itself_is_worked_out_once_for_all_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    request = Scenario("llama-3.1-8b", "h100-sxm", batch=4, prompt=512, generate=64)
    asked: list[tuple[bool, list[int]]] = []

    def counted(scenario: Scenario) -> Analysis:
        asked.append((bool(scenario.techniques), np.atleast_1d(scenario.batch).astype(int).tolist()))
        return analyze(scenario)

    monkeypatch.setattr(breakeven, "analyze", counted)
    both = BreakEven(request, Goal(Objective.TPOT))
    found = [both.conditions(technique_move(check_request(name))) for name in ("awq", "fp8")]
    plain = [batch for changed, batches in asked if not changed for batch in batches]
    assert len(plain) == len(set(plain)) > breakeven.POINTS / 2
    alone = [BreakEven(request, Goal(Objective.TPOT)).conditions(technique_move(check_request("fp8")))]
    assert found[1:] == alone
