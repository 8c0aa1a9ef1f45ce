"""Outcomes: all simulated combinations at every batch; the best and the nearest of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.advisor.search.trials import Moves, Trial, names


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
