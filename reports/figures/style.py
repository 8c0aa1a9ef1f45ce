"""How figures look and how they are saved: colours, sizes, names as plain text, files that are the same twice.

Colours are those of Okabe and Ito (2008), which colour-blind readers can tell apart; line styles, markers and hatching
repeat what colours say.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from roofline import Scenario
from roofline.core.errors import RooflineError, quote
from roofline.core.files import write_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442"),
    "#000000",
)
CATEGORIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, BLACK)
"""Colours of categories, in the order in which they come."""

MARKERS = "os^Dv*P"
LINES = ("-", "--", "-.", ":")
BOUND_COLOURS = {"compute": VERMILION, "memory": BLUE, "link": GREEN}
FORMATS = ("svg", "png", "pdf")
SIZE = (9.0, 5.6)
"""Inches of a figure."""

WIDTH = 11
"""Characters of a title that an inch holds."""

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
    """Colour and marker of the one of many series that comes so late: no other of the first 49 has both."""
    colours = len(CATEGORIES)
    return CATEGORIES[index % colours], MARKERS[(index // colours + index) % len(MARKERS)]


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def styled(draw: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`draw` under this module's style, whatever the user's own is."""

    @wraps(draw)
    def drawn(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        with mpl.rc_context(dict(STYLE)):
            return draw(*arguments, **options)

    return drawn


def check_ending(path: Path) -> str:
    """The kind of file that a path's ending asks for; raises RooflineError for one that is no figure's."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise RooflineError(f"a figure is written as {', '.join(FORMATS)}; {quote(path.name)} ends in none of them")
    return kind


def save(figure: Figure, path: Path) -> None:
    """Write `figure` whole or not at all; the ending says how. Raises RooflineError for another ending."""
    write_bytes(path, as_bytes(figure, check_ending(path)))


@styled
def as_bytes(figure: Figure, kind: str) -> bytes:
    """The figure as a file of a kind: svg, png or pdf."""
    out = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    figure.savefig(out, format=kind, dpi=160, metadata=metadata)
    return out.getvalue()


def new_figure(title: str, panels: int = 1, size: tuple[float, float] = SIZE) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side under a title."""
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, panels, index + 1) for index in range(panels)]
    return titled(figure, title), axes


def titled(figure: Figure, title: str | None) -> Figure:
    """The figure with a title in place of its own; with its own where there is none."""
    if title:
        wide = int(WIDTH * figure.get_figwidth())
        lines = [part for line in title.split("\n") for part in textwrap.wrap(line, wide) or [""]]
        figure.suptitle(plain("\n".join(lines)), fontsize=11)
    return figure


def plain(text: str) -> str:
    """Text from specs and studies, without what matplotlib would read as mathematics; line breaks stay."""
    return "".join(char if char.isprintable() or char == "\n" else " " for char in text).replace("$", r"\$")


def named(scenario: Scenario) -> str:
    """What a figure of a scenario is of."""
    return f"{scenario.model.name} on {scenario.hardware.name}"


def units(axis: Any, unit: str) -> None:
    """Ticks of an axis with SI prefixes and a unit."""
    axis.set_major_formatter(EngFormatter(unit=unit, sep=" " if unit else ""))
