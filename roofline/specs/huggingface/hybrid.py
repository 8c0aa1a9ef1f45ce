"""Hybrids: models in which some layers attend and others keep a recurrent state."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import Config, Reader, Spec
from roofline.specs.huggingface.families import read_family

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


READERS: Mapping[str, Reader] = {"falcon_h1": _falcon_h1, "lfm2": _lfm2, "nemotron_h": _nemotron_h}
