"""Operators: a FLOP count and the tensors that they touch, from which everything else follows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import StrEnum
from functools import lru_cache, reduce
from operator import add

from msgspec import Struct
from msgspec.structs import replace

from roofline.graph.extents import AttentionMask, Rule
from roofline.graph.parallel import Collective
from roofline.graph.size import ZERO, Dim, Size, rules_of, total
from roofline.graph.tensor import Role, Tensor


class Kind(StrEnum):
    """The kind of kernel that runs an operator; kernels of one kind share a calibration."""

    GEMM = "gemm"
    ATTENTION = "attention"
    SOFTMAX = "softmax"
    NORM = "norm"
    ACTIVATION = "activation"
    ROPE = "rope"
    ELEMENTWISE = "elementwise"
    GATHER = "gather"
    MOE = "moe"
    SCAN = "scan"
    GATED_DELTA_RULE = "gated_delta_rule"
    TOP_K = "top_k"
    INDEX = "index"
    HYPER_CONNECTION = "hyper_connection"
    KIMI_DELTA = "kimi_delta"
    MAMBA2 = "mamba2"
    CONVOLUTION = "convolution"
    COLLECTIVE = "collective"


class Routed(Struct, frozen=True):
    """The tokens that an all-to-all routes to experts: `tokens` of a rank, each with a row in `row_bytes`.

    `plain_bytes` are those of a row before any quantization. A token has `top_k` of `experts`, on `reached` ranks in
    `reached_nodes` nodes. `exchange` names the library's kernel ("" for the engine's own choice), `returns`: sums come
    back to the ranks of the tokens.
    """

    tokens: Size
    row_bytes: float
    plain_bytes: float
    top_k: int
    experts: int
    reached: float
    reached_nodes: float
    exchange: str = ""
    returns: bool = False


class Link(Struct, frozen=True):
    """The bytes that an operator sends to other devices, in `steps` sequential latencies, among `ranks` devices.

    The ranks lie within `reach` neighbouring devices, in one node or several. `collective` is None for several fused
    collectives. `routed` is what an all-to-all of expert parallelism sends.
    """

    bytes: Size
    steps: int
    ranks: int
    reach: int
    collective: Collective | None = None
    routed: Routed | None = None

    def __add__(self, other: Link) -> Link:
        reach, ranks = max(self.reach, other.reach), max(self.ranks, other.ranks)
        return Link(self.bytes + other.bytes, self.steps + other.steps, ranks, reach)


class Op(Struct, frozen=True, eq=False):
    """One kernel: FLOPs on the matrix unit (tensor cores) and the vector unit, its tensors and communication.

    `operands` are the tensors among `reads` that the matrix unit multiplies: their formats determine its peak and the
    upcasts (`roofline.bound.roof`). `mask` is that of attention GEMMs. Operators compare by identity: graphs share
    them, and caches are keyed by them.
    """

    name: str
    kind: Kind
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    matrix_flops: Size = ZERO
    vector_flops: Size = ZERO
    operands: tuple[Tensor, ...] = ()
    link: Link | None = None
    mask: AttentionMask | None = None

    @property
    def flops(self) -> Size:
        """FLOPs of one instance; a multiply-add is 2."""
        return self.matrix_flops + self.vector_flops

    @property
    def is_all_to_all(self) -> bool:
        """Whether it is the dispatch or combine of expert parallelism."""
        return self.link is not None and self.link.collective is Collective.ALL_TO_ALL

    @property
    def of_experts(self) -> bool:
        """Whether it computes routed experts."""
        return self.name.startswith("expert_")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors, reads first."""
        return self.reads + self.writes

    @property
    def bytes(self) -> Size:
        """Memory traffic of one instance in bytes: each operand moves once."""
        return total(tensor.bytes for tensor in self.tensors)


class Section(Struct, frozen=True):
    """A sequence of operators that runs `count` times: one kind of layer, or one end of the network.

    `held`: bytes of activations of other sections that are in memory meanwhile (skip connections).
    """

    name: str
    count: float
    ops: tuple[Op, ...]
    held: Size = ZERO


@lru_cache(maxsize=2048)
def extent_rules(ops: tuple[Op, ...]) -> tuple[Rule, ...]:
    """The rules that give the extents of operators: of their sizes, and of what kernels have by their masks."""
    tensors = [tensor for op in ops for tensor in op.tensors]
    sizes = [dim for tensor in tensors for dim in (*tensor.shape, *tensor.stored_shape) if isinstance(dim, Size)]
    sizes += [size for op in ops for size in (op.matrix_flops, op.vector_flops)]
    links = [op.link for op in ops if op.link is not None]
    sizes += [link.bytes for link in links] + [link.routed.tokens for link in links if link.routed is not None]
    return tuple(dict.fromkeys([*rules_of(sizes), *(op.mask.rule for op in ops if op.mask is not None)]))


def with_tensors(op: Op, change: Callable[[Tensor], Tensor]) -> Op:
    """`op` with every tensor changed."""
    reads, writes, operands = (tuple(map(change, tensors)) for tensors in (op.reads, op.writes, op.operands))
    return replace(op, reads=reads, writes=writes, operands=operands)


def with_sizes(op: Op, change: Callable[[Size], Size]) -> Op:
    """`op` with every size changed: of its tensors, its FLOPs and what it sends."""

    def dims(shape: tuple[Dim, ...]) -> tuple[Dim, ...]:
        return tuple(change(dim) if isinstance(dim, Size) else dim for dim in shape)

    changed = with_tensors(
        op, lambda of: replace(of, shape=dims(of.shape), stored=None if of.stored is None else dims(of.stored))
    )
    link = op.link
    if link is not None:
        routed = link.routed and replace(link.routed, tokens=change(link.routed.tokens))
        link = replace(link, bytes=change(link.bytes), routed=routed)
    flops = change(op.matrix_flops), change(op.vector_flops)
    return replace(changed, matrix_flops=flops[0], vector_flops=flops[1], link=link)


@lru_cache(maxsize=1 << 14)
def shared(op: Op) -> Op:
    """The interned operator equal to `op`, so that caches keyed by operators hit across graphs."""
    return _shared(*(getattr(op, field) for field in op.__struct_fields__))


_shared = lru_cache(maxsize=1 << 14)(Op)


def fuse(name: str, kind: Kind, parts: Iterable[Op], needed: Iterable[str] = ()) -> Op:
    """One kernel that does the work of `parts`.

    Activations that only the parts exchange stay on the chip; tensors that several parts read are read once. `needed`
    are the names of tensors that operators outside the fusion read, which are still written.
    """
    parts = tuple(parts)
    return _fused(name, kind, parts, frozenset(needed) & {tensor.name for part in parts for tensor in part.writes})


@lru_cache(maxsize=4096)
def _fused(name: str, kind: Kind, parts: tuple[Op, ...], needed: frozenset[str]) -> Op:
    """`fuse`, cached: layers with the same parts share the kernel."""
    written = {tensor.name for part in parts for tensor in part.writes}
    read = {tensor.name for part in parts for tensor in part.reads}
    inside = {
        tensor.name
        for part in parts
        for tensor in part.writes
        if tensor.role is Role.ACTIVATION and tensor.name in read and tensor.name not in needed
    }
    links = [part.link for part in parts if part.link is not None]
    reads = {tensor.name: tensor for part in parts for tensor in part.reads if tensor.name not in written}
    writes = {tensor.name: tensor for part in parts for tensor in part.writes if tensor.name not in inside}
    return Op(
        name=name,
        kind=kind,
        reads=tuple(reads.values()),
        writes=tuple(writes.values()),
        matrix_flops=total(part.matrix_flops for part in parts),
        vector_flops=total(part.vector_flops for part in parts),
        operands=tuple(tensor for part in parts for tensor in part.operands),
        link=reduce(add, links) if links else None,
        mask=next((part.mask for part in parts if part.mask is not None), None),
    )
