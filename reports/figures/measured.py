"""Predictions with their intervals beside measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from reports.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, new_figure, plain, styled


@styled
def measured(document: Mapping[str, Any]) -> Figure:
    """Predictions with their intervals against published figures: the document of `roofline validate check`."""
    figure, (panel,) = new_figure("Predicted against published", size=(7.0, 6.6))
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in document["anchors"]:
        if row["inside"] is not None:
            groups.setdefault(str(row["group"]), []).append(row)
    colours = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)
    for index, (name, rows) in enumerate(groups.items()):
        published = np.array([row["published"] for row in rows], dtype=float)
        mid = np.array([row["mid"] for row in rows], dtype=float) / published
        ends = np.array([sorted((row["low"], row["high"])) for row in rows], dtype=float) / published[:, np.newaxis]
        error = np.abs(np.stack([mid - ends[:, 0], ends[:, 1] - mid]))
        spots = np.arange(len(rows)) + sum(len(other) for other in list(groups.values())[:index])
        panel.errorbar(
            spots,
            mid,
            yerr=error,
            fmt="os^Dv*P"[index % 7],
            markersize=4,
            linewidth=0.8,
            color=colours[index % 7],
            label=plain(name),
        )
    panel.axhline(1.0, color=BLACK, linewidth=1)
    panel.set(yscale="log", xlabel="published figures, by source", ylabel="predicted / published")
    panel.set_xticks([])
    panel.set_yticks([0.25, 0.5, 0.8, 1, 1.25, 2, 4], labels=["0.25", "0.5", "0.8", "1", "1.25", "2", "4"])
    panel.minorticks_off()
    panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2)
    return figure
