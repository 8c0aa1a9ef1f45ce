"""Decoders that differ from Llama in a few switches, one row of `families.yaml` each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct, convert

from roofline.core.documents import read_mapping
from roofline.specs.huggingface.config import (
    RMS,
    WINDOWED,
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
from roofline.specs.huggingface.moe import moe_section, qwen_sparse, routed, sparse_layers

Switch: TypeAlias = bool | str
"""Always or never, or the key of the file that says it."""


class _Experts(Struct, frozen=True, forbid_unknown_fields=True):
    """Experts in all layers but the `dense` first ones (a key, and its default `first`).

    `width`: the key of an expert's width. `shared`: the key of the number of shared experts of that width, or
    `shared_width` that of the width of all, which a gate may scale. `bias`: in their projections. `stepped`: Qwen's
    keys say which layers are dense. `experts` and `top_k`: what the class takes for missing keys.
    """

    width: str = "moe_intermediate_size"
    dense: str | None = None
    first: int = 0
    shared: str | None = None
    shared_width: str | None = None
    shared_gate: bool = False
    router_bias: Switch = False
    bias: bool = False
    stepped: bool = False
    experts: int | None = None
    top_k: int | None = None


class _Family(Struct, frozen=True, forbid_unknown_fields=True):
    """How the layers of a `model_type` differ from Llama's without biases.

    `head_dim`: that of a file that gives none, or hidden / heads `rounded` down. `plain`: an MLP of two matrices.
    `gate`: a key says that heads have one. `renamed`: the file's names of the usual keys. `halves`: the key of the
    width counts both halves of a gated MLP.
    `learned`: numbers that the activation of a layer learns. `post_norm`: the key of norms behind the sub-layers.
    `parallel`: attention and MLP read the same residual (one norm if `shared_norm`). `mtp`: the key of prediction
    modules. `window`: all layers have `sliding_window`; `windows`: the layers that `layer_types` names, else all but
    each so-many-th (1: none), and `unrotated` says that the others have no positions; `counted`: so many layers
    have none. `context`: a key of the longest context before the usual one. `refused`: a key whose feature is not read.
    """

    renamed: Mapping[str, str] = {}
    halves: bool = False
    qkv_bias: Switch = False
    output_bias: Switch = False
    head_dim: int | None = None
    rounded: bool = False
    qk_norm: bool | str = False
    gate: Switch = False
    sinks: bool = False
    plain: bool = False
    mlp_bias: Switch = False
    activation: str = "silu"
    learned: int = 0
    norm: Spec | None = None
    post_norm: str | None = None
    parallel: Switch = False
    shared_norm: bool = False
    mtp: str | None = None
    tied: bool = False
    lm_head_bias: Switch = False
    window: bool = False
    windows: int = 0
    unrotated: bool = False
    counted: bool = False
    context: str | None = None
    refused: str | None = None
    experts: _Experts | None = None


def _on(config: Config, switch: Switch) -> bool:
    return config.flag(switch, False) if isinstance(switch, str) else switch


def _read(family: _Family, config: Config) -> Spec:
    config = config.renamed(**family.renamed)
    on = partial(_on, config)
    if family.refused:
        config.reject(family.refused)
    given: Spec = {"window": config.window()} if family.window else {}
    given |= {"sinks": True} if family.sinks else {}
    given |= {"gate": "head" if isinstance(family.gate, str) else True} if on(family.gate) else {}
    width = (
        config.integer("hidden_size") // config.integer("num_attention_heads") if family.rounded else family.head_dim
    )
    attention = {**attention_section(config, head_dim=width), **given}
    attention["qk_norm"] = family.qk_norm if family.qk_norm == "full" else on(family.qk_norm)
    attention |= {"qkv_bias": on(family.qkv_bias), "output_bias": on(family.output_bias)}
    sandwich = family.post_norm is not None and config.flag(family.post_norm, False)
    base = base_spec(
        config,
        tied=family.tied,
        attention=attention,
        norm={**(family.norm or RMS), **({"placement": "sandwich"} if sandwich else {})},
        **({"residual": "parallel", "shared_norm": family.shared_norm} if on(family.parallel) else {}),
        **({"max_context": config.tokens(family.context, "max_position_embeddings")} if family.context else {}),
        **({"mtp": config.natural(family.mtp)} if family.mtp else {}),
        **({"lm_head_bias": True} if on(family.lm_head_bias) else {}),
        **({"extra_parameters": family.learned * config.layers()} if family.learned else {}),
    )
    bias = on(family.mlp_bias)
    parts: dict[str, Spec] = {}
    feeds = ["dense"] * config.layers()
    if family.experts and (routed(config) or not family.experts.stepped):
        parts["moe"], feeds = _experts(family.experts, config, family.activation)
        if bias and parts["moe"]["moe"].get("shared_width"):
            parts["moe"]["moe"]["shared_bias"] = True
    if "dense" in feeds:
        parts["dense"] = {"mlp": _mlp(family, config, bias)}
    axes = [feeds]
    if family.windows and (window := config.window()) is not None:
        every = range(1, config.layers() + 1)
        kinds = layer_types(config, WINDOWED) or ["local" if index % family.windows else "global" for index in every]
        parts["local"] = {"attention": {"window": window}}
        parts["global"] = {"attention": {"rotary": False}} if family.unrotated else {}
        axes.append(kinds)
    spec = spec_with_pattern(base, parts, *axes)
    return _counted_windows(config, spec) if family.counted else spec


def _counted_windows(config: Config, spec: Spec) -> Spec:
    """Qwen's windows, off by default: layers from max_window_layers on attend to sliding_window keys.

    If the file has `layer_types`, that list applies instead (`model_wide`).
    """
    if not config.flag("use_sliding_window", False) or config.content.get("layer_types") is not None:
        return spec
    layers = spec["layers"]
    full = min(config.integer("max_window_layers", default=28, least=0), layers)
    pattern = [f"{full} x full", *([f"{layers - full} x windowed"] if layers > full else [])]
    window = config.window()
    blocks = {"full": {}, "windowed": {"attention": {"window": window}}}
    return {**spec, "layers": {"count": layers, "pattern": pattern}, "blocks": blocks}


def _mlp(family: _Family, config: Config, bias: bool) -> Spec:
    mlp = plain_mlp(config, config.integer("intermediate_size"), bias) if family.plain else gated_mlp(config, bias)
    width = mlp["width"] // (1 + family.halves)
    return {
        **mlp,
        "width": width,
        "activation": config.activation("hidden_activation", "hidden_act", default=family.activation),
    }


def _experts(row: _Experts, config: Config, activation: str) -> tuple[Spec, list[str]]:
    """The section of the experts, and which feed-forward block each layer has."""
    moe = moe_section(config, row.width, experts=row.experts, top_k=row.top_k)
    moe["activation"] = config.activation("hidden_act", default=activation)
    if row.shared:
        moe["shared_width"] = config.natural(row.shared) * moe["width"]
    if row.shared_width:  # a gate of shared experts without width is refused
        moe["shared_width"] = config.integer(row.shared_width) if row.shared_gate else config.natural(row.shared_width)
    moe |= {"router_bias": True} if _on(config, row.router_bias) else {}
    moe |= {key: True for key in ("shared_gate", "bias") if getattr(row, key)}
    sparse = qwen_sparse(config) if row.stepped else [True] * config.layers()
    if row.dense:
        first = config.natural(row.dense, default=row.first)
        sparse = sparse_layers(config, [index >= first for index in range(config.layers())])
    return {"moe": moe}, ["moe" if some else "dense" for some in sparse]


FAMILIES = convert(read_mapping(Path(__file__).with_name("families.yaml")), dict[str, _Family])

READERS: Mapping[str, Reader] = {kind: partial(_read, family) for kind, family in FAMILIES.items()}
