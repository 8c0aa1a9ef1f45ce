"""Options that several commands share, and output to the terminal or a file."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.core.errors import visible

if TYPE_CHECKING:
    from roofline.scenario.scenario import Scenario

PIPED_WIDTH = 130
"""Columns of a table in a file or a pipe: wide enough for the longest operator names."""

OutputFormat = StrEnum("OutputFormat", ["TABLE", "JSON", "CSV", "MARKDOWN"])
AnswerFormat = StrEnum("AnswerFormat", ["TABLE", "JSON", "MARKDOWN"])
MetricChoice = StrEnum("MetricChoice", ["TTFT", "TPOT", "TOTAL"])
AtChoice = StrEnum("AtChoice", ["BOUND", "LOW", "MID", "HIGH"])
"""Reading of times: the bound, or p10, p50 or p90 of expected times."""

ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A model: its name, a Hugging Face repository, a spec file, config.json or checkpoint."
    ),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
]
RateOption = Annotated[
    str | None, typer.Option("--rate", metavar="N", help="Requests/s that arrive, such as 4 or 4/s.")
]
FORMAT = typer.Option("--format", help="Output format.")
FormatOption = Annotated[AnswerFormat, FORMAT]
AtOption = Annotated[
    AtChoice, typer.Option("--at", help="Times: the bound, or expected p10, p50, p90 (low, mid, high).")
]
VerboseOption = Annotated[bool, typer.Option("--verbose", "-v", help="Say where figures come from.")]
TotalOption = Annotated[
    str | None, typer.Option("--total", metavar="TIME", help="Maximum E2E latency of the batch, such as 500ms.")
]


def fitting(scenario: Scenario, **load: Any) -> Scenario:
    """The scenario of a command under load, or where it does not fit as asked what an answer chooses, which is said.

    `load` are options of `serve`; of several loads the largest is what is chosen for.
    """
    from roofline.advisor.fitting import written
    from roofline.serving.options import LOAD_OPTIONS, load_values
    from roofline.verdict.asked import fitted

    for name in ("concurrency", "rate"):
        if load.get(name) is not None:
            load[name] = max(load_values(LOAD_OPTIONS[name], str(load[name])))
    if load.get("rate") is None:
        load["concurrency"] = load.get("concurrency") or 1
    found = fitted(scenario, **load)
    if found.options:
        say(f"roofline: it does not fit as asked; chosen: {written(found.options)}", err=True)
    return found.scenario


def rendered(parts: list[Any], *, to_terminal: bool) -> str:
    """The parts as text: in the terminal's width and colours, or plain for a file."""
    from rich.console import Console

    from roofline.reports.output.terminal import render, terminal

    if not to_terminal:
        return render(parts)
    return render(parts, terminal() or Console(width=PIPED_WIDTH))


def say(text: str, err: bool = False) -> None:
    """Print lines that name files or specs, with visible control characters; those on a terminal wrap at blanks."""
    lines = map(visible, text.split("\n"))
    if err and sys.stderr.isatty():
        width = shutil.get_terminal_size().columns
        wrap = partial(
            textwrap.fill, width=width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
        lines = map(wrap, lines)
    typer.echo("\n".join(lines), err=err)


def emit(text: str, output: Path | None) -> None:
    """Print `text`, or write it to a file; raises RooflineError if the file cannot be written."""
    if output is None:
        typer.echo(text, nl=False)
        return
    from roofline.core.files import write_output

    write_output(output, text)


def print_answer(answer: Any, format: StrEnum, output: Path | None) -> None:
    """Print the answer of a verb, or write it to a file: as JSON, or as its blocks."""
    from roofline.reports.answers import page

    document, blocks = page(answer)
    print_document(document, blocks, format, output)


def print_document(
    document: Mapping[str, Any], page: Any, format: StrEnum, output: Path | None, as_csv: Any = None
) -> None:
    """Print a document, or write it to a file: as JSON, or as its `page`.

    That is a list of blocks, of which `as_csv` makes CSV, or a module with `as_csv`, `as_markdown` and `parts`.
    """
    from roofline.reports.output import blocks, export

    listed = isinstance(page, list)
    match str(format):
        case "json":
            text = export.as_json(document)
        case "csv":
            text = (as_csv or page.as_csv)(document)
        case "markdown":
            text = blocks.as_markdown(page) if listed else page.as_markdown(document)
        case _:
            text = rendered(blocks.parts(page) if listed else page.parts(document), to_terminal=output is None)
    emit(text, output)
