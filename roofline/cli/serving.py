"""The command `roofline serve`: a deployment under load."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import FORMAT, OutputFormat, OutputOption, fitting, print_document, say
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
