"""The commands `roofline sweep`, `plot` and `report`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli.options import OutputOption, emit, say
from roofline.cli.scenario_options import with_scenario_options
from roofline.core.errors import RooflineError, alternatives, needs_extra, quote
from roofline.core.options import names_in

SweepFormat = StrEnum("SweepFormat", ["TABLE", "CSV", "JSONL", "PARQUET"])
SweepAt = StrEnum("SweepAt", ["EXPECTED", "BOUND"])
InvalidChoice = StrEnum("InvalidChoice", ["DROP", "KEEP"])

MANY_POINTS = 10**9
"""Points from which a sweep asks first: half an hour on one processor, at the least."""

ENDINGS = (".csv", ".jsonl", ".ndjson", ".parquet")
"""The endings of files that say their format."""

StudyArgument = Annotated[str | None, typer.Argument(metavar="[MODEL|STUDY]", help="A model, or a study file (YAML).")]
AtOption = Annotated[SweepAt | None, typer.Option(help="Expected times, or the bound. [default: expected]")]
WhereOption = Annotated[
    str | None,
    typer.Option(metavar="CONDITION", help="Keep rows such as 'fits and ttft < 500ms and memory < 0.9 * 80GB'."),
]
TitleOption = Annotated[str | None, typer.Option(help="Title. [default: generated]")]
OverOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AXIS=VALUES",
        help="An axis; repeatable: batch=1:256:log16, prompt=512,2048, tp=1:8, quant=W16,W4, hw=h100-sxm,mi300x or"
        " hw=all, with=none,eagle+awq. Any scenario option can be one, and model.",
    ),
]


@with_scenario_options
def sweep(
    model: StudyArgument = None,
    over: OverOption = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="ttft, tpot, step, total, tokens_per_s, tokens_per_s_per_gpu, tokens_per_s_per_user, sequences_per_s,"
            " memory[.weights, .kv, .state, .activations, .runtime, .usable], headroom, fits, supported, gpus, bound,"
            " energy[.prefill, .decode, .tdp, .tdp.prefill], power, cost[.processed]; ttft.bound, ttft.low, ttft.high"
            " and so on.",
        ),
    ] = None,
    at: AtOption = None,
    where: WhereOption = None,
    top: Annotated[int | None, typer.Option(help="Keep the best rows --by a metric.")] = None,
    by: Annotated[str | None, typer.Option(metavar="METRIC", help="The metric that --top ranks by.")] = None,
    pareto: Annotated[str | None, typer.Option(metavar="METRICS", help="Keep the Pareto front of these.")] = None,
    invalid: Annotated[
        InvalidChoice | None,
        typer.Option(help="Drop combinations that cannot run, or keep them as rows with an error. [default: drop]"),
    ] = None,
    format: Annotated[
        SweepFormat | None, typer.Option(help="Output format. [default: by file extension, else a table]")
    ] = None,
    output: OutputOption = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep completed chunks if interrupted, and continue from them.")
    ] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes on this machine.")] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on the cluster of a Dask scheduler: tcp://host:8786.")
    ] = None,
    chunk: Annotated[int | None, typer.Option(min=1, help="Points evaluated together.", hidden=True)] = None,
    yes: Annotated[bool, typer.Option("--yes", help=f"Do not ask before more than {MANY_POINTS:,} points.")] = False,
    **options: Any,
) -> None:
    """Evaluate a grid of scenarios over any axes.

    The result is a table, CSV, JSON Lines or Parquet; files have seconds and bytes. Options that are not an axis are
    fixed, with the defaults of `roofline analyze`.
    """
    from roofline.core.files import check_output
    from roofline.reports.tables import sweep as page
    from roofline.whatif.executors import pool
    from roofline.whatif.study import assemble
    from roofline.whatif.sweeps import CHUNK

    query = {"metrics": metrics, "at": at, "where": where, "top": top, "by": by, "pareto": pareto, "invalid": invalid}
    study = assemble(model, over or [], options, query)
    chosen = page.format_of(output) if format is None else str(format)
    if output is not None:
        check_output(output)
        if format is None and output.suffix and output.suffix.lower() not in ENDINGS:
            raise RooflineError(f"{quote(str(output), 200)} must end in {alternatives(ENDINGS)}", options=["format"])
    _ask(study.points, yes)
    with pool(workers, dask) as found, _hinting(output, resume):
        run = page.Run(found, chunk or CHUNK, resume, page.on_terminal())
        if chosen == "table":
            rows, tally = page.table_sweep(study, run)
            emit(page.table_text(study.question, rows, tally, output is None), output)
        elif output is None and sys.__stdout__ is None:
            raise RooflineError("standard output is closed: name a file with --output")
        else:
            tally = page.write_sweep(study, chosen, output, run)
    say(page.closing(study.question, tally), err=True)


def _ask(points: int, yes: bool) -> None:
    """Ask on a terminal whether a sweep of so many points is meant; elsewhere it takes --yes."""
    if points <= MANY_POINTS or yes:
        return
    size = f"the sweep has {points:,} points"
    if sys.stdin is None or not sys.stdin.isatty():
        raise RooflineError(f"{size}, more than {MANY_POINTS:,}: shorten an axis, or confirm with --yes")
    typer.confirm(f"{size}. Run it?", abort=True, err=True)


@contextmanager
def _hinting(output: Path | None, resume: bool) -> Iterator[None]:
    """Say what an interrupted sweep keeps, or could have kept."""
    from roofline.whatif.sweeps import LostWorkersError

    hint = "the same command continues from its complete chunks"
    if not resume:
        hint = f"with {'' if output else '--output and '}--resume, a sweep keeps its complete chunks"
    try:
        yield
    except LostWorkersError as error:
        raise LostWorkersError(f"{error}; {hint}") from None
    except KeyboardInterrupt:
        say(f"roofline: interrupted; {hint}", err=True)
        raise


@with_scenario_options
def plot(
    figure: Annotated[
        str,
        typer.Argument(
            metavar="FIGURE",
            help="Of a scenario: roofline, batch, prompt, memory. Of a sweep: heatmap, pareto, curves, bars, footprint."
            " Of serving under load: frontier."
            " Of hardware: roofs. Predictions against measurements: measured. Or a study file with a `figure` section.",
        ),
    ],
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL|STUDY|MEASUREMENTS]",
            help="A model; a study file; for `measured` a file of kernels or whole models, or the JSON of validate"
            " check.",
        ),
    ] = None,
    over: OverOption = None,
    metric: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Metrics of a sweep, as --metrics there. [default: tpot]")
    ] = None,
    pareto: Annotated[
        str | None,
        typer.Option(metavar="METRICS", help="Two metrics of a front. [default: tokens_per_s_per_user and _per_gpu]"),
    ] = None,
    x: Annotated[str | None, typer.Option("--x", metavar="AXIS", help="The horizontal axis.")] = None,
    y: Annotated[str | None, typer.Option("--y", metavar="AXIS", help="The vertical axis of a heat map.")] = None,
    at: AtOption = None,
    where: WhereOption = None,
    formats: Annotated[
        str | None, typer.Option(metavar="FORMATS", help="Roofs of these formats, such as fp16,int8. [default: all]")
    ] = None,
    title: TitleOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file: .svg, .png or .pdf.")] = Path("figure.svg"),
    **options: Any,
) -> None:
    """Plot a scenario, a sweep, hardware, or measurements.

    A study file with a `figure` section needs no further options: roofline plot STUDY.yaml.
    """
    with needs_extra("report"):
        from roofline.reports.figures import drawing, style
        from roofline.reports.figures.request import figure_spec_for
    spec, source = figure_spec_for(figure, source)
    spec = spec.with_options(metric=names_in(metric), x=x, y=y, formats=names_in(formats), title=title)
    style.check_ending(output)
    picture = drawing.draw(spec, source, over or [], options, {"at": at, "where": where, "pareto": pareto})
    style.save(picture.figure, output)
    say(f"wrote {output}")


@with_scenario_options
def report(
    source: StudyArgument = None,
    over: OverOption = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The file: .html or .md.")] = Path("report.html"),
    title: TitleOption = None,
    date: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="A date on the page. [default: none]")] = None,
    advice: Annotated[bool, typer.Option("--advice/--no-advice", help="Include advice with a plan.")] = True,
    **options: Any,
) -> None:
    """Write a report: interactive HTML, or Markdown.

    Results, operators on the roofline, the network, memory, times against batch and prompt, what-ifs, advice, accuracy,
    and the commands that reproduce it. The scenarios of a study, or of --over, are shown side by side. HTML is one
    file; Markdown has its figures in files beside it. Output is deterministic.
    """
    from roofline.reports.output.terminal import progress_line

    with needs_extra("report"):
        from roofline.reports.pages.write import write_report
    with progress_line() as progress:
        written = write_report(source, over or [], options, output, title, date, advice, progress)
    say(f"wrote {written[0]}" + (f" and {len(written) - 1} figures" if written[1:] else ""))
