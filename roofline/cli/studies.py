"""`roofline sweep`, `plot` and `report`: many scenarios, pictures of them, and pages about them."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli.options import OutputOption, emit
from roofline.cli.scenario_options import options_of_a_scenario


class SweepFormat(StrEnum):
    """How the rows of a sweep are written."""

    TABLE = "table"
    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


class SweepAt(StrEnum):
    """Which times a sweep has."""

    EXPECTED = "expected"
    BOUND = "bound"


class InvalidChoice(StrEnum):
    """What becomes of combinations that cannot run."""

    DROP = "drop"
    KEEP = "keep"


@options_of_a_scenario
def sweep(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL|STUDY]", help="A model, or a YAML file that holds a study.")
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VALUES",
            help="An axis; repeatable: batch=1:256:log16, prompt=512,2048, tp=1:8, quant=W16,W4, hw=h100-sxm,mi300x or"
            " hw=all, with=none,eagle+awq. Any option below can be one; so can model.",
        ),
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="ttft, tpot, step, total, tokens_per_s, tokens_per_s_per_gpu, tokens_per_s_per_user, sequences_per_s,"
            " memory[.weights, .kv, .state, .activations], headroom, fits, gpus, bound, energy[.prefill, .decode, .tdp,"
            " .tdp.prefill], power, cost[.processed]; ttft.bound, ttft.low, ttft.high and so on.",
        ),
    ] = None,
    at: Annotated[
        SweepAt | None, typer.Option(help="Expected times, or the speed of light. [default: expected]")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(metavar="CONDITION", help="Only such rows: 'fits and ttft < 500ms and memory < 0.9 * 80GB'."),
    ] = None,
    top: Annotated[int | None, typer.Option(help="Only so many rows, the best --by a metric.")] = None,
    by: Annotated[str | None, typer.Option(metavar="METRIC", help="What --top ranks by.")] = None,
    pareto: Annotated[
        str | None, typer.Option(metavar="METRICS", help="Only rows that no other beats in all of these.")
    ] = None,
    invalid: Annotated[
        InvalidChoice | None,
        typer.Option(help="Drop combinations that cannot run, or keep them as rows with an error. [default: drop]"),
    ] = None,
    format: Annotated[
        SweepFormat | None, typer.Option(help="How to write the rows. [default: by the file's name; else a table]")
    ] = None,
    output: OutputOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what is done if cut off, and continue from what is there.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes of this machine to run on.")] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the cluster of this Dask scheduler: tcp://host:8786.")
    ] = None,
    chunk: Annotated[int | None, typer.Option(min=1, help="Points evaluated together.", hidden=True)] = None,
    **options: Any,
) -> None:
    """Evaluate every combination of any number of axes: a grid of what-ifs as a table, CSV, JSON lines or Parquet.

    Times in files are in seconds, memory in bytes. What is not an axis is fixed by the options below, with the
    defaults of `roofline analyze`.
    """
    from roofline.reports.tables import sweep as page
    from roofline.whatif.executors import pool
    from roofline.whatif.study import assemble

    study = assemble(
        model,
        over or [],
        {"with" if name == "technique" else name: value for name, value in options.items()},
        {"metrics": metrics, "at": at, "where": where, "top": top, "by": by, "pareto": pareto, "invalid": invalid},
    )
    chosen = page.format_of(output) if format is None else page.SweepFormat(format)
    with pool(workers, dask) as found:
        run = page.Run(found, chunk, resume, page.on_terminal())
        if chosen is page.SweepFormat.TABLE:
            rows, tally = page.table_sweep(study, run)
            emit(page.drawn(study.question, rows, tally, output is None), output)
        elif output is None:
            tally = page.stream_sweep(study, chosen, sys.stdout.buffer, run)
        else:
            tally = page.write_sweep(study, chosen, output, run)
    typer.echo(page.closing(study.question, tally), err=True)


@options_of_a_scenario
def plot(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="Of a scenario: roofline, batch, prompt, memory. Of a sweep: heatmap, pareto, curves, bars, footprint."
            " Of hardware: roofs. Of predictions beside measurements: measured. Or a study file that names one.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL|STUDY|MEASUREMENTS]",
            help="A model; a study file; for measured a file of kernels or whole models, or validate check's JSON.",
        ),
    ] = None,
    over: Annotated[
        list[str] | None, typer.Option(metavar="AXIS=VALUES", help="An axis of a sweep, as for roofline sweep.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAMES", help="What is drawn of a sweep, as --metrics there. [default: tpot]")
    ] = None,
    pareto: Annotated[
        str | None,
        typer.Option(metavar="METRICS", help="The two of a front. [default: tokens_per_s_per_user and _per_gpu]"),
    ] = None,
    x: Annotated[str | None, typer.Option("--x", metavar="AXIS", help="The axis that runs across.")] = None,
    y: Annotated[str | None, typer.Option("--y", metavar="AXIS", help="The axis that runs up a heat map.")] = None,
    at: Annotated[
        SweepAt | None, typer.Option(help="Expected times, or the speed of light. [default: expected]")
    ] = None,
    where: Annotated[str | None, typer.Option(metavar="CONDITION", help="Only such points of a sweep.")] = None,
    formats: Annotated[
        str | None, typer.Option(metavar="FORMATS", help="Only these roofs, such as fp16,int8. [default: all]")
    ] = None,
    title: Annotated[str | None, typer.Option(help="A title in place of the figure's own.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file: .svg, .png or .pdf.")] = Path("figure.svg"),
    **options: Any,
) -> None:
    """Draw a figure of a scenario, a sweep, hardware, or predictions beside measurements.

    A study file with a section `figure` is drawn as it says: roofline plot STUDY.yaml.
    """
    from roofline.core.errors import RooflineError
    from roofline.reports.figures.request import wish_for
    from roofline.whatif.options import names_in

    wish, source = wish_for(figure, source)
    wish = wish.with_options(metric=names_in(metric), x=x, y=y, formats=names_in(formats), title=title)
    try:
        from roofline.reports.figures import drawing, style
    except ModuleNotFoundError as error:
        raise RooflineError(f"this needs {error.name}: pip install 'llm-roofline[report]'") from None
    style.check_ending(output)
    given = {"with" if name == "technique" else name: value for name, value in options.items()}
    picture = drawing.draw(wish, source, over or [], given, {"at": at, "where": where, "pareto": pareto})
    style.save(picture.figure, output)
    typer.echo(f"wrote {output}")


@options_of_a_scenario
def report(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL|STUDY]", help="A model, or a study file: its scenarios, side by side."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=VALUES", help="Several scenarios side by side: hw=h100-sxm,h200-sxm; repeatable."),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file: .html or .md.")] = Path("report.html"),
    title: Annotated[str | None, typer.Option(help="A title in place of the report's own.")] = None,
    date: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="A date on the page. [default: none]")] = None,
    advice: Annotated[bool, typer.Option("--advice/--no-advice", help="What to change, with a plan.")] = True,
    **options: Any,
) -> None:
    """Write a report: one HTML file with knobs to turn, or Markdown with its figures in files beside it.

    The answer, operators under their roofs, the network, memory, times against batch and prompt, what-ifs, advice, how
    far off it may be, and the commands that give it again. The same input gives the same bytes.
    """
    from roofline.core.errors import RooflineError
    from roofline.reports.output.progress import told

    try:
        from roofline.reports.pages.write import write_report
    except ModuleNotFoundError as error:
        raise RooflineError(f"this needs {error.name}: pip install 'llm-roofline[report]'") from None
    given = {"with" if name == "technique" else name: value for name, value in options.items()}
    with told() as progress:
        written = write_report(source, over or [], given, output, title, date, advice, progress)
    typer.echo(f"wrote {written[0]}" + (f" and {len(written) - 1} figures" if written[1:] else ""))
