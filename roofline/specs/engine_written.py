"""Engine profiles as the text of YAML files, which `roofline.specs.engine_files` reads back."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import yaml
from msgspec import Struct, to_builtins

from roofline.core.parameters import Parameter, Unit
from roofline.specs.engine import PARAMETERS, Engine
from roofline.specs.reserve import GIB, NO_RESERVE, SIZES, LargeDevice
from roofline.specs.scheduler import PLAIN_SCHEDULER, TIMES

PLAIN = Engine("plain")

_ALWAYS = ("fusions", "graphs")
_APART = {"name", "title", "parameters", "spread", "sources", "handled", "vendors", "mixers", "version", "starts"}
_FLOWING = tuple(key for key in Engine.__struct_fields__ if key not in {*_APART, "memory", "scheduler"})
"""Keys of a profile that are written on one line each, where they are not at their defaults."""


def render(engine: Engine) -> str:
    """The YAML text of a profile; `parse_engine` reads it back."""
    lines = [f"name: {engine.name}", f"title: {_quoted(engine.title)}"]
    given = ((key, getattr(engine, key)) for key in _FLOWING)
    lines += [f"{key}: {_flow(value)}" for key, value in given if key in _ALWAYS or value != getattr(PLAIN, key)]
    lines += _section("memory", engine.memory, NO_RESERVE, _reserved)
    lines += _section("scheduler", engine.scheduler, PLAIN_SCHEDULER, _scheduled)
    lines.append("parameters:")
    lines += [
        f"  {parameter.name}: {_shown(parameter, engine[parameter.name])}  # {parameter.meaning}"
        for parameter in PARAMETERS
    ]
    for key in ("vendors", "mixers"):
        differing = getattr(engine, key)
        lines += [f"{key}:"] if differing else []
        for name, own in differing.items():
            values = (f"{each.name}: {_shown(each, own[each.name])}" for each in PARAMETERS if each.name in own)
            lines.append(f"  {_quoted(name)}: {{{', '.join(values)}}}")
    lines.append(f"spread: [{engine.spread[0]:.4g}, {engine.spread[1]:.4g}]")
    lines += ["sources:", *(f"  - {_quoted(source)}" for source in engine.sources)] if engine.sources else []
    return "\n".join(lines) + "\n"


def _section(key: str, found: Struct, usual: Struct, written: Callable[[str, Any], str]) -> list[str]:
    """The lines of a section: what differs from its defaults."""
    values = ((name, getattr(found, name)) for name in found.__struct_fields__)
    changed = [f"  {name}: {written(name, value)}" for name, value in values if value != getattr(usual, name)]
    return [f"{key}:", *changed] if changed else []


def _reserved(name: str, value: Any) -> str:
    if isinstance(value, LargeDevice):
        names = f", except: [{', '.join(value.except_)}]" if value.except_ else ""
        inside = f"tokens: {value.tokens}, sequences: {value.sequences}, memory: {value.memory / GIB:.4g}{names}"
        return f"{{{inside}}}  # from that many GiB on"
    if isinstance(value, float):
        return f"{value / GIB:.4g}  # GiB" if name in SIZES else f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(to_builtins(value))


def _scheduled(name: str, value: Any) -> str:
    if name in TIMES:
        return f"{value * 1e6:.4g} us"
    if isinstance(value, tuple):
        return f"[{value[0]:.4g}, {value[1]:.4g}]"
    return str(value).lower() if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


def _flow(value: object) -> str:
    """A value in YAML on one line; texts are quoted unless they are names."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_flow(key)}: {_flow(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_flow, value))}]"
    if isinstance(value, str):
        return (
            value if re.fullmatch(r"[a-z][\w-]*[a-z\d]", value) and yaml.safe_load(value) == value else _quoted(value)
        )
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(parameter: Parameter, value: float) -> str:
    return f"{value:.4g}" if parameter.unit is Unit.RATIO or value == 0 else f"{value * 1e6:.4g} us"


def _quoted(text: str) -> str:
    plain = "".join(character if character.isprintable() else " " for character in text)
    return "'" + plain.replace("'", "''") + "'"
