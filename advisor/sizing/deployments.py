"""Deployments: configurations under load, and the objectives that rank them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct

from roofline.advisor.sizing.configurations import Configuration, Simulated
from roofline.advisor.sizing.energy import modelled_energy_per_token, tdp_energy_per_token
from roofline.advisor.sizing.queueing import Load, Replica, Targets, load
from roofline.advisor.sizing.workload import Service
from roofline.scenario.analysis import analyze
from roofline.specs.hardware import Hardware
from roofline.timing.intervals import Estimate
from roofline.whatif.command_line import command_line
from roofline.whatif.gain import Timed

At = Literal["low", "mid", "high"]


class Figures(Struct, frozen=True):
    """The figures by which configurations are ranked; times at the reading sized for, None if unknown.

    `power` is the TDP of all devices (W), `cost` their USD per hour or to buy, `energy` joules per token at TDP.
    """

    devices: int
    power: float
    cost: float | None
    energy: float | None
    ttft: float
    tpot: float


class Deployment(Struct, frozen=True, dict=True):
    """A configuration that meets the service, under load.

    `replicas` share the rate, each with at most `slots` concurrent sequences; `load` holds their times by number of
    slots at the reading sized for. `price` is USD per device.
    """

    simulated: Simulated
    at: At
    replicas: int
    slots: int
    load: Load
    price: float | None

    @property
    def configuration(self) -> Configuration:
        """The configuration of each replica."""
        return self.simulated.candidate.configuration

    @property
    def service(self) -> Service:
        """The service."""
        return self.simulated.candidate.service

    @property
    def hardware(self) -> Hardware:
        """The device type."""
        return self.configuration.hardware

    @property
    def devices(self) -> int:
        """Devices of all replicas."""
        return self.replicas * self.configuration.devices

    @cached_property
    def max_rate(self) -> float:
        """Requests/s that one replica can serve within the targets; infinite for a single user."""
        if self.service.rate is None:
            return math.inf
        return targets_of(self.simulated.replica(self.at), self.service).max_rate()

    @cached_property
    def batch(self) -> float:
        """The mean number of sequences that decode together."""
        if self.service.rate is None:
            return 1.0
        found = load(self.simulated.replica(self.at), self.service.rate / self.replicas)
        return float(found.batch[self.slots - 1])

    @cached_property
    def ttft(self) -> Estimate:
        """TTFT (s) at the service's quantile, queueing included; infinite at a reading that cannot sustain the rate."""
        return Estimate(*(float(found.ttft[self.slots - 1]) for found in self._loads))

    @cached_property
    def tpot(self) -> Estimate:
        """TPOT (s) at the service's quantile; infinite likewise."""
        return Estimate(*(float(found.tpot[self.slots - 1]) for found in self._loads))

    @cached_property
    def _loads(self) -> tuple[Load, ...]:
        """The load at each reading."""
        return tuple(
            self.load if reading == self.at else loaded(self.simulated.replica(reading), self.service, self.replicas)
            for reading in Estimate._fields
        )

    @property
    def utilisation(self) -> float | None:
        """The rate over the largest stable rate of the replicas; None for one user."""
        if self.service.rate is None:
            return None
        ceiling = float(self.simulated.replica(self.at).ceilings[self.slots - 1])
        return self.service.rate / self.replicas / ceiling

    @property
    def figures(self) -> Figures:
        """The figures by which it is ranked."""
        return figures_of(
            self.configuration,
            self.service,
            self.price,
            self.replicas,
            self.simulated.replica(self.at),
            float(self.load.ttft[self.slots - 1]),
            float(self.load.tpot[self.slots - 1]),
        )

    @cached_property
    def modelled_energy(self) -> float | None:
        """Modelled joules per token under load; None without energy figures in the hardware's spec."""
        return modelled_energy_per_token(self.simulated, self.at, self.replicas, self.command_batch)

    @cached_property
    def command_batch(self) -> int:
        """The mean batch, rounded."""
        return max(1, round(self.batch))

    @cached_property
    def step(self) -> Estimate:
        """A decode step at that batch without prefills between steps: the TPOT of `command`."""
        found = self.simulated.alone(self.command_batch).expected.tpot
        assert found is not None
        return found

    @cached_property
    def prefill(self) -> Estimate:
        """The prefill of a prompt of mean length: the TTFT of `prefill_command`."""
        return analyze(self.configuration.prefill.scenario()).expected.ttft

    @property
    def command(self) -> str:
        """The command that reproduces `step`."""
        return command_line(self.configuration.request.with_options(batch=self.command_batch))

    @property
    def prefill_command(self) -> str:
        """The command that reproduces `prefill`."""
        return command_line(self.configuration.prefill)


def targets_of(replica: Replica, service: Service) -> Targets:
    """The service's targets for a replica."""
    return Targets(replica, service.ttft or math.inf, service.tpot or math.inf, service.quantile)


def loaded(replica: Replica, service: Service, replicas: int) -> Load:
    """The load of each of so many replicas by number of slots; a single user never queues."""
    if service.rate is None:
        return Load(np.array([replica.prefill.quantile]), replica.step[:1], np.ones(1))
    return load(replica, service.rate / replicas, service.quantile)


def figures_of(
    configuration: Configuration,
    service: Service,
    price: float | None,
    replicas: int,
    replica: Replica,
    ttft: float,
    tpot: float,
) -> Figures:
    """The figures of some replicas at a price (USD per device) and with given times (s)."""
    devices, hardware = configuration.devices * replicas, configuration.hardware
    cost = None if price is None else price * devices
    power = math.inf if hardware.tdp is None else hardware.tdp * devices
    return Figures(devices, power, cost, tdp_energy_per_token(hardware, devices, service, replica), ttft, tpot)


Key = tuple[float, ...]


class RankingObjective(Struct, frozen=True):
    """An objective that ranks deployments: a smaller `key` is better, None is unknown.

    `timed` is the time whose interval makes it uncertain, None for none; `rated` whether it scales with the replicas.
    """

    name: str
    meaning: str
    key: Callable[[Figures], Key | None]
    timed: Timed | None
    rated: bool = True


def _known(value: float | None, *rest: float) -> Key | None:
    return None if value is None else (value, *rest)


SERVICE_OBJECTIVES = (
    RankingObjective("cheapest", "USD an hour", lambda f: _known(f.cost, f.devices, f.power, f.tpot), "total"),
    RankingObjective("fewest", "devices, then W", lambda f: (f.devices, f.power, f.tpot), "total"),
    RankingObjective("fastest", "TPOT, then TTFT", lambda f: (f.tpot, f.ttft), "tpot", rated=False),
    RankingObjective("efficient", "J/token at most", lambda f: _known(f.energy, f.devices, f.tpot), "total"),
)
USER_OBJECTIVES = (
    RankingObjective(
        "best value",
        "tokens/s for a USD",
        lambda f: _known(None if f.cost is None else f.cost * f.tpot),
        "tpot",
        rated=False,
    ),
    RankingObjective("cheapest", "USD to buy", lambda f: _known(f.cost, f.tpot), None, rated=False),
    RankingObjective("fastest", "TPOT, then TTFT", lambda f: (f.tpot, f.ttft), "tpot", rated=False),
    RankingObjective("efficient", "J/token at most", lambda f: _known(f.energy, f.tpot), "total", rated=False),
)


def objectives_of(service: Service) -> tuple[RankingObjective, ...]:
    """The ranking objectives of a service or of one user."""
    return USER_OBJECTIVES if service.rate is None else SERVICE_OBJECTIVES
