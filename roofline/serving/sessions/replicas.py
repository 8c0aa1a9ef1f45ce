"""Runs of sessions on several replicas behind a router: each turn goes to one of them, where its steps are simulated.

The router knows how many requests each replica has, or how much of a prompt its caches hold. The replica whose time is
earliest goes on, up to the time of the others. What runs observe after their warm-up is a `Ran`: turns, hits of each
tier, and what was moved.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from roofline.core.errors import RooflineError
from roofline.serving.outcome import NO_TARGETS, Targets
from roofline.serving.sessions.deployed import Deployed
from roofline.serving.sessions.drawn import Draw, Turn
from roofline.serving.sessions.routing import PREFIX, chosen
from roofline.serving.sessions.simulation import SessionRun
from roofline.serving.tables import Array

WARM = 1 / 3
"""The part of a run that is not observed."""


class Ran(NamedTuple):
    """What a run observed after its warm-up.

    Of each turn: arrival, first and last token (seconds), tokens of output and prompt, those of earlier turns or the
    shared prefix in it (`reusable`), the gap after it, the number of its session (`owner`), and tokens found in each
    tier (turns, tiers). Over the `duration`: mean running and waiting requests, tokens of running ones, the share of
    time in steps with prompts, tokens in each tier at the end, and bytes a second read from and written to each; `each`
    has the hit rates of the runs by themselves.
    """

    arrival: Array
    first: Array
    last: Array
    output: Array
    prompt: Array
    reusable: Array
    gaps: Array
    owner: Array
    hits: Array
    duration: float
    running: float
    waiting: float
    cached: float
    prefilling: float
    preemptions: int
    used: tuple[float, ...]
    read: tuple[float, ...]
    written: tuple[float, ...]
    each: tuple[float, ...]


PROMPT = 4
"""The column of prompts in the rows of turns."""


class Watched(NamedTuple):
    """Replicas of a run behind one router, seconds of them together after the warm-up, and their counts in it."""

    runs: Sequence[SessionRun]
    duration: float
    counts: tuple[Any, ...]


def watched(
    runs: Sequence[SessionRun], warm: int, turns: int | None, seconds: float = 0.0, limits: Targets = NO_TARGETS
) -> Watched:
    """Follow replicas over turns of warm-up, then over more turns, unless too many miss limits, or over seconds."""
    _until(runs, warm)
    _until_time(runs, runs[0].rehearsed)
    start, earlier = max(run.now for run in runs), _counts(runs)
    for run in runs:
        run.area, run.prefill_time, run.rows, run.found = [0.0, 0.0, 0.0], 0.0, [], []
    if turns is None:
        _until_time(runs, start + seconds)
        _until(runs, 1)
    else:
        _until(runs, turns, limits)
    counts = tuple(now - then for now, then in zip(_counts(runs), earlier, strict=True))
    return Watched(runs, max(max(run.now for run in runs) - start, 1e-12) * len(runs), counts)


def observed(parts: Sequence[Watched]) -> Ran:
    """All turns of runs, of a mean replica."""
    runs = [run for part in parts for run in part.runs]
    duration = sum(part.duration for part in parts)
    columns = np.array([row for run in runs for row in run.rows], float).T
    columns[-1] += np.repeat(
        [1e9 * place for place, part in enumerate(parts) for _ in part.runs], [len(run.rows) for run in runs]
    )
    preempted, read, written = (sum(part.counts[place] for part in parts) for place in range(3))
    used = np.sum([run.block * np.array(cache.used) for run in runs for cache in run.caches], axis=0) / len(runs)
    means = [sum(run.area[part] for run in runs) / duration for part in range(3)]
    prefilling = sum(run.prefill_time for run in runs) / duration
    moved = (tuple(each.tolist()) for each in (used, read / duration, written / duration))
    hits = np.array([row for run in runs for row in run.found], float)
    had = [sum(sum(found) for run in part.runs for found in run.found) for part in parts]
    asked = [sum(row[PROMPT] for run in part.runs for row in run.rows) for part in parts]
    each = tuple(one / other for one, other in zip(had, asked, strict=True))
    counts = (prefilling, int(preempted), *moved, each)
    return Ran._make((*columns, hits, duration, *means, *counts))


def _until_time(runs: Sequence[SessionRun], time: float) -> None:
    """Follow replicas, the earliest first, until a time."""
    while (run := min(runs, key=attrgetter("ready"))).ready < time:
        run.event()


def _until(runs: Sequence[SessionRun], number: int, limits: Targets = NO_TARGETS) -> None:
    """Follow replicas, the earliest first, until so many turns are done, or p95 of one is sure to be over a limit."""
    checked, limited, alone = 0, limits != NO_TARGETS, runs[0] if len(runs) == 1 else None
    while (done := len(alone.rows) if alone else sum(len(run.rows) for run in runs)) < number:
        (alone or min(runs, key=attrgetter("ready"))).event()
        if limited and done >= checked + CHECKED:
            checked = done
            rows = np.array([row[:PROMPT] for run in runs for row in run.rows])
            times = rows[:, 1] - rows[:, 0], (rows[:, 2] - rows[:, 1]) / np.maximum(rows[:, 3] - 1, 1)
            over = np.array([(time > limit).sum() for time, limit in zip(times, limits, strict=True)])
            if over.max() > 0.05 * number + 1:
                return


CHECKED = 50
"""Turns from one look at a run's times to the next."""


def _counts(runs: Sequence[SessionRun]) -> tuple[Any, ...]:
    """Preemptions, and bytes read from and written to each tier."""
    read, written = (np.sum([getattr(run, name) for run in runs], axis=0) for name in ("read", "written"))
    return sum(run.preemptions for run in runs), read, written


def hit_rates(ran: Ran) -> Sequence[float]:
    """The fraction of prompt tokens that each tier had."""
    found: list[float] = (ran.hits.sum(axis=0) / ran.prompt.sum()).tolist()
    return found


class Routed(SessionRun):
    """A replica whose turns, those that are due, wait or run, are also of the `others`; it is one of them."""

    others: Sequence[Routed] = ()

    @property
    def ready(self) -> float:
        """The time of the next event."""
        busy = self.running or self.prefilling or self.waiting
        return self.now if busy else max(self.now, self._awaited())

    def event(self) -> None:
        """Likewise, up to the time of the others."""
        self.limit = min(each.ready for each in self.others if each is not self)
        super().event()

    def _arrive(self, at: float, turn: Turn) -> None:
        loads = [sum(each.held) + len(each.coming) for each in self.others]
        known = [max(each.known(turn)) if self.routing == PREFIX else 0 for each in self.others]
        self.others[chosen(known, loads)].enter_turn(at, turn)


FEWEST, MOST_RUNS, LANE = 2000, 8, 60
"""The fewest turns of a benchmark's runs together, of at most so many runs, and the turns of a session in one."""


def simulate_sessions(
    deployed: Deployed,
    turns: int | None,
    sessions: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    copies: int = 1,
    limits: Targets = NO_TARGETS,
) -> Ran:
    """A run of so many turns, of a number of `sessions`, each followed by another one, or of a `rate` of new ones.

    Without `turns`, runs of a benchmark, each as long as the workload's `duration`, of other sessions. With a rate,
    `sessions` are those at the start. With a tandem the replica is a worker of its prefill. Turns go to several
    `copies` by the routing, other than by session. A run of turns ends where a twentieth of them has missed one of the
    `limits` of TTFT and TPOT. Raises RooflineError without sessions.
    """
    if not sessions and rate is None:
        raise RooflineError("sessions are a number of them, or a rate of new ones: give one of both")
    work = deployed.workload

    def start(seed: int) -> list[SessionRun]:
        draw = Draw(work, seed, every=max(deployed.replica.copies // copies, 1))
        if copies == 1:
            return [SessionRun(deployed, draw, sessions, rate)]
        runs = [Routed(deployed, draw, None if place else sessions, rate) for place in range(copies)]
        for run in runs:
            run.others, run.due, run.active, run.number = runs, runs[0].due, runs[0].active, runs[0].number
            run.joins = runs[0].joins
        return [*runs]

    if turns is not None:
        warm = round(turns * WARM)
        return observed([watched(start(seed), warm, turns - warm, limits=limits)])
    assert sessions
    assert work.duration is not None
    number = min(max(math.ceil(FEWEST / (LANE * sessions)), 1), MOST_RUNS)
    seeds = range(seed, seed + number)
    return observed([watched(start(each), work.warmup * sessions, None, work.duration) for each in seeds])
