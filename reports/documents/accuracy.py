"""Accuracy figures as tables: how far predictions are from measurements."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from roofline.reports.output.export import markdown_table
from roofline.reports.output.terminal import table
from roofline.validate.score.kernels import KEYS

FIGURES = ("rows", "mape", "median_ape", "p90_ape", "bias", "bound_mape", "interval_coverage")
HEADER = (*KEYS, "rows", "MAPE", "median", "P90", "bias", "roofline MAPE", "in interval")


def as_csv(document: Mapping[str, Any]) -> str:
    """One row a group, fractions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*KEYS, *FIGURES))
    writer.writerows([group[name] for name in (*KEYS, *FIGURES)] for group in document["groups"])
    return out.getvalue()


def _rows(document: Mapping[str, Any]) -> list[list[str]]:
    return [
        [
            *(str(group[name]) for name in KEYS),
            f"{group['rows']:,}",
            *(f"{group[name]:.1%}" for name in ("mape", "median_ape", "p90_ape")),
            f"{group['bias']:+.1%}",
            *(f"{group[name]:.1%}" for name in ("bound_mape", "interval_coverage")),
        ]
        for group in document["groups"]
    ]


def as_markdown(document: Mapping[str, Any]) -> str:
    """One table."""
    return "\n".join([*markdown_table(HEADER, _rows(document)), ""])


def parts(document: Mapping[str, Any]) -> list[Any]:
    """What `roofline validate score` shows."""
    explained = "Errors of predicted over measured time; the interval should hold 80% of the measurements."
    return [table(HEADER, _rows(document), left=4), Text(explained, "dim")]
