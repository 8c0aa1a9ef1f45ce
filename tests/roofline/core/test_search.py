"""Edges of real variables: bracketed as closely as asked, in fewer evaluations than halving takes."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.core.search import narrowed, whole_series


@given(
    st.floats(-50, 50), st.floats(0.1, 9.0), st.floats(1e-6, 1.0), st.sampled_from([1.0, 3.0, 0.2]), st.floats(0.1, 80)
)
def test_the_edge_stays_between_the_ends(edge, power, width, scale, reach) -> None:
    def excess(value: float) -> float:
        return math.copysign(abs(value - edge) ** power, value - edge) * scale

    low, high = edge - 100 + reach, edge + reach
    start, stop = narrowed(excess, low, high, excess(low), excess(high), absolute=width)
    assert low <= start <= stop <= high
    assert stop - start <= width
    assert excess(start) <= 0 < excess(stop)


def test_a_width_may_be_relative() -> None:
    start, stop = narrowed(lambda value: value - 1000.25, 1.0, 1e6, -999.25, 1e6 - 1000.25, relative=1e-4)
    assert start <= 1000.25 < stop <= start + 0.11


@pytest.mark.parametrize("above", [math.inf, 1.0])
def test_what_is_not_finite_is_halved(above: float) -> None:
    """A queue beyond its ceiling waits for ever."""
    asked: list[float] = []

    def excess(value: float) -> float:
        asked.append(value)
        return math.inf if value >= 0.9 else 0.1 / (1 - value) - 0.8

    start, stop = narrowed(excess, 0.0, 1.0, -0.7, above, absolute=1e-9)
    assert start <= 0.875 < stop
    assert len(asked) < 40


def test_it_takes_half_the_evaluations_of_halving() -> None:
    asked: list[float] = []

    def excess(value: float) -> float:
        asked.append(value)
        return 1 - 2 * (1 - value) ** 0.5

    narrowed(excess, 0.0, 1.0, -1.0, 1.0, absolute=1e-6)
    assert len(asked) < 0.6 * math.log2(1e6)


@given(low=st.integers(1, 10**4), reach=st.integers(0, 10**6), points=st.integers(2, 60))
def test_a_series_of_whole_numbers_rises_from_end_to_end(low: int, reach: int, points: int) -> None:
    series = whole_series(low, low + reach, points)
    assert series.dtype == np.int64
    assert (series[0], series[-1]) == (low, low + reach)
    assert (np.diff(series) > 0).all()
    assert series.size <= points
