"""The technique catalogue: every technique of the source papers as a function from a scenario to a scenario.

In: a `Scenario` and requests such as `eagle:depth=3`. Out: the scenario with the techniques applied in catalogue order,
and the description of each technique: the systems it covers, its price and its published effects.

>>> from roofline import Scenario, analyze, load_hardware, load_model
>>> from roofline.techniques import apply_techniques
>>> plain = Scenario(load_model("llama-2-13b"), load_hardware("a6000"))
>>> quantized = apply_techniques(plain, ["awq"])
>>> round(analyze(plain).decode.bound_time / analyze(quantized).decode.bound_time, 1)
3.6
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError, quote
from roofline.scenario.scenario import Applied, Scenario, apply_with
from roofline.techniques.base import Level, Parameter, Price, Published, Technique
from roofline.techniques.entries import bundled_entries

OF_ANY_WEIGHTS = frozenset({"weight format", "weight sparsity", "rank", "adapter"})
"""Slots of techniques that change weights, whatever the network."""


@lru_cache(maxsize=1)
def techniques() -> Mapping[str, Technique]:
    """The catalogue by name, in the order of application."""
    return MappingProxyType({entry.name: entry for entry in bundled_entries()})


@lru_cache(maxsize=1)
def names() -> Mapping[str, str]:
    """The technique for each technique name and each system that a technique covers, in lower case."""
    found = {system.lower(): entry.name for entry in techniques().values() for system in entry.covers}
    return MappingProxyType({**found, **{name: name for name in techniques()}})


def find_technique(name: str) -> Technique:
    """The technique called `name`, or the one that covers the system of that name."""
    key = names().get(name.strip().lower())
    if key is None:
        raise UnknownNameError("technique", name, names())
    return techniques()[key]


def apply_techniques(scenario: Scenario, requests: Iterable[str]) -> Scenario:
    """The scenario with techniques applied, each written NAME or NAME:key=value,key=value.

    Techniques apply in catalogue order, whatever the order of the requests. Raises RooflineError where two have the
    same slot, a parameter is unknown or out of range, or a technique does not apply to the model.
    """
    chosen: dict[str, RequestedTechnique] = {}
    slots: dict[str, str] = {}
    for request in requests:
        requested = _requested(request)
        name, slot = requested.technique.name, requested.technique.slot
        if name in chosen:
            raise RooflineError(f"the technique {name} is requested twice")
        if slot in slots:
            raise RooflineError(f"{name} conflicts with {slots[slot]}: both set the {slot}")
        if requested.technique.change is None:
            raise UnsupportedError(f"{name} cannot be simulated: {requested.technique.caveat}")
        chosen[name] = requested
        slots[slot] = name
    for name in techniques() if chosen else ():
        if name in chosen:
            scenario = _applied(scenario, chosen[name])
    return scenario


def _applied(scenario: Scenario, requested: RequestedTechnique) -> Scenario:
    """The scenario with one more technique, cached in the scenario."""
    found = scenario.technique_cache.get(requested.written)
    if found is None:
        technique = requested.technique
        if scenario.model.unet and technique.level is not Level.SYSTEM and technique.slot not in OF_ANY_WEIGHTS:
            raise UnsupportedError(
                f"{technique.name} changes a transformer or its prompt, and {scenario.model.name} is a U-Net"
            )
        assert requested.technique.change is not None
        changed = requested.technique.change(scenario, requested.values)
        found = replace(changed, techniques=Applied((*scenario.techniques, requested.written)))
        scenario.technique_cache[requested.written] = found
    return found


apply_with(apply_techniques)


def check_request(request: str) -> Technique:
    """The technique of a request NAME or NAME:key=value,...; raises RooflineError for an invalid request."""
    return _requested(request).technique


class RequestedTechnique(NamedTuple):
    """A technique with its parameter values, and the request in canonical form."""

    technique: Technique
    values: Mapping[str, Any]
    written: str


@lru_cache(maxsize=1024)
def _requested(request: str) -> RequestedTechnique:
    name, given = _parse(request)
    technique = find_technique(name)
    parameters = ",".join(f"{key}={value}" for key, value in given.items())
    written = f"{technique.name}:{parameters}" if parameters else technique.name
    return RequestedTechnique(technique, MappingProxyType(technique.values(given)), written)


def _parse(request: str) -> tuple[str, dict[str, str]]:
    name, _, rest = request.partition(":")
    given: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, separator, value = part.partition("=")
        if not separator or not value:
            raise RooflineError(f"{quote(request)}: write parameters as key=value, got {quote(part)}")
        if key.strip() in given:
            raise RooflineError(f"{quote(request)}: {quote(key)} is given twice")
        given[key.strip()] = value.strip()
    return name, given


__all__ = [
    "Level",
    "Parameter",
    "Price",
    "Published",
    "Technique",
    "apply_techniques",
    "check_request",
    "find_technique",
    "names",
    "techniques",
]
