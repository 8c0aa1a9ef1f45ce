"""What commands of the program share: the options that many have, and how an answer reaches the terminal or a file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

PIPED_WIDTH = 130
"""Columns of a table that goes to a file or another program: wide enough for the longest operator names."""


class OutputFormat(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MARKDOWN = "markdown"


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, a spec file or a config.json.")]
HardwareOption = Annotated[str, typer.Option("--hw", metavar="HW", help="Hardware: a name or a spec file.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
]


def drawn(parts: list[Any], to_terminal: bool) -> str:
    """The parts as text: as wide as the terminal, with its colours, or plain for a file."""
    from rich.console import Console

    from reports.terminal import render

    if not to_terminal:
        return render(parts)
    console = Console()
    return render(parts, console if console.is_terminal else Console(width=PIPED_WIDTH))


def emit(text: str, output: Path | None) -> None:
    """Print `text`, or write it to a file; raises RooflineError where that cannot be written."""
    if output is None:
        typer.echo(text, nl=False)
        return
    from reports.files import write_text

    write_text(output, text)
