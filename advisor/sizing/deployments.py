"""Setups: configurations at their load, the figures that they are ranked by, and the aims that rank them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import Literal

import numpy as np
from msgspec import Struct

from roofline.advisor.sizing.configurations import Configuration, Simulated
from roofline.advisor.sizing.energy import at_most, modelled
from roofline.advisor.sizing.queueing import Load, Promise, Replica, load
from roofline.advisor.sizing.workload import Service
from roofline.scenario.analysis import analyze
from roofline.specs.hardware import Hardware
from roofline.timing.estimate import Estimate
from roofline.whatif.command_line import command_line
from roofline.whatif.gain import Timed

At = Literal["low", "mid", "high"]


class Figures(Struct, frozen=True):
    """What configurations are ranked by; times at the reading that is sized for, None is unknown.

    `power` is that of all devices, `cost` their USD an hour, or to buy, `energy` joules a token at most.
    """

    devices: int
    power: float
    cost: float | None
    energy: float | None
    ttft: float
    tpot: float


class Setup(Struct, frozen=True, dict=True):
    """A configuration that meets the service, at its load.

    `replicas` share the rate, with at most `slots` sequences at once; `load` is what comes of it by slots, at the
    reading that is sized for. `price` is USD of a device.
    """

    simulated: Simulated
    at: At
    replicas: int
    slots: int
    load: Load
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

    @cached_property
    def most(self) -> float:
        """The requests a second that one replica could serve within the targets; infinite for a single user."""
        if self.service.rate is None:
            return math.inf
        return promise(self.simulated.replica(self.at), self.service).largest()

    @cached_property
    def batch(self) -> float:
        """How many sequences decode together on average."""
        if self.service.rate is None:
            return 1.0
        found = load(self.simulated.replica(self.at), self.service.rate / self.replicas)
        return float(found.batch[self.slots - 1])

    @cached_property
    def ttft(self) -> Estimate:
        """Seconds to the first token of the promised share of requests, waits included.

        Where the pessimistic end cannot carry the rate it is infinite.
        """
        return Estimate(*(float(found.ttft[self.slots - 1]) for found in self._loads))

    @cached_property
    def tpot(self) -> Estimate:
        """Seconds a token after it, of the promised share of requests; infinite likewise."""
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
        """The rate over that with which a replica of so many slots would no longer keep up; None for one user."""
        if self.service.rate is None:
            return None
        ceiling = float(self.simulated.replica(self.at).ceilings[self.slots - 1])
        return self.service.rate / self.replicas / ceiling

    @property
    def figures(self) -> Figures:
        """What it is ranked by."""
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


def promise(replica: Replica, service: Service) -> Promise:
    """What a replica promises to a service."""
    return Promise(replica, service.ttft or math.inf, service.tpot or math.inf, service.quantile)


def loaded(replica: Replica, service: Service, replicas: int) -> Load:
    """What the service's requests meet, by slots, when so many replicas share them; a single user meets no others."""
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
    """The figures of so many replicas of a configuration, `price` USD a device, with these times (seconds)."""
    devices, hardware = configuration.devices * replicas, configuration.hardware
    cost = None if price is None else price * devices
    power = math.inf if hardware.tdp is None else hardware.tdp * devices
    return Figures(devices, power, cost, at_most(hardware, devices, service, replica), ttft, tpot)


Key = tuple[float, ...]


class Aim(Struct, frozen=True):
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


def aims(service: Service) -> tuple[Aim, ...]:
    """What is chosen for a service, or for one user."""
    return USER_AIMS if service.rate is None else SERVICE_AIMS
