"""Blocks: a page as titled lines and tables, the same for the terminal and for Markdown."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.text import Text

from reports.export import escape, markdown_table
from reports.terminal import table


@dataclass(frozen=True, slots=True)
class Block:
    """A heading, lines of text, a table of which the first `left` columns are text, and commands to copy.

    Lines are wrapped to `width` columns on the terminal, 0 leaves that to it; leading spaces say how deep one is.
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
            drawn.append(Text(plain_text(block.title), style="bold"))
        drawn += [Text(part) for line in block.lines for part in _wrapped(plain_text(line), block.width)]
        if block.header:
            drawn += [Text()] if block.lines else []
            drawn.append(table(block.header, block.rows, title=block.title or None, left=block.left))
        drawn += [Text(f"  {plain_text(command)}", no_wrap=True, overflow="ignore") for command in block.commands]
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
