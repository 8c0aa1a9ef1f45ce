"""Figures: operators under their roofs, times, memory, sweeps, and predictions beside measurements.

Every function that draws returns a matplotlib figure; `save` writes it as SVG, PNG or PDF by the file's ending, and
`draw` makes the figure that a `reports.wish.Wish` asks for, with its data.
"""

from reports.figures.drawing import Picture, draw
from reports.figures.measured import measured
from reports.figures.operators import rooflines, roofs
from reports.figures.scenario import drawn, memory, over_batch, over_prompt
from reports.figures.style import FORMATS, save

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
