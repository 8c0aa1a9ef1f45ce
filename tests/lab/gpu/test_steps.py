"""What maintainers add to a visit: correctness with interpreted kernels, and the library's kernels, made up."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="the kernels need PyTorch")
if importlib.util.find_spec("triton") is None:
    pytest.skip("Triton is not installed", allow_module_level=True)

from lab.gpu import library
from lab.gpu.library import by_call, choice
from lab.gpu.page import summary
from lab.gpu.steps import STEPS, VERDICT_COLUMNS, VERDICTS
from roofline.validate.gpu import plan, runner
from roofline.validate.gpu.plan import Step
from roofline.validate.gpu.summary import rows_in
from roofline.validate.gpu.visit import SUMMARY, Visit
from roofline.validate.tables.rowfile import RowFile
from tests.validate.gpu import interpreted


@pytest.mark.slow
def test_every_kernel_is_correct(tmp_path: Path) -> None:
    steps = [step for step in STEPS if step.name in ("machine", "correct", "library")]
    results = runner.run(tmp_path, 8.0, lambda _: None, interpreted.bench(clock=interpreted.Clock()), steps, summary)
    assert [result.status for result in results] == ["done"] * 3
    verdicts = rows_in(tmp_path / VERDICTS)
    assert {row["status"] for row in verdicts} == {"correct", "refused"}
    assert {(row["op"], row["kernel"]) for row in verdicts if row["status"] == "correct"} >= {
        ("gemm", "triton"), ("moe", "triton"), ("attention_prefill", "triton"), ("attention_decode", "triton"),
        ("norm", "triton"), ("copy", "triton_append"),
    }  # fmt: skip


def test_a_wrong_kernel_and_a_hostile_sentence_leave_a_summary(tmp_path: Path) -> None:
    def found(visit: Visit) -> plan.Found:
        with RowFile(visit.folder / VERDICTS, VERDICT_COLUMNS) as file:
            for error in ("inf", "nan"):
                file.append({"op": "gemm", "kernel": "triton", "status": "wrong", "error": error, "allowed": "0"})
        return "<script>alert(1)</script> | two\nlines", {}

    runner.run(tmp_path, 8.0, lambda _: None, interpreted.bench(), [STEPS[0], Step("odd", "", 1, 9, found)], summary)
    text = (tmp_path / SUMMARY).read_text()
    assert "<script>" not in text
    assert "| gemm, triton | 0 | 2 | 0 | inf% |" in text


def test_the_name_of_a_kernel_says_its_tile() -> None:
    """Names and grids that an H200 gave: programs are the tiles, rounded up to clusters, or one a multiprocessor."""
    wide = choice("nvjet_sm90_tst_256x128_64x4_1x2_h_bz_coopA_TNT")
    assert wide is not None
    assert (wide.rows, wide.columns, wide.depth, wide.stages) == (128, 256, 64, 4)
    assert (wide.cluster_rows, wide.cluster_columns, wide.split) == (2, 1, False)
    few = choice("nvjet_sm90_tst_64x8_64x16_2x1_v_bz_splitK_TNT")
    assert few is not None
    assert few.split
    assert few.tiles(1, 4096) == (1, 64), "and its grid of 2 x 64 programs splits k in two"
    other = choice("nvjet_sm90_tst_8x64_64x16_4x1_v_bz_TNN")
    assert other is not None
    assert other.tiles(2, 512) == (1, 8)
    assert choice("nvjet_sm90_qqtst_128x128_128x6_4x1_v_bz_ovscale_TNT") is not None
    assert choice("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_tn_align8>") is None


def kernel(name: str, start: float) -> dict[str, Any]:
    return {"cat": "kernel", "name": name, "ts": start, "dur": 1.0, "args": {}}


def test_kernels_belong_to_the_call_between_markers() -> None:
    marker = "void at::cuda::spin_kernel(long)"
    events = [kernel(marker, 5), kernel("reduce", 4), kernel("gemm", 3), kernel(marker, 2), kernel("before", 1)]
    events += [{"cat": "cpu_op", "name": "matmul", "ts": 2.5, "dur": 1}, kernel("other", 6), kernel(marker, 7)]
    assert [[event["name"] for event in group] for group in by_call(events, 2)] == [["gemm", "reduce"], ["other"]]
    with pytest.raises(ValueError, match="3 of 4 markers"):
        by_call(events, 3)


def test_the_shapes_that_the_library_is_asked_about() -> None:
    asked = library.asked()
    assert len(asked) == len(set(asked)) > 2000
