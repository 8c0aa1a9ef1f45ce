"""The catalogue entry: a technique as a function from a scenario to a scenario, with its published effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from functools import partial
from typing import Any

from msgspec import Struct

from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import parse_count
from roofline.scenario.scenario import Scenario

SURVEY = "Zhou et al. 2024"
TABLE_6 = f"{SURVEY}, Table 6"
GENERATIVE_SURVEY = "Miao et al. 2023"
UNVEILED = "Yuan et al. 2024, LLM Inference Unveiled"
ACCELERATORS = "Park et al. 2024, Inference Optimization on AI Accelerators"


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
    default: float | int | str | None
    meaning: str
    low: float | None = None
    high: float | None = None


class Published(Struct, frozen=True):
    """A published effect with its conditions and source."""

    effect: str
    conditions: str
    source: str


Values = Mapping[str, Any]
Change = Callable[[Scenario, Values], Scenario]


class Technique(Struct, frozen=True):
    """One entry of the catalogue.

    `covers` lists the systems and methods of the literature that the entry represents. Two techniques with the same
    `slot` exclude each other. `change` is None for techniques that roofline does not simulate; `caveat` gives the
    reason, or what a simulation omits. `same_as` names the entry that has the same simulation, with other defaults.
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
    same_as: str = ""

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
        if low is None:
            return text
        integer = isinstance(parameter.default, int)
        try:
            value = _whole(text) if integer else float(text)
        except ValueError:
            kind = "an integer" if integer else "a number"
            raise RooflineError(f"{self.name}: {parameter.name} must be {kind}, got {quote(text)}") from None
        if not low <= value <= (float("inf") if high is None else high):
            bounds = f"at least {low:g}" if high is None else f"between {low:g} and {high:g}"
            raise RooflineError(f"{self.name}: {parameter.name} must be {bounds}, got {quote(text)}")
        return value


def _whole(text: str) -> int:
    """The whole number in a text such as 512 or 2K; raises ValueError."""
    number = parse_count(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


def _entry(
    name: str,
    title: str,
    reference: str,
    effect: str,
    slot: str,
    change: Change | None,
    *parameters: Parameter,
    level: Level,
    price: Price,
    covers: tuple[str, ...] = (),
    published: tuple[Published, ...] = (),
    caveat: str = "",
    same_as: str = "",
) -> Technique:
    described = (name, title, level, price, reference, effect, slot)
    rest = (change, covers, parameters, published, caveat, "" if same_as == name else same_as)
    return Technique(*described, *rest)


data_technique = partial(_entry, level=Level.DATA, price=Price.LOSSY)
model_technique = partial(_entry, level=Level.MODEL)
system_technique = partial(_entry, level=Level.SYSTEM, price=Price.LOSSLESS)
