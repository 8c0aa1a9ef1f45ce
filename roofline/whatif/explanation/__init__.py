"""Explanations of metrics and operators: formulas with a scenario's numbers, the bound, and assumptions.

Every line has a formula in words, the formula with numbers, and its value, which Python evaluates from the numbers.
"""

from __future__ import annotations

from msgspec import Struct

from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.argument import scenario_of
from roofline.scenario.scenario import Scenario
from roofline.specs.engine import PHASES
from roofline.whatif.explanation.assumptions import assumptions, commands, sources_of
from roofline.whatif.explanation.lines import Line, Margin
from roofline.whatif.explanation.metrics import DEFINITIONS, METRIC_LINES, METRICS
from roofline.whatif.explanation.operators import KernelCalibration, namesakes, operator
from roofline.whatif.notes import notes


class Explanation(Result, Struct, frozen=True):
    """The explanation of a metric or an operator.

    `kernel` is None for a metric. `commands` are (tool, command) that measure the same on real hardware.
    """

    subject: str
    definition: str
    value: float
    unit: str
    lines: tuple[Line, ...]
    margin: Margin | None
    kernel: KernelCalibration | None
    assumptions: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    scenario: Scenario | None = None

    @property
    def described(self) -> str:
        return f"{self.subject} of {super().described}"


def explain(scenario: Scenario | Analysis, name: str, phase: str | None = None) -> Explanation:
    """The explanation of a metric, or of an operator of `phase` (default: prefill), of a scenario or its analysis.

    >>> from roofline import Scenario, explain
    >>> found = explain(Scenario("llama-3.1-8b", "h100-sxm", batch=8), "tpot")
    >>> found.unit, found.margin.bound
    ('s', 'memory')

    Raises UnknownNameError for an unknown name.
    """
    analysis = scenario if isinstance(scenario, Analysis) else analyze(scenario_of(scenario))
    scenario_of(analysis.scenario, single=True)
    if phase not in (None, *PHASES):
        raise UnknownNameError("phase", phase, PHASES)
    if name in METRICS:
        lines, margin, unit = METRIC_LINES[name](analysis)
        subject, definition = name, DEFINITIONS[name]
        sources, kernel = tuple(sources_of(analysis, name)), None
    else:
        part = getattr(analysis, phase or "prefill")
        if part is None:
            raise RooflineError(f"{analysis.scenario.model.name} only encodes and has no decode phase")
        subject, lines, margin, kernel = operator(analysis, part, name)
        sources = namesakes(part, name)
        definition, unit = "One operator of a pass: its roofs, and its fraction of its kernel's expected time.", "s"
    engine = analysis.scenario.profile.label
    tools = tuple(sorted(commands(analysis, name), key=lambda entry: entry[0] != engine))
    told, value = (*sources, *assumptions(analysis), *notes(analysis)), lines[-1].value
    scenario = analysis.scenario
    return Explanation(subject, definition, value, unit, tuple(lines), margin, kernel, told, tools, scenario)


__all__ = ["DEFINITIONS", "METRICS", "Explanation", "KernelCalibration", "Line", "Margin", "explain"]
