"""Metrics of an analysis, by name.

Times and rates have several readings: `ttft.bound` is the bound, and `ttft.low`, `ttft.mid` and `ttft.high` are p10,
p50 and p90 of the expected time; `ttft` is the p50 or the bound, as a study chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.core.errors import RooflineError, UnknownNameError, suggest
from roofline.core.expressions import Type
from roofline.scenario import cost, energy
from roofline.scenario.analysis import Analysis
from roofline.specs.hardware import Hardware
from roofline.specs.model import Model
from roofline.techniques.unsupported import unsupported
from roofline.timing.intervals import INVERSE, READINGS, Reading

AT: Mapping[str, str] = {"expected": "mid", "bound": "bound"}
"""The reading of a metric without a suffix, by the study's `at`."""


class Need(Struct, frozen=True):
    """What some metrics require of an option or a hardware spec, and the error where it is missing."""

    option: str
    of: Callable[[Hardware], object]
    missing: Callable[[Hardware], RooflineError]


ENERGY = Need("energy", lambda found: found.energy, energy.explain_missing)
TDP = Need("tdp", lambda found: found.tdp, energy.explain_missing_tdp)
PRICE = Need("price", lambda found: cost.price(found, None), cost.explain_missing)
CARBON = Need("carbon", lambda _: None, energy.explain_missing_carbon)


class Metric(Struct, frozen=True):
    """A metric, with its better direction: 1 up, -1 down, 0 neither.

    `needs` is the value of the hardware spec that it requires; without that it is NaN.
    """

    name: str
    meaning: str
    unit: str
    better: int
    figure: Callable[[Analysis], Any]
    type: Type = Type.NUMBER
    needs: Need | None = None


def _timed(
    name: str, meaning: str, unit: str, better: int, figure: Callable[[Analysis, Any], Any], needs: Need | None = None
) -> tuple[Metric, ...]:
    titles = {"bound": "at the bound", "low": "10th percentile", "mid": "50th percentile", "high": "90th percentile"}
    return tuple(
        Metric(
            f"{name}.{reading}",
            f"{meaning}, {titles[reading]}",
            unit,
            better,
            # The default argument binds the current `reading`.
            lambda analysis, reading=reading: figure(analysis, reading),  # type: ignore[misc]
            needs=needs,
        )
        for reading in READINGS
    )


def _phase(phase: str, analysis: Analysis, reading: Reading) -> Any:
    """The time of a phase, which is computed without the other one."""
    found = getattr(analysis, phase)
    if found is None:
        return _nothing(analysis)
    analysis.check_reading(reading)
    return found.bound_time if reading == "bound" else getattr(found.expected, reading)


def _whole(name: str, analysis: Analysis, reading: Reading) -> Any:
    """A figure of the whole generation."""
    found = None if analysis.decode is None and name != "total" else analysis.figure(name, reading)
    return _nothing(analysis) if found is None else found


_tpot, _total, _rate = (partial(_whole, name) for name in ("tpot", "total", "tokens_per_second"))


def _rate_per_gpu(analysis: Analysis, reading: Reading) -> Any:
    return _rate(analysis, reading) / devices(analysis)


def _rate_per_user(analysis: Analysis, reading: Reading) -> Any:
    return 1 / _tpot(analysis, INVERSE.get(reading, reading))


def _sequences(analysis: Analysis, reading: Reading) -> Any:
    return analysis.scenario.batch / _total(analysis, INVERSE.get(reading, reading))


def _ratio(upper: Any, lower: Any) -> Any:
    """The quotient; NaN where `lower` is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.divide(upper, lower)
    return np.where(np.asarray(lower) > 0, found, np.nan)


def _energy(analysis: Analysis, reading: Reading) -> Any:
    found = energy.batch_energy(analysis, reading)
    return _nothing(analysis) if found is None else _ratio(found.total, cost.generated_tokens(analysis))


def _carbon(analysis: Analysis, reading: Reading) -> Any:
    given, joules = analysis.scenario.carbon, _energy(analysis, reading)
    if energy.batch_energy(analysis, reading) is None:
        joules = _energy_at_tdp(analysis, reading)
    return _nothing(analysis) if given is None else joules * cost.MILLION / energy.KWH * given


def _prefill_energy(analysis: Analysis, reading: Reading) -> Any:
    found, scenario = energy.batch_energy(analysis, reading), analysis.scenario
    return _nothing(analysis) if found is None else _ratio(found.prefill.total, scenario.batch * scenario.prompt)


def _decode_energy(analysis: Analysis, reading: Reading) -> Any:
    found, scenario = energy.batch_energy(analysis, reading), analysis.scenario
    if found is None or analysis.decode is None:
        return _nothing(analysis)
    return _ratio(found.decode.total, scenario.batch * (scenario.generate - 1) * scenario.settings.useful)


def _energy_at_tdp(analysis: Analysis, reading: Reading) -> Any:
    found = energy.energy_at_tdp(analysis, reading)
    return _nothing(analysis) if found is None else _ratio(found, cost.generated_tokens(analysis))


def _prefill_energy_at_tdp(analysis: Analysis, reading: Reading) -> Any:
    scenario, spent = analysis.scenario, energy.times(analysis, reading).prefill
    found = energy.tdp_energy(energy.device_pools(analysis), analysis.parallel.devices, spent)
    return _nothing(analysis) if found is None else _ratio(found, scenario.batch * scenario.prompt)


def _power(analysis: Analysis, reading: Reading) -> Any:
    if (found := energy.batch_energy(analysis, reading)) is None:
        return _nothing(analysis)
    if reading not in INVERSE:
        return found.power
    # Neither time need have the least power: a phase at TDP may be longer than one below it.
    pick = np.minimum if reading == "low" else np.maximum
    powers = [energy.batch_energy(analysis, other) for other in ("low", "mid", "high")]
    return reduce(pick, (batch.power for batch in powers if batch is not None))


def _cost(analysis: Analysis, reading: Reading) -> Any:
    found = cost.batch_cost(analysis, reading)
    return _nothing(analysis) if found is None else _ratio(found * cost.MILLION, cost.generated_tokens(analysis))


def _cost_processed(analysis: Analysis, reading: Reading) -> Any:
    found = cost.batch_cost(analysis, reading)
    return _nothing(analysis) if found is None else _ratio(found * cost.MILLION, cost.processed_tokens(analysis))


def _hourly(analysis: Analysis) -> Any:
    rent = cost.hourly_rent(analysis)
    return _nothing(analysis) if rent is None else rent * analysis.parallel.devices


def _nothing(analysis: Analysis) -> Any:
    return np.full(analysis.scenario.shape, np.nan)


def devices(analysis: Analysis) -> int:
    """The number of devices: twice the parallelism's if prefill and decode are disaggregated."""
    settings = analysis.scenario.settings
    pools = sum(stage.devices for stage in settings.mixed) or (1 if settings.decode_hardware is None else 2)
    return analysis.parallel.devices * pools


def _supported(analysis: Analysis) -> Any:
    return np.full(analysis.scenario.shape, not unsupported(analysis.scenario))


def _roof(phase: str) -> Callable[[Analysis], Any]:
    def figure(analysis: Analysis) -> Any:
        passes = getattr(analysis, phase)
        return np.full(analysis.scenario.shape, "") if passes is None else passes.bound

    return figure


_PER_TIME = "tokens/s"
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *_timed("ttft", "time to first token: the prefill", "s", -1, partial(_phase, "prefill")),
        *_timed("tpot", "time per output token after the first", "s", -1, _tpot),
        *_timed("step", "one decode step at the context", "s", -1, partial(_phase, "decode")),
        *_timed("total", "prefill and all decode steps", "s", -1, _total),
        *_timed("tokens_per_s", "generated tokens of all sequences over the total", _PER_TIME, 1, _rate),
        *_timed("tokens_per_s_per_gpu", "tokens_per_s over devices", _PER_TIME, 1, _rate_per_gpu),
        *_timed("tokens_per_s_per_user", "one over TPOT", _PER_TIME, 1, _rate_per_user),
        *_timed("sequences_per_s", "batch over the total", "sequences/s", 1, _sequences),
        *_timed("energy", "modelled energy of all devices per generated token", "J", -1, _energy, ENERGY),
        *_timed("energy.prefill", "modelled prefill energy per prompt token", "J", -1, _prefill_energy, ENERGY),
        *_timed("energy.decode", "modelled decode energy per token after the first", "J", -1, _decode_energy, ENERGY),
        *_timed("energy.tdp", "energy of all devices at TDP per generated token", "J", -1, _energy_at_tdp, TDP),
        *_timed("energy.tdp.prefill", "prefill energy at TDP per prompt token", "J", -1, _prefill_energy_at_tdp, TDP),
        *_timed("carbon", "emissions of a million generated tokens, in CO2 equivalents", "g", -1, _carbon, CARBON),
        *_timed("power", "modelled mean power of a device", "W", -1, _power, ENERGY),
        *_timed("cost", "cost of a million generated tokens", "USD", -1, _cost, PRICE),
        *_timed("cost.processed", "cost of a million prompt and output tokens", "USD", -1, _cost_processed, PRICE),
        Metric("usd_per_hour", "rent of all devices", "USD/h", -1, _hourly, needs=PRICE),
        Metric("memory", "bytes resident on the fullest device", "B", -1, lambda found: found.memory.total),
        Metric("memory.weights", "bytes of weights on a device", "B", -1, lambda found: found.memory.weights),
        Metric("memory.kv", "bytes of the KV cache on a device", "B", -1, lambda found: found.memory.kv_cache),
        Metric("memory.state", "bytes of recurrent states on a device", "B", -1, lambda found: found.memory.state),
        Metric("memory.activations", "peak bytes of activations", "B", -1, lambda found: found.memory.activation_peak),
        Metric("memory.runtime", "bytes of the engine's runtime", "B", -1, lambda found: found.memory.runtime),
        Metric("memory.usable", "bytes that the engine may use", "B", 1, lambda found: found.memory.budget),
        Metric("headroom", "usable bytes left on the fullest device", "B", 1, lambda found: found.memory.headroom),
        Metric("fits", "whether the scenario fits in memory", "", 1, lambda found: found.memory.fits, Type.TRUTH),
        Metric("supported", "whether the engine is known to run all of it", "", 1, _supported, Type.TRUTH),
        Metric("gpus", "number of devices", "", -1, devices),
        Metric("prefill_bound", "main bound of prefill: compute, memory, link", "", 0, _roof("prefill"), Type.TEXT),
        Metric("decode_bound", "main bound of a decode step: compute, memory, link", "", 0, _roof("decode"), Type.TEXT),
    )
}
"""All metrics, with their reading; `find_metric` also takes names without one."""

GROUPS: Mapping[str, tuple[str, ...]] = {"bound": ("prefill_bound", "decode_bound")}
DEFAULT = ("ttft", "tpot", "tokens_per_s", "tokens_per_s_per_gpu", "memory", "fits", "supported", *GROUPS["bound"])
"""Default metrics of generative models."""

DEFAULT_OF_ENCODERS = ("ttft", "sequences_per_s", "memory", "fits", "supported", "prefill_bound")
"""Default metrics of encoder models, which have no decode steps."""

_TIMED = frozenset(name.removesuffix(".bound") for name in METRICS if name.endswith(".bound"))
NAMES: tuple[str, ...] = (*sorted(_TIMED), *METRICS)
"""All names that `find_metric` takes."""


def find_metric(name: str, at: str) -> Metric:
    """The metric called `name`, at the reading `at` if the name has none; raises UnknownNameError."""
    key = f"{name}.{AT[at]}" if name in _TIMED else name
    if key not in METRICS:
        every = (*NAMES, *GROUPS)
        raise UnknownNameError("metric", name, every, hint=listed(name, every))
    return METRICS[key]


def listed(name: object, known: Collection[str]) -> str:
    """The end of a message about a name that is near none of the known ones: all of these, without readings."""
    if suggest(name, known):
        return ""
    return f"; known: {', '.join(sorted({each for each in known if each.rpartition('.')[2] not in READINGS}))}"


def default_metrics(models: Iterable[Model]) -> tuple[str, ...]:
    """The default metrics of these models: generative ones, encoders, or both."""
    encodes = {model.task == "encode" for model in models}
    if encodes == {True}:
        return DEFAULT_OF_ENCODERS
    return tuple(dict.fromkeys((*DEFAULT, *(DEFAULT_OF_ENCODERS if True in encodes else ()))))


def expand(names: Iterable[str], at: str) -> tuple[str, ...]:
    """The names, checked, with groups expanded and without duplicates; raises UnknownNameError."""
    found: dict[str, None] = {}
    for name in names:
        for member in GROUPS.get(name.strip(), (name.strip(),)):
            find_metric(member, at)
            found[member] = None
    return tuple(found)


def check_needs(names: Iterable[str], at: str, hardware: Sequence[Hardware], given: Collection[str]) -> None:
    """Raises RooflineError if a metric requires a value that no hardware spec has, and that no option has `given`."""
    for name in names:
        need = find_metric(name, at).needs
        if need is None or need.option in given or any(need.of(device) is not None for device in hardware):
            continue
        raise need.missing(hardware[0])


def figures(analysis: Analysis, names: Sequence[str], at: str) -> dict[str, Any]:
    """The metrics of an analysis of a grid by name, each an array of its points in C order."""
    shape = analysis.scenario.shape
    return {
        name: np.broadcast_to(np.asarray(find_metric(name, at).figure(analysis)), shape).reshape(-1) for name in names
    }
