"""Batches: kernels of one kind and format, evaluated together for all points of a grid.

The sizes of kernels are polynomials in the workload's extents; a batch holds them as coefficients, so that the columns
of the measurement schema are one matrix product away. What a batch wants to know is a `Question`. Questions are asked
by generators that yield lists of them: `answered` runs one, `together` many side by side, and then kernels of one form
are evaluated at once, whichever scenario asked (a formula takes as long for a hundred rows as for one).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.bound.roof import Placement, coefficient_rows
from roofline.core.cache import SMALL, Remembered
from roofline.core.errors import RooflineError
from roofline.graph.parallel import ONE_NODE
from roofline.graph.size import Monomial
from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Expected, Match
from roofline.timing.kernels import Array
from roofline.timing.kernels.common import numbers, smooth_maximum, units
from roofline.timing.kernels.elementwise import PASSES
from roofline.timing.kernels.shapes import DECODE_QUERIES, KernelShape
from roofline.timing.launches import ATTENTION, OF_STEPS, Kernel

FEW = 32
"""Points of which no table is made: a table of so few rows takes as long as it saves."""

T = TypeVar("T")

Counts = tuple[Array, NDArray[np.intp]]
"""Distinct numbers of rows, (1, numbers), and which of them each point has."""


class Batch(Struct, frozen=True):
    """Kernels of one kind and format, evaluated together: constants, and symbolic columns as coefficients.

    `factor` multiplies their times; `conversion` is the work of converting an element of the cache, in FLOP. Batches
    of one `form` are answered by one formula: they differ in the values of their columns at most.
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

    def table(self, values: Array, counts: dict[bytes, Counts]) -> Asked | None:
        """Products depend on the workload through their rows only: each number of rows is evaluated once.

        `counts` are the numbers of rows at these points, by coefficients; products of a pass have them in common.
        """
        if self.op != "gemm" or values.shape[1] <= FEW or set(self.varying) != {"m"}:
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
        return Asked(self.members, _EVERYWHERE, Question(self, columns, distinct.size), which)

    def asked(self, own: Array) -> Asked | None:
        """What is to be known of the kernels that run: kernels of prompts, or those of steps, at each point."""
        rows: Any = self.members
        points: Any = _EVERYWHERE
        if self.op in OF_STEPS:
            queries = (self.varying["q_len"][0] @ own) if "q_len" in self.varying else self.fixed["q_len"][0]
            runs = (queries <= DECODE_QUERIES) == OF_STEPS[self.op]
            if not runs.any():
                return None
            if not runs.all():
                rows, points = rows[:, np.newaxis], np.flatnonzero(runs)
                own = own[:, points]
        return Asked(rows, points, Question(self, self.columns(own), own.shape[1]), None)

    def evaluated(self, columns: Mapping[str, Any], shape: tuple[int, ...]) -> Expected:
        """Expected times of columns that fit `shape`; none for products of no rows: an encoder's run in one pass."""
        none: Any = None
        if self.op == "gemm":
            none = columns["m"] <= 0
            columns = {**columns, "m": np.maximum(columns["m"], 1.0)}
        if "kv_len" in columns:
            columns = {**columns, "kv_len": np.maximum(columns["kv_len"], columns["q_len"])}
        found = self.match.expected(columns, self.hardware)
        if self.other is not None:
            found = _faster(found, self.other.expected(columns, self.hardware))
        if self.conversion:
            found = _converted(found, columns, self.conversion, self.hardware)
        factor = self.factor if none is None or not none.any() else np.where(none, 0.0, self.factor)
        if found.mid.shape == shape and np.ndim(factor) == 0 and factor == 1:
            return found
        low, mid, high = (np.broadcast_to(factor * time, shape) for time in found[:3])
        return found._replace(low=low, mid=mid, high=high, inside=np.broadcast_to(found.inside, shape))


_EVERYWHERE = slice(None)

QUERY_TILE = 128.0
"""Queries that share what a kernel converts of the cache: a tile of FlashAttention."""


class Question:
    """The expected times of a batch's kernels at some points, (members, points), once they are `found`."""

    __slots__ = ("batch", "columns", "found", "points")

    def __init__(self, batch: Batch, columns: Mapping[str, Any], points: int) -> None:
        self.batch, self.columns, self.points = batch, columns, points
        self.found: Expected | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Kernels, points."""
        return len(self.batch.members), self.points

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal where the answer is."""
        values = (value.tobytes() for value in self.columns.values() if isinstance(value, np.ndarray))
        return (self.batch.form, self.shape, *values)

    def answer(self) -> None:
        """Works out what is asked."""
        self.found = self.batch.evaluated(self.columns, self.shape)


Asking = Generator[list[Question], None, T]
"""What asks questions on its way to a T: every question that it yields is answered when it goes on."""

_ANSWERED: Remembered[Expected] = Remembered(4096)
"""What changes one thing of a scenario asks most of its kernels again."""


def answered(asking: Asking[T]) -> T:
    """What one asks for."""
    try:
        while True:
            answer(next(asking))
    except StopIteration as stop:
        found: T = stop.value
        return found


def beside(askings: Iterable[Asking[T]]) -> Asking[list[T]]:
    """What several ask for; all that they ask at a time is asked at once."""
    running = dict(enumerate(askings))
    found: dict[int, T] = {}
    while running:
        asked: list[Question] = []
        for index, asking in list(running.items()):
            try:
                asked += next(asking)
            except StopIteration as stop:
                found[index] = stop.value
                del running[index]
        if asked:
            yield asked
    return [found[index] for index in sorted(found)]


def together(askings: Iterable[Asking[Any]]) -> None:
    """Runs all to their ends side by side; those that cannot be answered are left where they stand."""
    running = list(askings)
    while running:
        asked = [(asking, questions) for asking in running if (questions := _next(asking)) is not None]
        try:
            answer([question for _, questions in asked for question in questions])
        except RooflineError:
            return
        running = [asking for asking, _ in asked]


def _next(asking: Asking[Any]) -> list[Question] | None:
    try:
        return next(asking, None)
    except RooflineError:
        return None


def answer(questions: Iterable[Question]) -> None:
    """Answers questions: those of one form at once, those that were answered before from memory."""
    missing: dict[tuple[Any, ...], list[Question]] = {}
    for question in questions:
        if question.found is not None:
            continue
        if math.prod(question.shape) > SMALL:
            question.answer()
            continue
        key = question.key
        question.found = _ANSWERED.find(key)
        if question.found is None:
            missing.setdefault(key, []).append(question)
    forms: dict[object, list[Question]] = {}
    for first, *_ in missing.values():
        forms.setdefault(first.batch.form, []).append(first)
    for alike in forms.values():
        _answer_at_once(alike)
    for key, (first, *others) in missing.items():
        assert first.found is not None
        for question in others:
            question.found = first.found
        _ANSWERED.keep(key, first.found)


def _answer_at_once(questions: Sequence[Question]) -> None:
    """Questions of one form, as one column after the other."""
    first = questions[0]
    if len(questions) == 1:
        first.answer()
        return
    ends = np.cumsum([math.prod(question.shape) for question in questions]).tolist()
    parts = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    columns = dict(first.columns)
    for name, value in first.columns.items():
        if isinstance(value, np.ndarray):
            columns[name] = np.empty(ends[-1])
            for question, part in zip(questions, parts, strict=True):
                columns[name][part].reshape(question.shape)[...] = question.columns[name]
    found = first.batch.evaluated(columns, (ends[-1],))
    for question, part in zip(questions, parts, strict=True):
        low, mid, high = (times[part].reshape(question.shape) for times in found[:3])
        question.found = found._replace(low=low, mid=mid, high=high, inside=found.inside[part].reshape(question.shape))


class Asked(NamedTuple):
    """What a batch asks: the rows and points of a pass that the answer is for, and which of its points each is."""

    rows: Any
    points: Any
    question: Question
    which: NDArray[np.intp] | None

    def cut(self, start: int, stop: int) -> Asked:
        """The same for the points from `start` to `stop`."""
        return self if self.which is None else self._replace(which=self.which[start:stop])

    @property
    def found(self) -> Expected:
        """The answer, (rows, points)."""
        found, which = self.question.found, self.which
        assert found is not None
        if which is None:
            return found
        low, mid, high = found.low[:, which], found.mid[:, which], found.high[:, which]
        return found._replace(low=low, mid=mid, high=high, inside=found.inside[:, which])


def batches(
    kernels: Sequence[Kernel], monomials: Sequence[Monomial], placement: Placement, engine: Engine
) -> list[Batch]:
    """Kernels that are evaluated together: of one kind and format; products also of the same rows."""
    hardware = placement.hardware
    if engine["memory"] != 1:
        hardware = dataclasses.replace(hardware, memory_bandwidth=hardware.memory_bandwidth * engine["memory"])
    alone = placement.nodes == ONE_NODE
    grouped: dict[Any, list[int]] = {}
    for index, entry in enumerate(kernels):
        if entry.shape is not None:
            across = 0 if alone else _across_nodes(entry, placement)
            key = (tuple(entry.shape.texts.items()), across, entry.shape.sizes.get("m"), entry.shape.by_token)
            for op, match in entry.matches.items():
                op = "copy" if match.fit.rows == 0 and op in PASSES else op  # nothing measured: all alike
                grouped.setdefault((op, *key), []).append(index)
    return [
        _batch(op, [(index, kernels[index]) for index in members], hardware, across, monomials, engine)
        for (op, _, across, *_), members in grouped.items()
    ]


def _across_nodes(entry: Kernel, placement: Placement) -> int:
    """The ranks of an exchange that are in one node, where it reaches across nodes; else 0."""
    links = (link for index in entry.parts if (link := placement.ops[index][0].link) is not None)
    far = (link for link in links if placement.nodes.span(link.reach).across_nodes)
    return next((placement.nodes.members(link.reach, link.ranks) for link in far), 0)


def _batch(
    op: str,
    members: Sequence[tuple[int, Kernel]],
    hardware: Hardware,
    across: int,
    monomials: Sequence[Monomial],
    engine: Engine,
) -> Batch:
    shapes = [entry.shape for _, entry in members if entry.shape is not None]
    match = next(match for name, match in members[0][1].matches.items() if name == op or op == "copy")
    other = members[0][1].others.get(op)
    texts = {**shapes[0].texts, **({"across_nodes": 1.0, "members": float(across)} if across else {})}
    fixed, varying = _columns(tuple(shapes), tuple(monomials))
    if op == "attention_decode" and engine["kv_reread"]:
        group = float(np.mean(fixed["heads"] / fixed["kv_heads"]))
        stored = numbers(str(texts.get("kv_dtype", texts["dtype"]))).bytes
        texts["kv_bytes"] = float(texts.get("kv_bytes", stored)) * (1 + (group - 1) * engine["kv_reread"])
    factor = engine["collective"] if op == "collective" else 1.0
    indices = np.array([index for index, _ in members])
    foreign = op in ATTENTION and members[0][1].foreign_cache
    conversion = engine["kv_conversion"] if foreign else 0.0
    match, other = _launched(match, engine), None if other is None else _launched(other, engine)
    form = _form(op, match, other, hardware, factor, conversion, *texts.items(), *fixed, *varying)
    return Batch(op, match, other, hardware, texts, indices, fixed, varying, factor, conversion, form)


@lru_cache(maxsize=4096)
def _form(*_kernel: object) -> object:
    """What stands for all that a formula takes beside the values of its columns: soon compared, as often as need be."""
    return object()


@lru_cache(maxsize=4096)
def _columns(
    shapes: tuple[KernelShape, ...], monomials: tuple[Monomial, ...]
) -> tuple[Mapping[str, Array], Mapping[str, Array]]:
    """The numeric columns of kernels: those that no workload changes, and the others as coefficients."""
    fixed: dict[str, Array] = {}
    varying: dict[str, Array] = {}
    for name in shapes[0].sizes:
        sizes = [shape.sizes[name] for shape in shapes]
        if all(set(size.terms) <= {()} for size in sizes):
            fixed[name] = np.array([[float(size.terms.get((), 0.0))] for size in sizes])
        else:
            varying[name] = coefficient_rows(sizes, monomials)
    return fixed, varying


def _launched(match: Match, engine: Engine) -> Match:
    """The constants with the engine's launch."""
    fit, factor = match.fit, engine["launch"]
    if "launch" not in fit.parameters or factor == 1:
        return match
    return replace(match, fit=replace(fit, parameters={**fit.parameters, "launch": fit.parameters["launch"] * factor}))


def conversion_time(columns: Mapping[str, Any], work: float, hardware: Hardware) -> Any:
    """Seconds to convert a cache that is in a format which the hardware does not compute in, for attention.

    Every tile of 128 queries of every query head converts what it reads of the cache at `work` FLOP an element, on as
    many units as there are tiles. What a prompt adds to the cache is at hand in the format of the queries, as many keys
    as it has tokens (in attention to another sequence, too):

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


def _converted(found: Expected, columns: Mapping[str, Any], work: float, hardware: Hardware) -> Expected:
    """The kernel and its conversions overlap: (kernel^2 + conversion^2)^(1/2)."""
    slower = smooth_maximum(found.mid, conversion_time(columns, work, hardware), 2.0) / found.mid
    return found._replace(low=found.low * slower, mid=found.mid * slower, high=found.high * slower)


def _faster(one: Expected, other: Expected) -> Expected:
    """For each row the expected times of the kernel whose middle is the lower one."""
    first = one.mid <= other.mid
    low, mid, high, inside = (np.where(first, a, b) for a, b in zip(one[:4], other[:4], strict=True))
    return one._replace(low=low, mid=mid, high=high, inside=inside)
