"""Hybrids of MLA: with delta attention in Kimi Linear, Kimi K3, GLM-5.3-Flash and Ling 3.0, and linear in Ling 2.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError
from roofline.specs.huggingface.config import Config, Reader, Spec, expanded
from roofline.specs.huggingface.families import read_family
from roofline.specs.huggingface.mla import indexer_types


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
    "glm5_next_text": _glm5_next_text,
    "kimi_linear": _kimi_linear,
}
