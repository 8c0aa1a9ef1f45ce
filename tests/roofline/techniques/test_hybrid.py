"""Experts in CPU memory: what the CPU computes and stores, and the published rates of KTransformers."""

from __future__ import annotations

import pytest

from roofline import (
    Analysis,
    RooflineError,
    Scenario,
    UnsupportedError,
    analyze,
    load_hardware,
    load_model,
    parse_precision,
)
from roofline.techniques import apply_techniques, find_technique

RTX_4090, XEON = load_hardware("rtx-4090"), load_hardware("xeon-gold-6454s")
ON_CPU = "experts-on-cpu:hardware=xeon-gold-6454s"


def run(model: str, *requests: str, quant: str = "bf16", prompt: int = 512, generate: int = 128) -> Analysis:
    precision = parse_precision("bf16", scheme=quant)
    plain = Scenario(
        load_model(model), RTX_4090, prompt=prompt, generate=generate, precision=precision, engine="llama.cpp"
    )
    return analyze(apply_techniques(plain, requests))


def test_the_cpu_reads_the_experts_that_a_token_touches() -> None:
    """Mixtral: two of eight experts of three matrices in each layer, at the bandwidth of the CPU."""
    plain, hybrid = run("mixtral-8x7b"), run("mixtral-8x7b", ON_CPU)
    assert plain.decode is not None
    assert hybrid.decode is not None
    experts = [op for op in plain.decode.ops if op.name.startswith("expert_")]
    weights = 32 * 2 * 3 * 4096 * 14336 * 2
    assert sum(op.count * op.weight_bytes for op in experts) == pytest.approx(weights)
    on_cpu = [op for op in hybrid.decode.ops if op.section.startswith("host")]
    assert {op.name for op in on_cpu} == {op.name for op in experts}
    moved = hybrid.decode.bound_time - (plain.decode.bound_time - sum(op.count * op.bound_time for op in experts))
    assert moved == pytest.approx(weights / XEON.memory_bandwidth, rel=0.01)
    stored = 32 * 8 * 3 * 4096 * 14336 * 2
    assert plain.memory.weights - hybrid.memory.weights == pytest.approx(stored)
    assert hybrid.memory.kv_cache == plain.memory.kv_cache


def test_half_of_the_layers_on_the_cpu() -> None:
    ends = [run("mixtral-8x7b", f"{ON_CPU},share={share}") for share in (0, 0.5, 1)]
    none, half, whole = (answer.decode.bound_time for answer in ends if answer.decode)
    assert half == pytest.approx((none + whole) / 2)
    assert ends[1].memory.weights == pytest.approx((ends[0].memory.weights + ends[2].memory.weights) / 2)
    assert none == pytest.approx(run("mixtral-8x7b").generation.tpot, rel=0.01)


def test_deepseek_v3_on_one_gaming_gpu() -> None:
    """KTransformers v0.2, Q4_K_M, one socket: 8.73 tokens/s in decode and 54.21 in prefill, over 14 GB with buffers.

    llama.cpp's kernels for a CPU, which read the weights faster, decode at 12.5.
    """
    answer = run("deepseek-v3", ON_CPU, quant="q4_k_m", prompt=500, generate=300)
    assert answer.memory.weights < 14e9
    assert answer.memory.fits
    assert not run("deepseek-v3", quant="q4_k_m", prompt=500, generate=300).memory.fits
    tpot = answer.expected.tpot
    assert tpot is not None
    assert 1 / 13.1 < tpot.mid < 1 / 8.73
    assert answer.expected.ttft.mid == pytest.approx(500 / 54.21, rel=0.1)


def test_the_cpu_multiplies_quantized_experts_on_its_vector_units() -> None:
    """Multiplied by AMX, 512 tokens would read all experts for longer than they compute: FP32 AVX-512 is slower."""
    answer = run("mixtral-8x7b", ON_CPU, quant="q4_k_m")
    plain = run("mixtral-8x7b", ON_CPU)
    times = [
        sum(op.count * op.bound_time for op in found.prefill.ops if op.section.startswith("host"))
        for found in (answer, plain)
    ]
    flops = 32 * 512 * 2 * 3 * 2 * 4096 * 14336
    assert times[0] == pytest.approx(flops / XEON.vector["fp32"], rel=0.01)
    assert times[1] == pytest.approx(32 * 8 * 3 * 4096 * 14336 * 2 / XEON.memory_bandwidth, rel=0.1)


def test_models_without_experts_are_refused() -> None:
    assert find_technique("KTransformers").name == "experts-on-cpu"
    with pytest.raises(UnsupportedError, match="has none"):
        run("llama-3.1-8b", ON_CPU)


def test_several_gpus_divide_the_layers_beside_the_experts_on_a_cpu() -> None:
    """llama.cpp with --n-cpu-moe over two GPUs, which take turns: the time of one, and half of the weights on each."""
    plain = Scenario(
        load_model("mixtral-8x7b"), RTX_4090, precision=parse_precision("bf16", scheme="q4_k_m"), engine="llama.cpp"
    )
    one, two = (analyze(apply_techniques(asked, [ON_CPU])) for asked in (plain, plain.with_(pp=2)))
    assert two.memory.weights == pytest.approx(one.memory.weights / 2, rel=0.02)
    assert one.expected.tpot is not None
    assert two.expected.tpot is not None
    assert two.expected.tpot.mid == pytest.approx(one.expected.tpot.mid, rel=0.02)
    with pytest.raises(UnsupportedError, match="several that divide the layers"):
        apply_techniques(plain.with_(tp=2), [ON_CPU])


def test_stages_beside_one_cpu_take_turns_in_every_engine() -> None:
    stages = Scenario("deepseek-v3", "h200-sxm", engine="sglang", batch=4, pp=2)
    beside, alone = (apply_techniques(each, [ON_CPU]) for each in (stages, stages.with_(micro_batches=1)))
    assert analyze(beside).generation == analyze(alone).generation
    with pytest.raises(UnsupportedError, match="several that divide the layers"):
        apply_techniques(stages.with_(micro_batches=2), [ON_CPU])
    layers = Scenario("llama-3.1-70b", "rtx-4090", engine="vllm", batch=4, pp=2, n_gpu_layers=40)
    assert analyze(layers).generation == analyze(layers.with_(micro_batches=1)).generation


def test_layers_on_a_cpu_beside_several_devices_leave_each_of_these_fewer() -> None:
    """llama.cpp splits the offloaded layers over the GPUs, which take turns: as fast as one with as many layers."""
    asked = Scenario("llama-3.3-70b", "rtx-4090", engine="llama.cpp", quant="q4_k_m", n_gpu_layers=40)
    one, two = analyze(asked), analyze(asked.with_(hw="2xrtx-4090"))
    assert one.expected.tpot is not None
    assert two.expected.tpot is not None
    assert two.expected.tpot.mid == pytest.approx(one.expected.tpot.mid, rel=0.01)
    assert two.memory.weights == pytest.approx(one.memory.weights / 2, rel=0.02)
    assert two.memory.kv_cache == pytest.approx(one.memory.kv_cache / 2, rel=0.01)
    more = analyze(asked.with_(hw="2xrtx-4090", n_gpu_layers=70))
    assert more.memory.fits
    assert more.expected.tpot is not None
    assert more.expected.tpot.mid < 0.6 * two.expected.tpot.mid
    with pytest.raises(RooflineError, match="beside devices that divide the layers"):
        asked.with_(tp=2)


def test_what_is_beside_tables_of_n_grams_in_cpu_memory() -> None:
    whole = Scenario("deepseek-v4.1-flash", "b200-sxm")
    experts = [apply_techniques(whole.with_(offload=f"tables={held}"), ["experts-on-cpu:share=1"]) for held in (0, 1)]
    both, rest = (analyze(each).memory.weights for each in experts)
    assert both - rest == pytest.approx((384006168 + 384016682) * 256 * 33 / 32)  # MXFP8: a scale of 8 bits for 32
    streamed = apply_techniques(whole, ["flexgen"])
    assert streamed.settings.offload.tables == whole.settings.offload.tables == 1
    assert analyze(streamed).memory.weights == 0
