"""The scenarios of a report: one, or all combinations of the axes of a study."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import Struct

from roofline import Analysis, analyze
from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError
from roofline.reports.figures.request import is_yaml, scenario_options
from roofline.reports.figures.style import base_title
from roofline.reports.figures.table import values_of
from roofline.scenario.options import find_option
from roofline.scenario.scenario import Scenario
from roofline.whatif.study import assemble

MAX_SUBJECTS = 8
"""Maximum number of scenarios side by side."""


class Subject(Struct, frozen=True, dict=True):
    """A scenario, and its label among several; empty if there is only one."""

    scenario: Scenario
    label: str = ""

    @cached_property
    def analysis(self) -> Analysis:
        return analyze(self.scenario)

    @property
    def name(self) -> str:
        return base_title(self.analysis.scenario)


def subjects(source: str | None, over: Iterable[str], options: Mapping[str, Any]) -> list[Subject]:
    """The scenarios of `roofline report [MODEL|STUDY]`: every combination of the axes of the study, or of `over`.

    Options that are None are not given. Raises RooflineError, also for more than `MAX_SUBJECTS`.
    """
    over = list(over)
    is_file = source is not None and is_yaml(source) and Path(source).is_file()
    if not over and not (is_file and "over" in read_mapping(Path(str(source)))):
        return [Subject(Scenario(**scenario_options(source, options)))]
    study = assemble(source, over, options, {})
    if study.points > MAX_SUBJECTS:
        raise RooflineError(
            f"a report shows {MAX_SUBJECTS} scenarios side by side at most, and the axes make {study.points}"
        )
    values = [[find_option(axis.name).read(label) for label in values_of(axis)] for axis in study.axes]
    found = []
    for chosen in product(*values):
        varied = {axis.name: value for axis, value in zip(study.axes, chosen, strict=True)}
        label = ", ".join(f"{name} {_text(value)}" for name, value in varied.items())
        found.append(Subject(Scenario.varied(study.question.fixed, varied), label))
    return found


def _text(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return "+".join(map(str, value)) or "none"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else "none" if value is None else str(value)
