"""The largest load within targets: requests/s, or requests in flight, of a deployment in steady state.

TTFT and TPOT are those of `roofline.serving`: with waiting, and prompts between decode steps. The targets hold at p95.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.serving.curve import serve
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome
from roofline.whatif.request import Request
from roofline.whatif.solve.targets import Targets

Array = NDArray[np.float64]

POINTS, ROUNDS = 33, 3
"""Values that are tried at once, and how often the interval between two of them is refined."""

LEAST = 1e-3
"""The smallest rate that is tried, over the largest sustainable one."""

READINGS = ("low", "mid", "high")


class LoadAnswer(Struct, frozen=True):
    """The largest load, its outcome and that of the next larger value tried; `value` 0 if none meets the targets.

    `limited_by`: ttft, tpot, or stability and the KV cache (`saturation`). `load` is the load at `value`.
    """

    question: str
    value: float
    unit: str
    limited_by: tuple[str, ...]
    outcome: Outcome | None
    neighbour: Outcome
    load: Load


def max_rate(request: Request, targets: Targets) -> LoadAnswer:
    """The largest rate of Poisson arrivals, in requests/s, within targets of TTFT and TPOT at p95."""
    load = _load(request, targets, rate=1.0)
    most = serve(request.scenario(), load, [1e-6]).outcomes[0].saturated_at
    assert most is not None
    return _largest("max-rate", "requests/s", request, targets, load, np.geomspace(LEAST * most, 1.01 * most, POINTS))


def max_concurrency(request: Request, targets: Targets) -> LoadAnswer:
    """The most requests in flight within targets of TTFT and TPOT at p95."""
    load = _load(request, targets, concurrency=1)
    values = np.unique(np.geomspace(1, MAX_USERS, POINTS).round())
    return _largest("max-concurrency", "requests in flight", request, targets, load, values)


MAX_USERS = 4096
"""The most requests in flight that are tried."""


def _load(request: Request, targets: Targets, rate: float | None = None, concurrency: int | None = None) -> Load:
    if targets.total is not None or targets.tokens_per_second is not None:
        raise RooflineError("a load has targets of --ttft and --tpot only")
    scenario = request.scenario()
    if scenario.shape:
        raise RooflineError("a load is of one deployment: lengths must be single numbers")
    hits = float(scenario.prefix) / float(scenario.prefix + scenario.prompt)
    prompt, output = float(scenario.prefix + scenario.prompt), float(scenario.generate)
    return Load(prompt, output, concurrency=concurrency, rate=rate, hits=hits)


def missed(outcome: Outcome, targets: Targets) -> tuple[str, ...]:
    """The targets that an outcome misses at p95."""
    if not outcome.stable:
        return ("saturation",)
    at = targets.at if targets.at in READINGS else "mid"
    over = (name for name in ("ttft", "tpot") if getattr(targets, name) is not None)
    return tuple(name for name in over if getattr(getattr(outcome, name).p95, at) > getattr(targets, name))


def _largest(
    question: str,
    unit: str,
    request: Request,
    targets: Targets,
    load: Load,
    values: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> LoadAnswer:
    """The last of a growing series of values before the first that misses a target, refined."""
    scenario, whole = request.scenario(), unit != "requests/s"
    best: tuple[float, Outcome] | None = None
    for _ in range(ROUNDS):
        outcomes = serve(scenario, load, values.tolist()).outcomes
        failing = next((index for index, found in enumerate(outcomes) if missed(found, targets)), None)
        if failing is None:
            return LoadAnswer(question, float(values[-1]), unit, ("saturation",), outcomes[-1], outcomes[-1], load)
        if failing:
            best = float(values[failing - 1]), outcomes[failing - 1]
        neighbour, low = outcomes[failing], float(values[failing - 1]) if failing else 0.0
        if not failing:
            break
        values = np.linspace(low, float(values[failing]), POINTS)
        values = np.unique(values.round()) if whole else values
        if values.size <= 2:
            break
    value, outcome = best if best is not None else (0.0, None)
    return LoadAnswer(question, value, unit, missed(neighbour, targets), outcome, neighbour, load)


Solver = Callable[[Request, Targets], LoadAnswer]

LOADS: dict[str, Solver] = {"max-rate": max_rate, "max-concurrency": max_concurrency}
"""The questions by name."""
