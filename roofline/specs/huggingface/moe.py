"""Decoders with mixtures of experts and softmax attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError
from roofline.specs.huggingface.config import (
    ATTENTION_BIAS,
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
from roofline.specs.huggingface.families import read_family

EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
"""The keys of the number of experts."""


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


def _step3p5(config: Config) -> Spec:
    """Step 3 and 3.5: lists also name the prediction modules, and those of experts may be one text."""
    if not all(config.flags("use_rope_layers")):
        raise SpecError(config.where, "'use_rope_layers': layers without positions are not supported")
    layers, given = config.layers(), config.content.get("moe_layers_enum")
    split = [entry for entry in given.split(",") if entry.strip().isdigit()] if isinstance(given, str) else None
    config.read.add("moe_layers_enum")
    sparse = list(map(int, split)) if split is not None else config.integers("moe_layers_enum") or [*range(3, layers)]
    kinds = config.texts("layer_types")[:layers] or None
    return read_family("step3p5", config.replaced({**config.content, "layer_types": kinds, "moe_layers_enum": sparse}))


def _ernie4_5_moe(config: Config) -> Spec:
    """ERNIE 4.5: experts from `moe_layer_start_index` to `moe_layer_end_index`, of which -1 is the last layer."""
    end = config.integer("moe_layer_end_index", default=-1, least=-1)
    last = {"moe_layer_end_index": config.layers() - 1 if end == -1 else end}
    return read_family("ernie4_5_moe", config.replaced({**config.content, **last}))


def _hunyuan_v1_moe(config: Config) -> Spec:
    """Hunyuan-A13B: counts of experts are lists by layer in its own files, and numbers in Transformers'."""
    width = config.integer("intermediate_size")
    defaults = {"moe_intermediate_size": width, "num_shared_expert": 1, "num_experts": 1, "moe_topk": 1}
    same = {name: _of_all_layers(config, name, default) for name, default in defaults.items()}
    return read_family("hunyuan_v1_moe", config.replaced({**config.content, **same}))


def _of_all_layers(config: Config, name: str, default: int) -> int:
    """A number, or a list that has the same number for every layer."""
    if not isinstance(config.content.get(name), list):
        return int(config.integer(name, default=default))
    numbers = set(config.integers(name))
    if len(numbers) != 1:
        raise SpecError(config.where, f"'{name}': layers that differ in it are not supported")
    return numbers.pop()


READERS: Mapping[str, Reader] = {
    "ernie4_5_moe": _ernie4_5_moe,
    "hunyuan_v1_moe": _hunyuan_v1_moe,
    "llama4_text": _llama4_text,
    "step3_text": _step3p5,
    "step3p5": _step3p5,
}
