"""`roofline advise` and `size`: what to change, and what to rent or buy."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from roofline.cli.options import (
    AnswerFormat,
    AtChoice,
    AtOption,
    FormatOption,
    ModelArgument,
    OutputOption,
    answered,
    drawn,
    seconds,
    time_option,
)
from roofline.cli.scenario_options import scenario_command

if TYPE_CHECKING:
    from roofline.whatif.request import Request


class ObjectiveChoice(StrEnum):
    """What advice is to make better."""

    TOTAL = "total"
    TTFT = "ttft"
    TPOT = "tpot"
    THROUGHPUT = "throughput"
    MEMORY = "memory"
    COST = "cost"
    ENERGY = "energy"


class QualityChoice(StrEnum):
    """How much changes may ask for."""

    LOSSLESS = "lossless"
    CALIBRATED = "calibrated"
    LOSSY = "lossy"
    RETRAIN = "retrain"


def _list_rules(asked: bool) -> None:
    if asked:
        from roofline.reports.documents import advice as page
        from roofline.reports.output import blocks

        typer.echo(drawn(blocks.parts(page.rules_blocks(page.rules_document())), True), nl=False)
        raise typer.Exit


def _usd_per_hour(text: str | None) -> float | None:
    """USD an hour: a number, with or without /h behind it; raises RooflineError."""
    from roofline.core.errors import RooflineError, quote

    if text is None:
        return None
    number = text.strip().removeprefix("$").removesuffix("USD/h").removesuffix("/h").strip()
    try:
        value = float(number)
    except ValueError:
        raise RooflineError(f"a budget is USD an hour, such as 20/h, got {quote(text)}") from None
    if not 0 < value < float("inf"):
        raise RooflineError(f"a budget must be above 0, got {quote(text)}")
    return value


@scenario_command
def advise(
    request: Request,
    objective: Annotated[ObjectiveChoice, typer.Option(help="What is to get better.")] = ObjectiveChoice.TOTAL,
    ttft: Annotated[str | None, time_option("--ttft", "Time to first token")] = None,
    tpot: Annotated[str | None, time_option("--tpot", "Time per output token")] = None,
    total: Annotated[str | None, time_option("--total", "Time of the whole batch")] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Memory of a device at most, such as 80GB.")
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Devices at most. [default: as many as the scenario has]")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="USD/h", help="Rent of all devices at most, such as 20/h.")
    ] = None,
    quality: Annotated[
        QualityChoice, typer.Option(help="How much changes may ask for: each allows those before it.")
    ] = QualityChoice.CALIBRATED,
    at: AtOption = AtChoice.MID,
    vary_batch: Annotated[
        bool | None,
        typer.Option(
            "--vary-batch/--keep-batch",
            help="Whether other batches may be advised. [default: for throughput, cost and energy]",
        ),
    ] = None,
    research: Annotated[
        bool, typer.Option("--research", help="Also techniques that no document says the engine runs.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Single changes shown.")] = 5,
    list_rules: Annotated[  # noqa: ARG001 - its callback does all
        bool,
        typer.Option("--list-rules", help="List the advisor's rules and exit.", callback=_list_rules, is_eager=True),
    ] = False,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Advise what to change: simulated gains, what they ask for, where they stop, what is in vain, and a plan."""
    from roofline.advisor import Goal, Limits, Objective, Quality
    from roofline.advisor import advise as ask
    from roofline.core.units import Dimension, parse_quantity
    from roofline.reports.documents import advice as page
    from roofline.reports.output.progress import told

    limits = Limits(
        ttft=seconds(ttft),
        tpot=seconds(tpot),
        total=seconds(total),
        memory=None if memory is None else parse_quantity(memory, Dimension.BYTES).value,
        gpus=gpus,
        budget=_usd_per_hour(budget),
    )
    goal = Goal(Objective(objective), limits, Quality(quality), at.value, vary_batch)
    with told() as progress:
        document = page.advice_document(ask(request, goal, research=research, top=top, progress=progress), top)
    answered(document, page.advice_blocks(document), format, output)


class SizeAt(StrEnum):
    """Which expected times a sizing goes by."""

    LOW = "low"
    MID = "mid"
    HIGH = "high"


def size(
    model: ModelArgument,
    rate: Annotated[
        float | None, typer.Option(metavar="N", help="Requests a second. [default: one user, who waits]")
    ] = None,
    prompt: Annotated[
        str, typer.Option(metavar="LENGTH", help="Tokens: 2000, uniform:128:1024, lognormal:mean=512,p95=1500,")
    ] = "512",
    generate: Annotated[
        str, typer.Option(metavar="LENGTH", help="exponential:mean=300, or a CSV file of length,count.")
    ] = "128",
    ttft: Annotated[str | None, time_option("--ttft", "Time to first token, waits included,")] = None,
    tpot: Annotated[str | None, time_option("--tpot", "Time per output token")] = None,
    quantile: Annotated[
        str, typer.Option(metavar="SHARE", help="Share of requests that targets hold for, or mean.")
    ] = "0.95",
    hw: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Hardware to choose from. [default: all; one user: desktops]")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=USD", help="USD an hour of a device (one user: to buy it); repeatable."),
    ] = None,
    quality: Annotated[
        QualityChoice, typer.Option(help="How much formats may ask for: each allows those before it.")
    ] = QualityChoice.CALIBRATED,
    engine: Annotated[
        str | None, typer.Option(metavar="NAME", help="Engine. [default: vllm; on CPUs and Apple's llama.cpp]")
    ] = None,
    at: Annotated[SizeAt, typer.Option(help="Targets hold at expected low, mid or high.")] = SizeAt.MID,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Choose hardware, devices, parallelism, formats and batch for a service, or for one user.

    The cheapest, that of fewest devices, the fastest and the most efficient, with the runner-up of each and what would
    change the choice.
    """
    from roofline import load_model
    from roofline.advisor import Quality
    from roofline.advisor.sizing.sizing import size as choose
    from roofline.advisor.sizing.workload import Service, parse_quantile
    from roofline.reports.documents import sizing as page
    from roofline.reports.output.progress import told
    from roofline.whatif.options import names_in

    service = Service(rate, prompt, generate, seconds(ttft), seconds(tpot), parse_quantile(quantile))
    listed = None if hw is None else names_in(hw)
    given = page.prices(price or [], rate is None)
    with told() as tell:
        found = choose(
            load_model(model),
            service,
            listed,
            Quality(quality),
            given,
            engine,
            at.value,
            lambda done, every: tell(f"configuration {done} of {every}"),
        )
        document = page.sizing_document(found)
    answered(document, page.sizing_blocks(document), format, output)
