"""Sensitivities: by how many percent times, rate and memory change with one percent of a setting.

An elasticity is d ln figure / d ln setting, from central differences on the simulator,

    e = (ln f(x (1 + h)) - ln f(x (1 - h))) / (ln (x (1 + h)) - ln (x (1 - h))),

where counts move by a tenth at least, in whole numbers, and one-sided where a count cannot fall. Elasticities to
all that a time consists of add up to about 1 in size; bandwidth, peak, links, launches and the host are such a set.
Expected times rise in small steps with tiles and waves, so that the step h matters: it is part of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.timing.estimate import Reading
from roofline.whatif.request import Request
from roofline.whatif.solve.targets import Figures, figures
from roofline.whatif.variation import (
    scaled_bandwidth,
    scaled_capacity,
    scaled_engine,
    scaled_links,
    scaled_peaks,
    scaled_vector_peaks,
    with_hardware,
    with_kv_bits,
    with_weight_bits,
)

STEP = 0.01
"""Relative step h of the central differences."""

COUNT_STEP = 0.1
"""Least relative step of counts: a smaller one would show the edge of a tile rather than the slope."""

STEPS = (0.005, 0.5)
"""Least and largest step: kernels do not see a smaller change of bits."""

MORE = 1.1
"""The change that is simulated whole, beside the elasticity: 10% more."""

METRICS = ("ttft", "tpot", "total", "tokens_per_second", "memory")
"""What responds; memory is the share of the capacity that is in use."""


class Knob(Struct, frozen=True):
    """A setting: what it is, its value, and the scenario with that value times a factor."""

    name: str
    meaning: str
    value: float
    whole: bool
    at: Callable[[float], Scenario]


class Sensitivity(Struct, frozen=True):
    """What one setting does.

    `low` and `high` are the values simulated. `elasticities` are by metric, `more` the relative change of each with
    `MORE` times the setting (counts rounded up); None where there is no such figure.
    """

    name: str
    meaning: str
    value: float
    low: float
    high: float
    elasticities: dict[str, float | None]
    more: dict[str, float | None]


def sensitivity(request: Request, at: Reading = "mid", step: float = STEP) -> tuple[Sensitivity, ...]:
    """The response of TTFT, TPOT, total, tokens/s and memory to every setting that the scenario has."""
    low, high = STEPS
    if not low <= step <= high:
        raise RooflineError(f"the step must be between {low:g} and {high:g}, got {step:g}")
    base = _metrics(request.scenario(), at)
    return tuple(_response(knob, base, at, step) for knob in knobs(request))


def knobs(request: Request) -> tuple[Knob, ...]:
    """The settings of a scenario that can be a little more or less."""
    asked = request.scenario()
    device, engine = asked.hardware, asked.profile

    def scaled(change: Callable[[Any, float], Any]) -> Callable[[float], Scenario]:
        return lambda factor: with_hardware(asked, lambda hardware: change(hardware, factor))

    def tuned(*names: str) -> Callable[[float], Scenario]:
        return lambda factor: replace(asked, engine=scaled_engine(engine, factor, *names))

    def counted(name: str, value: int) -> Knob:
        at = lambda factor: request.scenario(**{name: round(value * factor)})  # noqa: E731
        return Knob(name, _COUNTS[name], value, True, at)

    matrix = device.tensor or device.vector
    best = max(matrix.values(), default=0.0)
    host = ("step", "sequence", "gap", "issue")
    found = [
        Knob("bandwidth", "memory bandwidth, B/s", device.memory_bandwidth, False, scaled(scaled_bandwidth)),
        Knob("peak", "matrix peaks of all formats (the largest, FLOP/s)", best, False, scaled(scaled_peaks)),
    ]
    if device.tensor and device.vector:
        value, meaning = device.vector_peak or 0.0, "peaks of the vector unit, FLOP/s"
        found.append(Knob("vector peak", meaning, value, False, scaled(scaled_vector_peaks)))
    found.append(Knob("capacity", "memory capacity, B", device.memory_capacity, False, scaled(scaled_capacity)))
    if device.interconnects:
        value, meaning = device.interconnects[0].bandwidth, "bandwidth of all links (the first, B/s)"
        found.append(Knob("link", meaning, value, False, scaled(scaled_links)))
    found += [
        Knob(
            "launch", "launch of measured kernels, of that of the calibration", engine["launch"], False, tuned("launch")
        ),
        Knob("host", "host time: a pass, a sequence, gaps and issue (a pass, s)", engine["step"], False, tuned(*host)),
        counted("batch", int(request.scenario().batch)),
        counted("prompt", int(_own(request, "prompt"))),
    ]
    if asked.model.task == "generate":
        found.append(counted("generate", int(_own(request, "generate"))))
    precision = asked.precision
    assert precision is not None
    weights = precision.weights.linear or precision.base
    bits = [Knob("weight bits", "bits of weights", weights.bits, False, lambda factor: with_weight_bits(asked, factor))]
    if asked.model.task == "generate":
        meaning = "bits of the KV cache"
        bits.append(Knob("KV bits", meaning, precision.kv.bits, False, lambda factor: with_kv_bits(asked, factor)))
    return (*found, *bits)


_COUNTS = {"batch": "sequences", "prompt": "prompt tokens", "generate": "tokens to generate"}


def _own(request: Request, name: str) -> Any:
    """A count as it was asked for, before techniques."""
    return getattr(request.using().scenario(), name)


def _metrics(scenario: Scenario, at: Reading) -> dict[str, float | None]:
    found: Figures = figures(analyze(scenario), at)
    return {
        "ttft": found.ttft,
        "tpot": found.tpot,
        "total": found.total,
        "tokens_per_second": found.tokens_per_second or None,
        "memory": found.memory / found.capacity,
    }


def ends(knob: Knob, step: float) -> tuple[float, float]:
    """The factors at which a setting is simulated: 1 - h and 1 + h; a tenth at least for counts, in whole numbers."""
    if not knob.whole:
        return 1 - step, 1 + step
    width = max(1, round(knob.value * max(step, COUNT_STEP)))
    return max(knob.value - width, 1) / knob.value, (knob.value + width) / knob.value


def _response(knob: Knob, base: dict[str, float | None], at: Reading, step: float) -> Sensitivity:
    low, high = ends(knob, step)
    below = base if low == 1 else _metrics(knob.at(low), at)
    above = _metrics(knob.at(high), at)
    width = math.log(high) - math.log(low)
    elasticities = {name: _slope(below[name], above[name], width) for name in METRICS}
    factor = math.ceil(knob.value * MORE - 1e-9) / knob.value if knob.whole else MORE
    after = _metrics(knob.at(factor), at)
    more = {name: _relative(base[name], after[name]) for name in METRICS}
    return Sensitivity(knob.name, knob.meaning, knob.value, knob.value * low, knob.value * high, elasticities, more)


def _slope(below: float | None, above: float | None, width: float) -> float | None:
    if below is None or above is None or below <= 0 or above <= 0:
        return None
    return (math.log(above) - math.log(below)) / width


def _relative(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or before <= 0 else after / before - 1
