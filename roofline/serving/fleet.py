"""A fleet of equal replicas over a day: autoscaling on a rate that varies, start-up, scale to zero, spot loss.

Between decisions each replica is in the steady state of `roofline.serving.steady` at its share of the rate; what
arrives beyond the largest sustainable rate waits in a queue of all. A request misses its targets where the steady state
does, or where the queue takes longer than the target of TTFT. The requests of a lost replica begin anew.

Under sessions it is in the steady state of `roofline.serving.sessions` at its number of them: each stays on a replica,
and its cache is lost with that. New ones come to the replica with the fewest. Those of a replica that stops, or is
lost, go to the others, which compute their contexts again, or load them from a tier that all replicas share: until then
turns there miss their targets.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from roofline.core.checked import Checked, Fraction, NotNegative
from roofline.core.display import Result
from roofline.core.errors import RooflineError, quote
from roofline.core.limits import MAX_CONCURRENCY
from roofline.scenario.argument import beside
from roofline.scenario.cost import HOUR, rent
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import Curve, serve, targets_of
from roofline.serving.load import Trace
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.outcome import Targets
from roofline.serving.sessions.deployed import Deployed, deployed_of, read_sessions, workload_of
from roofline.serving.sessions.options import SESSION_OPTIONS
from roofline.serving.sessions.served import SessionCurve, serve_sessions
from roofline.serving.sessions.theory import Theory
from roofline.serving.sessions.workload import parse_gaps
from roofline.serving.tables import Array
from roofline.serving.traces import read_trace

STEP, MEASURED, DAY = 10.0, 60.0, 86_400.0
"""Seconds between decisions of the autoscaler, over which it measures the rate, and of a run."""

PARTS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97)
"""Rates at which the steady state of a replica is computed, over its largest."""


class Scaling(Checked, frozen=True):
    """From `least` (0: none without requests) to `most` replicas, so many that each has `share` of its largest rate.

    A replica serves `startup` seconds after it is asked for, and goes when `hold` seconds had no need of it. `loss` are
    the replicas that are lost an hour, of one (spot devices); others are started in their place.
    """

    least: Annotated[int, Meta(ge=0, le=10_000)] = 1
    most: Annotated[int, Meta(ge=1, le=10_000)] = 10
    share: Fraction = 0.7
    startup: NotNegative = 300.0
    hold: NotNegative = 300.0
    loss: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise RooflineError(
                f"a fleet of {self.least} to {self.most} replicas has none: the smaller number is first"
            )
        if not self.share:
            raise RooflineError("the share of its largest rate that a replica is to have is above 0")


class Scaler:
    """The autoscaler of a run; `starts` are the times at which replicas that it asked for serve."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling, self.starts = scaling, list[float]()
        self._needs = deque[int](maxlen=max(round(scaling.hold / STEP), 1))

    def begun(self, now: float) -> int:
        """Those that begin to serve."""
        before = len(self.starts)
        self.starts = [at for at in self.starts if at > now]
        return before - len(self.starts)

    def stops(self, now: float, serving: int, wanted: float) -> int:
        """Ask for more where so many are wanted; of those that serve so many stop that had no use for long enough."""
        scaling, needs = self.scaling, self._needs
        needs.append(min(max(math.ceil(wanted - 1e-9), scaling.least), scaling.most))
        self.starts += [now + scaling.startup] * (needs[-1] - serving - len(self.starts))
        over = serving + len(self.starts) - max(needs) if len(needs) == needs.maxlen else 0
        if over <= 0:
            return 0
        kept = max(len(self.starts) - over, 0)
        stopped = over - (len(self.starts) - kept)
        self.starts = self.starts[:kept]
        return stopped


class FleetRun(Result, Struct, frozen=True):
    """A day of a fleet, by steps of STEP seconds: arrivals/s, replicas that serve and that start, requests that wait.

    `missed` are the requests of each step that miss their targets, `curve` the steady states of one replica, `most` its
    largest rate. `fixed`: replicas that the highest rate needs all day. Under sessions these come in place of requests,
    `most` is a number of them at a time, and of a step's new ones the part of all turns that misses is `missed`.
    """

    scenario: Scenario
    curve: Curve | SessionCurve
    most: float
    scaling: Scaling
    rate: Array
    serving: Array
    starting: Array
    queue: Array
    missed: Array
    lost: int
    fixed: int

    @property
    def devices(self) -> Array:
        """Devices that are rented in each step."""
        found: Array = (self.serving + self.starting) * self.curve.replica.devices
        return found

    @property
    def missed_share(self) -> float:
        """The fraction of the requests that miss their targets."""
        return float(self.missed.sum() / max(self.rate.sum() * STEP, 1e-12))

    @property
    def usd(self) -> tuple[float, float] | None:
        """The rent of the day, and that of `fixed` replicas; None without a price."""
        hourly = rent(self.curve.pools, self.scenario.price)
        if hourly is None:
            return None
        hours = float((self.serving + self.starting).sum()) * STEP / HOUR
        return hourly * hours, hourly * self.fixed * self.rate.size * STEP / HOUR


def scaling_of(
    replicas: int | str = "1:10",
    share: float = 0.7,
    startup: float | str = "5min",
    hold: float | str = "5min",
    loss: float = 0.0,
) -> Scaling:
    """The scaling of a number of replicas, or between LEAST:MOST, with times in seconds or as texts.

    Raises RooflineError.
    """
    ends = str(replicas).split(":")
    ends *= 1 + (len(ends) == 1)
    if len(ends) != 2 or not all(end.isascii() and end.isdigit() and len(end) < 6 for end in ends):
        raise RooflineError(f"replicas are LEAST:MOST such as 1:10, got {quote(replicas)}", options=["replicas"])
    starts, held = (float(parse_gaps(text).quantiles(0.5)) for text in (startup, hold))
    return Scaling(int(ends[0]), int(ends[1]), share, starts, held, loss)


def run_fleet(
    scenario: Scenario,
    scaling: Scaling | None = None,
    rate: float | str | None = None,
    low: float = 1.0,
    trace: Trace | str | Path | None = None,
    seed: int | None = None,
    **options: Any,
) -> FleetRun:
    """A day of a fleet at a `rate` (requests/s, at 15 h) that falls to `low` of it at night, a sine, or of a trace.

    The options are those of `scaling_of` in place of a `Scaling`, targets of TTFT and TPOT, of which one is needed, and
    those of a load with a rate. Requests have the lengths of the scenario, or the mean ones of the trace. With a
    `session_rate` in place of a rate, new ones a second at the peak, they are those of sessions. Raises RooflineError.
    """
    given = {name: options.pop(name) for name in signature(scaling_of).parameters if name in options}
    if scaling is not None and given:
        raise RooflineError(f"{beside(sorted(given))} a Scaling")
    scaling = scaling or scaling_of(**given)
    trace = read_trace(Path(trace)) if isinstance(trace, (str, Path)) else trace
    random = np.random.default_rng(LOAD_OPTIONS["seed"].read(seed) or 0)
    if (new := options.pop("session_rate", None)) is not None:
        most = SESSION_OPTIONS["session_rate"].number(new)
        return _of_sessions(scenario, scaling, most, low, rate or trace, random, options)
    peak = None if rate is None else LOAD_OPTIONS["rate"].number(str(rate).removesuffix("/s"))
    rates = _rates(peak, low, trace)
    if trace is not None:
        prompt, output = (max(round(float(np.mean(lengths))), 1) for lengths in (trace.prompt, trace.output))
        scenario = scenario.with_(prompt=prompt, generate=output)
    saturated = serve(scenario, rate=1e-3, draft_limit=False, **options).outcomes[0].saturated_at
    assert saturated is not None
    curve = serve(scenario, rate=[part * saturated for part in PARTS], draft_limit=False, **options)
    if not any(map(math.isfinite, curve.targets)):
        raise RooflineError("a fleet needs a target, such as 2s of TTFT: requests miss it where replicas are too few")
    good = [(each.goodput or 0.0) / each.requests_per_second for each in curve.outcomes]
    running = [each.running for each in curve.outcomes]
    found = _run(rates, saturated, good, running, curve.targets[0], scaling, random)
    fixed = math.ceil(float(rates.max()) / saturated / scaling.share)
    return FleetRun(scenario, curve, saturated, scaling, rates, *found, fixed)


def _of_sessions(
    scenario: Scenario, scaling: Scaling, peak: float, low: float, beside: Any, random: Any, options: dict[str, Any]
) -> FleetRun:
    targets = targets_of(options.pop("ttft", None), options.pop("tpot", None))
    if beside is not None or not any(map(math.isfinite, targets)):
        raise RooflineError(
            "a fleet of sessions has their rate alone, and a target such as 2s of TTFT",
            options=["session_rate", "ttft"],
        )
    rates, held = _rates(peak, low, None), holding(scenario, targets, options)
    found = run_sessions(rates, held, targets[0], scaling, random)
    fixed = math.ceil(float(rates.max()) * held.lasting / held.most / scaling.share)
    return FleetRun(scenario, held.curve, held.most, scaling, rates, *found, fixed)


def _rates(peak: float | None, low: float, trace: Trace | None) -> Array:
    """Mean arrivals/s in each step."""
    if (peak is None) == (trace is None):
        raise RooflineError("a day has the rate of its peak, or a trace: give one of both")
    if trace is not None:
        steps = np.bincount((np.asarray(trace.arrival) // STEP).astype(int))
        return np.asarray(steps / STEP, float)
    if not 0 <= low <= 1:
        raise RooflineError(f"the lowest rate of a day is a fraction of its peak, got {low}")
    hours = np.arange(0, DAY, STEP) / HOUR
    return float(peak or 0) * (low + (1 - low) * (1 + np.cos(2 * np.pi * (hours - 15) / 24)) / 2)


def _run(
    rates: Array, most: float, good: list[float], running: list[float], ttft: float, scaling: Scaling, random: Any
) -> tuple[Array, Array, Array, Array, int]:
    """Replicas that serve and start, the queue, and requests that miss their targets, in each step; replicas lost."""
    rows, queue, lost = np.zeros((4, rates.size)), 0.0, 0
    begin = math.ceil(float(rates[0]) / most / scaling.share)
    serving, scaler = min(max(begin, scaling.least), scaling.most), Scaler(scaling)
    seen = deque[float](maxlen=max(round(MEASURED / STEP), 1))
    arrivals = random.poisson(rates * STEP).astype(float)
    for step, came in enumerate(arrivals):
        now = step * STEP
        serving += scaler.begun(now)
        if scaling.loss and (gone := int(random.binomial(serving, -math.expm1(-scaling.loss * STEP / HOUR)))):
            each = min((came + queue) / STEP / max(serving, 1) / most, 1.0)
            queue += gone * float(np.interp(each, PARTS, running))
            serving, lost = serving - gone, lost + gone
        seen.append(came)
        queue += came
        served = min(queue, serving * most * STEP)
        queue -= served
        wait = queue / (serving * most) if serving else math.inf if queue else 0.0
        part = float(np.interp(served / STEP / serving / most, PARTS, good)) if serving else 0.0
        rows[:, step] = serving, len(scaler.starts), queue, rates[step] * STEP * (1 - part if wait <= ttft else 1.0)
        wanted = (sum(seen) / len(seen) / STEP + queue / MEASURED) / most / scaling.share
        serving -= scaler.stops(now, serving, wanted)
    return rows[0], rows[1], rows[2], rows[3], lost


SESSION_PARTS = (0.1, 0.3, 0.5, 0.7, 0.85, 1.0, 1.3, 2.0)
"""Numbers of sessions at which the steady state of a replica is simulated, over those that the theory gives it."""

TRIES = 4
"""Times that these are sought, from the theory's number of sessions, where the fewest miss the targets or all meet."""

MET, REMOTE, TURNS = 0.95, "remote", 2000
"""The part of turns within targets with the most sessions of a replica, the name of a tier that all replicas share
without saying so, and turns of a simulation."""


class Holding(NamedTuple):
    """A replica by its `sessions`: sessions that end a second, and the part of turns within targets.

    `most` sessions meet the targets; one that moves adds `moving` seconds of prompts or of loading.
    """

    curve: SessionCurve
    sessions: Array
    ends: Array
    good: Array
    most: float
    moving: float

    @property
    def lasting(self) -> float:
        """Seconds of a session on a replica with the most."""
        return self.most / float(np.interp(self.most, self.sessions, self.ends))


def holding(scenario: Scenario, targets: Targets, options: Mapping[str, Any]) -> Holding:
    """The steady states of a replica under the sessions of options; raises RooflineError where one misses targets."""
    asked = read_sessions(options)
    # A day is no benchmark: its sessions are of a random moment.
    work = replace(workload_of(scenario, asked), duration=None, rehearsal=None, begun=(0.0, 1.0), warmup=0)
    work = replace(work, idle=None, replayed=())
    stored: dict[str, Any] = {name: asked[name] for name in ("tiers", "pool", "routing") if name in asked}
    deployed = deployed_of(scenario, work, stored)
    theory, number = Theory(deployed), deployed.replica.copies
    while number < MAX_CONCURRENCY and (state := theory.warm(number / deployed.replica.copies)).ttft <= targets[0]:
        if state.tpot > targets[1]:
            break
        number *= 2
    for _ in range(TRIES):
        numbers = sorted({max(round(part * number), deployed.replica.copies) for part in SESSION_PARTS})
        curve = serve_sessions(scenario, work, targets=targets, sessions=numbers, simulate=TURNS, **stored)
        good = np.array([each.met or 0.0 for each in curve.outcomes])
        if good[0] < MET and numbers[0] > deployed.replica.copies:
            number = numbers[0]
        elif good[-1] >= MET and numbers[-1] < MAX_CONCURRENCY / 2:
            number = numbers[-1]
        else:
            break
    if good[0] < MET:
        raise RooflineError(
            f"a replica misses the targets with {numbers[0]} sessions: take looser ones or more devices"
        )
    most = numbers[0]
    for low, high, one, two in zip(numbers, numbers[1:], good, good[1:], strict=False):
        if two < MET:
            most = math.floor(low + (high - low) * (one - MET) / (one - two))
            break
        most = high
    turns = np.array([each.turns_per_second for each in curve.outcomes]) * theory.main
    # With twice the sessions beyond the last, as many turns get done, each after twice the time.
    counts, ends = np.array([0.0, *numbers, 2 * numbers[-1]]), np.array([0.0, *turns, turns[-1]]) / work.turns.mean
    return Holding(curve, counts, ends, np.array([1.0, *good, 0.0]), most, _moving(deployed, theory, most))


def _moving(deployed: Deployed, theory: Theory, most: int) -> float:
    """Seconds of a replica that the context of a session takes which comes from another one, of `most` at a time.

    Of these contexts a shared tier has those that its part of a replica holds.
    """
    replica, chunk = deployed.replica, float(deployed.replica.budget)
    context = float((theory.turns.left * theory.turns.main).sum() / theory.turns.main.sum())
    computed = float(replica.steps.seconds(0.0, 0.0, chunk, context / 2)) * context / chunk
    mean = computed
    for tier, level in zip(deployed.store.tiers, deployed.store.levels, strict=True):
        if tier.shared or tier.name == REMOTE:
            part = min(level.blocks / max(most / replica.copies * context, 1.0), 1.0)
            mean = part * min(context * deployed.store.read(tier) / tier.bandwidth, mean) + (1 - part) * mean
    return mean / replica.copies / replica.data


def run_sessions(
    rates: Array, held: Holding, ttft: float, scaling: Scaling, random: Any
) -> tuple[Array, Array, Array, Array, int]:
    """Replicas that serve and start, sessions that wait for one, and new ones that fare badly; replicas lost.

    In each step of a day with so many new sessions a second. Fare badly: the part of the turns of all that miss.
    """
    rows, waiting, moved, lost = np.zeros((4, rates.size)), 0, 0, 0
    alive = round(float(rates[0]) * held.lasting)
    number = min(max(math.ceil(alive / held.most / scaling.share), scaling.least), scaling.most)
    scaler, sessions = Scaler(scaling), np.array([(alive + place) // number for place in range(number)], int)
    cold, arrivals = np.zeros(sessions.size), random.poisson(rates * STEP)
    for step, came in enumerate(arrivals):
        now = step * STEP
        new = scaler.begun(now)
        sessions, cold = np.append(sessions, np.zeros(new, int)), np.append(cold, np.zeros(new))
        gone = random.random(sessions.size) < -math.expm1(-scaling.loss * STEP / HOUR)
        lost += int(gone.sum())
        moved, sessions, cold = moved + int(sessions[gone].sum()), sessions[~gone], cold[~gone]
        waiting += int(came)
        ends = -np.expm1(-STEP * np.interp(sessions, held.sessions, held.ends) / np.maximum(sessions, 1))
        sessions = sessions - random.binomial(sessions, ends)
        alive = int(sessions.sum()) + waiting + moved
        for _ in range(scaler.stops(now, sessions.size, alive / held.most / scaling.share)):
            least = int(sessions.argmin())
            moved += int(sessions[least])
            sessions, cold = np.delete(sessions, least), np.delete(cold, least)
        if sessions.size:
            for place in range(moved + waiting):
                least = int(sessions.argmin())
                sessions[least] += 1
                cold[least] += held.moving * (place < moved)
            waiting = moved = 0
        good = np.where(cold > ttft, 0.0, np.interp(sessions, held.sessions, held.good))
        turns = np.interp(sessions, held.sessions, held.ends)
        queue = waiting + moved  # where no replica serves
        part = float(good @ turns / turns.sum()) if turns.sum() and not queue else float(not queue)
        rows[:, step] = sessions.size, len(scaler.starts), queue, rates[step] * STEP * max(1 - part, 0.0)
        cold = np.maximum(cold - STEP, 0.0)
    return rows[0], rows[1], rows[2], rows[3], lost
