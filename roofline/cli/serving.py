"""The command `roofline serve`: a deployment under load."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import FORMAT, AnswerFormat, OutputFormat, OutputOption, emit, print_document
from roofline.cli.scenario_options import scenario_command
from roofline.scenario.options import OPTIONS, STATIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roofline.serving.curve import Curve


@partial(scenario_command, without=STATIC)
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
    cost: at each number of requests in flight or rate of arrivals, in steady state or request by request.
    """
    from roofline import Scenario
    from roofline.reports.documents import serving as page
    from roofline.serving.curve import serve as run
    from roofline.whatif.axes import combinations, load_values

    for name in ("concurrency", "rate"):
        if load[name] is not None:
            load[name] = load_values(name, load[name])

    def served(varied: Mapping[str, Any]) -> Curve:
        return run(Scenario.varied(scenario, varied), **load)

    if over:
        fixed = [name for name, value in scenario.items() if value != OPTIONS[name].usual]
        document = page.sweep_document(*page.swept(combinations(over, STATIC, fixed), served))
    else:
        document = page.serving_document(served({}))
    if format is OutputFormat.CSV:
        emit(page.as_csv(document), output)
        return
    print_document(document, page.serving_blocks(document), AnswerFormat(format), output)
