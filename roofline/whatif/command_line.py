"""Command lines that reproduce a request, without options at their default."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.graph.convention import Convention
from roofline.graph.offload import RESIDENT, Offload
from roofline.graph.parallel import Parallelism
from roofline.serving.load import Load
from roofline.specs.engine import Engine, default_engine
from roofline.specs.reserve import MEMORY_READINGS
from roofline.whatif.options import OPTIONS
from roofline.whatif.request import Request

_COUNTS = {"batch": 1, "generate": 128, "prefix": 0, "images": 0, "prompt": None, "context": None}


def command_words(request: Request) -> list[str]:
    """MODEL --hw HW [OPTIONS] as words.

    Raises RooflineError for a part without text form: an engine or a grid made in Python.
    """
    words = [request.model_name, "--hw", request.hardware_name]
    for option, value in option_words(request):
        words += [option] if value is None else [option, value]
    return words


def command_line(request: Request, command: str = "analyze") -> str:
    """`roofline COMMAND MODEL --hw HW [OPTIONS]`, quoted for a shell."""
    return shlex.join(["roofline", *command.split(), *command_words(request)])


def serve_command(request: Request, load: Load) -> str:
    """The `roofline serve` command of a request's deployment under a load of requests in flight, or of a rate."""
    kept = {name: value for name, value in request.options.items() if name not in OF_A_BATCH}
    words = ["--prompt", load.prompts.written, "--generate", load.outputs.written]
    words += ["--prefix-hits", f"{load.hits!r}"] if load.hits else []
    words += ["--concurrency", str(load.concurrency)] if load.rate is None else ["--rate", f"{load.rate!r}"]
    return f"{command_line(replace(request, options=kept), 'serve')} {shlex.join(words)}"


OF_A_BATCH = ("batch", "prompt", "generate", "context", "prefix")
"""Options of a static batch, in whose place a load has its own."""


def option_words(request: Request) -> Iterator[tuple[str, str | None]]:
    """The options of a request that are not at their default, as (flag, value); None is a flag without a value."""
    options = request.options
    for name, default in _COUNTS.items():
        value = options.get(name, default)
        if value is not None and value != default:
            if not isinstance(value, int):
                raise RooflineError(f"a grid of --{name} is not one command")
            yield f"--{name}", str(value)
    if options.get("image_size") is not None:
        yield "--image-size", options["image_size"]
    yield from _targets("formats", request.formats)
    convention = str(options.get("convention", Convention.PHYSICAL))
    yield from _fusions(request, convention)
    yield from _targets("degrees", dict(_degrees(request)))
    yield from _targets("limits", request.limits)
    skew = request.settings.get("expert_skew", 0.0)
    if skew:
        yield "--expert-skew", f"{skew!r}"
    offload = request.settings.get("offload", RESIDENT)
    if offload != RESIDENT:
        yield "--offload", _offload(offload)
    for technique in request.techniques:
        yield "--with", technique
    engine = options.get("engine")
    if isinstance(engine, Engine):
        raise RooflineError("an engine made in Python has no name for a command")
    if engine is not None and engine != default_engine(request.hardware, request.model):
        yield "--engine", engine
    if options.get("host") is not None:
        yield "--host", options["host"]
    price = options.get("price")
    if price is not None:
        yield "--price", f"{price!r}"
    if (memory := request.settings.get("memory", MEMORY_READINGS[0])) != MEMORY_READINGS[0]:
        yield "--memory-reading", memory
    if (share := request.settings.get("utilization")) is not None:
        yield "--gpu-memory-utilization", f"{share!r}"
    if convention != Convention.PHYSICAL:
        yield "--convention", convention


def _degrees(request: Request) -> Iterator[tuple[str, int]]:
    """The degrees that differ from their default: 1, and for nodes the number that the devices need."""
    needed = Parallelism(**{**request.degrees, "nodes": None}).on(request.hardware).nodes
    for name, value in request.degrees.items():
        if value is not None and value != (needed if name == "nodes" else 1):
            yield name, value


def _targets(group: str, values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The options that set entries of a mapping of the request."""
    for name, option in OPTIONS.items():
        if option.target[0] == group and (value := values.get(option.target[-1])) is not None:
            yield f"--{name.replace('_', '-')}", str(value)


def _fusions(request: Request, convention: str) -> Iterator[tuple[str, str | None]]:
    default = convention == Convention.PHYSICAL
    chosen = request.options.get("fusions")
    names = (("attention",) if default else ()) if chosen is None else tuple(chosen)
    if ("attention" in names) is not default:
        yield ("--no-flash" if default else "--flash"), None
    for name in names:
        if name != "attention":
            yield "--fuse", name


def _offload(offload: Offload) -> str:
    parts = [f"{name}={getattr(offload, name)!r}" for name in ("weights", "kv") if getattr(offload, name)]
    if offload.bandwidth is not None:
        parts.append(f"bandwidth={offload.bandwidth!r}B/s")
    return ",".join(parts)
