"""A load on disaggregated prefill and decode: the steady state, and the event simulation.

A request waits for a replica of prefill and for its pass, then for the link of that replica and the transfer of its KV
cache, then for a slot and the steps in which a replica of decode looks for it and for its cache. There its first token
leaves: prefill computed it. The rest are decode steps without prompts. Each stage is that of `roofline.serving.steady`
or `.simulation`:

    TTFT = prefill + transfer + slot,    TPOT = decode,    largest rate = min over prefill, link, decode

In the steady state requests come to each stage at random, to the replicas in turn: of P replicas of prefill, arrivals
at each have a squared coefficient of variation of 1 / P (`regular` of `roofline.serving.waits`). The link is a queue
with constant service (M/D/1). A closed loop of C requests has the rate L with C = L (TTFT + G T), at most the largest
one. The simulation advances the replica whose time is earliest, by one step, or by decode steps up to the time of the
others; a router sees the queues of when a request comes.
"""

from __future__ import annotations

import math
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, replace
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.core.search import bracket_roots
from roofline.serving.load import Arrivals, Load, Requests, count_of, draw
from roofline.serving.outcome import (
    Latency,
    Outcome,
    Spread,
    Targets,
    latencies_of,
    outcome_of,
    spreads,
    steady_outcomes,
)
from roofline.serving.pools import Tandem, only_prompts
from roofline.serving.replica import Replica
from roofline.serving.replicas import ROUTERS, Member, Replicas, together
from roofline.serving.sequence import Sequence, Served
from roofline.serving.steady import Steady, check_steps, open_loop, saturation_of, summary
from roofline.serving.tables import Array
from roofline.serving.times import Times, slots_of, times_of
from roofline.serving.waits import ends, regular

CLOSE, SLOWEST = 1e-6, 1e-6
"""The relative width to which the rate of a closed loop is found, and the least one over the largest."""

LEAST = 1e-4
"""The rate of others that a request alone sees, over its own: not none, of which nothing is known."""

KNOTS = 20
"""Rates at which the time of a request of a closed loop is found."""

BELOW = 0.999
"""The rate of a saturated closed loop over the largest stable one."""

HANDED_OVER = 1.6
"""p90 of measured TTFT over the far end of prefill's interval: routers, handshakes and slots that nobody states.

Chosen on half of InferenceX's deployments; of 42 rows of the others 86% are inside, TPOT 86%, too.
"""


SLOWER = 2.0
"""p90 of predicted over measured prompts/s of pools of prefill that limit a deployment.

InferenceX's have 0.9 to 1.2 (FP4 on B200 and GB200, SGLang with TP8 on H200), 1.1 to 1.4 (SGLang over 8 ranks of
GB200), 1.5 to 2.2 (FP8 with TensorRT-LLM on H200, B200 and GB200; MI355X) and, once, 2.7 (SGLang with EP8 and FP8 on
B200).
"""


class Stage(NamedTuple):
    """The replicas of one phase, the load that each of them sees, and their times."""

    replica: Replica
    load: Load
    times: Times
    slots: float
    replicas: int

    def at(self, rate: Array) -> Steady:
        """The steady state of one replica at rates of all."""
        return open_loop(self.replica, self.load, self.times, rate / self.replicas, self.slots)

    @property
    def saturation(self) -> float:
        """The largest stable rate of all replicas."""
        return self.replicas * saturation_of(self.replica, self.load, self.times)


def stage_of(replica: Replica, load: Load, count: int) -> Stage:
    """The replicas of a phase under a load, to which requests go in turn: gaps of each have `count` times the shape."""
    shape = min(load.burstiness * count, max(load.burstiness, 1.0))
    asked = replace(load, rate=1.0, concurrency=None, offline=None, burstiness=shape)
    slots = slots_of(replica, asked)
    return Stage(replica, asked, times_of(replica, asked, slots), slots, count)


class _Stages(Struct, frozen=True, dict=True):
    """Both phases and the transfer between them; `alone` are samples of prefill without others (samples, 1).

    `apart` is the squared coefficient of variation of the times between arrivals at a replica of prefill.
    """

    prefill: Stage
    decode: Stage
    alone: Array
    sent: Array
    apart: float

    @property
    def saturation(self) -> float:
        """The largest stable rate."""
        each = float(self.sent.mean())
        return min(self.prefill.saturation, self.decode.saturation, self.prefill.replicas / each if each else math.inf)

    @cached_property
    def requests(self) -> tuple[Array, Array]:
        """The logarithm of the time of a request, at KNOTS logarithms of used over free."""
        knots = np.linspace(math.log(LEAST), math.log(BELOW / (1 - BELOW)), KNOTS)
        _, second, samples = self.at(self.saturation / (1 + np.exp(-knots)))
        return knots, np.log(samples.mean(axis=0) + self.decode.times.tokens * second.tpot[0])

    def at(self, rate: Array) -> tuple[Steady, Steady, Array]:
        """Prefill, decode, and samples of TTFT of both (samples, points), at rates below the largest one."""
        first, second = self.prefill.at(rate), self.decode.at(rate)
        in_use = rate / self.prefill.saturation
        waited = (first.samples - self.alone) * regular(self.apart, self.prefill.times.square, in_use)
        each = float(self.sent.mean())
        used = np.minimum(rate / self.prefill.replicas * each, BELOW)
        # Samples of both stages are of the same points of a cube: half a turn makes them independent.
        slot = np.roll(second.samples, second.samples.shape[0] // 2 + 1, axis=0)
        places = np.arange(slot.shape[0]) * self.sent.size // slot.shape[0]
        sent = self.sent[places][:, np.newaxis] + used / (1 - used) / 2 * each
        return first, second, self.alone + waited + sent + slot


def steady_tandem(tandem: Tandem, load: Load, values: Any) -> Steady:
    """The steady state at each of `values`: concurrencies of a closed loop, else rates in requests/s.

    Raises RooflineError where some prompts are computed where they decode, or have a part of a step.
    """
    check_steps(tandem.prefill.scheduler.piece)
    if tandem.local and (load.prompts.quantile(0.0) + load.beside) * (1 - load.hits) <= tandem.local:
        raise RooflineError(
            f"no steady state has prompts of at most {tandem.local} tokens that are computed where they decode: say how"
            " many requests to simulate, such as 500",
            options=["simulate"],
        )
    points = np.atleast_1d(np.asarray(values, float))
    stages = _stages(tandem, load.within(tandem.decode.kv_tokens))
    most = stages.saturation
    if load.arrivals is not Arrivals.CLOSED:
        stable = points < most
        return _whole(tandem, stages, np.where(stable, points, most / 2), stable)
    rate = _closed_rate(stages, points, most)
    found = _whole(tandem, stages, rate, np.ones(points.size, bool), _others(points))
    # What is left of C = L (TTFT + G T) at saturation waits (Little).
    spent = found.ttft[0] + stages.decode.times.tokens * found.tpot[0]
    left = np.maximum(points / rate - spent, 0.0)
    more = left * rate
    late = {name: getattr(found, name) + left for name in ("ttft", "e2e", "samples")}
    return found._replace(**late, waiting=found.waiting + more, queued=found.queued + more)


def _stages(tandem: Tandem, load: Load) -> _Stages:
    """The stages of a tandem under a load, whatever its amount."""
    kept: dict[Any, _Stages] = tandem.__dict__.setdefault("stages", {})
    key = (load.prompts, load.outputs, load.hits, load.burstiness, load.beside)
    if key not in kept:
        shares = (np.arange(16) + 0.5) / 16
        random = np.random.default_rng(0)
        sent = random.permutation(tandem.transfer(load.beside + load.prompts.inverse(shares)))
        prefill = stage_of(tandem.prefill, replace(load, generate=1), tandem.prefills)
        alone = prefill.at(np.array([LEAST * prefill.saturation])).samples
        apart = 1 / max(load.burstiness * tandem.prefills, 1.0)
        kept[key] = _Stages(prefill, stage_of(tandem.decode, load, tandem.decodes), alone, sent, apart)
    return kept[key]


def _closed_rate(stages: _Stages, points: Array, most: float) -> Array:
    """The rate of a closed loop, at which requests in flight are those asked. Each sees the rate of the others.

    The time of a request is that at KNOTS rates, interpolated by the logarithm of used over free.
    """
    others, top = _others(points), math.log(BELOW * most)
    knots, spent = stages.requests

    def excess(place: Array) -> Array:
        """The logarithm of requests in flight at a rate, over those asked: it rises."""
        rate = np.exp(place) * others
        return np.asarray(place + np.interp(np.log(rate / (most - rate)), knots, spent) - np.log(points))

    ends = np.full(points.size, top + math.log(SLOWEST)), np.full(points.size, top)
    below, above = (excess(end) for end in ends)
    found, _ = bracket_roots(excess, ends[0], np.where(above > 0, ends[1], ends[0]), below, above, absolute=CLOSE)
    return np.asarray(np.exp(np.where(above > 0, found, top)))


def _others(points: Array) -> Array:
    """The part of the rate that a request of a closed loop sees: that of the others."""
    return np.asarray(np.maximum(1 - 1 / np.maximum(points, 1.0), LEAST))


def _whole(tandem: Tandem, stages: _Stages, rate: Array, stable: NDArray[np.bool_], seen: Any = 1.0) -> Steady:
    first, second, samples = stages.at(seen * rate)
    most = stages.saturation
    ttft, tpot, number = summary(samples), second.tpot, tandem.decodes
    e2e = np.concatenate([ttft[:1] + stages.decode.times.tokens * tpot[:1], ends(stages.decode.load, samples, tpot)])
    running = (first.running * tandem.prefills + second.running * number) / seen
    cached = second.cached * number / seen
    parts = (ttft, tpot, e2e, running, rate * e2e[0] - running, second.queued * number, cached, first.prefilling)
    ttft, tpot, e2e, running, waiting, queued, cached, busy = (np.where(stable, part, np.inf) for part in parts)
    rate, slots = np.where(stable, rate, most), second.slots * number
    return Steady(ttft, tpot, e2e, rate, running, waiting, queued, cached, busy, most, slots, samples)


class _Handed(Replicas):
    """The replicas of both pools: a request goes to one of prefill when it comes, to one of decode when that is done.

    They go to those of a pool in turn, or as the router that is the load's policy says. Prompts of at most `local`
    tokens are computed where they decode.
    """

    linked = True

    def __init__(self, tandem: Tandem, requests: Requests, load: Load, seed: int) -> None:
        self.tandem, self.passed = tandem, 0
        super().__init__(tandem.decode, requests, load, np.zeros(0, np.intp), seed)

    def begin(self) -> None:
        tandem, drawn = self.tandem, self.drawn
        self.router = ROUTERS.get(self.load.policy, ROUTERS["round-robin"])
        alone = drawn._replace(output=np.ones_like(drawn.output))
        self.prefills = [Member(tandem.prefill, alone) for _ in range(tandem.prefills)]
        self.decodes = [Member(tandem.decode, drawn) for _ in range(tandem.decodes)]
        self.members = [*self.prefills, *self.decodes]
        self.seconds = tandem.transfer(drawn.prompt + drawn.cached).tolist()
        self.here = (drawn.prompt <= tandem.local).tolist()

    def enter(self, index: int, at: float) -> None:
        if not self.here[index]:
            self.router(self.prefills, index, self.random).enter(index, at)
            return
        member = self.router(self.decodes, index, self.random)
        member.own.add(index)
        received = self.tandem.prefill.scheduler.received(float(self.drawn.prompt[index]))
        member.receive(Sequence(index, at, *member.lengths[index]), at + received)

    def leave(self, member: Member) -> None:
        if member in self.decodes:
            super().leave(member)
            return
        for index, (_, _, last, _) in member.left:
            member.free = max(member.free, last) + self.seconds[index]
            target = self.router(self.decodes, self.passed, self.random)
            target.receive(Sequence(index, member.free, *target.lengths[index]), member.free)
            self.passed += 1
        member.left.clear()

    def served(self, found: Served) -> Served:
        return together(self.prefills, self.decodes, found)


def simulate_tandem(tandem: Tandem, load: Load, requests: int = 1000, seed: int = 0) -> Served:
    """The run of `requests` requests (all of a trace, or `rounds` of a closed loop); raises RooflineError."""
    return _Handed(tandem, draw(load, count_of(load, requests), seed), load, seed).run()


def steady_outcomes_of(tandem: Tandem, load: Load, values: Any, targets: Targets) -> tuple[Outcome, ...]:
    """The outcomes of the steady state."""
    pool = replace(tandem.decode, copies=tandem.decodes)
    return tuple(
        map(partial(_of_both, tandem, load), steady_outcomes(pool, load, steady_tandem(tandem, load, values), targets))
    )


def simulated_outcome(tandem: Tandem, load: Load, requests: int, seed: int, targets: Targets) -> Outcome:
    """The outcome of a simulation."""
    served = simulate_tandem(tandem, load, requests, seed)
    each = served._replace(running=served.running / tandem.decodes)
    found = outcome_of(tandem.decode, load, each, targets)
    return _of_both(tandem, load, replace(found, running=served.running))


def _of_both(tandem: Tandem, load: Load, found: Outcome) -> Outcome:
    """The outcome with the devices of both pools; TTFT, and E2E latency with it, may be later by the handover."""
    prompt = load.means[0]
    low, high, median = spreads(tandem.prefill, 1.0, prompt, prompt, apart=True)[0]
    (sooner, later), high = _waits(tandem, load, found), high * HANDED_OVER
    ends = Spread(min(low, sooner), 1 + math.hypot(high - 1, max(later - 1, 0.0)), median)
    first = [each.mid for each in astuple(found.ttft)]
    pairs = zip(astuple(found.e2e), first, strict=True)
    e2e = [last._replace(high=last.mid + math.hypot(last.high - last.mid, mid * (high - 1))) for last, mid in pairs]
    return replace(found, ttft=latencies_of(first, ends), e2e=Latency(*e2e), devices=tandem.devices)


def _waits(tandem: Tandem, load: Load, found: Outcome) -> tuple[float, float]:
    """TTFT over the expected one in a closed loop whose decode is as slow as p90, and whose prefill is (SLOWER).

    With C requests in flight and the most S that prefill yields in a second, TTFT and decode take C / S or more: what
    decode does not take, requests wait for prefill, and a small error of either changes which of the two limits.
    """
    mean, prompt = found.ttft.mean.mid, load.means[0]
    if load.concurrency is None or not mean > 0:
        return 1.0, 1.0
    replica, prompts = tandem.prefill, replace(only_prompts(load), rounds=None, ramp=0.0)
    most = load.concurrency / stage_of(replica, prompts, tandem.prefills).saturation
    decode = found.e2e.mean.mid - mean
    late = found.tpot.mean.high / found.tpot.mean.mid if load.means[1] > 1 else 1.0
    alone = float(replica.steps.seconds(0, 0, min(prompt * (1 - load.hits), replica.budget)))
    return max(alone, most - decode * late) / mean, (most * SLOWER - decode) / mean
