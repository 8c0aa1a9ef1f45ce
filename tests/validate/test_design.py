"""Designs: within their limits, different, covering early, and the same every time."""

from __future__ import annotations

import numpy as np
import pytest

from roofline.core.errors import UnknownNameError
from roofline.validate.kernels.work import Case, work_of
from roofline.validate.measure.design import DESIGNS, Limits, case_at, design, fits, memory_bytes
from roofline.validate.tables.rows import TEXT, shape_names

LIMITS = Limits(memory=4e9, flops=5e12, traffic=3e9)
FORMATS = dict.fromkeys(DESIGNS.ops, ("bf16",))


def test_every_case_is_a_row_of_the_schema_and_within_the_limits() -> None:
    cases = design(FORMATS, LIMITS, 30)
    assert len(set(cases)) == len(cases)
    for case in cases:
        assert tuple(case.columns) == shape_names(case.op)
        assert all(isinstance(case.columns[name], str if name in TEXT else int) for name in case.columns)
        assert fits(case, LIMITS)
        assert work_of(case).bytes > 0
    assert {case.op for case in cases} == set(DESIGNS.ops)


def test_a_prefix_has_every_op_and_both_ends() -> None:
    cases = design(FORMATS, LIMITS, 60)
    first = cases[:30]
    assert {case.op for case in first} == set(DESIGNS.ops)
    for op in ("gemm", "attention_prefill", "attention_decode"):
        all_work = [work_of(case).bytes for case in cases if case.op == op]
        early = [work_of(case).bytes for case in first if case.op == op]
        assert min(early) == min(all_work)
        assert max(early) > 0.03 * max(all_work)


def test_fifty_points_fill_the_box() -> None:
    from scipy.stats.qmc import Halton  # takes two seconds

    cases = [case for case in design({"gemm": ("bf16",)}, Limits(memory=1e12), 50) if case.op == "gemm"]
    assert len(cases) == 50
    points = np.log([[case[name] for name in "mnk"] for case in cases])
    points = (points - points.min(0)) / np.ptp(points, axis=0)
    probes = Halton(3, scramble=False).random(500)
    farthest = np.sqrt(((probes[:, None] - points[None]) ** 2).sum(-1)).min(1).max()
    assert farthest < 0.45


def test_design_is_deterministic() -> None:
    assert list(map(str, design(FORMATS, LIMITS, 20))) == list(map(str, design(FORMATS, LIMITS, 20)))


def test_formats_are_interleaved() -> None:
    cases = design({"gemm": ("bf16", "fp8"), "attention_decode": ("bf16", "bf16/fp8")}, LIMITS, 20)
    gemms = [case.dtype for case in cases if case.op == "gemm"]
    assert gemms[:4] == ["bf16", "fp8"] * 2
    assert {case.columns["kv_dtype"] for case in cases if case.op == "attention_decode"} == {"bf16", "fp8"}


def test_no_case_fits_too_little_memory() -> None:
    assert design({"moe": ("bf16",)}, Limits(memory=1e6), 10) == []


def test_memory_counts_unread_experts_and_keys() -> None:
    experts = case_at("moe", "bf16", (0.0, 0.99, 0.0))
    assert memory_bytes(experts) > 2 * work_of(experts).bytes
    window = {"batch": 8, "q_len": 1, "kv_len": 100000, "heads": 8, "kv_heads": 8, "head_dim": 128, "window": 1024}
    case = Case("attention_decode", {"dtype": "bf16", "kv_dtype": "bf16", **window})
    assert memory_bytes(case) == 2 * 8 * 8 * 100000 * 128 * 2


def test_unknown_op() -> None:
    with pytest.raises(UnknownNameError, match="unknown op 'gem'"):
        design({"gem": ("bf16",)}, LIMITS)
