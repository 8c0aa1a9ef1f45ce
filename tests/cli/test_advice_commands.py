"""`roofline advise`: output formats, line widths, unreachable limits, and user errors."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
SMALL = ("advise", "llama-3.2-1b", "--hw", "l4", "--prompt", "128", "--generate", "64")


def test_summary_is_three_lines_and_tables_fit_100_columns(run: Run) -> None:
    status, out, err = run(*SMALL, "--objective", "tpot", "--batch", "4")
    assert (status, err) == (0, "")
    lines = out.replace("\n  accuracy\n", " accuracy\n", 1).splitlines()  # wrapped where several changes are named
    assert lines[0].startswith("llama-3.2-1b on l4: ")
    assert "times better by" in lines[0]
    assert lines[0].endswith(", for some accuracy")
    assert "goes from" in lines[1]
    assert lines[2].startswith("Currently, ")
    lines = out.splitlines()
    commands = [line for line in lines if line.startswith("  roofline analyze")]
    assert commands
    assert max(len(line.rstrip()) for line in lines if line not in commands) <= 100
    assert out.count("TTFT: time to first token") == 1


def test_no_change_that_helps_is_stated(run: Run) -> None:
    """Weight-only GEMMs are slower than 16-bit ones over whole sequences: an encoder has no use for them."""
    status, out, _ = run("advise", "bert-base", "--hw", "a100-sxm-80gb", "--batch", "8")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "bert-base on a100-sxm-80gb: no change improves total time"
    assert lines[1].startswith("Total time stays at ")


@pytest.mark.slow
def test_uncertain_gain_has_its_interval(run: Run) -> None:
    asked = ("advise", "gpt-oss-20b", "--hw", "mi300x", "--batch", "96", "--prompt", "512", "--generate", "64")
    status, out, _ = run(*asked)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "gpt-oss-20b on mi300x: no change is certain to improve total time"
    assert lines[1].startswith("With eagle-3 total time goes from ")
    assert "times better; the gain is uncertain" in " ".join(out.split())
    assert re.search(r"Best combination, with an uncertain gain of 1\.\d+ \(0\.\d+ to [12]\.\d+\) times", out)


@pytest.mark.slow
def test_certain_change_precedes_uncertain_plan(run: Run) -> None:
    asked = ("advise", "opt-13b", "--hw", "mi210", "--engine", "sglang", "--batch", "8", "--prompt", "2048")
    status, out, _ = run(*asked, "--generate", "64", "--objective", "throughput", "--format", "json")
    assert status == 0
    found = json.loads(out)
    assert found["plan"]["times_better"]["low"] < 1
    assert found["instead"] == "batch=16"
    _, out, _ = run(*asked, "--generate", "64", "--objective", "throughput")
    assert re.match(r"opt-13b on mi210: 1\.\d+ \(.+ times better by batch=16, for TTFT of ", out)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["total", "throughput", "ttft"])
def test_moves_of_the_plan_are_not_listed_without_benefit(document, objective: str) -> None:
    found = document("--objective", objective, "--quality", "lossy")
    assert found["plan"]["recommended"]
    assert not {step["move"] for step in found["plan"]["steps"]} & {entry["move"] for entry in found["no_benefit"]}


@pytest.fixture
def document(run: Run) -> Callable[..., dict[str, Any]]:
    """The JSON document of `roofline advise`."""

    def call(*args: object) -> dict[str, Any]:
        status, out, err = run(*SMALL, *args, "--format", "json")
        assert (status, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found

    return call


def test_json_document_is_complete(document) -> None:
    found = document("--objective", "throughput", "--top", "2")
    assert found["schema"] == "roofline.advice/1"
    assert found["plan"]["steps"][-1]["figures"]["tokens_per_s"]["mid"] == pytest.approx(
        found["figures"]["tokens_per_s"]["mid"] * found["plan"]["times_better"]["mid"], rel=1e-9
    )
    first = found["recommendations"][0]
    assert {"low", "mid", "high"} == set(first["times_better"])
    assert first["command"].startswith("roofline analyze llama-3.2-1b --hw l4")
    assert found["not_possible"]
    assert found["plan"]["pareto"]


def test_markdown_is_written_whole_to_a_file(run: Run, tmp_path: Path) -> None:
    page = tmp_path / "advice.md"
    assert run(*SMALL, "--quality", "lossless", "--format", "markdown", "--output", page) == (0, "", "")
    text = page.read_text()
    assert text.startswith("# llama-3.2-1b on l4")
    assert "```sh\nroofline analyze" in text


def test_unmet_limits_name_the_binding_limit_and_nearest_value(run: Run) -> None:
    status, out, _ = run(*SMALL, "--tpot", "10us", "--quality", "lossless")
    assert status == 0
    lines = out.splitlines()
    assert lines[0].startswith(
        "llama-3.2-1b on l4: no configuration meets all limits; the nearest, eagle-3, misses the TPOT"
    )
    assert "the TPOT limit can be" in " ".join(lines[:4])


def test_all_binding_limits_are_reported(run: Run) -> None:
    status, out, _ = run(*SMALL, "--tpot", "10us", "--ttft", "10us", "--quality", "lossless")
    assert status == 0
    told = " ".join(out[: out.index("Currently, ")].split())
    assert re.search(r"; jointly feasible: the TTFT limit at .+ ms and the TPOT limit at .+ ms\.", told)


def test_limits_are_kept(document) -> None:
    found = document("--objective", "throughput", "--tpot", "15ms", "--memory", "8GB", "--quality", "lossless")
    plan = found["plan"]
    end = plan["steps"][-1]["figures"]
    assert end["tpot"]["mid"] <= 15e-3
    assert end["memory"] <= 8e9
    assert {step["price"] for step in plan["steps"]} <= {"lossless", "engineering"}


@pytest.mark.slow
def test_limit_on_a_metric_that_a_change_removes(document, run: Run) -> None:
    """An answer in parallel parts leaves a single decode step, hence no TPOT."""
    asked = ("--generate", "2", "--tpot", "1ms", "--quality", "lossy", "--keep-batch", "--top", "30")
    (found,) = (entry for entry in document(*asked)["recommendations"] if entry["move"] == "skeleton-of-thought")
    assert found["misses"] == {"tpot": None}
    out = run(*SMALL, *asked)[1]
    assert "  has no figure for the TPOT limit\n" in out[out.index("\nskeleton-of-thought: ") :]


@pytest.mark.slow
def test_research_adds_techniques(document) -> None:
    few, many = (
        document("--objective", "ttft", "--quality", "lossless", "--top", "1", *more) for more in ((), ("--research",))
    )
    assert len(many["recommendations"]) > len(few["recommendations"])


def test_the_rules_are_listed(run: Run) -> None:
    status, out, err = run("advise", "--list-rules")
    assert (status, err) == (0, "")
    assert "memory-bound-decode" in out
    assert "yuan R1" in out


MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "no price": (("--objective", "cost"), "--price"),
    "a budget that is none": (("--budget", "cheap"), "a budget is in USD/h"),
    "a limit below nothing": (("--ttft", "-1s"), "-1s"),
    "an unknown objective": (("--objective", "speed"), "speed"),
    "an unknown quality": (("--quality", "any"), "any"),
    "a single token": (("--generate", "1", "--objective", "tpot"), "two generated tokens"),
    "the other counting": (("--convention", "llm-viewer"), "expected times"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_user_errors_are_one_sentence(run: Run, tmp_path: Path, name: str) -> None:
    options, said = MISTAKES[name]
    page = tmp_path / "advice.json"
    hw = ("--hw", "mi210") if name == "no price" else ()
    status, out, err = run(*SMALL, *hw, *options, "--output", page)
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert not page.exists()


def test_llm_viewer_convention_is_advised_at_the_bound(run: Run) -> None:
    status, out, _ = run(*SMALL, "--convention", "llm-viewer", "--at", "bound", "--objective", "tpot")
    assert status == 0
    assert "at the bound" in out
