"""The largest load within targets: requests/s, or requests in flight, of a deployment in steady state.

TTFT and TPOT are those of `roofline.serving`: with waiting, and prompts between decode steps. The targets hold at p95,
and are the usual ones of a load (`USUAL_TARGETS`) where none is given.
"""

from __future__ import annotations

import math
from typing import Unpack

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.display import Result
from roofline.core.errors import RooflineError
from roofline.core.search import bracket_root, integer_geomspace
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import Deployment, deployment_of, outcomes_at, pools_of
from roofline.serving.load import Arrivals, Load, served_scenario
from roofline.serving.outcome import Outcome, targets_or_usual
from roofline.serving.pools import Pools
from roofline.serving.replica import Replica
from roofline.serving.steady import largest_rate
from roofline.serving.times import slots_of
from roofline.whatif.solve.targets import TargetOptions, Targets, read_targets

LEAST, BEYOND, CLOSE = 1e-3, 1.01, 1e-4
"""The smallest and the largest rate that are tried, over the largest sustainable one, and how close to it it is found.

Latencies grow without bound towards the largest sustainable rate.
"""

READINGS = ("low", "mid", "high")


class LoadAnswer(Result, Struct, frozen=True):
    """The largest load, its outcome and that of the next larger value tried; `value` 0 if none meets the targets.

    `limited_by`: ttft, tpot, or stability and the KV cache (`saturation`). `load` is the load at `value`.
    `scenario` is that of the question, and so are the `targets`, of which those in `usual` are usual ones.
    """

    question: str
    value: float
    unit: str
    limited_by: tuple[str, ...]
    outcome: Outcome | None
    neighbour: Outcome
    load: Load
    scenario: Scenario
    targets: Targets
    usual: tuple[str, ...] = ()


def max_rate(
    scenario: Scenario,
    targets: Targets | None = None,
    pools: Pools | str | None = None,
    **limits: Unpack[TargetOptions],
) -> LoadAnswer:
    """The largest rate of Poisson arrivals, in requests/s, within targets of TTFT and TPOT at p95."""
    targets = read_targets(scenario, targets, limits)
    return _answer("max-rate", "requests/s", scenario, load_of(served_scenario(scenario), rate=1.0), targets, pools)


def max_concurrency(
    scenario: Scenario,
    targets: Targets | None = None,
    pools: Pools | str | None = None,
    **limits: Unpack[TargetOptions],
) -> LoadAnswer:
    """The most requests in flight within targets of TTFT and TPOT at p95."""
    targets = read_targets(scenario, targets, limits)
    return _answer(
        "max-concurrency", "requests in flight", scenario, load_of(served_scenario(scenario), 1), targets, pools
    )


MAX_USERS, POINTS = 4096, 9
"""The most requests in flight that are tried, and the numbers of them up to the first that misses."""


def _answer(
    question: str, unit: str, scenario: Scenario, load: Load, targets: Targets, pools: Pools | str | None
) -> LoadAnswer:
    if targets.total is not None or targets.tokens_per_second is not None:
        raise RooflineError("a load has targets of TTFT and TPOT only", options=["ttft", "tpot"])
    if targets.at not in READINGS:
        raise RooflineError(f"under load times are expected: {', '.join(READINGS)}", options=["at"])
    if not targets.fits:
        raise RooflineError("under load the model must fit in memory", options=["ignore_memory"])
    ttft, tpot = targets_or_usual(None, None, generates=scenario.model.task == "generate")
    # Requests in flight without a target of TTFT may not wait for a slot instead (`missed`).
    usual = {"ttft": math.inf if load.arrivals is Arrivals.CLOSED else ttft, "tpot": tpot}
    usual = {name: limit for name, limit in usual.items() if getattr(targets, name) is None and math.isfinite(limit)}
    targets = replace(targets, **usual)
    value, outcome, neighbour = largest(deployment_of(scenario, load, pools_of(pools)), load, targets)
    over = missed(neighbour, load, targets) or ("saturation",)
    return LoadAnswer(question, value, unit, over, outcome, neighbour, load, scenario, targets, tuple(usual))


def load_of(scenario: Scenario, concurrency: int | None = None, rate: float | None = None) -> Load:
    """The load of requests with a scenario's lengths."""
    return Load(concurrency=concurrency, rate=rate).of(scenario)


def missed(outcome: Outcome, load: Load, targets: Targets, statistic: str = "p95") -> tuple[str, ...]:
    """The targets that a statistic of an outcome misses.

    Without a target of TTFT, no scenario of a closed loop may wait for a slot.
    """
    waits = load.arrivals is Arrivals.CLOSED and targets.ttft is None and outcome.queued >= 1
    if not outcome.stable or waits:
        return ("saturation",)
    return tuple(name for name, used in _used(outcome, targets, statistic).items() if used > 1)


def _used(outcome: Outcome, targets: Targets, statistic: str) -> dict[str, float]:
    """TTFT and TPOT over their targets."""
    limits = {"ttft": targets.ttft, "tpot": targets.tpot}
    return {
        name: getattr(getattr(getattr(outcome, name), statistic), targets.at) / limit
        for name, limit in limits.items()
        if limit is not None
    }


def _excess(outcome: Outcome, load: Load, targets: Targets, statistic: str) -> float:
    """The logarithm of the time that is the most of its target, over it; infinite beyond saturation."""
    if missed(outcome, load, targets, statistic) == ("saturation",):
        return math.inf
    most = max(_used(outcome, targets, statistic).values(), default=0.0)
    return math.log(most) if most > 0 else -math.inf


def saturated_at(deployment: Deployment, load: Load) -> float:
    """The largest sustainable rate of a deployment in requests/s, of a load with a rate."""
    if isinstance(deployment, Replica):
        return largest_rate(deployment, load)
    (outcome,) = outcomes_at(deployment, load, [1e-6])
    assert outcome.saturated_at is not None
    return outcome.saturated_at


def largest(
    deployment: Deployment, load: Load, targets: Targets, statistic: str = "p95", met: float = 0.0
) -> tuple[float, Outcome | None, Outcome]:
    """The largest rate or concurrency within targets, 0 if there is none, its outcome, and the next value's.

    Concurrencies below one that is known to be `met` are not tried.
    """
    if load.arrivals is Arrivals.CLOSED:
        return _most_users(deployment, load, targets, statistic, int(met))
    return _largest_rate(deployment, load, targets, statistic)


def _most_users(
    deployment: Deployment, load: Load, targets: Targets, statistic: str, known: int
) -> tuple[float, Outcome | None, Outcome]:
    """The last of a growing series of requests in flight before the first that misses a target, searched from there."""
    tried: dict[int, Outcome] = {}

    def excess(users: int) -> float:
        if users not in tried:
            (tried[users],) = outcomes_at(deployment, load, [users])
        return _excess(tried[users], load, targets, statistic)

    series = integer_geomspace(1, MAX_USERS, POINTS).tolist()
    if targets.ttft is None and isinstance(deployment, Replica):  # no more than run at once
        slots = math.ceil(deployment.copies * slots_of(deployment, load))
        series = [slots, slots + 1] if slots < MAX_USERS and excess(slots) <= 0 else series
    value, below = 0, -math.inf
    for over in [known, *(users for users in series if users > known)] if known else series:
        above = excess(over)
        if above > 0:
            break
        value, below = over, above
    else:
        return float(value), tried[value], tried[value]
    if value:
        ends = bracket_root(lambda place: excess(_nearest(place)), value, over, below, above, absolute=1.0)
        value, over = map(_nearest, ends)
    return float(value), tried.get(value), tried[over]


def _nearest(place: float) -> int:
    """The nearest whole number, of two that are as near the larger: those of places 1 apart are 1 apart."""
    return math.floor(place + 0.5)


def _largest_rate(
    deployment: Deployment, load: Load, targets: Targets, statistic: str
) -> tuple[float, Outcome | None, Outcome]:
    """The largest rate, to within CLOSE, at which no time exceeds its target: times rise with the rate."""
    most = saturated_at(deployment, load)
    low, high = LEAST * most, (1 - CLOSE) * most
    tried: dict[float, Outcome] = {}

    def excesses(*rates: float) -> list[float]:
        """1 - target / time, of the time that is the most of its target: nearly linear in the rate, as queues are."""
        tried.update(zip(rates, outcomes_at(deployment, load, rates), strict=True))
        return [1 - math.exp(-_excess(tried[rate], load, targets, statistic)) for rate in rates]

    above, below = excesses(high, low)
    if above <= 0:
        return high, tried[high], outcomes_at(deployment, load, [BEYOND * most])[0]
    if below > 0:
        return 0.0, None, tried[low]
    met, over = bracket_root(lambda rate: excesses(rate)[0], low, high, below, above, relative=CLOSE)
    return met, tried[met], tried[over]
