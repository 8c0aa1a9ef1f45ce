"""Kernels that a benchmark replays in a graph or launches anew: host time, gaps, padding, and differences of times."""

from __future__ import annotations

import pandas as pd
import pytest

from lab.observation.collector import DIFFERENCE_LAUNCH, Collector
from roofline import load_hardware
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel_bound
from roofline.validate.tables.rows import Measurements
from tests.lab.observation.conftest import Collect

H100, L40S = load_hardware("h100-sxm"), load_hardware("l40s")
GEMM = {"dtype": "fp8_block", "m": 64.0, "n": 1024.0, "k": 1024.0}
LATENTS = {"dtype": "bf16", "batch": 8.0, "q_len": 1.0, "heads": 64.0, "latent": 512.0, "rope": 64.0, "cache": "cold"}


@pytest.mark.parametrize(("m", "k", "pads"), [(4.0, 1024.0, 0), (5.0, 1024.0, 1), (5.0, 128.0, 0), (1.0, 1024.0, 0)])
def test_block_scales_of_other_rows_are_padded(m: float, k: float, pads: int, collect: Collect) -> None:
    """TensorRT-LLM 1.3 on GB200, n = 1024: 7.5 us for 4 rows, 14.1 for 5; 7 for any with one block of scales."""
    row = {**GEMM, "m": m, "k": k, "cache": "warm"}
    plain, padded = (float(collect("gemm", row, H100, {"padding": extra}).seconds[0]) for extra in (1e-9, 7e-6))
    assert padded - plain == pytest.approx(pads * 7e-6, abs=1e-8)


def test_rows_without_graphs_have_a_benchmarks_host_time() -> None:
    """That of the nearest table without them, where the constants are of one with graphs; DeepGEMM's calls."""
    calibration = load_calibration(H100, engine="vllm", version="0.14")
    part = Measurements("gemm", pd.DataFrame({**GEMM, "graph": [1.0, 0.0], "called": 0.5}), "table")
    graphed, launched = (
        float(Collector().expected(Collector().rows(part.rows([index])), H100, calibration).mid[0]) for index in (0, 1)
    )
    assert graphed < 25e-6
    assert 50e-6 < launched < 120e-6


def test_rows_with_graphs_have_no_host_time_of_a_benchmark_without(collect: Collect) -> None:
    """The constants of vLLM 0.24, whose table has 89 us of host time and gaps of 14 us, for a table with graphs."""
    own, other = (
        float(collect("gemm", GEMM, H100, host, hosted=True).seconds[0])
        for host in ({"host_gap": 14e-6}, {"host": 89e-6, "host_gap": 14e-6})
    )
    assert own - other == pytest.approx(14e-6)


def test_what_both_times_of_a_difference_have_cancels(collect: Collect) -> None:
    """Tiles' starts, and the launch, for which DIFFERENCE_LAUNCH stands."""
    constants = {"launch": 70e-6, "tile_prologue": 10e-6, "split": 0.0}
    short, long = (
        float(collect("mla_decode", {**LATENTS, "kv_len": keys}, L40S, constants).seconds[0]) for keys in (3.0, 4096.0)
    )
    difference = collect("mla_decode", {**LATENTS, "kv_len": 4096.0, "less_kv": 3.0}, L40S, constants)
    assert float(difference.seconds[0]) == pytest.approx(DIFFERENCE_LAUNCH + long - short)


def test_the_bound_of_a_difference_is_that_of_the_keys_beyond_the_fewer_ones(collect: Collect) -> None:
    bound = collect("mla_decode", {**LATENTS, "kv_len": 4096.0, "less_kv": 4095.0}, L40S, {}).bound
    assert float(bound[0]) == pytest.approx(float(kernel_bound("mla_decode", {**LATENTS, "kv_len": 1.0}, L40S)))
