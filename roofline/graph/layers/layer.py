"""One layer: mixer and feed-forward block with their norms, added to the residual stream."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import NamedTuple, TypeAlias

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, of_last
from roofline.graph.layers.attention import attention, cross_attention
from roofline.graph.layers.basic import Formats, Ops, activation, add, collective, linear, normalise
from roofline.graph.layers.compressed import compressed_attention
from roofline.graph.layers.engram import engram_ops
from roofline.graph.layers.mla import latent_attention
from roofline.graph.layers.mlp import mixture_of_experts, mlp
from roofline.graph.layers.modules import modules
from roofline.graph.layers.recurrent import recurrent
from roofline.graph.layers.residual import averaged, gathered, spread
from roofline.graph.op import Kind, Link, Op, shared, with_sizes
from roofline.graph.parallel import Collective, grid_traffic
from roofline.graph.tensor import Role, Tensor
from roofline.specs.model import Layer, Norm
from roofline.specs.sublayers import (
    Attention,
    CompressedAttention,
    FeedForward,
    LatentAttention,
    Mixer,
    MixtureOfExperts,
    Mlp,
    Modules,
    UNet,
)

Part: TypeAlias = Mixer | FeedForward
"""The spec of a sub-layer."""


def layer_ops(layer: Layer, hidden: int, rotary: bool, formats: Formats) -> list[Op]:
    """The operators of `layer` in the order they run, from `hidden` to `hidden_out`, the residual stream."""
    if layer.tail:
        whole = layer_ops(replace(layer, tail=0), hidden, rotary, formats)
        last = partial(of_last, layer.tail)  # DeepSeek-V4.1's bounded replay
        return [replace(with_sizes(op, last), mask=op.mask and replace(op.mask, tail=layer.tail)) for op in whole]
    if formats.conditioned:
        return modulated(layer_ops(layer, hidden, rotary, replace(formats, conditioned=False)), hidden, 6, formats)
    base, norm = formats.base, layer.norm
    stream = hidden * max(1, layer.streams)
    entering, leaving = activation("hidden", base, stream), activation("hidden_out", base, stream)
    if layer.residual == "parallel":
        return _parallel(layer, entering, leaving, rotary, formats)
    named = (("attn", layer.mixer), ("cross", layer.cross), ("mlp", layer.feed_forward))
    parts = [(name, part) for name, part in named if part is not None]
    streams = [entering, *(activation(f"hidden_after_{name}", base, stream) for name, _ in parts[:-1]), leaving]
    residual = layer.streams, layer.residual_blocks
    remembered = [] if layer.engram is None else engram_ops(layer.engram, layer.streams, hidden, formats)
    return remembered + [
        op
        for (name, part), before, after in zip(parts, streams, streams[1:], strict=False)
        for op in _sublayer(SubLayer(name, part, norm, rotary, _of_part(part, formats)), before, after, *residual)
    ]


class SubLayer(NamedTuple):
    """A sub-layer: its name and spec, the norm of its layer, whether positions are rotary, and its formats."""

    name: str
    part: Part
    norm: Norm
    rotary: bool
    formats: Formats


def _of_part(part: Part, formats: Formats) -> Formats:
    """The formats that a sub-layer depends on, so that graphs that differ in others share it."""
    match part:
        case MixtureOfExperts():
            return formats.without_cache
        case Mlp():
            return formats.without_cache.without_experts
    return formats.without_experts


def _reduced(sub: SubLayer, source: Tensor, target: Tensor) -> tuple[Op, ...]:
    """The body of a sub-layer, with the all-reduce of tensor parallelism."""
    name, ranks = sub.name, sub.formats.parallel.tensor
    if ranks == 1:
        return _body(sub, source, target)
    partial = replace(target, name=f"{target.name}_partial")
    if sub.formats.parallel.grid:
        reduced = _grid_collectives(name, sub.part, partial, target, ranks)
    else:
        reduced = collective(f"{name}_all_reduce", Collective.ALL_REDUCE, partial, target, ranks, ranks)
    return (*_body(sub, source, partial), shared(reduced))


def _grid_collectives(name: str, part: Part, partial: Tensor, target: Tensor, ranks: int) -> Op:
    """The all-gathers and reduce-scatters of a sub-layer's two GEMMs with 2-D tensor parallelism."""
    outer = target.width
    inner = outer
    if isinstance(part, Attention):
        inner = part.heads * part.value_width * ranks  # the spec is that of one rank
    elif isinstance(part, Mlp):
        inner = part.width * ranks
    sent, steps = grid_traffic(BATCH * QUERIES, outer, inner, ranks)
    link = Link(sent * partial.format.bytes, steps, ranks, ranks)
    return Op(f"{name}_2d_collectives", Kind.COLLECTIVE, reads=(partial,), writes=(target,), link=link)


def _body(sub: SubLayer, source: Tensor, target: Tensor) -> tuple[Op, ...]:
    """The operators of a sub-layer between its norms."""
    name, part, norm, rotary, formats = sub
    match part:
        case Mlp():
            ops = mlp(part, source, target, formats)
        case MixtureOfExperts():
            ops = mixture_of_experts(part, source, target, formats)
        case Attention() if name == "cross":
            ops = cross_attention(part, source, target, formats)
        case Attention():
            ops = attention(part, norm, rotary, source, target, formats)
        case CompressedAttention():
            ops = compressed_attention(part, norm, source, target, formats)
        case LatentAttention():
            ops = latent_attention(part, norm, source, target, formats, formats.decode)
        case Modules():
            ops = modules(part, rotary, source, target, formats)
        case _:
            assert not isinstance(part, UNet)  # a whole network (`roofline.graph.layers.unet`)
            ops = recurrent(part, norm, source, target, formats)
    return tuple(map(shared, ops))


@lru_cache(maxsize=2048)
def _sublayer(sub: SubLayer, entering: Tensor, leaving: Tensor, streams: int, blocks: int) -> tuple[Op, ...]:
    """Norms, body and residual addition, in the order of the norm's placement (pre, post, sandwich, output).

    With `streams` or `blocks` the residual connection is that of `roofline.specs.model.Layer`.
    """
    if streams or blocks:
        return _connected(sub, entering, leaving, streams, blocks)
    name, norm, formats = sub.name, sub.norm, sub.formats
    width, place, ops = entering.shape[-1], norm.placement, Ops(formats)
    source, output = entering, activation(f"{name}_projected", formats.base, width)
    if before := place in ("pre", "sandwich"):
        normed = activation(f"{name}_input", formats.activations, width)
        source = ops.run(normalise(f"{name}_norm", norm, entering, normed, formats))
    ops += _reduced(sub, source, output)
    if place in ("sandwich", "output"):
        normed = activation(f"{name}_normed", formats.base, width)
        output = ops.run(normalise(f"{name}_post_norm" if before else f"{name}_norm", norm, output, normed, formats))
    summed = activation(f"{name}_summed", formats.base, width) if place == "post" else leaving
    ops.append(add(f"{name}_add", entering, output, summed))
    if place == "post":
        ops.append(normalise(f"{name}_norm", norm, summed, leaving, formats))
    return tuple(map(shared, ops))


def _connected(sub: SubLayer, entering: Tensor, leaving: Tensor, streams: int, blocks: int) -> tuple[Op, ...]:
    """A sub-layer with hyper-connections or attention residuals around it (`roofline.graph.layers.residual`)."""
    name, formats = sub.name, sub.formats
    width = int(entering.width) // max(1, streams)
    gathered_input = activation(f"{name}_gathered", formats.base, width)
    source = activation(f"{name}_input", formats.activations, width)
    output = activation(f"{name}_projected", formats.base, width)
    if streams:
        before, mix = gathered(name, streams, entering, gathered_input, formats)
        after = spread(name, streams, entering, output, mix, leaving)
    else:
        # Blocks before the middle of the model, on average over its layers.
        before = averaged(name, (blocks - 1) / 2, entering, gathered_input, formats)
        after = add(f"{name}_add", entering, output, leaving)
    normed = normalise(f"{name}_norm", sub.norm, gathered_input, source, formats)
    return tuple(map(shared, (before, normed, *_reduced(sub, source, output), after)))


def _parallel(layer: Layer, entering: Tensor, leaving: Tensor, rotary: bool, formats: Formats) -> list[Op]:
    """Parallel attention and MLP (GPT-J, PaLM): both read the residual stream, through one norm or two.

    With tensor parallelism some engines add the partial outputs of both before one all-reduce.
    """
    mixer, block, norm, width = layer.mixer, layer.feed_forward, layer.norm, entering.shape[-1]
    assert mixer is not None
    assert block is not None
    attn_input = activation("attn_input", formats.activations, width)
    mlp_input = attn_input if layer.shared_norm else activation("mlp_input", formats.activations, width)
    attn_output, mlp_output, between, partial = (
        activation(name, formats.base, width)
        for name in ("attn_projected", "mlp_projected", "hidden_between", "hidden_partial")
    )
    ranks = formats.parallel.tensor
    attn = SubLayer("attn", mixer, norm, rotary, _of_part(mixer, formats))
    mlp_part = SubLayer("mlp", block, norm, rotary, _of_part(block, formats))
    attn_norm = normalise("attn_norm", norm, entering, attn_input, formats)
    mlp_norm = [] if layer.shared_norm else [normalise("mlp_norm", norm, entering, mlp_input, formats)]
    if layer.one_all_reduce and ranks > 1 and not formats.parallel.grid:
        return [
            *(attn_norm, *mlp_norm),
            *_body(attn, attn_input, attn_output),
            *_body(mlp_part, mlp_input, mlp_output),
            add("attn_add", attn_output, mlp_output, partial),
            collective("mlp_all_reduce", Collective.ALL_REDUCE, partial, between, ranks, ranks),
            add("mlp_add", entering, between, leaving),
        ]
    return [
        attn_norm,
        *_reduced(attn, attn_input, attn_output),
        *mlp_norm,
        *_reduced(mlp_part, mlp_input, mlp_output),
        add("attn_add", entering, attn_output, between),
        add("mlp_add", between, mlp_output, leaving),
    ]


def modulated(ops: list[Op], hidden: int, vectors: int, formats: Formats) -> list[Op]:
    """`ops` with adaLN-Zero (Peebles and Xie 2023): the condition shifts and scales norms and gates additions.

    One GEMM per sample yields the modulation vectors.
    """
    condition = Tensor("condition", Role.ACTIVATION, (BATCH, hidden), formats.base)
    projected = Tensor("modulation", Role.ACTIVATION, (BATCH, vectors * hidden), formats.base)

    def changed(op: Op) -> Op:
        if op.kind not in (Kind.NORM, Kind.ELEMENTWISE):
            return op
        count = 2 if op.kind is Kind.NORM else 1
        part = replace(projected, shape=(BATCH, count * hidden))
        flops = op.vector_flops + count * op.writes[0].elements
        return replace(op, reads=(*op.reads, part), vector_flops=flops)

    return [linear("modulation", condition, projected, formats, bias=True), *(changed(op) for op in ops)]
