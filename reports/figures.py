"""Figures: operators under their roofs, time and memory against batch and length, predictions beside measurements.

Every function returns a matplotlib figure; `save` writes it as SVG, PNG or PDF by the file's ending. Colours are those
of Okabe and Ito (2008), which colour-blind readers can tell apart; line styles repeat what colours say.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter

from reports.files import write_bytes
from roofline import Analysis, Scenario, analyze
from roofline.errors import RooflineError, quote
from roofline.timing import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, BLACK = (
    *("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442"),
    "#000000",
)
BOUND_COLOURS = {"compute": VERMILION, "memory": BLUE, "link": GREEN}
FORMATS = ("svg", "png", "pdf")
SIZE = (9.0, 5.6)
"""Inches of a figure."""

STYLE: Mapping[Any, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "svg.hashsalt": "roofline",  # the same figure twice is the same file
    "svg.fonttype": "none",
    "legend.frameon": False,
}


def save(figure: Figure, path: Path) -> None:
    """Write `figure` whole or not at all; the ending says how. Raises RooflineError for another ending."""
    kind = path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise RooflineError(f"a figure is written as {', '.join(FORMATS)}; {quote(path.name)} ends in none of them")
    out = io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with mpl.rc_context(dict(STYLE)):
        figure.savefig(out, format=kind, dpi=160, metadata=metadata)
    write_bytes(path, out.getvalue())


Drawing = Callable[..., Figure]


def _styled(draw: Drawing) -> Drawing:
    """`draw` under this module's style, whatever the user's own is."""

    @wraps(draw)
    def styled(*arguments: Any, **options: Any) -> Figure:
        with mpl.rc_context(dict(STYLE)):
            return draw(*arguments, **options)

    return styled


def _figure(title: str, panels: int = 1, size: tuple[float, float] = SIZE) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, panels, index + 1) for index in range(panels)]
    figure.suptitle(_plain(title), fontsize=11)
    return figure, axes


def _plain(text: str) -> str:
    """Text from specs, without what matplotlib would read as mathematics."""
    return "".join(char if char.isprintable() else " " for char in text).replace("$", r"\$")


def _named(scenario: Scenario) -> str:
    return f"{scenario.model.name} on {scenario.hardware.name}"


BATCHES = tuple(2**power for power in range(10))
"""Batches that curves are drawn over."""

PROMPTS = tuple(2**power for power in range(7, 16))
"""Lengths of prompts that curves are drawn over, as far as the model was made for."""


def drawn(kind: str, scenario: Scenario) -> Figure:
    """The figure of a scenario by its name: roofline, batch, prompt or memory."""
    match kind:
        case "batch":
            return over_batch(scenario, BATCHES)
        case "prompt":
            longest = scenario.model.max_context or PROMPTS[-1]
            return over_prompt(scenario, [prompt for prompt in PROMPTS if prompt <= longest] or [longest])
        case "memory":
            return memory(scenario, sorted({int(batch) for batch in np.geomspace(1, BATCHES[-1], 60)}))
    return rooflines(analyze(scenario))


@_styled
def rooflines(analysis: Analysis) -> Figure:
    """Every operator of both phases under the roofs of the hardware: bubbles as large as their share of the phase."""
    phases = [phase for phase in (analysis.prefill, analysis.decode) if phase is not None]
    figure, axes = _figure(
        f"{_named(analysis.scenario)}: operators under their roofs", len(phases), (5.6 * len(phases) + 1, 7.2)
    )
    spots: list[tuple[Axes, list[tuple[float, float]]]] = []
    for panel, phase in zip(axes, phases, strict=True):
        ops = [op for op in phase.ops if op.flops > 0]
        _roofs(panel, analysis, {op.arithmetic for op in ops})
        together: dict[tuple[float, float], list[Any]] = {}
        for op in sorted(ops, key=lambda op: -op.share):
            speed = op.flops / op.bound_time
            spot = (round(10 * math.log10(op.intensity)), round(10 * math.log10(speed)))
            together.setdefault(spot, []).append((op.intensity, speed, op.name, float(op.share)))
            area = 25 + 1500 * float(op.share)
            panel.scatter(op.intensity, speed, s=area, color=BOUND_COLOURS[str(op.bound)], alpha=0.55, linewidths=0)
        panel.set_title(f"{phase.name}: {_seconds(phase.bound_time)} at the bound", fontsize=10)
        panel.set(xscale="log", yscale="log", xlabel="arithmetic intensity (FLOP/byte)", ylabel="attainable (FLOP/s)")
        panel.yaxis.set_major_formatter(EngFormatter())
        shares = {spot: sum(part for *_, part in same) for spot, same in together.items()}
        largest = sorted(together, key=lambda spot: -shares[spot])[:MOST_NAMED]
        named = [together[spot] for spot in largest if shares[spot] >= NAMED_SHARE]
        handles = [
            Line2D([], [], color=colour, marker="o", linestyle="", alpha=0.55, label=f"{name}-bound")
            for name, colour in BOUND_COLOURS.items()
            if name != "link" or any(str(op.bound) == name for op in ops)
        ]
        handles += [
            Line2D([], [], linestyle="", marker=f"${number}$", color=BLACK, label=_together(same))
            for number, same in enumerate(named, 1)
        ]
        panel.legend(handles=handles, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.13))
        spots.append((panel, [same[0][:2] for same in named]))
    figure.canvas.draw()
    for panel, points in spots:
        _number(figure, panel, points)
    return figure


def _roofs(panel: Axes, analysis: Analysis, arithmetic: Iterable[str | None]) -> None:
    """The memory's slope and the peak of each format in use, with its ridge."""
    hardware = analysis.scenario.hardware
    peaks = {name: hardware.matrix_peak(name) for name in arithmetic if name is not None}
    if hardware.vector_peak is not None:
        peaks["vector"] = hardware.vector_peak
    highest, bandwidth = max(peaks.values()), hardware.memory_bandwidth
    low, high = 0.1, 100 * highest / bandwidth
    styles = ("-", "--", "-.", ":") * len(peaks)
    for (name, peak), style in zip(sorted(peaks.items(), key=lambda item: -item[1]), styles, strict=False):
        ridge = peak / bandwidth
        panel.plot([ridge, high], [peak, peak], color=BLACK, linestyle=style, linewidth=1.2)
        panel.annotate(f"{name} {peak / 1e12:.4g} TFLOP/s", (high, peak), ha="right", va="bottom", fontsize=8)
    panel.plot([low, highest / bandwidth], [low * bandwidth, highest], color=BLACK, linewidth=1.2)
    panel.set_xlim(low, high)
    panel.set_ylim(0.5 * low * bandwidth, 8 * highest)


NAMED_SHARE = 0.002
"""Operators that take less of a phase together are drawn, but not named."""

MOST_NAMED = 8


def _together(same: Sequence[tuple[float, float, str, float]]) -> str:
    """Operators at one spot: the largest first, with what they take of the phase together."""
    names = list(dict.fromkeys(name for _, _, name, _ in same))
    rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return _plain(f"{', '.join(names[:3])}{rest} ({sum(part for *_, part in same):.1%})")


def _number(figure: Figure, panel: Axes, points: Sequence[tuple[float, float]]) -> None:
    """Numbers beside points, each on the nearest of many places that no other one takes."""
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    turns = [math.radians(angle) for angle in (-45, 135, 90, -90, 45, -135, 0, 180)]
    places = [(radius * math.cos(turn), radius * math.sin(turn)) for radius in range(12, 120, 8) for turn in turns]
    taken: list[Any] = []
    for number, point in enumerate(points, 1):
        for place in places:
            note = panel.annotate(
                str(number),
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


@_styled
def over_batch(scenario: Scenario, batches: Sequence[int]) -> Figure:
    """TTFT, TPOT and throughput against the batch: expected with its 80% band, and the bound."""
    answer = analyze(replace(scenario, batch=np.array(batches)))
    return _curves(answer, np.array(batches), "sequences in the batch", f"{_named(scenario)} over the batch")


@_styled
def over_prompt(scenario: Scenario, prompts: Sequence[int]) -> Figure:
    """TTFT, TPOT and throughput against the length of the prompt."""
    answer = analyze(replace(scenario, prompt=np.array(prompts), context=None))
    return _curves(answer, np.array(prompts), "tokens of the prompt", f"{_named(scenario)} over the prompt")


def _curves(answer: Analysis, values: Any, axis: str, title: str) -> Figure:
    figure, (latency, rate) = _figure(title, 2, (11.0, 4.8))
    expected, generation = answer.expected, answer.generation
    for name, estimate, bound, colour, style in (
        ("TTFT", expected.ttft, generation.ttft, BLUE, "-"),
        ("TPOT", expected.tpot, generation.tpot, VERMILION, "--"),
    ):
        if estimate is None or not np.isfinite(estimate.mid).all():
            continue
        latency.plot(
            values, estimate.mid, color=colour, linestyle=style, marker="o", markersize=3, label=f"{name}, expected"
        )
        latency.fill_between(values, estimate.low, estimate.high, color=colour, alpha=0.18, linewidth=0)
        latency.plot(values, bound, color=colour, linestyle=":", linewidth=1, label=f"{name}, at the bound")
    latency.set(xscale="log", yscale="log", xlabel=axis, ylabel="seconds")
    latency.yaxis.set_major_formatter(EngFormatter(unit="s"))
    latency.legend(fontsize=8)
    # A model that only encodes generates nothing: its rate is of sequences.
    batch, total = answer.scenario.batch, expected.total
    speed = expected.tokens_per_second if answer.decode else Estimate(*(batch / time for time in reversed(total)))
    bound = generation.tokens_per_second if answer.decode else batch / generation.total
    rate.plot(values, speed.mid, color=GREEN, marker="o", markersize=3, label="expected")
    rate.fill_between(values, speed.low, speed.high, color=GREEN, alpha=0.18, linewidth=0)
    rate.plot(values, bound, color=GREEN, linestyle=":", linewidth=1, label="at the bound")
    rate.set(xscale="log", yscale="log", xlabel=axis, ylabel="tokens/s" if answer.decode else "sequences/s")
    for panel in (latency, rate):
        panel.set_xticks(values, labels=[f"{value:g}" for value in values], fontsize=8)
        panel.minorticks_off()
    fits = np.broadcast_to(answer.memory.fits, np.shape(values))
    if not fits.all():
        first = values[int(np.argmin(fits))]
        for panel in (latency, rate):
            panel.axvline(first, color=BLACK, linewidth=0.8, linestyle="-.")
        rate.annotate(
            "does not fit", (first, 0.02), xycoords=("data", "axes fraction"), rotation=90, fontsize=8, ha="right"
        )
    rate.legend(fontsize=8)
    return figure


@_styled
def memory(scenario: Scenario, batches: Sequence[int]) -> Figure:
    """What fills the memory of a device against the batch, under its capacity."""
    values = np.array(batches)
    held = analyze(replace(scenario, batch=values)).memory
    figure, (panel,) = _figure(f"{_named(scenario)}: memory of a device")
    parts = {
        "weights": np.full(values.shape, held.weights, dtype=float),
        "KV cache": np.broadcast_to(held.kv_cache, values.shape),
        "state": np.broadcast_to(held.state, values.shape),
        "activations": np.broadcast_to(held.activation_peak, values.shape),
    }
    shown = {name: size for name, size in parts.items() if np.any(size > 0)}
    panel.stackplot(
        values, *shown.values(), labels=list(shown), colors=[BLUE, ORANGE, PURPLE, GREEN][: len(shown)], alpha=0.75
    )
    panel.axhline(held.capacity, color=BLACK, linestyle="--", linewidth=1.2, label="capacity")
    panel.set(xscale="log", xlabel="sequences in the batch", ylabel="bytes")
    panel.yaxis.set_major_formatter(EngFormatter(unit="B"))
    panel.legend(fontsize=8, loc="upper left")
    return figure


@_styled
def measured(document: Mapping[str, Any]) -> Figure:
    """Predictions with their intervals against published figures: the document of `roofline validate check`."""
    figure, (panel,) = _figure("Predicted against published", size=(7.0, 6.6))
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
            label=_plain(name),
        )
    panel.axhline(1.0, color=BLACK, linewidth=1)
    panel.set(yscale="log", xlabel="published figures, by source", ylabel="predicted / published")
    panel.set_xticks([])
    panel.set_yticks([0.25, 0.5, 0.8, 1, 1.25, 2, 4], labels=["0.25", "0.5", "0.8", "1", "1.25", "2", "4"])
    panel.minorticks_off()
    panel.legend(fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.06), ncols=2)
    return figure


def _seconds(value: float) -> str:
    from roofline.units import seconds

    return seconds(value)
