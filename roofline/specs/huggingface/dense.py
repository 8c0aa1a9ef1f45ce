"""Dense decoders of the Llama kind."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core.errors import SpecError
from roofline.specs.huggingface import families
from roofline.specs.huggingface.config import (
    ATTENTION_BIAS,
    LAYER_NORM,
    PER_LAYER,
    RMS,
    WINDOWED,
    Config,
    Reader,
    Spec,
    attention_section,
    base_spec,
    gated_mlp,
    layer_types,
    of_each_layer,
    spec_with_pattern,
)
from roofline.specs.huggingface.per_layer import gemma4_per_layer


def _gemma2(config: Config) -> Spec:
    layers = config.layers()
    return base_spec(
        config,
        tied=True,
        layers={"count": layers, "pattern": layer_types(config, WINDOWED) or ["local", "global"]},
        blocks={"local": {"attention": {"window": config.window()}}, "global": {}},
        attention=attention_section(config, ATTENTION_BIAS, head_dim=256),
        mlp={**gated_mlp(config), "activation": config.activation("hidden_activation", default="gelu")},
        norm={"kind": "rmsnorm", "placement": "sandwich"},
    )


def _gemma3_text(config: Config) -> Spec:
    spec = _gemma2(config)
    period = config.integer("sliding_window_pattern", "_sliding_window_pattern", default=6)
    pattern = [f"{period - 1} x local", "global"] if period > 1 else ["global"]
    spec["layers"]["pattern"] = layer_types(config, WINDOWED) or pattern
    spec["attention"]["qk_norm"] = True
    return spec


def _gemma4_text(config: Config) -> Spec:
    """Layers without a window have heads of their own size, and may take the projected keys for values.

    Files of Transformers 5 list the sizes of these layers under `per_layer_config`. With experts every layer also has a
    dense block, which is described as a shared expert; its three further norms and the router's scale are stored, and
    not run.
    """
    if config.integer("hidden_size_per_layer_input", least=0):
        return gemma4_per_layer(config)
    config.reject("num_kv_shared_layers", "use_double_wide_mlp")
    spec = _gemma3_text(config)
    kinds = layer_types(config, WINDOWED) or [
        "global" if (at + 1) % 6 == 0 else "local" for at in range(config.layers())
    ]
    spec["layers"]["pattern"] = [*kinds[:-1], "global"]  # the class makes the last layer one without a window
    spec["attention"]["values"] = "normalised"
    listed = config.content.get(PER_LAYER) is not None
    sizes = {} if listed else {"head_dim": config.integer("global_head_dim", default=512)}
    if config.flag("attention_k_eq_v", False):
        kv_heads = config.integer("num_global_key_value_heads", default=spec["attention"]["kv_heads"])
        sizes |= {"values": "keys"} if listed else {"kv_heads": kv_heads, "values": "keys"}
    spec["blocks"]["global"] = {"attention": sizes}
    if config.flag("enable_moe_block", False):
        dense = spec.pop("mlp")
        spec["moe"] = {
            **dense,
            "experts": config.integer("num_experts"),
            "top_k": config.integer("top_k_experts"),
            "width": config.integer("moe_intermediate_size", "expert_intermediate_size"),
            "shared_width": dense["width"],
            "router_bias": True,
        }
        del spec["moe"]["bias"]
        spec["extra_parameters"] = 4 * spec["hidden"] * spec["layers"]["count"]
    return spec


def _chatglm(config: Config) -> Spec:
    heads, biased = config.integer("num_attention_heads"), config.flag("add_bias_linear", False)
    grouped = config.flag("multi_query_attention", False)
    return base_spec(
        config.renamed(vocab_size="padded_vocab_size", num_hidden_layers="num_layers"),
        max_context=config.tokens("seq_length"),
        attention={
            "heads": heads,
            "kv_heads": config.integer("multi_query_group_num", default=1) if grouped else heads,
            "head_dim": config.integer("kv_channels"),
            "qkv_bias": biased or config.flag("add_qkv_bias", False),
            "output_bias": biased,
        },
        mlp={"width": config.integer("ffn_hidden_size"), "gated": True, "activation": "silu", "bias": biased},
        norm=RMS if config.flag("rmsnorm", True) else LAYER_NORM,
        final_norm=config.flag("post_layer_norm", True),
    )


def _baichuan(config: Config) -> Spec:
    attention = attention_section(config)
    return base_spec(
        config,
        max_context=config.tokens("model_max_length", "max_position_embeddings"),
        attention=attention,
        mlp=gated_mlp(config),
        # The files do not say it: the 7B models rotate, the 13B ones (40 heads) use ALiBi.
        positions="alibi" if attention["heads"] == 40 else "rope",
    )


def _smollm3(config: Config) -> Spec:
    """Every fourth layer has no positions: 0 in `no_rope_layers`."""
    config.reject("use_sliding_window")
    layers, period = config.layers(), config.integer("no_rope_layer_interval", default=4)
    every = [(index + 1) % period for index in range(layers)]
    rotating = of_each_layer(config, config.integers("no_rope_layers"), "no_rope_layers", every)
    kinds = ["rotary" if turns else "unrotated" for turns in rotating]
    base = families.READERS["llama"](config)
    return spec_with_pattern(base, {"rotary": {}, "unrotated": {"attention": {"rotary": False}}}, kinds)


PUZZLE_MULTIPLE = 256
"""Of the width of Puzzle's MLPs, which is rounded up (modeling_decilm.py of the repositories)."""


def _nemotron_nas(config: Config) -> Spec:
    """Puzzle's layers: each without attention or with fewer KV heads, without an MLP or with one of another width.

    Bercovich et al. 2024 (arXiv 2411.19146). Layers with neither are left out: they store and compute nothing.
    """
    heads, hidden = config.integer("num_attention_heads"), config.integer("hidden_size")
    kinds: list[str] = []
    parts: dict[str, Spec] = {}
    for block in config.sections("block_configs"):
        attention, ffn = block.section("attention"), block.section("ffn")
        attention.reject("replace_with_linear", "sparsify", "num_sink_tokens", "window_length")
        ffn.reject("replace_with_linear", "sparsify")
        part: Spec = {}
        if not attention.flag("no_op", False):
            kv_heads = heads // attention.integer("n_heads_in_group", most=heads)
            head_dim = config.integer("head_dim", default=hidden // heads)
            bias = config.flag("attention_bias", False)
            sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
            part["attention"] = {**sizes, "qkv_bias": bias, "output_bias": bias}
        if not ffn.flag("no_op", False):
            width = -int(-int(2 * ffn.factor("ffn_mult") * hidden / 3) // PUZZLE_MULTIPLE) * PUZZLE_MULTIPLE
            sized = config.with_defaults({"intermediate_size": width})
            part["mlp"] = gated_mlp(sized, config.flag("mlp_bias", False))
        if part:
            grouped = f"kv{part['attention']['kv_heads']}" if "attention" in part else ""
            kinds.append("_".join(filter(None, (grouped, f"w{part['mlp']['width']}" if "mlp" in part else ""))))
            parts[kinds[-1]] = part
    if not kinds:
        raise SpecError(config.where, "'block_configs' must list layers that have attention or an MLP")
    return spec_with_pattern(base_spec(config), parts, kinds)


READERS: Mapping[str, Reader] = {
    "baichuan": _baichuan,
    "chatglm": _chatglm,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3_text,
    "gemma4_text": _gemma4_text,
    "nemotron-nas": _nemotron_nas,
    "smollm3": _smollm3,
}
