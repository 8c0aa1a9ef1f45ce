"""Errors of predictions over measurements as tables: `validate score` (kernels) and `validate end-to-end` (models)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.reports.output.blocks import Block
from roofline.reports.output.export import csv_text

TITLES = {
    "rows": "rows",
    "mape": "MAPE",
    "median_ape": "median",
    "p90_ape": "P90",
    "bias": "bias",
    "bound_mape": "roofline MAPE",
    "interval_coverage": "in interval",
}
FIGURES = tuple(TITLES)


def _keys(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What the rows are grouped by."""
    return tuple(name for name in document["groups"][0] if name not in FIGURES)


def _figures(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The figures of a group: a load has no bound."""
    return tuple(name for name in FIGURES if name in document["groups"][0])


def as_csv(document: Mapping[str, Any]) -> str:
    """One row per group, errors as fractions."""
    columns = (*_keys(document), *_figures(document))
    return csv_text(columns, ([group[name] for name in columns] for group in document["groups"]))


def accuracy_blocks(document: Mapping[str, Any]) -> list[Block]:
    """A table of the groups, and for whole models the rows that were not scored and the assumptions."""
    left, header, rows = _table(document)
    explanation = "Errors of predicted over measured time; the interval should hold 80% of the measurements."
    return [Block(header=header, rows=rows, left=left), Block(lines=[explanation, *_unscored(document)])]


def _table(document: Mapping[str, Any]) -> tuple[int, tuple[str, ...], list[list[str]]]:
    """Number of key columns, header and rows; only the keys that groups differ by; of whole models their total."""
    keys, groups, figures = _keys(document), list(document["groups"]), _figures(document)
    keys = tuple(key for key in keys if any(group[key] != "all" for group in groups)) or keys[:1]
    totals = document.get("totals") or ([document["total"]] if "total" in document else [])
    groups += totals if len(groups) > len(totals) else []
    rows = [
        [*(str(group[name]) for name in keys), *(_figure(name, group[name]) for name in figures)] for group in groups
    ]
    return len(keys), (*keys, *(TITLES[name] for name in figures)), rows


def _figure(name: str, value: float) -> str:
    return f"{value:,}" if name == "rows" else f"{value:+.1%}" if name == "bias" else f"{value:.1%}"


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
