"""Explanations: formulas evaluate to their values, and the last line equals the simulation."""

import math

import pytest
from msgspec.structs import replace

from roofline import RooflineError, analyze, load_hardware, load_model
from roofline.scenario.scenario import Scenario
from roofline.whatif.explanation import METRICS, Explanation, explain
from roofline.whatif.metrics import find_metric
from tests.cases import sampled
from tests.roofline.simulated import ALL, answer

SCENARIOS = {
    **ALL,
    "fp8": answer("llama-3.1-8b", "l40s", batch=4, quant="fp8", kv="fp8"),
    "foreign cache": answer("llama-3.1-8b", "a100-sxm-80gb", batch=16, kv="fp8"),
    "weight-only": answer("llama-2-7b", "a6000", batch=3, quant="q4_k_m", engine="llama.cpp"),
    "delta rule": answer("qwen3.5-35b-a3b", "gh200", batch=3, prompt=3000),
    "short MLA": answer("deepseek-v2-lite", "h100-sxm", batch=3, prompt=5, generate=90, kv="fp8"),
    "mesh": answer("llama-3.1-8b", "mi300x", prompt=300, tp=2, engine="sglang"),
    "encoder": answer("bert-base", "l4"),
    "processor": answer("llama-3.2-1b", "xeon-platinum-8480plus", batch=8, prompt=4096),
    "viewer": answer("llama-2-7b", "a6000", convention="llm-viewer"),
}


def check(found: Explanation) -> None:
    for line in found.lines:
        value = eval(line.substituted, {"__builtins__": {}}, {"min": min, "max": max})
        assert value == pytest.approx(line.value, rel=1e-9, abs=1e-18), line.name
        assert math.isfinite(line.value)
    assert found.assumptions
    assert found.commands
    assert found.value == found.lines[-1].value


@pytest.mark.parametrize("metric", ["energy", "cost", "carbon"])
@pytest.mark.parametrize("name", sampled(SCENARIOS, 8))
def test_energy_and_cost_equal_the_simulation(name: str, metric: str) -> None:
    analysis = SCENARIOS[name]
    if metric == "carbon":
        analysis = analyze(analysis.scenario.changed(carbon=400.0))
    readings = ("bound", "mid") if analysis.times_are_expected else ("bound",)
    figures = [float(find_metric(f"{metric}.{reading}", "bound").figure(analysis)) for reading in readings]
    if math.isnan(figures[0]):
        with pytest.raises(RooflineError, match=r"only encodes|no hourly price|no energy figures|no TDP"):
            explain(analysis, metric)
        return
    found = explain(analysis, metric)
    check(found)
    lines = [line.value for line in found.lines if line.name.startswith(metric)]
    assert lines == pytest.approx(figures, rel=1e-8)
    assert metric == "carbon" or any("from: " in text for text in found.assumptions[:3])


@pytest.mark.parametrize("metric", [name for name in METRICS if name not in ("energy", "cost", "carbon")])
@pytest.mark.parametrize("name", sampled(SCENARIOS, 8))
def test_metric_equals_the_simulation(name: str, metric: str) -> None:
    analysis = SCENARIOS[name]
    if analysis.decode is None and metric in ("tpot", "tokens_per_s"):
        with pytest.raises(RooflineError, match=r"no TPOT|only encodes"):
            explain(analysis, metric)
        return
    found = explain(analysis, metric)
    check(found)
    if metric == "memory":
        assert found.value == pytest.approx(analysis.memory.total, rel=1e-9)
        return
    bound = next(line for line in found.lines if "bound" in line.name)
    if metric == "sequences_per_s":
        assert bound.value == pytest.approx(analysis.scenario.batch / analysis.generation.total, rel=1e-8)
        return
    field = metric.replace("per_s", "per_second")
    assert bound.value == pytest.approx(getattr(analysis.generation, field), rel=1e-8)
    if analysis.times_are_expected:
        assert found.value == pytest.approx(getattr(analysis.expected, field).mid, rel=1e-8)


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("name", sampled(SCENARIOS, 6))
def test_operator_equals_the_simulation(name: str, phase: str) -> None:
    analysis = SCENARIOS[name]
    part = getattr(analysis, phase)
    if part is None:
        with pytest.raises(RooflineError, match="only encodes"):
            explain(analysis, "q_proj", phase)
        return
    expected = part.expected_ops if analysis.times_are_expected else None
    for op in {entry.name for entry in part.ops}:
        found = explain(analysis, op, phase)
        check(found)
        same = [index for index, entry in enumerate(part.ops) if entry.name == op]
        index = max(same, key=lambda index: part.ops[index].count * part.ops[index].bound_time)
        figures = part.ops[index]
        lines = {line.name: line for line in found.lines}
        assert lines["bytes"].value == pytest.approx(figures.bytes, rel=1e-9)
        assert lines["at the bound"].value == pytest.approx(figures.bound_time, rel=1e-9)
        flops = sum(lines[name].value for name in ("matrix FLOP", "vector FLOP") if name in lines)
        assert flops == pytest.approx(figures.flops, rel=1e-9)
        assert found.margin is not None
        assert found.margin.bound == figures.bound
        assert found.margin.ratio is None or found.margin.ratio >= 1
        if expected is not None:
            assert found.value == pytest.approx(expected[index].time.mid, rel=1e-7)
            assert found.kernel is not None
            assert op in found.kernel.parts
            assert found.kernel.basis == expected[index].basis


def test_memory_is_explained_down_to_shapes() -> None:
    found = explain(SCENARIOS["dense"], "memory")
    lines = {line.name: line for line in found.lines}
    assert lines["weight down_proj.weight" if "weight down_proj.weight" in lines else "weight down_proj"].substituted
    cache = [line for line in found.lines if line.name.startswith("KV cache ")]
    assert sum(line.value for line in cache) == pytest.approx(SCENARIOS["dense"].memory.kv_cache)


def test_the_sampler_that_vllm_profiles_is_explained() -> None:
    found = explain(analyze(Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"))), "memory")
    (peak,) = (line for line in found.lines if line.name == "activations")
    assert peak.substituted == "1024 * 128256 * 41"
    assert peak.value == 1024 * 128256 * 41


def test_single_roof_has_no_margin() -> None:
    bare = replace(load_hardware("a6000"), vector={})
    found = explain(analyze(Scenario(load_model("llama-2-7b"), bare)), "attn_norm")
    check(found)
    assert found.margin is not None
    assert (found.margin.bound, found.margin.ratio) == ("memory", None)
