"""The command `roofline serve`: a deployment under load."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import (
    FORMAT,
    BurstinessOption,
    ConcurrencyOption,
    DisaggregationOption,
    OfflineOption,
    OutputFormat,
    OutputOption,
    PrefixHitsOption,
    RateOption,
    RoundsOption,
    SeedOption,
    SimulateOption,
    TpotOption,
    TraceOption,
    TtftOption,
    emit,
    print_document,
)
from roofline.cli.options import AnswerFormat as Answer
from roofline.cli.scenario_options import scenario_command
from roofline.scenario.options import STATIC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roofline.serving.curve import Curve


@partial(scenario_command, without=STATIC)
def serve(
    scenario: Any,
    concurrency: ConcurrencyOption = None,
    rate: RateOption = None,
    offline: OfflineOption = None,
    trace: TraceOption = None,
    burstiness: BurstinessOption = None,
    prefix_hits: PrefixHitsOption = None,
    disaggregation: DisaggregationOption = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VALUES",
            help="An axis of deployments; repeatable: tp=1,2,4, hw=h100-sxm,mi300x, prompt=512,2k.",
        ),
    ] = None,
    simulate: SimulateOption = None,
    rounds: RoundsOption = None,
    seed: SeedOption = None,
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Predict a deployment under load: latency, throughput and cost.

    TTFT, TPOT and E2E latency at mean, p50, p95 and p99, throughput per device and per user, goodput within targets,
    cost: at each number of requests in flight or rate of arrivals, in steady state or request by request.
    """
    from roofline import Scenario
    from roofline.reports.documents import serving as page
    from roofline.serving.curve import serve as run
    from roofline.serving.curve import targets_of
    from roofline.whatif.axes import combinations, load_values

    load: dict[str, Any] = {
        "concurrency": None if concurrency is None else load_values("concurrency", concurrency),
        "rate": None if rate is None else load_values("rate", rate),
        "offline": offline,
        "trace": trace,
        "burstiness": burstiness,
        "prefix_hits": prefix_hits,
        "rounds": rounds,
        "simulate": simulate,
        "seed": seed,
        "disaggregation": disaggregation,
        "ttft": ttft,
        "tpot": tpot,
    }

    def served(varied: Mapping[str, Any]) -> Curve:
        return run(Scenario(**{**scenario, **varied}), **load)

    targets = targets_of(ttft, tpot)
    if over:
        document = page.sweep_document(*page.swept(combinations(over, STATIC), served), targets)
    else:
        document = page.serving_document(served({}), targets)
    if format is OutputFormat.CSV:
        emit(page.as_csv(document), output)
        return
    print_document(document, page.serving_blocks(document), Answer(format), output)
