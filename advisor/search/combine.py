"""The search over combinations of moves, and its outcomes. Every combination is simulated; gains are never summed.

A small space is enumerated. A larger one is searched locally (hill climbing from several points): the search simulates
single moves and pairs, then improves step by step the best combination for the objective and the best for each metric
that a limit may be set on (the leaders). From each leader it tries to add a move and to replace one, from the leader
for the objective also to drop one.

Limits affect only the choice among the simulated combinations, not which are simulated. A larger quality budget or
number of devices simulates all that a smaller one does and more, so loosening either never worsens the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import combinations, product
from math import prod
from typing import Any

import numpy as np
from msgspec import Struct, field

from roofline.advisor.search.goal import QUALITIES, Quality
from roofline.advisor.search.moves import Move, price_of
from roofline.advisor.search.trials import LIMITED_METRICS, NOTHING, Moves, Trial, Trials, names

EXHAUSTIVE = 16
"""Largest number of combinations that is enumerated: four moves in slots of their own."""

DEPTH = 8
"""Maximum number of moves in a plan."""

MIN_GAIN = 1.005
"""Smallest gain of a move that counts as an improvement."""


class Choice(Struct, frozen=True):
    """One combination at one batch: the objective's value, and for each limit the value of its metric over it."""

    moves: Moves
    batch: int
    value: float
    used: Mapping[str, float]

    @property
    def broken(self) -> Mapping[str, float]:
        """The limits that it exceeds, with value over limit; empty if one has no value."""
        broken = {name: use for name, use in self.used.items() if not use <= 1}
        return broken if np.isfinite(list(broken.values())).all() else {}


class Outcomes:
    """Combinations at each of their batches; those without a value of the objective are left out."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        """Lists the choices with their costs: the objective, lower is better."""
        self._found = [(cost, choice) for trial in trials for cost, choice in _choices(trial) if math.isfinite(cost)]

    def __iter__(self) -> Iterator[Choice]:
        return (choice for _, choice in self._found)

    @cached_property
    def _feasible(self) -> list[tuple[float, Choice]]:
        return [entry for entry in self._found if all(use <= 1 for use in entry[1].used.values())]

    @cached_property
    def best(self) -> Choice | None:
        """The best choice that meets all limits, ties to the fewest moves; None if none does."""

        def rank(entry: tuple[float, Choice]) -> tuple[float, int, tuple[str, ...]]:
            return entry[0], len(entry[1].moves), names(entry[1].moves)

        return min(self._feasible, key=rank)[1] if self._feasible else None

    @property
    def pareto(self) -> tuple[Choice, ...]:
        """The Pareto front of objective and memory among the choices within limits, the best objective first."""
        front: list[Choice] = []
        ranked = sorted(self._feasible, key=lambda entry: (entry[0], entry[1].used["capacity"], names(entry[1].moves)))
        for _, choice in ranked:
            if not front or choice.used["capacity"] < front[-1].used["capacity"] * (1 - 1e-9):
                front.append(choice)
        return tuple(front)

    def nearest(self) -> Mapping[str, float]:
        """For each exceeded limit, the smallest value over limit among the choices that meet all others."""
        found: dict[str, float] = {}
        for broken in self._broken:
            if len(broken) == 1:
                ((name, use),) = broken.items()
                found[name] = min(found.get(name, np.inf), use)
        return found

    def nearest_together(self) -> Mapping[str, float]:
        """The limits exceeded by the choice with the smallest maximum of value over limit, with their values."""
        return min(self._broken, key=lambda broken: (max(broken.values()), len(broken)), default={})

    @property
    def closest(self) -> Choice | None:
        """The choice with the smallest maximum of value over limit; the simplest of equals. None if all meet them."""

        def rank(choice: Choice) -> tuple[float, int, tuple[str, ...]]:
            return (round(max(choice.broken.values()), 9), len(choice.moves), names(choice.moves))

        return min((choice for choice in self if choice.broken), key=rank, default=None)

    @cached_property
    def _broken(self) -> list[Mapping[str, float]]:
        return [broken for choice in self if (broken := choice.broken)]


def _choices(trial: Trial) -> Iterator[tuple[float, Choice]]:
    """The cost and the choice of each batch of a trial."""
    batches = np.atleast_1d(np.asarray(trial.analysis.scenario.batch))

    def spread(figure: Any) -> list[float]:
        found: list[float] = np.broadcast_to(np.asarray(figure, float), batches.shape).tolist()
        return found

    uses = [dict(zip(trial.used, row, strict=True)) for row in zip(*map(spread, trial.used.values()), strict=True)]
    for batch, value, cost, used in zip(batches, spread(trial.value), spread(trial.cost), uses, strict=True):
        yield cost, Choice(trial.moves, int(batch), value, used)


class Searched(Struct, frozen=True):
    """The simulated outcomes of a search, and why it stopped."""

    outcomes: Outcomes
    stopped: str


def search(trials: Trials, moves: Sequence[Move], depth: int = DEPTH, exhaustive: int = EXHAUSTIVE) -> Searched:
    """Combinations of `moves`, in a large space up to `depth` of them, at every batch if the goal lets it vary.

    `trials` simulates at the request's own batch, or at the grid of `batch_grid`. Each quality budget and number of
    devices starts from all combinations of the next smaller ones and from nothing else, so the result for a budget does
    not depend on what larger ones allow. If other device counts are allowed, the present one is also searched alone.
    """
    stopped = ""
    counts = sorted({move.devices for move in moves if move.devices}) or [0]
    present = trials.base.analysis.scenario.settings.parallel.devices
    tried = _History(trials, depth, exhaustive)
    seen: dict[Moves, Trial] = {}
    fewer: Leaders
    trials.prefetch(frozenset({move}) for move in moves if trials.goal.quality.allows(move.price))
    for quality in QUALITIES[: QUALITIES.index(trials.goal.quality) + 1]:
        allowed = [move for move in moves if within_budget(trials, move, quality)]
        seen, fewer = {NOTHING: trials.base}, ()
        for index, count in enumerate(counts):
            if count == present and index:
                alone = {NOTHING: trials.base}
                tried.extend(alone, (count,), allowed, quality)
                seen |= alone
            stopped = tried.extend(seen, tuple(counts[: index + 1]), allowed, quality, fewer)
            fewer = _leaders(seen)
    fitting = [trial for trial in seen.values() if trial.fits.any()]
    outcomes = Outcomes(fitting)
    if outcomes.best is None:  # combinations that do not fit tell how near the limits are
        simulated = (trials.attempt(moves) for moves, trial in seen.items() if not trial.fits.any())
        outcomes = Outcomes([*fitting, *(trial for trial in simulated if trial is not None)])
    return Searched(outcomes, stopped)


class _History(Struct, frozen=True):
    """The combinations simulated so far, by the allowed numbers of devices."""

    trials: Trials
    depth: int
    exhaustive: int
    found: dict[tuple[int, ...], dict[Moves, Trial]] = field(default_factory=dict)

    def extend(
        self,
        seen: dict[Moves, Trial],
        devices: tuple[int, ...],
        allowed: Iterable[Move],
        quality: Quality,
        fewer: Leaders = (),
    ) -> str:
        """Add to `seen` the combinations of smaller budgets with these numbers of devices, and those of this one.

        Returns why it stopped; `fewer` are the leaders with fewer devices.
        """
        seen |= self.found.get(devices, {})
        offered = [move for move in allowed if not move.devices or move.devices in devices]
        slots = _slots(offered)
        if prod(len(members) + 1 for members in slots.values()) <= self.exhaustive:
            every = product(*([None, *members] for members in slots.values()))
            seen |= _simulated(self.trials, (frozenset(filter(None, chosen)) for chosen in every), quality, seen)
            stopped = "every combination was simulated"
        else:
            stopped = _local_search(self.trials, offered, self.depth, quality, seen, fewer)
        self.found[devices] = dict(seen)
        return stopped


def within_budget(trials: Trials, move: Move, quality: Quality) -> bool:
    """Whether the quality budget allows a move alone, or it applies only together with others."""
    if not quality.allows(move.price):  # in a scenario its price may rise, never fall
        return False
    trial = trials.placed(frozenset({move}))
    return trial is None or quality.allows(price_of(move, trial.analysis.scenario))


def _simulated(
    trials: Trials, combinations: Iterable[Moves], quality: Quality, seen: Mapping[Moves, Trial]
) -> dict[Moves, Trial]:
    """The trials of the feasible combinations within the budget; see `Trials.fitting`.

    Those that are neither a leader nor reported beside what is `seen` or was found before are left out unsimulated.
    """
    combinations = list(dict.fromkeys(combinations))
    trials.prefetch(combinations)
    beside = [trial for trial in seen.values() if trial.fits.any()] if trials.goal.fills_limits else []
    found: dict[Moves, Trial] = {}
    for moves in sorted(combinations, key=trials.ceiling, reverse=True):
        trial = trials.fitting(moves, beside)
        if trial is not None and quality.allows(trial.price):
            found[moves] = trial
            beside += [trial] if trials.goal.fills_limits and trial.fits.any() else []
    return found


Leaders = tuple[Moves, ...]
"""The best combination by each of `Trial.scores`: the objective, then each limited metric."""


def _local_search(
    trials: Trials, moves: Sequence[Move], depth: int, quality: Quality, seen: dict[Moves, Trial], fewer: Leaders
) -> str:
    """Local search: simulates combinations and adds them to `seen`; returns why it stopped.

    Starts from every single move, from the leaders of `seen`, and from the leaders with `fewer` devices moved to the
    largest number. Extends them by moves that are useful alone; once none improves a leader, every move is tried on the
    best combination for the objective, and those that help join the useful ones. At the end no single change improves
    the answer.
    """
    useful, whole = _useful(trials, moves), False  # whole: every move is tried, not the useful ones alone
    most = max((move.devices for move in moves), default=0)

    def tried(followings: Iterable[Moves]) -> dict[Moves, Trial]:
        found = _simulated(trials, (following for following in followings if len(following) <= depth), quality, seen)
        seen.update(found)
        return found

    tried(frozenset({move}) for move in moves)
    pairs = combinations(useful, 2)  # two moves may help only together
    tried(frozenset(pair) for pair in pairs if pair[0].slot != pair[1].slot)
    grown = [move for move in useful if move.devices == most]
    tried(_with(state, move) for state in dict.fromkeys(fewer) for move in grown)
    leaders = _leaders(seen)
    while True:  # terminates: every round but the last improves a leader
        useful += [move for state in leaders for move in state if move not in useful]
        best, found = leaders[0], {state: seen[state] for state in leaders}
        found |= tried(_neighbours(best, moves if whole else useful))
        if not whole:
            for state in dict.fromkeys(leaders[1:]):
                found |= tried(_with(state, move) for move in useful)
        before, leaders = leaders, _leaders(found)
        scores = [(seen[old].scores, seen[new].scores) for old, new in zip(before, leaders, strict=True)]
        better = (new[figure] < old[figure] * (1 - 1e-9) for figure, (old, new) in enumerate(scores))
        if whole and not any(better):
            return f"none of {len(moves)} moves made any combination of at most {depth} better"
        whole = not whole and set(leaders) <= set(before)


def _slots(moves: Iterable[Move]) -> dict[str, list[Move]]:
    slots: dict[str, list[Move]] = {}
    for move in moves:
        slots.setdefault(move.slot, []).append(move)
    return slots


def _with(state: Moves, move: Move) -> Moves:
    """The combination with `move` added, or in place of another move of its slot."""
    return frozenset({other for other in state if other.slot != move.slot} | {move})


def _neighbours(state: Moves, moves: Iterable[Move]) -> Iterator[Moves]:
    """The combinations with one move added, replaced by another of its slot, or dropped."""
    for move in moves:
        if move not in state:
            yield _with(state, move)
    if len(state) > 1:
        for move in state:
            yield state - {move}


def _useful(trials: Trials, moves: Sequence[Move]) -> list[Move]:
    """The best move of each slot by the objective and by each limited metric, if it improves on the request."""
    found: dict[Move, None] = {}
    stuck: list[list[Move]] = []
    for members in _slots(moves).values():
        alone = [(trial, move) for move in members if (trial := trials.fitting(frozenset({move}))) is not None]
        scored = [(trial.scores, move) for trial, move in alone]
        for figure, least in enumerate(trials.base.scores):
            best = min(scored, key=lambda entry: (entry[0][figure], entry[0], entry[1].name), default=None)
            if best is not None and best[0][figure] * MIN_GAIN <= least:
                found[best[1]] = None
        if not (trials.base.fits.any() or any(trial.fits.any() for trial, _ in alone)):
            stuck.append([move for _, move in alone])
    trials.prefetch((frozenset({move}) for members in stuck for move in members), fitting=False)
    for members in stuck:
        found |= dict.fromkeys(_best_ignoring_memory(trials, members))
    return list(found)


def _best_ignoring_memory(trials: Trials, moves: Iterable[Move]) -> Iterator[Move]:
    """The best move of a slot for the objective regardless of memory: a move of another slot may free memory."""
    alone = [
        (trial.score_ignoring_memory, move.name, move)
        for move in moves
        if (trial := trials.attempt({move})) is not None
    ]
    if alone:
        promise, _, move = min(alone, key=lambda entry: entry[:2])
        yield from [move] if promise * MIN_GAIN <= trials.base.score_ignoring_memory else []


def _leaders(tried: Mapping[Moves, Trial]) -> Leaders:
    """The best combination by each score; ties go to the better objective, then to fewer moves."""
    scores = {moves: trial.scores for moves, trial in tried.items()}
    return tuple(
        min(scores, key=lambda moves: (scores[moves][figure], scores[moves][0], len(moves), names(moves)))
        for figure in range(1 + len(LIMITED_METRICS))
    )
