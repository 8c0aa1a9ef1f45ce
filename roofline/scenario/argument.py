"""The scenario that a verb is asked about, and options beside an object that has its own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from roofline.core.checked import object_of
from roofline.core.errors import RooflineError
from roofline.scenario.scenario import Scenario


def scenario_of(given: object, single: bool = False) -> Scenario:
    """The scenario that a verb takes, and no name, model or list; `single`: not with a grid of workloads."""
    found = object_of(given, Scenario, "a scenario is needed, such as Scenario('llama-3.1-8b', 'h100-sxm')")
    if single and found.shape:
        raise RooflineError("the question is of one scenario, whose workload is no array: sweep evaluates grids")
    return found


def parts_of(scenario: Scenario, without: Collection[str] = ()) -> tuple[Any, Any, dict[str, Any]]:
    """Model, hardware and further options of a scenario that stands in the place of a model, but for some of these."""
    options = scenario.given_options(without)
    return options.pop("model"), options.pop("hw"), options


def without_carbon(scenario: Scenario, what: str) -> None:
    """Raise RooflineError for a carbon intensity where a verb computes no emissions; `what`: whose, in words."""
    if scenario.carbon is not None:
        raise RooflineError(f"emissions of {what} are not computed: omit carbon", options=["carbon"])


def beside(names: Sequence[str]) -> str:
    """The beginning of an error about options beside an object that has its own: 'a and b are given beside'."""
    return f"{' and '.join(names)} {'are' if len(names) > 1 else 'is'} given beside"
