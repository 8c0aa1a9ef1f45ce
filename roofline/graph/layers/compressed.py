"""Attention of DeepSeek-V4 (2026, section 2.3): a window of tokens, and entries that pool the tokens before.

A layer caches one vector a token of the window, and one for every `ratio` tokens of the sequence, which are keys and
values of all heads at once. Compressed sparse attention (CSA, ratio 4) scores its entries with an indexer, whose keys
are compressed as well, and attends to the best; heavily compressed attention (HCA, ratio 128) attends to all.

In DeepSeek-V4.1 (2026) few layers store entries, of two tokens or of one, which the layers after them read; index keys
are projected from the entries and kept in FP4.
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, AttentionMask
from roofline.graph.layers.attention import attention_ops
from roofline.graph.layers.basic import (
    STATE_FORMAT,
    Formats,
    Ops,
    activation,
    linear,
    low_rank_query,
    normalise,
    vectors,
)
from roofline.graph.layers.flops import ROPE_FLOPS, SOFTMAX_FLOPS
from roofline.graph.layers.indexer import NARROW, PACKED, scored
from roofline.graph.op import Kind, Op
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import Format
from roofline.specs.model import Norm
from roofline.specs.sublayers import CompressedAttention, Indexer

POOLED = Norm("rmsnorm")

EXACT = 64
"""Elements that share a scale of one byte in the cache (vLLM and SGLang; the reference code of the checkpoint)."""


def cache_format(spec: CompressedAttention, formats: Formats) -> Format:
    """The format of a cached vector: FP8 and rotary elements in 16 bits, 584 bytes for 512 elements.

    Engines keep no other cache of these models in 16 bits or FP8 (vLLM, fp8_ds_mla; SGLang); others are as asked for.
    """
    if formats.kv.bits < 16 and formats.kv.name != "fp8":
        return formats.kv
    narrow = spec.head_dim - spec.rope_dim
    scales = -(-narrow // EXACT) + 1  # one more, to fill eight bytes
    return Format("fp8_rope", 8 * (narrow + 2 * spec.rope_dim + scales) / spec.head_dim, "fp8")


def compressed_masks(attention: CompressedAttention) -> tuple[AttentionMask, AttentionMask | None, AttentionMask]:
    """What the attention of DeepSeek-V4 reads, what its indexer scores (None without entries), and its window alone."""
    window = AttentionMask(window=attention.window)
    if attention.ratio is None:
        return window, None, window
    index = attention.indexer
    selected, candidates = (None, None) if index is None else (index.selected, index.candidates)
    mask = AttentionMask(window=attention.window, selected=selected, ratio=attention.ratio)
    return mask, AttentionMask(selected=candidates, ratio=attention.ratio), window


def compressed_attention(
    spec: CompressedAttention, norm: Norm, source: Tensor, target: Tensor, formats: Formats
) -> list[Op]:
    """The operators of the layer, from the normalised input to the output projection."""
    heads, width = spec.heads, spec.head_dim
    cached = cache_format(spec, formats)
    down = activation("query_down", formats.base, spec.q_rank)
    normed = activation("query_normed", formats.activations, spec.q_rank)
    projected, query = (
        activation("query_projected", formats.base, heads, width),
        activation("query", formats.attention, heads, width),
    )
    latent, bare = Tensor("latent", Role.KV, (BATCH, QUERIES, width), cached), replace(norm, weight=False)
    ops = Ops(formats)
    low_rank_query(ops, norm, source, down, normed, projected)
    ops.append(_rotated(normalise("q_norm", bare, projected, query, formats), heads * spec.rope_dim))
    latent_projected = ops.project("kv_proj", source, "latent_projected", width)
    ops.append(_rotated(normalise("kv_norm", norm, latent_projected, latent, formats), spec.rope_dim))
    mask, entries, window = compressed_masks(spec)
    if entries is not None and not spec.shared:
        entry = Tensor("entry", Role.KV, (BATCH, QUERIES / (spec.ratio or 1), width), cached)
        ops += _compressed("compress", spec, source, entry, formats)
        if spec.indexer is not None:
            ops += _index_keys(spec, spec.indexer, source, entry, formats)
    if entries is not None and spec.own_indexer is not None:
        index, keys = spec.own_indexer, PACKED if spec.projected else NARROW
        index_query = activation("index_query", NARROW, index.heads, index.head_dim)
        ops.append(linear("index_q_proj", normed, index_query, formats))
        ops += scored(index, source, index_query, entries, formats, keys, stored=not spec.shared)
    attended = activation("attn_attended", formats.base, heads, width)
    held = window.held if spec.shared else mask.held
    latents = Tensor("latent_cache", Role.KV, (BATCH, mask.keys, width), cached, (BATCH, held, width))
    sinks = vectors("softmax", ["sinks"], heads, formats.weight("norm"))
    ops += attention_ops(mask, query, latents, latents, attended, formats, sinks)
    return [*ops, *_output(spec, attended, target, formats)]


def _index_keys(spec: CompressedAttention, index: Indexer, source: Tensor, entry: Tensor, formats: Formats) -> list[Op]:
    """The indexer's key of each entry: compressed like the entries, or projected from them."""
    rows = QUERIES / (spec.ratio or 1)
    if not spec.projected:
        key = Tensor("index_key", Role.KV, (BATCH, rows, index.head_dim), NARROW)
        return _compressed("index_compress", spec, source, key, formats)
    key = Tensor("index_key", Role.KV, (BATCH, rows, index.head_dim), PACKED)
    projected = Tensor("index_key_projected", Role.ACTIVATION, key.shape, formats.base)
    entries = replace(entry, name="entries", role=Role.ACTIVATION, format=formats.base)
    return [
        linear("index_k_proj", entries, projected, formats),
        normalise("index_k_norm", POOLED, projected, key, formats),
    ]


def _rotated(op: Op, elements: int) -> Op:
    return replace(op, vector_flops=op.vector_flops + BATCH * QUERIES * (ROPE_FLOPS * elements))


def _compressed(name: str, spec: CompressedAttention, source: Tensor, entry: Tensor, formats: Formats) -> list[Op]:
    """Entries of `ratio` tokens: the mean of the tokens' vectors with softmax weights, a learned bias by place, a norm.

    Two projections make vectors and weights, both unquantized (DeepSeek-V4's checkpoint). Tokens of an unfinished entry
    wait in a state in 32 bits, with overlap those of the entry before as well. An entry of one token is its vector.
    """
    ratio, columns = spec.ratio or 1, spec.overlap * int(entry.width)
    if ratio == 1:
        alone = activation(f"{name}_vector", formats.base, columns)
        made = linear(f"{name}_kv_proj", source, alone, formats, component="router")
        return [made, normalise(f"{name}_norm", POOLED, alone, entry, formats)]
    vector, weight = (activation(f"{name}_{part}", formats.base, columns) for part in ("vector", "weight"))
    waiting = Tensor(
        f"{name}.state",
        Role.STATE,
        (BATCH, spec.overlap, 2 * columns),
        STATE_FORMAT,
        (BATCH, spec.overlap * ratio, 2 * columns),
    )
    place = Tensor(f"{name}.place", Role.WEIGHT, (ratio, columns), formats.weight("norm"))
    pooled = normalise(f"{name}_norm", POOLED, replace(entry, role=Role.ACTIVATION), entry, formats)
    flops = pooled.vector_flops + BATCH * QUERIES * ((SOFTMAX_FLOPS + 3) * columns)  # bias, product and sum
    return [
        linear(f"{name}_kv_proj", source, vector, formats, component="router"),
        linear(f"{name}_gate_proj", source, weight, formats, component="router"),
        Op(
            name,
            Kind.ELEMENTWISE,
            reads=(vector, weight, waiting, *([] if spec.projected else [place]), *pooled.reads[1:]),
            writes=(entry, replace(waiting, stored=(0,))),
            vector_flops=flops,
        ),
    ]


def _output(spec: CompressedAttention, attended: Tensor, target: Tensor, formats: Formats) -> list[Op]:
    """The rotation is undone on the values, then each group of heads has its own first projection."""
    heads, width, groups = spec.heads, spec.head_dim, spec.output_groups
    unrotated = activation("attn_output", formats.activations, heads, width)
    low = activation("attn_low", formats.activations, groups * spec.output_rank)
    weight = Tensor(
        "o_a_proj.weight", Role.WEIGHT, (groups * spec.output_rank, heads * width // groups), formats.weight("o_a_proj")
    )
    flops = BATCH * QUERIES * (2 * heads * width * spec.output_rank * weight.format.density)
    rope = BATCH * QUERIES * (ROPE_FLOPS * heads * spec.rope_dim)
    return [
        Op("output_rope", Kind.ROPE, (attended,), (unrotated,), vector_flops=rope),
        Op("o_a_proj", Kind.GEMM, (unrotated, weight), (low,), flops, operands=(unrotated, weight)),
        linear("o_b_proj", low, target, formats),
    ]
