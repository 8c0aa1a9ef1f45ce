"""One layer: mixer and feed-forward block with their norms, added to the residual stream."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from roofline.extents import BATCH, QUERIES
from roofline.layers.attention import attention, cross_attention
from roofline.layers.basic import Formats, activation, add, collective, linear, normalise
from roofline.layers.latent import latent_attention
from roofline.layers.mlp import mixture_of_experts, mlp
from roofline.layers.recurrent import recurrent
from roofline.model import Attention, FeedForward, LatentAttention, Layer, Mixer, Mlp, Norm
from roofline.op import Kind, Link, Op, shared
from roofline.parallel import Collective, grid_exchange
from roofline.tensor import Role, Tensor


def layer_ops(layer: Layer, hidden: int, rotary: bool, formats: Formats) -> list[Op]:
    """The operators of `layer` in the order they run, from `hidden` to `hidden_out`, the residual stream."""
    if formats.conditioned:
        return modulated(_layer_ops(layer, hidden, rotary, replace(formats, conditioned=False)), hidden, 6, formats)
    return _layer_ops(layer, hidden, rotary, formats)


def _layer_ops(layer: Layer, hidden: int, rotary: bool, formats: Formats) -> list[Op]:
    base = formats.base
    entering, leaving = activation("hidden", base, hidden), activation("hidden_out", base, hidden)
    if layer.residual == "parallel":
        return _parallel(layer, entering, leaving, rotary, formats)
    parts = [
        name
        for name, part in (("attn", layer.mixer), ("cross", layer.cross), ("mlp", layer.feed_forward))
        if part is not None
    ]
    streams = [entering, *(activation(f"hidden_after_{name}", base, hidden) for name in parts[:-1]), leaving]
    return [
        op
        for name, before, after in zip(parts, streams, streams[1:], strict=False)
        for op in _sublayer(name, layer, before, after, rotary, formats)
    ]


def _reduced(name: str, layer: Layer, source: Tensor, target: Tensor, rotary: bool, formats: Formats) -> list[Op]:
    """The body of a sub-layer; tensor ranks each hold a part of its output's sum and add them up."""
    ranks = formats.parallel.tensor
    if ranks == 1:
        return [*_body(name, layer, source, target, rotary, formats)]
    partial = replace(target, name=f"{target.name}_partial")
    body = _body(name, layer, source, partial, rotary, formats)
    if formats.parallel.grid:
        return [*body, _grid(name, layer, partial, target, ranks)]
    return [*body, collective(f"{name}_all_reduce", Collective.ALL_REDUCE, partial, target, ranks, ranks)]


def _grid(name: str, layer: Layer, partial: Tensor, target: Tensor, ranks: int) -> Op:
    """What a sub-layer's two products exchange on a grid of ranks."""
    outer = target.shape[-1]
    assert isinstance(outer, int)
    spec = {"attn": layer.mixer, "cross": layer.cross, "mlp": layer.feed_forward}[name]
    inner = outer
    if isinstance(spec, Attention):
        inner = spec.heads * spec.head_dim * ranks  # the spec is one rank's share
    elif isinstance(spec, Mlp):
        inner = spec.width * ranks
    sent, steps = grid_exchange(BATCH * QUERIES, outer, inner, ranks)
    link = Link(sent * partial.format.bytes, steps, ranks, ranks)
    return Op(f"{name}_exchange", Kind.COLLECTIVE, reads=(partial,), writes=(target,), link=link)


def _body(name: str, layer: Layer, source: Tensor, target: Tensor, rotary: bool, formats: Formats) -> tuple[Op, ...]:
    """What a sub-layer computes, between its norms."""
    if name == "mlp":
        assert layer.feed_forward is not None
        return _feed_forward(layer.feed_forward, source, target, formats.of_feed_forward)
    if name == "attn":
        assert layer.mixer is not None
        return _mixer(layer.mixer, layer.norm, source, target, rotary, formats.without_experts)
    assert layer.cross is not None
    return tuple(cross_attention(layer.cross, source, target, formats))


@lru_cache(maxsize=1024)
def _feed_forward(spec: FeedForward, source: Tensor, target: Tensor, formats: Formats) -> tuple[Op, ...]:
    """Graphs that differ in their attention, their cache or their ends share it."""
    if isinstance(spec, Mlp):
        return tuple(map(shared, mlp(spec, source, target, formats)))
    return tuple(map(shared, mixture_of_experts(spec, source, target, formats)))


@lru_cache(maxsize=1024)
def _mixer(spec: Mixer, norm: Norm, source: Tensor, target: Tensor, rotary: bool, formats: Formats) -> tuple[Op, ...]:
    match spec:
        case Attention():
            ops = attention(spec, norm, rotary, source, target, formats)
        case LatentAttention():
            ops = latent_attention(spec, norm, source, target, formats, formats.decode)
        case _:
            ops = recurrent(spec, norm, source, target, formats)
    return tuple(map(shared, ops))


def _sublayer(name: str, layer: Layer, entering: Tensor, leaving: Tensor, rotary: bool, formats: Formats) -> list[Op]:
    """Norm, body and addition, with the norms where the layer's placement puts them."""
    norm, width = layer.norm, entering.shape[-1]
    before = norm.placement in ("pre", "sandwich")
    after = norm.placement in ("sandwich", "output")
    ops: list[Op] = []
    source = entering
    if before:
        source = activation(f"{name}_input", formats.activations, width)
        ops.append(normalise(f"{name}_norm", norm, entering, source, formats))
    output = activation(f"{name}_projected", formats.base, width)
    ops += _reduced(name, layer, source, output, rotary, formats)
    if after:
        normed = activation(f"{name}_normed", formats.base, width)
        ops.append(normalise(f"{name}_post_norm" if before else f"{name}_norm", norm, output, normed, formats))
        output = normed
    if norm.placement != "post":
        return [*ops, add(f"{name}_add", entering, output, leaving)]
    summed = activation(f"{name}_summed", formats.base, width)
    return [
        *ops,
        add(f"{name}_add", entering, output, summed),
        normalise(f"{name}_norm", norm, summed, leaving, formats),
    ]


def _parallel(layer: Layer, entering: Tensor, leaving: Tensor, rotary: bool, formats: Formats) -> list[Op]:
    """Mixer and feed-forward block read the same stream, through one norm or one each, and are both added to it."""
    width = entering.shape[-1]
    attn_input = activation("attn_input", formats.activations, width)
    mlp_input = attn_input if layer.shared_norm else activation("mlp_input", formats.activations, width)
    attn_output = activation("attn_projected", formats.base, width)
    mlp_output = activation("mlp_projected", formats.base, width)
    between = activation("hidden_between", formats.base, width)
    return [
        normalise("attn_norm", layer.norm, entering, attn_input, formats),
        *_reduced("attn", layer, attn_input, attn_output, rotary, formats),
        *([] if layer.shared_norm else [normalise("mlp_norm", layer.norm, entering, mlp_input, formats)]),
        *_reduced("mlp", layer, mlp_input, mlp_output, rotary, formats),
        add("attn_add", entering, attn_output, between),
        add("mlp_add", between, mlp_output, leaving),
    ]


def modulated(ops: list[Op], hidden: int, vectors: int, formats: Formats) -> list[Op]:
    """`ops` under adaLN-Zero (Peebles and Xie 2023): norms are shifted and scaled, additions gated, by the condition.

    The vectors come from one product a sample, whatever the number of its tokens.
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
