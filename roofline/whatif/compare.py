"""Comparisons of scenarios, operator by operator.

A waterfall splits the difference of a metric between two scenarios by operator, matched by name; an operator of only
one scenario counts in full. The parts sum to the difference.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from roofline.core.display import repr_html
from roofline.scenario.analysis import Analysis
from roofline.scenario.breakdown import Breakdown, Reading, decode_breakdown, prefill_breakdown, steps

Metric = Literal["ttft", "tpot", "total"]

READINGS: tuple[Reading, ...] = ("expected", "bound", "bytes")
METRICS: tuple[Metric, ...] = ("ttft", "tpot", "total")


class Difference(Struct, frozen=True):
    """One operator in both scenarios: seconds or bytes, 0 if it does not run."""

    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


class Waterfall(Struct, frozen=True):
    """The difference of a metric: `differences`, the largest first, sum to `after - before`."""

    metric: Metric
    reading: Reading
    before: float
    after: float
    differences: tuple[Difference, ...]

    _repr_html_ = repr_html

    @property
    def change(self) -> float:
        """The whole difference."""
        return self.after - self.before


def breakdown(analysis: Analysis, metric: Metric, reading: Reading) -> Breakdown:
    """Time or bytes by operator: of prefill (`ttft`), the mean decode step (`tpot`) or the whole generation (`total`).

    The decode step is empty without decode steps. Names in the total have their phase as a prefix.
    """
    count = steps(analysis)
    if metric == "ttft" or (metric == "total" and not count):
        return prefill_breakdown(analysis, reading)
    if not count:
        return Breakdown({}, 0.0)
    decode = decode_breakdown(analysis, reading)
    if metric == "tpot":
        return decode
    prefill = prefill_breakdown(analysis, reading)
    parts = {f"prefill {name}": value for name, value in prefill.parts.items()}
    parts |= {f"decode {name}": value * count for name, value in decode.parts.items()}
    return Breakdown(parts, prefill.reference + count * decode.reference)


def waterfall(before: Analysis, after: Analysis, metric: Metric = "total", reading: Reading = "expected") -> Waterfall:
    """The difference of a metric between two scenarios, by operator."""
    first, second = breakdown(before, metric, reading), breakdown(after, metric, reading)
    names = dict.fromkeys((*first.parts, *second.parts))
    found = [Difference(name, first.parts.get(name, 0.0), second.parts.get(name, 0.0)) for name in names]
    ranked = sorted(found, key=lambda entry: -abs(entry.change))
    return Waterfall(metric, reading, first.reference, second.reference, tuple(ranked))


def readings(*analyses: Analysis) -> tuple[Reading, ...]:
    """The readings of all the scenarios: the llm-viewer convention has no expected times."""
    return READINGS if all(analysis.times_are_expected for analysis in analyses) else READINGS[1:]
