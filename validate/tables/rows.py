"""Measurement files: one row for each measured kernel, Parquet or CSV, checked before a fit or a score.

Columns: `hardware, op`, the shape columns of the op, `latency_us`, and optional `kernel`, `software` and `cache`. Data
rows are numbered from 1 in messages, header not counted.

`cache` is `cold` (no operands in the caches) or `warm` (all that fit), written by `roofline validate measure`. Rows
without it are of benchmarks that replay a few buffers, as most do.

Rows with an extent of zero, of kernels that did not run, are left out and counted (`Measurements.empty`). Tables of
other collectors are translated on the way (`read_measurements`).

`bare` 1 marks times without the kernels that quantize activations, sort tokens or write the KV cache (tables of tuned
kernels); a fit accepts rows of one value. `causal` 0 is unmasked attention, `keys_only` 1 decode over a cache without
values, `ungrouped` 1 decode by a kernel without grouped heads, `gated` 0 experts of two matrices.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.documents import finite_number
from roofline.core.errors import SpecError, quote, suggest
from roofline.timing.chains import ENGINES
from roofline.timing.kernels import KERNELS, Row, kernel
from roofline.validate.tables.frames import read_frame
from roofline.validate.tables.text import lacking, refuse

if TYPE_CHECKING:
    import pandas as pd


TEXT = (
    *("hardware", "op", "dtype", "kv_dtype", "gemm_dtype", "model", "routing", "collective", "variant"),
    *("kernel", "software"),
)
"""Text columns; the other shape columns are whole numbers."""

MAY_BE_ZERO = ("window",)

OPTIONAL = {
    **dict.fromkeys(("causal", "gated"), 1.0),
    **dict.fromkeys(("bare", "keys_only", "ungrouped", "extend", "scheduled", "four", "tiles"), 0.0),
}
"""Optional columns of kernel models, with what they are where they are absent."""

FLAGS = tuple(name for name in OPTIONAL if name != "tiles")
"""Those of ones and zeros."""

CACHES = ("cold", "warm")

WORDS = frozenset((*TEXT, "cache"))
NUMBERS = (
    frozenset(name for op in KERNELS for name in (*kernel(op).columns, *OPTIONAL, "latency_us", "key_heads")) - WORDS
)
"""Columns of text and of numbers, of any op."""

MICROSECONDS = (1e-6, 1e12)
"""Shortest and longest plausible latency: a picosecond, and eleven days."""

MAX_EXTENT = 1e15
"""Largest value of a shape column, in bytes of a message or elements: products of a few are doubles."""


MAX_TEXT = 300
"""Longest name, in characters."""


class Measurements(Struct, frozen=True):
    """Checked measurements of one op: `frame` has the columns of the schema, `where` names the file in messages.

    `empty` rows of the file had an extent of zero and were left out.
    """

    op: str
    frame: pd.DataFrame
    where: str
    empty: int = 0

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def seconds(self) -> NDArray[np.float64]:
        return self.frame["latency_us"].to_numpy(dtype=np.float64) * 1e-6

    @property
    def columns(self) -> Row:
        """The shape columns as arrays; text columns with one value as text."""
        return shape_columns(self.op, self.frame)

    @property
    def warm(self) -> NDArray[np.bool_]:
        return np.asarray(self.texts("cache") != "cold", dtype=bool)

    def texts(self, name: str) -> NDArray[np.str_]:
        """A column of texts; empty strings where it or a cell is absent."""
        if name not in self.frame:
            return np.full(len(self), "", dtype=np.str_)
        return self.frame[name].fillna("").to_numpy(dtype=np.str_)

    def numbers(self, name: str, usual: float) -> NDArray[np.float64]:
        """A column of numbers, `usual` where a row has none."""
        return self.frame[name].fillna(usual).to_numpy(dtype=np.float64)

    def rows(self, chosen: Any) -> Measurements:
        """The measurements at a mask or at positions."""
        chosen = np.asarray(chosen)
        frame = self.frame[chosen] if chosen.dtype == bool else self.frame.iloc[chosen]
        return Measurements(self.op, frame, self.where, self.empty)

    def by_hardware(self) -> dict[str, Measurements]:
        """The measurements by accelerator, in the order of the rows."""
        groups = self.frame.groupby(self.frame["hardware"].astype(str), sort=False)
        return {str(name): Measurements(self.op, frame, self.where) for name, frame in groups}

    def formats(self) -> dict[str, Measurements]:
        """The measurements by format (`Kernel.format`)."""
        names = [name for name in kernel(self.op).formatted if name in self.frame]
        if not names:
            return {"any": self}
        groups = self.frame.groupby(names, sort=True, observed=True)
        parts = [Measurements(self.op, frame, self.where) for _, frame in groups]
        return {kernel(self.op).format(part.columns): part for part in parts}


def shape_columns(op: str, frame: pd.DataFrame) -> Row:
    """The shape columns of `frame` for `roofline.timing.kernels`."""
    columns: dict[str, Any] = {"op": op}
    for name in shape_names(op):
        if name not in TEXT:
            columns[name] = frame[name].to_numpy(dtype=np.float64)
        elif name != "routing":
            values = frame[name].unique()
            columns[name] = str(values[0]) if len(values) == 1 else frame[name].to_numpy(dtype=object)
    if "key_heads" in frame:
        columns["key_heads"] = frame["key_heads"].fillna(frame["heads"]).to_numpy(dtype=np.float64)
    for name, usual in OPTIONAL.items():
        if name in frame:
            columns[name] = frame[name].fillna(usual).to_numpy(dtype=np.float64)
    return columns


def shape_names(op: str) -> tuple[str, ...]:
    """The shape columns of `op`."""
    return kernel(op).columns


Translate = Callable[[Any, str], Any]
"""From a table (a data frame) of one op, with plain columns, to the schema."""


def read_measurements(
    path: Path,
    translate: Translate = lambda table, _: table,
    others: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
) -> list[Measurements]:
    """The checked measurements in a Parquet or CSV file, or in the files of a folder, by op and file.

    `translate` turns the rows of another collector into the schema; `others` are ops beside those of kernel models,
    with their shape columns. Raises SpecError with the file and the first wrong row.
    """
    if path.is_dir():
        inside = sorted(file for file in path.iterdir() if file.suffix in (".parquet", ".csv"))
        if not inside:
            raise SpecError(str(path), "has no .parquet or .csv file")
        return [part for file in inside for part in read_measurements(file, translate, others)]
    return _check(read_frame(path), str(path), translate, others)


def _check(
    frame: pd.DataFrame, where: str, translate: Translate, others: Mapping[str, tuple[str, ...]]
) -> list[Measurements]:
    if len(frame) == 0:
        raise SpecError(where, "has no rows")
    if not all(isinstance(name, str) for name in frame.columns) or not frame.columns.is_unique:
        raise SpecError(where, "needs columns whose names are texts, each once")
    _require(frame, ("hardware", "op", "latency_us"), where)
    frame = _plain(frame.reset_index(drop=True), where)
    for name in ("hardware", "op"):
        _refuse(frame[name].isna(), f"the column {quote(name)} is empty", where)
    known = (*KERNELS, *others)
    unknown = ~frame["op"].isin(known)
    if unknown.any():
        op = str(frame["op"][unknown].iloc[0])
        _refuse(unknown, f"unknown op {quote(op)}{suggest(op, known, listed=20)}", where)
    if "cache" in frame:
        _refuse(~frame["cache"].isna() & ~frame["cache"].isin(CACHES), "'cache' is neither cold nor warm", where)
    latency, (low, high) = frame["latency_us"], MICROSECONDS
    _refuse(latency.isna(), "'latency_us' is no finite number", where)
    _refuse(latency <= 0, "'latency_us' is not above zero", where)
    _refuse((latency < low) | (latency > high), f"'latency_us' is outside {low:g} to {high:g}", where)
    _refuse(frame.duplicated(), "the row repeats an earlier one", where)
    parts = []
    for op in map(str, frame["op"].unique()):
        names = others[op] if op in others else shape_names(op)
        part = translate(frame[frame["op"] == op], op)
        extents = [name for name in names if name not in TEXT and name not in MAY_BE_ZERO and name in part]
        none = (part[extents] == 0).any(axis=1)
        part, empty = part[~none], int(none.sum())
        if part.empty:
            continue
        absent = [name for name in part if name not in names and part[name].isna().all()]
        part = part.drop(columns=absent)  # the shapes of other ops in the same file
        _check_shapes(part, op, names, where)
        parts.append(Measurements(op, part, where, empty))
    if not parts:
        raise SpecError(where, "has only rows with an extent of zero")
    return parts


def _plain(frame: pd.DataFrame, where: str) -> pd.DataFrame:
    """The same columns, of text or of doubles where the schema says so; raises SpecError for bytes, lists and the like.

    Other columns are as they are, but for containers: these become text.
    """
    columns: dict[str, Any] = {}
    for name in map(str, frame):
        column = frame[name]
        if name in WORDS:
            words = _each(column, _word)
            _refuse(words.isna() & ~_absent(column), f"{quote(name)} is no text", where)
            columns[name] = words.astype(object) if words.isna().all() else words  # else a column of numbers
        elif name in NUMBERS:
            columns[name] = numbers_of(column)
            _refuse(columns[name].isna() & ~_absent(column), f"{quote(name)} is no finite number", where)
        else:
            columns[name] = column.astype(object).map(repr) if column.dtype == object else column
    return frame.assign(**columns)


def numbers_of(column: pd.Series[Any]) -> pd.Series[float]:
    """A column as doubles: NaN for what is no finite number, or a number that only a wider type holds."""
    if column.dtype.kind in "iuf":
        values = column.astype(np.float64)
        return values.where(np.isfinite(values))
    return column.astype(object).map(_number).astype(np.float64)


def _absent(column: pd.Series[Any]) -> pd.Series[bool]:
    """The cells without a value: null, or text of spaces."""
    if column.dtype.kind in "iuf":
        return column.isna()
    return _each(column, lambda cell: isinstance(cell, str) and not cell.strip()).eq(True) | column.isna()


def _each(column: pd.Series[Any], of: Callable[[Any], Any]) -> pd.Series[Any]:
    """A function of each cell that has a value; for a column of texts computed once for each different one."""
    cells = column.astype(object)
    if not column.dtype.name.startswith("str"):
        return cells.map(of, na_action="ignore")
    return cells.map({text: of(text) for text in column.dropna().unique()})


def _word(value: object) -> str | None:
    """The text of a cell; a number where one was meant as a name."""
    value = value.item() if isinstance(value, np.number) else value
    if isinstance(value, str):
        return value if len(value) <= MAX_TEXT else None
    number = finite_number(value)
    return str(value) if number is not None and abs(number) <= MAX_EXTENT else None


def _number(value: object) -> float:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (str, int, float, Decimal, np.number)):
        return math.nan
    try:
        number = float(value)
    except (ValueError, OverflowError, TypeError):
        return math.nan
    return number if math.isfinite(number) else math.nan


def _check_shapes(frame: pd.DataFrame, op: str, names: Sequence[str], where: str) -> None:
    _require(frame, names, where, f" for {op}")
    for name in names:
        values = frame[name]
        if name in TEXT:
            _refuse(values.isna(), f"the column {quote(name)} is empty", where)
            continue
        _refuse(values.isna(), f"{quote(name)} is no finite number", where)
        least = 0 if name in MAY_BE_ZERO else 1
        wrong = (values < least) | (values != np.floor(values))
        _refuse(wrong, f"{quote(name)} is no whole number of at least {least}", where)
        _refuse(values > MAX_EXTENT, f"{quote(name)} is above {MAX_EXTENT:.0e}", where)
    for name in (name for name in FLAGS if name in frame):
        _refuse(~(frame[name].isna() | frame[name].isin((0.0, 1.0))), f"{quote(name)} is neither 0 nor 1", where)
    if "key_heads" in frame:
        _refuse(frame["key_heads"] < 1, "'key_heads' is no whole number of at least 1", where)


def _require(frame: pd.DataFrame, names: Sequence[str], where: str, purpose: str = "") -> None:
    lacking([name for name in names if name not in frame], where, purpose)


def _refuse(wrong: pd.Series[bool], problem: str, where: str) -> None:
    """Raise SpecError with the first few rows where `wrong` is true."""
    refuse([int(index) + 1 for index in wrong.index[wrong]], problem, where)


def only_hardware(parts: Sequence[Measurements], where: str) -> str:
    """The accelerator of all measurements; raises SpecError with the first row of another one."""
    first = str(parts[0].frame["hardware"].iloc[0])
    for part in parts:
        other = part.frame["hardware"].astype(str) != first
        if other.any():
            row = int(part.frame.index[other][0]) + 1
            name = str(part.frame["hardware"][other].iloc[0])
            problem = f"mixes hardware: {quote(first)} and, from row {row}, {quote(name)}; fit one at a time"
            raise SpecError(part.where if len(parts) > 1 else where, problem)
    return first


def headline(part: Measurements) -> NDArray[np.bool_]:
    """The rows of the headline MAPE: n, k >= 1024 for GEMMs; head_dim 128 and full window for attention."""
    unusual = kernel(part.op).regimes.unusual
    if unusual is None:
        return np.ones(len(part), dtype=bool)
    return ~unusual.among(kernel(part.op).shape(part.columns))


def joined(parts: Iterable[Measurements]) -> Measurements:
    """Measurements of one op together."""
    (found,) = by_op(list(parts)).values()
    return found


def by_op(parts: Sequence[Measurements]) -> Mapping[str, Measurements]:
    """The measurements of each op, joined over files."""
    import pandas as pd

    grouped: dict[str, list[Measurements]] = {}
    for part in parts:
        grouped.setdefault(part.op, []).append(part)
    joined = {}
    for op, same in grouped.items():
        frame = pd.concat([part.frame for part in same], ignore_index=True) if len(same) > 1 else same[0].frame
        joined[op] = Measurements(op, frame, same[0].where)
    return joined


class Origin(NamedTuple):
    """An engine and its version, empty where a row names none."""

    engine: str
    version: str

    def __str__(self) -> str:
        return " ".join(filter(None, self)) or "no engine"


NONE = Origin("", "")
"""The origin of rows without an engine that has calibrations."""

_SOFTWARE = re.compile(r"(\S+) v?(\d\S*)")


def origin(software: object) -> Origin:
    """The engine and version in the text of a column `software`, such as 'vLLM 0.24.0'."""
    match = _SOFTWARE.match(str(software))
    return Origin(match[1].lower(), match[2]) if match and match[1].lower() in ENGINES else NONE


def by_origin(part: Measurements) -> dict[Origin, Measurements]:
    """The measurements by engine and version."""
    if "software" not in part.frame:
        return {NONE: part}
    names = part.frame["software"].map({name: origin(name) for name in part.frame["software"].unique()})
    return {found: part.rows((names == found).to_numpy()) for found in dict.fromkeys(names)}
