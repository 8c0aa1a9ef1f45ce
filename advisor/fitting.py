"""What would make a scenario fit in memory, each change simulated, the fastest first.

Fewer bits, another engine, more devices, a part of the model in CPU memory, or less work.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.formats import weight_bits
from roofline.advisor.search.goal import Quality
from roofline.advisor.sizing.configurations import formats_for
from roofline.bound.memory import parameters
from roofline.core.errors import RooflineError
from roofline.core.search import last_before_failure, last_before_failure_scalar
from roofline.scenario.analysis import analyze
from roofline.scenario.memory import more_memory
from roofline.scenario.options import OPTIONS
from roofline.scenario.question import CPU
from roofline.scenario.scenario import Scenario
from roofline.serving.layouts import servers
from roofline.serving.replica import DoesNotFitError, replica_of
from roofline.specs.engine import GGUF_ENGINE
from roofline.techniques.support import runs_gguf
from roofline.techniques.unsupported import unsupported
from roofline.whatif.solve.counts import tensor_degrees

FEWER_BITS = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
"""GGUF formats that are tried, the widest first."""

USUAL_BITS = "q4_k_m"
"""The format of GGUF files of which a CPU computes some layers."""

STAGES = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of pipeline stages that are tried to find more devices on which a model fits."""

SERVER_CPU = "epyc-9654"
"""The CPU beside a GPU whose own (`CPU`) takes too little memory: one of a server."""

OFFLOADED = 20
"""Steps of the fraction of the weights in CPU memory."""


NOTHING: Mapping[str, Any] = MappingProxyType({})


class Fit(Struct, frozen=True):
    """Options that make a scenario fit, the scenario with them, and its expected tokens/s of all sequences (p50)."""

    options: Mapping[str, Any]
    scenario: Scenario
    tokens_per_s: float

    def __str__(self) -> str:
        return written(self.options)


def written(options: Mapping[str, Any]) -> str:
    """Options as they are typed."""
    given = ((name, value if isinstance(value, list) else [value]) for name, value in options.items())
    parts = ((OPTIONS[name].flag, one) for name, value in given for one in value)
    return " ".join(flag if value is True else f"{flag} {shlex.quote(str(value))}" for flag, value in parts)


def what_fits(scenario: Scenario) -> tuple[Fit, ...]:
    """The changes that make a scenario fit, at most one of each kind, the fastest first.

    More of the memory where the engine leaves some, the widest formats that the engine is known to run on this hardware
    (`formats_for`), the engine of GGUF files with the widest of its formats, the fewest devices, the fewest layers or
    weights in CPU memory, and the largest batch or else the longest prompt.
    """
    scenario = of_means(scenario)
    found = (fit for kind in KINDS if (fit := kind(scenario)) is not None)
    return tuple(sorted(found, key=lambda fit: -fit.tokens_per_s))


def of_means(scenario: Scenario) -> Scenario:
    """The scenario with the mean of each length that is a distribution, as its static batch has it."""
    drawn = zip(("prompt", "generate"), scenario.drawn, strict=True)
    means: dict[str, Any] = {
        name: round(lengths.mean) for name, lengths in drawn if lengths is not None and lengths.varies
    }
    return scenario.with_(**means) if means else scenario


def remedy(error: DoesNotFitError) -> str:
    """The least change, in the order of KINDS, that makes the scenario of an error fit under its load, as options.

    One that the engine's documents know comes before others. "" where nothing does, and for a scenario that was changed
    after its techniques, whose options are not known.
    """
    scenario, load, unknown = error.scenario, error.load, ""
    if scenario is None or load is None or not scenario.asked:
        return ""
    scenario = of_means(scenario)
    for kind in KINDS[:-1]:  # a load has no less work, and its requests may need a narrower cache than one sequence
        for fit in _narrower(scenario) if kind is _formats else [kind(scenario)]:
            with suppress(RooflineError):
                if fit is not None:
                    replica_of(fit.scenario, load)
                    if not unsupported(fit.scenario):
                        return str(fit)
                    unknown = unknown or str(fit)
    return unknown


def _utilization(scenario: Scenario) -> Fit | None:
    more = more_memory(scenario)
    return _fitting(scenario, more) if more else None


def _formats(scenario: Scenario) -> Fit | None:
    return next(_narrower(scenario), None)


def _narrower(scenario: Scenario) -> Iterator[Fit]:
    """The formats in which it fits, in the order in which they are tried."""
    engine = scenario.profile
    offered = [entry[:2] for entry in formats_for(scenario.model, scenario.hardware, engine, Quality.CALIBRATED)]
    if runs_gguf(engine.name):
        offered += [(scheme, kv) for kv in dict(offered[::-1]).values() for scheme in FEWER_BITS]
    for scheme, kv in offered:
        chosen = {name: value for name, value in (("quant", scheme), ("kv", kv)) if value}
        narrower = _fitting(scenario, chosen) if chosen else None
        if narrower is not None:
            memory, present = analyze(narrower.scenario).memory, analyze(scenario).memory
            if np.all(memory.weights <= present.weights) and np.all(memory.kv_cache <= present.kv_cache):
                yield narrower


def _other_engine(scenario: Scenario) -> Fit | None:
    if scenario.profile.name == GGUF_ENGINE or scenario.techniques:
        return None
    devices = scenario.settings.parallel.devices
    degrees = {"tp": None, "pp": devices} if devices > 1 and not scenario.counted else {}
    for scheme in FEWER_BITS:
        found = _fitting(scenario, {"engine": GGUF_ENGINE, "quant": scheme, **degrees})
        if found is not None:
            return None if unsupported(found.scenario) else found
    return cpu_memory(scenario, {"engine": GGUF_ENGINE, "quant": USUAL_BITS}) if devices == 1 else None


def _devices(scenario: Scenario) -> Fit | None:
    """The fewest devices, more than there are, on which one server fits that divides every layer; else with stages too.

    An engine that splits layers alone has one process, and with it the devices of one machine.
    """
    parallel, name = scenario.settings.parallel, scenario.hardware.name
    present, model, memory = parallel.tensor * parallel.pipeline, scenario.model, analyze(scenario).memory
    least = max(float(np.max(memory.weights)) * present / float(memory.budget), present)
    counts = {tensor * stages for tensor in tensor_degrees(model, scenario.question.degrees) for stages in STAGES}
    if scenario.profile.split_layers:
        counts = {count for count in STAGES if count <= scenario.hardware.machine_devices}
    single = scenario.counted and parallel.devices == present
    more = sorted(count for count in counts if count > least)
    layouts = [each for count in more for each in servers(model, scenario.hardware, scenario.profile, count)]
    without_ranks = [each for each in layouts if each.data == each.expert == 1]
    for layout in sorted(without_ranks, key=lambda each: each.pipeline > 1):
        degrees = {"tp": layout.tensor, "pp": layout.pipeline}
        changes = {part: each for part, each in degrees.items() if each > 1 or scenario.given(part) is not None}
        if (found := _fitting(scenario, changes)) is not None:
            return replace(found, options={"hw": f"{layout.devices}x{name}"}) if single else found
    return None


def cpu_memory(scenario: Scenario, formats: Mapping[str, Any] = NOTHING) -> Fit | None:
    """The fewest layers, or experts of layers, that llama.cpp's CPU computes; or the least fraction that is streamed.

    With other `formats`, or for weights that are streamed in the narrowest format that is faster.
    """
    if GGUF_ENGINE in (scenario.profile.name, formats.get("engine")):
        if scenario.hardware.kind != "gpu":
            return None
        layers = scenario.model.layers
        whole = _most(scenario, lambda kept: {**formats, "n_gpu_layers": kept}, layers - 1)
        experts = (
            _most(scenario, lambda kept, cpu=cpu: {**formats, **_experts_beside(scenario, kept, cpu)}, layers - 1)  # type: ignore[misc]
            for cpu in (CPU, SERVER_CPU)
        )
        return _faster(whole, next(filter(None, experts), None))
    offered = formats_for(scenario.model, scenario.hardware, scenario.profile, Quality.CALIBRATED)
    narrower = [{"quant": scheme} for scheme in dict.fromkeys(each[0] for each in offered) if scheme]
    streamed = [{}, *(own for own in narrower if _filled(scenario, own) is None)]  # others fit on the device
    return _faster(
        *(
            _most(
                scenario,
                lambda kept, own=own: {**own, "offload": f"weights={1 - kept / OFFLOADED:g}"},  # type: ignore[misc]
                OFFLOADED - 1,
            )
            for own in streamed
        )
    )


def _experts_beside(scenario: Scenario, kept: int, cpu: str) -> dict[str, Any]:
    """The option of the experts of all but `kept` layers on a CPU (llama.cpp's --n-cpu-moe)."""
    share = 1 - kept / scenario.model.layers
    return {"with": [*scenario.techniques, f"experts-on-cpu:hardware={cpu},share={share:.4g}"]}


def in_cpu_memory(scenario: Scenario) -> float:
    """Bytes of weights that are streamed from CPU memory, or computed there."""
    settings = scenario.settings
    share = settings.offload.weights if settings.host is None else settings.host.memory
    return share * parameters(scenario.model) * weight_bits(scenario.model, scenario.run_precision) / 8


def _faster(*found: Fit | None) -> Fit | None:
    return max((fit for fit in found if fit is not None), key=lambda fit: fit.tokens_per_s, default=None)


def _most(scenario: Scenario, change: Callable[[int], dict[str, Any]], most: int) -> Fit | None:
    """The change with the most parts kept on the device that fits."""
    kept = last_before_failure_scalar(lambda count: _filled(scenario, change(count)) is not None, 1, most)
    return _fitting(scenario, change(kept)) if kept >= 1 else None


def _less_work(scenario: Scenario) -> Fit | None:
    """The largest batch that fits, or else the longest prompt."""
    for name, present in (("batch", scenario.batch), ("prompt", scenario.prompt)):
        try:
            fits = lambda counts, name=name: analyze(scenario.at(**{name: counts})).memory.fits  # noqa: E731
            most = last_before_failure(fits, 1, present)
        except RooflineError:
            continue
        if most:
            return _fitting(scenario, {name: most})
    return None


def _filled(scenario: Scenario, options: Mapping[str, Any]) -> Scenario | None:
    """The scenario with other options; None if that is no scenario, cannot be simulated or does not fit."""
    try:
        changed = scenario.with_(**options)
        beside = changed.settings.host
        held = beside is None or in_cpu_memory(changed) <= beside.hardware.memory_capacity
        return changed if held and analyze(changed).memory.fits else None
    except RooflineError:
        return None


def _fitting(scenario: Scenario, options: Mapping[str, Any]) -> Fit | None:
    """Options that make a scenario fit, with its speed."""
    changed = _filled(scenario, options)
    if changed is None:
        return None
    analysis = analyze(changed)
    rates = analysis.expected if analysis.times_are_expected else None
    rate = analysis.generation.tokens_per_second if rates is None else rates.tokens_per_second.mid
    return Fit({name: value for name, value in options.items() if value is not None}, changed, float(np.max(rate)))


KINDS = (_utilization, _formats, _devices, _other_engine, cpu_memory, _less_work)
"""The kinds of changes, those first that change least of what was asked."""
