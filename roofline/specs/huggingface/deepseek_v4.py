"""DeepSeek-V4 and V4.1: attention over a window and compressed entries, hyper-connections, experts in FP4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError
from roofline.specs.huggingface.config import Config, Spec, layer_types
from roofline.specs.huggingface.families import read_family

WINDOW, SPARSE, HEAVY = "window", "csa", "hca"

LAYERS: Mapping[str, str] = {
    "sliding_attention": WINDOW,
    "compressed_sparse_attention": SPARSE,
    "heavily_compressed_attention": HEAVY,
}
"""The entries of `layer_types`, which files of Transformers have in place of `compress_ratios`."""


def listed_layers(config: Config) -> dict[str, Any]:
    """The layers of DeepSeek-V4 by name, and those that choose experts by token id."""
    layers = config.layers()
    return {"layer_types": _mixers(config, layers), "hash_layers": _hashed(config, layers)}


def deepseek_v41(config: Config) -> Spec:
    """Few layers store entries (`kv_source_layer_ids`) or select some (`index_source_layer_ids`); others reuse them.

    From `candidate_source_layer_id` on an indexer scores the keys of so many blocks alone. Layers after the last that
    stores entries run the window at the end of a prompt alone, as vLLM and SGLang replay it. Every router has a bias
    for images beside its own, and a DSpark draft has fewer experts.
    """
    layers, ratios = config.layers(), config.integers("compress_ratios")
    stores, selects = config.integers("kv_source_layer_ids"), config.integers("index_source_layer_ids")
    known = len(ratios) >= layers and all(0 <= layer < layers and ratios[layer] > 0 for layer in (*stores, *selects))
    if not known or not stores or not set(stores) <= set(selects):
        problem = "'compress_ratios', 'kv_source_layer_ids' and 'index_source_layer_ids' do not go together"
        raise SpecError(config.where, problem)
    if any(ratios[layer] and layer < min(stores) for layer in range(layers)):
        raise SpecError(config.where, "'kv_source_layer_ids': a layer reads entries before any layer stores some")
    width = config.natural("candidate_topk_blocks") * config.natural("candidate_block_size")
    first = config.natural("candidate_source_layer_id", default=layers)
    window = config.integer("sliding_window", default=128)
    indexer = {
        "heads": config.integer("index_n_heads", default=64),
        "head_dim": config.integer("index_head_dim", default=128),
        "selected": config.integer("index_topk", default=512),
    }
    tables, sizes = config.integers("engram_layer_ids"), config.integers("engram_num_embeddings")
    if len(tables) != len(sizes):
        raise SpecError(config.where, "'engram_num_embeddings' must have one entry for each of 'engram_layer_ids'")
    memories = dict(zip(tables, sizes, strict=True))
    parts: dict[str, Spec] = {}

    def block(layer: int) -> str:
        names, part = [WINDOW], dict[str, Any]()
        if ratio := ratios[layer]:
            own: Spec = {"shared": layer not in selects}
            names = ["stores" if layer in stores else "selects" if layer in selects else "reads", str(ratio)]
            if layer in selects and width and layer > first:
                own["candidates"] = width
                names.append("candidates")
            entries: Spec = {"ratio": ratio, "projected": True, "shared": layer not in stores}
            part["compressed_attention"] = {**entries, "indexer": {**indexer, **own}}
        if layer in memories:
            names.append(f"engram_{layer}")
            part["engram"] = {
                "rows": memories[layer],
                "width": config.integer("engram_head_dim"),
                "heads": config.integer("engram_n_heads"),
                "longest": config.integer("engram_max_ngram_size"),
                "format": "mxfp8",
            }
        if layer > max(stores):
            names.append("last")
            part["tail"] = window
        parts["_".join(names)] = part
        return "_".join(names)

    base = {**read_family("_deepseek_v4", config), "extra_parameters": layers * config.integer("n_routed_experts")}
    base["moe"]["router_bias"] = True
    if (drafted := config.natural("dspark_n_routed_experts")) > 0:
        base["draft_experts"] = {"experts": drafted, "top_k": config.integer("dspark_num_experts_per_tok")}
    pattern = [block(layer) for layer in range(layers)]
    return {**base, "layers": {"count": layers, "pattern": pattern}, "blocks": parts}


def _mixers(config: Config, layers: int) -> list[str]:
    """The attention of each layer; one more entry is the prediction module's. Without any, as in DeepSeek-V4-Pro."""
    named, given, rates = (
        layer_types(config, LAYERS),
        config.integers("compress_ratios"),
        config.section("compress_rates"),
    )
    if named or not given:
        return named or [HEAVY if index < 2 or index % 2 else SPARSE for index in range(layers)]
    sparse = rates.integer("compressed_sparse_attention", default=4)
    heavy = rates.integer("heavily_compressed_attention", default=128)
    known = {0: WINDOW, 1: WINDOW, sparse: SPARSE, heavy: HEAVY}
    if len(given) < layers or not set(given[:layers]) <= set(known):
        problem = f"'compress_ratios' must have 0, {sparse} or {heavy} for each of {layers} layers"
        raise SpecError(config.where, problem)
    return [known[ratio] for ratio in given[:layers]]


def _hashed(config: Config, layers: int) -> list[int]:
    """The layers that choose experts by token id: the first ones, if the file names none."""
    named = config.texts("mlp_layer_types")
    if not named:
        return [*range(config.natural("num_hash_layers", default=3))]
    if len(named) != layers or not set(named) <= {"hash_moe", "moe"}:
        raise SpecError(config.where, f"'mlp_layer_types' must say hash_moe or moe of each of {layers} layers")
    return [index for index, name in enumerate(named) if name == "hash_moe"]
