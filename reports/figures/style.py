"""Style and saving of figures: colours, sizes, escaped text, labels that do not overlap, reproducible files.

Colours are those of Okabe and Ito (2008), which colour-blind readers can distinguish; line styles, markers and hatching
encode the same as colours.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter
from numpy.typing import NDArray

from roofline import Scenario
from roofline.core.errors import RooflineError, quote
from roofline.core.files import write_output
from roofline.launch.repository import name_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442"),
    "#000000",
)
CATEGORIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)
"""Colours of categories, in order."""

MARKERS = "os^Dv*P"
LINES = ("-", "--", "-.", ":")
BOUND_COLOURS = {"compute": VERMILION, "memory": BLUE, "link": GREEN}
FORMATS = ("svg", "png", "pdf")
SIZE = (9.0, 5.6)
"""Default size of a figure in inches."""

WIDTH = 11
"""Characters of a title per inch."""

STYLE: Mapping[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "hatch.linewidth": 0.6,
    "svg.hashsalt": "roofline",  # the same figure twice is the same file
    "svg.fonttype": "none",
    "legend.frameon": False,
}


def series(index: int) -> tuple[str, str]:
    """Colour and marker of a series by its index, unique for the first 49."""
    colours = len(CATEGORIES)
    return CATEGORIES[index % colours], MARKERS[(index // colours + index) % len(MARKERS)]


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def styled(draw: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`draw` with this module's matplotlib style."""

    @wraps(draw)
    def drawn(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        with mpl.rc_context(dict(STYLE)):
            return draw(*arguments, **options)

    return drawn


def check_ending(path: Path) -> str:
    """The file format of a path by its ending. Raises RooflineError if that is not a figure format."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise RooflineError(f"a figure is written as {', '.join(FORMATS)}; {quote(path.name)} has another ending")
    return kind


def save(figure: Figure, path: Path) -> None:
    """Write `figure` in the format of the ending, atomically. Raises RooflineError for an unknown ending."""
    write_output(path, as_bytes(figure, check_ending(path)))


@styled
def as_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as SVG, PNG or PDF."""
    out = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    figure.savefig(out, format=kind, dpi=160, metadata=metadata)
    return out.getvalue()


def new_figure(title: str, panels: int = 1, size: tuple[float, float] = SIZE) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side under a title."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, panels, index + 1) for index in range(panels)]
    return with_title(figure, title), axes


def with_title(figure: Figure, title: str | None) -> Figure:
    """The figure with `title`, wrapped, in place of its own title; unchanged if None or empty."""
    if title:
        wide = int(WIDTH * figure.get_figwidth())
        lines = [part for line in title.split("\n") for part in textwrap.wrap(line, wide) or [""]]
        figure.suptitle(escaped("\n".join(lines)), fontsize=11)
    return figure


def escaped(text: str) -> str:
    """`text` on printable characters with mathematics of matplotlib escaped; line breaks stay."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text).replace("$", r"\$")


def base_title(scenario: Scenario) -> str:
    """Model and hardware of a scenario for a title."""
    return f"{name_of(scenario)} on {scenario.hardware.name}"


def format_ticks(axis: Any, unit: str) -> None:
    """Format the ticks of an axis with SI prefixes and a unit."""
    axis.set_major_formatter(EngFormatter(unit=unit, sep=" " if unit else ""))


AROUND = (-45.0, 135.0, 90.0, -90.0, 45.0, -135.0, 0.0, 180.0)
"""Directions from a point in degrees, in order of preference."""


AWAY = (0, 30, -30, 60, -60, 90, -90)
"""Directions of labels in degrees from the better side of a front, which has no points."""


def evenly_spaced(rows: NDArray[np.intp], most: int) -> list[int]:
    """At most `most` of the rows, with both ends."""
    places = np.linspace(0, rows.size - 1, min(rows.size, most)).round().astype(int)
    found: list[int] = rows[np.unique(places)].tolist()
    return found


def number_front(
    figure: Figure,
    panel: Axes,
    handles: Sequence[Line2D],
    points: Sequence[tuple[float, float]],
    labels: Sequence[str],
    better: float,
) -> None:
    """Number points of a front and list their `labels` after `handles` in the legend, right of the panel.

    `better` is the direction in degrees of the better side of the front, which has no points. Axes must be final.
    """
    numbered = [
        Line2D([], [], linestyle="", marker=f"${number}$", markersize=5 if number < 10 else 9, color=BLACK, label=label)
        for number, label in enumerate(map(escaped, labels), 1)
    ]
    beside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.01, 1.0), "borderaxespad": 0}
    panel.legend(handles=[*handles, *numbered], fontsize=8, **beside)
    figure.draw_without_rendering()
    number_points(figure, panel, points, [better + turn for turn in AWAY])


def number_points(
    figure: Figure, panel: Axes, points: Sequence[tuple[float, float]], directions: Sequence[float] = AROUND
) -> None:
    """Number the points, each label at the nearest free place in one of `directions`.

    The layout of the figure must be final.
    """
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    turns = [math.radians(angle) for angle in directions]
    places = [(radius * math.cos(turn), radius * math.sin(turn)) for radius in range(12, 120, 8) for turn in turns]
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "ha": "center", "va": "center"}
    look["arrowprops"] = {"arrowstyle": "-", "linewidth": 0.5, "alpha": 0.6, "shrinkB": 0}
    frame, taken = panel.get_window_extent(), list[Any]()
    for index, point in enumerate(points, 1):
        for place in places:
            note = panel.annotate(str(index), point, place, **look)
            note.update_positions(renderer)
            box = Text.get_window_extent(note, renderer).padded(2)  # without the line to its point
            inside = frame.x0 <= box.x0 and box.x1 <= frame.x1 and frame.y0 <= box.y0 and box.y1 <= frame.y1
            if inside and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                break
            note.remove()
