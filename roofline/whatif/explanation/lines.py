"""Lines: steps of an explanation, each a formula whose numbers evaluate to its value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct


class Line(Struct, frozen=True):
    """One step: a formula, the same with numbers, and its value in `unit`."""

    name: str
    formula: str
    substituted: str
    value: float
    unit: str


class Margin(Struct, frozen=True):
    """The bound of a metric, the next longest roof, and the ratio of their times."""

    bound: str
    next: str
    ratio: float | None


def shown(value: float) -> str:
    """The text of a number in a formula: integers whole, others with ten digits."""
    number = float(value)
    return str(int(number)) if number.is_integer() and abs(number) < 1e15 else f"{number:.10g}"


def evaluate(substituted: str) -> float:
    """The value of a formula with numbers: arithmetic, `min` and `max`."""
    return float(eval(substituted, {"__builtins__": {}}, {"min": min, "max": max}))  # noqa: S307 - numbers of ours


def line(name: str, formula: str, substituted: str, unit: str = "s") -> Line:
    """The step whose value is `substituted`, evaluated."""
    return Line(name, formula, substituted, evaluate(substituted), unit)


def total(values: Iterable[float]) -> str:
    """The formula of a sum of values."""
    return " + ".join(shown(value) for value in values) or "0"


def last(lines: Sequence[Line]) -> str:
    """The value of the last line in a formula."""
    return shown(lines[-1].value)


def plain(value: Any) -> float:
    """The first value of an array, or a number."""
    return float(np.ravel(value)[0])
