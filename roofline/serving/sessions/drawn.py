"""Sessions that are drawn from a workload, turn by turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.serving.sessions.cache import Run
from roofline.serving.sessions.workload import Replayed, Workload

CANDIDATES = 16
"""Sessions of which one is drawn by its number of turns, so that it is one that runs at a random moment."""

WINDOW, LASTING = 100, 300
"""Turns of a benchmark over which a trace has its mean prompt, and those that it has at least: those of an hour."""


@dataclass(slots=True)
class Turn:
    """A request of a session: tokens of its prompt, those of earlier turns in it, and of its output; the gap after.

    `tail` is the end of its path in the cache, `hits` the tokens found in each tier; with a `branch` a sub-agent begins
    after it, and one `aside` is no part of the context.
    """

    session: Session
    prompt: int
    reusable: int
    output: int
    gap: float
    tail: Run | None = None
    hits: tuple[int, ...] = ()
    branch: bool = False
    aside: bool = False


@dataclass(slots=True)
class Session:
    """A session: its group, the context of its next turn, and the lengths of all its turns.

    Of a sub-agent `common` are the tokens that earlier ones of its session have, too, and `idle` seconds from the last.
    `tools` are the tokens that a session's sub-agents so far have of what all of them begin with.
    """

    number: int
    group: int
    context: int
    new: list[int]
    output: list[int]
    gap: list[float]
    branch: list[bool]
    aside: list[bool]
    place: int = 0
    reusable: int = 0
    child: bool = False
    common: int = 0
    idle: float = 0.0
    tools: int = 0
    replayed: Replayed | None = None


class Draw:
    """The sessions of a workload; equal seeds draw equal ones, in whatever order their turns end.

    Of each `even` turns, the lengths and gaps fill their distributions evenly, in random order. Of a benchmark's places
    every so many are of these sessions, and the others of other replicas.
    """

    def __init__(self, workload: Workload, seed: int = 0, even: int = 0, every: int = 1) -> None:
        self.workload, self.seed, self.count, self.even, self.every = workload, seed, 0, even, every
        self._shuffle = np.random.default_rng([seed, 2**32])
        self._left = [np.zeros(0) for _ in range(3)]

    def session(
        self,
        part: tuple[float, float] | None = None,
        biased: bool = False,
        quantiles: tuple[float, float] | None = None,
        place: int | None = None,
    ) -> Session:
        """The next session; it begins at a `part` of its turns, of sessions by their turns where `biased`.

        Its turns and its first prompt may be those of some `quantiles`; of a benchmark it is that of a `place`.
        """
        work, random = self.workload, np.random.default_rng([self.seed, self.count])
        at, beginning = quantiles or (random.random(CANDIDATES if biased else 1), random.random())
        turns = np.atleast_1d(_whole(work.turns.inverse(at)))
        number = int(turns[0] if not biased else random.choice(turns, p=turns / turns.sum()))
        skipped = 0 if part is None else min(int(number * random.uniform(*part)), number - 1)
        trace = None if place is None else work.trace(place * self.every)
        if trace is not None:
            number = max(number, skipped + LASTING)
        first = work.first or work.new
        found = self._session(number, random, int(_whole(first.inverse(np.array([beginning])))[0]), work.shared)
        found.replayed = trace
        self._replay(found, skipped)
        for _ in range(skipped):
            grown(found, work)
        return found

    def _replay(self, session: Session, skipped: int) -> None:
        """Give a session the means of its trace."""
        work, trace = self.workload, session.replayed
        if trace is None:
            return
        if trace.output:
            scale = trace.output / work.output.mean
            session.output = [max(round(each * scale), 1) for each in session.output]
        if trace.gap:
            session.gap = [each * trace.gap / work.gap.mean for each in session.gap]
        if trace.branches is not None and not session.child:
            random = np.random.default_rng([self.seed, self.count, 1])
            session.branch = (random.random(len(session.branch)) < trace.branches).tolist()
        if trace.prompt and not session.child:
            kept = np.array(session.output if work.kept else 0)
            prompts = session.context + np.cumsum(np.array(session.new) + kept) - session.new[0] - kept
            mean = float(prompts[skipped : skipped + work.warmup + WINDOW].mean())
            # Contexts that are compacted at a limit are between the two.
            wanted = min(trace.prompt, (work.limit + work.compacted) / 2 if work.limit else trace.prompt)
            if mean < wanted:
                session.new[0] += round(wanted - mean)
            else:
                session.new = [max(round(each * wanted / mean), 1) for each in session.new]
            session.context = work.shared + session.new[0]

    def branch(self, parent: Session, context: int) -> Session:
        """A sub-agent of a session, with so many tokens of its context."""
        work, random = self.workload, np.random.default_rng([self.seed, self.count])
        assert work.branch_turns is not None
        assert work.branch_first is not None
        lengths = (work.branch_turns, work.branch_first)
        number, first = (int(_whole(each.inverse(random.random(1)))[0]) for each in lengths)
        found = self._session(number, random, first, context)
        found.group, found.child, found.replayed = parent.group, True, parent.replayed
        own = min(work.branch_shared, found.context - context)
        found.common, parent.tools = min(parent.tools, own), max(parent.tools, own)
        found.reusable = context + found.common
        self._replay(found, 0)
        return found

    def _session(self, number: int, random: Any, first: int, before: int) -> Session:
        work, self.count = self.workload, self.count + 1
        shares = [self._quantiles(column, number, random) for column in range(3)]
        new, output = (
            _whole(each.inverse(share)) for each, share in zip((work.new, work.output), shares, strict=False)
        )
        gap = work.gap.quantiles(shares[2])
        branch, aside = (random.random(number) < share for share in (work.branches, work.asides))
        aside[0] = False
        new[0] = min(first, work.limit - before) if work.limit else first
        group = int(random.integers(work.groups))
        context = before + int(new[0])
        lists = (each.tolist() for each in (new, output, gap, branch, aside))
        return Session(self.count - 1, group, context, *lists)

    def _quantiles(self, column: int, number: int, random: Any) -> Any:
        if not self.even:
            return random.random(number)
        while self._left[column].size < number:
            more = self._shuffle.permutation((np.arange(self.even) + 0.5) / self.even)
            self._left[column] = np.concatenate([self._left[column], more])
        found, self._left[column] = self._left[column][:number], self._left[column][number:]
        return found


def grown(session: Session, work: Workload) -> bool:
    """The session's next turn, with the output and the next input in its context.

    False where the cache knows no more of it than the shared prefix, since it was compacted. A call beside the session
    leaves the context as it is.
    """
    if not session.aside[session.place]:
        session.reusable = session.context + (session.output[session.place] if work.kept else 0)
    session.place += 1
    if session.place == len(session.new) or session.aside[session.place]:
        return True
    session.context = session.reusable + session.new[session.place]
    over = bool(work.limit) and session.context > work.limit
    if over:
        session.context = min(work.shared + work.compacted + session.new[session.place], work.limit)
        session.reusable = work.shared
    else:
        session.reusable = max(session.reusable - work.replaced, work.shared)
    return not over


def turn_of(session: Session, work: Workload) -> Turn:
    """The turn that a session is at."""
    place = session.place
    output, gap, aside = session.output[place], session.gap[place], session.aside[place]
    prompt, reusable = (work.aside, 0) if aside else (session.context, max(session.reusable, work.shared))
    return Turn(session, prompt, reusable, output, gap, branch=session.branch[place] and not session.child, aside=aside)


def _whole(values: Any) -> Any:
    return np.maximum(np.round(values), 1).astype(np.int64)
