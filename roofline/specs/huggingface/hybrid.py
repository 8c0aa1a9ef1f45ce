"""Hybrids: models in which some layers attend and others keep a recurrent state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import (
    ATTENTION_BIAS,
    Config,
    Reader,
    Spec,
    attention_section,
    base_spec,
    gated_mlp,
    layer_types,
    plain_mlp,
    spec_with_pattern,
)
from roofline.specs.huggingface.moe import moe_section, moe_spec, qwen_sparse
from roofline.specs.huggingface.recurrent import mamba2_section, state_format


def _jamba(config: Config) -> Spec:
    """Mamba with norms, attention every eighth layer and experts every other one; no positions."""
    hidden, layers = config.integer("hidden_size"), config.layers()
    given = config.content.get("mamba_dt_rank", "auto")
    mamba = {
        "inner": config.integer("mamba_expand", default=2) * hidden,
        "state": config.integer("mamba_d_state", default=16),
        "dt_rank": -(-hidden // 16) if given == "auto" else config.integer("mamba_dt_rank"),
        "conv": config.integer("mamba_d_conv", default=4),
        "conv_bias": config.flag("mamba_conv_bias", True),
        "bias": config.flag("mamba_proj_bias", False),
        "norms": True,
    }
    attention_period = config.integer("attn_layer_period", default=8)
    attention_offset = config.natural("attn_layer_offset", default=4)
    expert_period = config.integer("expert_layer_period", default=2)
    expert_offset = config.natural("expert_layer_offset", default=1)
    window = config.window()
    several = config.integer("num_experts") > 1  # one expert is an MLP without a router (JambaDecoderLayer)
    return spec_with_pattern(
        base_spec(config, positions="none"),
        {
            "attention": {"attention": attention_section(config, window=window)},
            "mamba": {"mamba": mamba},
            "moe": {"moe": moe_section(config, experts=16, top_k=2)},
            "dense": {"mlp": gated_mlp(config)},
        },
        ["attention" if index % attention_period == attention_offset else "mamba" for index in range(layers)],
        ["moe" if several and index % expert_period == expert_offset else "dense" for index in range(layers)],
    )


_NEMOTRON_LAYERS: Mapping[str, str] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_NAMES: Mapping[str, str] = {
    **{name: name for name in _NEMOTRON_LAYERS.values()},
    "linear_attention": "mamba",
    "full_attention": "attention",
}


def _nemotron_layers(config: Config) -> list[str]:
    """What each layer is: names in `layers_block_type` (Transformers 5), or letters in `hybrid_override_pattern`."""
    key, known, given = "layers_block_type", _NEMOTRON_NAMES, config.texts("layers_block_type")
    if not given:
        key, known, given = "hybrid_override_pattern", _NEMOTRON_LAYERS, list(config.text("hybrid_override_pattern"))
    unknown = sorted(set(given) - set(known))
    if unknown or not 0 < len(given) <= 10**5:
        problem = f"unknown layer {quote(unknown[0])}" if unknown else "must name every layer"
        raise SpecError(config.where, f"{quote(key)}: {problem}")
    return [known[name] for name in given]


def _nemotron_h(config: Config) -> Spec:
    """One mixer or one feed-forward block a layer; no positions. `expand` is without effect."""
    config.reject("attention_bias")
    kinds = _nemotron_layers(config)
    activation = config.activation("mlp_hidden_act", default="relu2")
    heads, width = config.integer("mamba_num_heads", default=128), config.integer("mamba_head_dim", default=64)
    mamba2 = mamba2_section(config, heads, width, "ssm_state_size", 128)
    # Older files call the width of a head attention_head_dim.
    head_dim = config.integer("head_dim", "attention_head_dim", default=128)
    parts: dict[str, Spec] = {"mamba": {"mamba2": mamba2}}
    if "attention" in kinds:
        parts["attention"] = {"attention": attention_section(config, head_dim=head_dim)}
    if "mlp" in kinds:
        width = config.integer("intermediate_size")
        mlp = {**plain_mlp(config, width, config.flag("mlp_bias", False)), "activation": activation}
        parts["mlp"] = {"mlp": mlp}
    if "moe" in kinds:
        # `n_shared_experts` is without effect: the width is that of all (NemotronHMoE of Transformers).
        shared = config.natural("moe_shared_expert_intermediate_size")
        latent = config.natural("moe_latent_size")
        moe = moe_section(config, "moe_intermediate_size", shared_width=shared, router_bias=True, latent=latent)
        moe["shared_bias"] = config.flag("mlp_bias", False)
        parts["moe"] = {"moe": {**moe, "gated": False, "activation": activation}}
    # The class has an LM head of its own, whatever `tie_word_embeddings` says.
    base = {
        **base_spec(config.with_defaults({"num_hidden_layers": len(kinds)}), positions="none"),
        "tied_embeddings": False,
    }
    return spec_with_pattern(base, parts, kinds)


def _grouped_mamba2(config: Config, inner: int) -> Spec:
    """Mamba-2 of so many channels, under the keys of Granite and Falcon."""
    heads = config.integer("mamba_n_heads", default=128)
    return {
        "heads": heads,
        "head_dim": inner // heads,
        "state": config.integer("mamba_d_state", default=256),
        "groups": config.integer("mamba_n_groups", default=1),
        "conv": config.integer("mamba_d_conv", default=4),
        "conv_bias": config.flag("mamba_conv_bias", True),
        "chunk": config.integer("mamba_chunk_size", default=256),
    }


def _granitemoehybrid(config: Config) -> Spec:
    """Granite 4.0: Mamba-2 and a few layers of attention; experts beside a shared one, which dense models have alone.

    The multipliers of the file scale what is there anyway.
    """
    config.reject("attention_bias")
    automatic = config.content.get("mamba_d_head", "auto") == "auto"
    mamba2 = _grouped_mamba2(config, config.integer("mamba_expand", default=2) * config.integer("hidden_size"))
    mamba2["bias"] = config.flag("mamba_proj_bias", False)
    if not automatic:
        mamba2["head_dim"] = config.integer("mamba_d_head")
    kinds = layer_types(
        config,
        {
            **dict.fromkeys(("mamba", "linear_attention"), "mamba"),
            **dict.fromkeys(("attention", "full_attention"), "attention"),
        },
    )
    if kinds is None:
        raise SpecError(config.where, "the key 'layer_types' is missing")
    shared = config.natural("shared_intermediate_size", default=1024)
    if config.natural("num_local_experts", default=8):
        feed: Spec = {"moe": moe_section(config, shared_width=shared)}
    else:
        feed = {"mlp": {**gated_mlp(config), "width": shared}}
    rotates = config.text("position_embedding_type", "rope") == "rope"
    base = base_spec(config, tied=True, positions="rope" if rotates else "none", **feed)
    return spec_with_pattern(
        base, {"mamba": {"mamba2": mamba2}, "attention": {"attention": attention_section(config)}}, kinds
    )


def _falcon_h1(config: Config) -> Spec:
    """Falcon-H1: Mamba-2 and attention read one norm, beside each other; here one after the other.

    The norm is that of the attention, so a layer of Mamba-2 has one without weights. The multipliers scale what is
    there anyway.
    """
    config.reject("mamba_proj_bias", "projectors_bias")
    hidden = config.integer("hidden_size")
    inner = config.integer("mamba_d_ssm", default=None) or config.integer("mamba_expand", default=2) * hidden
    mamba2 = {**_grouped_mamba2(config, inner), "norm": config.flag("mamba_rms_norm", False)}
    attends: Spec = {
        "attention": attention_section(config, ATTENTION_BIAS),
        "mlp": gated_mlp(config, config.flag("mlp_bias", False)),
    }
    recurs: Spec = {"mamba2": mamba2, "norm": {"kind": "rmsnorm", "weight": False}}
    kinds = ["mamba", "attention"] * config.layers()
    base = base_spec(config, extra_parameters=hidden)  # the weights of the final norm, which is that of the first layer
    return spec_with_pattern(base, {"mamba": recurs, "attention": attends}, kinds)


def _lfm2(config: Config) -> Spec:
    """LFM2: gated short convolutions in place of attention in most layers; experts but for the first layers."""
    config.reject("conv_bias")
    hidden, layers, taps = config.integer("hidden_size"), config.layers(), config.integer("conv_L_cache", default=3)
    attends = config.integers("full_attn_idxs")
    kinds = layer_types(config, {"conv": "conv", "full_attention": "attention"})
    width = config.integer("block_ff_dim", "intermediate_size")
    if config.text("model_type") == "lfm2" and config.flag("block_auto_adjust_ff_dim", True):
        multiple = config.integer("block_multiple_of", default=256)
        wanted = int(config.factor("block_ffn_dim_multiplier", 1.0) * (2 * width // 3))
        width = -(-wanted // multiple) * multiple
    sparse = config.natural("num_experts", default=0)
    dense = config.natural("num_dense_layers", default=2) if sparse else layers
    convolution = {
        "linears": [
            {"name": "conv.in_proj", "inputs": hidden, "outputs": 3 * hidden},
            {"name": "conv.out_proj", "inputs": hidden, "outputs": hidden},
        ],
        "weights": taps * hidden,
        "state": taps * hidden,
        "scan": 2.0 * taps * hidden,
    }
    parts: dict[str, Spec] = {
        "conv": {"modules": convolution},
        "attention": {"attention": attention_section(config, qk_norm=True)},
        "dense": {"mlp": {"width": width, "gated": True, "activation": "silu"}},
        **({"moe": {"moe": moe_section(config, "moe_intermediate_size", experts=32, top_k=4)}} if sparse else {}),
    }
    base = base_spec(config, tied=config.flag("tie_embedding", True))
    return spec_with_pattern(
        base,
        parts,
        kinds or ["conv" if attends and index not in attends else "attention" for index in range(layers)],
        ["dense" if index < dense else "moe" for index in range(layers)],
    )


def _qwen_hybrid(config: Config) -> tuple[dict[str, Spec], list[str]]:
    """The mixers of Qwen3-Next and Qwen3.5, and which layer has which: every fourth attends, with a gated output."""
    layers = config.layers()
    period = config.integer("full_attention_interval", default=4)
    kinds = layer_types(config, {"linear_attention": "linear", "full_attention": "full"})
    gate = config.flag("attn_output_gate", True)
    attention = attention_section(config, ATTENTION_BIAS, head_dim=256, qk_norm=True, gate=gate)
    delta = {
        "key_heads": config.integer("linear_num_key_heads", default=16),
        "value_heads": config.integer("linear_num_value_heads", default=32),
        "key_dim": config.integer("linear_key_head_dim", default=128),
        "value_dim": config.integer("linear_value_head_dim", default=128),
        "conv": config.integer("linear_conv_kernel_dim", default=4),
        **state_format(config),
    }
    mixers = {"linear": {"delta_net": delta}, "full": {"attention": attention}}
    return mixers, kinds or ["linear" if (index + 1) % period else "full" for index in range(layers)]


def _qwen_experts(config: Config, experts: int, top_k: int) -> Spec:
    shared = config.integer("shared_expert_intermediate_size", default=512)
    return moe_section(
        config, "moe_intermediate_size", experts=experts, top_k=top_k, shared_width=shared, shared_gate=True
    )


def _qwen3_next(config: Config) -> Spec:
    """The checkpoint has a prediction module for which the file has no key."""
    config.reject("use_sliding_window")
    mixers, kinds = _qwen_hybrid(config)
    base = base_spec(config, mtp=1)
    return moe_spec(config, base, qwen_sparse(config), _qwen_experts(config, 512, 10), kinds, **mixers)


def _qwen3_5(config: Config, **feed: Any) -> Spec:
    mixers, kinds = _qwen_hybrid(config)
    return spec_with_pattern(base_spec(config, mtp=config.natural("mtp_num_hidden_layers"), **feed), mixers, kinds)


READERS: Mapping[str, Reader] = {
    "falcon_h1": _falcon_h1,
    "granitemoehybrid": _granitemoehybrid,
    "jamba": _jamba,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "nemotron_h": _nemotron_h,
    "qwen3_next": _qwen3_next,
    "qwen3_5_text": lambda config: _qwen3_5(config, mlp=gated_mlp(config)),
    "qwen3_5_moe_text": lambda config: _qwen3_5(config, moe=_qwen_experts(config, 256, 8)),
}
