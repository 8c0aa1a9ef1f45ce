"""Published figures beside predictions as tables: terminal, CSV and a Markdown page."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.text import Text

from reports.export import escape, inert, markdown_table
from reports.terminal import table

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


def as_csv(document: Mapping[str, Any]) -> str:
    """One row an anchor, figures in its unit, errors as fractions; measured kernels are in the other forms."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(FIELDS)
    writer.writerows([inert(row[name]) for name in FIELDS] for row in document["anchors"])
    return out.getvalue()


def as_markdown(document: Mapping[str, Any]) -> str:
    """A page: what moved, the summary, and a section a source with each anchor, its conditions and its source."""
    lines = ["# Published figures beside predictions", "", READING, "", f"Check: {escape(document['verdict'])}.", ""]
    if document["moved"]:
        lines += ["## Moved", "", *markdown_table(MOVED_HEADER, _moved_rows(document)), ""]
    lines += ["## Summary", "", *markdown_table(SUMMARY_HEADER, _summary_rows(document)), ""]
    for file in document["kernels"]:
        lines += [f"## Measured: {escape(file['title'])}", "", escape(kernels_line(file)), "", KERNEL_READING, ""]
        lines += [*markdown_table(KERNEL_HEADER, map(_kernel_row, file["groups"])), "", *_provenance(file), ""]
    meanings = document["metrics"].items()
    lines += ["## Metrics", "", *(f"- {escape(name)}: {escape(meaning)}" for name, meaning in meanings), ""]
    for group, rows in _groups(document):
        lines += [f"## {escape(group)}", "", *markdown_table(_PAGE_HEADER, map(_page_row, rows)), ""]
        lines += [*_remarks(rows), ""]
    return "\n".join(lines)


def parts(document: Mapping[str, Any]) -> list[Any]:
    """What `roofline validate check` shows: a table a source, the summary, and what moved."""
    shown: list[Any] = [table(HEADER, map(_row, rows), title=group, left=2) for group, rows in _groups(document)]
    shown += [table(SUMMARY_HEADER, _summary_rows(document), title="Summary", left=2), Text(READING, "dim")]
    for file in document["kernels"]:
        rows = map(_kernel_row, file["groups"])
        shown += [table(KERNEL_HEADER, rows, title=f"Measured: {file['title']}", left=4)]
        shown += [Text(kernels_line(file)), Text(KERNEL_READING, "dim")]
    if document["moved"]:
        shown.append(table(MOVED_HEADER, _moved_rows(document), title="Moved", left=2))
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


def _summary_rows(document: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            row["group"],
            row["metric"],
            f"{row['anchors']}",
            _signed(row["median_error"]),
            *(_share(row[name]) for name in ("median_absolute_error", "mean_absolute_error")),
            *(_share(row[name]) for name in ("bound_mean_absolute_error", "inside")),
        ]
        for row in document["summary"]
    ]


def _moved_rows(document: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            row["id"],
            row["figure"] if row["status"] == "moved" else row["status"],
            f"{figure(row['published'])} {row['unit'] or ''}".strip(),
            *(figure(row[name]) for name in ("old", "new")),
            *(_signed(row[name], 2) for name in ("change", "error_before", "error_after")),
        ]
        for row in document["moved"]
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
