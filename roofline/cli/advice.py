"""The commands `roofline advise` and `roofline size`."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import (
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
    rendered,
)
from roofline.cli.scenario_options import GenerateOption, PromptOption, scenario_command, with_scenario_options
from roofline.scenario.options import OPTIONS

if TYPE_CHECKING:
    from roofline.scenario.scenario import Scenario

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
    scenario: Scenario,
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
    from roofline.advisor import advise as recommend
    from roofline.reports.documents import advice as page
    from roofline.reports.output.terminal import progress_line

    load: dict[str, Any] = {"concurrency": concurrency, "rate": rate}
    limits: dict[str, Any] = {"ttft": ttft, "tpot": tpot, "total": total, "memory": memory, "gpus": gpus}
    goal: dict[str, Any] = {**load, **limits, "budget": budget, "at": at.value, "vary_batch": vary_batch}
    goal |= {"objective": str(objective), "quality": str(quality)}
    with progress_line() as progress:
        advice = recommend(scenario, research=research, top=top, progress=progress, **goal)
        document = page.advice_document(advice, top)
    print_document(document, page.advice_blocks(document), format, output)


class SizeAt(StrEnum):
    """Expected times of a sizing: p50 or p90."""

    MID = "mid"
    HIGH = "high"


RateOption = Annotated[str | None, typer.Option(metavar="N", help="Requests/s, such as 4 or 4/s. [default: one user]")]
UsersOption = Annotated[int | None, typer.Option(metavar="N", help="Requests in flight: users who each have one.")]
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
SizeAtOption = Annotated[SizeAt, typer.Option(help="Expected times that meet the targets: p50, p90.")]


DEPLOYED = (
    *("tp", "pp", "ep", "dp", "quant", "with", "engine", "gpu_memory_utilization", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "enforce_eager"),
)
"""Options that every deployment of a sizing has where they are given; others are varied."""


@partial(with_scenario_options, names=DEPLOYED)
def size(
    model: ModelArgument,
    rate: RateOption = None,
    concurrency: UsersOption = None,
    prompt: PromptOption = OPTIONS["prompt"].otherwise,
    generate: GenerateOption = OPTIONS["generate"].default,
    prefix_hits: PrefixHitsOption = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    quantile: QuantileOption = "0.95",
    hw: HardwareNamesOption = None,
    price: PricesOption = None,
    quality: QualityOption = QualityChoice.CALIBRATED,
    at: SizeAtOption = SizeAt.MID,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
    **options: Any,
) -> None:
    """Choose a deployment for a request rate, for concurrent users, or for one user.

    Hardware, devices, parallelism, formats: the cheapest, with the fewest devices, the fastest and the most
    energy-efficient deployment, each with its runner-up and the price that would change the choice, under load as
    `roofline serve` predicts it.
    """
    from roofline.advisor.sizing.sizing import size as search_deployments
    from roofline.reports.documents import sizing as page
    from roofline.reports.output.terminal import progress_line

    lengths: dict[str, Any] = {"prompt": prompt, "generate": generate, "prefix_hits": prefix_hits}
    load: dict[str, Any] = {"rate": rate, "concurrency": concurrency, "ttft": ttft, "tpot": tpot, "quantile": quantile}
    search: dict[str, Any] = {"hw": hw, "quality": str(quality), "at": at.value, **options}
    prices = page.prices(price or [], rate is None and concurrency is None)
    with progress_line() as progress:
        report = lambda done, every: progress(f"configuration {done} of {every}")  # noqa: E731
        found = search_deployments(model, price=prices, progress=report, **lengths, **load, **search)
        document = page.sizing_document(found)
    print_document(document, page.sizing_blocks(document), format, output)
