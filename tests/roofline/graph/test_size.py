"""Symbolic sizes: a ring homomorphism to numbers and arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roofline.graph.size import ZERO, Size, as_size, product, symbol, total

X, Y = symbol("x"), symbol("y")
small = st.integers(-5, 5)
polynomials = st.recursive(
    st.one_of(st.sampled_from([X, Y, ZERO]), small.map(as_size)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: pair[0] + pair[1]),
        st.tuples(inner, inner).map(lambda pair: pair[0] * pair[1]),
    ),
    max_leaves=6,
)


@given(polynomials, polynomials, small, small)
def test_evaluation_commutes_with_arithmetic(left: Size, right: Size, x: int, y: int) -> None:
    at = {"x": x, "y": y}
    assert (left + right).evaluate(at) == left.evaluate(at) + right.evaluate(at)
    assert (left * right).evaluate(at) == left.evaluate(at) * right.evaluate(at)
    assert (left * 3).evaluate(at) == 3 * left.evaluate(at)
    assert (left / 2).evaluate(at) == left.evaluate(at) / 2


@given(polynomials, polynomials)
def test_equal_polynomials_are_equal_and_hash_alike(left: Size, right: Size) -> None:
    assert left + right == right + left
    assert hash(left * right) == hash(right * left)
    assert left + ZERO == left
    assert total([left, right]) == left + right


def test_arrays_broadcast() -> None:
    at = {"x": np.array([[1], [2]]), "y": np.array([10, 20, 30])}
    assert (X * Y + 1).evaluate(at).tolist() == [[11, 21, 31], [21, 41, 61]]


def test_product_of_a_shape() -> None:
    assert product((X, 4, Y, 8)) == 32 * X * Y
    assert product(()) == 1
    assert repr(2 * X * Y + 3) == "2*x*y + 3"
