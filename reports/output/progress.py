"""Progress: a line on the terminal that says what is being worked out, once it takes longer than a second."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 1.0
"""Seconds before anything is said."""


@contextmanager
def told() -> Iterator[Callable[[str], None]]:
    """Something to tell steps to: they are shown where standard error is a terminal, and gone at the end."""
    from rich.console import Console

    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    start = time.monotonic()
    with console.status("") as status:
        status.stop()

        def tell(text: str) -> None:
            status.update(f"{text} ...")
            if time.monotonic() - start > PATIENCE:
                status.start()

        yield tell
