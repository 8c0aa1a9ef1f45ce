"""Parallelism: the work and communication of one rank.

A parallel run is one rank's network: the model with its dimensions divided (`rank_model`), and collectives
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

from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError
from roofline.core.limits import MAX_DEVICES
from roofline.graph.extents import popularity
from roofline.graph.size import Size
from roofline.specs.hardware import Hardware, Span
from roofline.specs.model import Layer, Model
from roofline.specs.sublayers import (
    Attention,
    CompressedAttention,
    DeltaNet,
    Hyena,
    KimiDelta,
    LatentAttention,
    LinearModule,
    Mamba,
    Mamba2,
    MixtureOfExperts,
    Mlp,
    Modules,
    Retention,
    Rwkv,
    StateSpace,
    UNet,
)

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
        return self.tensor * self.pipeline * self.data * self.sequence

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
        return self.expert > 1 and self.data > 1

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


def over_link(hardware: Hardware, nodes: Nodes, kind: Collective | None, reach: int, ranks: int, steps: int) -> Path:
    """The path among `ranks` devices over `reach`.

    A ring over n nodes takes n - 1 steps across nodes, the others within (`Hardware.ring_bandwidth`). Where the switch
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
    bandwidth = hardware.ring_bandwidth(ranks, members, reducing)
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


def check_stages(model: Model, parallelism: Parallelism) -> None:
    """Raises RooflineError if there are more pipeline stages than layers."""
    if parallelism.pipeline > model.layers:
        layers = f"{model.layers} layers" if model.layers > 1 else "one layer"
        raise RooflineError(f"{parallelism.pipeline} pipeline stages: {model.name} has only {layers}", options=["pp"])


@lru_cache(maxsize=512)
def rank_model(model: Model, parallelism: Parallelism) -> Model:
    """The model of one rank of a stage; raises RooflineError where a degree does not divide a dimension."""
    check_stages(model, parallelism)
    if parallelism.expert > 1 and not model.experts:
        raise RooflineError(
            f"expert parallelism over {parallelism.expert}: {model.name} has no experts", options=["ep"]
        )
    mixers = [group.layer.mixer for group in model.groups]
    if parallelism.sequence > 1 and any(not isinstance(mixer, Attention) or mixer.indexer for mixer in mixers):
        raise UnsupportedError(
            f"sequence parallelism is simulated for softmax attention only; {model.name} has other layers",
            options=["sp"],
        )
    if parallelism.context > 1:
        _check_context(model, parallelism)
    degree = parallelism.tensor
    if degree == 1 and parallelism.expert == 1:
        return model
    groups = tuple(replace(group, layer=_rank_layer(group.layer, model.name, parallelism)) for group in model.groups)
    return replace(
        model,
        name=f"{model.name} (rank of {parallelism.tensor} x {parallelism.expert})",
        groups=groups,
        vocabulary=-(-model.vocabulary // degree),  # padded to divide
        extra_parameters=model.extra_parameters // degree,
    )


def _check_context(model: Model, parallelism: Parallelism) -> None:
    """Raises where tensor ranks have no copies of keys to divide: vLLM asserts dcp <= tp / KV heads, MLA has one."""
    mixers = [group.layer.mixer for group in model.groups]
    if not any(isinstance(mixer, (Attention, LatentAttention, CompressedAttention)) for mixer in mixers):
        raise RooflineError(f"{model.name} has no keys that decode context parallelism divides", options=["dcp"])
    if not all(_copies(mixer, parallelism.tensor) for mixer in mixers):
        raise UnsupportedError(
            f"decode context parallelism is simulated for attention to all keys; {model.name} selects some",
            options=["dcp"],
        )
    copies = key_copies(model, parallelism.tensor)
    if copies % parallelism.context:
        raise RooflineError(
            f"decode context parallelism of {parallelism.context} does not divide the {copies} copies of keys that"
            f" a tensor parallelism of {parallelism.tensor} has of {model.name}",
            options=["dcp", "tp"],
        )


def key_copies(model: Model, tensor: int) -> int:
    """The tensor ranks that hold the same keys, which decode context parallelism divides; 0 where it divides none."""
    copies = [_copies(group.layer.mixer, tensor) for group in model.groups]
    return math.gcd(*copies) if all(copies) else 0


def _copies(mixer: object, tensor: int) -> int:
    if isinstance(mixer, CompressedAttention) or getattr(mixer, "indexer", None) or getattr(mixer, "page", None):
        return 0
    return max(tensor // mixer.kv_heads, 1) if isinstance(mixer, Attention) else tensor


def _divide(value: int, ranks: int, what: str, model: str, by: str = "tensor") -> int:
    if value % ranks:
        options = ["tp" if by == "tensor" else "ep"]
        raise RooflineError(
            f"{by} parallelism of {ranks} does not divide the {value} {what} of {model}", options=options
        )
    return value // ranks


def _kv_heads(kv_heads: int, ranks: int, model: str) -> int:
    """KV heads of a rank; with more ranks than KV heads, each rank holds a replica of one."""
    if kv_heads >= ranks:
        return _divide(kv_heads, ranks, "KV heads", model)
    if ranks % kv_heads:
        raise RooflineError(
            f"tensor parallelism of {ranks} is not a multiple of the {kv_heads} KV heads of {model}", options=["tp"]
        )
    return 1


def _rank_layer(layer: Layer, model: str, parallelism: Parallelism) -> Layer:
    ranks = parallelism.tensor

    def attention(spec: Attention) -> Attention:
        heads = _divide(spec.heads, ranks, "attention heads", model)
        index = spec.indexer
        if index is not None:  # each KV head selects keys of its own
            index = replace(index, heads=_kv_heads(index.heads, ranks, model))
        return replace(spec, heads=heads, kv_heads=_kv_heads(spec.kv_heads, ranks, model), indexer=index)

    mixer = layer.mixer
    match mixer:
        case Attention():
            mixer = attention(mixer)
        case CompressedAttention():
            heads = _divide(mixer.heads, ranks, "attention heads", model)
            mixer = replace(mixer, heads=heads, output_groups=max(1, mixer.output_groups // ranks))
        case LatentAttention() | KimiDelta() | Rwkv() | Retention():
            mixer = replace(mixer, heads=_divide(mixer.heads, ranks, "heads", model))
        case Mamba():
            mixer = replace(mixer, inner=_divide(mixer.inner, ranks, "channels", model))
        case Mamba2():
            heads = _divide(mixer.heads, ranks, "heads", model)
            mixer = replace(mixer, heads=heads, groups=max(1, mixer.groups // ranks))
        case DeltaNet():
            keys = _kv_heads(mixer.key_heads, ranks, model)
            values = _divide(mixer.value_heads, ranks, "value heads", model)
            mixer = replace(mixer, key_heads=keys, value_heads=values)
        case Modules():
            mixer = _rank_modules(mixer, ranks, None if mixer.attention is None else attention(mixer.attention))
        case Hyena() | StateSpace() | UNet() if ranks > 1:
            raise UnsupportedError(
                f"tensor parallelism is not simulated for the convolutions and state spaces of {model}", options=["tp"]
            )
    block = layer.feed_forward
    if isinstance(block, Mlp):
        block = replace(block, width=_divide(block.width, ranks, "MLP channels", model))
    elif isinstance(block, MixtureOfExperts):
        block = replace(
            block,
            experts=slots(block, parallelism) // parallelism.expert,
            width=_divide(block.width, parallelism.expert_width_ranks, "channels of an expert", model),
            shared_width=_divide(block.shared_width, ranks, "channels of the shared experts", model),
        )
    cross = attention(layer.cross) if layer.cross else None
    return replace(layer, mixer=mixer, feed_forward=block, cross=cross)


def slots(spec: MixtureOfExperts, parallelism: Parallelism) -> int:
    """The experts that all ranks hold together: with copies, the fewest that divide among them."""
    ranks = parallelism.expert
    return -(-(spec.experts + (parallelism.redundant if ranks > 1 else 0)) // ranks) * ranks


def with_copies(parallelism: Parallelism, model: Model) -> Parallelism:
    """The same with all copies of experts counted in `redundant`, those that fill up the slots of ranks, too."""
    if parallelism.expert == 1 or not model.experts:
        return parallelism
    first = model.experts[0]
    return replace(parallelism, redundant=slots(first, parallelism) - first.experts)


def _rank_modules(spec: Modules, ranks: int, attention: Attention | None) -> Modules:
    """The modules of one rank: of each linear layer a part of its outputs, or of its inputs after the attention.

    A linear layer that neither divides is whole on every rank, as norms are.
    """

    def linear(index: int, part: LinearModule) -> LinearModule:
        sides = ("inputs", "outputs") if index >= spec.before and part.inputs >= part.outputs else ("outputs", "inputs")
        side = next((side for side in sides if getattr(part, side) % ranks == 0), None)
        return part if side is None else replace(part, **{side: getattr(part, side) // ranks})

    return replace(
        spec,
        linears=tuple(linear(index, part) for index, part in enumerate(spec.linears)),
        tables=tuple(replace(table, rows=-(-table.rows // ranks)) for table in spec.tables),
        attention=attention,
        weights=-(-spec.weights // ranks),
        state=-(-spec.state // ranks),
        scan=spec.scan / ranks,
    )


def imbalance(experts: int, top_k: int, ranks: int, skew: float, copies: int = 0) -> float:
    """Load of the busiest of `ranks` expert ranks over the mean.

    Experts are assigned round-robin in order of popularity. With `copies` of experts beside them, the most loaded
    expert gets the next copy, and the loads are placed on the least loaded rank with a free slot, largest first (EPLB,
    deepseek-ai/EPLB).
    """
    if ranks == 1 or not skew:
        return 1.0
    shares = popularity(experts, top_k, skew)
    if not copies:
        loads = [float(shares[rank::ranks].sum()) for rank in range(ranks)]
        return max(loads) * ranks / sum(loads)
    count = np.ones(shares.size)
    for _ in range(copies):
        count[int(np.argmax(shares / count))] += 1
    pieces = sorted(np.repeat(shares / count, count.astype(int)).tolist(), reverse=True)
    filled, held = np.zeros(ranks), np.zeros(ranks, dtype=int)
    for piece in pieces:
        rank = int(np.argmin(np.where(held < (experts + copies) // ranks, filled, np.inf)))
        filled[rank] += piece
        held[rank] += 1
    return float(filled.max() * ranks / filled.sum())


def stages(model: Model, pipeline: int) -> tuple[tuple[str, ...], ...]:
    """The layers of each pipeline stage, evenly divided; the first stages take the remainder."""
    size, rest = divmod(model.layers, pipeline)
    cuts = [index * size + min(index, rest) for index in range(pipeline + 1)]
    return tuple(model.pattern[start:stop] for start, stop in pairwise(cuts))
