"""The indexers of sparse attention: small heads score the cached keys of a token, and the best are attended to.

* DSA (DeepSeek-V3.2, 2025, section 2.1): a key for each token, the top k of all.
* CSA (DeepSeek-V4, 2026, section 2.3.1): a key for each compressed entry, the top k of them.
* CSA of DeepSeek-V4.1: the same, in later layers among the candidates that an earlier one left.
* MSA (MiniMax-M3): a key for each token, and for each KV head the blocks of keys with the greatest scores.
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES, AttentionMask
from roofline.graph.layers.basic import Formats, Ops, activation, linear, normalise
from roofline.graph.layers.flops import INDEX_FLOPS, ROPE_FLOPS
from roofline.graph.op import Kind, Op
from roofline.graph.size import Dim, as_size
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import Format, find_format
from roofline.specs.model import Norm
from roofline.specs.sublayers import Indexer

NARROW = find_format("fp8_group")
"""DeepSeek's indexers score in FP8 with one scale a vector, whatever the other formats, as in the paper, vLLM
(DeepseekV32IndexerCache) and SGLang (132 bytes per key)."""


PACKED = find_format("mxfp4")
"""The index keys of DeepSeek-V4.1, 68 bytes each (SGLang's packed FP4 keys; MXFP4 keys in Dynamo's recipe of vLLM)."""


def token_indexer(indexer: Indexer, source: Tensor, compressed: Tensor, formats: Formats) -> list[Op]:
    """DSA: queries come from the `compressed` query of MLA, one key a token from the `source`."""
    projected = activation("index_key_projected", formats.base, indexer.head_dim)
    key = Tensor("index_key", Role.KV, (BATCH, QUERIES, indexer.head_dim), NARROW)
    query = activation("index_query", NARROW, indexer.heads, indexer.head_dim)
    return [
        linear("index_q_proj", compressed, query, formats),
        linear("index_k_proj", source, projected, formats),
        normalise("index_k_norm", Norm("layernorm"), projected, key, formats),
        *scored(indexer, source, query, AttentionMask(), formats),
    ]


def unused_keys(indexer: Indexer) -> Tensor:
    """The keys of a layer that reuses another one's selection: engines allocate them, and nothing reads them.

    GLM-5.2 in NVFP4 on eight B300 has room for 3.3 million tokens (SemiAnalysisAI/InferenceX, pull request 2268).
    """
    return replace(_keys(indexer, AttentionMask(), NARROW), shape=(0,))


def scored(
    indexer: Indexer,
    source: Tensor,
    query: Tensor,
    mask: AttentionMask,
    formats: Formats,
    kept: Format = NARROW,
    stored: bool = True,
) -> list[Op]:
    """DeepSeek's scores, weighted sums over the heads, and the top-k, which counts one FLOP per score.

    Keys are `kept` in that format, in this layer or not `stored` here but in an earlier one.
    """
    weights = activation("index_weights", formats.base, indexer.heads)
    visible, keys = BATCH * mask.pairs * indexer.heads, _keys(indexer, mask, kept)
    keys = keys if stored else replace(keys, stored=(0,))
    reads, scores = (
        (query, keys, weights),
        Tensor("index_scores", Role.ACTIVATION, (BATCH, QUERIES, mask.keys), formats.base),
    )
    flops = 2 * visible * indexer.head_dim, INDEX_FLOPS * visible
    return [
        linear("index_weights_proj", source, weights, formats, component="router"),  # never quantized, like routers
        Op("index_scores", Kind.INDEX, reads, (scores,), *flops, operands=(query, keys), mask=mask),
        _top_k(scores, (BATCH, QUERIES, indexer.selected), mask, BATCH * mask.pairs),
    ]


def block_indexer(indexer: Indexer, source: Tensor, norm: Norm, formats: Formats) -> list[Op]:
    """MSA: normalised, rotated queries and keys; a score is the greatest in its block, which counts one FLOP a key."""
    width, mask, heads = indexer.head_dim, AttentionMask(), indexer.heads
    ops = Ops(formats)
    projected = ops.project("block_q_proj", source, "index_query_projected", heads, width, component="index_q_proj")
    key_projected = ops.project("block_k_proj", source, "index_key_projected", width, component="index_k_proj")
    query = activation("index_query", formats.attention, heads, width)
    key = Tensor("index_key", Role.KV, (BATCH, QUERIES, width), formats.kv)
    for name, read, made in (("block_q_norm", projected, query), ("block_k_norm", key_projected, key)):
        op = normalise(name, norm, read, made, formats)
        ops.append(replace(op, vector_flops=op.vector_flops + ROPE_FLOPS * made.elements))
    operands, visible = (query, _keys(indexer, mask, formats.kv)), BATCH * mask.pairs * heads
    blocks = Tensor("index_scores", Role.ACTIVATION, (BATCH, QUERIES, heads, mask.keys / indexer.block), formats.base)
    flops = 2 * visible * width, visible
    ops.append(Op("index_scores", Kind.INDEX, operands, (blocks,), *flops, operands=operands, mask=mask))
    picked = (BATCH, QUERIES, heads, indexer.selected // indexer.block)
    return [*ops, _top_k(blocks, picked, mask, visible / indexer.block)]


def _keys(indexer: Indexer, mask: AttentionMask, format: Format) -> Tensor:
    shape: tuple[Dim, ...] = (BATCH, mask.keys, indexer.head_dim)
    return Tensor("index_key_cache", Role.KV, shape, format, (BATCH, mask.held, indexer.head_dim))


def _top_k(scores: Tensor, shape: tuple[Dim, ...], mask: AttentionMask, count: Dim) -> Op:
    picked = Tensor("picked", Role.ACTIVATION, shape, find_format("fp32"))
    return Op("index_top_k", Kind.TOP_K, (scores,), (picked,), vector_flops=as_size(count), mask=mask)
