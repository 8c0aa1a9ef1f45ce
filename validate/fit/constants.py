"""Fit the constants of one kind of kernel in one format: robust, bounded, and regularised towards a prior.

The constants are those of least loss (`roofline.validate.fit.search`). The prior x0 has the constants of the family, or
of all hardware, and w is its width: 50 measurements move the constants that they determine, and leave the others.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Fit
from roofline.timing.intervals.kernels import Residuals
from roofline.timing.kernels import Array, Parameters, kernel, kernel_regimes
from roofline.validate.fit.search import Parts, Start, before_data, fitted_parameters, search
from roofline.validate.observation import MEASURED, Harness
from roofline.validate.tables.rows import Measurements

PRIOR_WIDTH = {"family": 0.5, "none": 3.0}
"""Width of the prior of a constant, in factors of e: around related hardware's constants, or around the default."""

MIN_ROWS = 20
"""Least rows of a fit with a prior; without one the least is three for each constant."""

FREE_CHOICE = 300
"""Rows from which choices are fitted, not taken from the prior."""

HALVED = 40
"""Rows from which residuals are cross-validated over halves of the shapes."""

PERCENTILES = (10.0, 50.0, 90.0)


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
    """The smallest and largest value of each column that a fit keeps."""
    found = {}
    for name in kernel(op).ranged:
        values = [part.frame[name] for part in parts]
        found[name] = (float(min(v.min() for v in values)), float(max(v.max() for v in values)))
    return found
