"""The technique catalogue: every technique of the source papers as a function from a scenario to a scenario.

In: a `Scenario` and requests such as `eagle:depth=3`. Out: the scenario with the techniques applied, in the catalogue's
order, and for each technique what it covers, asks for and was published to gain.

>>> from roofline import Scenario, analyze, load_hardware, load_model
>>> from roofline.techniques import apply_techniques
>>> plain = Scenario(load_model("llama-2-13b"), load_hardware("a6000"))
>>> quantised = apply_techniques(plain, ["awq"])
>>> round(analyze(plain).decode.bound_time / analyze(quantised).decode.bound_time, 1)
3.6
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError, quote
from roofline.scenario.scenario import Scenario
from roofline.techniques.base import Level, Parameter, Price, Published, Technique


@lru_cache(maxsize=1)
def techniques() -> Mapping[str, Technique]:
    """The catalogue by name, in the order in which techniques are applied."""
    from roofline.techniques import data, model, system

    entries = (*model.TECHNIQUES, *data.TECHNIQUES, *system.TECHNIQUES)
    return MappingProxyType({entry.name: entry for entry in entries})


@lru_cache(maxsize=1)
def names() -> Mapping[str, str]:
    """Every name and every system that an entry covers, in lower case, with the entry's name."""
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

    The order of the requests does not matter: they are applied in the catalogue's order. Raises RooflineError where
    two contradict each other, a parameter is unknown or out of range, or a technique does not concern the model.
    """
    chosen: dict[str, Asked] = {}
    slots: dict[str, str] = {}
    for request in requests:
        asked = _asked(request)
        name, slot = asked.technique.name, asked.technique.slot
        if name in chosen:
            raise RooflineError(f"the technique {name} is asked for twice")
        if slot in slots:
            raise RooflineError(f"{name} and {slots[slot]} contradict each other: both settle the {slot}")
        if asked.technique.change is None:
            raise UnsupportedError(f"{name} cannot be simulated: {asked.technique.caveat}")
        chosen[name] = asked
        slots[slot] = name
    for name in techniques():
        if name in chosen:
            scenario = _applied(scenario, chosen[name])
    return scenario


def _applied(scenario: Scenario, asked: Asked) -> Scenario:
    """The scenario with one more technique: each scenario keeps what became of it, for combinations that go on."""
    found = scenario.following.get(asked.written)
    if found is None:
        assert asked.technique.change is not None
        changed = asked.technique.change(scenario, asked.values)
        found = replace(changed, techniques=(*scenario.techniques, asked.written))
        scenario.following[asked.written] = found
    return found


def check_request(request: str) -> Technique:
    """The technique that NAME or NAME:key=value,... asks for, its parameters checked; raises RooflineError."""
    return _asked(request).technique


class Asked(NamedTuple):
    """A technique as it is asked for: its parameters, and how a request would write it."""

    technique: Technique
    values: Mapping[str, Any]
    written: str


@lru_cache(maxsize=1024)
def _asked(request: str) -> Asked:
    name, given = _parse(request)
    technique = find_technique(name)
    parameters = ",".join(f"{key}={value}" for key, value in given.items())
    written = f"{technique.name}:{parameters}" if parameters else technique.name
    return Asked(technique, MappingProxyType(technique.values(given)), written)


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
