"""Hybrids: models in which some layers attend and others keep a recurrent state, where files list layers otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import Config, Reader, Spec, expanded
from roofline.specs.huggingface.families import read_family
from roofline.specs.huggingface.moe import indexer_types

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
    kinds = _nemotron_layers(config)
    return read_family(
        "nemotron_h", config.replaced({**config.content, "layer_types": kinds, "num_hidden_layers": len(kinds)})
    )


def _falcon_h1(config: Config) -> Spec:
    """A layer is two."""
    return read_family("falcon_h1", config.replaced({**config.content, "num_hidden_layers": 2 * config.layers()}))


def _lfm2(config: Config) -> Spec:
    """The width of dense models is rounded up from two thirds of that of the file."""
    if config.flag("block_auto_adjust_ff_dim", True):
        multiple = config.integer("block_multiple_of", default=256)
        width = config.integer("block_ff_dim", "intermediate_size")
        wanted = int(config.factor("block_ffn_dim_multiplier", 1.0) * (2 * width // 3))
        config = config.replaced({**config.content, "block_ff_dim": -(-wanted // multiple) * multiple})
    return read_family("lfm2", config)


def _kimi_linear(config: Config) -> Spec:
    """Layers with MLA are named in `layer_types`, or by their numbers from 1 on."""
    layers, linear = config.layers(), config.section("linear_attn_config")
    full, delta = linear.integers("full_attn_layers"), linear.integers("kda_layers")
    if config.content.get("layer_types") or not (full or delta):
        return read_family("kimi_linear", config)
    if sorted((*full, *delta)) != list(range(1, layers + 1)):
        problem = f"'full_attn_layers' and 'kda_layers' must name each of {layers} layers once"
        raise SpecError(config.where, f"'linear_attn_config': {problem}")
    named = ["full_attention" if index + 1 in full else "linear_attention" for index in range(layers)]
    return read_family("kimi_linear", config.replaced({**config.content, "layer_types": named}))


def _layers_with(spec: Spec, mixer: str) -> list[Any]:
    """The sections of a mixer in all layers that have it."""
    places = (spec.get("blocks", {}).get(name, {}) for name in expanded(spec))
    found = (place.get(mixer) or spec.get(mixer) for place in places)
    return [section for section in found if section]


def _glm5_next_text(config: Config) -> Spec:
    """Streams end in their mean, where specs have the weights of a sum: what pools learn is counted less those."""
    spec = read_family("glm5_next_text", config)
    full, streams, hidden = _layers_with(spec, "latent_attention"), spec["streams"], spec["hidden"]
    if "shared" in indexer_types(config):
        raise SpecError(config.where, "'indexer_types': shared indexers are not read for GLM-5.3-Flash")
    learned = sum(each["indexer"]["head_dim"] * (each["indexer"]["block"] + hidden) for each in full)
    return {**spec, "extra_parameters": max(0, learned - streams * (streams * hidden + 1) - 1)}


def _bailing_hybrid(config: Config) -> Spec:
    """What norms of Lightning attention learn beside a spec's is counted, and not run."""
    if not any("V2_5" in name for name in config.texts("architectures")):
        return read_family("bailing_hybrid", config)
    spec = read_family("_bailing_hybrid_2_5", config)
    linear, normed = _layers_with(spec, "retention"), config.flag("use_qk_norm", True)
    learned = sum((each["heads"] - 1 + 2 * normed) * each["key_dim"] for each in linear)
    return {**spec, "extra_parameters": learned}


READERS: Mapping[str, Reader] = {
    "bailing_hybrid": _bailing_hybrid,
    "falcon_h1": _falcon_h1,
    "glm5_next_text": _glm5_next_text,
    "kimi_linear": _kimi_linear,
    "lfm2": _lfm2,
    "nemotron_h": _nemotron_h,
}
