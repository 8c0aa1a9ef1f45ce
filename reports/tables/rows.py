"""Encoding of rows of a sweep as CSV, JSON lines and Parquet, batch by batch."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import repeat
from typing import Any, BinaryIO

import numpy as np

from roofline.core.errors import RooflineError, install, visible
from roofline.core.expressions import Type
from roofline.reports.output.export import csv_safe
from roofline.scenario.options import OPTIONS
from roofline.whatif.selection import Rows
from roofline.whatif.study import ERROR

Columns = Mapping[str, Type]


class CsvEncoding:
    """Comma-separated values: numbers in full precision and base units; empty if there is no figure."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.head = (",".join(map(_csv_cell, columns)) + "\n").encode()

    def encode(self, rows: Rows) -> bytes:
        cells = [_cells(rows, name, kind, _csv_cell, "") for name, kind in self._columns.items()]
        return ("\n".join(map(",".join, zip(*cells, strict=False))) + "\n").encode() if rows.count else b""


class JsonLinesEncoding:
    """One JSON object per line; null if there is no figure."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self.head = b""
        self._template = "{" + ", ".join(f"{_json_cell(name)}: %s" for name in columns) + "}"

    def encode(self, rows: Rows) -> bytes:
        cells = [_cells(rows, name, kind, _json_cell, "null") for name, kind in self._columns.items()]
        lines = map(self._template.__mod__, zip(*cells, strict=False))
        return ("\n".join(lines) + "\n").encode() if rows.count else b""

    def decode(self, data: bytes) -> Rows:
        """The rows that `encode` wrote."""
        records = [json.loads(line) for line in data.splitlines()]
        columns: dict[str, Any] = {}
        for name, kind in self._columns.items():
            values = [record[name] for record in records]
            if kind is Type.NUMBER:
                columns[name] = np.array(values, dtype=np.int64 if _counts(name) else np.float64)
            else:
                columns[name] = np.array([value or "" for value in values] if kind is Type.TEXT else values)
        return Rows(columns, len(records))


def broken_rows(rows: Rows, name: str) -> Any:
    """Mask of rows without a truth value in a column of figures because they cannot run; None if all have one."""
    if ERROR not in rows.columns or name in OPTIONS:
        return None
    return rows.array(ERROR) != ""


def _csv_cell(text: str) -> str:
    """Text as a CSV cell, quoted if needed and safe in a spreadsheet."""
    out = io.StringIO()
    csv.writer(out, lineterminator="").writerow([csv_safe(text)])
    return out.getvalue() if text else ""


def _json_cell(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable()) if text else "null"


def _cells(rows: Rows, name: str, kind: Type, quoted: Callable[[str], str], missing: str) -> Any:
    """The cells of a column as text, lazily repeated if all rows share one value."""
    column = rows.columns[name]
    shared = not isinstance(column, np.ndarray)
    values = [column] if shared else column.tolist()
    if kind is Type.TEXT:
        known = {text: quoted(str(text)) for text in set(values)}
        cells = [known[text] for text in values]
    elif kind is Type.TRUTH:
        broken = broken_rows(rows, name)
        words = np.where(rows.array(name), "true", "false").astype(object)
        return np.where(broken, missing, words).tolist() if broken is not None else words.tolist()
    else:
        cells = list(map(repr, values))
        if "nan" in cells or "inf" in cells:
            cells = [missing if cell in ("nan", "inf") else cell for cell in cells]
    return repeat(cells[0], rows.count) if shared else cells


def arrow() -> Any:
    """The pyarrow package; raises RooflineError if it is not installed."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ModuleNotFoundError:
        raise RooflineError(f"Parquet needs pyarrow: {install('fit')}; CSV and jsonl do not") from None


def _counts(name: str) -> bool:
    return name in OPTIONS and OPTIONS[name].kind.counts


ROW_GROUP = 1 << 18
"""Rows per group of a Parquet file, which are buffered until written."""


@contextmanager
def parquet_writer(file: BinaryIO, columns: Columns) -> Iterator[Callable[[Rows], None]]:
    """A function that writes rows to a Parquet file by row groups; null if there is no figure.

    After the last rows the file has its footer; after an error it is only closed, and is to be discarded.
    """
    pyarrow = arrow()
    kinds = {Type.NUMBER: pyarrow.float64(), Type.TRUTH: pyarrow.bool_()}
    text = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    schema = pyarrow.schema(
        (name, pyarrow.int64() if _counts(name) else kinds.get(kind, text)) for name, kind in columns.items()
    )
    writer = pyarrow.parquet.ParquetWriter(file, schema, compression="zstd")
    waiting: list[Any] = []

    def flush() -> None:
        if waiting:
            writer.write_table(pyarrow.Table.from_batches(waiting).unify_dictionaries())
        waiting.clear()

    def write(rows: Rows) -> None:
        arrays = [_array(pyarrow, rows, name, kind) for name, kind in columns.items()]
        waiting.append(pyarrow.RecordBatch.from_arrays(arrays, schema=schema))
        if sum(batch.num_rows for batch in waiting) >= ROW_GROUP:
            flush()

    try:
        yield write
        flush()
    except BaseException:
        with suppress(Exception):  # pyarrow would close it later, when the file is closed
            writer.close()
        raise
    writer.close()


def _array(pyarrow: Any, rows: Rows, name: str, kind: Type) -> Any:
    """A column of rows as an array of pyarrow."""
    column = rows.columns[name]
    if kind is Type.TRUTH:
        return pyarrow.array(rows.array(name).astype(bool), mask=broken_rows(rows, name))
    if kind is Type.NUMBER:
        values = rows.array(name)
        numbers = values.astype(np.int64 if _counts(name) else np.float64, copy=False)
        return pyarrow.array(numbers, mask=~np.isfinite(values))
    texts, which = [column], np.zeros(rows.count, dtype=np.int32)
    if isinstance(column, np.ndarray):
        found, inverse = np.unique(column.astype(str), return_inverse=True)
        texts, which = found.tolist(), inverse.astype(np.int32)
    indices = pyarrow.array(which, mask=np.array([not text for text in texts], dtype=bool)[which])
    return pyarrow.DictionaryArray.from_arrays(indices, pyarrow.array(list(map(visible, texts)), pyarrow.string()))


def sliced(rows: Rows, size: int = 1 << 15) -> Iterator[Rows]:
    """The rows in slices of `size`."""
    for start in range(0, rows.count, size):
        yield rows.take(np.arange(start, min(start + size, rows.count)))
