"""Documents and blocks of many scenarios at once: of a sweep, and of the analysis of a grid of workloads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from roofline.core.expressions import Type
from roofline.core.units import amount
from roofline.graph.extents import spread
from roofline.reports.documents.analysis import scenario_header
from roofline.reports.output.blocks import Block, Face, finite
from roofline.scenario.analysis import Analysis
from roofline.whatif.metrics import NAMES, default_metrics, expand, figures, find_metric
from roofline.whatif.sweeps import Sweep

SWEEP_SCHEMA, GRID_SCHEMA = "roofline.sweep/1", "roofline.grid/1"

COUNTS = ("batch", "prompt", "generate", "prefix", "images", "context")

ROWS = 60
"""Most rows of a table."""


def sweep_document(found: Sweep) -> dict[str, Any]:
    """The JSON document of a sweep; its rows are the lines that `roofline sweep --format jsonl` writes."""
    return {
        "schema": SWEEP_SCHEMA,
        "axes": list(found.axes),
        "at": found.at,
        "points": found.points,
        "invalid": dict(found.reasons),
        "rows": _rows(found.columns),
    }


def grid_document(analysis: Analysis) -> dict[str, Any]:
    """The JSON document of the analysis of a grid: the default metrics of each of its points."""
    scenario, at = analysis.scenario, "expected" if analysis.times_are_expected else "bound"
    counts = {name: np.asarray(getattr(scenario, name)) for name in COUNTS}
    axes = {name: spread(value, scenario.shape).reshape(-1) for name, value in counts.items() if value.size > 1}
    columns = {name: values.astype(np.int64) for name, values in axes.items()}
    columns |= figures(analysis, expand(default_metrics([scenario.model]), at), at)
    rows = _rows(columns)
    header = scenario_header(scenario)
    return {"schema": GRID_SCHEMA, **header, "axes": list(axes), "at": at, "points": len(rows), "rows": rows}


def _rows(columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    listed = [finite(values.tolist()) for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*listed, strict=True)]


def grid_lines(document: Mapping[str, Any]) -> Iterator[str]:
    """What was varied, how many points cannot run, and the range of each metric with where its best point is."""
    rows, axes, points = document["rows"], document["axes"], document["points"]
    where = f"{document['model']} on {document['hardware']}, {document['engine']}" if "model" in document else "Sweep"
    chosen = "" if len(rows) == points else f", {len(rows)} rows"
    yield f"{where}: {points:,} points over {', '.join(axes) or 'nothing'}{chosen}"
    failed = document.get("invalid", {})
    if failed:
        yield f"{sum(failed.values()):,} points cannot run: {max(failed, key=failed.__getitem__)}"
    for name in rows[0]:
        metric = find_metric(name, document["at"]) if name in NAMES else None
        if metric is None or metric.type is not Type.NUMBER or not metric.better:
            continue
        known = [row for row in rows if row[name] is not None]
        if known:
            low, high = (pick(known, key=lambda row: row[name]) for pick in (min, max))
            best = high if metric.better > 0 else low
            ends = " to ".join(dict.fromkeys(amount(row[name], metric.unit) for row in (low, high)))
            place = ", ".join(f"{axis} {best[axis]}" for axis in axes)
            yield f"{name}: {ends}" + (f", best at {place}" if place and low[name] != high[name] else "")


def grid_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The summary, and a table of the rows."""
    title, *lines = grid_lines(document)
    rows, at = document["rows"], document["at"]
    cells = [[_cell(name, value, at) for name, value in row.items()] for row in rows[: ROWS + 1]]
    return [Block(title, lines, tuple(rows[0]), cells, left=len(document["axes"]))]


def _cell(name: str, value: Any, at: str) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) or name not in NAMES:
        return f"{value:g}" if isinstance(value, float) and math.isfinite(value) else str(value)
    return amount(value, find_metric(name, at).unit)


SWEEP, GRID = (
    Face(made, grid_blocks, lambda document: document["rows"], grid_lines) for made in (sweep_document, grid_document)
)
