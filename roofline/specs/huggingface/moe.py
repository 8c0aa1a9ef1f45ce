"""Decoders with experts whose files say something otherwise than by one value a key."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core.errors import SpecError
from roofline.specs.huggingface.config import Config, Reader, Spec, layer_types, of_each_layer
from roofline.specs.huggingface.families import read_family


def _llama4_text(config: Config) -> Spec:
    """All layers are dense where no step or no experts are given (Llama Guard 4, MobileLLM-R1)."""
    layers = config.layers()
    every = [int((index + 1) % 4 != 0) for index in range(layers)]
    rotating = of_each_layer(config, config.integers("no_rope_layers"), "no_rope_layers", every)
    kinds = ["local" if turns else "global" for turns in rotating]
    if (layer_types(config, {"chunked_attention": "local", "full_attention": "global"}) or kinds) != kinds:
        raise SpecError(config.where, "'layer_types': chunks elsewhere than in rotating layers are not supported")
    step = config.natural("interleave_moe_layer_step", default=1)
    if config.content.get("moe_layers") is None:
        config = config.replaced({**config.content, "moe_layers": [*range(step - 1, layers, step)] if step else []})
    return read_family("llama4_text", config)


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


def _deepseek_v32(config: Config) -> Spec:
    layer_types(config, SPARSE)
    return read_family("deepseek_v32", config.replaced({**config.content, "layer_types": indexer_types(config)}))


def _longcat_flash(config: Config) -> Spec:
    """LongCat-Flash and its variant with tables of n-grams: each of its layers is two."""
    layers, picked = config.layers("num_layers", "num_hidden_layers"), config.integer("moe_topk")
    real, idle = config.integer("n_routed_experts"), config.natural("zero_expert_num")
    doubled = config.with_defaults({"num_experts_per_tok": max(1, round(picked * real / (real + idle)))})
    doubled = doubled.replaced({**doubled.content, "num_hidden_layers": 2 * layers})
    return read_family(config.text("model_type"), doubled)


READERS: Mapping[str, Reader] = {
    "deepseek_v32": _deepseek_v32,
    "ernie4_5_moe": _ernie4_5_moe,
    "glm_moe_dsa": _deepseek_v32,
    "hunyuan_v1_moe": _hunyuan_v1_moe,
    "llama4_text": _llama4_text,
    "longcat_flash": _longcat_flash,
    "longcat_flash_ngram": _longcat_flash,
    "step3_text": _step3p5,
    "step3p5": _step3p5,
}
