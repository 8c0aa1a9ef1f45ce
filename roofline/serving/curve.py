"""A deployment under loads: the answer of `roofline serve`.

>>> from roofline import Scenario, load_hardware, load_model
>>> from roofline.serving import Load, serve
>>> scenario = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))
>>> curve = serve(scenario, Load(prompt=1024, output=256, concurrency=1), [1, 16, 64])
>>> [round(point.output_tokens_per_second) for point in curve.outcomes] == sorted(
...     round(point.output_tokens_per_second) for point in curve.outcomes)
True
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.display import repr_html
from roofline.core.errors import RooflineError
from roofline.scenario.cost import HOUR, MILLION, price
from roofline.scenario.scenario import Scenario
from roofline.serving.disaggregated import simulated_outcome, steady_outcomes_of
from roofline.serving.load import Arrivals, Load
from roofline.serving.outcome import NO_TARGETS, Outcome, Targets, outcome_of, steady_outcomes
from roofline.serving.pools import Pools, Tandem, tandem_of
from roofline.serving.replica import Replica, replica_of
from roofline.serving.simulation import simulate
from roofline.serving.steady import steady
from roofline.specs.hardware import Hardware
from roofline.specs.scheduler import Scheduler


class Curve(Struct, frozen=True):
    """The outcomes of a replica at each of `values`: concurrencies, rates in requests/s, or a single run.

    With prefill and decode apart, `tandem` has both, and `replica` is one of decode.
    """

    replica: Replica
    load: Load
    values: tuple[float, ...]
    outcomes: tuple[Outcome, ...]
    simulated: bool
    tandem: Tandem | None = None

    _repr_html_ = repr_html

    @property
    def scenario(self) -> Scenario:
        """The deployment."""
        return self.replica.scenario if self.tandem is None else self.tandem.scenario

    @property
    def pools(self) -> tuple[tuple[Hardware, int], ...]:
        """Hardware and devices: of prefill and decode where they are apart."""
        if self.tandem is not None:
            return self.tandem.pools
        return ((self.scenario.hardware, self.replica.devices),)

    def cost(self, outcome: Outcome) -> float | None:
        """USD per million output tokens; None without a price."""
        rents = [(price(hardware, self.scenario.price), devices) for hardware, devices in self.pools]
        hourly = sum(rent * devices for rent, devices in rents if rent is not None)
        if any(rent is None for rent, _ in rents) or not outcome.output_tokens_per_second:
            return None
        return hourly / HOUR / outcome.output_tokens_per_second * MILLION

    def energy(self, outcome: Outcome) -> float | None:
        """Joules per output token with all devices at TDP; None without a TDP."""
        power = sum((hardware.tdp or math.nan) * devices for hardware, devices in self.pools)
        if math.isnan(power) or not outcome.output_tokens_per_second:
            return None
        return power / outcome.output_tokens_per_second


def serve(
    scenario: Scenario,
    load: Load,
    values: Sequence[float] | None = None,
    *,
    requests: int | None = None,
    seed: int = 0,
    targets: Targets = NO_TARGETS,
    scheduler: Scheduler | None = None,
    pools: Pools | None = None,
) -> Curve:
    """The outcomes at several concurrencies or rates (None: the load's own).

    Steady states by default; `requests` simulates that many for each value, and traces, offline loads and closed loops
    with `rounds` are always simulated. `pools` are replicas of prefill and of decode; one of each for a scenario with
    `decode_hardware`. Raises RooflineError where the model or no request fits.
    """
    _check(scenario)
    kind = load.arrivals
    points = tuple(float(value) for value in (values if values is not None else [_own(load)]))
    _check_run(load, points, requests, seed, targets)
    quick = kind in (Arrivals.CLOSED, Arrivals.OPEN) and requests is None and load.rounds is None
    if pools is not None or scenario.settings.decode_hardware is not None:
        tandem, count = tandem_of(scenario, load, pools or Pools(), scheduler), requests or DEFAULT_REQUESTS
        found = (
            steady_outcomes_of(tandem, load, points, targets)
            if quick
            else tuple(simulated_outcome(tandem, _at(load, value), count, seed, targets) for value in points)
        )
        return Curve(tandem.decode, load, points, found, not quick, tandem)
    replica = replica_of(scenario, load, scheduler)
    if quick:
        found = steady_outcomes(replica, load, steady(replica, load, points), targets)
        return Curve(replica, load, points, found, simulated=False)
    outcomes = []
    for value in points:
        changed = _at(load, value)
        served = simulate(replica, changed, requests or DEFAULT_REQUESTS, seed)
        outcomes.append(outcome_of(replica, changed, served, targets))
    return Curve(replica, load, points, tuple(outcomes), simulated=True)


DEFAULT_REQUESTS = 2000
"""Requests of a simulation."""


def _at(load: Load, value: float) -> Load:
    if load.arrivals is Arrivals.CLOSED:
        return replace(load, concurrency=max(1, round(value)))
    return replace(load, rate=value) if load.arrivals is Arrivals.OPEN else load


def _own(load: Load) -> float:
    """The concurrency, rate or number of requests of a load."""
    if load.trace is not None:
        return float(len(load.trace.prompt))
    return float(load.concurrency or load.rate or load.offline or 0)


def _check_run(load: Load, points: tuple[float, ...], requests: int | None, seed: int, targets: Targets) -> None:
    """Raise RooflineError for values that no load has, and for a simulation of none or of negative requests."""
    whole = load.arrivals is Arrivals.CLOSED
    least, noun = (1.0, "whole numbers of at least 1") if whole else (0.0, "numbers above 0")
    own = load.arrivals in (Arrivals.CLOSED, Arrivals.OPEN)
    if not points or (own and not all(least <= point < math.inf and point > 0 for point in points)):
        raise RooflineError(f"the values of a {load.arrivals} load must be {noun}, got {list(points)}")
    if whole and any(point % 1 for point in points):
        raise RooflineError(f"requests in flight must be {noun}, got {list(points)}")
    if requests is not None and not (type(requests) is int and requests >= 1):
        raise RooflineError(f"the requests to simulate must be a whole number of at least 1, got {requests}")
    if type(seed) is not int or seed < 0:
        raise RooflineError(f"the seed must be a whole number of at least 0, got {seed}")
    if not all(target > 0 for target in targets):
        raise RooflineError(f"targets of TTFT and TPOT must be seconds above 0, got {targets}")


def _check(scenario: Scenario) -> None:
    if scenario.shape:
        raise RooflineError("a load is served by one deployment: the scenario's workload must not be an array")
