"""The rows of a sweep as figures need them: names with units, numbers as text, what was fixed."""

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
from roofline.whatif.axes import Axis
from roofline.whatif.metrics import METRICS, find_metric
from roofline.whatif.options import find_option
from roofline.whatif.selection import Rows
from roofline.whatif.study import Study
from roofline.whatif.sweep import sweep

MAX_POINTS = 100_000
"""More points than anybody tells apart in a figure."""

LONGEST = 32
"""Characters of a value that are written."""

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
    "headroom": "free memory",
    "gpus": "devices",
}
RATES = ("tokens/s", "sequences/s")
"""Units that figures name, and numbers in them do not."""

READINGS = {"bound": "at the bound", "low": "10th percentile", "mid": "expected", "high": "90th percentile"}


class Table(Struct, frozen=True):
    """The rows of a study, which a figure is drawn from."""

    study: Study
    rows: Rows

    @classmethod
    def of(cls, study: Study) -> Table:
        """Runs the study. Raises RooflineError where it has more points than a figure shows, or no rows."""
        if study.points > MAX_POINTS:
            raise RooflineError(
                f"a figure shows {MAX_POINTS:,} points at most, and the study has {study.points:,}: take fewer values"
                " of an axis, like batch=1:256:log16"
            )
        return cls(study, sweep(study).rows)

    def column(self, name: str) -> NDArray[Any]:
        """The values of an axis or a metric, one a row."""
        return self.rows.array(name)

    def numbers(self, name: str) -> NDArray[np.float64]:
        """A metric or a numeric axis. Raises RooflineError where it is no number, or nowhere has a value."""
        if self.study.question.columns[name] is not Type.NUMBER:
            raise RooflineError(f"{name} is {self.study.question.columns[name]}, and only numbers can be drawn")
        values = self.column(name).astype(np.float64)
        if not np.isfinite(values).any():
            raise RooflineError(f"{name} has no value at any point of the study")
        return values

    @property
    def fits(self) -> NDArray[np.bool_]:
        """Which rows memory holds."""
        return self.column("fits").astype(bool)

    def axis(self, name: str) -> Axis:
        """The axis over an option; raises RooflineError where the study has none."""
        key = find_option(name).name
        for axis in self.study.axes:
            if axis.name == key:
                return axis
        raise UnknownNameError("axis of this study", name, (axis.name for axis in self.study.axes))

    def places(self, axis: Axis) -> NDArray[np.int64]:
        """Which value of an axis each row has, by its place among the axis's values."""
        order = {label: place for place, label in enumerate(_labels(axis))}
        return np.array([order[value] for value in self.column(axis.name).tolist()], dtype=np.int64)

    def unit(self, name: str) -> str:
        """The unit of a metric; none for an axis."""
        return "" if name in self.study.question.axes else find_metric(name, self.study.question.at).unit

    def better(self, name: str) -> int:
        """1 where more of a metric is better, -1 where less is, 0 where neither."""
        return 0 if name in self.study.question.axes else find_metric(name, self.study.question.at).better

    def reading(self, name: str, end: str) -> str | None:
        """The name of another reading of an expected time or rate, such as its `low` end; None where it has none."""
        other = f"{name}.{end}"
        return other if self.study.question.at == "expected" and other in METRICS else None

    def subject(self, times: bool = True) -> str:
        """What every row is of, what was fixed, and how `times` are read, for a line under the title."""
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
    """The values of an axis as text, short enough to stand in a figure: of a file its name."""
    return [_short(_text(label)) for label in _labels(axis)]


def numeric(axis: Axis) -> bool:
    """Whether the values of an axis are numbers."""
    return all(isinstance(label, (int, float)) and not isinstance(label, bool) for label in _labels(axis))


def _labels(axis: Axis) -> list[Any]:
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


def name_of(metric: str) -> str:
    """A metric as a reader knows it: `ttft.bound` is TTFT, at the bound."""
    if metric in NAMES:
        return NAMES[metric]
    stem, _, reading = metric.rpartition(".")
    return f"{name_of(stem)}, {READINGS[reading]}" if stem and reading in READINGS else metric.replace("_", " ")


def shown(value: float, unit: str, digits: int = 3) -> str:
    """A number as text with its unit and a prefix; rates without their unit, which the figure names."""
    if not math.isfinite(value):
        return "-"
    if unit == "s":
        return seconds(value, digits)
    if unit == "B":
        return si(value, "B", digits) if value >= 0 else f"-{si(-value, 'B', digits)}"
    if unit in (*RATES, ""):
        return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.{digits}g}"
    return si(value, unit, digits)


def tick_unit(unit: str) -> str:
    """The unit that ticks carry: rates and counts carry none."""
    return "" if unit in RATES else unit


def described(axes: Sequence[Axis], row: Sequence[int]) -> str:
    """Values of several axes as text: 'hw h100-sxm, tp 4'; of one axis the value alone."""
    if len(axes) == 1:
        return labels(axes[0])[row[0]]
    return ", ".join(f"{axis.name} {labels(axis)[place]}" for axis, place in zip(axes, row, strict=True))
