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
