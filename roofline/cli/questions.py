"""The commands `roofline analyze`, `solve`, `sensitivity`, `explain` and `compare`."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import (
    FORMAT,
    AnswerFormat,
    AtChoice,
    AtOption,
    FormatOption,
    MetricChoice,
    OutputFormat,
    OutputOption,
    TotalOption,
    VerboseOption,
    emit,
    fitting,
    print_answer,
    print_document,
    rendered,
)
from roofline.cli.scenario_options import (
    SESSION_PARAMETERS,
    DisaggregationOption,
    TpotOption,
    TtftOption,
    is_plain,
    lacks_value,
    names_hardware,
    parse_scenarios,
    scenario_command,
)
from roofline.core.errors import RooflineError
from roofline.serving.sessions.options import SESSION_OPTIONS

if TYPE_CHECKING:
    from roofline.scenario.scenario import Scenario

PhaseChoice = StrEnum("PhaseChoice", ["PREFILL", "DECODE", "BOTH"])


OpsOption = Annotated[bool, typer.Option("--ops", help="List the operators of both phases.")]


@scenario_command
def analyze(
    scenario: Scenario,
    phase: Annotated[PhaseChoice, typer.Option(help="Phases to show.")] = PhaseChoice.BOTH,
    ops: OpsOption = False,
    verbose: VerboseOption = False,
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Predict latency, throughput and memory of a model.

    Memory, the whole generation, and with --ops every operator of prefill and decode on the roofline, with its expected
    time; JSON, CSV and Markdown have the operators anyway.
    """
    from roofline import analyze as analyze_scenario
    from roofline.reports.documents import analysis as page

    phases = ("prefill", "decode") if phase is PhaseChoice.BOTH else (str(phase),)
    if phase is PhaseChoice.DECODE and scenario.model.task != "generate":
        raise typer.BadParameter(f"{scenario.model.name} only encodes and has no decode phase", param_hint="--phase")
    document = page.analysis_document(analyze_scenario(scenario), phases)
    if format is OutputFormat.TABLE:
        emit(rendered(page.parts(document, ops, verbose), to_terminal=output is None), output)
    else:
        print_document(document, page, format, output)


class Question(StrEnum):
    """Questions of `roofline solve`: the names of the functions of `roofline.whatif.solve`, with dashes."""

    MAX_BATCH = "max-batch"
    MAX_CONTEXT = "max-context"
    MAX_RATE = "max-rate"
    MAX_CONCURRENCY = "max-concurrency"
    MAX_SESSIONS = "max-sessions"
    MIN_GPUS = "min-gpus"
    MIN_MEMORY = "min-memory"
    MIN_BANDWIDTH = "min-bandwidth"
    MIN_PEAK = "min-peak"
    MAX_BITS = "max-bits"
    MIN_BITS = "min-bits"
    MAX_DRAFT = "max-draft"
    BREAK_EVEN = "break-even"
    CROSSOVER = "crossover"


USUAL = {"fits": True, "at": "mid", "metric": "total"}
"""Arguments of the questions where no option is given."""

FLAGS = {
    "fits": "--ignore-memory",
    "pools": "--disaggregation",
    "other": "--against",
    "chips": "--no-chips",
    **{name: f"--{name.replace('_', '-')}" for name in ("at", "metric", "ttft", "tpot", "total", "tokens_per_s")},
    **{name: option.flag for name, option in SESSION_OPTIONS.items()},
}
"""The flags by the argument of a question."""


SHAPE = {name: entry for name, entry in SESSION_PARAMETERS.items() if name not in ("sessions", "session_rate")}
"""What sessions are like, and their cache: for max-sessions."""


@partial(scenario_command, keywords=SHAPE)
def solve(
    question: Annotated[Question, typer.Argument(metavar="QUESTION", help=f"{', '.join(Question)}.")],
    scenario: Scenario,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    total: TotalOption = None,
    tokens_per_s: Annotated[float | None, typer.Option(help="Minimum tokens/s of all sequences.")] = None,
    ignore_memory: Annotated[bool, typer.Option("--ignore-memory", help="Allow more than the device memory.")] = False,
    at: AtOption = AtChoice.MID,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="OPTIONS",
            help="break-even: the other scenario, as the options that differ, such as '--quant awq --with none'; ''"
            " is the plain one, without --with, formats, fusions and --offload.",
        ),
    ] = None,
    metric: Annotated[MetricChoice, typer.Option(help="break-even: the metric to compare.")] = MetricChoice.TOTAL,
    chips: Annotated[
        bool, typer.Option("--chips/--no-chips", help="min-memory, -bandwidth, -peak: list hardware that suffices.")
    ] = True,
    disaggregation: DisaggregationOption = None,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
    **session: Any,
) -> None:
    """Find the setting that just meets latency targets.

    The largest batch, the longest prompt, the fewest devices, the lowest bandwidth, and so on. Each answer is verified
    by simulation, as is the next value, which misses a target.
    """
    from roofline.whatif import solve as solver

    ask: Any = getattr(solver, question.replace("-", "_"))
    taken = signature(ask).parameters
    limits = {"ttft": ttft, "tpot": tpot, "total": total, "tokens_per_s": tokens_per_s}
    further = {"fits": not ignore_memory, "at": at.value, "metric": str(metric), "pools": disaggregation}
    options: dict[str, Any] = {**limits, **further, **session, "other": against, "chips": None if chips else ()}
    given = {name: value for name, value in options.items() if value != USUAL.get(name)}
    for name in given:
        many = solver.TargetOptions.__annotations__ if "limits" in taken else SHAPE if "options" in taken else ()
        if name not in taken and name not in many:
            raise RooflineError(f"{question} does not take {FLAGS[name]}")
    if question is Question.BREAK_EVEN:
        if against is None:
            raise typer.BadParameter("break-even requires it", param_hint="--against")
        given["other"] = parse_scenarios([against], scenario)[0]
    if question in (Question.MAX_RATE, Question.MAX_CONCURRENCY) and not ignore_memory:
        scenario = fitting(scenario, ttft=ttft, tpot=tpot, disaggregation=disaggregation)
    print_answer(ask(scenario, **given), format, output)


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
    from roofline.whatif.sensitivities import sensitivity as elasticities

    reading: Any = at.value if scenario.convention == "physical" else "bound"
    print_answer(elasticities(scenario, reading, step), format, output)


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
    verbose: VerboseOption = False,
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
    from roofline.reports.answers import page as answer_page
    from roofline.reports.documents.explain import without_assumptions
    from roofline.whatif.explanation import explain as explain_metric

    if phase is PhaseChoice.BOTH:
        raise typer.BadParameter("an operator is explained in one phase: prefill or decode", param_hint="--phase")
    found, blocks = answer_page(explain_metric(scenario, metric, str(phase)))
    if not verbose and format is AnswerFormat.TABLE:
        blocks = without_assumptions(blocks)
    print_document(found, blocks, format, output)


def compare(
    scenarios: Annotated[
        list[str],
        typer.Argument(
            metavar="SCENARIO...",
            help="Two or more, each quoted: MODEL HW [OPTIONS], as for `roofline analyze`. Options missing in a later"
            " one are those of the first, so h200-sxm or '--quant fp8' suffices; '' is the first one without --with,"
            " formats, fusions and --offload. MODEL HW HW compares hardware,"
            " MODEL MODEL HW models.",
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

    if apart := next(filter(lacks_value, scenarios), None):
        raise typer.BadParameter(f"{apart} is apart from its value: a scenario is in quotation marks, '{apart} VALUE'")
    devices = [] if " " in scenarios[0].strip() else [text for text in scenarios[1:] if names_hardware(text)]
    if devices:
        scenarios.remove(devices[0])
        scenarios[0] = f"{scenarios[0]} {devices[0]}"
    if len(scenarios) < 2:
        raise typer.BadParameter("a comparison needs two or more scenarios, each in quotation marks, or MODEL HW HW")
    analyses = [analyze_scenario(scenario) for scenario in parse_scenarios(scenarios)]
    labels = ["plain" if is_plain(text.split()) else text for text in scenarios]
    document = page.compare_document(analyses, labels, None if format is AnswerFormat.JSON else top)
    print_document(document, page.compare_blocks(document, str(metric)), format, output)
