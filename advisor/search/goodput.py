"""Goodput: requests/s per device of a scenario under load, within limits of TTFT and TPOT at p95.

With a number of requests in flight it is their throughput, and the limits are checked; else the largest rate of
arrivals within the limits, or, where no rate meets them, the largest sustainable one: as of `roofline serve`.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from msgspec import Struct

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import Analysis
from roofline.serving.curve import deployment_of, outcomes_at
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome
from roofline.timing.intervals import Estimate
from roofline.whatif.solve.load import largest, load_of
from roofline.whatif.solve.targets import Targets


class Demand(Struct, frozen=True):
    """The load of a goal: requests in flight, or a rate that must be reached, in requests/s; neither is any load."""

    concurrency: int | None = None
    rate: float | None = None

    def __post_init__(self) -> None:
        if self.concurrency is not None and self.rate is not None:
            raise RooflineError(
                "goodput is of requests in flight or of a rate, not both", options=["concurrency", "rate"]
            )


class Served(Struct, frozen=True):
    """A scenario under the load of a goal: `rate` requests/s on `devices`."""

    load: Load
    rate: float
    outcome: Outcome
    devices: int

    @property
    def value(self) -> float:
        """Requests/s per device."""
        return self.rate / self.devices

    def latency(self, name: str) -> Estimate:
        """TTFT or TPOT at p95, in seconds."""
        found: Estimate = getattr(self.outcome, name).p95
        return found


_FOUND: WeakKeyDictionary[Analysis, dict[tuple[Demand, Targets], Served]] = WeakKeyDictionary()


def served(analysis: Analysis, demand: Demand, targets: Targets) -> Served:
    """The scenario of an analysis under load. Raises RooflineError where it does not fit or cannot be served."""
    known = _FOUND.setdefault(analysis, {})
    if (demand, targets) not in known:
        known[demand, targets] = _served(analysis, demand, targets)
    return known[demand, targets]


def _served(analysis: Analysis, demand: Demand, targets: Targets) -> Served:
    scenario = analysis.scenario
    load = load_of(scenario, demand.concurrency, None if demand.concurrency is not None else demand.rate or 1.0)
    deployment = deployment_of(scenario, load)
    if demand.concurrency is not None:
        (outcome,) = outcomes_at(deployment, load, [demand.concurrency])
        return Served(load, outcome.requests_per_second, outcome, outcome.devices)
    rate, within, beyond = largest(deployment, load, targets)
    outcome = within or beyond
    assert outcome.saturated_at is not None
    rate = rate or outcome.saturated_at
    return Served(load_of(scenario, None, rate), rate, outcome, outcome.devices)
