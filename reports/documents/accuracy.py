"""Errors of predictions over measurements as tables: `validate score` (kernels) and `validate end-to-end` (models)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.reports.output.blocks import Block
from roofline.reports.output.cells import Column, csv_of, table_of

TITLES = {
    "rows": "rows",
    "mape": "MAPE",
    "median_ape": "median",
    "p90_ape": "P90",
    "bias": "bias",
    "bound_mape": "roofline MAPE",
    "interval_coverage": "in interval",
}


def _columns(document: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What the rows are grouped by, and the figures of a group: a load has no bound."""
    first = document["groups"][0]
    return [name for name in first if name not in TITLES], [name for name in TITLES if name in first]


def as_csv(document: Mapping[str, Any]) -> str:
    """One row per group, errors as fractions."""
    keys, figures = _columns(document)
    return csv_of([*keys, *figures], document["groups"])


def accuracy_blocks(document: Mapping[str, Any]) -> list[Block]:
    """A table of the groups by the keys that they differ by, and their total; what was not scored, and assumptions."""
    (keys, figures), groups = _columns(document), list(document["groups"])
    keys = [key for key in keys if any(group[key] != "all" for group in groups)] or keys[:1]
    totals = document.get("totals") or ([document["total"]] if "total" in document else [])
    groups += totals if len(groups) > len(totals) else []
    forms = {"rows": ",", "bias": "+.1%"}
    columns = [Column(key, key, str) for key in keys]
    columns += [Column(TITLES[name], name, forms.get(name, ".1%")) for name in figures]
    explanation = "Errors of predicted over measured time; the interval should hold 80% of the measurements."
    shown = Block("", (), *table_of(columns, groups), left=len(keys))
    return [shown, Block(lines=[explanation, *_unscored(document)])]


def _unscored(document: Mapping[str, Any]) -> list[str]:
    """The rows that were left out and why; of whole models the assumptions about the others."""
    if "scored" not in document:
        return [f"Left out: {reason}" for reason in document["left_out"]]
    missing = document["rows"] - document["scored"]
    lines = [f"{document['scored']:,} of {document['rows']:,} rows simulated"]
    if missing:
        lines[0] += f"; {missing:,} could not be:"
        lines += [f"{entry['rows']:>5,}  {entry['reason']}" for entry in document["reasons"]]
    if document["assumptions"]:
        lines.append("Assumed:")
        lines += [f"{entry['rows']:>5,}  {entry['assumed']}" for entry in document["assumptions"]]
    return lines + [f"Not read: {entry['file']} ({entry['reason']})" for entry in document["other_files"]]
