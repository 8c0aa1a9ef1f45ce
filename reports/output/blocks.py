"""Blocks: titled lines and tables that render to the terminal, to Markdown and to HTML."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape as escape_html
from itertools import islice
from typing import Any

from msgspec import Struct
from rich.text import Text

from roofline.reports.output.export import escape, markdown_table, printable
from roofline.reports.output.terminal import CommandLine, WrappedLine, table

Document = Mapping[str, Any]

WIDTH = 100
"""Maximum width in columns of advice and sizing output."""

HTML_ROWS = 60
"""Most rows of a table in HTML; a line says how many are left out."""


MOST_LINES = 6
"""Lines of a summary, but for the answer's."""


class Block(Struct, frozen=True):
    """A heading, lines of text, a table whose first `left` columns are left-aligned, and shell commands.

    `width` limits the columns on the terminal, 0 means no limit. `lead` are words before a command on its line.
    Leading spaces of a line are its indentation.
    """

    title: str = ""
    lines: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    left: int = 1
    commands: Sequence[str] = ()
    width: int = 0
    lead: str = ""


class Face(Struct, frozen=True):
    """How a result becomes a document, and the document blocks, rows and a summary (by default that of the blocks)."""

    document: Callable[[Any], dict[str, Any]]
    blocks: Callable[[Document], Iterable[Block]]
    rows: Callable[[Document], Sequence[Document]]
    lines: Callable[[Document], Iterable[str]] | None = None
    most: int = MOST_LINES


def parts(blocks: Iterable[Block]) -> list[Any]:
    """The blocks as Rich renderables."""
    drawn: list[Any] = []
    for index, block in enumerate(blocks):
        if index and block.title and not block.header:
            drawn.append(Text())
        if block.title and not block.header:
            drawn.append(WrappedLine(printable(block.title), block.width, "bold"))
        drawn += [WrappedLine(printable(line), block.width) for line in block.lines]
        if block.header:
            drawn += [Text()] if block.lines else []
            drawn.append(table(block.header, block.rows, block.title or None, block.left, block.width))
        drawn += [CommandLine(printable(command), block.lead or "  ", block.width) for command in block.commands]
    return drawn


def as_markdown(blocks: Iterable[Block]) -> str:
    """The blocks as Markdown, the first title as heading 1."""
    lines: list[str] = []
    for index, block in enumerate(blocks):
        lines += block_markdown(block, "#" if index == 0 else "##")
    return "\n".join(lines)


def block_markdown(block: Block, heading: str) -> list[str]:
    """The lines of a block as Markdown, its title under `heading`."""
    lines: list[str] = []
    if block.title:
        lines += [f"{heading} {escape(block.title)}", ""]
    for line in block.lines:
        indent = " " * (len(line) - len(line.lstrip()))
        lines.append(f"{indent}- {escape(line.strip())}")
    lines += [""] if block.lines else []
    if block.header:
        lines += [*markdown_table([escape(name) for name in block.header], block.rows, block.left), ""]
    lines += [block.lead, ""] if block.lead else []
    lines += ["```sh", *map(printable, block.commands), "```", ""] if block.commands else []
    return lines


def summary(blocks: Iterable[Block]) -> list[str]:
    """The first block's title and lines, the first two rows of the first table in words, and other blocks' lines."""
    first, *others = blocks
    rows: Iterator[str] = (
        f"{' '.join(filter(None, (block.header[0], cells[0])))}: "
        + ", ".join(f"{name} {cell}" for name, cell in zip(block.header[1:], cells[1:], strict=True))
        for block in (first, *others)
        for cells in block.rows
    )
    told = list(islice(rows, 2))
    lines = list(first.lines)[: MOST_LINES - 1 - len(told)]
    return [first.title, *lines, *told, *(line for block in others for line in block.lines)]


def as_html(blocks: Iterable[Block]) -> str:
    """The blocks as HTML for notebooks: headings, lists and tables."""
    return "\n".join(part for block in blocks for part in _html(block))


def _html(block: Block) -> Iterator[str]:
    def text(plain: str) -> str:
        return escape_html(printable(plain))

    def row(kind: str, cells: Sequence[str]) -> str:
        sides = ("left" if index < block.left else "right" for index in range(len(cells)))
        styled = zip(sides, cells, strict=True)
        found = (f'<{kind} style="text-align:{side}">{text(cell)}</{kind}>' for side, cell in styled)
        return f"<tr>{''.join(found)}</tr>"

    if block.title:
        yield f"<h4>{text(block.title)}</h4>"
    if block.lines:
        yield f"<ul>{''.join(f'<li>{text(line.strip())}</li>' for line in block.lines)}</ul>"
    if block.header:
        body = "".join(row("td", cells) for cells in block.rows[:HTML_ROWS])
        yield f"<table><thead>{row('th', block.header)}</thead><tbody>{body}</tbody></table>"
        if len(block.rows) > HTML_ROWS:
            yield f"<p>and {len(block.rows) - HTML_ROWS} more</p>"
    yield from [f"<p>{text(block.lead)}</p>"] if block.lead else []
    yield from (f"<pre>{text(command)}</pre>" for command in block.commands)


def picked(thing: Any, *names: str) -> dict[str, Any]:
    """Attributes of a thing, by their names."""
    return {name: getattr(thing, name) for name in names}


def finite(value: Any) -> Any:
    """`value` for JSON, also nested: NaN and infinity become None, NumPy scalars floats."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return float(value) if math.isfinite(value) else None
