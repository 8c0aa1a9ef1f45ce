"""The search for the best configurations of a service by each objective; few of them are simulated.

It is a best-first search (branch and bound; Land and Doig 1960). Configurations wait in a heap by a lower bound of the
objective's key: first at the roofline, which is raised once decode steps of similar configurations are known, then with
decode steps and then also prompts at expected times (`roofline.advisor.sizing.bounds`), and last by their own figures,
simulated under the load (`roofline.serving`). The first that leaves the heap with its own figures is the best.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing.bounds import Bounds, Candidate, Candidates
from roofline.advisor.sizing.configurations import NOTHING_GIVEN, Configuration, Given, configurations
from roofline.advisor.sizing.deployments import (
    SERVICE_OBJECTIVES,
    USER_OBJECTIVES,
    At,
    Attempt,
    Choice,
    Deployment,
    Figures,
    Key,
    RankingObjective,
    attempts,
    figures_of,
    replicas_for,
)
from roofline.advisor.sizing.workload import Service
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import prefetch_expected
from roofline.scenario.phase import Phase
from roofline.serving.curve import outcomes_at
from roofline.specs.model import Model
from roofline.whatif.solve.load import LEAST, saturated_at

Progress = Callable[[int, int], None]
"""Called with two numbers of configurations: those simulated so far, and all that fit in memory."""

LEVELS = ("roof", "decoding", "expected")
"""The bounds of a candidate, from the quickest and loosest on."""

ALIKE = "alike"
"""A level between the first two: the roofline, raised by what similar candidates take beyond it (SHARES_OF_TIME)."""

Waiting = tuple[Key, int, int]
"""The key of a bound, its level, and the index of the configuration."""

SHARES_OF_TIME = (0.3, 0.5, 0.9)
"""A candidate's kernels exceed their roof by at least this share of what similar ones do.

Similar are those on its device, those that have its layout too, and those that differ in the KV cache alone. The excess
is of launches and latencies more than of work. The shares are margins, not laws: of seven models on 60 devices each,
the least over the largest excess is below 0.30 on 5% (0.17 at least), with one layout 0.54 (0.30); of five models, with
one layout and format of weights, it is below 0.90 on 1% (0.65).
"""

TOGETHER = (4, 128)
"""Configurations whose expected times are evaluated in one batch: at first, and at most, twice as many each time."""

NODE, FASTEST_WITHIN = 8, 2
"""The fastest deployment has at most a NODE of devices, or FASTEST_WITHIN times the fewest that meet the targets."""


class Search:
    """All configurations of a service, each simulated at most once, when needed."""

    def __init__(
        self,
        model: Model,
        service: Service,
        hardware: Sequence[str] | None,
        quality: Quality,
        prices: Mapping[str, float],
        engine: str | None,
        at: At,
        progress: Progress,
        given: Given = NOTHING_GIVEN,
        budget: float = math.inf,
    ) -> None:
        self.service, self.prices, self.at, self.progress = service, prices, at, progress
        self.budget = budget * (1 + 1e-9)  # which is met by devices whose prices add up to it but for their rounding
        self._attempts: dict[tuple[int, float], Iterator[Attempt]] = {}
        self._tried: dict[tuple[int, float], Attempt | None] = {}
        self._bounded: dict[tuple[int, str | float, float, int], Figures | None] = {}
        self._beyond_roof: dict[tuple[Any, ...], float] = {}
        self.closest: dict[str, Configuration] = {}
        candidates = Candidates(service)
        made = list(configurations(model, service, hardware, quality, engine, given))
        self.considered = len(made)
        self.divided = [candidate for entry in made if (candidate := candidates.of(entry)) is not None]
        self.refused = candidates.refused
        if not self.divided:
            raise self.refused or RooflineError("no configuration of this hardware fits the options")
        self.fitting = [found for entry in self.divided if (found := entry.fitting) is not None]
        if not given.degrees:
            self.fitting = _within_nodes(self.fitting)
        self.capable = [index for index, entry in enumerate(self.fitting) if entry.roof.most]

    @property
    def simulated(self) -> int:
        return len({index for index, _ in self._tried})

    def names(self, priced: bool | None = None) -> set[str]:
        """Hardware of capable configurations; with `priced` that with or without a price."""
        found = (self.fitting[index].configuration for index in self.capable)
        return {entry.hardware.name for entry in found if priced is None or (self._price(entry) is not None) is priced}

    def _price(self, configuration: Configuration) -> float | None:
        """USD per hour of a device, or of its purchase for a single user: as given, else from its spec."""
        hardware = configuration.hardware
        for name in (configuration.base.hardware_name, hardware.name):
            if name in self.prices:
                return self.prices[name]
        if hardware.price is None:
            return None
        return hardware.price.buy if self.service.alone else hardware.price.rent

    def choices(self) -> Iterator[Choice]:
        """The best deployment by each objective, and the runner-up, where there are any."""
        most = math.inf
        for objective in USER_OBJECTIVES if self.service.alone else SERVICE_OBJECTIVES:
            best, runner_up = self._best_two(objective, most if objective.name == "fastest" else math.inf)
            if best is not None and objective.name == "fewest":
                most = max(NODE, FASTEST_WITHIN * best.devices)
            if best is not None:
                yield Choice(objective, best, runner_up)

    def _best_two(self, objective: RankingObjective, most: float) -> tuple[Deployment | None, Deployment | None]:
        """The best deployment, and the best on other hardware if there is any; `most` as of `_deployment`."""

        def bound(index: int, level: str) -> Key | None:
            # Objectives share what is tried and bounded: only the order of the keys differs.
            tried = self._tried.get((index, most))
            fewest = tried if isinstance(tried, int) else 1
            asked = (index, self._beyond(index) if level == ALIKE else level, most, fewest)
            if asked not in self._bounded:
                self._bounded[asked] = self._least(self.fitting[index], self._bounds(index, level), most, fewest)
            least = self._bounded[asked]
            return None if least is None or not self._affords(least) else objective.key(least)

        def actual(index: int) -> tuple[Key | None, bool]:
            found = self._attempt(index, most)
            if isinstance(found, int):
                return bound(index, LEVELS[-1]), False
            return None if found is None or not self._affords(found.figures) else objective.key(found.figures), True

        chosen: set[str] = set()
        ordered = self._in_order(self.capable, bound, actual, chosen)
        best = next((self._deployment(index, most) for _, index in ordered), None)
        if best is not None and self.names() != {best.hardware.name}:
            chosen.add(best.hardware.name)
        return best, next((self._deployment(index, most) for _, index in ordered), None)

    def _in_order(
        self,
        indices: Iterable[int],
        bound: Callable[[int, str], Key | None],
        actual: Callable[[int], tuple[Key | None, bool]],
        without: Collection[str] = (),
    ) -> Iterator[tuple[Key, int]]:
        """Configurations by their `actual` key, least first; a `bound` of it decides which are simulated.

        `actual` also says whether its key is final; if not, it is a higher bound, and the configuration waits again.
        Configurations whose hardware is in `without` when their turn comes are left out.
        """
        keys = ((bound(index, LEVELS[0]), index) for index in indices)
        waiting: list[Waiting] = [(key, 0, index) for key, index in keys if key is not None]
        heapify(waiting)
        last, (together, most) = len(LEVELS), TOGETHER
        while waiting:
            key, level, index = heappop(waiting)
            if self.fitting[index].hardware.name in without:
                continue
            if level == last:
                yield key, index
            elif level == last - 1:
                self.progress(self.simulated + 1, len(self.fitting))
                found, final = actual(index)
                if found is not None:
                    heappush(waiting, (found, last if final else level, index))
            else:
                heappush(waiting, (key, level, index))
                soon = self._first(waiting, level, together, bound)
                together = min(2 * together, most)
                self._prefetch(soon, LEVELS[level + 1])
                for each in soon:
                    with suppress(RooflineError):  # the hardware cannot run it
                        if (tighter := bound(each, LEVELS[level + 1])) is not None:
                            heappush(waiting, (tighter, level + 1, each))
                        candidate, known = self.fitting[each], self._beyond_roof
                        for key in candidate.alike:
                            known[key] = min(known.get(key, math.inf), candidate.beyond_roof)

    def _first(
        self, waiting: list[Waiting], level: int, most: int, bound: Callable[[int, str], Key | None]
    ) -> list[int]:
        """Take the first that wait at a level; at the roofline one of each hardware, which raises others' bounds."""
        soon: list[int] = []
        later, taken = list[Waiting](), set[str]()
        while waiting and waiting[0][1] == level and len(soon) + len(later) < most:
            key, _, index = heappop(waiting)
            candidate = self.fitting[index]
            if level == 0 and LEVELS[1] not in vars(candidate):
                raised = bound(index, ALIKE)
                if raised is None:
                    continue
                if raised > key or candidate.hardware.name in taken:
                    later.append((max(key, raised), level, index))
                    continue
                taken.add(candidate.hardware.name)
            soon.append(index)
        for entry in later:
            heappush(waiting, entry)
        return soon

    def _beyond(self, index: int) -> float:
        """Seconds by which a candidate's kernels exceed their roof at least, as similar ones (`alike`) say."""
        keys = self.fitting[index].alike
        return max(share * self._beyond_roof.get(key, 0.0) for share, key in zip(SHARES_OF_TIME, keys, strict=True))

    def _bounds(self, index: int, level: str) -> Bounds:
        """The bounds of a candidate at a level; raises RooflineError if the hardware cannot run it."""
        if level == ALIKE and (beyond := self._beyond(index)):
            return self.fitting[index].above_roof(beyond)
        found: Bounds = getattr(self.fitting[index], LEVELS[0] if level == ALIKE else level)
        return found

    def _prefetch(self, indices: Sequence[int], level: str) -> None:
        """Evaluate in one batch the expected times that the bounds of some configurations at a level need."""
        deferred: list[Phase] = []
        for index in indices:
            if level not in vars(self.fitting[index]):
                with suppress(RooflineError):
                    deferred.append(self.fitting[index].phase(level))
        prefetch_expected(deferred)

    def _least(self, candidate: Candidate, bounds: Bounds, most: float, fewest: int = 1) -> Figures | None:
        """Lower bounds of all figures of a configuration's deployments of at least the `fewest` replicas.

        None if none meets the service.
        """
        service = self.service
        limit, exact = bounds.most, self._exactly(candidate, most)
        if not limit or exact == 0:
            return None
        replicas = exact or max(replicas_for(service.amount, limit), fewest)
        tpot = bounds.loaded(exact or (math.inf if service.rate is not None else replicas))
        rate = service.rate
        if rate is None:  # no more sequences run than are in flight
            users = service.share(replicas)
            running = float(np.interp(users, bounds.counts, bounds.rate))
            rate = replicas * min(running, bounds.closed(users))
        tpot = tpot if service.steps else bounds.ttft
        return figures_of(candidate, self._price(candidate.configuration), replicas, rate, bounds.ttft, tpot)

    def _exactly(self, candidate: Candidate, most: float) -> int | None:
        """The most replicas on at most `most` devices and within the budget; None for as few as meet the service."""
        if most == math.inf or self.service.alone:
            return None
        price = self._price(candidate.configuration)
        return int(min(most, math.inf if not price else self.budget / price) // candidate.devices)

    def _affords(self, figures: Figures) -> bool:
        """Whether a deployment is within the budget; one without a price is not, unless there is no budget."""
        return math.isinf(self.budget) or (figures.cost is not None and figures.cost <= self.budget)

    def _attempt(self, index: int, most: float) -> Attempt | None:
        """The deployment of a configuration, or the replicas that are tried when it is asked again.

        None if it cannot meet the service, or the hardware cannot run it. With a finite `most` it has as many replicas
        as this number of devices allows, else as few as meet the service.
        """
        asked, candidate = (index, most), self.fitting[index]
        if asked not in self._tried:
            price, exact = self._price(candidate.configuration), self._exactly(candidate, most)
            self._attempts[asked] = attempts(candidate, self.at, price, exact)
        if not isinstance(self._tried.get(asked), Deployment):
            try:
                self._tried[asked] = next(self._attempts[asked], None)
            except RooflineError as error:
                self._tried[asked], self.refused = None, error
        return self._tried[asked]

    def _deployment(self, index: int, most: float = math.inf) -> Deployment | None:
        """The deployment of a configuration, after as many attempts as it takes; `most` as of `_attempt`."""
        while isinstance(found := self._attempt(index, most), int):
            pass
        return found

    def nearest(self) -> tuple[tuple[str, ...], Mapping[str, float]]:
        """The binding targets where nothing meets all, and the least feasible value of each.

        Raises RooflineError where no configuration can be simulated.
        """
        if not self.fitting:
            return ("memory",), {"memory": min(entry.counted.needed for entry in self.divided)}
        asked = [name for name in ("ttft", "tpot") if getattr(self.service, name) is not None]
        found = {name: self._reached(name, keep_other=True) for name in asked}
        alone = {name: value for name, value in found.items() if math.isfinite(value)}
        if alone:
            return tuple(alone), alone
        together = {name: self._reached(name, keep_other=False) for name in found}
        if not any(map(math.isfinite, together.values())):
            raise self.refused or RooflineError("no configuration sustains the load")
        return tuple(found), together

    def _reached(self, name: str, keep_other: bool) -> float:
        """The least TTFT or TPOT of any configuration, almost unloaded, with or without the other target.

        `closest` keeps the configuration that has it.
        """
        other = "tpot" if name == "ttft" else "ttft"
        limit = (getattr(self.service, other) if keep_other else None) or math.inf

        def bound(index: int, level: str) -> Key | None:
            bounds = self._bounds(index, level)
            least = {"ttft": bounds.ttft, "tpot": bounds.loaded(math.inf)}
            return (least[name],) if least[other] <= limit else None

        def actual(index: int) -> tuple[Key | None, bool]:
            times = self._unloaded(index)
            return None if times is None or times[other] > limit else (times[name],), True

        found = next(self._in_order(range(len(self.fitting)), bound, actual), None)
        if found is None:
            return math.inf
        (value, *_), index = found
        self.closest[name] = self.fitting[index].configuration
        return value

    def _unloaded(self, index: int) -> Mapping[str, float] | None:
        """TTFT and TPOT of a configuration at the least load, or of a single user."""
        service, load = self.service, self.service.load(1)
        try:
            replica = self.fitting[index].replica
            rate = 1.0
            if service.rate is not None:
                rate = LEAST * saturated_at(replica, load)
            (outcome,) = outcomes_at(replica, load, [rate])
        except RooflineError as error:
            self.refused = error
            return None
        return {name: getattr(getattr(getattr(outcome, name), service.quantile), self.at) for name in ("ttft", "tpot")}


def _within_nodes(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with pipelines over nodes only where no single node fits, on the fewest devices."""

    def kind(entry: Candidate) -> tuple[Any, ...]:
        return (entry.hardware.name, entry.configuration.scheme, entry.configuration.kv)

    within: set[tuple[Any, ...]] = set()
    fewest: dict[tuple[Any, ...], int] = {}
    for entry in candidates:
        if "pipeline" in entry.configuration.layout:
            fewest[kind(entry)] = min(fewest.get(kind(entry), entry.devices), entry.devices)
        else:
            within.add(kind(entry))
    return [
        entry
        for entry in candidates
        if "pipeline" not in entry.configuration.layout
        or (kind(entry) not in within and entry.devices == fewest[kind(entry)])
    ]
