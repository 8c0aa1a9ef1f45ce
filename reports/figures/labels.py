"""Labels that do not collide: numbers beside points, each on the nearest free place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes


AROUND = (-45.0, 135.0, 90.0, -90.0, 45.0, -135.0, 0.0, 180.0)
"""Directions from a point in degrees, in the order in which they are tried."""


def number(
    figure: Figure, panel: Axes, points: Sequence[tuple[float, float]], directions: Sequence[float] = AROUND
) -> None:
    """Numbers beside points, each on the nearest of many places in these directions that no other one takes.

    The figure must have been drawn, so that places are final.
    """
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    turns = [math.radians(angle) for angle in directions]
    places = [(radius * math.cos(turn), radius * math.sin(turn)) for radius in range(12, 120, 8) for turn in turns]
    taken: list[Any] = []
    for index, point in enumerate(points, 1):
        for place in places:
            note = panel.annotate(
                str(index),
                point,
                xytext=place,
                textcoords="offset points",
                fontsize=9,
                ha="center",
                va="center",
                arrowprops={"arrowstyle": "-", "linewidth": 0.5, "alpha": 0.6, "shrinkB": 0},
            )
            note.update_positions(renderer)
            box = Text.get_window_extent(note, renderer).padded(2)  # without the line to its point
            if _inside(panel, box) and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            note.remove()


def _inside(panel: Axes, box: Any) -> bool:
    frame = panel.get_window_extent()
    return bool(frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1)
