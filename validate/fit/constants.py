"""Fit the constants of one kind of kernel in one format: robust, bounded, and regularised towards a prior.

The constants x minimise  sum over rows of rho(log(predicted / measured) / s) + sum over constants of rho(log(x / x0) /
w), with rho(z) = 2 (sqrt(1 + z^2) - 1): a mean absolute logarithmic error, smooth at zero (s = 5%) and robust against
outliers. x0 are the constants of the family, or of all hardware, and w is the width of the prior: 50 measurements move
the constants that they determine, and leave the others. Choices (a tiling, a dispatch) are tried one by one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Fit, Residuals
from roofline.timing.kernels import Array, Columns, kernel, kernel_regimes, kernel_time
from roofline.timing.kernels.attention import TILINGS
from roofline.validate.tables.rows import Measurements

ERROR_SCALE = 0.05
"""Relative errors below this count quadratically, above it linearly."""

PRIOR_WIDTH = {"family": 0.5, "none": 3.0}
"""Width of the prior of a constant, in factors of e: around related hardware's constants, or around the default."""

RESTARTS = 3
"""Starting points of a search without a prior."""

MIN_ROWS = 20
"""Least rows of a fit with a prior; without one the least is three for each constant."""

FREE_CHOICE = 300
"""Rows from which choices are fitted, not taken from the prior."""

HALVED = 40
"""Rows from which residuals are cross-validated over halves of the shapes."""

TOLERANCE = 1e-4
"""Relative change of the loss and of the constants (in factors of e) at which a search ends."""

CHOICE_MARGIN = 1.02
"""A choice other than the prior's must lower the loss by more than this factor."""

HIDDEN = ("launch", "odd_rows", "l2_share")
"""Constants that the host time of a benchmark without CUDA graphs hides: they stay as they start."""

PERCENTILES = (10.0, 50.0, 90.0)


class Start(Struct, frozen=True):
    """Initial constants of a fit, and the width of the prior around them."""

    parameters: Mapping[str, float]
    width: float
    informed: bool


def default_start(op: str, format: str) -> Start:
    """The start of a fit without a prior."""
    parameters = kernel(op).parameters(format)
    known = {one.name: one.default if one.start is None else one.start for one in parameters}
    return Start(known, PRIOR_WIDTH["none"], informed=False)


class _Rows(Struct, frozen=True):
    """Measurements of one op and format on one accelerator, ready for a fit."""

    columns: Columns
    hardware: Hardware
    seconds: Array
    resident: NDArray[np.bool_]
    alone: NDArray[np.bool_]
    hosted: bool

    @classmethod
    def of(cls, part: Measurements, hardware: Hardware, hosted: bool = False) -> _Rows:
        return cls(part.columns, hardware, part.seconds, part.resident, part.alone, hosted)

    def errors(self, op: str, parameters: Mapping[str, float]) -> Array:
        predicted = kernel_time(op, self.columns, self.hardware, parameters, self.resident, self.alone)
        return np.log(predicted / self.seconds)


_Parts = Sequence[tuple[Measurements, Hardware]]


def fit_rows(
    op: str,
    format: str,
    parts: _Parts,
    start: Start,
    seed: int = 0,
    free: bool | None = None,
    hosted: bool = False,
    folds: bool = True,
    least: int = MIN_ROWS,
) -> Fit:
    """One set of constants for the measurements of one format, on one accelerator or on several together.

    With `free` choices are fitted for any number of rows: for libraries other than the prior's; without, those of the
    start are kept; by default FREE_CHOICE rows decide. `hosted` rows are of a
    benchmark without CUDA graphs. The residuals are cross-validated over `folds`: halves of the shapes, or
    accelerators.
    """
    if hosted:
        start = Start(_with_host(op, format, start.parameters), start.width, start.informed)
    rows = [_Rows.of(part, hardware, hosted) for part, hardware in parts]
    count = sum(len(part) for part, _ in parts)
    required = least if start.informed else 3 * len(_fitted_parameters(op, format, rows))
    if count < required:
        raise RooflineError(f"{count} rows of {op} in {format} are too few to fit; at least {required} are needed")
    chosen = count >= FREE_CHOICE if free is None else free
    parameters = _search(op, format, rows, start, chosen or not start.informed)
    errors, labels = [], []
    for held, fitted in _folds(parts, seed) if folds else [(parts, [])]:
        refitted = parameters
        if fitted:
            refit = Start(parameters, start.width, informed=True)
            fold = [_Rows.of(part, hardware, hosted) for part, hardware in fitted]
            refitted = _search(op, format, fold, refit, free=False)
        for part, hardware in held:
            errors.append(-log_errors(part, hardware, refitted))
            labels.append(kernel_regimes(op, part.columns))
    residuals = summarise(op, np.concatenate(errors), np.concatenate(labels))
    return Fit(op, format, parameters, residuals, ranges(op, [part for part, _ in parts]), count)


def _with_host(op: str, format: str, parameters: Mapping[str, float]) -> Mapping[str, float]:
    """The start of a fit to rows without CUDA graphs: host time from its own start where there is none yet."""
    own = {one.name: one for one in kernel(op).parameters(format) if one.host}
    unknown = {name: one.start for name, one in own.items() if one.start and parameters.get(name) == one.default}
    return {**parameters, **unknown}


def log_errors(part: Measurements, hardware: Hardware, parameters: Mapping[str, float]) -> Array:
    """log(predicted / measured) of each row."""
    return _Rows.of(part, hardware).errors(part.op, parameters)


def _folds(parts: _Parts, seed: int) -> list[tuple[_Parts, _Parts]]:
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


def _search(op: str, format: str, rows: Sequence[_Rows], start: Start, free: bool) -> dict[str, float]:
    """The best constants over all choices (`free`), or with the choices of the start."""
    parameters = _fitted_parameters(op, format, rows)
    choices = [parameter for parameter in parameters if parameter.unit is Unit.CHOICE]
    options = [_options(choice, rows) if free else [int(start.parameters[choice.name])] for choice in choices]
    best: tuple[float, dict[str, float]] | None = None
    for option in product(*options):
        chosen = {choice.name: float(value) for choice, value in zip(choices, option, strict=True)}
        if any(row.hosted for row in rows):
            chosen |= {name: start.parameters[name] for name in HIDDEN if name in start.parameters}
        loss, found = _minimise(op, parameters, rows, start, chosen)
        if start.informed and any(start.parameters[name] != value for name, value in chosen.items()):
            loss *= CHOICE_MARGIN
        if best is None or loss < best[0]:
            best = loss, found
    assert best is not None
    lacking = {one.name: one.default for one in kernel(op).parameters(format) if one.name not in best[1]}
    return {**best[1], **lacking}


def _fitted_parameters(op: str, format: str, rows: Sequence[_Rows]) -> list[Parameter]:
    """The parameters of a kernel on such hardware."""
    kinds, hosted = {row.hardware.kind for row in rows}, any(row.hosted for row in rows)
    every = kernel(op).parameters(format)
    return [one for one in every if (not one.kind or {one.kind} == kinds) and (hosted or not one.host)]


def _options(choice: Parameter, rows: Sequence[_Rows]) -> list[int]:
    """The values that a choice may take: CPUs have their own attention tiling."""
    every = range(int(choice.low), int(choice.high) + 1)
    cpu = any(row.hardware.kind == "cpu" for row in rows)
    return [one for one in every if choice.name != "tiling" or TILINGS[one].cpu == cpu]


def _minimise(
    op: str,
    parameters: Sequence[Parameter],
    rows: Sequence[_Rows],
    start: Start,
    chosen: Mapping[str, float],
) -> tuple[float, dict[str, float]]:
    """The constants of least loss for the `chosen` choices, and that loss (a mean absolute logarithmic error)."""
    try:
        from scipy.optimize import least_squares  # type: ignore[import-untyped,unused-ignore]
    except ImportError:  # pragma: no cover - the extra is not installed
        raise RooflineError("fitting needs SciPy: pip install 'llm-roofline[fit]'") from None

    free = [parameter for parameter in parameters if parameter.name not in chosen]
    low = np.log([parameter.low for parameter in free])
    high = np.log([parameter.high for parameter in free])
    prior = np.log([start.parameters[parameter.name] for parameter in free])
    share = [1.0 / np.sqrt(len(row.seconds)) for row in rows]
    balance = np.sqrt(sum(len(row.seconds) for row in rows) / len(rows))

    def named(point: Array) -> dict[str, float]:
        values = zip(free, np.exp(point), strict=True)
        return {**{parameter.name: float(value) for parameter, value in values}, **chosen}

    def residuals(point: Array) -> Array:
        constants = named(point)
        data = [row.errors(op, constants) * (weight * balance) for row, weight in zip(rows, share, strict=True)]
        return np.concatenate([*data, (point - prior) * (ERROR_SCALE / start.width)])

    best: tuple[float, dict[str, float]] | None = None
    for initial in _starts(prior, low, high, 1 if start.informed else RESTARTS):
        if not np.isfinite(residuals(initial)).all():
            raise RooflineError(f"rows of {op} in {format} have shapes or times beyond what its kernel model computes")
        solution: Any = least_squares(
            residuals,
            initial,
            bounds=(low, high),
            loss="soft_l1",
            f_scale=ERROR_SCALE,
            max_nfev=60,
            ftol=TOLERANCE,
            xtol=TOLERANCE,
            diff_step=[3e-3] * len(initial),
        )
        constants = named(solution.x)
        loss = float(np.mean([np.mean(np.abs(row.errors(op, constants))) for row in rows]))
        if best is None or loss < best[0]:
            best = loss, {parameter.name: constants[parameter.name] for parameter in parameters}
    assert best is not None
    return best


def _starts(prior: Array, low: Array, high: Array, count: int) -> list[Array]:
    """The prior, and midpoints between it and uniform points within the bounds: the loss has several minima."""
    generator = np.random.default_rng(0)
    drawn = [prior, *((prior + generator.uniform(low, high)) / 2 for _ in range(count - 1))]
    return [np.clip(point, low + 1e-3, high - 1e-3) for point in drawn]
