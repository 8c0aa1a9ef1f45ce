"""Devices: the memory, bandwidth or peak that meets targets, all else equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.search import RELATIVE, smallest_satisfying
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import Hardware, list_hardware, load_hardware
from roofline.whatif.solve.targets import (
    Answer,
    Check,
    TargetOptions,
    Targets,
    check,
    check_of,
    ratios,
    read_targets,
    used,
)
from roofline.whatif.variation import scaled_bandwidth, scaled_capacity, scaled_peaks, with_hardware

if TYPE_CHECKING:
    from typing import Unpack

FACTORS = (1e-6, 1e6)
"""Range of the search, as multiples of the device's own figure."""


def min_memory(
    scenario: Scenario,
    targets: Targets | None = None,
    chips: Sequence[str] | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The capacity per device, in bytes, on which the scenario fits in what the engine may use.

    Capacity changes no time. In the static reading it is the memory in use.
    """
    targets = read_targets(targets, limits)
    return _least_memory(scenario, targets, chips).to(scenario, targets)


def _least_memory(scenario: Scenario, targets: Targets, chips: Sequence[str] | None) -> Answer:
    """The answer of `min_memory`."""
    own = scenario.hardware.memory_capacity

    def sized(capacity: float) -> Scenario:
        return with_hardware(scenario, lambda device: scaled_capacity(device, capacity / device.memory_capacity))

    def filled(capacity: float) -> float:
        memory = analyze(sized(capacity)).memory
        return float(memory.total / memory.budget)

    everything, most = replace(targets, fits=True), own * FACTORS[1]
    factor = smallest_satisfying(lambda some: float(np.log(filled(own * some))), 1.0, *FACTORS)
    if factor is None:
        return Answer(
            "min-memory", "B", "never", None, check(most, sized(most), everything), None, "no memory suffices"
        )
    edge = own * factor
    exact = edge * filled(edge)  # the budget is a fraction of the memory
    need = exact if filled(exact) <= 1 else edge
    found, below = check(need, sized(need), everything), need * (1 - 2 * RELATIVE)
    if not found.meets:
        return Answer("min-memory", "B", "never", None, found, None, "memory capacity changes no time")
    neighbour = check(below, sized(below), everything)
    names = suitable_hardware(scenario, everything, chips)
    return Answer("min-memory", "B", "found", need, found, neighbour, candidates=names)


def min_bandwidth(
    scenario: Scenario,
    targets: Targets | None = None,
    chips: Sequence[str] | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The memory bandwidth (B/s) that meets the targets, to a relative 1e-7 above the edge."""
    targets, bandwidth = read_targets(targets, limits), scenario.hardware.memory_bandwidth
    answer = _smallest("min-bandwidth", "B/s", scaled_bandwidth, bandwidth, scenario, targets, chips)
    return answer.to(scenario, targets)


def min_peak(
    scenario: Scenario,
    targets: Targets | None = None,
    chips: Sequence[str] | None = None,
    **limits: Unpack[TargetOptions],
) -> Answer:
    """The peak (FLOP/s) that meets the targets, to a relative 1e-7 above the edge.

    The peaks of all formats of the matrix unit scale together; the answer is that of the format with most FLOPs.
    """
    targets, arithmetic = read_targets(targets, limits), main_arithmetic(scenario)
    peak = scenario.hardware.matrix_peak(arithmetic)
    answer = _smallest("min-peak", "FLOP/s", scaled_peaks, peak, scenario, targets, chips)
    note = "; ".join(filter(None, (f"in {arithmetic}", answer.note)))
    return replace(answer, note=note).to(scenario, targets)


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
    chips: Sequence[str] | None,
) -> Answer:
    """The smallest multiple of a figure of the device that meets the latency and throughput targets."""
    if not targets.timed:
        raise RooflineError(
            f"{question} needs a latency or throughput target, such as a TPOT of 30ms", options=["tpot"]
        )

    def at(factor: float) -> Scenario:
        return with_hardware(scenario, lambda device: scaled(device, factor))

    speed = replace(targets, fits=False)
    own = check(figure, scenario, targets)
    if "memory" in own.missed:
        return Answer(question, unit, "never", None, own, None, "out of memory at any speed")
    low, high = FACTORS
    factor = smallest_satisfying(lambda some: float(np.log(used(at(some), speed))), 1.0, low, high)
    if factor is None:
        limit = check(figure * high, at(high), targets)
        return Answer(
            question, unit, "never", None, limit, None, f"missed even at {high:g} times the device's own figure"
        )
    found = check(figure * factor, at(factor), targets)
    names = suitable_hardware(scenario, targets, chips)
    if factor == low:
        note = f"met even at {low:g} times the device's own figure"
        return Answer(question, unit, "always", figure * factor, found, None, note, names)
    below = factor * (1 - 2 * RELATIVE)
    return Answer(
        question, unit, "found", figure * factor, found, check(figure * below, at(below), targets), candidates=names
    )


def suitable_hardware(scenario: Scenario, targets: Targets, names: Sequence[str] | None = None) -> tuple[Check, ...]:
    """The hardware among `names` (None: all) on which the scenario meets all targets, the slowest first."""
    found = []
    for name in list_hardware() if names is None else names:
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
