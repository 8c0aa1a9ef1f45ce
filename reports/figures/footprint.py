"""Memory of each phase by part, relative to the first setting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from roofline import analyze
from roofline.bound.memory import activation_peak
from roofline.core.errors import RooflineError
from roofline.graph.convention import Convention
from roofline.reports.figures.style import BLUE, GREEN, ORANGE, escaped, new_figure, styled
from roofline.reports.figures.table import Table, labels, values_of
from roofline.scenario.options import OPTIONS
from roofline.scenario.scenario import Scenario

PARTS = (("weights", BLUE), ("KV cache", ORANGE), ("activations", GREEN))
PHASES = ("decode", "prefill")
MAX_GROUPS = 12
"""Groups of bars whose labels a figure's width has room for."""


class Held(NamedTuple):
    """Bytes of a phase in one setting: weights, KV cache and activations."""

    setting: str
    group: tuple[str, ...]
    phase: str
    parts: tuple[float, float, float]


@styled
def footprint(table: Table, title: str | None = None) -> Figure:
    """Memory of each phase by setting, relative to the first setting.

    The first axis of the study holds the settings (mostly quantization); the other axes make groups. Memory is weights,
    KV cache and the peak activations of the phase. Raises RooflineError for too many groups or settings.
    """
    held = list(_held(table))
    compared = labels(table.study.axes[0])
    groups = list(dict.fromkeys((entry.phase, entry.group) for entry in held))
    if len(groups) > MAX_GROUPS or len(compared) > 6:
        raise RooflineError(
            f"memory is shown for {MAX_GROUPS} groups of 6 settings at most, not {len(groups)} of {len(compared)}"
        )
    heading = title or f"Memory of each phase by {table.study.axes[0].name}"
    figure, (panel,) = new_figure(f"{heading}\n{table.subject(times=False)}", size=(11.0, 5.2))
    width = 0.84 / len(compared)
    found = {(entry.phase, entry.group, entry.setting): entry.parts for entry in held}
    highest = 0.0
    for place, key in enumerate(groups):
        whole = sum(found.get((*key, compared[0]), (np.nan,)))
        for index, setting in enumerate(compared):
            parts = np.array(found.get((*key, setting), (np.nan,) * 3)) / whole
            spot, bottom = place + (index - (len(compared) - 1) / 2) * width, 0.0
            for (name, colour), part in zip(PARTS, parts.tolist(), strict=True):
                label = name if place == index == 0 else "_"
                panel.bar(spot, part, width * 0.9, bottom=bottom, color=colour, alpha=0.8, label=label)
                bottom += part
            highest = np.fmax(highest, bottom)
            look: dict[str, Any] = {"ha": "center", "fontsize": 7}
            below = panel.get_xaxis_transform()
            panel.text(spot, -0.01, escaped(setting), transform=below, rotation=90, va="top", **look)
            if np.isfinite(bottom):
                panel.text(spot, bottom, f"{bottom:.0%}", va="bottom", **look)
    texts = ["\n".join((phase, *group)) for phase, group in groups]
    panel.set_xticks(range(len(groups)), labels=[escaped(text) for text in texts], fontsize=8)
    panel.tick_params(axis="x", length=0, pad=12 + 4.4 * max(map(len, compared)))
    panel.grid(visible=False, axis="x")
    panel.set(ylabel=escaped(f"memory relative to {compared[0]}"), ylim=(0, 1.14 * highest))
    panel.yaxis.set_major_formatter(PercentFormatter(1.0))
    panel.legend(fontsize=8, loc="upper center", ncols=3)
    return figure


def footprint_rows(table: Table) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
    """Header and rows: bytes by phase, group and setting."""
    header = ("phase", "group", table.study.axes[0].name, "weights", "kv_cache", "activations")
    return header, [(entry.phase, ", ".join(entry.group), entry.setting, *entry.parts) for entry in _held(table)]


def _held(table: Table) -> Iterator[Held]:
    first, *others = table.study.axes
    places = {axis.name: table.places(axis).tolist() for axis in table.study.axes}
    for phase in PHASES:
        for row in range(table.rows.count):
            chosen = {
                axis.name: OPTIONS[axis.name].read(values_of(axis)[places[axis.name][row]]) for axis in table.study.axes
            }
            changes = {**chosen, "memory_reading": "static"}
            answer = analyze(Scenario.varied(table.study.question.fixed, changes))
            passes = getattr(answer, phase)
            if passes is None:
                continue
            convention = Convention(answer.scenario.convention)
            peak = max(
                float(activation_peak(run.placement.network, run.step, convention).max()) for run in passes.passes
            )
            group = tuple(f"{axis.name} {labels(axis)[places[axis.name][row]]}" for axis in others)
            parts = (float(answer.memory.weights), float(np.max(answer.memory.kv_cache)), peak)
            yield Held(labels(first)[places[first.name][row]], group, phase, parts)
