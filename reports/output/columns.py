"""Tables that know the width of the terminal: which columns are left out, in which order, and what shrinks.

A table that is too wide loses the columns of DROPPED, one after another, the first of the list first; then the 80%
intervals in its cells; then columns from the right. Words and numbers stay whole: left-aligned columns wrap between
words, and other columns do not wrap. A line below says what is left out; files, JSON, CSV and Markdown have it all.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct
from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

DROPPED = (
    *("sources", "meaning", "title", "attainable", "at TDP", "FLOP/B", "prefill", "running", "load", "KV"),
    *("queued", "preempted", "share of the change", "FLOP", "E2E p95", "int4", "fp4", "int8", "measured", "at bound"),
    *("supported", "prefill_bound", "decode_bound", "tokens_per_s_per_gpu", "formula", "fp8", "memory", "bytes"),
    *("count", "power per device", "tok/s/user", "TTFT p95", "TPOT p95", "J/token", "tok/s/GPU", "requires", "total"),
)
"""The columns that a narrow terminal leaves out, the first one first."""

READABLE = 16
"""Columns of text that a left-aligned column has at least, or its longest cell."""

MIN_TABLE = 2
"""Columns that every table has."""

ENDLESS = 10_000
"""The width of a table of which nothing wraps."""

_INTERVAL = re.compile(r" \([^()]* to [^()]*\)")


class Cells(Struct, frozen=True):
    """A table as texts: its first `left` columns are left-aligned; `out` are the names of what is left out."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    left: int
    out: tuple[str, ...] = ()

    @property
    def columns(self) -> list[list[str]]:
        """The lines of text of each column, its header first."""
        return [[*name.split("\n"), *(row[at] for row in self.rows)] for at, name in enumerate(self.header)]

    @property
    def widths(self) -> tuple[int, ...]:
        """The least columns of text of each column: left-aligned ones wrap between words, others do not."""
        found = [max(map(len, cells)) for cells in self.columns]
        for index, cells in enumerate(self.columns[: self.left]):
            found[index] = max(min(found[index], READABLE), *(len(word) for cell in cells for word in cell.split()), 0)
        return tuple(found)

    @property
    def width(self) -> int:
        """The least width of the table in columns of text: with two between columns, and one at each side."""
        return sum(self.widths) + 2 * len(self.header)

    def spread(self, width: int) -> list[int]:
        """The columns of text of each column in a width: what is left over goes to those that wrap most.

        Where even their least widths are too wide, long words, which are addresses, break in the widest column of text.
        """
        found = list(self.widths)
        for _ in range(self.width - width if self.left else 0):
            widest = max(range(self.left), key=found.__getitem__)
            found[widest] = max(found[widest] - 1, 1)
        whole = [max(map(len, cells)) for cells in self.columns[: self.left]] + found[self.left :]
        for _ in range(width - self.width):
            most = max(range(len(found)), key=lambda index: whole[index] - found[index])
            if whole[most] <= found[most]:
                break
            found[most] += 1
        return found

    def without(self, index: int) -> Cells:
        keep = [at for at in range(len(self.header)) if at != index]
        rows = tuple(tuple(row[at] for at in keep) for row in self.rows)
        out = (*self.out, self.header[index].replace("\n", ""))
        return Cells(tuple(self.header[at] for at in keep), rows, self.left - (index < self.left), out)

    def plain(self) -> Cells:
        """The table without the intervals in its cells."""
        rows = tuple(tuple(_INTERVAL.sub("", cell) for cell in row) for row in self.rows)
        return self if rows == self.rows else Cells(self.header, rows, self.left, (*self.out, "80% intervals"))

    def narrower(self) -> Iterable[Cells]:
        """The table, and narrower ones, each of which leaves out one thing more."""
        found = self
        yield found
        for name in DROPPED:
            while len(found.header) > MIN_TABLE and (at := _last(found.header, name)) > 0:
                found = found.without(at)
                yield found
        found = found.plain()
        yield found
        while len(found.header) > MIN_TABLE:
            found = found.without(len(found.header) - 1)
            yield found


def _last(header: Sequence[str], name: str) -> int:
    """The last column of a name, after the first; 0 for none."""
    return max((at for at, each in enumerate(header) if at and each.replace("\n", "") == name), default=0)


class FittedTable:
    """A table as a Rich renderable, which leaves out what does not fit."""

    def __init__(
        self, cells: Cells, title: str | None, style: Mapping[str, str], width: int = 0, last_left: bool = False
    ) -> None:
        self.cells, self.title, self.style, self.width = cells, title, style, width
        self.last_left = last_left

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement.get(console, options, self.drawn(self.cells))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(options.max_width, self.width or options.max_width)
        options = options.update_width(width)
        for cells in self.cells.narrower():
            if cells.width <= width:
                break
        yield from console.render(self.drawn(cells, width), options)
        if cells.out:
            yield Text(f"left out at {width} columns: {', '.join(cells.out)}", "dim")

    def drawn(self, cells: Cells, width: int = ENDLESS) -> Table:
        """The table of some cells in a width."""
        drawn = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
        drawn.title, drawn.title_justify, drawn.title_style = self.title, "left", "bold"
        for index, (name, columns) in enumerate(zip(cells.header, cells.spread(width), strict=True)):
            left = index < cells.left or (self.last_left and index == len(cells.header) - 1)
            drawn.add_column(Text(name), justify="left" if left else "right", width=columns, overflow="fold")
        for row in cells.rows:
            drawn.add_row(*(Text(cell, style=self.style.get(cell, "")) for cell in row))
        return drawn
