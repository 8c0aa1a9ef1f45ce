"""Comparisons of scenarios, operator by operator.

A waterfall splits the difference of a metric between two scenarios by operator, matched by name; an operator of only
one scenario counts in full. The parts sum to the difference.
"""

from __future__ import annotations

import shlex
from typing import Literal

from msgspec import Struct

from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.argument import scenario_of
from roofline.scenario.breakdown import Breakdown, Reading, decode_breakdown, prefill_breakdown, steps
from roofline.scenario.scenario import Scenario
from roofline.whatif.command_line import command_words

Metric = Literal["ttft", "tpot", "total"]

READINGS: tuple[Reading, ...] = ("expected", "bound", "bytes")
METRICS: tuple[Metric, ...] = ("ttft", "tpot", "total")
"""Times of which less is better, in seconds."""


class Difference(Struct, frozen=True):
    """One operator in both scenarios: seconds or bytes, 0 if it does not run."""

    name: str
    before: float
    after: float

    @property
    def change(self) -> float:
        return self.after - self.before


class Waterfall(Result, Struct, frozen=True):
    """The difference of a metric: `differences`, the largest first, sum to `after - before`."""

    metric: Metric
    reading: Reading
    before: float
    after: float
    differences: tuple[Difference, ...]

    @property
    def change(self) -> float:
        """The whole difference."""
        return self.after - self.before

    @property
    def described(self) -> str:
        return f"{self.metric}, {self.reading}"


class Comparison(Result, Struct, frozen=True):
    """Scenarios side by side; `labels` name them, `metric` is the one that is explained by operator."""

    analyses: tuple[Analysis, ...]
    labels: tuple[str, ...]
    metric: Metric = "total"

    @property
    def described(self) -> str:
        return "; ".join(self.labels)

    @property
    def waterfalls(self) -> tuple[Waterfall, ...]:
        """The difference of the metric from the first scenario to each other, at expected times where there are any."""
        first, *others = self.analyses
        return tuple(waterfall(first, other, self.metric, readings(first, other)[0]) for other in others)


def compare(*scenarios: Scenario, metric: Metric = "total") -> Comparison:
    """Two or more scenarios side by side, with the difference of `metric` (ttft, tpot or total) by operator.

    >>> from roofline import Scenario, compare
    >>> scenario = Scenario("llama-3.1-8b", "h100-sxm")
    >>> found = compare(scenario, scenario.with_(quant="fp8"), metric="tpot")
    >>> found.waterfalls[0].after < found.waterfalls[0].before
    True

    Raises RooflineError.
    """
    for scenario in scenarios:
        scenario_of(scenario, single=True)
    if len(scenarios) < 2:
        raise RooflineError(f"a comparison needs two or more scenarios, got {len(scenarios)}")
    if metric not in METRICS:
        raise UnknownNameError("metric of a comparison", metric, METRICS)
    return Comparison(tuple(map(analyze, scenarios)), tuple(map(_label, scenarios)), metric)


def _label(scenario: Scenario) -> str:
    """The options of the scenario as on the command line; its description where no text stands for it."""
    try:
        return shlex.join(command_words(scenario))
    except RooflineError:
        return scenario.described


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
    most = max((abs(entry.change) for entry in found), default=0.0) or 1.0
    ranked = sorted(found, key=lambda entry: -round(abs(entry.change) / most, 9))  # rounding orders no equal ones
    return Waterfall(metric, reading, first.reference, second.reference, tuple(ranked))


def readings(*analyses: Analysis) -> tuple[Reading, ...]:
    """The readings of all the scenarios: the llm-viewer convention has no expected times."""
    return READINGS if all(analysis.times_are_expected for analysis in analyses) else READINGS[1:]
