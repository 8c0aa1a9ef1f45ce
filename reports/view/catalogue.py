"""What the fields of the live page are made from: the table of options, with a description of each name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from roofline import list_hardware, list_models, load_hardware, load_model, parameters
from roofline.core.options import NOTHING, Kind, Option
from roofline.core.registry import cached
from roofline.core.units import si
from roofline.graph.fusion import FUSIONS
from roofline.reports.output.blocks import picked
from roofline.scenario.options import OPTIONS
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.sessions.options import SESSION_OPTIONS
from roofline.serving.sessions.profiles import PROFILES
from roofline.specs.engine import load_engine
from roofline.specs.formats import FORMATS
from roofline.techniques import techniques

Choice = tuple[str, str]


@cached(maxsize=1)
def catalogue() -> dict[str, Any]:
    """The options of a scenario in order, and those of loads by name, each as the page needs it for a field."""
    return {"options": [_field(option) for option in OPTIONS.values()], "load": load_fields()}


@cached(maxsize=1)
def load_fields() -> dict[str, Any]:
    """The options of loads by name, each as the page needs it for a field."""
    return {option.name: _field(option) for option in (*LOAD_OPTIONS.values(), *SESSION_OPTIONS.values())}


def _field(option: Option) -> dict[str, Any]:
    """A field: `usual` is the value, or what holds, where the option is not set."""
    unset = "" if option.kind is Kind.SWITCH or option.needed else NOTHING
    return {
        **picked(option, "name", "group", "unit", "often", "example", "stops"),
        "title": option.short or option.name.replace("_", " "),
        "kind": option.kind.name.lower(),
        "help": option.described,
        "usual": option.default or option.otherwise or unset,
        "choices": [*_CHOICES.get(option.name, _plain)(option)],
    }


def _plain(option: Option) -> Iterable[Choice]:
    """The names of an option, with what they stand for."""
    return ((name, option.readings.get(name) or "") for name in option.names)


def _models(_: Option) -> Iterable[Choice]:
    for model in map(load_model, list_models()):
        released = f", {model.quantization}" if model.quantization else ""
        yield model.name, f"{model.title}, {si(model.parameters or parameters(model))} parameters{released}"


def _hardware(_: Option) -> Iterable[Choice]:
    for device in map(load_hardware, list_hardware()):
        memory = f"{si(device.memory_capacity, 'B')}, {si(device.memory_bandwidth, 'B/s')}"
        yield device.name, f"{device.title}, {memory}"


def _engines(option: Option) -> Iterable[Choice]:
    """Every engine, and from which versions on its profiles differ."""
    for name in option.names:
        engine = load_engine(name)
        yield from (
            (found, engine.title) for found in (name, *(f"{name}@{start}" for start in reversed(engine.starts)))
        )


_CHOICES: Mapping[str, Callable[[Option], Iterable[Choice]]] = {
    "model": _models,
    "hw": _hardware,
    "engine": _engines,
    "weights": lambda option: ((name, f"{FORMATS[name].bits:.4g} bits") for name in option.names),
    "with": lambda option: ((name, techniques()[name].title) for name in option.names),
    "profile": lambda _: ((name, "") for name in PROFILES),
    "fuse": lambda option: ((name, FUSIONS[name].effect) for name in option.names),
}
"""Names with a description, by option."""
