"""Breakdowns and waterfalls: parts sum to the simulated metric and difference."""

from itertools import pairwise

import numpy as np
import pytest

from roofline import analyze
from roofline.scenario.breakdown import HOST, decode_breakdown, prefill_breakdown
from roofline.scenario.scenario import Scenario
from roofline.whatif.comparison import METRICS, READINGS, breakdown, readings, waterfall
from tests.cases import sampled
from tests.roofline.simulated import ALL, answer

SCENARIOS = {
    **ALL,
    "faster": answer("llama-3.1-8b", "h200-sxm", batch=8, generate=40),
    "chunked": answer("llama-3.1-8b", "h100-sxm", prompt=4096, techniques=("chunked-prefill",)),
    "one token": answer("llama-3.1-8b", "h100-sxm", generate=1),
    "encoder": answer("bert-base", "h100-sxm"),
    "images": answer("qwen2-vl-7b", "l40s", images=1),
}


@pytest.mark.parametrize("name", sampled(SCENARIOS, 6))
def test_parts_add_up_to_the_simulated_figure(name: str) -> None:
    analysis = SCENARIOS[name]
    for metric in METRICS:
        for reading in READINGS:
            found = breakdown(analysis, metric, reading)
            assert found.total == pytest.approx(found.reference, rel=1e-9)
    bound, expected = analysis.generation, analysis.expected
    assert breakdown(analysis, "ttft", "bound").reference == pytest.approx(bound.ttft, rel=1e-12)
    assert breakdown(analysis, "total", "bound").reference == pytest.approx(bound.total, rel=1e-12)
    assert breakdown(analysis, "total", "expected").reference == pytest.approx(expected.total.mid, rel=1e-12)


@pytest.mark.parametrize(("one", "other"), sampled(list(pairwise(SCENARIOS)), 6))
def test_a_waterfall_adds_up_to_the_difference(one: str, other: str) -> None:
    before, after = SCENARIOS[one], SCENARIOS[other]
    for metric in METRICS:
        for reading in READINGS:
            fall = waterfall(before, after, metric, reading)
            moved = sum(entry.change for entry in fall.differences)
            assert moved == pytest.approx(fall.change, rel=1e-9, abs=1e-12 * max(fall.before, fall.after))
            changes = [abs(entry.change) for entry in fall.differences]
            # Equal ones, which differ by rounding, keep the order of the operators.
            assert changes == pytest.approx(sorted(changes, reverse=True), rel=0, abs=2e-9 * max(changes, default=0.0))
    assert all(entry.change == 0 for entry in waterfall(before, before).differences)


def test_the_mean_step_is_the_mean_of_all_steps() -> None:
    analysis = SCENARIOS["window"]
    scenario = analysis.scenario
    contexts = np.arange(scenario.generate - 1) + scenario.first_cached
    every = analyze(Scenario(scenario.model, scenario.hardware, context=contexts)).decode
    assert every is not None
    for name, found in (
        ("bound_time", decode_breakdown(analysis, "bound")),
        ("bytes", decode_breakdown(analysis, "bytes")),
    ):
        summed: dict[str, float] = {}
        for op in every.ops:
            summed[op.name] = summed.get(op.name, 0.0) + float(
                np.mean(op.count * np.broadcast_to(getattr(op, name), contexts.shape))
            )
        assert found.parts == pytest.approx(summed, rel=1e-9)


def test_remainder_of_an_expected_pass_is_host_time_and_gaps() -> None:
    for name in ("dense", "moe", "speculative"):
        analysis = SCENARIOS[name]
        assert analysis.decode is not None
        gap = analysis.scenario.profile["gap"]
        assert gap == 0
        host = analysis.decode.idle / analysis.kept_per_iteration
        assert decode_breakdown(analysis, "expected").parts[HOST] == pytest.approx(host, rel=1e-9)
    for name in ("eager", "blocks of integers"):
        answer = SCENARIOS[name]
        assert prefill_breakdown(answer, "expected").parts[HOST] == pytest.approx(answer.prefill.idle, rel=1e-6)
        for phase in filter(None, (answer.prefill, answer.decode)):
            kernels = sum(op.count * found.time.mid for op, found in zip(phase.ops, phase.expected_ops, strict=True))
            assert phase.expected.mid == pytest.approx(kernels - phase.hidden * phase.engine["prefill"] + phase.idle)


def test_operators_are_matched_by_name() -> None:
    fall = waterfall(SCENARIOS["dense"], SCENARIOS["moe"], "tpot", "bound")
    found = {entry.name: entry for entry in fall.differences}
    assert found["gate_proj"].after == 0 < found["gate_proj"].before
    assert found["router"].before == 0 < found["router"].after
    assert min(found["q_proj"].before, found["q_proj"].after) > 0


def test_verification_is_a_decode_step_of_the_model() -> None:
    found = waterfall(SCENARIOS["dense"], SCENARIOS["speculative"], "tpot", "bytes").differences
    names = {entry.name: entry for entry in found}
    assert names["down_proj"].after > 0
    assert names["draft lm_head"].before == 0 < names["draft lm_head"].after


def test_llm_viewer_convention_has_no_expected_times() -> None:
    viewer = answer("llama-2-7b", "a6000", convention="llm-viewer")
    assert readings(viewer, SCENARIOS["dense"]) == ("bound", "bytes")
