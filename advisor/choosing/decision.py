"""Decisions: the alternatives of one choice under one load, ranked by an objective, with a verdict and its flips.

Every alternative is served in steady state (`roofline.serving`) at the load and at loads around it. Those come first
that fit, that the engine is known to run and that meet the limits, then by the objective. The verdict compares the
first two (`roofline.whatif.verdict`); a flip is the nearest load at which another comes first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.choosing.alternatives import ALTERNATIVES, Alternative, Decided
from roofline.advisor.options import requests
from roofline.advisor.search.goal import named
from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.options import names_in
from roofline.scenario.analysis import analyze
from roofline.scenario.cost import HOUR, MILLION, rent
from roofline.scenario.lengths import Lengths
from roofline.scenario.options import DEGREES
from roofline.scenario.options import Deployment as DeploymentOptions
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import Deployment, deployment_of, outcomes_at
from roofline.serving.load import Load, served_scenario
from roofline.serving.money import MONTH, Money, money
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.outcome import Outcome
from roofline.techniques.unsupported import unsupported
from roofline.timing.intervals import Estimate
from roofline.whatif.gain import Timed
from roofline.whatif.verdict import P90, Verdict, of_ratio, verdict, widened

if TYPE_CHECKING:
    from typing import Unpack


class Objective(StrEnum):
    """What ranks the alternatives."""

    THROUGHPUT = "throughput"
    LATENCY = "latency"
    TTFT = "ttft"
    TPOT = "tpot"
    COST = "cost"


TIMED: Mapping[Objective, Timed] = MappingProxyType({Objective.TTFT: "ttft", Objective.TPOT: "tpot"})
"""The time whose errors an objective has, by default those of the whole request."""

TTFT_LIMIT, TPOT_LIMIT = 10.0, 0.1
"""Seconds at p95 that a service may take by default where throughput or cost rank it: 10 tokens/s read with ease."""

NOTABLE = 1.01
"""How many times better another alternative must be at another load for a choice to flip."""

SPANS, CONSIDERED = (2, 8, 32), 6
"""Factors of the load, up and down, at which flips are searched, among so many of the first alternatives."""

APART = 0.33
"""Error of prefill and decode apart against together: the median error of public speeds under load, November 2026."""


class ApiPrice(Struct, frozen=True):
    """The price of an API in USD per million tokens of prompts, of cached prefixes and of outputs."""

    prompt: float
    cached: float
    output: float

    def request(self, load: Load) -> float:
        """USD of a mean request."""
        prompt, output = load.means
        parts = (self.prompt * prompt * (1 - load.hits), self.cached * prompt * load.hits, self.output * output)
        return sum(parts) / MILLION


class Deployed(DeploymentOptions, total=False):
    """The options of all alternatives: lengths of requests in tokens, and how the model runs."""

    prompt: int | str | Lengths
    generate: int | str | Lengths


def parse_api_price(text: str) -> ApiPrice:
    """The price of `IN/OUT` or `IN/CACHED/OUT`, USD per million tokens. Raises RooflineError."""
    try:
        parts = [float(part) for part in text.replace("$", "").split("/")]
        if len(parts) not in (2, 3) or not all(0 <= part < math.inf for part in parts):
            raise ValueError
    except ValueError:
        raise RooflineError(
            f"an API's price is USD per million tokens, IN/OUT or IN/CACHED/OUT, such as 0.25/1, got {quote(text)}",
            options=["api_price"],
        ) from None
    return ApiPrice(parts[0], parts[-2], parts[-1])


class Row(Struct, frozen=True, dict=True):
    """An alternative under the load: its outcome on one of the copies, or the reason why there is none.

    `unknown` is what its engine is not known to run, `missed` the limits that it exceeds, `value` of the objective
    (smaller is better), `money` of its tokens.
    """

    alternative: Alternative
    devices: int = 0
    outcome: Outcome | None = None
    reason: str = ""
    unknown: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    value: float = math.inf
    money: Money | None = None

    @property
    def label(self) -> str:
        return self.alternative.label

    @property
    def fits(self) -> bool:
        """Whether it runs, and fits in memory."""
        return not self.reason

    @property
    def requests_per_second(self) -> float:
        """Requests/s of all copies."""
        return 0.0 if self.outcome is None else self.outcome.requests_per_second * self.alternative.copies

    @property
    def per_device(self) -> float | None:
        """Output tokens/s of a device."""
        return None if self.outcome is None else self.outcome.output_per_device

    @property
    def rank(self) -> tuple[Any, ...]:
        return (not self.fits, bool(self.unknown), bool(self.missed), self.value)


class Flip(Struct, frozen=True):
    """The load (requests in flight, or requests/s) from which on, or below which, another alternative comes first."""

    load: float
    above: bool
    label: str


class Decision(Result, Struct, frozen=True):
    """The answer: `rows` from the best on, the verdict on the first two, and the flips above and below the load.

    The verdict is None where one alternative alone runs and meets the limits. `limits` are seconds of TTFT and TPOT
    at p95, None for none; `hours` a month. `api` is a price to compare with, `break_even` the requests a month from
    which renting the first costs less.
    """

    decided: Decided
    scenario: Scenario
    load: Load
    objective: Objective
    limits: tuple[float | None, float | None]
    hours: float
    rows: tuple[Row, ...]
    verdict: Verdict | None
    flips: tuple[Flip, ...]
    api: ApiPrice | None = None
    break_even: float | None = None

    @property
    def best(self) -> Row:
        return self.rows[0]

    @property
    def amount(self) -> float:
        """Requests/s, or requests in flight."""
        return _amount(self.load)


def choose(
    decided: str,
    model: str,
    hw: str | Sequence[str],
    users: int | None = None,
    *,
    rate: float | str | None = None,
    objective: str | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    prefix_hits: float | str | None = None,
    hours: float = MONTH,
    api_price: str | ApiPrice | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **options: Unpack[Deployed],
) -> Decision:
    """The alternatives of a layout, format, engine, hardware, speculation, disaggregation, offload or API, ranked.

    >>> from roofline import choose
    >>> found = choose("engine", "gpt-oss-120b", "ryzen-ai-max-395")
    >>> found.best.label
    'llama.cpp'

    The load are `users` with a request in flight each (1 by default), or a `rate` in requests/s; lengths and further
    `options` are those of a scenario. `objective` is throughput (of a device; the default of several users), latency
    (of requests; of one user or a rate), ttft, tpot or cost (of hardware and API). `ttft` and `tpot` are limits at p95;
    throughput and cost have TTFT_LIMIT and TPOT_LIMIT by default. Raises RooflineError where nothing runs.
    """
    if decided not in list(Decided):
        raise UnknownNameError("choice", decided, map(str, Decided))
    what = Decided(decided)
    names = names_in(hw) if isinstance(hw, str) else list(hw)
    if not names:
        raise RooflineError("name the hardware", options=["hw"])
    if len(names) > 1 and what is not Decided.HARDWARE:
        raise RooflineError(f"choose {what} takes one kind of hardware, got {', '.join(names)}", options=["hw"])
    scenario = served_scenario(Scenario(model, names[0], **options))
    if scenario.model.task != "generate":
        raise RooflineError(f"{scenario.model.name} only encodes: choices are of models that generate")
    hits = LOAD_OPTIONS["prefix_hits"].read(prefix_hits) or 0.0
    if users is not None and users < 1:
        raise RooflineError(f"there must be at least one user, got {users}", options=["users"])
    count, arrivals = LOAD_OPTIONS["concurrency"].read(users), requests(rate)
    if count is not None and arrivals is not None:
        raise RooflineError("a load has users or a rate, not both", options=["users", "rate"])
    single = {"concurrency": 1 if count is None else count} if arrivals is None else {"rate": arrivals}
    load = Load(hits=hits, **single).of(scenario)
    if not 0 < hours <= 744:
        raise RooflineError(f"a month has at most 744 hours, got {hours:g}", options=["hours"])
    price = parse_api_price(api_price) if isinstance(api_price, str) else api_price
    if (price is None) is (what is Decided.API):
        told = (
            "choose api compares with a price: give it" if price is None else f"choose {what} compares no API: omit it"
        )
        raise RooflineError(told, options=["api_price"])
    goal = named(Objective, objective) if objective is not None else _usual(what, load)
    default = (TTFT_LIMIT, TPOT_LIMIT) if goal in (Objective.THROUGHPUT, Objective.COST) else (None, None)
    given = (LOAD_OPTIONS["ttft"].read(ttft), LOAD_OPTIONS["tpot"].read(tpot))
    limits = (given[0] or default[0], given[1] or default[1])
    if price is not None and goal is not Objective.COST:
        raise RooflineError(f"an API has costs and no {goal}: omit the objective", options=["objective"])
    search = _Search(load, goal, limits, hours)
    search.add(_alternatives(what, scenario, names, load, limits, options), progress)
    return search.decision(what, scenario, price)


def _usual(what: Decided, load: Load) -> Objective:
    if what in (Decided.HARDWARE, Decided.API):
        return Objective.COST
    return Objective.THROUGHPUT if (load.concurrency or 0) > 1 else Objective.LATENCY


def _alternatives(
    what: Decided,
    scenario: Scenario,
    names: Sequence[str],
    load: Load,
    limits: tuple[float | None, float | None],
    options: Mapping[str, Any],
) -> list[Alternative]:
    if what is not Decided.HARDWARE:
        return list(ALTERNATIVES[what](scenario))
    if len(names) < 2:
        raise RooflineError("name the hardware to choose from, as in h200-sxm,b200-sxm", options=["hw"])
    return [_deployed(Scenario(scenario.model_name, name, **options), name, load, limits, options) for name in names]


def _deployed(
    scenario: Scenario,
    name: str,
    load: Load,
    limits: tuple[float | None, float | None],
    options: Mapping[str, Any],
) -> Alternative:
    """The deployment on a kind of hardware: the devices that are named, or the cheapest that `size` finds."""
    from roofline.advisor.sizing.sizing import size
    from roofline.advisor.sizing.workload import Service

    if scenario.settings.parallel.devices > 1:
        split = " ".join(f"{DEGREES[part]}={count}" for part, count in scenario.degrees.items() if count > 1)
        return Alternative(f"{name}, {split}", scenario)
    service = Service(load.rate, load.prompts, load.outputs, *limits, concurrency=load.concurrency, hits=load.hits)
    fixed = {key: value for key, value in options.items() if key not in ("prompt", "generate", "price", "engine")}
    usd = {} if scenario.price is None else {scenario.hardware_name: scenario.price}
    sized = size(
        scenario.model_name, service, [scenario.hardware_name], price=usd, engine=options.get("engine"), **fixed
    )
    choices = {choice.objective.name: choice for choice in sized.choices}
    found = choices.get("cheapest") or choices.get("fewest") or choices.get("fastest")
    if found is None:
        return Alternative(f"1 x {name}", scenario)
    best = found.best
    chosen = best.configuration.scenario.with_(price=scenario.price)
    split = f" {best.configuration.split}" if best.configuration.split else ""
    label = f"{best.devices} x {name}{split}, {best.configuration.formats}"
    return Alternative(label, chosen, best.replicas)


class _Served(Struct):
    """A row with what its other loads need."""

    row: Row
    deployment: Deployment | None = None


class _Search:
    """The alternatives under loads: each deployment is made once, and its outcomes are those of all loads."""

    def __init__(
        self, load: Load, objective: Objective, limits: tuple[float | None, float | None], hours: float
    ) -> None:
        self.load, self.objective, self.limits, self.hours = load, objective, limits, hours
        self.served: list[_Served] = []
        self.bought: list[Row] = []

    def add(self, alternatives: Sequence[Alternative], progress: Callable[[str], None]) -> None:
        for index, alternative in enumerate(alternatives):
            progress(f"alternative {index + 1} of {len(alternatives)}")
            self.served.append(self._serve(alternative))

    def _serve(self, alternative: Alternative) -> _Served:
        scenario = alternative.scenario
        assert scenario is not None
        try:
            most = self._at(_amount(self.load) * SPANS[-1], alternative)
            deployment = deployment_of(scenario, most, alternative.pools)
            (outcome,) = outcomes_at(deployment, self.load, [_share(self.load, alternative)])
        except RooflineError as error:
            return _Served(Row(alternative, reason=str(error)))
        row = Row(alternative, deployment.devices * alternative.copies, unknown=unsupported(scenario))
        return _Served(self._judged(row, deployment, outcome), deployment)

    def _at(self, amount: float, alternative: Alternative) -> Load:
        return _with_amount(self.load, _share(_with_amount(self.load, amount), alternative))

    def _judged(self, row: Row, deployment: Deployment, outcome: Outcome) -> Row:
        """The row with an outcome, judged by the objective and the limits."""
        hour, rate = rent(deployment.pools, deployment.scenario.price), outcome.requests_per_second
        value = {
            Objective.THROUGHPUT: 1 / outcome.output_per_device if outcome.output_per_device else math.inf,
            Objective.LATENCY: outcome.e2e.mean.mid,
            Objective.TTFT: outcome.ttft.mean.mid,
            Objective.TPOT: outcome.tpot.mean.mid,
            Objective.COST: math.inf if hour is None or not rate else hour / HOUR / rate,
        }[self.objective]
        pairs = zip(("ttft", "tpot"), self.limits, strict=True)
        over = tuple(name for name, most in pairs if most and not getattr(outcome, name).p95.mid <= most)
        stable = () if outcome.stable else ("load",)
        return replace(row, outcome=outcome, value=value if math.isfinite(value) else math.inf, missed=stable or over)

    def _ranked(self, served: Sequence[_Served], amounts: Sequence[float]) -> list[list[Row]]:
        """The rows at each of some loads, with that of an API, which costs the same at any load."""
        columns = [[row] * len(amounts) for row in self.bought]
        for each in served:
            assert each.deployment is not None
            loads = [self._at(amount, each.row.alternative) for amount in amounts]
            outcomes = outcomes_at(each.deployment, loads[0], list(map(_amount, loads)))
            columns.append([self._judged(each.row, each.deployment, outcome) for outcome in outcomes])
        return [list(rows) for rows in zip(*columns, strict=True)]

    def flips(self, holder: str) -> list[Flip]:
        """The nearest loads above and below at which another alternative comes first."""
        amount, whole = _amount(self.load), self.load.concurrency is not None
        served = [each for each in self.served if each.deployment is not None]
        served = sorted(served, key=lambda each: each.row.rank)[:CONSIDERED]
        found = []
        for above in (True, False):
            steps = (amount * (factor if above else 1 / factor) for factor in SPANS)
            amounts = [other for other in steps if not whole or other >= 1]
            if not amounts:
                continue
            for index, rows in enumerate(self._ranked(served, amounts)):
                if (other := _first(rows, holder)) != holder:
                    # Apart, an outcome takes a third of a second: the edge is then that of the two alone.
                    apart = any(each.row.alternative.pools is not None for each in served)
                    near = [each for each in served if not apart or each.row.label in (holder, other)]
                    held = amounts[index - 1] if index else amount
                    edge = self._edge(near, held, amounts[index], holder)
                    found.append(Flip(edge, above, _first(self._ranked(near, [edge])[0], holder)))
                    break
        return found

    def _edge(self, near: Sequence[_Served], held: float, lost: float, holder: str) -> float:
        """The load nearest to `held` at which the holder is not first, within 5%; whole requests in flight."""
        whole = self.load.concurrency is not None
        while abs(lost - held) > max(0.05 * held, float(whole)):
            middle = float(round((held + lost) / 2)) if whole else (held + lost) / 2
            if _first(self._ranked(near, [middle])[0], holder) == holder:
                held = middle
            else:
                lost = middle
        return lost

    def decision(self, what: Decided, scenario: Scenario, api: ApiPrice | None) -> Decision:
        """The ranked rows with the verdict."""
        for each in self.served:
            if each.deployment is not None and each.row.outcome is not None:
                share = _share(self.load, each.row.alternative)
                load = _with_amount(self.load, share)
                cost = money(each.deployment, load, each.row.outcome, self.hours, each.row.alternative.copies)
                each.row = replace(each.row, money=cost)
        rows = sorted((each.row for each in self.served), key=lambda row: row.rank)
        if not rows or not rows[0].fits:
            raise RooflineError(f"none of the alternatives runs: {rows[0].reason if rows else 'there are none'}")
        judged, even = self._verdict(rows), None
        if api is not None:
            judged, even = self._against(rows[0], api)
            rows = sorted((*rows, *self.bought), key=lambda row: row.rank)
        flips = self.flips(rows[0].label) if len(rows) > 1 and rows[1].fits else []
        return Decision(
            *(what, scenario, self.load, self.objective, self.limits, self.hours, tuple(rows), judged, tuple(flips)),
            *(api, even),
        )

    def _against(self, best: Row, api: ApiPrice) -> tuple[Verdict | None, float | None]:
        """The verdict on renting the best against an API, and the requests a month at which both cost the same."""
        cost, volume = api.request(self.load), best.requests_per_second * HOUR * self.hours
        spent = Money(api.prompt, api.cached, api.output, cost * volume)
        self.bought = [Row(Alternative("API", None), value=cost, money=spent)]
        if best.money is None or best.outcome is None or not cost:
            return None, None
        even, rented = best.money.month / cost, best.money.month / volume
        if best.missed:
            return self._margin(best, best), even
        e2e = best.outcome.e2e.mean  # with a rate the volume is given, and both costs are known
        deviation = 0.0 if self.load.rate is not None else math.log(e2e.high / e2e.mid) / P90
        return of_ratio(max(cost, rented) / min(cost, rented), deviation), even

    def _verdict(self, rows: Sequence[Row]) -> Verdict | None:
        """The verdict on the first two rows; None where the first alone runs."""
        if len(rows) < 2 or not rows[1].fits:
            return None
        best, other = rows[:2]
        assert best.outcome is not None
        assert other.outcome is not None
        if other.missed and not best.missed:
            return self._margin(best, other)
        if not (math.isfinite(best.value) and math.isfinite(other.value)):
            return None
        apart = APART if (best.alternative.pools is None) is not (other.alternative.pools is None) else 0.0
        first, second = (_static(row) for row in (best, other))
        judged = verdict(first, second, TIMED.get(self.objective, "total"), other.value / best.value, apart)
        names = (*judged.doubts, *(["prefill and decode apart"] if apart else []))
        return replace(judged, doubts=names)

    def _margin(self, best: Row, other: Row) -> Verdict:
        """How surely a row misses a limit that the best one meets."""
        assert best.alternative.scenario is not None
        assert other.alternative.scenario is not None
        if other.missed == ("load",) or other.outcome is None:
            return of_ratio(math.inf, 1.0)
        name = other.missed[0]
        time: Estimate = getattr(other.outcome, name).p95
        limit = self.limits[0 if name == "ttft" else 1]
        assert limit is not None
        return widened(time.mid / limit, time.mid / time.low, best.alternative.scenario, other.alternative.scenario)


def _first(rows: Sequence[Row], holder: str) -> str:
    """The label of the row that comes first; the holder's unless another is notably better."""
    best = min(rows, key=lambda row: row.rank)
    held = next(row for row in rows if row.label == holder)
    return holder if best.rank[:-1] == held.rank[:-1] and held.value <= best.value * NOTABLE else best.label


def _static(row: Row) -> Any:
    """The static batch of the sequences that run on one copy."""
    assert row.outcome is not None
    assert row.alternative.scenario is not None
    running = row.outcome.running
    return analyze(row.alternative.scenario.at(batch=max(1, round(running)) if np.isfinite(running) else 1))


def _amount(load: Load) -> float:
    return float(load.rate if load.rate is not None else load.concurrency or 0)


def _with_amount(load: Load, amount: float) -> Load:
    if load.rate is not None:
        return replace(load, rate=amount)
    return replace(load, concurrency=max(1, round(amount)))


def _share(load: Load, alternative: Alternative) -> float:
    """The load of one copy: requests/s, or requests in flight."""
    share = _amount(load) / alternative.copies
    return share if load.rate is not None else float(math.ceil(share - 1e-9))
