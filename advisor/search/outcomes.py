"""Outcomes: a table of all simulated combinations at every batch; its best and its nearest entries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.advisor.search.trials import Moves, Trial, names

Table = NDArray[np.float64]
"""Shape (combinations, batches)."""


class Choice(Struct, frozen=True):
    """One combination at one batch: the objective, and value over limit for each limit."""

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
        self._trials = tuple(trials)

    def _table(self, figures: Iterable[Any]) -> Table:
        rows = zip(self._trials, figures, strict=True)
        return np.array([np.broadcast_to(figure, np.shape(_batches(trial))) for trial, figure in rows], dtype=float)

    @cached_property
    def _costs(self) -> Table:
        """The objective, lower is better."""
        return self._table(trial.cost for trial in self._trials)

    @cached_property
    def _values(self) -> Table:
        return self._table(trial.value for trial in self._trials)

    @cached_property
    def _used(self) -> Mapping[str, Table]:
        """Value over limit for each limit."""
        limits = self._trials[0].used if self._trials else {}
        return {name: self._table(trial.used[name] for trial in self._trials) for name in limits}

    @cached_property
    def _feasible(self) -> NDArray[np.bool_]:
        met = np.isfinite(self._costs)
        for use in self._used.values():
            met &= use <= 1
        return met

    def _choice(self, row: int, column: int) -> Choice:
        trial = self._trials[row]
        used = {name: float(use[row, column]) for name, use in self._used.items()}
        return Choice(trial.moves, int(_batches(trial)[column]), float(self._values[row, column]), used)

    def __iter__(self) -> Iterator[Choice]:
        for row, column in np.argwhere(np.isfinite(self._costs)).tolist():
            yield self._choice(row, column)

    @cached_property
    def best(self) -> Choice | None:
        """The best choice that meets all limits, ties to the fewest moves; None if none does."""
        costs = np.where(self._feasible, self._costs, np.inf)
        if not self._feasible.any():
            return None
        equals = np.argwhere(costs == costs.min()).tolist()

        def rank(place: list[int]) -> tuple[int, tuple[str, ...]]:
            moves = self._trials[place[0]].moves
            return len(moves), names(moves)

        return self._choice(*min(equals, key=rank))

    @property
    def pareto(self) -> tuple[Choice, ...]:
        """The Pareto front of objective and memory among the choices within limits, the best objective first."""
        if not self._feasible.any():
            return ()
        rows, columns = np.nonzero(self._feasible)
        by_name = sorted(range(len(self._trials)), key=lambda row: names(self._trials[row].moves))
        places = np.argsort(by_name)[rows]
        memory, costs = self._used["capacity"][rows, columns], self._costs[rows, columns]
        order = np.lexsort((places, memory, costs))
        least = np.minimum.accumulate(memory[order])
        smaller = order[np.concatenate([[True], least[1:] < least[:-1]])]
        front: list[Choice] = []
        for index in smaller.tolist():
            if not front or memory[index] < front[-1].used["capacity"] * (1 - 1e-9):
                front.append(self._choice(int(rows[index]), int(columns[index])))
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


def _batches(trial: Trial) -> NDArray[Any]:
    return np.atleast_1d(np.asarray(trial.analysis.scenario.batch))
