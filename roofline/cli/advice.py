"""The commands `roofline advise`, `size` and `choose`: what to change, how much to take, and what to take."""

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
    RateOption,
    TotalOption,
    fitting,
    print_answer,
    rendered,
    say,
)
from roofline.cli.scenario_options import (
    GenerateOption,
    PrefixHitsOption,
    ProfileOption,
    PromptOption,
    TiersOption,
    TpotOption,
    TtftOption,
    scenario_command,
    with_scenario_options,
)
from roofline.core.errors import RooflineError
from roofline.core.options import names_in
from roofline.scenario.options import OPTIONS, STATIC
from roofline.serving.options import LOAD_OPTIONS

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

        typer.echo(rendered(blocks.parts(page.rules_blocks(page.rules_document())), to_terminal=True), nl=False)
        raise typer.Exit


RulesOption = Annotated[
    bool, typer.Option("--list-rules", help="List the advisor's rules and exit.", callback=_list_rules, is_eager=True)
]
BudgetOption = Annotated[str | None, typer.Option(metavar="USD/h", help="Maximum rent of all devices, such as 20/h.")]


@scenario_command
def advise(
    scenario: Scenario,
    objective: Annotated[
        ObjectiveChoice | None,
        typer.Option(help="The metric to improve. [default: total; goodput of a load]", show_default=False),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="Goodput: requests in flight. [default: the largest rate]")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="N", help="Goodput: requests/s to reach, such as 4 or 4/s.")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(metavar="N", help="Goodput: sessions of many turns, which find a cache.")
    ] = None,
    profile: Annotated[str | None, typer.Option(metavar="NAME|FILE", help="What the sessions are like.")] = None,
    tiers: Annotated[str | None, typer.Option(metavar="NAME=SIZE,...", help="Tiers of their cache: dram=1TB.")] = None,
    routing: Annotated[
        str | None, typer.Option(metavar="NAME", help="To data-parallel ranks: session, prefix or requests.")
    ] = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    total: TotalOption = None,
    memory: Annotated[str | None, typer.Option(metavar="SIZE", help="Maximum memory per device, such as 80GB.")] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of devices. [default: those of the scenario]")
    ] = None,
    budget: BudgetOption = None,
    quality: QualityOption = QualityChoice.CALIBRATED,
    at: AtOption = AtChoice.MID,
    vary_batch: Annotated[
        bool | None,
        typer.Option(
            "--vary-batch/--keep-batch",
            help="Consider other batch sizes, or keep it. [default: vary for throughput, cost and energy]",
        ),
    ] = None,
    research: Annotated[
        bool, typer.Option("--research", help="Include techniques without documented support in the engine.")
    ] = False,
    top: Annotated[int, typer.Option(min=1, help="Number of single changes to show.")] = 5,
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
    from roofline.reports.output.terminal import progress_line

    if objective is None:
        loaded = any(amount is not None for amount in (concurrency, rate, sessions))
        objective = ObjectiveChoice.GOODPUT if loaded else ObjectiveChoice.TOTAL
    load: dict[str, Any] = {"concurrency": concurrency, "rate": rate, "sessions": sessions}
    load |= {"profile": profile, "tiers": tiers, "routing": routing}
    limits: dict[str, Any] = {"ttft": ttft, "tpot": tpot, "total": total, "memory": memory, "gpus": gpus}
    goal: dict[str, Any] = {**load, **limits, "budget": budget, "at": at.value, "vary_batch": vary_batch}
    goal |= {"objective": str(objective), "quality": str(quality)}
    if objective is ObjectiveChoice.GOODPUT and sessions is None:
        scenario = fitting(scenario, concurrency=concurrency, rate=rate, ttft=ttft, tpot=tpot)
    with progress_line() as progress:
        advice = recommend(scenario, research=research, top=top, progress=progress, **goal)
        advice.plan  # noqa: B018 - found here, while its progress is shown
    print_answer(advice, format, output)


SizeAt = StrEnum("SizeAt", ["MID", "HIGH"])
"""Expected times of a sizing: p50 or p90."""

ServiceRateOption = Annotated[
    str | None, typer.Option(metavar="N", help="Requests/s, such as 4 or 4/s. [default: one user]")
]
UsersOption = Annotated[int | None, typer.Option(metavar="N", help="Requests in flight: users who each have one.")]


DEPLOYED = (
    *("tp", "pp", "ep", "dp", "quant", "with", "engine", "gpu_memory_utilization", "max_model_len", "max_num_seqs"),
    *("max_num_batched_tokens", "enforce_eager", "kv", "quantization", "images", "image_size", "audio"),
    "mm_encoder_tp_mode",
)
"""Options that every deployment of a sizing has where they are given; others are varied."""


@partial(with_scenario_options, names=DEPLOYED)
def size(
    model: ModelArgument,
    rate: ServiceRateOption = None,
    concurrency: UsersOption = None,
    prompt: PromptOption = OPTIONS["prompt"].otherwise,
    generate: GenerateOption = OPTIONS["generate"].default,
    prefix_hits: PrefixHitsOption = LOAD_OPTIONS["prefix_hits"].default,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    quantile: Annotated[
        str, typer.Option(metavar="FRACTION", help="Fraction of requests within the targets: 0.5, 0.95, 0.99 or mean.")
    ] = "0.95",
    hw: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="Hardware to choose from. [default: all; for one user consumer hardware]"),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=USD", help="USD/h of a device (one user: purchase price); repeatable."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(metavar="USD", help="Maximum rent of all devices: 20/h, 9000/month; one user: to buy, 2000."),
    ] = None,
    quality: QualityOption = QualityChoice.CALIBRATED,
    at: Annotated[SizeAt, typer.Option(help="Expected times that meet the targets: p50, p90.")] = SizeAt.MID,
    disaggregation: Annotated[
        bool, typer.Option("--disaggregation", help="Also prefill and decode apart: layouts and ratio for the rate.")
    ] = False,
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
    from roofline.reports.documents.sizing import prices
    from roofline.reports.output.terminal import progress_line

    lengths: dict[str, Any] = {"prompt": prompt, "generate": generate, "prefix_hits": prefix_hits}
    load: dict[str, Any] = {"rate": rate, "concurrency": concurrency, "ttft": ttft, "tpot": tpot, "quantile": quantile}
    search: dict[str, Any] = {"hw": hw, "quality": str(quality), "at": at.value, **options}
    search |= {"disaggregation": disaggregation, "budget": budget}
    usd = prices(price or [], rate is None and concurrency is None)
    from roofline.specs.hardware import load_devices

    for name in names_in(hw):
        device, count = load_devices(name)
        if count > 1:
            say(f"roofline: {name} has {count} x {device.name}; size finds how many of them serve the load", err=True)
    with progress_line() as progress:
        report = lambda done, every: progress(f"{done} of {every} configurations simulated; bounds rule out others")  # noqa: E731
        found = search_deployments(model, price=usd, progress=report, **lengths, **load, **search)
    print_answer(found, format, output)


WhatChoice = StrEnum(
    "WhatChoice", ["LAYOUT", "FORMAT", "ENGINE", "HARDWARE", "SPECULATION", "DISAGGREGATION", "OFFLOAD", "API"]
)
CALLED = {
    **dict.fromkeys(("parallelism", "tp"), "layout"),
    **dict.fromkeys(("quant", "quantization", "precision", "dtype"), "format"),
    **dict.fromkeys(("framework", "backend", "server"), "engine"),
    **dict.fromkeys(("hw", "gpu", "device", "accelerator"), "hardware"),
    **dict.fromkeys(("spec", "draft", "speculative"), "speculation"),
}
"""Other words for what is chosen."""

RankedBy = StrEnum("RankedBy", ["THROUGHPUT", "LATENCY", "TTFT", "TPOT", "COST"])

SERVED = tuple(name for name in OPTIONS if name not in STATIC and name not in ("model", "hw", "prefix"))
"""Options of a scenario that a deployment under load has."""


@partial(with_scenario_options, names=SERVED)
def choose(
    what: Annotated[str, typer.Argument(metavar="WHAT", help=f"{', '.join(WhatChoice)}.")],
    model: ModelArgument,
    hw: Annotated[
        str | None,
        typer.Option(metavar="HW", help="Hardware, also with a count as in 8xH200; to choose it several names."),
    ] = None,
    users: Annotated[int | None, typer.Option(metavar="N", help="Requests in flight. [default: 1]")] = None,
    rate: RateOption = None,
    objective: Annotated[
        RankedBy | None,
        typer.Option(help="What ranks. [default: throughput; latency of one user or a rate; cost of hardware and api]"),
    ] = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    prefix_hits: PrefixHitsOption = None,
    hours: Annotated[float, typer.Option(metavar="N", help="Hours of rent a month.")] = 730.0,
    api_price: Annotated[
        str | None, typer.Option(metavar="IN/OUT", help="api: USD per million tokens, also IN/CACHED/OUT.")
    ] = None,
    tiers: TiersOption = None,
    profile: ProfileOption = None,
    format: FormatOption = AnswerFormat.TABLE,
    output: OutputOption = None,
    **options: Any,
) -> None:
    """Choose a layout, format, engine, hardware, and so on, under load.

    Every alternative in one table: whether it fits, TTFT, TPOT, tokens/s a device, the cost of tokens and of a month.
    The verdict says how sure it is, and from which load on another is better. `choose offload --tiers` says how many
    sessions of a --profile each tier of the KV cache adds.
    """
    from roofline.advisor.choosing.decision import choose as decide
    from roofline.reports.output.terminal import progress_line

    what = CALLED.get(what.lower(), what.lower())
    load: dict[str, Any] = {"rate": rate, "ttft": ttft, "tpot": tpot, "prefix_hits": prefix_hits}
    asked: dict[str, Any] = {"objective": None if objective is None else str(objective), "hours": hours}
    given = {name.removesuffix("_"): value for name, value in options.items() if value is not None}
    if tiers is not None or profile is not None:
        if what != WhatChoice.OFFLOAD or tiers is None or profile is None:
            raise RooflineError("--tiers and --profile are of choose offload, which takes both")
        if users is not None or rate is not None or objective is not None:
            raise RooflineError("choose offload --tiers finds the most sessions: omit users, rate and objective")
        from roofline import Scenario
        from roofline.whatif.solve import max_sessions

        print_answer(
            max_sessions(Scenario(model, hw, **given), ttft, tpot, tiers=tiers, profile=profile), format, output
        )
        return
    with progress_line() as progress:
        found = decide(what, model, hw, users, api_price=api_price, progress=progress, **load, **asked, **given)
    print_answer(found, format, output)
