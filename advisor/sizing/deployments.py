"""Deployments: configurations under load, the objectives that rank them, and what would change a choice."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

from msgspec import Struct

from roofline.advisor.sizing.bounds import Candidate
from roofline.advisor.sizing.configurations import Configuration
from roofline.advisor.sizing.workload import Service
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.energy import batch_energy, static_power, tdp_energy
from roofline.serving.curve import outcomes_at
from roofline.serving.outcome import Outcome
from roofline.specs.hardware import Hardware
from roofline.timing.intervals import Estimate
from roofline.whatif.command_line import serve_command
from roofline.whatif.odds import Timed, gain
from roofline.whatif.solve.load import largest, missed, saturated_at


def modelled_energy_per_token(
    configuration: Configuration, service: Service, outcome: Outcome, batch: int
) -> float | None:
    """Modelled joules per token of a replica that decodes `batch` sequences; None without energy figures.

    Devices of a service are always on. Deployments are ranked by energy at TDP only, the upper bound: comparing a model
    of one device with the upper bound of another would favour the better documented one, and ranking modelled energies
    alone would exclude most hardware.

    At a rate L, with prefill and decode of E_p and E_d J per request on top of static power, a replica draws

        W = static power + L (E_p + E_d)
    """
    hardware, devices, rate = configuration.hardware, configuration.devices, outcome.requests_per_second
    alone, together = (analyze(configuration.scenario.at(batch=count)) for count in (1, batch))
    first, rest = batch_energy(alone, "mid"), batch_energy(together, "mid")
    if first is None or rest is None or not service.steps:
        return None
    decode = (rest.decode.total - rest.decode.static) / batch * service.steps / (together.scenario.generate - 1)
    token = 1 / (rate * service.answers.mean)
    joules = static_power([hardware]) * devices * token
    joules += (first.prefill.total - first.prefill.static + decode) / service.answers.mean
    most = tdp_energy([hardware], devices, token)
    return float(joules if most is None else min(joules, most))


At = Literal["mid", "high"]


class Figures(Struct, frozen=True):
    """The figures by which configurations are ranked; times at the reading sized for, None if unknown.

    Of a model that only encodes, `tpot` is TTFT. `power` is the TDP of all devices (W), `cost` their USD per hour or to
    buy, `energy` joules per token at TDP.
    """

    devices: int
    power: float
    cost: float | None
    energy: float | None
    ttft: float
    tpot: float

    @property
    def usd_seconds(self) -> float | None:
        """The cost times TPOT: one over tokens/s for a USD."""
        return self.cost and self.cost * self.tpot


class Deployment(Struct, frozen=True, dict=True):
    """A configuration that meets the service, under load.

    `replicas` share the load; `outcome` is the steady state of the busiest of them. `price` is USD per device.
    """

    candidate: Candidate
    at: At
    replicas: int
    outcome: Outcome
    price: float | None

    @property
    def configuration(self) -> Configuration:
        return self.candidate.configuration

    @property
    def service(self) -> Service:
        return self.candidate.service

    @property
    def hardware(self) -> Hardware:
        return self.configuration.hardware

    @property
    def devices(self) -> int:
        return self.replicas * self.candidate.devices

    @cached_property
    def max_load(self) -> float:
        """The load that one replica serves within the targets: requests/s or requests in flight."""
        service, met = self.service, self.service.share(self.replicas)
        if service.alone:
            return 1.0
        found, _, _ = largest(self.candidate.replica, service.load(1), service.targets(self.at), service.quantile, met)
        return max(found, met)

    @property
    def ttft(self) -> Estimate:
        """TTFT (s) at the service's quantile."""
        found: Estimate = getattr(self.outcome.ttft, self.service.quantile)
        return found

    @property
    def tpot(self) -> Estimate:
        """TPOT (s) at the service's quantile."""
        found: Estimate = getattr(self.outcome.tpot, self.service.quantile)
        return found

    @property
    def utilisation(self) -> float:
        assert self.outcome.saturated_at is not None
        return self.outcome.requests_per_second / self.outcome.saturated_at

    @property
    def figures(self) -> Figures:
        rate = self.outcome.requests_per_second * self.replicas
        latencies = (getattr(times, self.at) for times in (self.ttft, self.tpot if self.service.steps else self.ttft))
        return figures_of(self.candidate, self.price, self.replicas, rate, *latencies)

    @cached_property
    def modelled_energy(self) -> float | None:
        """Modelled joules per token under load; None without energy figures in the hardware's spec."""
        return modelled_energy_per_token(self.configuration, self.service, self.outcome, self.batch)

    @property
    def batch(self) -> int:
        """The sequences that run on average, rounded."""
        return max(1, round(self.outcome.running))

    @property
    def static(self) -> Analysis:
        """The analysis of a static batch of that size."""
        return analyze(self.configuration.scenario.at(batch=self.batch))

    @property
    def command(self) -> str:
        """The `roofline serve` command that reproduces the outcome of a replica."""
        scenario = self.configuration.scenario
        if self.own_price is not None and not self.service.alone:
            scenario = scenario.with_(price=self.own_price)
        return serve_command(scenario, self.service.load(self.replicas))

    @property
    def own_price(self) -> float | None:
        """The price where it is not that of the hardware's spec."""
        known = self.hardware.price
        return None if known is not None and self.price in (known.rent, known.buy) else self.price


TRIED_REPLICAS = 8
"""Numbers of replicas that are tried one after the other, from the fewest that the bounds allow."""

Attempt = Deployment | int
"""A deployment that meets its service, or the replicas that are tried next."""


def attempts(candidate: Candidate, at: At, price: float | None, replicas: int | None = None) -> Iterator[Attempt]:
    """The deployment with some replicas, or the fewest, that meet the service; nothing if no number does.

    Before each further number of replicas that is tried it yields that number: others may be better than any with so
    many. Raises RooflineError where the hardware cannot run it.
    """
    service, replica = candidate.service, candidate.replica
    most = candidate.expected.most
    if not most:
        return
    load, targets = service.load(1), service.targets(at)
    fewest = replicas or replicas_for(service.amount, most)
    varied = replicas is None and not service.alone
    beyond = fewest + (TRIED_REPLICAS if varied else 1)
    stable = math.inf if service.rate is None else saturated_at(replica, load)
    for count in range(fewest, beyond + varied):
        if count > fewest:
            yield count
        if count == beyond:
            limit, _, _ = largest(replica, load, targets, service.quantile)
            if not limit:
                return
            count = replicas_for(service.amount, limit)
        if (share := service.share(count)) >= stable:  # known without the steady state, which takes the most time
            continue
        (outcome,) = outcomes_at(replica, load, [share])
        if not missed(outcome, load, targets, service.quantile):
            yield Deployment(candidate, at, count, outcome, price)
            return


def replicas_for(amount: float, most: float) -> int:
    """The fewest replicas that share a load if one takes `most`."""
    return max(1, math.ceil(amount / most * (1 - 1e-12)))


def figures_of(
    candidate: Candidate, price: float | None, replicas: int, rate: float, ttft: float, tpot: float
) -> Figures:
    """The figures of replicas that serve `rate` requests/s, at a price (USD per device) and with given times (s)."""
    devices, hardware = candidate.devices * replicas, candidate.hardware
    cost = None if price is None else price * devices
    power = math.inf if hardware.tdp is None else hardware.tdp * devices
    energy = tdp_energy([hardware], devices, 1 / (rate * candidate.service.answers.mean))
    return Figures(devices, power, cost, energy, ttft, tpot)


Key = tuple[float, ...]


class RankingObjective(Struct, frozen=True):
    """An objective that ranks deployments by some `figures`, the first of which it is about.

    `timed` is the time whose interval makes it uncertain, None for none; `rated` whether it scales with the replicas.
    """

    name: str
    meaning: str
    figures: tuple[str, ...]
    timed: Timed | None
    rated: bool = True

    def key(self, found: Figures) -> Key | None:
        """What is the smaller the better; None where the first figure is unknown."""
        first, *others = (getattr(found, name) for name in self.figures)
        return None if first is None else (first, *others)


SERVICE_OBJECTIVES = (
    RankingObjective("cheapest", "USD an hour", ("cost", "devices", "power", "tpot"), "total"),
    RankingObjective("fewest", "devices, then W", ("devices", "power", "tpot"), "total"),
    RankingObjective("fastest", "TPOT, then TTFT", ("tpot", "ttft"), "tpot", rated=False),
    RankingObjective("efficient", "J/token at most", ("energy", "devices", "tpot"), "total"),
)
USER_OBJECTIVES = (
    RankingObjective("best value", "tokens/s for a USD", ("usd_seconds",), "tpot", rated=False),
    RankingObjective("cheapest", "USD to buy", ("cost", "tpot"), None, rated=False),
    RankingObjective("fastest", "TPOT, then TTFT", ("tpot", "ttft"), "tpot", rated=False),
    RankingObjective("efficient", "J/token at most", ("energy", "tpot"), "total", rated=False),
)


class Change(Struct, frozen=True):
    """A threshold beyond which a choice changes: `what` is load_above, load_below, price, price_ratio, tpot or ttft.

    Beyond the loads (requests/s, or in flight) the runner-up is better. `price` is the runner-up's device price below
    which it is better, or for `fewest` cheaper; `price_ratio` is the same over the price of the chosen device where
    that is unknown. Prices need different hardware. Below `tpot` and `ttft` (s) the choice needs more replicas, or for
    one user fails.
    """

    what: str
    value: float


NOTABLE_ENERGY_RATIO = 1.01
"""Ratio of modelled energies from which the runner-up's lower one is reported."""


class Choice(Struct, frozen=True, dict=True):
    """The best deployment by an objective, the runner-up (on other hardware if any), and what would change it."""

    objective: RankingObjective
    best: Deployment
    runner_up: Deployment | None

    @cached_property
    def tied(self) -> bool:
        """Whether the interval of the gain of one over the other includes 1: the times could swap the two."""
        objective, best, runner_up = self.objective, self.best, self.runner_up
        if runner_up is None or objective.timed is None:
            return False
        faster = gain(runner_up.static, best.static, objective.timed if best.service.steps else "total")
        width = math.sqrt(faster.high / faster.mid)
        if not _rated(objective, best):
            keys = [objective.key(deployment.figures) for deployment in (best, runner_up)]
            assert keys[0] is not None
            assert keys[1] is not None
            return keys[1][0] / keys[0][0] < width**2
        amount = best.service.amount
        worst = _weight(objective, best) * replicas_for(amount, best.max_load / width)
        return _weight(objective, runner_up) * replicas_for(amount, runner_up.max_load * width) <= worst

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        """What would change the choice."""
        return tuple(_changes(self.objective, self.best, self.runner_up))

    @property
    def differs(self) -> tuple[str, ...]:
        """The differences of the two: hardware, parallelism, formats, devices."""
        if self.runner_up is None:
            return ()
        one, other = self.best.configuration, self.runner_up.configuration
        differ = {
            "hardware": one.scenario.hardware_name != other.scenario.hardware_name,
            "parallelism": one.split != other.split,
            "formats": one.formats != other.formats,
            "devices": self.best.devices != self.runner_up.devices,
        }
        return tuple(name for name, unlike in differ.items() if unlike)

    @property
    def runner_up_has_lower_modelled_energy(self) -> bool:
        if self.objective.name != "efficient" or self.runner_up is None:
            return False
        first, second = self.best.modelled_energy, self.runner_up.modelled_energy
        return first is not None and second is not None and second * NOTABLE_ENERGY_RATIO < first


def _weight(objective: RankingObjective, deployment: Deployment) -> float:
    key = objective.key(deployment.figures)
    assert key is not None
    return key[0] / deployment.replicas


def _rated(objective: RankingObjective, deployment: Deployment) -> bool:
    """Whether an objective scales with the replicas: energy of a closed loop does not, since they speed it up."""
    service = deployment.service
    return objective.rated and not service.alone and (service.rate is not None or objective.name != "efficient")


def _changes(objective: RankingObjective, best: Deployment, runner_up: Deployment | None) -> Iterator[Change]:
    """Thresholds that would change the choice of `best`: loads and prices of a runner-up, and targets."""
    if runner_up is not None and _rated(objective, best):
        above, below = _crossings(objective, best, runner_up, best.service.amount)
        if above is not None:
            yield Change("load_above", above)
        if below is not None:
            yield Change("load_below", below)
    if runner_up is not None and runner_up.hardware.name != best.hardware.name:
        first, second = best.figures, runner_up.figures
        fewest = objective.name == "fewest"
        if first.cost is not None and (objective.name == "cheapest" or (fewest and second.cost is None)):
            yield Change("price", first.cost / second.devices)
        elif objective.name == "best value" and first.cost is not None:
            yield Change("price", first.cost * first.tpot / second.tpot / second.devices)
        elif fewest and first.cost is None and second.cost is None:
            yield Change("price_ratio", first.devices / second.devices)
    yield Change("tpot", getattr(best.tpot, best.at))
    yield Change("ttft", getattr(best.ttft, best.at))


REPLICAS_AHEAD = 64
"""Replicas beyond the present number that are searched for a crossing."""


def _crossings(
    objective: RankingObjective, best: Deployment, runner_up: Deployment, amount: float
) -> tuple[float | None, float | None]:
    one, other = _weight(objective, best), _weight(objective, runner_up)

    def better(at: float) -> bool:
        return other * replicas_for(at, runner_up.max_load) < one * replicas_for(at, best.max_load) * (1 - 1e-12)

    up = (best.max_load * count for count in range(best.replicas, best.replicas + REPLICAS_AHEAD))
    down = (runner_up.max_load * count for count in range(min(runner_up.replicas, REPLICAS_AHEAD), 0, -1))
    above = next((edge for edge in up if edge >= amount and better(edge * (1 + 1e-9))), None)
    below = next((edge for edge in down if edge < amount and better(edge)), None)
    return above, below
