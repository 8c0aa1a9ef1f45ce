"""The other JSON files of a model's folder, recognised by their keys: what each is, and what to give instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.core.errors import SpecError, quote

_CONFIG = "give the config.json beside it"

KINDS: Mapping[tuple[str, ...], tuple[str, str]] = {
    ("weight_map",): ("the index of a checkpoint's files", "give its folder, or the config.json beside it"),
    ("dim", "n_layers"): (
        "the parameters of a model in its maker's own format",
        "give the config.json of its repository",
    ),
    ("tokenizer_class",): ("the settings of a tokenizer", _CONFIG),
    ("added_tokens", "model"): ("a tokenizer", _CONFIG),
    ("image_processor_type",): ("the settings of an image processor", _CONFIG),
    ("feature_extractor_type",): ("the settings of a feature extractor", _CONFIG),
    ("processor_class",): ("the settings of a processor", _CONFIG),
    ("_diffusers_version", "scheduler"): ("the index of a pipeline", "give the config.json of its folder unet"),
    ("producer", "quantization"): ("ModelOpt's description of formats", _CONFIG),
    ("quant_method",): ("a description of formats", _CONFIG),
    ("bits", "group_size"): ("a description of formats", _CONFIG),
    ("do_sample",): ("the settings of generation", _CONFIG),
    ("_from_model_config",): ("the settings of generation", _CONFIG),
    ("word_embedding_dimension",): ("the settings of pooling", "give the config.json of the folder above it"),
}
"""What a file without `model_type` is that has these keys, and what to give instead."""


def reject_other_kinds(content: Mapping[str, Any], where: str) -> None:
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
    for keys, (kind, instead) in KINDS.items():
        if all(content.get(key) is not None for key in keys):
            raise SpecError(where, f"is no model but {kind}: {instead}")
