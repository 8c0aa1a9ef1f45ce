"""The readers of all models of text: rows of `families.yaml`, and what files say otherwise than by a value a key.

`KEYS` has functions from a file to the keys that its row reads in place of what the file says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface import deepseek_v4, families, per_layer
from roofline.specs.huggingface.config import (
    Config,
    Reader,
    Spec,
    base_spec,
    expanded,
    gated_mlp,
    layer_types,
    of_each_layer,
    spec_with_pattern,
)
from roofline.specs.huggingface.families import read_family

Keys = dict[str, Any]


def _t5(config: Config) -> Keys:
    """The block is one text: an activation, after `gated-`."""
    kind, _, activation = config.text("feed_forward_proj", "relu").rpartition("-")
    if kind not in ("", "gated"):
        raise SpecError(config.where, f"'feed_forward_proj': unsupported block {quote(kind)}")
    sizes = {"d_model": 512, "num_heads": 8, "num_layers": 6}
    given = {name: config.integer(name, default=size) for name, size in sizes.items()}
    return {**given, "is_gated_act": kind == "gated", "dense_act_fn": activation}


def _llama4_text(config: Config) -> Keys:
    """All layers are dense where no step or no experts are given (Llama Guard 4, MobileLLM-R1)."""
    layers = config.layers()
    every = [int((index + 1) % 4 != 0) for index in range(layers)]
    rotating = of_each_layer(config, config.integers("no_rope_layers"), "no_rope_layers", every)
    kinds = ["local" if turns else "global" for turns in rotating]
    if (layer_types(config, {"chunked_attention": "local", "full_attention": "global"}) or kinds) != kinds:
        raise SpecError(config.where, "'layer_types': chunks elsewhere than in rotating layers are not supported")
    step = config.natural("interleave_moe_layer_step", default=1)
    sparse = [*range(step - 1, layers, step)] if step else []
    return {"moe_layers": sparse} if config.content.get("moe_layers") is None else {}


def _step3p5(config: Config) -> Keys:
    """Step 3 and 3.5: lists also name the prediction modules, and those of experts may be one text."""
    if not all(config.flags("use_rope_layers")):
        raise SpecError(config.where, "'use_rope_layers': layers without positions are not supported")
    layers, given = config.layers(), config.content.get("moe_layers_enum")
    split = [entry for entry in given.split(",") if entry.strip().isdigit()] if isinstance(given, str) else None
    config.read.add("moe_layers_enum")
    sparse = list(map(int, split)) if split is not None else config.integers("moe_layers_enum") or [*range(3, layers)]
    return {"layer_types": config.texts("layer_types")[:layers] or None, "moe_layers_enum": sparse}


def _ernie4_5_moe(config: Config) -> Keys:
    """ERNIE 4.5: experts from `moe_layer_start_index` to `moe_layer_end_index`, of which -1 is the last layer."""
    end = config.integer("moe_layer_end_index", default=-1, least=-1)
    return {"moe_layer_end_index": config.layers() - 1 if end == -1 else end}


def _hunyuan_v1_moe(config: Config) -> Keys:
    """Hunyuan-A13B: counts of experts are lists by layer in its own files, and numbers in Transformers'."""
    width = config.integer("intermediate_size")
    defaults = {"moe_intermediate_size": width, "num_shared_expert": 1, "num_experts": 1, "moe_topk": 1}
    return {name: config.same(name, default) for name, default in defaults.items()}


SPARSE: Mapping[str, str] = dict.fromkeys(("deepseek_sparse_attention", "indexed_attention", "full_attention"), "dsa")
"""The entries of `layer_types` of these models: all attend sparsely, by either name, and windows are not read."""


def _indexers(config: Config) -> list[str]:
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


def _deepseek_v32(config: Config) -> Keys:
    layer_types(config, SPARSE)
    return {"layer_types": _indexers(config)}


def _longcat_flash(config: Config) -> Keys:
    """LongCat-Flash and its variant with tables of n-grams: each of its layers is two."""
    layers, picked = config.layers("num_layers", "num_hidden_layers"), config.integer("moe_topk")
    real, idle = config.integer("n_routed_experts"), config.natural("zero_expert_num")
    given = config.content.get("num_experts_per_tok")
    chosen = max(1, round(picked * real / (real + idle))) if given is None else given
    return {"num_experts_per_tok": chosen, "num_hidden_layers": 2 * layers}


_NEMOTRON_LAYERS: Mapping[str, str] = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_NAMES: Mapping[str, str] = {
    **{name: name for name in _NEMOTRON_LAYERS.values()},
    "linear_attention": "mamba",
    "full_attention": "attention",
}


def _nemotron_h(config: Config) -> Keys:
    """What each layer is: names in `layers_block_type` (Transformers 5), or letters in `hybrid_override_pattern`."""
    key, known, given = "layers_block_type", _NEMOTRON_NAMES, config.texts("layers_block_type")
    if not given:
        key, known, given = "hybrid_override_pattern", _NEMOTRON_LAYERS, list(config.text("hybrid_override_pattern"))
    unknown = sorted(set(given) - set(known))
    if unknown or not 0 < len(given) <= 10**5:
        problem = f"unknown layer {quote(unknown[0])}" if unknown else "must name every layer"
        raise SpecError(config.where, f"{quote(key)}: {problem}")
    return {"layer_types": [known[name] for name in given], "num_hidden_layers": len(given)}


def _lfm2(config: Config) -> Keys:
    """The width of dense models is rounded up from two thirds of that of the file."""
    if not config.flag("block_auto_adjust_ff_dim", True):
        return {}
    multiple = config.integer("block_multiple_of", default=256)
    width = config.integer("block_ff_dim", "intermediate_size")
    wanted = int(config.factor("block_ffn_dim_multiplier", 1.0) * (2 * width // 3))
    return {"block_ff_dim": -(-wanted // multiple) * multiple}


def _kimi_linear(config: Config) -> Keys:
    """Layers with MLA are named in `layer_types`, or by their numbers from 1 on."""
    layers, linear = config.layers(), config.section("linear_attn_config")
    full, delta = linear.integers("full_attn_layers"), linear.integers("kda_layers")
    if config.content.get("layer_types") or not (full or delta):
        return {}
    if sorted((*full, *delta)) != list(range(1, layers + 1)):
        problem = f"'full_attn_layers' and 'kda_layers' must name each of {layers} layers once"
        raise SpecError(config.where, f"'linear_attn_config': {problem}")
    named = ["full_attention" if index + 1 in full else "linear_attention" for index in range(layers)]
    return {"layer_types": named}


KEYS: Mapping[str, Callable[[Config], Keys]] = {
    "deepseek_v32": _deepseek_v32,
    "deepseek_v4": deepseek_v4.listed_layers,
    "ernie4_5_moe": _ernie4_5_moe,
    "falcon_h1": lambda config: {"num_hidden_layers": 2 * config.layers()},  # a layer is two
    "glm_moe_dsa": _deepseek_v32,
    "hunyuan_v1_moe": _hunyuan_v1_moe,
    "kimi_linear": _kimi_linear,
    "lfm2": _lfm2,
    "llama4_text": _llama4_text,
    "longcat_flash": _longcat_flash,
    "longcat_flash_ngram": _longcat_flash,
    "longformer": lambda config: {"attention_window": config.same("attention_window", 512)},  # listed for each layer
    "mt5": _t5,
    "nemotron_h": _nemotron_h,
    "step3_text": _step3p5,
    "step3p5": _step3p5,
    "t5": _t5,
}


def _with_keys(name: str, keys: Callable[[Config], Keys], config: Config) -> Spec:
    return read_family(name, config.having(keys(config)))


def _gemma4_text(config: Config) -> Spec:
    """The class makes the last layer one without a window."""
    if config.integer("hidden_size_per_layer_input", least=0):
        return per_layer.gemma4_per_layer(config)
    kinds = config.texts("layer_types") or [
        "sliding_attention" if (at + 1) % 6 else "full_attention" for at in range(config.layers())
    ]
    return read_family("gemma4_text", config.having({"layer_types": [*kinds[:-1], "full_attention"]}))


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
            given = config.content.get("intermediate_size")
            sized = config.having({"intermediate_size": width if given is None else given})
            part["mlp"] = gated_mlp(sized, config.flag("mlp_bias", False))
        if part:
            grouped = f"kv{part['attention']['kv_heads']}" if "attention" in part else ""
            kinds.append("_".join(filter(None, (grouped, f"w{part['mlp']['width']}" if "mlp" in part else ""))))
            parts[kinds[-1]] = part
    if not kinds:
        raise SpecError(config.where, "'block_configs' must list layers that have attention or an MLP")
    return spec_with_pattern(base_spec(config), parts, kinds)


def _layers_with(spec: Spec, mixer: str) -> list[Any]:
    """The sections of a mixer in all layers that have it."""
    places = (spec.get("blocks", {}).get(name, {}) for name in expanded(spec))
    found = (place.get(mixer) or spec.get(mixer) for place in places)
    return [section for section in found if section]


def _glm5_next_text(config: Config) -> Spec:
    """Streams end in their mean, where specs have the weights of a sum: what pools learn is counted less those."""
    spec = read_family("glm5_next_text", config)
    full, streams, hidden = _layers_with(spec, "latent_attention"), spec["streams"], spec["hidden"]
    if "shared" in _indexers(config):
        raise SpecError(config.where, "'indexer_types': shared indexers are not read for GLM-5.3-Flash")
    learned = sum(each["indexer"]["head_dim"] * (each["indexer"]["block"] + hidden) for each in full)
    return {**spec, "extra_parameters": max(0, learned - streams * (streams * hidden + 1) - 1)}


def _bailing_hybrid(config: Config) -> Spec:
    """What norms of Lightning attention learn beside a spec's is counted, and not run."""
    spec = read_family("bailing_hybrid", config)
    if not (linear := _layers_with(spec, "retention")):
        return spec
    normed = config.flag("use_qk_norm", True)
    return {**spec, "extra_parameters": sum((each["heads"] - 1 + 2 * normed) * each["key_dim"] for each in linear)}


READERS: Mapping[str, Reader] = {
    **families.READERS,
    **{name: partial(_with_keys, name, keys) for name, keys in KEYS.items()},
    "bailing_hybrid": _bailing_hybrid,
    "deepseek_v41_text": deepseek_v4.deepseek_v41,
    "gemma3n_text": per_layer.gemma3n_text,
    "gemma4_text": _gemma4_text,
    "glm5_next_text": _glm5_next_text,
    "nemotron-nas": _nemotron_nas,
}
