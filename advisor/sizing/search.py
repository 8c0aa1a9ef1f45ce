"""The search for the best configurations of a service by each objective; few of them are simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing.choices import Choice, changes, tied
from roofline.advisor.sizing.configurations import (
    NOTHING_FIXED,
    Candidate,
    Candidates,
    Configuration,
    Fixed,
    Simulated,
    configurations,
)
from roofline.advisor.sizing.deployments import (
    At,
    Deployment,
    Figures,
    Key,
    RankingObjective,
    figures_of,
    loaded,
    objectives_of,
    targets_of,
)
from roofline.advisor.sizing.queueing import MIN_RATE, load, replicas_for
from roofline.advisor.sizing.workload import Service
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import prefetch_expected
from roofline.specs.model import Model

Progress = Callable[[int, int], None]
"""Called with the configurations done and their total."""

SOON = 24
"""Configurations of a device type that are simulated together, in order of their bounds."""

NODE, FASTEST_WITHIN = 8, 2
"""The fastest deployment has at most a node of devices, or twice the fewest: more replicas would be idle."""


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
        fixed: Fixed = NOTHING_FIXED,
    ) -> None:
        self.service, self.prices, self.at, self.progress = service, prices, at, progress
        self.deployments: dict[int, Deployment | None] = {}
        self._simulated: dict[int, Simulated | None] = {}
        candidates = Candidates(service, host_time=at != "low")
        made = list(configurations(model, service, hardware, quality, engine, fixed))
        self.considered = len(made)
        found = [candidate for entry in made if (candidate := candidates.of(entry)) is not None]
        if not found:
            reason = "no configuration of this hardware has these degrees of parallelism, or divides the model"
            raise candidates.refused or RooflineError(reason)
        self.divided = found
        self.fitting = _fitting(found)
        self.capable = [candidate for candidate in self.fitting if candidate.capable]

    @property
    def simulated(self) -> int:
        """The number of configurations simulated."""
        return len(self._simulated)

    @property
    def priced(self) -> set[str]:
        """Hardware with a price."""
        return {
            entry.configuration.hardware.name for entry in self.capable if self._price(entry.configuration) is not None
        }

    def _price(self, configuration: Configuration) -> float | None:
        """USD per hour of a device, or for one user to buy it: as given, else from its spec."""
        hardware = configuration.hardware
        for name in (configuration.request.hardware_name, hardware.name):
            if name in self.prices:
                return self.prices[name]
        if hardware.price is None:
            return None
        return hardware.price.buy if self.service.rate is None else hardware.price.rent

    def choices(self) -> Iterator[Choice]:
        """The best and the runner-up by each objective with known figures."""
        most = math.inf
        for objective in objectives_of(self.service):
            best, runner_up = self._best_two(objective, most if objective.name == "fastest" else math.inf)
            if best is not None and objective.name == "fewest":
                most = max(NODE, FASTEST_WITHIN * best.devices)
            if best is not None:
                swapped = runner_up is not None and tied(objective, best, runner_up)
                yield Choice(objective, best, runner_up, swapped, tuple(changes(objective, best, runner_up)))

    def _best_two(self, objective: RankingObjective, most: float) -> tuple[Deployment | None, Deployment | None]:
        """The best deployment with at most so many devices, and the best on other hardware.

        Configurations whose bound is no better are not simulated; others of the same hardware are simulated together.
        """
        limits = ((self._figures_bound(entry, most), index) for index, entry in enumerate(self.capable))
        ranked = sorted(
            (key, index) for least, index in limits if least.devices <= most and (key := objective.key(least))
        )
        of_hardware: dict[str, list[tuple[Key, int]]] = {}
        for least, index in ranked:
            of_hardware.setdefault(self._name(index), []).append((least, index))
        best: tuple[Key, Deployment] | None = None
        second: tuple[Key, Deployment] | None = None
        for done, (least, index) in enumerate(ranked):
            self.progress(done, len(ranked))
            if second is not None and least >= second[0]:
                break
            name = self._name(index)
            if best is not None and len(of_hardware) > 1 and name == best[1].hardware.name and least >= best[0]:
                continue
            if second is not None and index not in self.deployments:
                soon = (
                    other for bound, other in of_hardware[name] if bound < second[0] and other not in self.deployments
                )
                self._simulate(self.capable[other] for other in islice(soon, SOON))
            deployment = self._setup(index)
            key = None if deployment is None else objective.key(deployment.figures)
            if deployment is None or key is None or deployment.devices > most:
                continue
            entry = (key, deployment)
            other = len(of_hardware) > 1 and best is not None and name == best[1].hardware.name
            if best is None or key < best[0]:
                best, second = entry, second if other else best
            elif not other and (second is None or key < second[0]):
                second = entry
        return best and best[1], second and second[1]

    def _figures_bound(self, candidate: Candidate, most: float) -> Figures:
        """Lower bounds of all figures of a configuration's deployments with at most so many devices."""
        rate, configuration = self.service.rate, candidate.configuration
        replicas = 1 if rate is None else replicas_for(rate, candidate.ceiling)
        ttft, tpot = candidate.best.prefill.quantile, float(candidate.best.step[0])
        if rate is not None and most < math.inf:
            # With the most replicas allowed, the load is least and the bound gives its least times.
            found = loaded(candidate.best, self.service, max(1, int(most // configuration.devices)))
            ttft, tpot = float(found.ttft.min()), float(found.tpot.min())
        price = self._price(configuration)
        return figures_of(configuration, self.service, price, replicas, candidate.best, ttft, tpot)

    def _setup(self, index: int) -> Deployment | None:
        if index not in self.deployments:
            self.deployments[index] = self._deploy(self.capable[index])
        return self.deployments[index]

    def _name(self, index: int) -> str:
        return self.capable[index].configuration.hardware.name

    def _simulation(self, candidate: Candidate) -> Simulated | None:
        """The candidate at expected times; None if the hardware cannot run it."""
        self._simulate([candidate])
        return self._simulated[id(candidate)]

    def _simulate(self, candidates: Iterable[Candidate]) -> None:
        """Simulates candidates together, each once."""
        fresh = [candidate for candidate in candidates if id(candidate) not in self._simulated]
        made = {id(candidate): _simulated_or_none(candidate) for candidate in fresh}
        prefetch_expected(
            analysis for simulated in made.values() if simulated is not None for analysis in simulated.analyses
        )
        for key, simulated in made.items():
            try:
                if simulated is not None:
                    simulated.replica(self.at)
            except RooflineError:
                simulated = None
            self._simulated[key] = simulated

    def _deploy(self, candidate: Candidate) -> Deployment | None:
        """The deployment with the fewest replicas that meet the service; None if no number does."""
        simulated, service = self._simulation(candidate), self.service
        if simulated is None:
            return None
        replica = simulated.replica(self.at)
        targets = targets_of(replica, service)
        replicas = 1 if service.rate is None else targets.min_replicas(service.rate)
        if not replicas:
            return None
        found = loaded(replica, service, replicas)
        slots = targets.slots(found)
        return (
            Deployment(simulated, self.at, replicas, slots, found, self._price(candidate.configuration))
            if slots
            else None
        )

    def nearest(self) -> tuple[tuple[str, ...], Mapping[str, float]]:
        """The binding targets where nothing meets all, and the least feasible value of each."""
        if not self.fitting:
            needs = (entry.counted.memory.total for entry in self.divided)
            return ("memory",), {"memory": float(min(needs))}
        found: dict[str, float] = {}
        for name in ("ttft", "tpot"):
            if getattr(self.service, name) is not None:
                found[name] = self._reached(name, keep_other=True)
        alone = {name: value for name, value in found.items() if math.isfinite(value)}
        if alone:
            return tuple(alone), alone
        return tuple(found), {name: self._reached(name, keep_other=False) for name in found}

    def _reached(self, name: str, keep_other: bool) -> float:
        """The least TTFT or TPOT of all that fits, almost unloaded, with or without the other target."""
        service = self.service
        other = "tpot" if name == "ttft" else "ttft"
        limit = (getattr(service, other) if keep_other else None) or math.inf
        ranked = [(self._bound_time(candidate, name), index) for index, candidate in enumerate(self.fitting)]
        least = math.inf
        for done, (bound, index) in enumerate(sorted(ranked)):
            self.progress(done, len(ranked))
            if bound >= least:
                break
            if self._bound_time(self.fitting[index], other) > limit:
                continue
            simulated = self._simulation(self.fitting[index])
            if simulated is None:
                continue
            times = _unloaded(simulated, self.at)
            met = np.broadcast_to(times[other], times[name].shape) <= limit
            least = min(least, float(np.min(times[name][met], initial=math.inf)))
        return least

    def _bound_time(self, candidate: Candidate, name: str) -> float:
        return candidate.best.prefill.quantile if name == "ttft" else float(candidate.best.step[0])


def _simulated_or_none(candidate: Candidate) -> Simulated | None:
    try:
        return Simulated(candidate)
    except RooflineError:
        return None


def _unloaded(simulated: Simulated, at: At) -> Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """TTFT and TPOT by number of slots at the minimum load, or of a single user."""
    replica, service = simulated.replica(at), simulated.candidate.service
    if service.rate is None:
        found = loaded(replica, service, 1)
    else:
        found = load(replica, MIN_RATE * float(replica.ceilings[-1]), service.quantile)
    return {"ttft": found.ttft, "tpot": found.tpot}


def _fitting(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Candidates that fit in memory; pipelines over nodes only where no single node fits."""
    fitting = [entry for entry in candidates if entry.slots]

    def kind(entry: Candidate) -> tuple[str, ...]:
        formats = entry.configuration.request.formats
        return (entry.configuration.hardware.name, str(formats.get("scheme")), str(formats.get("kv")))

    within = {kind(entry) for entry in fitting if "pipeline" not in entry.configuration.degrees}
    fewest: dict[tuple[str, ...], int] = {}
    for entry in fitting:
        fewest[kind(entry)] = min(fewest.get(kind(entry), entry.configuration.devices), entry.configuration.devices)
    return [
        entry
        for entry in fitting
        if "pipeline" not in entry.configuration.degrees
        or (kind(entry) not in within and entry.configuration.devices == fewest[kind(entry)])
    ]
