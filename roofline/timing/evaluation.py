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

from msgspec import Struct
from numpy.typing import NDArray

from roofline.core import numeric as np
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

FEW_NUMBERS = 3
"""Kernels that take less time one by one, as numbers, than together in arrays."""

T = TypeVar("T")

Counts = tuple[Array, NDArray[np.intp]]
"""Distinct values of m, (1, values), and the index of each point's value."""


class KernelGroup(Struct, frozen=True):
    """Kernels of one kind and format, evaluated together: constants, and symbolic columns as coefficients.

    `coefficients` are those of the `varying` columns, (columns, kernels, monomials). `factor` multiplies the times;
    `conversion` is the work of upcasting a cache element, in FLOP. Groups with the same `form` share one formula and
    differ only in the values of their columns.
    """

    op: str
    match: Match
    other: Match | None
    hardware: Hardware
    texts: Mapping[str, str | float]
    members: NDArray[np.intp]
    fixed: Mapping[str, Array | float]
    varying: tuple[str, ...]
    coefficients: Array
    factor: float
    conversion: float
    form: object

    @property
    def rows(self) -> Any:
        """The index of its kernels among those of the pass."""
        return slice(self.members[0], self.members[0] + 1) if len(self.members) == 1 else self.members

    def columns(self, values: Array) -> dict[str, Any]:
        """The columns of the measurement schema, (members, points)."""
        found: Any = self.coefficients @ values
        found = found[:, 0, 0].tolist() if values.shape[1] == len(self.members) == 1 else found
        columns = {**self.texts, **self.fixed, **dict(zip(self.varying, found, strict=True))}
        if "pairs" in columns:
            columns["kv_len"] = columns.pop("pairs") / np.maximum(columns["batch"], 1.0)
        return columns

    def distinct_rows(self, values: Array, counts: dict[bytes, Counts]) -> Destination | None:
        """An evaluation of each distinct m of GEMMs, which depend on the workload through m alone; None for others.

        `counts` caches the distinct m by coefficients, for all GEMMs of a pass.
        """
        if self.op != "gemm" or values.shape[1] <= FEW_POINTS or self.varying != ("m",):
            return None
        rows = self.coefficients[0]
        if (rows != rows[0]).any():
            return None
        key = rows[0].tobytes()
        if key not in counts:
            distinct, which = np.unique(rows[0] @ values, return_inverse=True)
            counts[key] = distinct[np.newaxis], which.reshape(-1)
        distinct, which = counts[key]
        columns = {**self.texts, **self.fixed, "m": distinct}
        return Destination(self.rows, _ALL_POINTS, Evaluation(self, columns, distinct.size), which)

    def targets(self, own: Array) -> list[Destination]:
        """The evaluations at the points where the group's kernels run.

        Attention of a few queries runs the faster of the kernels of prefill and decode. No kernel of more queries is
        faster than a decode kernel of the most that it takes, or of one, over the same keys.
        """
        if self.op not in IS_DECODE_KERNEL or "q_len" not in self.varying:
            return [Destination(self.rows, _ALL_POINTS, Evaluation(self, self.columns(own), own.shape[1]))]
        queries, choice = self.coefficients[self.varying.index("q_len"), 0] @ own, self.op in ATTENTION
        queries = queries.item() if queries.size == 1 else queries
        if not IS_DECODE_KERNEL[self.op]:
            runs = self._among(own, queries > (1 if choice else DECODE_QUERIES), None if choice else np.maximum)
            return [runs] if runs else []
        most = 1 if choice else DECODE_QUERIES
        few = (queries > most) & (queries <= DECODE_QUERIES)
        found = self._among(own, queries <= most), self._among(own, few, np.minimum)
        return [target for target in (*found, self._among(own, queries > most, np.maximum, most)) if target]

    def _among(
        self, own: Array, runs: NDArray[np.bool_], join: Join | None = None, most: int = 0
    ) -> Destination | None:
        """The evaluation at some points, of their own queries or of `most`; None without any."""
        if not np.any(runs):
            return None
        rows, points = self.rows, cast(Any, _ALL_POINTS)
        if not np.all(runs):
            rows, points = rows if isinstance(rows, slice) else rows[:, np.newaxis], np.flatnonzero(runs)
            own = own[:, points]
        columns = self.columns(own)
        if most:
            if "pairs" in self.varying:  # each token is a sequence: fewer queries are fewer tokens
                fewer = most / columns["q_len"]
                columns |= {name: columns[name] * fewer for name in self.varying if name not in ("q_len", "pairs")}
            columns["q_len"] = np.full_like(columns["q_len"], most)
        return Destination(rows, points, Evaluation(self, columns, own.shape[1]), join=join)

    def evaluate(self, columns: Mapping[str, Any], shape: tuple[int, ...]) -> Expected:
        """Expected times of columns that broadcast to `shape`; 0 where a GEMM has no rows (encoders in decode)."""
        empty: Any = False
        if self.op == "gemm":
            empty = columns["m"] <= 0
            columns = {**columns, "m": np.maximum(columns["m"], 1.0)}
        if "kv_len" in columns:
            columns = {**columns, "kv_len": keys_of(columns)}
        found = self.match.expected(columns, self.hardware)
        if self.other is not None:
            found = _faster(found, self.other.expected(columns, self.hardware))
        times, inside = found.times, found.inside
        if self.conversion:  # the kernels overlap with their upcasts: (kernel^2 + conversion^2)^(1/2)
            upcast = conversion_time(columns, self.conversion, self.hardware)
            times = times * (smooth_maximum(found.mid, upcast, 2.0) / found.mid)
        if self.factor != 1:
            times = times * self.factor
        if np.any(empty):
            times = times * np.logical_not(empty)
        if not isinstance(inside, np.ndarray):
            return found._replace(times=times.reshape(3, 1, 1), inside=np.full(shape, inside))
        if inside.size == math.prod(shape):
            return found._replace(times=times.reshape(3, *shape), inside=inside.reshape(shape))
        times = times.reshape(3, *(1 for _ in shape[inside.ndim :]), *inside.shape)
        return found._replace(times=np.broadcast_to(times, (3, *shape)), inside=np.broadcast_to(inside, shape))


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
        texts = self.group.texts
        values = (value for name, value in self.columns.items() if name not in texts)
        return (self.group.form, self.shape, *[v.tobytes() if isinstance(v, np.ndarray) else v for v in values])

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
    first, sizes = evaluations[0], [math.prod(evaluation.shape) for evaluation in evaluations]
    if len(sizes) == 1 or sum(sizes) <= FEW_NUMBERS:
        for evaluation in evaluations:
            evaluation.run()
        return
    ends = np.cumsum(sizes).tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    columns = dict(first.columns)
    for name in first.columns:
        if name not in first.group.texts:
            columns[name] = np.empty(ends[-1])
            for evaluation, part in zip(evaluations, parts, strict=True):
                columns[name][part].reshape(evaluation.shape)[...] = evaluation.columns[name]
    found = first.group.evaluate(columns, (ends[-1],))
    for evaluation, part in zip(evaluations, parts, strict=True):
        times, inside = found.times[:, part], found.inside[part]
        evaluation.found = found._replace(
            times=times.reshape(3, *evaluation.shape), inside=inside.reshape(evaluation.shape)
        )


class Destination(NamedTuple):
    """Where an evaluation's times go: rows (kernels) and points of a pass.

    `which`, where given, is the column of the evaluation for each point; `join`, the minimum or the maximum, chooses
    between these times and those of targets before.
    """

    rows: Any
    points: Any
    evaluation: Evaluation
    which: NDArray[np.intp] | None = None
    join: Join | None = None

    def block(self, start: int, stop: int) -> Destination:
        """The target for the points from `start` to `stop`."""
        return self if self.which is None else self._replace(which=self.which[start:stop])

    @property
    def found(self) -> Expected:
        """The evaluated times, (rows, points)."""
        found, which = self.evaluation.found, self.which
        assert found is not None
        if which is None:
            return found
        times = found.times.take(which, axis=2, mode="clip")  # clipping nothing takes a third of checking
        return found._replace(times=times, inside=found.inside.take(which, axis=1, mode="clip"))

    def write(self, times: Array, inside: NDArray[np.bool_]) -> None:
        """Write the evaluated times into arrays of all kernels and points, (3, kernels, points) and without the 3."""
        found, where = self.found, (self.rows, self.points)
        own, within = found.times, found.inside
        if self.join is not None:
            before = times[:, *where]
            wins = self.join(own[1], before[1]) == own[1]
            own, within = np.where(wins, own, before), np.where(wins, within, inside[where])
        times[:, *where], inside[where] = own, within


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


def _faster(one: Expected, other: Expected) -> Expected:
    """The times of the faster kernel of each row, by their p50."""
    first = one.mid <= other.mid
    return one._replace(times=np.where(first, one.times, other.times), inside=np.where(first, one.inside, other.inside))
