"""Answers as HTML in notebooks: the blocks that the commands print, as headings, lists and tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

from roofline.core.units import seconds, si
from roofline.reports.documents.advice import advice_blocks, advice_document
from roofline.reports.documents.analysis import analysis_document
from roofline.reports.output.blocks import Block
from roofline.reports.output.export import op_rows, phase_line, printable, summary_lines
from roofline.scenario.analysis import Analysis
from roofline.whatif.compare import Waterfall
from roofline.whatif.sweep import Sweep

TOP = 5
"""Single changes of advice that are shown."""

ROWS = 60
"""Most rows of a table; a line says how many are left out."""


def html(answer: object) -> str | None:
    """The HTML of an answer; None where only its text is known: an analysis of a grid, or a sweep without pandas."""
    if isinstance(answer, Sweep):
        try:
            shown: str = answer.frame().to_html(max_rows=ROWS, border=0)
        except ModuleNotFoundError:
            return None
        return shown
    if isinstance(answer, Analysis) and answer.scenario.shape:
        return None
    return "\n".join(part for block in BLOCKS[type(answer).__name__](answer) for part in _html(block))


def _analysis(answer: Analysis) -> Iterator[Block]:
    document = analysis_document(answer)
    yield Block(f"{document['model']} on {document['hardware']}", summary_lines(document))
    for name, phase in document["phases"].items():
        header, rows = op_rows(phase)
        yield Block(name.capitalize(), phase_line(phase).split("\n"), header, rows)


def _curve(answer: Any) -> list[Block]:
    from roofline.reports.documents.serving import serving_blocks, serving_document  # needs SciPy, as its curve does

    return serving_blocks(serving_document(answer, (math.inf, math.inf)))


def _waterfall(answer: Waterfall) -> Iterator[Block]:
    shown = seconds if answer.reading != "bytes" else lambda value: si(value, "B")
    changed = [entry for entry in answer.differences if entry.change]
    rows = [
        [entry.name, shown(entry.before), shown(entry.after), f"{entry.change / (answer.change or 1):.1%}"]
        for entry in changed
    ]
    title = f"{answer.metric}: {shown(answer.before)} to {shown(answer.after)} ({answer.reading})"
    yield Block(title, header=("operator", "before", "after", "share of the change"), rows=rows)


BLOCKS: Mapping[str, Callable[[Any], Iterable[Block]]] = {
    "Analysis": _analysis,
    "Advice": lambda answer: advice_blocks(advice_document(answer, TOP)),
    "Waterfall": _waterfall,
    "Curve": _curve,
}
"""The blocks of an answer by the name of its class."""


def _html(block: Block) -> Iterator[str]:
    if block.title:
        yield f"<h4>{_text(block.title)}</h4>"
    if block.lines:
        yield f"<ul>{''.join(f'<li>{_text(line.strip())}</li>' for line in block.lines)}</ul>"
    if block.header:
        head = _row("th", block.header, block.left)
        body = "".join(_row("td", row, block.left) for row in block.rows[:ROWS])
        yield f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"
        if len(block.rows) > ROWS:
            yield f"<p>and {len(block.rows) - ROWS} more</p>"
    for command in block.commands:
        yield f"<pre>{_text(command)}</pre>"


def _row(kind: str, cells: Sequence[str], left: int) -> str:
    sides = ["left" if index < left else "right" for index in range(len(cells))]
    found = (
        f'<{kind} style="text-align:{side}">{_text(cell)}</{kind}>' for side, cell in zip(sides, cells, strict=True)
    )
    return f"<tr>{''.join(found)}</tr>"


def _text(text: str) -> str:
    return escape(printable(text))
