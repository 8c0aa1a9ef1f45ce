"""Elasticities: against finite differences and closed forms, and their sums."""

import math
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import analyze, load_hardware, load_model
from roofline.scenario.scenario import Scenario
from roofline.whatif.sensitivities import Sensitivity, sensitivity

REQUEST = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), batch=20, prompt=700)
FOUND = {at: {entry.name: entry for entry in sensitivity(REQUEST, at)} for at in ("bound", "mid", "high")}
DEVICE = REQUEST.hardware


def changed(factor: float, name: str) -> Any:
    if name == "bandwidth":
        return REQUEST.with_(hw=replace(DEVICE, memory_bandwidth=DEVICE.memory_bandwidth * factor))
    if name == "peak":
        tensor = {format: peak * factor for format, peak in DEVICE.tensor.items()}
        return REQUEST.with_(hw=replace(DEVICE, tensor=tensor))
    return REQUEST.at(**{name: round(getattr(REQUEST, name) * factor)})


@pytest.mark.parametrize(("name", "step"), [("bandwidth", 0.01), ("peak", 0.01), ("batch", 0.1), ("prompt", 0.1)])
@pytest.mark.parametrize("at", ["bound", "mid", "high"])
def test_an_elasticity_is_a_central_difference_of_the_simulator(at: str, name: str, step: float) -> None:
    times: dict[str, list[float]] = {"ttft": [], "tpot": [], "total": []}
    for factor in (1 - step, 1 + step):
        answer = analyze(changed(factor, name))
        for metric, values in times.items():
            if at == "bound":
                values.append(float(getattr(answer.generation, metric)))
            else:
                values.append(float(getattr(getattr(answer.expected, metric), at)))
    width = math.log((1 + step) / (1 - step))
    for metric, (low, high) in times.items():
        found = FOUND[at][name].elasticities[metric]
        assert found == pytest.approx(math.log(high / low) / width, abs=1e-9)


@pytest.mark.parametrize("at", ["bound", "mid"])
def test_ten_percent_more_is_simulated(at: str) -> None:
    more = FOUND[at]["bandwidth"].more["tpot"]
    before, after = (analyze(changed(factor, "bandwidth")) for factor in (1, 1.1))
    if at == "bound":
        assert more == pytest.approx(after.generation.tpot / before.generation.tpot - 1, abs=1e-12)
    else:
        assert after.expected.tpot is not None
        assert before.expected.tpot is not None
        assert more == pytest.approx(after.expected.tpot.mid / before.expected.tpot.mid - 1, abs=1e-12)


def test_elasticities_of_the_bound_sum_to_1() -> None:
    found = FOUND["bound"]
    for metric in ("ttft", "tpot", "total"):
        roofs = [found[name].elasticities[metric] for name in ("bandwidth", "peak", "vector peak", "link")]
        assert sum(filter(None, roofs)) == pytest.approx(-1, abs=1e-3)
        assert found["launch"].elasticities[metric] == found["host"].elasticities[metric] == 0


def test_elasticities_of_memory_are_its_parts() -> None:
    memory, found = analyze(REQUEST).memory, FOUND["mid"]
    assert found["capacity"].elasticities["memory"] == pytest.approx(-1)
    assert found["KV bits"].elasticities["memory"] == pytest.approx(memory.kv_cache / memory.total, rel=1e-3)
    assert found["weight bits"].elasticities["memory"] == pytest.approx(memory.weights / memory.total, rel=1e-3)
    assert found["bandwidth"].elasticities["memory"] == 0


def test_elasticities_of_throughput_and_total() -> None:
    for at in ("bound", "mid"):
        for name in ("bandwidth", "peak", "launch", "host", "weight bits", "KV bits", "prompt"):
            entry = FOUND[at][name].elasticities
            assert entry["tokens_per_second"] == pytest.approx(-float(entry["total"] or 0), abs=1e-9)
        assert FOUND[at]["batch"].elasticities["tokens_per_second"] == pytest.approx(
            1 - float(FOUND[at]["batch"].elasticities["total"] or 0), abs=1e-9
        )


def signs(found: dict[str, Sensitivity]) -> None:
    for name in ("bandwidth", "peak", "vector peak", "link"):
        if name in found:
            assert (found[name].elasticities["total"] or 0) <= 1e-9
    for name in ("launch", "host", "batch", "prompt", "generate", "weight bits", "KV bits"):
        if name in found:
            assert (found[name].elasticities["total"] or 0) >= -1e-9


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "device", "parts"),
    [
        ("mixtral-8x7b", "h200-sxm", {"tp": 2}),
        ("deepseek-v3", "h200-sxm", {"ep": 8, "quant": "fp8_block"}),
        ("mamba2-2.7b", "rtx-4090", {}),
        ("llama-2-7b", "a6000", {"quant": "q4_k_m"}),
        ("llama-3.1-8b", "h100-sxm", {"techniques": ("eagle:accept=3.5", "awq")}),
        ("bert-base", "l4", {}),
    ],
)
def test_signs_of_elasticities_for_every_kind_of_model(model: str, device: str, parts: Any) -> None:
    request = Scenario(load_model(model), load_hardware(device), **parts)
    found = {entry.name: entry for entry in sensitivity(request)}
    signs(found)
    assert ("generate" in found) == (request.model.task == "generate")
    assert (found["weight bits"].elasticities["memory"] or 0) > 0.1


def test_bits_scale_what_is_stored() -> None:
    for at in ("bound", "mid"):
        entry = FOUND[at]["weight bits"]
        assert entry.value == 16
        assert np.isclose([entry.low, entry.high], [15.84, 16.16]).all()
        assert (entry.elasticities["tpot"] or 0) > 0.3
