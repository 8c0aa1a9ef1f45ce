"""Sweeps: every point of a study, evaluated in chunks, in this process or by the workers of any executor.

A chunk has few enough points to bound memory. Chunks are independent and identified by their number: any worker can
evaluate one, a lost one is evaluated again, and results are merged in order, so that they do not depend on the workers.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, CancelledError
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.display import Result
from roofline.core.errors import RooflineError, quote
from roofline.core.expressions import Type
from roofline.scenario.analysis import analyze
from roofline.scenario.argument import beside, scenario_of
from roofline.scenario.options import OPTIONS, find_option
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.whatif.metrics import figures, find_metric
from roofline.whatif.selection import Rows, Selection, joined
from roofline.whatif.study import ERROR, Study, StudyQuestion, make_study, source_digest

if TYPE_CHECKING:
    import pandas

CHUNK = 1 << 15
"""Points per chunk."""

LOOPS = 64
"""Maximum combinations of loop axes per chunk: each needs its own analysis."""

Grid: TypeAlias = Mapping[str, NDArray[np.int64]]


class Part(Struct, frozen=True):
    """One combination of the loop axes, as text or numbers, and the values of the grid axes."""

    loops: Mapping[str, Any]
    grid: Grid

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the grid; (1,) without grid axes."""
        return tuple(values.size for values in self.grid.values()) or (1,)


class Task(Struct, frozen=True):
    """A chunk: its number and its parts, in order."""

    number: int
    parts: tuple[Part, ...]


class Answer(Struct, frozen=True):
    """The selected rows of a chunk, its number of points, and the count of each reason why points cannot run."""

    number: int
    points: int
    rows: Rows
    reasons: Mapping[str, int]


class Chunks:
    """The chunks of a study by number."""

    def __init__(self, study: Study, size: int = CHUNK) -> None:
        if not isinstance(size, int) or size < 1:
            raise RooflineError(f"a chunk needs at least 1 point, got {quote(size)[1:-1]}")
        self.study = study
        self._combinations = math.prod(map(len, study.loops))
        lengths = [len(axis) for axis in study.grid]
        points = math.prod(lengths)
        self._together = max(1, min(LOOPS, size // points))
        self._cut = 0  # index of the axis to split; axes before it have one value per chunk, axes after it all
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
        if self._boxes > 1:
            combination, box = divmod(number, self._boxes)
            return Task(number, (Part(self._loops(combination), self._box(box)),))
        first = number * self._together
        last = min(first + self._together, self._combinations)
        return Task(number, tuple(Part(self._loops(index), self._box(0)) for index in range(first, last)))

    def _loops(self, index: int) -> dict[str, Any]:
        loops = self.study.loops
        places = np.unravel_index(index, [len(axis) for axis in loops])
        return {axis.name: axis.labels[int(at)] for axis, at in zip(loops, places, strict=True)}

    def _box(self, index: int) -> Grid:
        outer, piece = divmod(index, self._pieces)
        firsts = [*map(int, np.unravel_index(outer, self._outer)), piece * self._rows]
        sizes = [*(1 for _ in self._outer), self._rows]
        axes = self.study.grid
        cut = {axis.name: axis.values[at : at + size] for axis, at, size in zip(axes, firsts, sizes, strict=False)}
        return {axis.name: axis.values for axis in axes} | cut


def evaluate(question: StudyQuestion, task: Task, check: bool = False) -> Answer:
    """The answer of a chunk. With `check`, raises RooflineError if this process has other specs than the study's."""
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
        shown = Rows({name: rows.columns[name] for name in question.columns}, rows.count)
        found.append(question.selection.partial(shown))
    points = sum(math.prod(part.shape) for part in task.parts)
    return Answer(task.number, points, joined(found), dict(reasons))


def _check_sources(question: StudyQuestion, task: Task) -> None:
    """Raises RooflineError if the specs of this worker differ from those of the study."""
    for kind, name in question.sources:
        varied = {part.loops[kind] for part in task.parts} if kind in question.axes else {name}
        if name not in varied:
            continue
        try:
            same = source_digest(kind, name) == question.sources[kind, name]
        except RooflineError as error:
            raise RooflineError(f"a worker lacks a spec of this process: {error}") from None
        if not same:
            raise RooflineError(f"a worker's {kind} {name} differs from that of this process")


def _rows(question: StudyQuestion, part: Part, values: Mapping[str, Any], errors: Any) -> Rows:
    """The axes and metrics of every point of a part, as columns."""
    columns: dict[str, Any] = dict(part.loops)
    for name, grid in zip(part.grid, np.meshgrid(*part.grid.values(), indexing="ij"), strict=True):
        columns[name] = grid.reshape(-1)
    if question.keep:
        columns[ERROR] = "" if errors is None else errors
    return Rows(columns | dict(values), math.prod(part.shape))


def _solved(question: StudyQuestion, part: Part) -> tuple[dict[str, Any], Any]:
    """The metrics of every point of a part, flat, and the error of each, "" for none; None if no point has one."""
    try:
        return _figures(question, part), None
    except RooflineError as error:
        return _bisected(question, part, str(error))


def _figures(question: StudyQuestion, part: Part) -> dict[str, Any]:
    objects = question.objects
    loops = {
        name: objects[name, label] if (name, label) in objects else OPTIONS[name].read(label)
        for name, label in part.loops.items()
    }
    options: dict[str, Any] = loops
    dimensions = len(part.grid)
    for position, (name, values) in enumerate(part.grid.items()):
        options[name] = values.reshape([-1 if index == position else 1 for index in range(dimensions)])
    if not part.grid:
        options["batch"] = np.array([question.fixed.get("batch", 1)])
    return figures(analyze(Scenario.varied(question.fixed, options)), question.figures, question.at)


def _bisected(question: StudyQuestion, part: Part, reason: str) -> tuple[dict[str, Any], Any]:
    """Metrics and errors of a part with an error: if its first and last point fail, all points do.

    Otherwise it is halved along its longest axis, recursively.
    """
    shape = part.shape
    ends = (_corner(part, 0), _corner(part, -1))
    if math.prod(shape) == 1 or all(_fails(question, end) for end in ends):
        blank: Mapping[Type, Any] = {Type.NUMBER: np.nan, Type.TRUTH: False, Type.TEXT: ""}
        types, points = {name: find_metric(name, question.at).type for name in question.figures}, math.prod(shape)
        missing = {name: np.full(points, blank[kind]) for name, kind in types.items()}
        return missing, np.full(points, reason, dtype=object)
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


def _fails(question: StudyQuestion, part: Part) -> bool:
    try:
        _figures(question, part)
    except RooflineError:
        return True
    return False


class LostWorkersError(RooflineError):
    """The workers of a sweep ended before it was complete."""


class Future(Protocol):
    """A pending call, such as `concurrent.futures.Future`."""

    def result(self) -> Any: ...

    def cancel(self) -> Any: ...


class Executor(Protocol):
    """An executor, such as `concurrent.futures.Executor` or Dask's `Client.get_executor()`."""

    def submit(self, fn: Callable[..., Any], /, *args: Any) -> Future: ...


def answers(
    study: Study, executor: Executor | None = None, *, chunk: int = CHUNK, start: int = 0, ahead: int = 8
) -> Iterator[Answer]:
    """The answers of a study's chunks of `chunk` points, in order, from number `start`.

    Without an executor, this process evaluates them. With one, up to `ahead` chunks are in flight, so that memory does
    not grow with the study. Raises RooflineError if the executor loses its workers for good.
    """
    chunks = Chunks(study, chunk)
    numbers = range(start, len(chunks))
    if executor is None:
        yield from (evaluate(study.question, chunks.task(number)) for number in numbers)
        return
    due: deque[Future] = deque()
    rest = iter(numbers)

    def submit(count: int) -> None:
        for number in islice(rest, count):
            due.append(executor.submit(evaluate, study.question, chunks.task(number), True))

    try:
        submit(max(1, ahead))
        while due:
            answer = due[0].result()
            due.popleft()
            submit(1)
            yield answer
    except Exception as error:
        if (failure := _worker_failure(error)) is not None:
            raise failure from None
        raise
    finally:
        for future in due:
            future.cancel()


def _worker_failure(error: Exception) -> RooflineError | None:
    """The error message for a failure of the workers themselves; None for other errors."""
    if isinstance(error, ImportError) or (isinstance(error, RuntimeError) and "deserialization" in str(error)):
        return RooflineError("the workers need the same version of roofline as this process")
    cluster = type(error).__module__.partition(".")[0] in ("distributed", "dask")
    if not cluster and not isinstance(error, (BrokenExecutor, CancelledError, OSError)):
        return None
    return LostWorkersError(f"the workers were lost ({type(error).__name__})")


class Tally(Struct):
    """Counts of points so far: all, invalid ones by reason, and selected rows."""

    points: int = 0
    invalid: int = 0
    rows: int = 0
    reasons: Counter[str] | None = None

    def add(self, answer: Answer) -> None:
        self.count(answer.points, answer.rows.count, answer.reasons)

    def count(self, points: int, rows: int, reasons: Mapping[str, int]) -> None:
        self.points += points
        self.rows += rows
        self.invalid += sum(reasons.values())
        self.reasons = (self.reasons or Counter()) + Counter(reasons)

    def check(self, question: StudyQuestion) -> None:
        """Raises RooflineError if there are no rows."""
        if self.rows:
            return
        if self.invalid == self.points and self.reasons:
            raise RooflineError(f"none of the {self.points} points can run: {self.reasons.most_common(1)[0][0]}")
        which = f"meets {quote(question.where)}" if question.where else "has metrics to rank by"
        raise RooflineError(f"none of the {self.points} points {which}")


class Collector:
    """Collects rows, and keeps those that a selection may choose."""

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._rows: list[Rows] = []
        self._waiting = 0

    def add(self, rows: Rows) -> None:
        self._rows.append(rows)
        self._waiting += rows.count
        if not self._selection.everything and self._waiting > CHUNK:
            self._rows = [self._selection.partial(joined(self._rows))]
            self._waiting = 0

    @property
    def rows(self) -> Rows:
        return self._selection.of(joined(self._rows))


class Sweep(Result, Struct, frozen=True):
    """The rows of a study, its number of points, and the count of each reason why points cannot run.

    `axes` are the names of the columns that are not metrics.
    """

    rows: Rows
    points: int
    reasons: Mapping[str, int]
    axes: tuple[str, ...]
    at: str

    @property
    def described(self) -> str:
        return f"{self.rows.count} of {self.points} points over {', '.join(self.axes)}"

    def frame(self) -> pandas.DataFrame:
        """The rows as a DataFrame; pandas comes with the extra `report`."""
        return self.to_frame()

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        """The columns as arrays, by name."""
        return {name: self.rows.array(name) for name in self.rows.columns}


AxisValues: TypeAlias = str | float | Iterable[object] | Model | Hardware
"""The values of an axis: a list, a text such as 1:256:log16 or h100-sxm,mi300x, or one value."""


def sweep(
    scenario: Scenario | Study,
    executor: Executor | None = None,
    *,
    metrics: str | Iterable[str] | None = None,
    at: str = "expected",
    where: str | None = None,
    top: int | None = None,
    by: str | None = None,
    pareto: str | Iterable[str] = (),
    invalid: str = "drop",
    chunk: int = CHUNK,
    ahead: int = 8,
    **axes: AxisValues,
) -> Sweep:
    """Metrics of every combination of the `axes`, options of a scenario by name; its other options stay.

    >>> from roofline import Scenario, sweep
    >>> scenario = Scenario("llama-3.1-8b", "h100-sxm")
    >>> found = sweep(scenario, metrics="tpot,fits", hw=["h100-sxm", "l4"], batch="1:64:log3")
    >>> found.columns["batch"].tolist()
    [1, 8, 64, 1, 8, 64]

    `metrics`, `at`, `where`, `top`, `by`, `pareto` and `invalid` are those of `roofline.whatif.study.make_study`, of
    which a `Study` may stand in place of the scenario. Chunks of `chunk` points run in this process, or on an
    `executor`, with up to `ahead` at once; `answers` yields them one by one. Raises RooflineError if there are no rows.
    """
    if isinstance(scenario, Study):
        query = {"metrics": metrics, "where": where, "top": top, "by": by, "pareto": pareto or None}
        if given := [*axes, *(name for name, value in query.items() if value is not None)]:
            raise RooflineError(f"{beside(given)} a study, which has its own")
        study = scenario
    else:
        fixed = scenario_of(scenario).given_options({find_option(name).name for name in axes})
        study = make_study(axes, metrics, at, where, top, by, pareto, invalid, **fixed)
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise RooflineError(f"an executor has a method submit, as those of concurrent.futures, got {quote(executor)}")
    tally, collector = Tally(), Collector(study.question.selection)
    for answer in answers(study, executor, chunk=chunk, ahead=ahead):
        tally.add(answer)
        collector.add(answer.rows)
    tally.check(study.question)
    return Sweep(collector.rows, tally.points, dict(tally.reasons or {}), tuple(study.question.axes), study.question.at)
