"""Plans: the best combination of moves that meets all limits, step by step, and what its moves are to each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from advisor.beam import DEPTH, LEAST, Choice, choices_of, search, within_budget
from advisor.goal import Goal, Price
from advisor.moves import BATCHES, Kind, Move, batch_move, price_of
from advisor.trials import NOTHING, Moves, Trial, Trials, better, certain, names, sure
from roofline.command import command_line
from roofline.timing import Estimate


@dataclass(frozen=True)
class Step:
    """A step of a plan: its move, what it makes better given the steps before it, and the scenario after it."""

    move: Move
    better: Estimate
    trial: Trial

    @property
    def price(self) -> Price:
        """What it asks for."""
        return price_of(self.move, self.trial.analysis.scenario)

    @property
    def certain(self) -> bool:
        """Whether the whole interval of the gain is one."""
        return certain(self.better)

    @property
    def command(self) -> str:
        """The command that reproduces the figures after it."""
        return command_line(self.trial.request)


@dataclass(frozen=True)
class Interaction:
    """Two moves together: `both` is their gain as simulated, `one` and `other` each alone."""

    names: tuple[str, str]
    one: float
    other: float
    both: float

    @property
    def kind(self) -> str:
        """Whether they counteract, overlap, need each other or add up."""
        if self.both < max(self.one, self.other) / LEAST:
            return "counteract"
        if self.both > self.one * self.other * REINFORCE:
            return "need each other" if min(self.one, self.other) < LEAST else "reinforce"
        return "overlap" if self.both * OVERLAP < self.one * self.other else "independent"


REINFORCE, OVERLAP = 1.03, 1.1
"""How far two gains must be from their product to be told."""


@dataclass(frozen=True)
class Plan:
    """The best combination found that meets all limits: `steps` in order of gain, each given those before it.

    `end` is the scenario after all. Where nothing meets all limits, `nearest` says for each the least use of it among
    all that meets the others; where everything breaks several, what the nearest to all breaks `jointly`. `stopped` says
    why no step was added; `needed` whether the request misses limits that it meets.
    """

    steps: tuple[Step, ...]
    end: Trial | None
    better: Estimate | None
    interactions: tuple[Interaction, ...]
    stopped: str
    nearest: Mapping[str, float]
    pareto: tuple[Choice, ...]
    tried: int
    jointly: bool = False
    needed: bool = False

    @property
    def feasible(self) -> bool:
        """Whether anything meets all limits."""
        return self.end is not None

    @property
    def sure(self) -> bool:
        """Whether it is one to follow: it meets limits that the request misses, or its gain is sure."""
        return bool(self.steps) and (self.needed or (self.better is not None and sure(self.better)))


def planned(single: Trials, grid: Trials, moves: Sequence[Move], depth: int = DEPTH) -> Plan:
    """The plan of a request, `single` simulates it at one batch, `grid` at all that may be tried."""
    searched = search(grid, moves, depth)
    best = searched.best
    if best is None:
        near = nearest(searched.choices)
        jointly, near = not near, near or nearest_together(searched.choices)
        return Plan((), None, None, (), searched.stopped, near, (), len(grid), jointly)
    steps = tuple(_steps(single, best))
    end = steps[-1].trial if steps else single.base
    return Plan(
        steps,
        end,
        better(single.base, end),
        tuple(_interactions(single, steps)),
        _stopped(single, end, moves, depth, searched.stopped),
        {},
        pareto(grid.goal, searched.feasible),
        len(grid),
        needed=bool(single.base.missed),
    )


def _steps(trials: Trials, best: Choice) -> Iterator[Step]:
    """The moves of the best choice, each time the one that gains most of those left, limits first."""
    left = set(best.moves)
    if best.batch != int(trials.base.analysis.scenario.batch):
        left.add(batch_move(best.batch))
    done: Moves = NOTHING
    before = trials.base
    while left:
        trials.together(done | {move} for move in left)
        tried = [(move, trial) for move in left if (trial := trials.attempt(done | {move})) is not None]
        if not tried:  # none can be made before another: together they can
            tried = [(move, trial) for move in left if (trial := trials.attempt(done | left)) is not None]
        sign = -trials.goal.metric.better
        move, trial = min(tried, key=lambda entry: (len(entry[1].missed), sign * entry[1].value, entry[0].name))
        yield Step(move, better(before, trial), trial)
        done, before = done | {move}, trial
        left.discard(move)


def _interactions(trials: Trials, steps: Sequence[Step]) -> Iterator[Interaction]:
    """Each two moves of a plan, at the plan's batch."""
    moves = [step.move for step in steps if step.move.kind is not Kind.BATCH]
    batch = [step.move for step in steps if step.move.kind is Kind.BATCH]
    base = trials.attempt(batch)
    for one, other in combinations(moves, 2):
        found = [trials.attempt([*batch, *pair]) for pair in ([one], [other], [one, other])]
        if base is not None and all(trial is not None for trial in found):
            gains = [float(trials.goal.gain(base.value, trial.value)) for trial in found if trial is not None]
            told = Interaction((one.name, other.name), *gains)
            if told.kind != "independent":
                yield told


def _stopped(trials: Trials, end: Trial, moves: Sequence[Move], depth: int, why: str) -> str:
    """Why no step follows: the best that is left, and what it would gain or break."""
    slots, asked = {move.slot for move in end.moves}, end.request.techniques
    quality = trials.goal.quality
    others = (move for move in moves if move.slot not in slots and move.name not in asked)
    left = [move for move in others if within_budget(trials, move, quality)]
    trials.together(end.moves | {move} for move in left)
    simulated = [trial for move in left if (trial := trials.attempt(end.moves | {move})) is not None]
    tried = [trial for trial in simulated if quality.allows(trial.price)]
    if not tried:
        return why
    ratio, best = max(
        ((float(trials.goal.gain(end.value, trial.value)), trial) for trial in tried),
        key=lambda entry: (entry[0], entry[1].names),
    )
    (move,) = best.moves - end.moves
    told = f"the best that is left, {move.name}, is {ratio:.2f} times as good"
    if ratio > LEAST and best.missed:
        return f"{told} and breaks {', '.join(best.missed)}"
    full = len([move for move in end.moves if move.kind is not Kind.BATCH]) >= depth
    return f"{told}, and a plan has at most {depth} changes" if ratio > LEAST and full else told


def nearest(choices: Iterable[Choice]) -> Mapping[str, float]:
    """For each limit that something breaks, its least use among the choices that meet all others."""
    found: dict[str, float] = {}
    for broken in filter(None, map(_broken, choices)):
        if len(broken) == 1:
            ((name, use),) = broken.items()
            found[name] = min(found.get(name, np.inf), use)
    return found


def nearest_together(choices: Iterable[Choice]) -> Mapping[str, float]:
    """The limits that the choice breaks whose largest use is least, where all break several: with the use of each."""
    return min(filter(None, map(_broken, choices)), key=lambda broken: (max(broken.values()), len(broken)), default={})


def _broken(choice: Choice) -> Mapping[str, float]:
    """The limits that a choice breaks, with the use of each; none where one has no figure."""
    broken = {name: use for name, use in choice.used.items() if not use <= 1}
    return broken if np.isfinite(list(broken.values())).all() else {}


def pareto(goal: Goal, choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """The choices that none beats in both the objective and the memory they use, the best objective first."""
    sign = -goal.metric.better
    front: list[Choice] = []
    for choice in sorted(choices, key=lambda entry: (sign * entry.value, entry.used["capacity"], names(entry.moves))):
        if not front or choice.used["capacity"] < front[-1].used["capacity"] * (1 - 1e-9):
            front.append(choice)
    return tuple(front)


def batch_moves(grid: Trials) -> Iterator[Move]:
    """To the batch that is best as everything else stands: within all limits, or as many of them as any keeps."""
    base, sign = grid.attempt(NOTHING), -grid.goal.metric.better

    def rank(choice: Choice) -> tuple[int, float, int]:
        return (sum(use > 1 for use in choice.used.values()), sign * choice.value, choice.batch)

    if base is not None and grid.goal.batch_varies:
        best = min(choices_of(base), key=rank, default=None)
        yield from () if best is None else (batch_move(best.batch),)


def batch_grid(batch: int) -> Any:
    """The batches that are tried where the batch may vary: round ones, and the request's own."""
    return np.array(sorted({*BATCHES, batch}))
