"""Whole-model accuracy as tables: errors by group, and the rows that could not be simulated."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from roofline.reports.output.export import escape, inert, markdown_table
from roofline.reports.output.terminal import table

KEYS = ("file", "engine", "metric", "model", "hardware")
FIGURES = ("rows", "mape", "median_ape", "p90_ape", "bias", "bound_mape", "interval_coverage")
TITLES = ("rows", "MAPE", "median", "P90", "bias", "roofline MAPE", "in interval")


def as_csv(document: Mapping[str, Any]) -> str:
    """One row a group, fractions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*KEYS, *FIGURES))
    writer.writerows([inert(group[name]) for name in (*KEYS, *FIGURES)] for group in document["groups"])
    return out.getvalue()


def _shown_keys(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that groups differ by; one at least."""
    named = tuple(key for key in KEYS if any(group[key] != "all" for group in document["groups"]))
    return named or KEYS[:1]


def _rows(document: Mapping[str, Any]) -> tuple[tuple[str, ...], list[list[str]]]:
    keys, groups = _shown_keys(document), list(document["groups"])
    if len(groups) > 1:
        groups.append(document["total"])
    rows = [
        [
            *(str(group[name]) for name in keys),
            f"{group['rows']:,}",
            *(f"{group[name]:.1%}" for name in ("mape", "median_ape", "p90_ape")),
            f"{group['bias']:+.1%}",
            *(f"{group[name]:.1%}" for name in ("bound_mape", "interval_coverage")),
        ]
        for group in groups
    ]
    return (*keys, *TITLES), rows


def _left(document: Mapping[str, Any]) -> list[str]:
    """Lines on what was not scored, and what was assumed."""
    missing = document["rows"] - document["scored"]
    lines = [f"{document['scored']:,} of {document['rows']:,} rows simulated"]
    if missing:
        lines[0] += f"; {missing:,} could not be:"
        lines += [f"{entry['rows']:>5,}  {entry['reason']}" for entry in document["reasons"]]
    if document["assumptions"]:
        lines.append("Assumed:")
        lines += [f"{entry['rows']:>5,}  {entry['assumed']}" for entry in document["assumptions"]]
    lines += [f"Not read: {entry['file']} ({entry['reason']})" for entry in document["other_files"]]
    return lines


def as_markdown(document: Mapping[str, Any]) -> str:
    """A table and the lists below it."""
    header, rows = _rows(document)
    listed = [f"- {escape(' '.join(line.split()))}" for line in _left(document)]
    return "\n".join([*markdown_table(header, rows), "", *listed, ""])


def parts(document: Mapping[str, Any]) -> list[Any]:
    """What `roofline validate end-to-end` shows."""
    header, rows = _rows(document)
    explained = "Errors of predicted over measured time; the interval should hold 80% of the measurements."
    left = len(_shown_keys(document))
    return [table(header, rows, left=left), Text(explained, "dim"), Text("\n".join(_left(document)))]
