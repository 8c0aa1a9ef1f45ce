"""The commands `roofline advise` and `roofline size`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from roofline.cli.options import (
    LENGTHS,
    AnswerFormat,
    AtChoice,
    AtOption,
    FormatOption,
    ModelArgument,
    OutputOption,
    PrefixHitsOption,
    TotalOption,
    TpotOption,
    TtftOption,
    print_document,
    rates,
    rendered,
    seconds,
)
from roofline.cli.scenario_options import scenario_command

if TYPE_CHECKING:
    from roofline.whatif.request import Request

ObjectiveChoice = StrEnum(
    "ObjectiveChoice", ["TOTAL", "TTFT", "TPOT", "THROUGHPUT", "MEMORY", "COST", "ENERGY", "GOODPUT"]
)
QualityChoice = StrEnum("QualityChoice", ["LOSSLESS", "CALIBRATED", "LOSSY", "RETRAIN"])

QualityOption = Annotated[
    QualityChoice, typer.Option(help="Allowed effect on model quality: each level includes those before it.")
]


def _list_rules(requested: bool) -> None:
    if requested:
        from roofline.reports.documents import advice as page
        from roofline.reports.output import blocks

        typer.echo(rendered(blocks.parts(page.rules_blocks(page.rules_document())), True), nl=False)
        raise typer.Exit


def _usd_per_hour(text: str | None) -> float | None:
    """The number of a text such as 20, 20/h or $20 (USD/h); raises RooflineError."""
    from roofline.core.errors import RooflineError, quote

    if text is None:
        return None
    number = text.strip().removeprefix("$").removesuffix("USD/h").removesuffix("/h").strip()
    try:
        value = float(number)
    except ValueError:
        raise RooflineError(f"a budget is in USD/h, such as 20/h, got {quote(text)}") from None
    if not 0 < value < float("inf"):
        raise RooflineError(f"a budget must be above 0, got {quote(text)}")
    return value


ObjectiveOption = Annotated[ObjectiveChoice, typer.Option(help="The metric to improve.")]
VaryOption = Annotated[
    bool | None,
    typer.Option(
        "--vary-batch/--keep-batch",
        help="Consider other batch sizes, or keep it. [default: vary for throughput, cost and energy]",
    ),
]
ResearchOption = Annotated[
    bool, typer.Option("--research", help="Include techniques without documented support in the engine.")
]
TopOption = Annotated[int, typer.Option(min=1, help="Number of single changes to show.")]
RulesOption = Annotated[
    bool, typer.Option("--list-rules", help="List the advisor's rules and exit.", callback=_list_rules, is_eager=True)
]
InFlightOption = Annotated[
    int | None, typer.Option(metavar="N", help="Goodput: requests in flight. [default: the largest rate]")
]
ReachedRateOption = Annotated[
    str | None, typer.Option(metavar="N", help="Goodput: requests/s to reach, such as 4 or 4/s.")
]
MemoryLimitOption = Annotated[str | None, typer.Option(metavar="SIZE", help="Maximum memory per device, such as 80GB.")]
GpusOption = Annotated[
    int | None, typer.Option(min=1, help="Maximum number of devices. [default: those of the scenario]")
]
BudgetOption = Annotated[str | None, typer.Option(metavar="USD/h", help="Maximum rent of all devices, such as 20/h.")]


@scenario_command
def advise(
    request: Request,
    objective: ObjectiveOption = ObjectiveChoice.TOTAL,
    concurrency: InFlightOption = None,
    rate: ReachedRateOption = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    total: TotalOption = None,
    memory: MemoryLimitOption = None,
    gpus: GpusOption = None,
    budget: BudgetOption = None,
    quality: QualityOption = QualityChoice.CALIBRATED,
    at: AtOption = AtChoice.MID,
    vary_batch: VaryOption = None,
    research: ResearchOption = False,
    top: TopOption = 5,
    list_rules: RulesOption = False,  # noqa: ARG001 - handled by its callback
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Recommend changes with simulated gains, and a plan.

    Each recommendation has its gain, its requirements and the batch up to which it pays off. Changes without benefit
    are listed with reasons, and a plan combines those that help. The objective goodput is requests/s per device under
    load, with --ttft and --tpot at p95.
    """
    from roofline.advisor import Goal, Limits, Objective, Quality
    from roofline.advisor import advise as recommend
    from roofline.advisor.search.goodput import Demand
    from roofline.core.units import Dimension, parse_quantity
    from roofline.reports.documents import advice as page
    from roofline.reports.output.terminal import progress_line

    limits = Limits(
        ttft=seconds(ttft),
        tpot=seconds(tpot),
        total=seconds(total),
        memory=None if memory is None else parse_quantity(memory, Dimension.BYTES).value,
        gpus=gpus,
        budget=_usd_per_hour(budget),
    )
    loaded = concurrency is not None or rate is not None
    demand = Demand(concurrency, None if rate is None else rates(rate)[0]) if loaded else None
    goal = Goal(Objective(objective), limits, Quality(quality), at.value, vary_batch, demand=demand)
    with progress_line() as progress:
        advice = recommend(request, goal, research=research, top=top, progress=progress)
        document = page.advice_document(advice, top)
    print_document(document, page.advice_blocks(document), format, output)


class SizeAt(StrEnum):
    """Expected times of a sizing: p50 or p90."""

    MID = "mid"
    HIGH = "high"


RateOption = Annotated[str | None, typer.Option(metavar="N", help="Requests/s, such as 4 or 4/s. [default: one user]")]
UsersOption = Annotated[int | None, typer.Option(metavar="N", help="Requests in flight: users who each have one.")]
PromptOption = Annotated[str, typer.Option(metavar="LENGTH", help=f"Prompt tokens: {LENGTHS}")]
GenerateOption = Annotated[str, typer.Option(metavar="LENGTH", help="Generated tokens, written likewise.")]
QuantileOption = Annotated[
    str, typer.Option(metavar="FRACTION", help="Fraction of requests within the targets: 0.5, 0.95, 0.99 or mean.")
]
HardwareNamesOption = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Hardware to choose from. [default: all; for one user consumer hardware]"),
]
PricesOption = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=USD", help="USD/h of a device (one user: purchase price); repeatable."),
]
EngineOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Engine. [default: vllm; llama.cpp on CPUs, Apple silicon and of GGUF]"),
]
TpOption = Annotated[
    int | None,
    typer.Option("--tp", "--tensor-parallel-size", "-tp", min=1, help="Tensor-parallel devices. [default: 1 to 8]"),
]
PpOption = Annotated[
    int | None,
    typer.Option("--pp", "--pipeline-parallel-size", "-pp", min=1, help="Pipeline stages. [default: as needed]"),
]
EpOption = Annotated[
    int | None,
    typer.Option(min=1, help="Expert-parallel devices; beyond --tp, attention is data-parallel. [default: varied]"),
]
DpOption = Annotated[
    int | None, typer.Option("--dp", "--data-parallel-size", "-dp", min=1, help="Ranks of attention. [default: varied]")
]
QuantOption = Annotated[
    str | None, typer.Option(metavar="SCHEME", help="Quantization. [default: all that the engine runs there]")
]
WithOption = Annotated[
    list[str] | None,
    typer.Option("--with", metavar="NAME[:KEY=VALUE,...]", help="A technique, such as eagle-3; repeatable."),
]
SizeAtOption = Annotated[SizeAt, typer.Option(help="Expected times that meet the targets: p50, p90.")]


def size(
    model: ModelArgument,
    rate: RateOption = None,
    concurrency: UsersOption = None,
    prompt: PromptOption = "512",
    generate: GenerateOption = "128",
    prefix_hits: PrefixHitsOption = 0.0,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    quantile: QuantileOption = "0.95",
    hw: HardwareNamesOption = None,
    price: PricesOption = None,
    quality: QualityOption = QualityChoice.CALIBRATED,
    engine: EngineOption = None,
    tp: TpOption = None,
    pp: PpOption = None,
    ep: EpOption = None,
    dp: DpOption = None,
    quant: QuantOption = None,
    with_: WithOption = None,
    at: SizeAtOption = SizeAt.MID,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Choose a deployment for a request rate, for concurrent users, or for one user.

    Hardware, devices, parallelism, formats: the cheapest, with the fewest devices, the fastest and the most
    energy-efficient deployment, each with its runner-up and the price that would change the choice, under load as
    `roofline serve` predicts it.
    """
    from roofline import load_model
    from roofline.advisor import Quality
    from roofline.advisor.sizing.configurations import Given
    from roofline.advisor.sizing.sizing import size as search_deployments
    from roofline.advisor.sizing.workload import Service
    from roofline.reports.documents import sizing as page
    from roofline.reports.output.terminal import progress_line
    from roofline.specs.hardware import hardware_name
    from roofline.whatif.options import find_option, names_in

    requests = None if rate is None else rates(rate)[0]
    times = seconds(ttft), seconds(tpot)
    service = Service(requests, prompt, generate, *times, quantile, concurrency, prefix_hits)
    hardware = None if hw is None else list(map(hardware_name, names_in(hw)))
    prices = page.prices(price or [], service.alone)
    degrees = {"tensor": tp, "pipeline": pp, "expert": ep, "data": dp}
    chosen = {name: count for name, count in degrees.items() if count is not None}
    given = Given(chosen, find_option("quant").read(quant), tuple(find_option("with").read(with_)), model)
    with progress_line() as progress:
        report = lambda done, every: progress(f"configuration {done} of {every}")  # noqa: E731
        found = search_deployments(
            load_model(model), service, hardware, Quality(quality), prices, engine, at.value, report, given
        )
        document = page.sizing_document(found)
    print_document(document, page.sizing_blocks(document), format, output)
