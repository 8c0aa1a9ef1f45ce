"""Decoders with MLA: DeepSeek and its relatives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface import families
from roofline.specs.huggingface.config import Config, Reader, Spec, base_spec, gated_mlp, layer_types
from roofline.specs.huggingface.moe import moe_section, moe_spec, sparse_layers


def mla_section(config: Config, value_dim: int | None = None) -> Spec:
    """The latent_attention section (MLA); a q_lora_rank of null projects queries directly."""
    config.reject("attention_bias")
    if not config.flag("use_mla", True):
        owner = quote(config.text("model_type"))
        raise SpecError(config.where, f"'use_mla': only MLA is supported for model_type {owner}")
    rank = config.integer("q_lora_rank", default=None)
    return {
        "heads": config.integer("num_attention_heads"),
        "kv_rank": config.integer("kv_lora_rank"),
        "nope_dim": config.integer("qk_nope_head_dim"),
        "rope_dim": config.integer("qk_rope_head_dim", least=0),
        "value_dim": config.integer("v_head_dim", **({"default": value_dim} if value_dim else {})),
        **({} if rank is None else {"q_rank": rank}),
    }


def _deepseek(
    config: Config,
    latent: Spec,
    dense: int,
    shared: int,
    router_bias: bool,
    mixers: Sequence[list[str]] = (),
    parts: Mapping[str, Spec] = MappingProxyType({}),
    biased: bool = False,
) -> Spec:
    """First layers dense, then MoE with shared experts; `dense` and `shared` are the class defaults.

    `mixers`: the key in `parts` of each layer's mixer, if layers differ. `biased`: dense blocks and shared experts.
    """
    width = config.integer("moe_intermediate_size")
    shared_width = config.natural("n_shared_experts", default=shared) * width
    moe = moe_section(config, "moe_intermediate_size", shared_width=shared_width, router_bias=router_bias)
    if biased:
        moe["shared_bias"] = shared_width > 0
        parts = {**parts, "dense": {"mlp": gated_mlp(config, bias=True)}}
    first, period = config.natural("first_k_dense_replace", default=dense), config.integer("moe_layer_freq", default=1)
    counted = [index >= first and index % period == 0 for index in range(config.layers())]
    sparse = sparse_layers(config, counted)
    mtp = config.natural("num_nextn_predict_layers")
    base = base_spec(config, latent_attention=latent, mtp=mtp)
    return moe_spec(config, base, sparse, moe, *mixers, **parts)


def _deepseek_v2(config: Config) -> Spec:
    """Without MLA the decoder of DeepSeek-OCR, whose layers are those of the first DeepSeek."""
    if not config.flag("use_mla", True):
        return families.READERS["deepseek"](config)
    biased = config.flag("mlp_bias", False)
    return _deepseek(config, mla_section(config), dense=0, shared=2, router_bias=False, biased=biased)


def _relative(dense: int, router_bias: bool = True) -> Reader:
    """DeepSeek-V3's layers with other class defaults. The bias that the router adds to select experts has no key."""
    return lambda config: _deepseek(config, mla_section(config), dense=dense, shared=1, router_bias=router_bias)


def _deepseek_v32(config: Config) -> Spec:
    """Also GLM-5; in GLM-5.2 most layers reuse the keys that an earlier layer's indexer selected."""
    layer_types(config, SPARSE)
    indexer = indexer_section(config, 64, 2048)
    parts: dict[str, Spec] = {
        "full": {"latent_attention": {"indexer": indexer}},
        "shared": {"latent_attention": {"indexer": {**indexer, "shared": True}}},
    }
    latent = mla_section(config)
    mixers = [indexer_types(config)]
    return _deepseek(config, latent, dense=3, shared=1, router_bias=True, mixers=mixers, parts=parts)


def indexer_section(config: Config, heads: int, selected: int, **parts: Any) -> Spec:
    """The keys that an indexer selects; `heads` and `selected` are class defaults."""
    return {
        "heads": config.integer("index_n_heads", default=heads),
        "head_dim": config.integer("index_head_dim", default=128),
        "selected": config.integer("index_topk", default=selected),
        **parts,
    }


SPARSE: Mapping[str, str] = dict.fromkeys(("deepseek_sparse_attention", "indexed_attention", "full_attention"), "dsa")
"""The entries of `layer_types` of these models: all attend sparsely, by either name, and windows are not read."""


def indexer_types(config: Config) -> list[str]:
    """Per layer: it runs an indexer ("full"), or reuses the selection of the last one that did ("shared").

    `indexer_types` names them; `index_topk_pattern` in letters; else every `index_topk_freq`-th layer runs one, and
    all before `index_skip_topk_offset` do (vLLM, model_executor/models/deepseek_v2.py).
    """
    layers = config.layers()
    key, named = "indexer_types", config.texts("indexer_types")
    pattern = config.text("index_topk_pattern", None)
    if pattern is not None and not named:
        key, named = "index_topk_pattern", [{"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern]
    if not named:
        every = config.integer("index_topk_freq", default=1)
        offset = config.natural("index_skip_topk_offset", default=2)
        return ["shared" if max(layer - offset + 1, 0) % every else "full" for layer in range(layers)]
    if len(named) != layers or named[0] != "full" or not set(named) <= {"full", "shared"}:
        raise SpecError(config.where, f"'{key}' must say 'full' or 'shared' of {layers} layers, the first one full")
    return named


def _longcat_flash(config: Config) -> Spec:
    """LongCat-Flash: a layer is two, each with MLA and a dense block; experts run beside those of the first one.

    Some experts return their input: of those that a token picks the mean share computes, and the router's rows for the
    others are stored.
    """
    hidden, layers = config.integer("hidden_size"), config.layers("num_layers", "num_hidden_layers")
    real, idle = config.integer("n_routed_experts"), config.natural("zero_expert_num")
    width, picked = config.integer("ffn_hidden_size", "intermediate_size"), config.integer("moe_topk")
    moe = moe_section(
        config.with_defaults({"num_experts_per_tok": max(1, round(picked * real / (real + idle)))}),
        "expert_ffn_hidden_size",
        shared_width=width,
        router_bias=True,
    )
    return base_spec(
        config.renamed(num_hidden_layers="num_layers"),
        latent_attention=mla_section(config),
        layers={"count": 2 * layers, "pattern": ["moe", "dense"]},
        blocks={"moe": {"moe": moe}, "dense": {"mlp": {"width": width, "gated": True, "activation": "silu"}}},
        extra_parameters=layers * idle * (hidden + 1),
    )


def _longcat_flash_ngram(config: Config) -> Spec:
    """LongCat-Flash-Lite: tables of n-grams, as wide together as the embedding, and a projection of each to the stream.

    A token reads a row of each. Table i has 2i + 1 rows beyond the ratio times the vocabulary, so that no two are alike
    (MLX-VLM, models/longcat_flash_ngram).
    """
    spec = _longcat_flash(config)
    hidden, rows = spec["hidden"], config.integer("ngram_vocab_size_ratio") * spec["vocabulary"]
    tables = config.integer("emb_split_num") * (config.integer("emb_neighbor_num") - 1)
    config.reject("oe_vocab_size_ratio")
    return {**spec, "extra_parameters": spec["extra_parameters"] + (rows + tables + hidden) * hidden}


def _minicpm3(config: Config) -> Spec:
    """Dense; values are hidden / heads wide, and the embedding is tied, where the file does not say so."""
    value_dim = config.integer("hidden_size") // config.integer("num_attention_heads")
    latent = mla_section(config, value_dim)
    mlp = gated_mlp(config, config.flag("mlp_bias", False))
    return base_spec(config, tied=True, latent_attention=latent, mlp=mlp)


READERS: Mapping[str, Reader] = {
    "deepseek_v2": _deepseek_v2,
    "deepseek_v3": _relative(dense=3),
    "deepseek_v32": _deepseek_v32,
    "glm4_moe_lite": _relative(dense=1),
    "glm_moe_dsa": _deepseek_v32,
    "kimi_k2": _relative(dense=3),
    "longcat_flash": _longcat_flash,
    "longcat_flash_ngram": _longcat_flash_ngram,
    "minicpm3": _minicpm3,
    "mistral4": _relative(dense=0, router_bias=False),
}
