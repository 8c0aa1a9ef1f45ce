"""Goals: the objective, the limits, and the quality budget."""

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

from roofline.advisor.search.goodput import Demand, Served, served
from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.extents import spread
from roofline.scenario.analysis import Analysis
from roofline.specs.hardware import Hardware
from roofline.timing.intervals import Reading
from roofline.whatif.metrics import METRICS, Metric, find_metric
from roofline.whatif.solve.targets import Targets


class Objective(StrEnum):
    """The metric to improve."""

    TOTAL = "total"
    TTFT = "ttft"
    TPOT = "tpot"
    THROUGHPUT = "throughput"
    MEMORY = "memory"
    COST = "cost"
    ENERGY = "energy"
    GOODPUT = "goodput"


METRIC: Mapping[Objective, str] = {
    Objective.TOTAL: "total",
    Objective.TTFT: "ttft",
    Objective.TPOT: "tpot",
    Objective.THROUGHPUT: "tokens_per_s",
    Objective.MEMORY: "memory",
    Objective.COST: "cost",
    Objective.ENERGY: "energy",
    Objective.GOODPUT: "goodput",
}
"""The metric (`roofline.whatif.metrics`) of each objective."""

_OF_ENCODERS = (Objective.TOTAL, Objective.TTFT, Objective.MEMORY)

BATCH_VARIES = (Objective.THROUGHPUT, Objective.COST, Objective.ENERGY)
"""Objectives of a service, which chooses its batch; the other objectives keep the given batch."""


class Price(StrEnum):
    """What a change requires, ascending: nothing, engineering, calibration data, a loss of quality, training."""

    LOSSLESS = "lossless"
    ENGINEERING = "engineering"
    CALIBRATION = "calibration"
    LOSSY = "lossy"
    RETRAINING = "retraining"


PRICES = tuple(Price)


class Quality(StrEnum):
    """The most that a change may require (see `Price`)."""

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
    """Upper limits; None is no limit. Seconds, bytes per device, devices, USD per hour of all devices."""

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
"""The metric of each limit."""


GOODPUT = Metric("goodput", "requests/s per device within the limits of TTFT and TPOT", "requests/s", 1, lambda _: None)
"""The metric of a scenario under load; `Goal.served` has its figure."""


class Goal(Struct, frozen=True):
    """An objective under limits. Times are read `at` the bound, or at the expected low (p10), mid (p50) or high (p90).

    `vary_batch`: whether the batch may change; None leaves that to the objective. `of` replaces its metric. `demand` is
    the load of goodput, whose limits of TTFT and TPOT hold at p95 of the requests.
    """

    objective: Objective = Objective.TOTAL
    limits: Limits = field(default_factory=Limits)
    quality: Quality = Quality.CALIBRATED
    at: Reading = "mid"
    vary_batch: bool | None = None
    of: str = ""
    demand: Demand | None = None

    def __post_init__(self) -> None:
        if self.demand is not None and not self.loaded:
            raise RooflineError("a load is for the objective goodput", options=["concurrency", "rate", "objective"])
        if self.loaded and (self.at == "bound" or self.limits.total is not None or self.vary_batch):
            raise RooflineError("goodput is of expected times, with limits of TTFT and TPOT, and of no static batch")

    @property
    def loaded(self) -> bool:
        """Whether the objective is read under load."""
        return self.objective is Objective.GOODPUT

    @property
    def name(self) -> str:
        """The name of the objective's metric."""
        return self.of or METRIC[self.objective]

    @property
    def metric(self) -> Metric:
        """The objective's metric at the goal's reading of time."""
        return GOODPUT if self.loaded else read(self.name, self.at)

    def served(self, analysis: Analysis) -> Served:
        """The scenario of an analysis under the load of goodput."""
        targets = Targets(ttft=self.limits.ttft, tpot=self.limits.tpot, at=self.at)
        return served(analysis, self.demand or Demand(), targets)

    def on(self, hardware: Hardware) -> Goal:
        """The goal with a metric that `hardware` has: without energy figures in its spec, energy is TDP times time."""
        if self.objective is Objective.ENERGY and hardware.energy is None:
            return replace(self, of="energy.tdp")
        return self

    @property
    def timed(self) -> bool:
        """Whether the objective is read from expected times."""
        return self.at != "bound" and self.objective not in (Objective.MEMORY, Objective.GOODPUT)

    @property
    def batch_varies(self) -> bool:
        """Whether the batch may change."""
        return self.objective in BATCH_VARIES if self.vary_batch is None else self.vary_batch

    def value(self, analysis: Analysis) -> Any:
        """The objective's value, an array for a grid; NaN if the specs lack what it needs."""
        return self.figure(analysis, self.name)

    def figure(self, analysis: Analysis, name: str) -> Any:
        """A metric at the goal's reading of time: under load TTFT and TPOT at p95 of the requests."""
        if self.loaded and name == "goodput":
            return self.served(analysis).value
        if self.loaded and name in ("ttft", "tpot"):
            return getattr(self.served(analysis).latency(name), self.at)
        return figure(analysis, name, self.at)

    def check(self, analysis: Analysis) -> None:
        """Raises UnsupportedError if the scenario has no value of the objective or of a limited metric."""
        needed = [self.name, *(LIMITED[name] for name in self.limits.given)]
        for name in needed:
            need = self.metric.needs if name == self.name else read(name, self.at).needs
            if need is not None and not np.all(np.isfinite(figure(analysis, name, self.at))):
                raise need.missing(analysis.scenario.hardware)
        if analysis.decode is None and self.objective not in _OF_ENCODERS:
            model, known = analysis.scenario.model.name, ", ".join(_OF_ENCODERS)
            raise UnsupportedError(f"{model} only encodes and has no {self.objective}: its objectives are {known}")
        timed = self.objective is Objective.TPOT or self.limits.tpot is not None
        if timed and analysis.decode is None:
            raise UnsupportedError(f"{analysis.scenario.model.name} only encodes and has no TPOT to limit")
        if timed and np.any(np.asarray(analysis.scenario.generate) < 2):
            raise RooflineError("a TPOT needs at least two generated tokens", options=["generate"])

    def gain(self, before: Any, after: Any) -> Any:
        """How many times better `after` is than `before`, both values of the objective."""
        return before / after if self.metric.better < 0 else after / before

    def used(self, analysis: Analysis) -> Mapping[str, Any]:
        """Value over limit for each limit: at most 1 meets it. `capacity` is memory over the device's capacity."""
        found: dict[str, Any] = {"capacity": filled(analysis)}
        for name, limit in self.limits.given.items():
            found[name] = self.figure(analysis, LIMITED[name]) / limit
        if self.demand is not None and self.demand.rate is not None:
            found["rate"] = self.demand.rate / self.served(analysis).rate
        return found


def filled(analysis: Analysis) -> Any:
    """Memory over the budget of a device."""
    return analysis.memory.total / analysis.memory.budget


@lru_cache(maxsize=256)
def read(name: str, at: Reading) -> Metric:
    """The metric called `name`, at a reading of time if it is timed."""
    timed = f"{name}.{at}"
    return find_metric(timed if timed in METRICS else name, "expected")


def figure(analysis: Analysis, name: str, at: Reading) -> Any:
    """A metric of an analysis at a reading of time: a number, or an array of the grid's shape."""
    value = spread(np.asarray(read(name, at).figure(analysis), float), analysis.scenario.shape)
    return value if analysis.scenario.shape else float(value)
