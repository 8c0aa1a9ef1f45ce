"""Predictions with their intervals beside measurements: whole models and single kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FixedLocator, NullLocator
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.reports.figures.style import BLACK, CATEGORIES, new_figure, plain, series, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from roofline.validate.score.kernels import Scored

RATIOS = (0.1, 0.2, 0.5, 0.8, 1, 1.25, 2, 5, 10)
FEW = 150
"""Kernels whose intervals are drawn one by one."""


@styled
def measured(document: Mapping[str, Any], title: str | None = None) -> Figure:
    """Predictions with their intervals against published figures: the document of `roofline validate check`.

    All are compared as times: above 1 is slower than published, also where a rate is. Raises RooflineError where no
    figure has an interval.
    """
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for row in document["anchors"]:
        if row["inside"] is not None:
            groups.setdefault(str(row["group"]), []).append(_ratios(row))
    if not groups:
        raise RooflineError("there is nothing to draw: no prediction has an interval")
    ratios = np.array([ratio for rows in groups.values() for ratio in rows])
    inside = ((ratios[:, 0] <= 1) & (ratios[:, 2] >= 1)).mean()
    figure, (panel,) = new_figure(
        f"{title or 'Predicted against published times'}\n{len(ratios)} figures, {inside:.0%} in the interval",
        size=(9.5, 5.6),
    )
    starts = accumulate((len(rows) for rows in groups.values()), initial=0)
    for index, ((name, rows), start) in enumerate(zip(groups.items(), starts, strict=False)):
        low, mid, high = np.array(rows).T
        colour, marker = series(index)
        panel.errorbar(
            start + np.arange(len(rows)),
            mid,
            yerr=np.stack([mid - low, high - mid]),
            fmt=marker,
            markersize=4,
            linewidth=0.8,
            color=colour,
            markerfacecolor=colour if index < len(CATEGORIES) else "white",
            label=plain(name),
        )
    _ratio_axis(panel, ratios)
    panel.set(xlabel="published figures, by source; lines are the intervals of 8 of 10 measurements", xticks=[])
    columns = 3 if len(groups) > 6 else 2
    figure.legend(fontsize=8, loc="outside lower center", ncols=columns)
    return figure


def _ratios(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """The low, middle and high prediction over what was published, as times."""
    ends = [row[name] / row["published"] for name in ("low", "mid", "high")]
    if str(row.get("unit", "")).endswith("/s"):
        ends = [1 / end for end in ends]
    low, mid, high = sorted(ends)
    return low, mid, high


def _ratio_axis(panel: Axes, ratios: NDArray[np.float64]) -> None:
    panel.axhline(1.0, color=BLACK, linewidth=1)
    low, high = min(0.6, 0.9 * float(ratios.min())), max(1.6, 1.1 * float(ratios.max()))
    panel.set(yscale="log", ylim=(low, high), ylabel="predicted / measured time")
    ticks = [ratio for ratio in RATIOS if low <= ratio <= high]
    panel.yaxis.set_major_locator(FixedLocator(ticks))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.set_yticks(ticks, labels=[f"{tick:g}" for tick in ticks])


def measured_rows(document: Mapping[str, Any]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """The published figures with predictions in their units."""
    header = ("id", "group", "unit", "published", "low", "mid", "high")
    rows = [[row.get(name, "") for name in header] for row in document["anchors"] if row["inside"] is not None]
    return header, rows


def of_models(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document of `roofline validate end-to-end` as `measured` takes one: times of whole models."""
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


@styled
def kernels(scored: Sequence[Scored]) -> Figure:
    """Predicted over measured times of single kernels against the measured time, by kind and format.

    The legend says how far off the median is and how many lie in the interval; of few kernels each interval is drawn.
    """
    groups: dict[str, list[Scored]] = {}
    for part in scored:
        groups.setdefault(f"{part.op}, {part.format}".replace("_", " "), []).append(part)
    figure, (panel,) = new_figure(
        f"Predicted against measured kernels: {', '.join(dict.fromkeys(part.hardware for part in scored))}",
        size=(9.5, 6.0),
    )
    total = sum(len(part.measured) for part in scored)
    everything = []
    for index, (name, parts) in enumerate(groups.items()):
        time, low, mid, high = (
            np.concatenate([getattr(part, column) for part in parts]) for column in ("measured", "low", "mid", "high")
        )
        everything.append(mid / time)
        inside = ((low <= time) & (time <= high)).mean()
        label = f"{name}: {time.size:,}, median error {np.median(np.abs(mid / time - 1)):.0%}, {inside:.0%} inside"
        colour, marker = series(index)
        if total <= FEW:
            panel.vlines(time, low / time, high / time, color=colour, linewidth=0.8)
        panel.scatter(
            *(time, mid / time),
            s=16 if total <= FEW else 6,
            marker=marker,
            color=colour,
            alpha=0.8 if total <= FEW else 0.4,
            linewidths=0,
            label=plain(label),
            rasterized=total > 2000,
        )
    panel.set(xscale="log", xlabel="measured time")
    panel.xaxis.set_major_formatter(EngFormatter(unit="s"))
    _ratio_axis(panel, np.clip(np.concatenate(everything), 0.05, 20))
    figure.legend(fontsize=8, loc="outside lower center", ncols=2, markerscale=1.5)
    return figure


def kernels_rows(scored: Sequence[Scored]) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Measured and predicted times in seconds."""
    header = ("hardware", "op", "format", "measured", "low", "mid", "high")
    rows: list[Sequence[Any]] = []
    for part in scored:
        columns = (part.measured.tolist(), part.low.tolist(), part.mid.tolist(), part.high.tolist())
        rows += [(part.hardware, part.op, part.format, *times) for times in zip(*columns, strict=True)]
    return header, rows
