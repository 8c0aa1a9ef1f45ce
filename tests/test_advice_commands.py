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
