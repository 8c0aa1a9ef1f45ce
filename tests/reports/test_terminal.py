"""Terminal tables: whole words at any width, and columns that are left out in one order."""

import io
import shlex

import pytest
from rich.console import Console

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.reports.documents import analysis
from roofline.reports.documents.compare import compare_blocks, compare_document
from roofline.reports.documents.summary import time_interval
from roofline.reports.output.blocks import parts
from roofline.reports.output.columns import DROPPED, Cells
from roofline.reports.output.terminal import CommandLine, render, table
from tests.cases import sampled


def shown(drawn: list[object], width: int) -> str:
    return render(drawn, Console(file=io.StringIO(), width=width))


@pytest.mark.parametrize("width", sampled([120, 100, 80, 60], [100, 60]))
@pytest.mark.parametrize(("model", "hw"), sampled([("llama-3.1-8b", "h100-sxm"), ("deepseek-v3", "mi300x")], 1))
def test_a_narrow_terminal_leaves_out_columns_and_breaks_no_word(model: str, hw: str, width: int) -> None:
    answer = analyze(Scenario(load_model(model), load_hardware(hw), batch=8, prompt=2048))
    document = analysis.analysis_document(answer)
    narrow, wide = shown(analysis.parts(document), width), shown(analysis.parts(document), 200)
    assert max(map(len, narrow.splitlines())) <= width
    own = {*wide.split(), *f"left out at {width} columns:".split(), *(f"{name}," for name in DROPPED), *DROPPED}
    assert {word for word in narrow.split() if not set(word) <= {"─"}} <= own
    for op in answer.prefill.ops:
        assert any(op.name in line and line.rstrip().endswith("%") for line in narrow.splitlines())
    out = [line for line in narrow.splitlines() if line.startswith("left out")]
    assert bool(out) is (width < 100)


def test_columns_are_left_out_in_the_order_of_the_table() -> None:
    rows = (("a", *("1" * 10 for _ in DROPPED)),)
    narrower = list(Cells(("name", *DROPPED), rows, 1).narrower())
    assert [cells.out for cells in narrower[: len(DROPPED)]] == [DROPPED[:count] for count in range(len(DROPPED))]
    widths = [cells.width for cells in narrower]
    assert widths == sorted(widths, reverse=True)


def test_intervals_go_after_all_columns_that_may_go() -> None:
    cells = Cells(("scenario", "TTFT", "meaning"), (("one", "12.5 ms (10.3 to 15.1)", "words"),), 1)
    assert [each.out for each in cells.narrower()] == [(), ("meaning",), ("meaning", "80% intervals")]
    *_, last = cells.narrower()
    assert last.rows == (("one", "12.5 ms"),)


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
    drawn = shown([table(("a long name", "figure"), [("several words in a cell", "1,234,567")], width=30)], 130)
    assert "1,234,567" in drawn
    assert max(map(len, drawn.splitlines())) <= 30


def test_a_long_command_is_one_command_on_a_terminal_and_one_line_in_a_file() -> None:
    command = (
        "vllm serve org/model --max-model-len 36864 --tensor-parallel-size 2 --o '{\"a\": 1}' --language-model-only"
    )
    narrow = Console(file=io.StringIO(), width=60, force_terminal=True, no_color=True)
    shown = render([CommandLine(command, "Run it: ")], narrow)
    assert max(map(len, shown.splitlines())) <= 60
    assert shlex.split(shown.removeprefix("Run it: ").replace("\\\n", " ")) == shlex.split(command)
    assert render([CommandLine(command)]) == f"  {command}\n"


def test_a_key_stays_whole_beside_an_address_that_is_too_long() -> None:
    rows = (("interconnects.0.bandwidth", "https://example.org/" + "a" * 90),)
    assert Cells(("key", "value"), rows, 2).spread(80)[0] >= len(rows[0][0])


def test_the_ends_of_an_interval_have_units_unless_they_share_the_middles() -> None:
    assert time_interval({"low": 0.916, "mid": 1.1, "high": 1.31}) == "1.10 s (916 ms to 1.31 s)"
    assert time_interval({"low": 1.0, "mid": 1.1, "high": 1.31}) == "1.10 s (1.00 to 1.31)"
