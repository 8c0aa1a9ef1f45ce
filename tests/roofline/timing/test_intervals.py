"""Error combination: closed forms, and sums between the limits of full and no correlation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.bound.roof import place
from roofline.graph.network import Build, network
from roofline.specs.engine import load_engine
from roofline.specs.precision import parse_precision
from roofline.timing.chains import load_calibration
from roofline.timing.intervals.passes import (
    ACROSS_KINDS,
    UNMEASURED_KIND,
    WITHIN_KIND,
    Intervals,
    inherited,
    within_kind,
)
from roofline.timing.launches import LaunchedKernel, launches

H100, LLAMA = load_hardware("h100-sxm"), load_model("llama-3.1-8b")
IDEAL = load_engine("ideal")


def kernels(hardware: str) -> list[LaunchedKernel]:
    device = load_hardware(hardware)
    placement = place(network(LLAMA, parse_precision("bf16"), Build(("attention",))), device)
    return launches(placement, IDEAL, load_calibration(device))


def of_different_shapes(kernel: LaunchedKernel, count: int) -> list[LaunchedKernel]:
    assert kernel.shape is not None
    shapes = [replace(kernel.shape, texts={**kernel.shape.texts, "row": float(row)}) for row in range(count)]
    return [replace(kernel, shape=shape) for shape in shapes]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(1, 80))
def test_shapes_of_one_kind_are_partly_correlated(errors: list[float], layers: int) -> None:
    gemm = next(kernel for kernel in kernels("h100-sxm") if kernel.kind == "gemm")
    summed = Intervals(of_different_shapes(gemm, len(errors)), np.full(len(errors), float(layers)))
    found = summed.combined(np.array(errors)[:, np.newaxis])[0]
    shared, values = WITHIN_KIND["gemm"][0], layers * np.array(errors)
    assert found == pytest.approx(math.sqrt(shared * values.sum() ** 2 + (1 - shared) * (values**2).sum()), abs=1e-12)
    assert math.sqrt((values**2).sum()) - 1e-9 <= found <= values.sum() + 1e-9


def test_kernels_of_one_shape_in_two_kinds_of_layers_err_alike() -> None:
    gemm = next(kernel for kernel in kernels("h100-sxm") if kernel.kind == "gemm")
    halves, whole = Intervals([gemm, gemm], np.array([20.0, 12.0])), Intervals([gemm], np.array([32.0]))
    assert halves.combined(np.full((2, 1), 1e-6)) == pytest.approx(whole.combined(np.full((1, 1), 1e-6)))


def test_kinds_are_independent_with_own_constants_and_correlated_with_inherited_ones() -> None:
    for hardware, others in (("h100-sxm", False), ("h20", True)):
        found = {kernel.kind: kernel for kernel in kernels(hardware)}
        pair = [found["gemm"], found["attention_prefill"]]
        assert inherited(pair) is others
        combined = Intervals(pair, np.ones(2)).combined(np.array([[3.0], [4.0]]))[0]
        assert combined == pytest.approx(math.sqrt(25 + ACROSS_KINDS[others] * (49 - 25)))


def test_unmeasured_kernels_have_a_correlation() -> None:
    assert within_kind("unmeasured", False) == UNMEASURED_KIND[0]


def test_intervals_widen_with_inherited_constants() -> None:
    def width(hardware: str) -> float:
        time = analyze(Scenario(LLAMA, load_hardware(hardware), batch=8, prompt=1024, engine=IDEAL)).expected.total
        return float(np.log(time.high / time.low))

    assert width("h100-sxm") < width("h20") < width("mi300x")


def test_the_error_of_a_sum_is_between_independent_and_fully_correlated_parts() -> None:
    answer = analyze(Scenario(LLAMA, H100, batch=8, prompt=2048, engine=IDEAL))
    total = answer.prefill.expected
    parts = [(op.count, e.time) for op, e in zip(answer.prefill.ops, answer.prefill.expected_ops, strict=True)]
    together = sum(count * (time.high - time.mid) for count, time in parts)
    apart = np.sqrt(sum((count * (time.high - time.mid)) ** 2 for count, time in parts))
    assert apart < total.high - total.mid < together
