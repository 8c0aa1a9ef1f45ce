"""Encoders and encoder-decoders whose files say something otherwise than by one value a key."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import Config, Reader, Spec
from roofline.specs.huggingface.families import read_family


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


READERS: Mapping[str, Reader] = {"longformer": _longformer, "mt5": _t5, "t5": _t5}
