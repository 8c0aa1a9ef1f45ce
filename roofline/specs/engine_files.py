"""Engine profiles as files: parsed from a YAML mapping, with the changes of each version, and written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml
from msgspec.structs import replace

from roofline.core.documents import finite_number, read_mapping
from roofline.core.errors import SpecError, quote, suggest
from roofline.core.parameters import Parameter, Unit
from roofline.specs.engine import PARAMETERS, Engine, bundled_profiles
from roofline.specs.engine_versions import KEYS, aliases_of, merged, versions_of
from roofline.specs.library import as_mapping, check_keys
from roofline.specs.precision import check_scheme
from roofline.specs.records import record, seconds
from roofline.specs.reserve import parse_reserve, render_reserve
from roofline.specs.scheduler import parse_scheduler, render_scheduler
from roofline.specs.version import Version, nearest

BASE = "based_on"
"""The key with the bundled profile from which a file takes what it does not say."""

_KEYS = tuple(key for key in (*Engine.__struct_fields__, *KEYS) if key not in ("version", "starts"))


def parse_engine(content: Mapping[str, Any], where: str, version: str = "") -> Engine:
    """The engine that a profile's mapping describes, at a version; `where` names the file in errors."""
    content = _inherited(content, where)
    asked = Version(version) if version else None
    changes, newest = versions_of(content, where), _parse(content, where, asked)
    aliases_of(content, where)
    profiles = {start: _parse(merged(content, keys), where, asked) for start, keys in changes.items()}
    starts = tuple(start.text for start in changes)
    if asked is None:
        return replace(newest, starts=starts)
    found = profiles[nearest(asked, changes)] if changes else newest
    return replace(found, version=asked.text, starts=starts)


def _inherited(content: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The content after that of the bundled profile that it is `based_on`, whose kernels of its own it has."""
    if BASE not in content:
        return content
    name, known = content[BASE], list(bundled_profiles())
    if name not in known:
        raise SpecError(where, f"unknown name {quote(str(name))} in {quote(BASE)}{suggest(str(name), known)}")
    base = {key: value for key, value in read_mapping(bundled_profiles()[str(name)]).items() if key not in KEYS}
    return merged({**base, "own_kernels_of": name}, {key: value for key, value in content.items() if key != BASE})


def _parse(content: Mapping[str, Any], where: str, version: Version | None) -> Engine:
    check_keys(content, _KEYS, where)
    parts = {
        "parameters": _parameters(content.get("parameters", {}), "parameters", where),
        "vendors": _by_name(content, "vendors", where),
        "mixers": _by_name(content, "mixers", where),
        "memory": parse_reserve(content.get("memory", {}), where, version),
        "scheduler": parse_scheduler(content.get("scheduler", {}), where),
    }
    plain = {key: value for key, value in content.items() if key not in (*parts, *KEYS)}
    engine = replace(record(Engine, {"graphs": [], **plain}, where), **parts)
    for schemes in (engine.checkpoints or {}).items():
        for scheme in schemes:
            check_scheme(scheme, where, "checkpoints")
    return engine


def _parameters(content: object, key: str, where: str) -> Mapping[str, float]:
    known = {parameter.name: parameter for parameter in PARAMETERS}
    given = as_mapping(content, where, key)
    check_keys(given, known, where, key)
    found = {name: _value(value, known[name], f"{key}.{name}", where) for name, value in given.items()}
    return MappingProxyType(found)


def _by_name(content: Mapping[str, Any], key: str, where: str) -> Mapping[str, Mapping[str, float]]:
    given = as_mapping(content.get(key, {}), where, key)
    for name in given:
        if not isinstance(name, str):
            raise SpecError(where, f"{quote(key)}: expected names of {key}, got {quote(name)}")
    found = {name: _parameters(own, f"{key}.{name}", where) for name, own in given.items()}
    return MappingProxyType(found)


def _value(given: object, parameter: Parameter, key: str, where: str) -> float:
    value = seconds(given, key, where) if parameter.unit is Unit.SECONDS else finite_number(given)
    if value is None:
        raise SpecError(where, f"{quote(key)}: expected a number, got {quote(given)}")
    if not parameter.low <= value <= parameter.high:
        allowed = f"{parameter.low:g} to {parameter.high:g}"
        raise SpecError(where, f"{quote(key)}: {value:g} is outside {allowed} ({parameter.meaning})")
    return value


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
    lines += [*render_reserve(engine.memory), *render_scheduler(engine.scheduler), "parameters:"]
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
