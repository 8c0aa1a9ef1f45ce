"""SnapKV and Quest: what each reads and keeps."""

from __future__ import annotations

import pytest

from roofline import Analysis, Scenario, analyze, load_hardware, load_model
from roofline.techniques import apply_techniques

PROMPT = 32768
PAIR = 2 * 32 * 128 * 2  # bytes of a key and a value of Llama-2-7B in a layer


def run(*requests: str, prompt: int = PROMPT) -> Analysis:
    plain = Scenario(load_model("llama-2-7b"), load_hardware("h100-sxm"), prompt=prompt, generate=2)
    return analyze(apply_techniques(plain, requests))


def kv_read(answer: Analysis) -> float:
    """Bytes of the KV cache that decode reads in one layer."""
    assert answer.decode is not None
    ops = [op for op in answer.decode.ops if op.name in ("fused_attention", "page_scores")]
    return float(sum(op.kv_bytes for op in ops))


def test_quest_reads_the_bounds_of_all_pages_and_the_keys_of_a_few() -> None:
    """8 times fewer bytes at 32K tokens, of which 2,048 are read; the paper measures 7.03 times."""
    plain, quest = run(), run("quest")
    expected = PAIR * (2048 + (PROMPT + 1) / 16)
    assert kv_read(quest) == pytest.approx(expected, rel=1e-3)
    assert 7.03 < kv_read(plain) / kv_read(quest) < 8.01


def test_quest_keeps_all_keys_and_leaves_prefill_as_it_is() -> None:
    plain, quest = run(), run("quest")
    assert quest.prefill.flops == plain.prefill.flops
    assert quest.prefill.bound_time == plain.prefill.bound_time
    assert quest.memory.kv_cache == pytest.approx(plain.memory.kv_cache * (1 + 1 / 16), rel=1e-3)


def test_quest_with_a_short_context_only_adds_its_bounds() -> None:
    plain, quest = run(prompt=1000), run("quest", prompt=1000)
    assert kv_read(quest) == pytest.approx(kv_read(plain) + PAIR * 1001 / 16, rel=1e-3)


def test_snapkv_keeps_and_reads_its_budget() -> None:
    plain, snapkv = run(), run("snapkv")
    assert snapkv.prefill.flops == plain.prefill.flops
    assert snapkv.memory.kv_cache == pytest.approx(32 * PAIR * 1025)
    assert plain.memory.kv_cache / snapkv.memory.kv_cache > 8.2
