"""Engine profiles as files: parsed from a YAML mapping, with the changes of each version."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from roofline.core.documents import finite_number, read_mapping
from roofline.core.errors import SpecError, quote, suggest
from roofline.core.parameters import Parameter, Unit
from roofline.specs.engine import PARAMETERS, Engine, bundled_profiles
from roofline.specs.engine_versions import KEYS, aliases_of, merged, versions_of
from roofline.specs.library import as_mapping, check_keys
from roofline.specs.precision import check_scheme
from roofline.specs.records import record, seconds
from roofline.specs.reserve import parse_reserve
from roofline.specs.scheduler import parse_scheduler
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
        raise SpecError(where, f"{quote(key)} must be a number, got {quote(given)}")
    if not parameter.low <= value <= parameter.high:
        allowed = f"{parameter.low:g} to {parameter.high:g}"
        raise SpecError(where, f"{quote(key)}: {value:g} is outside {allowed} ({parameter.meaning})")
    return value
