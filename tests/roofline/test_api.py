"""The public API: every object says in a line what it is."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import roofline
from roofline import Analysis, Convention, Precision, Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.techniques import apply_techniques
from roofline.timing.intervals import Estimate

MODEL, HARDWARE = load_model("llama-3.1-8b"), load_hardware("h100-sxm")
SCENARIO = Scenario(MODEL, HARDWARE, batch=8)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (MODEL, ["Model(llama-3.1-8b", "32 layers"]),
        (load_model("deepseek-v3"), ["Model(deepseek-v3", "quantization fp8_block"]),
        (HARDWARE, ["Hardware(h100-sxm", "NVIDIA H100 SXM5", "3.35 TB/s"]),
        (parse_precision("bf16", "W4A16KV8"), ["Precision(", "weights int4", "KV int8"]),
        (SCENARIO, ["Scenario(llama-3.1-8b on h100-sxm", "batch 8", "prompt 512", "weights bf16", "engine vllm"]),
        (Scenario(MODEL, HARDWARE, prompt=np.array([[64], [128]])), ["prompt 64 to 128"]),
        (analyze(SCENARIO), ["Analysis(llama-3.1-8b on h100-sxm", "batch 8"]),
        (analyze(SCENARIO).prefill, ["Phase(prefill", "engine vllm"]),
        (Convention.PHYSICAL, ["Convention.PHYSICAL"]),
        (roofline.SpecError("file.yaml", "'name' is missing"), ["SpecError", "file.yaml", "'name' is missing"]),
        (roofline.UnknownNameError("model", "x", ["y"]), ["UnknownNameError", "unknown model 'x'"]),
    ],
)
def test_what_it_is_in_a_line(thing: object, words: list[str]) -> None:
    shown = repr(thing)
    assert [word for word in words if word not in shown] == []
    assert len(shown) < 200
    assert "\n" not in shown
    assert " at 0x" not in shown


def test_every_public_name_is_there() -> None:
    for name in roofline.__all__:
        assert getattr(roofline, name).__doc__, name
    assert {Analysis, Precision} <= {getattr(roofline, name) for name in roofline.__all__}


def test_a_scenario_applies_the_techniques_it_is_asked_for() -> None:
    plain = Scenario(MODEL, HARDWARE)
    asked = Scenario(MODEL, HARDWARE, techniques=("fp8-kv", "awq"))
    applied = apply_techniques(plain, ["fp8-kv", "awq"])
    assert (asked.techniques, repr(asked)) == (applied.techniques, repr(applied))
    assert analyze(asked).memory == analyze(applied).memory
    assert analyze(asked).memory.weights < 0.4 * analyze(plain).memory.weights
    larger = asked.changed(batch=4)  # has them already
    assert larger.techniques == asked.techniques
    assert analyze(larger).memory.weights == analyze(asked).memory.weights
    assert (
        plain.with_(techniques="awq") == plain.with_(techniques=("awq",)) == Scenario(MODEL, HARDWARE, techniques="awq")
    )
    assert analyze(plain.with_(techniques=("awq",))).memory.weights == analyze(asked).memory.weights


@pytest.mark.parametrize(
    ("techniques", "expected"),
    [
        (("nonsense",), "unknown technique 'nonsense'"),
        (("awq:grup=64",), "did you mean .group."),
        ((3,), "takes names"),
        (3, "takes names"),
    ],
)
def test_techniques_that_a_scenario_refuses(techniques: Any, expected: str) -> None:
    with pytest.raises(roofline.RooflineError, match=expected):
        Scenario(MODEL, HARDWARE, techniques=techniques)


def test_the_public_scenario_knows_the_catalogue() -> None:
    code = "import roofline as r; r.Scenario(r.load_model('llama-2-7b'), r.load_hardware('a6000'), techniques=('awq',))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_conversions_in_place_leave_an_answer_as_it_is() -> None:
    """`seconds *= 1000` in a notebook must not reach the analysis, its scenario or the library's hardware."""
    analysis = analyze(Scenario(MODEL, HARDWARE, batch=[1, 8]))
    batch, memory = analysis.scenario.batch, analysis.memory
    for figures in (
        analysis.expected.ttft.mid,
        analysis.generation.total,
        memory.kv_cache,
        analysis.decode.flops,
        batch,
    ):
        with pytest.raises(ValueError, match="read-only"):
            np.multiply(figures, 1000.0, out=figures)
    with pytest.raises(TypeError):
        HARDWARE.tensor["bf16"] = 1.0  # type: ignore[index]


def test_estimates_add_scale_and_compare_as_times() -> None:
    short, long = (analyze(Scenario(MODEL, HARDWARE, batch=batch)).expected.ttft for batch in (1, 8))
    assert 2 * short == short + short == Estimate(*(2 * part for part in short))
    wide = short._replace(low=0.0, high=2 * long.high)
    assert wide < long < long * 2
    assert max(wide, long) is long
    assert not long <= wide
    assert wide >= short.mid
    assert sum([short, short]) == short * 2


def test_a_replica_of_a_technique_has_counts_of_its_own() -> None:
    """Its fields were changed for one of two ranks: no options are read again, nor those of an equal scenario lost."""
    asked = Scenario(MODEL, HARDWARE, dp=2, techniques=["awq"])
    assert asked.changed(settings=asked.settings).at(batch=4).batch == 4
    roofline.serve(asked, rate=4)
    found = roofline.serve(asked.with_(dp=1), rate=4)
    assert found.scenario.options == asked.with_(dp=1).options


@pytest.mark.parametrize("fields", [{"tp": 2}, {"batchsize": 8}, {"model": "llama-3.1-70b"}, {"hardware": "h200-sxm"}])
def test_fields_that_no_scenario_has_are_refused(fields: dict[str, Any]) -> None:
    """Options are for `with_`: a field that nothing reads would answer another question."""
    with pytest.raises(roofline.RooflineError):
        SCENARIO.changed(**fields)
    with pytest.raises(roofline.RooflineError):
        SCENARIO.at(**fields)


def test_an_array_of_one_number_is_a_number() -> None:
    assert Scenario(MODEL, HARDWARE, batch=np.array(8)) == SCENARIO
