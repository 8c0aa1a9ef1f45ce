"""Fit calibrations to measurements of one accelerator, or of several together.

The constants of one kind of kernel in one format are robust, bounded, and regularised towards a prior: those of least
loss (`roofline.validate.fit.search`). The prior x0 has the constants of the family, or of all hardware, and w is its
width: 50 measurements move the constants that they determine, and leave the others.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.specs.hardware import Hardware, load_hardware
from roofline.timing.calibration import Calibration, Fit, Source
from roofline.timing.calibration_files import render
from roofline.timing.chains import load_calibration
from roofline.timing.intervals.kernels import Residuals
from roofline.timing.kernels import Array, Parameters, kernel, kernel_regimes
from roofline.validate.fit.search import Parts, Start, before_data, every_parameter, fitted_parameters, search
from roofline.validate.observation import MEASURED, Harness
from roofline.validate.tables.implausible import believable
from roofline.validate.tables.rows import (
    NONE,
    Measurements,
    by_op,
    by_origin,
    headline,
    only_hardware,
    read_measurements,
)

PRIOR_WIDTH = {"family": 0.5, "none": 3.0}
"""Width of the prior of a constant, in factors of e: around related hardware's constants, or around the default."""

MIN_ROWS = 20
"""Least rows of a fit with a prior; without one the least is three for each constant."""

FREE_CHOICE = 300
"""Rows from which choices are fitted, not taken from the prior."""

HALVED = 40
"""Rows from which residuals are cross-validated over halves of the shapes."""

PERCENTILES = (10.0, 50.0, 90.0)

SAMPLE = 2400
"""Most rows of a fit; more do not improve a dozen constants."""

HEADLINE_SHARE = 0.7
"""Fraction of headline rows among a fit's rows."""


def fit(
    parts: Sequence[Measurements],
    hardware: Hardware,
    prior: Calibration | None = None,
    points: int | None = None,
    seed: int = 0,
    source: Source | None = None,
    harness: Harness = MEASURED,
) -> Calibration:
    """The calibration of `hardware` from measurements of it.

    `prior` holds the constants to regularise towards (the family's or the pooled calibration); `points` limits the fit
    to so many random rows of each op and format. Raises RooflineError for too few rows.
    """
    fits: dict[tuple[str, str], Fit] = {}
    for op, part in by_op(parts).items():
        for format, rows in sorted(part.formats().items()):  # fp8 before fp8_block, which starts from it
            chosen = sample(rows, points or SAMPLE, seed, everything=points is not None)
            start = start_of(op, format, prior, fits, harness)
            try:
                found = fit_rows(op, format, [(chosen, hardware)], start, seed, harness=harness)
            except UnsupportedError:
                continue
            fits[op, format] = replace(found, rows=len(chosen) if points else len(rows))
    if not fits:
        raise RooflineError(f"{parts[0].where}: has no rows to fit for {hardware.name}")
    origin = source or describe(parts)
    return Calibration(hardware.name, "calibrated", fits, origin, tuple(prior.chain) if prior else ())


def fitted(path: Path, hardware: str, points: int | None) -> tuple[str, list[str]]:
    """The calibration of `hardware` fitted to the measurements in a file or folder, as YAML, and notes in words.

    The prior is the nearest calibration: that of the engine's version in the rows on the device, else its relatives'.
    The notes say which rows were left out, and whose kernels the rows are taken for.
    """
    parts = read_measurements(path)
    only_hardware(parts, str(path))
    device = load_hardware(hardware)
    believed = believable(parts, device)
    origins = {origin for part in believed.parts for origin in by_origin(part)}
    one = origins.pop() if len(origins) == 1 else NONE
    command = f"roofline validate fit {path.name} --hw {device.name}" + (f" --points {points}" if points else "")
    source = replace(describe(parts), command=command)
    prior = load_calibration(device, engine=one.engine, version=one.version)
    text = render(fit(believed.parts, device, prior=prior, points=points, source=source))
    whose = f"of {one}" if one.engine else "of no single engine: fitted as this machine's own"
    return text, [*(f"left out: {reason}" for reason in believed.left_out), f"the rows are {whose}"]


def describe(parts: Sequence[Measurements]) -> Source:
    """The software of measurement files, with today's date."""
    software: set[str] = set()
    for part in parts:
        if "software" in part.frame:
            software |= set(map(str, part.frame["software"].unique()))
    return Source(software=tuple(sorted(software)), date=datetime.datetime.now(tz=datetime.UTC).date())


def start_of(
    op: str, format: str, prior: Calibration | None, own: Mapping[tuple[str, str], Fit], harness: Harness
) -> Start:
    """The prior's constants; for block-scaled GEMMs those of the same accelerator's FP8 GEMMs."""
    known = dict(default_start(op, format, harness).parameters)
    lacking = {one.name: one.default for one in every_parameter(op, format, harness) if one.optional}
    informed = False
    match = prior.find(op, format) if prior else None
    sibling = own.get((op, "fp8")) if format == "fp8_block" and op == "gemm" else None
    for constants in (constants_of(one) if one else {} for one in (match.fit if match else None, sibling)):
        known |= {name: value for name, value in constants.items() if name in known and value != lacking.get(name)}
        informed = informed or bool(constants)
    return Start(known, PRIOR_WIDTH["family" if informed else "none"], informed)


def sample(part: Measurements, count: int, seed: int, everything: bool = False) -> Measurements:
    """At most `count` rows: mostly `headline` rows, half of them spread evenly over the regimes.

    With `everything` they are drawn uniformly from the headline rows, as in a user's own measurements.
    """
    generator = np.random.default_rng(seed)
    usual = np.flatnonzero(headline(part))
    rest = np.setdiff1d(np.arange(len(part)), usual)
    if everything:
        return part.rows(np.sort(generator.permutation(usual if len(usual) >= count else len(part))[:count]))
    main = _spread(part, usual, int(count * HEADLINE_SHARE), generator)
    others = _spread(part, rest, count - len(main), generator)
    return part.rows(np.sort(np.concatenate([main, others])))


def _spread(
    part: Measurements, positions: NDArray[np.int64], count: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """`count` of `positions`: half drawn uniformly, half with equal numbers from every regime."""
    if len(positions) <= count:
        return positions
    plain = generator.permutation(positions)[: count // 2]
    left = np.setdiff1d(positions, plain)
    regimes = kernel_regimes(part.op, part.rows(left).columns)
    weight = 1.0 / np.bincount(regimes, minlength=regimes.max() + 1)[regimes]
    more = generator.choice(left, size=count - len(plain), replace=False, p=weight / weight.sum())
    return np.concatenate([plain, more])


# --- one kind of kernel in one format ---


def default_start(op: str, format: str, harness: Harness = MEASURED) -> Start:
    """The start of a fit without a prior."""
    return Start(before_data(op, format, harness), PRIOR_WIDTH["none"], informed=False)


def fit_rows(
    op: str,
    format: str,
    parts: Parts,
    start: Start,
    seed: int = 0,
    free: bool | None = None,
    harness: Harness = MEASURED,
    folds: bool = True,
    least: int = MIN_ROWS,
) -> Fit:
    """One set of constants for the measurements of one format, on one accelerator or on several together.

    With `free` choices are fitted for any number of rows: for libraries other than the prior's; without, those of the
    start are kept; by default FREE_CHOICE rows decide. `harness` is how the rows were timed. The residuals are
    cross-validated over `folds`: halves of the shapes, or accelerators.
    """
    count = sum(len(part) for part, _ in parts)
    required = least if start.informed else 3 * len(fitted_parameters(op, format, parts, harness))
    if count < required:
        raise RooflineError(f"{count} rows of {op} in {format} are too few to fit; at least {required} are needed")
    chosen = count >= FREE_CHOICE if free is None else free
    parameters = search(op, format, parts, start, chosen or not start.informed, harness)
    errors, labels = [], []
    for held, fitted in _folds(parts, seed) if folds else [(parts, [])]:
        refitted = parameters
        if fitted:
            refit = Start(parameters, start.width, informed=True)
            refitted = search(op, format, fitted, refit, free=False, harness=harness)
        for part, hardware in held:
            errors.append(-log_errors(part, hardware, refitted, harness))
            labels.append(kernel_regimes(op, part.columns))
    residuals = summarise(op, np.concatenate(errors), np.concatenate(labels))
    observed = {one.name: parameters.pop(one.name) for one in harness.parameters(op, format)}
    return Fit(op, format, parameters, residuals, ranges(op, [part for part, _ in parts]), count, observed=observed)


def log_errors(part: Measurements, hardware: Hardware, parameters: Parameters, harness: Harness = MEASURED) -> Array:
    """log(predicted / measured) of each row, with constants of the kernel and of how it was timed."""
    predicted = harness.observe(harness.rows(part), hardware, parameters).seconds
    return np.asarray(np.log(predicted / part.seconds))


def constants_of(fit: Fit) -> dict[str, float]:
    """The constants of the kernel and of how it was timed."""
    return {**fit.parameters, **fit.observed}


def _folds(parts: Parts, seed: int) -> list[tuple[Parts, Parts]]:
    """Folds (held out, fitted): over accelerators; for a single one over halves of its shapes, or none for few rows."""
    if len(parts) > 1:
        return [([parts[index]], [*parts[:index], *parts[index + 1 :]]) for index in range(len(parts))]
    part, hardware = parts[0]
    if len(part) < HALVED:
        return [([(part, hardware)], [])]
    held = hold_out(part, seed)
    if not held.any() or held.all():
        return [([(part, hardware)], [])]
    first, second = (part.rows(held), hardware), (part.rows(~held), hardware)
    return [([first], [second]), ([second], [first])]


def hold_out(part: Measurements, seed: int = 0) -> NDArray[np.bool_]:
    """A random half of the shapes, never of rows: (n, k) pairs, head configurations, expert shapes, message sizes."""
    names = list(kernel(part.op).held_out)
    groups = part.frame.groupby(names, sort=True).ngroup().to_numpy()
    generator = np.random.default_rng(seed)
    held = generator.permutation(groups.max() + 1) % 2 == 1
    return np.asarray(held[groups], dtype=bool)


def summarise(op: str, errors: Array, regimes: NDArray[np.int64]) -> dict[str, Residuals]:
    """Percentiles of measured over predicted time from its logarithms `errors`: under `all`, and by regime."""
    residuals = {"all": percentiles(errors)}
    for index, label in enumerate(kernel(op).regimes.labels):
        chosen = errors[regimes == index]
        if len(chosen) >= MIN_ROWS:
            residuals[label] = percentiles(chosen)
    return residuals


def percentiles(errors: Array) -> Residuals:
    """Percentiles of measured over predicted time from its logarithms `errors`."""
    low, mid, high = np.exp(np.percentile(errors, PERCENTILES))
    return Residuals(float(low), float(mid), float(high), len(errors))


def ranges(op: str, parts: Sequence[Measurements]) -> dict[str, tuple[float, float]]:
    """The smallest and largest value of each size of the kernel that a fit keeps."""
    found, shapes = {}, [kernel(op).shape(part.columns) for part in parts]
    for name in kernel(op).ranged:
        values = [getattr(shape, name) for shape in shapes]
        found[name] = (float(min(v.min() for v in values)), float(max(v.max() for v in values)))
    return found
