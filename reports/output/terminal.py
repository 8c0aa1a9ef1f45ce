"""Terminal output with Rich: tables, and a progress line. Text from specs is never parsed as markup."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

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
        for whole, alike in groupby(parts, lambda part: isinstance(part, Text) and bool(part.no_wrap)):
            target.print(Group(*alike), markup=False, highlight=False, soft_wrap=whole)
    return capture.get()


def table(
    header: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, left: int = 1, width: int = 0
) -> Any:
    """A plain table whose first `left` columns are left-aligned and the others right-aligned.

    Wide columns wrap and are never truncated. `width` limits the characters; then only the first column wraps.
    """
    drawn = Table(
        box=SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False, title_style="bold", padding=(0, 0, 0, 1)
    )
    for index, name in enumerate(header):
        drawn.add_column(
            Text(name), justify="left" if index < left else "right", no_wrap=width > 0 and index > 0, overflow="fold"
        )
    for row in rows:
        drawn.add_row(*(Text(printable(cell), style=BOUND_STYLE.get(cell, "")) for cell in row))
    return Constrain(drawn, width) if width else drawn
