"""Terminal tables: unbroken at 100 columns, wrapped and never truncated on narrower terminals."""

import io
from collections import Counter

import pytest
from rich.console import Console

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.reports.documents import analysis
from roofline.reports.documents.compare import compare_blocks, compare_document
from roofline.reports.output.blocks import parts
from roofline.reports.output.terminal import render, table


def shown(drawn: list[object], width: int) -> str:
    return render(drawn, Console(file=io.StringIO(), width=width))


def marks(text: str) -> Counter[str]:
    """Printed characters without spaces and rules."""
    return Counter(char for char in text if not char.isspace() and char != "─")


@pytest.mark.parametrize("width", [100, 80, 60])
@pytest.mark.parametrize(("model", "hw"), [("llama-3.1-8b", "h100-sxm"), ("deepseek-v3", "mi300x")])
def test_an_analysis_is_complete_on_a_narrow_terminal(model: str, hw: str, width: int) -> None:
    answer = analyze(Scenario(load_model(model), load_hardware(hw), batch=8, prompt=2048))
    document = analysis.analysis_document(answer)
    narrow, wide = shown(analysis.parts(document), width), shown(analysis.parts(document), 200)
    assert max(map(len, narrow.splitlines())) <= width
    assert marks(narrow) == marks(wide)
    if width == 100 and model == "llama-3.1-8b":
        for op in answer.prefill.ops:
            assert any(f" {op.name} " in line and line.rstrip().endswith("%") for line in narrow.splitlines())


def test_figures_of_a_comparison_do_not_wrap_at_100_columns() -> None:
    scenarios = [
        Scenario(load_model("llama-3.1-8b"), load_hardware(name), batch=8, prompt=2048)
        for name in ("h100-sxm", "h200-sxm")
    ]
    document = compare_document([analyze(scenario) for scenario in scenarios], ["first", "second"])
    blocks = compare_blocks(document, "total")
    lines = shown(parts(blocks), 100).splitlines()
    assert any("decode gate_proj" in line and line.rstrip().endswith("GB") for line in lines)


def test_with_a_width_only_the_first_column_wraps() -> None:
    drawn = shown([table(("a long name", "figure"), [("several words in a cell", "1,234,567")], width=20)], 130)
    assert "1,234,567" in drawn
    assert max(map(len, drawn.splitlines())) <= 20
