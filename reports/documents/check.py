"""The output of `roofline validate check`: terminal tables, CSV, and a Markdown comment for a pull request."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import median
from typing import Any

from rich.text import Text

from roofline.reports.output.cells import Column, Form, csv_of, table_of
from roofline.reports.output.export import escape, markdown_table
from roofline.reports.output.terminal import table

FIELDS = (
    *("id", "group", "metric", "conditions", "unit", "published", "bound", "low", "mid", "high", "error"),
    *("bound_error", "inside", "source", "note", "faster_than_bound"),
)
KERNEL_READING = (
    "Errors are predicted over measured time, minus one. Bias: the mean error; negative means too fast. Inside: the"
    " share of rows in the 80% interval."
)
READING = (
    "Errors are predicted over published time, minus one; rates are inverted, so that negative always means too fast."
    " At bound: the error of the pure roofline. Inside: whether the published figure lies in the 80% interval, between"
    " low and high. Stored bytes and tokens are exact and have neither."
)

LIMIT = 64_000
"""Maximum characters of a comment; GitHub refuses more than 65,536."""

SHOWN, FOLDED = 20, 100
"""Moved predictions that a comment shows, and how many more it folds."""


def as_csv(document: Mapping[str, Any]) -> str:
    """One row per anchor, figures in its unit, errors as fractions; measured kernels are not included."""
    return csv_of(FIELDS, document["anchors"])


def as_markdown(document: Mapping[str, Any]) -> str:
    """A comment for a pull request: moved predictions, errors by metric, and details in folded sections.

    Sections that exceed `LIMIT` are dropped and listed by title.
    """
    lines = ["## Predictions against published and measured figures", "", f"**{escape(document['verdict'])}**", ""]
    if document["moved"]:
        lines += _moved_part(document)
    totals = [row for row in document["summary"] if row["group"] == "all sources"]
    lines += [*markdown_table(*table_of(SUMMARY[1:], totals)), "", READING, ""]
    lines += [escape(kernels_line(file)) + "\n" for file in document["kernels"]]
    return _fitted(quiet("\n".join(lines)), [(title, quiet(part)) for title, part in _sections(document)])


def _moved_part(document: Mapping[str, Any]) -> list[str]:
    """The moved predictions, largest change of error first; a long list is folded after `SHOWN` rows."""

    def both(row: Mapping[str, Any]) -> bool:
        return row["error_before"] is not None and row["error_after"] is not None

    def weight(row: Mapping[str, Any]) -> float:  # those that were added or removed come first
        return abs(row["error_after"] - row["error_before"]) if both(row) else math.inf

    moved = sorted(document["moved"], key=weight, reverse=True)
    header, rows = table_of(MOVED, map(_moved, moved))
    nearer = [abs(row["error_before"]) - abs(row["error_after"]) for row in moved if both(row)]
    closer, farther = sum(change > 0 for change in nearer), sum(change < 0 for change in nearer)
    lines = [*markdown_table(header, rows[:SHOWN]), ""]
    if len(rows) > SHOWN:
        folded = markdown_table(header, rows[SHOWN : SHOWN + FOLDED])
        left = len(rows) - SHOWN - FOLDED
        more = ["", f"The JSON document has {left} more."] if left > 0 else []
        lines += [_details(f"{len(rows) - SHOWN} more", "\n".join([*folded, *more])), ""]
    return [*lines, f"{closer} moved closer to the published or measured figure, {farther} moved away.", ""]


def _sections(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Title and content of the folded sections: errors by source, anchors of each source, measured kernels, metrics.

    Kernels that constants were fitted to are no test; the head has one line on them.
    """
    by_source = [row for row in document["summary"] if row["group"] != "all sources"]
    found = [("Errors by source", "\n".join(markdown_table(*table_of(SUMMARY, by_source))))]
    for group, rows in _groups(document):
        content = [*markdown_table(*table_of(FOLDED_ANCHORS, map(_anchor, rows))), "", *_remarks(rows)]
        found.append((f"{group}: {_signed_line(rows)}", "\n".join(content)))
    for file in (file for file in document["kernels"] if not file["fitted"]):
        content = [KERNEL_READING, "", *markdown_table(*table_of(KERNELS, file["groups"])), ""]
        content += [f"- {name.capitalize()}: {escape(str(file[name]))}" for name in PROVENANCE]
        found.append((f"Measured: {file['title']}: {file['rows']} kernels", "\n".join(content)))
    meanings = document["metrics"].items()
    found.append(("Metrics", "\n".join(f"- {escape(name)}: {escape(meaning)}" for name, meaning in meanings)))
    return found


def _signed_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """The anchors of a source in a line: count, range and median of errors, and how many lie inside the interval."""
    errors = [row["error"] for row in rows]
    inside = [row["inside"] for row in rows if row["inside"] is not None]
    share = f", {sum(inside)} of {len(inside)} inside" if inside else ""
    anchors = "1 anchor" if len(rows) == 1 else f"{len(rows)} anchors"
    return f"{anchors}, errors {min(errors):+.1%} to {max(errors):+.1%}, median {median(errors):+.1%}{share}"


def _fitted(head: str, sections: Sequence[tuple[str, str]]) -> str:
    """The comment within `LIMIT`: the longest sections are dropped and listed by title."""
    foot = (
        "To plot these figures: `roofline validate check --format json --output check.json`, then"
        " `roofline plot measured check.json`.\n"
    )
    room = LIMIT - len(head) - len(foot) - 200
    parts = [_details(title, content) + "\n\n" for title, content in sections]
    named = [f"- {quiet(escape(title[:100]))}\n" for title, _ in sections]
    left_out: list[int] = []
    for index in sorted(range(len(parts)), key=lambda index: -len(parts[index])):
        if sum(map(len, parts)) + sum(len(named[other]) for other in left_out) > room:
            left_out.append(index)
            parts[index] = ""
    names = "".join(named[index] for index in sorted(left_out))
    listed = f"Too long for a comment, and left out:\n\n{names}\n" if names else ""
    return f"{head}\n{''.join(parts)}{listed}{foot}"[:LIMIT]


def _details(title: str, content: str) -> str:
    """A folded section: GitHub renders its summary as HTML, and its content, after a blank line, as Markdown."""
    flat = html.escape(" ".join("".join(char if char.isprintable() else " " for char in title).split()))
    return f"<details><summary>{quiet(flat)}</summary>\n\n{content}\n\n</details>"


def quiet(text: str) -> str:
    """`text` without active @-mentions, strikethrough and mathematics of GitHub's Markdown."""
    return re.sub(r"(?<!\w)@(?=\w)", "@\N{ZERO WIDTH SPACE}", text.replace("~", "&#126;").replace("$", "&#36;"))


def parts(document: Mapping[str, Any]) -> list[Any]:
    """The terminal output: a table per source, the summary, and moved predictions."""
    shown: list[Any] = [
        table(*table_of(ANCHORS, map(_anchor, rows)), title=group, left=2) for group, rows in _groups(document)
    ]
    shown += [table(*table_of(SUMMARY, document["summary"]), title="Summary", left=2), Text(READING, "dim")]
    for file in document["kernels"]:
        shown += [table(*table_of(KERNELS, file["groups"]), title=f"Measured: {file['title']}", left=4)]
        shown += [Text(kernels_line(file)), Text(KERNEL_READING, "dim")]
    if document["moved"]:
        shown.append(table(*table_of(MOVED, map(_moved, document["moved"])), title="Moved", left=2))
    return [*shown, Text(document["verdict"], "bold")]


def kernels_line(file: Mapping[str, Any]) -> str:
    """The errors of a file of measured kernels in a line, and whether constants were fitted to it."""
    fitted = "fitted to these rows, so the errors are no test" if file["fitted"] else "not fitted to these rows"
    return (
        f"{file['rows']} kernels on {file['hardware']}: median absolute error"
        f" {file['median_absolute_error']:.1%}, {file['inside']:.0%} inside the 80% interval; constants {fitted}:"
        f" {file['constants']}."
    )


def _groups(document: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    return [(group, list(rows)) for group, rows in groupby(document["anchors"], key=lambda row: str(row["group"]))]


def _anchor(row: Mapping[str, Any]) -> dict[str, Any]:
    """An anchor with its figures as text, without those that an exact one does not have."""
    known = {name: figure(row[name]) for name in ("published", "bound", "low", "mid", "high")}
    if row["bound_error"] is None:
        known["bound"] = ""
    told = {**row, **known, "published": f"{known['published']} {row['unit']}", "predicted": known["mid"]}
    if row["inside"] is None:
        return {**told, "low": "", "high": "", "within": ""}
    predicted = f"{known['mid']} ({known['low']} to {known['high']})"
    return {**told, "predicted": predicted, "within": "yes" if row["inside"] else "no"}


def _remarks(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Sources and notes of a section, each once, then explanations of figures faster than the bound."""
    sources = dict.fromkeys(str(row["source"]) for row in rows)
    notes = dict.fromkeys(str(row["note"]) for row in rows if row["note"])
    faster = [(row["id"], row["faster_than_bound"]) for row in rows if row["faster_than_bound"]]
    lines = [*(f"Source: {source}" for source in sources), *(f"Note: {note}" for note in notes)]
    lines += [f"Faster than the bound, {name}: {why}" for name, why in faster]
    return [f"- {escape(line)}" for line in lines]


def _moved(row: Mapping[str, Any]) -> dict[str, Any]:
    """A moved prediction, of one that was added or removed that it was; figures with their unit."""
    kind = row["figure"] if row["status"] == "moved" else row["status"]
    return {**row, "figure": kind, "published": f"{figure(row['published'])} {row['unit'] or ''}".strip()}


def figure(value: float | None) -> str:
    """`value` to four significant digits without exponent; empty for None."""
    if value is None:
        return ""
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.4g}"


FORMS: Mapping[str, Form] = {
    **dict.fromkeys(("error", "bound_error", "median_error", "bias"), "+.1%"),
    **dict.fromkeys(("median_absolute_error", "mean_absolute_error", "bound_mean_absolute_error", "inside"), ".1%"),
    **dict.fromkeys(("change", "error_before", "error_after"), "+.2%"),
    **dict.fromkeys(("old", "new"), figure),
}


def _columns(**titles: str) -> tuple[Column, ...]:
    return tuple(Column(title, key, FORMS.get(key, ""), "") for key, title in titles.items())


FIGURES = {"metric": "metric", "published": "published", "bound": "bound"}
ERRORS = {"error": "error", "bound_error": "at bound", "within": "inside"}
MEANS = {"median_absolute_error": "median abs", "mean_absolute_error": "mean abs"}
SHARES = {"bound_mean_absolute_error": "at bound", "inside": "inside"}
ANCHORS = _columns(id="anchor", **FIGURES, low="low", mid="mid", high="high", **ERRORS)
FOLDED_ANCHORS = _columns(conditions="conditions", **FIGURES, predicted="predicted", **ERRORS)
SUMMARY = _columns(group="source", metric="metric", anchors="anchors", median_error="median", **MEANS, **SHARES)
KERNELS = _columns(
    op="op", format="format", kernel="kernel", cache="caches", rows="rows", **MEANS, bias="bias", **SHARES
)
CHANGES = {"change": "change", "error_before": "error before", "error_after": "error after"}
MOVED = _columns(id="anchor", figure="figure", published="published", old="old", new="new", **CHANGES)
PROVENANCE = ("machine", "software", "command", "date", "revision", "load")
