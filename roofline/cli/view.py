"""The command `roofline view`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from roofline.cli.answer import HardwareArgument, UsersOption
from roofline.cli.options import RateOption
from roofline.cli.scenario_options import (
    DisaggregationOption,
    PrefixHitsOption,
    TiersOption,
    TpotOption,
    TtftOption,
    with_scenario_options,
)
from roofline.core.errors import RooflineError, needs_extra
from roofline.scenario.options import read_options
from roofline.serving.sessions.profiles import CHAT, PROFILES

DEFAULTS = {"model": "llama-3.1-8b", "hw": "h100-sxm"}
"""What the page opens with."""


@with_scenario_options
def view(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="The model that the page opens with, as for analyze.")
    ] = None,
    hardware: HardwareArgument = None,
    concurrency: UsersOption = None,
    rate: RateOption = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    prefix_hits: PrefixHitsOption = None,
    sessions: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Sessions of many turns at a time.", show_default=False)
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"What sessions are like: {', '.join(PROFILES)}. [default: {CHAT}]"),
    ] = None,
    tiers: TiersOption = None,
    disaggregation: DisaggregationOption = None,
    port: Annotated[
        int | None, typer.Option(help="The port. [default: any free one; 8000 with --shared]", show_default=False)
    ] = None,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    shared: Annotated[
        bool, typer.Option("--shared", help="Serve a team: any address, bounded work for each client, no files.")
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="With --shared: where it listens. [default: 0.0.0.0]", show_default=False),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="With --shared: processes that answer. [default: one a core]", show_default=False),
    ] = None,
    **options: Any,
) -> None:
    """Explore scenarios on a live page in the browser.

    It opens on the answer of `roofline MODEL HW`, also under a load. Every option of analyze is a field of the page;
    the verdict, the figures, the rooflines, comparisons, advice and launch files follow at once. The server answers
    only this machine, or with --shared everyone who reaches it, and ends on Ctrl-C.
    """
    from roofline.reports.view.setups import opening

    with needs_extra("view"):
        from roofline.reports.view.hosted import EVERYWHERE, PORT, SharedServer
        from roofline.reports.view.server import Server
    if not shared and (listen is not None or workers is not None):
        name = "workers" if listen is None else "listen"
        raise RooflineError(f"{name} is for --shared: without it the page answers this machine alone", options=[name])
    if hardware and options.get("hw") is not None:
        raise RooflineError("the hardware is given twice", options=["hw"])
    options["hw"] = " ".join(hardware or ()) or options.get("hw")
    given = {name: value for name, value in {"model": model, **options}.items() if value not in (None, [])}
    load: dict[str, Any] = {"concurrency": concurrency, "rate": rate, "prefix_hits": prefix_hits}
    load |= {"sessions": sessions, "profile": profile, "tiers": tiers, "disaggregation": disaggregation}
    load |= {"ttft": ttft, "tpot": tpot}
    setup = opening(read_options({**DEFAULTS, **given}), load)
    server = (
        SharedServer(setup, listen or EVERYWHERE, PORT if port is None else port, workers)
        if shared
        else Server(setup, port or 0)
    )
    typer.echo(f"{server.address}\nCtrl-C ends it.")
    if open_ and not shared:
        typer.launch(server.address)
    try:
        server.run()
    except KeyboardInterrupt:
        typer.echo("")
