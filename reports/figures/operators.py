"""Rooflines: the operators of a scenario on the roofline of its hardware, and rooflines without operators."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, StrMethodFormatter

from roofline import Analysis, Hardware
from roofline.core.units import seconds, si
from roofline.reports.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@style.styled
def rooflines(analysis: Analysis, title: str | None = None) -> Figure:
    """The operators of both phases on the roofline of the hardware; the area of a bubble is its share of the phase."""
    phases = [phase for phase in (analysis.prefill, analysis.decode) if phase is not None]
    heading = title or f"{style.base_title(analysis.scenario)}: operators on the roofline"
    figure, axes = style.new_figure(heading, len(phases), (5.6 * len(phases) + 1, 7.2))
    spots: list[tuple[Axes, list[tuple[float, float]]]] = []
    for panel, phase in zip(axes, phases, strict=True):
        ops = [op for op in phase.ops if op.flops > 0]
        _roofs(panel, analysis, [(op.arithmetic, float(op.attainable)) for op in ops])
        together: dict[tuple[float, float], list[Any]] = {}
        for op in sorted(ops, key=lambda op: -op.share):
            speed = op.flops / op.bound_time
            spot = (round(10 * math.log10(op.intensity)), round(10 * math.log10(speed)))
            together.setdefault(spot, []).append((op.intensity, speed, op.name, float(op.share)))
            area = 25 + 1500 * float(op.share)
            panel.scatter(
                op.intensity, speed, s=area, color=style.BOUND_COLOURS[str(op.bound)], alpha=0.55, linewidths=0
            )
        panel.set_title(f"{phase.name}: {seconds(phase.bound_time)} at the bound", fontsize=10)
        panel.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOP/byte)", ylabel="attainable (FLOP/s)")
        panel.yaxis.set_major_formatter(EngFormatter())
        shares = {spot: sum(part for *_, part in same) for spot, same in together.items()}
        largest = sorted(together, key=lambda spot: -shares[spot])[:MAX_NAMED]
        marked = [together[spot] for spot in largest if shares[spot] >= NAMED_SHARE]
        handles = [
            Line2D([], [], color=colour, marker="o", linestyle="", alpha=0.55, label=f"{name}-bound")
            for name, colour in style.BOUND_COLOURS.items()
            if name != "link" or any(str(op.bound) == name for op in ops)
        ]
        handles += [
            Line2D([], [], linestyle="", marker=f"${number}$", color=style.BLACK, label=_together(same))
            for number, same in enumerate(marked, 1)
        ]
        panel.legend(handles=handles, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13))
        spots.append((panel, [same[0][:2] for same in marked]))
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # numbers are set where things stand now
    for panel, points in spots:
        style.number_points(figure, panel, points)
    return figure


def _roofs(panel: Axes, analysis: Analysis, attained: Iterable[tuple[str | None, float]]) -> None:
    """Draw the memory roof and the peaks over operators, which `Hardware.roofs` has."""
    hardware = analysis.scenario.hardware
    peaks = hardware.roofs(attained)
    highest, bandwidth = peaks[0][1], hardware.memory_bandwidth
    low, high = 0.1, 400 * highest / bandwidth
    styles = ("-", "--", "-.", ":") * len(peaks)
    for (name, peak), dashes in zip(peaks, styles, strict=False):
        ridge = peak / bandwidth
        panel.plot([ridge, high], [peak, peak], color=style.BLACK, linestyle=dashes, linewidth=1.2)
        panel.annotate(f"{name} {peak / 1e12:.4g} TFLOP/s", (high, peak), ha="right", va="bottom", fontsize=8)
    panel.plot([low, highest / bandwidth], [low * bandwidth, highest], color=style.BLACK, linewidth=1.2)
    panel.set_xlim(low, high)
    panel.set_ylim(0.5 * low * bandwidth, 8 * highest)


NAMED_SHARE = 0.002
"""Share of the phase below which overlapping operators are drawn without a number."""

MAX_NAMED = 8
"""The most operators with a number of their own in a figure."""


def _together(same: Sequence[tuple[float, float, str, float]]) -> str:
    """Legend entry of overlapping operators: the largest first, with their total share of the phase."""
    names = list(dict.fromkeys(name for _, _, name, _ in same))
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return style.escaped(f"{', '.join(names[:3])}{rest} ({sum(part for *_, part in same):.1%})")


def _chosen(hardware: Hardware, formats: Sequence[str]) -> dict[str, float]:
    """The GEMM peaks (FLOP/s) in `formats`, by default all of the hardware, highest first."""
    names = formats or tuple(hardware.tensor) or hardware.formats
    peaks = {name: hardware.matrix_peak(name) for name in names}
    return dict(sorted(peaks.items(), key=lambda item: -item[1]))


def roofs_rows(hardware: Hardware, formats: Sequence[str] = ()) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Header and rows: peak (FLOP/s), bandwidth (B/s) and ridge point (FLOP/byte) by format."""
    bandwidth = hardware.memory_bandwidth
    rows = [(name, peak, bandwidth, peak / bandwidth) for name, peak in _chosen(hardware, formats).items()]
    return ("format", "peak", "bandwidth", "ridge"), rows


@style.styled
def roofs(hardware: Hardware, formats: Sequence[str] = (), title: str | None = None) -> Figure:
    """The roofline of hardware by format, with ridge points.

    Raises UnsupportedError for a format that the hardware does not support.
    """
    peaks = _chosen(hardware, formats)
    bandwidth, highest, lowest = hardware.memory_bandwidth, max(peaks.values()), min(peaks.values())
    figure, (panel,) = style.new_figure(title or f"{hardware.title}: roofline by format")
    low, high = min(1.0, 0.1 * lowest / bandwidth), 30 * highest / bandwidth
    bottom = 0.4 * low * bandwidth
    together: dict[float, list[str]] = {}
    for name, peak in peaks.items():
        together.setdefault(peak, []).append(name)
    for index, (peak, names) in enumerate(together.items()):
        ridge, colour = peak / bandwidth, style.CATEGORIES[index % len(style.CATEGORIES)]
        panel.plot(
            [ridge, high], [peak, peak], color=colour, linewidth=2, linestyle=style.LINES[index % len(style.LINES)]
        )
        counted = "OP/s" if all(name.startswith("int") for name in names) else "FLOP/s"
        number, unit = si(peak, counted, 4).split(" ")
        text = style.escaped(f"{', '.join(names)}: {float(number):g} {unit}")
        panel.annotate(text, (high, peak), ha="right", va="bottom", fontsize=9, color=colour)
        panel.plot([ridge, ridge], [bottom, peak], color=colour, linewidth=0.8, linestyle=":")
        look: dict[str, Any] = {"textcoords": "offset points", "rotation": 90, "ha": "right", "va": "bottom"}
        panel.annotate(f"ridge {ridge:.4g}", (ridge, bottom), (-3, 4), fontsize=8, color=colour, **look)
    panel.plot([low, highest / bandwidth], [low * bandwidth, highest], color=style.BLACK, linewidth=2)
    panel.axvspan(low, lowest / bandwidth, color=style.BOUND_COLOURS["memory"], alpha=0.07, linewidth=0)
    panel.axvspan(highest / bandwidth, high, color=style.BOUND_COLOURS["compute"], alpha=0.07, linewidth=0)
    panel.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, 4 * highest))
    panel.set(xlabel="arithmetic intensity (FLOP/byte)", ylabel="attainable (FLOP/s)")
    panel.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    panel.yaxis.set_major_formatter(EngFormatter())
    middles = {"memory-bound": (low * lowest / bandwidth) ** 0.5, "compute-bound": (highest / bandwidth * high) ** 0.5}
    for text, spot in middles.items():
        panel.annotate(text, (spot, 2.6 * highest), ha="center", va="center", fontsize=10)
    beside: Any = {"textcoords": "offset points", "ha": "right"}
    panel.annotate(f"{si(bandwidth, 'B/s')}", (low * 3, low * 3 * bandwidth), xytext=(-8, 8), **beside)
    return figure
