"""What the fits behind a scenario's times left over: measured over predicted time, kernel by kernel."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from roofline.reports.figures.style import BLACK, BLUE, ORANGE, VERMILION, new_figure, plain, styled
from roofline.timing.calibration import Residuals

BASIS_COLOURS = {"calibrated": BLUE, "family": ORANGE, "pooled": VERMILION}
MOST = 24
"""Kernels of a figure."""


@styled
def residuals(found: Sequence[tuple[str, str, Residuals]], title: str) -> Figure:
    """An interval a kernel: (name, basis, residuals), 10th to 90th percentile with the middle marked."""
    found = found[:MOST]
    figure, (panel,) = new_figure(title, size=(9.0, 1.6 + 0.3 * len(found)))
    for row, (_, basis, left) in enumerate(found):
        panel.hlines(row, left.low - 1, left.high - 1, color=BASIS_COLOURS.get(basis, BLACK), linewidth=4, alpha=0.7)
        panel.plot([left.mid - 1], [row], marker="|", markersize=10, color=BLACK)
    panel.axvline(0, color=BLACK, linewidth=0.8)
    panel.set_yticks(range(len(found)), labels=[plain(name) for name, _, _ in found], fontsize=8)
    panel.set_ylim(len(found) - 0.4, -0.6)
    panel.xaxis.set_major_formatter(PercentFormatter(1.0))
    panel.set_xlabel("measured over predicted time, minus one: 8 of 10 measurements")
    return figure
