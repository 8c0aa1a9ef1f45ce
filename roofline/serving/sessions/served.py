"""A deployment under sessions: the answer of `roofline serve --sessions`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Unpack

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.display import Result
from roofline.core.errors import RooflineError
from roofline.core.limits import MAX_CONCURRENCY
from roofline.scenario.argument import without_carbon
from roofline.scenario.cost import HOUR, MILLION, rent
from roofline.scenario.scenario import Scenario
from roofline.serving.outcome import NO_TARGETS, Latency, Spread, Targets, finite, latency, spreads
from roofline.serving.pools import Pools, parse_pools
from roofline.serving.replica import Replica
from roofline.serving.sessions.deployed import NUMBERS, Deployed, deployed_of, read_sessions
from roofline.serving.sessions.options import SessionOptions
from roofline.serving.sessions.replicas import Ran, hit_rates, simulate_sessions
from roofline.serving.sessions.routing import PREFIX, SESSION
from roofline.serving.sessions.theory import State, Theory
from roofline.serving.sessions.transient import Transient, theory_of
from roofline.serving.sessions.workload import Workload
from roofline.timing.intervals.deployments import farther

LEAST_TURNS, MOST_TURNS, OF_EACH = 2000, 30_000, 40
"""Turns of a run: so many of each session, between limits."""

NEAR, SPREAD = 0.15, 1.28
"""Intervals have the states of fewer sessions with faster steps, and of more with slower ones: by the part NEAR, since
a predicted pool may be as far off (GLM-5.2 on 8 B300: 3% now, 24% before), and SPREAD deviations (80%) of the contexts
that a benchmark draws. Steps are at both ends of the interval of prompts, with the errors of BEYOND."""

BEYOND = (0.88, 1.14)
"""p10 and p90 of measured over expected times of sessions, beyond the errors of kernels, schedulers and states.

Without it 83% of the figures of AgentX's runs, but for those held out, lie inside (lab/notes/sessions.md). They are of
seven configurations, whose rows share errors: of another one the errors are 1.2 times as wide (Student's t).
"""

BEYOND_ERRORS = -math.log(BEYOND[0]), math.log(BEYOND[1])
"""Distances of the logarithms of BEYOND from that of the expected time."""

MORE = 1.05
"""Throughput that grows by less than this factor with twice the sessions is taken for the largest."""

AGREES = 1.5
"""A run whose mean time is within this factor of a steady state's is in that state (lab/notes/sessions.md)."""

EXAMPLE = 60
"""The most turns of an example."""

BUSY = 0.25
"""The part of the time from which computing evicted prefixes again counts as thrashing."""

MISSED = 1.5
"""Factor by which the part of tokens that no cache can have may differ between a benchmark's traces and a profile's (3
and 6% in ten minutes of 32 sessions, 2.4 and 3.1% of one)."""


class SessionCost(Struct, frozen=True):
    """USD of a session, and of a million tokens of prompts that are computed, that are cached, and of outputs."""

    session: float
    prompt: float
    cached: float
    output: float


class TurnTimes(Struct, frozen=True):
    """A turn of a run: seconds of its arrival, first and last token, its tokens, and those that some tier had."""

    arrival: float
    first: float
    last: float
    prompt: float
    hit: float
    output: float


class SessionOutcome(Struct, frozen=True):
    """What a number of sessions, or a rate of new ones, yields.

    Latencies are of turns. `hits` are the fractions of prompt tokens that each tier has, the pool first, `endless` that
    of a cache that forgets nothing, and `near` the range of the sum of `hits` that theory gives for a sixth more
    sessions with slower steps, or fewer with faster ones. `recomputed`: tokens a turn that were computed before.
    `reads` are B/s from each tier below the pool. `running`, `waiting`: turns in the engine, and before it;
    `pool_use`: the part of the pool that running turns hold. `met`: the part of turns within targets, None without any.
    `thrashes`: a cache once empty stays so, or much time goes into computing again what was evicted. `example`: the
    turns of the session that had most in the run.
    """

    value: float
    ttft: Latency
    tpot: Latency
    e2e: Latency
    turns_per_second: float
    input_tokens_per_second: float
    output_tokens_per_second: float
    hits: tuple[float, ...]
    endless: float
    near: tuple[float, float]
    recomputed: float
    reads: tuple[float, ...]
    writes: tuple[float, ...]
    running: float
    waiting: float
    pool_use: float
    preemptions: int
    thrashes: bool
    met: float | None = None
    cost: SessionCost | None = None
    example: tuple[TurnTimes, ...] = ()

    @property
    def hit(self) -> float:
        """The fraction of prompt tokens that some tier has."""
        return sum(self.hits)


class SessionCurve(Result, Deployed, frozen=True, kw_only=True):
    """The outcomes of a deployment at each of `values`: sessions at a time, or new ones a second (`open`)."""

    values: tuple[float, ...]
    outcomes: tuple[SessionOutcome, ...]
    open: bool
    targets: Targets = NO_TARGETS


def serve_sessions(
    scenario: Scenario,
    workload: Workload | None = None,
    *,
    targets: Targets = NO_TARGETS,
    simulate: int | None = None,
    seed: int = 0,
    disaggregation: str | Pools | None = None,
    **options: Unpack[SessionOptions],
) -> SessionCurve:
    """The outcomes of a scenario's deployment under sessions, at one or several numbers or rates of them.

    The cache is simulated, block by block and turn by turn: `simulate` turns, by default some of each session. The
    workload is a `Workload`, or options, by default requests of the scenario's lengths. `targets` are TTFT and TPOT in
    seconds. With a `disaggregation` the cache is that of the workers of prefill, and turns decode on others. Raises
    RooflineError where the model or no turn fits.
    """
    without_carbon(scenario, "sessions")
    asked = read_sessions(options)
    given = {name: asked.pop(name) for name in NUMBERS if name in asked}
    if len(given) != 1:
        raise RooflineError("sessions are a number of them, or a rate of new ones: give one", options=NUMBERS)
    ((name, values),) = given.items()
    pools = parse_pools(disaggregation) if isinstance(disaggregation, str) else disaggregation
    if pools is not None and (pools.encoders or pools.local):
        raise RooflineError(
            "pools of sessions have no encoders, and compute every prompt on those of prefill: omit encoders and local",
            options=["disaggregation"],
        )
    deployed = deployed_of(scenario, workload, asked, pools)
    points = tuple(float(value) for value in (values if isinstance(values, Sequence) else [values]))
    is_open = name == "session_rate"
    work, copies = deployed.workload, deployed.replica.copies
    if copies > 1 and not is_open and any(value < copies for value in points):
        raise RooflineError(f"{copies} copies of the model need at least as many sessions")
    if deployed.routing == PREFIX:  # of the groups with a prefix of their own each copy has its share
        work = replace(work, groups=max(1, work.groups // copies))
    # New ones at a rate are sessions without end.
    theory = (Theory if is_open else theory_of)(replace(deployed, workload=work))
    found = tuple(outcome_at(deployed, theory, value, is_open, targets, simulate, seed) for value in points)
    parts = (getattr(deployed, name) for name in Deployed.__struct_fields__)
    return SessionCurve(*parts, values=points, outcomes=found, open=is_open, targets=targets)


def outcome_at(
    deployed: Deployed,
    theory: Theory | Transient | None,
    value: float,
    is_open: bool,
    targets: Targets = NO_TARGETS,
    simulate: int | None = None,
    seed: int = 0,
    shortened: bool = False,
) -> SessionOutcome:
    """The outcome of a number of sessions or a rate of new ones, of which each copy has its share, or by a router.

    A `shortened` run ends where it is sure that the targets are missed at p95.
    """
    copies = deployed.replica.copies
    each = value / copies
    sessions = max(round(each), 1)
    if is_open:
        assert isinstance(theory, Theory)
        sessions = _at_a_time(theory, each, value)
    together = copies > 1 and deployed.routing != SESSION  # a router looks at all copies; else each is as another
    shares = copies if together else 1
    count = simulate
    if simulate is None and (deployed.workload.duration is None or is_open):
        count = int(min(max(LEAST_TURNS, OF_EACH * sessions * shares), MOST_TURNS))
    ran = simulate_sessions(
        deployed,
        count,
        sessions * shares,
        each * shares if is_open else None,
        seed,
        shares,
        limits=targets if shortened else NO_TARGETS,
    )
    if theory is None:
        return _outcome(deployed, value, ran, targets)
    branches = theory.at(sessions)
    ranks = deployed.replica.data if deployed.routing == SESSION else 1
    crowd = 1 + math.sqrt(2 * math.log(ranks) * ranks / sessions)  # of the rank with the most sessions, over the mean
    drawn = max(sessions * copies - deployed.workload.traces, 0)  # contexts of the first traces are known
    margin = math.hypot(NEAR, SPREAD * theory.varied * math.sqrt(drawn) / (sessions * copies))
    states = [branches.warm, branches.cold]
    sizes, errors = (max(1 - margin, 0.5), (1 + margin) * crowd), _prompt_errors(deployed.replica, *_lengths_of(ran))
    for size, slower in zip(sizes, farther(errors, BEYOND_ERRORS), strict=True):
        state = theory.warm(size * sessions, slower)
        # The interval has a step's own error already; these states add what slower steps change in hits and queues.
        states.append(replace(state, ttft=state.ttft / slower, tpot=state.tpot / slower))
    return _outcome(deployed, value, ran, targets, states, branches.thrashes)


def _at_a_time(theory: Theory, rate: float, asked: float) -> int:
    """The sessions at a time of a rate of new ones; raises RooflineError where it is more than is ever served."""
    wanted = rate * theory.work.turns.mean / theory.main
    low, high, most = 0, 1, 0.0
    while (served := theory.warm(high).turns_per_second) < wanted:
        if served < MORE * most or high > MAX_CONCURRENCY:
            raise RooflineError(
                f"no steady state: {asked:g} new sessions/s are more than this deployment serves, about"
                f" {max(served, most) / wanted * asked:.2g}"
            )
        low, high, most = high, 2 * high, served
    while high - low > max(1, low // 20):
        middle = (low + high) // 2
        low, high = (low, middle) if theory.warm(middle).turns_per_second >= wanted else (middle, high)
    return high


def _outcome(
    deployed: Deployed, value: float, ran: Ran, targets: Targets, states: Sequence[State] = (), parted: bool = False
) -> SessionOutcome:
    """The outcome of a run, and of the steady `states` near it, the first of which is that of a warm cache."""
    replica, copies = deployed.replica, deployed.replica.copies
    steps = np.maximum(ran.output - 1, 1)
    ttft, e2e = ran.first - ran.arrival, ran.last - ran.arrival
    tpot = np.where(ran.output > 1, (ran.last - ran.first) / steps, math.nan)
    chunk, context = _lengths_of(ran)
    # Medians of turns have what hits decide: nothing is known of them apart.
    spread = [each._replace(median=1.0) for each in spreads(replica, ran.running, context, chunk)]
    spread[1] = beside_prompts(spread[1], replica, chunk, context, ran.prefilling)
    met = None
    if targets != NO_TARGETS:
        met = float(((ttft <= targets[0]) & ~(tpot > targets[1])).mean())
    total = float(ran.prompt.sum())
    hits = tuple(hit_rates(ran))
    known = np.minimum(ran.reusable, ran.prompt - 1)
    found, block = ran.hits.sum(axis=1), deployed.store.block
    lost, evicted = (float((each - found).clip(0).mean()) for each in (known, known // block * block))
    endless = float(known.sum()) / total
    near = [sum(hits), *ran.each, *(sum(state.hits) for state in states)]
    output = float(ran.output.mean())
    times = [(state.ttft, state.tpot, state.ttft + output * state.tpot) for state in states]
    means = [float(finite(each).mean()) for each in (ttft, tpot, e2e)]
    own = zip((*spread, spread[1]), means, zip(*times, strict=True) if times else [()] * 3, strict=True)
    spread = [with_states(*each) for each in own]
    least, most, new = min(near), max(near), 0.0 if deployed.workload.duration is None else 1 - endless
    within = least - (MISSED - 1) * new, most * (1 + (1 - 1 / MISSED) * new / max(endless, 1e-9))
    return SessionOutcome(
        value,
        latency(ttft, spread[0]),
        latency(tpot, spread[1]),
        latency(e2e, spread[2]),
        copies * ran.prompt.size / ran.duration,
        copies * total / ran.duration,
        copies * float(ran.output.sum()) / ran.duration,
        hits,
        endless,
        (max(within[0], 0.0), min(within[1], 1.0)),
        lost,
        tuple(copies * each for each in ran.read[1:]),
        tuple(copies * each for each in ran.written[1:]),
        copies * ran.running,
        copies * ran.waiting,
        min(ran.cached / deployed.store.tokens, 1.0),
        ran.preemptions,
        parted or ran.prefilling * evicted > BUSY * (evicted + float((ran.prompt - known).mean())),
        met,
        _cost(deployed, ran),
        _example(ran),
    )


def _lengths_of(ran: Ran) -> tuple[float, float]:
    """Mean tokens that are computed of the prompts of a run, and mean tokens of these."""
    return max(float((ran.prompt - ran.hits.sum(1)).mean()), 1.0), float(ran.prompt.mean())


def _prompt_errors(replica: Replica, chunk: float, context: float) -> tuple[float, float]:
    """p10 and p90 over the expected time of steps with prompts."""
    low, high = (each.nearest(chunk, context) for each in replica.steps.spread[2:])
    return low, high


def beside_prompts(spread: Spread, replica: Replica, chunk: float, context: float, share: float) -> Spread:
    """p10 and p90 over the expected TPOT: those of prompts for the `share` of time in steps with prompts."""
    prompts = zip(spread[:2], _prompt_errors(replica, chunk, context), strict=True)
    low, high = ((1 - share) * own + share * other for own, other in prompts)
    return Spread(low, high, spread.median)


def with_states(spread: Spread, mean: float, times: Sequence[float]) -> Spread:
    """p10 and p90 over the expected time, of a model's error and of which of some steady states a run is in.

    A run with a `mean` near the time of one of them is taken for that one; near a cliff it may be in none of them.
    """
    ends = farther(spread[:2], BEYOND_ERRORS)
    if times and min(times) > 0.0 and mean > 0.0:
        own = min(times, key=lambda time: abs(math.log(time / mean)))
        own = own if max(own / mean, mean / own) < AGREES else mean
        ends = farther(ends, (max(math.log(own / min(times)), 0.0), max(math.log(max(times) / own), 0.0)))
    return Spread(*ends, spread.median)


def _example(ran: Ran) -> tuple[TurnTimes, ...]:
    """The turns of the session that has most of them, from its first on."""
    owners, counts = np.unique(ran.owner, return_counts=True)
    own = np.flatnonzero(ran.owner == owners[counts.argmax()])[:EXAMPLE]
    begin = ran.arrival[own].min()
    times = (ran.arrival - begin, ran.first - begin, ran.last - begin, ran.prompt, ran.hits.sum(axis=1), ran.output)
    return tuple(TurnTimes(*(float(column[turn]) for column in times)) for turn in own[np.argsort(ran.arrival[own])])


def _cost(deployed: Deployed, ran: Ran) -> SessionCost | None:
    """The rent of a session, and of tokens of each kind in proportion to the seconds of steps that they take."""
    replica = deployed.replica
    hourly = rent(deployed.whole.pools, deployed.scenario.price)
    if hourly is None:
        return None
    usd = (hourly / replica.copies + sum(tier.price for tier in deployed.store.tiers)) / HOUR
    cached = float(ran.hits.sum(axis=1).mean())
    computed, output = float(ran.prompt.mean()) - cached, float(ran.output.mean())
    chunk, running = min(max(computed, 1.0), replica.budget), max(ran.running / replica.data, 1.0)
    decode, context = deployed.decode, float(ran.prompt.mean())
    plain, after = (float(replica.steps.seconds(0.0, 0.0, chunk, before)) for before in (0.0, context))
    step = float(decode.steps.seconds(running, context)) / running / decode.steps.accepted
    weights = np.array([plain / chunk, max(after - plain, 0.0) / context * computed / chunk, step])
    share = weights / float(weights @ np.array([computed, cached, output]))
    turn = usd * ran.duration / ran.prompt.size
    turns = deployed.workload.turns.mean
    first, kept, last = (float(each) * turn * MILLION for each in share)
    return SessionCost(turn * turns, first, kept, last)
