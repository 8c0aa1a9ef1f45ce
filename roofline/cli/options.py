"""Options that several commands share, and output to the terminal or a file."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.core.errors import visible

PIPED_WIDTH = 130
"""Columns of a table in a file or a pipe: wide enough for the longest operator names."""

OutputFormat = StrEnum("OutputFormat", ["TABLE", "JSON", "CSV", "MARKDOWN"])
AnswerFormat = StrEnum("AnswerFormat", ["TABLE", "JSON", "MARKDOWN"])
MetricChoice = StrEnum("MetricChoice", ["TTFT", "TPOT", "TOTAL"])


class AtChoice(StrEnum):
    """Reading of times: the bound, or p10, p50 or p90 of expected times."""

    BOUND = "bound"
    LOW = "low"
    MID = "mid"
    HIGH = "high"


ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model: its name, a Hugging Face repository, a spec file, config.json or checkpoint.",
    ),
]
HardwareOption = Annotated[
    str, typer.Option("--hw", metavar="HW", help="Hardware: a name, also with a count as in 8xH200, or a spec file.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write to this file instead of the terminal.")
]
FORMAT = typer.Option("--format", help="Output format.")
FormatOption = Annotated[AnswerFormat, FORMAT]
AtOption = Annotated[
    AtChoice, typer.Option("--at", help="Times: the bound, or expected p10, p50, p90 (low, mid, high).")
]


def rendered(parts: list[Any], to_terminal: bool) -> str:
    """The parts as text: in the terminal's width and colours, or plain for a file."""
    from rich.console import Console

    from roofline.reports.output.terminal import render

    if not to_terminal:
        return render(parts)
    console = Console()
    return render(parts, console if console.is_terminal else Console(width=PIPED_WIDTH))


def say(text: str, err: bool = False) -> None:
    """Print lines that name files or specs, with visible control characters."""
    typer.echo("\n".join(map(visible, text.split("\n"))), err=err)


def emit(text: str, output: Path | None) -> None:
    """Print `text`, or write it to a file; raises RooflineError if the file cannot be written."""
    if output is None:
        typer.echo(text, nl=False)
        return
    from roofline.core.files import write_output

    write_output(output, text)


def _limit(name: str, metric: str) -> Any:
    return Annotated[str | None, typer.Option(name, metavar="TIME", help=f"Maximum {metric}, such as 500ms.")]


LENGTHS = "2000, uniform:128:1024, lognormal:mean=512,p95=1500, exponential:mean=300, or a CSV file of length,count."

PrefixHitsOption = Annotated[float, typer.Option(help="Fraction of each prompt in the prefix cache.")]
DisaggregationOption = Annotated[
    str | None,
    typer.Option(
        metavar="KEY=VALUE,...",
        help="Prefill and decode on devices of their own: replicas of both (prefills=2,decodes=1), hardware and"
        " layout of decode (decode=h200-sxm,tp=8,ep=8,dp=1), the link of the KV cache (link=network or node).",
    ),
]
TtftOption = _limit("--ttft", "TTFT")
TpotOption = _limit("--tpot", "TPOT")
TotalOption = _limit("--total", "E2E latency of the batch")


def seconds(text: str | None) -> float | None:
    """The seconds of a time such as 500ms; raises RooflineError for other text."""
    from roofline.core.units import Dimension, parse_quantity

    return None if text is None else parse_quantity(text, Dimension.TIME).value


def rates(text: str) -> list[float]:
    """The rates of a text such as 4/s or 0.5:8:log9, in requests/s."""
    from roofline.whatif.axes import axis_of
    from roofline.whatif.options import Kind, Option

    return [
        float(value) for value in axis_of(Option("rate", Kind.NUMBER, (), 1e-6, 1e6), text.replace("/s", "")).values
    ]


def print_document(document: Mapping[str, Any], page: Any, format: StrEnum, output: Path | None) -> None:
    """Print a document, or write it to a file: as JSON, or as its `page`.

    That is a list of blocks, or a module with `as_csv`, `as_markdown` and `parts`.
    """
    from roofline.reports.output import blocks, export

    listed = isinstance(page, list)
    match str(format):
        case "json":
            text = export.as_json(document)
        case "csv":
            text = page.as_csv(document)
        case "markdown":
            text = blocks.as_markdown(page) if listed else page.as_markdown(document)
        case _:
            text = rendered(blocks.parts(page) if listed else page.parts(document), output is None)
    emit(text, output)
