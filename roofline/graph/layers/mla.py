"""Multi-head latent attention (MLA; DeepSeek-V2, 2024, section 2.1), optionally sparse with the DSA indexer.

The KV cache holds one latent vector and one rotary key per token, for all heads. There are two ways to compute:

* expanded: keys and values of every head are projected up from the latents. Fewest FLOPs with many queries: prefill.
* absorbed: the up-projections are applied to query and output instead, and attention over the latents is MQA with heads
  of kv_rank + rope_dim. Least traffic with one query: decode. DSA always uses it (DeepSeek-V3.2, 2025, section 2.1),
  because a token gathers its keys once for all heads.
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, AttentionMask
from roofline.graph.layers.attention import attention_ops, context_link, over_context
from roofline.graph.layers.basic import Formats, Ops, activation, elementwise, linear, low_rank_query, normalise
from roofline.graph.layers.flops import ROPE_FLOPS, SIGMOID_FLOPS
from roofline.graph.layers.indexer import token_indexer, unused_keys
from roofline.graph.op import Kind, Op
from roofline.graph.size import Size
from roofline.graph.tensor import Role, Tensor
from roofline.specs.model import Norm
from roofline.specs.sublayers import LatentAttention


def latent_attention(
    spec: LatentAttention, norm: Norm, source: Tensor, target: Tensor, formats: Formats, absorbed: bool
) -> list[Op]:
    """The operators of MLA, from the normalised input to the output projection."""
    heads, qk_dim = spec.heads, spec.nope_dim + spec.rope_dim
    query = activation("query", formats.attention, heads, qk_dim)
    latent = Tensor("latent", Role.KV, (BATCH, QUERIES, spec.kv_rank + spec.rope_dim), formats.kv)
    output = activation("attn_output", formats.activations, heads, spec.value_dim)
    ops, compressed = Ops(formats), source  # from which an indexer projects its queries
    if spec.q_rank is None:
        ops.append(linear("q_proj", source, query, formats))
    else:
        compressed = activation("query_normed", formats.activations, spec.q_rank)
        low_rank_query(ops, norm, source, activation("query_down", formats.base, spec.q_rank), compressed, query)
    down = ops.project("kv_a_proj", source, "latent_projected", spec.kv_rank + spec.rope_dim)
    rotated = BATCH * QUERIES * (heads + 1) * (spec.rope_dim if spec.rotary else 0)
    normed = normalise("kv_a_norm", norm, activation("latent_projected", formats.base, spec.kv_rank), latent, formats)
    flops = normed.vector_flops + ROPE_FLOPS * rotated
    unused = (unused_keys(spec.indexer),) if spec.indexer is not None and spec.own_indexer is None else ()
    ops.append(replace(normed, reads=(down, *normed.reads[1:], *unused), vector_flops=flops))
    _, shards, split = formats.parallel.cache_parts(formats.decode)
    selected = spec.indexer.selected if spec.indexer else None
    mask = AttentionMask(selected=selected, shards=shards, split=split)
    if spec.own_indexer is not None:
        ops += token_indexer(spec.own_indexer, source, compressed, formats)
    summed = activation("attn_attended", formats.base, heads, spec.value_dim) if spec.gate else output
    ops += (_absorbed if absorbed or spec.indexer else _expanded)(spec, mask, query, summed, formats)
    if spec.gate:
        width = 1 if spec.gate == "head" else spec.value_dim
        gate = ops.project("attn_gate_proj", source, "attn_gate", heads, width, component="o_proj")
        flops = (SIGMOID_FLOPS + 1) * output.elements
        ops.append(elementwise("attn_gating", Kind.ACTIVATION, (summed, gate), output, flops))
    ops.append(linear("o_proj", output, target, formats))
    return ops


def _cache(spec: LatentAttention, mask: AttentionMask, formats: Formats) -> Tensor:
    """The latents; engines keep those of DSA in FP8 with rotary keys in 16 bits and a scale for 128 elements.

    656 bytes for 576 elements (fp8_ds_mla in vllm/v1/kv_cache_interface.py; SGLang as well).
    """
    width = kept = spec.kv_rank + spec.rope_dim
    if spec.indexer is not None and formats.kv.bits == 8:
        kept = spec.kv_rank + spec.kv_rank // 32 + 2 * spec.rope_dim
    return Tensor("latent_cache", Role.KV, (BATCH, mask.keys, width), formats.kv, (BATCH, mask.held, kept))


def _up_weight(spec: LatentAttention, formats: Formats, part: str, width: int) -> Tensor:
    """The part of the up-projection for keys or for values."""
    return Tensor(f"kv_b_proj.{part}", Role.WEIGHT, (spec.heads * width, spec.kv_rank), formats.weight("kv_b_proj"))


def _expanded(spec: LatentAttention, mask: AttentionMask, query: Tensor, output: Tensor, formats: Formats) -> list[Op]:
    heads, rows = spec.heads, BATCH * mask.keys
    keys = Tensor("keys", Role.ACTIVATION, (BATCH, mask.keys, heads, spec.nope_dim + spec.rope_dim), formats.attention)
    values = Tensor("values", Role.ACTIVATION, (BATCH, mask.keys, heads, spec.value_dim), formats.attention)
    latents = _cache(spec, mask, formats)
    weights = (_up_weight(spec, formats, "key", spec.nope_dim), _up_weight(spec, formats, "value", spec.value_dim))
    up = Op(
        "kv_b_proj",
        Kind.GEMM,
        reads=(latents, *weights),
        writes=(keys, values),
        matrix_flops=2 * rows * (spec.kv_rank * heads * (spec.nope_dim + spec.value_dim) * weights[0].format.density),
        operands=(latents, *weights),
    )
    link = context_link(mask, spec.kv_rank + spec.rope_dim, formats)
    return [up, *attention_ops(mask, query, keys, values, output, formats, link=link)]


def _absorbed(spec: LatentAttention, mask: AttentionMask, query: Tensor, output: Tensor, formats: Formats) -> list[Op]:
    heads, width, tokens = spec.heads, spec.kv_rank + spec.rope_dim, BATCH * QUERIES
    absorbed_query = activation("query_latent", formats.attention, heads, width)
    latents = _cache(spec, mask, formats)
    attended = activation("attn_latent", formats.base, heads, spec.kv_rank)
    key_weight = _up_weight(spec, formats, "key", spec.nope_dim)
    value_weight = _up_weight(spec, formats, "value", spec.value_dim)
    return [
        _batched_gemm("q_absorb", query, key_weight, absorbed_query, 2 * tokens * heads * spec.nope_dim * spec.kv_rank),
        *over_context(
            absorbed_query,
            attended,
            formats,
            lambda queries, summed: attention_ops(mask, queries, latents, latents, summed, formats),
        ),
        _batched_gemm("v_absorb", attended, value_weight, output, 2 * tokens * heads * spec.kv_rank * spec.value_dim),
    ]


def _batched_gemm(name: str, source: Tensor, weight: Tensor, target: Tensor, flops: Size) -> Op:
    """A batched GEMM with each head's own part of a weight."""
    return Op(name, Kind.GEMM, (source, weight), (target,), flops * weight.format.density, operands=(source, weight))
