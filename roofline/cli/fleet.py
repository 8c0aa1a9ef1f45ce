"""The command `roofline fleet`: replicas of a deployment over a day."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from roofline.cli.options import FORMAT, OutputFormat, OutputOption, print_document
from roofline.cli.scenario_options import LOAD_PARAMETERS, SESSION_PARAMETERS, scenario_command
from roofline.scenario.options import STATIC

TAKEN = ("rate", "trace", "prefix_hits", "seed", "disaggregation", "ttft", "tpot")
"""The options of a load that a fleet has: its rate is that of the peak."""


OF_SESSIONS = {name: entry for name, entry in SESSION_PARAMETERS.items() if name != "sessions"}
"""The options of sessions that a fleet has: the rate of new ones is that of the peak, too."""


@partial(
    scenario_command,
    without=(*STATIC, "carbon"),
    keywords={**{name: LOAD_PARAMETERS[name] for name in TAKEN}, **OF_SESSIONS},
)
def fleet(
    scenario: Any,
    low: Annotated[
        float, typer.Option(metavar="FRACTION", min=0, max=1, help="The lowest rate of the day over --rate, a sine.")
    ] = 1.0,
    replicas: Annotated[str, typer.Option(metavar="LEAST:MOST", help="Replicas; 0:10 scales to zero.")] = "1:10",
    load_share: Annotated[
        float, typer.Option("--share", metavar="FRACTION", help="Of its largest rate that a replica is to have.")
    ] = 0.7,
    startup: Annotated[
        str, typer.Option(metavar="TIME", help="From asking for a replica to its first request.")
    ] = "5min",
    hold: Annotated[str, typer.Option(metavar="TIME", help="How long a replica is kept without need of it.")] = "5min",
    loss: Annotated[
        float, typer.Option(metavar="PER_HOUR", min=0, help="Replicas lost an hour, of each: spot devices.")
    ] = 0.0,
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
    **load: Any,
) -> None:
    """Run a fleet of replicas over a day: devices over time, missed targets and cost.

    The autoscaler asks for so many replicas that each has --share of its largest rate; they take --startup, and spot
    devices are lost. The rate is a sine between --low of --rate and --rate at 15 h, or that of a --trace; with
    --session-rate, of new sessions, which stay with a replica and lose their cache with it.
    """
    from roofline.reports.documents import fleet as page
    from roofline.serving.fleet import run_fleet

    given = {name: value for name, value in load.items() if value is not None}
    scaling: dict[str, Any] = {"replicas": replicas, "startup": startup, "hold": hold, "loss": loss}
    found = run_fleet(scenario, low=low, share=load_share, **scaling, **given)
    document = page.fleet_document(found)
    print_document(document, page.fleet_blocks(document), format, output, page.as_csv)
