"""An operator is a FLOP count and the tensors it touches; everything else about it follows."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache, reduce
from operator import add

from msgspec import Struct

from roofline.graph.extents import View
from roofline.graph.parallel import Collective
from roofline.graph.size import ZERO, Size, total
from roofline.graph.tensor import Role, Tensor


class Kind(StrEnum):
    """What sort of kernel runs an operator: kernels of one kind share a calibration."""

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
    DELTA_RULE = "delta_rule"
    TOP_K = "top_k"
    COLLECTIVE = "collective"


class Link(Struct, frozen=True):
    """What an operator sends from its device to others: bytes, and latencies in a row, among `ranks` devices.

    `reach` is the distance between the farthest of them in devices: within a node or across. `collective` names the
    exchange where it is a single one.
    """

    bytes: Size
    steps: int
    ranks: int
    reach: int
    collective: Collective | None = None

    def __add__(self, other: Link) -> Link:
        reach, ranks = max(self.reach, other.reach), max(self.ranks, other.ranks)
        return Link(self.bytes + other.bytes, self.steps + other.steps, ranks, reach)


class Op(Struct, frozen=True, eq=False):
    """One kernel: multiply-adds on the matrix unit, other arithmetic on the vector unit, and its tensors.

    It is a node of a graph and equals itself only: graphs share the operators that they have in common, and what
    follows from an operator is worked out once.

    `link` is what it sends to other devices. `operands` are the tensors among `reads` that the matrix unit multiplies:
    their formats decide at which peak it runs and what has to be converted first (see `roofline.bound.roof`). `view` is
    what the queries of attention products see.
    """

    name: str
    kind: Kind
    reads: tuple[Tensor, ...]
    writes: tuple[Tensor, ...]
    matrix_flops: Size = ZERO
    vector_flops: Size = ZERO
    operands: tuple[Tensor, ...] = ()
    link: Link | None = None
    view: View | None = None

    @property
    def flops(self) -> Size:
        """All arithmetic of one instance, in FLOP; a multiply-add is 2."""
        return self.matrix_flops + self.vector_flops

    @property
    def exchange(self) -> bool:
        """Whether it sends rows to the ranks of their experts, or back."""
        return self.link is not None and self.link.collective is Collective.ALL_TO_ALL

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """Everything it touches, reads first."""
        return self.reads + self.writes

    @property
    def bytes(self) -> Size:
        """Traffic of one instance with memory, in bytes: each operand moves once."""
        return total(tensor.bytes for tensor in self.tensors)

    def bytes_of(self, role: Role) -> Size:
        """The part of the traffic that tensors of `role` cause."""
        return total(tensor.bytes for tensor in self.tensors if tensor.role is role)


@lru_cache(maxsize=1 << 14)
def shared(op: Op) -> Op:
    """The one operator of this content.

    Graphs that differ in a format, a degree or a draft have most operators in common. Where those are the same
    objects, what follows from an operator, or from a section of them, is found again.
    """
    return _shared(
        op.name,
        op.kind,
        op.reads,
        op.writes,
        op.matrix_flops,
        op.vector_flops,
        op.operands,
        op.link,
        op.view,
    )


_shared = lru_cache(maxsize=1 << 14)(Op)


def fuse(name: str, kind: Kind, parts: Iterable[Op], needed: Iterable[str] = ()) -> Op:
    """One kernel that does the work of `parts`.

    What one part writes and only another part reads never leaves the chip; what several parts read is read once.
    `needed` names tensors that operators outside the fusion read as well: those are still written.
    """
    parts = tuple(parts)
    return _fused(name, kind, parts, frozenset(needed) & {tensor.name for part in parts for tensor in part.writes})


@lru_cache(maxsize=4096)
def _fused(name: str, kind: Kind, parts: tuple[Op, ...], needed: frozenset[str]) -> Op:
    """Layers that share the parts share the kernel."""
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
        view=next((part.view for part in parts if part.view is not None), None),
    )
