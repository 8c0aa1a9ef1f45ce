"""Break-even points: the crossing is found to its tolerance, in fewer evaluations than halving takes."""

import math

from hypothesis import given
from hypothesis import strategies as st

from advisor.breakeven import CLOSE, crossing


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


def test_what_is_above_everywhere_crosses_nowhere_and_what_is_below_does_at_the_end() -> None:
    assert crossing(lambda value: value + 1, 0.0, 3.0) is None
    assert crossing(lambda value: value - 5, 0.0, 3.0) == 3.0


def test_it_takes_half_the_evaluations_of_halving() -> None:
    # The gain of a draft: a time of which a part is divided by the tokens of a step.
    asked: list[float] = []

    def excess(tokens: float) -> float:
        asked.append(tokens)
        return 10.0 / (0.5 + 14.0 / tokens) - 1.01

    found = crossing(excess, 1.0, 3.5)
    assert found is not None
    assert math.isclose(found, 14.0 / (10.0 / 1.01 - 0.5), rel_tol=CLOSE)
    assert len(asked) <= 0.6 * math.log2(2.5 / (CLOSE * found))
