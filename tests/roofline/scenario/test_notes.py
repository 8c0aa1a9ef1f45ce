"""Notes: an option without effect has a note, and no other option has one."""

from __future__ import annotations

from typing import Any

import pytest

from roofline import Analysis, RooflineError, Scenario, analyze, load_hardware, load_model
from roofline.scenario.notes import fused, notes

MODELS = (
    *("bert-base", "dit-xl-2", "longformer-base-4096", "mamba2-2.7b", "rwkv-6-7b", "retnet-1.3b", "hyena-355m"),
    *("t5-small", "llama-3.1-8b", "gemma-2-9b", "qwen3-30b-a3b", "deepseek-v2-lite", "qwen3-next-80b-a3b"),
    *("jamba-v0.1", "llava-1.5-7b"),
)
OPTIONS: tuple[dict[str, Any], ...] = (
    *({"generate": 500}, {"context": 4000}, {"prefix": 300}, {"kv": "fp8"}, {"expert_skew": 1.0}, {"flash": False}),
    *({"offload": text} for text in ("weights=0.5", "kv=1", "bandwidth=7GB/s", "kv=0.5,bandwidth=7GB/s")),
    *({"offload": text} for text in ("weights=0.5,bandwidth=700GB/s", "weights=0.5,bandwidth=7GB/s")),
    *({"fuse": [name]} for name in ("qkv", "gate_up", "gate_up_act", "residual_norm")),
    *({"redundant_experts": 16}, {"all_to_all": "deepep"}, {"mm_encoder_tp_mode": "data"}, {"micro_batches": 2}),
    {"network": "infiniband"},
)


def answer(model: str, **options: Any) -> Analysis:
    return analyze(Scenario(**{"model": model, "hw": "h200-sxm", "batch": 4, **options}))


def own_notes(found: Analysis) -> tuple[str, ...]:
    """The notes on options: without those of kernels whose constants are of another engine."""
    return tuple(note for note in notes(found) if "not measured: " not in note)


def figures(found: Analysis) -> tuple[Any, ...]:
    phases = [phase for phase in (found.prefill, found.decode) if phase is not None]
    passes = [(phase.bound_time, phase.bytes, phase.flops, phase.link_bytes, phase.expected) for phase in phases]
    return found.generation.total, found.expected.total, float(found.memory.total), *passes


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_exactly_the_options_without_effect_are_noted(model: str) -> None:
    plain = answer(model)
    assert own_notes(plain) == ()
    for options in OPTIONS:
        try:
            found = answer(model, **options)
        except RooflineError:
            continue
        reference = plain
        if options.get("offload") == "weights=0.5,bandwidth=700GB/s":
            reference = answer(model, offload="weights=0.5")
        no_ops = [note for note in notes(found) if "has no effect" in note]
        assert bool(no_ops) is (figures(found) == figures(reference)), (options, no_ops)


@pytest.mark.parametrize(
    ("model", "options", "note"),
    [
        ("llama-3.1-8b", {"expert_skew": 1.0}, "--expert-skew has no effect: llama-3.1-8b has no experts"),
        (
            "llama-3.1-8b",
            {"prefill_schedule_interval": 8},
            "--prefill-schedule-interval 8 has no effect: a static batch has its prompts in whole steps, one after the"
            " other",
        ),
        ("bert-base", {"generate": 500}, "--generate 500 has no effect: bert-base only encodes"),
        ("bert-base", {"context": 400}, "--context 400 has no effect: bert-base only encodes"),
        ("mamba2-2.7b", {"kv": "fp8"}, "the KV cache format fp8 has no effect: mamba2-2.7b has no KV cache"),
        ("mamba2-2.7b", {"quant": "W4A16KV8"}, "the KV cache format int8 has no effect: mamba2-2.7b has no KV cache"),
        ("mamba2-2.7b", {"offload": "kv=1"}, "--offload kv=1 has no effect: mamba2-2.7b has no KV cache"),
        (
            "llama-3.1-8b",
            {"offload": "bandwidth=7GB/s"},
            "an offload bandwidth of 7.00 GB/s has no effect: neither weights nor KV cache are offloaded",
        ),
        (
            "llama-3.1-8b",
            {"offload": "kv=1,bandwidth=70GB/s"},
            "an offload bandwidth of 70.0 GB/s has no effect: the host link of h200-sxm is limited to 64.0 GB/s",
        ),
        (
            "llama-3.1-8b",
            {"prompt": 140_000},
            "llama-3.1-8b takes at most 131,072 tokens (prompt + output), not 140,128",
        ),
    ],
)
def test_note(model: str, options: dict[str, Any], note: str) -> None:
    assert own_notes(answer(model, **options)) == (note,)


def test_a_draft_may_read_a_kv_cache_where_the_model_has_none() -> None:
    drafted = {"kv": "fp8", "with": ["speculative-decoding:draft=llama-3.2-1b"]}
    assert own_notes(answer("mamba2-2.7b", **drafted)) == ()
    assert own_notes(answer("mamba2-2.7b", offload="kv=1", **drafted)) == (
        "--offload kv=1 has no effect: mamba2-2.7b has no KV cache",
    )


def test_a_slow_store_of_tables_slows_prefill_and_is_not_noted_to_have_no_effect() -> None:
    slow, usual = (
        analyze(Scenario("deepseek-v4.1-flash", "b200-sxm", tp=8, engine="sglang", prompt=32768, offload=offload))
        for offload in ("tables=1,bandwidth=3GB/s", "tables=1")
    )
    assert slow.prefill.expected.mid > usual.prefill.expected.mid
    assert not [note for note in notes(slow) if "no effect" in note]


def test_fused_lists_the_fusions_that_match() -> None:
    names = ("attention", "qkv", "gate_up", "residual_norm")
    hardware = load_hardware("h100-sxm")
    joined = {
        name: fused(analyze(Scenario(load_model(name), hardware, fusions=names)))
        for name in ("llama-3.1-8b", "bert-base", "mamba2-2.7b")
    }
    assert joined == {"llama-3.1-8b": names, "bert-base": ("attention", "qkv"), "mamba2-2.7b": ()}


@pytest.mark.parametrize(
    ("model", "hw", "options", "most"),
    [
        ("gpt-oss-120b", "h100-sxm", {"gpu_memory_utilization": 0.95, "max_num_batched_tokens": 1024}, 37_232),
        # 205,728 on H20 of 141 GB, of the same memory (vllm-project/recipes, pull request 12)
        ("qwen3-coder-480b-a35b", "8xh200-sxm", {"dp": 8, "ep": 8, "quant": "fp8_block"}, 216_240),
    ],
)
def test_vllm_starts_with_room_for_one_sequence_of_the_maximum_length(
    model: str, hw: str, options: dict[str, Any], most: int
) -> None:
    asked = Scenario(model, hw, engine="vllm@0.10", **options)
    limits = [note for note in notes(analyze(asked)) if "--max-model-len" in note]
    assert len(limits) == 1
    assert f"--max-model-len {most} " in limits[0]
    assert not any("--max-model-len" in note for note in notes(analyze(asked.with_(max_model_len=most))))
    trt = asked.with_(engine="tensorrt-llm", max_num_batched_tokens=None)
    assert not any("--max-model-len" in note for note in notes(analyze(trt)))
