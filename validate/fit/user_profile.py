"""An engine profile of the user's own: the shipped one, moved as far as measurements of one deployment ask.

Parameters are multiplied by factors whose logarithms have the standard deviations of STIFFNESS around the shipped
profile: the times of prefill and decode kernels, and the host times of the scheduler. Residuals are
logarithms of predicted over measured TTFT, TPOT and throughput in units of RESIDUAL, in a robust form. The loss is
minimised on a linear model of the event simulation, anew in each of ROUNDS. How many requests the server runs at once
is chosen among the shipped number and those up to the measured concurrency. Intervals stay the shipped ones.

Rows of static batches are fitted likewise, by the time of their metric; the host times are then those of the profile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core.errors import RooflineError, SpecError
from roofline.specs.engine import Engine
from roofline.specs.engine_written import render
from roofline.validate.fit.posterior import mode, rooted
from roofline.validate.score.end_to_end import Case as StaticCase
from roofline.validate.score.end_to_end import map_rows, predict
from roofline.validate.score.serving import Predictor, estimate_of, read_cases
from roofline.validate.tables.published import read_rows
from roofline.validate.tables.serving import ServingCase, is_load

Array = NDArray[np.float64]

METRICS = ("ttft", "tpot", "throughput")
"""E2E latency follows from the first two."""

STIFFNESS: Mapping[str, float] = MappingProxyType(
    {"prefill": 0.5, "decode": 0.5, "step": 0.7, "sequence": 0.7, "latency": 1.0, "request": 0.7, "prompt_token": 0.7}
)
"""Standard deviation of the logarithm of a parameter around the shipped one: kernels are known to a factor of 1.6."""

FLOORS: Mapping[str, float] = MappingProxyType(
    {"step": 50e-6, "sequence": 5e-6, "latency": 1e-3, "request": 0.2e-3, "prompt_token": 0.2e-6}
)
"""Seconds from which a host time starts that the shipped profile does not have."""

HOST = ("step", "sequence")
"""Host times that a profile has for static batches, and its scheduler for a server."""

SOURCE = "roofline validate"
"""How the source of such a profile begins."""

Case = ServingCase | StaticCase

RANGES: Mapping[str, tuple[float, float]] = MappingProxyType({"prefill": (0.2, 10.0), "decode": (0.05, 20.0)})
HOST_TIMES = (1e-8, 1.0)
"""The bounds of factors on the times of passes, and of the host's own times in seconds."""

RESIDUAL = 0.1
"""Standard deviation of the logarithm of a time around a good prediction."""

DIFFERENCE = 0.1
"""Step of the logarithm of a parameter for derivatives."""

FARTHEST = 1.0
"""The most that the logarithm of a parameter moves in a round."""

ROUNDS = 4
"""Rounds of the search, in each of which the simulation is linearized anew."""

POWERS = tuple(2**power for power in range(10))
"""Numbers of requests at once that are tried, as far as the measured concurrency tells them apart."""


class OwnProfile(Struct, frozen=True):
    """A fitted profile, and median absolute relative errors: shipped, fitted, and of each case fitted to the others."""

    engine: Engine
    before: float
    after: float
    held_out: float | None
    changed: Mapping[str, tuple[float, float]]

    @property
    def errors(self) -> str:
        left = "" if self.held_out is None else f", {self.held_out:.1%} for rows held out of it"
        return f"median error {self.before:.1%} by the shipped profile, {self.after:.1%} fitted{left}"


class _Fit(NamedTuple):
    """Values of the parameters, residuals there, derivatives of the last round, and the loss."""

    values: Mapping[str, float]
    logs: Array
    slope: Array
    loss: float


def fit_rows(path: Path) -> tuple[str, list[str]]:
    """The profile (YAML) fitted to the whole-model rows of a file, and notes; raises SpecError, and as `fit_own`."""
    loaded, skipped = read_cases(path)
    static, left = map_rows([row for row in read_rows(path) if not is_load(row.cell("batch"))])
    cases: list[Case] = [
        *loaded,
        *(replace(case, scenario=case.scenario.changed(engine=case.engine)) for case in static),
    ]
    if not cases:
        reasons = [reason for line, reason in skipped if is_load(line.cells["batch"])] + [row.reason for row in left]
        raise SpecError(str(path), f"no row can be simulated; the first: {reasons[0] if reasons else 'no times'}")
    found = fit_own(cases, f"{SOURCE}: {len(cases)} rows or loads of {path.name}")
    notes = [f"{len(cases)} rows or loads, {found.errors}"]
    missing = sum(is_load(line.cells["batch"]) for line, _ in skipped) + len(left)
    return render(found.engine), [*notes, *([f"{missing} rows left out"] if missing else [])]


def fit_own(cases: Sequence[Case], source: str) -> OwnProfile:
    """The profile fitted to cases of one engine; `source` names them. Raises RooflineError for none or several."""
    engines = list({case.scenario.profile.label: case.scenario.profile for case in cases}.values())
    if len(engines) != 1:
        names = " and ".join(engine.label for engine in engines[:2])
        raise RooflineError(f"a profile is fitted to rows of one engine; these are of {names or 'none'}")
    shipped = engines[0]
    start = _values(shipped, _are_static(cases))
    logs, owner = residuals(cases, shipped)
    most = max((case.load.concurrency or 1) if isinstance(case, ServingCase) else 1 for case in cases)
    policies = [
        replace(shipped, scheduler=replace(shipped.scheduler, sequences=sequences))
        for sequences in dict.fromkeys([shipped.scheduler.sequences, *(count for count in POWERS if count < most)])
    ]
    first = [_fitted(cases, engine, start, start, 1) for engine in policies]
    best = int(np.argmin([fit.loss for fit in first]))
    values, found, slope, _ = _fitted(cases, policies[best], start, first[best].values, ROUNDS - 1)
    sequences = policies[best].scheduler.sequences
    chosen = applied(policies[best], values, _are_static(cases))
    changed = {name: (start[name], values[name]) for name in values if abs(np.log(values[name] / start[name])) > 0.02}
    if sequences != shipped.scheduler.sequences:
        changed["sequences"] = (shipped.scheduler.sequences, sequences)
    kept = tuple(text for text in shipped.sources if not text.startswith(SOURCE))
    engine = replace(chosen, sources=(*kept, source), version="", starts=())
    return OwnProfile(engine, _error(logs), _error(found), _held_out(found, slope, owner, values, start), changed)


def residuals(cases: Sequence[Case], engine: Engine) -> tuple[Array, NDArray[np.intp]]:
    """Logarithms of predicted over measured times with an engine, and the index of each one's case."""
    predictor, logs, owner = Predictor(), [], []
    for index, case in enumerate(cases):
        if isinstance(case, ServingCase):
            outcome = predictor(case.run_by(engine))
            times = [(estimate_of(outcome, metric).mid, getattr(case, metric)) for metric in METRICS]
        else:
            times = [(predict(case, engine).mid, case.measured)]
        for predicted, measured in times:
            if measured is not None:
                logs.append(np.log(predicted / measured))
                owner.append(index)
    return np.array(logs), np.array(owner)


def _are_static(cases: Sequence[Case]) -> bool:
    """Whether all cases are static batches, whose host times are not the scheduler's."""
    return not any(isinstance(case, ServingCase) for case in cases)


def applied(engine: Engine, values: Mapping[str, float], static: bool = False) -> Engine:
    """An engine with other values of the fitted parameters; host times of a `static` batch are the profile's own."""
    own = (*RANGES, *HOST) if static else RANGES
    parameters = MappingProxyType({**engine.parameters, **{name: values[name] for name in own}})
    if static:
        return replace(engine, parameters=parameters)
    scheduler = replace(engine.scheduler, **{name: values[name] for name in FLOORS})
    return replace(engine, parameters=parameters, scheduler=scheduler)


def _values(engine: Engine, static: bool) -> dict[str, float]:
    """The parameters of a profile; a host time that the scheduler does not have is the profile's own, or its floor."""
    found = {name: engine[name] for name in RANGES}
    for name, floor in FLOORS.items():
        own = engine[name] if name in HOST else 0.0
        found[name] = max((not static and getattr(engine.scheduler, name)) or own, floor)
    return found


def _fitted(
    cases: Sequence[Case], engine: Engine, shipped: Mapping[str, float], values: Mapping[str, float], rounds: int
) -> _Fit:
    """The fit after some rounds from `values`, around those of the shipped profile."""
    static = _are_static(cases)

    def at(values: Mapping[str, float]) -> Array:
        return residuals(cases, applied(engine, values, static))[0]

    for _ in range(rounds):
        logs = at(values)
        moved = ({**values, name: value * float(np.exp(DIFFERENCE))} for name, value in values.items())
        slope = np.stack([(at(each) - logs) / DIFFERENCE for each in moved], axis=1)
        by = zip(values.items(), _solve(logs, slope, values, shipped), strict=True)
        values = {
            name: float(np.clip(value * float(np.exp(change)), *RANGES.get(name, HOST_TIMES)))
            for (name, value), change in by
        }
    logs = at(values)
    shift = np.array([np.log(values[name] / shipped[name]) / STIFFNESS[name] for name in values])
    return _Fit(values, logs, slope, float((rooted(logs / RESIDUAL, 1.0) ** 2).sum() + (shift**2).sum()))


def _solve(logs: Array, slope: Array, values: Mapping[str, float], start: Mapping[str, float]) -> Array:
    """The changes of the logarithms that minimise the loss on the linear model."""
    deviation = np.array([STIFFNESS[name] for name in values])
    offset = np.array([np.log(values[name] / start[name]) for name in values])
    return mode(
        lambda change: logs + slope @ change,
        lambda change: (offset + change) / deviation,
        np.zeros(len(values)),
        scale=RESIDUAL,
        knee=1.0,
        bounds=(-FARTHEST, FARTHEST),
    )


def _held_out(
    logs: Array, slope: Array, owner: NDArray[np.intp], values: Mapping[str, float], start: Mapping[str, float]
) -> float | None:
    """The median error of each case with parameters fitted to the others; None for fewer than three cases."""
    if len(np.unique(owner)) < 3:
        return None
    left = np.zeros(logs.size)
    for index in np.unique(owner):
        inside = owner == index
        left[inside] = logs[inside] + slope[inside] @ _solve(logs[~inside], slope[~inside], values, start)
    return _error(left)


def _error(logs: Array) -> float:
    """The median absolute relative error."""
    return float(np.median(np.abs(np.expm1(logs))))
