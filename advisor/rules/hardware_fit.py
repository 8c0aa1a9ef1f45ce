"""Whether the device suits the model and the work: formats, memory, and bandwidth or arithmetic by the phase."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said
from roofline.bound.roof import Bound
from roofline.core.units import si
from roofline.specs.checkpoint import lacking

IDLE = 0.1
"""Use of the arithmetic or of the bandwidth below which it is told as idle."""

HEAVY = 2 / 3
"""The share of the time that makes a phase the one to buy for."""


def look(case: Case) -> Iterator[Said]:
    """Applies where the model does not fit, its format is not computed in, or one phase decides what is needed."""
    yield from _capacity(case)
    yield from _format(case)
    if case.generates and case.decode_share * case.bound_share(case.decode, Bound.MEMORY) >= HEAVY:
        yield from _for_decode(case)
    elif case.prefill_share * case.bound_share(case.analysis.prefill, Bound.COMPUTE) >= HEAVY:
        yield from _for_prefill(case)


def _capacity(case: Case) -> Iterator[Said]:
    memory = case.analysis.memory
    if memory.fits:
        return
    yield Finding(
        f"it does not fit: {si(float(memory.total), 'B')} have to be in a memory of {si(float(memory.capacity), 'B')}",
        1.0,
        {
            "weights": si(float(memory.weights), "B"),
            "cache": si(float(memory.kv_cache), "B"),
            "activations": si(float(memory.activation_peak), "B"),
        },
        of="memory",
    )


def _format(case: Case) -> Iterator[Said]:
    own, base = case.model.dtype, case.precision.base.name
    if not case.hardware.supports(own) and own in ("bf16", "fp16"):
        yield Caution(f"{case.hardware.title} does not compute in {own}, the model's format: {base} is used instead")
    released = case.model.quantization
    if released is None or case.precision.weights.name != released:
        return
    if arithmetic := lacking(released, case.hardware):
        yield Caution(
            f"{case.hardware.title} does not multiply in {arithmetic}: the model's {released} weights are decoded to"
            f" {base} as they are read"
        )


def _for_decode(case: Case) -> Iterator[Said]:
    phase, formats = case.decode, case.formats
    if formats is None:
        return
    used = float(phase.flops) / float(phase.bound_time) / formats.peak
    if used < IDLE:
        yield Finding(
            f"decode takes {case.decode_share:.0%} of the time and uses {used:.1%} of the arithmetic even at the bound:"
            " bandwidth is what to look for in a device",
            case.decode_share * (1 - used),
            {
                "bandwidth": si(case.hardware.memory_bandwidth, "B/s"),
                "peak": f"{si(formats.peak, 'FLOP/s')} in {formats.arithmetic}",
            },
        )
    yield Hint(("hardware",), "decode takes most of the time, and it waits for memory bandwidth")


def _for_prefill(case: Case) -> Iterator[Said]:
    phase = case.analysis.prefill
    used = float(phase.bytes) / float(phase.bound_time) / case.hardware.memory_bandwidth
    if used < IDLE:
        yield Finding(
            f"prefill takes {case.prefill_share:.0%} of the time and uses {used:.1%} of the bandwidth even at the"
            " bound: arithmetic is what to look for in a device",
            case.prefill_share * (1 - used),
            {"bandwidth": si(case.hardware.memory_bandwidth, "B/s")},
        )
    yield Hint(("hardware",), "prefill takes most of the time, and it waits for arithmetic")


RULE = Rule(
    "hardware-fit",
    "Leave out hardware that lacks the format or the memory; of the rest decode wants bandwidth, prefill arithmetic.",
    ("yuan R8", "miao D26"),
    look,
)
