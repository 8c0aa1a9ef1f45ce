"""Documents as JSON, and tables as CSV and Markdown."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from roofline.core.errors import RooflineError, quote, visible


def as_json(document: Mapping[str, Any]) -> str:
    """The document as indented JSON; raises RooflineError that names a figure which is NaN or infinite."""
    try:
        text = json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False)
        plain = text.replace("\n", "").isprintable()
        return (text if plain else json.dumps(document, indent=2, allow_nan=False)) + "\n"
    except ValueError:
        place = next(_not_finite(document, ""), "a figure")
        raise RooflineError(
            f"{place} is no finite number: the scenario, a spec or a calibration has values beyond any real one"
        ) from None


def _not_finite(value: object, place: str) -> Iterator[str]:
    """The keys of all figures of a document that are no finite numbers, joined by points."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _not_finite(entry, f"{place}.{key}".strip("."))
    elif isinstance(value, (list, tuple)):
        for index, entry in enumerate(value):
            yield from _not_finite(entry, f"{place}.{index}".strip("."))
    elif isinstance(value, float) and not math.isfinite(value):
        yield quote(place)


def csv_text(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A CSV file whose cells are safe in a spreadsheet; None is an empty one."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([csv_safe(cell) for cell in row] for row in rows)
    return out.getvalue()


def csv_safe(cell: object) -> object:
    """`cell`, quoted if a spreadsheet would execute it as a formula, and with visible control characters."""
    if not isinstance(cell, str):
        return cell
    return f"'{visible(cell)}" if cell[:1] in ("=", "+", "-", "@", "\t", "\r") else visible(cell)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a Markdown table whose first `left` columns are left-aligned; cells are escaped."""
    return [
        f"| {' | '.join(header)} |",
        f"|{'|'.join('---' if index < left else '---:' for index in range(len(header)))}|",
        *(f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows),
    ]


def escape(text: str) -> str:
    """`text` on one line, escaped for Markdown and HTML."""
    flat = "".join(char if char.isprintable() else " " for char in str(text))
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for char in "\\`*_[]|#":
        flat = flat.replace(char, f"\\{char}")
    return flat


def printable(text: str) -> str:
    """`text` with unprintable characters, line breaks and bidirectional controls replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
