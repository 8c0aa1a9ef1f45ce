"""The command that starts what a verdict chose: the one place where the line `Run it:` is made."""

from __future__ import annotations

import shlex
from contextlib import suppress

from roofline.core.errors import RooflineError
from roofline.launch.bundle import Target, launch_command
from roofline.launch.settings import one_replica
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load
from roofline.specs.servers import SERVERS, server_of
from roofline.whatif.command_line import command_line, serve_command


def run_command(scenario: Scenario, context: int, load: Load | None = None, slots: int = 1, apart: str = "") -> str:
    """The command of the scenario's engine, or, where none can say its settings, one that repeats the prediction.

    Of prefill and decode apart, the one that writes the manifest of all servers.

    Engines that allot the whole cache at their start allot `context` tokens to each of the `slots` for the requests
    that run at once, or what these need where that has no room.
    """
    if load is not None and apart:
        command = serve_command(one_replica(scenario), load, "launch")
        # The containers of Dynamo are of CUDA.
        target = Target.DYNAMO if scenario.hardware.vendor == "NVIDIA" else Target.LLM_D
        return f"{command} --disaggregation {shlex.quote(apart)} --as {target}"
    name = scenario.profile.name
    allots = name in SERVERS and server_of(name).allots
    said = any(scenario.given(option) is not None for option in ("max_model_len", "ctx_size"))
    for asked in ([scenario.with_(max_model_len=context)] if allots and not said else []) + [scenario]:
        with suppress(RooflineError):  # MLX has no option for the context
            return launch_command(asked, concurrency=None if load is None else slots)
    try:
        return command_line(scenario) if load is None else serve_command(scenario, load)
    except RooflineError:
        return ""
