"""The command `roofline view`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from roofline.cli.scenario_options import with_scenario_options
from roofline.core.errors import needs_extra
from roofline.scenario.options import read_options

DEFAULTS = {"model": "llama-3.1-8b", "hw": "h100-sxm"}
"""What the page opens with."""


@with_scenario_options
def view(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="The model that the page opens with, as for analyze.")
    ] = None,
    port: Annotated[int, typer.Option(help="The port on this machine. [default: any free one]")] = 0,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = True,
    **options: Any,
) -> None:
    """Explore scenarios on a live page in the browser.

    Every option of analyze is a field of the page; the figures, the rooflines, the network, comparisons, advice and
    serving under load follow at once. The server answers only this machine, and ends on Ctrl-C.
    """
    from roofline.reports.view.setups import first_setup

    with needs_extra("view"):
        from roofline.reports.view.server import Server
    given = {name: value for name, value in {"model": model, **options}.items() if value not in (None, [])}
    server = Server(first_setup(read_options({**DEFAULTS, **given})), port)
    typer.echo(f"{server.address}\nCtrl-C ends it.")
    if open_:
        typer.launch(server.address)
    try:
        server.run()
    except KeyboardInterrupt:
        typer.echo("")
