"""What runs of sessions observed after their warm-up: turns, hits of each tier, and what was moved."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from roofline.serving.outcome import NO_TARGETS, Targets
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

    runs: Rows[SessionRun]
    duration: float
    counts: tuple[Any, ...]


def watched(
    runs: Rows[SessionRun], warm: int, turns: int | None, seconds: float = 0.0, limits: Targets = NO_TARGETS
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


def observed(parts: Rows[Watched]) -> Ran:
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
    counts = (prefilling, int(preempted), *moved, tuple(_hit(part.runs) for part in parts))
    return Ran._make((*columns, hits, duration, *means, *counts))


def _hit(runs: Rows[SessionRun]) -> float:
    """The fraction of prompt tokens of turns that some tier had."""
    return sum(sum(found) for run in runs for found in run.found) / sum(row[PROMPT] for run in runs for row in run.rows)


def _until_time(runs: Rows[SessionRun], time: float) -> None:
    """Follow replicas, the earliest first, until a time."""
    while (run := min(runs, key=attrgetter("ready"))).ready < time:
        run.event()


def _until(runs: Rows[SessionRun], number: int, limits: Targets = NO_TARGETS) -> None:
    """Follow replicas, the earliest first, until so many turns are done, or p95 of one is sure to be over a limit."""
    done = 0
    while (sum_ := sum(len(run.rows) for run in runs)) < number:
        min(runs, key=attrgetter("ready")).event()
        if limits != NO_TARGETS and sum_ >= done + CHECKED:
            done = sum_
            rows = np.array([row[:PROMPT] for run in runs for row in run.rows])
            times = rows[:, 1] - rows[:, 0], (rows[:, 2] - rows[:, 1]) / np.maximum(rows[:, 3] - 1, 1)
            over = np.array([(time > limit).sum() for time, limit in zip(times, limits, strict=True)])
            if over.max() > 0.05 * number + 1:
                return


CHECKED = 50
"""Turns from one look at a run's times to the next."""


def _counts(runs: Rows[SessionRun]) -> tuple[Any, ...]:
    """Preemptions, and bytes read from and written to each tier."""
    read, written = (np.sum([getattr(run, name) for run in runs], axis=0) for name in ("read", "written"))
    return sum(run.preemptions for run in runs), read, written


def hit_rates(ran: Ran) -> Rows[float]:
    """The fraction of prompt tokens that each tier had."""
    found: list[float] = (ran.hits.sum(axis=0) / ran.prompt.sum()).tolist()
    return found
