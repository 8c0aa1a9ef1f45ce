"""Heat maps: a metric over two axes, with hatching for compute- and link-bound cells and cells that do not fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.reports.figures.style import SIZE, escaped, new_figure, styled
from roofline.reports.figures.table import UNFIT, Table, display_name, format_value, is_numeric, labels, tick_unit
from roofline.whatif.axes import Axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = "cividis"
"""From dark blue to yellow, legible with any colour vision."""

WRITTEN_COLUMNS, WRITTEN_ROWS = 12, 16
"""Size of a map up to which cells show their values."""

TICKS = 16
"""Maximum number of tick labels of an axis."""

BETTER = {1: ", higher is better", -1: ", lower is better", 0: ""}
ABSENT = "cannot run, or excluded"
HATCHES = {"compute-bound": "///", "link-bound": "...", UNFIT: "xxx"}
EDGES = {"compute-bound": "#ffffffa0", "link-bound": "#ffffffc0", UNFIT: "#b0b0b0"}
BACKS = {"compute-bound": "0.45", "link-bound": "0.45", UNFIT: "0.9"}


def bound_of(metric: str) -> str | None:
    """The metric with the bound (compute, memory, link) of `metric`; None if it has none."""
    stem = metric.partition(".")[0]
    if stem == "ttft":
        return "prefill_bound"
    return "decode_bound" if stem in ("tpot", "step") or stem.startswith("tokens_per_s") else None


@styled
def heatmap(table: Table, metric: str, x: str | None = None, y: str | None = None, title: str | None = None) -> Figure:
    """`metric` over the study's two axes; brighter is better.

    `x` and `y` name the axes; by default the first numeric one is horizontal. Raises RooflineError for another number
    of axes or a metric that is not a number.
    """
    across, up = _axes(table, x, y)
    values = table.numbers(metric)
    shape = (len(up), len(across))
    spots = (table.places(up), table.places(across))
    cells, there = np.full(shape, np.nan), np.zeros(shape, dtype=bool)
    cells[spots], there[spots] = values, np.isfinite(values)
    marks = _marks(table, metric, spots, shape)
    coloured = np.where(marks[UNFIT], np.nan, cells) if not marks[UNFIT][there].all() else cells
    unit = table.unit(metric)
    heading = title or f"{display_name(metric)} over {across.name} and {up.name}"
    written = shape[1] <= WRITTEN_COLUMNS and shape[0] <= WRITTEN_ROWS
    height = min(9.0, max(3.4, 2.2 + 0.34 * shape[0]))
    figure, (panel,) = new_figure(f"{heading}\n{table.subject()}", size=(SIZE[0], height))
    panel.grid(visible=False)
    map_ = mpl.colormaps[COLOURS if table.better(metric) >= 0 else f"{COLOURS}_r"]
    norm = _norm(coloured)
    mesh = panel.pcolormesh(coloured, cmap=map_, norm=norm, rasterized=cells.size > 2000)
    ticks = EngFormatter(unit=escaped(tick_unit(unit)), sep=" " if tick_unit(unit) else "")
    bar = figure.colorbar(mesh, ax=panel, format=ticks)
    bar.ax.minorticks_off()
    bar.set_label(escaped(f"{display_name(metric)}{BETTER[table.better(metric)]}"))
    _hatch(panel, marks, there)
    if written:
        shades = np.where(np.isfinite(coloured)[..., np.newaxis], map_(norm(coloured)), (0.9, 0.9, 0.9, 1.0))
        _write(panel, cells, unit, shades)
    _ticks(panel, across, up)
    return figure


def _axes(table: Table, x: str | None, y: str | None) -> tuple[Axis, Axis]:
    axes = table.study.axes
    if len(axes) != 2:
        names = ", ".join(axis.name for axis in axes)
        cure = "add one, or draw curves" if len(axes) < 2 else "fix the others"
        raise RooflineError(f"a heat map has two axes, and the study varies {len(axes)} ({names}): {cure}")
    across = next((axis for axis in axes if is_numeric(axis)), axes[0])
    if x is not None:
        across = table.axis(x)
    elif y is not None:
        across = next(axis for axis in axes if axis is not table.axis(y))
    up = next(axis for axis in axes if axis is not across)
    if y is not None and table.axis(y) is not up:
        raise RooflineError(f"{across.name} cannot be both x and y: the other axis is {up.name}")
    return across, up


def _norm(cells: NDArray[np.float64]) -> Normalize:
    finite = cells[np.isfinite(cells)]
    low, high = float(finite.min()), float(finite.max())
    if low > 0 and high > 20 * low:
        return LogNorm(low, high)
    return Normalize(low, high if high > low else low + abs(low or 1.0) * 1e-6)


def _marks(table: Table, metric: str, spots: Any, shape: tuple[int, int]) -> dict[str, NDArray[np.bool_]]:
    """Mask of cells by mark; cells that do not fit carry no other mark."""
    unfit = np.zeros(shape, dtype=bool)
    unfit[spots] = ~table.fits
    marks = {UNFIT: unfit}
    bound = bound_of(metric)
    for name in ("compute", "link") if bound else ():
        mask = np.zeros(shape, dtype=bool)
        mask[spots] = table.column(bound) == name  # type: ignore[arg-type]
        marks[f"{name}-bound"] = mask & ~unfit
    return marks


def _hatch(panel: Axes, marks: dict[str, NDArray[np.bool_]], there: NDArray[np.bool_]) -> None:
    """Hatch the marked cells, run by run along the rows, and draw a legend."""
    handles = []
    for name, mask in marks.items():
        style: dict[str, Any] = {"edgecolor": EDGES[name], "linewidth": 0, "hatch": HATCHES[name]}
        for row, first, last in _runs(mask & there):
            panel.add_patch(Rectangle((first, row), last - first, 1, facecolor="none", **style))
        if (mask & there).any():
            handles.append(Patch(facecolor=BACKS[name], label=name, **style))
    bare = there & ~np.any(list(marks.values()), axis=0)
    if len(marks) > 1 and bare.any() and (there & ~marks[UNFIT] & ~bare).any():
        handles.append(Patch(facecolor="0.45", label="memory-bound"))
    panel.set_facecolor("0.9")
    if not there.all():
        handles.append(Patch(facecolor="0.9", edgecolor="0.6", label=ABSENT))
    if handles:
        panel.figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), fontsize=9)


def _runs(mask: NDArray[np.bool_]) -> Iterator[tuple[int, int, int]]:
    """Row, start and end of every horizontal run of marked cells."""
    for row, cells in enumerate(mask):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], cells.astype(np.int8), [0]])))
        yield from ((row, int(first), int(last)) for first, last in edges.reshape(-1, 2))


def _write(panel: Axes, cells: NDArray[np.float64], unit: str, shades: NDArray[np.float64]) -> None:
    for (row, column), value in np.ndenumerate(cells):
        if np.isfinite(value):
            red, green, blue, _ = back = tuple(shades[row, column])
            dark = 0.299 * red + 0.587 * green + 0.114 * blue < 0.5
            text = escaped(format_value(value, unit, 3 if cells.shape[1] <= 8 else 2))
            look: dict[str, Any] = {"color": "white" if dark else "black", "ha": "center", "va": "center"}
            box = {"facecolor": back, "edgecolor": "none", "pad": 1.2}
            panel.text(column + 0.5, row + 0.5, text, fontsize=8, bbox=box, **look)


def _ticks(panel: Axes, across: Axis, up: Axis) -> None:
    for axis, set_ticks, most in ((across, panel.set_xticks, TICKS), (up, panel.set_yticks, 2 * TICKS)):
        texts = labels(axis)
        chosen = range(0, len(texts), -(-len(texts) // most))
        set_ticks([place + 0.5 for place in chosen], labels=[escaped(texts[place]) for place in chosen])
    if max(map(len, labels(across))) * min(len(across), TICKS) > 90:
        panel.tick_params(axis="x", rotation=90 if max(map(len, labels(across))) > 12 else 45)
    if not is_numeric(up):
        panel.invert_yaxis()
    panel.set(xlabel=across.name, ylabel=up.name)
    panel.tick_params(length=0)
