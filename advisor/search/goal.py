"""Goals: the objective, the limits, and the quality budget; and goodput, the objective of a service.

Goodput is requests/s per device of a scenario under load, within limits of TTFT and TPOT at p95. Of a given number of
requests in flight it is their throughput, and the limits are checked apart. Of a rate, or any load, it is the largest
rate of arrivals within the limits, or, where no rate meets them, the largest stable one: as of `roofline serve`. Of
sessions it is the throughput of their turns in a simulated run, with the prefix cache.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from msgspec import Struct, field
from msgspec.structs import asdict, force_setattr, replace

from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError, quote
from roofline.core.options import Kind
from roofline.core.units import PERIODS, Dimension, parse_quantity
from roofline.graph.extents import spread
from roofline.scenario.analysis import Analysis
from roofline.scenario.lengths import Lengths
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import Deployment, deployment_of, outcomes_at
from roofline.serving.load import OF_A_BATCH, Load
from roofline.serving.outcome import Outcome, targets_or_usual
from roofline.serving.sessions.deployed import deployed_of, read_sessions
from roofline.serving.sessions.served import SessionOutcome, outcome_at
from roofline.specs.hardware import Hardware
from roofline.techniques.base import Price
from roofline.timing.intervals import Estimate, Reading
from roofline.whatif.metrics import METRICS, Metric, find_metric
from roofline.whatif.solve.load import largest, saturated_at
from roofline.whatif.solve.targets import TIMES, Targets, check_reading, read_time, read_value

FEWEST, TURNS = 600, 20
"""Turns of sessions that are simulated: TURNS of each session, and at least FEWEST. All moves see the same sessions."""


class Demand(Struct, frozen=True):
    """The load of a goal: requests in flight, a rate (requests/s) that must be reached, or sessions; else any load.

    Sessions are of a `profile`, with `tiers` below the pool of the devices and `routing` to data-parallel ranks.
    Requests have the `lengths` of prompts and of outputs, None those of the scenario.
    """

    concurrency: int | None = None
    rate: float | None = None
    sessions: int | None = None
    profile: str | None = None
    tiers: str | None = None
    routing: str | None = None
    lengths: tuple[Lengths, Lengths] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("concurrency", "rate", "sessions") if getattr(self, name) is not None]
        if len(given) > 1:
            raise RooflineError(
                "goodput is of requests in flight, of a rate or of sessions: give one of them", options=given
            )
        if self.sessions is None and (self.profile or self.tiers or self.routing):
            raise RooflineError("a profile, tiers and routing are of sessions: say how many", options=["sessions"])


class Served(Struct, frozen=True):
    """A scenario under the load of a goal: `rate` are requests/s (of sessions turns/s), `tokens` output tokens/s."""

    load: Load | None
    rate: float
    outcome: Outcome | SessionOutcome
    devices: int
    tokens: float

    @property
    def value(self) -> float:
        """Goodput: requests/s per device."""
        return self.rate / self.devices

    @property
    def batch(self) -> dict[str, Any]:
        """Options of a static batch that is like this load on average, for rules that look at batches."""
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
_DEPLOYED: WeakKeyDictionary[Analysis, dict[Demand, tuple[Deployment, Load]]] = WeakKeyDictionary()


def served(analysis: Analysis, demand: Demand, targets: Targets) -> Served:
    """The scenario of an analysis under load. Raises RooflineError where it does not fit or cannot be served."""
    known = _FOUND.setdefault(analysis, {})
    if (demand, targets) not in known:
        known[demand, targets] = _served(analysis, demand, targets)
    return known[demand, targets]


def _deployed(analysis: Analysis, demand: Demand) -> tuple[Deployment, Load]:
    """The deployment of an analysis and its load; any load stands at 1 request/s, since the rate is sought."""
    known = _DEPLOYED.setdefault(analysis, {})
    if demand not in known:
        scenario = analysis.scenario
        if demand.lengths is not None:
            scenario = scenario.without("prompt", "generate")  # the means, which its static batch has
        rate = None if demand.concurrency is not None else demand.rate or 1.0
        prompt, generate = demand.lengths or (None, None)
        load = Load(prompt=prompt, generate=generate, concurrency=demand.concurrency, rate=rate).of(scenario)
        known[demand] = deployment_of(scenario, load), load
    return known[demand]


def _served(analysis: Analysis, demand: Demand, targets: Targets) -> Served:
    if demand.sessions is not None:
        return _of_sessions(analysis.scenario, demand, demand.sessions)
    deployment, load = _deployed(analysis, demand)
    tokens = load.outputs.mean
    if demand.concurrency is not None:
        (outcome,) = outcomes_at(deployment, load, [demand.concurrency])
        rate = outcome.requests_per_second
        return Served(load, rate, outcome, outcome.devices, rate * tokens)
    found, within, beyond = largest(deployment, load, targets)
    outcome = within or beyond
    assert outcome.saturated_at is not None
    rate = found or outcome.saturated_at
    return Served(replace(load, rate=rate), rate, outcome, outcome.devices, rate * tokens)


def _of_sessions(scenario: Scenario, demand: Demand, sessions: int) -> Served:
    asked: Any = {name: value for name, value in asdict(demand).items() if value is not None}
    lengths = ("prompt", "generate") if demand.profile else ()
    deployed = deployed_of(scenario.without(*OF_A_BATCH, *lengths), None, read_sessions(asked))
    found = outcome_at(deployed, None, float(sessions), is_open=False, simulate=max(FEWEST, TURNS * sessions))
    devices = deployed.whole.devices
    return Served(None, found.turns_per_second, found, devices, found.output_tokens_per_second)


class Objective(StrEnum):
    """The metric to improve."""

    TOTAL = "total"
    TTFT = "ttft"
    TPOT = "tpot"
    THROUGHPUT = "throughput"
    MEMORY = "memory"
    COST = "cost"
    ENERGY = "energy"
    GOODPUT = "goodput"


METRIC: Mapping[Objective, str] = {**{each: str(each) for each in Objective}, Objective.THROUGHPUT: "tokens_per_s"}
"""The metric (`roofline.whatif.metrics`) of each objective."""

_OF_ENCODERS = (Objective.TOTAL, Objective.TTFT, Objective.MEMORY)

BATCH_VARIES = (Objective.THROUGHPUT, Objective.COST, Objective.ENERGY)
"""Objectives of a service, which chooses its batch; the other objectives keep the given batch."""


PRICES = tuple(Price)


class Quality(StrEnum):
    """The most that a change may require (see `Price`)."""

    LOSSLESS = "lossless"
    CALIBRATED = "calibrated"
    LOSSY = "lossy"
    RETRAIN = "retrain"

    def allows(self, price: Price) -> bool:
        """Whether a change of this price is within the budget."""
        return PRICES.index(price) <= PRICES.index(_DEAREST[self])


QUALITIES = tuple(Quality)
_DEAREST = dict(zip(Quality, PRICES[1:], strict=True))
"""The dearest change that each budget allows: engineering in every one, since it costs no quality."""

Named = TypeVar("Named", bound=StrEnum)


def named(kind: type[Named], name: object) -> Named:
    """The objective or quality budget of a name; raises UnknownNameError."""
    if not isinstance(name, str) or name not in list(kind):
        raise UnknownNameError(kind.__name__.lower(), name, map(str, kind))
    return kind(name)


def _bytes(memory: float | str | None) -> float | None:
    if isinstance(memory, str):
        return parse_quantity(memory, Dimension.BYTES).value
    found: float | None = read_value("memory", Kind.NUMBER, memory)
    return found


_BUDGET = re.compile(
    rf"(?:\$|usd)? *(?P<amount>.*?) *(?:usd)? *(?:/ *(?P<unit>{'|'.join(PERIODS)}))? *(?:usd)?", re.IGNORECASE
)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def usd_per_hour(budget: float | str | None) -> float | None:
    """A budget in USD/h, of a number or of a text such as 20/h or 9000/month. Raises RooflineError."""
    given = _BUDGET.fullmatch(budget.strip()) if isinstance(budget, str) else None
    amount = budget if given is None else _THOUSANDS.sub("", given["amount"])
    try:
        found: float | None = read_value("budget", Kind.NUMBER, amount)
    except RooflineError:
        found = math.nan
    if found is not None and not found > 0:
        raise RooflineError(
            f"a budget is in USD/h or a month and above 0, such as 20/h or 9000/month, got {quote(budget)}",
            options=["budget"],
        )
    return None if found is None else found * PERIODS["h"] / PERIODS[((given and given["unit"]) or "h").lower()]


class Limits(Struct, frozen=True):
    """Upper limits; None is no limit. Seconds, bytes per device, devices, USD per hour of all devices."""

    ttft: float | None = None
    tpot: float | None = None
    total: float | None = None
    memory: float | None = None
    gpus: int | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        for name in TIMES:
            force_setattr(self, name, read_time(name, getattr(self, name)))
        force_setattr(self, "memory", _bytes(self.memory))
        force_setattr(self, "budget", usd_per_hour(self.budget))
        force_setattr(self, "gpus", read_value("gpus", Kind.INTEGER, self.gpus))
        for name, value in self.given.items():
            if not value > 0:
                raise RooflineError(f"the limit of {name} must be above 0, got {value:g}")

    @property
    def given(self) -> Mapping[str, float]:
        """The limits that are set."""
        return {name: float(value) for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


LIMITED: Mapping[str, str] = {**{name: name for name in Limits.__struct_fields__}, "budget": "usd_per_hour"}
"""The metric of each limit."""


GOODPUT = Metric("goodput", "requests/s per device within the limits of TTFT and TPOT", "requests/s", 1, lambda _: None)
"""The metric of a scenario under load; `Goal.served` has its figure."""


class Goal(Struct, frozen=True):
    """An objective under limits. Times are read `at` the bound, or at the expected low (p10), mid (p50) or high (p90).

    `vary_batch`: whether the batch may change; None leaves that to the objective. `of` replaces its metric. `demand` is
    the load of goodput, whose limits of TTFT and TPOT hold at p95 of the requests. `default`: the limits of times are
    USUAL_TARGETS.
    """

    objective: Objective = Objective.TOTAL
    limits: Limits = field(default_factory=Limits)
    quality: Quality = Quality.CALIBRATED
    at: Reading = "mid"
    vary_batch: bool | None = None
    of: str = ""
    demand: Demand | None = None
    default: bool = False

    def __post_init__(self) -> None:
        force_setattr(self, "objective", named(Objective, self.objective))
        force_setattr(self, "quality", named(Quality, self.quality))
        check_reading(self.at)
        force_setattr(self, "vary_batch", read_value("vary_batch", Kind.SWITCH, self.vary_batch))
        if self.demand is not None and not self.loaded:
            raise RooflineError("a load, or sessions, is for the objective goodput", options=["objective"])
        if self.loaded and (self.at == "bound" or self.limits.total is not None or self.vary_batch):
            raise RooflineError("goodput is of expected times, with limits of TTFT and TPOT, and of no static batch")

    @property
    def loaded(self) -> bool:
        """Whether the objective is read under load."""
        return self.objective is Objective.GOODPUT

    @property
    def fills_limits(self) -> bool:
        """Whether the objective is the largest rate within the limits of TTFT and TPOT."""
        return self.loaded and (self.demand is None or (self.demand.concurrency or self.demand.sessions) is None)

    @property
    def name(self) -> str:
        """The name of the objective's metric."""
        return self.of or METRIC[self.objective]

    @property
    def metric(self) -> Metric:
        """The objective's metric at the goal's reading of time."""
        return GOODPUT if self.loaded else read(self.name, self.at)

    def served(self, analysis: Analysis) -> Served:
        """The scenario of an analysis under the load of goodput."""
        targets = Targets(ttft=self.limits.ttft, tpot=self.limits.tpot, at=self.at)
        return served(analysis, self.demand or Demand(), targets)

    def ceiling(self, analysis: Analysis) -> float:
        """An upper bound of goodput, found without a search: the largest stable rate per device; else infinite."""
        if not self.fills_limits:
            return math.inf
        deployment, load = _deployed(analysis, self.demand or Demand())
        return saturated_at(deployment, load) / deployment.devices

    def on(self, hardware: Hardware) -> Goal:
        """The goal with a metric that `hardware` has: without energy figures in its spec, energy is TDP times time."""
        if self.objective is Objective.ENERGY and hardware.energy is None:
            return replace(self, of="energy.tdp")
        return self

    def limited(self, analysis: Analysis) -> Goal:
        """The goal with the usual targets (USUAL_TARGETS) where it sets none, under a load other than of sessions.

        So too where the batch varies and no time is limited, but only those that the scenario meets as it is.
        """
        several = analysis.decode is not None and bool(np.all(analysis.scenario.generate > 1))
        ttft, tpot = targets_or_usual(self.limits.ttft, self.limits.tpot, generates=several)
        usual = {"ttft": ttft, **({"tpot": tpot} if math.isfinite(tpot) else {})}
        if self.loaded and (self.demand is None or self.demand.sessions is None):
            default = usual.keys() > self.limits.given.keys() & usual.keys()
            return replace(self, limits=replace(self.limits, **usual), default=default) if default else self
        if not self.batch_varies or set(TIMES) & self.limits.given.keys():
            return self
        met = {name: limit for name, limit in usual.items() if figure(analysis, name, self.at) <= limit}
        return replace(self, limits=replace(self.limits, **met), default=bool(met))

    @property
    def timed(self) -> bool:
        """Whether the objective is read from expected times."""
        return self.at != "bound" and self.objective not in (Objective.MEMORY, Objective.GOODPUT)

    @property
    def batch_varies(self) -> bool:
        """Whether the batch may change."""
        return self.objective in BATCH_VARIES if self.vary_batch is None else self.vary_batch

    def value(self, analysis: Analysis) -> Any:
        """The objective's value, an array for a grid; NaN if the specs lack what it needs."""
        return self.figure(analysis, self.name)

    def figure(self, analysis: Analysis, name: str) -> Any:
        """A metric at the goal's reading of time: under load TTFT and TPOT at p95 of the requests."""
        if self.loaded and name == "goodput":
            return self.served(analysis).value
        if self.loaded and name in ("ttft", "tpot"):
            return getattr(self.served(analysis).latency(name), self.at)
        return figure(analysis, name, self.at)

    def check(self, analysis: Analysis) -> None:
        """Raises UnsupportedError if the scenario has no value of the objective or of a limited metric."""
        needed = [self.name, *(LIMITED[name] for name in self.limits.given)]
        for name in needed:
            need = self.metric.needs if name == self.name else read(name, self.at).needs
            if need is not None and not np.all(np.isfinite(figure(analysis, name, self.at))):
                raise need.missing(analysis.scenario.hardware)
        if not self.loaded and not np.any(self.value(analysis)):
            raise RooflineError(f"the {self.objective} of this scenario is 0, which nothing improves")
        if analysis.decode is None and self.objective not in _OF_ENCODERS:
            model, known = analysis.scenario.model.name, ", ".join(_OF_ENCODERS)
            raise UnsupportedError(f"{model} only encodes and has no {self.objective}: its objectives are {known}")
        timed = self.objective is Objective.TPOT or self.limits.tpot is not None
        if timed and analysis.decode is None:
            raise UnsupportedError(f"{analysis.scenario.model.name} only encodes and has no TPOT to limit")
        if timed and np.any(np.asarray(analysis.scenario.generate) < 2):
            raise RooflineError("a TPOT needs at least two generated tokens", options=["generate"])

    def gain(self, before: Any, after: Any) -> Any:
        """How many times better `after` is than `before`, both values of the objective."""
        with np.errstate(divide="ignore", invalid="ignore"):  # no request within the limits, before or after
            return np.divide(before, after) if self.metric.better < 0 else np.divide(after, before)

    def filled(self, analysis: Analysis) -> Any:
        """Memory over the budget of a device; under load an engine runs no more requests than fit."""
        found = analysis.memory.total / analysis.memory.budget
        return np.minimum(found, 1.0) if self.loaded else found

    def used(self, analysis: Analysis) -> Mapping[str, Any]:
        """Value over limit for each limit: at most 1 meets it. `capacity` is memory over the device's capacity."""
        found: dict[str, Any] = {"capacity": self.filled(analysis)}
        for name, limit in self.limits.given.items():
            found[name] = self.figure(analysis, LIMITED[name]) / limit
        if self.demand is not None and self.demand.rate is not None:
            found["rate"] = self.demand.rate / self.served(analysis).rate
        return found


@lru_cache(maxsize=256)
def read(name: str, at: Reading) -> Metric:
    """The metric called `name`, at a reading of time if it is timed."""
    timed = f"{name}.{at}"
    return find_metric(timed if timed in METRICS else name, "expected")


def figure(analysis: Analysis, name: str, at: Reading) -> Any:
    """A metric of an analysis at a reading of time: a number, or an array of the grid's shape."""
    value = spread(np.asarray(read(name, at).figure(analysis), float), analysis.scenario.shape)
    return value if analysis.scenario.shape else float(value)
