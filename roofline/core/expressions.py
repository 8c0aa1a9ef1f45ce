"""Conditions over the axes and metrics of a study: `fits and ttft < 500ms and quant != "W4"`.

Comparisons, and/or/not, in, parentheses, + - * /, numbers with or without units (30ms, 80GB, 32k), and quoted text. The
text is parsed with Python's grammar, each AST node is checked against an allow-list, and the result is a function over
arrays: the text is never evaluated.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Collection, Mapping
from enum import StrEnum
from functools import reduce
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import BINARY, BINARY_COUNTS, DECIMAL, DECIMAL_COUNTS, SUBMULTIPLES

MAX_CHARACTERS, MAX_DEPTH = 4000, 100
"""The longest expression, and its deepest nesting: far beyond what a person writes, within Python's recursion limit."""

EXAMPLE = "'fits and ttft < 500ms'"

UNITS: Mapping[str, float] = {
    **{f"{prefix}s": factor for prefix, factor in {"": 1.0, **SUBMULTIPLES}.items()},
    "min": 60.0,
    **{f"{prefix}B": factor for prefix, factor in {**DECIMAL, **BINARY}.items()},
    "%": 0.01,
    **DECIMAL_COUNTS,
    **BINARY_COUNTS,
}
"""Units that may follow a number, in base units; 32k and 128K as in `roofline.core.units.parse_count`."""

_LITERAL = re.compile(
    r"""(?P<text>"[^"]*"|'[^']*')|(?<![\w.])(?P<word>with)(?!\w)|(?<![\w.])(?P<number>\d+(?:_\d+)*(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?)"""
    rf"""(?:\s*(?P<unit>{"|".join(sorted(map(re.escape, UNITS), key=len, reverse=True))})(?!\w))?""",
    re.ASCII,
)

_WITH = "with_"


Values = Mapping[str, Any]
Function = Callable[[Values], Any]


class Type(StrEnum):
    """The type of a name or subexpression."""

    NUMBER = "a number"
    TRUTH = "true or false"
    TEXT = "text"


class Expression(Struct, frozen=True):
    """A parsed expression: its text, the names in it, and its type."""

    text: str
    names: frozenset[str]
    type: Type
    _function: Function

    def __call__(self, values: Values) -> Any:
        """Evaluate for numbers or arrays by name; division by zero follows IEEE 754."""
        with np.errstate(all="ignore"):
            return self._function(values)


_ARITHMETIC: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
}
_COMPARISONS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def parse_condition(text: str, types: Mapping[str, Type], times: Collection[str] = ()) -> Expression:
    """Parse a condition over names of these types; `times` are compared with numbers that have their unit.

    Raises RooflineError for a syntax or type error or a result that is not a condition, UnknownNameError for a name
    that is not in `types`.
    """
    expression = parse_expression(text, types, times)
    if expression.type is not Type.TRUTH:
        raise RooflineError(f"{quote(text)} is {expression.type}, not a condition; write it like {EXAMPLE}")
    return expression


def parse_expression(text: str, types: Mapping[str, Type], times: Collection[str] = ()) -> Expression:
    """Parse an expression over names of these types; raises RooflineError like `parse_condition`."""
    if len(text) > MAX_CHARACTERS:
        raise RooflineError(f"the expression has {len(text)} characters; at most {MAX_CHARACTERS} are allowed")
    try:
        tree = ast.parse(_plain(text).strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise RooflineError(f"cannot read the expression {quote(text)}; write it like {EXAMPLE}") from None
    reader = _Reader(text, types, times)
    kind, function = reader.read(tree.body)
    return Expression(text, frozenset(reader.names), kind, function)


def _plain(text: str) -> str:
    """The text with numbers in base units, with a sign where they had a unit, and the keyword `with` as a name."""

    def literal(match: re.Match[str]) -> str:
        if match["word"]:
            return _WITH
        if match["unit"] is None:
            return match[0]
        return f"+{float(match['number']) * UNITS[match['unit']]!r}"

    return _LITERAL.sub(literal, text)


class _Reader:
    """Compiles AST nodes into functions and checks their types."""

    def __init__(self, text: str, types: Mapping[str, Type], times: Collection[str]) -> None:
        self.text = text
        self.times = times
        self.types = types
        self.names: set[str] = set()
        self._depth = 0

    def read(self, node: ast.expr) -> tuple[Type, Function]:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise RooflineError("the expression is nested too deeply")
        try:
            return self._read(node)
        finally:
            self._depth -= 1

    def _read(self, node: ast.expr) -> tuple[Type, Function]:
        match node:
            case ast.Constant(value):
                return self._constant(value)
            case ast.Name() | ast.Attribute():
                return self._name(node)
            case ast.BoolOp(op, parts):
                return self._combined([self._typed(Type.TRUTH, part) for part in parts], every=isinstance(op, ast.And))
            case ast.UnaryOp(ast.Not(), part):
                truth = self._typed(Type.TRUTH, part)
                return Type.TRUTH, lambda values: np.logical_not(truth(values))
            case ast.UnaryOp(ast.USub(), part):
                number = self._typed(Type.NUMBER, part)
                return Type.NUMBER, lambda values: np.negative(number(values))
            case ast.UnaryOp(ast.UAdd(), part):
                return Type.NUMBER, self._typed(Type.NUMBER, part)
            case ast.BinOp(left, op, right) if type(op) in _ARITHMETIC:
                apply, a, b = _ARITHMETIC[type(op)], self._typed(Type.NUMBER, left), self._typed(Type.NUMBER, right)
                return Type.NUMBER, lambda values: apply(a(values), b(values))
            case ast.Compare(left, ops, others):
                parts = [left, *others]
                pairs = [self._comparison(op, parts[index], parts[index + 1]) for index, op in enumerate(ops)]
                return self._combined(pairs, every=True)
        raise RooflineError(
            f"{quote(self._shown(node))} is not part of expressions, which support comparisons, and, or, not, in,"
            " parentheses, + - * /, numbers with units, quoted text and names"
        )

    def _constant(self, value: object) -> tuple[Type, Function]:
        if isinstance(value, bool):
            return Type.TRUTH, lambda _: value
        if isinstance(value, str):
            return Type.TEXT, lambda _: value
        try:
            number = float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            raise RooflineError(f"the expression has {quote(value)}, which is no number") from None
        return Type.NUMBER, lambda _: number

    def _name(self, node: ast.expr) -> tuple[Type, Function]:
        name = self._dotted(node)
        if name not in self.types:
            raise UnknownNameError("name in the expression:", name, self.types)
        self.names.add(name)
        return self.types[name], lambda values: values[name]

    def _dotted(self, node: ast.expr) -> str:
        """A name, or a name with an interval end such as ttft.high."""
        match node:
            case ast.Name(name):
                return "with" if name == _WITH else name
            case ast.Attribute(inner, name) if isinstance(inner, (ast.Name, ast.Attribute)):
                return f"{self._dotted(inner)}.{name}"
        raise RooflineError(f"{quote(self._shown(node))} is no name")

    def _combined(self, parts: list[Function], *, every: bool) -> tuple[Type, Function]:
        join = np.logical_and if every else np.logical_or
        return Type.TRUTH, lambda values: reduce(join, (part(values) for part in parts))

    def _comparison(self, op: ast.cmpop, left: ast.expr, right: ast.expr) -> Function:
        if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, (ast.Tuple, ast.List)):
            if not right.elts:
                raise RooflineError(f"{quote(self.text)} tests membership in an empty list")
            _, among = self._combined([self._comparison(ast.Eq(), left, entry) for entry in right.elts], every=False)
            return among if isinstance(op, ast.In) else (lambda values: np.logical_not(among(values)))
        if type(op) not in _COMPARISONS:
            raise RooflineError(f"{quote(self.text)} has a comparison other than < <= > >= == != in")
        compare, (kind, a), (other, b) = _COMPARISONS[type(op)], self.read(left), self.read(right)
        self._check_unit(left, right)
        self._check_unit(right, left)
        if kind is not other:
            what = f"{self._shown(left)} is {kind} and {self._shown(right)} is {other}"
            raise RooflineError(f"cannot compare in {quote(self.text)}: {what}")
        if kind is not Type.NUMBER and not isinstance(op, (ast.Eq, ast.NotEq)):
            raise RooflineError(f"{self._shown(left)} is {kind}, which is compared with == and != only")
        return lambda values: compare(a(values), b(values))

    def _check_unit(self, name: ast.expr, number: ast.expr) -> None:
        """Raise RooflineError for a time that is compared with a bare number; one with a unit has a sign."""
        if not isinstance(name, (ast.Name, ast.Attribute)) or self._dotted(name) not in self.times:
            return
        if isinstance(number, ast.Constant) and isinstance(number.value, (int, float)) and number.value:
            metric, bare = self._dotted(name), self._shown(number)
            raise RooflineError(f"{metric} needs a unit of time in {quote(self.text)}: write {bare}ms or {bare}s")

    def _typed(self, kind: Type, node: ast.expr) -> Function:
        found, function = self.read(node)
        if found is not kind:
            hint = "; compare it with a value" if kind is Type.TRUTH else ""
            raise RooflineError(f"{quote(self._shown(node))} is {found} where {kind} is needed{hint}")
        return function

    def _shown(self, node: ast.AST) -> str:
        return " ".join(ast.unparse(node).replace(_WITH, "with").split())[:60]
