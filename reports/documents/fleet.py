"""The document and the blocks of `roofline fleet`: a line an hour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roofline.core.units import seconds, si
from roofline.launch.repository import name_of
from roofline.reports.output.blocks import Block, Face, finite, picked
from roofline.reports.output.cells import Column, csv_of, table_of
from roofline.serving.curve import Curve
from roofline.serving.fleet import STEP, FleetRun

MINUTES = 5
"""Minutes of a point of the document."""

REQUESTS = "requests"
"""What comes, where it is not sessions."""

COLUMNS = ("minute", "rate", "serving", "starting", "devices", "queue", "missed")

HOURLY = (
    Column("replicas", "serving", ".1f"),
    Column("starting", "starting", ".1f"),
    Column("GPUs", "devices", ".1f"),
    Column("waiting", "queue", si),
    Column("missed", "missed", ".1%"),
)


def fleet_document(run: FleetRun) -> dict[str, Any]:
    """The JSON document of a day: its sums, and means of some minutes."""
    scenario, usd = run.scenario, run.usd
    of = REQUESTS if isinstance(run.curve, Curve) else "sessions"
    each = round(MINUTES * 60 / STEP)
    arrivals = run.rate * STEP
    rows = (run.rate, run.serving, run.starting, run.devices, run.queue, run.missed / np.maximum(arrivals, 1e-12))
    parts = [[row[at : at + each].mean() for row in rows] for at in range(0, run.rate.size, each)]
    return {
        "schema": "roofline.fleet/1",
        "model": name_of(scenario),
        "hardware": scenario.hardware.name,
        "engine": scenario.profile.name,
        "devices_each": run.curve.replica.devices,
        "of": of,
        "largest_rate_each" if of == REQUESTS else "most_sessions_each": finite(run.most),
        "scaling": picked(run.scaling, *run.scaling.__struct_fields__),
        "targets": {name: finite(target) for name, target in zip(("ttft_s", "tpot_s"), run.curve.targets, strict=True)},
        of: finite(arrivals.sum()),
        "missed": finite(run.missed_share),
        "devices_mean": finite(run.devices.mean()),
        "devices_most": finite(run.devices.max()),
        "lost": run.lost,
        "fixed_replicas": run.fixed,
        "usd": None if usd is None else finite(usd[0]),
        "usd_fixed": None if usd is None else finite(usd[1]),
        "points": [
            dict(zip(COLUMNS, (MINUTES * place, *map(finite, part)), strict=True)) for place, part in enumerate(parts)
        ],
    }


def as_csv(document: Mapping[str, Any]) -> str:
    """A row a point."""
    return csv_of(COLUMNS, document["points"])


def fleet_blocks(document: Mapping[str, Any]) -> list[Block]:
    """A line an hour, and what the day costs."""
    points, hour = document["points"], 60 // MINUTES
    rows = []
    for at in range(0, len(points), hour):
        part = points[at : at + hour]
        means = {name: sum(point[name] for point in part) / len(part) for name in COLUMNS[1:]}
        come = sum(point["rate"] for point in part) or 1.0
        missed = sum(point["missed"] * point["rate"] for point in part) / come
        rows.append({**means, "hour": at // hour, "missed": missed})
    scaling, of, each = document["scaling"], document["of"], document["devices_each"]
    columns = (Column("hour", "hour"), Column(f"{of}/s", "rate", ".3g"), *HOURLY)
    most = (
        f"{document['largest_rate_each']:.3g} requests/s"
        if of == REQUESTS
        else f"{document['most_sessions_each']:.0f} sessions"
    )
    lines = [
        f"{scaling['least']} to {scaling['most']} replicas of {each} GPU{'s' * (each != 1)}, each for"
        f" {scaling['share']:.0%} of {most}; start-up"
        f" {seconds(scaling['startup'])}, kept for {seconds(scaling['hold'])}"
    ]
    title = f"A day of {document['model']} on {document['hardware']}, {document['engine']}"
    lost = f"; {document['lost']} replicas lost" if document["lost"] else ""
    sums = [
        f"{document['missed']:.2%} of {si(document[document['of']], '')} {document['of']} miss their targets;"
        f" {document['devices_mean']:.1f} GPUs on average, {document['devices_most']:.0f} at most{lost}"
    ]
    needed = document["fixed_replicas"]
    if needed > scaling["most"]:
        few = f"{scaling['most']} replicas are too few for the highest rate, which needs {needed}"
        sums.append(f"{few}: --replicas {scaling['least']}:{needed}")
    if document["usd"] is not None:
        sums.append(f"{document['usd']:,.0f} USD; {needed} replicas all day: {document['usd_fixed']:,.0f} USD")
    return [Block(title, lines, *table_of(columns, rows)), Block(lines=sums)]


FLEET = Face(fleet_document, fleet_blocks, lambda document: document["points"])
