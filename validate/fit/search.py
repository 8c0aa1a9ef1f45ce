"""Search the constants of a kernel: choices one at a time, constants by least squares, from several starts.

The constants are those of least loss, a posterior mode (MAP),

    loss    sum over rows of rho(log(predicted / measured) / s)
            + sum over constants of rho(log(x / x0) / w) + rho(2 max(|u| - 3, 0))
    with    rho(z) = 2 (sqrt(1 + z^2) - 1),        log x = log low + (log high - log low) / (1 + exp(-u))

a mean absolute logarithmic error, smooth at zero (s = 5%) and robust against outliers, in which each table counts the
same. The coordinate u of a constant x between its bounds moves far for little near one of them, where only rows that
ask for it take it. The loss has several minima: a search with choices starts at its prior, at the constants before any
data, and, without a prior, at random points between. Each is followed for a few steps (`SCREENING`); the choices (a
tiling, a dispatch) are then changed one at a time while that lowers the loss, and the best is followed to the end. All
combinations of choices, each from every start, take twenty times as long.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from scipy.optimize import least_squares

from roofline.core.errors import RooflineError
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels import Array, Parameters, kernel
from roofline.timing.kernels.attention_prefill import TILINGS
from roofline.validate.observation import MEASURED, Harness
from roofline.validate.tables.rows import Measurements, joined

ERROR_SCALE = 0.05
"""Relative errors below this count quadratically, above it linearly."""

RESTARTS = 2
"""Random starts of a search without a prior, beside the constants before any data."""

SCREENING, STEPS = 10, 60
"""Most steps of a search that is compared with others, and of the one that is followed to the end."""

SCREENED = 400
"""Most rows of a table of a search that is compared with others: choices need fewer than constants."""

EDGE = 0.04
"""Distance from its bounds at which a search begins a constant, in fractions of the logarithmic range."""

INSIDE = 3.0
"""Coordinate from which a constant is near a bound: the last 5% of its logarithmic range."""

EDGE_WEIGHT = 2.0
"""Weight of what is beyond: a constant is there only where rows ask for it."""

STEP = 0.01
"""Step of finite differences: larger than the jumps of times from one size of tiles to the next."""

TOLERANCE = 1e-4
"""Relative change of the loss and of the constants (in factors of e) at which a search ends."""

CHOICE_MARGIN = 1.05
"""A choice other than the prior's must lower the loss by more than this factor: with less (2%) a release had other
tiles than the next one by chance, which then erred by 80% on three of 53 tables of decode."""

Parts = Sequence[tuple[Measurements, Hardware]]
"""Tables of one op and format, each with its hardware."""


class Start(Struct, frozen=True):
    """Initial constants of a fit, and the width of the prior around them in factors of e."""

    parameters: Mapping[str, float]
    width: float
    informed: bool


def before_data(op: str, format: str, harness: Harness = MEASURED) -> dict[str, float]:
    """The constants before any data."""
    return {one.name: one.default if one.start is None else one.start for one in every_parameter(op, format, harness)}


class Rows(Struct, frozen=True):
    """The rows of one accelerator, ready for a search; `weights` are the inverse roots of the sizes of their tables."""

    timed: Any
    hardware: Hardware
    seconds: Array
    weights: Array

    @classmethod
    def of(cls, parts: Sequence[Measurements], hardware: Hardware, harness: Harness) -> Rows:
        together = joined(parts)
        weights = np.concatenate([np.full(len(part), len(part) ** -0.5) for part in parts])
        return cls(harness.rows(together), hardware, together.seconds, weights)

    def errors(self, parameters: Parameters, harness: Harness) -> Array:
        """log(predicted / measured) of each row."""
        predicted = harness.observe(self.timed, self.hardware, parameters).seconds
        return np.asarray(np.log(predicted / self.seconds))


def by_accelerator(parts: Parts, harness: Harness) -> list[Rows]:
    """The rows of each accelerator together: a formula takes as long for ten rows as for some hundreds."""
    grouped: dict[tuple[str, bool], list[tuple[Measurements, Hardware]]] = {}
    for part, hardware in parts:
        bare = bool(np.any(part.columns.get("bare", 0.0)))  # kernels with and without the rest are not mixed
        grouped.setdefault((hardware.name, bare), []).append((part, hardware))
    return [Rows.of([part for part, _ in same], same[0][1], harness) for same in grouped.values()]


def every_parameter(op: str, format: str, harness: Harness) -> list[Parameter]:
    """The parameters of a kernel, and those of how it was timed."""
    return [*kernel(op).parameters(format), *harness.parameters(op, format)]


def fitted_parameters(op: str, format: str, parts: Parts, harness: Harness) -> list[Parameter]:
    """The parameters of kernels on such hardware."""
    kinds = {hardware.kind for _, hardware in parts}
    return [one for one in every_parameter(op, format, harness) if not one.kind or {one.kind} == kinds]


class Trial(NamedTuple):
    """Constants with their choices, and their loss: a mean absolute logarithmic error."""

    loss: float
    constants: Mapping[str, float]
    chosen: Mapping[str, float]


def search(
    op: str, format: str, parts: Parts, start: Start, free: bool, harness: Harness = MEASURED
) -> dict[str, float]:
    """The best constants over all choices (`free`), or with the choices of the start."""
    parameters = fitted_parameters(op, format, parts, harness)
    problem = Problem(op, parameters, by_accelerator(parts, harness), len(parts), start, harness)
    screen = problem._replace(rows=by_accelerator(_fewer(parts), harness)) if free else problem
    fixed = {name: start.parameters[name] for name in harness.fixed(parts) if name in start.parameters}
    choices = [one for one in parameters if one.unit is Unit.CHOICE]
    begun = fixed | {one.name: float(int(start.parameters[one.name])) for one in choices}
    initial = _starts(op, format, parameters, start, harness)
    if free:
        first = min((screen.minimise(begun, one, SCREENING) for one in initial), key=screen.cost)
        first = _over_choices(screen, choices, first, parts)
        best = problem.minimise(first.chosen, first.constants, STEPS)
    else:
        best = problem.minimise(begun, start.parameters, STEPS)
    return {one.name: best.constants.get(one.name, one.default) for one in every_parameter(op, format, harness)}


def _starts(
    op: str, format: str, parameters: Sequence[Parameter], start: Start, harness: Harness
) -> Iterator[Mapping[str, float]]:
    """The prior, the constants before any data, and, without a prior, midpoints to random ones."""
    yield start.parameters
    if start.informed:
        yield before_data(op, format, harness)
        return
    generator = np.random.default_rng(0)
    for _ in range(RESTARTS):
        yield {
            one.name: float(
                np.exp((np.log(start.parameters[one.name]) + generator.uniform(*np.log([one.low, one.high]))) / 2)
            )
            for one in parameters
            if one.unit is not Unit.CHOICE
        }


def _fewer(parts: Parts) -> Parts:
    """At most SCREENED random rows of each table."""
    generator = np.random.default_rng(0)
    drawn = [np.sort(generator.permutation(len(part))[:SCREENED]) for part, _ in parts]
    return [(part.rows(rows), hardware) for rows, (part, hardware) in zip(drawn, parts, strict=True)]


def _over_choices(problem: Problem, choices: Sequence[Parameter], best: Trial, parts: Parts) -> Trial:
    """The best trial when choices are changed one at a time until none lowers the loss."""
    tried = {tuple(best.chosen.values())}
    improved = True
    while improved:
        improved = False
        for choice in choices:
            for option in _options(choice, parts):
                chosen = {**best.chosen, choice.name: float(option)}
                if tuple(chosen.values()) in tried:
                    continue
                tried.add(tuple(chosen.values()))
                trial = problem.minimise(chosen, best.constants, SCREENING)
                if problem.cost(trial) < problem.cost(best):
                    best, improved = trial, True
    return best


def _options(choice: Parameter, parts: Parts) -> list[int]:
    """The values that a choice may take: CPUs have their own attention tiling."""
    every = range(int(choice.low), int(choice.high) + 1)
    cpu = any(hardware.kind == "cpu" for _, hardware in parts)
    return [one for one in every if choice.name != "tiling" or TILINGS[one].cpu == cpu]


class Problem(NamedTuple):
    """The least squares of so many `tables`, with the parameters that they determine and the prior."""

    op: str
    parameters: Sequence[Parameter]
    rows: Sequence[Rows]
    tables: int
    start: Start
    harness: Harness

    def cost(self, trial: Trial) -> float:
        """The loss, by CHOICE_MARGIN larger with choices other than the prior's."""
        own = self.start.parameters
        other = self.start.informed and any(own[name] != value for name, value in trial.chosen.items())
        return trial.loss * (CHOICE_MARGIN if other else 1.0)

    def minimise(self, chosen: Mapping[str, float], initial: Mapping[str, float], steps: int) -> Trial:
        """The constants of least loss with the `chosen` ones, after at most so many steps from the `initial` ones."""
        free = [one for one in self.parameters if one.name not in chosen]
        low, high = np.log([(one.low, one.high) for one in free]).T
        prior = np.log([self.start.parameters[one.name] for one in free])
        balance = np.sqrt(sum(len(row.seconds) for row in self.rows) / self.tables)

        def logarithms(point: Array) -> Array:
            return np.asarray(low + (high - low) / (1.0 + np.exp(-point)))

        def named(point: Array) -> dict[str, float]:
            values = zip(free, np.exp(logarithms(point)), strict=True)
            return {**{one.name: float(value) for one, value in values}, **chosen}

        def residuals(point: Array) -> Array:
            constants = named(point)
            data = [row.errors(constants, self.harness) * (row.weights * balance) for row in self.rows]
            off = (logarithms(point) - prior) / self.start.width
            near = point - np.clip(point, -INSIDE, INSIDE)
            return np.concatenate([*data, off * ERROR_SCALE, near * EDGE_WEIGHT * ERROR_SCALE])

        begun = np.log([initial[one.name] for one in free])
        share = np.clip((begun - low) / (high - low), EDGE, 1.0 - EDGE)
        first = np.log(share / (1.0 - share))
        if not np.isfinite(residuals(first)).all():
            raise RooflineError(f"rows of {self.op} have shapes or times beyond what its kernel model computes")

        def slopes(point: Array) -> Array:
            """The derivatives of the residuals by finite differences, (residuals, constants)."""
            here = residuals(point)
            return np.stack([(residuals(point + step) - here) / STEP for step in STEP * np.eye(point.size)], axis=1)

        solution: Any = least_squares(
            residuals,
            first,
            jac=slopes,
            loss="soft_l1",
            f_scale=ERROR_SCALE,
            max_nfev=steps,
            ftol=TOLERANCE,
            xtol=TOLERANCE,
        )
        constants = named(solution.x)
        losses = [np.sum(np.abs(row.errors(constants, self.harness)) * row.weights**2) for row in self.rows]
        return Trial(float(sum(losses)) / self.tables, constants, chosen)
