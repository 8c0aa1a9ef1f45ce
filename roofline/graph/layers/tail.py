"""Layers that run the last tokens of a pass alone (DeepSeek-V4.1's bounded replay)."""

from __future__ import annotations

from msgspec.structs import replace

from roofline.graph.extents import Tail
from roofline.graph.layers.attention import with_tensors
from roofline.graph.op import Op
from roofline.graph.size import Dim, Size
from roofline.graph.tensor import Tensor


def of_tail(op: Op, tokens: int) -> Op:
    """`op` for the last `tokens` of each sequence in a pass: its sizes in the extents of `Tail`."""
    named = Tail(tokens, ()).named

    def shape(dims: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
        return None if dims is None else tuple(named(dim) if isinstance(dim, Size) else dim for dim in dims)

    def tensor(of: Tensor) -> Tensor:
        return replace(of, shape=shape(of.shape), stored=shape(of.stored))

    link = op.link
    if link is not None:
        routed = link.routed and replace(link.routed, tokens=named(link.routed.tokens))
        link = replace(link, bytes=named(link.bytes), routed=routed)
    return replace(
        with_tensors(op, tensor),
        matrix_flops=named(op.matrix_flops),
        vector_flops=named(op.vector_flops),
        link=link,
        mask=op.mask and replace(op.mask, tail=tokens),
    )
