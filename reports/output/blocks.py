"""Blocks: a page as titled lines and tables, the same for the terminal and for Markdown."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from rich.text import Text

from roofline.reports.output.export import escape, markdown_table
from roofline.reports.output.terminal import table

WIDTH = 100
"""Columns that pages of advice and sizing keep to."""


class Block(Struct, frozen=True):
    """A heading, lines of text, a table of which the first `left` columns are text, and commands to copy.

    Lines, commands and tables are at most `width` columns wide on the terminal, 0 leaves that to it; leading spaces say
    how deep a line is.
    """

    title: str = ""
    lines: Sequence[str] = ()
    header: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    left: int = 1
    commands: Sequence[str] = ()
    width: int = 0


def parts(blocks: Iterable[Block]) -> list[Any]:
    """What the terminal shows."""
    drawn: list[Any] = []
    for index, block in enumerate(blocks):
        if index and block.title and not block.header:
            drawn.append(Text())
        if block.title and not block.header:
            drawn += [Text(part, style="bold") for part in _wrapped(plain_text(block.title), block.width)]
        drawn += [Text(part) for line in block.lines for part in _wrapped(plain_text(line), block.width)]
        if block.header:
            drawn += [Text()] if block.lines else []
            drawn.append(table(block.header, block.rows, block.title or None, block.left, block.width))
        for command in block.commands:
            lines = _continued(plain_text(command), block.width - 2) if block.width else [plain_text(command)]
            drawn += [Text(f"  {line}", no_wrap=True) for line in lines]
    return drawn


def as_markdown(blocks: Iterable[Block]) -> str:
    """The same as Markdown."""
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
    lines += ["```sh", *map(plain_text, block.commands), "```", ""] if block.commands else []
    return lines


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _wrapped(line: str, width: int) -> list[str]:
    """A line cut to columns; the rest of it is indented."""
    if not width:
        return [line]
    return textwrap.wrap(line, width, subsequent_indent=f"{_indent(line)}  ", break_on_hyphens=False)


def _continued(command: str, width: int) -> Iterator[str]:
    """A shell command on lines that go on after a backslash, cut before options; an option keeps its value."""
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


def plain_text(text: str) -> str:
    """Text on one line, with what cannot be printed, or turns the direction of what is, replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def finite(value: Any) -> Any:
    """A number for JSON: whole counts as integers, what is not finite as null."""
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(entry) for entry in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    number = float(value)
    if number != number or abs(number) == float("inf"):
        return None
    return number
