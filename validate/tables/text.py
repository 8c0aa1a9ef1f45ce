"""CSV tables of published values, read and checked as a whole.

Data rows are numbered from 1 in messages, header not counted. Errors raise SpecError.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from msgspec import Struct

from roofline.core.errors import SpecError, quote
from roofline.core.inputs import read_bytes

MAX_BYTES, MAX_ROWS = 64 << 20, 200_000
"""The largest file, decompressed, and the most rows of it, so that a wrong file does not fill the memory."""


class Line(Struct, frozen=True):
    """One row of a table as text: its number, the file it is in, and its cells by column."""

    number: int
    file: str
    cells: Mapping[str, str]


def read_lines(path: Path, columns: Sequence[str]) -> list[Line]:
    """All rows of a CSV file with at least these columns, in any order."""
    where = str(path)
    rows = list(islice(_rows(_text(path), where), MAX_ROWS + 2))
    if not rows:
        raise SpecError(where, "is empty")
    header, *body = rows
    names = [name.strip() for name in header]
    lacking([name for name in columns if name not in names], where)
    twice = [name for name in columns if names.count(name) > 1]
    if twice:
        raise SpecError(where, f"has the column {quote(twice[0])} twice")
    if not body:
        raise SpecError(where, "has no rows")
    if len(body) > MAX_ROWS:
        raise SpecError(where, f"has more than {MAX_ROWS} rows")
    lines = [Line(number, path.name, dict(zip(names, row, strict=False))) for number, row in enumerate(body, 1)]
    ragged = [number for number, row in enumerate(body, 1) if len(row) != len(names)]
    refuse(ragged, f"does not have the {len(names)} cells of the header", where)
    return lines


def _text(path: Path) -> str:
    where = str(path)
    try:
        text = _bytes(path).decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise SpecError(quote(where, 200), f"cannot be decompressed ({error})") from None
    except UnicodeDecodeError:
        raise SpecError(where, "is no CSV file (not UTF-8 text)") from None
    if "\0" in text:
        raise SpecError(where, "is no CSV file (it holds null bytes)")
    return text


def _bytes(path: Path) -> bytes:
    """The content of a file, decompressed if its name ends in .gz, up to `MAX_BYTES`."""
    content = read_bytes(path, MAX_BYTES)
    if path.suffix == ".gz":
        with gzip.open(io.BytesIO(content)) as file:
            content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise SpecError(str(path), f"is larger than {MAX_BYTES >> 20} MiB")
    return content


def _rows(text: str, where: str) -> Iterator[list[str]]:
    try:
        yield from (row for row in csv.reader(text.splitlines(keepends=True), strict=True) if any(row))
    except csv.Error as error:
        raise SpecError(where, f"is no readable CSV file ({error})") from None


def csv_text(rows: Iterable[Mapping[str, object]], columns: Sequence[str]) -> str:
    """Rows as CSV with these columns; cells that a row lacks are empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def lacking(columns: Sequence[str], where: str, purpose: str = "") -> None:
    """Raise SpecError with these missing columns, if there are any."""
    if columns:
        noun = "column" if len(columns) == 1 else "columns"
        raise SpecError(where, f"lacks the {noun} {', '.join(map(quote, columns))}{purpose}")


def refuse(numbers: Sequence[int], problem: str, where: str) -> None:
    """Raise SpecError with the first few of these row numbers, if there are any."""
    if not numbers:
        return
    listed = ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
    raise SpecError(where, f"{problem} ({'row' if len(numbers) == 1 else 'rows'} {listed})")


def numbers_above_zero(lines: Sequence[Line], column: str, where: str) -> list[float]:
    """The cells of a column as numbers; raises where one is no finite number above zero."""
    values = [parse_number(line.cells[column]) for line in lines]
    pairs = list(zip(lines, values, strict=True))
    refuse([line.number for line, value in pairs if value is None], f"{quote(column)} is no finite number", where)
    refuse([line.number for line, value in pairs if (value or 0) <= 0], f"{quote(column)} is not above zero", where)
    return [value for value in values if value is not None]


def check_known(lines: Sequence[Line], column: str, known: Mapping[str, object] | set[str], where: str) -> None:
    """Raise where a cell of a column is not one of the `known` values."""
    wrong = [line for line in lines if line.cells[column].strip() not in known]
    if wrong:
        first = wrong[0].cells[column].strip()
        listed = ", ".join(sorted(known))
        refuse([line.number for line in wrong], f"unknown {column} {quote(first)}; known: {listed}", where)


def check_filled(lines: Sequence[Line], columns: Sequence[str], where: str) -> None:
    """Raise where a cell of these columns is empty."""
    for column in columns:
        empty = [line.number for line in lines if not line.cells[column].strip()]
        refuse(empty, f"the column {quote(column)} is empty", where)


PLAUSIBLE = (1e-15, 1e30)
"""Smallest and largest figure in any unit, so that ratios of two are doubles."""


def is_plausible(figure: float) -> bool:
    """Whether a published or predicted figure lies in `PLAUSIBLE`."""
    return PLAUSIBLE[0] <= figure <= PLAUSIBLE[1]


def parse_number(text: str) -> float | None:
    """A number, 0 or of a plausible size, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if value == 0 or is_plausible(abs(value)) else None


def parse_count(text: str) -> int | None:
    """A whole number of at least 0, written with or without a fraction of zero, or None."""
    value = parse_number(text)
    return int(value) if value is not None and value >= 0 and value == int(value) else None
