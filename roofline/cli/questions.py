"""The commands `roofline analyze`, `solve`, `sensitivity`, `explain` and `compare`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import (
    FORMAT,
    AnswerFormat,
    AtChoice,
    AtOption,
    DisaggregationOption,
    FormatOption,
    MetricChoice,
    OutputFormat,
    OutputOption,
    TotalOption,
    TpotOption,
    TtftOption,
    emit,
    print_document,
    rendered,
    seconds,
)
from roofline.cli.scenario_options import is_plain, parse_scenarios, scenario_command

if TYPE_CHECKING:
    from roofline.scenario.scenario import Scenario

PhaseChoice = StrEnum("PhaseChoice", ["PREFILL", "DECODE", "BOTH"])


@scenario_command
def analyze(
    scenario: Scenario,
    phase: Annotated[PhaseChoice, typer.Option(help="Phases to show.")] = PhaseChoice.BOTH,
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Predict latency, throughput and memory of a model.

    Every operator of prefill and decode on the roofline, its expected time, memory, and the whole generation.
    """
    from roofline import analyze as analyze_scenario
    from roofline.reports.documents.analysis import analysis_document

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

    return rendered(analysis_parts(document), to_terminal)


class Question(StrEnum):
    """Questions of `roofline solve`."""

    MAX_BATCH = "max-batch"
    MAX_CONTEXT = "max-context"
    MAX_RATE = "max-rate"
    MAX_CONCURRENCY = "max-concurrency"
    MIN_GPUS = "min-gpus"
    MIN_MEMORY = "min-memory"
    MIN_BANDWIDTH = "min-bandwidth"
    MIN_PEAK = "min-peak"
    MAX_BITS = "max-bits"
    MIN_BITS = "min-bits"
    MAX_DRAFT = "max-draft"
    BREAK_EVEN = "break-even"
    CROSSOVER = "crossover"


QuestionArgument = Annotated[Question, typer.Argument(metavar="QUESTION", help=f"{', '.join(Question)}.")]
ThroughputOption = Annotated[float | None, typer.Option(help="Minimum tokens/s of all sequences.")]
IgnoreMemoryOption = Annotated[bool, typer.Option("--ignore-memory", help="Allow more than the device memory.")]
AgainstOption = Annotated[
    str | None,
    typer.Option(
        metavar="OPTIONS",
        help="break-even: the other scenario, as the options that differ, such as '--quant awq --with none'; ''"
        " is the plain one, without --with, formats, fusions and --offload.",
    ),
]
ComparedOption = Annotated[MetricChoice, typer.Option(help="break-even: the metric to compare.")]
ChipsOption = Annotated[
    bool, typer.Option("--chips/--no-chips", help="min-memory, -bandwidth, -peak: list hardware that suffices.")
]


@scenario_command
def solve(
    context_: typer.Context,
    question: QuestionArgument,
    scenario: Scenario,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    total: TotalOption = None,
    tokens_per_s: ThroughputOption = None,
    ignore_memory: IgnoreMemoryOption = False,
    at: AtOption = AtChoice.MID,
    against: AgainstOption = None,
    metric: ComparedOption = MetricChoice.TOTAL,
    chips: ChipsOption = True,
    disaggregation: DisaggregationOption = None,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Find the setting that just meets latency targets.

    The largest batch, the longest prompt, the fewest devices, the lowest bandwidth, and so on. Each answer is verified
    by simulation, as is the next value, which misses a target.
    """
    from roofline.reports.documents import solve as page
    from roofline.serving.pools import parse_pools
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
        raise typer.BadParameter("break-even requires it, and no other question takes it", param_hint="--against")
    of_a_load = question in (Question.MAX_RATE, Question.MAX_CONCURRENCY)
    if disaggregation is not None and not of_a_load:
        raise typer.BadParameter("max-rate and max-concurrency alone take it", param_hint="--disaggregation")
    hardware, other = None if chips else (), None
    match question:
        case Question.CROSSOVER:
            document = page.crossover_document(solver.crossover(scenario), scenario)
            print_document(document, page.crossover_blocks(document), format, output)
            return
        case _ if of_a_load:
            pools = None if disaggregation is None else parse_pools(disaggregation)
            found = getattr(solver, question.replace("-", "_"))(scenario, targets, pools)
            document = page.load_document(found, scenario, targets)
            print_document(document, page.load_blocks(document), format, output)
            return
        case Question.BREAK_EVEN:
            other = parse_scenarios([against or ""], context_.params)[0]
            answer = solver.break_even(scenario, other, targets, str(metric))
        case Question.MIN_MEMORY | Question.MIN_BANDWIDTH | Question.MIN_PEAK:
            answer = getattr(solver, question.replace("-", "_"))(scenario, targets, hardware)
        case _:
            answer = getattr(solver, question.replace("-", "_"))(scenario, targets)
    document = page.answer_document(answer, scenario, targets, other)
    print_document(document, page.answer_blocks(document), format, output)


@scenario_command
def sensitivity(
    scenario: Scenario,
    step: Annotated[float, typer.Option(help="Relative step of central differences.")] = 0.01,
    at: AtOption = AtChoice.MID,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Compute elasticities of latency, throughput and memory.

    The percent change of TTFT, TPOT, total, tokens/s and memory per percent of bandwidth, peak, link, launch, host
    time, batch, lengths and bits: for expected times and for the bound.
    """
    from roofline.reports.documents import sensitivity as page
    from roofline.whatif.sensitivities import sensitivity as elasticities

    expected = scenario.convention == "physical"
    readings = [AtChoice.BOUND] if at is AtChoice.BOUND or not expected else [at, AtChoice.BOUND]
    found = {str(reading): elasticities(scenario, reading.value, step) for reading in readings}
    document = page.sensitivity_document(found, scenario, step)
    print_document(document, page.sensitivity_blocks(document), format, output)


def _metric(context: typer.Context, name: str) -> str:
    """The metric; with --definitions, prints them and exits. Arguments are read after all options that were given."""
    if context.params.get("definitions"):
        from roofline.reports.documents import explain as page

        format = AnswerFormat(context.params.get("format") or AnswerFormat.TABLE)
        print_document(page.definitions_document(), page.definitions(), format, context.params.get("output"))
        raise typer.Exit
    if not name:
        raise typer.BadParameter("missing: name a metric or an operator", param_hint="METRIC")
    return name


@scenario_command
def explain(
    metric: Annotated[
        str,
        typer.Argument(
            metavar="METRIC",
            help="ttft, tpot, total, tokens_per_s, memory, or an operator's name.",
            callback=_metric,
            show_default=False,
        ),
    ] = "",
    *,
    scenario: Scenario,
    phase: Annotated[PhaseChoice, typer.Option(help="Phase of the operator: prefill or decode.")] = PhaseChoice.PREFILL,
    definitions: Annotated[  # noqa: ARG001 - the callback of the metric handles it
        bool, typer.Option("--definitions", help="Define every metric and exit.")
    ] = False,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Explain a metric or an operator, formula by formula.

    Formulas with the scenario's numbers, the bound, assumptions and sources, and commands that measure the same on real
    hardware. For an operator also its tensors, its roofs, and its kernel with calibrated constants.
    """
    from roofline import analyze as analyze_scenario
    from roofline.reports.documents import explain as page
    from roofline.whatif.explanation import explain as explain_metric

    if phase is PhaseChoice.BOTH:
        raise typer.BadParameter("an operator is explained in one phase: prefill or decode", param_hint="--phase")
    analysis = analyze_scenario(scenario)
    document = page.explain_document(explain_metric(analysis, metric, str(phase)), analysis)
    print_document(document, page.explain_blocks(document), format, output)


def compare(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="Two or more, each quoted: MODEL --hw HW [OPTIONS], as for `roofline analyze`. Options missing in a"
            " later one are those of the first, so '--hw h200-sxm' suffices; '' is the first one without --with,"
            " formats, fusions and --offload.",
        ),
    ],
    metric: Annotated[MetricChoice, typer.Option(help="Metric whose difference is explained.")] = MetricChoice.TOTAL,
    top: Annotated[int, typer.Option(min=1, help="Operators to show; the others are summed.")] = 12,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Compare scenarios, with their difference by operator.

    JSON has every operator, for TTFT, the mean decode step and the total.
    """
    from roofline import analyze as analyze_scenario
    from roofline.reports.documents import compare as page

    if len(scenarios) < 2:
        raise typer.BadParameter("a comparison needs two or more scenarios, each in quotation marks")
    analyses = [analyze_scenario(scenario) for scenario in parse_scenarios(scenarios)]
    labels = ["plain" if is_plain(text.split()) else text for text in scenarios]
    document = page.compare_document(analyses, labels, None if format is AnswerFormat.JSON else top)
    print_document(document, page.compare_blocks(document, str(metric)), format, output)
