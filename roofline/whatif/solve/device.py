"""Devices and formats: the memory, bandwidth, peak or quantization scheme that meets targets, all else equal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Unpack

import numpy as np
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.search import RELATIVE, smallest_satisfying
from roofline.scenario.analysis import analyze
from roofline.scenario.options import OPTIONS
from roofline.scenario.scenario import Scenario
from roofline.specs.checkpoint import released_scheme
from roofline.specs.formats import UNQUANTIZED_FORMATS
from roofline.specs.hardware import Hardware, hardware_name, load_hardware, searched_hardware
from roofline.specs.precision import PLAIN, SCHEMES
from roofline.whatif.solve.targets import (
    Answer,
    Check,
    TargetOptions,
    Targets,
    check,
    check_any,
    check_of,
    listed_names,
    ratios,
    read_targets,
    used,
)
from roofline.whatif.variation import scaled_bandwidth, scaled_capacity, scaled_peaks, with_hardware

FACTORS = (1e-6, 1e6)
"""Range of the search, as multiples of the device's own figure."""


def min_memory(
    scenario: Scenario,
    targets: Targets | None = None,
    chips: Sequence[str] | str | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The capacity per device, in bytes, on which the scenario fits in what the engine may use.

    Capacity changes no time. In the static reading it is the memory in use.
    """
    targets = read_targets(scenario, targets, limits)
    if not targets.fits:
        raise RooflineError("min-memory is about the memory in which the scenario fits", options=["ignore_memory"])
    names = chip_names(chips)
    answer = partial(Answer, "min-memory", "B", scenario=scenario, targets=targets)
    own = scenario.hardware.memory_capacity

    def sized(capacity: float) -> Scenario:
        return with_hardware(scenario, lambda device: scaled_capacity(device, capacity / device.memory_capacity))

    def filled(capacity: float) -> float:
        memory = analyze(sized(capacity)).memory
        return float(memory.total / memory.budget)

    most = own * FACTORS[1]
    factor = smallest_satisfying(lambda some: float(np.log(filled(own * some))), 1.0, *FACTORS)
    if factor is None:
        return answer("never", None, check(most, sized(most), targets), note="no memory suffices")
    edge = own * factor
    exact = edge * filled(edge)  # the budget is a fraction of the memory
    need = exact if filled(exact) <= 1 else edge
    found, below = check(need, sized(need), targets), need * (1 - 2 * RELATIVE)
    if not found.meets:
        return answer("never", None, found, note="memory capacity changes no time")
    neighbour = check(below, sized(below), targets)
    return answer("found", need, found, neighbour, candidates=suitable_hardware(scenario, targets, names))


def min_bandwidth(
    scenario: Scenario,
    targets: Targets | None = None,
    chips: Sequence[str] | str | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The memory bandwidth (B/s) that meets the targets, to a relative 1e-7 above the edge."""
    targets, bandwidth = read_targets(scenario, targets, limits), scenario.hardware.memory_bandwidth
    return _smallest("min-bandwidth", "B/s", scaled_bandwidth, bandwidth, scenario, targets, chips)


def min_peak(
    scenario: Scenario,
    targets: Targets | None = None,
    chips: Sequence[str] | str | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The peak (FLOP/s) that meets the targets, to a relative 1e-7 above the edge.

    The peaks of all formats of the matrix unit scale together; the answer is that of the format with most FLOPs.
    """
    targets, arithmetic = read_targets(scenario, targets, limits), main_arithmetic(scenario)
    peak = scenario.hardware.matrix_peak(arithmetic)
    answer = _smallest("min-peak", "FLOP/s", scaled_peaks, peak, scenario, targets, chips)
    note = "; ".join(filter(None, (f"in {arithmetic}", answer.note)))
    return replace(answer, note=note)


def main_arithmetic(scenario: Scenario) -> str:
    """The format in which prefill has most GEMM FLOPs."""
    spent: Counter[str] = Counter()
    for op in analyze(scenario).prefill.ops:
        if op.arithmetic is not None:
            spent[op.arithmetic] += int(op.count * op.flops)
    if not spent:
        raise RooflineError(f"{scenario.model.name} has no GEMMs")
    return spent.most_common(1)[0][0]


def _smallest(
    question: str,
    unit: str,
    scaled: Callable[[Hardware, float], Hardware],
    figure: float,
    scenario: Scenario,
    targets: Targets,
    chips: Sequence[str] | str | None,
) -> Answer:
    """The smallest multiple of a figure of the device that meets the latency and throughput targets."""
    if not targets.timed:
        raise RooflineError(
            f"{question} needs a latency or throughput target, such as a TPOT of 30ms", options=["tpot"]
        )

    answer = partial(Answer, question, unit, scenario=scenario, targets=targets)

    def at(factor: float) -> Scenario:
        return with_hardware(scenario, lambda device: scaled(device, factor))

    def checked(factor: float) -> Check:
        return check(figure * factor, at(factor), targets)

    speed = replace(targets, fits=False)
    own = check(figure, scenario, targets)
    if "memory" in own.missed:
        return answer("never", None, own, note="out of memory at any speed")
    low, high = FACTORS
    factor = smallest_satisfying(lambda some: float(np.log(used(at(some), speed))), 1.0, low, high)
    if factor is None:
        return answer("never", None, checked(high), note=f"missed even at {high:g} times the device's own figure")
    names = suitable_hardware(scenario, targets, chip_names(chips))
    if factor == low:
        note = f"met even at {low:g} times the device's own figure"
        return answer("always", figure * factor, checked(factor), note=note, candidates=names)
    below = factor * (1 - 2 * RELATIVE)
    return answer("found", figure * factor, checked(factor), checked(below), candidates=names)


def chip_names(chips: Sequence[str] | str | None) -> Sequence[str]:
    """The names of the hardware to try, all for None. Raises RooflineError."""
    return searched_hardware() if chips is None else tuple(map(hardware_name, listed_names("chips", chips)))


def suitable_hardware(scenario: Scenario, targets: Targets, names: Sequence[str]) -> tuple[Check, ...]:
    """The hardware among `names` on which the scenario meets all targets, the slowest first."""
    found = []
    for name in names:
        device = load_hardware(name)
        try:
            analysis = analyze(scenario.with_(hw=device))
            if targets.fits and not analysis.memory.fits:
                continue
            if any(ratio > 1 for ratio in ratios(analysis, replace(targets, at="bound", fits=False)).values()):
                continue  # no time is below the bound
            tried = check_of(name, analysis, targets)
        except RooflineError:
            continue
        if tried.meets:
            found.append(tried)
    return tuple(sorted(found, key=lambda entry: -max(entry.used.values(), default=0.0)))


TRAINED = ("ternary", "binary")
"""Schemes that require training: they are not tried."""

NAMED = ("KV8", "W8", "W8A8", "W4", "W4A16KV8", "W4A8KV4", "W4A4KV4")
"""Schemes in WxAyKVz notation, tried besides the named ones."""


def max_bits(
    scenario: Scenario,
    targets: Targets | None = None,
    schemes: Iterable[str] | str | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The scheme with most bits that meets the targets.

    Schemes rank by bytes of weights, then by bytes of KV cache, then by bits of activations; formats set one by one
    stay. No scheme has more bits than a checkpoint that was released quantized.
    """
    targets = read_targets(scenario, targets, limits)
    return _first("max-bits", scenario, targets, schemes, widest=True)


def min_bits(
    scenario: Scenario,
    targets: Targets | None = None,
    schemes: Iterable[str] | str | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The scheme with fewest bits that meets the targets: conversion of operands can make fewer bits slower."""
    targets = read_targets(scenario, targets, limits)
    return _first("min-bits", scenario, targets, schemes, widest=False)


def _first(
    question: str, scenario: Scenario, targets: Targets, schemes: Iterable[str] | str | None, widest: bool
) -> Answer:
    check_any(targets, question)
    answer = partial(Answer, question, "scheme", scenario=scenario, targets=targets)
    if scenario.question.formats.get("scheme") is not None:
        raise RooflineError(
            f"{question} tries all schemes: omit the scheme, or set formats one by one", options=["quant"]
        )
    own = released_scheme(scenario.model, scenario.profile)
    own = scenario.plain.precision.base.name if own == PLAIN else own
    known = (*(name for name in SCHEMES if name not in TRAINED), *NAMED, *UNQUANTIZED_FORMATS)
    asked = known if schemes is None else listed_names("schemes", schemes)
    if not asked:
        raise RooflineError(f"{question} needs schemes to try")
    for name in asked:
        OPTIONS["quant"].read(name)  # raises for an unknown one
    names = dict.fromkeys((own, *asked))
    stored = _stored(scenario, names)
    most = next((weights for weights, *_, name in stored if name == own), math.inf)
    within = (entry for entry in stored if entry[0] <= most)
    ranked = sorted(within, key=lambda entry: entry[:3], reverse=widest)  # of equal ones the released stays first
    tried: list[Check] = []
    missed: Check | None = None
    for *_, name in ranked:
        found = check(name, scenario.with_(quant=name), targets)
        tried.append(found)
        if found.meets:
            return answer("found", name, found, missed, "", tuple(tried))
        missed = found
    if not tried:
        raise RooflineError(
            f"none of the schemes can be simulated for {scenario.model.name} on {scenario.hardware.name}"
        )
    best = min(tried, key=lambda entry: max(entry.used.values(), default=0.0))
    return answer("never", None, best, None, f"{len(tried)} schemes tried", tuple(tried))


def _stored(scenario: Scenario, names: Iterable[str]) -> list[tuple[float, float, float, str]]:
    """Bytes of weights and KV cache, bits of activations, and the scheme, for each one that can be simulated."""
    found = []
    for name in names:
        try:
            scenario = scenario.with_(quant=name)
            memory = analyze(scenario).memory
        except RooflineError:
            continue
        found.append((float(memory.weights), float(memory.kv_cache), scenario.precision.activations.bits, name))
    return found
