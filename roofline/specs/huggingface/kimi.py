"""Hybrids of MLA: with delta attention in Kimi Linear, Kimi K3, GLM-5.3-Flash and Ling 3.0, and linear in Ling 2.5."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core.errors import SpecError
from roofline.specs.huggingface.config import Config, Reader, Spec, base_spec, layer_types
from roofline.specs.huggingface.mla import indexer_section, indexer_types, mla_section
from roofline.specs.huggingface.moe import moe_section, moe_spec, sparse_layers

DELTA, FULL = "linear", "full"

LAYERS: Mapping[str, str] = {"linear_attention": DELTA, "full_attention": FULL}


def _delta_section(config: Config, linear: Config, heads: int) -> Spec:
    """Delta attention, whose sizes stand in a section or at the top level; `heads` is a class default."""
    width = linear.integer("head_dim", default=config.integer("linear_head_dim", default=128))
    return {
        "heads": linear.integer("num_heads", default=config.integer("linear_num_heads", default=heads)),
        "head_dim": width,
        "conv": linear.integer("short_conv_kernel_size", default=config.integer("linear_conv_kernel_dim", default=4)),
        "gate_rank": width,
    }


def _kimi_linear(config: Config) -> Spec:
    """MLA does not rotate. In Kimi K3 its outputs are gated, experts compute on latents, residuals are attended to."""
    layers, linear = config.layers(), config.section("linear_attn_config")
    delta = _delta_section(config, linear, 32)
    if linear.flag("use_full_rank_gate", False):
        del delta["gate_rank"]
    gated = config.flag("mla_use_output_gate", False)
    latent = {**mla_section(config), "rotary": not config.flag("mla_use_nope", True), "gate": gated}
    parts: dict[str, Spec] = {DELTA: {"kimi_delta": delta}, FULL: {"latent_attention": latent}}
    expert = config.integer("moe_intermediate_size", default=1024)
    moe = moe_section(
        config.with_defaults({"num_experts_per_tok": config.integer("num_experts_per_token", default=8)}),
        "moe_intermediate_size",
        experts=256,
        shared_width=config.natural("num_shared_experts", "n_shared_experts", default=1) * expert,
        router_bias=True,
    )
    projected = config.natural("routed_expert_hidden_size")
    if projected:
        moe |= {"latent": projected, "latent_norm": config.flag("latent_moe_use_norm", False)}
    first, period = config.natural("first_k_dense_replace", default=1), config.integer("moe_layer_freq", default=1)
    sparse = sparse_layers(config, [index >= first and index % period == 0 for index in range(layers)])
    joined = config.natural("attn_res_block_size")
    base = base_spec(
        config.with_defaults({"max_position_embeddings": config.tokens("model_max_length")}),
        mtp=config.natural("num_nextn_predict_layers"),
    )
    if joined:
        base["residual_blocks"] = -(-layers // joined)
    return moe_spec(config, base, sparse, moe, _mixers(config, linear, layers), **parts)


def _mixers(config: Config, linear: Config, layers: int) -> list[str]:
    """Which layers have MLA: `layer_types`, or their numbers from 1 on; else every fourth."""
    named = layer_types(config, LAYERS)
    if named:
        return named
    full, delta = linear.integers("full_attn_layers"), linear.integers("kda_layers")
    if not full and not delta:
        return [FULL if index and index % 4 == 0 else DELTA for index in range(layers)]
    if sorted((*full, *delta)) != list(range(1, layers + 1)):
        problem = f"'full_attn_layers' and 'kda_layers' must name each of {layers} layers once"
        raise SpecError(config.where, f"'linear_attn_config': {problem}")
    return [FULL if index + 1 in set(full) else DELTA for index in range(layers)]


POOLED: Mapping[str, str] = {"linear_attention": DELTA, **dict.fromkeys(("indexed_attention", "full_attention"), FULL)}


def _glm5_next_text(config: Config) -> Spec:
    """GLM-5.3-Flash: delta attention, and MLA without positions to keys that an indexer picks in pools of tokens.

    Streams end in their mean, where specs have the weights of a sum: what pools learn is counted less those.
    """
    layers, linear, hidden = config.layers(), config.section("linear_attn_config"), config.integer("hidden_size")
    delta = _delta_section(config, linear, 64)
    pool = config.integer("index_kpool", default=16)
    indexer = indexer_section(config, 32, 2048, block=pool)
    kinds = layer_types(config, POOLED) or [FULL if index % 4 == 3 else DELTA for index in range(layers)]
    if "shared" in {kind for kind, mixer in zip(indexer_types(config), kinds, strict=True) if mixer == FULL}:
        raise SpecError(config.where, "'indexer_types': shared indexers are not read for GLM-5.3-Flash")
    shared = config.natural("n_shared_experts", default=1) * config.integer("moe_intermediate_size")
    moe = moe_section(config, "moe_intermediate_size", shared_width=shared, router_bias=True)
    latent = {**mla_section(config), "rotary": False, "indexer": indexer}
    streams = config.integer("hc_mult", default=4, most=16)
    pooling = kinds.count(FULL) * indexer["head_dim"] * (pool + hidden) - streams * (streams * hidden + 1) - 1
    base = base_spec(
        config, streams=streams, extra_parameters=max(0, pooling), mtp=config.natural("num_nextn_predict_layers")
    )
    sparse = sparse_layers(config, [index >= 3 for index in range(layers)])
    parts: dict[str, Spec] = {DELTA: {"kimi_delta": delta}, FULL: {"latent_attention": latent}}
    return moe_spec(config, base, sparse, moe, kinds, **parts)


def _bailing_hybrid(config: Config) -> Spec:
    """Ling 3.0: the last layer of a group has MLA, whose heads are gated, and the others delta attention.

    Files of Ling 2.5 and 2.6 have the same `model_type`, no such gates, and Lightning attention in place of the delta
    rule: linear attention with a gated output, norms of queries and keys, and a norm over groups of heads
    (inclusionAI/Ring-V2.5, models/modeling_bailing_moe_v2_5.py).
    """
    layers, heads = config.layers(), config.integer("num_attention_heads")
    group, width = config.integer("layer_group_size"), config.integer("linear_head_dim", "head_dim")
    whole = layers - layers % group
    kinds = layer_types(config, LAYERS) or [
        FULL if index >= whole or (index + 1) % group == 0 else DELTA for index in range(layers)
    ]
    if any("V2_5" in name for name in config.texts("architectures")):
        mixer: Spec = {"retention": {"heads": heads, "key_dim": width, "value_dim": width, "norm_weight": True}}
        extra = kinds.count(DELTA) * (heads - 1 + 2 * config.flag("use_qk_norm", True)) * width
    else:
        taps, full = config.integer("short_conv_kernel_size", default=4), config.flag("no_kda_lora", True)
        delta = {"heads": heads, "head_dim": width, "conv": taps, "full_decay": full}
        mixer, extra = {"kimi_delta": delta if full else {**delta, "gate_rank": width}}, 0
    config.reject("use_qkv_bias", "use_bias")
    latent = {**mla_section(config), "gate": "head" if "kimi_delta" in mixer else False}
    expert = config.integer("moe_intermediate_size")
    shared = config.natural("num_shared_experts", "n_shared_experts", default=1)
    biased = config.flag("moe_router_enable_expert_bias", True)
    moe = moe_section(
        config,
        "moe_intermediate_size",
        shared_width=shared * config.integer("moe_shared_expert_intermediate_size", default=expert),
        router_bias=biased,
    )
    first = config.natural("first_k_dense_replace")
    sparse = sparse_layers(config, [index >= first for index in range(layers)])
    mtp = config.natural("num_nextn_predict_layers", "num_mtp_layers")
    base = base_spec(config, mtp=mtp, extra_parameters=extra)
    return moe_spec(config, base, sparse, moe, kinds, **{DELTA: mixer, FULL: {"latent_attention": latent}})


READERS: Mapping[str, Reader] = {
    "bailing_hybrid": _bailing_hybrid,
    "glm5_next_text": _glm5_next_text,
    "kimi_linear": _kimi_linear,
}
