"""Errors of predictions by group: what a score prints of kernels, of whole models and of loads.

They are of predicted over measured time, minus one: MAPE, its median and 90th percentile, the signed bias, the MAPE of
the bound, and the fraction of rows inside the 80% interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.validate.tables.text import Line

Row = TypeVar("Row")
Found = TypeVar("Found")


class Predicted(Struct, frozen=True):
    """A bound and the expected value with its interval: seconds, or the unit of a published figure."""

    bound: float
    low: float
    mid: float
    high: float

    def __iter__(self) -> Iterator[float]:
        return iter((self.bound, self.low, self.mid, self.high))


class Skipped(NamedTuple):
    """A row that cannot be simulated, and the reason."""

    line: Line
    reason: str


def attempted(
    rows: Iterable[Row], of: Callable[[Row], Found], line: Callable[[Row], Line]
) -> tuple[list[Found], list[Skipped]]:
    """What `of` makes of each row, and the rows for which it raises RooflineError, with the reason."""
    found, skipped = list[Found](), list[Skipped]()
    for row in rows:
        try:
            found.append(of(row))
        except RooflineError as reason:
            skipped.append(Skipped(line(row), str(reason)))
    return found, skipped


def counted(texts: Iterable[str], key: str) -> list[dict[str, Any]]:
    """Reasons or assumptions with the number of their rows, the most frequent first, for JSON."""
    return [{key: text, "rows": rows} for text, rows in Counter(texts).most_common()]


class Group(Struct, frozen=True):
    """Errors of the predictions for the rows that share `labels`, as fractions of the measured time.

    `bound_mape` is NaN for loads, which have no bound.
    """

    labels: Mapping[str, str]
    rows: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float
    bound_mape: float
    interval_coverage: float

    def __getitem__(self, key: str) -> str:
        """What the rows share by a key; `all` for a key that they were not grouped by."""
        return self.labels[key]

    @property
    def document(self) -> dict[str, Any]:
        found = {name: value for name, value in asdict(self).items() if name != "labels" and not math.isnan(value)}
        return {**self.labels, **found}


def check_keys(by: Iterable[str], keys: Sequence[str]) -> None:
    """Raise UnknownNameError for a key to group by that is none of `keys`."""
    for key in by:
        if key not in keys:
            raise UnknownNameError("grouping", key, keys)


def grouped(
    rows: Iterable[tuple[Mapping[str, str], Row]],
    by: Sequence[str],
    keys: Sequence[str],
    times: Callable[[Sequence[Row]], Sequence[Any]],
) -> list[Group]:
    """The errors of rows with their labels, by the keys in `by`, in order of first appearance.

    `times` are the measured seconds of some rows, then those predicted: low, mid and high, and at the bound if any.
    """
    gathered: dict[tuple[str, ...], list[Row]] = {}
    for labels, row in rows:
        gathered.setdefault(tuple(labels[key] if key in by else "all" for key in keys), []).append(row)
    return [group_of(dict(zip(keys, key, strict=True)), *times(found)) for key, found in gathered.items()]


def group_of(labels: Mapping[str, str], measured: Any, low: Any, mid: Any, high: Any, bound: Any = math.nan) -> Group:
    """The errors of rows whose times are arrays of one shape."""
    error = np.abs(mid / measured - 1.0)
    return Group(
        labels,
        rows=len(measured),
        mape=float(np.mean(error)),
        median_ape=float(np.median(error)),
        p90_ape=float(np.percentile(error, 90)),
        bias=float(np.mean(mid / measured - 1.0)),
        bound_mape=float(np.mean(np.abs(bound / measured - 1.0))),
        interval_coverage=float(np.mean((measured >= low) & (measured <= high))),
    )
