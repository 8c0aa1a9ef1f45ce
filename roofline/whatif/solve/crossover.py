"""Crossovers: the batches, prompts and contexts at which operators and phases change what bounds them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.search import whole_series
from roofline.scenario.analysis import analyze
from roofline.scenario.phase import Phase
from roofline.scenario.scenario import Scenario
from roofline.whatif.request import Request

GRID = 512
"""Values of a workload tried first, at equal ratios; an operator's bound changes seldom, so that none is missed."""

LONGEST = 1 << 20
"""The longest prompt and context looked at where the model names no limit, in tokens, and the largest batch."""


class Change(Struct, frozen=True):
    """What bounds a thing from `start` on (the value of the axis), up to the next change."""

    start: int
    bound: str


class Crossover(Struct, frozen=True):
    """The bounds of an operator, or of a whole phase (`name` is then the phase's), along one axis, others as asked."""

    phase: str
    name: str
    axis: str
    stop: int
    changes: tuple[Change, ...]

    @property
    def at(self) -> tuple[int, ...]:
        """Where the bound changes."""
        return tuple(change.start for change in self.changes[1:])


def crossover(request: Request) -> tuple[Crossover, ...]:
    """Where the bound of each operator and phase changes: over batches, prompts (prefill) and contexts (decode)."""
    longest = request.model.max_context or LONGEST
    first = request.scenario()
    found = [*_along("prefill", "batch", lambda values: request.scenario(batch=values), LONGEST)]
    found += _along("prefill", "prompt", lambda values: request.scenario(prompt=values), longest)
    if analyze(first).decode is not None:
        context = first.decode_context
        found += _along("decode", "batch", lambda values: request.scenario(batch=values, context=context), LONGEST)
        found += _along("decode", "context", lambda values: request.scenario(context=values), longest)
    return tuple(found)


Bounds = Callable[[Any], tuple[list[str], NDArray[np.str_]]]


def _along(phase: str, axis: str, make: Callable[[Any], Scenario], stop: int) -> Iterable[Crossover]:
    def bounds(values: Any) -> tuple[list[str], NDArray[np.str_]]:
        part = getattr(analyze(make(values)), phase)
        return _bounds(part, np.size(values))

    grid = whole_series(1, stop, GRID)
    names, known = bounds(grid)
    edges = [(row, column) for row, column in zip(*np.nonzero(known[:, 1:] != known[:, :-1]), strict=True)]
    low, high = (np.array([grid[column + shift] for _, column in edges], dtype=np.int64) for shift in (0, 1))
    rows = np.array([row for row, _ in edges], dtype=np.intp)
    before = np.array([known[row, column] for row, column in edges])
    while (high - low > 1).any():  # all edges at once: one evaluation halves every interval
        middle = (low + high) // 2
        inside = bounds(middle)[1][rows, np.arange(rows.size)]
        low, high = np.where(inside == before, middle, low), np.where(inside == before, high, middle)
    for row, name in enumerate(names):
        own = [index for index, (other, _) in enumerate(edges) if other == row]
        changes = [Change(1, str(known[row, 0]))]
        changes += [Change(int(high[index]), str(known[row, edges[index][1] + 1])) for index in own]
        yield Crossover(phase, name, axis, stop, tuple(changes))


def _bounds(phase: Phase, points: int) -> tuple[list[str], NDArray[np.str_]]:
    """Names and bounds (things, points) of the phase and its operators; alike operators of several sections once."""
    found: dict[str, Any] = {phase.name: phase.bound}
    several = {op.name for op in phase.ops if sum(other.name == op.name for other in phase.ops) > 1}
    for op in phase.ops:
        found[f"{op.name} ({op.section})" if op.name in several else op.name] = op.bound
    return list(found), np.array([np.broadcast_to(np.asarray(bound, dtype=str), points) for bound in found.values()])
