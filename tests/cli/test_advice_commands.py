"""`roofline advise` as a person uses it: every format, widths, limits that cannot be met, and mistakes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., tuple[int, str, str]]
SMALL = ("advise", "llama-3.2-1b", "--hw", "l4", "--prompt", "128", "--generate", "64")


def test_the_first_three_lines_answer_and_tables_fit_a_hundred_columns(run: Run) -> None:
    status, out, err = run(*SMALL, "--objective", "tpot", "--batch", "4")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("llama-3.2-1b on l4: ")
    assert "times better by" in lines[0]
    assert "goes from" in lines[1]
    assert lines[2].startswith("Now ")
    commands = [line for line in lines if line.startswith("  roofline analyze")]
    assert commands
    assert max(len(line.rstrip()) for line in lines if line not in commands) <= 100
    assert out.count("TTFT: time to first token") == 1


def test_what_is_not_sure_to_help_is_no_headline(run: Run) -> None:
    """A plan whose gain may be none is in the document, with its interval, and nothing says that it helps."""
    status, out, _ = run("advise", "bert-base", "--hw", "a100-sxm-80gb", "--batch", "8")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "bert-base on a100-sxm-80gb: nothing is sure to make the whole time better"
    assert lines[1].startswith("The whole time stays at ")
    assert re.search(r"No step: the best found, awq, is .+ \(0.+ to 1.+\) times as good, which may be no gain", out)
    assert "No single change makes it better" in out
    assert "likewise awq (changes next to nothing)" in " ".join(out.split())
    _, out, _ = run("advise", "bert-base", "--hw", "a100-sxm-80gb", "--batch", "8", "--format", "json")
    plan = json.loads(out)["plan"]
    assert [step["move"] for step in plan["steps"]] == ["awq"]
    assert plan["sure"] is False
    assert plan["times_better"]["low"] < 1 < plan["times_better"]["high"]


def test_a_gain_that_may_be_none_is_told_with_its_interval(run: Run) -> None:
    asked = ("advise", "gpt-oss-20b", "--hw", "l40s", "--batch", "64", "--prompt", "32", "--generate", "512")
    status, out, _ = run(*asked)
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "gpt-oss-20b on l40s: nothing is sure to make the whole time better"
    assert lines[1].startswith("By fp8-kv the whole time goes from ")
    assert "times better, which may be no gain" in " ".join(out.split())
    assert re.search(r"The best found, 1\.\d+ \(0\.\d+ to 1\.\d+\) times as good, may be no better", out)


def test_a_single_change_that_is_sure_comes_before_a_plan_that_is_not(run: Run) -> None:
    asked = ("advise", "opt-6.7b", "--hw", "a100-sxm-80gb", "--engine", "sglang", "--batch", "8", "--prompt", "2048")
    status, out, _ = run(*asked, "--generate", "32", "--objective", "throughput", "--format", "json")
    assert status == 0
    found = json.loads(out)
    assert found["plan"]["times_better"]["low"] < 1
    assert found["instead"] == "smoothquant"
    _, out, _ = run(*asked, "--generate", "32", "--objective", "throughput")
    assert re.match(r"opt-6\.7b on a100-sxm-80gb: 1\.\d+ \(1\..+ times better by smoothquant\n", out)


@pytest.mark.parametrize("objective", ["total", "throughput", "ttft"])
def test_what_a_plan_has_is_not_said_to_be_in_vain(document, objective: str) -> None:
    found = document("--objective", objective, "--quality", "lossy")
    assert found["plan"]["sure"]
    assert not {step["move"] for step in found["plan"]["steps"]} & {entry["move"] for entry in found["in_vain"]}


@pytest.fixture
def document(run: Run) -> Callable[..., dict[str, Any]]:
    """The JSON document of an advice."""

    def call(*args: object) -> dict[str, Any]:
        status, out, err = run(*SMALL, *args, "--format", "json")
        assert (status, err) == (0, "")
        found: dict[str, Any] = json.loads(out)
        return found

    return call


def test_the_document_has_everything(document) -> None:
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


def test_what_cannot_be_met_says_what_binds_and_how_near_one_gets(run: Run) -> None:
    status, out, _ = run(*SMALL, "--tpot", "10us", "--quality", "lossless")
    assert status == 0
    lines = out.splitlines()
    assert lines[0] == "llama-3.2-1b on l4: nothing meets all limits"
    assert "the limit of TPOT can be" in lines[1]


def test_limits_that_are_all_in_the_way_are_told_together(run: Run) -> None:
    status, out, _ = run(*SMALL, "--tpot", "10us", "--ttft", "10us", "--quality", "lossless")
    assert status == 0
    told = " ".join(out[: out.index("Now ")].split())
    assert re.search(r"; nearest to all is the limit of TTFT at .+ ms and the limit of TPOT at .+ ms\.", told)


def test_limits_are_kept(document) -> None:
    found = document("--objective", "throughput", "--tpot", "15ms", "--memory", "8GB", "--quality", "lossless")
    plan = found["plan"]
    end = plan["steps"][-1]["figures"]
    assert end["tpot"]["mid"] <= 15e-3
    assert end["memory"] <= 8e9
    assert {step["price"] for step in plan["steps"]} <= {"lossless", "engineering"}


def test_a_limit_that_a_change_leaves_no_figure_for(document, run: Run) -> None:
    """Skeleton-of-Thought leaves one step of three, and a TPOT is of tokens after the first."""
    asked = ("--generate", "3", "--tpot", "1ms", "--quality", "lossy", "--keep-batch", "--top", "30")
    (found,) = (entry for entry in document(*asked)["recommendations"] if entry["move"] == "sgd")
    assert found["misses"] == {"tpot": None}
    out = run(*SMALL, *asked)[1]
    assert "  has no figure for the limit of TPOT\n" in out[out.index("\nsgd: ") :]


def test_research_offers_more(document) -> None:
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
    "a budget that is none": (("--budget", "cheap"), "a budget is USD an hour"),
    "a limit below nothing": (("--ttft", "-1s"), "-1s"),
    "an unknown objective": (("--objective", "speed"), "speed"),
    "an unknown quality": (("--quality", "any"), "any"),
    "a single token": (("--generate", "1", "--objective", "tpot"), "two generated tokens"),
    "the other counting": (("--convention", "llm-viewer"), "expected times"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_told_in_a_sentence(run: Run, tmp_path: Path, name: str) -> None:
    options, said = MISTAKES[name]
    page = tmp_path / "advice.json"
    hw = ("--hw", "mi300x") if name == "no price" else ()
    status, out, err = run(*SMALL, *hw, *options, "--output", page)
    assert (status, out) == (2, "")
    assert said in err
    assert "Traceback" not in err
    assert not page.exists()


def test_the_other_counting_is_advised_at_the_bound(run: Run) -> None:
    status, out, _ = run(*SMALL, "--convention", "llm-viewer", "--at", "bound", "--objective", "tpot")
    assert status == 0
    assert "at the bound" in out.splitlines()[1]
