"""What a launched server is predicted to do under its benchmark.

A benchmark of a closed loop sends its first requests at once, with outputs of one length, and its means have both in
them; users who keep the server busy see the steady state of outputs that vary, which all other verbs answer with: both
are told (`serve --rounds 10 --generate fixed:500` is the benchmark).
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, Struct

from roofline.core.errors import RooflineError
from roofline.core.units import seconds
from roofline.launch.settings import servers_of
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import Curve, serve
from roofline.serving.load import Arrivals
from roofline.serving.options import LoadOptions
from roofline.serving.outcome import Outcome
from roofline.specs.servers import SERVERS, server_of
from roofline.timing.intervals import Estimate

ROUNDS = 10
"""Requests of a benchmark over its concurrency."""

RATE_SECONDS = 120
"""Seconds over which a benchmark at a rate sends its requests."""


Positive = Annotated[float, Meta(gt=0, le=1e15)]


class Interval(Struct, frozen=True):
    """A predicted figure and its 80% interval: `low` and `high` are p10 and p90."""

    low: Positive
    mid: Positive
    high: Positive


class Forecast(Struct, frozen=True):
    """What a benchmark is predicted to measure.

    `prompt` and `output` are mean tokens, `load` the text of the load in rows of measurements. Times are means in
    milliseconds, `output_throughput_total` output tokens/s of all requests; the names are those of imported rows.
    `steady` is the mean TTFT in steady state, without the burst of requests with which a closed loop begins, of outputs
    that vary.
    """

    model: str
    hardware: str
    engine: str
    weights: str
    kv: str
    prompt: Positive
    output: Positive
    load: str
    metrics: dict[str, Interval]
    steady: float | None = None


class Bench(NamedTuple):
    """A benchmark: `requests` of `prompt` and `output` tokens, `hits` of a prompt cached; `concurrency` or a `rate`."""

    requests: int
    prompt: int
    output: int
    hits: float
    concurrency: int | None
    rate: float | None
    burstiness: float


def forecast(scenario: Scenario, load: LoadOptions) -> tuple[Bench, Curve, Outcome]:
    """The benchmark of a load, its predicted outcome, and that of the steady state.

    Raises RooflineError where the model does not fit.
    """
    if any(load.get(name) is not None for name in ("offline", "trace", "simulate", "rounds", "seed")):
        raise RooflineError("a launched server is measured at a concurrency or a rate", options=["concurrency", "rate"])
    prompt, output = scenario.lengths
    if scenario.given("prefix"):
        raise RooflineError("a load says how much of its prompts is cached: prefix_hits in place of prefix")
    if prompt.varies or output.varies:
        raise RooflineError("a benchmark of a launched server has one length of prompts and one of outputs")
    given: dict[str, Any] = {name: value for name, value in load.items() if value is not None}
    if given.get("rate") is None and given.get("concurrency") is None:
        given["concurrency"] = int(np.max(scenario.batch))
    several = [name for name in ("rate", "concurrency") if isinstance(given.get(name), (list, tuple))]
    for name in several:
        if len(given[name]) != 1:
            raise RooflineError(f"a server is launched for one {name}", options=[name])
        given[name] = given[name][0]
    closed = given.get("concurrency") is not None
    served = scenario.with_(batch=None) if scenario.given("batch") else scenario
    served = with_slots(served, given.get("concurrency"))
    (steady,) = (curve := serve(served, **given, draft_limit=False)).outcomes
    if closed:
        if scenario.model.task != "encode":
            served = served.with_(generate=f"fixed:{int(served.plain.generate)}")
        curve = serve(served, **given, rounds=ROUNDS, draft_limit=False)
    concurrency, rate = curve.load.concurrency, curve.load.rate
    requests = ROUNDS * concurrency if concurrency else max(100, round((rate or 0) * RATE_SECONDS))
    means = int(prompt.mean), int(curve.load.outputs.mean)
    bench = Bench(requests, *means, curve.load.hits, concurrency, rate, curve.load.burstiness)
    if not curve.outcomes[0].stable:
        most = curve.outcomes[0].saturated_at or 0.0
        raise RooflineError(
            f"requests arrive faster than the server answers: lower the rate to less than {most:.3g}/s",
            options=["rate"],
        )
    return bench, curve, steady


def with_slots(scenario: Scenario, concurrency: int | None) -> Scenario:
    """A scenario whose engine takes few requests at a time unless its command says more, told a concurrency.

    Ollama takes one, SGLang fewer with drafts. Each of several servers is told its part.
    """
    name, settings, policy = scenario.profile.name, scenario.settings, scenario.profile.scheduler
    if concurrency is None or settings.sequences is not None or name not in SERVERS:
        return scenario
    if scenario.draft_limit:
        return scenario.with_room_for(concurrency)
    if not (server_of(name).allots and policy.sequences):
        return scenario
    return scenario.with_(max_num_seqs=-(-concurrency // servers_of(scenario)[1]))


def forecast_of(
    scenario: Scenario, curve: Curve, steady: Outcome, bench: Bench, engine: str, scheme: str | None
) -> Forecast:
    """The figures of a scenario that a benchmark's result has; `scheme` is that of weights not as released."""
    outcome = curve.outcomes[0]
    throughput = outcome.output_tokens_per_second
    closed = curve.load.arrivals is Arrivals.CLOSED
    spread = outcome.e2e.mean if closed else Estimate(1.0, 1.0, 1.0)
    rates = Interval(throughput * spread.mid / spread.high, throughput, throughput * spread.mid / spread.low)
    times = {"ttft_mean": outcome.ttft.mean, "tpot_mean": outcome.tpot.mean, "e2e_mean": outcome.e2e.mean}
    known = {name: time for name, time in times.items() if not np.isnan(time.mid)}
    metrics = {name: Interval(*(1e3 * part for part in time)) for name, time in known.items()}
    load = (
        f"closed loop {bench.concurrency}; {bench.requests} requests"
        if bench.concurrency
        else f"open loop {bench.rate:g} req/s"
    )
    devices = sum(count for _, count in curve.pools)
    hardware = f"{devices}x{scenario.hardware_name}" if devices > 1 else scenario.hardware_name
    formats = scheme or "", scenario.precision.kv.name
    lengths = float(bench.prompt), float(bench.output)
    metrics["output_throughput_total"] = rates
    after = 1e3 * steady.ttft.mean.mid if closed and "ttft_mean" in metrics else None
    return Forecast(scenario.model_name, hardware, engine, *formats, *lengths, load, metrics, after)


def forecast_lines(found: Forecast, bench: Bench) -> list[str]:
    """The prediction in words."""
    how = f"{bench.concurrency} in flight" if bench.concurrency else f"{bench.rate:g} requests/s"
    lengths = f"{bench.prompt:,} tokens in and {bench.output:,} out"
    lines = [f"Predicted at {how}, {lengths}, with 80% intervals:"]
    encodes = "tpot_mean" not in found.metrics
    for name, metric in [("latency", "e2e_mean")] if encodes else [("TTFT", "ttft_mean"), ("TPOT", "tpot_mean")]:
        low, mid, high = (seconds(getattr(found.metrics[metric], part) / 1e3) for part in ("low", "mid", "high"))
        lines.append(f"  mean {name} {mid} ({low} to {high})")
    if found.steady is not None and seconds(found.steady / 1e3) != seconds(found.metrics["ttft_mean"].mid / 1e3):
        first = f"{bench.concurrency} requests" if bench.concurrency != 1 else "request"
        usual = f"{seconds(found.steady / 1e3)} in steady state of varied outputs"
        lines.insert(2, f"    {usual}: the benchmark begins with {first} at once")
    rate = found.metrics["output_throughput_total"]
    unit = "sequences" if encodes else "output tokens"
    lines.append(f"  {rate.mid:,.0f} {unit}/s ({rate.low:,.0f} to {rate.high:,.0f})")
    return lines
