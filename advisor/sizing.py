"""Sizing: which hardware, how many devices, how divided, in which formats and with how many sequences at once.

>>> from advisor.sizing import size
>>> from advisor.workload import Service
>>> from roofline import load_model
>>> service = Service(rate=5, prompt=2000, generate=300, ttft=2, tpot=0.05)
>>> found = size(load_model("llama-3.1-8b"), service, ["l4", "h100-sxm"], prices={"l4": 0.8, "h100-sxm": 3.0})
>>> found.choice("cheapest").best.hardware.name
'h100-sxm'

Every configuration is first held against the speed of light, which no time is below (`advisor.configurations`), and
simulated at expected times only while it could still be among the best. A replica under load is `advisor.queueing`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from advisor.configurations import Configuration, Prospect, Prospects, Simulated, configurations, first_step
from advisor.energy import at_most, modelled
from advisor.goal import Quality
from advisor.queueing import LEAST, Replica, largest_rate, load, slots
from advisor.workload import Service
from roofline.analysis import analyze
from roofline.command import command_line
from roofline.errors import RooflineError, UnknownNameError
from roofline.gain import Timed, gain
from roofline.hardware import Hardware, load_hardware
from roofline.model import Model
from roofline.timing import Estimate

Progress = Callable[[int, int], None]
"""Told how many of how many configurations are dealt with."""

At = Literal["low", "mid", "high"]

CERTAIN = 0.97
"""What a step at the first context is surely below, times a mean one: kernels are not quite monotone in the context."""


@dataclass(frozen=True)
class Figures:
    """What configurations are ranked by; times at the reading that is sized for, None is unknown.

    `power` is that of all devices, `cost` their USD an hour, or to buy, `energy` joules a token at most.
    """

    devices: int
    power: float
    cost: float | None
    energy: float | None
    ttft: float
    tpot: float


@dataclass(frozen=True)
class Setup:
    """A configuration that meets the service, at its load.

    `replicas` share the rate; `most` is the requests a second that one could serve within the targets (infinite for a
    single user). `slots` is the largest number of sequences at once, `batch` how many decode together on average.
    `ttft` and `tpot` are those of the promised share of requests, waits included. Where the pessimistic end cannot
    carry the rate it is infinite.
    """

    simulated: Simulated
    at: At
    replicas: int
    most: float
    slots: int
    batch: float
    ttft: Estimate
    tpot: Estimate
    price: float | None

    @property
    def configuration(self) -> Configuration:
        """What a replica is made of."""
        return self.simulated.prospect.configuration

    @property
    def service(self) -> Service:
        """What is served."""
        return self.simulated.prospect.service

    @property
    def hardware(self) -> Hardware:
        """Its devices."""
        return self.configuration.hardware

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.configuration.devices

    @property
    def utilisation(self) -> float | None:
        """The rate over that with which a replica of so many slots would no longer keep up; None for one user."""
        if self.service.rate is None:
            return None
        ceiling = float(self.simulated.replica(self.at).ceilings[self.slots - 1])
        return self.service.rate / self.replicas / ceiling

    @property
    def figures(self) -> Figures:
        """What it is ranked by."""
        return _figures(
            self.configuration,
            self.service,
            self.price,
            self.replicas,
            self.simulated.replica(self.at),
            getattr(self.ttft, self.at),
            getattr(self.tpot, self.at),
        )

    @cached_property
    def modelled_energy(self) -> float | None:
        """Joules a token at its load, as modelled; None where the hardware's spec has no energy figures."""
        return modelled(self.simulated, self.at, self.replicas, self.command_batch)

    @cached_property
    def command_batch(self) -> int:
        """The average number of sequences, as a whole number."""
        return max(1, round(self.batch))

    @cached_property
    def step(self) -> Estimate:
        """A decode step at that batch, with no prefill between: the TPOT of `command`."""
        found = self.simulated.alone(self.command_batch).expected.tpot
        assert found is not None
        return found

    @cached_property
    def prefill(self) -> Estimate:
        """The prefill of one prompt of mean length: the TTFT of `prefill_command`."""
        return analyze(self.configuration.prefill.scenario()).expected.ttft

    @property
    def command(self) -> str:
        """The command that reproduces `step`."""
        return command_line(self.configuration.request.with_options(batch=self.command_batch))

    @property
    def prefill_command(self) -> str:
        """The command that reproduces `prefill`."""
        return command_line(self.configuration.prefill)


def _figures(
    configuration: Configuration,
    service: Service,
    price: float | None,
    replicas: int,
    replica: Replica,
    ttft: float,
    tpot: float,
) -> Figures:
    devices, hardware = configuration.devices * replicas, configuration.hardware
    cost = None if price is None else price * devices
    power = math.inf if hardware.tdp is None else hardware.tdp * devices
    return Figures(devices, power, cost, at_most(hardware, devices, service, replica), ttft, tpot)


Key = tuple[float, ...]


@dataclass(frozen=True)
class Aim:
    """What a choice is the best of: less of `key` is better, None where it cannot be told.

    `timed` is the time that its uncertainty is of, None where it has none. Where it is `rated` it goes with the number
    of replicas.
    """

    name: str
    meaning: str
    key: Callable[[Figures], Key | None]
    timed: Timed | None
    rated: bool = True


def _known(value: float | None, *rest: float) -> Key | None:
    return None if value is None else (value, *rest)


SERVICE_AIMS = (
    Aim("cheapest", "USD an hour", lambda f: _known(f.cost, f.devices, f.power, f.tpot), "total"),
    Aim("fewest", "devices, then W", lambda f: (f.devices, f.power, f.tpot), "total"),
    Aim("fastest", "TPOT, then TTFT", lambda f: (f.tpot, f.ttft), "tpot", rated=False),
    Aim("efficient", "J/token at most", lambda f: _known(f.energy, f.devices, f.tpot), "total"),
)
USER_AIMS = (
    Aim(
        "best value",
        "tokens/s for a USD",
        lambda f: _known(None if f.cost is None else f.cost * f.tpot),
        "tpot",
        rated=False,
    ),
    Aim("cheapest", "USD to buy", lambda f: _known(f.cost, f.tpot), None, rated=False),
    Aim("fastest", "TPOT, then TTFT", lambda f: (f.tpot, f.ttft), "tpot", rated=False),
    Aim("efficient", "J/token at most", lambda f: _known(f.energy, f.tpot), "total", rated=False),
)


NODE, FASTEST_WITHIN = 8, 2
"""The fastest of a service has at most a node of devices, or twice the fewest: with enough replicas each is idle."""


def aims(service: Service) -> tuple[Aim, ...]:
    """What is chosen for a service, or for one user."""
    return USER_AIMS if service.rate is None else SERVICE_AIMS


@dataclass(frozen=True)
class Change:
    """What would change a choice: `what` is rate_above, rate_below, price, price_ratio, tpot or ttft.

    Rates in requests a second: beyond it the runner-up is better. `price` is that of a device of the runner-up below
    which it is, or of the fewest devices costs less; `price_ratio` the same over the price of the chosen device, where
    that is unknown. `tpot` and `ttft` are targets in seconds below which the chosen needs more replicas, or for one
    user fails.
    """

    what: str
    value: float


@dataclass(frozen=True)
class Choice:
    """The best of an aim, the runner-up (on other hardware, where there is any), and what would change the choice.

    `tied` is whether what is uncertain about the times could swap the two.
    """

    aim: Aim
    best: Setup
    runner_up: Setup | None
    tied: bool
    changes: tuple[Change, ...]

    @property
    def otherwise_modelled(self) -> bool:
        """Whether the runner-up of the most efficient draws less as modelled: upper ends may be in another order."""
        if self.aim.name != "efficient" or self.runner_up is None:
            return False
        first, second = self.best.modelled_energy, self.runner_up.modelled_energy
        return first is not None and second is not None and second < first


@dataclass(frozen=True)
class Sizing:
    """The answer: choices by aim, or why there is none.

    `binding` are the targets that bind (ttft, tpot or memory); `nearest` the least of each, in seconds or bytes of a
    device, with which something does, the others as they are (both times, where neither alone would do).
    `considered` counts configurations, `capable` those that the speed of light allows, `simulated` those simulated.
    """

    model: Model
    service: Service
    quality: Quality
    at: At
    choices: tuple[Choice, ...]
    binding: tuple[str, ...]
    nearest: Mapping[str, float]
    considered: int
    capable: int
    simulated: int
    unpriced: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        """Whether anything meets the service."""
        return bool(self.choices)

    def choice(self, name: str) -> Choice:
        """The choice of an aim by name; raises RooflineError where there is none."""
        for found in self.choices:
            if found.aim.name == name:
                return found
        raise UnknownNameError("choice", name, [found.aim.name for found in self.choices])


def size(
    model: Model,
    service: Service,
    hardware: Sequence[str] | None = None,
    quality: Quality = Quality.CALIBRATED,
    prices: Mapping[str, float] | None = None,
    engine: str | None = None,
    at: At = "mid",
    progress: Progress = lambda _done, _all: None,
) -> Sizing:
    """The configurations that meet a service: the cheapest, that of fewest devices, the fastest, the most efficient.

    `hardware` are names; None is all that is known, for a single user what stands on a desk. `prices` are USD an hour
    of a device (to buy, for a single user) beside those of the specs. Targets have to hold `at` expected low, mid or
    high. Raises RooflineError.
    """
    prices = dict(prices or {})
    _check(model, service, hardware, prices)
    search = _Search(model, service, hardware, quality, prices, engine, at, progress)
    choices = tuple(search.choices())
    binding, nearest = ((), {}) if choices else search.nearest()
    return Sizing(
        model,
        service,
        quality,
        at,
        choices,
        binding,
        nearest,
        search.considered,
        len(search.capable),
        len(search.setups),
        tuple(sorted({prospect.configuration.hardware.name for prospect in search.capable} - search.priced)),
    )


def _check(model: Model, service: Service, hardware: Sequence[str] | None, prices: Mapping[str, float]) -> None:
    if model.task != "generate":
        raise RooflineError(f"{model.name} only encodes: a service is sized for models that generate")
    if hardware is not None and not hardware:
        raise RooflineError("no hardware to choose from")
    longest = service.prompts.mean + service.answers.mean
    if model.max_context is not None and longest > model.max_context and model.tower_kind != "encoder":
        raise RooflineError(
            f"prompt and answer of {longest:.0f} tokens are longer than the maximum context of {model.name},"
            f" {model.max_context}"
        )
    for name, price in prices.items():
        load_hardware(name)
        if hardware is not None and name not in hardware:
            raise RooflineError(f"a price of {name} is given, which is not among the hardware to choose from")
        if not (price > 0 and math.isfinite(price)):
            raise RooflineError(f"the price of {name} must be above 0, got {price:g}")


class _Search:
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
                tied = runner_up is not None and _tied(aim, best, runner_up)
                yield Choice(aim, best, runner_up, tied, tuple(_changes(aim, best, runner_up)))

    def _two(self, aim: Aim, most: float) -> tuple[Setup | None, Setup | None]:
        """The best, and the best on other hardware, of at most so many devices.

        What at the speed of light is no better is not simulated.
        """
        bounds = ((self._least(entry, most), index) for index, entry in enumerate(self.capable))
        ranked = sorted((key, index) for least, index in bounds if least.devices <= most and (key := aim.key(least)))
        several = len({self.capable[index].configuration.hardware.name for _, index in ranked}) > 1
        best: tuple[Key, Setup] | None = None
        second: tuple[Key, Setup] | None = None
        for done, (least, index) in enumerate(ranked):
            self.progress(done, len(ranked))
            if second is not None and least >= second[0]:
                break
            name = self.capable[index].configuration.hardware.name
            if best is not None and several and name == best[1].hardware.name and least >= best[0]:
                continue
            worst = second[0] if second is not None else None
            if (
                not aim.rated
                and self.service.rate is not None
                and worst is not None
                and not self._faster(index, worst, most)
            ):
                continue
            setup = self._setup(index)
            key = None if setup is None else aim.key(setup.figures)
            if setup is None or key is None or setup.devices > most:
                continue
            entry = (key, setup)
            other = several and best is not None and name == best[1].hardware.name
            if best is None or key < best[0]:
                best, second = entry, second if other else best
            elif not other and (second is None or key < second[0]):
                second = entry
        return best and best[1], second and second[1]

    def _least(self, prospect: Prospect, most: float) -> Figures:
        """No setup of this configuration, of at most so many devices, has less of anything."""
        rate, configuration = self.service.rate, prospect.configuration
        replicas = 1 if rate is None else _replicas(rate, prospect.ceiling)
        ttft, tpot = prospect.best.prefill.quantile, float(prospect.best.step[0])
        if rate is not None and most < math.inf:
            # No fewer requests than this come to a replica, and at the speed of light they meet this.
            found = load(prospect.best, rate / max(1, most // configuration.devices), self.service.quantile)
            ttft, tpot = float(found.ttft.min()), float(found.tpot.min())
        price = self._price(configuration)
        return _figures(configuration, self.service, price, replicas, prospect.best, ttft, tpot)

    def _setup(self, index: int) -> Setup | None:
        if index not in self.setups:
            self.setups[index] = self._sized(self.capable[index])
        return self.setups[index]

    def _faster(self, index: int, key: Key, most: float) -> bool:
        """Whether it may come before the key: no step is faster than the first of a single sequence, simulated."""
        if index in self.setups:
            return True
        prospect, rate = self.capable[index], self.service.rate
        try:
            first = first_step(prospect, self.at) * CERTAIN
        except RooflineError:
            return False
        if rate is None or most == math.inf:
            return first < key[0]
        replica = replace(prospect.best, step=np.maximum(prospect.best.step, first))
        share = rate / max(1, most // prospect.configuration.devices)
        return float(load(replica, share, self.service.quantile).tpot.min()) < key[0]

    def _simulation(self, prospect: Prospect) -> Simulated | None:
        """The prospect at expected times; None where the hardware cannot run it."""
        if id(prospect) not in self._simulated:
            try:
                self._simulated[id(prospect)] = Simulated(prospect)
            except RooflineError:
                self._simulated[id(prospect)] = None
        return self._simulated[id(prospect)]

    def _sized(self, prospect: Prospect) -> Setup | None:
        """The fewest replicas that meet the service; None where no number does."""
        simulated, service = self._simulation(prospect), self.service
        if simulated is None:
            return None
        price = self._price(prospect.configuration)
        ttft, tpot = service.ttft or math.inf, service.tpot or math.inf
        replica = simulated.replica(self.at)
        readings = [simulated.replica(reading) for reading in Estimate._fields]
        if service.rate is None:
            first = Estimate(*(entry.prefill.quantile for entry in readings))
            each = Estimate(*(float(entry.step[0]) for entry in readings))
            if getattr(first, self.at) > ttft or getattr(each, self.at) > tpot:
                return None
            return Setup(simulated, self.at, 1, math.inf, 1, 1.0, first, each, price)
        most = largest_rate(replica, ttft, tpot, service.quantile)
        if not most:
            return None
        replicas = _replicas(service.rate, most)
        share = service.rate / replicas
        most_slots = slots(replica, share, ttft, tpot, service.quantile)
        if not most_slots:
            return None
        loads = [load(entry, share, service.quantile) for entry in readings]
        at = most_slots - 1
        return Setup(
            simulated,
            self.at,
            replicas,
            most,
            most_slots,
            float(load(replica, share).batch[at]),
            Estimate(*(float(found.ttft[at]) for found in loads)),
            Estimate(*(float(found.tpot[at]) for found in loads)),
            price,
        )

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


def _unloaded(simulated: Simulated, at: At) -> Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """TTFT and TPOT by slots at the least load that counts, or of a single user."""
    replica, service = simulated.replica(at), simulated.prospect.service
    if service.rate is None:
        return {"ttft": np.array([replica.prefill.quantile]), "tpot": replica.step[:1]}
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


def _replicas(rate: float, most: float) -> int:
    return max(1, math.ceil(rate / most * (1 - 1e-12))) if most > 0 else 10**12


def _weight(aim: Aim, setup: Setup) -> float:
    """What one replica adds to the aim."""
    key = aim.key(setup.figures)
    assert key is not None
    return key[0] / setup.replicas


def _tied(aim: Aim, best: Setup, runner_up: Setup) -> bool:
    """Whether the interval of the gain of one over the other holds both orders."""
    if aim.timed is None:
        return False
    first, second = (setup.simulated.alone(setup.command_batch) for setup in (best, runner_up))
    faster = gain(second, first, aim.timed)
    width = math.sqrt(faster.high / faster.mid)
    rate = best.service.rate
    if not aim.rated or rate is None:
        keys = [aim.key(setup.figures) for setup in (best, runner_up)]
        assert keys[0] is not None
        assert keys[1] is not None
        return keys[1][0] / keys[0][0] < width**2
    worst = _weight(aim, best) * _replicas(rate, best.most / width)
    return _weight(aim, runner_up) * _replicas(rate, runner_up.most * width) <= worst


def _changes(aim: Aim, best: Setup, runner_up: Setup | None) -> Iterator[Change]:
    rate = best.service.rate
    if runner_up is not None and aim.rated and rate is not None:
        above, below = _crossings(aim, best, runner_up, rate)
        if above is not None:
            yield Change("rate_above", above)
        if below is not None:
            yield Change("rate_below", below)
    if runner_up is not None:
        first, second = best.figures, runner_up.figures
        if aim.name == "cheapest" and first.cost is not None:
            yield Change("price", first.cost / second.devices)
        elif aim.name == "best value" and first.cost is not None:
            yield Change("price", first.cost * first.tpot / second.tpot / second.devices)
        elif aim.name == "fewest" and first.cost is None and second.cost is None:
            yield Change("price_ratio", first.devices / second.devices)
        elif aim.name == "fewest" and first.cost is not None and second.cost is None:
            yield Change("price", first.cost / second.devices)
    yield Change("tpot", getattr(best.tpot, best.at))
    yield Change("ttft", getattr(best.ttft, best.at))


REPLICAS_AHEAD = 64
"""Numbers of replicas beyond the present ones among which a crossing is looked for."""


def _crossings(aim: Aim, best: Setup, runner_up: Setup, rate: float) -> tuple[float | None, float | None]:
    """The nearest rates above and below at which the runner-up takes less: where a replica comes in or goes."""
    one, other = _weight(aim, best), _weight(aim, runner_up)

    def better(at: float) -> bool:
        return other * _replicas(at, runner_up.most) < one * _replicas(at, best.most) * (1 - 1e-12)

    up = (best.most * count for count in range(best.replicas, best.replicas + REPLICAS_AHEAD))
    down = (runner_up.most * count for count in range(min(runner_up.replicas, REPLICAS_AHEAD), 0, -1))
    above = next((edge for edge in up if edge >= rate and better(edge * (1 + 1e-9))), None)
    below = next((edge for edge in down if edge < rate and better(edge)), None)
    return above, below
