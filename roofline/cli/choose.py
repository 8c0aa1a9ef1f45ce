"""The command `roofline choose`: one decision, its alternatives under one load, and the verdict."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from roofline.cli.answer import RateOption
from roofline.cli.options import AnswerFormat, FormatOption, ModelArgument, OutputOption, print_answer
from roofline.cli.scenario_options import (
    PrefixHitsOption,
    ProfileOption,
    TiersOption,
    TpotOption,
    TtftOption,
    with_scenario_options,
)
from roofline.core.errors import RooflineError
from roofline.scenario.options import OPTIONS, STATIC

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
