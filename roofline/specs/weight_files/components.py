"""Which components of a model the tensors of a checkpoint hold, by their names.

Components are those of `roofline.specs.schemes.WeightScheme`: the operators of linear layers, embedding, lm_head, norm,
bias and router. A fused tensor holds several.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

QKV, GATE_UP = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")

GGUF: Mapping[str, tuple[str, ...]] = {
    "token_embd": ("embedding",),
    "output": ("lm_head",),
    "position_embd": ("positions",),
    **{f"attn_{part}": (f"{part}_proj",) for part in ("q", "k", "v", "q_a", "q_b")},
    "attn_qkv": QKV,
    "attn_output": ("o_proj",),
    "attn_kv_a_mqa": ("kv_a_proj",),
    **dict.fromkeys(("attn_kv_b", "attn_k_b", "attn_v_b"), ("kv_b_proj",)),
    "attn_sinks": ("norm",),
    **{f"ffn_{part}{shared}": (f"{part}_proj",) for shared in ("", "_shexp") for part in ("gate", "up", "down")},
    **{f"ffn_{part}_exps": (f"expert_{part}_proj",) for part in ("gate", "up", "down")},
    "ffn_gate_inp_shexp": ("router",),
}
"""By the names of llama.cpp (`gguf.constants.TENSOR_NAMES`), without block and ending."""

SAFETENSORS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("embed_tokens", "word_embeddings", "tok_embeddings", "wte"), ("embedding",)),
    "lm_head": ("lm_head",),
    **dict.fromkeys(("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), ()),
    **dict.fromkeys(("q_a_proj", "q_b_proj", "kv_b_proj"), ()),
    "kv_a_proj_with_mqa": ("kv_a_proj",),
    "dense": ("o_proj",),
    **dict.fromkeys(("qkv_proj", "query_key_value"), QKV),
    "gate_up_proj": GATE_UP,
    "w1": ("gate_proj",),
    **dict.fromkeys(("dense_h_to_4h", "fc1", "w3"), ("up_proj",)),
    **dict.fromkeys(("dense_4h_to_h", "fc2", "w2"), ("down_proj",)),
    **dict.fromkeys(("gate", "router", "shared_expert_gate"), ("router",)),
    "sinks": ("norm",),
}
"""By the module's name in Transformers; an empty entry is the component of that name."""

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
