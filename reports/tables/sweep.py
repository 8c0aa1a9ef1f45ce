"""Output of sweeps: a table on the terminal, or a CSV, JSON lines or Parquet file, also resumable."""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from msgspec import Struct
from rich.console import Console
from rich.text import Text

from roofline.core.errors import RooflineError
from roofline.core.expressions import Type
from roofline.core.files import whole_file
from roofline.core.units import seconds, si
from roofline.reports.output.columns import ENDLESS
from roofline.reports.output.terminal import render, table, terminal
from roofline.reports.tables.resumable import Spool
from roofline.reports.tables.rows import CsvEncoding, JsonLinesEncoding, broken_rows, parquet_writer, sliced
from roofline.whatif.executors import Pool
from roofline.whatif.metrics import find_metric
from roofline.whatif.selection import Rows
from roofline.whatif.study import Study, StudyQuestion
from roofline.whatif.sweeps import CHUNK, Answer, Chunks, Collector, Tally, answers

NO_FILE = "a sweep to resume needs a file to continue: name it"

TABLE_ROWS = 100
"""Maximum number of rows of a table."""


class Run(Struct, frozen=True):
    """How a study runs: its workers, the points per chunk, and whether a partial file is resumed."""

    pool: Pool
    chunk: int = CHUNK
    resume: bool = False
    progress: bool = False


def format_of(output: Path | None) -> str:
    """The format of a file by its ending: csv, jsonl or parquet; a table if there is no file."""
    if output is None:
        return "table"
    return {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}.get(output.suffix.lower(), "csv")


def write_sweep(study: Study, format: str, output: Path | None, run: Run) -> Tally:
    """Runs a study, writes its rows to a file or as they arrive to standard output, and returns the tally of points.

    A failed run leaves no file, unless it is resumable: then the complete chunks stay beside the output. Raises
    RooflineError.
    """
    if output is None:
        if run.resume:
            raise RooflineError(NO_FILE, options=["output"])
        if format == "parquet":
            raise RooflineError("Parquet is a binary format: name a file", options=["output"])
        return _write(study, format, sys.stdout.buffer, run)
    if run.resume:
        return _write_resumable(study, format, output, run)
    with whole_file(output) as file:
        return _write(study, format, file, run)


def table_sweep(study: Study, run: Run) -> tuple[Rows, Tally]:
    """Runs a study and returns the rows of a table. Raises RooflineError."""
    if run.resume:
        raise RooflineError(NO_FILE, options=["output"])
    tally, collector = Tally(), Collector(study.question.selection)
    everything, shown = study.question.selection.everything, 0
    for answer in _watched(study, run, 0):
        tally.add(answer)
        if not everything or shown < TABLE_ROWS:
            collector.add(answer.rows)
            shown += answer.rows.count
    tally.check(study.question)
    rows = collector.rows
    tally.rows = rows.count if not everything else tally.rows
    return rows.take(np.arange(min(rows.count, TABLE_ROWS))), tally


def _write(study: Study, format: str, file: BinaryIO, run: Run) -> Tally:
    """Writes rows as they arrive or, with a selection, the selected rows at the end."""
    tally = Tally()

    def arriving() -> Iterator[Rows]:
        for answer in _watched(study, run, 0):
            tally.add(answer)
            yield answer.rows
        tally.check(study.question)

    with _writer(study.question, format, file) as write:
        _write_rows(study.question, arriving(), write, tally)
    return tally


def _write_rows(question: StudyQuestion, parts: Iterable[Rows], write: Callable[[Rows], None], tally: Tally) -> None:
    """Writes the rows of all parts or, with a selection, the selected ones, which `tally` then counts."""
    collector = Collector(question.selection)
    for rows in parts:
        (write if question.selection.everything else collector.add)(rows)
    if not question.selection.everything:
        chosen = collector.rows
        for piece in sliced(chosen):
            write(piece)
        tally.rows = chosen.count


@contextmanager
def _writer(question: StudyQuestion, format: str, file: BinaryIO) -> Iterator[Callable[[Rows], None]]:
    """A function that writes rows in a format; the header comes with the first rows, so no rows give an empty file."""
    if format == "parquet":
        with parquet_writer(file, question.columns) as parquet:
            yield lambda rows: parquet(rows) if rows.count else None
        return
    text = _encoding(question, format)
    heads = [text.head]

    def write(rows: Rows) -> None:
        if rows.count:
            file.write((heads.pop() if heads else b"") + text.encode(rows))

    yield write
    file.flush()


def _encoding(question: StudyQuestion, format: str) -> CsvEncoding | JsonLinesEncoding:
    return (CsvEncoding if format == "csv" else JsonLinesEncoding)(question.columns)


def _write_resumable(study: Study, format: str, output: Path, run: Run) -> Tally:
    """Writes chunks to a partial file that a later run resumes, and then the output.

    Text without a selection is the output itself; for Parquet and selections the chunks are JSON lines, converted at
    the end.
    """
    question = study.question
    grows = question.selection.everything and format != "parquet"
    encoding = _encoding(question, format if grows else "jsonl")
    tally = Tally()
    with Spool(output, f"{study.key} {run.chunk} {format if grows else 'chosen'}", encoding.head) as spool:
        for entry in spool.done:
            tally.count(entry.points, entry.rows, entry.reasons)
        for answer in _watched(study, run, len(spool.done)):
            tally.add(answer)
            data = encoding.encode(answer.rows)
            spool.append(data, answer.number, answer.points, answer.rows.count, answer.reasons)
        if not tally.rows:
            spool.discard()
        tally.check(question)
        if grows:
            spool.become_output()
            return tally
        assert isinstance(encoding, JsonLinesEncoding)
        chunks = (encoding.decode(piece) for piece in spool.pieces() if piece)
        with whole_file(output) as file, _writer(question, format, file) as write:
            _write_rows(question, chunks, write, tally)
        spool.discard()
    return tally


def _watched(study: Study, run: Run, start: int) -> Iterator[Answer]:
    """The answers from chunk `start` on, with a progress bar if `run.progress`."""
    found = answers(study, run.pool.executor, chunk=run.chunk, start=start, ahead=run.pool.ahead)
    if not run.progress:
        yield from found
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (BarColumn(None), TaskProgressColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    chunks = len(Chunks(study, run.chunk))
    done = study.points * start // max(chunks, 1)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=study.points, completed=done, rate="")
        for answer in found:
            speed = bar.tasks[0].speed
            bar.update(task, advance=answer.points, rate=f"{si(speed)} points/s" if speed else "")
            yield answer


def on_terminal() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def table_text(question: StudyQuestion, rows: Rows, tally: Tally, to_terminal: bool) -> str:
    """The output of `roofline sweep`: in the width of a terminal, or whole."""
    found = parts(question, rows, tally)
    console = (terminal() if to_terminal else None) or Console(file=io.StringIO(), width=ENDLESS)
    return "\n".join(line.rstrip() for line in render(found, console).splitlines()) + "\n"


def parts(question: StudyQuestion, rows: Rows, tally: Tally) -> list[Any]:
    """A table of the rows with units, and the number of omitted rows."""
    columns = question.columns
    header = [re.sub("(_per_gpu|_per_user|_bound)$", r"\n\1", name) for name in columns]
    shown = []
    for name, kind in columns.items():
        values = rows.array(name).tolist()
        if kind is Type.TRUTH and (broken := broken_rows(rows, name)) is not None:
            values = [math.nan if wrong else value for value, wrong in zip(values, broken, strict=True)]
        unit = None if name in question.axes or name == "error" else find_metric(name, question.at).unit
        shown.append([_shown(value, unit, kind) for value in values])
    lines = [list(line) for line in zip(*shown, strict=True)]
    left = next((index for index, kind in enumerate(columns.values()) if kind is not Type.TEXT), len(columns))
    whole = table(header, lines, left=max(left, 1), last_left=question.keep)
    rest = f"{tally.rows - rows.count:,} more rows: select with --top or --where, or write all with --output"
    return [whole, *([Text(rest, "dim")] if rows.count < tally.rows else [])]


def _shown(value: Any, unit: str | None, kind: Type) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "-"
    if kind is Type.TRUTH:
        return "yes" if value else "no"
    if kind is Type.TEXT:
        return str(value) or "-"
    if unit is None:
        return f"{value:g}" if isinstance(value, float) else str(value)
    if unit == "s":
        return seconds(value)
    if unit == "B":
        return si(value, "B")
    return f"{value:,.0f}" if value >= 100 or float(value).is_integer() else f"{value:.3g}"


def closing(question: StudyQuestion, tally: Tally) -> str:
    """The last line: numbers of points, rows and invalid points, with the most frequent reason."""
    line = f"{_many(tally.points, 'point')}, {_many(tally.rows, 'row')}"
    if not tally.invalid:
        return line
    reasons: Mapping[str, int] = tally.reasons or {}
    first, others = max(reasons, key=lambda reason: reasons[reason]), len(reasons) - 1
    more = f" (and {_many(others, 'more reason')})" if others else ""
    kept = ", which are rows with an error" if question.keep else ""
    return f"{line}; {_many(tally.invalid, 'point')} cannot run{kept}: {first}{more}"


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
