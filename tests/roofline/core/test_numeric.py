"""Functions of single numbers are NumPy's."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from roofline.core import numeric

NUMBERS = (numpy.float64(-1.5), numpy.float64(0.0), 2.0, 3)


@pytest.mark.parametrize("name", ["minimum", "maximum"])
@pytest.mark.parametrize("first", [*NUMBERS, numpy.array([1.0, -4.0])])
@pytest.mark.parametrize("second", NUMBERS)
def test_functions_of_two(name: str, first: Any, second: Any) -> None:
    numpy.testing.assert_array_equal(getattr(numeric, name)(first, second), getattr(numpy, name)(first, second))


@pytest.mark.parametrize("condition", [True, numpy.False_, numpy.array([True, False])])
def test_a_choice(condition: Any) -> None:
    for first, second in ((2.0, 3), (numpy.float64(1.0), numpy.array([4.0, 5.0]))):
        found = numeric.where(condition, first, second)
        numpy.testing.assert_array_equal(found, numpy.where(condition, first, second))


@pytest.mark.parametrize("value", [True, False, 2.0, numpy.float64(3.0), numpy.array([0.0, 1.0])])
def test_flags_and_numbers_have_numpys_functions(value: Any) -> None:
    flag = numeric.asarray(value) > 1
    numpy.testing.assert_array_equal(numeric.logical_not(flag), ~numpy.asarray(numpy.asarray(value) > 1))
    assert numeric.any(flag) == numpy.any(flag)
    assert numeric.all(flag) == numpy.all(flag)
    numpy.testing.assert_array_equal(numeric.clip(value, 0.5, 2.5), numpy.clip(value, 0.5, 2.5))


def test_a_fraction_of_nothing_is_zero() -> None:
    assert numeric.fraction(1.0, 0.0) == 0
    numpy.testing.assert_array_equal(numeric.fraction(numpy.ones(2), numpy.array([0.0, 4.0])), [0.0, 0.25])
