"""Kimi Linear and the decoder of Kimi K3: layers of delta attention, every fourth and the last one with MLA."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core.errors import SpecError
from roofline.specs.huggingface.config import Config, Reader, Spec, base_spec, layer_types
from roofline.specs.huggingface.mla import mla_section
from roofline.specs.huggingface.moe import moe_section, moe_spec, sparse_layers

DELTA, FULL = "linear", "full"

LAYERS: Mapping[str, str] = {"linear_attention": DELTA, "full_attention": FULL}


def _kimi_linear(config: Config) -> Spec:
    """MLA does not rotate. In Kimi K3 its outputs are gated, experts compute on latents, residuals are attended to."""
    layers, linear = config.layers(), config.section("linear_attn_config")
    heads = linear.integer("num_heads", default=config.integer("linear_num_heads", default=32))
    width = linear.integer("head_dim", default=config.integer("linear_head_dim", default=128))
    conv = linear.integer("short_conv_kernel_size", default=config.integer("linear_conv_kernel_dim", default=4))
    full_rank = linear.flag("use_full_rank_gate", False)
    delta: Spec = {"heads": heads, "head_dim": width, "conv": conv, **({} if full_rank else {"gate_rank": width})}
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


READERS: Mapping[str, Reader] = {"kimi_linear": _kimi_linear}
