"""The metadata of a GGUF file as the `config.json` of the same model, so that one reader serves both.

The keys are those of llama.cpp's `convert_hf_to_gguf.py` and `src/llama-arch.cpp`, read backwards.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from roofline.core.errors import SpecError, quote, suggest
from roofline.specs.weight_files.components import TABLES
from roofline.specs.weight_files.gguf import Gguf

KEYS: Mapping[str, str] = TABLES["keys"]
"""Keys of the metadata, after the architecture, and those of config.json."""

Change = Callable[[dict[str, Any], Callable[[str], Any], Collection[str]], dict[str, Any]]
"""What an architecture changes, from the config so far, the metadata by key, and the names of the tensors."""


def _llama(config: dict[str, Any], _: Callable[[str], Any], names: Collection[str]) -> dict[str, Any]:
    if not config.get("num_experts"):
        return {"attention_bias": "blk.0.attn_output.bias" in names}
    return {"model_type": "mixtral"}


def _gpt_oss(config: dict[str, Any], _: Callable[[str], Any], __: Collection[str]) -> dict[str, Any]:
    return {"intermediate_size": config.get("moe_intermediate_size")}


def _deepseek(_: dict[str, Any], get: Callable[[str], Any], names: Collection[str]) -> dict[str, Any]:
    """MLA: newer files store it as MQA over latents, and the expanded sizes under keys of their own."""
    rope = get("rope.dimension_count") or 0
    key = get("attention.key_length_mla") or get("attention.key_length") or 0
    corrected = any(name.endswith("exp_probs_b.bias") for name in names)
    return {
        "model_type": "deepseek_v3" if corrected else "deepseek_v2",
        "q_lora_rank": get("attention.q_lora_rank") or None,
        "qk_rope_head_dim": rope,
        "qk_nope_head_dim": key - rope,
        "v_head_dim": get("attention.value_length_mla") or get("attention.value_length"),
    }


def _gemma(_: dict[str, Any], get: Callable[[str], Any], __: Collection[str]) -> dict[str, Any]:
    activation = {"hidden_activation": "gelu_pytorch_tanh"}
    period = get("attention.sliding_window_pattern")
    return {**activation, "sliding_window_pattern": period} if type(period) is int else activation


ARCHITECTURES: Mapping[str, tuple[str, Change | None]] = {
    "llama": ("llama", _llama),
    **{name: (name, None) for name in ("qwen2", "qwen3", "phi3", "olmo2", "internlm2", "smollm3", "seed_oss")},
    "qwen2moe": ("qwen2_moe", None),
    "qwen3moe": ("qwen3_moe", None),
    "gemma2": ("gemma2", _gemma),
    "gemma3": ("gemma3_text", _gemma),
    "gpt-oss": ("gpt_oss", _gpt_oss),
    "deepseek2": ("deepseek_v2", _deepseek),
    "olmoe": ("olmoe", _gpt_oss),
    "command-r": ("cohere", None),
}
"""By `general.architecture`: the `model_type` of its config.json, and what else differs."""

EMBEDDING = "token_embd.weight"
HEAD = "output.weight"


def config_of(file: Gguf, where: str) -> dict[str, Any]:
    """The config.json of the model in a GGUF file; raises SpecError for an architecture that is not read."""
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        near = suggest(architecture, ARCHITECTURES, listed=0) if isinstance(architecture, str) else ""
        problem = f"models of the architecture {quote(architecture)} are not read from GGUF{near}"
        raise SpecError(where, f"{problem}; with its config.json in the same folder they are")
    model_type, change = ARCHITECTURES[architecture]
    shapes = {tensor.name: tensor.shape for tensor in file.tensors}

    def get(key: str) -> Any:
        return _uniform(file.metadata.get(f"{architecture}.{key}"), f"{architecture}.{key}", where)

    config: dict[str, Any] = {"model_type": model_type, "torch_dtype": "float16"}
    config |= {name: get(key) for key, name in KEYS.items()}
    if EMBEDDING in shapes and len(shapes[EMBEDDING]) == 2:
        config["vocab_size"] = shapes[EMBEDDING][0]
    config["tie_word_embeddings"] = HEAD not in shapes
    config = {key: value for key, value in config.items() if value is not None}
    return config if change is None else {**config, **change(config, get, shapes)}


def _uniform(value: Any, key: str, where: str) -> Any:
    """The value of a key; of one with an entry for each layer the value that all layers share."""
    if not isinstance(value, list):
        return value
    if len(set(value)) > 1 and key.endswith(("head_count", "head_count_kv", "feed_forward_length")):
        raise SpecError(where, f"{quote(key)} differs between layers, which is not supported")
    return value[0] if value else None
