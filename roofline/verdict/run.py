"""The command that starts what a verdict chose: the one place where the line `Run it:` is made."""

from __future__ import annotations

from contextlib import suppress

from roofline.core.errors import RooflineError
from roofline.launch.bundle import launch_command
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load
from roofline.specs.engine import GGUF_ENGINE
from roofline.whatif.command_line import command_line, serve_command


def run_command(scenario: Scenario, context: int, load: Load | None = None, slots: int = 1) -> str:
    """The command of the scenario's engine, or, where none can say its settings, one that repeats the prediction.

    Engines that allot the whole cache at their start allot `context` tokens to a single user, or `slots` for the
    requests that run at once.
    """
    alone = load is None and scenario.profile.name == GGUF_ENGINE and scenario.given("max_model_len") is None
    for asked in ([scenario.with_(max_model_len=context)] if alone else []) + [scenario]:
        with suppress(RooflineError):  # MLX has no option for the context
            return launch_command(asked, concurrency=None if load is None else slots)
    try:
        return command_line(scenario) if load is None else serve_command(scenario, load)
    except RooflineError:
        return ""
