"""`roofline analyze`, `solve`, `sensitivity`, `explain` and `compare`: questions about scenarios."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import (
    AnswerFormat,
    AtChoice,
    AtOption,
    FormatOption,
    MetricChoice,
    OutputFormat,
    OutputOption,
    answered,
    drawn,
    emit,
    seconds,
    time_option,
)
from roofline.cli.scenario_options import ConventionChoice, parse_scenarios, scenario_command

if TYPE_CHECKING:
    from roofline.whatif.request import Request


class PhaseChoice(StrEnum):
    """Which phases are shown."""

    PREFILL = "prefill"
    DECODE = "decode"
    BOTH = "both"


@scenario_command
def analyze(
    request: Request,
    phase: Annotated[PhaseChoice, typer.Option(help="Which phases to show.")] = PhaseChoice.BOTH,
    format: Annotated[OutputFormat, typer.Option(help="How to print.")] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Analyse a model on hardware: every operator on the roofline, both phases, memory and a whole generation."""
    from roofline import analyze as analyze_scenario
    from roofline.reports.documents.analysis import analysis_document

    scenario = request.scenario()
    phases = ("prefill", "decode") if phase is PhaseChoice.BOTH else (str(phase),)
    if phase is PhaseChoice.DECODE and scenario.model.task != "generate":
        raise typer.BadParameter(f"{scenario.model.name} only encodes and has no decode phase", param_hint="--phase")
    document = analysis_document(analyze_scenario(scenario), phases)
    emit(_rendered(document, format, output is None), output)


def _rendered(document: dict[str, Any], format: OutputFormat, to_terminal: bool) -> str:
    from roofline.reports.output import export

    match format:
        case OutputFormat.JSON:
            return export.as_json(document)
        case OutputFormat.CSV:
            return export.as_csv(document)
        case OutputFormat.MARKDOWN:
            return export.as_markdown(document)
    from roofline.reports.output.terminal import analysis_parts

    return drawn(analysis_parts(document), to_terminal)


class Question(StrEnum):
    """What `roofline solve` answers."""

    MAX_BATCH = "max-batch"
    MAX_CONTEXT = "max-context"
    MIN_GPUS = "min-gpus"
    MIN_MEMORY = "min-memory"
    MIN_BANDWIDTH = "min-bandwidth"
    MIN_PEAK = "min-peak"
    MAX_BITS = "max-bits"
    MIN_BITS = "min-bits"
    MAX_DRAFT = "max-draft"
    BREAK_EVEN = "break-even"
    CROSSOVER = "crossover"


@scenario_command
def solve(
    context_: typer.Context,
    question: Annotated[Question, typer.Argument(metavar="QUESTION", help=f"{', '.join(Question)}.")],
    request: Request,
    ttft: Annotated[str | None, time_option("--ttft", "Time to first token")] = None,
    tpot: Annotated[str | None, time_option("--tpot", "Time per output token")] = None,
    total: Annotated[str | None, time_option("--total", "Time of the whole batch")] = None,
    tokens_per_s: Annotated[float | None, typer.Option(help="Tokens a second of all sequences, at least.")] = None,
    ignore_memory: Annotated[bool, typer.Option("--ignore-memory", help="It need not fit in memory.")] = False,
    at: AtOption = AtChoice.MID,
    against: Annotated[
        str | None,
        typer.Option(metavar="OPTIONS", help="break-even: options that differ from these, '--quant awq' for one."),
    ] = None,
    metric: Annotated[MetricChoice, typer.Option(help="break-even: what is compared.")] = MetricChoice.TOTAL,
    chips: Annotated[
        bool, typer.Option("--chips/--no-chips", help="min-memory, -bandwidth, -peak: name known hardware that does.")
    ] = True,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Answer inverse questions: the largest batch, the longest prompt, the least bandwidth that meet targets.

    Each answer is simulated, and so is the next value, which misses a target.
    """
    from roofline.reports.documents import solve as page
    from roofline.whatif import solve as solver

    targets = solver.Targets(
        ttft=seconds(ttft),
        tpot=seconds(tpot),
        total=seconds(total),
        tokens_per_second=tokens_per_s,
        fits=not ignore_memory,
        at=at.value,
    )
    if (against is not None) is not (question is Question.BREAK_EVEN):
        raise typer.BadParameter("break-even, and it alone, needs the options to compare with", param_hint="--against")
    known = None if chips else ()
    match question:
        case Question.CROSSOVER:
            document = page.crossover_document(solver.crossover(request), request)
            answered(document, page.crossover_blocks(document), format, output)
            return
        case Question.BREAK_EVEN:
            other = parse_scenarios([against or ""], context_.params)[0]
            answer = solver.break_even(request, other, targets, str(metric))
        case Question.MIN_MEMORY:
            answer = solver.min_memory(request, targets, known)
        case Question.MIN_BANDWIDTH:
            answer = solver.min_bandwidth(request, targets, known)
        case Question.MIN_PEAK:
            answer = solver.min_peak(request, targets, known)
        case _:
            answer = getattr(solver, question.replace("-", "_"))(request, targets)
    document = page.answer_document(answer, request, targets)
    answered(document, page.answer_blocks(document), format, output)


@scenario_command
def sensitivity(
    request: Request,
    step: Annotated[float, typer.Option(help="Relative step of the central differences.")] = 0.01,
    at: AtOption = AtChoice.MID,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Show by how many percent times, rate and memory change with one percent of each setting.

    Elasticities of TTFT, TPOT and the rest to bandwidth, peak, links, launches, the host, batch, lengths and bits, at
    expected times and at the bound.
    """
    from roofline.reports.documents import sensitivity as page
    from roofline.whatif.sensitivity import sensitivity as respond

    expected = request.scenario().convention == ConventionChoice.PHYSICAL
    readings = [AtChoice.BOUND] if at is AtChoice.BOUND or not expected else [at, AtChoice.BOUND]
    found = {str(reading): respond(request, reading.value, step) for reading in readings}
    document = page.sensitivity_document(found, request, step)
    answered(document, page.sensitivity_blocks(document), format, output)


def _definitions(asked: bool) -> None:
    if asked:
        from roofline.reports.documents.explain import definitions
        from roofline.reports.output import blocks as page

        typer.echo(drawn(page.parts(definitions()), True), nl=False)
        raise typer.Exit


@scenario_command
def explain(
    metric: Annotated[
        str, typer.Argument(metavar="METRIC", help="ttft, tpot, total, tokens_per_s, memory, or an operator's name.")
    ],
    request: Request,
    phase: Annotated[PhaseChoice, typer.Option(help="Whose operator: prefill or decode.")] = PhaseChoice.PREFILL,
    definitions: Annotated[  # noqa: ARG001 - its callback does all
        bool,
        typer.Option("--definitions", help="Define every figure and exit.", callback=_definitions, is_eager=True),
    ] = False,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Take a figure apart: its formula with this scenario's numbers, what bounds it, and what it rests on.

    That is for an operator its tensors, its roofs, and its kernel with calibrated constants; for all the commands that
    measure the same on real hardware.
    """
    from roofline import analyze as analyze_scenario
    from roofline.reports.documents import explain as page
    from roofline.whatif.explain import explain as take_apart

    if phase is PhaseChoice.BOTH:
        raise typer.BadParameter("an operator is explained in one phase: prefill or decode", param_hint="--phase")
    analysis = analyze_scenario(request.scenario())
    document = page.explain_document(take_apart(analysis, metric, str(phase)), analysis)
    answered(document, page.explain_blocks(document), format, output)


def compare(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="Two or more, each in quotation marks: MODEL --hw HW [OPTIONS], as for `roofline analyze`."
            " What a later one leaves out is as in the first: '--hw h200-sxm' alone will do.",
        ),
    ],
    metric: Annotated[MetricChoice, typer.Option(help="What the difference is explained of.")] = MetricChoice.TOTAL,
    top: Annotated[int, typer.Option(min=1, help="Operators shown; the others are added up.")] = 12,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Compare scenarios side by side, with the operators that make the difference.

    JSON has every operator, for TTFT, the mean decode step and the whole.
    """
    from roofline import analyze as analyze_scenario
    from roofline.reports.documents import compare as page

    if len(scenarios) < 2:
        raise typer.BadParameter("a comparison needs two scenarios or more, each in quotation marks")
    analyses = [analyze_scenario(request.scenario()) for request in parse_scenarios(scenarios)]
    document = page.compare_document(analyses, scenarios, None if format is AnswerFormat.JSON else top)
    answered(document, page.compare_blocks(document, str(metric)), format, output)
