"""Figures: operators under their roofs, times, memory, sweeps, and predictions beside measurements.

Every function returns a matplotlib figure; `save` writes it as SVG, PNG or PDF by the file's ending.
"""

from reports.figures.measured import measured
from reports.figures.operators import rooflines
from reports.figures.scenario import drawn, memory, over_batch, over_prompt
from reports.figures.style import FORMATS, save

__all__ = ["FORMATS", "drawn", "measured", "memory", "over_batch", "over_prompt", "rooflines", "save"]
