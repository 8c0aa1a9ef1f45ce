"""What the commands of `roofline validate` do, from a path to an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from roofline import load_hardware
from roofline.calibration import load_calibration, render
from validate.calibrate import describe, fit
from validate.rows import only_hardware, read_measurements
from validate.score import as_document, score


def fitted(path: Path, hardware: str, points: int | None) -> str:
    """The calibration of `hardware` fitted to its measurements, as YAML.

    It starts from the nearest constants there are: the device's own where they exist, else its family's.
    """
    parts = read_measurements(path)
    only_hardware(parts, str(path))
    device = load_hardware(hardware)
    command = f"roofline validate fit {path.name} --hw {device.name}" + (f" --points {points}" if points else "")
    source = replace(describe(parts), command=command)
    return render(fit(parts, device, prior=load_calibration(device), points=points, source=source))


def scored(path: Path, hardware: str | None, by: Sequence[str]) -> Mapping[str, Any]:
    """The errors of predictions against the measurements, grouped."""
    device = None if hardware is None else load_hardware(hardware)
    return as_document(score(read_measurements(path), device, by=by))
