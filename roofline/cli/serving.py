"""The command `roofline serve`: a deployment under load."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from roofline.cli.options import (
    FORMAT,
    LENGTHS,
    DisaggregationOption,
    OutputFormat,
    OutputOption,
    PrefixHitsOption,
    TpotOption,
    TtftOption,
    emit,
    print_document,
    rates,
    seconds,
)
from roofline.cli.options import AnswerFormat as Answer
from roofline.cli.scenario_options import scenario_command

if TYPE_CHECKING:
    from collections.abc import Mapping

    from roofline.serving.curve import Curve

OF_A_LOAD = frozenset(
    {"batch", "prompt", "generate", "context", "prefix", "images", "image_size", "convention", "memory_reading"}
)
"""Options of a scenario that a load replaces."""


@partial(scenario_command, without=OF_A_LOAD)
def serve(
    request: Any,
    prompt: Annotated[str, typer.Option(metavar="LENGTH", help=f"Prompt tokens: {LENGTHS}")] = "1024",
    generate: Annotated[str, typer.Option(metavar="LENGTH", help="Generated tokens, written likewise.")] = "256",
    concurrency: Annotated[
        str | None, typer.Option(metavar="VALUES", help="Requests in flight: 64, 1,8,64 or 1:256:log9.")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(metavar="VALUES", help="Requests/s that arrive: 4/s, 1,2,4 or 0.5:8:log9.")
    ] = None,
    offline: Annotated[int | None, typer.Option(metavar="N", help="All N requests at once.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A trace (CSV or JSONL: Azure, Mooncake, ShareGPT lengths).")
    ] = None,
    burstiness: Annotated[float, typer.Option(help="Of --rate: 1 is Poisson, less is burstier.")] = 1.0,
    prefix_hits: PrefixHitsOption = 0.0,
    chunk: Annotated[int | None, typer.Option(help="Token budget of a step. [default: the engine's]")] = None,
    disaggregation: DisaggregationOption = None,
    sequences: Annotated[int | None, typer.Option(help="Most running sequences. [default: the engine's]")] = None,
    ttft: TtftOption = None,
    tpot: TpotOption = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="AXIS=VALUES",
            help="An axis of deployments; repeatable: tp=1,2,4, hw=h100-sxm,mi300x, prompt=512,2k.",
        ),
    ] = None,
    simulate: Annotated[
        int | None, typer.Option(metavar="N", help="Simulate N requests one by one, at each value.")
    ] = None,
    rounds: Annotated[
        float | None, typer.Option(help="Simulate a benchmark of ROUNDS x concurrency requests, all sent at the start.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the simulation.")] = 0,
    format: Annotated[OutputFormat, FORMAT] = OutputFormat.TABLE,
    output: OutputOption = None,
) -> None:
    """Predict a deployment under load: latency, throughput and cost.

    TTFT, TPOT and E2E latency at mean, p50, p95 and p99, throughput per device and per user, goodput within targets,
    cost: at each number of requests in flight or rate of arrivals, in steady state or request by request.
    """
    from msgspec.structs import replace

    from roofline.core.errors import RooflineError
    from roofline.reports.documents import serving as page
    from roofline.serving.curve import serve as run
    from roofline.serving.load import Load
    from roofline.serving.pools import parse_pools
    from roofline.serving.traces import read_trace
    from roofline.whatif.axes import combinations
    from roofline.whatif.options import request_from

    if simulate is not None and not 1 <= simulate <= 10**6:
        raise RooflineError(f"--simulate must be between 1 and 1000000, got {simulate}")
    for name, count in (("chunk", chunk), ("sequences", sequences)):
        if count is not None and count < 1:
            raise RooflineError(f"--{name} must be at least 1, got {count}")
    given = {"concurrency": concurrency, "rate": rate, "offline": offline, "trace": trace}
    if all(value is None for value in given.values()):
        concurrency = "1:256:log9"
    values = _values(concurrency, rate)
    pools = None if disaggregation is None else parse_pools(disaggregation)
    load = Load(
        prompt=prompt,
        output=generate,
        concurrency=None if concurrency is None or not values else int(values[0]),
        rate=None if rate is None or not values else values[0],
        offline=offline,
        trace=None if trace is None else read_trace(trace),
        burstiness=burstiness,
        hits=prefix_hits,
        rounds=rounds,
    )
    targets = (seconds(ttft) or math.inf, seconds(tpot) or math.inf)

    def served(values_of_axes: Mapping[str, Any]) -> Curve:
        lengths = [values_of_axes.get(name, given) for name, given in (("prompt", prompt), ("generate", generate))]
        varied = {name: value for name, value in values_of_axes.items() if name not in ("prompt", "generate")}
        scenario = request_from({**request, **varied}).deployment()
        if sequences is not None and scenario.settings.sequences is not None:
            raise RooflineError("--sequences and --max-num-seqs name the same: give one of them")
        policy = scenario.profile.scheduler
        policy = replace(policy, tokens=chunk or policy.tokens, sequences=sequences or policy.sequences)
        at = replace(load, prompt=lengths[0], output=lengths[1])
        asked: dict[str, Any] = {"requests": simulate, "seed": seed, "targets": targets, "pools": pools}
        return run(scenario, at, values or None, scheduler=policy, **asked)

    if over:
        without = OF_A_LOAD - {"prompt", "generate"}
        document = page.sweep_document(*page.swept(combinations(over, without), served), targets)
    else:
        document = page.serving_document(served({}), targets)
    if format is OutputFormat.CSV:
        emit(page.as_csv(document), output)
        return
    print_document(document, page.serving_blocks(document), Answer(format), output)


def _values(concurrency: str | None, rate: str | None) -> list[float]:
    """The values of the axis that is given."""
    from roofline.whatif.axes import axis_of
    from roofline.whatif.options import Kind, Option

    if concurrency is not None:
        option = Option("concurrency", Kind.INTEGER, (), 1, 10**6)
        return [float(value) for value in axis_of(option, concurrency).values]
    return [] if rate is None else rates(rate)
