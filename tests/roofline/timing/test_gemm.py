"""GEMMs: overlap, tiles and the kernels that versions of engines run, by published timings."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import analyze, load_hardware, load_model
from roofline.scenario.scenario import Scenario
from roofline.timing.calibration import Calibration, Fit, on_units
from roofline.timing.kernels import kernel, kernel_time
from roofline.timing.kernels.gemm import DISPATCHES

H100 = load_hardware("h100-sxm")


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
    units = constants["compute_efficiency"] * time(memory_efficiency=1e6) / over_memory
    balanced = {"compute_efficiency": units, "tile_bandwidth": 1e18}
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


def test_few_rows_are_no_slower_on_a_relative_with_a_higher_peak() -> None:
    """Of which it achieves a smaller part: rows that the weights' reading hides cost no more on its units."""
    constants = {one.name: one.default for one in kernel("gemm").parameters("bf16")}
    constants |= {"compute_efficiency": 0.5, "tile_bandwidth": 1e18, "dispatch": 5.0}
    fit, own = Fit("gemm", "bf16", constants), 100e12  # behind the weights' reading: 30 of the tile's 128 rows
    times = []
    for factor in (1.0, 1.05, 1.3, 2.0, 5.0):
        here = replace(H100, tensor={**H100.tensor, "bf16": own * factor})
        carried = on_units(fit, "bf16", {"bf16": (1.0, factor)}).parameters
        columns = {"dtype": "bf16", "m": 4.0, "n": 14336.0, "k": 4096.0}
        times.append(float(kernel_time("gemm", columns, here, carried)))
    assert all(faster <= before * 1.001 for before, faster in pairwise(times)), times
