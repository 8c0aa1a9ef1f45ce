"""Rows that cannot be true are left out, and where rows come from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from roofline.specs.hardware import load_hardware
from roofline.timing.kernels import kernel, kernel_bound
from roofline.validate.tables.implausible import believable
from roofline.validate.tables.rows import NONE, Measurements, by_origin, origin, read_measurements, shape_columns
from tests.validate.synthetic import times

SIZES = [1024, 2048, 3072, 4096, 6144, 8192]


def gemms(count: int) -> pd.DataFrame:
    generator = np.random.default_rng(3)
    frame = pd.DataFrame({"hardware": "h100-sxm", "op": "gemm", "dtype": "fp8"}, range(count))
    for size, choices in (("m", [1, 16, 128, 512, 2048, 8192]), ("n", SIZES), ("k", SIZES)):
        frame[size] = generator.choice(choices, count)
    frame = frame.assign(software="SGLang 0.5.9").drop_duplicates()
    truth = {one.name: one.default for one in kernel("gemm").parameters("fp8")}
    seconds = times(Measurements("gemm", frame, "rows"), load_hardware("h100-sxm"), truth)
    return frame.assign(latency_us=seconds * 1e6 * np.exp(generator.normal(0, 0.03, len(frame))))


def test_rows_that_cannot_be_true_are_left_out_and_counted(tmp_path: Path) -> None:
    frame = gemms(120)
    bound = kernel_bound("gemm", shape_columns("gemm", frame), load_hardware("h100-sxm"))
    frame.loc[frame.index[:3], "latency_us"] = bound[:3] * 1e4  # a hundredth of the bound
    large = frame[frame["m"] == 8192].index[:2]
    frame.loc[large, "latency_us"] = 0.5
    frame.loc[frame[frame["m"] == 1].index[0], "m"] = 0
    frame = frame.reset_index(drop=True)
    large = frame[frame["latency_us"] == 0.5].index
    frame.to_csv(tmp_path / "rows.csv", index=False)
    believed = believable(read_measurements(tmp_path / "rows.csv"))
    assert any("1 rows of gemm with an extent of zero" in text for text in believed.left_out)
    assert any("faster than the datasheet allows" in text for text in believed.left_out)
    assert not set(large) & set(believed.parts[0].frame.index)


@pytest.mark.parametrize(("share", "left"), [(0.05, 95), (0.2, 0)])
def test_a_kernel_that_failed_in_many_rows_is_left_out(tmp_path: Path, share: float, left: int) -> None:
    """Rows of the other kernel stay."""
    frame = gemms(800).iloc[:200].assign(kernel=["bad"] * 100 + ["good"] * 100)
    bound = kernel_bound("gemm", shape_columns("gemm", frame), load_hardware("h100-sxm")) * 1e6
    count = round(100 * share)
    frame.loc[frame.index[:count], "latency_us"] = bound[:count] / 1e5
    frame.to_csv(tmp_path / "rows.csv", index=False)
    believed = believable(read_measurements(tmp_path / "rows.csv"))
    kept = believed.parts[0].frame["kernel"]
    assert ((kept == "bad").sum(), (kept == "good").sum()) == (left, 100)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vLLM 0.24.0", ("vllm", "0.24.0")),
        ("TensorRT-LLM 1.3.0rc10", ("tensorrt-llm", "1.3.0rc10")),
        ("SGLang 0.5.9", ("sglang", "0.5.9")),
        ("torch 2.13.0+cpu AVX2", ("", "")),
        ("", ("", "")),
    ],
)
def test_origins(text: str, expected: tuple[str, str]) -> None:
    assert origin(text) == expected


def test_rows_without_software_have_no_engine() -> None:
    part = Measurements("gemm", gemms(120).drop(columns="software"), "rows.csv")
    assert list(by_origin(part)) == [NONE]
