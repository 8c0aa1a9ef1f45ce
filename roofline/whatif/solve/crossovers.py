"""Where a bound changes along batches, prompts and contexts, and the batch up to which one scenario is faster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Unpack

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.search import integer_geomspace, last_before_failure
from roofline.scenario.analysis import analyze
from roofline.scenario.argument import scenario_of
from roofline.scenario.phase import Phase
from roofline.scenario.scenario import Scenario
from roofline.whatif.comparison import METRICS
from roofline.whatif.solve.targets import Answer, Check, TargetOptions, Targets, check, figures, read_targets, used

GRID = 512
"""Points of the first scan, in equal ratios. Bounds change rarely, so that the scan misses no change."""

LONGEST = 1 << 20
"""The largest batch, and the longest prompt and context, in tokens, of models without a maximum context."""


class Change(Struct, frozen=True):
    """The bound from the value `start` of the axis, up to the next change."""

    start: int
    bound: str


class Crossover(Struct, frozen=True):
    """The bounds of an operator, or of a phase (`name` is `phase`), along one axis; the others are the scenario's."""

    phase: str
    name: str
    axis: str
    stop: int
    changes: tuple[Change, ...]

    @property
    def at(self) -> tuple[int, ...]:
        """The values of the axis at which the bound changes."""
        return tuple(change.start for change in self.changes[1:])


class Crossovers(Result, Struct, frozen=True):
    """The crossovers of a scenario: of each phase and operator, along each axis."""

    scenario: Scenario
    found: tuple[Crossover, ...]

    def __iter__(self) -> Iterator[Crossover]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, place: int) -> Crossover:
        return self.found[place]


def crossover(scenario: Scenario) -> Crossovers:
    """The bounds of each operator and phase over batches, over prompts (prefill) and over contexts (decode)."""
    longest = scenario_of(scenario, single=True).model.max_context or LONGEST
    found = [*_along("prefill", "batch", lambda values: scenario.at(batch=values), LONGEST)]
    found += _along("prefill", "prompt", lambda values: scenario.at(prompt=values), longest)
    if analyze(scenario).decode is not None:
        context = scenario.decode_context
        found += _along("decode", "batch", lambda values: scenario.at(batch=values, context=context), LONGEST)
        found += _along("decode", "context", lambda values: scenario.at(context=values), longest)
    return Crossovers(scenario, tuple(found))


def _along(phase: str, axis: str, make: Callable[[Any], Scenario], stop: int) -> Iterable[Crossover]:
    def bounds(values: Any) -> tuple[list[str], NDArray[np.str_]]:
        part = getattr(analyze(make(values)), phase)
        return _bounds(part, np.size(values))

    grid = integer_geomspace(1, stop, GRID)
    names, known = bounds(grid)
    edges = [(row, column) for row, column in zip(*np.nonzero(known[:, 1:] != known[:, :-1]), strict=True)]
    low, high = (np.array([grid[column + shift] for _, column in edges], dtype=np.int64) for shift in (0, 1))
    rows = np.array([row for row, _ in edges], dtype=np.intp)
    before = np.array([known[row, column] for row, column in edges])
    while (high - low > 1).any():  # one evaluation halves the intervals of all edges
        middle = (low + high) // 2
        inside = bounds(middle)[1][rows, np.arange(rows.size)]
        low, high = np.where(inside == before, middle, low), np.where(inside == before, high, middle)
    for row, name in enumerate(names):
        own = [index for index, (other, _) in enumerate(edges) if other == row]
        changes = [Change(1, str(known[row, 0]))]
        changes += [Change(int(high[index]), str(known[row, edges[index][1] + 1])) for index in own]
        yield Crossover(phase, name, axis, stop, tuple(changes))


def _bounds(phase: Phase, points: int) -> tuple[list[str], NDArray[np.str_]]:
    """Names and bounds (names, points) of the phase and its operators; equal names get their section."""
    found: dict[str, Any] = {phase.name: phase.bound}
    several = {op.name for op in phase.ops if sum(other.name == op.name for other in phase.ops) > 1}
    for op in phase.ops:
        found[f"{op.name} ({op.section})" if op.name in several else op.name] = op.bound
    return list(found), np.array([np.broadcast_to(np.asarray(bound, dtype=str), points) for bound in found.values()])


def break_even(
    one: Scenario,
    other: Scenario,
    targets: Targets | None = None,
    metric: str = "total",
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The largest batch up to which the scenario that is faster at batch 1 is no slower than the other.

    The verdict is "always" if `one` is faster at every batch, "never" if `other` is. Both must fit in memory, unless
    `targets.fits` is False. The check is of `one`, the neighbour of `other`, and the
    candidates are both at the next batch. Raises RooflineError if both requests are the same.
    """
    if metric not in METRICS:
        raise UnknownNameError("metric of a break-even", metric, METRICS)
    targets = read_targets(one, targets, limits, finds=["batch"])
    read_targets(other, None, {}, finds=["batch"])
    if targets.timed:
        raise RooflineError(f"a break-even compares times: it has no target of {targets.timed[0]}")
    if one == other:
        raise RooflineError(
            "break-even: both scenarios are the same; name what differs, like quant awq", options=["against"]
        )
    answer = partial(Answer, "break-even", "sequences", scenario=one, targets=targets, other=other)

    def times(scenario: Scenario, batches: Any) -> Any:
        value = getattr(figures(analyze(scenario.at(batch=batches)), targets.at), metric)
        if value is None:
            raise RooflineError("a TPOT needs at least two generated tokens", options=["generate"])
        return value

    def fits(batches: Any) -> Any:
        first, second = (used(scenario.at(batch=batches), targets.memory_only) for scenario in (one, other))
        return (first <= 1) & (second <= 1)

    def pair(batch: int) -> tuple[Check, Check]:
        first, second = (check(batch, scenario.at(batch=batch), targets.memory_only) for scenario in (one, other))
        return first, second

    limit = min(one.max_batch, other.max_batch)
    most = last_before_failure(fits, 1, limit) if targets.fits else limit
    if most < 1:
        raise RooflineError("one of the two does not fit in memory at batch 1", options=["ignore_memory"])
    ahead = bool(times(one, 1) <= times(other, 1))

    def holds(batches: Any) -> Any:
        first, second = times(one, batches), times(other, batches)
        return first <= second if ahead else first >= second

    best = last_before_failure(holds, 1, most)
    first, second = pair(best)
    if best == most:
        until = f"up to {most}, the largest that fits" if targets.fits else f"up to {most}"
        if ahead:
            return answer("always", best, first, second, f"faster at every batch {until}")
        return answer("never", None, first, second, f"slower at every batch {until}")
    leaders = ("these options", "the others")
    before, after = leaders if ahead else leaders[::-1]
    note = f"{before} are faster up to this batch, {after} from the next"
    return answer("found", best, first, second, note, pair(best + 1))
