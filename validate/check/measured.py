"""Kernels that this project measured, with their provenance and current predictions.

`validate/measurements/NAME.csv` holds rows as `roofline validate measure` writes them, `NAME.yaml` their provenance,
including the hardware: the name of a bundled spec, or the path of a spec for a machine without a datasheet. The base
install suffices to read them.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct
from numpy.typing import NDArray

from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, SpecError, UnsupportedError, quote
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.records import record
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import Array, kernel, kernel_regimes
from roofline.validate.kernels.work import Case
from roofline.validate.observation import MEASURED, observed
from roofline.validate.score.errors import Group, group_of
from roofline.validate.tables.rowfile import case_of
from roofline.validate.tables.rows import TEXT, shape_names
from roofline.validate.tables.text import check_known, read_lines

FOLDER = Path(str(files("roofline.validate"))) / "measurements"

Text = Annotated[str, Meta(min_length=1, max_length=2000)]


class Provenance(Struct, frozen=True):
    """The provenance of a file of rows.

    `hardware` is the name of a bundled spec, or a path relative to the file's folder. `constants` describes the fitted
    constants that predict the rows; `fitted` is true if they were fitted to these rows, whose errors are then no test.
    """

    title: Text
    hardware: Text
    machine: Text
    software: Text
    command: Text
    date: datetime.date
    revision: Text
    load: Text
    fitted: bool
    constants: Text


class MeasurementFile(Struct, frozen=True):
    """A measurement file of the repository: its name, provenance, hardware, and rows as text."""

    name: str
    provenance: Provenance
    hardware: Hardware
    rows: tuple[Mapping[str, str], ...]
    where: str


class KernelGroup(Struct, frozen=True):
    """Measured and predicted times in seconds, for rows of one op, format, kernel and cache state."""

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
    def errors(self) -> Group:
        return group_of({}, self.measured, self.low, self.mid, self.high, self.bound)

    @property
    def classes(self) -> Iterator[tuple[str, NDArray[np.bool_]]]:
        """Shape classes with rows, each with the mask of its rows."""
        for index, label in enumerate(kernel(self.op).regimes.labels):
            chosen = self.regimes == index
            if chosen.any():
                yield label, chosen


def load_row_files(folder: Path = FOLDER) -> list[MeasurementFile]:
    """The measurement files in `folder`, by name; raises SpecError for an invalid file."""
    return [_read(path) for path in sorted(folder.glob("*.csv"))]


def _read(path: Path) -> MeasurementFile:
    about = path.with_suffix(".yaml")
    if not about.is_file():
        raise SpecError(str(path), f"has no provenance file {about.name}")
    provenance = record(Provenance, read_mapping(about), str(about))
    named = provenance.hardware
    hardware = load_hardware(str(path.parent / named) if named.endswith(".yaml") else named)
    lines = read_lines(path, ("hardware",))
    check_known(lines, "hardware", {hardware.name}, str(path))
    return MeasurementFile(path.stem, provenance, hardware, tuple(line.cells for line in lines), str(path))


def predict_rows(file: MeasurementFile) -> list[KernelGroup]:
    """Current predictions with the shipped constants, by op, format, kernel and cache state.

    Rows of a format that the hardware does not support are skipped. Raises SpecError for rows without a shape.
    """
    calibration = load_calibration(file.hardware)
    grouped: dict[tuple[str, ...], list[tuple[Case, float]]] = {}
    for number, row in enumerate(file.rows, 1):
        where = f"{file.where}: row {number}"
        try:
            case, seconds = case_of(row, where), float(row["latency_us"]) * 1e-6
        except KeyError as error:
            raise SpecError(where, f"lacks the column {quote(str(error.args[0]))}") from None
        if not 0 < seconds < np.inf:
            raise SpecError(where, "'latency_us' must be positive")
        names = [str(case.columns[name]) for name in ("dtype", "kv_dtype") if name in case.columns]
        key = (case.op, "/".join(dict.fromkeys(names)), row.get("kernel", ""), row.get("cache", "") or "warm")
        grouped.setdefault(key, []).append((case, seconds))
    found = []
    for (op, format, kernel_name, cache), rows in grouped.items():
        columns = _columns(op, [case for case, _ in rows])
        try:
            timed = observed(op, columns, np.full(len(rows), cache != "cold"))
            bound = MEASURED.bound(timed, file.hardware)
            expected = MEASURED.expected(timed, file.hardware, calibration)
        except UnsupportedError:
            continue
        measured = np.array([seconds for _, seconds in rows])
        times = (expected.low, expected.mid, expected.high)
        regimes = kernel_regimes(op, columns)
        found.append(KernelGroup(op, format, kernel_name, cache, expected.basis, measured, bound, *times, regimes))
    if not found:
        raise RooflineError(f"{file.where}: {file.hardware.name} supports the format of no row")
    return found


def _columns(op: str, cases: Sequence[Case]) -> dict[str, Any]:
    columns: dict[str, Any] = {"op": op}
    for name in shape_names(op):
        values = [case.columns[name] for case in cases]
        if name != "routing":
            columns[name] = str(values[0]) if name in TEXT else np.array(values, dtype=np.float64)
    return columns


def geometric_mean(values: Array) -> float:
    """The geometric mean, in which short and long rows count the same."""
    return float(np.exp(np.mean(np.log(values))))
