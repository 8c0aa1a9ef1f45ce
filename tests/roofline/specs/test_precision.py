"""Formats, schemes and the rule that picks the arithmetic."""

from __future__ import annotations

import pytest

from roofline import (
    RooflineError,
    Scenario,
    UnsupportedError,
    analyze,
    kv_bytes_per_token,
    load_hardware,
    load_model,
    parse_precision,
)
from roofline.bound.memory import weight_bytes
from roofline.graph.network import network
from roofline.specs.checkpoint import default_base
from roofline.specs.formats import find_format


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("awq", 4.15625),  # 4 + (16 + 4) / 128
        ("gptq", 4.15625),
        ("awq-g64", 4.3125),
        ("mxfp4", 4.25),
        ("nvfp4", 4.5),
        ("nf4", 4.126953125),  # QLoRA: 0.127 bits a parameter of constants after double quantization
        ("fp8_block", 8 + 32 / 128**2),
        ("q8_0", 8.5),
        ("q6_k", 6.5625),
        ("q5_k", 5.5),
        ("q4_k", 4.5),
        ("q4_0", 4.5),
        ("q3_k", 3.4375),
        ("q2_k", 2.625),
        ("int4", 4),
        ("bf16", 16),
    ],
)
def test_effective_bits(name: str, bits: float) -> None:
    assert find_format(name).bits == bits


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("int2", 2 + (16 + 16) / 32),  # KIVI: groups of 32 with a 16-bit scale and zero point
        ("int4", 4 + (16 + 16) / 64),  # FlexGen, Transformers' QuantizedCache: groups of 64
        ("int8", 8),  # TensorRT-LLM: one scale a tensor
        ("fp8", 8),
        ("int4-g128", 4 + 16 / 128),
        ("bf16", 16),
    ],
)
def test_a_quantized_cache_has_scales_and_zero_points(name: str, bits: float) -> None:
    precision = parse_precision("bf16", kv=name)
    assert precision.kv.bits == bits
    # Llama-3.1-8B: 32 layers with keys and values of 8 heads of 128 each.
    assert kv_bytes_per_token(load_model("llama-3.1-8b"), precision) == 32 * 2 * 8 * 128 * bits / 8


# Sizes of public GGUF files of Llama-2-7B, in bytes; the files hold some 0.7 MB of vocabulary beside the tensors.
GGUF_FILES = {
    "q8_0": 7_161_089_728,
    "q6_k": 5_529_194_176,
    "q5_k_m": 4_783_156_928,
    "q4_k_m": 4_081_004_224,
    "q4_0": 3_825_806_912,
    "q3_k_m": 3_298_004_672,
}
# The same of Llama-3-70B in GiB (table of llama.cpp pull request 6745).
GGUF_FILES_70B = {"q8_0": 69.83, "q6_k": 53.91, "q5_k_m": 46.52, "q4_k_m": 39.60, "q3_k_m": 31.91, "q2_k": 24.56}


@pytest.mark.parametrize("scheme", GGUF_FILES)
def test_gguf_files(scheme: str) -> None:
    stored = weight_bytes(network(load_model("llama-2-7b"), parse_precision("fp16", scheme)))
    assert stored == pytest.approx(GGUF_FILES[scheme], rel=1e-3)


@pytest.mark.parametrize("scheme", GGUF_FILES_70B)
def test_gguf_files_of_a_large_model(scheme: str) -> None:
    stored = weight_bytes(network(load_model("llama-3-70b"), parse_precision("fp16", scheme)))
    assert stored / 2**30 == pytest.approx(GGUF_FILES_70B[scheme], rel=5e-3)


@pytest.mark.parametrize(
    ("scheme", "weights", "activations", "kv"),
    [
        ("W4", "int4", "fp16", "fp16"),
        ("W8A8", "int8", "int8", "fp16"),
        ("W4A16KV8", "int4", "fp16", "int8"),
        ("w4kv4", "int4", "fp16", "int4"),
        ("KV8", "fp16", "fp16", "int8"),
        ("W16A16", "fp16", "fp16", "fp16"),
        ("fp8", "fp8", "fp8", "fp16"),
        ("fp8_block", "fp8_block", "fp8_group", "fp16"),
        ("awq", "awq", "fp16", "fp16"),
        ("nvfp4", "nvfp4", "nvfp4", "fp16"),
        ("bf16", "bf16", "bf16", "bf16"),
    ],
)
def test_schemes(scheme: str, weights: str, activations: str, kv: str) -> None:
    precision = parse_precision("fp16", scheme)
    assert (precision.weights.name, precision.activations.name, precision.kv.name) == (weights, activations, kv)


def test_single_formats_override_the_scheme() -> None:
    precision = parse_precision("fp16", "W4A16KV8", weights="nf4", kv="fp8")
    assert (precision.weights.name, precision.kv.name) == ("nf4", "fp8")


@pytest.mark.parametrize("scheme", ["W", "A", "W0", "W9", "W4B8", "", "fp9", "W4A16KV99", "awq-g0"])
def test_unknown_schemes(scheme: str) -> None:
    with pytest.raises(RooflineError):
        parse_precision("fp16", scheme)


@pytest.mark.parametrize(
    ("hardware", "scheme", "linear", "attention"),
    [
        ("a100-sxm-80gb", "W4", "bf16", "bf16"),  # weight-only: never a higher roof
        ("a100-sxm-80gb", "W8A8", "int8", "bf16"),
        ("a100-sxm-80gb", "W8A8KV8", "int8", "int8"),
        ("a100-sxm-80gb", "W4A4", "int4", "bf16"),
        ("h100-sxm", "W4A4", "int8", "bf16"),  # Hopper has no INT4
        ("h100-sxm", "W4A8", "int8", "bf16"),
        ("h100-sxm", "fp8", "fp8", "bf16"),
        ("a100-sxm-80gb", "fp8", "bf16", "bf16"),  # Ampere has no FP8
        ("b200-sxm", "nvfp4", "fp4", "bf16"),
        ("h100-sxm", "nvfp4", "bf16", "bf16"),  # Hopper has no FP4: Marlin
        ("v100-sxm2-16gb", "W8A8", "fp16", "fp16"),
        ("a6000", "tf32", "tf32", "tf32"),
        ("v100-sxm2-16gb", "tf32", "fp32", "fp32"),
        ("h100-sxm", "KV8", "bf16", "bf16"),
    ],
)
def test_arithmetic(hardware: str, scheme: str, linear: str, attention: str) -> None:
    model, device = load_model("llama-3-8b"), load_hardware(hardware)
    precision = parse_precision(default_base(model, device), scheme)
    ops = {op.name: op for op in analyze(Scenario(model, device, precision=precision)).prefill.ops}
    assert ops["q_proj"].arithmetic == linear
    assert ops["fused_attention"].arithmetic == attention
    assert ops["attn_norm"].arithmetic is None


def test_upcasting_costs_vector_work() -> None:
    model, device = load_model("llama-3-8b"), load_hardware("h100-sxm")
    ops = {
        op.name: op for op in analyze(Scenario(model, device, precision=parse_precision("bf16", "W4KV8"))).decode.ops
    }
    assert ops["gate_proj"].upcast_flops == 2 * 4096 * 14336
    assert ops["fused_attention"].upcast_flops == 2 * 2 * 513 * 8 * 128
    assert ops["lm_head"].upcast_flops == 0


def test_checkpoints_leave_parts_unquantized() -> None:
    model = load_model("llama-3-8b")
    ops = {op.name: op for op, _, _ in network(model, parse_precision("bf16", "awq")).ops}
    assert ops["lm_head"].operands[1].format.name == "bf16"
    assert ops["q_proj"].operands[1].format.name == "awq"
    assert ops["attn_norm"].reads[1].format.name == "bf16"


def test_a_forced_arithmetic_must_exist() -> None:
    precision = parse_precision("bf16", compute="fp8")
    with pytest.raises(UnsupportedError, match="does not compute in fp8"):
        analyze(Scenario(load_model("llama-3-8b"), load_hardware("a100-sxm-80gb"), precision=precision))


def test_mxfp4_of_a_dense_model_is_every_linear_layer() -> None:
    h100 = load_hardware("h100-sxm")
    linear = 32 * (2 * 4096 * (4096 + 1024) + 3 * 4096 * 14336)
    rest = 2 * 128256 * 4096 + 65 * 4096
    for precision in (parse_precision("bf16", "mxfp4"), parse_precision("bf16", weights="mxfp4")):
        answer = analyze(Scenario(load_model("llama-3.1-8b"), h100, precision=precision))
        assert answer.memory.weights == (4.25 * linear + 16 * rest) / 8
    asked = Scenario(model="llama-3.1-8b", hw="h100-sxm", quant="mxfp4")
    assert analyze(asked).memory.weights == (4.25 * linear + 16 * rest) / 8


def test_mxfp4_of_a_model_with_experts_keeps_attention() -> None:
    """As gpt-oss was released, whose attention is in 16 bits."""
    model, h100 = load_model("gpt-oss-20b"), load_hardware("h100-sxm")
    asked = analyze(Scenario(model, h100, precision=parse_precision("bf16", "mxfp4")))
    assert asked.memory == analyze(Scenario(model, h100)).memory


@pytest.mark.parametrize(
    ("hardware", "model", "precision", "prompt", "measured"),
    [
        ("rtx-4090", "llama-3-8b", parse_precision("bf16", "awq"), 4096, 0.275),  # TinyChat, FP16 with sums in FP16
        ("gb300", "deepseek-r1", parse_precision("bf16", "nvfp4", kv="fp8"), 131072, 15.2 * 4),  # 4 stages of SGLang
    ],
)
def test_published_prefills_are_no_faster_than_the_bound(hardware, model, precision, prompt, measured) -> None:
    """TinyChat 2.0 (mit-han-lab/llm-awq); LMSYS on GB300, 2026-02: attention over an FP8 cache multiplies in FP8."""
    scenario = Scenario(load_model(model), load_hardware(hardware), precision=precision)
    assert analyze(scenario.changed(prompt=prompt)).prefill.bound_time < measured
