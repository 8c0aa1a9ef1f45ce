"""What a load yields: latencies, throughput, use of the replica, goodput, cost and energy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.serving.load import Load
from roofline.serving.replica import Replica
from roofline.serving.simulation import Served
from roofline.timing.intervals import Estimate

Array = NDArray[np.float64]

QUANTILES = ("p50", "p95", "p99")


class Latency(Struct, frozen=True):
    """Seconds of the requests: mean and percentiles, each with an 80% interval."""

    mean: Estimate
    p50: Estimate
    p95: Estimate
    p99: Estimate


class Outcome(Struct, frozen=True):
    """The steady state or the run of a replica under a load.

    `ttft`, `tpot` and `e2e` are seconds. `requests_per_second`, `output_tokens_per_second` and
    `total_tokens_per_second` are of the replica; `saturated_at` is its largest sustainable rate in requests/s (None: not
    computed), and `stable` whether the load is below it. `running`, `waiting` and `kv_use` are means over time,
    `prefill_share` the share of time in steps with prompts.
    """

    ttft: Latency
    tpot: Latency
    e2e: Latency
    requests_per_second: float
    output_tokens_per_second: float
    total_tokens_per_second: float
    running: float
    waiting: float
    kv_use: float
    prefill_share: float
    preemptions: float
    devices: int
    stable: bool = True
    saturated_at: float | None = None
    goodput: float | None = None

    @property
    def output_per_device(self) -> float:
        """Output tokens/s of a device."""
        return self.output_tokens_per_second / self.devices

    @property
    def per_user(self) -> float:
        """Output tokens/s of a user: the reciprocal of the median TPOT."""
        return 1 / self.tpot.p50.mid if self.tpot.p50.mid else math.inf


def spreads(replica: Replica, batch: float, context: float, chunk: float) -> tuple[tuple[float, float], ...]:
    """p10 and p90 over the expected TTFT, and over the expected TPOT.

    Errors of steps and of the scheduler's model are independent: each half is (a^2 + b^2)^(1/2).
    """
    low_decode, high_decode, low_prefill, high_prefill = replica.steps.spread
    each = max(batch / replica.data, 1.0)
    scheduler = replica.scheduler
    found = []
    for low, high, at, own in (
        (low_prefill, high_prefill, (chunk, context), scheduler.spread_ttft),
        (low_decode, high_decode, (each, context), scheduler.spread_tpot),
    ):
        below, above = 1 - float(low(*at)), float(high(*at)) - 1
        found.append((max(1 - math.hypot(below, 1 - own[0]), 0.05), 1 + math.hypot(above, own[1] - 1)))
    return tuple(found)


def latency(values: Array, spread: tuple[float, float]) -> Latency:
    """The latencies of finished requests; their interval is that of the model, not of the sample."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        finite = np.array([math.nan])
    points = [float(finite.mean()), *np.quantile(finite, (0.5, 0.95, 0.99)).tolist()]
    return Latency(*(Estimate(point * spread[0], point, point * spread[1]) for point in points))


def outcome_of(
    replica: Replica, load: Load, served: Served, targets: tuple[float, float] = (math.inf, math.inf)
) -> Outcome:
    """The outcome of a run; `targets` are the TTFT and TPOT that a request meets to count as goodput."""
    ttft, e2e = served.first - served.arrival, served.last - served.arrival
    steps = np.maximum(served.output - 1, 1)
    tpot = np.where(served.output > 1, (served.last - served.first) / steps, math.nan)
    tokens = float(served.output.sum())
    prompt, output = load.means
    spread = spreads(replica, served.running, prompt + output / 2, prompt)
    goodput = None
    if any(map(math.isfinite, targets)):
        met = (ttft <= targets[0]) & ~(tpot > targets[1])
        goodput = float(met.sum()) / served.duration
    return Outcome(
        ttft=latency(ttft, spread[0]),
        tpot=latency(tpot, spread[1]),
        e2e=latency(e2e, spread[1]),
        requests_per_second=served.first.size / served.duration,
        output_tokens_per_second=tokens / served.duration,
        total_tokens_per_second=(tokens + served.prompt_tokens) / served.duration,
        running=served.running,
        waiting=served.waiting,
        kv_use=min(served.cached / replica.kv_tokens, 1.0),
        prefill_share=served.prefilling,
        preemptions=served.preemptions / max(served.first.size, 1),
        devices=replica.devices,
        goodput=goodput,
    )


Measure = Callable[[Outcome], Any]
