"""Parallelism: the degrees, where the devices are, and what they exchange.

A parallel run is one rank's network: the model with its dimensions divided (`roofline.graph.ranks`), and collectives
(`Collective`). Tensor parallelism divides heads, widths and the vocabulary, expert parallelism the experts, data
parallelism the batch, pipeline parallelism the layers, and sequence parallelism the tokens and the KV cache.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr, replace

from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.limits import MAX_DEVICES
from roofline.graph.size import Size
from roofline.specs.hardware import NETWORK, Hardware, Span
from roofline.specs.model import Model

NAMES: Mapping[str, str] = {
    **{kind: f"the degree of {kind} parallelism" for kind in ("tensor", "pipeline", "expert", "data", "sequence")},
    "context": "the degree of decode context parallelism",
    "nodes": "the number of nodes",
    "micro_batches": "the number of micro-batches",
}


EXCHANGES = (
    "deepep",
    "deepep_low_latency",
    "deepep_normal",
    "mori",
    "nvlink_one_sided",
    "nvlink_two_sided",
    "allgather_reducescatter",
    "nccl",
)
"""How expert ranks exchange tokens: DeepEP (by the number of tokens, or one of its kernels), TensorRT-LLM's all-to-all
on NVLink, all-gather and reduce-scatter of all tokens, NCCL's all-to-all."""


OTHER_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "deepep_high_throughput": "deepep_normal",
        "naive": "allgather_reducescatter",
        "flashinfer_nvlink_one_sided": "nvlink_one_sided",
        "flashinfer_nvlink_two_sided": "nvlink_two_sided",
        "flashinfer_all2allv": "nvlink_two_sided",
    }
)
"""Exchanges by vLLM's names for them (--all2all-backend)."""


def check_exchange(name: str) -> str:
    """The exchange of that name, or of an engine's name for it; raises UnknownNameError."""
    known = name.lower().replace("-", "_")
    known = OTHER_NAMES.get(known, known)
    if known and known not in EXCHANGES:
        raise UnknownNameError("exchange of experts", name, EXCHANGES)
    return known


class Nodes(Struct, frozen=True):
    """The number of neighbouring devices in each node; None for a single node."""

    devices: int | None = None

    def span(self, reach: int) -> Span:
        """The span of a group of `reach` neighbouring devices."""
        return Span(reach, self.devices is not None and reach > self.devices)

    def members(self, reach: int, ranks: int) -> int:
        """Ranks per node, for `ranks` devices evenly spaced over `reach` neighbours."""
        return ranks if self.devices is None else max(1, min(ranks, self.devices * ranks // reach))


ONE_NODE = Nodes()


class Parallelism(Struct, frozen=True):
    """The degrees of parallelism.

    There are tensor * pipeline * data * sequence devices on `nodes` nodes; None is the fewest that the hardware allows
    (`on`). `expert` ranks, which are the tensor and data ranks of a stage, share the experts of a layer; a larger
    `expert` sets `data`, so that attention runs data-parallel. `micro_batches` fill the pipeline, as far as there are
    sequences. `grid`: tensor ranks divide matrices along rows and columns (2-D tensor parallelism). `exchange`: how
    expert ranks exchange tokens (EXCHANGES; "" as the engine does). `redundant`: slots for copies of experts, in all
    ranks together; ranks have equally many slots, so that any degree divides the experts with some copies. `context`:
    tensor ranks that divide the tokens of the KV cache, whose copies they hold otherwise (decode context parallelism).
    `apart`: devices that hold the experts, one rank of `expert` each, beside those that compute attention.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1
    sequence: int = 1
    nodes: int | None = None
    micro_batches: int = 1
    grid: bool = False
    exchange: str = ""
    redundant: int = 0
    context: int = 1
    apart: int = 0

    def __post_init__(self) -> None:
        for name, what in NAMES.items():
            value = getattr(self, name)
            if value is None and name == "nodes":
                continue
            if type(value) is not int or not 1 <= value <= MAX_DEVICES:
                raise RooflineError(f"{what} must be an integer between 1 and {MAX_DEVICES}, got {value}")
        force_setattr(self, "exchange", check_exchange(self.exchange))
        if type(self.redundant) is not int or not 0 <= self.redundant <= MAX_DEVICES:
            raise RooflineError(f"the redundant experts must be an integer between 0 and {MAX_DEVICES}")
        if self.tensor % self.context:
            raise RooflineError(
                f"decode context parallelism of {self.context} divides the {self.tensor} tensor-parallel devices: give"
                " a multiple of it as their number",
                options=["dcp", "tp"],
            )
        if self.context > 1 and self.sequence > 1:
            raise RooflineError("decode context parallelism goes without sequence parallelism", options=["dcp", "sp"])
        if self.grid and math.isqrt(self.tensor) ** 2 != self.tensor:
            raise RooflineError(f"2-D tensor parallelism needs a square number of devices, got {self.tensor}")
        if self.apart:
            if self.pipeline > 1 or self.sequence > 1 or self.expert not in (1, self.apart):
                raise RooflineError("experts on devices of their own go with tensor and data parallelism of attention")
            return
        if self.expert > self.tensor * self.data:
            if self.expert % self.tensor:
                raise RooflineError(
                    f"{self.expert} expert-parallel devices are not divisible by {self.tensor} tensor-parallel ones",
                    options=["ep", "tp"],
                )
            if self.data > 1:
                ranks = f"{self.tensor * self.data} of {self.tensor} x {self.data} (tensor x data)"
                raise RooflineError(
                    f"{self.expert} expert-parallel devices exceed the {ranks}: omit or increase data parallelism",
                    options=["ep", "dp"],
                )
            force_setattr(self, "data", self.expert // self.tensor)
        if (self.tensor * self.data) % self.expert:
            raise RooflineError(
                f"an expert parallelism of {self.expert} does not divide the {self.tensor * self.data} devices of"
                f" {self.tensor} x {self.data} (tensor x data)",
                options=["ep", "tp", "dp"],
            )
        if self.nodes is not None and self.nodes > self.devices:
            raise RooflineError(f"{self.nodes} nodes exceed the {self.devices} devices", options=["nodes"])

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.tensor * self.pipeline * self.data * self.sequence + self.apart

    def on(self, hardware: Hardware) -> Parallelism:
        """The same with `nodes` set to those that the devices occupy on `hardware`, unless given."""
        return self if self.nodes is not None else _on_nodes(self, hardware.nodes(self.devices))

    @property
    def devices_per_node(self) -> int:
        """Devices per node; the last may have fewer."""
        return -(-self.devices // (self.nodes or 1))

    @property
    def expert_width_ranks(self) -> int:
        """Ranks that divide the width of an expert."""
        if self.apart:
            return 1
        return self.tensor * self.data // self.expert if self.expert > 1 else self.tensor

    @property
    def expert_tokens(self) -> int:
        """The number of data ranks whose tokens an expert rank serves."""
        return self.data if self.expert > 1 else 1

    def cache_parts(self, decode: bool) -> tuple[int, int, int]:
        """The ranks of a ring of queries, of shards of keys, and of a cache whose parts all of them gather."""
        return (1, self.sequence * self.context, 1) if decode else (self.sequence, 1, self.context)

    @property
    def all_to_all(self) -> bool:
        """Whether expert ranks exchange tokens by all-to-all."""
        return self.expert > 1 and (self.data > 1 or self.apart > 0)

    @property
    def of_stage(self) -> Parallelism:
        """The same with the degrees that the operators of a stage do not depend on set to 1 (a cache key).

        Data parallelism matters only with expert or sequence parallelism; on several nodes all degrees matter.
        """
        return _of_stage(self)

    @property
    def without_experts(self) -> Parallelism:
        """`of_stage` for operators outside MoE blocks."""
        return _of_stage(replace(self, expert=1)) if self.expert > 1 else _of_stage(self)

    @property
    def node_layout(self) -> Nodes:
        """The nodes of its devices."""
        return ONE_NODE if self.nodes in (None, 1) else Nodes(self.devices_per_node)

    def span(self, reach: int) -> Span:
        """The span of a group of `reach` neighbouring devices."""
        return self.node_layout.span(reach)

    def stage_transfers(self, bridge: int | None = None) -> Mapping[int, int]:
        """The reach, in devices, of send/receives between stages, and the number of each; nearest first.

        The devices of a stage are neighbours, and each sends to its counterpart. A transfer across a node boundary, or
        out of the `bridge` cards that a bridge joins, takes the link beyond it.
        """
        stage, node = self.devices // self.pipeline, self.devices_per_node
        reaches: Counter[int] = Counter()
        for first in range(0, self.devices - stage, stage):
            last = first + 2 * stage - 1  # of the stage that receives
            crossed = [joined for joined in (bridge, node) if joined is not None and first // joined != last // joined]
            reaches[max(stage, *crossed) + 1 if crossed else stage + 1] += 1
        return dict(sorted(reaches.items()))


def micro_batches(parallelism: Parallelism, batch: Any) -> Any:
    """The number of micro-batches of a pipeline, at most the sequences of a rank; an array for an array of batches."""
    count = parallelism.micro_batches if parallelism.pipeline > 1 else 1
    return count if count == 1 else np.minimum(count, np.ceil(np.asarray(batch) / parallelism.data))


SINGLE = Parallelism()


@lru_cache(maxsize=1024)
def _on_nodes(parallelism: Parallelism, nodes: int) -> Parallelism:
    return replace(parallelism, nodes=nodes)


@lru_cache(maxsize=1024)
def _of_stage(parallelism: Parallelism) -> Parallelism:
    if parallelism.nodes not in (None, 1):
        return parallelism
    shared = parallelism.expert > 1 or parallelism.sequence > 1
    return replace(parallelism, pipeline=1, micro_batches=1, data=parallelism.data if shared else 1)


def auxiliary_parallelism(parallelism: Parallelism, model: Model) -> Parallelism:
    """The parallelism of a draft or cascade model: tensor- and data-parallel like the large model, on one stage."""
    group = parallelism.tensor * parallelism.data
    return replace(
        parallelism,
        pipeline=1,
        sequence=1,
        context=1,
        micro_batches=1,
        expert=parallelism.expert if model.experts else 1,
        nodes=-(-group // parallelism.devices_per_node),
    )


class Collective(StrEnum):
    """The collectives, and send/receive."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    POINT_TO_POINT = "point_to_point"


def bus_factor(collective: Collective, ranks: int) -> float:
    """Bytes sent per rank and byte of the message, with ring or direct algorithms (Thakur et al. 2005).

    The factor between algorithm and bus bandwidth in nccl-tests. A switch that reduces takes less (`over_link`).
    """
    if collective is Collective.POINT_TO_POINT:
        return 1.0
    return (2 if collective is Collective.ALL_REDUCE else 1) * (ranks - 1) / ranks


RINGS = frozenset({Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER})
"""Ring collectives, whose transfers within and across nodes overlap."""


def ring_members(nodes: Nodes, kind: Collective | None, reach: int, ranks: int) -> int:
    """The ranks per node of a ring over several nodes; 0 within a node, and for other collectives."""
    return nodes.members(reach, ranks) if kind in RINGS and nodes.span(reach).across_nodes else 0


class Path(NamedTuple):
    """How fast devices exchange: the bandwidth of each in B/s, and the seconds of its sequential latencies.

    `share`: the bytes that a device sends over those of a ring (`Interconnect.all_reduce_share`).
    """

    bandwidth: float
    latency: float
    share: float = 1.0


def ring_bandwidth(hardware: Hardware, ranks: int, members: int, reducing: bool = False) -> float:
    """Ring bandwidth (B/s) of `ranks` devices over several nodes, `members` of them in each.

    Each device has its own network port, so the d rings of a node run in parallel: a message M is reduced within each
    node, then 1 / d of it across nodes by each of the d members, then gathered within each node. The two levels
    overlap: max((n-1)/n M / (d network), (d-1)/d M / link), twice for an all-reduce. `reducing`: an all-reduce whose
    part within a node the switch may do (`Interconnect.all_reduce_share`).
    """
    network, nodes = hardware.link(NETWORK).bandwidth, -(-ranks // members)
    crossing = (nodes - 1) / nodes / (members * network)
    if members == 1:
        return (ranks - 1) / ranks / crossing
    link = hardware.link(Span(members, across_nodes=False))
    inside = link.bandwidth_among(members) / (link.all_reduce_share(members) if reducing else 1.0)
    return (ranks - 1) / ranks / max(crossing, (members - 1) / members / inside)


def over_link(hardware: Hardware, nodes: Nodes, kind: Collective | None, reach: int, ranks: int, steps: int) -> Path:
    """The path among `ranks` devices over `reach`.

    A ring over n nodes takes n - 1 steps across nodes, the others within (`ring_bandwidth`). Where the switch
    reduces, an all-reduce goes to it and back.
    """
    link, reducing = hardware.link(nodes.span(reach)), kind is Collective.ALL_REDUCE
    far, members = link.latency or 0.0, ring_members(nodes, kind, reach, ranks)
    if not members:
        if reducing and link.reduction is not None:
            return Path(link.bandwidth_among(ranks), far, link.all_reduce_share(ranks))
        return Path(link.bandwidth_among(ranks), steps * far)
    near = hardware.link(Span(members, across_nodes=False)).latency or 0.0 if members > 1 else 0.0
    rounds = steps / (ranks - 1)
    crossing = -(-ranks // members) - 1
    bandwidth = ring_bandwidth(hardware, ranks, members, reducing)
    return Path(bandwidth, rounds * (crossing * far + (members - 1) * near))


def grid_traffic(rows: Size, outer: int, inner: int, ranks: int) -> tuple[Size, int]:
    """Elements sent per rank for a pair of GEMMs on a square grid of ranks, and sequential latencies.

    All-gathers and reduce-scatters of the outer width over one side of the grid and of the inner width over the other
    send 2 rows (outer / X + inner / Y) elements, at least 4 rows sqrt(outer inner / ranks) (Pope et al. 2022, 2-D
    weight-stationary). A 1-D all-reduce sends 2 rows outer, whatever the number of ranks.
    """
    side = math.isqrt(ranks)
    return rows * (4 * math.sqrt(outer * inner / ranks) * (side - 1) / side), 4 * (side - 1)


def link_steps(collective: Collective, ranks: int) -> int:
    """Sequential latencies: ranks - 1 steps of a ring, twice that for an all-reduce."""
    if collective not in RINGS:
        return 1
    return (2 if collective is Collective.ALL_REDUCE else 1) * (ranks - 1)


def stages(model: Model, pipeline: int) -> tuple[tuple[str, ...], ...]:
    """The layers of each pipeline stage, evenly divided; the first stages take the remainder."""
    size, rest = divmod(model.layers, pipeline)
    cuts = [index * size + min(index, rest) for index in range(pipeline + 1)]
    return tuple(model.pattern[start:stop] for start, stop in pairwise(cuts))
