"""Frontiers of serving: tokens/s of a device, or cost, over tokens/s of a user, with the front of each category."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.reports.figures.style import (
    CATEGORIES,
    MARKERS,
    escaped,
    evenly_spaced,
    format_ticks,
    new_figure,
    number_front,
    styled,
)
from roofline.reports.figures.table import Table, describe, labels
from roofline.whatif.axes import Axis
from roofline.whatif.frontiers import Frontier, FrontierPoint, deployment_axes
from roofline.whatif.selection import Rows

COST = "cost"
"""The metric that shows USD per million output tokens instead of tokens/s of a device."""

NAMED = 12
"""Points of all fronts that are named in the legend, as many of each, evenly spaced."""

HEAD = ("concurrency", "tokens_per_s_per_user", "tokens_per_s_per_gpu", "usd_per_million_output_tokens")
TAIL = ("ttft_p50_s", "tpot_p50_s", "ttft_p95_s", "tpot_p95_s", "front")


@styled
def frontier_figure(found: Frontier, cost: bool = False, title: str | None = None) -> Figure:
    """All points, and the Pareto front of each value of the first axis, numbered. Raises RooflineError."""
    if cost and any(point.cost is None for point in found.points):
        raise RooflineError("the cost needs a price in USD per hour and device", options=["price"])
    user, other = found.values(cost)
    across, up = "tokens/s per user", "USD per million output tokens" if cost else "output tokens/s per device"
    subject = Table(found.study, Rows({}, 0)).subject()
    figure, (panel,) = new_figure(f"{title or f'{up} over {across}'}\n{subject}", size=(11.0, 5.8))
    axes, handles, marked = deployment_axes(found.study), [], []
    for index, (name, best, chosen) in enumerate(_fronts(found, cost)):
        colour, marker = CATEGORIES[index % len(CATEGORIES)], MARKERS[index % len(MARKERS)]
        panel.scatter(user[chosen], other[chosen], s=14, color=colour, marker=marker, alpha=0.25, linewidths=0)
        panel.plot(user[best], other[best], color=colour, marker=marker, markersize=4.5)
        label = escaped(name or "Pareto front")
        handles.append(Line2D([], [], color=colour, marker=marker, label=label))
        marked.append(best)
    panel.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
        format_ticks(axis, "")
    if cost:
        panel.yaxis.set_major_formatter("{x:g}")
    each = max(2, NAMED // max(len(marked), 1))
    numbered = [row for rows in marked for row in evenly_spaced(rows, each)]
    points = [(float(user[row]), float(other[row])) for row in numbered]
    named = [_named(found.points[row], axes) for row in numbered]
    number_front(figure, panel, handles, points, named, better=-45.0 if cost else 45.0)
    return figure


def _named(point: FrontierPoint, axes: Sequence[Axis]) -> str:
    """A point in the legend: its deployment and its requests in flight."""
    requests = f"{point.concurrency:.0f} request{'' if point.concurrency == 1 else 's'} in flight"
    return f"{describe(axes, list(point.place))}, {requests}" if axes else requests


def frontier_rows(found: Frontier) -> tuple[list[str], list[list[object]]]:
    """The points as a table: axes, requests in flight, speeds, cost, latencies, and whether on a front."""
    axes = deployment_axes(found.study)
    names = [labels(axis) for axis in axes]
    best = {int(row) for _, rows, _ in _fronts(found, cost=False) for row in rows}
    rows: list[list[object]] = []
    for index, point in enumerate(found.points):
        outcome = point.outcome
        rows.append(
            [
                *(texts[place] for texts, place in zip(names, point.place, strict=True)),
                *(point.concurrency, outcome.per_user, outcome.output_per_device, point.cost),
                *(outcome.ttft.p50.mid, outcome.tpot.p50.mid, outcome.ttft.p95.mid, outcome.tpot.p95.mid),
                "true" if index in best else "false",
            ]
        )
    return [*(axis.name for axis in axes), *HEAD, *TAIL], rows


def _fronts(found: Frontier, cost: bool) -> Iterator[tuple[str, NDArray[np.intp], NDArray[np.bool_]]]:
    """Name, front and points of each value of the first axis with several values."""
    axes = deployment_axes(found.study)
    varied = [index for index, axis in enumerate(axes) if len(axis) > 1]
    if not varied:
        every = np.ones(len(found.points), bool)
        yield "", found.front(every, cost), every
        return
    first = varied[0]
    places = np.array([point.place[first] for point in found.points])
    for index, name in enumerate(labels(axes[first])):
        chosen = places == index
        if chosen.any():
            yield f"{axes[first].name} {name}", found.front(chosen, cost), chosen
