"""Vision-language models: a text decoder, and a vision encoder (`towers`) whose outputs are added to the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError, quote, suggest
from roofline.specs.huggingface import text as decoders
from roofline.specs.huggingface.config import Config, Reader, Spec, class_defaults, read_layers
from roofline.specs.huggingface.towers import TOWERS


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
    if model_type not in decoders.READERS and model_type.startswith(config.text("model_type")):
        model_type = default
    if model_type not in decoders.READERS:
        problem = f"{quote(key)}: unsupported model_type {quote(model_type)}{suggest(model_type, decoders.READERS)}"
        raise SpecError(config.where, problem)
    if nested and not text.defaults:
        text = Config(text.content, text.where, text.read, class_defaults(model_type, section=True))
    return read_layers(text, decoders.READERS[model_type])


def _seen(default: str, tower: str, alone: bool = False, **text: Any) -> Reader:
    """The reader of a text decoder that by default is of the type `default`, and a tower.

    `alone`: files without a section of the tower have none; others have it with the defaults of the class.
    """

    def read(config: Config) -> Spec:
        decoder = _text(config, default, **text)
        if alone and not config.content.get("vision_config"):
            return decoder
        return {**decoder, "tower_kind": "vision", **TOWERS[tower](config, config.section("vision_config"), decoder)}

    return read


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
    return _seen("llama", "clip")(config)


def _internvl(config: Config) -> Spec:
    """Files of InternVL's own code (internvl_chat) name the decoder llm_config."""
    return _seen("qwen2", "intern_vit", key="llm_config" if config.content.get("llm_config") else "text_config")(config)


def _gemma3n(config: Config) -> Spec:
    """Its text decoder: the MobileNet and the audio encoder beside it are not read."""
    config.read.update(("vision_config", "audio_config"))
    return _text(config, "gemma3n_text")


def _gemma4(config: Config) -> Spec:
    config.read.add("audio_config")  # the audio encoder of E2B and E4B is not read
    return _seen("gemma4_text", "gemma4", alone=True)(config)


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
    return _seen("deepseek_v3", "moonvit", alone=True)(tied)


READERS: Mapping[str, Reader] = {
    "gemma3": _seen("gemma3_text", "gemma3", alone=True),
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    **dict.fromkeys(("glm46v", "glm4v"), _seen("glm4v_text", "glm4v")),
    "glm4v_moe": _seen("glm4v_moe_text", "glm4v"),
    "glm5_next": _seen("glm5_next_text", "glm5_next", alone=True),
    "internvl": _internvl,
    "internvl_chat": _internvl,
    "kimi_k25": _kimi_k25,
    "kimi_k3": _seen("kimi_linear", "moonvit_2", alone=True),
    "llama4": _seen("llama4_text", "llama4", tied_by_text=True),
    "llava": _llava,
    "minimax_m3_vl": _seen("minimax_m3_vl_text", "minimax_m3", alone=True),
    "mistral3": _seen("mistral", "mistral3"),
    "qwen2_5_vl": _seen("qwen2", "qwen2_5_vl"),
    "qwen2_vl": _seen("qwen2", "qwen2_vl"),
    "qwen3_5": _seen("qwen3_5_text", "qwen3_5"),
    "qwen3_5_moe": _seen("qwen3_5_moe_text", "qwen3_5"),
    "qwen3_omni_moe": _qwen3_omni,
    "qwen3_omni_moe_thinker": _qwen3_omni,
    "qwen3_vl": _seen("qwen3", "qwen3_vl"),
    "qwen3_vl_moe": _seen("qwen3_moe", "qwen3_vl"),
}
