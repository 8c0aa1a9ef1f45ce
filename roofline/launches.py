"""Launches: the kernels that an engine runs a placed graph with, and the constants that their times rest on.

Operators that the engine fuses are one kernel, every other operator is one of its own. A kernel is a row of the
measurement schema where it has one (`roofline.kernels.shapes`), with the nearest constants of the calibration's chain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from roofline.calibration import Basis, Calibration, Fit, Match, Residuals
from roofline.engine import Engine
from roofline.hardware import Hardware
from roofline.kernels import kernel
from roofline.kernels.elementwise import PARAMETERS as PASS_PARAMETERS
from roofline.kernels.elementwise import PASSES
from roofline.kernels.parameters import numbers
from roofline.kernels.shapes import KernelShape, kernel_shape
from roofline.op import Kind
from roofline.roof import Placement

ATTENTION = ("attention_prefill", "attention_decode")
"""What the schema calls the two kernels of attention."""

UNMEASURED = Residuals(0.6, 1.0, 1.6, 0)
"""Spread of kernels that nobody measured."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Operators of a section that run as one kernel, `count` times.

    `matches` are the constants by op of the measurement schema: two for attention, whose prefill and decode kernels
    are others, none where nothing was measured. `others` are those of a second kernel for the same operands: engines
    run the faster one. `foreign_cache`: it reads a cache in a format that the hardware does not compute in.
    """

    parts: tuple[int, ...]
    count: float
    section: str
    shape: KernelShape | None
    matches: Mapping[str, Match]
    others: Mapping[str, Match]
    foreign_cache: bool = False

    @property
    def kind(self) -> str:
        """The op of the schema whose fits it rests on: kernels of one kind err alike."""
        return next(iter(self.matches), "unmeasured")

    @property
    def basis(self) -> Basis:
        """Whose constants its time rests on."""
        return next((match.basis for match in self.matches.values()), "bound")

    @property
    def source(self) -> str:
        """Where its constants came from."""
        for match in self.matches.values():
            return f"{match.calibration}: {match.source}"
        return "not measured: its bound at typical efficiencies"


def launches(placement: Placement, engine: Engine, calibration: Calibration) -> list[Kernel]:
    """The kernels of a placed graph: operators that the engine fuses together, all others alone."""
    sections: dict[str, list[int]] = {}
    for index, (_, _, section) in enumerate(placement.ops):
        sections.setdefault(section, []).append(index)
    found = []
    for section, indices in sections.items():
        names = {placement.ops[index][0].name: index for index in indices}
        taken: set[int] = set()
        for group in engine.kernels:
            parts = _joined(placement, [names[name] for name in group if name in names and names[name] not in taken])
            if len(parts) > 1:
                taken.update(parts)
                found.append((parts, section))
        found += [((index,), section) for index in indices if index not in taken]
    return [
        _kernel(parts, section, placement, calibration) for parts, section in sorted(found, key=lambda item: item[0][0])
    ]


def _joined(placement: Placement, indices: list[int]) -> tuple[int, ...]:
    """The operators of a fusion that one kernel can compute: an exchange between experts and what combines them cuts.

    A norm and the addition that the layer before it ends with are one kernel, in whatever order they stand.
    """
    ops = placement.ops
    if not any(ops[index][0].kind is Kind.MOE for index in indices):
        return tuple(sorted(indices))
    joined: list[int] = []
    for index in sorted(indices):
        between = range(joined[-1] + 1, index) if joined else ()
        if any(ops[other][0].kind is Kind.COLLECTIVE for other in between):
            break
        joined.append(index)
    return tuple(joined)


def _kernel(parts: tuple[int, ...], section: str, placement: Placement, calibration: Calibration) -> Kernel:
    ops = tuple(placement.ops[index][0] for index in parts)
    shape = kernel_shape(ops, placement.arithmetic[parts[0]])
    matches = {} if shape is None else _matches(shape, placement.hardware, calibration)
    others = {} if shape is None else _others(shape, calibration)
    caches = (tensor.format.arithmetic for op in ops if op.kind is Kind.ATTENTION for tensor in op.operands[1:2])
    foreign = not all(map(placement.hardware.supports, caches))
    return Kernel(parts, placement.ops[parts[0]][1], section, shape if matches else None, matches, others, foreign)


def _others(shape: KernelShape, calibration: Calibration) -> Mapping[str, Match]:
    """Weights with one scale can also be multiplied as blocks whose scales are equal.

    The public FP8 rows of experts on Hopper are of one kernel (FlashInfer, from ModelOpt checkpoints) that takes three
    times as long as the one which the same engine runs for block scales; on Blackwell it is the faster one.
    """
    if shape.op != "moe" or shape.texts.get("dtype") != "fp8":
        return {}
    match = calibration.find("moe", "fp8_block")
    return {"moe": match} if match is not None else {}


@lru_cache(maxsize=4096)
def _matches(shape: KernelShape, hardware: Hardware, calibration: Calibration) -> Mapping[str, Match]:
    """The constants for a kernel, by the ops of the schema that it may be."""
    if shape.op in PASSES:
        return {shape.op: calibration.find(shape.op, "any") or _default_pass(shape.op)}
    found = {}
    for op in ATTENTION if shape.op == "attention" else (shape.op,):
        match = calibration.find(op, kernel(op).format(shape.texts))
        if match is not None and _computes(shape, hardware):
            found[op] = match
    return found


def _computes(shape: KernelShape, hardware: Hardware) -> bool:
    """Whether the kernel of this format has a peak on the hardware."""
    if shape.op == "collective":
        return True
    form = numbers(str(shape.texts["dtype"]))
    return hardware.supports(str(shape.texts.get("arithmetic", form.arithmetic)))


@lru_cache(maxsize=16)
def _default_pass(op: str) -> Match:
    """Kernels that stream their operands, where nobody measured them."""
    constants = {parameter.name: parameter.default for parameter in PASS_PARAMETERS}
    fit = Fit(op, "any", constants, {"all": UNMEASURED})
    return Match(fit, "pooled", "default", "launch and bandwidth typical of small kernels", 1.0)
