"""The verbs as tools of the Model Context Protocol over standard input and output, for assistants that ask.

Results are the documents that the commands print as JSON: times with 80% intervals, and the sources of constants and
prices. A tool reads the bundled specs and those in ROOFLINE_SPECS, and no other file of the machine, whatever its
arguments say. A user error is one sentence.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

import roofline
from roofline import Scenario
from roofline.core.display import Result
from roofline.core.errors import RooflineError, quote
from roofline.core.inputs import restricted
from roofline.launch.bundle import launch as bundle
from roofline.scenario.options import OPTIONS
from roofline.specs.library import folders
from roofline.specs.modelspec import list_models
from roofline.specs.servers import SERVERS
from roofline.verdict.asked import settled

Value = str | int | float | bool | list[str]
Options = Annotated[
    dict[str, Value] | None,
    Field(description="Further options of the scenario by name, such as {'tp': 2, 'quant': 'fp8', 'prompt': 2000}."),
]
ModelName = Annotated[str, Field(description="A model: a bundled name or a Hugging Face repository.")]
HardwareName = Annotated[str, Field(description="Hardware, also with a count: h100-sxm, 8xH200, 2x4090.")]
Users = Annotated[int | None, Field(description="Requests in flight; none is one request at a time.")]
Rate = Annotated[float | None, Field(description="Requests/s that arrive, in place of users.")]
Target = Annotated[str | None, Field(description="A limit at p95 with its unit, such as 500ms.")]

INSTRUCTIONS = (
    "Predicts speed, memory and cost of LLM inference on given hardware. Times are seconds with 80% intervals (low,"
    " mid, high). Say the interval with a figure, and what `not_known_to_run`, `notes` and `doubts` say."
)


def _check(path: Path) -> None:
    """Refuse a file that is no part of the program and not in ROOFLINE_SPECS."""
    found = Path(os.path.realpath(path)) if "\0" not in str(path) else Path()
    if not any(found.is_relative_to(folder.resolve()) for folder in folders()):
        raise RooflineError(f"tools read no files of this machine: {quote(path.name)} is no bundled name")


@contextmanager
def _guarded() -> Iterator[None]:
    """Within the block no other file is opened, and a user error is a tool's."""
    try:
        with restricted(_check):
            yield
    except RooflineError as error:
        raise ToolError(str(error)) from None


def _scenario(model: str, hw: str, options: Mapping[str, Any] | None) -> Scenario:
    return Scenario(model, hw, **(options or {}))


def _document(answer: Result) -> dict[str, Any]:
    found = answer.to_dict()
    for phase in found.get("phases", {}).values():
        phase.pop("ops", None)  # dozens of operators: `explain` has each
    return found


def answer(
    model: ModelName,
    hw: HardwareName,
    users: Users = None,
    rate: Rate = None,
    ttft: Target = None,
    tpot: Target = None,
    options: Options = None,
) -> dict[str, Any]:
    """Whether a model runs on hardware, how fast, what limits it, what would help, and the command that starts it.

    Engine, formats and layout are chosen where `options` do not say them.
    """
    load: dict[str, Any] = {"users": users, "rate": rate, "ttft": ttft, "tpot": tpot}
    return _document(roofline.answer(model, hw, **load, **(options or {})))


def analyze(model: ModelName, hw: HardwareName, users: Users = None, options: Options = None) -> dict[str, Any]:
    """Whether a model fits, how fast it runs, what bounds it and what it costs; with `users` also under that load."""
    scenario = _scenario(model, hw, options)
    found = {"answer": _document(roofline.analyze(scenario))}
    if users is not None:
        found["under_load"] = _document(roofline.serve(scenario, concurrency=users))
    return found


def choose(
    what: Annotated[
        str, Field(description="layout, format, engine, hardware, speculation, disaggregation, offload or api.")
    ],
    model: ModelName,
    hw: Annotated[str, Field(description="Hardware, with a count as in 8xH200; to choose it several, by commas.")],
    users: Users = None,
    objective: Annotated[str | None, Field(description="throughput, latency, ttft, tpot or cost.")] = None,
    api_price: Annotated[str | None, Field(description="For api: USD per million tokens, IN/OUT.")] = None,
    options: Options = None,
) -> dict[str, Any]:
    """All alternatives of one decision under a load, ranked, with the probability that the first is the best."""
    given: dict[str, Any] = dict(options or {})
    own: dict[str, Any] = {"objective": objective, "api_price": api_price}
    if twice := sorted(own.keys() & given.keys()):
        raise RooflineError(f"{twice[0]} is an argument of its own, not one of options")
    return _document(roofline.choose(what, model, hw, users, **own, **given))


def launch(
    model: ModelName,
    hw: HardwareName,
    users: Users = None,
    engine: Annotated[str | None, Field(description=f"An engine: {', '.join(SERVERS)}.")] = None,
    target: Annotated[
        str, Field(description="shell, compose or kubernetes; with prefill and decode apart llm-d or dynamo.")
    ] = "shell",
    tiers: Annotated[str | None, Field(description="Tiers of the KV cache behind the devices: dram=64GB.")] = None,
    options: Options = None,
) -> dict[str, Any]:
    """The files that start a server and measure it, the memory that it takes, and what it is predicted to do."""
    asked = _scenario(model, hw, options if engine is None else {**(options or {}), "engine": engine})
    chosen = settled(asked, concurrency=users).scenario
    return bundle(chosen, engine, target, concurrency=users, tiers=tiers).to_dict()


def size(
    model: ModelName,
    hw: Annotated[str, Field(description="Names of hardware to choose from, by commas.")],
    users: Users = None,
    rate: Rate = None,
    ttft: Target = None,
    tpot: Target = None,
    options: Options = None,
) -> dict[str, Any]:
    """How many devices of which hardware serve a load within targets: the cheapest, the fewest, the fastest."""
    load: dict[str, Any] = {"concurrency": users, "rate": rate, "ttft": ttft, "tpot": tpot}
    given: dict[str, Any] = dict(options or {})
    return _document(roofline.size(model, hw=hw, **load, **given))


def explain(
    metric: Annotated[str, Field(description="ttft, tpot, total, tokens_per_s, memory, cost or an operator's name.")],
    model: ModelName,
    hw: HardwareName,
    options: Options = None,
) -> dict[str, Any]:
    """Where a figure comes from: formulas with numbers, assumptions and sources."""
    return _document(roofline.explain(_scenario(model, hw, options), metric))


def names() -> dict[str, list[str]]:
    """The names of bundled models and hardware, and of the options of a scenario."""
    return {"models": list_models(), "hardware": roofline.list_hardware(), "options": list(OPTIONS)}


TOOLS: tuple[Callable[..., dict[str, Any]], ...] = (answer, choose, launch, size, analyze, explain, names)
"""The tools, in the order in which they are listed."""


def server() -> MCPServer:
    """The server with its tools; `run` serves standard input and output."""
    found = MCPServer("roofline", instructions=INSTRUCTIONS, version=roofline.__version__, log_level="ERROR")
    for tool in TOOLS:
        found.tool()(_guarded()(tool))
    return found
