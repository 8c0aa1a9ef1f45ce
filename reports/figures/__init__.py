"""Figures: rooflines, times, memory, sweeps, and predictions against measurements.

Every drawing function returns a matplotlib figure; `save` writes it as SVG, PNG or PDF by the file's ending. `draw`
returns the figure of a `roofline.reports.figures.request.FigureSpec` with its data.
"""

from roofline.reports.figures.drawing import Picture, draw
from roofline.reports.figures.measured import measured
from roofline.reports.figures.operators import rooflines, roofs
from roofline.reports.figures.scenario import memory, over_batch, over_prompt, scenario_figure
from roofline.reports.figures.style import FORMATS, save

__all__ = [
    "FORMATS",
    "Picture",
    "draw",
    "measured",
    "memory",
    "over_batch",
    "over_prompt",
    "rooflines",
    "roofs",
    "save",
    "scenario_figure",
]
