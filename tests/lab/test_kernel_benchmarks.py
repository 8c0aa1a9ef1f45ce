"""What public benchmarks time beside a kernel, by software."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from lab.tables.kernel_benchmarks import is_ungraphed
from lab.tables.public import read
from roofline.validate.tables.rows import Measurements


def gemms(
    tmp_path: Path, software: list[str], dtype: str, *latencies: float, hardware: str = "h100-sxm"
) -> Measurements:
    table = pd.DataFrame([{"software": name, "latency_us": one} for name in software for one in latencies])
    table = table.assign(hardware=hardware, op="gemm", dtype=dtype, n=1024, k=1024, m=range(1, len(table) + 1))
    table.to_csv(tmp_path / "gemms.csv", index=False)
    (part,) = read(tmp_path / "gemms.csv")
    return part


@pytest.mark.parametrize(("dtype", "eager"), [("fp8", 1), ("fp8_block", 1), ("bf16", 0), ("nvfp4", 0)])
def test_vllm_before_0_15_quantizes_eagerly(dtype: str, eager: int, tmp_path: Path) -> None:
    versions = ["vLLM 0.9.2", "vLLM 0.14.0", "vLLM 0.15.0", "vLLM 0.22.0", "SGLang 0.5.10"]
    found = gemms(tmp_path, versions, dtype, 20.0).frame["eager"].tolist()
    assert found == [eager, eager, 0, 0, 0]


@pytest.mark.parametrize(("hardware", "unpacked"), [("h100-sxm", 0), ("b200-sxm", 1), ("gb200", 1)])
def test_sglangs_benchmark_converts_the_scales_of_weights_on_blackwell(
    hardware: str, unpacked: int, tmp_path: Path
) -> None:
    found = gemms(tmp_path, ["SGLang 0.5.10", "TensorRT-LLM 1.3.0rc10"], "fp8_block", 20.0, hardware=hardware)
    assert found.frame["unpacked"].tolist() == [unpacked, 0]


@pytest.mark.parametrize(
    ("software", "dtype", "latencies", "ungraphed"),
    [
        ("vLLM 0.24.0", "fp8_block", (60.0, 61.0, 900.0), True),
        ("vLLM 0.14.0", "fp8_block", (21.0, 24.0, 900.0), False),
        ("vLLM 0.24.0", "fp8", (60.0, 61.0, 900.0), False),
        ("SGLang 0.5.10", "fp8_block", (60.0, 61.0, 900.0), False),
    ],
)
def test_tables_without_graphs_show_by_their_short_kernels(
    software: str, dtype: str, latencies: tuple[float, ...], ungraphed: bool, tmp_path: Path
) -> None:
    assert is_ungraphed(gemms(tmp_path, [software], dtype, *latencies)) is ungraphed


CUTLASS = 172.0
"""Microseconds of a launch of vLLM 0.24's CUTLASS kernel for FP8 blocks from an x86 host."""


@pytest.mark.parametrize(
    ("kernel", "hardware", "m", "measured"),
    [
        ("CutlassFp8BlockScaledMMKernel", "rtx-pro-6000-server", 64, 180.0),
        ("CutlassFp8BlockScaledMMKernel", "gb200", 64, 288.0),
        ("DeepGemmFp8BlockScaledMMKernel", "h200-sxm", 64, 84.0),
        ("DeepGemmFp8BlockScaledMMKernel", "h200-sxm", 65, 93.0),
        ("DeepGemmFp8BlockScaledMMKernel", "b200-sxm", 65, 237.0),
        ("DeepGemmFp8BlockScaledMMKernel", "gb200", 64, 301.0),
        ("FlashInferFp8BlockScaledMMKernel", "h200-sxm", 16, 59.5),
        ("vllm_default", "h200-sxm", 16, 59.5),
    ],
)
def test_a_launched_gemm_takes_its_librarys_time_and_its_cpus(
    kernel: str, hardware: str, m: int, measured: float, tmp_path: Path
) -> None:
    """Medians of short kernels in the tables of vLLM 0.24; a table that names no kernel has that of its rows."""
    table = {"hardware": hardware, "op": "gemm", "dtype": "fp8_block", "m": m, "n": 1024, "k": 1024, "kernel": kernel}
    pd.DataFrame([{**table, "software": "vLLM 0.24.0", "latency_us": measured}]).to_csv(
        tmp_path / "one.csv", index=False
    )
    (part,) = read(tmp_path / "one.csv")
    assert part.frame["called"].tolist() == pytest.approx([measured / CUTLASS], rel=0.08)


@pytest.mark.parametrize(
    ("software", "hardware", "format"),
    [
        ("TensorRT-LLM 1.2.0rc5", "b200-sxm", "fp8_block_triton"),
        ("TensorRT-LLM 1.3.0rc10", "b200-sxm", "fp8_block"),
        ("TensorRT-LLM 1.2.0rc5", "h200-sxm", "fp8_block"),
        ("SGLang 0.5.9", "b200-sxm", "fp8_block"),
    ],
)
def test_kernels_that_a_version_replaced_are_formats_of_their_own(
    software: str, hardware: str, format: str, tmp_path: Path
) -> None:
    part = gemms(tmp_path, [software], "fp8_block", 20.0, 21.0)
    part.frame.assign(hardware=hardware, dtype="fp8_block").to_csv(tmp_path / "moved.csv", index=False)
    (moved,) = read(tmp_path / "moved.csv")
    assert set(moved.frame["dtype"]) == {format}


def test_a_file_may_say_so_itself(tmp_path: Path) -> None:
    part = gemms(tmp_path, ["vLLM 0.24.0"], "fp8_block", 60.0, 70.0)
    part.frame.assign(graph=1.0, eager=1.0).to_csv(tmp_path / "said.csv", index=False)
    (said,) = read(tmp_path / "said.csv")
    assert not is_ungraphed(said)
    assert said.frame["eager"].tolist() == [1.0, 1.0]
