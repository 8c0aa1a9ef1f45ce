"""Hugging Face `config.json` -> the vocabulary of a model spec. Reads the file only: no network, no remote code.

A reader a `model_type`, in `roofline.readers`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.errors import SpecError, quote, suggest
from roofline.readers import dense, encoders, experts, gpt, hybrid, latent, recurrent, vision
from roofline.readers.config import Config, Reader, Spec
from roofline.readers.quantization import quantization

READERS: Mapping[str, Reader] = {
    **dense.READERS,
    **gpt.READERS,
    **experts.READERS,
    **latent.READERS,
    **recurrent.READERS,
    **hybrid.READERS,
    **encoders.READERS,
    **vision.READERS,
}
"""The supported values of `model_type`."""

PARTS: Mapping[str, Reader] = {**experts.PARTS, **hybrid.PARTS}
"""Text decoders that multimodal files nest under `text_config`, for files that hold nothing else."""

MISSING: Mapping[str, str] = {
    "gemma3n": "per-layer embeddings, AltUp and LAuReL",
    "gemma3n_text": "per-layer embeddings, AltUp and LAuReL",
    "stripedhyena": "Hyena filters given by poles and residues",
}
"""What the vocabulary of a spec lacks for these values of `model_type`."""

FORMATS: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def translate(content: Mapping[str, Any], where: str, name: str) -> Spec:
    """The model spec that a config.json describes; `name` is used where the file does not name the model.

    Raises SpecError for a missing key, a value of the wrong type, or an unsupported `model_type`, naming it.
    """
    config = Config(content, where)
    model_type = config.text("model_type")
    if model_type in MISSING:
        raise SpecError(where, f"unsupported model_type {quote(model_type)}: specs cannot say {MISSING[model_type]}")
    readers = {**READERS, **PARTS}
    if model_type not in readers:
        hint = suggest(model_type, readers) or "; describe it in a model spec (YAML) instead"
        raise SpecError(where, f"unsupported model_type {quote(model_type)}{hint}")
    spec = readers[model_type](config)
    given = config.text("_name_or_path", "") or ""
    chosen = given.rstrip("/").rsplit("/", 1)[-1].lower() if given and not given.startswith((".", "/")) else name
    stored = {"dtype": _dtype(config), **quantization(config)}
    return {"name": (chosen or "model")[:80], **stored, **spec}


def _dtype(config: Config) -> str:
    """The format of a checkpoint's tensors, those that it has not quantised."""
    places = (config, config.section("text_config"))
    found = (place.text(key, None) for place in places for key in ("torch_dtype", "dtype"))
    dtype = next(filter(None, found), "bfloat16")
    if dtype not in FORMATS:
        raise SpecError(config.where, f"'torch_dtype': unsupported format {quote(dtype)}{suggest(dtype, FORMATS)}")
    return FORMATS[dtype]
