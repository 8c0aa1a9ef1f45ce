"""Conditions: evaluated like the same Python expression; everything else is rejected."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline.core.errors import RooflineError
from roofline.core.expressions import UNITS, Type, parse_condition, parse_expression

TYPES = {"x": Type.NUMBER, "y": Type.NUMBER, "fits": Type.TRUTH, "hw": Type.TEXT, "ttft.high": Type.NUMBER}
TYPES |= {"with": Type.TEXT, "within": Type.NUMBER}
VALUES: dict[str, Any] = {"x": 3.0, "y": -2.5, "fits": True, "hw": "h100-sxm", "ttft.high": 0.25, "with": "eagle"}
VALUES |= {"within": 1.0}

numbers = st.one_of(
    st.sampled_from(["x", "y"]),
    st.integers(0, 10**6).map(str),
    st.floats(0, 1e6, allow_subnormal=False).map(repr),
)
arithmetic = st.recursive(
    numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda part: f"-{part}"),
        inner.map(lambda part: f"({part}) / 7"),
    ),
    max_leaves=6,
)
comparisons = st.one_of(
    st.tuples(arithmetic, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), arithmetic).map(" ".join),
    st.tuples(numbers, numbers, numbers).map(lambda parts: f"{parts[0]} < {parts[1]} <= {parts[2]}"),
    st.sampled_from(["fits", "True", 'hw == "h100-sxm"', "hw != 'a6000'", 'hw in ("a6000", "h100-sxm")']),
    st.sampled_from(["x in [1, 3]", "y not in (x, 2)"]),
)
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(lambda parts: f"({' '.join(parts)})"),
        inner.map(lambda part: f"not ({part})"),
    ),
    max_leaves=6,
)


@given(conditions)
def test_conditions_agree_with_python(text: str) -> None:
    assert bool(parse_condition(text, TYPES)(VALUES)) is bool(eval(text, {}, VALUES))


@given(arithmetic)
def test_arithmetic_agrees_with_python(text: str) -> None:
    expression = parse_expression(text, TYPES)
    assert expression.type is Type.NUMBER
    assert float(expression(VALUES)) == float(eval(text, {}, VALUES))


@given(conditions, st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9), st.booleans()), min_size=1, max_size=8))
def test_arrays_are_evaluated_elementwise(text: str, rows: list[tuple[float, float, bool]]) -> None:
    x, y, fits = (np.array(column) for column in zip(*rows, strict=True))
    condition = parse_condition(text, TYPES)
    whole = np.broadcast_to(condition({**VALUES, "x": x, "y": y, "fits": fits}), (len(rows),))
    single = [bool(condition({**VALUES, "x": a, "y": b, "fits": c})) for a, b, c in rows]
    assert whole.tolist() == single


@pytest.mark.parametrize("unit", UNITS)
def test_numbers_with_units_are_in_base_units(unit: str) -> None:
    expected = 2.5 * UNITS[unit]
    assert parse_expression(f"2.5{unit}", {})({}) == expected
    assert parse_expression(f"1 + 2.5 {unit}", {})({}) == 1 + expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("ttft.high < 300ms", True),
        ("ttft.high<250ms", False),
        ("x < 80GB and fits", True),
        ("with == 'eagle'", True),
        ("with != 'with'", True),
        ("within == 1", True),
        ("x * 1000 == 3k and x * 1024 == 3K", True),
        ('hw == "30ms"', False),
        ("not fits or 1e3 > 999", True),
        ("x not in (1, 2)", True),
        ("0 < x / 1.5 < 3", True),
    ],
)
def test_condition_examples(text: str, value: bool) -> None:
    assert bool(parse_condition(text, TYPES)(VALUES)) is value


def test_names_of_a_condition() -> None:
    assert parse_condition("fits and ttft.high < x", TYPES).names == {"fits", "ttft.high", "x"}


def test_division_by_zero_is_ieee_754() -> None:
    assert not parse_condition("1 / (x - 3) < 5", TYPES)(VALUES)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["cannot read"]),
        ("x = 3", ["cannot read"]),
        ("fit", ["unknown name", "'fits'"]),
        ("x", ["a number, not a condition"]),
        ("fits < 3", ["fits is true or false and 3 is a number"]),
        ("x + fits < 3", ["'fits' is true or false where a number is needed"]),
        ("x % 2 == 1", ["not part"]),
        ("().__class__", ["no name"]),
        ("[fits for x in (1,)]", ["not part"]),
        ("x is 3", ["comparison"]),
        ("x < 1j", ["no number"]),
        ("fits := True", ["cannot read"]),
        ("(" * 300 + "x" + ")" * 300 + " < 1", ["cannot read"]),
        ("x + " * 900 + "x < 1", ["nested too deeply"]),
        ("x" * 5000, ["5000 characters"]),
    ],
)
def test_unsupported_syntax_is_rejected(text: str, words: list[str]) -> None:
    with pytest.raises(RooflineError) as caught:
        parse_condition(text, TYPES)
    assert [word for word in words if word not in str(caught.value)] == []
