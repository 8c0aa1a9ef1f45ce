"""Sizing: which hardware, how many devices, how divided, in which formats and with how many sequences at once.

>>> from advisor.sizing import size
>>> from advisor.workload import Service
>>> from roofline import load_model
>>> service = Service(rate=5, prompt=2000, generate=300, ttft=2, tpot=0.05)
>>> found = size(load_model("llama-3.1-8b"), service, ["l4", "h100-sxm"], prices={"l4": 0.8, "h100-sxm": 3.0})
>>> found.choice("cheapest").best.hardware.name
'h100-sxm'

Every configuration is first held against the speed of light, which no time is below (`advisor.configurations`), and
simulated at expected times only while it could still be among the best. A replica under load is `advisor.queueing`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from advisor.choices import Choice
from advisor.goal import Quality
from advisor.search import Progress, Search
from advisor.setups import At
from advisor.workload import Service
from roofline.errors import RooflineError, UnknownNameError
from roofline.hardware import load_hardware
from roofline.model import Model


@dataclass(frozen=True)
class Sizing:
    """The answer: choices by aim, or why there is none.

    `binding` are the targets that bind (ttft, tpot or memory); `nearest` the least of each, in seconds or bytes of a
    device, with which something does, the others as they are (both times, where neither alone would do).
    `considered` counts configurations, `capable` those that the speed of light allows, `simulated` those simulated.
    """

    model: Model
    service: Service
    quality: Quality
    at: At
    choices: tuple[Choice, ...]
    binding: tuple[str, ...]
    nearest: Mapping[str, float]
    considered: int
    capable: int
    simulated: int
    unpriced: tuple[str, ...]

    @property
    def feasible(self) -> bool:
        """Whether anything meets the service."""
        return bool(self.choices)

    def choice(self, name: str) -> Choice:
        """The choice of an aim by name; raises RooflineError where there is none."""
        for found in self.choices:
            if found.aim.name == name:
                return found
        raise UnknownNameError("choice", name, [found.aim.name for found in self.choices])


def size(
    model: Model,
    service: Service,
    hardware: Sequence[str] | None = None,
    quality: Quality = Quality.CALIBRATED,
    prices: Mapping[str, float] | None = None,
    engine: str | None = None,
    at: At = "mid",
    progress: Progress = lambda _done, _all: None,
) -> Sizing:
    """The configurations that meet a service: the cheapest, that of fewest devices, the fastest, the most efficient.

    `hardware` are names; None is all that is known, for a single user what stands on a desk. `prices` are USD an hour
    of a device (to buy, for a single user) beside those of the specs. Targets have to hold `at` expected low, mid or
    high. Raises RooflineError.
    """
    prices = dict(prices or {})
    _check(model, service, hardware, prices)
    search = Search(model, service, hardware, quality, prices, engine, at, progress)
    choices = tuple(search.choices())
    binding, nearest = ((), {}) if choices else search.nearest()
    return Sizing(
        model,
        service,
        quality,
        at,
        choices,
        binding,
        nearest,
        search.considered,
        len(search.capable),
        search.simulated,
        tuple(sorted({prospect.configuration.hardware.name for prospect in search.capable} - search.priced)),
    )


def _check(model: Model, service: Service, hardware: Sequence[str] | None, prices: Mapping[str, float]) -> None:
    if model.task != "generate":
        raise RooflineError(f"{model.name} only encodes: a service is sized for models that generate")
    if hardware is not None and not hardware:
        raise RooflineError("no hardware to choose from")
    longest = service.prompts.mean + service.answers.mean
    if model.max_context is not None and longest > model.max_context and model.tower_kind != "encoder":
        raise RooflineError(
            f"prompt and answer of {longest:.0f} tokens are longer than the maximum context of {model.name},"
            f" {model.max_context}"
        )
    for name, price in prices.items():
        load_hardware(name)
        if hardware is not None and name not in hardware:
            raise RooflineError(f"a price of {name} is given, which is not among the hardware to choose from")
        if not (price > 0 and math.isfinite(price)):
            raise RooflineError(f"the price of {name} must be above 0, got {price:g}")
