"""Vision-language models: a text decoder, and a vision encoder (`towers`) whose outputs are added to the prompt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from msgspec import Struct, convert

from roofline.core.errors import SpecError, quote, suggest
from roofline.specs.huggingface import text as decoders
from roofline.specs.huggingface.config import Config, Reader, Spec, class_defaults, read_layers, rows
from roofline.specs.huggingface.towers import TOWERS


class _Row(Struct, frozen=True, forbid_unknown_fields=True):
    text: str
    tower: str | None = None
    alone: bool = False
    tied_by_text: bool = False
    tied_by_either: bool = False
    tied: bool = False
    unread: tuple[str, ...] = ()


def _text(config: Config, row: _Row) -> Spec:
    """The text decoder: in a section of newer files, at the top level in older ones, which decides on tying."""
    key = "llm_config" if config.content.get("llm_config") else "text_config"  # that of InternVL's own code
    text = config if config.content.get(key) in (None, {}) else config.section(key)
    nested = text is not config
    tied = config.content.get("tie_word_embeddings")
    if tied is None and (row.tied or config.defaults.get("tie_word_embeddings") is False):
        tied = row.tied  # in files that leave out the class's true, Transformers 4 let the text decoder decide
    if row.tied_by_either and text.flag("tie_word_embeddings", False):
        tied = True  # where Transformers 4 wrote it
    if nested and not row.tied_by_text and tied is not None:
        text = text.having({"tie_word_embeddings": tied})
    model_type = text.text("model_type", row.text)
    if model_type not in decoders.READERS and model_type.startswith(config.text("model_type")):
        model_type = row.text
    if model_type not in decoders.READERS:
        problem = f"{quote(key)}: unsupported model_type {quote(model_type)}{suggest(model_type, decoders.READERS)}"
        raise SpecError(config.where, problem)
    if nested and not text.defaults:
        text = Config(text.content, text.where, text.read, class_defaults(model_type, section=True))
    return read_layers(text, decoders.READERS[model_type])


def _read(row: _Row, config: Config) -> Spec:
    config.read.update(row.unread)
    decoder = _text(config, row)
    if row.tower is None or (row.alone and not config.section("vision_config").content):
        return decoder
    return {**decoder, "tower_kind": "vision", **TOWERS[row.tower](config, config.section("vision_config"), decoder)}


ROWS = convert(rows("vision.yaml"), dict[str, _Row])


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
    return _read(ROWS["llava"], config)


def _qwen3_omni(config: Config) -> Spec:
    """The thinker and its vision tower; the audio encoder is stored, and the talker is another model.

    Audio: three convolutions over bands and time, a projection, Whisper's layers, and two projections.
    """
    thinker = config if config.content.get("text_config") else config.section("thinker_config")
    text = {**thinker.section("text_config").content, "model_type": "qwen3_moe"}
    named = {**thinker.content, "model_type": "qwen3_vl_moe", "text_config": text}
    nested = Config(named, config.where, config.read)
    config.read.update(("thinker_config", "talker_config", "code2wav_config", "audio_config"))
    spec, audio = _read(ROWS["qwen3_vl_moe"], nested), thinker.section("audio_config")
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


READERS: Mapping[str, Reader] = {
    **{name: partial(_read, row) for name, row in ROWS.items()},
    "llava": _llava,
    **dict.fromkeys(("qwen3_omni_moe", "qwen3_omni_moe_thinker"), _qwen3_omni),
}
