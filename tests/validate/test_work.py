"""What a benchmark runs is what the simulator predicts: a case, as operators and back."""

from __future__ import annotations

from typing import Any

import pytest

from roofline.core.errors import UnknownNameError
from roofline.validate.kernels.work import Case, work_of
from tests.validate.synthetic import restored

ATTENTION = {"batch": 2, "heads": 8, "kv_heads": 2, "head_dim": 64, "window": 0}


@pytest.mark.parametrize(
    ("op", "columns"),
    [
        *(("gemm", {"dtype": dtype, "m": 7, "n": 96, "k": 256}) for dtype in ("bf16", "fp16", "fp32", "int8", "fp8")),
        ("gemm", {"dtype": "int4_wo", "m": 7, "n": 96, "k": 256}),
        ("attention_prefill", {"dtype": "bf16", "kv_dtype": "bf16", **ATTENTION, "q_len": 50, "kv_len": 50}),
        ("attention_prefill", {"dtype": "fp16", "kv_dtype": "fp16", **ATTENTION, "q_len": 50, "kv_len": 80}),
        ("attention_decode", {"dtype": "bf16", "kv_dtype": "bf16", **ATTENTION, "q_len": 1, "kv_len": 333}),
        ("attention_decode", {"dtype": "bf16", "kv_dtype": "fp8", **ATTENTION, "q_len": 1, "kv_len": 333}),
        (
            "moe",
            {
                "dtype": "bf16",
                "tokens": 9,
                "hidden": 64,
                "intermediate": 96,
                "top_k": 2,
                "experts": 8,
                "tp": 1,
                "ep": 1,
                "routing": "uniform",
            },
        ),
    ],
)
def test_work_row_restores_the_case(op: str, columns: dict[str, Any]) -> None:
    row = restored(Case(op, columns))
    shared = {name: row[name] for name in columns if name in row}
    assert shared == {name: columns[name] for name in shared}
    assert set(columns) - set(row) <= {"kv_dtype", "tp", "ep"}
    assert "weight_bytes" not in row


def test_flops_and_bytes_of_work() -> None:
    gemm = work_of(Case("gemm", {"dtype": "bf16", "m": 3, "n": 5, "k": 7}))
    assert (gemm.flops, gemm.bytes) == (2 * 3 * 5 * 7, 2 * (3 * 7 + 5 * 7 + 3 * 5))
    packed = work_of(Case("gemm", {"dtype": "int4_wo", "m": 1, "n": 256, "k": 512}))
    assert packed.bytes == 256 * 512 * (0.5 + 2 / 128) + 2 * (512 + 256)
    causal = work_of(
        Case("attention_prefill", {"dtype": "bf16", "kv_dtype": "bf16", **ATTENTION, "q_len": 4, "kv_len": 4})
    )
    assert causal.bytes == 2 * 2 * 4 * 64 * (8 + 8 + 2 + 2)
    pairs = 10
    assert causal.flops == 2 * 8 * pairs * (4 * 64 + 5)
    norm = work_of(Case("norm", {"dtype": "bf16", "rows": 3, "columns": 100}))
    assert norm.bytes == 2 * (4 * 300 + 100)


def test_an_unknown_benchmark() -> None:
    with pytest.raises(UnknownNameError, match="gemm"):
        work_of(Case("gem", {}))
