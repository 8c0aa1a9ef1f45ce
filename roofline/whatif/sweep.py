"""Sweeps: every point of a study, evaluated in chunks, here or by the workers of any executor.

A chunk is a few loops' worth of grid, small enough for the cache of results to stay small however many points there
are. Chunks are independent and known by their number alone: the same ones go to processes or to a cluster, a lost one
is evaluated again, and answers are put together in their order, so that they do not depend on who worked them out.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError
from itertools import islice
from typing import Any, Protocol, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.core.expressions import Type
from roofline.scenario.analysis import analyze
from roofline.whatif.metrics import figures
from roofline.whatif.options import OPTIONS, scenario_from
from roofline.whatif.selection import Rows, Selection, joined
from roofline.whatif.study import ERROR, Question, Study, source_digest

CHUNK = 1 << 15
"""Points that are evaluated together."""

LOOPS = 64
"""Combinations of loops in a chunk, at most: each takes an analysis of its own."""

Grid: TypeAlias = Mapping[str, NDArray[np.int64]]


class Part(Struct, frozen=True):
    """One combination of the loops, as text or numbers, and the values of the grid that it is evaluated over."""

    loops: Mapping[str, Any]
    grid: Grid

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of its grid; a single point where nothing is a count."""
        return tuple(values.size for values in self.grid.values()) or (1,)


class Task(Struct, frozen=True):
    """A chunk: its number and its parts, in order."""

    number: int
    parts: tuple[Part, ...]


class Answer(Struct, frozen=True):
    """The rows of a chunk that are wanted, how many points it has, and why so many of them cannot run."""

    number: int
    points: int
    rows: Rows
    reasons: Mapping[str, int]


class Chunks:
    """The chunks of a study by number."""

    def __init__(self, study: Study, size: int = CHUNK) -> None:
        if size < 1:
            raise RooflineError(f"a chunk has 1 point or more, got {size}")
        self.study = study
        self._combinations = math.prod(map(len, study.loops))
        lengths = [len(axis) for axis in study.grid]
        points = math.prod(lengths)
        self._together = max(1, min(LOOPS, size // points))
        self._cut = 0  # the axis that is cut; those before it are taken one value at a time, those after it whole
        while self._cut < len(lengths) - 1 and math.prod(lengths[self._cut + 1 :]) > size:
            self._cut += 1
        whole = points <= size
        self._rows = lengths[0] if whole and lengths else max(1, size // math.prod(lengths[self._cut + 1 :]))
        self._cut = 0 if whole else self._cut
        self._pieces = math.ceil(lengths[self._cut] / self._rows) if lengths else 1
        self._outer = lengths[: self._cut]
        self._boxes = math.prod(self._outer) * self._pieces

    def __len__(self) -> int:
        if self._boxes > 1:
            return self._combinations * self._boxes
        return math.ceil(self._combinations / self._together)

    def task(self, number: int) -> Task:
        """The chunk of this number."""
        if self._boxes > 1:
            combination, box = divmod(number, self._boxes)
            return Task(number, (Part(self._loops(combination), self._box(box)),))
        first = number * self._together
        last = min(first + self._together, self._combinations)
        return Task(number, tuple(Part(self._loops(index), self._box(0)) for index in range(first, last)))

    def _loops(self, index: int) -> dict[str, Any]:
        found = {}
        for axis in reversed(self.study.loops):
            index, position = divmod(index, len(axis))
            found[axis.name] = axis.labels[position]
        return {axis.name: found[axis.name] for axis in self.study.loops}

    def _box(self, index: int) -> Grid:
        outer, piece = divmod(index, self._pieces)
        found = {}
        for position, axis in enumerate(self.study.grid):
            values = axis.values
            if position < self._cut:
                outer, at = divmod(outer, math.prod(self._outer[position + 1 :]))[::-1]
                values = values[at : at + 1]
            elif position == self._cut:
                values = values[piece * self._rows : (piece + 1) * self._rows]
            found[axis.name] = values
        return found


def evaluate(question: Question, task: Task, check: bool = False) -> Answer:
    """The answer of a chunk. With `check`, specs that are not those of the process that asks raise RooflineError."""
    if check:
        _check_sources(question, task)
    condition = question.condition
    reasons: Counter[str] = Counter()
    found = []
    for part in task.parts:
        values, errors = _solved(question, part)
        rows = _rows(question, part, values, errors)
        if errors is not None:
            texts, counts = np.unique(errors[errors != ""], return_counts=True)
            reasons.update(dict(zip(texts.tolist(), counts.tolist(), strict=True)))
            rows = rows if question.keep else rows.take(errors == "")
        if condition is not None and rows.count:
            rows = rows.take(np.broadcast_to(np.asarray(condition(rows.columns), dtype=bool), (rows.count,)))
        wanted = Rows({name: rows.columns[name] for name in question.columns}, rows.count)
        found.append(question.selection.partial(wanted))
    kept = [rows for rows in found if rows.count] or found[:1]
    points = sum(math.prod(part.shape) for part in task.parts)
    return Answer(task.number, points, joined(kept), dict(reasons))


def _check_sources(question: Question, task: Task) -> None:
    """A worker elsewhere has specs of its own: they must say the same."""
    for kind, name in question.sources:
        varied = {part.loops[kind] for part in task.parts} if kind in question.axes else {name}
        if name not in varied:
            continue
        try:
            same = source_digest(kind, name) == question.sources[kind, name]
        except RooflineError as error:
            raise RooflineError(f"a worker lacks what this process has: {error}") from None
        if not same:
            raise RooflineError(f"a worker's {kind} {name} is not the one of this process")


def _rows(question: Question, part: Part, values: Mapping[str, Any], errors: Any) -> Rows:
    """The axes and the figures of every point of a part, side by side."""
    columns: dict[str, Any] = dict(part.loops)
    for name, grid in zip(part.grid, np.meshgrid(*part.grid.values(), indexing="ij"), strict=True):
        columns[name] = grid.reshape(-1)
    if question.keep:
        columns[ERROR] = "" if errors is None else errors
    return Rows(columns | dict(values), math.prod(part.shape))


def _solved(question: Question, part: Part) -> tuple[dict[str, Any], Any]:
    """The figures of every point of a part, flat, and what is wrong with each: nothing at all (None), or text."""
    try:
        return _figures(question, part), None
    except RooflineError as error:
        return _apart(question, part, str(error))


def _figures(question: Question, part: Part) -> dict[str, Any]:
    options = {**question.fixed, **{name: OPTIONS[name].read(label) for name, label in part.loops.items()}}
    dimensions = len(part.grid)
    for position, (name, values) in enumerate(part.grid.items()):
        options[name] = values.reshape([-1 if index == position else 1 for index in range(dimensions)])
    if not part.grid:
        options["batch"] = np.array([options.get("batch", 1)])
    return figures(analyze(scenario_from(options)), question.figures, question.at)


def _apart(question: Question, part: Part, reason: str) -> tuple[dict[str, Any], Any]:
    """A part that cannot be evaluated as a whole: where its first and last point can neither, nothing of it can.

    Otherwise it is halved along its longest axis until what cannot run is told from what can.
    """
    shape = part.shape
    ends = (_corner(part, 0), _corner(part, -1))
    if math.prod(shape) == 1 or all(_fails(question, end) for end in ends):
        return _missing(question, shape), np.full(math.prod(shape), reason, dtype=object)
    axis = int(np.argmax(shape))
    name, half = list(part.grid)[axis], shape[axis] // 2
    halves = [
        (Part(part.loops, {**part.grid, name: values}), values.size)
        for values in (part.grid[name][:half], part.grid[name][half:])
    ]
    solved = [_solved(question, half) for half, _ in halves]
    errors = [
        np.full(math.prod(half.shape), "", dtype=object) if found is None else found
        for (half, _), (_, found) in zip(halves, solved, strict=True)
    ]

    def together(pieces: list[Any]) -> Any:
        shaped = [piece.reshape(half.shape) for piece, (half, _) in zip(pieces, halves, strict=True)]
        return np.concatenate(shaped, axis=axis).reshape(-1)

    values = {key: together([found[key] for found, _ in solved]) for key in question.figures}
    return values, together(errors)


def _corner(part: Part, index: int) -> Part:
    return Part(part.loops, {name: values[[index]] for name, values in part.grid.items()})


def _fails(question: Question, part: Part) -> bool:
    try:
        _figures(question, part)
    except RooflineError:
        return True
    return False


def _missing(question: Question, shape: tuple[int, ...]) -> dict[str, Any]:
    """Figures of points that cannot run."""
    from roofline.whatif.metrics import find_metric

    blank: Mapping[Type, Any] = {Type.NUMBER: np.nan, Type.TRUTH: False, Type.TEXT: ""}
    points = math.prod(shape)
    return {name: np.full(points, blank[find_metric(name, question.at).type]) for name in question.figures}


class Promise(Protocol):
    """What an executor gives for a call: `concurrent.futures.Future` is one."""

    def result(self) -> Any:
        """Waits for what the call returns, or raises what it raised."""

    def cancel(self) -> Any:
        """Tries to have the call not made."""


class Executor(Protocol):
    """What calls functions elsewhere: `concurrent.futures.Executor` is one, Dask's `Client.get_executor()` another."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Promise:
        """Has `fn` called with these arguments."""


def answers(
    study: Study, executor: Executor | None = None, *, chunk: int = CHUNK, start: int = 0, ahead: int = 8
) -> Iterator[Answer]:
    """The answers of a study's chunks of `chunk` points from the one of number `start` on, in order.

    Without an executor they are evaluated here. With one, so many chunks are asked for `ahead` of the one that is due:
    memory does not grow with the study. Raises RooflineError where the executor loses its workers for good.
    """
    chunks = Chunks(study, chunk)
    numbers = range(start, len(chunks))
    if executor is None:
        yield from (evaluate(study.question, chunks.task(number)) for number in numbers)
        return
    due: deque[Promise] = deque()
    rest = iter(numbers)

    def ask(count: int) -> None:
        for number in islice(rest, count):
            due.append(executor.submit(evaluate, study.question, chunks.task(number), True))

    try:
        ask(max(1, ahead))
        while due:
            answer = due[0].result()
            due.popleft()
            ask(1)
            yield answer
    except Exception as error:
        if (told := _of_the_workers(error)) is not None:
            raise told from None
        raise
    finally:
        for promise in due:
            promise.cancel()


def _of_the_workers(error: Exception) -> RooflineError | None:
    """What to tell where it is the workers that failed, not what they were asked; None elsewhere."""
    if isinstance(error, ImportError) or (isinstance(error, RuntimeError) and "deserialization" in str(error)):
        return RooflineError("the workers cannot run this: they need roofline in the version that this process has")
    cluster = type(error).__module__.partition(".")[0] in ("distributed", "dask")
    if not cluster and not isinstance(error, (BrokenExecutor, CancelledError, OSError)):
        return None
    return RooflineError(
        f"the workers were lost ({type(error).__name__}); a sweep with --resume continues where it was"
    )


class Tally(Struct):
    """What became of the points so far: all, those that cannot run with reasons, and the wanted rows among them."""

    points: int = 0
    invalid: int = 0
    rows: int = 0
    reasons: Counter[str] | None = None

    def add(self, answer: Answer) -> None:
        """Counts an answer in."""
        self.count(answer.points, answer.rows.count, answer.reasons)

    def count(self, points: int, rows: int, reasons: Mapping[str, int]) -> None:
        """Counts points in, of which so many rows are wanted and so many cannot run."""
        self.points += points
        self.rows += rows
        self.invalid += sum(reasons.values())
        self.reasons = (self.reasons or Counter()) + Counter(reasons)

    def check(self, question: Question) -> None:
        """Raises RooflineError where there is nothing to show."""
        if self.rows:
            return
        if self.invalid == self.points and self.reasons:
            raise RooflineError(f"none of the {self.points} points can run: {self.reasons.most_common(1)[0][0]}")
        which = f"meets {question.where!r}" if question.where else "has figures to rank by"
        raise RooflineError(f"none of the {self.points} points {which}")


class Collector:
    """Keeps the rows that a selection wants among all that were added, and no more than it must."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._rows: list[Rows] = []
        self._waiting = 0

    def add(self, rows: Rows) -> None:
        """Adds rows that were selected from a chunk."""
        self._rows.append(rows)
        self._waiting += rows.count
        if not self._selection.everything and self._waiting > CHUNK:
            self._rows = [self._selection.partial(_together(self._rows))]
            self._waiting = 0

    @property
    def rows(self) -> Rows:
        """The wanted rows of all that were added."""
        return self._selection.of(_together(self._rows))


def _together(parts: Iterable[Rows]) -> Rows:
    parts = list(parts)
    return joined([rows for rows in parts if rows.count] or parts[:1])


class Sweep(Struct, frozen=True):
    """The rows of a study: columns by name, with how many points there are and why so many cannot run."""

    rows: Rows
    points: int
    reasons: Mapping[str, int]

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns, written out."""
        return {name: self.rows.array(name) for name in self.rows.columns}


def sweep(study: Study, executor: Executor | None = None, *, chunk: int = CHUNK, ahead: int = 8) -> Sweep:
    """Every wanted row of a study at once; `answers` gives them a chunk at a time.

    >>> from roofline.whatif.study import make_study
    >>> study = make_study({"batch": "1,8,64"}, ["tpot", "fits"], model="llama-3.1-8b", hw="h100-sxm", at="bound")
    >>> sweep(study).columns["fits"].tolist()
    [True, True, True]

    Raises RooflineError where nothing can run or nothing is wanted.
    """
    tally, collector = Tally(), Collector(study.question.selection)
    for answer in answers(study, executor, chunk=chunk, ahead=ahead):
        tally.add(answer)
        collector.add(answer.rows)
    tally.check(study.question)
    return Sweep(collector.rows, tally.points, dict(tally.reasons or {}))
