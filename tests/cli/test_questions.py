"""The commands solve, sensitivity, explain and compare: output formats and user errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from roofline import analyze, load_hardware, load_model
from roofline.scenario.scenario import Scenario
from roofline.whatif.solve import Targets, max_batch
from tests.cases import sampled

SMALL = ("llama-3.2-1b", "--hw", "l4", "--prompt", "128", "--generate", "8")
DRAFT = "prompt-lookup:acceptance=0.6"

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def document(run: Run) -> Callable[..., dict[str, Any]]:
    """The JSON document of `roofline ARGS`."""

    def call(*args: object) -> dict[str, Any]:
        status, out, err = run(*args, "--format", "json")
        assert (status, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found

    return call


QUESTIONS: dict[str, tuple[str, ...]] = {
    "max-batch": ("--tpot", "20ms"),
    "max-context": ("--ttft", "1 s"),
    "min-gpus": ("--tpot", "8ms"),
    "min-memory": ("--no-chips",),
    "min-bandwidth": ("--tpot", "8ms", "--no-chips"),
    "min-peak": ("--ttft", "20ms", "--no-chips"),
    "max-bits": ("--tpot", "8ms"),
    "min-bits": ("--tpot", "8ms"),
    "max-draft": ("--with", DRAFT),
    "break-even": ("--against", "--quant awq"),
    "crossover": (),
}


def asked(name: str) -> tuple[str, ...]:
    """The words of a question, whose longest prompt is of a scenario without one."""
    scenario = (*SMALL[:3], "--generate", "8") if name == "max-context" else SMALL
    return ("solve", name, *scenario, *QUESTIONS[name])


COMMANDS: dict[str, tuple[str, ...]] = {
    **{f"solve {name}": asked(name) for name in QUESTIONS},
    "sensitivity": ("sensitivity", *SMALL),
    "explain a metric": ("explain", "tpot", *SMALL),
    "explain an operator": ("explain", "down_proj", *SMALL, "--phase", "decode"),
    "compare": ("compare", " ".join(SMALL), "--hw a100-sxm-80gb"),
}


@pytest.mark.parametrize("name", sampled(COMMANDS, 5))
def test_every_question_is_answered_in_every_format(run: Run, tmp_path: Path, name: str) -> None:
    args = COMMANDS[name]
    status, out, err = run(*args)
    assert (status, err) == (0, "")
    assert "llama-3.2-1b" in out
    _, out, _ = run(*args, "--format", "markdown")
    assert out.startswith("# ")
    assert "|---" in out
    target = tmp_path / "answer"
    assert run(*args, "--format", "json", "--output", target) == (0, "", "")
    assert json.loads(target.read_text())["schema"].startswith(f"roofline.{args[0]}/")


@pytest.mark.parametrize("name", [name for name in QUESTIONS if name != "crossover"])
def test_answer_has_its_simulation(document: Callable[..., dict[str, Any]], name: str) -> None:
    found = document(*asked(name))
    assert found["question"] == name
    assert found["verdict"] in ("found", "never", "always")
    if found["verdict"] == "found" and name != "break-even":
        assert found["answer"]["meets"]
        if found["neighbour"] is not None:
            assert found["limited_by"] == found["neighbour"]["missed"] != []


def test_command_equals_function(document: Callable[..., dict[str, Any]]) -> None:
    request = Scenario("llama-3.2-1b", "l4", tp=2, prompt=128, generate=8)
    for at in ("bound", "low", "mid", "high"):
        found = document("solve", "max-batch", *SMALL, "--tp", 2, "--tpot", "20ms", "--at", at)
        assert found["value"] == max_batch(request, Targets(tpot=0.02, at=at)).value  # type: ignore[arg-type]
    rate = document("solve", "max-batch", *SMALL, "--tokens-per-s", 10, "--total", "9s", "--ignore-memory")
    assert rate["answer"]["tokens_per_s"] >= 10
    assert rate["answer"]["total_s"] <= 9


def test_verdicts_never_and_always(run: Run) -> None:
    assert "never" in run("solve", "max-batch", *SMALL, "--tpot", "1ns")[1]
    assert "always" in run("solve", "min-bandwidth", *SMALL, "--tpot", "90000s", "--no-chips")[1]


def test_the_verdict_on_what_does_not_fit_is_that(run: Run) -> None:
    _, out, _ = run("compare", "llama-3.1-8b --hw h100-sxm", "llama-3.1-70b --hw h100-sxm")
    verdict = out[out.index("\nVerdict") :]
    assert "does not fit in memory" in verdict
    assert "sure" not in verdict


@pytest.mark.slow
def test_suitable_hardware_is_listed(document: Callable[..., dict[str, Any]]) -> None:
    found = document("solve", "min-memory", "llama-3.1-8b", "--hw", "l4", "--batch", 64, "--prompt", 8000)
    names = {entry["value"] for entry in found["candidates"]}
    assert {"h200-sxm", "mi300x"} <= names
    assert "l4" not in names
    asked = Scenario(load_model("llama-3.1-8b"), load_hardware("l4"), batch=64, prompt=8000)
    fitting = {name: analyze(asked.with_(hw=load_hardware(name))).memory.fits for name in names | {"l4"}}
    assert fitting == {**dict.fromkeys(names, True), "l4": False}
    assert all(entry["memory_bytes"] <= entry["capacity_bytes"] for entry in found["candidates"])


def test_missing_options_are_those_of_the_first_scenario(document: Callable[..., dict[str, Any]]) -> None:
    found = document(
        "compare",
        "llama-3.1-8b --hw h100-sxm --batch 8 --prompt 100 --fuse qkv --with awq",
        "--hw h200-sxm",
        "llama-3.2-1b --batch 4 --with 'kivi'",
    )
    first, second, third = found["scenarios"]
    assert (second["model"], second["hardware"], second["batch"], second["prompt"]) == (
        first["model"],
        "h200-sxm",
        8,
        100,
    )
    assert second["techniques"] == first["techniques"] == ["awq"]
    assert (third["hardware"], third["batch"], third["techniques"]) == ("h100-sxm", 4, ["kivi"])
    own = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), techniques=("awq",))
    simulated = analyze(own.with_(batch=8, prompt=100, fuse=["qkv"]))
    assert first["ttft_s"] == simulated.generation.ttft
    assert [(fall["to"], fall["metric"]) for fall in found["waterfalls"]] == [
        (index, metric) for index in (1, 2) for metric in ("ttft", "tpot", "total")
    ]
    for fall in found["waterfalls"]:
        for unit, whole in fall["totals"].items():
            moved = sum(part[unit]["change"] for part in fall["parts"])
            assert moved == pytest.approx(whole["change"], rel=1e-9, abs=1e-9 * whole["before"])


LOOKUP = ("llama-3.1-8b", "--hw", "h100-sxm", "--with", "prompt-lookup:accept=2")


def test_break_even_against_the_plain_scenario(document: Callable[..., dict[str, Any]]) -> None:
    """The crossing of prompt lookup with two accepted tokens, where the audit found it by comparing batches."""
    plain = document("solve", "break-even", *LOOKUP, "--against", "")
    assert plain["verdict"] == "found"
    assert 48 <= plain["value"] <= 56
    assert plain["scenarios"][1] == "roofline analyze llama-3.1-8b --hw h100-sxm"
    for same in ("none", "--with none"):
        assert document("solve", "break-even", *LOOKUP, "--against", same) == plain


def test_the_plain_scenario_has_no_technique_and_no_format(document: Callable[..., dict[str, Any]]) -> None:
    first = "llama-3.2-1b --hw l4 --batch 4 --tp 2 --with awq --kv fp8 --no-flash --fuse qkv --offload weights=0.1"
    found = document("compare", first, "", "--with none", "--with none --kv none", "llama-3.2-1b --hw l4 --with none")
    _, plain, without, without_formats, again = found["scenarios"]
    assert [each["techniques"] for each in found["scenarios"]] == [["awq"], [], [], [], []]
    assert (plain["batch"], plain["devices"], plain["label"]) == (4, 2, "plain")
    assert plain["memory"]["weights_bytes"] > without["memory"]["weights_bytes"]
    assert without_formats["memory"]["kv_cache_bytes"] == plain["memory"]["kv_cache_bytes"]
    assert without["memory"]["kv_cache_bytes"] == plain["memory"]["kv_cache_bytes"] / 2
    assert again["memory"] == without["memory"]


def test_none_is_an_option_that_is_not_set(document: Callable[..., dict[str, Any]]) -> None:
    options = ("with", "quant", "weights", "activations", "kv", "fuse", "offload", "engine", "context", "price")
    unset = [word for name in options for word in (f"--{name}", "none")]
    assert document("analyze", *SMALL, *unset) == document("analyze", *SMALL)
    assert document("analyze", *SMALL, "--quant", "None") == document("analyze", *SMALL)


def test_break_even_keeps_the_other_options(document: Callable[..., dict[str, Any]]) -> None:
    quantized = document("solve", "break-even", *SMALL, "--against", "--quant awq", "--metric", "tpot", "--at", "bound")
    assert quantized["neighbour"]["memory_bytes"] < quantized["answer"]["memory_bytes"]


def test_figures_are_defined(run: Run) -> None:
    status, out, err = run("explain", "--definitions")
    assert (status, err) == (0, "")
    for name in ("ttft", "tpot", "bound", "expected", "mfu"):
        assert f" {name} " in out


def test_sensitivity_reports_step_and_reading(document: Callable[..., dict[str, Any]]) -> None:
    found = document("sensitivity", *SMALL, "--step", "0.02", "--at", "high")
    assert list(found["readings"]) == ["high", "bound"]
    bandwidth = found["readings"]["bound"][0]
    assert bandwidth["setting"] == "bandwidth"
    assert bandwidth["low"] == pytest.approx(bandwidth["value"] * 0.98)
    viewer = document("sensitivity", *SMALL, "--convention", "llm-viewer")
    assert list(viewer["readings"]) == ["bound"]


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown question": (("solve", "max-speed", *SMALL), "'max-speed'"),
    "no model": (("solve", "max-batch", "--hw", "l4"), "a model is missing"),
    "unknown model": (("solve", "max-batch", "llama-9", "--hw", "l4"), "unknown model"),
    "no unit": (
        ("solve", "max-batch", *SMALL, "--tpot", "30"),
        "--tpot takes a time with its unit, got '30': write 30ms or 30s",
    ),
    "no time": (("solve", "max-batch", *SMALL, "--tpot", "30 GB"), "--tpot takes a time such as 30ms or 2s"),
    "no target": (("solve", "min-bandwidth", *SMALL), "needs a latency or throughput target"),
    "negative rate": (("solve", "max-batch", *SMALL, "--tokens-per-s", "-3"), "above 0"),
    "rate that is no number": (("solve", "max-batch", *SMALL, "--tokens-per-s", "nan"), "takes a number"),
    "scheme for bits": (
        ("solve", "max-bits", *SMALL, "--quant", "awq"),
        "omit the scheme, or set formats one by one (--quant)",
    ),
    "no draft": (("solve", "max-draft", *SMALL), "max-draft needs"),
    "nothing against": (("solve", "break-even", *SMALL), "--against"),
    "against nothing": (("solve", "max-batch", *SMALL, "--against", "--quant awq"), "--against"),
    "against the same": (("solve", "break-even", *SMALL, "--against", ""), "both scenarios are the same"),
    "none and a technique": (("analyze", *SMALL, "--with", "none", "--with", "eagle"), "'none + eagle'"),
    "unknown against": (("solve", "break-even", *SMALL, "--against", "--quantt awq"), "--quantt"),
    "open quotation": (("solve", "break-even", *SMALL, "--against", "--quant 'awq"), "quotation mark"),
    "encoder": (("solve", "max-batch", "bert-base", "--hw", "l4", "--tpot", "1s"), "only encodes"),
    "encoder's rate": (("explain", "tokens_per_s", "bert-base", "--hw", "l4"), "only encodes"),
    "paper's times": (("solve", "max-batch", *SMALL, "--convention", "llm-viewer", "--tpot", "1s"), "no expected"),
    "unknown figure": (("explain", "tptt", *SMALL), "did you mean"),
    "unknown operator": (("explain", "down_prj", *SMALL), "down_proj"),
    "two phases": (("explain", "down_proj", *SMALL, "--phase", "both"), "one phase"),
    "large step": (("sensitivity", *SMALL, "--step", "2"), "between"),
    "nan step": (("sensitivity", *SMALL, "--step", "nan"), "takes a number"),
    "one scenario": (("compare", "llama-3.2-1b --hw l4"), "two or more scenarios"),
    "no hardware": (("compare", "llama-3.2-1b", "llama-3.2-1b --hw l4"), "--hw"),
    "unknown option": (("compare", "llama-3.2-1b --hw l4", "--hardwear l4"), "--hardwear"),
    "empty scenario": (("compare", "", "llama-3.2-1b --hw l4"), "a model is missing"),
    "csv": (("compare", "llama-3.2-1b --hw l4", "--hw a6000", "--format", "csv"), "csv"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_user_errors_are_one_sentence(run: Run, name: str) -> None:
    args, said = MISTAKES[name]
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    assert err.startswith("roofline: ")
    assert err.count("\n") == 1
    assert said in err
    assert "Traceback" not in err


def test_help_of_each_command_names_its_options(run: Run) -> None:
    shared = run("analyze", "--help-all")[1]
    for command in ("solve", "sensitivity", "explain"):
        status, out, _ = run(command, "--help-all")
        assert status == 0
        for option in ("--hw", "--batch", "--quant", "--tp", "--with", "--engine", "--offload"):
            assert option in out
            assert option in shared
