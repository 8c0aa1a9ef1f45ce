"""What a load yields: latencies, throughput, use of the replica, goodput, cost and energy."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from roofline.serving.load import Load, equal_shares
from roofline.serving.replica import Replica
from roofline.serving.sequence import Served
from roofline.serving.steady import Steady
from roofline.serving.tables import Array
from roofline.serving.waits import P95
from roofline.timing.intervals import Estimate
from roofline.timing.intervals.deployments import MEDIANS, farther, scheduled

Targets = tuple[float, float]
"""TTFT and TPOT in seconds; infinite for none."""

NO_TARGETS: Targets = (math.inf, math.inf)

LEAST = 0.05
"""The least ratio of p10 to p50 of a latency."""

NEGLIGIBLE = 1e-4
"""A fraction of requests within targets below this counts as none."""

USUAL_TARGETS: Targets = (10.0, 0.1)
"""Targets at p95 of a load for which none are given: 10 tokens/s are read with ease. Every answer says them."""


def targets_or_usual(ttft: float | None, tpot: float | None, loaded: bool = True, generates: bool = True) -> Targets:
    """The targets that are given (s; None or infinite for none); in place of others, under load, USUAL_TARGETS.

    A model that only encodes has no TPOT.
    """
    usual = USUAL_TARGETS if loaded else NO_TARGETS
    given = zip((ttft, tpot), (usual[0], usual[1] if generates else math.inf), strict=True)
    first, each = (otherwise if said is None or said == math.inf else said for said, otherwise in given)
    return first, each


class Latency(Struct, frozen=True):
    """Seconds of the requests: mean and percentiles, each with an 80% interval."""

    mean: Estimate
    p50: Estimate
    p95: Estimate
    p99: Estimate


class Outcome(Struct, frozen=True):
    """The steady state or the run of a replica under a load.

    `ttft`, `tpot` and `e2e` are seconds; TPOT is NaN where requests have one token. `requests_per_second`,
    `output_tokens_per_second` and `total_tokens_per_second` are of the replica; `saturated_at` is its largest
    sustainable rate in requests/s (None: not computed), and `stable` whether the load is below it. `running` (in
    prefill or decode), `waiting` (`queued`: for others to end, in a steady state) and `kv_use` are means over time,
    `prefill_share` the share of time in steps with prompts. `tenants`: the outcomes of each tenant's requests.
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
    queued: float = 0.0
    goodput: float | None = None
    tenants: tuple[Outcome, ...] = ()

    @property
    def output_per_device(self) -> float:
        """Output tokens/s of a device."""
        return self.output_tokens_per_second / self.devices

    @property
    def per_user(self) -> float:
        """Output tokens/s of a user: the reciprocal of the median TPOT."""
        return 1.0 / float(self.tpot.p50.mid)


class Spread(NamedTuple):
    """p10 and p90 of a prediction over the expected time; a median's distances from 1 are `median` times these."""

    low: float
    high: float
    median: float = 1.0


def spreads(replica: Replica, batch: float, context: float, chunk: float, apart: bool = False) -> tuple[Spread, Spread]:
    """p10 and p90 over the expected TTFT, and over the expected TPOT.

    Their distances from 1 are those of a prefill and of a decode step, times the scheduler's `spread`, with the errors
    of recently supported models and of several nodes (`steps.errors`), and for TPOT of accepted drafts.
    """
    low_decode, high_decode, low_prefill, high_prefill = replica.steps.spread
    drafts = replica.steps.scenario.settings.speculation
    accepted = 0.0 if drafts is None else drafts.error
    each = max(batch / replica.data, 1.0)
    scheduler, steps = replica.scheduler, replica.steps
    parallel, hardware = steps.scenario.settings.parallel, steps.scenario.hardware
    scales = scheduled(parallel, hardware, apart=apart or replica.received)
    found = []
    for scale, low, high, at, own, error in (
        (scales[0], low_prefill, high_prefill, (chunk, context), scheduler.spread_ttft, 0.0),
        (scales[1], low_decode, high_decode, (each, context), scheduler.spread_tpot, accepted),
    ):
        below, above = scale[0] * (1 - low.nearest(*at)), scale[1] * (high.nearest(*at) - 1)
        early = max(1 - math.hypot(own[0] * below, error), LEAST)
        ends = farther((early, 1 + math.hypot(own[1] * above, error)), steps.errors)
        found.append(Spread(*ends, MEDIANS if drafts is None else 1.0))
    return found[0], found[1]


def latency(values: Array, spread: Spread) -> Latency:
    """The latencies of finished requests; their interval is that of the model, not of the sample."""
    found = finite(values)
    return latencies_of([float(found.mean()), *np.quantile(found, (0.5, 0.95, 0.99)).tolist()], spread)


def finite(values: Array) -> Array:
    """The times that requests have; NaN alone where none has one."""
    found = values[np.isfinite(values)]
    return found if found.size else np.array([math.nan])


def outcome_of(replica: Replica, load: Load, served: Served, targets: Targets = NO_TARGETS) -> Outcome:
    """The outcome of a run; `targets` are the TTFT and TPOT that a request meets to count as goodput."""
    ttft, e2e = served.first - served.arrival, served.last - served.arrival
    steps = np.maximum(served.output - 1, 1)
    tpot = np.where(served.output > 1, (served.last - served.first) / steps, math.nan)
    tokens = float(served.output.sum())
    (prompt, output), members = load.means, replica.members
    copies = 1 if served.whole else equal_shares(load, replica.copies)
    each = served.running / len(members) if served.whole else served.running
    spread = spreads(replica, each, prompt + output / 2, prompt)
    goodput = None
    if any(map(math.isfinite, targets)):
        met = (ttft <= targets[0]) & ~(tpot > targets[1])
        goodput = copies * float(met.sum()) / served.duration
    tenants = () if served.tenant is None else tuple(np.unique(served.tenant).tolist())
    return Outcome(
        tenants=tuple(outcome_of(replica, load, _only(served, each), targets) for each in tenants),
        ttft=latency(ttft, spread[0]),
        tpot=latency(tpot, spread[1]),
        e2e=latency(e2e, spread[1]),
        requests_per_second=copies * served.first.size / served.duration,
        output_tokens_per_second=copies * tokens / served.duration,
        total_tokens_per_second=copies * (tokens + served.prompt_tokens) / served.duration,
        running=copies * served.running,
        waiting=copies * served.waiting,
        kv_use=min(served.cached * len(members) / sum(each.kv_tokens for each in members), 1.0),
        prefill_share=served.prefilling,
        preemptions=served.preemptions / max(served.first.size, 1),
        devices=replica.devices,
        goodput=goodput,
    )


def _only(served: Served, tenant: int) -> Served:
    """The finished requests of one tenant."""
    own = served.tenant == tenant
    columns = {name: getattr(served, name)[own] for name in ("arrival", "first", "last", "output")}
    return served._replace(**columns, tenant=None)


def steady_outcomes(replica: Replica, load: Load, found: Steady, targets: Targets = NO_TARGETS) -> tuple[Outcome, ...]:
    """The outcomes of each point of a steady state; latencies are NaN where queues grow without bound."""
    return tuple(_steady_outcome(replica, load, found, index, targets) for index in range(found.rate.size))


def _steady_outcome(replica: Replica, load: Load, found: Steady, index: int, targets: Targets) -> Outcome:
    prompt, output = load.means
    rate, running = float(found.rate[index]), float(found.running[index])
    stable = bool(np.isfinite(found.ttft[0, index]))
    spread = spreads(replica, running / replica.copies if stable else 1.0, load.held, prompt)
    latencies = (found.ttft, found.tpot, found.e2e)
    ttft, tpot, e2e = (each[:, index] if stable else np.full(4, math.nan) for each in latencies)
    if output <= 1:
        tpot = np.full(4, math.nan)
    goodput = None
    if stable and any(map(math.isfinite, targets)):
        goodput = rate * _met(found.samples[:, index], tpot, targets)
    return Outcome(
        ttft=latencies_of(ttft, spread[0]),
        tpot=latencies_of(tpot, spread[1]),
        e2e=latencies_of(e2e, spread[1]),
        requests_per_second=rate,
        output_tokens_per_second=rate * output,
        total_tokens_per_second=rate * (output + prompt * (1 - load.hits)),
        running=running if stable else math.nan,
        waiting=float(found.waiting[index]) if stable else math.nan,
        kv_use=min(float(found.cached[index]) / replica.kv_tokens / replica.copies, 1.0) if stable else 1.0,
        prefill_share=float(found.prefilling[index]) if stable else math.nan,
        preemptions=0.0,
        devices=replica.devices,
        stable=stable,
        saturated_at=found.saturation,
        queued=float(found.queued[index]) if stable else math.nan,
        goodput=goodput,
    )


def latencies_of(values: Any, spread: Spread) -> Latency:
    """The mean, p50, p95 and p99 `values` with intervals; those of p95 and p99 begin at that of the median or above."""
    low, high, median = spread
    parts = (1.0, median, 1.0, 1.0)
    pairs = ((float(value), part) for value, part in zip(values, parts, strict=True))
    found = [Estimate(mid * (1 - part * (1 - low)), mid, mid * (1 + part * (high - 1))) for mid, part in pairs]
    return Latency(*found[:2], *(late.at_least(found[1].low) for late in found[2:]))


def _met(samples: Array, tpot: Array, targets: Targets) -> float:
    """The fraction of requests within targets of TTFT and TPOT; TPOT is normal with the mean and p95 of `tpot`."""
    deviation = max((float(tpot[2]) - float(tpot[0])) / P95, 1e-12)
    limited = math.isfinite(targets[1]) and not math.isnan(tpot[0])
    fast = NormalDist(float(tpot[0]), deviation).cdf(targets[1]) if limited else 1.0
    met = float((samples <= targets[0]).mean()) * fast
    return met if met > NEGLIGIBLE else 0.0
