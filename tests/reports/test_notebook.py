"""Answers in notebooks: the cells of docs/notebook.ipynb run, and hostile names stay text."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from roofline import analyze
from roofline.scenario.scenario import Scenario
from roofline.whatif.study import make_study
from roofline.whatif.sweeps import sweep
from tests.paths import ROOT
from tests.reports.hostile import hostile_specs


def shown(source: str, names: dict[str, Any]) -> str:
    """The HTML of the last expression of a cell."""
    *before, last = ast.parse(source).body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(before, []), "cell", "exec"), names)
    answer = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    found = answer._repr_html_() if hasattr(answer, "_repr_html_") else answer.to_frame()
    return found if isinstance(found, str) else found.to_html()


@pytest.mark.slow
def test_every_cell_of_the_notebook_shows_a_table() -> None:
    pytest.importorskip("pandas")
    cells = json.loads((ROOT / "docs/notebook.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    pages = [shown("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    assert all("<table" in page for page in pages)
    for page, text in zip(pages, ("down_proj", "eagle-3", "down_proj", "Scheduler", "mi300x"), strict=True):
        assert text in page


def test_names_are_escaped(tmp_path: Path) -> None:
    model, hardware = hostile_specs(tmp_path)
    page = analyze(Scenario(model=str(model), hw=str(hardware)))._repr_html_()
    assert page is not None
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;" in page


def test_a_frame_has_the_columns_and_rows_of_the_sweep() -> None:
    pytest.importorskip("pandas")
    found = sweep(make_study({"batch": "1,8"}, "tpot,fits", model="llama-68m", hw="l4"))
    assert {name: found.frame()[name].tolist() for name in found.columns} == {
        name: values.tolist() for name, values in found.columns.items()
    }


def test_an_analysis_of_a_grid_is_a_table_of_its_points() -> None:
    page = analyze(Scenario("llama-68m", "l4", batch=np.array([1, 2])))._repr_html_()
    assert page is not None
    assert "2 points over batch" in page
    assert page.count("<tr>") == 3, "a header and the points"
