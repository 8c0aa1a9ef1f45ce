"""Command lines that reproduce a scenario, without options at their default."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from decimal import ROUND_DOWN, Context
from types import MappingProxyType
from typing import Any

from roofline.core.options import Kind
from roofline.scenario.options import OPTIONS, STATIC
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load


def command_words(scenario: Scenario, names: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """MODEL --hw HW [OPTIONS] as words, with other `names` of model and hardware where these are given.

    Raises RooflineError for a part without text form: an engine or a grid made in Python.
    """
    words = [names.get("model", scenario.model_name), "--hw", names.get("hw", scenario.hardware_name)]
    for flag, value in option_words(scenario):
        words += [flag] if value is None else [flag, value]
    return words


def command_line(scenario: Scenario, command: str = "analyze") -> str:
    """`roofline COMMAND MODEL --hw HW [OPTIONS]`, quoted for a shell."""
    return shlex.join(["roofline", *command.split(), *command_words(scenario)])


def serve_command(scenario: Scenario, load: Load | Mapping[str, Any], command: str = "serve") -> str:
    """The `roofline COMMAND` of a scenario's deployment under a load, or under the options of sessions."""
    if not isinstance(load, Load):
        given = [word for name, value in load.items() if value is not None for word in (f"--{name}", str(value))]
        lengths = ("prompt", "generate") if load.get("profile") else ()
        return f"{command_line(scenario.without(*lengths, *STATIC), 'serve')} {shlex.join(given)}"
    deployed = scenario.without("prompt", "generate", *STATIC).with_room_for(load.concurrency)
    words = ["--prompt", load.prompts.written]
    words += [] if scenario.model.task == "encode" else ["--generate", load.outputs.written]
    words += ["--prefix-hits", f"{load.hits!r}"] if load.hits else []
    words += ["--concurrency", str(load.concurrency)] if load.rate is None else ["--rate", rate_word(load.rate)]
    return f"{command_line(deployed, command)} {shlex.join(words)}"


def rate_word(rate: float) -> str:
    """Requests/s with six digits, rounded down so that a sustainable rate stays one."""
    return f"{Context(prec=6, rounding=ROUND_DOWN).create_decimal(repr(float(rate))).normalize():f}"


def option_texts(scenario: Scenario) -> dict[str, str]:
    """The options of a scenario that are not at their default, as texts by name; `read_options` reads them."""
    return {name: "+".join(OPTIONS[name].written(value)) for name, value in scenario.options.items()}


def option_words(scenario: Scenario) -> Iterator[tuple[str, str | None]]:
    """The options of a scenario that are not at their default, as (flag, value); None is a flag without a value."""
    for name, value in scenario.options.items():
        option = OPTIONS[name]
        if name in ("model", "hw") or (name == "engine" and value == scenario.question.default_engine):
            continue
        if option.kind is Kind.SWITCH:
            yield (option.flag if value else option.flag.replace("--", "--no-", 1)), None
            continue
        for text in option.written(value):
            yield option.flag, text
