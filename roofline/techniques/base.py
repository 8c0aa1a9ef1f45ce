"""What a technique is: a function from a scenario to a scenario, with what the literature says of it beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnknownNameError, UnsupportedError, quote
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Settings
from roofline.specs.formats import Format, find_format
from roofline.specs.model import Attention, FeedForward, Layer, LayerGroup, Mixer, MixtureOfExperts, Mlp, Model
from roofline.specs.precision import Precision
from roofline.specs.schemes import UNQUANTISED, WeightScheme, find_weight_scheme


class Level(StrEnum):
    """The survey's three levels (Zhou et al. 2024): what a technique changes."""

    DATA = "data"
    MODEL = "model"
    SYSTEM = "system"


class Price(StrEnum):
    """What a technique asks for, cheapest first."""

    LOSSLESS = "lossless"
    CALIBRATION = "calibration"
    LOSSY = "lossy"
    RETRAINING = "retraining"


class Parameter(Struct, frozen=True):
    """A knob: its default, as the paper has it where it says, and the range that makes sense.

    A text parameter has no range; one without default must be given.
    """

    name: str
    default: float | int | str | None
    meaning: str
    low: float | None = None
    high: float | None = None


class Published(Struct, frozen=True):
    """An effect as published: the figure, its conditions, and where it stands."""

    effect: str
    conditions: str
    source: str


Values = Mapping[str, Any]
Change = Callable[[Scenario, Values], Scenario]


class Technique(Struct, frozen=True):
    """One entry of the catalogue.

    `covers` are the systems and methods of the literature that this entry stands for. `slot` names what it settles:
    two techniques of one slot contradict each other. `change` is None where the roofline cannot express the technique
    honestly; `caveat` says why, or what is left out.
    """

    name: str
    title: str
    level: Level
    price: Price
    reference: str
    effect: str
    slot: str
    change: Change | None
    covers: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    published: tuple[Published, ...] = ()
    caveat: str = ""

    def values(self, given: Mapping[str, str]) -> dict[str, Any]:
        """The parameters with what was given; raises RooflineError for an unknown key or a value out of range."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for key in given:
            if key not in known:
                raise UnknownNameError(f"parameter of {self.name}", key, known)
        return {name: self._value(parameter, given.get(name)) for name, parameter in known.items()}

    def _value(self, parameter: Parameter, text: str | None) -> Any:
        if text is None:
            if parameter.default is None and parameter.low is None:
                raise RooflineError(f"{self.name} needs {parameter.name}: {parameter.meaning}")
            return parameter.default
        if parameter.low is None:
            return text
        whole = isinstance(parameter.default, int)
        try:
            value = int(text) if whole else float(text)
        except ValueError:
            kind = "a whole number" if whole else "a number"
            raise RooflineError(f"{self.name}: {parameter.name} must be {kind}, got {quote(text)}") from None
        high = parameter.high if parameter.high is not None else float("inf")
        if not parameter.low <= value <= high:
            bounds = (
                f"between {parameter.low:g} and {high:g}"
                if parameter.high is not None
                else f"at least {parameter.low:g}"
            )
            raise RooflineError(f"{self.name}: {parameter.name} must be {bounds}, got {quote(text)}")
        return value


# --- the changes that techniques are made of --------------------------------------------------------------------------


def with_settings(scenario: Scenario, **changes: Any) -> Scenario:
    """The scenario with other settings."""
    settings: Settings = replace(scenario.settings, **changes)
    return replace(scenario, settings=settings)


def with_precision(
    scenario: Scenario,
    weights: WeightScheme | str | None = None,
    activations: Format | str | None = None,
    kv: Format | str | None = None,
) -> Scenario:
    """The scenario with other formats; what is None stays."""
    precision = scenario.precision
    assert isinstance(precision, Precision)
    changes: dict[str, Any] = {}
    if weights is not None:
        changes["weights"] = find_weight_scheme(weights) if isinstance(weights, str) else weights
    if activations is not None:
        changes["activations"] = find_format(activations) if isinstance(activations, str) else activations
    if kv is not None:
        changes["kv"] = find_format(kv) if isinstance(kv, str) else kv
    return replace(scenario, precision=replace(precision, **changes))


def weight_format(scenario: Scenario) -> Format:
    """The format of the scenario's linear layers."""
    precision = scenario.precision
    assert isinstance(precision, Precision)
    return precision.weights.format_of("up_proj", precision.base, scenario.model.layers)


def with_weight_format(scenario: Scenario, change: Callable[[Format], Format]) -> Scenario:
    """The scenario with the format of its linear layers changed; refused where some have formats of their own."""
    precision = scenario.precision
    assert isinstance(precision, Precision)
    if precision.weights.special:
        raise UnsupportedError(f"no change of the mixed weight formats of {precision.weights.name} is simulated")
    changed = change(weight_format(scenario))
    kept = UNQUANTISED | frozenset(precision.weights.unquantised)
    return with_precision(scenario, weights=WeightScheme(changed.name, changed, unquantised=kept))


def with_layers(scenario: Scenario, name: str, change: Callable[[Layer], Layer]) -> Scenario:
    """The scenario with every layer of its model changed; `name` is added to the model's."""
    return replace(scenario, model=changed_model(scenario.model, name, change))


def changed_model(model: Model, name: str, change: Callable[[Layer], Layer]) -> Model:
    """A model of changed layers; its published sizes no longer hold."""
    groups = tuple(LayerGroup(group.name, group.count, change(group.layer)) for group in model.groups)
    return replace(model, name=f"{model.name}+{name}", groups=groups, parameters=None, active_parameters=None)


def with_mixers(scenario: Scenario, name: str, change: Callable[[Attention], Mixer]) -> Scenario:
    """The scenario with its softmax attention changed; refused where the model has none."""
    if not any(isinstance(group.layer.mixer, Attention) for group in scenario.model.groups):
        raise UnsupportedError(f"{name} changes softmax attention, and {scenario.model.name} has none")

    def changed(layer: Layer) -> Layer:
        return replace(layer, mixer=change(layer.mixer)) if isinstance(layer.mixer, Attention) else layer

    return with_layers(scenario, name, changed)


def with_blocks(scenario: Scenario, name: str, change: Callable[[FeedForward], FeedForward]) -> Scenario:
    """The scenario with its feed-forward blocks changed; refused where the model has none."""
    if not any(isinstance(group.layer.feed_forward, (Mlp, MixtureOfExperts)) for group in scenario.model.groups):
        raise UnsupportedError(f"{name} changes feed-forward blocks, and {scenario.model.name} has none")

    def changed(layer: Layer) -> Layer:
        return layer if layer.feed_forward is None else replace(layer, feed_forward=change(layer.feed_forward))

    return with_layers(scenario, name, changed)


def scaled(value: int, factor: float) -> int:
    """A dimension scaled and rounded, at least 1."""
    return max(1, round(value * factor))


def needs_generation(scenario: Scenario, name: str) -> None:
    """Refuse a technique of decoding for a model that does not generate."""
    if scenario.model.task != "generate":
        raise UnsupportedError(f"{name} changes how tokens are generated, and {scenario.model.name} only encodes")


def lengths(value: Any, factor: float) -> Any:
    """Token counts scaled and rounded up to whole tokens; numbers or arrays."""
    exact = np.round(np.asarray(value) * factor, 6)  # 0.3 of 1000 are 300, whatever 1 - 0.7 is in binary
    result = np.maximum(np.ceil(exact), 1)
    return int(result) if result.ndim == 0 else result


def catalogue(entries: Iterable[Technique]) -> dict[str, Technique]:
    """Entries by name, in their order."""
    return {entry.name: entry for entry in entries}
