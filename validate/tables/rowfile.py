"""A CSV file of measurements, appended row by row by one process at a time, and robust against interruption.

Every row is one write of one whole line, so that a killed program leaves whole lines. A line truncated by a crash or a
full disk is removed when the file is opened again.
"""

from __future__ import annotations

import csv
import io
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

from roofline.core.errors import RooflineError, SpecError, quote
from roofline.core.files import cannot_write, lock
from roofline.core.inputs import read_bytes
from roofline.timing.kernels import KERNELS
from roofline.validate.kernels.work import Case
from roofline.validate.tables.rows import MAX_EXTENT, TEXT, shape_names
from roofline.validate.tables.text import MAX_BYTES

OPS = tuple(op for op in KERNELS if op != "collective")
"""Ops measured on one device."""

SHAPES = tuple(dict.fromkeys(name for op in OPS for name in shape_names(op)))

COLUMNS = (
    *("hardware", "op", *SHAPES, "latency_us", "latency_p10_us", "latency_p90_us", "samples", "kernel", "cache"),
    *("timing", "software", "device", "driver", "threads", "clock_mhz", "memory_clock_mhz", "temperature_c"),
    *("revision", "date"),
)
"""The columns of a file: the measurement schema, the spread, and the origin of the row."""


def as_line(values: Sequence[object]) -> bytes:
    """One line of the file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(
        [" ".join(str(value).split()) if isinstance(value, str) else value for value in values]
    )
    return text.getvalue().encode()


class RowFile:
    """A measurement file opened for appending, of kernels or with other `columns`; `rows` are its rows.

    Raises SpecError for a file with other content, RooflineError for one that cannot be written.
    """

    def __init__(self, path: Path, columns: Sequence[str] = COLUMNS) -> None:
        self.path, self.columns = path, columns
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise cannot_write(path, error) from None
        try:
            self.rows = self._start()
        except BaseException:
            os.close(self._file)
            raise

    def _start(self) -> list[dict[str, str]]:
        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            self._write(as_line(self.columns))
            return []
        lock(self._file, self.path)
        content = b"".join(iter(lambda: os.read(self._file, 1 << 20), b""))
        kept, rows = repaired(content, str(self.path), "; name a new file", self.columns)
        os.ftruncate(self._file, kept)
        os.lseek(self._file, kept, os.SEEK_SET)
        if kept == 0:
            self._write(as_line(self.columns))
        return rows

    def __enter__(self) -> RowFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self._file)

    def append(self, row: Mapping[str, object]) -> None:
        self._write(as_line([row.get(name, "") for name in self.columns]))
        self.rows.append({name: str(row.get(name, "")) for name in self.columns})

    def _write(self, line: bytes) -> None:
        regular = stat.S_ISREG(os.fstat(self._file).st_mode)
        start = os.lseek(self._file, 0, os.SEEK_CUR) if regular else 0
        try:
            written = os.write(self._file, line)
            if written < len(line):
                written += os.write(self._file, line[written:])
        except OSError as error:
            if regular:
                os.ftruncate(self._file, start)
            safe = f"; it keeps the {len(self.rows)} rows before this one" if start else ""
            reason = (error.strerror or "the system refused").lower()
            raise RooflineError(f"cannot write {quote(str(self.path), 200)}: {reason}{safe}") from None


def repaired(
    content: bytes, where: str, advice: str = "", columns: Sequence[str] = COLUMNS
) -> tuple[int, list[dict[str, str]]]:
    """The bytes of a file up to its last whole line, and its rows.

    Raises SpecError, with `advice` in the message, for content that is no such file.
    """
    end, header = content.rfind(b"\n") + 1, as_line(columns)
    if end == 0 and header.startswith(content):
        return 0, []
    lines = content[:end].split(b"\n")[:-1]
    rows: list[dict[str, str]] = []
    if not lines or lines[0] + b"\n" != header:
        raise SpecError(where, f"has other columns than the rows that are measured{advice}")
    for number, line in enumerate(lines[1:], 1):
        cells = next(csv.reader([line.decode("utf-8", "replace")]), [])
        if len(cells) != len(columns):
            if number == len(lines) - 1:
                return end - len(line) - 1, rows
            raise SpecError(where, f"has {len(cells)} cells in row {number}; it needs {len(columns)}")
        rows.append(dict(zip(columns, cells, strict=True)))
    return end, rows


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a file as text by column; raises SpecError for other content."""
    _, rows = repaired(read_bytes(path, MAX_BYTES), str(path))
    if not rows:
        raise SpecError(str(path), "has no rows")
    return rows


def case_of(row: Mapping[str, str], where: str = "row") -> Case:
    """The measured case of a row; raises SpecError for an invalid shape or latency."""
    op = row["op"]
    if op not in OPS:
        raise SpecError(where, f"unknown op {quote(op)}")
    try:
        columns = {name: row[name] if name in TEXT else int(row[name]) for name in shape_names(op)}
        float(row["latency_us"])
    except ValueError:
        raise SpecError(where, f"a row of {op} has a shape or a latency that is no number") from None
    for name, value in columns.items():
        if isinstance(value, int) and abs(value) > MAX_EXTENT:
            raise SpecError(where, f"{quote(name)} is above {MAX_EXTENT:.0e}")
    return Case(op, columns)


def identity(row: Mapping[str, str]) -> tuple[str, ...]:
    """The key of a row's measurement: the case, the backend, and the cache state."""
    return (row["op"], *(row[name] for name in shape_names(row["op"])), row["kernel"], row["cache"])


def planned(case: Case, way: str, cold: bool) -> tuple[str, ...]:
    """The identity of a planned measurement."""
    return (case.op, *(str(case.columns[name]) for name in shape_names(case.op)), way, "cold" if cold else "warm")
