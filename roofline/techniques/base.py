"""The catalogue entry: what a technique is, its parameters, its published effects, and the function that applies it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from importlib import import_module
from inspect import signature
from typing import Any

from msgspec import Struct

from roofline.core.errors import RooflineError, SpecError, UnknownNameError, quote, shortened, suggest
from roofline.core.units import parse_count
from roofline.scenario.scenario import Scenario


class Level(StrEnum):
    """The level at which a technique works, as in the survey of Zhou et al. 2024."""

    DATA = "data"
    MODEL = "model"
    SYSTEM = "system"


class Price(StrEnum):
    """What a change requires, ascending: nothing, engineering, calibration data, a loss of quality, training."""

    LOSSLESS = "lossless"
    ENGINEERING = "engineering"
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
Function = Callable[..., Scenario]
"""Applies a technique: takes a scenario, the technique's name, and its constants and parameters as keywords."""


class Technique(Struct, frozen=True):
    """One entry of the catalogue.

    `covers` lists the systems and methods of the literature that the entry represents. Two techniques with the same
    `slot` exclude each other. `function` names the function that applies the technique, as module.function of this
    room; its arguments are the scenario, the technique's name, the `constants` and the values of the `parameters`. It
    is "" for techniques that no scenario has: `command` is the one that simulates them under a load, or `caveat` gives
    the reason. Otherwise `caveat` is what a simulation omits.
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
    command: str = ""
    same_as: str = ""

    @property
    def change(self) -> Change | None:
        """The technique as a function of a scenario and the values of its parameters; None if it is not simulated."""
        return partial(_changed, self) if self.function else None

    @property
    def applied_by(self) -> Function:
        """The function that applies the technique."""
        module, _, name = self.function.rpartition(".")
        found: Function = getattr(import_module(f"roofline.techniques.{module}"), name)
        return found

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
    from roofline.techniques.changes import require

    for requirement in technique.requires:
        require(scenario, technique.name, requirement)
    return technique.applied_by(scenario, technique.name, **technique.constants, **values)


class Registered(Technique, frozen=True):
    """An entry of a user's, with the function that applies it."""

    own: Any = None

    @property
    def applied_by(self) -> Function:
        """The function that applies the technique."""
        found: Function = self.own
        return found


def _within(value: object, low: float, high: float) -> bool:
    return isinstance(value, (int, float)) and -1e300 < low <= value <= high < 1e300


_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{0,79}")


def check_entry(entry: Technique, where: str, key: str = "") -> None:
    """Check what the shipped entries have tests for: the name, what is required, and that the function takes it all.

    Raises SpecError, which names the place `where` and the entry's `key` in it.
    """
    from roofline.techniques.changes import REQUIREMENTS

    place = f"{quote(key)}: " if key else ""
    if not _NAME.fullmatch(entry.name):
        raise SpecError(where, f"{place}its name must be of small letters, digits, dashes and points")
    for needed in entry.requires:
        if needed not in REQUIREMENTS:
            raise SpecError(where, f"{place}unknown requirement {quote(needed)}{suggest(needed, REQUIREMENTS)}")
    for one in entry.parameters:
        if one.low is not None and one.high is not None and not _within(one.default, one.low, one.high):
            raise SpecError(where, f"{place}the default of {quote(one.name)} must be a number from its low to its high")
    if not entry.function:
        return
    parameters = {parameter.name: parameter.default for parameter in entry.parameters}
    try:
        signature(entry.applied_by).bind(None, entry.name, **entry.constants, **parameters)
    except TypeError as error:
        problem = f"its function cannot take its constants and parameters: {shortened(error)}"
        raise SpecError(where, f"{place}{problem}") from None
