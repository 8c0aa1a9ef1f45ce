"""Tables for the terminal, drawn by Rich. Text from specs is never read as markup."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from roofline.reports.output.export import op_rows, phase_line, summary_lines

BOUND_STYLE = {"compute": "magenta", "memory": "cyan", "link": "yellow"}


def render(parts: Iterable[Any], console: Console | None = None) -> str:
    """The parts as text, with colours only where the given console has them."""
    target = console or Console(file=io.StringIO(), width=130)
    with target.capture() as capture:
        for whole, alike in groupby(parts, lambda part: isinstance(part, Text) and bool(part.no_wrap)):
            target.print(Group(*alike), markup=False, highlight=False, soft_wrap=whole)
    return capture.get()


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, left: int = 1, width: int = 0
) -> Any:
    """A plain table; the first `left` columns are text, the others are right-aligned figures.

    Where it is too wide its widest columns are broken, nothing is cut off. With a `width` it is at most so many
    characters wide, and only its first column gives way.
    """
    drawn = Table(
        box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, title_style="bold", padding=(0, 0, 0, 1)
    )
    for index, name in enumerate(header):
        drawn.add_column(
            Text(name),
            justify="left" if index < left else "right",
            no_wrap=width > 0 and index > 0,
            overflow="fold",
        )
    for row in rows:
        drawn.add_row(*(Text(_printable(cell), style=BOUND_STYLE.get(cell, "")) for cell in row))
    return Constrain(drawn, width) if width else drawn


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def analysis_parts(document: Mapping[str, Any]) -> list[Any]:
    """What `roofline analyze` shows: the answer, then one table a phase."""
    title = Text(_printable(f"{document['model']} on {document['hardware']}"), style="bold")
    parts: list[Any] = [title, *(Text(_printable(line)) for line in summary_lines(document)), Text()]
    for name, phase in document["phases"].items():
        header, rows = op_rows(phase)
        parts.append(table(header, rows, title=f"{name.capitalize()}: {phase_line(phase)}"))
    parts.append(Text("FLOP, bytes and times of one instance; share of the phase's bound time for all of them.", "dim"))
    return parts
