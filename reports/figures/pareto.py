"""Pareto fronts: every point of a sweep over two metrics, and those that no other point dominates.

The frontier of serving has tokens/s of a device, or cost, over tokens/s of a user, with the front of each category.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.reports.figures import style
from roofline.reports.figures.table import UNFIT, Table, describe, display_name, labels, tick_unit
from roofline.whatif.frontiers import Frontier, deployment_axes
from roofline.whatif.selection import Rows, front

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MANY = 2000
"""Points up to which the file is pure vector graphics; more are rasterized."""

NAMED = 12
"""Maximum number of labelled points of the front, evenly spaced."""


@style.styled
def pareto(table: Table, columns: tuple[tuple[str, int], ...], title: str | None = None) -> Figure:
    """All points over two metrics, and the numbered Pareto front of those that fit in memory.

    `columns` are the metrics, each with 1 if more is better and -1 if less is. Points that do not fit are crosses and
    never on the front. Raises RooflineError for another number of metrics.
    """
    if len(columns) != 2:
        raise RooflineError(f"a Pareto figure shows the front of two metrics, not of {len(columns)}")
    (across, _), (up, _) = columns
    x, y = table.numbers(across), table.numbers(up)
    known = np.isfinite(x) & np.isfinite(y)
    fits = known & table.fits
    if not fits.any():
        raise RooflineError("there is no front: nothing in the study fits in memory")
    best = _front(table, columns, fits)
    heading = title or f"{display_name(up)} over {display_name(across)}: Pareto front"
    figure, (panel,) = style.new_figure(f"{heading}\n{table.subject()}", size=(11.0, 5.8))
    handles = _points(panel, table, x, y, fits)
    if (known & ~fits).any():
        many, out = bool(known.sum() > MANY), known & ~fits
        panel.scatter(x[out], y[out], marker="x", s=14, color="0.6", linewidths=0.6, rasterized=many)
        handles.append(Line2D([], [], linestyle="", marker="x", color="0.6", label=UNFIT))
    look: dict[str, Any] = {"color": style.BLACK, "marker": "o", "fillstyle": "none"}
    panel.plot(x[best], y[best], linewidth=1.4, markersize=5 if best.size <= 30 else 2.5, zorder=4, **look)
    handles.append(Line2D([], [], label=f"Pareto front: {best.size} points", **look))
    varied = [axis for axis in table.study.axes if len(axis) > 1] or list(table.study.axes)
    places = [table.places(axis) for axis in varied]
    _scales(panel, table, (across, x[fits]), (up, y[fits]))
    _direction(panel, columns)
    marked = style.evenly_spaced(best, NAMED)
    named = [describe(varied, [column[row] for column in places]) for row in marked]
    points = [(float(x[row]), float(y[row])) for row in marked]
    style.number_front(figure, panel, handles, points, named, math.degrees(math.atan2(columns[1][1], columns[0][1])))
    return figure


def _front(table: Table, columns: tuple[tuple[str, int], ...], fits: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The rows of the Pareto front from left to right."""
    costs = np.stack([-better * table.numbers(name) for name, better in columns], axis=1)
    costs[~fits] = np.nan
    found = np.flatnonzero(front(costs))
    return found[np.argsort(table.numbers(columns[0][0])[found], kind="stable")]


def _points(
    panel: Axes, table: Table, x: NDArray[np.float64], y: NDArray[np.float64], fits: NDArray[np.bool_]
) -> list[Line2D]:
    """Draw all points that fit; returns the legend handles.

    Colours are those of the first axis with few enough values, categories before numbers.
    """
    few = [axis for axis in table.study.axes if 1 < len(axis) <= len(style.CATEGORIES)]
    axis = next((axis for axis in few if not axis.option.kind.counts), few[0] if few else None)
    many = bool(np.isfinite(x).sum() > MANY)
    if axis is None:
        panel.scatter(x[fits], y[fits], s=14, color=style.CATEGORIES[0], alpha=0.35, linewidths=0, rasterized=many)
        return [
            Line2D([], [], linestyle="", marker="o", color=style.CATEGORIES[0], alpha=0.35, label="points that fit")
        ]
    places, handles = table.places(axis), []
    for place, text in enumerate(labels(axis)):
        chosen = fits & (places == place)
        colour, marker = style.CATEGORIES[place], style.MARKERS[place]
        look: dict[str, Any] = {"color": colour, "marker": marker}
        panel.scatter(x[chosen], y[chosen], s=16, alpha=0.35, linewidths=0, rasterized=many, **look)
        label = style.escaped(f"{axis.name} {text}")
        handles.append(Line2D([], [], linestyle="", alpha=0.5, label=label, **look))
    return handles


def _scales(panel: Axes, table: Table, *columns: tuple[str, NDArray[np.float64]]) -> None:
    for (name, values), which in zip(columns, ("x", "y"), strict=True):
        unit = table.unit(name)
        label = style.escaped(display_name(name))
        axis = panel.xaxis if which == "x" else panel.yaxis
        if values.min() > 0 and values.max() > 20 * values.min():
            panel.set(**{f"{which}scale": "log"})
        axis.set_label_text(label)
        style.format_ticks(axis, style.escaped(tick_unit(unit)))


def _direction(panel: Axes, columns: tuple[tuple[str, int], ...]) -> None:
    """Draw an arrow to the corner where both metrics are best."""
    right, top = (better > 0 for _, better in columns)
    corner = (0.985 if right else 0.015, 0.98 if top else 0.02)
    start = (corner[0] + (-0.1 if right else 0.1), corner[1] + (-0.1 if top else 0.1))
    look: dict[str, Any] = {"ha": "right" if right else "left", "va": "top" if top else "bottom", "color": "0.35"}
    look |= {"xycoords": "axes fraction", "textcoords": "axes fraction", "fontsize": 9}
    panel.annotate("better", corner, start, **look, arrowprops={"arrowstyle": "->", "color": "0.35"})


COST = "cost"
"""The metric that shows USD per million output tokens instead of tokens/s of a device."""

NAMED_DEPLOYMENTS = 12
"""Points of all fronts that are named in the legend, as many of each, evenly spaced."""

HEAD = ("concurrency", "tokens_per_s_per_user", "tokens_per_s_per_gpu", "usd_per_million_output_tokens")
TAIL = ("ttft_p50_s", "tpot_p50_s", "ttft_p95_s", "tpot_p95_s", "front")


@style.styled
def frontier_figure(found: Frontier, cost: bool = False, title: str | None = None) -> Figure:
    """All points, and the Pareto front of each value of the first axis, numbered. Raises RooflineError."""
    if cost and any(point.cost is None for point in found.points):
        raise RooflineError("the cost needs a price in USD per hour and device", options=["price"])
    user, other = found.values(cost)
    across, up = "tokens/s per user", "USD per million output tokens" if cost else "output tokens/s per device"
    subject = Table(found.study, Rows({}, 0)).subject()
    figure, (panel,) = style.new_figure(f"{title or f'{up} over {across}'}\n{subject}", size=(11.0, 5.8))
    axes, handles, marked = deployment_axes(found.study), [], []
    for index, (name, best, chosen) in enumerate(_fronts(found, cost)):
        colour, marker = style.CATEGORIES[index % len(style.CATEGORIES)], style.MARKERS[index % len(style.MARKERS)]
        panel.scatter(user[chosen], other[chosen], s=14, color=colour, marker=marker, alpha=0.25, linewidths=0)
        panel.plot(user[best], other[best], color=colour, marker=marker, markersize=4.5)
        label = style.escaped(name or "Pareto front")
        handles.append(Line2D([], [], color=colour, marker=marker, label=label))
        marked.append(best)
    panel.set(xscale="log", yscale="log", xlabel=across, ylabel=up)
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_formatter(NullFormatter())
        style.format_ticks(axis, "")
    if cost:
        panel.yaxis.set_major_formatter("{x:g}")
    each = max(2, NAMED_DEPLOYMENTS // max(len(marked), 1))
    numbered = [row for rows in marked for row in style.evenly_spaced(rows, each)]
    points = [(float(user[row]), float(other[row])) for row in numbered]
    named = []
    for point in (found.points[row] for row in numbered):
        requests = f"{point.concurrency:.0f} request{'' if point.concurrency == 1 else 's'} in flight"
        named.append(f"{describe(axes, list(point.place))}, {requests}" if axes else requests)
    style.number_front(figure, panel, handles, points, named, better=-45.0 if cost else 45.0)
    return figure


def frontier_rows(found: Frontier) -> tuple[list[str], list[list[object]]]:
    """The points as a table: axes, requests in flight, speeds, cost, latencies, and whether on a front."""
    axes = deployment_axes(found.study)
    names = [labels(axis) for axis in axes]
    best = {int(row) for _, rows, _ in _fronts(found, cost=False) for row in rows}
    rows: list[list[object]] = []
    for index, point in enumerate(found.points):
        ttft, tpot, place = point.outcome.ttft, point.outcome.tpot, zip(names, point.place, strict=True)
        speed = (point.concurrency, point.outcome.per_user, point.outcome.output_per_device, point.cost)
        times = (ttft.p50.mid, tpot.p50.mid, ttft.p95.mid, tpot.p95.mid)
        rows.append([*(texts[at] for texts, at in place), *speed, *times, "true" if index in best else "false"])
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
