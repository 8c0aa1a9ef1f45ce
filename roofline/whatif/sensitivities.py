"""Sensitivities: elasticities of latency, throughput and memory to settings of a scenario.

An elasticity is d ln figure / d ln setting, from central differences on the simulator,

    e = (ln f(x (1 + h)) - ln f(x (1 - h))) / (ln (x (1 + h)) - ln (x (1 - h))),

where counts move by at least a tenth, in whole numbers, and one-sided at a count of 1. Elasticities to a complete set
of costs sum to about 1 in size; bandwidth, peak, links, launches and host time are such a set. Expected times have
small steps due to tiles and waves, so that the result depends on h, which is reported with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct

from roofline.core.display import Result
from roofline.core.errors import RooflineError
from roofline.core.options import Kind
from roofline.scenario.analysis import analyze
from roofline.scenario.argument import scenario_of, without_carbon
from roofline.scenario.scenario import Scenario
from roofline.timing.intervals import Reading
from roofline.whatif import variation
from roofline.whatif.solve.targets import Figures, check_reading, figures, read_value
from roofline.whatif.variation import with_hardware, with_kv_bits, with_weight_bits

STEP = 0.01
"""Relative step h of the central differences."""

COUNT_STEP = 0.1
"""Minimum relative step of counts: a smaller one shows the edge of a tile, not the slope."""

STEPS = (0.005, 0.5)
"""Range of the step: a smaller change of bits has no effect on kernels."""

MORE = 1.1
"""The change that is simulated besides the elasticity: 10% more."""

METRICS = ("ttft", "tpot", "total", "tokens_per_second", "memory")
"""Metrics of the elasticities; `memory` is the fraction of capacity in use."""


class Setting(Struct, frozen=True):
    """A setting, its value, and the scenario with that value times a factor (`at`)."""

    name: str
    meaning: str
    value: float
    at: Callable[[float], Scenario]
    whole: bool = False


class Sensitivity(Struct, frozen=True):
    """The effect of one setting.

    `low` and `high` are the values simulated. `elasticities` are by metric, `more` the relative change of each metric
    with `MORE` times the setting (counts rounded up); None for a metric that the scenario lacks.
    """

    name: str
    meaning: str
    value: float
    low: float
    high: float
    elasticities: dict[str, float | None]
    more: dict[str, float | None]


class Sensitivities(Result, Struct, frozen=True):
    """The sensitivities of a scenario to its settings, of times at a reading, with a relative step."""

    scenario: Scenario
    found: tuple[Sensitivity, ...]
    at: Reading
    step: float

    def __iter__(self) -> Iterator[Sensitivity]:
        return iter(self.found)

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, place: int) -> Sensitivity:
        return self.found[place]


def sensitivity(scenario: Scenario, at: Reading = "mid", step: float = STEP) -> Sensitivities:
    """The sensitivity of TTFT, TPOT, total, tokens/s and memory to every setting of the scenario."""
    low, high = STEPS
    without_carbon(scenario_of(scenario, single=True), "changed settings")
    check_reading(at)
    if not low <= (step := read_value("step", Kind.NUMBER, step)) <= high:
        raise RooflineError(f"the step must be between {low:g} and {high:g}, got {step:g}")
    base = _metrics(scenario, at)
    found = tuple(_response(setting, base, at, step) for setting in settings_of(scenario))
    return Sensitivities(scenario, found, at, step)


def settings_of(scenario: Scenario) -> tuple[Setting, ...]:
    """The continuous settings and counts of a scenario."""
    device, engine = scenario.hardware, scenario.profile

    def scaled(change: Callable[[Any, float], Any]) -> Callable[[float], Scenario]:
        return lambda factor: with_hardware(scenario, lambda hardware: change(hardware, factor))

    def tuned(*names: str) -> Callable[[float], Scenario]:
        return lambda factor: scenario.changed(engine=variation.scaled_engine(engine, factor, *names))

    def counted(name: str, meaning: str, value: int) -> Setting:
        return Setting(name, meaning, value, lambda factor: scenario.at(**{name: round(value * factor)}), whole=True)

    best = max((device.tensor or device.vector).values(), default=0.0)
    host, generates = ("step", "sequence", "gap", "issue"), scenario.model.task == "generate"
    found = [
        Setting("bandwidth", "memory bandwidth, B/s", device.memory_bandwidth, scaled(variation.scaled_bandwidth)),
        Setting("peak", "matrix peaks of all formats (the largest, FLOP/s)", best, scaled(variation.scaled_peaks)),
    ]
    if device.tensor and device.vector:
        value, meaning = device.vector_peak or 0.0, "peaks of the vector unit, FLOP/s"
        found.append(Setting("vector peak", meaning, value, scaled(variation.scaled_vector_peaks)))
    found.append(Setting("capacity", "memory capacity, B", device.memory_capacity, scaled(variation.scaled_capacity)))
    if device.interconnects:
        value, meaning = device.interconnects[0].bandwidth, "bandwidth of all links (the first, B/s)"
        found.append(Setting("link", meaning, value, scaled(variation.scaled_links)))
    found += [
        Setting("launch", "kernel launch, as a fraction of the calibrated one", engine["launch"], tuned("launch")),
        Setting("host", "host time: step, sequence, gap and issue (step, s)", engine["step"], tuned(*host)),
        counted("batch", "sequences", int(scenario.batch)),
        counted("prompt", "prompt tokens", int(scenario.plain.prompt)),
    ]
    if generates:
        found.append(counted("generate", "tokens to generate", int(scenario.plain.generate)))
    weights, kv = scenario.precision.weights.linear or scenario.precision.base, scenario.precision.kv
    found.append(Setting("weight bits", "bits of weights", weights.bits, lambda x: with_weight_bits(scenario, x)))
    if generates:
        found.append(Setting("KV bits", "bits of the KV cache", kv.bits, lambda x: with_kv_bits(scenario, x)))
    return tuple(found)


def _metrics(scenario: Scenario, at: Reading) -> dict[str, float | None]:
    found: Figures = figures(analyze(scenario), at)
    return {
        "ttft": found.ttft,
        "tpot": found.tpot,
        "total": found.total,
        "tokens_per_second": found.tokens_per_second or None,
        "memory": found.memory / found.capacity,
    }


def ends(setting: Setting, step: float) -> tuple[float, float]:
    """The factors of a setting to simulate: 1 - h and 1 + h; for counts at least a tenth, in whole numbers."""
    if not setting.whole:
        return 1 - step, 1 + step
    width = max(1, round(setting.value * max(step, COUNT_STEP)))
    return max(setting.value - width, 1) / setting.value, (setting.value + width) / setting.value


def _response(setting: Setting, base: dict[str, float | None], at: Reading, step: float) -> Sensitivity:
    low, high = ends(setting, step)
    below = base if low == 1 else _metrics(setting.at(low), at)
    above = _metrics(setting.at(high), at)
    width = math.log(high) - math.log(low)
    elasticities = {name: _slope(below[name], above[name], width) for name in METRICS}
    factor = math.ceil(setting.value * MORE - 1e-9) / setting.value if setting.whole else MORE
    after = _metrics(setting.at(factor), at)
    more = {name: _relative(base[name], after[name]) for name in METRICS}
    return Sensitivity(
        setting.name, setting.meaning, setting.value, setting.value * low, setting.value * high, elasticities, more
    )


def _slope(below: float | None, above: float | None, width: float) -> float | None:
    if below is None or above is None or below <= 0 or above <= 0:
        return None
    return (math.log(above) - math.log(below)) / width


def _relative(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or before <= 0 else after / before - 1
