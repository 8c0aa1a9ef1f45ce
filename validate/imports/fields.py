"""The content of a result file, and checked access to the fields of a document in it."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from roofline.core.documents import finite_number, scalar_text
from roofline.core.errors import SpecError, quote
from roofline.core.inputs import read_text
from roofline.validate.tables.text import MAX_BYTES

MAX_DOCUMENTS = 10_000
"""The most results of one file."""


class Content(NamedTuple):
    """A result file: its text, and its documents if it is JSON (an object or a list of them), JSONL or CSV."""

    where: str
    text: str
    documents: list[Mapping[str, Any]]


def read_content(path: Path) -> Content:
    """The content of a file; raises SpecError for one that `read_text` refuses, and for too many results."""
    where, text = str(path), read_text(path, MAX_BYTES)
    documents = _documents(text, where)
    if len(documents) > MAX_DOCUMENTS:
        raise SpecError(where, f"has more than {MAX_DOCUMENTS} results")
    return Content(where, text, documents)


def _documents(text: str, where: str) -> list[Mapping[str, Any]]:
    """The objects of a JSON or JSONL text, else the rows of a CSV text; none for other text."""
    if text.lstrip()[:1] not in ("{", "["):
        try:
            rows = list(csv.DictReader(text.splitlines()))
        except csv.Error:
            return []
        return [row for row in rows if None not in row and None not in row.values()]
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return [_line(line, number, where) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    return [entry for entry in (found if isinstance(found, list) else [found]) if isinstance(entry, dict)]


def _line(line: str, number: int, where: str) -> Mapping[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise SpecError(where, f"is neither JSON nor JSONL (line {number})") from None
    if not isinstance(found, dict):
        raise SpecError(where, f"has no object in line {number}")
    return found


class Fields:
    """Typed access to a document by dotted paths (`metrics.ttft.mean`); the first path that has a value is read."""

    def __init__(self, document: Mapping[str, Any], where: str) -> None:
        self.document, self.where = document, where

    def value(self, *paths: str) -> tuple[str, Any]:
        """The first path with a value that is not null, and the value; the last path and None without one."""
        for path in paths:
            found: Any = self.document
            for key in path.split("."):
                found = found.get(key) if isinstance(found, Mapping) else None
            if found is not None:
                return path, found
        return (paths or ("",))[-1], None

    def has(self, *paths: str) -> bool:
        """Whether every path has a value."""
        return all(self.value(path)[1] is not None for path in paths)

    def text(self, *paths: str) -> str:
        """A text, or the first of a list of them; empty without a value."""
        path, found = self.value(*paths)
        if isinstance(found, list) and found:
            found = found[0]
        text = "" if found is None else scalar_text(found)
        if text is None or len(text) > 500:
            raise SpecError(self.where, f"{quote(path)} must be a short text")
        return " ".join(text.split())

    def number(self, *paths: str) -> float | None:
        """A number above zero, also written as text; None without a value, and for 0, which tools write for unknown."""
        path, found = self.value(*paths)
        if found is None or found == "":
            return None
        try:
            number = finite_number(float(found) if isinstance(found, str) else found)
        except ValueError:
            number = None
        if number is None or number < 0 or number > 1e15:
            raise SpecError(self.where, f"{quote(path)} must be a number of at least 0, got {quote(found)}")
        return number or None

    def count(self, *paths: str) -> int | None:
        """A whole number above zero, or None."""
        number = self.number(*paths)
        if number is not None and number != int(number):
            raise SpecError(self.where, f"{quote(self.value(*paths)[0])} must be a whole number, got {number:g}")
        return None if number is None else int(number)

    def rate(self, *paths: str) -> float | None:
        """A rate; None without a value, and where it is infinite."""
        return None if self.value(*paths)[1] in ("inf", math.inf) else self.number(*paths)

    def within(self, entry: Mapping[str, Any]) -> Fields:
        """The fields of a part of the document."""
        return Fields(entry, self.where)
