"""Tables of documents by columns: each has a title, the key of its figure in a row, and how that reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from roofline.core.units import si
from roofline.reports.output.export import csv_text

Row = Mapping[str, Any]

Form = str | Callable[[Any], str]
"""How a figure reads: a format specification such as '.1%', or a function."""

BYTES = partial(si, unit="B")


class Column(Struct, frozen=True):
    """A column of a table; a `key` joins nested ones by points, and `none` stands for a figure that is None."""

    title: str
    key: str
    form: Form = ""
    none: str | Callable[[Row], str] = "-"

    def cell(self, row: Row) -> str:
        """The figure of a row as text."""
        none = self.none if isinstance(self.none, str) else self.none(row)
        return cell(at(row, self.key), self.form, none)


def cell(value: Any, form: Form = "", none: str = "-") -> str:
    """A figure as text, or `none` if it is None."""
    if value is None:
        return none
    return form(value) if callable(form) else format(value, form)


def at(row: Row, key: str) -> Any:
    """The figure of a row under a key, which joins nested ones by points."""
    found: Any = row
    for part in key.split("."):
        found = found[part]
    return found


def table_of(columns: Sequence[Column], rows: Iterable[Row]) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of a table as texts."""
    return [column.title for column in columns], [[column.cell(row) for column in columns] for row in rows]


def csv_of(columns: Mapping[str, str] | Sequence[str], rows: Iterable[Row]) -> str:
    """CSV with the figures of rows: their keys by column, nested ones joined by points; of a list each is both."""
    keys = columns if isinstance(columns, Mapping) else dict(zip(columns, columns, strict=True))
    return csv_text(list(keys), ([at(row, key) for key in keys.values()] for row in rows))
