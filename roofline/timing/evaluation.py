"""Evaluation of kernels in groups: kernels of one kind and format, for all points of a grid at once.

A `KernelGroup` (`roofline.timing.groups` makes them from a pass) holds the sizes of its kernels as coefficients of the
workload's monomials, so that the columns of the measurement schema are one matrix product. An `Evaluation` is a pending
call of the group's formula. Generators (`Deferred`) yield lists of evaluations: `resolve` runs one generator, `gather`
and `prefetch` run several in lockstep, and evaluations of one formula are stacked into a single call, from whichever
scenario they come (a formula takes as long for a hundred rows as for one).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.core.result_cache import MAX_CACHED_VALUES, LruCache
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Expected, Match
from roofline.timing.constants import ATTENTION
from roofline.timing.kernels import Array
from roofline.timing.kernels.common import units
from roofline.timing.kernels.model import smooth_maximum
from roofline.timing.kernels.shapes import DECODE_QUERIES
from roofline.timing.launches import IS_DECODE_KERNEL

FEW_POINTS = 32
"""Grid points up to which GEMMs of equal m are not merged: it would take as long as it saves."""

T = TypeVar("T")

Counts = tuple[Array, NDArray[np.intp]]
"""Distinct values of m, (1, values), and the index of each point's value."""


class KernelGroup(Struct, frozen=True):
    """Kernels of one kind and format, evaluated together: constants, and symbolic columns as coefficients.

    `factor` multiplies their times; `conversion` is the work of upcasting a cache element, in FLOP. Groups with the
    same `form` share one formula and differ only in the values of their columns.
    """

    op: str
    match: Match
    other: Match | None
    hardware: Hardware
    texts: Mapping[str, str | float]
    members: NDArray[np.intp]
    fixed: Mapping[str, Array]
    varying: Mapping[str, Array]
    factor: float
    conversion: float
    form: object

    def columns(self, values: Array) -> dict[str, Any]:
        """The columns of the measurement schema, (members, points)."""
        columns = {**self.texts, **self.fixed, **{name: rows @ values for name, rows in self.varying.items()}}
        if "pairs" in columns:
            columns["kv_len"] = columns.pop("pairs") / np.maximum(columns["batch"], 1.0)
        return columns

    def distinct_rows(self, values: Array, counts: dict[bytes, Counts]) -> Target | None:
        """An evaluation of each distinct m of GEMMs, which depend on the workload through m alone; None for others.

        `counts` caches the distinct m by coefficients, for all GEMMs of a pass.
        """
        if self.op != "gemm" or values.shape[1] <= FEW_POINTS or set(self.varying) != {"m"}:
            return None
        rows = self.varying["m"]
        if (rows != rows[0]).any():
            return None
        key = rows[0].tobytes()
        if key not in counts:
            distinct, which = np.unique(rows[0] @ values, return_inverse=True)
            counts[key] = distinct[np.newaxis], which.reshape(-1)
        distinct, which = counts[key]
        columns = {**self.texts, **self.fixed, "m": distinct}
        return Target(self.members, _ALL_POINTS, Evaluation(self, columns, distinct.size), which)

    def targets(self, own: Array) -> list[Target]:
        """The evaluations at the points where the group's kernels run.

        Attention of a few queries runs the faster of the kernels of prefill and decode. No kernel of more queries is
        faster than a decode kernel of the most that it takes, or of one, over the same keys.
        """
        if self.op not in IS_DECODE_KERNEL or "q_len" not in self.varying:
            return [Target(self.members, _ALL_POINTS, Evaluation(self, self.columns(own), own.shape[1]))]
        queries, choice = self.varying["q_len"][0] @ own, self.op in ATTENTION
        if not IS_DECODE_KERNEL[self.op]:
            runs = self._among(own, queries > (1 if choice else DECODE_QUERIES), None if choice else np.maximum)
            return [runs] if runs else []
        most = 1 if choice else DECODE_QUERIES
        few = (queries > most) & (queries <= DECODE_QUERIES)
        found = self._among(own, queries <= most), self._among(own, few, np.minimum)
        return [target for target in (*found, self._among(own, queries > most, np.maximum, most)) if target]

    def _among(self, own: Array, runs: NDArray[np.bool_], join: Join | None = None, most: int = 0) -> Target | None:
        """The evaluation at some points, of their own queries or of `most`; None without any."""
        if not runs.any():
            return None
        rows, points = self.members, cast(Any, _ALL_POINTS)
        if not runs.all():
            rows, points = rows[:, np.newaxis], np.flatnonzero(runs)
            own = own[:, points]
        columns = self.columns(own)
        if most:
            columns["q_len"] = np.full_like(columns["q_len"], most)
        return Target(rows, points, Evaluation(self, columns, own.shape[1]), join=join)

    def evaluate(self, columns: Mapping[str, Any], shape: tuple[int, ...]) -> Expected:
        """Expected times of columns that broadcast to `shape`; 0 where a GEMM has no rows (encoders in decode)."""
        empty: Any = None
        if self.op == "gemm":
            empty = columns["m"] <= 0
            columns = {**columns, "m": np.maximum(columns["m"], 1.0)}
        if "kv_len" in columns:
            columns = {**columns, "kv_len": keys_of(columns)}
        found = self.match.expected(columns, self.hardware)
        if self.other is not None:
            found = _faster(found, self.other.expected(columns, self.hardware))
        if self.conversion:
            found = _with_upcast(found, columns, self.conversion, self.hardware)
        factor = self.factor if empty is None or not empty.any() else np.where(empty, 0.0, self.factor)
        if found.mid.shape == shape and np.ndim(factor) == 0 and factor == 1:
            return found
        low, mid, high = (np.broadcast_to(factor * time, shape) for time in found[:3])
        return found._replace(low=low, mid=mid, high=high, inside=np.broadcast_to(found.inside, shape))


def keys_of(columns: Mapping[str, Any]) -> Any:
    """The keys of attention: at least those of the queries themselves, but in cross-attention, which has no mask."""
    return np.maximum(columns["kv_len"], columns["q_len"] if columns.get("causal", 1.0) else 1.0)


_ALL_POINTS = slice(None)

QUERY_TILE = 128.0
"""Queries that share an upcast of the cache: a tile of FlashAttention."""


class Evaluation:
    """A pending evaluation of a group at some points; `found` holds its times, (members, points), once it has run."""

    __slots__ = ("columns", "found", "group", "points")

    def __init__(self, group: KernelGroup, columns: Mapping[str, Any], points: int) -> None:
        self.group, self.columns, self.points = group, columns, points
        self.found: Expected | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Kernels, points."""
        return len(self.group.members), self.points

    @property
    def key(self) -> tuple[Any, ...]:
        """A cache key: equal keys have equal times."""
        values = (value.tobytes() for value in self.columns.values() if isinstance(value, np.ndarray))
        return (self.group.form, self.shape, *values)

    def run(self) -> None:
        """Evaluate the group's formula."""
        self.found = self.group.evaluate(self.columns, self.shape)


Join = Callable[[Any, Any], Any]

Deferred = Generator[list[Evaluation], None, T]
"""A computation of a T that yields the evaluations it needs; each has run when the generator resumes."""

_EVALUATED: LruCache[Expected] = LruCache(4096)
"""Recent evaluations by key: scenarios that differ in one setting share most of their kernels."""


def resolve(deferred: Deferred[T]) -> T:
    """The result of one deferred computation."""
    try:
        while True:
            evaluate_all(next(deferred))
    except StopIteration as stop:
        found: T = stop.value
        return found


def gather(several: Iterable[Deferred[T]]) -> Deferred[list[T]]:
    """The results of several deferred computations, in order, their evaluations yielded together."""
    running = dict(enumerate(several))
    found: dict[int, T] = {}
    while running:
        pending: list[Evaluation] = []
        for index, deferred in list(running.items()):
            try:
                pending += next(deferred)
            except StopIteration as stop:
                found[index] = stop.value
                del running[index]
        if pending:
            yield pending
    return [found[index] for index in sorted(found)]


def prefetch(several: Iterable[Deferred[Any]]) -> None:
    """Run deferred computations in lockstep to fill the caches; one that raises RooflineError is abandoned."""
    running = list(several)
    while running:
        pending = [(deferred, found) for deferred in running if (found := _next(deferred)) is not None]
        try:
            evaluate_all(evaluation for _, found in pending for evaluation in found)
        except RooflineError:
            return
        running = [deferred for deferred, _ in pending]


def _next(deferred: Deferred[Any]) -> list[Evaluation] | None:
    try:
        return next(deferred, None)
    except RooflineError:
        return None


def evaluate_all(evaluations: Iterable[Evaluation]) -> None:
    """Run evaluations: those of one form in a single call, repeated ones from the cache."""
    missing: dict[tuple[Any, ...], list[Evaluation]] = {}
    for evaluation in evaluations:
        if evaluation.found is not None:
            continue
        if math.prod(evaluation.shape) > MAX_CACHED_VALUES:
            evaluation.run()
            continue
        key = evaluation.key
        evaluation.found = _EVALUATED.get(key)
        if evaluation.found is None:
            missing.setdefault(key, []).append(evaluation)
    forms: dict[object, list[Evaluation]] = {}
    for first, *_ in missing.values():
        forms.setdefault(first.group.form, []).append(first)
    for alike in forms.values():
        _run_stacked(alike)
    for key, (first, *others) in missing.items():
        assert first.found is not None
        for evaluation in others:
            evaluation.found = first.found
        _EVALUATED.put(key, first.found)


def _run_stacked(evaluations: Sequence[Evaluation]) -> None:
    """Run evaluations of one form in one call, their columns concatenated."""
    first = evaluations[0]
    if len(evaluations) == 1:
        first.run()
        return
    ends = np.cumsum([math.prod(evaluation.shape) for evaluation in evaluations]).tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    columns = dict(first.columns)
    for name, value in first.columns.items():
        if isinstance(value, np.ndarray):
            columns[name] = np.empty(ends[-1])
            for evaluation, part in zip(evaluations, parts, strict=True):
                columns[name][part].reshape(evaluation.shape)[...] = evaluation.columns[name]
    found = first.group.evaluate(columns, (ends[-1],))
    for evaluation, part in zip(evaluations, parts, strict=True):
        arrays = {name: getattr(found, name)[part].reshape(evaluation.shape) for name in _ARRAYS}
        evaluation.found = found._replace(**arrays)


_ARRAYS = ("low", "mid", "high", "inside")
"""The array fields of `Expected`."""


class Target(NamedTuple):
    """Where an evaluation's times go: rows (kernels) and points of a pass.

    `which`, where given, is the column of the evaluation for each point; `join`, the minimum or the maximum, chooses
    between these times and those of targets before.
    """

    rows: Any
    points: Any
    evaluation: Evaluation
    which: NDArray[np.intp] | None = None
    join: Join | None = None

    def block(self, start: int, stop: int) -> Target:
        """The target for the points from `start` to `stop`."""
        return self if self.which is None else self._replace(which=self.which[start:stop])

    @property
    def found(self) -> Expected:
        """The evaluated times, (rows, points)."""
        found, which = self.evaluation.found, self.which
        assert found is not None
        if which is None:
            return found
        return found._replace(**{name: getattr(found, name)[:, which] for name in _ARRAYS})

    def write(self, times: Mapping[str, Any]) -> None:
        """Write the evaluated times into arrays of all kernels and points, by their names in `Expected`."""
        found, where = self.found, (self.rows, self.points)
        wins = None if self.join is None else self.join(found.mid, times["mid"][where]) == found.mid
        for name in _ARRAYS:
            own, all_times = getattr(found, name), times[name]
            all_times[where] = own if wins is None else np.where(wins, own, all_times[where])


def conversion_time(columns: Mapping[str, Any], work: float, hardware: Hardware) -> Any:
    """Seconds that attention takes to upcast a KV cache whose format the hardware does not compute in.

    Every tile of 128 queries of every query head converts the cache that it reads at `work` FLOP an element; at most
    one tile runs on a unit. The keys that a prompt adds, one a token, are still in the format of the queries (in
    cross-attention, too):

        tiles   U = batch heads ceil(q_len / 128)
        time    t = 2 U cached d work / (vector peak min(1, U / units)),    cached = kv_len - q_len, of steps kv_len
    """
    if hardware.vector_peak is None:
        return 0.0
    queries = np.maximum(columns["q_len"], 1.0)
    tiles = columns["batch"] * columns["heads"] * np.ceil(queries / QUERY_TILE)
    window = np.asarray(columns.get("window", 0.0))
    keys = np.where(window > 0, np.minimum(columns["kv_len"], np.maximum(window, 1.0)), columns["kv_len"])
    cached = np.minimum(keys, np.where(queries > DECODE_QUERIES, columns["kv_len"] - queries, columns["kv_len"]))
    busy = hardware.vector_peak * np.clip(tiles / units(hardware), 1e-9, 1.0)
    return 2.0 * tiles * np.maximum(cached, 0.0) * columns["head_dim"] * work / busy


def _with_upcast(found: Expected, columns: Mapping[str, Any], work: float, hardware: Hardware) -> Expected:
    """Times of kernels that overlap with their upcasts: (kernel^2 + conversion^2)^(1/2)."""
    slower = smooth_maximum(found.mid, conversion_time(columns, work, hardware), 2.0) / found.mid
    return found._replace(low=found.low * slower, mid=found.mid * slower, high=found.high * slower)


def _faster(one: Expected, other: Expected) -> Expected:
    """The times of the faster kernel of each row, by their p50."""
    first = one.mid <= other.mid
    return one._replace(**{name: np.where(first, getattr(one, name), getattr(other, name)) for name in _ARRAYS})
