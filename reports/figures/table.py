"""The rows of a sweep for figures: names, units, numbers as text, and the fixed options."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.expressions import Type
from roofline.core.units import seconds, si
from roofline.scenario.options import find_option
from roofline.whatif.axes import Axis
from roofline.whatif.metrics import METRICS, find_metric
from roofline.whatif.selection import Rows
from roofline.whatif.study import Study
from roofline.whatif.sweeps import sweep

MAX_POINTS = 100_000
"""Maximum number of points of a figure."""

LONGEST = 32
"""Maximum characters of a label."""

NAMES = {
    "ttft": "TTFT",
    "tpot": "TPOT",
    "step": "decode step",
    "total": "total time",
    "tokens_per_s": "tokens/s",
    "sequences_per_s": "sequences/s",
    "tokens_per_s_per_gpu": "tokens/s per device",
    "tokens_per_s_per_user": "tokens/s per user",
    "memory.weights": "weights",
    "memory.kv": "KV cache",
    "memory.state": "recurrent state",
    "memory.activations": "activations",
    "memory.runtime": "runtime",
    "memory.usable": "usable memory",
    "headroom": "free memory",
    "gpus": "devices",
}
UNFIT = "does not fit in memory"

RATES = ("tokens/s", "sequences/s")
"""Units that axis titles show and numbers omit."""

READINGS = {"bound": "at the bound", "low": "10th percentile", "mid": "expected", "high": "90th percentile"}


class Table(Struct, frozen=True):
    """A study and its rows."""

    study: Study
    rows: Rows

    @classmethod
    def of(cls, study: Study) -> Table:
        """Runs the study. Raises RooflineError if it has more than `MAX_POINTS` points or no rows."""
        if study.points > MAX_POINTS:
            raise RooflineError(
                f"a figure shows {MAX_POINTS:,} points at most, and the study has {study.points:,}: take fewer values"
                " of an axis, like batch=1:256:log16"
            )
        return cls(study, sweep(study).rows)

    def column(self, name: str) -> NDArray[Any]:
        """The values of an axis or a metric, one per row."""
        return self.rows.array(name)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A metric or a numeric axis. Raises RooflineError if it is not a number or has no value in any row."""
        if self.study.question.columns[name] is not Type.NUMBER:
            raise RooflineError(f"{name} is {self.study.question.columns[name]}, and only numbers can be drawn")
        values = self.column(name).astype(np.float64)
        if not np.isfinite(values).any():
            raise RooflineError(f"{name} has no value at any point of the study")
        return values

    @property
    def fits(self) -> NDArray[np.bool_]:
        return self.column("fits").astype(bool)

    def axis(self, name: str) -> Axis:
        """The axis of an option; raises RooflineError if the study has none."""
        key = find_option(name).name
        for axis in self.study.axes:
            if axis.name == key:
                return axis
        raise UnknownNameError("axis of this study", name, (axis.name for axis in self.study.axes))

    def places(self, axis: Axis) -> NDArray[np.int64]:
        """The index of each row's value among the values of an axis."""
        order = {label: place for place, label in enumerate(values_of(axis))}
        return np.array([order[value] for value in self.column(axis.name).tolist()], dtype=np.int64)

    def unit(self, name: str) -> str:
        return "" if name in self.study.question.axes else find_metric(name, self.study.question.at).unit

    def better(self, name: str) -> int:
        """1 if more of a metric is better, -1 if less is, 0 if neither."""
        return 0 if name in self.study.question.axes else find_metric(name, self.study.question.at).better

    def reading(self, name: str, end: str) -> str | None:
        """The name of another reading of an expected time or rate, such as `low`; None if there is none."""
        other = f"{name}.{end}"
        return other if self.study.question.at == "expected" and other in METRICS else None

    def interval(self, metric: str) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """The ends of the 80% interval of an expected time or rate, one per row; None if the study has none."""
        ends = [self.reading(metric, end) for end in ("low", "high")]
        if not all(end in self.study.question.columns for end in ends):
            return None
        low, high = (self.column(str(end)).astype(np.float64) for end in ends)
        return low, high

    def subject(self, times: bool = True) -> str:
        """Model, hardware, fixed options and the kind of `times`, for the line under the title."""
        fixed = dict(self.study.question.fixed)
        model, hardware = fixed.pop("model", None), fixed.pop("hw", None)
        fixed.pop("engine", None)
        convention = fixed.pop("convention", None)
        what = " on ".join(_short(name) for name in (model, hardware) if name)
        rest = [f"{key.replace('_', ' ')} {_short(_text(value))}" for key, value in fixed.items()]
        varied = self.study.question.axes
        read = ["times at the bound" if self.study.question.at == "bound" else "expected times"] if times else []
        if read and self.study.question.at == "expected" and "engine" not in varied:
            read[0] += f" on {' and '.join(name for kind, name in self.study.question.sources if kind == 'engine')}"
        counted = [f"{convention} convention"] if convention not in (None, "physical") else []
        return ", ".join([*([what] if what else []), *rest, *read, *counted])


def labels(axis: Axis) -> list[str]:
    """The values of an axis as short text; files by name."""
    return [_short(_text(label)) for label in values_of(axis)]


def is_numeric(axis: Axis) -> bool:
    """Whether the values of an axis are numbers."""
    return all(isinstance(label, (int, float)) and not isinstance(label, bool) for label in values_of(axis))


def values_of(axis: Axis) -> list[Any]:
    """The values of an axis as they are written."""
    return axis.labels.tolist() if isinstance(axis.labels, np.ndarray) else list(axis.labels)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    name = text.rpartition("/")[2] if text.endswith((".yaml", ".yml", ".json")) else text
    return name if len(name) <= LONGEST else f"{name[: LONGEST - 1]}…"


def display_name(metric: str) -> str:
    """The display name of a metric: `ttft.bound` is 'TTFT, at the bound'."""
    if metric in NAMES:
        return NAMES[metric]
    stem, _, reading = metric.rpartition(".")
    return f"{display_name(stem)}, {READINGS[reading]}" if stem and reading in READINGS else metric.replace("_", " ")


def format_value(value: float, unit: str, digits: int = 3) -> str:
    """A number with SI prefix and unit; rates without their unit, which axis titles show."""
    if not math.isfinite(value):
        return "-"
    if unit == "s":
        return seconds(value, digits)
    if unit == "B":
        return si(value, "B", digits)
    if unit in (*RATES, ""):
        return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.{digits}g}"
    return si(value, unit, digits)


def tick_unit(unit: str) -> str:
    """The unit on ticks: none for rates."""
    return "" if unit in RATES else unit


def describe(axes: Sequence[Axis], row: Sequence[int]) -> str:
    """Values of several axes as text: 'hw h100-sxm, tp 4'; the value alone if there is one axis."""
    if len(axes) == 1:
        return labels(axes[0])[row[0]]
    return ", ".join(f"{axis.name} {labels(axis)[place]}" for axis, place in zip(axes, row, strict=True))
