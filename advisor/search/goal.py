"""Goals: what is to get better, what must hold meanwhile, and what answers may lose in quality for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.extents import spread
from roofline.scenario.analysis import Analysis
from roofline.specs.hardware import Hardware
from roofline.timing.intervals import Reading
from roofline.whatif.metrics import METRICS, Metric, find_metric


class Objective(StrEnum):
    """What is to get better."""

    TOTAL = "total"
    TTFT = "ttft"
    TPOT = "tpot"
    THROUGHPUT = "throughput"
    MEMORY = "memory"
    COST = "cost"
    ENERGY = "energy"


METRIC: Mapping[Objective, str] = {
    Objective.TOTAL: "total",
    Objective.TTFT: "ttft",
    Objective.TPOT: "tpot",
    Objective.THROUGHPUT: "tokens_per_s",
    Objective.MEMORY: "memory",
    Objective.COST: "cost",
    Objective.ENERGY: "energy",
}
"""The metric (`roofline.whatif.metrics`) of each objective."""

_OF_ENCODERS = (Objective.TOTAL, Objective.TTFT, Objective.MEMORY)

BATCH_VARIES = (Objective.THROUGHPUT, Objective.COST, Objective.ENERGY)
"""Objectives of a service, which may choose how many sequences run together; the others answer a given batch."""


class Price(StrEnum):
    """What a change asks for, cheapest first: nothing of the answers, work, a calibration, some quality, training."""

    LOSSLESS = "lossless"
    ENGINEERING = "engineering"
    CALIBRATION = "calibration"
    LOSSY = "lossy"
    RETRAINING = "retraining"


PRICES = tuple(Price)


class Quality(StrEnum):
    """How much a change may ask for at most."""

    LOSSLESS = "lossless"
    CALIBRATED = "calibrated"
    LOSSY = "lossy"
    RETRAIN = "retrain"

    def allows(self, price: Price) -> bool:
        """Whether a change of this price is within the budget."""
        return PRICES.index(price) <= PRICES.index(_DEAREST[self])


QUALITIES = tuple(Quality)
_DEAREST = {
    Quality.LOSSLESS: Price.ENGINEERING,
    Quality.CALIBRATED: Price.CALIBRATION,
    Quality.LOSSY: Price.LOSSY,
    Quality.RETRAIN: Price.RETRAINING,
}


class Limits(Struct, frozen=True):
    """What must hold; None is no limit. Seconds, bytes of each device, devices, USD an hour of all devices."""

    ttft: float | None = None
    tpot: float | None = None
    total: float | None = None
    memory: float | None = None
    gpus: int | None = None
    budget: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise RooflineError(f"the limit of {name} must be above 0, got {value:g}")

    @property
    def given(self) -> Mapping[str, float]:
        """The limits that are set."""
        return {name: float(value) for name in self.__struct_fields__ if (value := getattr(self, name)) is not None}


LIMITED: Mapping[str, str] = MappingProxyType(
    {"ttft": "ttft", "tpot": "tpot", "total": "total", "memory": "memory", "gpus": "gpus", "budget": "usd_per_hour"}
)
"""The metric that each limit is of."""


class Goal(Struct, frozen=True):
    """What is wanted of a scenario. Times are read `at` the bound or at expected low, mid or high.

    `vary_batch`: whether another number of sequences may be run at once; None leaves that to the objective. `of` is the
    metric of the objective, where it is not the usual one.
    """

    objective: Objective = Objective.TOTAL
    limits: Limits = field(default_factory=Limits)
    quality: Quality = Quality.CALIBRATED
    at: Reading = "mid"
    vary_batch: bool | None = None
    of: str = ""

    @property
    def name(self) -> str:
        """The name of the figure that is to get better."""
        return self.of or METRIC[self.objective]

    @property
    def metric(self) -> Metric:
        """The figure that is to get better."""
        return read(self.name, self.at)

    def on(self, hardware: Hardware) -> Goal:
        """The same where it can be told: without energy figures in the spec, energy is the TDP times the time."""
        if self.objective is Objective.ENERGY and hardware.energy is None:
            return replace(self, of="energy.tdp")
        return self

    @property
    def timed(self) -> bool:
        """Whether it rests on expected times."""
        return self.at != "bound" and self.objective is not Objective.MEMORY

    @property
    def batch_varies(self) -> bool:
        """Whether the batch may change."""
        return self.objective in BATCH_VARIES if self.vary_batch is None else self.vary_batch

    def value(self, analysis: Analysis) -> Any:
        """The objective's figure, an array for a grid; NaN where the specs do not say what it takes."""
        return figure(analysis, self.name, self.at)

    def check(self, analysis: Analysis) -> None:
        """Raises UnsupportedError where the scenario has no figure of the objective or of a limit."""
        needed = [self.name, *(LIMITED[name] for name in self.limits.given)]
        for name in needed:
            need = read(name, self.at).needs
            if need is not None and not np.all(np.isfinite(figure(analysis, name, self.at))):
                raise need.missing(analysis.scenario.hardware)
        if analysis.decode is None and self.objective not in _OF_ENCODERS:
            model, known = analysis.scenario.model.name, ", ".join(_OF_ENCODERS)
            raise UnsupportedError(f"{model} only encodes and has no {self.objective}: its objectives are {known}")
        timed = self.objective is Objective.TPOT or self.limits.tpot is not None
        if timed and analysis.decode is None:
            raise UnsupportedError(f"{analysis.scenario.model.name} only encodes and has no TPOT to limit")
        if timed and np.any(np.asarray(analysis.scenario.generate) < 2):
            raise RooflineError("a TPOT needs at least two generated tokens: raise --generate")

    def gain(self, before: Any, after: Any) -> Any:
        """How many times better `after` is than `before`, figures of the objective."""
        return before / after if self.metric.better < 0 else after / before

    def used(self, analysis: Analysis) -> Mapping[str, Any]:
        """Each limit's use, figure over limit: at most 1 is met. `capacity` is that of the device's memory."""
        found: dict[str, Any] = {"capacity": filled(analysis)}
        for name, limit in self.limits.given.items():
            found[name] = figure(analysis, LIMITED[name], self.at) / limit
        return found


def filled(analysis: Analysis) -> Any:
    """The share of a device's memory that is used."""
    return analysis.memory.total / analysis.memory.capacity


@lru_cache(maxsize=256)
def read(name: str, at: Reading) -> Metric:
    """The metric at a reading of time, where it has readings."""
    timed = f"{name}.{at}"
    return find_metric(timed if timed in METRICS else name, "expected")


def figure(analysis: Analysis, name: str, at: Reading) -> Any:
    """A metric of an analysis at a reading of time: a number, or an array of the grid's shape."""
    value = spread(np.asarray(read(name, at).figure(analysis), float), analysis.scenario.shape)
    return value if analysis.scenario.shape else float(value)
