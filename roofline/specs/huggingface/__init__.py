"""Hugging Face `config.json` -> the vocabulary of a model spec. Reads the file only: no network, no remote code.

A reader a `model_type`, in `roofline.specs.huggingface`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from roofline.core.errors import SpecError, quote, suggest
from roofline.specs.huggingface import dense, encoders, gpt, hybrid, recurrent, vision
from roofline.specs.huggingface import mla as latent
from roofline.specs.huggingface import moe as experts
from roofline.specs.huggingface.config import Config, Reader, Spec
from roofline.specs.huggingface.model_wide import complete, refuse_drafts
from roofline.specs.huggingface.quantization import quantization

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

OTHERS = frozenset({"gpt_neo", "nemotron"})
"""Architectures of their own whose `model_type` looks like one of ours misspelt."""

NESTED = ("text_config", "llm_config", "language_config")
"""Where files of multimodal models have their text decoder."""

FORMATS: Mapping[str, str] = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def translate(content: Mapping[str, Any], where: str, name: str) -> Spec:
    """The model spec that a config.json describes, called `name`.

    Without a name it takes that of the file's `_name_or_path`, which is often the model that training started from.
    Raises SpecError for a missing key, a value of the wrong type, or an unsupported `model_type`, naming it, and for a
    key that says what would be left out of the spec.
    """
    config = Config(content, where)
    refuse_drafts(config)
    model_type = config.text("model_type")
    if model_type in MISSING:
        raise SpecError(where, f"unsupported model_type {quote(model_type)}: specs cannot say {MISSING[model_type]}")
    readers = {**READERS, **PARTS}
    if model_type not in readers:
        raise SpecError(where, f"unsupported model_type {quote(model_type)}{_instead(config, model_type, readers)}")
    given = (config.text("_name_or_path", "") or "").rstrip("/").rsplit("/", 1)[-1].lower()
    chosen = (name or given or "model")[:80]
    spec = complete(config, readers[model_type](config), chosen)
    return {"name": chosen, "dtype": _dtype(config), **quantization(config), **spec}


def _instead(config: Config, model_type: str, readers: Mapping[str, Reader]) -> str:
    """What to do with a `model_type` that no reader has: the name that was meant, a part that can be read, a spec."""
    near = _nearest(model_type, readers)
    meant = f"; did you mean {quote(near)}? Or" if near else ";"
    for key in NESTED:
        nested = config.content.get(key)
        kind = nested.get("model_type") if isinstance(nested, dict) else None
        if isinstance(kind, str) and kind in readers:
            return f"{meant} its {quote(key)}, saved as a file of its own, is read as {quote(kind)}"
    return f"{meant} describe it in a model spec (YAML) instead"


CLOSE = 0.88
"""How alike two names must be, as `difflib` measures it, for one to be the other misspelt: a letter of five or more."""


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` misspells; other numbers are of other models, not misspelt."""

    def digits(text: str) -> list[str]:
        return [char for char in text if char.isdigit()]

    plain = name[:60].lower().replace("-", "_")
    alike = [option for option in known if digits(option) == digits(plain)]
    return None if plain in OTHERS else next(iter(get_close_matches(plain, alike, 1, CLOSE)), None)


def _dtype(config: Config) -> str:
    """The format of a checkpoint's tensors, those that it has not quantised."""
    places = (config, config.section("text_config"))
    found = (place.text(key, None) for place in places for key in ("torch_dtype", "dtype"))
    dtype = next(filter(None, found), "bfloat16")
    if dtype not in FORMATS:
        raise SpecError(config.where, f"'torch_dtype': unsupported format {quote(dtype)}{suggest(dtype, FORMATS)}")
    return FORMATS[dtype]
