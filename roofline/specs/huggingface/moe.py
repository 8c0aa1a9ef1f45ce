"""Decoders with mixtures of experts and softmax attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError
from roofline.specs.huggingface.config import (
    ATTENTION_BIAS,
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

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""The keys of the number of experts."""


def routed(config: Config) -> bool:
    """Whether the number of experts is not 0, as it is in files of a family's dense models."""
    return config.natural(*EXPERTS, default=1) > 0


def moe_section(config: Config, *width: str, experts: Any = None, top_k: Any = None, **parts: Any) -> Spec:
    """The moe section: gated experts as wide as the key `width` says; `experts` and `top_k` are class defaults."""
    groups = 1 if config.content.get("topk_method") == "greedy" else config.natural("n_group", default=1)
    limited = {"groups": groups, "top_groups": config.integer("topk_group", default=groups)} if groups > 1 else {}
    return {
        "experts": config.integer(*EXPERTS, **({"default": experts} if experts else {})),
        "top_k": config.integer("num_experts_per_tok", **({"default": top_k} if top_k else {})),
        "width": config.integer(*(width or ("intermediate_size",))),
        "gated": True,
        "activation": config.activation("hidden_act", default="silu"),
        **limited,
        **parts,
    }


def moe_spec(config: Config, base: Spec, sparse: list[bool], moe: Spec, *mixers: list[str], **parts: Spec) -> Spec:
    """Layers with experts where `sparse` says so, a dense block elsewhere; and an axis of mixers if there is one."""
    kinds = {"moe": {"moe": moe}, **({} if all(sparse) else {"dense": {"mlp": gated_mlp(config)}}), **parts}
    return spec_with_pattern(base, kinds, ["moe" if has_experts else "dense" for has_experts in sparse], *mixers)


def qwen_sparse(config: Config) -> list[bool]:
    """Which layers have experts in Qwen's files: every decoder_sparse_step-th, except those of mlp_only_layers."""
    step, dense = config.integer("decoder_sparse_step", default=1), set(config.integers("mlp_only_layers"))
    return sparse_layers(config, [(index + 1) % step == 0 and index not in dense for index in range(config.layers())])


def sparse_layers(config: Config, otherwise: list[bool]) -> list[bool]:
    """Which layers have experts as `mlp_layer_types` lists them, which files of Transformers 5 do; else `otherwise`."""
    named = config.texts("mlp_layer_types")
    if named and (len(named) != len(otherwise) or not set(named) <= {"dense", "sparse"}):
        raise SpecError(config.where, f"'mlp_layer_types' must say dense or sparse of each of {len(otherwise)} layers")
    return [name == "sparse" for name in named] or otherwise


def _llama4_text(config: Config) -> Spec:
    """Three of four layers rotate and see only their own chunk, the fourth does neither.

    All layers are dense where no step or no experts are given (Llama Guard 4, MobileLLM-R1).
    """
    layers = config.layers()
    every = [int((index + 1) % 4 != 0) for index in range(layers)]
    rotating = of_each_layer(config, config.integers("no_rope_layers"), "no_rope_layers", every)
    step = config.natural("interleave_moe_layer_step", default=1)
    some = config.natural("num_local_experts", default=16) > 0
    listed = config.content.get("moe_layers") is not None
    sparse = set(config.integers("moe_layers") if listed else range(step - 1, layers, step) if step else ())
    kinds = ["local" if turns else "global" for turns in rotating]
    if (layer_types(config, {"chunked_attention": "local", "full_attention": "global"}) or kinds) != kinds:
        raise SpecError(config.where, "'layer_types': chunks elsewhere than in rotating layers are not supported")
    attention = attention_section(config, ATTENTION_BIAS, head_dim=128)
    chunk = config.integer("attention_chunk_size", default=8192)
    normed = {"qk_norm": "unweighted"} if config.flag("use_qk_norm", True) else {}
    dense = {**gated_mlp(config), "width": config.integer("intermediate_size_mlp", default=16384)}
    # Without experts only the shared one is left of a layer that would have some.
    feeds = [("moe" if some else "shared") if index in sparse else "dense" for index in range(layers)]
    parts: dict[str, Spec] = {
        "dense": {"mlp": dense},
        "shared": {"mlp": gated_mlp(config)},
        "local": {"attention": {"chunk": chunk, **normed}},
        "global": {"attention": {"rotary": False}},
    }
    if "moe" in feeds:
        width = config.integer("intermediate_size")
        parts["moe"] = {"moe": moe_section(config, experts=16, top_k=1, shared_width=width)}
    return spec_with_pattern(base_spec(config, attention=attention), parts, feeds, kinds)


def _minimax_m2(config: Config) -> Spec:
    """The prediction modules that the file announces are not in the checkpoint."""
    config.reject("shared_intermediate_size")
    if any(kind != 1 for kind in config.integers("attn_type_list")):
        raise SpecError(config.where, "'attn_type_list': the linear attention of MiniMax (0) is not supported")
    attention = attention_section(config, head_dim=128, qk_norm="full" if config.flag("use_qk_norm", True) else False)
    moe = moe_section(config, router_bias=config.flag("use_routing_bias", True))
    return base_spec(config, attention=attention, moe=moe)


def _step3p5(config: Config) -> Spec:
    """Step 3.5 Flash: layers with a window have heads of another number; lists also name the prediction modules.

    Step 3's queries are of low rank, without a norm of heads (arXiv 2507.19427, section 3).
    """
    layers, prediction = config.layers(), config.natural("num_nextn_predict_layers")
    config.reject("attention_bias", "sink")
    if not all(config.flags("use_rope_layers")):
        raise SpecError(config.where, "'use_rope_layers': layers without positions are not supported")
    listed = config.texts("layer_types")
    attended = config.replaced({**config.content, "layer_types": listed[:layers] or None})
    kinds = layer_types(attended, WINDOWED) or ["global"] * layers
    given = config.content.get("moe_layers_enum")
    config.read.add("moe_layers_enum")
    split = [entry for entry in given.split(",") if entry.strip().isdigit()] if isinstance(given, str) else None
    sparse = set(map(int, split) if split is not None else config.integers("moe_layers_enum") or range(3, layers))
    rank = config.integer("share_q_dim", default=None)
    attention = {
        "heads": config.integer("num_attention_heads"),
        "kv_heads": config.integer("num_key_value_heads", "num_attention_groups"),
        "head_dim": config.integer("head_dim", default=128),
        "qk_norm": config.flag("use_qk_norm", rank is None),
        **({} if rank is None else {"query_rank": rank}),
        "gate": "head" if config.flag("use_head_wise_attn_gate", False) else False,
    }
    other = config.section("attention_other_setting")
    windowed = {
        "window": config.window(),
        "heads": other.integer("num_attention_heads", default=attention["heads"]),
        "kv_heads": other.integer("num_attention_groups", default=attention["kv_heads"]),
        "head_dim": other.integer("head_dim", default=attention["head_dim"]),
    }
    moe = {
        "experts": config.integer("moe_num_experts", "n_routed_experts", "num_experts"),
        "top_k": config.integer("moe_top_k", "num_experts_per_tok"),
        "width": config.integer("moe_intermediate_size"),
        "gated": True,
        "activation": config.activation("hidden_act", default="silu"),
        "shared_width": config.natural("share_expert_dim", default=1280),
        "router_bias": config.flag("use_moe_router_bias", False),
    }
    base = base_spec(config, attention=attention, mtp=prediction)
    mixers: dict[str, Spec] = {"local": {"attention": windowed}, "global": {}}
    return moe_spec(config, base, [index in sparse for index in range(layers)], moe, kinds, **mixers)


def _mimo_v2_flash(config: Config) -> Spec:
    """MiMo-V2-Flash: values narrower than keys; layers with a window have sizes and sinks of their own, 1 in a list.

    Files of Transformers 5 name the layers, and leave the sizes of windows to the class: twice the KV heads, sinks. The
    scale of values (`attention_value_scale`) changes no size.
    """
    config.reject("n_shared_experts", "attention_bias")
    layers = config.layers()
    windowed, routed = config.integers("hybrid_layer_pattern"), config.integers("moe_layer_freq")
    if {len(windowed), len(routed)} - {0, layers}:
        raise SpecError(config.where, f"'hybrid_layer_pattern' and 'moe_layer_freq' must list {layers} layers")
    listed = ["local" if sliding else "global" for sliding in windowed]
    every = ["local" if index and (index + 1) % 6 else "global" for index in range(layers)]
    sparse = [bool(entry) for entry in routed] or [index > 0 for index in range(layers)]
    own = {
        "heads": config.integer("num_attention_heads"),
        "kv_heads": config.integer("num_key_value_heads"),
        "head_dim": config.integer("head_dim"),
        "value_dim": config.integer("v_head_dim"),
        "sinks": config.flag("add_full_attention_sink_bias", False),
    }
    local = {
        "heads": config.integer("swa_num_attention_heads", default=own["heads"]),
        "kv_heads": config.integer("swa_num_key_value_heads", default=2 * own["kv_heads"]),
        "head_dim": config.integer("swa_head_dim", default=own["head_dim"]),
        "value_dim": config.integer("swa_v_head_dim", default=own["value_dim"]),
        "sinks": config.flag("add_swa_attention_sink_bias", True),
        "window": config.window("sliding_window", "sliding_window_size"),
    }
    mixers: dict[str, Spec] = {"local": {"attention": local}, "global": {}}
    base = base_spec(config, attention=own)
    selected = config.text("topk_method", "noaux_tc") == "noaux_tc"
    moe = moe_section(config, "moe_intermediate_size", router_bias=selected)
    kinds = layer_types(config, WINDOWED) or listed or every
    return moe_spec(config, base, sparse_layers(config, sparse), moe, kinds, **mixers)


def _dbrx(config: Config) -> Spec:
    attention, block = config.section("attn_config"), config.section("ffn_config")
    return base_spec(
        config.renamed(hidden_size="d_model", num_hidden_layers="n_layers"),
        max_context=config.tokens("max_seq_len", default=2048),
        attention={"heads": config.integer("n_heads"), "kv_heads": attention.integer("kv_n_heads", default=1)},
        moe={
            "experts": block.integer("moe_num_experts", default=4),
            "top_k": block.integer("moe_top_k", default=1),
            "width": block.integer("ffn_hidden_size", default=3584),
            "gated": True,
            "activation": block.section("ffn_act_fn").activation("name", default="silu"),
        },
        norm={"kind": "layernorm", "bias": False},
    )


def _ernie4_5_moe(config: Config) -> Spec:
    """ERNIE 4.5: experts from `moe_layer_start_index` to `moe_layer_end_index`, the router's bias selects them."""
    config.reject("use_bias")
    layers = config.layers()
    start = config.natural("moe_layer_start_index", default=1)
    end = config.integer("moe_layer_end_index", default=-1, least=-1)
    every = config.integer("moe_layer_interval", default=1)
    last = layers - 1 if end == -1 else end
    counted = [start <= index <= last and (index + 1) % every == 0 for index in range(layers)]
    shared = config.natural("moe_num_shared_experts", default=2) * config.integer("moe_intermediate_size", default=1536)
    moe = moe_section(
        config.with_defaults(
            {
                "num_experts": config.integer("moe_num_experts", default=64),
                "num_experts_per_tok": config.integer("moe_k", default=6),
            }
        ),
        "moe_intermediate_size",
        shared_width=shared,
        router_bias=config.flag("moe_use_aux_free", True),
    )
    base = base_spec(config, tied=True, attention=attention_section(config))
    return moe_spec(config, base, sparse_layers(config, counted), moe)


def _hunyuan_v1_moe(config: Config) -> Spec:
    """Hunyuan-A13B: counts of experts are lists by layer in its own files, and numbers in Transformers'."""
    config.reject("use_cla")
    width = _of_all_layers(config, "moe_intermediate_size", config.integer("intermediate_size"))
    shared = _of_all_layers(config, "num_shared_expert", 1) if config.flag("use_mixed_mlp_moe", True) else 0
    same = {
        "num_experts": _of_all_layers(config, "num_experts", 1),
        "num_experts_per_tok": _of_all_layers(config, "moe_topk", 1),
        "moe_intermediate_size": width,
    }
    plain = config.replaced({**config.content, **same})
    return base_spec(
        config,
        attention=attention_section(config, ATTENTION_BIAS, qk_norm=config.flag("use_qk_norm", True)),
        moe=moe_section(plain, "moe_intermediate_size", shared_width=shared * width),
    )


def _of_all_layers(config: Config, name: str, default: int) -> int:
    """A number, or a list that has the same number for every layer."""
    if not isinstance(config.content.get(name), list):
        return int(config.integer(name, default=default))
    numbers = set(config.integers(name))
    if len(numbers) != 1:
        raise SpecError(config.where, f"'{name}': layers that differ in it are not supported")
    return numbers.pop()


READERS: Mapping[str, Reader] = {
    "dbrx": _dbrx,
    "ernie4_5_moe": _ernie4_5_moe,
    "hunyuan_v1_moe": _hunyuan_v1_moe,
    "llama4_text": _llama4_text,
    "mimo_v2_flash": _mimo_v2_flash,
    "minimax_m2": _minimax_m2,
    "step3_text": _step3p5,
    "step3p5": _step3p5,
}
