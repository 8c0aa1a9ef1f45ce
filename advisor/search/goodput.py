"""Goodput: requests/s per device of a scenario under load, within limits of TTFT and TPOT at p95.

With a number of requests in flight it is their throughput, and the limits are checked; else the largest rate of
arrivals within the limits, or, where no rate meets them, the largest sustainable one: as of `roofline serve`. Of
sessions it is that of their turns, which find in the cache what a run leaves there.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import asdict

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import Analysis
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import deployment_of, outcomes_at
from roofline.serving.load import OF_A_BATCH, Load
from roofline.serving.outcome import Outcome
from roofline.serving.sessions.deployed import deployed_of, read_sessions
from roofline.serving.sessions.served import SessionOutcome, outcome_at
from roofline.timing.intervals import Estimate
from roofline.whatif.solve.load import largest, load_of
from roofline.whatif.solve.targets import Targets

FEWEST, TURNS = 600, 20
"""Turns that are simulated: so many of each session, and at least so many. Moves see the same sessions."""


class Demand(Struct, frozen=True):
    """The load of a goal: requests in flight, a rate that must be reached, in requests/s, or sessions; else any load.

    Sessions are of a `profile`, with `tiers` below the pool of the devices and `routing` to data-parallel ranks.
    """

    concurrency: int | None = None
    rate: float | None = None
    sessions: int | None = None
    profile: str | None = None
    tiers: str | None = None
    routing: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("concurrency", "rate", "sessions") if getattr(self, name) is not None]
        if len(given) > 1:
            raise RooflineError(
                "goodput is of requests in flight, of a rate or of sessions: give one of them", options=given
            )
        if self.sessions is None and (self.profile or self.tiers or self.routing):
            raise RooflineError("a profile, tiers and routing are of sessions: say how many", options=["sessions"])


class Served(Struct, frozen=True):
    """A scenario under the load of a goal, or sessions: `rate` requests/s on `devices`, `tokens` of output a second."""

    load: Load | None
    rate: float
    outcome: Outcome | SessionOutcome
    devices: int
    tokens: float

    @property
    def value(self) -> float:
        return self.rate / self.devices

    @property
    def batch(self) -> dict[str, Any]:
        """The options of the static batch that rules look at: what runs on average, of sessions what they compute."""
        found = self.outcome
        options: dict[str, Any] = {"batch": max(1, round(found.running))}
        if isinstance(found, SessionOutcome):
            prompt, output = found.input_tokens_per_second / self.rate, self.tokens / self.rate
            own = max(1, round(prompt * (1 - found.hit)))
            options |= {"prompt": own, "generate": max(2, round(output)), "context": round(prompt)}
        return options

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
    if demand.sessions is not None:
        return _of_sessions(scenario, demand, demand.sessions)
    load = load_of(scenario, demand.concurrency, None if demand.concurrency is not None else demand.rate or 1.0)
    deployment = deployment_of(scenario, load)
    tokens = load.outputs.mean
    if demand.concurrency is not None:
        (outcome,) = outcomes_at(deployment, load, [demand.concurrency])
        rate = outcome.requests_per_second
        return Served(load, rate, outcome, outcome.devices, rate * tokens)
    found, within, beyond = largest(deployment, load, targets)
    outcome = within or beyond
    assert outcome.saturated_at is not None
    rate = found or outcome.saturated_at
    return Served(load_of(scenario, None, rate), rate, outcome, outcome.devices, rate * tokens)


def _of_sessions(scenario: Scenario, demand: Demand, sessions: int) -> Served:
    asked: Any = {name: value for name, value in asdict(demand).items() if value is not None}
    lengths = ("prompt", "generate") if demand.profile else ()
    deployed = deployed_of(scenario.without(*OF_A_BATCH, *lengths), None, read_sessions(asked))
    found = outcome_at(deployed, None, float(sessions), is_open=False, simulate=max(FEWEST, TURNS * sessions))
    devices = deployed.whole.devices
    return Served(None, found.turns_per_second, found, devices, found.output_tokens_per_second)
