"""Cases of parametrised tests: a few of each sort in `make test`, all of them in `make test-all`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

from roofline import list_hardware, list_models
from roofline.specs.model import Model

CLASSES = """
    apertus-1.5-8b bart-base bert-base cohere-transcribe-03-2026 deepseek-moe-16b deepseek-v3.2 deepseek-v4-flash
    falcon-h1-7b falcon-mamba-7b flash gau gemma-2-9b gemma-3-4b gemma-4-26b-a4b gemma-4-e2b glm-4.5v gpt-oss-20b
    granite-4.0-h-tiny h3-125m hyena-355m hy4 jamba-reasoning-3b jamba-v0.1 jina-reranker-m0 kimi-k2.5 kimi-k3
    kimi-linear-48b-a3b lfm2-350m lfm2-8b-a1b llama-3.1-8b mamba2-130m minicpm3-4b mistral-small-4-119b
    modernbert-base qwen3-next-80b-a3b qwen3.5-35b-a3b qwen3.5-4b retnet-1.3b rwkv-4-169m s4 stable-diffusion-1.5
"""
"""A model of each architecture, as `architecture` tells them apart."""

DEVICES = """
    a100-sxm-80gb arc-b580 ascend-910b b200-sxm dfx epyc-9654 gaudi-3 h100-sxm h20 l4 m2-ultra mi300x mi355x p40 t4
    radeon-rx-7900-xtx rtx-4090 ryzen-ai-max-395 sn40l tpu-v6e trainium-2 v100-sxm2-16gb wse-3
"""
"""Hardware of each kind of memory, link and arithmetic."""


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
