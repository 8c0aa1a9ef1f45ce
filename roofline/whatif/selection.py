"""Selections of rows: the best by one column, and Pareto fronts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray


class Rows(Struct, frozen=True):
    """Rows of a table by column: arrays of `count` values, or one value for all rows."""

    columns: Mapping[str, Any]
    count: int

    def array(self, name: str) -> NDArray[Any]:
        column = self.columns[name]
        return column if isinstance(column, np.ndarray) else np.full(self.count, column)

    def take(self, chosen: NDArray[Any]) -> Rows:
        count = int(chosen.sum()) if chosen.dtype == bool else chosen.size
        cut = {
            name: column[chosen] if isinstance(column, np.ndarray) else column for name, column in self.columns.items()
        }
        return Rows(cut, count)


def joined(parts: Sequence[Rows]) -> Rows:
    """The concatenation of parts with equal columns, without those that are empty."""
    parts = [part for part in parts if part.count] or parts[:1]
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name in parts[0].columns:
        first = parts[0].columns[name]
        if not isinstance(first, np.ndarray) and all(
            not isinstance(part.columns[name], np.ndarray) and part.columns[name] == first for part in parts
        ):
            columns[name] = first
        else:
            columns[name] = np.concatenate([part.array(name) for part in parts])
    return Rows(columns, sum(part.count for part in parts))


class Selection(Struct, frozen=True):
    """A choice of rows: the Pareto front of `pareto`, then the first `top` by `by`; None keeps all.

    Both are column names with their better direction: 1 up, -1 down.
    """

    pareto: tuple[tuple[str, int], ...] = ()
    top: int | None = None
    by: tuple[str, int] | None = None

    @property
    def everything(self) -> bool:
        return not self.pareto and self.by is None

    @property
    def names(self) -> tuple[str, ...]:
        return (*(name for name, _ in self.pareto), *(() if self.by is None else self.by[:1]))

    def of(self, rows: Rows) -> Rows:
        if self.everything or not rows.count:
            return rows
        if self.pareto:
            costs = np.stack([_cost(rows, *column) for column in self.pareto], axis=1)
            rows = rows.take(np.flatnonzero(front(costs)))
        return self._first(rows)

    def _first(self, rows: Rows) -> Rows:
        name, better = self.by or self.pareto[0]
        cost = _cost(rows, name, better)
        order = np.argsort(cost, kind="stable")
        order = order[~np.isnan(cost[order])]
        return rows.take(order if self.top is None else order[: self.top])

    def partial(self, rows: Rows) -> Rows:
        """The rows of a part that may be chosen among all: with a front, `top` applies only to the front of all."""
        return Selection(self.pareto).of(rows) if self.pareto else self.of(rows)


def _cost(rows: Rows, name: str, better: int) -> NDArray[np.float64]:
    return -better * rows.array(name).astype(np.float64)


def front(costs: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The mask of the Pareto front of `costs` (rows, columns): no other row is lower somewhere and nowhere higher.

    Rows with NaN are excluded; equal rows are both in or both out.
    """
    found = np.zeros(len(costs), dtype=bool)
    known = np.flatnonzero(~np.isnan(costs).any(axis=1))
    if not known.size:
        return found
    distinct, which = np.unique(costs[known], axis=0, return_inverse=True)
    best = _front_of_two(distinct) if costs.shape[1] <= 2 else _front_of_many(distinct)
    found[known] = best[which.reshape(-1)]
    return found


def _front_of_two(distinct: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The front of distinct rows in ascending order: the last column is lower than in all rows before."""
    last = distinct[:, -1] if distinct.shape[1] == 2 else np.zeros(len(distinct))
    before = np.concatenate([[np.inf], np.minimum.accumulate(last)[:-1]])
    first = np.arange(len(distinct)) == 0
    return np.asarray((last < before) | first)


def _front_of_many(distinct: NDArray[np.float64]) -> NDArray[np.bool_]:
    """The front of distinct rows: each remaining row, by ascending sum of ranks, removes the rows that it dominates."""
    ranks = np.argsort(np.argsort(distinct, axis=0), axis=0).sum(axis=1)
    order = np.argsort(ranks, kind="stable")
    left, index = order, 0
    while index < left.size:
        pivot = distinct[left[index]]
        stays = (distinct[left] < pivot).any(axis=1)
        stays[index] = True
        index = int(stays[:index].sum()) + 1
        left = left[stays]
    found = np.zeros(len(distinct), dtype=bool)
    found[left] = True
    return found
