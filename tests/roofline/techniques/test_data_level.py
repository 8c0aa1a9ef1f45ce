"""Data-level techniques: prompts, answers in parts, cascades."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import (
    Analysis,
    RooflineError,
    Scenario,
    analyze,
    kv_bytes_per_token,
    load_hardware,
    load_model,
    parse_precision,
)
from roofline.scenario.settings import Settings
from roofline.techniques import apply_techniques, techniques

H100 = load_hardware("h100-sxm")
LLAMA = load_model("llama-3.1-8b")


STATIC = Settings(memory="static")  # KV caches in closed form, not in the engine's blocks


def plain(**workload: Any) -> Scenario:
    return Scenario(
        workload.pop("model", LLAMA), H100, **{"prompt": 1000, "generate": 100, "settings": STATIC, **workload}
    )


def run(*requests: str, **workload: Any) -> Analysis:
    return analyze(apply_techniques(plain(**workload), requests))


SHORTER_PROMPTS = [entry for entry in techniques().values() if entry.function == "data.shorter_prompt"]


@pytest.mark.parametrize("entry", SHORTER_PROMPTS, ids=lambda entry: entry.name)
def test_prompt_pruning_equals_a_shorter_prompt(entry: Any) -> None:
    keep = entry.parameters[0].default
    shorter = apply_techniques(plain(), [entry.name])
    assert shorter.prompt == round(1000 * keep)
    assert analyze(shorter).generation == analyze(plain(prompt=round(1000 * keep))).generation
    assert shorter.generate == 100


@given(st.integers(1, 100_000), st.floats(0.001, 1))
def test_pruned_prompts_have_at_least_a_token_and_never_grow(prompt: int, keep: float) -> None:
    shorter = apply_techniques(plain(prompt=prompt), [f"prompt-pruning:keep={keep!r}"])
    assert 1 <= shorter.prompt <= prompt
    assert prompt * keep <= shorter.prompt + 1e-6 <= prompt * keep + 1 + 1e-6


def test_prompt_pruning_reduces_ttft_most() -> None:
    before, after = run(), run("llmlingua")
    assert after.generation.ttft < before.generation.ttft / 3
    assert 0.9 < after.generation.tpot / before.generation.tpot < 1


def test_an_explicit_context_shrinks_with_the_prompt() -> None:
    assert apply_techniques(plain(context=1500), ["prompt-pruning:keep=0.4"]).context == 900
    assert apply_techniques(plain(context=10), ["prompt-pruning:keep=0.4"]).context == 1
    grid = apply_techniques(plain(context=np.array([1500, 2000])), ["prompt-pruning:keep=0.4"])
    assert grid.context.tolist() == [900, 1400]


def test_soft_prompts_replace_a_fixed_part_of_the_prompt() -> None:
    gist = apply_techniques(plain(), ["gisting:fixed=0.8,tokens=4"])
    assert (gist.prompt, gist.prefix) == (200, 4)


def test_retrieval_adds_passages() -> None:
    assert apply_techniques(plain(), ["rag"]).prompt == 1500
    assert apply_techniques(plain(), ["rag:passages=2,tokens=50"]).prompt == 1100


def test_rag_and_prompt_pruning_apply_in_a_fixed_order() -> None:
    names = ["rag", "llmlingua:keep=0.5"]
    one, other = (apply_techniques(plain(), order).prompt for order in (names, names[::-1]))
    assert one == other


# --- answers in parts -------------------------------------------------------------------------------------------------


AT_ONCE = "skeleton=0,longer=1"


@pytest.mark.parametrize("name", ["skeleton-of-thought", "sgd", "apar"])
def test_parallel_parts_of_an_answer_are_a_batch(name: str) -> None:
    after = apply_techniques(plain(), [f"{name}:points=5,{AT_ONCE if name == 'skeleton-of-thought' else 'alone=0'}"])
    assert (after.generate, after.settings.beams, after.settings.useful) == (20, 5, 5)
    answer, before = analyze(after).generation, run().generation
    assert answer.ttft == before.ttft
    assert answer.tpot == pytest.approx(run(batch=5, generate=20).generation.tpot)
    # The same useful tokens in less time.
    assert answer.tokens_per_second * answer.total == pytest.approx(100)
    assert 3 < before.total / answer.total < 5


def test_sequential_decoding_bounds_the_gain() -> None:
    alone = apply_techniques(plain(), ["apar:points=1000,alone=0.25"])
    assert alone.generate == 26
    answer = analyze(alone).generation
    assert answer.tokens_per_second * answer.total == pytest.approx(100)
    assert run().generation.total / answer.total < 4


def test_a_skeleton_is_no_part_of_the_answer() -> None:
    """0.2 of the answer for the skeleton, and points of 1.5 times the answer: 0.2 + 1.5 / 5 of its steps."""
    parts = apply_techniques(plain(), ["skeleton-of-thought:points=5,skeleton=0.2,longer=1.5"])
    assert parts.generate == 50


def test_parallel_parts_share_the_kv_cache_of_the_prompt() -> None:
    token = kv_bytes_per_token(LLAMA, parse_precision("bf16"))
    answer = run(f"skeleton-of-thought:points=5,{AT_ONCE}", batch=2)
    # Two prompts of 1000 tokens, and ten parts with 19 tokens in the cache at the end.
    assert answer.memory.kv_cache == pytest.approx(token * (2 * 1000 + 10 * 19))


def test_parallel_parts_and_a_cached_prefix() -> None:
    token = kv_bytes_per_token(LLAMA, parse_precision("bf16"))
    answer = run(f"skeleton-of-thought:points=5,{AT_ONCE}", "radix-attention:hit=0.4", batch=2)
    assert answer.memory.kv_cache == pytest.approx(token * (400 + 2 * 600 + 10 * 19))


# --- cascades ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answered", [0.0, 0.3, 1.0])
def test_cascade_times_are_means_over_requests(answered: float) -> None:
    workload = {"model": load_model("llama-3.1-70b"), "batch": 4}
    cascade = run(f"frugalgpt:model=llama-3.1-8b,answered={answered}", **workload)
    large, small = run(**workload), run(batch=4)
    expected = small.generation.total + (1 - answered) * large.generation.total
    assert cascade.generation.total == pytest.approx(expected)
    assert cascade.memory.weights == large.memory.weights + small.memory.weights
    assert cascade.memory.kv_cache == large.memory.kv_cache + small.memory.kv_cache


def test_cascade_and_speculative_decoding_compose() -> None:
    workload = {"model": load_model("llama-3.1-70b")}
    both = run("frugalgpt:model=llama-3.1-8b,answered=0.3", "prompt-lookup:accept=2", **workload)
    expected = run().generation.total + 0.7 * run("prompt-lookup:accept=2", **workload).generation.total
    # The smaller model decodes for each accepted token, also those of the last iteration that are not wanted.
    assert both.generation.total == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "request_", "message"),
    [
        ("llama-3.1-8b", "frugalgpt:model=llama-3.1-70b", "no smaller"),
        ("t5-base", "frugalgpt:model=t5-small", "tower"),
        ("llama-3.1-8b", "frugalgpt", "needs model"),
        ("bert-base", "skeleton-of-thought", "encoder-only"),
        ("bert-base", "gisting", "encoder"),
        ("llama-3.1-8b", "llmlingua:keep=0", "between"),
    ],
)
def test_refusals(model: str, request_: str, message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        run(request_, model=load_model(model))
