"""Corrections of kernel times: the closed form of each, and its effect on the expected time."""

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.bound.roof import TIMES, Placement, Row, place
from roofline.graph.network import Build, network
from roofline.graph.parallel import Parallelism
from roofline.specs.engine import Engine, load_engine
from roofline.timing.calibration import Calibration
from roofline.timing.chains import load_calibration
from roofline.timing.constants import LAUNCH
from roofline.timing.corrections import Corrections
from roofline.timing.launches import launches

H100, LLAMA = load_hardware("h100-sxm"), load_model("llama-3.1-8b")
IDEAL = load_engine("ideal")


def placed(ranks: int = 1, scheme: str | None = None) -> Placement:
    parallel = Parallelism(tensor=ranks)
    graph = network(LLAMA, parse_precision("bf16", scheme), Build(("attention",), parallel=parallel))
    return place(graph, H100, parallel.on(H100).node_layout)


def corrections(placement: Placement, engine: Engine, calibration: Calibration) -> Corrections:
    return Corrections(placement, engine, launches(placement, engine, calibration))


def times(placement: Placement) -> np.ndarray:
    """A second of everything for each operator."""
    return np.ones((TIMES, len(placement.ops), 1))


def rows(found: Corrections, seconds: float) -> np.ndarray:
    return seconds * np.array([0.5, 1.0, 2.0]).repeat(len(found.parts)).reshape(3, -1, 1)


def test_every_operator_is_part_of_one_kernel() -> None:
    found = corrections(placed(), IDEAL, load_calibration(H100))
    np.testing.assert_array_equal(found.parts.sum(axis=0), 1)
    np.testing.assert_array_equal(found.parts.argmax(axis=0), found.kernel_of)


@pytest.mark.parametrize(
    ("calibration", "some"), [(Calibration("empty", "bound"), True), (load_calibration(H100), False)]
)
def test_unmeasured_kernels_take_their_bound_at_typical_efficiencies(calibration: Calibration, some: bool) -> None:
    placement = placed()
    found = corrections(placement, IDEAL, calibration)
    expected = low, mid, high = rows(found, 7.0)
    found.apply_unmeasured(times(placement), expected)
    guessed = np.array([not kernel.always_measured for kernel in launches(placement, IDEAL, calibration)])
    assert guessed.any() == some
    parts = found.parts.sum(axis=1)
    np.testing.assert_allclose(mid[guessed, 0], LAUNCH + parts[guessed] * np.hypot(1 / 0.6, 1 / 0.8), rtol=1e-12)
    np.testing.assert_array_equal(mid[~guessed], 7.0)
    assert ((low < mid) & (mid < high)).all()


def test_kernels_with_operands_from_a_link_take_at_least_its_time() -> None:
    placement = placed(8)
    streamed = replace(placement, coefficients=placement.coefficients.copy())
    streamed.coefficients[Row.LINK_TIME] = 1.0
    found = corrections(streamed, IDEAL, load_calibration(H100))
    expected = _, mid, high = rows(found, 0.1)
    found.apply_link(times(placement), expected)
    linked = found.linked.tolist()
    np.testing.assert_allclose(mid[linked, 0], found.parts[linked].sum(axis=1) / 0.75)
    assert (high >= mid).all()


def test_upcasting_weights_costs_time() -> None:
    precision = parse_precision("bf16", "awq")
    eager = replace(IDEAL, name="slow conversion", parameters={"dequantization": 0.01})
    fast = replace(IDEAL, name="fast conversion", parameters={"dequantization": 1.0})
    slow_time, fast_time = (
        analyze(Scenario(LLAMA, H100, precision=precision, engine=engine)).expected.tpot for engine in (eager, fast)
    )
    assert slow_time is not None
    assert fast_time is not None
    assert slow_time.mid > 1.5 * fast_time.mid


def test_block_scaled_integers_take_cycles_of_the_units() -> None:
    """1024 integer multiplications take `integer_blocks` cycles of a unit, whatever the matrix peak."""
    device, parameters = load_hardware("rtx-4090"), {"integer_blocks": 100.0}
    slow = replace(IDEAL, name="slow scaling", parameters=parameters, int8_activations=("NVIDIA",))
    precision = parse_precision("fp16", "q4_0")
    answer = analyze(Scenario(LLAMA, device, precision=precision, prompt=4096, engine=slow))
    flops = sum(op.count * op.flops for op in answer.prefill.ops if op.arithmetic == "int8")
    assert device.clock is not None
    cycles = flops / 2 / 1024 * 100
    scaling = sum(
        op.count * found.time.mid
        for op, found in zip(answer.prefill.ops, answer.prefill.expected_ops, strict=True)
        if op.arithmetic == "int8"
    )
    assert scaling == pytest.approx(cycles / (128 * device.clock), rel=0.01)  # 25 times what the kernels take else
    unknown = replace(device, clock=None)  # the FP32 peak is 128 FMA a clock and multiprocessor
    again = analyze(Scenario(LLAMA, unknown, precision=precision, prompt=4096, engine=slow)).prefill.expected.mid
    assert again == pytest.approx(answer.prefill.expected.mid, rel=0.01)


@pytest.mark.parametrize(("one", "other"), [("h100-sxm", "h200-sxm"), ("h100-sxm", "gh200")])
def test_the_same_chip_prefills_alike_in_llama_cpp_where_no_clock_is_documented(one: str, other: str) -> None:
    first, second = (
        analyze(Scenario("llama-3.1-8b", name, engine="llama.cpp", quant="q4_k_m", prompt=2048)).prefill.expected.mid
        for name in (one, other)
    )
    assert first == pytest.approx(second, rel=0.15)


def test_formats_with_smaller_blocks_scale_more_often() -> None:
    """Llama 3 8B in Q2_K on an RTX 4090: 7,639 tokens/s with 2,048 (ggml-org/llama.cpp, pull request 7921)."""
    scenario = Scenario("llama-3-8b", "rtx-4090", engine="llama.cpp", prompt=2048)
    fine, coarse = (analyze(scenario.with_(quant=scheme)).expected.ttft for scheme in ("q2_k", "q4_0"))
    assert fine.low < 2048 / 7639 < fine.high
    assert fine.mid > 1.2 * coarse.mid


@pytest.mark.parametrize(("hardware", "rate"), [("rtx-3090", 36.3), ("rtx-4090", 52.0)])
def test_q3_k_decodes_as_fast_as_integer_lanes_unpack_it(hardware: str, rate: float) -> None:
    """Qwen3.6 27B in UD-Q3_K_XL in llama.cpp (noonghunna/club-3090, docs/HARDWARE.md); the 4090 chose no constant."""
    found = analyze(Scenario("qwen3.6-27b", hardware, engine="llama.cpp", quant="q3_k_m"))
    assert found.decode is not None
    assert 1 / found.decode.expected.mid == pytest.approx(rate, rel=0.08)


@pytest.mark.parametrize(
    ("model", "quant", "hardware", "rate"),
    [("qwen3.5-27b", "q5_k_m", "rtx-3090", 35.9), ("qwen2.5-14b", "q4_k_m", "rtx-3060", 29.77)],
)
def test_k_quants_decode_as_fast_as_integer_lanes_unpack_them(
    model: str, quant: str, hardware: str, rate: float
) -> None:
    """noonghunna/club-3090, BENCHMARKS.md; geerlingguy/ai-benchmarks. Neither chose a constant."""
    found = analyze(Scenario(model, hardware, engine="llama.cpp", quant=quant, prompt=64))
    assert found.decode is not None
    assert 1 / found.decode.expected.mid == pytest.approx(rate, rel=0.08)
