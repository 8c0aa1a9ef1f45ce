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

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec import Struct, field, structs, to_builtins

from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError, quote, visible
from roofline.core.registry import Registration, Registry, cached
from roofline.scenario.catalogue import Catalogue, use_catalogue
from roofline.scenario.scenario import Scenario
from roofline.specs.library import TECHNIQUES, File, own_files
from roofline.specs.records import record
from roofline.techniques.base import Function, Level, Parameter, Price, Published, Registered, Technique, check_entry
from roofline.techniques.entries import bundled_entries, own_entries

OF_ANY_WEIGHTS = frozenset({"weight format", "weight sparsity", "rank", "adapter"})
"""Slots of techniques that change weights, whatever the network."""


class _Catalogue(Struct, frozen=True, eq=False):
    """The entries by name, the entry's name by each name that finds it, and a number that no other catalogue has."""

    entries: Mapping[str, Technique]
    names: Mapping[str, str]
    number: int = field(default_factory=count().__next__)


_REGISTERED: Registry[Technique] = Registry("technique", {})

_ORDER = (Level.MODEL, Level.DATA, Level.SYSTEM)
"""The levels in the order in which techniques apply."""


def _catalogue() -> _Catalogue:
    return _read(tuple(own_files(TECHNIQUES).values()))


@cached(maxsize=4)
def _read(own: tuple[File, ...]) -> _Catalogue:
    """The shipped entries, then those of a user's files, then registered ones; each replaces earlier ones by name."""
    shipped = _shipped()
    functions = {entry.function for entry in shipped if entry.function}
    every = {entry.name: entry for entry in (*shipped, *own_entries(own, functions), *_REGISTERED.values())}
    entries = {entry.name: entry for entry in sorted(every.values(), key=lambda entry: _ORDER.index(entry.level))}
    covered = {system.lower(): entry.name for entry in entries.values() for system in entry.covers}
    return _Catalogue(MappingProxyType(entries), MappingProxyType({**covered, **{name: name for name in entries}}))


@lru_cache(maxsize=1)
def _shipped() -> tuple[Technique, ...]:
    return tuple(bundled_entries())


def techniques() -> Mapping[str, Technique]:
    """The catalogue by name, in the order of application."""
    return _catalogue().entries


def names() -> Mapping[str, str]:
    """The technique for each technique name and each system that a technique covers, in lower case."""
    return _catalogue().names


def register(technique: Technique, function: Function, *, replace: bool = False) -> Registration:
    """Add a technique that a function of one's own applies, until the registration is undone.

    `function(scenario, name, **constants, **parameters)` returns the changed scenario, and takes the place of the one
    that the technique names. It applies after the shipped techniques of its level. Raises RooflineError for an invalid
    field, a function that does not take the parameters, and for a name (its own, or of a system that it `covers`)
    that another technique has, unless it is to `replace` that one.
    """
    where = f"the technique {quote(technique.name)}"
    content = {**to_builtins(technique), "function": getattr(function, "__qualname__", "function")}
    entry = Registered(**structs.asdict(record(Technique, content, where)), own=function)
    check_entry(entry, where)
    clash = next((name for name in (entry.name, *entry.covers) if name.lower() in names()), None)
    if clash is not None and not replace:
        raise RooflineError(f"the technique {quote(clash)} exists already; replace=True replaces it")
    return _REGISTERED.add(entry.name, entry, (function, content), replace=True)


def find_technique(name: str) -> Technique:
    """The technique called `name`, or the one that covers the system of that name; a dash and a space are the same."""
    return _find(name, _catalogue())


def _find(name: str, catalogue: _Catalogue) -> Technique:
    key = catalogue.names.get(name.strip().lower()) or next(
        (own for known, own in catalogue.names.items() if _words(known) == _words(name)), None
    )
    if key is None:
        raise UnknownNameError("technique", name, catalogue.names)
    return catalogue.entries[key]


def _words(name: str) -> list[str]:
    return name.lower().replace("-", " ").split()


def apply_techniques(scenario: Scenario, requests: str | Iterable[str]) -> Scenario:
    """The scenario with techniques applied, each written NAME or NAME:key=value,key=value.

    Techniques apply in catalogue order, whatever the order of the requests. Raises RooflineError where two have the
    same slot, a parameter is unknown or out of range, or a technique does not apply to the model.
    """
    chosen: dict[str, RequestedTechnique] = {}
    slots: dict[str, str] = {}
    requests = (requests,) if isinstance(requests, str) else tuple(requests)
    if not requests:
        return scenario  # without reading the catalogue
    catalogue = _catalogue()
    for request in requests:
        requested = _requested(request, catalogue)
        name, slot = requested.technique.name, requested.technique.slot
        if name in chosen:
            raise RooflineError(f"the technique {name} is requested twice")
        if slot in slots:
            raise RooflineError(f"{name} conflicts with {slots[slot]}: both set the {slot}")
        if requested.technique.change is None:
            if command := requested.technique.command:
                raise UnsupportedError(f"{name} is no change of a scenario: {visible(command)} simulates it")
            raise UnsupportedError(f"{name} cannot be simulated: {visible(requested.technique.caveat[:400])}")
        chosen[name] = requested
        slots[slot] = name
    for name in catalogue.entries:
        if name in chosen:
            scenario = _applied(scenario, chosen[name], catalogue.number)
    return scenario


def _applied(scenario: Scenario, requested: RequestedTechnique, catalogue: int) -> Scenario:
    """The scenario with one more technique of a catalogue, cached in the scenario."""
    key = f"{requested.written} {catalogue}"
    found = scenario.technique_cache.get(key)
    if found is None:
        technique = requested.technique
        if scenario.model.unet and technique.level is not Level.SYSTEM and technique.slot not in OF_ANY_WEIGHTS:
            raise UnsupportedError(
                f"{technique.name} changes a transformer or its prompt, and {scenario.model.name} is a U-Net"
            )
        assert requested.technique.change is not None
        changed = requested.technique.change(scenario, requested.values)
        found = changed.changed(techniques=(*scenario.techniques, requested.written))
        scenario.technique_cache[key] = found
    return found


def check_request(request: str) -> Technique:
    """The technique of a request NAME or NAME:key=value,...; raises RooflineError for an invalid request."""
    return _requested(request, _catalogue()).technique


def _simulated() -> Iterator[str]:
    return (name for name, technique in techniques().items() if technique.change is not None)


use_catalogue(Catalogue(apply_techniques, lambda written: check_request(written).slot, _simulated))


class RequestedTechnique(NamedTuple):
    """A technique with its parameter values, and the request in canonical form."""

    technique: Technique
    values: Mapping[str, Any]
    written: str


@lru_cache(maxsize=1024)
def _requested(request: str, catalogue: _Catalogue) -> RequestedTechnique:
    name, given = _parse(request)
    technique = _find(name, catalogue)
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
    "register",
    "techniques",
]
