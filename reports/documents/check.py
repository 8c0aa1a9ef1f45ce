"""Published figures beside predictions as tables: terminal, CSV, and Markdown for a pull request."""

from __future__ import annotations

import csv
import html
import io
import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

from rich.text import Text

from roofline.reports.output.export import escape, inert, markdown_table
from roofline.reports.output.terminal import table

FIELDS = (
    *("id", "group", "metric", "conditions", "unit", "published", "bound", "low", "mid", "high", "error"),
    *("bound_error", "inside", "source", "note", "faster_than_bound"),
)
HEADER = ("anchor", "metric", "published", "bound", "low", "mid", "high", "error", "at bound", "inside")
SUMMARY_HEADER = ("source", "metric", "anchors", "median", "median abs", "mean abs", "at bound", "inside")
MOVED_HEADER = ("anchor", "figure", "published", "old", "new", "change", "error before", "error after")
KERNEL_HEADER = ("op", "format", "kernel", "caches", "rows", "median abs", "mean abs", "bias", "at bound", "inside")
KERNEL_READING = (
    "Errors are predicted over measured time, minus one. Bias: their mean, below zero is too fast. Inside: the share of"
    " rows in the 80% interval."
)
READING = (
    "Errors are predicted over published, minus one; of time, also where a rate is published, so that below zero is too"
    " fast. At bound: the error of the pure roofline. Inside: whether the published figure lies between low and high."
    " Stored bytes and tokens are exact and have neither."
)

LIMIT = 64_000
"""Characters of a comment; GitHub refuses more than 65,536."""

SHOWN, FOLDED = 20, 100
"""Moved predictions that a comment shows, and those that it folds away beside them."""


def as_csv(document: Mapping[str, Any]) -> str:
    """One row an anchor, figures in its unit, errors as fractions; measured kernels are in the other forms."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    writer.writerows([inert(row[name]) for name in FIELDS] for row in document["anchors"])
    return out.getvalue()


def as_markdown(document: Mapping[str, Any]) -> str:
    """A comment for a pull request: what moved and whether it came closer, the errors, and the rest folded away.

    Sections that would make it longer than a code host takes are left out, and named.
    """
    lines = ["## Predictions beside what was published and measured", "", f"**{escape(document['verdict'])}**", ""]
    if document["moved"]:
        lines += _moved_part(document)
    totals = [row for row in document["summary"] if row["group"] == "all sources"]
    lines += [*markdown_table(SUMMARY_HEADER[1:], (row[1:] for row in _summary_cells(totals))), "", READING, ""]
    lines += [escape(kernels_line(file)) + "\n" for file in document["kernels"]]
    return _fitted(_quiet("\n".join(lines)), [(title, _quiet(part)) for title, part in _sections(document)])


def summary_markdown(document: Mapping[str, Any]) -> str:
    """The errors by source and metric as a table, how to read it, and a line for each file of measured kernels."""
    lines = [*markdown_table(SUMMARY_HEADER, _summary_cells(document["summary"])), "", READING, ""]
    return _quiet("\n".join([*lines, *(escape(kernels_line(file)) + "\n" for file in document["kernels"])]))


def _moved_part(document: Mapping[str, Any]) -> list[str]:
    """What moved, the largest changes of the error first; a long list is folded after the first of them."""
    moved = sorted(document["moved"], key=_weight, reverse=True)
    rows = _moved_cells(moved)
    closer = [row for row in moved if _both(row) and abs(row["error_after"]) < abs(row["error_before"])]
    farther = [row for row in moved if _both(row) and abs(row["error_after"]) > abs(row["error_before"])]
    lines = [*markdown_table(MOVED_HEADER, rows[:SHOWN]), ""]
    if len(rows) > SHOWN:
        folded = markdown_table(MOVED_HEADER, rows[SHOWN : SHOWN + FOLDED])
        left = len(rows) - SHOWN - FOLDED
        more = ["", f"{left} more are in the JSON."] if left > 0 else []
        lines += [_details(f"{len(rows) - SHOWN} more", "\n".join([*folded, *more])), ""]
    return [
        *lines,
        f"{len(closer)} came closer to what was published or measured, {len(farther)} went farther away.",
        "",
    ]


def _both(row: Mapping[str, Any]) -> bool:
    return row["error_before"] is not None and row["error_after"] is not None


def _weight(row: Mapping[str, Any]) -> float:
    """How much the error of a moved prediction changed; what came or went stands first."""
    return abs(row["error_after"] - row["error_before"]) if _both(row) else math.inf


def _sections(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Title and content of what is folded: the summary by source, each source's anchors, measured kernels, metrics.

    Errors of kernels that constants were fitted to are no test, and a line in the head is enough of them.
    """
    by_source = [row for row in document["summary"] if row["group"] != "all sources"]
    found = [("Errors by source", "\n".join(markdown_table(SUMMARY_HEADER, _summary_cells(by_source))))]
    for group, rows in _groups(document):
        content = [*markdown_table(_PAGE_HEADER, map(_page_row, rows)), "", *_remarks(rows)]
        found.append((f"{group}: {_signed_line(rows)}", "\n".join(content)))
    for file in (file for file in document["kernels"] if not file["fitted"]):
        content = [KERNEL_READING, "", *markdown_table(KERNEL_HEADER, map(_kernel_row, file["groups"])), ""]
        title = f"Measured: {file['title']}: {file['rows']} kernels"
        found.append((title, "\n".join([*content, *_provenance(file)])))
    meanings = document["metrics"].items()
    found.append(("Metrics", "\n".join(f"- {escape(name)}: {escape(meaning)}" for name, meaning in meanings)))
    return found


def _signed_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """The anchors of a source in a line: how many, how far off in the middle and at most, how many inside."""
    errors = [row["error"] for row in rows]
    inside = [row["inside"] for row in rows if row["inside"] is not None]
    share = f", {sum(inside)} of {len(inside)} inside" if inside else ""
    anchors = "1 anchor" if len(rows) == 1 else f"{len(rows)} anchors"
    return (
        f"{anchors}, errors {_signed(min(errors))} to {_signed(max(errors))}, median {_signed(median(errors))}{share}"
    )


def _fitted(head: str, sections: Sequence[tuple[str, str]]) -> str:
    """The head, the sections that find room, shorter ones first, the names of others, and how to draw a figure."""
    foot = (
        "Figure of the same: `roofline validate check --format json --output check.json`, then"
        " `roofline plot measured check.json`.\n"
    )
    room = LIMIT - len(head) - len(foot) - 200
    parts = [_details(title, content) + "\n\n" for title, content in sections]
    named = [f"- {_quiet(escape(title[:100]))}\n" for title, _ in sections]
    left_out: list[int] = []
    for index in sorted(range(len(parts)), key=lambda index: -len(parts[index])):
        if sum(map(len, parts)) + sum(len(named[other]) for other in left_out) > room:
            left_out.append(index)
            parts[index] = ""
    names = "".join(named[index] for index in sorted(left_out))
    listed = f"Too long for a comment, and left out:\n\n{names}\n" if names else ""
    return f"{head}\n{''.join(parts)}{listed}{foot}"[:LIMIT]


def _details(title: str, content: str) -> str:
    """Something folded: code hosts take its summary for HTML, and what follows a blank line for Markdown."""
    flat = html.escape(" ".join("".join(char if char.isprintable() else " " for char in title).split()))
    return f"<details><summary>{_quiet(flat)}</summary>\n\n{content}\n\n</details>"


def _quiet(text: str) -> str:
    """Rendered text in which nobody is mentioned, nothing is struck through and nothing is taken for mathematics."""
    return re.sub(r"(?<!\w)@(?=\w)", "@\N{ZERO WIDTH SPACE}", text.replace("~", "&#126;").replace("$", "&#36;"))


def parts(document: Mapping[str, Any]) -> list[Any]:
    """What `roofline validate check` shows: a table a source, the summary, and what moved."""
    shown: list[Any] = [table(HEADER, map(_row, rows), title=group, left=2) for group, rows in _groups(document)]
    shown += [table(SUMMARY_HEADER, _summary_cells(document["summary"]), title="Summary", left=2), Text(READING, "dim")]
    for file in document["kernels"]:
        rows = map(_kernel_row, file["groups"])
        shown += [table(KERNEL_HEADER, rows, title=f"Measured: {file['title']}", left=4)]
        shown += [Text(kernels_line(file)), Text(KERNEL_READING, "dim")]
    if document["moved"]:
        shown.append(table(MOVED_HEADER, _moved_cells(document["moved"]), title="Moved", left=2))
    return [*shown, Text(document["verdict"], "bold")]


def kernels_line(file: Mapping[str, Any]) -> str:
    """What a file of measured kernels says of predictions, and whether that is a test of them."""
    fair = "fitted to these rows, so that errors are no test" if file["fitted"] else "not fitted to these rows"
    return (
        f"{file['rows']} kernels on {file['hardware']}: median absolute error"
        f" {file['median_absolute_error']:.1%}, {file['inside']:.0%} inside the interval; constants {fair}:"
        f" {file['constants']}."
    )


def _kernel_row(row: Mapping[str, Any]) -> list[str]:
    return [
        *(row[name] for name in ("op", "format", "kernel", "cache")),
        f"{row['rows']}",
        *(_share(row[name]) for name in ("median_absolute_error", "mean_absolute_error")),
        _signed(row["bias"]),
        *(_share(row[name]) for name in ("bound_mean_absolute_error", "inside")),
    ]


def _provenance(file: Mapping[str, Any]) -> list[str]:
    names = ("machine", "software", "command", "date", "revision", "load")
    return [f"- {name.capitalize()}: {escape(str(file[name]))}" for name in names]


def _groups(document: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    return [(group, list(rows)) for group, rows in groupby(document["anchors"], key=lambda row: str(row["group"]))]


def _row(row: Mapping[str, Any]) -> list[str]:
    """An anchor in the terminal."""
    interval = row["inside"] is not None
    return [
        row["id"],
        row["metric"],
        f"{figure(row['published'])} {row['unit']}",
        figure(row["bound"]) if row["bound_error"] is not None else "",
        figure(row["low"]) if interval else "",
        figure(row["mid"]),
        figure(row["high"]) if interval else "",
        _signed(row["error"]),
        _signed(row["bound_error"]),
        _yes(row["inside"]),
    ]


_PAGE_HEADER = ("conditions", "metric", "published", "bound", "predicted", "error", "at bound", "inside")


def _page_row(row: Mapping[str, Any]) -> list[str]:
    """An anchor on the page."""
    predicted = figure(row["mid"])
    if row["inside"] is not None:
        predicted += f" ({figure(row['low'])} to {figure(row['high'])})"
    return [
        row["conditions"],
        row["metric"],
        f"{figure(row['published'])} {row['unit']}",
        figure(row["bound"]) if row["bound_error"] is not None else "",
        predicted,
        _signed(row["error"]),
        _signed(row["bound_error"]),
        _yes(row["inside"]),
    ]


def _remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sources and notes of a section, each once, then what explains figures that beat the bound."""
    sources = dict.fromkeys(str(row["source"]) for row in rows)
    notes = dict.fromkeys(str(row["note"]) for row in rows if row["note"])
    faster = [
        f"- Faster than the bound, {row['id']}: {row['faster_than_bound']}" for row in rows if row["faster_than_bound"]
    ]
    lines = [f"- Source: {source}" for source in sources] + [f"- Note: {note}" for note in notes] + faster
    return [f"- {escape(line[2:])}" for line in lines]


def _summary_cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            row["group"],
            row["metric"],
            f"{row['anchors']}",
            _signed(row["median_error"]),
            *(_share(row[name]) for name in ("median_absolute_error", "mean_absolute_error")),
            *(_share(row[name]) for name in ("bound_mean_absolute_error", "inside")),
        ]
        for row in rows
    ]


def _moved_cells(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    return [
        [
            row["id"],
            row["figure"] if row["status"] == "moved" else row["status"],
            f"{figure(row['published'])} {row['unit'] or ''}".strip(),
            *(figure(row[name]) for name in ("old", "new")),
            *(_signed(row[name], 2) for name in ("change", "error_before", "error_after")),
        ]
        for row in rows
    ]


def figure(value: float | None) -> str:
    """Four significant digits and no exponent; empty where there is none."""
    if value is None:
        return ""
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.4g}"


def _signed(value: float | None, digits: int = 1) -> str:
    return "" if value is None else f"{value:+.{digits}%}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _yes(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"
