"""Vision encoders by family: from a file, its section of the encoder and the decoder's spec to the keys of a tower.

For encoders of any resolution an image has 32 x 32 patches; `tower_tokens` in a spec, or --image-size, overrides that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import RMS, Config, Spec, gated_mlp, plain_mlp

PATCHES = 32 * 32
PIXELS: Mapping[int, tuple[int, int]] = {14: (56**2, 12845056), 16: (256**2, 4096**2)}
"""Bounds on an image's pixels by the size of a patch: preprocessor_config.json of Qwen2-VL and 2.5-VL, and Qwen3.5."""

LLAMA_4_TILES = 16
"""`max_patches` of Llama 4's image processor in transformers, and of its released preprocessor_config.json."""

INTERNVL_TILES = 12
"""`max_patches` of InternVL's image processor (GotOcr2ImageProcessor), and `max_dynamic_patch` of its config.json."""

KIMI_PIXELS = 3584**2
"""The pixels of the largest image of Kimi K2.5 and K3 (in_patch_limit of the released image processors)."""

UNBIASED = {"qkv_bias": False, "output_bias": False}


def _encoder(tower: Spec, tokens: int, **image: Any) -> Spec:
    return {"tower_tokens": tokens, "tower": tower, **({"image": image} if image else {})}


def _tower(vision: Config, sizes: Sequence[int | None] = (None,) * 4, **parts: Any) -> Spec:
    """A vision transformer with bidirectional attention, biases in all projections, and `parts`.

    Its section gives width, layers, heads and the width of an MLP of two matrices, under the names of CLIP, Qwen or
    Kimi; one of `sizes` may be left out there.
    """

    def size(index: int, *names: str, most: int = 10**7) -> int:
        default: dict[str, Any] = {} if sizes[index] is None else {"default": sizes[index]}
        return int(vision.integer(*names, most=most, **default))

    attention = {"heads": size(2, "num_attention_heads", "num_heads", "vt_num_attention_heads"), "causal": False}
    return {
        "hidden": size(0, "hidden_size", "vt_hidden_size"),
        "layers": size(1, "num_hidden_layers", "depth", "vt_num_hidden_layers", most=10**5),
        "norm": {"kind": "layernorm"},
        **parts,
        "mlp": parts.get("mlp") or plain_mlp(vision, size(3, "intermediate_size", "vt_intermediate_size")),
        "attention": {**attention, "qkv_bias": True, "output_bias": True, **parts.get("attention", {})},
    }


def _merging(
    vision: Config, sizes: Sequence[int], side: int, output: int, inner: int | None = None, **parts: Any
) -> Spec:
    """A tower for images of any size (Qwen): patches of two frames, of which the projector takes neighbours at once."""
    merge, frames = vision.integer("spatial_merge_size", default=2), vision.integer("temporal_patch_size", default=2)
    merged, (low, high) = sizes[0] * merge**2, PIXELS.get(side, PIXELS[16])
    projector = [merged, merged if inner is None else inner, output]
    tower = _tower(vision, sizes, hidden=sizes[0], patch=_patch(vision, side, frames), projector=projector, **parts)
    return _encoder(tower, PATCHES, patch=side, merge=merge, min_pixels=low, max_pixels=high)


def _side_of_patch(vision: Config, default: int = 14) -> int:
    return int(vision.integer("patch_size", default=default))


def _patch(vision: Config, side: int, frames: int = 1) -> int:
    """Numbers in a patch: colours, frames, height, width. `in_chans`, in older files, is without effect."""
    return int(vision.integer("num_channels", "in_channels", default=3)) * frames * side**2


def _gated(vision: Config, width: int, activation: str, **parts: Any) -> Spec:
    """A gated MLP, with class defaults of its width and its activation."""
    return {
        "width": vision.integer("intermediate_size", default=width),
        "gated": True,
        "activation": vision.activation("hidden_act", default=activation),
        **parts,
    }


def _learned(count: int, extra: int = 0) -> Spec:
    """Learned positions; a class token has one, and is a vector more."""
    return {"positions": {"kind": "learned", "count": count}, **({"extra_parameters": extra} if extra else {})}


def clip(config: Config, vision: Config, text: Spec) -> Spec:
    """CLIP without its class token, which is left out of the pass and of what the decoder sees.

    The decoder takes the output of the last layer but one; all layers are stored, and run.
    """
    kind = vision.text("model_type", "clip_vision_model")
    if kind != "clip_vision_model":
        raise SpecError(config.where, f"'vision_config': unsupported model_type {quote(kind)}")
    if config.text("vision_feature_select_strategy", "default") != "default":
        raise SpecError(config.where, "'vision_feature_select_strategy': only default is supported")
    hidden, patch = vision.integer("hidden_size", default=1024), _side_of_patch(vision)
    tokens = (vision.integer("image_size", default=336) // patch) ** 2
    tower = _tower(
        vision,
        (hidden, 24, 16, 4096),
        **_learned(tokens + 1, hidden),
        embedding_norm=True,
        patch=_patch(vision, patch),
        projector=[hidden, text["hidden"], text["hidden"]],
        projector_bias=config.flag("multimodal_projector_bias", True),
    )
    return _encoder(tower, tokens)


def llama4(config: Config, vision: Config, text: Spec) -> Spec:
    """One tile of an image; four neighbouring patches become one token."""
    hidden, patch = vision.integer("hidden_size"), _side_of_patch(vision)
    tile = vision.integer("image_size", default=336)
    tokens = (tile // patch) ** 2
    merged = round(hidden / vision.factor("pixel_shuffle_ratio", 0.5) ** 2)
    inner, outer = vision.integer("projector_input_dim"), vision.integer("projector_output_dim")
    wide, out = vision.integer("intermediate_size"), vision.integer("vision_output_dim", default=outer)
    if (merged, inner, outer) != (wide, outer, out):
        raise SpecError(config.where, "'vision_config': the widths of the projector do not follow each other")
    tower = _tower(
        vision,
        attention={"rotary": True},
        **_learned(tokens + 1, hidden),
        embedding_norm=True,
        patch=_patch(vision, patch),
        projector=[merged, inner, outer, text["hidden"]],
        projector_bias=False,  # whatever multi_modal_projector_bias says
    )
    return _encoder(tower, tokens, patch=patch, tile=tile, tiles=LLAMA_4_TILES)


def intern_vit(config: Config, vision: Config, text: Spec) -> Spec:
    """InternViT without its class token; four neighbouring patches become one token, and an image several tiles.

    InternVL's own files give sides as single numbers. Weights that scale each sub-layer's output (LayerScale) and the
    norm before the projector are stored, and not run.
    """
    if not config.flag("use_thumbnail", True):
        raise SpecError(config.where, "'use_thumbnail': tiles without a thumbnail are not supported")
    hidden, layers = vision.integer("hidden_size", default=1024), vision.layers()
    patch, tile = _side(vision, "patch_size", 14), _side(vision, "image_size", 448)
    tokens = (tile // patch) ** 2
    merged = round(hidden / config.factor("downsample_ratio", 0.5) ** 2)
    biased = vision.flag("qkv_bias" if "qkv_bias" in vision.content else "attention_bias", False)
    normed = vision.flag("qk_normalization" if "qk_normalization" in vision.content else "use_qk_norm", False)
    learned = vision.flag("use_absolute_position_embeddings", True)
    masked, pooled = vision.flag("use_mask_token", False), not vision.flag("use_mean_pooling", True)
    rms = vision.text("norm_type", "layer_norm") == "rms_norm"
    if normed and not rms:
        raise SpecError(config.where, "'vision_config': norms of queries and keys are read beside rms_norm alone")
    tower = _tower(
        vision,
        (hidden, layers, 16, 4096),
        attention={"qkv_bias": biased, **({"qk_norm": "full"} if normed else {})},
        norm={"kind": "rmsnorm" if rms else "layernorm"},
        positions={"kind": "learned", "count": tokens + 1} if learned else "none",
        final_norm=False,
        extra_parameters=hidden * (1 + 2 * layers + masked + 2 * pooled) + 2 * merged,
        patch=_patch(vision, patch),
        patch_bias=True,
        projector=[merged, text["hidden"], text["hidden"]],
    )
    tiles = config.integer("max_dynamic_patch", default=INTERNVL_TILES, most=256)
    dynamic = config.flag("dynamic_image_size", True)
    rule = {"patch": patch, "tile": tile, "tiles": tiles, "grid": "aspect"} if dynamic else {}
    return _encoder(tower, tokens, **rule)


def _side(vision: Config, name: str, default: int) -> int:
    """The side of a square in pixels, given as one number or as two equal ones."""
    listed = isinstance(vision.content.get(name), list)
    sides = set(vision.integers(name)) if listed else {vision.integer(name, default=default)}
    if len(sides) != 1 or not 1 <= min(sides) <= 10**5:
        raise SpecError(vision.where, f"{quote(name)}: only squares are supported")
    return int(sides.pop())


def qwen2_vl(_: Config, vision: Config, __: Spec) -> Spec:
    """The width of the tower is under its own key, `hidden_size` is that of the decoder."""
    hidden, output = vision.integer("embed_dim", default=1280), vision.integer("hidden_size", default=3584)
    mlp = plain_mlp(vision, int(hidden * vision.factor("mlp_ratio", 4)))
    return _merging(vision, (hidden, 32, 16), _side_of_patch(vision), output, mlp=mlp)


def qwen2_5_vl(_: Config, vision: Config, __: Spec) -> Spec:
    """Most layers of the tower see windows of 112 x 112 pixels; class defaults are the 7B model's.

    Files saved again by transformers 4.49 and later keep only the width of the tower.
    """
    side, hidden = _side_of_patch(vision), vision.integer("hidden_size", default=1280)
    window = (vision.integer("window_size", default=112) // side) ** 2
    full = vision.integers("fullatt_block_indexes") or [7, 15, 23, 31]
    mlp, output = _gated(vision, 3420, "silu", bias=True), vision.integer("out_hidden_size", default=3584)
    spec = _merging(vision, (hidden, 32, 16), side, output, mlp=mlp, norm={"kind": "rmsnorm"})
    tower = spec["tower"]
    pattern = ["full" if index in full else "local" for index in range(tower["layers"])]
    tower["layers"] = {"count": len(pattern), "pattern": pattern}
    tower["blocks"] = {"local": {"attention": {"window": window}}, "full": {}}
    return spec


def qwen3_vl(_: Config, vision: Config, __: Spec) -> Spec:
    """Outputs of three layers of the tower have projectors too (DeepStack), with norms of their own.

    The decoder adds them to the hidden states of its first layers, an addition that is left out.
    """
    taps = len(vision.integers("deepstack_visual_indexes"))
    spec = _qwen3(vision)
    deepstack = {"deepstack": taps, "extra_parameters": 2 * spec["tower"]["projector"][0] * taps} if taps else {}
    return {**spec, "tower": {**spec["tower"], **deepstack}}


def qwen3_5(config: Config, vision: Config, _: Spec) -> Spec:
    """The tower of Qwen3-VL without DeepStack."""
    if vision.content.get("deepstack_visual_indexes"):
        raise SpecError(config.where, "'vision_config': deepstack_visual_indexes are not supported")
    return _qwen3(vision)


def _qwen3(vision: Config) -> Spec:
    """Learned positions are added, and patches rotate too."""
    hidden, rows = vision.integer("hidden_size", default=1152), vision.integer("num_position_embeddings", default=2304)
    side, output = _side_of_patch(vision, 16), vision.integer("out_hidden_size", default=3584)
    parts: Spec = {"attention": {"rotary": True}, **_learned(rows), "patch_bias": True}
    return _merging(vision, (hidden, 27, 16, 4304), side, output, **parts)


def mistral3(config: Config, vision: Config, text: Spec) -> Spec:
    """The tower of Pixtral, whose patches rotate, and a projector that merges them before its two layers.

    The tokens that end each row of patches in the prompt are left out.
    """
    hidden, patch = vision.integer("hidden_size", default=1024), _side_of_patch(vision)
    merge, side = config.integer("spatial_merge_size", default=2), vision.integer("image_size", default=1540)
    biased = config.flag("multimodal_projector_bias", False)
    tower = _tower(
        vision,
        (hidden, 24, 16),
        mlp=_gated(vision, 4096, "gelu"),
        attention={"rotary": True, **UNBIASED},
        norm=RMS,
        embedding_norm=True,
        patch=_patch(vision, patch),
        projector=[hidden * merge**2, hidden, text["hidden"], text["hidden"]],
        projector_bias=[False, True, True] if biased else False,  # the merger never has one
    )
    return _encoder(tower, PATCHES, patch=patch, merge=merge, max_side=side)


def gemma3(config: Config, vision: Config, text: Spec) -> Spec:
    """SigLIP, whose 4,096 patches are averaged to 256 tokens, and one projection after a norm that is stored alone."""
    hidden, patch = vision.integer("hidden_size"), vision.integer("patch_size")
    patches, width = (vision.integer("image_size") // patch) ** 2, vision.integer("intermediate_size")
    extra = hidden
    if vision.flag("vision_use_head", True):  # attention pooling, which the projector does not use
        extra += 5 * hidden + 4 * hidden * hidden + 2 * hidden + 2 * hidden * width + hidden + width
    tower = _tower(
        vision,
        **_learned(patches, extra),
        patch=_patch(vision, patch),
        patch_bias=True,
        pool=max(patches // config.integer("mm_tokens_per_image", default=256), 1),
        projector=[hidden, text["hidden"]],
        projector_bias=False,
    )
    return _encoder(tower, patches)


def gemma4(config: Config, vision: Config, text: Spec) -> Spec:
    """Gemma 4's own tower, with tables of positions by row and column; 3 x 3 patches are averaged to a token."""
    pool = vision.integer("pooling_kernel_size") ** 2
    sizes = {"kv_heads": vision.integer("num_key_value_heads"), "head_dim": vision.integer("head_dim")}
    tower = _tower(
        vision,
        mlp={**gated_mlp(vision), "activation": vision.activation("hidden_activation", default="gelu")},
        attention={**sizes, **UNBIASED, "qk_norm": True, "values": "normalised", "rotary": True},
        norm={**RMS, "placement": "sandwich"},
        **_learned(2 * vision.integer("position_embedding_size")),
        final_norm=False,
        patch=3 * vision.integer("patch_size") ** 2,
        pool=pool,
        projector=[vision.integer("hidden_size"), text["hidden"]],
        projector_bias=False,
    )
    return _encoder(tower, pool * config.integer("vision_soft_tokens_per_image", default=280))


def glm4v(_: Config, vision: Config, __: Spec) -> Spec:
    """GLM-4.1V, 4.5V and 4.6V: positions are added, and patches rotate too; a norm follows the patches."""
    rows = (vision.integer("image_size", default=336) // _side_of_patch(vision)) ** 2
    output, wide = vision.integer("out_hidden_size", default=4096), vision.integer("intermediate_size", default=13696)
    hidden = vision.integer("hidden_size", default=1536)
    return _glm(vision, hidden, output, output, wide, **_learned(rows), embedding_norm=True)


def glm5_next(_: Config, vision: Config, __: Spec) -> Spec:
    """GLM-5.3-Flash: biases may be left out, and heads have norms."""
    biased, wide = vision.flag("attention_bias", True), vision.integer("projection_intermediate_size", default=10240)
    hidden, output = vision.integer("hidden_size", default=1024), vision.integer("out_hidden_size", default=1536)
    own = vision.integer("intermediate_size", default=4096)
    return _glm(vision, hidden, output, own, wide, biased, attention={"qk_norm": True})


def _glm(vision: Config, hidden: int, output: int, width: int, wide: int, biased: bool = False, **parts: Any) -> Spec:
    """A tower that ends in a block `wide`, gated, which is stored, and not run; `width` is that of its own layers."""
    return _merging(
        vision,
        (hidden, 24, 12),
        _side_of_patch(vision),
        output,
        output,
        mlp={"width": width, "gated": True, "activation": "silu", "bias": biased},
        attention={"rotary": True, "qkv_bias": biased, "output_bias": biased, **parts.pop("attention", {})},
        norm=RMS,
        patch_bias=True,
        projector_bias=[True, False],
        extra_parameters=3 * output * wide + 2 * output,
        **parts,
    )


def moonvit(config: Config, vision: Config, text: Spec) -> Spec:
    """MoonViT: learned positions, rotating patches, and a projector after a norm that is stored alone."""
    hidden = vision.integer("hidden_size", "vt_hidden_size", default=1152)
    normed = config.natural("projection_hidden_size", default=vision.integer("mm_hidden_size", default=hidden))
    return _kimi(vision, text, hidden, biased=True, extra_parameters=2 * normed)


def moonvit_2(_: Config, vision: Config, text: Spec) -> Spec:
    """MoonViT-V2: RMS norms, no biases, wider attention than the stream, and a norm after the projector."""
    hidden = vision.integer("vt_hidden_size", default=1024)
    spec = _kimi(vision, text, hidden, biased=False, norm=RMS, extra_parameters=text["hidden"])
    attention = spec["tower"]["attention"]
    attention["head_dim"] = vision.integer("qkv_hidden_size", default=hidden) // attention["heads"]
    return spec


def _kimi(vision: Config, text: Spec, hidden: int, biased: bool, **parts: Any) -> Spec:
    patch = _side_of_patch(vision)
    rows = vision.integer("pos_emb_height", "init_pos_emb_height", default=64)
    columns = vision.integer("pos_emb_width", "init_pos_emb_width", default=64)
    sides = vision.integers("merge_kernel_size") or [2, 2]
    if len(set(sides)) != 1:
        raise SpecError(vision.where, "'merge_kernel_size' must be the same along both sides")
    merged = hidden * sides[0] ** 2
    tower = _tower(
        vision,
        (hidden, 27, 16),
        mlp=plain_mlp(vision, vision.integer("intermediate_size", "vt_intermediate_size", default=4304), biased),
        hidden=hidden,
        attention={"rotary": True, "qkv_bias": biased, "output_bias": biased},
        **_learned(rows * columns),
        patch=3 * patch * patch,
        patch_bias=biased,
        projector=[merged, merged, text["hidden"]],
        projector_bias=biased,
        **parts,
    )
    return _encoder(tower, PATCHES, patch=patch, merge=sides[0], max_pixels=KIMI_PIXELS)


def minimax_m3(config: Config, vision: Config, text: Spec) -> Spec:
    """CLIP's layers after a norm, with rotating patches; two projections of each patch, then two of merged ones."""
    patch, output = _side_of_patch(vision), text["hidden"]
    compression = config.section("img_token_compression_config")
    merge = compression.integer("spatial_merge_size", default=vision.integer("spatial_merge_size", default=2))
    frames = compression.integer("temporal_patch_size", default=vision.integer("temporal_patch_size", default=2))
    inner, hidden = config.integer("projector_hidden_size", default=output), vision.integer("hidden_size", default=1280)
    tower = _tower(
        vision,
        (hidden, 32, 16, 5120),
        attention={"rotary": True},
        embedding_norm=True,
        final_norm=False,
        patch=_patch(vision, patch, frames),
        projector=[hidden, inner, output],
        merger=[output * merge**2, inner, output],
    )
    side = vision.integer("image_size", default=2016)
    return _encoder(tower, PATCHES, patch=patch, merge=merge, max_side=side)
