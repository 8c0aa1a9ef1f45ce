"""Explanations: a figure's formula with this scenario's numbers in it, what bounds it, and what it rests on.

Every line has a formula in words, the same with numbers, and its value. The one with numbers is arithmetic that Python
evaluates to the value: an explanation that does not add up is a defect.
"""

from __future__ import annotations

from msgspec import Struct

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import Analysis
from roofline.scenario.notes import notes
from roofline.whatif.explain.definitions import DEFINITIONS, METRICS
from roofline.whatif.explain.grounds import assumptions, commands, figures_of
from roofline.whatif.explain.lines import Line, Margin
from roofline.whatif.explain.metrics import METRIC_LINES
from roofline.whatif.explain.operators import KernelGround, namesakes, operator


class Explanation(Struct, frozen=True):
    """A figure taken apart.

    `kernel` is None for metrics of a whole pass; its constants are (name, value, unit, meaning), its ranges the
    smallest and largest fitted value of a column and the one here. `commands` measure the same on real hardware.
    """

    subject: str
    definition: str
    value: float
    unit: str
    lines: tuple[Line, ...]
    margin: Margin | None
    kernel: KernelGround | None
    assumptions: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]


def explain(analysis: Analysis, name: str, phase: str | None = None) -> Explanation:
    """Take a metric apart, or an operator of `phase` (prefill unless it is 'decode').

    Raises UnknownNameError for anything else.
    """
    grounds: tuple[str, ...] = ()
    if name in METRICS:
        lines, margin, unit = METRIC_LINES[name](analysis)
        subject, definition = name, DEFINITIONS[name]
        grounds = tuple(figures_of(analysis, name))
        ground = None
    else:
        part = getattr(analysis, phase or "prefill")
        if part is None:
            raise RooflineError(f"{analysis.scenario.model.name} only encodes and has no decode phase")
        subject, lines, margin, ground = operator(analysis, part, name)
        grounds = namesakes(part, name)
        definition, unit = "One operator of a pass on the roofline, and its part of the kernel that runs it.", "s"
    engine = analysis.scenario.profile.name
    tools = tuple(sorted(commands(analysis, name), key=lambda entry: entry[0] != engine))
    return Explanation(
        subject=subject,
        definition=definition,
        value=lines[-1].value,
        unit=unit,
        lines=tuple(lines),
        margin=margin,
        kernel=ground,
        assumptions=(*grounds, *assumptions(analysis), *notes(analysis)),
        commands=tools,
    )


__all__ = ["DEFINITIONS", "METRICS", "Explanation", "KernelGround", "Line", "Margin", "explain"]
