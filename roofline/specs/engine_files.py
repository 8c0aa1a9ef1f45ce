"""Engine profiles as files: parsed from a YAML mapping, with the changes of each version, and written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from roofline.core.documents import finite_number, scalar_text
from roofline.core.errors import RooflineError, SpecError, quote, suggest
from roofline.core.parameters import Parameter, Unit
from roofline.core.units import Dimension, parse_quantity
from roofline.specs.engine import (
    ALL_REDUCES,
    CHUNKED,
    FUSIONS,
    GATED_DELTA_RULE_KERNELS,
    PARAMETERS,
    PHASES,
    Engine,
)
from roofline.specs.engine_versions import KEYS, aliases_of, merged, versions_of
from roofline.specs.hardware import KINDS
from roofline.specs.precision import check_scheme
from roofline.specs.reserve import parse_reserve, render_reserve
from roofline.specs.scheduler import parse_scheduler, render_scheduler
from roofline.specs.version import Version, nearest
from roofline.specs.weight_only import WEIGHT_ONLY_KERNELS

_KEYS = tuple(key for key in (*Engine.__struct_fields__, *KEYS) if key not in ("version", "starts"))


def parse_engine(content: Mapping[str, Any], where: str, version: str = "") -> Engine:
    """The engine that a profile's mapping describes, at a version; `where` names the file in errors."""
    changes, newest = versions_of(content, where), _parse(content, where)
    aliases_of(content, where)
    profiles = {start: _parse(merged(content, keys), where) for start, keys in changes.items()}
    starts = tuple(start.text for start in changes)
    if not version:
        return replace(newest, starts=starts)
    asked = Version(version)
    found = profiles[nearest(asked, changes)] if changes else newest
    return replace(found, version=asked.text, starts=starts)


def _parse(content: Mapping[str, Any], where: str) -> Engine:
    for key in content:
        if key not in _KEYS:
            raise SpecError(where, f"unknown key {quote(key)}{suggest(key, _KEYS)}")
    name = content.get("name")
    if not isinstance(name, str) or not name:
        raise SpecError(where, "the key 'name' is missing")
    return Engine(
        name=name,
        title=_words(content.get("title", ""), "title", where),
        fusions=_names(content.get("fusions", []), FUSIONS, "fusions", where),
        graphs=_names(content.get("graphs", []), PHASES, "graphs", where),
        parameters=_parameters(content.get("parameters", {}), where),
        spread=_spread(content.get("spread", [1, 1]), where),
        sources=_texts(content.get("sources", []), "sources", where),
        int8_activations=_texts(content.get("int8_activations", []), "int8_activations", where),
        checkpoints=_checkpoints(content.get("checkpoints"), where),
        overlap=_flag(content.get("overlap", False), "overlap", where),
        shared_stream=_tokens(content.get("shared_stream", 0), "shared_stream", where),
        all_reduce=_all_reduce(content.get("all_reduce", {}), where),
        weight_only=_weight_only(content.get("weight_only", {}), where),
        kernels_of=_words(content.get("kernels_of", ""), "kernels_of", where),
        also=_also(content.get("also", {}), where),
        own_kernels=_names(content.get("own_kernels", []), KINDS, "own_kernels", where),
        memory=parse_reserve(content.get("memory", {}), where),
        scheduler=parse_scheduler(content.get("scheduler", {}), where),
        gated_delta_rule=_names(
            [content.get("gated_delta_rule", CHUNKED)], GATED_DELTA_RULE_KERNELS, "gated_delta_rule", where
        )[0],
    )


MAX_TOKENS = 10**9
"""Most tokens of a pass that a profile may name."""

MAX_SPREAD = 1e3
"""Largest factor of a profile's interval."""


def _words(content: object, key: str, where: str) -> str:
    text = scalar_text(content)
    if text is None:
        raise SpecError(where, f"{quote(key)} must be text, got {quote(content)}")
    return text


def _texts(content: object, key: str, where: str) -> tuple[str, ...]:
    return tuple(_words(entry, key, where) for entry in _list(content, key, where))


def _flag(content: object, key: str, where: str) -> bool:
    if not isinstance(content, bool):
        raise SpecError(where, f"{quote(key)} must be true or false")
    return content


def _tokens(content: object, key: str, where: str) -> int:
    if not isinstance(content, int) or isinstance(content, bool) or not 0 <= content <= MAX_TOKENS:
        raise SpecError(where, f"{quote(key)} must be a number of tokens, 0 to {MAX_TOKENS}")
    return content


def _all_reduce(content: object, where: str) -> Mapping[str, str]:
    if not isinstance(content, Mapping):
        raise SpecError(where, "'all_reduce' must map kinds of links to kernels")
    for kernel in content.values():
        _names([kernel], ALL_REDUCES, "all_reduce", where)
    return MappingProxyType({str(kind): str(kernel) for kind, kernel in content.items()})


def _also(content: object, where: str) -> Mapping[str, Mapping[str, str]]:
    found = {}
    for family, kinds in (content if isinstance(content, Mapping) else {"": content}).items():
        if not isinstance(kinds, Mapping):
            raise SpecError(where, "'also' must map families to kinds of kernels and engines")
        found[str(family)] = MappingProxyType(
            {str(kind): _words(engine, "also", where) for kind, engine in kinds.items()}
        )
    return MappingProxyType(found)


def _list(content: object, key: str, where: str) -> list[Any]:
    if not isinstance(content, list):
        raise SpecError(where, f"{quote(key)} must be a list")
    return content


def _names(content: object, known: Iterable[str], key: str, where: str) -> tuple[str, ...]:
    known = tuple(known)
    for name in (names := _list(content, key, where)):
        if name not in known:
            raise SpecError(where, f"unknown name {quote(name)} in {quote(key)}{suggest(name, known)}")
    return tuple(names)


def _checkpoints(content: object, where: str) -> Mapping[str, str] | None:
    if content is None:
        return None
    if not isinstance(content, Mapping):
        raise SpecError(where, "'checkpoints' must map schemes to schemes")
    schemes = {_words(key, "checkpoints", where): _words(run, "checkpoints", where) for key, run in content.items()}
    for name in (*schemes.keys(), *schemes.values()):
        check_scheme(name, where, "checkpoints")
    return MappingProxyType(schemes)


def _weight_only(content: object, where: str) -> Mapping[str, str]:
    if not isinstance(content, Mapping):
        raise SpecError(where, "'weight_only' must map weight formats to kernels")
    for kernel in content.values():
        _names([kernel], WEIGHT_ONLY_KERNELS, "weight_only", where)
    return MappingProxyType({str(name): str(kernel) for name, kernel in content.items()})


def _parameters(content: object, where: str) -> Mapping[str, float]:
    if not isinstance(content, Mapping):
        raise SpecError(where, "'parameters' must map names to values")
    known = {parameter.name: parameter for parameter in PARAMETERS}
    values = {}
    for name, text in content.items():
        if name not in known:
            raise SpecError(where, f"unknown key {quote(name)} in 'parameters'{suggest(name, known)}")
        values[name] = _value(text, known[name], f"parameters.{name}", where)
    return MappingProxyType(values)


def _value(text: object, parameter: Parameter, key: str, where: str) -> float:
    key = quote(key)
    number = finite_number(text)
    try:
        if number is not None and (parameter.unit is Unit.RATIO or number == 0):
            value = number
        elif parameter.unit is Unit.SECONDS:
            value = parse_quantity(text, Dimension.TIME).value
        else:
            raise RooflineError(f"expected a number, got {quote(text)}")
    except RooflineError as error:
        raise SpecError(where, f"{key}: {error}") from None
    if not parameter.low <= value <= parameter.high:
        allowed = f"{parameter.low:g} to {parameter.high:g}"
        raise SpecError(where, f"{key}: {value:g} is outside {allowed} ({parameter.meaning})")
    return value


def _spread(content: object, where: str) -> tuple[float, float]:
    match [finite_number(entry) for entry in _list(content, "spread", where)]:
        case [float(low), float(high)] if 1 / MAX_SPREAD <= low <= 1 <= high <= MAX_SPREAD:
            return low, high
    first, second = f"{1 / MAX_SPREAD:g} to 1", f"1 to {MAX_SPREAD:g}"
    raise SpecError(where, f"'spread' must be two numbers, the first of {first}, the second of {second}")


def render(engine: Engine) -> str:
    """The YAML text of a profile; `parse_engine` reads it back."""
    lines = [f"name: {engine.name}", f"title: {_quoted(engine.title)}"]
    lines += [f"fusions: [{', '.join(engine.fusions)}]", f"graphs: [{', '.join(engine.graphs)}]"]
    lines += ["overlap: true"] if engine.overlap else []
    lines += [f"shared_stream: {engine.shared_stream}"] if engine.shared_stream else []
    if engine.all_reduce:
        kernels = (f"{_quoted(kind)}: {kernel}" for kind, kernel in engine.all_reduce.items())
        lines += [f"all_reduce: {{{', '.join(kernels)}}}"]
    lines += [f"gated_delta_rule: {engine.gated_delta_rule}"] if engine.gated_delta_rule != CHUNKED else []
    lines += [f"own_kernels: [{', '.join(engine.own_kernels)}]"] if engine.own_kernels else []
    lines += (
        [f"int8_activations: [{', '.join(map(_quoted, engine.int8_activations))}]"] if engine.int8_activations else []
    )
    if engine.checkpoints is not None:
        lines += [f"checkpoints: {{{', '.join(f'{name}: {run}' for name, run in engine.checkpoints.items())}}}"]
    lines += [f"kernels_of: {_quoted(engine.kernels_of)}"] if engine.kernels_of else []
    if engine.also:
        kinds = (
            f"{family}: {{{', '.join(f'{kind}: {_quoted(other)}' for kind, other in own.items())}}}"
            for family, own in engine.also.items()
        )
        lines += [f"also: {{{', '.join(kinds)}}}"]
    if engine.weight_only:
        lines += [f"weight_only: {{{', '.join(f'{name}: {kernel}' for name, kernel in engine.weight_only.items())}}}"]
    lines += [*render_reserve(engine.memory), *render_scheduler(engine.scheduler), "parameters:"]
    for parameter in PARAMETERS:
        value = engine[parameter.name]
        shown = f"{value:.4g}" if parameter.unit is Unit.RATIO or value == 0 else f"{value * 1e6:.4g} us"
        lines.append(f"  {parameter.name}: {shown}  # {parameter.meaning}")
    lines.append(f"spread: [{engine.spread[0]:.4g}, {engine.spread[1]:.4g}]")
    lines += ["sources:", *(f"  - {_quoted(source)}" for source in engine.sources)] if engine.sources else []
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    plain = "".join(character if character.isprintable() else " " for character in text)
    return "'" + plain.replace("'", "''") + "'"
