"""The other JSON files of a model's folder, recognised by their keys: what each is, and what to give instead."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from roofline.core.errors import SpecError, quote
from roofline.specs.huggingface.config import rows

KINDS: Sequence[Mapping[str, Any]] = rows("kinds.yaml")["kinds"]
"""What a file without `model_type` is that has the keys of an entry, and what to give instead."""


def with_model_type(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A file from before there was the key `model_type`, with that of the class that it names."""
    classes = content.get("architectures")
    if "model_type" in content or not isinstance(classes, list):
        return content
    known: Mapping[str, str] = rows("kinds.yaml")["classes"]
    found = [kind for kind, pattern in known.items() if any(re.fullmatch(pattern, str(name)) for name in classes)]
    return {**content, "model_type": found[0]} if found else content


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
    for row in KINDS:
        if all(content.get(key) is not None for key in row["keys"]):
            raise SpecError(where, f"is no model but {row['kind']}: {row['instead']}")
