"""Reports: figures equal the simulator's, output is deterministic, and text of specs is escaped."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("jinja2", reason="reports need Jinja2")
pytest.importorskip("matplotlib", reason="figures need matplotlib")
pytest.importorskip("uvicorn", reason="figures of the live page")

from roofline import load_hardware, load_model
from roofline.core.errors import RooflineError
from roofline.reports.pages.content import schemes
from roofline.reports.pages.figures import of_accuracy, of_scenarios
from roofline.reports.pages.subjects import subjects
from roofline.reports.pages.write import write_report
from roofline.scenario.scenario import Scenario
from tests.conftest import Run
from tests.reports.hostile import hostile_specs
from tests.reports.live import figures_of

OPTIONS = {"hw": "h100-sxm", "batch": 8, "prompt": 2048}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert write_report("llama-3.1-8b", [], OPTIONS, path, advice=False) == [path]
    return path.read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="recorded">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_the_page_is_small_and_whole(page: str) -> None:
    assert len(page.encode()) < 1e6
    assert not re.search(r"(src|href)=\"(?!data:|#)", page)
    assert "default-src &#39;none&#39;" in page
    assert re.search(r"Fits in memory \(24\.7 GB of 78\.2 GB\)\. TTFT 3[67]\d ms \(\d+ to \d+\)", page)
    for anchor in ("summary", "operators", "what-if", "accuracy", "definitions", "reproduce"):
        assert f'<section id="{anchor}"' in page


@pytest.mark.slow
def test_the_largest_page_is_below_three_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report("deepseek-v3", ["hw=h200-sxm,b200-sxm", "batch=1"], {"tp": 8}, path, advice=False)
    text = path.read_text(encoding="utf-8")
    assert len(text) < 2.7e6
    assert [setup["hw"] for setup in data_of(text)["setups"]] == ["h200-sxm", "b200-sxm"]


def test_its_answers_are_those_of_the_commands(page: str, run: Run) -> None:
    data = data_of(page)
    answers = {name: found for name, question, found in data["answers"] if name != "explain"}
    assert data["setups"] == [{"model": "llama-3.1-8b", "hw": "h100-sxm", "batch": "8", "prompt": "2048"}]
    assert data["views"] == ["overview", "network", "operators", "load", "run"]
    _, out, _ = run(*shlex.split(answers["answer"]["command"])[1:], "--format", "json")
    assert figures_of(answers["answer"]["analysis"]) == pytest.approx(figures_of(json.loads(out)))
    _, out, _ = run(*shlex.split(answers["load"]["command"])[1:], "--format", "json")
    shown, known = answers["load"]["serving"][0]["points"][-1], json.loads(out)["points"][-1]
    assert shown["ttft_s"]["p95"] == pytest.approx(known["ttft_s"]["p95"])
    explained = [question["place"] for name, question, _ in data["answers"] if name == "explain"]
    assert len(explained) == sum(len(phase["ops"]) for phase in answers["answer"]["analysis"]["phases"].values())


@pytest.mark.slow
def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    paths = [tmp_path / f"{seed}.html" for seed in (1, 2)]
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "cli", "report", "llama-68m", "--hw", "h100-sxm", "--output", str(path)],
            env={**os.environ, "PYTHONHASHSEED": path.stem, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        for path in paths
    ]
    assert [run.wait() for run in runs] == [0, 0]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.slow
def test_markdown_has_its_figures_beside_it(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "two words.md"
    status, out, _ = run("report", "llama-68m", "--hw", "l4", "--no-advice", "--date", "2026-11-22", "-o", path)
    assert (status, out) == (0, f"wrote {path} and 5 figures\n")
    text = path.read_text(encoding="utf-8")
    links = re.findall(r"!\[[^]]*\]\(([^)]*)\)", text)
    assert links == [
        f"two%20words-figures/{name}.svg" for name in ("roofline", "memory", "batch", "prompt", "accuracy")
    ]
    for link in links:
        assert (tmp_path / link.replace("%20", " ")).read_bytes().startswith(b"<?xml")
    assert "Date: 2026-11-22" in text
    assert "Advice" not in text


def test_residuals_are_those_of_the_kernels_in_use() -> None:
    found = subjects("llama-3.1-8b", [], OPTIONS)
    (figure,) = of_accuracy(found)
    labels = [text.get_text() for text in figure.draw().axes[0].get_yticklabels()]
    assert "gemm bf16 (h100-sxm)" in labels
    assert [figure.name for figure in of_scenarios(found)] == ["roofline", "memory", "batch", "prompt"]


@pytest.mark.slow
def test_a_study_file_gives_its_scenarios_side_by_side(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text("model: llama-68m\nover:\n  hw: [l4, a6000]\n  batch: [4]\nmetrics: [ttft]\nprompt: 64\n")
    found = subjects(str(study), [], {})
    assert [subject.label for subject in found] == ["hw l4, batch 4", "hw a6000, batch 4"]
    write_report(str(study), [], {}, tmp_path / "report.html", advice=False)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Side by side" in text
    assert len(data_of(text)["setups"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("llama-68m", "--hw", "l4", "-o", "r.pdf"), "ends in neither"),
        (("llama-68m", "--hw", "nothing"), "unknown hardware"),
        (("--hw", "l4"), "a model is missing"),
        (("llama-68m", "--hw", "l4", "-o", "missing/report.html"), "cannot write"),
        (("llama-68m", "--hw", "l4", "-o", "missing/report.md", "--no-advice"), "cannot write"),
    ],
)
def test_invalid_arguments(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, out, err = run("report", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


class Tags(HTMLParser):
    """The tags of a page, with the attributes that run something."""

    def __init__(self) -> None:
        super().__init__()
        self.names: dict[str, int] = {}
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names[tag] = self.names.get(tag, 0) + 1
        self.handlers += [name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "")]


@pytest.mark.slow
def test_nothing_of_a_hostile_spec_is_markup(tmp_path: Path) -> None:
    model, hardware = hostile_specs(tmp_path)
    page = tmp_path / "<b>report & 'more'</b>.html".replace("/", "")
    title = "</title><script>alert(1)</script>"
    write_report(str(model), [], {"hw": str(hardware)}, page, title=title)
    text = page.read_text(encoding="utf-8")
    tags = Tags()
    tags.feed(text)
    assert tags.handlers == []
    assert tags.names["script"] == 2
    assert not {"iframe", "object", "embed", "base", "form "} & tags.names.keys()
    assert "<img src=x" not in text
    assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
    assert len(text.encode()) < 3e6
    markdown = tmp_path / "report.md"
    write_report(str(model), [], {"hw": str(hardware)}, markdown, title=title, advice=False)
    outside = re.sub(r"```sh.*?```", "", markdown.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert "<" not in outside
    assert "](javascript" not in outside


def test_a_missing_dependency_is_named(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.startswith(("roofline.reports.pages", "jinja2"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    status, _, err = run("report", "llama-68m", "--hw", "l4", "-o", tmp_path / "report.html")
    assert status == 2
    assert "pip install '" in err
    assert "[report]'" in err


def test_hostile_studies_are_refused(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({"model": "llama-68m", "over": {"<script>": [1]}}))
    with pytest.raises(RooflineError):
        write_report(str(study), [], {}, tmp_path / "report.html")


@pytest.mark.parametrize(
    ("model", "formats", "expected"),
    [
        ("llama-3.1-8b", {}, ["bf16", "fp8", "awq", "W4A16KV8"]),
        ("llama-3.1-8b", {"quant": "fp8"}, ["fp8", "bf16", "awq", "W4A16KV8"]),
        ("gpt-oss-20b", {}, ["mxfp4", "bf16", "fp8", "awq", "W4A16KV8"]),
        ("gpt-oss-20b", {"quant": "bf16"}, ["bf16", "fp8", "awq", "W4A16KV8"]),
    ],
)
def test_schemes_start_with_the_requested_or_released_formats(
    model: str, formats: dict[str, str], expected: list[str]
) -> None:
    request = Scenario(load_model(model), load_hardware("h100-sxm"), **formats)
    found = schemes(request)
    assert [label for label, _ in found] == expected
    assert found[0][1] is None
