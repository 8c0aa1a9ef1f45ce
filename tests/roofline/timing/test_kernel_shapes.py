"""Operators as rows of the measurement schema: shapes, formats, fusions."""

from __future__ import annotations

from typing import Any

import pytest

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.graph.extents import Step, extents
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.specs.engine import load_engine
from roofline.specs.formats import find_format
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.specs.precision import parse_precision
from roofline.timing.chains import load_calibration
from roofline.timing.kernels.shapes import dtype_of
from roofline.timing.launches import LaunchedKernel, launches

H100 = load_hardware("h100-sxm")


def shapes(
    model: Model | str,
    batch: int,
    queries: int,
    cached: int,
    hardware: Hardware = H100,
    engine: str = "ideal",
    **scenario: Any,
) -> dict[str, dict[str, Any]]:
    """The kernels of a pass by the first operator's name, with numbers for sizes."""
    spec = load_model(model) if isinstance(model, str) else model
    answer = analyze(Scenario(spec, hardware, engine=engine, **scenario))
    phase = answer.prefill if queries > 1 else answer.decode
    assert phase is not None
    placement = phase.passes[-1].placement
    numbers = extents(Step(batch, queries, cached), placement.network.rules)

    def row(kernel: LaunchedKernel) -> dict[str, Any]:
        names = "+".join(placement.ops[index][0].name for index in kernel.parts)
        if kernel.shape is None:
            return {"parts": names, "count": kernel.count, "op": None}
        sizes = {name: size.evaluate(numbers) for name, size in kernel.shape.sizes.items()}
        return {"parts": names, "count": kernel.count, "op": kernel.shape.op, **kernel.shape.texts, **sizes}

    kernels = launches(placement, load_engine(engine), load_calibration(hardware))
    return {placement.ops[kernel.parts[0]][0].name: row(kernel) for kernel in kernels}


def test_a_llama_layer_is_nine_kernels() -> None:
    found = shapes("llama-3.1-8b", 2, 100, 0)
    layer = [row for row in found.values() if row["count"] == 32]
    assert [row["parts"] for row in layer] == [
        "attn_norm+mlp_add",
        "q_proj+k_proj+v_proj",
        "rope",
        "fused_attention",
        "o_proj",
        "attn_add+mlp_norm",
        "gate_proj+up_proj",
        "mlp_act",
        "down_proj",
    ]


def test_gemms_have_the_shapes_of_their_weights() -> None:
    found = shapes("llama-3.1-8b", 2, 100, 0)

    def shape(name: str) -> tuple[float, ...]:
        return tuple(float(found[name][size]) for size in ("m", "n", "k"))

    assert shape("q_proj") == (200, 6144, 4096)
    assert shape("gate_proj") == (200, 28672, 4096)
    assert shape("down_proj") == (200, 4096, 14336)
    assert shape("lm_head") == (2, 128256, 4096)
    assert found["q_proj"]["dtype"] == "bf16"


def test_attention_has_the_heads_lengths_and_window_of_the_layer() -> None:
    found = shapes("llama-3.1-8b", 3, 1, 700)["fused_attention"]
    wanted = {"batch": 3, "q_len": 1, "kv_len": 701, "heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}
    assert {name: float(found[name]) for name in wanted} == wanted
    windowed = shapes("mistral-7b", 3, 1, 9000)["fused_attention"]
    assert (float(windowed["kv_len"]), float(windowed["window"])) == (4096, 4096)


def test_tensor_parallel_shapes_are_sharded() -> None:
    run = Settings(parallel=Parallelism(tensor=4))
    found = shapes("llama-3.1-70b", 1, 1, 100, settings=run)
    assert float(found["gate_proj"]["n"]) == 2 * 28672 / 4
    assert float(found["fused_attention"]["kv_heads"]) == 2
    reduce = found["attn_all_reduce"]
    assert (reduce["op"], reduce["collective"], float(reduce["ranks"])) == ("collective", "all_reduce", 4)
    assert float(reduce["bytes"]) == pytest.approx(8192 * 2)
    assert float(found["logits_all_gather"]["bytes"]) == pytest.approx(128256 * 2)


def test_experts_are_one_moe_kernel() -> None:
    found = shapes("mixtral-8x7b", 4, 1, 100)["expert_gate_proj"]
    assert found["parts"] == "expert_gate_proj+expert_up_proj+expert_act+expert_down_proj+expert_combine"
    wanted = {"tokens": 4, "hidden": 4096, "intermediate": 14336, "top_k": 2, "experts": 8, "gated": 1}
    assert {name: float(found[name]) for name in wanted} == wanted
    assert float(found["touched"]) == pytest.approx(8 * (1 - (1 - 2 / 8) ** 4))


def test_all_to_all_splits_the_moe_kernel() -> None:
    run = Settings(parallel=Parallelism(tensor=1, expert=4))
    found = shapes("mixtral-8x7b", 4, 1, 100, settings=run)["expert_gate_proj"]
    assert found["parts"] == "expert_gate_proj+expert_up_proj+expert_act+expert_down_proj"


def test_mla_is_absorbed_in_decode_and_expanded_in_prefill() -> None:
    decode = shapes("deepseek-v3", 2, 1, 100)["fused_attention"]
    assert decode["op"] == "mla_decode"
    assert [float(decode[name]) for name in ("heads", "kv_len", "latent", "rope")] == [128, 101, 512, 64]
    for queries in (1, 100):  # an indexer's choice: every token with keys of its own
        picked = shapes("deepseek-v3.2", 2, queries, 100)["index_scores"]
        assert (picked["op"], picked["variant"], picked["kv_dtype"]) == ("sparse_attention", "dsa", "bf16")
        assert [float(picked[name]) for name in ("batch", "q_len", "heads")] == [2 * queries, queries, 128]
        assert [float(picked[name]) for name in ("width", "entry", "slots")] == [4 * 512 + 2 * 64, 1152, 2048]
        assert float(picked["pairs"]) == 2 * sum(range(101, 101 + queries))
    prefill = shapes("deepseek-v3", 2, 100, 0)["fused_attention"]
    assert (float(prefill["head_dim"]), float(prefill["kv_heads"])) == (160, 128)


@pytest.mark.parametrize(
    ("arithmetic", "weight", "dtype"),
    [
        ("bf16", "bf16", "bf16"),
        ("fp16", "fp16", "fp16"),
        ("fp8", "fp8", "fp8"),
        ("fp8", "fp8_block", "fp8_block"),
        ("fp4", "nvfp4", "nvfp4"),
        ("fp4", "mxfp4", "mxfp4"),
        ("bf16", "awq", "int4_wo"),
        ("bf16", "mxfp4", "w4a16_mxfp4"),
        ("fp16", "int8", "int4_wo"),
        ("int8", "int4", "int8"),
        ("fp32", "q4_0", "fp32"),
    ],
)
def test_gemm_formats(arithmetic: str, weight: str, dtype: str) -> None:
    found = dtype_of(arithmetic, find_format(weight))
    assert found["dtype"] == dtype
    stored = found.get("weight_bytes")
    if weight in ("int8", "int4", "q4_0"):
        assert stored == pytest.approx(find_format(weight).bytes)
    assert (found.get("arithmetic") == "fp16") is (arithmetic == "fp16" and weight == "int8")


def test_mixed_weights_have_their_mean_bytes() -> None:
    found = shapes("llama-3.1-8b", 1, 1, 10, precision=parse_precision("fp16", "q4_k_m"))["q_proj"]
    mean = (
        find_format("q4_k").bytes * (4096 + 1024) + 1024 * (find_format("q4_k").bytes + find_format("q6_k").bytes) / 2
    ) / 6144
    assert found["weight_bytes"] == pytest.approx(mean, rel=1e-3)


def test_a_quantized_cache_moves_its_bytes() -> None:
    found = shapes("llama-3.1-8b", 1, 1, 10, precision=parse_precision("bf16", kv="int4"))["fused_attention"]
    assert (found["dtype"], found["kv_dtype"], found["kv_bytes"]) == ("bf16", "fp8", 0.5625)


def test_unfused_attention_has_no_rows() -> None:
    found = shapes("llama-3.1-8b", 1, 1, 10, fusions=())
    assert found["qk_matmul"]["op"] is None
    assert found["softmax"]["op"] == "softmax"


def test_an_eager_engine_fuses_nothing() -> None:
    found = shapes("llama-3.1-8b", 1, 1, 10, engine="hf-eager")
    assert all("+" not in row["parts"] for row in found.values())


@pytest.mark.parametrize("model", ["deepseek-v3", "deepseek-v3.2"])
def test_batched_gemms_per_head_have_no_row(model: str) -> None:
    """They move more than a GEMM with all heads' weights side by side: the bound alone is no expectation."""
    answer = analyze(Scenario(load_model(model), load_hardware("h200-sxm"), batch=16, prompt=8192, generate=2))
    for phase in filter(None, (answer.prefill, answer.decode)):
        found = [
            (op, expected)
            for op, expected in zip(phase.ops, phase.expected_ops, strict=True)
            if op.name in ("q_absorb", "v_absorb")
        ]
        assert bool(found) == (phase is answer.decode or model == "deepseek-v3.2")
        for op, expected in found:
            assert expected.basis == "bound"
            assert op.bound_time <= expected.time.low < expected.time.mid < expected.time.high
            assert op.bound_time < 0.85 * expected.time.mid


@pytest.mark.parametrize(
    ("model", "name", "variant"),
    [("kimi-linear-48b-a3b", "qkv_conv1d", "separate"), ("qwen3-next-80b-a3b", "conv1d", "any")],
)
def test_kimis_queries_keys_and_values_have_convolutions_of_their_own(model: str, name: str, variant: str) -> None:
    found = shapes(model, 2, 100, 0)[name]
    assert (found["op"], found["variant"], found["taps"]) == ("convolution", variant, 4)
