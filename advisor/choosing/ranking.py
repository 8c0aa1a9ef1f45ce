"""Alternatives under a load and loads around it: ranked, with how sure the first is, and where it flips.

Those come first that fit, that the engine is known to run and that meet the limits, then by the objective.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.choosing.alternatives import Alternative
from roofline.advisor.choosing.rows import ApiPrice, Flip, Objective, Row, rival_of
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import static_batch
from roofline.scenario.cost import HOUR, rent
from roofline.serving.curve import Deployment, deployment_of, outcomes_at
from roofline.serving.load import Load
from roofline.serving.money import Money, money
from roofline.serving.outcome import Outcome, Targets
from roofline.techniques.unsupported import unsupported
from roofline.timing.intervals import Estimate
from roofline.whatif.odds import HEDGED, P90, Odds, Timed, odds, of_ratio, widened

TIMED: Mapping[Objective, Timed] = MappingProxyType({Objective.TTFT: "ttft", Objective.TPOT: "tpot"})
"""The time whose errors an objective has, by default those of the whole request."""

NOTABLE = 1.01
"""How many times better another alternative must be at another load for a choice to flip."""

SPANS, CONSIDERED = (2, 8, 32), 6
"""Factors of the load, up and down, at which flips are searched, among so many of the first alternatives."""

APART = 0.15
"""Error of prefill and decode apart against together: the median of InferenceX's runs apart, TTFT with TPOT."""


class _Served(Struct):
    """A row with what its other loads need."""

    row: Row
    deployment: Deployment | None = None


class Ranking:
    """The alternatives under loads: each deployment is made once, and its outcomes are those of all loads."""

    def __init__(self, load: Load, objective: Objective, limits: Targets, hours: float) -> None:
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
            most = self._at(amount_of(self.load) * SPANS[-1], alternative)
            deployment = deployment_of(scenario, most, alternative.pools)
            share = _share(self.load, alternative)
            (outcome,) = outcomes_at(deployment, self.load, [share])
        except RooflineError as error:
            return _Served(Row(alternative, reason=str(error)))
        row = Row(alternative, deployment.devices * alternative.copies, unknown=tuple(map(str, unsupported(scenario))))
        return _Served(self._judged(row, deployment, outcome, amount_of(self.load) / share), deployment)

    def _at(self, amount: float, alternative: Alternative) -> Load:
        return _with_amount(self.load, _share(_with_amount(self.load, amount), alternative))

    def _judged(self, row: Row, deployment: Deployment, outcome: Outcome, shares: float) -> Row:
        """The row with an outcome of one copy, judged by the objective and the limits; the load is so many shares."""
        busy = shares / row.alternative.copies
        hour, rate = rent(deployment.pools, deployment.scenario.price), outcome.requests_per_second * busy
        value = {
            Objective.THROUGHPUT: 1 / (outcome.output_per_device * busy) if outcome.output_per_device else math.inf,
            Objective.LATENCY: outcome.e2e.mean.mid,
            Objective.TTFT: outcome.ttft.mean.mid,
            Objective.TPOT: outcome.tpot.mean.mid,
            Objective.COST: math.inf if hour is None or not rate else hour / HOUR / rate,
        }[self.objective]
        pairs = zip(("ttft", "tpot"), self.limits, strict=True)
        over = tuple(name for name, most in pairs if getattr(outcome, name).p95.mid > most)
        stable = () if outcome.stable else ("load",)
        value = value if math.isfinite(value) else math.inf
        return replace(row, outcome=outcome, value=value, missed=stable or over, busy=busy)

    def _at_loads(self, served: Sequence[_Served], amounts: Sequence[float]) -> list[list[Row]]:
        """The rows at each of some loads, with that of an API, which costs the same at any load."""
        columns = [[row] * len(amounts) for row in self.bought]
        for each in served:
            assert each.deployment is not None
            loads = [self._at(amount, each.row.alternative) for amount in amounts]
            outcomes = outcomes_at(each.deployment, loads[0], list(map(amount_of, loads)))
            columns.append(
                [
                    self._judged(each.row, each.deployment, outcome, amount / amount_of(load))
                    for amount, load, outcome in zip(amounts, loads, outcomes, strict=True)
                ]
            )
        return [list(rows) for rows in zip(*columns, strict=True)]

    def flips(self, ranked: Sequence[Row]) -> list[Flip]:
        """The nearest loads above and below from which on another alternative is better, where it becomes a likely one.

        Of two that stay too close to call at every load, which comes first says nothing. Where some have prefill and
        decode apart, the best of these and the best of those together are compared.
        """
        amount, whole, first = amount_of(self.load), self.load.concurrency is not None, ranked[0]
        order = [row.label for row in ranked]  # which is not that of ranks alone: `ranked`
        served = sorted((each for each in self.served if each.deployment), key=lambda each: order.index(each.row.label))
        unlike = [each for each in served if each.row.is_apart is not first.is_apart]
        considered = [*(each for each in served if each not in unlike)][:CONSIDERED] + unlike[:CONSIDERED]
        mine = {each.row.label for each in considered if each not in unlike} if unlike else {first.label}
        found = []
        for above in (True, False):
            steps = (amount * (factor if above else 1 / factor) for factor in SPANS)
            held = amount
            for other_load in (other for other in steps if not whole or other >= 1):
                (rows,) = self._at_loads(considered, [other_load])
                holder = min((row for row in rows if row.label in mine), key=lambda row: row.rank).label
                if (other := _first(rows, holder)) == holder:
                    held = other_load
                elif self._likely(rows, other, holder):
                    near = [each for each in considered if each.row.label in (holder, other)]
                    found.append(Flip(self._edge(near, held, other_load, holder), above, other))
                    break
        return found

    def _likely(self, rows: Sequence[Row], first: str, second: str) -> bool:
        """Whether a row is at least likely to be better than another; an API's price is known."""
        pair = [next(row for row in rows if row.label == label) for label in (first, second)]
        if any(row.outcome is None for row in pair):
            return True
        judged = self.odds(pair)
        return judged is not None and judged.probability >= HEDGED

    def _edge(self, near: Sequence[_Served], held: float, lost: float, holder: str) -> float:
        """The load nearest to `held` at which the holder is not first, within 5%; whole requests in flight."""
        whole = self.load.concurrency is not None
        while abs(lost - held) > max(0.05 * held, float(whole)):
            middle = float(round((held + lost) / 2)) if whole else (held + lost) / 2
            if _first(self._at_loads(near, [middle])[0], holder) == holder:
                held = middle
            else:
                lost = middle
        return lost

    def ranked(self) -> list[Row]:
        """The rows from the best on, with the money of their tokens. Raises RooflineError where none runs."""
        for each in self.served:
            if each.deployment is not None and each.row.outcome is not None:
                share = _share(self.load, each.row.alternative)
                load = _with_amount(self.load, share)
                copies, busy = each.row.alternative.copies, each.row.busy
                cost = money(each.deployment, load, each.row.outcome, self.hours, copies, busy)
                each.row = replace(each.row, money=cost)
        # Of those that do not sustain the load, or do not fit, that first which comes nearest.
        rows = sorted(
            (each.row for each in self.served),
            key=lambda row: (*row.rank, -(row.largest or 0.0), row.alternative.copies),
        )
        if not rows or not rows[0].fits:
            raise RooflineError(f"none of the alternatives runs: {rows[0].reason if rows else 'there are none'}")
        return rows

    def against(self, best: Row, api: ApiPrice) -> tuple[Odds | None, float | None]:
        """How sure is renting the best against an API, and the requests a month at which both cost the same."""
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

    def odds(self, rows: Sequence[Row]) -> Odds | None:
        """How surely the first row is better than its rival; None where the first alone runs."""
        best, other = rows[0], rival_of(rows)
        if other is None:
            return None
        assert best.outcome is not None
        assert other.outcome is not None
        if other.missed and not best.missed:
            return self._margin(best, other)
        if not (math.isfinite(best.value) and math.isfinite(other.value)):
            return None
        apart = APART if (best.alternative.pools is None) is not (other.alternative.pools is None) else 0.0
        assert best.alternative.scenario is not None
        assert other.alternative.scenario is not None
        # The static batches of the sequences that run on one copy.
        first = static_batch(best.alternative.scenario, best.outcome.running)
        second = static_batch(other.alternative.scenario, other.outcome.running)
        judged = odds(first, second, TIMED.get(self.objective, "total"), other.value / best.value, apart)
        names = (*judged.doubts, *(["prefill and decode apart"] if apart else []))
        return replace(judged, doubts=names)

    def _margin(self, best: Row, other: Row) -> Odds:
        """How surely a row misses a limit that the best one meets."""
        assert best.alternative.scenario is not None
        assert other.alternative.scenario is not None
        if other.missed == ("load",) or other.outcome is None:
            return of_ratio(math.inf, 1.0)
        name = other.missed[0]
        time: Estimate = getattr(other.outcome, name).p95
        limit = self.limits[0 if name == "ttft" else 1]
        return widened(time.mid / limit, time.mid / time.low, best.alternative.scenario, other.alternative.scenario)


def _first(rows: Sequence[Row], holder: str) -> str:
    """The label of the row that comes first; the holder's unless another is notably better."""
    best = min(rows, key=lambda row: row.rank)
    held = next(row for row in rows if row.label == holder)
    return holder if best.rank[:-1] == held.rank[:-1] and held.rank[-1] <= best.rank[-1] * NOTABLE else best.label


def amount_of(load: Load) -> float:
    """Requests/s, or requests in flight."""
    return float(load.rate if load.rate is not None else load.concurrency or 0)


def _with_amount(load: Load, amount: float) -> Load:
    if load.rate is not None:
        return replace(load, rate=amount)
    return replace(load, concurrency=max(1, round(amount)))


def _share(load: Load, alternative: Alternative) -> float:
    """The load of one copy: requests/s, or requests in flight."""
    share = amount_of(load) / alternative.copies
    return share if load.rate is not None else float(math.ceil(share - 1e-9))
