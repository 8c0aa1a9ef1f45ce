"""Curves and bars of a sweep: metrics over one axis, a line or a bar for each value of the other axes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.reports.figures.style import BLACK, CATEGORIES, LINES, MARKERS, escaped, format_ticks, new_figure, styled
from roofline.reports.figures.table import (
    UNFIT,
    Table,
    describe,
    display_name,
    format_value,
    is_numeric,
    labels,
    tick_unit,
)
from roofline.whatif.axes import Axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINES = 14
"""Lines that colours and line styles can distinguish."""

MAX_BARS, MAX_PANELS = 60, 3
"""Bars, and metrics side by side, that a figure's width has room for."""


@styled
def curves(table: Table, metrics: Sequence[str], x: str | None = None, title: str | None = None) -> Figure:
    """Each metric over the numeric axis `x`, by default the last one, with 80% intervals of expected times and rates.

    Each combination of the other axes is a line. Hollow markers do not fit in memory. Raises RooflineError for a study
    without a numeric axis or with more than `MAX_LINES` lines.
    """
    along = _along(table, x)
    others = [axis for axis in table.study.axes if axis is not along]
    lines = list(product(*(range(len(axis)) for axis in others)))
    if len(lines) > MAX_LINES:
        raise RooflineError(f"the study makes {len(lines)} lines; a figure shows {MAX_LINES} at most")
    heading = title or f"{' and '.join(map(display_name, metrics))} over {along.name}"
    figure, panels = _panels(metrics, f"{heading}\n{_subject(table, metrics)}", 4.8)
    places = [table.places(axis) for axis in others]
    values = table.numbers(along.name)
    handles: dict[str, Line2D] = {}
    for index, line in enumerate(lines):
        chosen = np.ones(len(values), dtype=bool)
        for column, place in zip(places, line, strict=True):
            chosen &= column == place
        rows = np.flatnonzero(chosen)
        rows = rows[np.argsort(values[rows], kind="stable")]
        colour = CATEGORIES[index % len(CATEGORIES)]
        style = LINES[(index + index // len(CATEGORIES)) % len(LINES)]
        marker = MARKERS[index % len(MARKERS)] if rows.size <= 24 else ""
        label = escaped(describe(others, line)) if others else display_name(metrics[0])
        look: dict[str, Any] = {"color": colour, "linestyle": style, "marker": marker, "markersize": 4, "label": label}
        handles[label] = Line2D([], [], **look)
        for panel, metric in zip(panels, metrics, strict=True):
            y = table.numbers(metric)[rows]
            panel.plot(values[rows], y, **look)
            if (interval := table.interval(metric)) is not None:
                low, high = (end[rows] for end in interval)
                panel.fill_between(values[rows], low, high, color=colour, alpha=0.13, linewidth=0)
            unfit = rows[~table.fits[rows]][:: max(1, rows.size // 16)]
            look_unfit = {**look, "linestyle": "", "marker": marker or "o", "markersize": 5, "label": "_unfit"}
            panel.plot(values[unfit], table.numbers(metric)[unfit], markerfacecolor="white", **look_unfit)
    for panel, metric in zip(panels, metrics, strict=True):
        _scales(panel, table, along, metric)
    shown = list(handles.values()) if others else []
    if not table.fits.all():
        shown.append(Line2D([], [], marker="o", markerfacecolor="white", color="0.3", linestyle="", label=UNFIT))
    _legend(figure, shown, others)
    return figure


def _subject(table: Table, metrics: Sequence[str]) -> str:
    """Line under the title: the scenario, and whether bands are drawn."""
    banded = any(table.reading(metric, "low") for metric in metrics)
    timed = any(table.unit(metric) in ("s", "tokens/s") for metric in metrics)
    return table.subject(timed) + (" with 80% intervals" if banded else "")


def _along(table: Table, x: str | None) -> Axis:
    if x is not None:
        along = table.axis(x)
        if not is_numeric(along):
            raise RooflineError(f"the values of {along.name} are not numbers: draw bars")
        return along
    found = next((axis for axis in reversed(table.study.axes) if is_numeric(axis) and len(axis) > 1), None)
    if found is None:
        raise RooflineError("curves need a numeric axis, like batch=1:256:log16, and the study has none: draw bars")
    return found


def _panels(metrics: Sequence[str], title: str, height: float) -> tuple[Figure, list[Axes]]:
    if not 1 <= len(metrics) <= MAX_PANELS:
        raise RooflineError(f"a figure shows 1 to {MAX_PANELS} metrics side by side, not {len(metrics)}")
    return new_figure(title, len(metrics), ((9.0, 11.0, 14.0)[len(metrics) - 1], height))


def _scales(panel: Axes, table: Table, along: Axis, metric: str) -> None:
    values, y = table.numbers(along.name), table.numbers(metric)
    y = y[np.isfinite(y)]
    steps = np.diff(np.unique(values))
    even = steps.size == 0 or steps.max() < 1.5 * steps.min()
    unit = table.unit(metric)
    panel.set(xlabel=along.name, ylabel=escaped(display_name(metric)))
    if not even and values.min() > 0:
        panel.set_xscale("log")
        ticks = np.unique(values)
        ticks = ticks[:: -(-ticks.size // 12)]
        panel.xaxis.set_major_locator(FixedLocator(ticks.tolist()))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set_xticks(ticks, labels=[f"{tick:.10g}" for tick in ticks], fontsize=8)
    if not even and y.min() > 0 and y.max() > 20 * y.min():
        panel.set_yscale("log")
    elif y.min() >= 0:
        panel.set_ylim(bottom=0)
    format_ticks(panel.yaxis, escaped(tick_unit(unit)))


def _legend(figure: Figure, handles: Sequence[Line2D | Patch], axes: Sequence[Axis]) -> None:
    if handles:
        title = axes[0].name if len(axes) == 1 else None
        columns = max(1, min(len(handles), 100 // max(len(str(handle.get_label())) + 6 for handle in handles)))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, title=title)


@styled
def bars(table: Table, metrics: Sequence[str], title: str | None = None) -> Figure:
    """Each metric as bars: one per value of the first axis, grouped by the values of a second one.

    Lines over the bars are 80% intervals; hatched bars do not fit in memory. Raises RooflineError for more than two
    axes, or too many bars.
    """
    axes = [axis for axis in table.study.axes if len(axis) > 1] or list(table.study.axes)
    if len(axes) > 2 or len(axes[-1]) > len(CATEGORIES) * (1 if len(axes) == 2 else MAX_BARS):
        names = ", ".join(axis.name for axis in axes)
        raise RooflineError(f"bars show one axis, and a second with {len(CATEGORIES)} values at most, not {names}")
    total = int(np.prod([len(axis) for axis in axes]))
    if total > MAX_BARS:
        raise RooflineError(f"the study makes {total} bars; a figure shows {MAX_BARS} at most")
    heading = title or f"{', '.join(map(display_name, metrics))} by {' and '.join(axis.name for axis in axes)}"
    groups = len(axes[1]) if len(axes) == 2 else 1
    tall = min(12.0, 1.9 + 0.28 * total + 0.1 * len(axes[0]))
    figure, panels = _panels(metrics, f"{heading}\n{_subject(table, metrics)}", tall)
    places = [table.places(axis) for axis in axes]
    height = 0.8 / groups
    spots = places[0] + ((places[1] - (groups - 1) / 2) * height if groups > 1 else 0)
    colours = np.array(CATEGORIES)[places[1] if groups > 1 else np.zeros(len(spots), dtype=int)]
    for panel, metric in zip(panels, metrics, strict=True):
        _bars(panel, table, metric, spots, height, colours)
        panel.set_yticks(range(len(axes[0])), labels=list(map(escaped, labels(axes[0]))))
        panel.set_ylim(len(axes[0]) - 0.45, -0.55)
        panel.grid(visible=False, axis="y")
        if panel is not panels[0]:
            panel.tick_params(labelleft=False)
    named = labels(axes[1]) if groups > 1 else []
    handles = [Patch(color=CATEGORIES[place], label=escaped(text)) for place, text in enumerate(named)]
    if not table.fits.all():
        handles.append(Patch(facecolor="0.85", edgecolor="0.3", hatch="xxx", label=UNFIT))
    _legend(figure, handles, axes[1:] if groups > 1 and table.fits.all() else ())
    return figure


def _bars(
    panel: Axes, table: Table, metric: str, spots: NDArray[np.float64], height: float, colours: NDArray[np.str_]
) -> None:
    values, fits, unit = table.numbers(metric), table.fits, table.unit(metric)
    reach = values.copy()
    known = np.flatnonzero(np.isfinite(values)).tolist()
    for row in known:
        look = {"color": colours[row], "alpha": 0.85} if fits[row] else {"facecolor": "0.85", "edgecolor": colours[row]}
        panel.barh(spots[row], values[row], height * 0.9, hatch=None if fits[row] else "xxx", linewidth=0.8, **look)
    if (interval := table.interval(metric)) is not None:
        panel.hlines(spots, *interval, color=BLACK, linewidth=1.1)
        reach = np.fmax(reach, interval[1])
    widest = float(np.nanmax(reach))
    for row in known:
        text = escaped(format_value(float(values[row]), unit))
        panel.text(reach[row] + 0.012 * widest, spots[row], text, va="center", ha="left", fontsize=8)
    panel.set_xlim(0, 1.22 * widest)
    panel.set_xlabel(escaped(display_name(metric)))
    format_ticks(panel.xaxis, escaped(tick_unit(unit)))
    panel.locator_params(axis="x", nbins=6)
