"""The config.json of diffusers' UNet2DConditionModel: Stable Diffusion 1 and 2, SDXL, its refiner, and their like."""

from __future__ import annotations

from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import Config, Spec

CLASS = "UNet2DConditionModel"
"""The `_class_name` of such a file, which has no `model_type`."""

DOWN = {"CrossAttnDownBlock2D": True, "DownBlock2D": False}
"""Blocks of the way down, and whether they have transformer blocks."""

UP = {"CrossAttnUpBlock2D": True, "UpBlock2D": False}

NOT_READ = (
    *("class_embed_type", "encoder_hid_dim", "time_embedding_dim", "time_cond_proj_dim", "cross_attention_norm"),
    *("dual_cross_attention", "only_cross_attention", "resnet_skip_time_act", "reverse_transformer_layers_per_block"),
)
"""Keys that change the network, and are off in the models of Stability AI."""


def unet_spec(config: Config) -> Spec:
    """The model spec; heads are counted by `attention_head_dim`, as diffusers reads it."""
    config.reject(*NOT_READ)
    channels = config.integers("block_out_channels")
    if not channels:
        raise SpecError(config.where, "the key 'block_out_channels' is missing")
    down, up = _attends(config, "down_block_types", DOWN), _attends(config, "up_block_types", UP)
    if down != up[::-1] or len(down) != len(channels):
        raise SpecError(config.where, "'up_block_types' must mirror 'down_block_types', one for each level")
    if (middle := config.text("mid_block_type", None) or "UNetMidBlock2DCrossAttn") != "UNetMidBlock2DCrossAttn":
        raise SpecError(config.where, f"'mid_block_type': unsupported block {quote(middle)}")
    depths = config.each("transformer_layers_per_block", len(channels), "levels", default=1)
    heads = "num_attention_heads" if config.content.get("num_attention_heads") else "attention_head_dim"
    kind = config.text("addition_embed_type", None)
    if kind not in (None, "text_time"):
        raise SpecError(config.where, f"'addition_embed_type': unsupported condition {quote(kind)}")
    unet: dict[str, Any] = {
        "channels": channels,
        "depths": [depth if attends else 0 for depth, attends in zip(depths, down, strict=True)],
        "heads": config.each(heads, len(channels), "levels", default=8),
        "middle": depths[-1],
        "text_width": config.integer("cross_attention_dim", default=1280),
        "blocks": config.integer("layers_per_block", default=2),
        "inputs": config.integer("in_channels", default=4),
        "outputs": config.integer("out_channels", default=4),
        "added": config.integer("projection_class_embeddings_input_dim") if kind else 0,
    }
    size = config.integer("sample_size", default=None, most=10**4)
    return {
        "task": "encode",
        "dtype": "fp16",  # of the variant that is run; the file does not say
        "hidden": channels[0],
        "layers": 1,
        "max_context": size * size if size else None,
        "norm": {"kind": "layernorm"},
        "unet": unet,
        "lm_head": False,
    }


def _attends(config: Config, name: str, known: dict[str, bool]) -> list[bool]:
    """Whether each block of one way has transformer blocks."""
    for kind in (kinds := config.texts(name)):
        if kind not in known:
            raise SpecError(config.where, f"{quote(name)}: unsupported block {quote(kind)}")
    return [known[kind] for kind in kinds]
