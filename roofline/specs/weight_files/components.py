"""Which components of a model the tensors of a checkpoint hold, by their names.

Components are those of `roofline.specs.schemes.WeightScheme`: the operators of linear layers, embedding, lm_head, norm,
bias and router. A fused tensor holds several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from roofline.core.documents import bundled

GATE_UP = ("gate_proj", "up_proj")

TABLES: Mapping[str, Mapping[str, Any]] = bundled("specs/weight_files/components.yaml")

GGUF, SAFETENSORS = ({name: tuple(parts) for name, parts in TABLES[kind].items()} for kind in ("gguf", "safetensors"))
"""The components of a tensor of a GGUF file and of a module of Transformers, by name."""

_BLOCK = re.compile(r"(?:^|\.)(?:blk|layers|h|blocks)\.(\d+)\.")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")
_PACKED = re.compile(r"_(?:blocks|scales|bias)$")
_OTHER_NETWORKS = re.compile(r"(?:^|\.)(?:visual|vision_\w+|audio_\w+|multi_modal_projector|mm_projector|mtp)\.")


def layer_of(name: str) -> int:
    """The layer of a tensor, -1 for those outside of layers."""
    found = _BLOCK.search(name)
    return int(found[1]) if found and len(found[1]) < 7 else -1


def of_gguf(name: str, gated: bool) -> tuple[str, ...]:
    """The components of a tensor of a GGUF file, () for what no operator reads.

    `gated`: gate and up have a tensor each.
    """
    module, _, ending = re.sub(r"^blk\.\d+\.", "", name).rpartition(".")
    if module in ("exp_probs_b", "ffn_gate_inp"):
        return ("router",)
    if ending == "bias":
        return ("bias",) if module in GGUF or module.endswith("norm") else ()
    if module.endswith("norm"):
        return ("norm",)
    if module == "ffn_up" and not gated:
        return GATE_UP
    return GGUF.get(module, ()) if ending == "weight" else ()


def of_safetensors(name: str) -> tuple[str, ...]:
    """The components of a tensor of a safetensors file; () for what is not recognised, or of another network."""
    return _of_module(_NUMBER.sub("0", name))


@lru_cache(maxsize=1024)
def _of_module(name: str) -> tuple[str, ...]:
    """The same by the name without the numbers of layers and experts."""
    if _OTHER_NETWORKS.search(name):
        return ()
    parts = name.split(".")
    ending = parts[-1]
    if "norm" in (parts[-2] if len(parts) > 1 else "") or (len(parts) > 1 and parts[-2].startswith("ln_")):
        return ("norm",)
    packed = _PACKED.sub("", ending)
    module = next((part for part in (packed, *reversed(parts[:-1])) if part in SAFETENSORS), None)
    if module is None:
        return ()
    found = SAFETENSORS[module] or (module,)
    if found == ("router",):
        return found
    if ending in ("bias", "gate_up_proj_bias", "down_proj_bias"):
        return ("bias",)
    return tuple(f"expert_{part}" for part in found) if "experts" in parts else found
