"""Which device: the memory, bandwidth or peak that targets need, all else as on the hardware given."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.search import RELATIVE, smallest_real
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import Hardware, list_hardware, load_hardware
from roofline.whatif.request import Request
from roofline.whatif.solve.answer import Answer
from roofline.whatif.solve.targets import Check, Targets, check, check_of, ratios_of, used
from roofline.whatif.variation import scaled_bandwidth, scaled_peaks, with_hardware

FACTORS = (1e-6, 1e6)
"""Least and largest multiple of the device's own figure that is looked at."""


def min_memory(request: Request, targets: Targets, chips: Sequence[str] | None = None) -> Answer:
    """The bytes of memory a device that everything fits in: exact, since memory changes no time."""
    asked = request.scenario()
    need = float(analyze(asked).memory.total)

    def sized(capacity: float) -> Scenario:
        return with_hardware(asked, lambda device: dataclasses.replace(device, memory_capacity=capacity))

    everything = replace(targets, fits=True)
    found, below = check(need, sized(need), everything), np.nextafter(need, 0.0)
    if not found.meets:
        return Answer("min-memory", "B", "never", None, found, None, "memory changes no time")
    neighbour = check(float(below), sized(float(below)), everything)
    names = suitable_hardware(request, everything, chips)
    return Answer("min-memory", "B", "found", need, found, neighbour, candidates=names)


def min_bandwidth(request: Request, targets: Targets, chips: Sequence[str] | None = None) -> Answer:
    """The memory bandwidth (B/s) that meets the targets, to a relative 1e-7 above the edge."""
    asked = request.scenario()
    return _smallest("min-bandwidth", "B/s", scaled_bandwidth, asked.hardware.memory_bandwidth, request, targets, chips)


def min_peak(request: Request, targets: Targets, chips: Sequence[str] | None = None) -> Answer:
    """The peak (FLOP/s) that meets the targets, to a relative 1e-7 above the edge.

    The peaks of all formats of the matrix unit rise together; the one told is of the arithmetic with most FLOPs.
    """
    asked = request.scenario()
    arithmetic = main_arithmetic(asked)
    peak = asked.hardware.matrix_peak(arithmetic)
    answer = _smallest("min-peak", "FLOP/s", scaled_peaks, peak, request, targets, chips)
    note = "; ".join(filter(None, (f"in {arithmetic}", answer.note)))
    return replace(answer, note=note)


def main_arithmetic(scenario: Scenario) -> str:
    """The arithmetic in which most of prefill's products are."""
    spent: Counter[str] = Counter()
    for op in analyze(scenario).prefill.ops:
        if op.arithmetic is not None:
            spent[op.arithmetic] += int(op.count * op.flops)
    if not spent:
        raise RooflineError(f"{scenario.model.name} multiplies no matrices")
    return spent.most_common(1)[0][0]


def _smallest(
    question: str,
    unit: str,
    scaled: Callable[[Hardware, float], Hardware],
    figure: float,
    request: Request,
    targets: Targets,
    chips: Sequence[str] | None,
) -> Answer:
    """The smallest multiple of a figure of the device that meets the targets of speed."""
    if not targets.timed:
        raise RooflineError(f"{question} needs a target of speed, such as --tpot 30ms")
    asked = request.scenario()

    def at(factor: float) -> Scenario:
        return with_hardware(asked, lambda device: scaled(device, factor))

    speed = replace(targets, fits=False)
    own = check(figure, asked, targets)
    if "memory" in own.missed:
        return Answer(question, unit, "never", None, own, None, "it does not fit in memory, however fast the device is")
    low, high = FACTORS
    factor = smallest_real(lambda some: float(np.log(used(at(some), speed))), 1.0, low, high)
    if factor is None:
        limit = check(figure * high, at(high), targets)
        return Answer(question, unit, "never", None, limit, None, f"checked at {high:g} times the device's own figure")
    found = check(figure * factor, at(factor), targets)
    names = suitable_hardware(request, targets, chips)
    if factor == low:
        note = f"met even at {low:g} times the device's own figure"
        return Answer(question, unit, "always", figure * factor, found, None, note, names)
    below = factor * (1 - 2 * RELATIVE)
    return Answer(
        question, unit, "found", figure * factor, found, check(figure * below, at(below), targets), candidates=names
    )


def suitable_hardware(request: Request, targets: Targets, names: Sequence[str] | None = None) -> tuple[Check, ...]:
    """Known hardware that meets all targets when the request is simulated on it, the slowest that does first.

    `names` are looked at; None is all hardware known. What cannot run it is left out.
    """
    found = []
    for name in list_hardware() if names is None else names:
        device = load_hardware(name)
        try:
            analysis = analyze(request.on(device).scenario())
            if targets.fits and not analysis.memory.fits:
                continue
            if any(ratio > 1 for ratio in ratios_of(analysis, replace(targets, at="bound", fits=False)).values()):
                continue  # no time is below the bound
            tried = check_of(name, analysis, targets)
        except RooflineError:
            continue
        if tried.meets:
            found.append(tried)
    return tuple(sorted(found, key=lambda entry: -max(entry.used.values(), default=0.0)))
