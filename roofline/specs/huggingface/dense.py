"""Dense decoders, and encoders, whose files say something otherwise than by one value a key."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import (
    Config,
    Reader,
    Spec,
    base_spec,
    gated_mlp,
    spec_with_pattern,
)
from roofline.specs.huggingface.families import read_family
from roofline.specs.huggingface.per_layer import gemma4_per_layer


def _gemma4_text(config: Config) -> Spec:
    """The class makes the last layer one without a window."""
    if config.integer("hidden_size_per_layer_input", least=0):
        return gemma4_per_layer(config)
    kinds = config.texts("layer_types") or [
        "sliding_attention" if (at + 1) % 6 else "full_attention" for at in range(config.layers())
    ]
    return read_family(
        "gemma4_text", config.replaced({**config.content, "layer_types": [*kinds[:-1], "full_attention"]})
    )


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
            sized = config.with_defaults({"intermediate_size": width})
            part["mlp"] = gated_mlp(sized, config.flag("mlp_bias", False))
        if part:
            grouped = f"kv{part['attention']['kv_heads']}" if "attention" in part else ""
            kinds.append("_".join(filter(None, (grouped, f"w{part['mlp']['width']}" if "mlp" in part else ""))))
            parts[kinds[-1]] = part
    if not kinds:
        raise SpecError(config.where, "'block_configs' must list layers that have attention or an MLP")
    return spec_with_pattern(base_spec(config), parts, kinds)


def _longformer(config: Config) -> Spec:
    """A window may be listed for each layer."""
    listed = isinstance(config.content.get("attention_window"), list)
    windows = set(config.integers("attention_window") if listed else [config.tokens("attention_window", default=512)])
    if len(windows) != 1:
        raise SpecError(config.where, "'attention_window': windows that differ between layers are not supported")
    return read_family("longformer", config.replaced({**config.content, "attention_window": windows.pop()}))


def _t5(config: Config) -> Spec:
    """The block is one text: an activation, after `gated-`."""
    kind, _, activation = config.text("feed_forward_proj", "relu").rpartition("-")
    if kind not in ("", "gated"):
        raise SpecError(config.where, f"'feed_forward_proj': unsupported block {quote(kind)}")
    sizes = {"d_model": 512, "num_heads": 8, "num_layers": 6}
    given = {name: config.integer(name, default=size) for name, size in sizes.items()}
    block = {"is_gated_act": kind == "gated", "dense_act_fn": activation}
    config = config.replaced({**config.content, **given, **block})
    alone = any(name.endswith("T5EncoderModel") for name in config.texts("architectures"))
    return read_family("_t5_encoder" if alone else "t5", config)


READERS: Mapping[str, Reader] = {
    "gemma4_text": _gemma4_text,
    "longformer": _longformer,
    "mt5": _t5,
    "nemotron-nas": _nemotron_nas,
    "t5": _t5,
}
