"""Turns of sessions as the theory reads them: a sample, of sessions without end or of a benchmark's places."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.serving.sessions.drawn import Draw, Session, grown, turn_of
from roofline.serving.sessions.workload import Workload, waits
from roofline.serving.tables import Array

TURNS = 1000
"""Turns of a sample."""

SESSIONS, EVEN = 64, (0.7548776662, 0.5698402910)
"""The fewest sessions of a sample, and steps of a sequence that fills a square evenly (Roberts 2018, R2)."""

MARKS = 8
"""Ends of earlier turns of which one is before the tokens that a prompt replaced."""


class Turns(NamedTuple):
    """Turns of equal weight: tokens of the prompt, of those that it could reuse, of output, and left behind.

    They could reuse those of earlier turns, and those `shared`. Those left behind are its own, after the shared prefix.
    `idle` is the gap before it; that after it is `pause` for the client (none after the last of a sub-agent) and `gap`
    for the cache: infinite where it does not know the next turn. `main` is 1 for a session's own turns, 0 for those of
    its sub-agents. `marked`: those of `reusable` up to the end of an earlier turn, where a snapshot is. `place`: the
    turns of main agents before it, `lane` its place among the sessions of a benchmark (no known trace's: any after).
    `agents`: turns of the longest of the sub-agents that the next turn waits for; `before`: of those before it.
    """

    prompt: Array
    reusable: Array
    shared: Array
    output: Array
    left: Array
    idle: Array
    gap: Array
    pause: Array
    main: Array
    marked: Array
    place: Array
    lane: Array
    agents: Array
    before: Array

    def some(self, which: NDArray[np.bool_], count: int) -> Turns:
        """Of those where `which` is true, so many at most, evenly."""
        rows = np.flatnonzero(which)
        rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), count)).astype(int)]
        return Turns(*(column[rows] for column in self))


def turns_of(work: Workload, seed: int = 0, count: int = TURNS) -> Turns:
    """So many turns of sessions of a workload, at random."""
    draw, rows, number = Draw(work, seed, TURNS // 4), list[tuple[float, ...]](), 0
    while len(rows) < TURNS or number < SESSIONS:
        number += 1
        waiting = [(0, _session(draw, number, None))]
        while waiting:
            place, session = waiting.pop()
            rows += _rows(session, work, draw, waiting, place, lane=work.traces)
    # Of sessions with many turns there are more rows than are needed.
    return Turns(*np.array(rows, float).T).some(np.ones(len(rows), bool), count)


def places_of(work: Workload, seed: int, length: float) -> Turns:
    """The turns of a benchmark's places after its warm-up, of so many of main agents each: sessions follow another.

    The first places are those of traces that are known, all others follow.
    """
    draw, rows, number = Draw(work, seed, TURNS // 4), list[tuple[float, ...]](), 0
    for lane in range(work.traces + SESSIONS):
        waiting, place, part, begun = list[tuple[int, Session]](), -work.warmup, work.begun, False
        while place < length:
            number += 1
            session = _session(draw, number, part, None if begun else lane)
            own = _rows(session, work, draw, waiting, place, length - place, lane)
            rows, place, part, begun = rows + own, place + len(own), (0.0, 0.0), True
        while waiting:
            at, session = waiting.pop()
            rows += _rows(session, work, draw, waiting, at, lane=lane)
    turns = Turns(*np.array(rows, float).T)
    return turns.some(turns.place >= 0, len(rows))


def _session(draw: Draw, number: int, part: tuple[float, float] | None, lane: int | None = None) -> Session:
    """The next session: turns and first prompts of them fill their distributions evenly."""
    return draw.session(part, quantiles=(number * EVEN[0] % 1.0, number * EVEN[1] % 1.0), place=lane)


def _rows(
    session: Session,
    work: Workload,
    draw: Draw,
    waiting: list[tuple[int, Session]],
    place: int,
    most: float = math.inf,
    lane: int = 0,
) -> list[tuple[float, ...]]:
    """The turns of a session from a place on, so many at most; its sub-agents, with the places of theirs, wait."""
    found, idle, marks, away, before = list[tuple[float, ...]](), session.idle, list[int](), 0.0, 0
    while session.place < len(session.new) and len(found) < most:
        turn, context, at = turn_of(session, work), session.context, place + len(found)
        after, others, agents = turn.gap, 0.0, 0
        if turn.branch:
            for _ in range(work.branch_agents):
                child = draw.branch(session, max(int(work.branch_context * context), work.shared))
                child.idle, away = away, 0.0
                waiting.append((at, child))
                others, agents = max(others, sum(child.gap[:-1])), max(agents, len(child.new))
            if not waits(work, session.replayed is not None):
                others, agents = 0.0, 0
            after = max(after, others)
        known, away = grown(session, work), away + after
        left = turn.prompt - work.shared - session.common + (turn.output if work.kept else 0)
        ends = session.place == len(session.new)
        pause = 0.0 if session.child and ends else after - others
        # What a call beside a session had is not used again, and the session's context is idle over it.
        beside = 0.0 if ends or not session.aside[session.place] else session.gap[session.place]
        gap = after + beside if known and not ends and not turn.aside else math.inf
        shared = 0 if turn.aside else work.shared
        tokens = turn.prompt, turn.reusable - shared, shared, turn.output, left
        earlier = [] if turn.aside else [each for each in marks if each <= turn.reusable]
        marked = max(earlier, default=turn.reusable)
        marked = max(marked - shared, 0)
        found.append((*tokens, idle, gap, pause, not session.child, marked, at, lane, agents, before))
        if not turn.aside:
            marks = [*marks[-MARKS:], turn.prompt + (turn.output if work.kept else 0)] if known else []
        idle, before = after + (idle if turn.aside else 0.0), agents + (before if turn.aside else 0)
    return found
