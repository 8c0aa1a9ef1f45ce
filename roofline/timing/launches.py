"""Launches: the kernels that an engine runs a placed graph with, and the constants that their times rest on.

Operators that the engine fuses are one kernel, every other operator is one of its own. A kernel is a row of the
measurement schema where it has one (`roofline.timing.kernels.shapes`), with the nearest constants of the calibration's
chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.bound.roof import Placement
from roofline.graph.network import Section
from roofline.graph.op import Kind, Op
from roofline.specs.engine import Engine
from roofline.specs.hardware import Hardware
from roofline.timing.calibration import Basis, Calibration, Fit, Match, Residuals
from roofline.timing.kernels import kernel
from roofline.timing.kernels.common import numbers
from roofline.timing.kernels.elementwise import PARAMETERS as PASS_PARAMETERS
from roofline.timing.kernels.elementwise import PASSES
from roofline.timing.kernels.shapes import DECODE_QUERIES, KernelShape, kernel_shape

ATTENTION = ("attention_prefill", "attention_decode")
"""What the schema calls the two kernels of attention."""

OF_STEPS: Mapping[str, bool] = {
    "attention_prefill": False,
    "attention_decode": True,
    "delta_rule": False,
    "latent_decode": True,
}
"""Ops of the schema whose kernels are those of steps of a few query tokens, or those of prompts; others are of both."""

UNMEASURED = Residuals(0.6, 1.0, 1.6, 0)
"""Spread of kernels that nobody measured."""


class Kernel(Struct, frozen=True):
    """Operators of a section that run as one kernel, `count` times.

    `matches` are the constants by op of the measurement schema: two for attention, whose prefill and decode kernels
    are others, none where nothing was measured. `others` are those of a second kernel for the same operands: engines
    run the faster one. `foreign_cache`: it reads a cache of floating-point numbers that the hardware does not compute
    in (integers are unpacked in a few instructions; FP8 takes dozens where no instruction converts it).
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
    def always_measured(self) -> bool:
        """Whether it has constants for prompts and for steps."""
        found = {OF_STEPS.get(op) for op in self.matches}
        return None in found or len(found) == 2 or (bool(found) and self._by_token)

    @property
    def _by_token(self) -> bool:
        return self.shape is not None and self.shape.by_token

    def match(self, queries: Any) -> Match | None:
        """The constants in a pass of so many query tokens a sequence, the most of a grid's; None where it has none."""
        step = self._by_token or bool(np.max(queries) <= DECODE_QUERIES)
        return next((match for op, match in self.matches.items() if OF_STEPS.get(op, step) == step), None)

    def basis(self, queries: Any) -> Basis:
        """Whose constants its time in such a pass rests on."""
        match = self.match(queries)
        return "bound" if match is None else match.basis

    def source(self, queries: Any) -> str:
        """Where these came from."""
        match = self.match(queries)
        if match is None:
            return "not measured: its bound at typical efficiencies"
        return f"{match.calibration}: {match.source}"


def launches(placement: Placement, engine: Engine, calibration: Calibration) -> list[Kernel]:
    """The kernels of a placed graph: operators that the engine fuses together, all others alone."""
    found: list[Kernel] = []
    start = 0
    for section in placement.network.sections:
        stop = start + len(section.ops)
        arithmetic = placement.arithmetic[start:stop]
        chosen = engine.kernels, engine.delta_rule
        found += _of_section(section, start, arithmetic, *chosen, placement.hardware, calibration)
        start = stop
    return found


@lru_cache(maxsize=4096)
def _of_section(
    section: Section,
    start: int,
    arithmetic: tuple[str | None, ...],
    fused: tuple[tuple[str, ...], ...],
    delta_rule: str,
    hardware: Hardware,
    calibration: Calibration,
) -> tuple[Kernel, ...]:
    """The kernels of a section whose first operator is the graph's `start`th."""
    names = {op.name: index for index, op in enumerate(section.ops)}
    taken: set[int] = set()
    found = []
    for group in fused:
        parts = _joined(section.ops, [names[name] for name in group if name in names and names[name] not in taken])
        if len(parts) > 1:
            taken.update(parts)
            found.append(parts)
    found += [(index,) for index in range(len(section.ops)) if index not in taken]
    where = arithmetic, delta_rule, hardware, calibration
    return tuple(_kernel(parts, section, start, *where) for parts in sorted(found))


def _joined(ops: Sequence[Op], indices: list[int]) -> tuple[int, ...]:
    """The operators of a fusion that one kernel can compute: an exchange between experts and what combines them cuts.

    A norm and the addition that the layer before it ends with are one kernel, in whatever order they stand.
    """
    if not any(ops[index].kind is Kind.MOE for index in indices):
        return tuple(sorted(indices))
    joined: list[int] = []
    for index in sorted(indices):
        between = range(joined[-1] + 1, index) if joined else ()
        if any(ops[other].kind is Kind.COLLECTIVE for other in between):
            break
        joined.append(index)
    return tuple(joined)


def _kernel(
    parts: tuple[int, ...],
    section: Section,
    start: int,
    arithmetic: Sequence[str | None],
    delta_rule: str,
    hardware: Hardware,
    calibration: Calibration,
) -> Kernel:
    owned = tuple(start + index for index in parts)
    ops = tuple(section.ops[index] for index in parts)
    variant = delta_rule if ops[0].kind is Kind.DELTA_RULE else None
    made = _constants(ops, arithmetic[parts[0]], variant, hardware, calibration)
    return Kernel(owned, section.count, section.name, *made)


@lru_cache(maxsize=1 << 14)
def _constants(
    ops: tuple[Op, ...], arithmetic: str | None, variant: str | None, hardware: Hardware, calibration: Calibration
) -> tuple[KernelShape | None, Mapping[str, Match], Mapping[str, Match], bool]:
    """What a kernel of these operators is, wherever it runs: its shape, constants, those of another, foreign cache.

    `variant` is the sort of kernels that the engine has for it, where there are several.
    """
    shape = kernel_shape(ops, arithmetic)
    if shape is not None and variant is not None:
        # Where nobody wrote such a kernel for the hardware, engines run the other one.
        match = calibration.find(shape.op, variant)
        shape = replace(shape, texts={**shape.texts, "variant": match.fit.format if match else variant})
    matches = {} if shape is None else _matches(shape, hardware, calibration)
    others = {} if shape is None else _others(shape, calibration)
    caches = (tensor.format.arithmetic for op in ops if op.kind is Kind.ATTENTION for tensor in op.operands[1:2])
    foreign = any(name.startswith("fp") and not hardware.supports(name) for name in caches)
    return shape if matches else None, matches, others, foreign


def _others(shape: KernelShape, calibration: Calibration) -> Mapping[str, Match]:
    """Weights with one scale can also be multiplied as blocks whose scales are equal.

    The public FP8 rows of experts on Hopper are of one kernel (FlashInfer, from ModelOpt checkpoints) that takes three
    times as long as the one which the same engine runs for block scales; on Blackwell it is the faster one.
    """
    if shape.op != "moe" or shape.texts.get("dtype") != "fp8":
        return {}
    match = calibration.find("moe", "fp8_block")
    return {"moe": match} if match is not None else {}


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
    dtype = str(shape.texts.get("dtype", "any"))
    if dtype == "any":
        return True
    form = numbers(dtype)
    return hardware.supports(str(shape.texts.get("arithmetic", form.arithmetic)))


@lru_cache(maxsize=16)
def _default_pass(op: str) -> Match:
    """Kernels that stream their operands, where nobody measured them."""
    constants = {parameter.name: parameter.default for parameter in PASS_PARAMETERS}
    fit = Fit(op, "any", constants, {"all": UNMEASURED})
    return Match(fit, "pooled", "default", "launch and bandwidth typical of small kernels", 1.0)
