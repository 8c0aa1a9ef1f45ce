"""`roofline validate calibrate`: measure, fit and score this machine, and write an overlay folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.files import save_text
from roofline.specs.engine import Engine
from roofline.specs.engine_written import render as render_engine
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.library import SEARCH_PATH
from roofline.timing.calibration import Calibration, Fit
from roofline.timing.calibration_files import render
from roofline.timing.chains import load_calibration
from roofline.validate.fit.calibrate import describe, fit, log_errors, percentiles
from roofline.validate.loop.host import BACKEND, default_dtype, engine_profile
from roofline.validate.measure.bench import MeasureResult, measure_into, open_benchmarks
from roofline.validate.measure.device import Device
from roofline.validate.measure.machine import Machine, examine
from roofline.validate.score.errors import Group
from roofline.validate.score.kernels import score
from roofline.validate.tables.rows import Measurements, read_measurements

HOLDOUT = 5
"""Every HOLDOUT-th row of an op and format is held out: scored, and not fitted."""


class CalibrationResult(Struct, frozen=True):
    """The calibration written, and errors of predictions on held-out rows: with it (`after`) and without (`before`)."""

    measured: MeasureResult
    folder: Path
    calibration: Calibration
    engine: Engine
    after: tuple[Group, ...]
    before: tuple[Group, ...]
    overall: Group | None
    failed: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        name = self.measured.machine.hardware.name
        return [
            *self.measured.lines,
            "",
            *score_lines(self.after, self.before, self.overall),
            *self.failed,
            "",
            f"{self.folder}: calibration of {name}, and its engine profile (engines/{name}.yaml)",
            f"use it:  {SEARCH_PATH}={self.folder} roofline analyze MODEL --hw {name}"
            f" --engine {self.folder}/engines/{name}.yaml",
        ]


def score_lines(after: Sequence[Group], before: Sequence[Group], overall: Group | None) -> list[str]:
    """Errors by op and format on held-out rows, as text."""
    earlier = {(group["op"], group["format"]): group for group in before}
    lines = ["errors on held-out rows, %        rows   median    mean   in the interval   before   bound alone"]
    for group in after:
        old = earlier.get((group["op"], group["format"]))
        was = f"{100 * old.median_ape:8.0f}" if old else f"{'-':>8}"
        lines.append(
            f"  {group['op'] + ' ' + group['format']:<30}{group.rows:6}{100 * group.median_ape:9.1f}"
            f"{100 * group.mape:8.1f}{100 * group.interval_coverage:18.0f}{was} {100 * group.bound_mape:13.0f}"
        )
    if overall:
        lines.append(
            f"  {'all':<30}{overall.rows:6}{100 * overall.median_ape:9.1f}{100 * overall.mape:8.1f}"
            f"{100 * overall.interval_coverage:18.0f}"
        )
    return lines


def run_calibrate(
    device: str = "cuda",
    minutes: float = 20.0,
    ops: Sequence[str] = (),
    folder: Path = Path("specs"),
    dtypes: Sequence[str] = (),
    threads: int | None = None,
) -> CalibrationResult:
    """Measure, fit and score this machine; write its spec, calibration and engine profile into an overlay folder.

    Rows already in the folder are kept. Raises RooflineError where the rows are too few for any fit.
    """
    opened, known = open_benchmarks(device, minutes, ops, threads)
    machine = _known_machine(opened, folder)
    hardware = machine.hardware
    rows = folder / "measured" / f"{hardware.name}.csv"
    outcome = measure_into(opened, machine, known, rows, minutes, ops, dtypes, preferred=BACKEND)
    engine = engine_profile(opened, known, default_dtype(dtypes, hardware))
    measured = MeasureResult(machine, rows, outcome, opened.software)
    parts = read_measurements(rows)
    calibration, after, before, overall, failed = fitted_and_scored(parts, hardware)
    command = f"roofline validate calibrate --device {opened.name} --minutes {minutes:g}"
    calibration = replace(calibration, source=replace(describe(parts), command=command))
    save_text(folder / "calibration" / f"{hardware.name}.yaml", render(calibration))
    save_text(folder / "engines" / f"{hardware.name}.yaml", render_engine(engine))
    return CalibrationResult(measured, folder, calibration, engine, tuple(after), tuple(before), overall, tuple(failed))


def _known_machine(device: Device, folder: Path) -> Machine:
    """The machine, with the spec in the folder if there is one, so that the rows of all runs have one hardware."""
    machine = examine(device)
    if machine.bundled:
        return machine
    path = folder / f"{machine.hardware.name}.yaml"
    if path.is_file():
        return replace(machine, hardware=load_hardware(str(path)))
    save_text(path, machine.spec)
    return machine


def fitted_and_scored(
    parts: Sequence[Measurements], hardware: Hardware
) -> tuple[Calibration, list[Group], list[Group], Group | None, list[str]]:
    """The calibration fitted to four of five rows, and errors on the held-out rows: with it, without it, and overall.

    Ops and formats with too few rows, or whose own constants predict worse than inherited ones, keep the inherited
    constants; the last list gives the reasons.
    """
    inherited = load_calibration(hardware)
    fits: dict[tuple[str, str], Fit] = {}
    held_out: list[Measurements] = []
    failed: list[str] = []
    for part in [_one_backend(group) for whole in parts for group in whole.formats().values()]:
        chosen = np.arange(len(part)) % HOLDOUT == HOLDOUT - 1
        found = _fitted(part.rows(~chosen), hardware, inherited)
        if isinstance(found, str):
            failed.append(f"  not fitted: {found}")
            continue
        worse = _worse(next(iter(found.values())), part.rows(~chosen), hardware, inherited)
        if worse:
            failed.append(f"  inherited constants are kept: {worse}")
        else:
            fits |= found
        if chosen.any():
            held_out.append(part.rows(chosen))
    if not fits:
        reason = failed[0].strip().removeprefix("not fitted: ") if failed else "there are no rows"
        raise RooflineError(f"nothing can be fitted yet: {reason}; measure for longer")
    calibration = Calibration(hardware.name, "calibrated", fits, parents=tuple(inherited.chain))
    by = ("op", "format")
    after = score(held_out, hardware, calibration, by=by) if held_out else []
    before = score(held_out, hardware, inherited, by=by) if held_out else []
    overall = score(held_out, hardware, calibration, by=())[0] if held_out else None
    return calibration, after, before, overall, failed


def _fitted(part: Measurements, hardware: Hardware, inherited: Calibration) -> Mapping[tuple[str, str], Fit] | str:
    """The fit of one op and format, or why there is none.

    The prior is the inherited constants; where that fit fails for lack of rows, two constants are fitted without it.
    """
    reason = ""
    for prior in (inherited, None):
        try:
            return fit([part], hardware, prior=prior).fits
        except RooflineError as error:
            reason = reason or str(error)
    return reason


def _worse(own: Fit, part: Measurements, hardware: Hardware, inherited: Calibration) -> str:
    """Why inherited constants predict better than the fitted ones on rows not fitted to; empty if they do not.

    `own.residuals` are of such rows where there are enough of them.
    """
    match = inherited.find(own.op, own.format)
    if match is None:
        return ""
    spreads = percentiles(-log_errors(part, hardware, match.fit.parameters)), own.residuals["all"]
    before, after = (max(1 / spread.low, spread.high) for spread in spreads)
    if after < before:
        return ""
    ops = f"{own.op} in {own.format}".removesuffix(" in any")
    return f"the 80% interval of {ops} is a factor of {before:.2f} with them, {after:.2f} with fitted ones"


def _one_backend(part: Measurements) -> Measurements:
    """The rows of PyTorch's kernels, if there are any; of these, the rows with cold caches, if there are any."""
    for name, value in (("kernel", BACKEND), ("cache", "cold")):
        if name in part.frame:
            chosen = (part.frame[name] == value).to_numpy(dtype=bool)
            part = part.rows(chosen) if chosen.any() else part
    return part
