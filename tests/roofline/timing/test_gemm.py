"""GEMMs: what benchmarks time beside the kernel, by published timings."""

from __future__ import annotations

import numpy as np
import pytest

from roofline import analyze, load_hardware, load_model
from roofline.scenario.scenario import Scenario
from roofline.timing.calibration import Calibration, Fit
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel, kernel_time
from roofline.timing.kernels.gemm import DISPATCHES, eager_quantization

H100 = load_hardware("h100-sxm")


@pytest.mark.parametrize(
    ("hardware", "elements", "microseconds"),
    [
        ("h200-sxm", 2.0**21.5, 31.6),
        ("h200-sxm", 2.0**24.5, 207.0),
        ("gb200", 2.0**21.5, 24.2),
        ("l40s", 2.0**21.5, 47.2),
    ],
)
def test_eager_quantization(hardware: str, elements: float, microseconds: float) -> None:
    """Medians of vLLM 0.14's FP8 GEMMs less what a GEMM takes (ai-dynamo/aiconfigurator); chosen on those of H100."""
    found = float(eager_quantization(elements, "fp8", load_hardware(hardware)))  # type: ignore[arg-type]
    assert found * 1e6 == pytest.approx(microseconds, rel=0.25)


def test_eager_quantization_is_the_benchmarks() -> None:
    """Of vLLM 0.14's table: a served model compiles it, as later versions do."""
    columns = {"dtype": "fp8", "m": 8192.0, "n": 4096.0, "k": 4096.0}
    old, new = (load_calibration(H100, engine="vllm", version=version) for version in ("0.14", "0.24"))
    eager, served, newer = (
        float(one.expected("gemm", {**columns, "eager": eager}, H100).mid)
        for one, eager in ((old, 1.0), (old, 0.0), (new, 0.0))
    )
    assert served == pytest.approx(newer, rel=0.15)
    assert eager > 1.5 * served


@pytest.mark.parametrize(("m", "k", "pads"), [(4.0, 1024.0, 0), (5.0, 1024.0, 1), (5.0, 128.0, 0), (1.0, 1024.0, 0)])
def test_block_scales_of_other_rows_are_padded(m: float, k: float, pads: int) -> None:
    """TensorRT-LLM 1.3 on GB200, n = 1024: 7.5 us for 4 rows, 14.1 for 5; 7 for any with one block of scales."""
    constants = {one.name: one.default for one in kernel("gemm").parameters("fp8_block")}
    columns = {"dtype": "fp8_block", "m": m, "n": 1024.0, "k": k}
    plain, padded = (
        float(kernel_time("gemm", columns, H100, {**constants, "padding": extra}, resident=True))
        for extra in (1e-9, 7e-6)
    )
    assert padded - plain == pytest.approx(pads * 7e-6, abs=1e-8)


def test_rows_without_graphs_have_a_benchmarks_host_time() -> None:
    """That of the nearest table without them, where the constants are of one with graphs."""
    columns = {"dtype": "fp8_block", "m": 64.0, "n": 1024.0, "k": 1024.0}
    calibration = load_calibration(H100, engine="vllm", version="0.14")
    graphed, launched = (
        float(calibration.expected("gemm", {**columns, "graph": graph}, H100, resident=True, alone=True).mid)
        for graph in (1.0, 0.0)
    )
    assert graphed < 25e-6
    assert 50e-6 < launched < 120e-6


def test_rows_with_graphs_have_no_host_time_of_a_benchmark_without() -> None:
    """The constants of vLLM 0.24, whose table has 89 us of host time and gaps of 14 us, for a table with graphs."""
    columns = {"dtype": "fp8_block", "m": 64.0, "n": 1024.0, "k": 1024.0}
    plain = {one.name: one.default for one in kernel("gemm").parameters("fp8_block")}
    own, other = (
        float(kernel_time("gemm", columns, H100, {**plain, **host}, resident=True, alone=True))
        for host in ({"host_gap": 14e-6}, {"host": 89e-6, "host_gap": 14e-6})
    )
    assert own - other == pytest.approx(14e-6)


@pytest.mark.parametrize(("k", "ratio"), [(1024.0, 1.3), (262144.0, 1.03)])
def test_long_kernels_overlap_better(k: float, ratio: float) -> None:
    """BF16 on H100, where units and memory take as long: 1.57 of either at 4 us, 1.34 at 24, 1.06 at 250 (public
    timings of cuBLAS). Here with an overlap of 50 us."""
    constants = {one.name: one.default for one in kernel("gemm").parameters("bf16")}
    constants |= {"launch": 1e-9, "tile_prologue": 1e-9, "sharpness": 1.4, "overlap": 50e-6, "throttling": 1e-9}
    columns = {"dtype": "bf16", "m": 8192.0, "n": 132.0, "k": k}

    def time(**changed: float) -> float:
        return float(kernel_time("gemm", columns, H100, {**constants, **changed}))

    over_memory = time(compute_efficiency=1e6, tile_bandwidth=1e18)
    on_units = constants["compute_efficiency"] * time(memory_efficiency=1e6) / over_memory
    balanced = {"compute_efficiency": on_units, "tile_bandwidth": 1e18}
    assert time(**balanced) / over_memory == pytest.approx(ratio, rel=0.1)


@pytest.mark.parametrize(
    ("hardware", "version", "format"),
    [
        ("b200-sxm", "1.2.0rc5", "fp8_block_triton"),
        ("gb200", "1.0", "fp8_block_triton"),
        ("b200-sxm", "1.3.0rc10", "fp8_block"),
        ("h200-sxm", "1.2.0rc5", "fp8_block"),
    ],
)
def test_old_versions_of_tensorrt_llm_quantize_in_triton(hardware: str, version: str, format: str) -> None:
    device = load_hardware(hardware)
    constants = {one.name: one.default for one in kernel("gemm").parameters("fp8_block")}
    fits = {("gemm", one): Fit("gemm", one, constants) for one in ("fp8_block", "fp8_block_triton")}
    measured = Calibration(hardware, "calibrated", fits, engine="tensorrt-llm", version=version)
    phase = analyze(Scenario(load_model("deepseek-v3"), device), lambda *_: measured).prefill
    kernels = [found for run in phase.passes for found in phase.timed(run).kernels if "gemm" in found.matches]
    assert {found.matches["gemm"].fit.format for found in kernels} == {format}


def test_tiles_by_rows_follow_the_rows_of_the_batch() -> None:
    """As vLLM's FP8 kernels on L40S: 6.3 us up to 16 rows, 9.5 to 32, 13.3 for any of 65 to 256 (n 1,024, k 2,048)."""
    by_rows = next(index for index, one in enumerate(DISPATCHES) if one.name == "by rows")
    constants = {one.name: one.default for one in kernel("gemm").parameters("fp8")}
    constants |= {"dispatch": float(by_rows), "quantize_row": 0.0, "sharpness": 20.0, "tile_bandwidth": 30e9}
    columns = {
        "dtype": "fp8",
        "m": np.array([1.0, 16.0, 17.0, 32.0, 65.0, 256.0]),
        "n": 1024.0,
        "k": 2048.0,
        "bare": 1.0,
    }
    found = kernel_time("gemm", columns, load_hardware("l40s"), constants)
    np.testing.assert_allclose(found[::2], found[1::2], rtol=0.01)
    assert found[0] < found[2] < found[4]
