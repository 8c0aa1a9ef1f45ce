"""Figures of one scenario: its roofline, its times over batch and prompt, its memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from roofline import Scenario, analyze
from roofline.core.search import integer_geomspace
from roofline.reports.documents.summary import MEMORY_PARTS
from roofline.reports.figures.operators import rooflines
from roofline.reports.figures.style import BLACK, BLUE, GREEN, ORANGE, PURPLE, VERMILION, base_title, new_figure, styled
from roofline.timing.intervals import Estimate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BATCHES = tuple(2**power for power in range(10))
"""Batches of the x axis."""

PROMPTS = tuple(2**power for power in range(7, 16))
"""Prompt lengths of the x axis, up to the maximum context."""

AXES = {"batch": ("batch (sequences)", "batch"), "prompt": ("prompt (tokens)", "prompt length")}
"""What figures over an option write at their axis and in their title."""


def scenario_figure(kind: str, scenario: Scenario) -> Figure:
    """The figure of a scenario by its kind: roofline, batch, prompt or memory."""
    match kind:
        case "batch":
            return over(scenario, "batch", BATCHES)
        case "prompt":
            longest = scenario.model.max_context or PROMPTS[-1]
            return over(scenario, "prompt", [prompt for prompt in PROMPTS if prompt <= longest] or [longest])
        case "memory":
            return memory(scenario, integer_geomspace(1, BATCHES[-1], 60).tolist())
    return rooflines(analyze(scenario))


def _banded(
    panel: Axes, values: Any, expected: Estimate, bound: Any, colour: str, names: tuple[str, str], style: str = "-"
) -> None:
    """Expected figures with their interval, and those at the bound as a dotted line."""
    look: dict[str, Any] = {"color": colour, "linestyle": style, "marker": "o", "markersize": 3}
    panel.plot(values, expected.mid, **look, label=names[0])
    panel.fill_between(values, expected.low, expected.high, color=colour, alpha=0.18, linewidth=0)
    panel.plot(values, bound, color=colour, linestyle=":", linewidth=1, label=names[1])


@styled
def over(scenario: Scenario, option: str, counts: Sequence[int]) -> Figure:
    """TTFT, TPOT and throughput over the batch or the prompt: expected with its 80% interval, and the bound."""
    values, (axis, title) = np.array(counts), AXES[option]
    options = {"batch": values} if option == "batch" else {"prompt": values, "context": None}
    answer = analyze(scenario.changed(**options))
    figure, (latency, rate) = new_figure(f"{base_title(scenario)} over the {title}", 2, (11.0, 4.8))
    expected, generation = answer.expected, answer.generation
    for name, estimate, bound, colour, style in (
        ("TTFT", expected.ttft, generation.ttft, BLUE, "-"),
        ("TPOT", expected.tpot, generation.tpot, VERMILION, "--"),
    ):
        if estimate is not None and np.isfinite(estimate.mid).all():
            names = (f"{name}, expected", f"{name}, at the bound")
            _banded(latency, values, estimate, bound, colour, names, style)
    latency.set(xscale="log", yscale="log", xlabel=axis, ylabel="time")
    latency.yaxis.set_major_formatter(EngFormatter(unit="s"))
    # An encoder generates no tokens: its throughput is in sequences/s.
    batch, total = answer.scenario.batch, expected.total
    speed = expected.tokens_per_second if answer.decode else Estimate(*(batch / time for time in reversed(total)))
    bound = generation.tokens_per_second if answer.decode else batch / generation.total
    _banded(rate, values, speed, bound, GREEN, ("expected", "at the bound"))
    rate.set(xscale="log", yscale="log", xlabel=axis, ylabel="tokens/s" if answer.decode else "sequences/s")
    fits = np.broadcast_to(answer.memory.fits, np.shape(values))
    first = None if fits.all() else values[int(np.argmin(fits))]
    for panel in (latency, rate):
        panel.set_xticks(values, labels=[f"{value:.10g}" for value in values], fontsize=8)
        panel.minorticks_off()
        panel.legend(fontsize=8)
        if first is not None:
            panel.axvline(first, color=BLACK, linewidth=0.8, linestyle="-.")
    if first is not None:
        look: dict[str, Any] = {"rotation": 90, "fontsize": 8, "ha": "right"}
        rate.annotate("does not fit", (first, 0.02), xycoords=("data", "axes fraction"), **look)
    return figure


@styled
def memory(scenario: Scenario, batches: Sequence[int]) -> Figure:
    """The parts of the memory of a device over the batch, and what the engine may use."""
    values = np.array(batches)
    held = analyze(scenario.changed(batch=values)).memory
    figure, (panel,) = new_figure(f"{base_title(scenario)}: memory per device")
    sizes = ((title, np.asarray(getattr(held, name), float)) for name, title in MEMORY_PARTS.items())
    parts = {title: np.broadcast_to(size, values.shape) for title, size in sizes}
    shown = {name: size for name, size in parts.items() if np.any(size > 0)}
    colours = [BLUE, ORANGE, PURPLE, GREEN, VERMILION][: len(shown)]
    panel.stackplot(values, *shown.values(), labels=list(shown), colors=colours, alpha=0.75)
    usable = np.broadcast_to(held.budget, values.shape)
    panel.plot(values, usable, color=BLACK, linestyle="--", linewidth=1.2, label="usable")
    panel.set(xscale="log", xlabel="batch (sequences)", ylabel="memory")
    panel.yaxis.set_major_formatter(EngFormatter(unit="B"))
    panel.legend(fontsize=8, loc="upper left")
    return figure
