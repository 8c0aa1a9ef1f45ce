"""Predictions with 80% intervals against measurements: whole models, kernels, and residuals of fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator, PercentFormatter
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.reports.figures import style
from roofline.timing.intervals.kernels import Residuals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from roofline.validate.score.kernels import Scored

RATIOS = (0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10)
FEW = 150
"""Kernels up to which each interval is drawn."""

BASIS_COLOURS = {
    "calibrated": style.BLUE,
    "version": style.SKY,
    "family": style.ORANGE,
    "engine": style.PURPLE,
    "pooled": style.VERMILION,
}
MAX_RESIDUALS = 24
"""Kernels of a figure of residuals."""


@style.styled
def measured(document: Mapping[str, Any], title: str | None = None) -> Figure:
    """Predicted over published times with 80% intervals, from the document of `roofline validate check`.

    Rates are inverted to times: above 1 the prediction is slower. Raises RooflineError if no figure has an interval.
    """
    groups: dict[str, list[list[float]]] = {}
    for row in document["anchors"]:
        if row["inside"] is not None:
            rate = str(row.get("unit", "")).endswith("/s")
            ends = (row[name] / row["published"] for name in ("low", "mid", "high"))
            groups.setdefault(str(row["group"]), []).append(sorted(1 / end if rate else end for end in ends))
    if not groups:
        raise RooflineError("there is nothing to draw: no prediction has an interval")
    ratios = np.array([ratio for rows in groups.values() for ratio in rows])
    inside = ((ratios[:, 0] <= 1) & (ratios[:, 2] >= 1)).mean()
    heading = f"{title or 'Predicted against published times'}\n{len(ratios)} figures"
    figure, (panel,) = style.new_figure(f"{heading}, {inside:.0%} inside the 80% interval", size=(9.5, 5.6))
    starts = accumulate((len(rows) for rows in groups.values()), initial=0)
    for index, ((name, rows), start) in enumerate(zip(groups.items(), starts, strict=False)):
        low, mid, high = np.array(rows).T
        colour, marker = style.series(index)
        look: dict[str, Any] = {"fmt": marker, "markersize": 4, "linewidth": 0.8, "color": colour}
        look["markerfacecolor"] = colour if index < len(style.CATEGORIES) else "white"
        reach = np.stack([mid - low, high - mid])
        panel.errorbar(start + np.arange(len(rows)), mid, yerr=reach, label=style.escaped(name), **look)
    _ratio_axis(panel, ratios)
    panel.set(xlabel="published figures, by source; lines are 80% intervals", xticks=[])
    columns = 3 if len(groups) > 6 else 2
    figure.legend(fontsize=8, loc="outside lower center", ncols=columns)
    return figure


def _ratio_axis(panel: Axes, ratios: NDArray[np.float64]) -> None:
    panel.axhline(1.0, color=style.BLACK, linewidth=1)
    low, high = min(0.6, 0.9 * float(ratios.min())), max(1.6, 1.1 * float(ratios.max()))
    panel.set(yscale="log", ylim=(low, high), ylabel="predicted / measured time")
    ticks = [ratio for ratio in RATIOS if low <= ratio <= high]
    panel.yaxis.set_major_locator(FixedLocator(ticks))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])


def measured_rows(document: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Header and rows: published figures with predictions in their units."""
    header = ("id", "group", "unit", "published", "low", "mid", "high")
    rows = [[row.get(name, "") for name in header] for row in document["anchors"] if row["inside"] is not None]
    return header, rows


def of_models(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `roofline validate end-to-end` in the form that `measured` expects."""
    rows = [
        {
            "id": f"{row['file']} row {row['row']}",
            "group": f"{row['engine']}, {row['metric']}",
            "unit": "s",
            "published": row["measured_s"],
            **{name: row[f"{name}_s"] for name in ("low", "mid", "high")},
            "inside": row["low_s"] <= row["measured_s"] <= row["high_s"],
        }
        for row in document["predictions"]
    ]
    return {"anchors": rows}


@style.styled
def kernels(scored: Sequence[Scored]) -> Figure:
    """Predicted over measured times of kernels over the measured time, by op and format.

    The legend has the median error and the fraction inside the 80% interval. Intervals are drawn for up to `FEW`.
    """
    groups: dict[str, list[Scored]] = {}
    for part in scored:
        groups.setdefault(f"{part.op}, {part.format}".replace("_", " "), []).append(part)
    devices = ", ".join(dict.fromkeys(part.hardware for part in scored))
    figure, (panel,) = style.new_figure(f"Predicted over measured kernel times: {devices}", size=(9.5, 6.0))
    total = sum(len(part.measured) for part in scored)
    everything = []
    for index, (name, parts) in enumerate(groups.items()):
        time, low, mid, high = (
            np.concatenate([getattr(part, column) for part in parts]) for column in ("measured", "low", "mid", "high")
        )
        everything.append(mid / time)
        inside = ((low <= time) & (time <= high)).mean()
        label = f"{name}: {time.size:,}, median error {np.median(np.abs(mid / time - 1)):.0%}, {inside:.0%} inside"
        colour, marker = style.series(index)
        if total <= FEW:
            panel.vlines(time, low / time, high / time, color=colour, linewidth=0.8)
        size: dict[str, Any] = (
            {"s": 16, "alpha": 0.8} if total <= FEW else {"s": 6, "alpha": 0.4, "rasterized": total > 2000}
        )
        panel.scatter(time, mid / time, marker=marker, color=colour, linewidths=0, label=style.escaped(label), **size)
    panel.set(xscale="log", xlabel="measured time")
    panel.xaxis.set_major_formatter(EngFormatter(unit="s"))
    _ratio_axis(panel, np.clip(np.concatenate(everything), 0.05, 20))
    figure.legend(fontsize=8, loc="outside lower center", ncols=2, markerscale=1.5)
    return figure


@style.styled
def residuals(found: Sequence[tuple[str, str, Residuals]], title: str) -> Figure:
    """The p10 to p90 interval of each kernel (name, basis, residuals) with its median: what a fit left unexplained."""
    found = found[:MAX_RESIDUALS]
    figure, (panel,) = style.new_figure(title, size=(9.0, 1.6 + 0.3 * len(found)))
    for row, (_, basis, left) in enumerate(found):
        panel.hlines(
            row, left.low - 1, left.high - 1, color=BASIS_COLOURS.get(basis, style.BLACK), linewidth=4, alpha=0.7
        )
        panel.plot([left.mid - 1], [row], marker="|", markersize=10, color=style.BLACK)
    panel.axvline(0, color=style.BLACK, linewidth=0.8)
    panel.set_yticks(range(len(found)), labels=[style.escaped(name) for name, _, _ in found], fontsize=8)
    panel.set_ylim(len(found) - 0.4, -0.6)
    panel.xaxis.set_major_formatter(PercentFormatter(1.0))
    panel.set_xlabel("measured over predicted time, minus one: 80% interval and median")
    return figure
