"""Multi-head latent attention (DeepSeek-V2, 2024, section 2.1), with the indexer of DeepSeek-V3.2 where there is one.

The cache holds one latent vector and one rotary key a token, for all heads. There are two ways to compute with it:

* expanded: keys and values of every head are projected up from the latents, then attention is as usual. Least
  arithmetic when many queries share the projection: prefill.
* absorbed: the up-projections are moved to the query and the output, and attention works on the latents themselves,
  as multi-query attention with heads of kv_rank + rope_dim. Least traffic when there is one query: decode. Sparse
  attention is always computed so (DeepSeek-V3.2, 2025, section 2.1): a token gathers its keys once for all heads.
"""

from __future__ import annotations

from roofline.graph.extents import BATCH, QUERIES, View, latent_view
from roofline.graph.layers.attention import ROPE_FLOPS, SOFTMAX_FLOPS
from roofline.graph.layers.basic import Formats, activation, elementwise, linear, normalise
from roofline.graph.op import Kind, Op
from roofline.graph.size import Dim, Size
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import find_format
from roofline.specs.model import Indexer, LatentAttention, Norm


def latent_attention(
    spec: LatentAttention, norm: Norm, source: Tensor, target: Tensor, formats: Formats, absorbed: bool
) -> list[Op]:
    """The operators from the normalised input to the output projection."""
    heads, qk_dim = spec.heads, spec.nope_dim + spec.rope_dim
    query = activation("query", formats.attention, heads, qk_dim)
    latent = Tensor("latent", Role.KV, (BATCH, QUERIES, spec.kv_rank + spec.rope_dim), formats.kv)
    output = activation("attn_output", formats.activations, heads, spec.value_dim)
    ops, compressed = _queries(spec, norm, source, query, formats)
    down = activation("latent_projected", formats.base, spec.kv_rank + spec.rope_dim)
    ops.append(linear("kv_a_proj", source, down, formats))
    turned = BATCH * QUERIES * (heads + 1) * spec.rope_dim
    normed = normalise("kv_a_norm", norm, activation("latent_projected", formats.base, spec.kv_rank), latent, formats)
    ops.append(
        Op(
            "kv_a_norm",
            Kind.NORM,
            reads=(down, *normed.reads[1:]),
            writes=(latent,),
            vector_flops=normed.vector_flops + ROPE_FLOPS * turned,
        )
    )
    view = latent_view(spec)
    if spec.scorer is not None:
        ops += _indexer(spec.scorer, source, compressed, formats)
    ops += (_absorbed if absorbed or spec.indexer else _expanded)(spec, view, query, output, formats)
    ops.append(linear("o_proj", output, target, formats))
    return ops


def _queries(
    spec: LatentAttention, norm: Norm, source: Tensor, query: Tensor, formats: Formats
) -> tuple[list[Op], Tensor]:
    """Queries, projected directly or through a bottleneck; and what an indexer projects its own queries from."""
    if spec.q_rank is None:
        return [linear("q_proj", source, query, formats)], source
    down = activation("query_down", formats.base, spec.q_rank)
    normed = activation("query_normed", formats.activations, spec.q_rank)
    return [
        linear("q_a_proj", source, down, formats),
        normalise("q_a_norm", norm, down, normed, formats),
        linear("q_b_proj", normed, query, formats),
    ], normed


def _cache(spec: LatentAttention, view: View, formats: Formats, name: str = "latent_cache") -> Tensor:
    width = spec.kv_rank + spec.rope_dim
    return Tensor(name, Role.KV, (BATCH, view.keys, width), formats.kv, (BATCH, view.held, width))


def _up_weight(spec: LatentAttention, formats: Formats, part: str, width: int) -> Tensor:
    """The half of the up-projection that makes keys, or the one that makes values."""
    return Tensor(f"kv_b_proj.{part}", Role.WEIGHT, (spec.heads * width, spec.kv_rank), formats.weight("kv_b_proj"))


def _expanded(spec: LatentAttention, view: View, query: Tensor, output: Tensor, formats: Formats) -> list[Op]:
    heads, rows = spec.heads, BATCH * view.keys
    keys = Tensor("keys", Role.ACTIVATION, (BATCH, view.keys, heads, spec.nope_dim + spec.rope_dim), formats.attention)
    values = Tensor("values", Role.ACTIVATION, (BATCH, view.keys, heads, spec.value_dim), formats.attention)
    latents = _cache(spec, view, formats)
    weights = (_up_weight(spec, formats, "key", spec.nope_dim), _up_weight(spec, formats, "value", spec.value_dim))
    up = Op(
        "kv_b_proj",
        Kind.GEMM,
        reads=(latents, *weights),
        writes=(keys, values),
        matrix_flops=2 * rows * (spec.kv_rank * heads * (spec.nope_dim + spec.value_dim) * weights[0].format.density),
        operands=(latents, *weights),
    )
    return [up, *_products(heads, view, query, keys, values, output, formats, spec.nope_dim + spec.rope_dim,
                           spec.value_dim)]  # fmt: skip


def _absorbed(spec: LatentAttention, view: View, query: Tensor, output: Tensor, formats: Formats) -> list[Op]:
    heads, width, tokens = spec.heads, spec.kv_rank + spec.rope_dim, BATCH * QUERIES
    lifted = activation("query_latent", formats.attention, heads, width)
    attended = activation("attn_latent", formats.base, heads, spec.kv_rank)
    key_weight = _up_weight(spec, formats, "key", spec.nope_dim)
    value_weight = _up_weight(spec, formats, "value", spec.value_dim)
    return [
        _per_head("q_absorb", query, key_weight, lifted, 2 * tokens * heads * spec.nope_dim * spec.kv_rank),
        *_products(heads, view, lifted, _cache(spec, view, formats), None, attended, formats, width, spec.kv_rank),
        _per_head("v_absorb", attended, value_weight, output, 2 * tokens * heads * spec.kv_rank * spec.value_dim),
    ]


def _per_head(name: str, source: Tensor, weight: Tensor, target: Tensor, flops: Size) -> Op:
    """A product with each head's own part of a weight."""
    flops = flops * weight.format.density
    return Op(name, Kind.GEMM, (source, weight), (target,), matrix_flops=flops, operands=(source, weight))


def _products(
    heads: int, view: View, query: Tensor, keys: Tensor, values: Tensor | None, output: Tensor, formats: Formats,
    key_width: int, value_width: int,
) -> list[Op]:  # fmt: skip
    """Scores, softmax and weighted sum; without `values` the keys' tensor serves as both and is read once if fused."""
    scores = Tensor("scores", Role.ACTIVATION, (BATCH, heads, QUERIES, view.keys), formats.base)
    probabilities = Tensor("probabilities", Role.ACTIVATION, scores.shape, formats.attention)
    visible = BATCH * heads * view.pairs
    summed = keys if values is None else values
    return [
        Op(
            "qk_matmul",
            Kind.ATTENTION,
            (query, keys),
            (scores,),
            2 * visible * key_width,
            operands=(query, keys),
            view=view,
        ),
        elementwise("softmax", Kind.SOFTMAX, (scores,), probabilities, SOFTMAX_FLOPS * visible),
        Op(
            "sv_matmul",
            Kind.ATTENTION,
            (probabilities, summed),
            (output,),
            2 * visible * value_width,
            operands=(probabilities, summed),
            view=view,
        ),
    ]


INDEX_FLOPS = 3  # relu, times the head's weight, sum over heads


def _indexer(indexer: Indexer, source: Tensor, compressed: Tensor, formats: Formats) -> list[Op]:
    """The scorer of DeepSeek-V3.2 (2025): every query against every key, with few small heads and one shared key.

    Its keys are cached beside the latents. It decides what is attended to: the best of every token's scores, by their
    places. Picking them is counted as one FLOP a score. Queries and keys are in FP8 with a scale for each, whatever the
    rest is in: the paper's indexer is, and so are those of vLLM (DeepseekV32IndexerCache) and SGLang (132 bytes a key).
    """
    everything = View()
    heads, width = indexer.heads, indexer.head_dim
    hidden = source.shape[-1]
    assert isinstance(hidden, int)
    narrow = find_format("fp8_group")
    query = activation("index_query", narrow, heads, width)
    key = Tensor("index_key", Role.KV, (BATCH, QUERIES, width), narrow)
    shape: tuple[Dim, ...] = (BATCH, everything.keys, width)
    keys = Tensor("index_key_cache", Role.KV, shape, narrow, (BATCH, everything.held, width))
    projected = activation("index_key_projected", formats.base, width)
    weights = activation("index_weights", formats.base, heads)
    scores = Tensor("index_scores", Role.ACTIVATION, (BATCH, QUERIES, everything.keys), formats.base)
    picked = Tensor("picked", Role.ACTIVATION, (BATCH, QUERIES, indexer.selected), find_format("fp32"))
    visible = BATCH * everything.pairs * heads
    return [
        linear("index_q_proj", compressed, query, formats),
        linear("index_k_proj", source, projected, formats),
        normalise("index_k_norm", Norm("layernorm"), projected, key, formats),
        linear("index_weights_proj", source, weights, formats, component="router"),  # never quantised, as routers
        Op(
            "index_scores",
            Kind.ATTENTION,
            reads=(query, keys, weights),
            writes=(scores,),
            matrix_flops=2 * visible * width,
            vector_flops=INDEX_FLOPS * visible,
            operands=(query, keys),
        ),
        Op("index_top_k", Kind.TOP_K, (scores,), (picked,), vector_flops=BATCH * everything.pairs, view=everything),
    ]
