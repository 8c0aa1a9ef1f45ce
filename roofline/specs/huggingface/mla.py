"""Decoders with MLA: DeepSeek and its relatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import Config, Reader, Spec, layer_types
from roofline.specs.huggingface.families import read_family


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


def _deepseek_v32(config: Config) -> Spec:
    layer_types(config, SPARSE)
    return read_family("deepseek_v32", config.replaced({**config.content, "layer_types": indexer_types(config)}))


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
    """LongCat-Flash and its variant with tables of n-grams: each of its layers is two."""
    layers, picked = config.layers("num_layers", "num_hidden_layers"), config.integer("moe_topk")
    real, idle = config.integer("n_routed_experts"), config.natural("zero_expert_num")
    doubled = config.with_defaults({"num_experts_per_tok": max(1, round(picked * real / (real + idle)))})
    doubled = doubled.replaced({**doubled.content, "num_hidden_layers": 2 * layers})
    return read_family(config.text("model_type"), doubled)


READERS: Mapping[str, Reader] = {
    "deepseek_v32": _deepseek_v32,
    "glm_moe_dsa": _deepseek_v32,
    "longcat_flash": _longcat_flash,
    "longcat_flash_ngram": _longcat_flash,
}
