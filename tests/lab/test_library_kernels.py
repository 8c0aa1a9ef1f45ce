"""The library's kernels: their names and the events of a trace."""

from __future__ import annotations

from typing import Any

import pytest

from lab.library_kernels import asked, by_call, choice


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


def test_each_gemm_is_asked_once() -> None:
    assert len(asked()) == len(set(asked())) > 2000
