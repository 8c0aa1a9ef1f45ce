"""Vision-language models: a text decoder and a vision encoder whose outputs are added to the prompt.

For encoders of any resolution an image has 32 x 32 patches; `tower_tokens` in a spec, or --image-size, overrides that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from roofline.core.errors import SpecError, quote, suggest
from roofline.specs.huggingface import dense, families, hybrid, kimi, minimax_m3, mla, per_layer
from roofline.specs.huggingface import moe as experts
from roofline.specs.huggingface.config import (
    RMS,
    Config,
    Reader,
    Spec,
    class_defaults,
    gated_mlp,
    plain_mlp,
    read_layers,
)

PATCHES = 32 * 32
PIXELS: Mapping[int, tuple[int, int]] = {14: (56**2, 12845056), 16: (256**2, 4096**2)}
"""Bounds on an image's pixels by the size of a patch: preprocessor_config.json of Qwen2-VL and 2.5-VL, and Qwen3.5."""

LLAMA_4_TILES = 16
"""`max_patches` of Llama 4's image processor in transformers, and of its released preprocessor_config.json."""

INTERNVL_TILES = 12
"""`max_patches` of InternVL's image processor (GotOcr2ImageProcessor), and `max_dynamic_patch` of its config.json."""

_TEXT: Mapping[str, Reader] = {
    **dense.READERS,
    **families.READERS,
    **families.TEXT_DECODERS,
    **experts.READERS,
    **experts.TEXT_DECODERS,
    **kimi.READERS,
    **kimi.TEXT_DECODERS,
    **minimax_m3.TEXT_DECODERS,
    **mla.READERS,
    **per_layer.READERS,
    **hybrid.TEXT_DECODERS,
}


def _text(config: Config, default: str, key: str = "text_config", tied_by_text: bool = False) -> Spec:
    """The text decoder: nested under `key` in newer files, at the top level in older ones, which decides on tying.

    `default` is its model_type where the file gives it no name or one derived from the whole model's.
    """
    text = config if config.content.get(key) in (None, {}) else config.section(key)
    nested = text is not config
    tied = config.content.get("tie_word_embeddings")
    if tied is None and config.defaults.get("tie_word_embeddings") is False:
        tied = False  # in files that leave out the class's true, Transformers 4 let the text decoder decide
    if nested and not tied_by_text and tied is not None:
        text = text.replaced({**text.content, "tie_word_embeddings": tied})
    model_type = text.text("model_type", default)
    if model_type not in _TEXT and model_type.startswith(config.text("model_type")):
        model_type = default
    if model_type not in _TEXT:
        problem = f"{quote(key)}: unsupported model_type {quote(model_type)}{suggest(model_type, _TEXT, listed=40)}"
        raise SpecError(config.where, problem)
    if nested and not text.defaults:
        text = Config(text.content, text.where, text.read, class_defaults(model_type, section=True))
    return read_layers(text, _TEXT[model_type])


Tower: TypeAlias = Callable[[Config, Config, Spec], Spec]
"""From a file, its section of the tower and the spec of the text decoder to the keys of the tower."""


def _seen(default: str, tower: Tower, alone: bool = False, **text: Any) -> Reader:
    """The reader of a text decoder that by default is of the type `default`, and a tower.

    `alone`: files without a section of the tower have none; others have it with the defaults of the class.
    """

    def read(config: Config) -> Spec:
        decoder = _text(config, default, **text)
        if alone and not config.content.get("vision_config"):
            return decoder
        return {**decoder, "tower_kind": "vision", **tower(config, config.section("vision_config"), decoder)}

    return read


def _encoder(tower: Spec, tokens: int, **image: Any) -> Spec:
    return {"tower_tokens": tokens, "tower": tower, **({"image": image} if image else {})}


def _dynamic(vision: Config, patch: int) -> dict[str, int]:
    """The image rule of Qwen's dynamic resolution."""
    low, high = PIXELS.get(patch, PIXELS[16])
    merge = vision.integer("spatial_merge_size", default=2)
    return {"patch": patch, "merge": merge, "min_pixels": low, "max_pixels": high}


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


def _side_of_patch(vision: Config, default: int = 14) -> int:
    return int(vision.integer("patch_size", default=default))


def _patch(vision: Config, side: int, frames: int = 1) -> int:
    """Numbers in a patch: colours, frames, height, width. `in_chans`, in older files, is without effect."""
    return int(vision.integer("num_channels", "in_channels", default=3)) * frames * side**2


def _frames(vision: Config) -> int:
    return int(vision.integer("temporal_patch_size", default=2))


def _classed(hidden: int, patches: int) -> Spec:
    """Learned positions of an image's patches and of a class token, which is a vector more."""
    return {"positions": {"kind": "learned", "count": patches + 1}, "extra_parameters": hidden}


_CLIP = "clip-vit-large-patch14-336"


def _check_original_llava(config: Config) -> None:
    """Files of LLaVA's own code name the tower and have no sizes of it: only those of LLaVA-1.5 are known."""
    tower = config.text("mm_vision_tower")
    if not tower.rstrip("/").endswith(_CLIP):
        raise SpecError(config.where, f"'mm_vision_tower': only {_CLIP} is known without sizes, got {quote(tower)}")
    kind = config.text("mm_projector_type", "linear")
    if kind != "mlp2x_gelu":
        raise SpecError(config.where, f"'mm_projector_type': only mlp2x_gelu is supported, got {quote(kind)}")
    ratio = config.text("image_aspect_ratio", "") or ""
    if "anyres" in ratio:
        raise SpecError(config.where, f"'image_aspect_ratio': images in several tiles ({quote(ratio)}) are not read")
    named = [name for name in config.texts("architectures") if "Llama" not in name and name.startswith("Llava")]
    if named:
        problem = f"the language model of {quote(named[0])} is not read from such a file, only Llama"
        raise SpecError(config.where, f"'architectures': {problem}")


def _llava(config: Config) -> Spec:
    if not config.content.get("vision_config") and not config.content.get("text_config"):
        _check_original_llava(config)
    return _seen("llama", _clip)(config)


def _clip(config: Config, vision: Config, text: Spec) -> Spec:
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
        **_classed(hidden, tokens),
        embedding_norm=True,
        patch=_patch(vision, patch),
        projector=[hidden, text["hidden"], text["hidden"]],
        projector_bias=config.flag("multimodal_projector_bias", True),
    )
    return _encoder(tower, tokens)


def _llama4(config: Config, vision: Config, text: Spec) -> Spec:
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
        **_classed(hidden, tokens),
        embedding_norm=True,
        patch=_patch(vision, patch),
        projector=[merged, inner, outer, text["hidden"]],
        projector_bias=False,  # whatever multi_modal_projector_bias says
    )
    return _encoder(tower, tokens, patch=patch, tile=tile, tiles=LLAMA_4_TILES)


def _internvl(config: Config) -> Spec:
    """Files of InternVL's own code (internvl_chat) name the decoder llm_config."""
    return _seen("qwen2", _intern_vit, key="llm_config" if config.content.get("llm_config") else "text_config")(config)


def _intern_vit(config: Config, vision: Config, text: Spec) -> Spec:
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


def _merged(vision: Config, hidden: int, output: int) -> list[int]:
    """The projector's widths: it takes spatial_merge_size^2 neighbouring patches at once."""
    merged = hidden * vision.integer("spatial_merge_size", default=2) ** 2
    return [merged, merged, output]


def _qwen2_vl(_: Config, vision: Config, __: Spec) -> Spec:
    hidden, patch = vision.integer("embed_dim", default=1280), _side_of_patch(vision)
    output = vision.integer("hidden_size", default=3584)
    tower = _tower(
        vision,
        (hidden, 32, 16),
        mlp=plain_mlp(vision, int(hidden * vision.factor("mlp_ratio", 4))),
        hidden=hidden,
        patch=_patch(vision, patch, _frames(vision)),
        projector=_merged(vision, hidden, output),
    )
    return _encoder(tower, PATCHES, **_dynamic(vision, patch))


def _qwen2_5_vl(_: Config, vision: Config, __: Spec) -> Spec:
    """Most layers of the tower see windows of 112 x 112 pixels; class defaults are the 7B model's.

    Files saved again by transformers 4.49 and later keep only the width of the tower.
    """
    size = _side_of_patch(vision)
    window = (vision.integer("window_size", default=112) // size) ** 2
    full = vision.integers("fullatt_block_indexes") or [7, 15, 23, 31]
    mlp = {
        "width": vision.integer("intermediate_size", default=3420),
        "gated": True,
        "activation": vision.activation("hidden_act", default="silu"),
        "bias": True,
    }
    hidden = vision.integer("hidden_size", default=1280)
    projector = _merged(vision, hidden, vision.integer("out_hidden_size", default=3584))
    patch = _patch(vision, size, _frames(vision))
    tower = _tower(vision, (hidden, 32, 16), mlp=mlp, norm={"kind": "rmsnorm"}, patch=patch, projector=projector)
    pattern = ["full" if index in full else "local" for index in range(tower["layers"])]
    tower["layers"] = {"count": len(pattern), "pattern": pattern}
    tower["blocks"] = {"local": {"attention": {"window": window}}, "full": {}}
    return _encoder(tower, PATCHES, **_dynamic(vision, size))


def _qwen3_vl(config: Config, vision: Config, text: Spec) -> Spec:
    """Outputs of three layers of the tower have projectors too (DeepStack), with norms of their own.

    The decoder adds them to the hidden states of its first layers, an addition that is left out.
    """
    taps = len(vision.integers("deepstack_visual_indexes"))
    spec = _qwen3_tower(config, vision, text)
    tower = spec["tower"]
    deepstack = {"deepstack": taps, "extra_parameters": 2 * tower["projector"][0] * taps} if taps else {}
    return {**spec, "tower": {**tower, **deepstack}}


def _qwen3_5(config: Config, vision: Config, text: Spec) -> Spec:
    if vision.content.get("deepstack_visual_indexes"):
        raise SpecError(config.where, "'vision_config': deepstack_visual_indexes are not supported")
    return _qwen3_tower(config, vision, text)


def _qwen3_tower(_: Config, vision: Config, __: Spec) -> Spec:
    """Learned positions are added, and patches rotate too."""
    hidden, patch = vision.integer("hidden_size", default=1152), _side_of_patch(vision, 16)
    tower = _tower(
        vision,
        (hidden, 27, 16, 4304),
        attention={"rotary": True},
        positions={"kind": "learned", "count": vision.integer("num_position_embeddings", default=2304)},
        patch=_patch(vision, patch, _frames(vision)),
        patch_bias=True,
        projector=_merged(vision, hidden, vision.integer("out_hidden_size", default=3584)),
    )
    return _encoder(tower, PATCHES, **_dynamic(vision, patch))


def _mistral3(config: Config, vision: Config, text: Spec) -> Spec:
    """The tower of Pixtral, whose patches rotate, and a projector that merges them before its two layers.

    The tokens that end each row of patches in the prompt are left out.
    """
    hidden, patch = vision.integer("hidden_size", default=1024), _side_of_patch(vision)
    merge, side = config.integer("spatial_merge_size", default=2), vision.integer("image_size", default=1540)
    biased = config.flag("multimodal_projector_bias", False)
    mlp = {
        "width": vision.integer("intermediate_size", default=4096),
        "gated": True,
        "activation": vision.activation("hidden_act", default="gelu"),
    }
    tower = _tower(
        vision,
        (hidden, 24, 16),
        mlp=mlp,
        attention={"rotary": True, "qkv_bias": False, "output_bias": False},
        norm=RMS,
        embedding_norm=True,
        patch=_patch(vision, patch),
        projector=[hidden * merge**2, hidden, text["hidden"], text["hidden"]],
        projector_bias=[False, True, True] if biased else False,  # the merger never has one
    )
    return _encoder(tower, PATCHES, patch=patch, merge=merge, max_side=side)


def _gemma3(config: Config, vision: Config, text: Spec) -> Spec:
    """SigLIP, whose 4,096 patches are averaged to 256 tokens, and one projection after a norm that is stored alone."""
    hidden, patch = vision.integer("hidden_size"), vision.integer("patch_size")
    patches, width = (vision.integer("image_size") // patch) ** 2, vision.integer("intermediate_size")
    extra = hidden
    if vision.flag("vision_use_head", True):  # attention pooling, which the projector does not use
        extra += 5 * hidden + 4 * hidden * hidden + 2 * hidden + 2 * hidden * width + hidden + width
    tower = _tower(
        vision,
        positions={"kind": "learned", "count": patches},
        patch=_patch(vision, patch),
        patch_bias=True,
        pool=max(patches // config.integer("mm_tokens_per_image", default=256), 1),
        projector=[hidden, text["hidden"]],
        projector_bias=False,
        extra_parameters=extra,
    )
    return _encoder(tower, patches)


def _gemma3n(config: Config) -> Spec:
    """Its text decoder: the MobileNet and the audio encoder beside it are not read."""
    config.read.update(("vision_config", "audio_config"))
    return _text(config, "gemma3n_text")


def _gemma4(config: Config) -> Spec:
    config.read.add("audio_config")  # the audio encoder of E2B and E4B is not read
    return _seen("gemma4_text", _gemma4_tower, alone=True)(config)


def _gemma4_tower(config: Config, vision: Config, text: Spec) -> Spec:
    """Gemma 4's own tower, with tables of positions by row and column; 3 x 3 patches are averaged to a token."""
    pool = vision.integer("pooling_kernel_size") ** 2
    attention = {
        "kv_heads": vision.integer("num_key_value_heads"),
        "head_dim": vision.integer("head_dim"),
        "qkv_bias": False,
        "output_bias": False,
        "qk_norm": True,
        "values": "normalised",
        "rotary": True,
    }
    tower = _tower(
        vision,
        mlp={**gated_mlp(vision), "activation": vision.activation("hidden_activation", default="gelu")},
        attention=attention,
        norm={**RMS, "placement": "sandwich"},
        positions={"kind": "learned", "count": 2 * vision.integer("position_embedding_size")},
        final_norm=False,
        patch=3 * vision.integer("patch_size") ** 2,
        pool=pool,
        projector=[vision.integer("hidden_size"), text["hidden"]],
        projector_bias=False,
    )
    return _encoder(tower, pool * config.integer("vision_soft_tokens_per_image", default=280))


KIMI_PIXELS = 3584**2
"""The pixels of the largest image of Kimi K2.5 and K3 (in_patch_limit of the released image processors)."""


def _glm4v(_: Config, vision: Config, __: Spec) -> Spec:
    """GLM-4.1V, 4.5V and 4.6V: positions are added, and patches rotate too; a norm follows the patches."""
    rows = (vision.integer("image_size", default=336) // _side_of_patch(vision)) ** 2
    extra: Spec = {"positions": {"kind": "learned", "count": rows}, "embedding_norm": True}
    output, wide = vision.integer("out_hidden_size", default=4096), vision.integer("intermediate_size", default=13696)
    return _glm_tower(vision, vision.integer("hidden_size", default=1536), output, output, wide, **extra)


def _glm5_next(_: Config, vision: Config, __: Spec) -> Spec:
    biased, wide = vision.flag("attention_bias", True), vision.integer("projection_intermediate_size", default=10240)
    hidden, output = vision.integer("hidden_size", default=1024), vision.integer("out_hidden_size", default=1536)
    own = vision.integer("intermediate_size", default=4096)
    return _glm_tower(vision, hidden, output, own, wide, biased, attention={"qk_norm": True})


def _glm_tower(
    vision: Config, hidden: int, output: int, width: int, wide: int, biased: bool = False, **parts: Any
) -> Spec:
    """A tower that ends in a block `wide`, gated, which is stored, and not run; `width` is that of its own layers."""
    merge, size = vision.integer("spatial_merge_size", default=2), _side_of_patch(vision)
    tower = _tower(
        vision,
        (hidden, 24, 12),
        mlp={"width": width, "gated": True, "activation": "silu", "bias": biased},
        attention={"rotary": True, "qkv_bias": biased, "output_bias": biased, **parts.pop("attention", {})},
        norm=RMS,
        patch=_patch(vision, size, _frames(vision)),
        patch_bias=True,
        projector=[hidden * merge**2, output, output],
        projector_bias=[True, False],
        extra_parameters=3 * output * wide + 2 * output,
        **parts,
    )
    return _encoder(tower, PATCHES, **_dynamic(vision, size))


def _qwen3_omni(config: Config) -> Spec:
    """The thinker and its vision tower; the audio encoder is stored, and the talker is another model.

    Audio: three convolutions over bands and time, a projection, Whisper's layers, and two projections.
    """
    thinker = config if config.content.get("text_config") else config.section("thinker_config")
    text = {**thinker.section("text_config").content, "model_type": "qwen3_moe"}
    named = {**thinker.content, "model_type": "qwen3_vl_moe", "text_config": text}
    nested = Config(named, config.where, config.read)
    config.read.update(("thinker_config", "talker_config", "code2wav_config", "audio_config"))
    spec, audio = READERS["qwen3_vl_moe"](nested), thinker.section("audio_config")
    if not audio.content:
        return spec
    width, channels = audio.integer("d_model", default=1280), audio.integer("downsample_hidden_size", default=480)
    inner, bands = audio.integer("encoder_ffn_dim", default=5120), audio.integer("num_mel_bins", default=128)
    for _ in range(3):
        bands = (bands + 1) // 2
    layer = 4 * (width + 1) * width + 2 * width * inner + inner + width + 4 * width
    stored = channels * (10 + 2 * (9 * channels + 1)) + channels * bands * width + 2 * width
    stored += (width + 1) * width + (width + 1) * audio.integer("output_dim", default=3584)
    stored += audio.layers("encoder_layers", "num_hidden_layers") * layer
    return {**spec, "extra_parameters": spec.get("extra_parameters", 0) + stored}


def _kimi_k25(config: Config) -> Spec:
    tied = config.with_defaults({"tie_word_embeddings": config.flag("tie_word_embeddings", True)})
    return _seen("deepseek_v3", _moonvit, alone=True)(tied)


def _moonvit(config: Config, vision: Config, text: Spec) -> Spec:
    """MoonViT: learned positions, rotating patches, and a projector after a norm that is stored alone."""
    hidden = vision.integer("hidden_size", "vt_hidden_size", default=1152)
    normed = config.natural("projection_hidden_size", default=vision.integer("mm_hidden_size", default=hidden))
    return _kimi_tower(vision, text, hidden, biased=True, extra_parameters=2 * normed)


def _moonvit_2(_: Config, vision: Config, text: Spec) -> Spec:
    """MoonViT-V2: RMS norms, no biases, wider attention than the stream, and a norm after the projector."""
    hidden = vision.integer("vt_hidden_size", default=1024)
    spec = _kimi_tower(vision, text, hidden, biased=False, norm=RMS, extra_parameters=text["hidden"])
    attention = spec["tower"]["attention"]
    attention["head_dim"] = vision.integer("qkv_hidden_size", default=hidden) // attention["heads"]
    return spec


def _kimi_tower(vision: Config, text: Spec, hidden: int, biased: bool, **parts: Any) -> Spec:
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
        positions={"kind": "learned", "count": rows * columns},
        patch=3 * patch * patch,
        patch_bias=biased,
        projector=[merged, merged, text["hidden"]],
        projector_bias=biased,
        **parts,
    )
    return _encoder(tower, PATCHES, patch=patch, merge=sides[0], max_pixels=KIMI_PIXELS)


def _minimax_m3_vl(config: Config, vision: Config, text: Spec) -> Spec:
    """CLIP's layers after a norm, with rotating patches; two projections of each patch, then two of merged ones."""
    patch, output = _side_of_patch(vision), text["hidden"]
    compression = config.section("img_token_compression_config")
    merge = compression.integer("spatial_merge_size", default=vision.integer("spatial_merge_size", default=2))
    frames = compression.integer("temporal_patch_size", default=_frames(vision))
    inner = config.integer("projector_hidden_size", default=output)
    hidden = vision.integer("hidden_size", default=1280)
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


READERS: Mapping[str, Reader] = {
    "gemma3": _seen("gemma3_text", _gemma3, alone=True),
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    **dict.fromkeys(("glm46v", "glm4v"), _seen("glm4v_text", _glm4v)),
    "glm4v_moe": _seen("glm4v_moe_text", _glm4v),
    "glm5_next": _seen("glm5_next_text", _glm5_next, alone=True),
    "internvl": _internvl,
    "internvl_chat": _internvl,
    "kimi_k25": _kimi_k25,
    "kimi_k3": _seen("kimi_linear", _moonvit_2, alone=True),
    "llama4": _seen("llama4_text", _llama4, tied_by_text=True),
    "llava": _llava,
    "minimax_m3_vl": _seen("minimax_m3_vl_text", _minimax_m3_vl, alone=True),
    "mistral3": _seen("mistral", _mistral3),
    "qwen2_5_vl": _seen("qwen2", _qwen2_5_vl),
    "qwen2_vl": _seen("qwen2", _qwen2_vl),
    "qwen3_5": _seen("qwen3_5_text", _qwen3_5),
    "qwen3_5_moe": _seen("qwen3_5_moe_text", _qwen3_5),
    "qwen3_omni_moe": _qwen3_omni,
    "qwen3_omni_moe_thinker": _qwen3_omni,
    "qwen3_vl": _seen("qwen3", _qwen3_vl),
    "qwen3_vl_moe": _seen("qwen3_moe", _qwen3_vl),
}
