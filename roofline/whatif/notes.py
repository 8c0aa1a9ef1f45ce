"""All notes on a scenario, one sentence each: what has no effect, and what its engine is not known to run."""

from __future__ import annotations

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import Analysis
from roofline.scenario.notes import notes as scenario_notes
from roofline.scenario.scenario import Scenario
from roofline.specs.reserve import STATIC
from roofline.techniques.unsupported import note


def notes(analysis: Analysis) -> tuple[str, ...]:
    """The notes on a single scenario."""
    unsupported = note(analysis.scenario)
    return (*scenario_notes(analysis), *(() if unsupported is None else (unsupported,)))


BLOCKED = 4
"""Decode steps from whose time on the prefill of a batch is noted: in a service, sequences would wait for it."""


def service_note(analysis: Analysis) -> str | None:
    """A note that the prompts of a batch are prefilled at once, with the command that answers for a service under load.

    None for a single sequence of each rank, for a short prefill, and where `roofline serve` takes no such scenario.
    """
    scenario = analysis.scenario
    if not (scenario.asked and analysis.times_are_expected):
        return None
    if scenario.shape or int(scenario.batch) <= analysis.parallel.data or not is_served(scenario):
        return None
    expected = analysis.expected
    if expected.tpot is None or not expected.ttft.mid >= BLOCKED * expected.tpot.mid:
        return None
    users = int(scenario.batch)
    told = f"a static batch: all {users} prompts are prefilled at once"
    try:
        return f"{told}. Under load: {users_command(scenario, users)}"
    except RooflineError:  # a model, hardware or an engine made in Python has no name for a command
        return told


def users_command(scenario: Scenario, users: int) -> str:
    """The `roofline serve` command of some requests in flight."""
    # Not at the top: most analyses have no such note, and the serving room takes milliseconds to import.
    from roofline.whatif.command_line import serve_command
    from roofline.whatif.solve.load import load_of

    return serve_command(scenario, load_of(scenario, users))


def is_served(scenario: Scenario) -> bool:
    """Whether `roofline serve` has an answer for the scenario's deployment and lengths."""
    model = scenario.model
    static = scenario.settings.memory == STATIC or scenario.shape or scenario.images
    encoder = model.task != "generate" or model.tower_kind == "encoder"
    split = scenario.settings.decode_hardware is not None or scenario.convention != "physical"
    return not (static or encoder or split)
