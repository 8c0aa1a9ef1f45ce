"""Figures of scenarios: file formats, contents, labels that do not overlap, hostile names."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from msgspec.structs import replace

mpl = pytest.importorskip("matplotlib", reason="figures need matplotlib")

from matplotlib.text import Annotation, Text  # noqa: E402

from roofline import Scenario, analyze, load_hardware, load_model  # noqa: E402
from roofline.core.errors import RooflineError  # noqa: E402
from roofline.reports.figures import measured, operators, scenario, style  # noqa: E402
from roofline.reports.figures.style import series  # noqa: E402
from tests.cases import sampled  # noqa: E402

SCENARIO = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), batch=8, prompt=2048)
SIGNATURES = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}


@pytest.mark.parametrize("kind", sampled(style.FORMATS, 1))
def test_files_are_reproducible(kind: str, tmp_path: Path) -> None:
    first, second = tmp_path / f"one.{kind}", tmp_path / f"two.{kind}"
    for path in (first, second):
        style.save(scenario.over(SCENARIO, "batch", [1, 8, 64]), path)
    assert first.read_bytes().startswith(SIGNATURES[kind])
    assert first.read_bytes() == second.read_bytes()


def test_an_unknown_ending_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(RooflineError, match="svg, png, pdf"):
        style.save(scenario.memory(SCENARIO, [1, 2]), tmp_path / "figure.gif")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3", "mamba2-2.7b", "bert-base"])
def test_numbers_of_points_do_not_overlap(model: str) -> None:
    figure = operators.rooflines(analyze(Scenario(load_model(model), load_hardware("h200-sxm"), batch=4, prompt=500)))
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for panel in figure.axes:
        notes = [
            child for child in panel.get_children() if isinstance(child, Annotation) and child.get_text().isdigit()
        ]
        assert [note.get_text() for note in notes] == [str(index + 1) for index in range(len(notes))]
        assert notes
        boxes = [Text.get_window_extent(note, renderer) for note in notes]
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


def test_curves_equal_the_analysis() -> None:
    batches = [1, 16, 256, 512]
    figure = scenario.over(SCENARIO, "batch", batches)
    lines = {line.get_label(): line for panel in figure.axes for line in panel.get_lines()}
    answer = analyze(SCENARIO.changed(batch=16))
    assert answer.expected.tpot is not None
    assert lines["TPOT, expected"].get_ydata()[1] == pytest.approx(answer.expected.tpot.mid)
    assert lines["TTFT, at the bound"].get_ydata()[1] == pytest.approx(answer.generation.ttft)
    assert "does not fit" in [text.get_text() for panel in figure.axes for text in panel.texts]


def test_names_are_not_parsed_as_mathematics(tmp_path: Path) -> None:
    hostile = replace(SCENARIO.model, name="$\\frac{1}{0$ <script>\x1b")
    style.save(scenario.over(SCENARIO.changed(model=hostile), "prompt", [10, 100]), tmp_path / "figure.svg")
    assert "<script>" not in (tmp_path / "figure.svg").read_text(encoding="utf-8")


def test_predictions_beside_published_figures() -> None:
    rows = [
        {"group": "a", "published": 10.0, "low": 8.0, "mid": 9.0, "high": 12.0, "inside": True},
        {"group": "b", "published": 5.0, "low": 8.0, "mid": 7.0, "high": 6.0, "inside": False},
        {"group": "b", "published": 5.0, "low": None, "mid": 5.0, "high": None, "inside": None},
    ]
    figure = measured.measured({"anchors": rows})
    (panel,) = figure.axes
    assert [container.get_label() for container in panel.containers] == ["a", "b"]


@pytest.mark.parametrize("kind", sampled(["roofline", "batch", "prompt", "memory"], 1))
@pytest.mark.parametrize("model", sampled(["llama-3.1-8b", "mamba2-2.7b", "bert-base", "t5-small"], 1))
def test_every_figure_of_every_sort_of_model(kind: str, model: str, tmp_path: Path) -> None:
    asked = Scenario(load_model(model), load_hardware("l4"), batch=2)
    style.save(scenario.scenario_figure(kind, asked), tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_series_are_distinguishable() -> None:
    assert len({series(index) for index in range(49)}) == 49
