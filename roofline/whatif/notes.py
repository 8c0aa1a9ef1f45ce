"""All notes on a scenario, one sentence each: what has no effect, and what its engine is not known to run."""

from __future__ import annotations

from roofline.scenario.analysis import Analysis
from roofline.scenario.notes import notes as scenario_notes
from roofline.techniques.unsupported import note


def notes(analysis: Analysis) -> tuple[str, ...]:
    """The notes on a single scenario."""
    unsupported = note(analysis.scenario)
    return (*scenario_notes(analysis), *(() if unsupported is None else (unsupported,)))
