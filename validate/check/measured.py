"""Kernels that this project measured, with their provenance and current predictions.

`validate/measurements/NAME.csv` holds rows as `roofline validate measure` writes them, `NAME.yaml` their provenance,
including the hardware: the name of a bundled spec, or the path of a spec for a machine without a datasheet.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct

from roofline.core.documents import bundled_path, read_mapping
from roofline.core.errors import RooflineError, SpecError, quote
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.records import record
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import Array
from roofline.validate.score.kernels import Scored, predict
from roofline.validate.tables.rows import Measurements, only_hardware, read_measurements

FOLDER = bundled_path("validate/measurements")

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
    """A measurement file of the repository: its name, provenance and hardware, and its rows by op."""

    name: str
    provenance: Provenance
    hardware: Hardware
    parts: tuple[Measurements, ...]
    where: str


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
    parts = read_measurements(path)
    measured = only_hardware(parts, str(path))
    if measured != hardware.name:
        raise SpecError(str(path), f"has rows of {quote(measured)}; its provenance names {quote(hardware.name)}")
    return MeasurementFile(path.stem, provenance, hardware, tuple(parts), str(path))


def predict_rows(file: MeasurementFile) -> list[Scored]:
    """Current predictions with the shipped constants, by op, format, kernel and cache state, in the order of the rows.

    Rows of a format that the hardware does not support are skipped; raises RooflineError where none is left.
    """
    calibration = load_calibration(file.hardware)
    alike = (rows for part in file.parts for rows in _by_kernel(part))
    found = [scored for rows in alike for scored in predict(rows, file.hardware, calibration)]
    if not found:
        raise RooflineError(f"{file.where}: {file.hardware.name} supports the format of no row")
    return sorted(found, key=lambda scored: int(scored.part.frame.index[0]))


def _by_kernel(part: Measurements) -> Iterator[Measurements]:
    """The rows of each kernel and cache state."""
    ways = list(zip(part.texts("kernel"), part.texts("cache"), strict=True))
    for way in dict.fromkeys(ways):
        yield part.rows(np.array([other == way for other in ways]))


def geometric_mean(values: Array) -> float:
    """The geometric mean, in which short and long rows count the same."""
    return float(np.exp(np.mean(np.log(values))))
