"""Cases of parametrised tests: a few of each sort in `make test`, all of them in `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pytest

from roofline import list_hardware, list_models
from roofline.specs.model import Model

CLASSES = """
    apertus-1.5-8b bart-base bert-base cohere-transcribe-03-2026 deepseek-moe-16b deepseek-v3.2 deepseek-v4-flash
    falcon-h1-7b falcon-mamba-7b flash gau gemma-2-9b gemma-3-4b gemma-4-26b-a4b gemma-4-e2b glm-4.5v gpt-oss-20b
    granite-4.0-h-tiny h3-125m hy4 hyena-355m jamba-reasoning-3b jamba-v0.1 jina-reranker-m0 kimi-k2.5 kimi-k3
    kimi-linear-48b-a3b lfm2-350m lfm2-8b-a1b llama-3.1-8b mamba2-130m minicpm3-4b mistral-small-4-119b
    modernbert-base nomic-embed-text-v2-moe qwen3-next-80b-a3b qwen3.5-35b-a3b qwen3.5-4b retnet-1.3b rwkv-4-169m s4
    solar-open2-250b stable-diffusion-1.5
"""
"""A model of each architecture, as `architecture` tells them apart."""

DEVICES = """
    a100-sxm-80gb arc-b580 ascend-910b b200-sxm dfx epyc-9654 gaudi-3 h100-sxm h20 l4 m2-ultra mi300x mi355x p40 t4
    radeon-rx-7900-xtx rtx-4090 ryzen-ai-max-395 sn40l tpu-v6e trainium-2 v100-sxm2-16gb wse-3
"""
"""Hardware of each kind of memory, link and arithmetic."""


_EXPERTS = {"model": "mixtral-8x7b", "tp": "2"}
_IMAGES = {"model": "qwen2.5-vl-7b", "images": "1"}
BESIDE: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("ep", "enable_expert_parallel", "expert_skew"), _EXPERTS),
    "all_to_all": {"model": "deepseek-v3", "hw": "h100-sxm", "ep": "8", "engine": "vllm"},
    "redundant_experts": {"model": "deepseek-v3", "hw": "h100-sxm", "ep": "32", "expert_skew": "0.5"},
    **{key: {"model": "deepseek-v3", "tp": "8"} for key in ("dp_attention", "dcp")},
    "nodes": {"tp": "2"},
    "micro_batches": {"pp": "2"},
    "host": {"hw": "l40s", "tp": "2"},
    "network": {"hw": "h100-sxm", "tp": "16", "model": "llama-3.1-405b"},
    **{key: {"engine": "llama.cpp", "quant": "q4_k_m"} for key in ("ctx_size", "n_gpu_layers")},
    **dict.fromkeys(("images", "image_size"), _IMAGES),
    "mm_encoder_tp_mode": {**_IMAGES, "tp": "2"},
    "audio": {"model": "voxtral-mini-3b"},
}
"""The options beside which the example of an option has an effect, by its name."""


def architecture(model: Model) -> tuple[object, ...]:
    """The layers, tower and task of a model, whatever its sizes."""
    layers = [part for group in model.groups for part in (group.layer.mixer, group.layer.feed_forward)]
    return frozenset(type(part) for part in layers if part), model.tower_kind, model.task


def sampled(cases: Iterable[Any], kept: Collection[Any] | int = 16) -> list[Any]:
    """The kept ones of the cases, or so many of them evenly, in both suites; the others in `make test-all` alone.

    A tuple is the values of several parameters.
    """
    cases = list(cases)
    if isinstance(kept, int):
        kept = cases[:: -(-len(cases) // kept)]
    return [case if case in kept else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.slow])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)


MODELS = sampled(list_models(), CLASSES.split())
HARDWARE = sampled(list_hardware(), DEVICES.split())
