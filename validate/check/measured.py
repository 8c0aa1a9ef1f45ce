"""Kernels that this project measured, each file with its provenance, and what is predicted for them today.

`validate/measurements/NAME.csv` holds rows as `roofline validate measure` writes them, `NAME.yaml` where they come from
and on what hardware: a bundled spec by its name, or a file beside them for a machine that has no datasheet. They are
read with the base install alone.
"""

from __future__ import annotations

import csv
import datetime
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Len
from msgspec import Struct
from numpy.typing import NDArray
from pydantic import ConfigDict, Strict, TypeAdapter
from pydantic.dataclasses import dataclass as checked

from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, SpecError, UnsupportedError, quote
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.library import validate
from roofline.timing.calibration import load_calibration
from roofline.timing.kernels import Array, kernel, kernel_bound, kernel_regimes
from roofline.validate.kernels.work import Case
from roofline.validate.tables.errors import error_figures
from roofline.validate.tables.rowfile import case_of
from roofline.validate.tables.rows import TEXT, shape_names

FOLDER = Path(str(files("roofline.validate"))) / "measurements"

Words = Annotated[str, Strict(), Len(1, 2000)]


@checked(frozen=True, config=ConfigDict(extra="forbid"))
class Provenance:
    """Where a file of rows comes from.

    `hardware` is the name of a bundled spec, or a path from the file's folder. `fitted` says whether the constants that
    predict the rows were fitted to these very rows, `constants` which those are: errors on rows that a fit has seen are
    no test of it.
    """

    title: Words
    hardware: Words
    machine: Words
    software: Words
    command: Words
    date: datetime.date
    revision: Words
    load: Words
    fitted: Annotated[bool, Strict()]
    constants: Words


class Kept(Struct, frozen=True):
    """A file of rows in the repository: its name, its provenance, the machine's hardware, and the rows as text."""

    name: str
    provenance: Provenance
    hardware: Hardware
    rows: tuple[Mapping[str, str], ...]
    where: str


class Predicted(Struct, frozen=True):
    """Rows of one op, format, kernel and state of the caches, with what is predicted for each, in seconds."""

    op: str
    format: str
    kernel: str
    cache: str
    basis: str
    measured: Array
    bound: Array
    low: Array
    mid: Array
    high: Array
    regimes: NDArray[np.int64]

    @property
    def figures(self) -> dict[str, float]:
        """Errors over all rows; see `roofline.validate.tables.errors`."""
        return error_figures(self.measured, self.low, self.mid, self.high, self.bound)

    @property
    def classes(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """The classes of shapes that have rows, and which these are."""
        for index, label in enumerate(kernel(self.op).regimes.labels):
            chosen = self.regimes == index
            if chosen.any():
                yield label, chosen


def load_kept(folder: Path = FOLDER) -> list[Kept]:
    """Every file of rows in `folder`, by name; raises SpecError naming the file that is wrong, and what is."""
    return [_read(path) for path in sorted(folder.glob("*.csv"))]


def _read(path: Path) -> Kept:
    about = path.with_suffix(".yaml")
    if not about.is_file():
        raise SpecError(str(path), f"has no provenance beside it ({about.name})")
    provenance = validate(_adapter(), read_mapping(about), str(about), {"": tuple(Provenance.__dataclass_fields__)})
    named = provenance.hardware
    hardware = load_hardware(str(path.parent / named) if named.endswith(".yaml") else named)
    return Kept(path.stem, provenance, hardware, tuple(_rows(path, hardware.name)), str(path))


@lru_cache(maxsize=1)
def _adapter() -> TypeAdapter[Provenance]:
    return TypeAdapter(Provenance)


def _rows(path: Path, hardware: str) -> Iterator[Mapping[str, str]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            rows = [row for row in reader if None not in row and None not in row.values()]
            short = reader.line_num - 1 - len(rows)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(str(path), f"cannot be read ({error})") from None
    if short or not rows:
        raise SpecError(str(path), f"has {short} rows of another length than its head" if short else "has no rows")
    for number, row in enumerate(rows, 1):
        if row.get("hardware") != hardware:
            named = quote(str(row.get("hardware")))
            raise SpecError(str(path), f"row {number} is of {named}, the provenance names {quote(hardware)}")
        yield row


def predict_kept(kept: Kept) -> list[Predicted]:
    """Today's predictions, with the constants that a user of this hardware has; by op, format, kernel and caches.

    Rows of a format that the hardware does not compute in are left out. Raises SpecError for rows without a shape.
    """
    calibration = load_calibration(kept.hardware)
    grouped: dict[tuple[str, ...], list[tuple[Case, float]]] = {}
    for number, row in enumerate(kept.rows, 1):
        where = f"{kept.where}: row {number}"
        try:
            case, seconds = case_of(row, where), float(row["latency_us"]) * 1e-6
        except KeyError as error:
            raise SpecError(where, f"lacks the column {quote(str(error.args[0]))}") from None
        if not 0 < seconds < np.inf:
            raise SpecError(where, "'latency_us' is no time above zero")
        names = [str(case.columns[name]) for name in ("dtype", "kv_dtype") if name in case.columns]
        key = (case.op, "/".join(dict.fromkeys(names)), row.get("kernel", ""), row.get("cache", "") or "warm")
        grouped.setdefault(key, []).append((case, seconds))
    found = []
    for (op, format, way, cache), rows in grouped.items():
        columns = _columns(op, [case for case, _ in rows])
        try:
            expected = calibration.expected(op, columns, kept.hardware, resident=cache != "cold")
            bound = np.asarray(kernel_bound(op, columns, kept.hardware, resident=cache != "cold"))
        except UnsupportedError:
            continue
        measured = np.array([seconds for _, seconds in rows])
        times = (expected.low, expected.mid, expected.high)
        regimes = kernel_regimes(op, columns)
        found.append(Predicted(op, format, way, cache, expected.basis, measured, bound, *times, regimes))
    if not found:
        raise RooflineError(f"{kept.where}: no row is of a format that {kept.hardware.name} computes in")
    return found


def _columns(op: str, cases: Sequence[Case]) -> dict[str, Any]:
    columns: dict[str, Any] = {"op": op}
    for name in shape_names(op):
        values = [case.columns[name] for case in cases]
        if name == "routing":
            columns[name] = np.array(values, dtype=object)
        else:
            columns[name] = str(values[0]) if name in TEXT else np.array(values, dtype=np.float64)
    return columns


def geometric_mean(values: Array) -> float:
    """exp of the mean logarithm: each row counts the same, however long it takes."""
    return float(np.exp(np.mean(np.log(values))))
