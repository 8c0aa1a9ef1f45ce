"""Root bracketing: within the tolerance, in fewer evaluations than bisection."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.core.search import bracket_root, integer_geomspace


@given(
    st.floats(-50, 50), st.floats(0.1, 9.0), st.floats(1e-6, 1.0), st.sampled_from([1.0, 3.0, 0.2]), st.floats(0.1, 80)
)
def test_bracket_contains_the_root(root, power, width, scale, reach) -> None:
    def excess(value: float) -> float:
        return math.copysign(abs(value - root) ** power, value - root) * scale

    low, high = root - 100 + reach, root + reach
    start, stop = bracket_root(excess, low, high, excess(low), excess(high), absolute=width)
    assert low <= start <= stop <= high
    assert stop - start <= width
    assert excess(start) <= 0 < excess(stop)


def test_relative_tolerance() -> None:
    start, stop = bracket_root(lambda value: value - 1000.25, 1.0, 1e6, -999.25, 1e6 - 1000.25, relative=1e-4)
    assert start <= 1000.25 < stop <= start + 0.11


@pytest.mark.parametrize("above", [math.inf, 1.0])
def test_non_finite_values_are_bisected(above: float) -> None:
    """The wait of an overloaded queue is infinite."""
    evaluated: list[float] = []

    def excess(value: float) -> float:
        evaluated.append(value)
        return math.inf if value >= 0.9 else 0.1 / (1 - value) - 0.8

    start, stop = bracket_root(excess, 0.0, 1.0, -0.7, above, absolute=1e-9)
    assert start <= 0.875 < stop
    assert len(evaluated) < 40


def test_fewer_evaluations_than_bisection() -> None:
    evaluated: list[float] = []

    def excess(value: float) -> float:
        evaluated.append(value)
        return 1 - 2 * (1 - value) ** 0.5

    bracket_root(excess, 0.0, 1.0, -1.0, 1.0, absolute=1e-6)
    assert len(evaluated) < 0.6 * math.log2(1e6)


@given(low=st.integers(1, 10**4), reach=st.integers(0, 10**6), points=st.integers(2, 60))
def test_integer_geomspace_is_strictly_increasing(low: int, reach: int, points: int) -> None:
    series = integer_geomspace(low, low + reach, points)
    assert series.dtype == np.int64
    assert (series[0], series[-1]) == (low, low + reach)
    assert (np.diff(series) > 0).all()
    assert series.size <= points
