"""MLA decode: the formula, published rates, and the operators that it applies to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roofline import Hardware, Scenario, analyze, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.scenario.speculation import Speculation
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel, kernel_bound, kernel_time
from roofline.timing.kernels.mla import PARAMETERS, PREFILL

EIGHT = Settings(parallel=Parallelism(tensor=8))
H200, H800 = load_hardware("h200-sxm"), load_hardware("h800-sxm")
B200, A100, L40S = load_hardware("b200-sxm"), load_hardware("a100-sxm-80gb"), load_hardware("l40s")
TRITON = {"rows": 0.0, "split": 2.0, "mma_rate": 200.0, "sharpness": 20.0, "wave_quantization": 0.01}
DEFAULTS = {parameter.name: parameter.default for parameter in PARAMETERS}


def rows(batch: float, keys: Any, heads: float, **more: Any) -> dict[str, Any]:
    sizes = {"batch": batch, "q_len": 1.0, "kv_len": keys, "heads": heads, "latent": 512.0, "rope": 64.0}
    return {"dtype": "bf16", "kv_dtype": "bf16", **sizes, **more}


def test_long_contexts_are_memory_bound() -> None:
    constants = {**DEFAULTS, "unit_bandwidth": 1e12, "compute_efficiency": 1.0, "sharpness": 20.0}
    found = float(kernel_time("mla_decode", rows(132, 65536.0, 16), H200, constants))
    streamed = 132 * 65536 * 576 * 2 / (constants["memory_efficiency"] * H200.memory_bandwidth)
    assert found == pytest.approx(constants["launch"] + streamed, rel=0.01)


def test_tiles_have_64_heads() -> None:
    constants = {**DEFAULTS, "compute_efficiency": 0.2, "sharpness": 20.0, "wave_quantization": 0.01}
    few, one, two = (
        float(kernel_time("mla_decode", rows(132, 65536.0, heads), H200, constants)) for heads in (8, 64, 65)
    )
    assert one == pytest.approx(few, rel=0.01)
    assert two == pytest.approx(2 * one, rel=0.05)
    drafts = rows(132, 65536.0, 16, q_len=4.0)
    assert float(kernel_time("mla_decode", drafts, H200, constants)) == pytest.approx(one, rel=0.01)


def test_tiles_on_blackwell_are_those_of_trtllm_gen() -> None:
    """Public tables of all engines on B200: 32 heads take 1.5 times as long as 16, 64 or 128."""
    constants = {**DEFAULTS, "unit_bandwidth": 70e9, "compute_efficiency": 1.0, "memory_efficiency": 1.0}
    constants |= {"sharpness": 1.5, "launch": 1e-6}

    def time(batch: float, keys: float, heads: float) -> float:
        return float(kernel_time("mla_decode", rows(batch, keys, heads), B200, constants))

    one, two, half, whole = (time(64, 65536.0, heads) for heads in (16, 32, 64, 128))
    assert two / one == pytest.approx(1.5, rel=0.1)
    assert half / one == pytest.approx(1.0, rel=0.1)
    assert whole / one == pytest.approx(1.0, rel=0.15)
    # Of few short sequences, 128 heads have eight tiles of 16, as 8 sequences with 16 heads.
    assert time(1, 2048.0, 128) == pytest.approx(time(8, 2048.0, 16), rel=0.1)


def test_unsplit_sequences_take_as_long_as_one_unit_needs() -> None:
    constants = {**DEFAULTS, "split": 0.0, "sharpness": 20.0}
    one, two, many = (
        float(kernel_time("mla_decode", rows(batch, keys, 64), L40S, constants)) - constants["launch"]
        for batch, keys in ((1, 65536.0), (1, 131072.0), (20, 65536.0))
    )
    assert two == pytest.approx(2 * one, rel=0.01)
    assert many == pytest.approx(one, rel=0.01)
    assert one > 20 * float(kernel_time("mla_decode", rows(1, 65536.0, 64), L40S, {**constants, "split": 1.0}))


def test_flashmla_is_planned_in_every_layer_before_one_version() -> None:
    """TensorRT-LLM 1.2.0rc5 takes 12.4 us more than 1.3.0rc10 for a short sequence, 7.1 with 128 heads, 65 for 1024."""

    def plan(batch: float, keys: float, heads: float, hardware: Hardware = H200) -> float:
        shape = rows(batch, keys, heads)
        planned = kernel_time("mla_decode", {**shape, "scheduled": 1.0}, hardware, DEFAULTS)
        return 1e6 * float(planned - kernel_time("mla_decode", shape, hardware, DEFAULTS))

    assert plan(1, 64.0, 64) == pytest.approx(12.4, abs=0.5)
    assert plan(1, 64.0, 128) == pytest.approx(7.1, abs=0.5)
    assert plan(1024, 64.0, 64) == pytest.approx(65, abs=2)
    assert plan(1, 65536.0, 64) == pytest.approx(20.2, abs=0.5)
    assert plan(1, 64.0, 64, load_hardware("b200-sxm")) == 0


def test_engines_plan_by_their_version() -> None:
    def step(version: str, model: str) -> float:
        found = analyze(
            Scenario(load_model(model), H200, prompt=1024, generate=2, settings=EIGHT, engine=f"tensorrt-llm@{version}")
        )
        assert found.expected is not None
        assert found.expected.tpot is not None
        return float(found.expected.tpot.mid)

    older, newer = (step(version, "deepseek-v3") for version in ("1.3.0rc7", "1.3.0rc8"))
    assert 61 * 12e-6 < older - newer < 61 * 20e-6
    assert step("1.3.0rc7", "deepseek-v3.2") == pytest.approx(step("1.3.0rc8", "deepseek-v3.2"), rel=1e-3)


def test_prefill_over_latents_multiplies_more() -> None:
    constants = {**{parameter.name: parameter.default for parameter in PREFILL}, "sharpness": 20.0}
    columns = {"dtype": "bf16", "batch": 1.0, "q_len": 32768.0, "kv_len": 32768.0, "heads": 128.0}
    expanded, absorbed = (
        float(kernel_time("mla_prefill", columns, H200, {**constants, "absorbed": chosen})) for chosen in (0.0, 1.0)
    )
    assert absorbed / expanded == pytest.approx((2 * 512 + 64) / (2 * 128 + 64), rel=0.03)


@pytest.mark.parametrize(
    ("device", "batch", "keys", "heads", "nanoseconds"),
    [
        (L40S, 1, 32768, 16, 18.5),  # four parts, each on a multiprocessor
        (L40S, 16, 32768, 16, 1.5),  # the memory
        (L40S, 32, 65536, 128, 5.7),  # products
        (L40S, 256, 8192, 128, 12.6),  # each tile of heads reads the latents again
        (L40S, 128, 16384, 64, 6.4),
        (L40S, 128, 32768, 32, 3.2),
        (A100, 1, 32768, 32, 28.0),
        (A100, 256, 8192, 128, 8.9),
    ],
)
def test_vllms_triton_kernel_before_one_version(
    device: Hardware, batch: float, keys: float, heads: float, nanoseconds: float
) -> None:
    """Nanoseconds a key in vLLM 0.14's public tables, with one set of constants for Ampere and Ada."""
    constants = {**DEFAULTS, **TRITON, "sharpness": 2.5, "memory_efficiency": 0.9}
    seconds = float(kernel_time("mla_decode", rows(batch, float(keys), heads, four=1.0), device, constants))
    assert 1e9 * seconds / (batch * keys) == pytest.approx(nanoseconds, rel=0.25)


def test_tritons_products_take_clocks_on_gpus_of_other_vendors() -> None:
    """But no less than the fraction of the peak, which AMD's own kernels have."""
    device, columns = load_hardware("arc-pro-b60"), rows(200, 8192.0, 16)
    constants = {**DEFAULTS, **TRITON, "compute_efficiency": 1.0}
    slow, fast, own = (
        float(kernel_time("mla_decode", columns, device, {**constants, **one}))
        for one in ({"mma_rate": 50.0}, {"mma_rate": 100.0}, {"mma_rate": 4096.0, "compute_efficiency": 0.02})
    )
    assert slow == pytest.approx(2 * fast, rel=0.05)
    assert own == pytest.approx(200 * 16 * 8192 * 2 * 1088 / (0.02 * device.matrix_peak("bf16")), rel=0.05)


def test_later_triton_kernels_split_long_sequences() -> None:
    constants = {**DEFAULTS, **TRITON}
    older, newer = (
        float(kernel_time("mla_decode", rows(1, 65536.0, 16, four=four), L40S, constants)) for four in (1.0, 0.0)
    )
    assert newer < older / 4
    short = rows(1, 500.0, 16)
    unsplit = kernel_time("mla_decode", short, L40S, {**constants, "split": 0.0})
    assert float(kernel_time("mla_decode", short, L40S, constants)) == pytest.approx(float(unsplit))


def test_vllm_splits_by_its_version() -> None:
    def step(version: str, device: str) -> float:
        scenario = Scenario(
            load_model("deepseek-v2-lite"), load_hardware(device), prompt=32768, generate=2, engine=f"vllm@{version}"
        )
        found = analyze(scenario).expected
        assert found is not None
        assert found.tpot is not None
        return float(found.tpot.mid)

    assert step("0.19", "a100-sxm-80gb") > 1.3 * step("0.20", "a100-sxm-80gb")
    assert step("0.19", "h200-sxm") == pytest.approx(step("0.20", "h200-sxm"), rel=0.05)


def test_converted_latents_take_the_multiprocessors() -> None:
    """SGLang's FP8 caches on Hopper take as long on H100 as on H200."""
    constants = {**DEFAULTS, "unit_bandwidth": 1e12, "conversion": 2.6e9, "sharpness": 20.0}
    times = [
        float(kernel_time("mla_decode", rows(132, 65536.0, 16, kv_dtype="fp8"), load_hardware(name), constants))
        for name in ("h100-sxm", "h200-sxm")
    ]
    assert times[0] == pytest.approx(times[1], rel=0.05)


def test_a_cache_in_eight_bits_is_half_the_bytes() -> None:
    constants = {**DEFAULTS, "unit_bandwidth": 1e12, "compute_efficiency": 1.0, "launch": 0.5e-6, "sharpness": 20.0}
    wide, narrow = (
        float(kernel_time("mla_decode", rows(132, 65536.0, 16, kv_dtype=form), H200, constants))
        for form in ("bf16", "fp8")
    )
    assert narrow == pytest.approx(wide / 2, rel=0.02)


def test_the_bound_is_flops_or_latent_bytes() -> None:
    for heads, by_compute in ((16.0, False), (128.0, True)):
        columns = rows(64, 8192.0, heads)
        compute = 2 * 64 * heads * 8192 * (2 * 512 + 64) / H200.matrix_peak("bf16")
        memory = 64 * 8192 * 576 * 2 / H200.memory_bandwidth
        assert (compute > memory) == by_compute
        assert float(kernel_bound("mla_decode", columns, H200)) == pytest.approx(max(compute, memory))


def test_published_rates_of_flashmla() -> None:
    """deepseek-ai/FlashMLA on H800: 3,000 GB/s where memory binds, 660 TFLOP/s where GEMMs do (128 heads)."""
    calibration = load_calibration(H800)
    columns = rows(128, 8192.0, 128)
    seconds = float(calibration.expected("mla_decode", columns, H800).mid)
    work = 2 * 128 * 128 * 8192 * (2 * 512 + 64)
    assert work / seconds / 1e12 == pytest.approx(660, rel=0.15)
    columns = rows(128, 8192.0, 16)
    seconds = float(calibration.expected("mla_decode", columns, H800).mid)
    assert 128 * 8192 * 576 * 2 / seconds / 1e9 == pytest.approx(3000, rel=0.15)


def test_the_mla_kernel_applies_to_decode_only() -> None:
    answer = analyze(Scenario(load_model("deepseek-v3"), H200, batch=16, prompt=4096, generate=10))
    assert answer.decode is not None
    for phase, basis in ((answer.decode, "calibrated"), (answer.prefill, "calibrated")):
        assert phase.expected_ops is not None
        found = [
            expected.basis
            for op, expected in zip(phase.ops, phase.expected_ops, strict=True)
            if op.name == "fused_attention"
        ]
        assert set(found) == {basis}


def test_sparse_attention_reads_the_selected_latents_of_each_token() -> None:
    """DeepSeek-V3.2: a prompt's tokens are so many sequences of one query, each with at most 2048 keys of its own."""
    scenario = Scenario(load_model("deepseek-v3.2"), H200, batch=2, prompt=4096, generate=10)
    answer = analyze(scenario)
    assert answer.decode is not None
    seen = sum(min(token, 2048) for token in range(1, 4097)) / 4096
    layer = {"heads": 128, "width": 2176.0, "entry": 1152.0, "index_flops": 2 * 64 * 128, "index_key": 132.0}
    layer |= {"variant": "dsa", "dtype": "bf16", "kv_dtype": "bf16", "slots": 2048.0}
    for phase, op, tokens, keys, scored in (
        (answer.prefill, "sparse_prefill", 2 * 4096, seen, 4096 * 4097),
        (answer.decode, "sparse_decode", 2, 2048, 2 * (4096 + 9)),
    ):
        columns = {**layer, "batch": tokens, "kv_len": keys, "scored": scored}
        alone = load_calibration(H200).expected(op, columns, H200)
        found = [
            (op.count, expected)
            for op, expected in zip(phase.ops, phase.expected_ops or (), strict=True)
            if op.name in ("fused_attention", "index_scores")
        ]
        count = max(times for times, _ in found)
        assert {expected.basis for _, expected in found} == {"calibrated"}
        assert sum(expected.time.mid for times, expected in found if times == count) == pytest.approx(
            float(alone.mid), rel=0.01
        )
    assert not any(op.name == "kv_b_proj" for op in answer.prefill.ops)


def test_draft_tokens_read_their_own_selected_keys() -> None:
    model = load_model("deepseek-v3.2")
    verifying = Settings(speculation=Speculation(3, accepted=2.0, verified=3))
    drafting, plain = (
        analyze(Scenario(model, H200, batch=batch, prompt=4096, generate=10, settings=settings)).decode
        for batch, settings in ((16, verifying), (64, Settings()))
    )
    times = [
        sum(
            expected.time.mid
            for op, expected in zip(phase.ops, phase.expected_ops, strict=True)
            if op.name in ("fused_attention", "index_scores")
        )
        for phase in (drafting, plain)
        if phase is not None
    ]
    assert times[0] == pytest.approx(times[1], rel=1e-3)


@pytest.mark.parametrize(
    ("hardware", "tokens", "heads", "microseconds"),
    [
        ("h200-sxm", 2119, 8, 1057),  # FlashMLA, InternLM/lmdeploy, pull request 4904
    ],
)
def test_published_times_of_sparse_prefill(hardware: str, tokens: int, heads: int, microseconds: float) -> None:
    """Nothing was fitted to these: constants are those of whole layers, without launches and small kernels."""
    device, kind = load_hardware(hardware), kernel("sparse_prefill")
    columns = {"batch": tokens, "kv_len": 2048.0, "heads": heads, "width": 2176.0, "entry": 1152.0, "slots": 2048.0}
    columns |= {"scored": 0.0, "index_flops": 0.0, "index_key": 0.0, "variant": "dsa", "dtype": "bf16"}
    match = load_calibration(device).find("sparse_prefill", "dsa/bf16")
    assert match is not None
    seconds = float(kind.terms(kind.shape(columns), device, match.fit.parameters).overlapped)
    assert seconds * 1e6 == pytest.approx(microseconds, rel=0.4)


def test_grids_agree_with_scalars() -> None:
    keys = np.array([3.0, 64.0, 65.0, 1000.0, 1e5])
    together = kernel_time("mla_decode", rows(7.0, keys, 128.0), H200, DEFAULTS)
    alone = [float(kernel_time("mla_decode", rows(7.0, key, 128.0), H200, DEFAULTS)) for key in keys]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


SMALL = """
name: {name}
hidden: 2048
vocabulary: 32000
dtype: bf16
layers: {{count: 4, pattern: [{pattern}]}}
mlp: {{width: 4096, gated: true, activation: silu}}
blocks:
  dense: {{latent_attention: {{{latent}}}}}
  sparse: {{latent_attention: {{{latent}, indexer: {{heads: 8, head_dim: 128, selected: 1024}}}}}}
norm: {{kind: rmsnorm}}
tied_embeddings: false
"""


def test_layers_with_and_without_an_indexer_are_one_model(tmp_path: Path) -> None:
    """Their kernels are alike in all but what they count; each takes what it does in a model of its own."""
    latent = "heads: 16, q_rank: 512, kv_rank: 512, nope_dim: 128, rope_dim: 64, value_dim: 128"

    def times(pattern: str) -> list[tuple[float, float]]:
        path = tmp_path / "small.yaml"
        path.write_text(SMALL.format(name="small", pattern=pattern, latent=latent), encoding="utf-8")
        answer = analyze(Scenario(load_model(str(path)), H200, batch=4, prompt=4096, generate=2))
        assert answer.decode is not None
        return [
            (op.count, expected.time.mid)
            for phase in (answer.prefill, answer.decode)
            for op, expected in zip(phase.ops, phase.expected_ops, strict=True)
            if op.name == "fused_attention"
        ]

    patterns = ("2 x dense, 2 x sparse", "1 x dense, 3 x sparse", "4 x sparse")
    mixed, dense, sparse = map(times, patterns)
    assert len(mixed) == len(dense) == 2 * len(sparse) == 4
    assert [time for _, time in mixed] == [time for _, time in dense]
    assert [time for _, time in mixed[1::2]] == [time for _, time in sparse]
