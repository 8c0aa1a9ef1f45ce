"""What is made of a visit. All rows are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from roofline.specs.hardware import load_hardware
from roofline.validate.gpu.summary import roof, rows_in, summary, timings
from roofline.validate.gpu.visit import LOG, ROWS, Result, read_results
from roofline.validate.kernels.work import Case
from roofline.validate.tables.rowfile import RowFile

H100 = load_hardware("h100-sxm")
MACHINE = {
    "hardware": "h100-sxm", "bundled": True, "title": "made up", "bandwidth": 3e12, "peaks": {"bf16": 8e14}, "spec": "",
    "software": "made up", "state": {"device": "made up"},
}  # fmt: skip


def result(step: str, **facts: Any) -> Result:
    return Result(step, "done", "made up", 1.0, facts)


def made_up(folder: Path, cases: list[Case] | None = None, ours: float = 2.0) -> None:
    """The folder of a visit: the library's kernels take the time of the roof, ours `ours` times as long."""
    cases = cases or [Case("gemm", {"dtype": "bf16", "m": m, "n": 4096, "k": 4096}) for m in (1, 64, 4096)]
    with RowFile(folder / ROWS) as file:
        for case in cases:
            for kernel, factor in (("torch", 1.0), ("triton", ours)):
                seconds = factor * roof(case, H100)
                row = {"hardware": "h100-sxm", "op": case.op, **case.columns, "kernel": kernel, "cache": "cold"}
                file.append({**row, "latency_us": f"{1e6 * seconds:.6g}", "software": "made up", "date": "2026-01-01"})
    log = b"".join(msgspec.json.encode(step) + b"\n" for step in (result("machine", **MACHINE), result("gemm")))
    (folder / LOG).write_bytes(log)


def test_fractions_of_the_roof_and_of_the_library(tmp_path: Path) -> None:
    made_up(tmp_path, ours=2.0)
    assert next(iter(timings(rows_in(tmp_path / ROWS), H100))).roof == pytest.approx(
        (4096 * 4096 + 4096 + 4096) * 2 / H100.memory_bandwidth
    )
    text = summary(tmp_path, read_results(tmp_path))
    assert "| gemm bf16 m 1 to 16 | 1 | 100 | 50 | 50 | 50 to 50 |" in text
    assert "| bandwidth | 3.00 TB/s | 3.35 TB/s | 90% |" in text


def test_a_row_that_was_cut_short_is_left_out(tmp_path: Path) -> None:
    made_up(tmp_path)
    rows = rows_in(tmp_path / ROWS)
    with (tmp_path / ROWS).open("ab") as file:
        file.write(b"h100-sxm,gemm,bf16,1")
    with (tmp_path / LOG).open("ab") as file:
        file.write(b'{"step":"attention","sta')
    assert rows_in(tmp_path / ROWS) == rows
    assert [step.step for step in read_results(tmp_path)] == ["machine", "gemm"]
    assert "# A visit" in summary(tmp_path, read_results(tmp_path))
