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


class AnswerFormat(StrEnum):
    """How an answer to a question is printed."""

    TABLE = "table"
    JSON = "json"
    MARKDOWN = "markdown"


class AtChoice(StrEnum):
    """Where times are read: the speed of light, or the optimistic end, middle or pessimistic end of expected ones."""

    BOUND = "bound"
    LOW = "low"
    MID = "mid"
    HIGH = "high"


class MetricChoice(StrEnum):
    """What two settings are compared by."""

    TTFT = "ttft"
    TPOT = "tpot"
    TOTAL = "total"


ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A model's name, a spec file or a config.json.")]
HardwareOption = Annotated[str, typer.Option("--hw", metavar="HW", help="Hardware: a name or a spec file.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
]
FormatOption = Annotated[AnswerFormat, typer.Option("--format", help="How to print.")]
AtOption = Annotated[AtChoice, typer.Option("--at", help="Read times at the bound or at expected low, mid or high.")]


def drawn(parts: list[Any], to_terminal: bool) -> str:
    """The parts as text: as wide as the terminal, with its colours, or plain for a file."""
    from rich.console import Console

    from roofline.reports.output.terminal import render

    if not to_terminal:
        return render(parts)
    console = Console()
    return render(parts, console if console.is_terminal else Console(width=PIPED_WIDTH))


def emit(text: str, output: Path | None) -> None:
    """Print `text`, or write it to a file; raises RooflineError where that cannot be written."""
    if output is None:
        typer.echo(text, nl=False)
        return
    from roofline.core.files import write_text

    write_text(output, text)


def time_option(name: str, meaning: str) -> Any:
    """An option that takes a time at most."""
    return typer.Option(name, metavar="TIME", help=f"{meaning} at most, such as 500ms.")


def seconds(text: str | None) -> float | None:
    """A time such as 500ms in seconds; raises RooflineError for anything else."""
    from roofline.core.units import Dimension, parse_quantity

    return None if text is None else parse_quantity(text, Dimension.TIME).value


def answered(document: dict[str, Any], blocks: list[Any], format: AnswerFormat, output: Path | None) -> None:
    """Print an answer, or write it to a file: `document` is its JSON, `blocks` its page."""
    from roofline.reports.output import blocks as page
    from roofline.reports.output import export

    match format:
        case AnswerFormat.JSON:
            emit(export.as_json(document), output)
        case AnswerFormat.MARKDOWN:
            emit(page.as_markdown(blocks), output)
        case _:
            emit(drawn(page.parts(blocks), output is None), output)
