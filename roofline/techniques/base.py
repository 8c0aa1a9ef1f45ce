"""The catalogue entry: what a technique is, its parameters, its published effects, and the function that applies it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from importlib import import_module
from typing import Any

from msgspec import Struct

from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import parse_count
from roofline.scenario.scenario import Scenario


class Level(StrEnum):
    """The level at which a technique works, as in the survey of Zhou et al. 2024."""

    DATA = "data"
    MODEL = "model"
    SYSTEM = "system"


class Price(StrEnum):
    """What a technique costs in output quality or preparation, cheapest first."""

    LOSSLESS = "lossless"
    CALIBRATION = "calibration"
    LOSSY = "lossy"
    RETRAINING = "retraining"


class Parameter(Struct, frozen=True):
    """A parameter of a technique: its default, from the paper where it states one, and its valid range.

    A text parameter has no range. A text parameter without a default is required.
    """

    name: str
    meaning: str
    default: float | int | str | None = None
    low: float | int | None = None
    high: float | int | None = None


class Published(Struct, frozen=True):
    """A published effect with its conditions and source."""

    effect: str
    conditions: str = ""
    source: str = ""


Values = Mapping[str, Any]
Change = Callable[[Scenario, Values], Scenario]


class Technique(Struct, frozen=True):
    """One entry of the catalogue.

    `covers` lists the systems and methods of the literature that the entry represents. Two techniques with the same
    `slot` exclude each other. `function` names the function that applies the technique, as module.function of this
    room; its arguments are the scenario, the technique's name, the `constants` and the values of the `parameters`. It
    is "" for techniques that roofline does not simulate; `caveat` gives the reason, or what a simulation omits.
    `requires` names what the model must have, of `roofline.techniques.changes.REQUIREMENTS`. `same_as` names the entry
    that has the same simulation, with other defaults.
    """

    name: str
    title: str
    level: Level
    price: Price
    reference: str
    effect: str
    slot: str
    function: str = ""
    constants: Mapping[str, Any] = {}
    requires: tuple[str, ...] = ()
    covers: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    published: tuple[Published, ...] = ()
    caveat: str = ""
    same_as: str = ""

    @property
    def change(self) -> Change | None:
        """The technique as a function of a scenario and the values of its parameters; None if it is not simulated."""
        return partial(_changed, self) if self.function else None

    def values(self, given: Mapping[str, str]) -> dict[str, Any]:
        """All parameters, `given` or default; raises RooflineError for an unknown key or a value out of range."""
        known = {parameter.name: parameter for parameter in self.parameters}
        for key in given:
            if key not in known:
                raise UnknownNameError(f"parameter of {self.name}", key, known)
        return {name: self._value(parameter, given.get(name)) for name, parameter in known.items()}

    def _value(self, parameter: Parameter, text: str | None) -> Any:
        low, high = parameter.low, parameter.high
        if text is None:
            if parameter.default is None and low is None:
                raise RooflineError(f"{self.name} needs {parameter.name}: {parameter.meaning}")
            return parameter.default
        if low is None or high is None:
            return text
        integer = isinstance(parameter.default, int)
        try:
            value = _whole(text) if integer else float(text)
        except ValueError:
            kind = "an integer" if integer else "a number"
            raise RooflineError(f"{self.name}: {parameter.name} must be {kind}, got {quote(text)}") from None
        if not low <= value <= high:
            raise RooflineError(
                f"{self.name}: {parameter.name} must be between {low:g} and {high:g}, got {quote(text)}"
            )
        return value


def _whole(text: str) -> int:
    """The whole number in a text such as 512 or 2K; raises ValueError."""
    number = parse_count(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


def _changed(technique: Technique, scenario: Scenario, values: Values) -> Scenario:
    from roofline.techniques.changes import REQUIREMENTS

    for requirement in technique.requires:
        REQUIREMENTS[requirement](scenario, technique.name)
    module, _, function = technique.function.rpartition(".")
    apply = getattr(import_module(f"roofline.techniques.{module}"), function)
    changed: Scenario = apply(scenario, technique.name, **technique.constants, **values)
    return changed
