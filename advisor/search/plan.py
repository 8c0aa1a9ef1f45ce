"""Plans: the best combination of moves that meets all limits, in steps, and the interactions of its moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.advisor.search.combine import DEPTH, MIN_GAIN, Choice, Outcomes, search, within_budget
from roofline.advisor.search.goal import PRICES
from roofline.advisor.search.moves import BATCHES, Kind, Move, batch_move, price_of
from roofline.advisor.search.trials import NOTHING, Gain, Moves, Trial, Trials, better, sure
from roofline.scenario.scenario import Scenario
from roofline.techniques.base import Price
from roofline.timing.intervals import Estimate


class Step(Gain, frozen=True):
    """A step of a plan: its move, its gain given the steps before it, and the scenario after it."""

    @property
    def price(self) -> Price:
        return price_of(self.move, self.trial.analysis.scenario)


class Interaction(Struct, frozen=True):
    """The simulated gains of two moves: `one` and `other` alone, `both` together."""

    names: tuple[str, str]
    one: float
    other: float
    both: float

    @property
    def kind(self) -> str:
        """Whether they counteract, overlap, reinforce or need each other, or are independent."""
        if self.both < max(self.one, self.other) / MIN_GAIN:
            return "counteract"
        if self.both > self.one * self.other * REINFORCE:
            return "need each other" if min(self.one, self.other) < MIN_GAIN else "reinforce"
        return "overlap" if self.both * OVERLAP < self.one * self.other else "independent"


REINFORCE, OVERLAP = 1.03, 1.1
"""Factors between the joint gain and the product of both gains from which an interaction is reported."""


class Plan(Struct, frozen=True):
    """The best combination found that meets all limits: `steps` in order of gain, each given those before it.

    Changes that add less than `WORTHWHILE` to the others are not in it. `closest` is the combination that comes
    nearest to the limits where none meets them, simulated.

    `end` is the scenario after all steps. If nothing meets all limits, `nearest` gives for each limit the smallest
    value over limit among combinations that meet the others, or, if all exceed several (`jointly`), those of the
    nearest combination. `stopped`: why no step was added. `needed`: the scenario itself misses limits.
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
    closest: Trial | None = None

    @property
    def feasible(self) -> bool:
        """Whether a combination meets all limits."""
        return self.end is not None

    @property
    def sure(self) -> bool:
        """Whether the plan is recommended: it meets limits that the scenario misses, or its gain is sure."""
        return bool(self.steps) and (self.needed or (self.better is not None and sure(self.better)))


def make_plan(single: Trials, grid: Trials, moves: Sequence[Move], depth: int = DEPTH) -> Plan:
    """The plan of a scenario; `single` simulates at its own batch, `grid` at all candidate batches."""
    searched = search(grid, moves, depth)
    outcomes, best = searched.outcomes, searched.outcomes.best
    if best is None:
        near = outcomes.nearest()
        jointly, near = not near, near or outcomes.nearest_together()
        closest = outcomes.closest
        found = None if closest is None else single.attempt(_moves(single, closest))
        return Plan((), None, None, (), searched.stopped, near, (), len(grid), jointly, closest=found)
    steps = tuple(_steps(single, _worthwhile(single, _moves(single, best))))
    end = steps[-1].trial if steps else single.base
    stopped = _stopped(single, end, moves, depth, searched.stopped)
    gain, interactions = better(single.base, end), tuple(_interactions(single, steps))
    needed = bool(single.base.missed)
    return Plan(steps, end, gain, interactions, stopped, {}, outcomes.pareto, len(grid), needed=needed)


WORTHWHILE = 1.02
"""The gain that a change adds to the others of a plan, at least."""


def _moves(trials: Trials, choice: Choice) -> Moves:
    batch = () if choice.batch == int(trials.base.analysis.scenario.batch) else (batch_move(choice.batch),)
    return choice.moves.union(batch)


def _worthwhile(trials: Trials, moves: Moves) -> Moves:
    """The moves without those that add nothing to the others: neither a gain, nor a limit that is met."""
    end = trials.attempt(moves)
    for move in sorted(moves, key=lambda each: (-PRICES.index(each.price), each.name)):
        less = trials.attempt(moves - {move}) if end is not None and len(moves) > 1 else None
        if less is None or end is None or len(less.missed) > len(end.missed):
            continue
        if float(less.cost) <= float(end.cost) * WORTHWHILE:
            moves -= {move}
    return moves


def _steps(trials: Trials, moves: Moves) -> Iterator[Step]:
    """The moves in greedy order: fewest missed limits first, then the largest gain."""
    left = set(moves)
    done: Moves = NOTHING
    before = trials.base
    while left:
        trials.prefetch(done | {move} for move in left)
        tried = [(move, trial) for move in left if (trial := trials.attempt(done | {move})) is not None]
        if not tried:  # moves that apply only together
            tried = [(move, trial) for move in left if (trial := trials.attempt(done | left)) is not None]
        move, trial = min(tried, key=lambda entry: (len(entry[1].missed), entry[1].cost, entry[0].name))
        yield Step(move, trial, better(before, trial))
        done, before = done | {move}, trial
        left.discard(move)


def _interactions(trials: Trials, steps: Sequence[Step]) -> Iterator[Interaction]:
    moves = [step.move for step in steps if step.move.kind is not Kind.BATCH]
    batch = [step.move for step in steps if step.move.kind is Kind.BATCH]
    base = trials.attempt(batch)
    for one, other in combinations(moves, 2):
        found = [trials.attempt([*batch, *pair]) for pair in ([one], [other], [one, other])]
        if base is None or any(trial is None or not set(trial.missed) <= set(base.missed) for trial in found):
            continue  # the gain of what misses a limit that the scenario meets is no gain
        gains = [float(trials.goal.gain(base.value, trial.value)) for trial in found if trial is not None]
        interaction = Interaction((one.name, other.name), *gains)
        if interaction.kind != "independent":
            yield interaction


def _stopped(trials: Trials, end: Trial, moves: Sequence[Move], depth: int, why: str) -> str:
    """Why no step follows: the best remaining move, and what it would gain or which limits it would exceed."""
    slots, asked = {move.slot for move in end.moves}, end.scenario.techniques
    quality = trials.goal.quality
    others = (move for move in moves if move.slot not in slots and move.name not in asked)
    left = [move for move in others if within_budget(trials, move, quality)]
    trials.prefetch(end.moves | {move} for move in left)
    simulated = [trial for move in left if (trial := trials.attempt(end.moves | {move})) is not None]
    tried = [trial for trial in simulated if quality.allows(trial.price)]
    if not tried:
        return why
    ratio, best = max(
        ((float(trials.goal.gain(end.value, trial.value)), trial) for trial in tried),
        key=lambda entry: (entry[0], entry[1].names),
    )
    (move,) = best.moves - end.moves
    summary = f"the best remaining change, {move.name}, gives {ratio:.2f} times the objective"
    if ratio > MIN_GAIN and best.missed:
        return f"{summary} and exceeds {', '.join(best.missed)}"
    full = len([move for move in end.moves if move.kind is not Kind.BATCH]) >= depth
    return f"{summary}, and a plan has at most {depth} changes" if ratio > MIN_GAIN and full else summary


def batch_moves(grid: Trials) -> Iterator[Move]:
    """The move to the best batch with everything else unchanged: within all limits, or as many as possible."""
    base, sign = grid.attempt(NOTHING), -grid.goal.metric.better

    def rank(choice: Choice) -> tuple[int, float, int]:
        return (sum(use > 1 for use in choice.used.values()), sign * choice.value, choice.batch)

    if base is not None and grid.goal.batch_varies:
        best = min(Outcomes([base]), key=rank, default=None)
        yield from () if best is None else (batch_move(best.batch),)


def batch_grid(scenario: Scenario) -> Any:
    """The candidate batches: round numbers up to the scenario's limit, and its own."""
    most = scenario.max_batch
    return np.array(sorted({*(batch for batch in BATCHES if batch <= most), scenario.options.get("batch", 1)}))
