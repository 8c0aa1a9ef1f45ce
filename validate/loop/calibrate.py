"""Calibrating this machine: measured, fitted, scored on rows kept aside, and written into an overlay folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.files import save_text
from roofline.specs.engine import Engine
from roofline.specs.engine import render as render_engine
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.library import SEARCH_PATH
from roofline.timing.calibration import Calibration, Fit, load_calibration, render
from roofline.validate.fit.calibrate import describe, fit, log_errors, percentiles
from roofline.validate.loop.host import OWN_WAY, engine_profile, preferred
from roofline.validate.loop.measure import Measured, ready, taken
from roofline.validate.measure.device import Device
from roofline.validate.measure.machine import Machine, examine
from roofline.validate.score.kernels import Group, score
from roofline.validate.tables.rows import Measurements, read_measurements

KEPT_ASIDE = 5
"""Every so many-th row of an op and format is scored, and not fitted."""


class Calibrated(Struct, frozen=True):
    """What `calibrate` wrote, and how far predictions are off on the rows kept aside; `before` is without it."""

    measured: Measured
    folder: Path
    calibration: Calibration
    engine: Engine
    after: tuple[Group, ...]
    before: tuple[Group, ...]
    overall: Group | None
    failed: tuple[str, ...]

    @property
    def lines(self) -> list[str]:
        """For a person."""
        return [
            *self.measured.lines,
            "",
            *score_lines(self.after, self.before, self.overall),
            *self.failed,
            "",
            *self._where,
        ]

    @property
    def _where(self) -> list[str]:
        name = self.measured.machine.hardware.name
        return [
            f"{self.folder}: calibration of {name}, and its engine profile (engines/{name}.yaml)",
            f"use it:  {SEARCH_PATH}={self.folder} roofline analyze MODEL --hw {name}"
            f" --engine {self.folder}/engines/{name}.yaml",
        ]


def score_lines(after: Sequence[Group], before: Sequence[Group], overall: Group | None) -> list[str]:
    """Errors by op and format on the rows kept aside, for a person."""
    earlier = {(group.op, group.format): group for group in before}
    lines = ["errors on rows kept aside, %      rows   median    mean   in the interval   before   bound alone"]
    for group in after:
        old = earlier.get((group.op, group.format))
        was = f"{100 * old.median_ape:8.0f}" if old else f"{'-':>8}"
        lines.append(
            f"  {group.op + ' ' + group.format:<30}{group.rows:6}{100 * group.median_ape:9.1f}{100 * group.mape:8.1f}"
            f"{100 * group.interval_coverage:18.0f}{was} {100 * group.bound_mape:13.0f}"
        )
    if overall:
        lines.append(
            f"  {'all':<30}{overall.rows:6}{100 * overall.median_ape:9.1f}{100 * overall.mape:8.1f}"
            f"{100 * overall.interval_coverage:18.0f}"
        )
    return lines


def calibrated(
    device: str = "cuda",
    minutes: float = 20.0,
    ops: Sequence[str] = (),
    folder: Path = Path("specs"),
    dtypes: Sequence[str] = (),
    threads: int | None = None,
) -> Calibrated:
    """Measure, fit and score this machine; write its spec, calibration and engine profile into an overlay folder.

    A folder that has rows already is continued. Raises RooflineError where too little was measured for any fit.
    """
    opened, known = ready(device, minutes, ops, threads)
    machine = _known_machine(opened, folder)
    hardware = machine.hardware
    rows = folder / "measured" / f"{hardware.name}.csv"
    outcome = taken(opened, machine, known, rows, minutes, ops, dtypes, single=OWN_WAY)
    engine = engine_profile(opened, known, preferred(dtypes, hardware))
    found = Measured(machine, rows, outcome, opened.software)
    parts = read_measurements(rows)
    calibration, after, before, overall, failed = fitted_and_scored(parts, hardware)
    command = f"roofline validate calibrate --device {opened.name} --minutes {minutes:g}"
    calibration = replace(calibration, source=replace(describe(parts), command=command))
    save_text(folder / "calibration" / f"{hardware.name}.yaml", render(calibration))
    save_text(folder / "engines" / f"{hardware.name}.yaml", render_engine(engine))
    return Calibrated(found, folder, calibration, engine, tuple(after), tuple(before), overall, tuple(failed))


def _known_machine(device: Device, folder: Path) -> Machine:
    """The machine; one whose spec the folder has keeps it, so that rows of two runs are of one hardware."""
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
    """The calibration from four in five rows, and the errors on the others: with it, without it, and with it over all.

    What is too little to be fitted is said, and keeps the constants of other hardware; so does what these tell better.
    """
    inherited = load_calibration(hardware)
    fits: dict[tuple[str, str], Fit] = {}
    aside: list[Measurements] = []
    failed: list[str] = []
    for part in [_one_way(group) for whole in parts for group in whole.formats().values()]:
        chosen = np.arange(len(part)) % KEPT_ASIDE == KEPT_ASIDE - 1
        found = _fitted(part.rows(~chosen), hardware, inherited)
        if isinstance(found, str):
            failed.append(f"  not fitted: {found}")
            continue
        worse = _worse(next(iter(found.values())), part.rows(~chosen), hardware, inherited)
        if worse:
            failed.append(f"  constants of other hardware are kept: {worse}")
        else:
            fits |= found
        if chosen.any():
            aside.append(part.rows(chosen))
    if not fits:
        reason = failed[0].strip().removeprefix("not fitted: ") if failed else "there are no rows"
        raise RooflineError(f"nothing can be fitted yet: {reason}; measure for longer")
    calibration = Calibration(hardware.name, "calibrated", fits, parents=tuple(inherited.chain))
    by = ("op", "format")
    after = score(aside, hardware, calibration, by=by) if aside else []
    before = score(aside, hardware, inherited, by=by) if aside else []
    overall = score(aside, hardware, calibration, by=())[0] if aside else None
    return calibration, after, before, overall, failed


def _fitted(part: Measurements, hardware: Hardware, inherited: Calibration) -> Mapping[tuple[str, str], Fit] | str:
    """The fit of one op and format, or why there is none.

    It starts from constants of other hardware; where rows are too few for that, two constants may still be fitted to
    them alone.
    """
    reason = ""
    for prior in (inherited, None):
        try:
            return fit([part], hardware, prior=prior).fits
        except RooflineError as error:
            reason = reason or str(error)
    return reason


def _worse(own: Fit, part: Measurements, hardware: Hardware, inherited: Calibration) -> str:
    """Why inherited constants are better than a part's own on rows that these have not seen; empty where they are not.

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
    return f"8 of 10 rows of {ops} are within a factor of {before:.2f} of them, of own ones within {after:.2f}"


def _one_way(part: Measurements) -> Measurements:
    """The rows of PyTorch's own kernels, where there are any; and of cold caches, where there are any."""
    for name, value in (("kernel", OWN_WAY), ("cache", "cold")):
        if name in part.frame:
            chosen = (part.frame[name] == value).to_numpy(dtype=bool)
            part = part.rows(chosen) if chosen.any() else part
    return part
