"""The search: which configurations meet a service, and the best of them by each aim, few of them simulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing.choices import Choice, changes, tied
from roofline.advisor.sizing.configurations import Configuration, Prospect, Prospects, Simulated, configurations
from roofline.advisor.sizing.deployments import Aim, At, Figures, Key, Setup, aims, figures_of, loaded, promise
from roofline.advisor.sizing.queueing import LEAST, load, replicas_for
from roofline.advisor.sizing.workload import Service
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import expect
from roofline.specs.model import Model

Progress = Callable[[int, int], None]
"""Told how many of how many configurations are dealt with."""

SOON = 24
"""Configurations of a hardware, in the order of their bounds, that are simulated side by side."""

NODE, FASTEST_WITHIN = 8, 2
"""The fastest of a service has at most a node of devices, or twice the fewest: with enough replicas each is idle."""


class Search:
    """All configurations of a service; each is simulated when it is needed, once."""

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
    ) -> None:
        self.service, self.prices, self.at, self.progress = service, prices, at, progress
        self.setups: dict[int, Setup | None] = {}
        self._simulated: dict[int, Simulated | None] = {}
        prospects = Prospects(service, hosted=at != "low")
        made = list(configurations(model, service, hardware, quality, engine))
        self.considered = len(made)
        found = [prospect for entry in made if (prospect := prospects.of(entry)) is not None]
        if not found:
            raise prospects.refused or RooflineError("no configuration of this hardware divides the model")
        self.divided = found
        self.fitting = _enough(found)
        self.capable = [prospect for prospect in self.fitting if prospect.capable]

    @property
    def simulated(self) -> int:
        """How many were simulated."""
        return len(self._simulated)

    @property
    def priced(self) -> set[str]:
        """Hardware with a price."""
        return {
            entry.configuration.hardware.name for entry in self.capable if self._price(entry.configuration) is not None
        }

    def _price(self, configuration: Configuration) -> float | None:
        """USD an hour of a device, or for one user to buy it: as given, else by its dated spec."""
        hardware = configuration.hardware
        for name in (configuration.request.hardware_name, hardware.name):
            if name in self.prices:
                return self.prices[name]
        if hardware.price is None:
            return None
        return hardware.price.buy if self.service.rate is None else hardware.price.rent

    def choices(self) -> Iterator[Choice]:
        """The best and the runner-up of each aim that anything can be ranked by."""
        most = math.inf
        for aim in aims(self.service):
            best, runner_up = self._two(aim, most if aim.name == "fastest" else math.inf)
            if best is not None and aim.name == "fewest":
                most = max(NODE, FASTEST_WITHIN * best.devices)
            if best is not None:
                swapped = runner_up is not None and tied(aim, best, runner_up)
                yield Choice(aim, best, runner_up, swapped, tuple(changes(aim, best, runner_up)))

    def _two(self, aim: Aim, most: float) -> tuple[Setup | None, Setup | None]:
        """The best, and the best on other hardware, of at most so many devices.

        What at the speed of light is no better is not simulated; the rest is side by side with others of its hardware.
        """
        limits = ((self._least(entry, most), index) for index, entry in enumerate(self.capable))
        ranked = sorted((key, index) for least, index in limits if least.devices <= most and (key := aim.key(least)))
        alike: dict[str, list[tuple[Key, int]]] = {}
        for least, index in ranked:
            alike.setdefault(self._name(index), []).append((least, index))
        best: tuple[Key, Setup] | None = None
        second: tuple[Key, Setup] | None = None
        for done, (least, index) in enumerate(ranked):
            self.progress(done, len(ranked))
            if second is not None and least >= second[0]:
                break
            name = self._name(index)
            if best is not None and len(alike) > 1 and name == best[1].hardware.name and least >= best[0]:
                continue
            if second is not None and index not in self.setups:
                soon = (other for bound, other in alike[name] if bound < second[0] and other not in self.setups)
                self._simulate(self.capable[other] for other in islice(soon, SOON))
            setup = self._setup(index)
            key = None if setup is None else aim.key(setup.figures)
            if setup is None or key is None or setup.devices > most:
                continue
            entry = (key, setup)
            other = len(alike) > 1 and best is not None and name == best[1].hardware.name
            if best is None or key < best[0]:
                best, second = entry, second if other else best
            elif not other and (second is None or key < second[0]):
                second = entry
        return best and best[1], second and second[1]

    def _least(self, prospect: Prospect, most: float) -> Figures:
        """No setup of this configuration, of at most so many devices, has less of anything."""
        rate, configuration = self.service.rate, prospect.configuration
        replicas = 1 if rate is None else replicas_for(rate, prospect.ceiling)
        ttft, tpot = prospect.best.prefill.quantile, float(prospect.best.step[0])
        if rate is not None and most < math.inf:
            # No fewer requests than this come to a replica, and at the speed of light they meet this.
            found = loaded(prospect.best, self.service, max(1, int(most // configuration.devices)))
            ttft, tpot = float(found.ttft.min()), float(found.tpot.min())
        price = self._price(configuration)
        return figures_of(configuration, self.service, price, replicas, prospect.best, ttft, tpot)

    def _setup(self, index: int) -> Setup | None:
        if index not in self.setups:
            self.setups[index] = self._sized(self.capable[index])
        return self.setups[index]

    def _name(self, index: int) -> str:
        return self.capable[index].configuration.hardware.name

    def _simulation(self, prospect: Prospect) -> Simulated | None:
        """The prospect at expected times; None where the hardware cannot run it."""
        self._simulate([prospect])
        return self._simulated[id(prospect)]

    def _simulate(self, prospects: Iterable[Prospect]) -> None:
        """Simulates prospects side by side, each once."""
        fresh = [prospect for prospect in prospects if id(prospect) not in self._simulated]
        made = {id(prospect): _made(prospect) for prospect in fresh}
        expect(analysis for simulated in made.values() if simulated is not None for analysis in simulated.analyses)
        for key, simulated in made.items():
            try:
                if simulated is not None:
                    simulated.replica(self.at)
            except RooflineError:
                simulated = None
            self._simulated[key] = simulated

    def _sized(self, prospect: Prospect) -> Setup | None:
        """The fewest replicas that meet the service; None where no number does."""
        simulated, service = self._simulation(prospect), self.service
        if simulated is None:
            return None
        replica = simulated.replica(self.at)
        promised = promise(replica, service)
        replicas = 1 if service.rate is None else promised.fewest(service.rate)
        if not replicas:
            return None
        found = loaded(replica, service, replicas)
        slots = promised.slots(found)
        return Setup(simulated, self.at, replicas, slots, found, self._price(prospect.configuration)) if slots else None

    def nearest(self) -> tuple[tuple[str, ...], Mapping[str, float]]:
        """The targets that bind where nothing meets all, and the least of each that would do."""
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
        """The least TTFT or TPOT of anything that fits, at next to no load; within the other target or not."""
        service = self.service
        other = "tpot" if name == "ttft" else "ttft"
        limit = (getattr(service, other) if keep_other else None) or math.inf
        ranked = [(self._light(prospect, name), index) for index, prospect in enumerate(self.fitting)]
        least = math.inf
        for done, (bound, index) in enumerate(sorted(ranked)):
            self.progress(done, len(ranked))
            if bound >= least:
                break
            if self._light(self.fitting[index], other) > limit:
                continue
            simulated = self._simulation(self.fitting[index])
            if simulated is None:
                continue
            times = _unloaded(simulated, self.at)
            met = np.broadcast_to(times[other], times[name].shape) <= limit
            least = min(least, float(np.min(times[name][met], initial=math.inf)))
        return least

    def _light(self, prospect: Prospect, name: str) -> float:
        return prospect.best.prefill.quantile if name == "ttft" else float(prospect.best.step[0])


def _made(prospect: Prospect) -> Simulated | None:
    try:
        return Simulated(prospect)
    except RooflineError:
        return None


def _unloaded(simulated: Simulated, at: At) -> Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """TTFT and TPOT by slots at the least load that counts, or of a single user."""
    replica, service = simulated.replica(at), simulated.prospect.service
    if service.rate is None:
        found = loaded(replica, service, 1)
    else:
        found = load(replica, LEAST * float(replica.ceilings[-1]), service.quantile)
    return {"ttft": found.ttft, "tpot": found.tpot}


def _enough(prospects: Iterable[Prospect]) -> list[Prospect]:
    """Those that fit in memory; pipelines over nodes only where no single node does."""
    fitting = [entry for entry in prospects if entry.slots]

    def kind(entry: Prospect) -> tuple[str, ...]:
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
