"""The layouts of a model on some devices: the one list for answers, choices, sizing and ratios of pools.

A server divides every layer (tensor parallelism), the layers (pipeline), the sequences with the experts of a mixture
(data and expert parallelism), or experts alone beside tensor parallelism; copies of it share the load.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.scenario.layout import is_usual
from roofline.scenario.options import DEGREES
from roofline.scenario.scenario import Scenario
from roofline.specs.engine import Engine
from roofline.specs.hardware import SERVER_DEVICES, Hardware
from roofline.specs.model import Model
from roofline.timing.exchanges import other_exchanges

STAGES = (1, 2, 3, 4, 8)
"""Numbers of pipeline stages that are tried on any devices."""


class Layout(Struct, frozen=True):
    """The degrees of parallelism of a server, of which `copies` share the load."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    copies: int = 1

    @property
    def devices(self) -> int:
        """The devices of one server."""
        return self.tensor * self.pipeline * self.data

    @property
    def degrees(self) -> dict[str, int]:
        """The degrees of one server by field of `Parallelism`, without those that are 1."""
        parts = {"tensor": self.tensor, "pipeline": self.pipeline, "data": self.data, "expert": self.expert}
        return {name: count for name, count in parts.items() if count > 1}

    @property
    def is_mixed(self) -> bool:
        """Whether the server divides in more ways than one: stages, or heads beside experts."""
        return len(self.degrees) > 1 and not self.data == self.expert == self.devices

    @property
    def label(self) -> str:
        """The layout as people write it, such as `TP 4 PP 2, 2 replicas`."""
        heads = f"TP {self.tensor} " if self.tensor > 1 else ""
        if self.data > 1:
            own = f"{heads}attention DP{f' {self.data}' if heads else ''}, EP {self.expert}"
        elif self.expert > 1:
            own = f"{heads}EP {self.expert}"
        else:
            own = f"{heads}PP {self.pipeline}" if self.pipeline > 1 else f"TP {self.tensor}"
        return replicated(own, self.copies)

    def options(self, model: Model) -> dict[str, Any] | None:
        """The options of a scenario that has all copies; None if copies divide experts, which none says."""
        if self.copies > 1 and self.expert > 1:
            return None
        parts = {"tp": self.tensor, "pp": self.pipeline, "dp": self.data * self.copies, "ep": self.expert}
        whole = {"ep": 1} if self.copies > 1 and model.experts else {}  # else ranks share the experts
        return {name: count for name, count in parts.items() if count > 1 or name == "tp"} | whole

    def on(self, scenario: Scenario) -> Scenario:
        """The scenario of one server."""
        return laid_out(scenario, **self.degrees)


def servers(model: Model, hardware: Hardware, engine: Engine, devices: int) -> Iterator[Layout]:
    """The layouts of one server on all of some devices: by tensor parallelism, the widest within a node first.

    An engine that splits layers has pipelines alone. Over nodes there may be other STAGES, if each is a whole node.
    """
    inside = linked_devices(hardware)
    if engine.split_layers:
        yield Layout(pipeline=devices)
        return
    ranks = [rank for rank in reversed(list(divisors(devices))) if is_usual(rank)]
    for tensor in sorted(ranks, key=lambda rank: rank > inside):  # the order of those within, and beyond, is kept
        stages = devices // tensor
        whole = tensor > inside or tensor == math.gcd(devices, min(inside, SERVER_DEVICES))
        if stages in STAGES or (devices > inside and whole):
            yield Layout(tensor, stages)
        if tensor == devices > 1 and model.experts:
            yield Layout(tensor, expert=devices)
    if model.experts and devices > 1:
        for tensor in dict.fromkeys((1, math.gcd(devices, min(inside, SERVER_DEVICES)), devices // 2)):
            if tensor < devices and devices % tensor == 0 and tensor.bit_count() == 1:
                yield Layout(tensor, data=devices // tensor, expert=devices)


def layouts_on(scenario: Scenario, devices: int) -> Iterator[Layout]:
    """The layouts of a scenario over all of some devices: one server first, then more and smaller ones.

    The servers have room on the machines of the devices: 12 of 6 devices each have none on 18 trays of 4.
    """
    hardware = scenario.hardware
    for copies in divisors(devices):
        each = devices // copies
        beside = max(hardware.machine_devices // each, 1)  # servers on one machine
        if -(-copies // beside) * hardware.machines(each) > hardware.machines(devices):
            continue
        for server in servers(scenario.model, scenario.hardware, scenario.profile, each):
            yield replace(server, copies=copies)


def wide_exchange(server: Scenario) -> str | None:
    """The exchange that an engine runs when asked among more ranks than a server has; else, or where one is set, None.

    An engine's own one may not be what people run there: vLLM gathers the tokens of all ranks.
    """
    parallel = server.settings.parallel.on(server.hardware)
    if parallel.data <= SERVER_DEVICES or parallel.exchange:
        return None
    return next(iter(other_exchanges(server.profile, server.hardware, parallel)), None)


def linked_devices(hardware: Hardware) -> int:
    """The devices of a node that share a layer; one where nothing links them."""
    linked = any(link.scope in ("node", "host") for link in hardware.interconnects)
    return hardware.node_devices if linked else 1


def replicated(label: str, copies: int) -> str:
    """The label of a server with its copies."""
    return f"{label}, {copies} replicas" if copies > 1 else label


def divisors(count: int) -> Iterator[int]:
    """The divisors of a number, the least first."""
    return (each for each in range(1, count + 1) if count % each == 0)


def laid_out(scenario: Scenario, /, **degrees: int) -> Scenario:
    """The scenario with these degrees of parallelism alone."""
    given: Mapping[str, Any] = dict.fromkeys((*DEGREES.values(), "dp_attention", "enable_expert_parallel"))
    return scenario.with_(**{**given, **{DEGREES[name]: value for name, value in degrees.items()}})
