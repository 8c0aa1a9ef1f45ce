"""The commands `roofline serve`, `fleet` and `workload`: a deployment under load, over a day, and recorded requests."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import FORMAT, OutputFormat, OutputOption, emit, fitting, print_document, say
from roofline.cli.scenario_options import LOAD_PARAMETERS, SESSION_PARAMETERS, scenario_command
from roofline.scenario.options import OPTIONS, STATIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roofline.serving.curve import Curve


@partial(scenario_command, without=STATIC, keywords={**LOAD_PARAMETERS, **SESSION_PARAMETERS})
def serve(
    scenario: Any,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VALUES",
            help="An axis of deployments; repeatable: tp=1,2,4, hw=h100-sxm,mi300x, prompt=512,2k.",
        ),
    ] = None,
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
    **load: Any,
) -> None:
    """Predict a deployment under load: latency, throughput and cost.

    TTFT, TPOT and E2E latency at mean, p50, p95 and p99, throughput per device and per user, goodput within targets,
    cost: at each number of requests in flight or rate of arrivals, in steady state or request by request. With
    --sessions: of sessions of many turns, with a simulated prefix cache and its tiers.
    """
    if any(load[name] is not None for name in SESSION_PARAMETERS):
        _serve_sessions(scenario, load, over, format, output)
        return
    from roofline import Scenario
    from roofline.reports.documents import serving as page
    from roofline.serving.curve import serve as run
    from roofline.whatif.axes import combinations

    def served(varied: Mapping[str, Any]) -> Curve:
        found: Curve = run(Scenario.varied(scenario, varied), **load)
        return found

    if over:
        fixed = [name for name, value in scenario.items() if OPTIONS[name].differs(value)]
        document = page.sweep_document(*page.swept(combinations(over, STATIC, fixed), served))
    else:
        document = page.serving_document(run(fitting(Scenario(**scenario), **load), **load))
    print_document(document, page.serving_blocks(document), format, output, page.as_csv)


def _serve_sessions(
    scenario: Any, load: dict[str, Any], over: list[str] | None, format: OutputFormat, output: Any
) -> None:
    """The command for sessions of many turns."""
    from roofline import Scenario
    from roofline.core.errors import RooflineError, needs_extra
    from roofline.reports.documents import sessions as page
    from roofline.serving.curve import serve as run

    if over:
        raise RooflineError("--over has no sessions yet: ask for one deployment at a time")
    document = page.sessions_document(run(Scenario(**scenario), **load))
    if output is not None and output.suffix.lower() in (".svg", ".png", ".pdf"):
        with needs_extra("report"):
            from roofline.reports.figures import style
            from roofline.reports.figures.sessions import sessions_figure
        style.save(sessions_figure(document), output)
        say(f"wrote {output}")
        return
    print_document(document, page.sessions_blocks(document), format, output, page.as_csv)


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


def workload(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded requests, or a server's /metrics.")],
    characters: Annotated[
        float | None, typer.Option(metavar="NUMBER", min=0.1, help="Characters of a token, where the file has texts.")
    ] = None,
    pools: Annotated[
        str | None,
        typer.Option(metavar="TOKENS,...", help="Instead: the hit rate of caches of so many tokens, by block hashes."),
    ] = None,
    output: OutputOption = None,
) -> None:
    """Turn recorded requests into a workload of sessions, for `serve --profile FILE`.

    Reads request logs with sessions, Mooncake's and Weka's traces, AIPerf's records and sessions, vLLM's multi-turn
    and ShareGPT conversations, and vLLM's or SGLang's /metrics. Only distributions are written: no text, no name.
    """
    from roofline.serving.options import load_values
    from roofline.serving.sessions.options import SESSION_OPTIONS
    from roofline.serving.sessions.recorded import as_text, hit_rates, read_recorded

    if pools is not None:
        sizes = [*load_values(SESSION_OPTIONS["pool"], pools), math.inf]
        rates = hit_rates(file, sizes)
        rows = [
            f"{'endless' if math.isinf(size) else f'{size:,.0f}':>15}  {rate:8.1%}"
            for size, rate in zip(sizes, rates, strict=True)
        ]
        emit("\n".join([f"{'tokens':>15}  hit rate", *rows]) + "\n", output)
        return
    found = read_recorded(file, characters)
    emit(as_text(found.workload), output)
    typer.echo(f"roofline: {found.note}", err=True)
