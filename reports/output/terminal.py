"""Terminal output with Rich: tables, and a progress line. Text from specs is never parsed as markup."""

from __future__ import annotations

import io
import os
import shlex
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.text import Text

from roofline.reports.output.columns import Cells, FittedTable
from roofline.reports.output.export import printable

BOUND_STYLE = {"compute": "magenta", "memory": "cyan", "link": "yellow"}
PROGRESS_DELAY = 1.0
"""Seconds before the progress line appears."""


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yields a function that shows the current step on standard error; it does nothing if that is no terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    start = time.monotonic()
    with Console(stderr=True).status("") as status:
        status.stop()

        def update(text: str) -> None:
            status.update(f"{text} ...")
            if time.monotonic() - start > PROGRESS_DELAY:
                status.start()

        yield update


def render(parts: Iterable[Any], console: Console | None = None) -> str:
    """The renderables as text, coloured if `console` supports colours."""
    target = console or Console(file=io.StringIO(), width=130)
    with target.capture() as capture:
        for whole, alike in groupby(parts, lambda part: isinstance(part, CommandLine)):
            target.print(Group(*alike), markup=False, highlight=False, soft_wrap=whole)
    return capture.get()


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    title: str | None = None,
    left: int = 1,
    width: int = 0,
    last_left: bool = False,
) -> FittedTable:
    """A plain table whose first `left` columns are left-aligned and the others right-aligned, but for the last.

    It is as wide as the terminal, or `width` columns, at most (`roofline.reports.output.columns`).
    """
    cells = tuple(tuple(map(printable, row)) for row in rows)
    return FittedTable(Cells(tuple(header), cells, left), title, BOUND_STYLE, width, last_left)


class WrappedLine:
    """A line, which wraps between words with a hanging indent, in the terminal's width or `width` columns at most."""

    def __init__(self, line: str, width: int = 0, style: str = "") -> None:
        self.line, self.width, self.style = line, width, style

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, self.width or options.max_width)
        indent = self.line[: len(self.line) - len(self.line.lstrip())]
        hanging = f"{indent}  " if self.width else indent
        for part in textwrap.wrap(self.line, width, subsequent_indent=hanging, break_on_hyphens=False) or [""]:
            yield Text(part, self.style)


class CommandLine:
    """A shell command after `lead`, on lines that end in a backslash where it is too long for the terminal.

    It has `width` columns at most, 0 for any number in a file or in a pipe whose width is not told.
    """

    def __init__(self, command: str, lead: str = "  ", width: int = 0) -> None:
        self.command, self.lead, self.width = command, lead, width

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        limited = console.is_terminal or told_width()
        widths = [width for width in (self.width, options.max_width if limited else 0) if width]
        first, more = self.command, []
        if widths:
            indent = " " * (len(self.lead) - len(self.lead.lstrip()))
            first, *more = continued(self.command, min(widths) - len(indent), len(self.lead) - len(indent))
            more = [f"{indent}{line}" for line in more]
        for line in (f"{self.lead}{first}", *more):
            yield Text(line, no_wrap=True, overflow="ignore")


def continued(command: str, width: int, lead: int = 0) -> Iterator[str]:
    """A shell command wrapped with backslashes before options; an option stays with its value if that has room.

    The first line leaves `lead` columns for what stands before it. A comment at the end stays whole.
    """
    command, mark, remark = command.partition("  # ")
    parts: list[str] = []
    for word in shlex.split(command, posix=False):
        joined = f"{parts[-1]} {word}" if parts else word
        if parts and not word.startswith("--") and (lead if len(parts) == 1 else 0) + len(joined) + 4 <= width:
            parts[-1] = joined
        else:
            parts.append(word)
    line = parts[0]
    for part in [*parts[1:], *([f"# {remark}"] if mark else [])]:
        if lead + len(line) + len(part) + len("  \\") > width:
            yield f"{line} \\"
            line, lead = f"  {part}", 0
        else:
            line = f"{line} {part}"
    yield line


def told_width() -> bool:
    """Whether the environment says how wide lines are (COLUMNS), also of a pipe."""
    return os.environ.get("COLUMNS", "").isdigit()


def terminal() -> Console | None:
    """The terminal, or a pipe whose width is told; None for a file or any other pipe."""
    console = Console()
    return console if console.is_terminal or told_width() else None
