"""Gated delta rule: the formula, public timings, and the kernel variants of engines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.specs.engine import load_engine
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel_time
from roofline.timing.kernels.common import on_chip_bandwidth
from roofline.timing.kernels.gated_delta_rule import CHUNKED, FUSED, PARAMETERS

H200 = load_hardware("h200-sxm")
DEFAULTS = {parameter.name: parameter.default for parameter in PARAMETERS}


def rows(variant: str, tokens: float, heads: float, batch: float = 1.0, **more: Any) -> dict[str, Any]:
    sizes = {"batch": batch, "q_len": tokens, "heads": heads, "key_dim": 128.0, "value_dim": 128.0}
    return {"variant": variant, **sizes, **more}


def seconds(hardware: str, columns: dict[str, Any]) -> float:
    device = load_hardware(hardware)
    library = load_calibration(device, engine="sglang")  # vLLM's and TensorRT-LLM's have their own copies of FLA's
    return float(library.expected("gated_delta_rule", columns, device).mid)


def test_a_single_head_takes_the_recurrence_time() -> None:
    constants = {**DEFAULTS, "launch": 1e-6, "sharpness": 20.0}
    found = [
        float(kernel_time("gated_delta_rule", rows(FUSED, tokens, 1), H200, constants)) for tokens in (6400, 12800)
    ]
    assert found[0] == pytest.approx(1e-6 + 6400 * DEFAULTS["token"], rel=1e-6)
    assert found[1] - found[0] == pytest.approx(6400 * DEFAULTS["token"], rel=1e-6)


def test_heads_beyond_the_units_take_another_wave() -> None:
    constants = {**DEFAULTS, "token": 300e-9, "compute_efficiency": 1.0, "sharpness": 20.0}
    one, two = (
        float(kernel_time("gated_delta_rule", rows(FUSED, 1e4, heads), H200, constants)) for heads in (132, 133)
    )
    assert two - one == pytest.approx(1e4 * constants["token"], rel=0.01)


def test_intermediates_of_chunked_kernels_move_at_the_clock_of_the_units() -> None:
    """Many heads, no recurrence: 3,968 bytes of intermediates a token and head, 1,024 in and out; 180,224 FLOPs."""
    constants = {**DEFAULTS, "launch": 1e-6, "token": 1e-30, "compute_efficiency": 1.0, "intermediate_traffic": 1.0}
    tokens, heads = 8192.0, 64.0
    pairs = tokens * heads
    peak, bandwidth = H200.matrix_peak("bf16"), H200.memory_bandwidth
    work = 6 * 128 * 128 + 2 * 64 * 5 * 128
    handed = 2 * (4 * 256 + 7 * 64 + 2 * 128 * 128 / 64)
    for variant, within in ((CHUNKED, handed), (FUSED, 0)):
        found = float(kernel_time("gated_delta_rule", rows(variant, tokens, heads), H200, constants))
        moved = (pairs * 1024 + 8 * heads * 128 * 128) / bandwidth + pairs * within / on_chip_bandwidth(H200)
        parts = pairs * work / peak, moved
        assert found == pytest.approx(1e-6 + (sum(parts) if variant == CHUNKED else max(parts)), rel=1e-6)


def test_key_heads_are_read_once() -> None:
    constants = {**DEFAULTS, "token": 1e-30, "compute_efficiency": 1.0}
    shared, own = (
        float(kernel_time("gated_delta_rule", rows(CHUNKED, 8192.0, 64.0, key_heads=heads), H200, constants))
        for heads in (16.0, 64.0)
    )
    assert own - shared == pytest.approx(4 * 8192 * 48 * 128 / H200.memory_bandwidth, rel=1e-6)


def test_decode_updates_states() -> None:
    answer = analyze(Scenario(load_model("qwen3.5-27b"), H200, batch=4, prompt=8192, engine="sglang"))
    assert answer.decode is not None
    for phase, basis in ((answer.prefill, "family"), (answer.decode, "calibrated")):
        found = next(
            expected
            for op, expected in zip(phase.ops, phase.expected_ops, strict=True)
            if op.name == "gated_delta_rule"
        )
        assert found.basis == basis
    # The state of all sequences, read and written in 32 bits at 0.9 of the bandwidth, after a launch.
    states = 2 * 4 * 48 * 128 * 128 * 4 / H200.memory_bandwidth
    assert float(found.time.mid) == pytest.approx(2.3e-6 + states / 0.9, rel=0.2)


# Published times in us, of single rows: benchmark_results_H200.txt, _GB200.txt and _pro6000.txt of QwenLM/FlashQLA
# (FLA 0.5.1, FlashInfer 0.6.12 to 0.6.14), and flashinfer-ai/flashinfer, pull request 3788 (H100).
@pytest.mark.parametrize(
    ("hardware", "variant", "batch", "tokens", "heads", "published"),
    [
        ("h200-sxm", CHUNKED, 1, 32768, 64, 3331),
        ("h200-sxm", CHUNKED, 1, 8192, 8, 234),
        ("h200-sxm", FUSED, 4, 8192, 64, 827),
        ("h100-sxm", CHUNKED, 1, 8192, 64, 1045),
        ("gb200", CHUNKED, 1, 8192, 64, 755),
        ("gb200", FUSED, 1, 8192, 32, 303),
        ("b300-sxm", CHUNKED, 1, 16384, 64, 1564),
        ("rtx-pro-6000-server", FUSED, 1, 8192, 48, 711),
    ],
)
def test_published_times(hardware: str, variant: str, batch: int, tokens: int, heads: int, published: float) -> None:
    columns = rows(variant, tokens, heads, batch=batch, key_heads=max(heads // 4, 2))
    assert seconds(hardware, columns) * 1e6 == pytest.approx(published, rel=0.1)


def test_fused_kernels_exist_on_some_architectures() -> None:
    for name in ("a100-sxm-80gb", "l40s", "mi300x"):
        match = load_calibration(load_hardware(name)).find("gated_delta_rule", FUSED)
        assert match is not None
        assert match.fit.format == CHUNKED
    match = load_calibration(H200).find("gated_delta_rule", FUSED)
    assert match is not None
    assert match.fit.format == FUSED
    assert "FlashQLA" in match.source


def scanned(engine: str, hardware: str = "h200-sxm", batch: int = 4, **degrees: int) -> float:
    settings = Settings(parallel=Parallelism(**degrees))
    scenario = Scenario(
        load_model("qwen3.5-27b"), load_hardware(hardware), batch=batch, prompt=8192, generate=8, engine=engine
    )
    answer = analyze(scenario.changed(settings=settings))
    assert answer.prefill.expected_ops is not None
    found = zip(answer.prefill.ops, answer.prefill.expected_ops, strict=True)
    return next(float(expected.time.mid) for op, expected in found if op.name == "gated_delta_rule")


def test_engines_run_their_kernel_variant() -> None:
    assert load_engine("vllm").gated_delta_rule == FUSED
    assert load_engine("sglang").gated_delta_rule == CHUNKED
    assert scanned("vllm") < 0.5 * scanned("sglang")
    assert scanned("vllm", "a100-sxm-80gb") == pytest.approx(scanned("sglang", "a100-sxm-80gb"))


def test_devices_share_the_heads() -> None:
    one, two = scanned("sglang", batch=4), scanned("sglang", batch=4, tensor=2)
    assert 0.4 * one < two < 0.7 * one


def test_grids_agree_with_scalars() -> None:
    sizes = np.array([9.0, 64.0, 1000.0, 8192.0])
    together = kernel_time("gated_delta_rule", rows(CHUNKED, sizes, 48.0), H200, DEFAULTS)
    alone = [float(kernel_time("gated_delta_rule", rows(CHUNKED, size, 48.0), H200, DEFAULTS)) for size in sizes]
    np.testing.assert_allclose(together, alone, rtol=1e-12)
