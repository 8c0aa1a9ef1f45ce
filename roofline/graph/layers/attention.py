"""Softmax attention: multi-head, grouped-query or multi-query; full, windowed, sparse or across to an encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, View, view_of
from roofline.graph.layers.basic import Formats, activation, collective, elementwise, linear, normalise, vectors
from roofline.graph.op import Kind, Link, Op
from roofline.graph.parallel import Collective
from roofline.graph.size import Size, symbol
from roofline.graph.tensor import Role, Tensor
from roofline.specs.model import Attention, Norm

SOFTMAX_FLOPS = 5  # maximum, subtract, exponential, sum, divide
ROPE_FLOPS = 3  # times cosine, times sine, add
GATE_FLOPS = 5  # sigmoid (negate, exponential, add, divide) and one multiplication


def attention(spec: Attention, norm: Norm, rotary: bool, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """The operators from the normalised input to the output projection.

    K and V go to the cache in the cache's format, written by the last operator that touches them. Traffic of K and V
    scales with the kv heads, arithmetic with the query heads: each head of a group reads the same keys.
    """
    rotary = rotary if spec.rotary is None else spec.rotary
    heads, kv_heads, width = spec.heads, spec.kv_heads, spec.head_dim
    query = activation("query", formats.attention, heads, width)
    key_new = Tensor("key", Role.KV, (BATCH, QUERIES, kv_heads, width), formats.kv)
    value_new = Tensor("value", Role.KV, (BATCH, QUERIES, kv_heads, width), formats.kv)

    # Each stage between a projection and its final tensor takes the previous stage's output.
    stages = ("projected", *(["normalised"] if spec.qk_norm else []), *(["rotated"] if rotary else []))
    queries = [activation(f"query_{stage}", formats.base, heads, width) for stage in stages[:-1]] + [query]
    new_keys = [activation(f"key_{stage}", formats.base, kv_heads, width) for stage in stages[:-1]] + [key_new]
    ops = [linear("q_proj", source, queries[0], formats, spec.qkv_bias)]
    gate = activation("attn_gate", formats.base, heads, width)
    if spec.gate:
        ops.append(linear("q_gate_proj", source, gate, formats, component="q_proj"))
    if not spec.kv_shared:
        ops.append(linear("k_proj", source, new_keys[0], formats, spec.qkv_bias))
        made = _values(spec, new_keys[0], value_new, formats)
        if spec.values != "keys":
            ops.append(linear("v_proj", source, made, formats, spec.qkv_bias))
        if spec.values != "projected":
            ops.append(normalise("v_norm", dataclasses.replace(norm, weight=False), made, value_new, formats))
    if spec.qk_norm:
        ops.append(_head_norm("q_norm", spec, norm, queries[0], queries[1], formats))
        if not spec.kv_shared:
            ops.append(_head_norm("k_norm", spec, norm, new_keys[0], new_keys[1], formats))
    if rotary:
        turned = (queries[-2],) if spec.kv_shared else (queries[-2], new_keys[-2])
        written = (query,) if spec.kv_shared else (query, key_new)
        flops = ROPE_FLOPS * sum((tensor.elements for tensor in turned), start=Size({}))
        ops.append(Op("rope", Kind.ROPE, reads=turned, writes=written, vector_flops=flops))
    output = activation("attn_output", formats.activations, heads, width)
    summed = activation("attn_attended", formats.base, heads, width) if spec.gate else output
    ops += _attend(spec, query, summed, formats)
    if spec.gate:
        flops = GATE_FLOPS * output.elements
        ops.append(elementwise("attn_gating", Kind.ACTIVATION, (summed, gate), output, flops))
    ops.append(linear("o_proj", output, target, formats, spec.output_bias))
    return ops


def _values(spec: Attention, key: Tensor, value: Tensor, formats: Formats) -> Tensor:
    """What the cached `value` is made of: itself where it is only projected, or the projected `key`."""
    if spec.values == "projected":
        return value
    return key if spec.values == "keys" else activation("value_projected", formats.base, spec.kv_heads, spec.head_dim)


def _attend(spec: Attention, query: Tensor, output: Tensor, formats: Formats) -> list[Op]:
    """The products, with what sequence parallelism adds to them.

    In prefill the keys and values of all ranks travel round a ring while they are multiplied. In decode each rank
    attends to its share of the cache, and outputs are merged with the sums of their softmax.
    """
    ranks = formats.parallel.sequence
    if ranks == 1:
        return products(spec, view_of(spec), query, output, formats)
    reach = formats.parallel.devices // formats.parallel.pipeline
    if not formats.decode:
        view = view_of(spec, ring=ranks)
        block = Tensor("ring", Role.KV, (BATCH, view.keys, 2 * spec.kv_heads, spec.head_dim), formats.kv)
        link = Link(block.bytes * ((ranks - 1) / ranks), ranks - 1, ranks, reach)
        return products(spec, view, query, output, formats, link)
    partial = replace(output, name=f"{output.name}_partial", format=formats.base)
    merge = collective("attn_merge", Collective.ALL_REDUCE, partial, output, ranks, reach)
    return [*products(spec, view_of(spec, shards=ranks), query, partial, formats), merge]


def _head_norm(name: str, spec: Attention, norm: Norm, source: Tensor, target: Tensor, formats: Formats) -> Op:
    """A norm over each head, or over all heads of the token together."""
    if spec.qk_norm == "unweighted":
        norm = dataclasses.replace(norm, weight=False)
    if spec.qk_norm != "full":
        return normalise(name, norm, source, target, formats)
    *rows, heads, width = source.shape
    assert isinstance(heads, int)
    assert isinstance(width, int)
    flat = Tensor(source.name, source.role, (*rows, heads * width), source.format)
    return normalise(name, norm, flat, target, formats)


def products(
    spec: Attention, view: View, query: Tensor, output: Tensor, formats: Formats, link: Link | None = None
) -> list[Op]:
    """Scores, softmax and weighted sum as three kernels, the scores materialised whole between them.

    The mask leaves `pairs` query-key pairs of queries * keys; only those need arithmetic, but a materialised score
    matrix has all of them. `link` is what sequence parallelism sends while the scores are made.
    """
    heads, kv_heads, width = spec.heads, spec.kv_heads, spec.head_dim
    seen, shape = view.keys, (BATCH, view.keys, kv_heads, width)
    # Layers that attend to an earlier layer's cache keep none of their own.
    kept = (0,) if spec.kv_shared else (BATCH, view.held, kv_heads, width)
    cached_keys = Tensor("key_cache", Role.KV, shape, formats.kv, kept)
    cached_values = Tensor("value_cache", Role.KV, shape, formats.kv, kept)
    scores = Tensor("scores", Role.ACTIVATION, (BATCH, heads, QUERIES, seen), formats.base)
    probabilities = Tensor("probabilities", Role.ACTIVATION, scores.shape, formats.attention)
    visible = BATCH * heads * view.pairs
    sinks = vectors("softmax", ["sinks"] if spec.sinks else [], heads, formats.weight("norm"))
    return [
        Op(
            "qk_matmul",
            Kind.ATTENTION,
            reads=(query, cached_keys),
            writes=(scores,),
            matrix_flops=2 * visible * width,
            operands=(query, cached_keys),
            link=link,
            view=view,
        ),
        Op(
            "softmax",
            Kind.SOFTMAX,
            reads=(scores, *sinks),
            writes=(probabilities,),
            vector_flops=SOFTMAX_FLOPS * visible,
        ),
        Op(
            "sv_matmul",
            Kind.ATTENTION,
            reads=(probabilities, cached_values),
            writes=(output,),
            matrix_flops=2 * visible * width,
            operands=(probabilities, cached_values),
            view=view,
        ),
    ]


ENCODED = symbol("encoded")
"""Tokens of the encoder's output that are projected to keys and values in this pass: all of them, or none."""

ENCODING = symbol("encoding")
"""1 in the pass that projects them, else 0."""


def cross_attention(spec: Attention, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """Attention from the decoder's tokens to the encoder's output.

    Its keys and values are projected once, in the pass that starts the generation, and cached.
    """
    heads, kv_heads, width = spec.heads, spec.kv_heads, spec.head_dim
    hidden = source.shape[-1]
    encoded = Tensor("encoder_output", Role.ACTIVATION, (BATCH, ENCODED, hidden), formats.base)
    query = activation("cross_query", formats.attention, heads, width)
    output = activation("cross_output", formats.activations, heads, width)
    keys = Tensor("cross_key", Role.KV, (BATCH, ENCODED, kv_heads, width), formats.kv)
    values = Tensor("cross_value", Role.KV, (BATCH, ENCODED, kv_heads, width), formats.kv)
    return [
        linear("cross_q_proj", source, query, formats, spec.qkv_bias, "q_proj"),
        _projected_once(linear("cross_k_proj", encoded, keys, formats, spec.qkv_bias, "k_proj")),
        _projected_once(linear("cross_v_proj", encoded, values, formats, spec.qkv_bias, "v_proj")),
        *(_named_cross(op) for op in products(spec, view_of(spec, cross=True), query, output, formats)),
        linear("cross_o_proj", output, target, formats, spec.output_bias, "o_proj"),
    ]


def _changed(op: Op, change: Callable[[Tensor], Tensor]) -> Op:
    """`op` with other operands."""
    reads, writes, operands = (tuple(map(change, tensors)) for tensors in (op.reads, op.writes, op.operands))
    return replace(op, reads=reads, writes=writes, operands=operands)


def _projected_once(op: Op) -> Op:
    """A projection whose weights are read only in a pass that encodes."""

    def read_if_encoding(tensor: Tensor) -> Tensor:
        if tensor.role is not Role.WEIGHT:
            return tensor
        return replace(tensor, shape=(ENCODING, *tensor.shape), stored=tensor.stored_shape)

    return _changed(op, read_if_encoding)


def _named_cross(op: Op) -> Op:
    """An operator with names of its own for what the layer's self-attention has as well, such as the cache."""

    def named(tensor: Tensor) -> Tensor:
        return tensor if tensor.name.startswith("cross_") else replace(tensor, name=f"cross_{tensor.name}")

    return replace(_changed(op, named), name=f"cross_{op.name}")
