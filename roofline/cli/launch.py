"""The command `roofline launch`: what starts a server, and measures it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli.options import emit, say
from roofline.cli.scenario_options import TiersOption, scenario_command
from roofline.scenario.options import STATIC
from roofline.specs.servers import SERVERS

CALLED = {"docker": "compose", "docker-compose": "compose", "k8s": "kubernetes", "bash": "shell", "sh": "shell"}
"""Other words for targets."""


@partial(scenario_command, without=(*STATIC, "engine"))
def launch(
    scenario: Any,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME[@VERSION]",
            help=f"The engine: {', '.join(SERVERS)}. [default: vllm; llama.cpp on CPUs, Apple silicon and of GGUF]",
        ),
    ] = None,
    target: Annotated[
        str,
        typer.Option(
            "--as", metavar="TARGET", help="shell, compose or kubernetes; with --disaggregation llm-d or dynamo."
        ),
    ] = "shell",
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let the engine run code of the model's repository.")
    ] = False,
    tiers: TiersOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PATH", help="A folder for the files, or one file for all of them."),
    ] = None,
    **load: Any,
) -> None:
    """Write what starts a server: its command or manifests, and its benchmark.

    The server has the settings of the scenario, or is refused; what is not said is chosen, as `roofline MODEL HW` does.
    Beside it stand the memory that it takes, the benchmark of one load (--concurrency or --rate), and what that is
    predicted to measure.
    """
    from roofline.advisor.fitting import of_means, written
    from roofline.core.files import write_together
    from roofline.launch.bundle import launch as bundle
    from roofline.scenario.analysis import analyze
    from roofline.scenario.notes import without_effect
    from roofline.serving.options import LOAD_OPTIONS, load_values
    from roofline.verdict.asked import settled

    if engine:
        scenario = scenario.with_(engine=engine)
    asked = dict(load)
    for option in ("concurrency", "rate"):
        if load[option] is not None:
            load[option] = load_values(LOAD_OPTIONS[option], load[option])
    chosen = settled(scenario, **asked)
    if chosen.options:
        say(f"roofline: chosen: {written(chosen.options)}", err=True)
    found = bundle(
        chosen.scenario,
        scenario.profile.name if engine else None,
        CALLED.get(target, target),
        trust_remote_code=trust_remote_code,
        tiers=tiers,
        **load,
    )
    unpriced = [] if scenario.price is None else ["--price has no effect: a launch tells no cost"]
    for sentence in (*unpriced, *without_effect(analyze(of_means(chosen.scenario)), served=True)):
        say(f"roofline: {sentence}", err=True)
    if output is None or output.suffix:
        emit(found.text, output)
        return
    output.mkdir(parents=True, exist_ok=True)
    write_together({output / file: text.encode() for file, text in found.files.items()})
    say("\n".join(str(output / file) for file in found.files))
