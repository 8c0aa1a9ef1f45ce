"""Softmax attention: multi-head, grouped-query or multi-query; full, windowed, sparse or across to an encoder."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, AttentionMask
from roofline.graph.layers.basic import (
    STATE_FORMAT,
    Formats,
    Ops,
    activation,
    collective,
    elementwise,
    linear,
    low_rank_query,
    normalise,
    vectors,
)
from roofline.graph.layers.flops import PAGE_FLOPS, ROPE_FLOPS, SIGMOID_FLOPS, SOFTMAX_FLOPS
from roofline.graph.layers.indexer import block_indexer
from roofline.graph.layers.recurrent import recurrence
from roofline.graph.op import Kind, Link, Op, with_tensors
from roofline.graph.parallel import Collective
from roofline.graph.size import Size, symbol, total
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import Format
from roofline.specs.model import Norm
from roofline.specs.sublayers import Attention


def mask_of(
    attention: Attention, cross: bool = False, ring: int = 1, shards: int = 1, split: int = 1, decode: bool = False
) -> AttentionMask:
    """The mask of softmax attention; keys are selected by pages in decode alone."""
    if cross:
        return AttentionMask(cross=True, causal=False)
    window, chunk = attention.window, attention.chunk
    selected = attention.selected if attention.page is None or decode else None
    if attention.indexer is not None:
        selected = min(attention.indexer.selected, selected or attention.indexer.selected)
    if chunk is not None and (window, selected, attention.kept) != (None, None, None):
        # A technique limits the keys further: a window of the chunk's size is the upper bound.
        window, chunk = min(window or chunk, chunk), None
    limits = (window, attention.extra, selected, attention.kept)
    return AttentionMask(*limits, causal=attention.causal, ring=ring, shards=shards, chunk=chunk, split=split)


def attention(spec: Attention, norm: Norm, rotary: bool, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """The operators of softmax attention, from the normalised input to the output projection.

    The last operator on K and V writes them to the KV cache in its format. Traffic of K and V scales with the KV heads,
    arithmetic with the query heads.
    """
    rotary = rotary if spec.rotary is None else spec.rotary
    heads, kv_heads, width, value_width = spec.heads, spec.kv_heads, spec.head_dim, spec.value_width
    query = activation("query", formats.attention, heads, width)
    key_new = Tensor("key", Role.KV, (BATCH, QUERIES, kv_heads, width), formats.kv)
    value_new = Tensor("value", Role.KV, (BATCH, QUERIES, kv_heads, value_width), formats.kv)

    # Each stage takes the output of the stage before.
    stages = ("projected", *(["normalised"] if spec.qk_norm else []), *(["rotated"] if rotary else []))
    queries = [activation(f"query_{stage}", formats.base, heads, width) for stage in stages[:-1]] + [query]
    new_keys = [activation(f"key_{stage}", formats.base, kv_heads, width) for stage in stages[:-1]] + [key_new]
    of_query, of_key, of_value = spec.biases
    ops = Ops(formats)
    if spec.query_rank is not None and not spec.unit:
        down = activation("query_latent", formats.base, spec.query_rank)
        low_rank_query(ops, norm, source, down, replace(down, name="query_latent_normed"), queries[0])
    elif not spec.unit:
        ops.append(linear("q_proj", source, queries[0], formats, of_query))
    gate = activation("attn_gate", formats.base, heads, 1 if spec.gate == "head" else value_width)
    if spec.gate:
        ops.append(linear("q_gate_proj", source, gate, formats, of_query and spec.gate is True, "q_proj"))
    if not spec.kv_shared:
        ops.append(linear("k_proj", source, new_keys[0], formats, of_key))
        if spec.unit:  # a gated attention unit: queries are the keys, scaled and shifted, and so is what keys add
            learned = vectors("unit", ["q_scale", "q_shift", "k_scale", "k_shift"], width, formats.weight("norm"))
            reads, flops = (new_keys[0], *learned), 4 * queries[0].elements
            ops.append(elementwise("unit_scale", Kind.ELEMENTWISE, reads, queries[0], flops))
        made = activation("value_projected", formats.base, kv_heads, value_width)
        made = {"projected": value_new, "keys": new_keys[0]}.get(spec.values, made)
        if spec.values != "keys":
            ops.append(linear("v_proj", source, made, formats, of_value))
        if spec.values != "projected":
            ops.append(normalise("v_norm", replace(norm, weight=False), made, value_new, formats))
    if spec.qk_norm:
        chains = [("q_norm", queries), *([] if spec.kv_shared else [("k_norm", new_keys)])]
        norms = [_head_norm(name, spec, norm, chain[0], chain[1], formats) for name, chain in chains]
        ops += _joined(norms, formats) if spec.qk_norm == "full" else norms
    if rotary:
        turned = (queries[-2],) if spec.kv_shared else (queries[-2], new_keys[-2])
        written = (query,) if spec.kv_shared else (query, key_new)
        flops = ROPE_FLOPS * sum((tensor.elements for tensor in turned), start=Size({}))
        ops.append(Op("rope", Kind.ROPE, reads=turned, writes=written, vector_flops=flops))
    output = activation("attn_output", formats.activations, heads, value_width)
    summed = activation("attn_attended", formats.base, heads, value_width) if spec.gate else output
    if spec.indexer is not None:
        ops += block_indexer(spec.indexer, source, norm, formats)
    if spec.page is not None and formats.decode:
        ops.append(_page_scores(spec, spec.page, query, formats))
    ops += _attend(spec, query, summed, formats)
    if spec.unit and spec.chunk is not None:
        state, earlier = (heads, width, value_width), activation("attn_earlier", formats.base, heads, value_width)
        flops = BATCH * QUERIES * 4 * math.prod(state)
        ops.append(recurrence("linear_attention", (query, key_new, value_new), state, earlier, flops))
    if spec.gate:
        flops = SIGMOID_FLOPS * gate.elements + output.elements
        ops.append(elementwise("attn_gating", Kind.ACTIVATION, (summed, gate), output, flops))
    ops.append(linear("o_proj", output, target, formats, spec.output_bias))
    return ops


def _page_scores(spec: Attention, page: int, query: Tensor, formats: Formats) -> Op:
    """Quest's estimate: each head's query with the least and greatest keys of every page, element by element.

    The bounds are two vectors a page and KV head, kept beside the cache (Tang et al. 2024, section 3.3). A page of one
    key needs none: its score is that of the cached key. Reading and arithmetic are counted, the top-k of the scores is
    not.
    """
    mask = mask_of(spec, shards=formats.parallel.sequence)
    width = spec.kv_heads * spec.head_dim
    if page == 1:
        bounds = Tensor("page_bounds", Role.KV, (BATCH, mask.keys, width), formats.kv, (0,))
    else:
        shape = (BATCH, mask.keys / page, 2 * width)
        bounds = Tensor("page_bounds", Role.KV, shape, formats.base, (BATCH, mask.held / page, 2 * width))
    scores = Tensor("page_scores", Role.ACTIVATION, (BATCH, spec.heads, mask.keys / page), formats.base)
    each = 2 if page == 1 else PAGE_FLOPS
    flops = BATCH * (mask.keys / page) * (each * spec.heads * spec.head_dim)
    return elementwise("page_scores", Kind.ELEMENTWISE, (query, bounds), scores, flops)


def _attend(spec: Attention, query: Tensor, output: Tensor, formats: Formats) -> list[Op]:
    """Attention with sequence parallelism: ring attention in prefill; in decode, a KV cache sharded over the ranks.

    In decode each rank attends to its shard, and an all-reduce merges the outputs with their softmax sums.
    """
    ranks = formats.parallel.sequence
    if ranks == 1:
        _, shards, split = formats.parallel.cache_parts(formats.decode)
        mask = mask_of(spec, shards=shards, split=split, decode=formats.decode)
        link = context_link(mask, spec.kv_heads * (spec.head_dim + spec.value_width), formats)
        return over_context(
            query, output, formats, lambda queries, summed: cached_attention(spec, mask, queries, summed, formats, link)
        )
    reach = formats.parallel.devices // formats.parallel.pipeline
    if not formats.decode:
        mask = mask_of(spec, ring=ranks)
        shape = (BATCH, mask.keys, spec.kv_heads, spec.head_dim + spec.value_width)
        block = Tensor("ring", Role.KV, shape, formats.kv)
        link = Link(block.bytes * ((ranks - 1) / ranks), ranks - 1, ranks, reach)
        return cached_attention(spec, mask, query, output, formats, link)
    partial = replace(output, name=f"{output.name}_partial", format=formats.base)
    merge = collective("attn_merge_all_reduce", Collective.ALL_REDUCE, partial, output, ranks, reach)
    return [*cached_attention(spec, mask_of(spec, shards=ranks, decode=True), query, partial, formats), merge]


def context_link(mask: AttentionMask, width: int, formats: Formats) -> Link | None:
    """The gathering of the keys before a pass of prompts, of `width` elements, that tensor ranks hold in parts."""
    ranks = mask.split
    if ranks == 1:
        return None
    context = Tensor("context", Role.KV, (BATCH, mask.keys + QUERIES * -1, width), formats.kv)
    return Link(context.bytes * ((ranks - 1) / ranks), 1, ranks, ranks)


def over_context(
    query: Tensor, output: Tensor, formats: Formats, attend: Callable[[Tensor, Tensor], list[Op]]
) -> list[Op]:
    """Attention of decode with a KV cache whose tokens are divided among tensor ranks (decode context parallelism).

    Each rank attends to its tokens with the heads of all: queries are gathered, then the sums of exponentials, and the
    outputs, scaled by them, are summed and scattered (vllm-project/vllm, cp_lse_ag_out_rs).
    """
    ranks = formats.parallel.context
    if ranks == 1 or not formats.decode:
        return attend(query, output)

    def of_all(tensor: Tensor, name: str, format: Format) -> Tensor:
        *rows, heads, width = tensor.shape
        return Tensor(f"{tensor.name}_{name}", tensor.role, (*rows, heads * ranks, width), format)

    queries, partial = of_all(query, "gathered", query.format), of_all(output, "partial", formats.base)
    sums = activation("attn_sums", STATE_FORMAT, ranks, queries.shape[-2])
    gather = collective("query_all_gather", Collective.ALL_GATHER, queries, queries, ranks, ranks)
    weigh = collective("attn_sums_all_gather", Collective.ALL_GATHER, sums, sums, ranks, ranks)
    scatter = collective("attn_reduce_scatter", Collective.REDUCE_SCATTER, partial, output, ranks, ranks)
    return [
        replace(gather, reads=(query,)),
        *attend(queries, partial),
        replace(weigh, reads=(partial,)),
        replace(scatter, reads=(partial, sums)),
    ]


def _head_norm(name: str, spec: Attention, norm: Norm, source: Tensor, target: Tensor, formats: Formats) -> Op:
    """QK norm over each head, or over all heads of a token together."""
    if spec.qk_norm == "unweighted":
        norm = replace(norm, weight=False)
    if spec.qk_norm != "full":
        return normalise(name, norm, source, target, formats)
    *rows, heads, width = source.shape
    assert isinstance(heads, int)
    assert isinstance(width, int)
    flat = Tensor(source.name, source.role, (*rows, heads * width), source.format)
    return normalise(name, norm, flat, target, formats)


def _joined(norms: list[Op], formats: Formats) -> list[Op]:
    """Norms over all heads of a token: tensor-parallel ranks add up the sums of squares of their heads first.

    One all-reduce of both sums (vllm-project/vllm, pull request 31493; sgl-project/sglang, pull request 14416).
    """
    ranks = formats.parallel.tensor
    if ranks == 1 or formats.parallel.grid:
        return norms
    sources = tuple(op.reads[0] for op in norms)
    own, squares = (activation(name, STATE_FORMAT, len(norms)) for name in ("qk_squares_own", "qk_squares"))
    flops = total(2 * source.elements for source in sources)
    summed = elementwise("qk_squares", Kind.ELEMENTWISE, sources, own, flops)
    reduced = collective("qk_norm_all_reduce", Collective.ALL_REDUCE, own, squares, ranks, ranks)
    return [summed, reduced, *(replace(op, reads=(*op.reads, squares)) for op in norms)]


def cached_attention(
    spec: Attention, mask: AttentionMask, query: Tensor, output: Tensor, formats: Formats, link: Link | None = None
) -> list[Op]:
    """Attention of `query` to the KV cache; `link` is the communication of ring attention."""

    def cache(name: str, width: int) -> Tensor:
        # Layers that attend to an earlier layer's cache store none of their own.
        stored = (0,) if spec.kv_shared else (BATCH, mask.held, spec.kv_heads, width)
        return Tensor(name, Role.KV, (BATCH, mask.keys, spec.kv_heads, width), formats.kv, stored)

    keys, values = cache("key_cache", spec.head_dim), cache("value_cache", spec.value_width)
    sinks = vectors("softmax", ["sinks"] if spec.sinks else [], spec.heads, formats.weight("norm"))
    return attention_ops(mask, query, keys, values, output, formats, sinks, link)


def attention_ops(
    mask: AttentionMask,
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    output: Tensor,
    formats: Formats,
    sinks: tuple[Tensor, ...] = (),
    link: Link | None = None,
) -> list[Op]:
    """Scores, softmax and weighted sum as three kernels, with materialised scores.

    Only the `pairs` that the mask leaves of queries * keys need arithmetic, but the score matrix has all of them.
    """
    heads, width = query.shape[2:]
    scores = Tensor("scores", Role.ACTIVATION, (BATCH, heads, QUERIES, mask.keys), formats.base)
    probabilities = Tensor("probabilities", Role.ACTIVATION, scores.shape, formats.attention)
    visible = BATCH * heads * mask.pairs

    def matmul(name: str, left: Tensor, right: Tensor, target: Tensor, flops: Size, link: Link | None = None) -> Op:
        return Op(name, Kind.ATTENTION, (left, right), (target,), flops, operands=(left, right), link=link, mask=mask)

    return [
        matmul("qk_matmul", query, keys, scores, 2 * visible * width, link),
        elementwise("softmax", Kind.SOFTMAX, (scores, *sinks), probabilities, SOFTMAX_FLOPS * visible),
        matmul("sv_matmul", probabilities, values, output, 2 * visible * output.shape[-1]),
    ]


ENCODED = symbol("encoded")
"""Tokens of the encoder output that this pass projects to keys and values: all or none."""

ENCODING = symbol("encoding")
"""1 in the pass that projects the encoder output, else 0."""


def cross_attention(spec: Attention, source: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """Cross attention to the encoder output, whose keys and values the first pass projects and caches."""
    heads, kv_heads, width = spec.heads, spec.kv_heads, spec.head_dim
    hidden = spec.source_width or source.shape[-1]
    encoded = Tensor("encoder_output", Role.ACTIVATION, (BATCH, ENCODED, hidden), formats.base)
    query = activation("cross_query", formats.attention, heads, width)
    output = activation("cross_output", formats.activations, heads, width)
    keys = Tensor("cross_key", Role.KV, (BATCH, ENCODED, kv_heads, width), formats.kv)
    values = Tensor("cross_value", Role.KV, (BATCH, ENCODED, kv_heads, width), formats.kv)
    of_query, of_key, of_value = spec.biases
    return [
        linear("cross_q_proj", source, query, formats, of_query, "q_proj"),
        _projected_once(linear("cross_k_proj", encoded, keys, formats, of_key, "k_proj")),
        _projected_once(linear("cross_v_proj", encoded, values, formats, of_value, "v_proj")),
        *(_named_cross(op) for op in cached_attention(spec, mask_of(spec, cross=True), query, output, formats)),
        linear("cross_o_proj", output, target, formats, spec.output_bias, "o_proj"),
    ]


def _projected_once(op: Op) -> Op:
    """A projection whose weights are read only in the pass that projects the encoder output."""

    def read_if_encoding(tensor: Tensor) -> Tensor:
        if tensor.role is not Role.WEIGHT:
            return tensor
        return replace(tensor, shape=(ENCODING, *tensor.shape), stored=tensor.stored_shape)

    return with_tensors(op, read_if_encoding)


def _named_cross(op: Op) -> Op:
    """An operator with the prefix "cross_" in names shared with self-attention, such as the cache."""

    def named(tensor: Tensor) -> Tensor:
        return tensor if tensor.name.startswith("cross_") else replace(tensor, name=f"cross_{tensor.name}")

    return replace(with_tensors(op, named), name=f"cross_{op.name}")
