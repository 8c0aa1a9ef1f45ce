"""Figures: operators under their roofs, times, memory, sweeps, and predictions beside measurements.

Every function that draws returns a matplotlib figure; `save` writes it as SVG, PNG or PDF by the file's ending, and
`draw` makes the figure that a `roofline.reports.figures.request.Wish` asks for, with its data.
"""

from roofline.reports.figures.drawing import Picture, draw
from roofline.reports.figures.measured import measured
from roofline.reports.figures.operators import rooflines, roofs
from roofline.reports.figures.scenario import drawn, memory, over_batch, over_prompt
from roofline.reports.figures.style import FORMATS, save

__all__ = [
    "FORMATS",
    "Picture",
    "draw",
    "drawn",
    "measured",
    "memory",
    "over_batch",
    "over_prompt",
    "rooflines",
    "roofs",
    "save",
]
