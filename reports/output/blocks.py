"""Blocks: titled lines and tables that render to the terminal, to Markdown and to HTML."""

from __future__ import annotations

import math
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from rich.text import Text

from roofline.reports.output.export import escape, markdown_table, printable
from roofline.reports.output.terminal import table

WIDTH = 100
"""Maximum width in columns of advice and sizing output."""


class Block(Struct, frozen=True):
    """A heading, lines of text, a table whose first `left` columns are left-aligned, and shell commands.

    `width` limits the columns on the terminal, 0 means no limit. Leading spaces of a line are its indentation.
    """

    title: str = ""
    lines: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    left: int = 1
    commands: Sequence[str] = ()
    width: int = 0


def parts(blocks: Iterable[Block]) -> list[Any]:
    """The blocks as Rich renderables."""
    drawn: list[Any] = []
    for index, block in enumerate(blocks):
        if index and block.title and not block.header:
            drawn.append(Text())
        if block.title and not block.header:
            drawn += [Text(part, style="bold") for part in _wrapped(printable(block.title), block.width)]
        drawn += [Text(part) for line in block.lines for part in _wrapped(printable(line), block.width)]
        if block.header:
            drawn += [Text()] if block.lines else []
            drawn.append(table(block.header, block.rows, block.title or None, block.left, block.width))
        for command in block.commands:
            lines = _continued(printable(command), block.width - 2) if block.width else [printable(command)]
            drawn += [Text(f"  {line}", no_wrap=True) for line in lines]
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
    lines += [f"{_indent(line)}- {escape(line.strip())}" for line in block.lines] + ([""] if block.lines else [])
    if block.header:
        lines += [*markdown_table([escape(name) for name in block.header], block.rows, block.left), ""]
    lines += ["```sh", *map(printable, block.commands), "```", ""] if block.commands else []
    return lines


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _wrapped(line: str, width: int) -> list[str]:
    """A line wrapped to `width` columns with a hanging indent."""
    if not width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent=f"{_indent(line)}  ", break_on_hyphens=False)


def _continued(command: str, width: int) -> Iterator[str]:
    """A shell command wrapped with backslashes before options; an option stays with its value."""
    parts: list[str] = []
    for word in shlex.split(command, posix=False):
        if parts and not word.startswith("--"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    line = parts[0]
    for part in parts[1:]:
        if len(line) + len(part) + len("  \\") > width:
            yield f"{line} \\"
            line = f"  {part}"
        else:
            line = f"{line} {part}"
    yield line


def finite(value: Any) -> Any:
    """`value` for JSON, also nested: NaN and infinity become None, NumPy scalars floats."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    return float(value) if math.isfinite(value) else None
