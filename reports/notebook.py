"""Blocks, as the commands print them, as HTML in notebooks: headings, lists and tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from roofline.reports.output.blocks import Block
from roofline.reports.output.export import printable

ROWS = 60
"""Most rows of a table; a line says how many are left out."""


def html(blocks: Iterable[Block]) -> str:
    """The HTML of blocks."""
    return "\n".join(part for block in blocks for part in _html(block))


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
