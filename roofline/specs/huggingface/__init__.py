"""Hugging Face `config.json` to model spec, one reader per `model_type`. No network access, no remote code.

`register` adds a reader from a user's module: a function from a `Config` to the keys of a model spec.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from roofline.core.documents import read_mapping
from roofline.core.errors import InexpressibleError, SpecError, quote
from roofline.core.registry import Registration, Registry
from roofline.specs.classes.reader import knows_class, read_class, without_classes
from roofline.specs.huggingface import text, vision
from roofline.specs.huggingface.config import (
    ATTENTION_BIAS,
    NO_DEFAULTS,
    Config,
    Reader,
    Spec,
    attention_section,
    base_spec,
    class_defaults,
    gated_mlp,
    layer_types,
    plain_mlp,
    read_layers,
    rows,
    spec_with_pattern,
)
from roofline.specs.huggingface.model_wide import complete_spec, reject_drafts
from roofline.specs.huggingface.quantization import quantization
from roofline.specs.huggingface.quantization_methods import SECTION
from roofline.specs.huggingface.unet import CLASS, unet_spec
from roofline.specs.library import CONFIG, format_files

__all__ = [
    "ATTENTION_BIAS",
    "Config",
    "Reader",
    "Spec",
    "attention_section",
    "base_spec",
    "gated_mlp",
    "layer_types",
    "plain_mlp",
    "register",
    "spec_with_pattern",
    "translate",
    "translate_file",
]

READERS: Registry[Reader] = Registry("reader of the model_type", {**text.READERS, **vision.READERS})
"""The supported values of `model_type`, also those of text decoders that files of multimodal models have inside."""

TEXT_CONFIGS = ("text_config", "llm_config", "language_config")
"""The keys of the text decoder in multimodal files."""

DECODERS: Mapping[str, str] = {
    "deepseek_vl_v2": "deepseek_v2",  # and DeepSeek-OCR
    "kimi_vl": "deepseek_v3",
    "llava_llama": "llama",
    "llava_mistral": "mistral",
    **dict.fromkeys(("llava_qwen", "llava_qwen2"), "qwen2"),  # LLaVA-OneVision's own code, FastVLM
}
"""The decoder of a multimodal model whose files do not name its type, in a section or at the top level."""

SHARED_KEYS = (SECTION, "torch_dtype", "dtype", "tie_word_embeddings")
"""Keys of multimodal files that are also about their text decoder."""


def register(model_type: str, reader: Reader, *, replace: bool = False) -> Registration:
    """Read files of a `model_type` with a reader of one's own, until the registration is undone.

    The reader takes the file as a `Config` and returns the keys of a model spec; it raises SpecError for what a spec
    cannot express. Keys that all families share (`dtype`, quantization, encoder classes) are read after it. Raises
    RooflineError for a `model_type` that has a reader, unless it is to `replace` it.
    """
    return READERS.add(model_type, reader, (reader,), replace)


def translate_file(path: Path, name: str = "") -> Spec:
    """The model spec of the config.json at `path`, and of the file of formats beside it; raises SpecError.

    The default name is that of the file, or of its folder.
    """
    content, beside = read_mapping(path), next((file for file in format_files(path) if file.is_file()), None)
    found = None if beside is None else Config(read_mapping(beside), str(beside))
    default = path.parent.resolve().name if path.name == CONFIG else path.stem
    return translate(content, str(path), name or default, found)


def translate(content: Mapping[str, Any], where: str, name: str, beside: Config | None = None) -> Spec:
    """The model spec of a config.json; `beside` is a file of formats, which counts where the config.json is silent.

    The default name is the file's `_name_or_path`, which is often the model that training started from. Raises
    SpecError for a missing key, a value of the wrong type, an unsupported `model_type`, and for a key with an effect
    that a spec cannot express.
    """
    content = _with_model_type(content)
    kind = content.get("model_type")
    config = Config(content, where, defaults=class_defaults(kind) if isinstance(kind, str) else NO_DEFAULTS)
    if config.text("_class_name", None) == CLASS:
        return {"name": (name or "unet")[:80], **unet_spec(config)}
    reject_drafts(config)
    _reject_other_kinds(content, where)
    model_type = config.text("model_type")
    path = (config.text("_name_or_path", "") or "").rstrip("/")
    name = (name or path.rsplit("/", 1)[-1].lower() or "model")[:80]
    reader = READERS.get(model_type)
    if reader is None and not knows_class(model_type):
        return _text_decoder(config, name, beside)
    try:
        spec = complete_spec(config, read_layers(config, reader), name) if reader else read_class(content, where)
    except InexpressibleError:
        if not knows_class(model_type):
            raise
        spec = read_class(content, where)
    plain = {"name": name, "dtype": _dtype(config), **spec}
    return {**plain, **quantization(config, beside, plain)}


def _text_decoder(config: Config, name: str, beside: Config | None) -> Spec:
    """The text decoder of a multimodal file whose `model_type` has no reader; SpecError where none is known.

    No similar name: programs write these files, and one letter tells models apart (olmo, olmoe).
    """
    shared = {key: config.content[key] for key in SHARED_KEYS if config.content.get(key) is not None}
    known = DECODERS.get(config.text("model_type"))
    sections = [nested for key in TEXT_CONFIGS if isinstance(nested := config.content.get(key), dict)]
    if known and not sections:
        sections = [{key: value for key, value in config.content.items() if not key.startswith(("mm_", "model_type"))}]
    for nested in sections:
        decoder = nested.get("model_type") or known
        if isinstance(decoder, str) and decoder in READERS:
            spec = translate({**shared, **nested, "model_type": decoder}, config.where, name, beside)
            return {**spec, "title": f"{name} (text decoder only)"}
    kind = quote(config.text("model_type"))
    hint = f"describe it in a model spec (YAML) instead{without_classes(', or ')}"
    raise SpecError(config.where, f"unsupported model_type {kind}; {hint}")


def _dtype(config: Config) -> str:
    """The format of a checkpoint's unquantized tensors."""
    places = (config, config.section("text_config"))
    return next(filter(None, (place.format("torch_dtype", "dtype") for place in places)), "bf16")


def _with_model_type(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A file from before there was the key `model_type`, or with one of its own, with that of the class that it names.

    Engines choose their code by the class (`ModelRegistry` of vLLM, in model_executor/models/registry.py).
    """
    classes, own = content.get("architectures"), content.get("model_type")
    if not isinstance(classes, list):
        return content
    if isinstance(own, str):
        if own in READERS or own in DECODERS or knows_class(own):
            return content
        spelled = {kind.replace("_", ""): kind for kind in READERS}
        named = {spelled.get(str(name).lower().removesuffix("forcausallm")) for name in classes}
        return {**content, "model_type": named.pop()} if len(named) == 1 and None not in named else content
    if "model_type" in content:
        return content
    known: Mapping[str, str] = rows("kinds.yaml")["classes"]
    found = [kind for kind, pattern in known.items() if any(re.fullmatch(pattern, str(name)) for name in classes)]
    return {**content, "model_type": found[0]} if found else content


def _reject_other_kinds(content: Mapping[str, Any], where: str) -> None:
    """Raise SpecError for a file that is no model's config.json but one of those beside it, with what to give."""
    if content.get("model_type") is not None:
        return
    if content.get("peft_type") is not None:
        base, rank = content.get("base_model_name_or_path"), content.get("r")
        model = quote(base) if isinstance(base, str) else "its model"
        technique = f"lora:rank={rank}" if type(rank) is int else "lora"
        raise SpecError(
            where,
            f"is no model but an adapter ({quote(content['peft_type'])}): give {model} with {technique}",
            options=["with"],
        )
    for row in rows("kinds.yaml")["kinds"]:
        if all(content.get(key) is not None for key in row["keys"]):
            raise SpecError(where, f"is no model but {row['kind']}: {row['instead']}")
