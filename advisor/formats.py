"""Number formats of the weight GEMMs of a scenario, and the batch at which they become compute-bound."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from roofline.bound.roof import Bound
from roofline.core.units import count_text
from roofline.graph.op import Op
from roofline.graph.tensor import Role
from roofline.scenario.analysis import Analysis
from roofline.scenario.phase import OpFigures, Phase
from roofline.specs.formats import WIDTH, Format
from roofline.specs.model import Model
from roofline.specs.model_names import published_in
from roofline.specs.precision import Precision

GEMMS = ("gemm", "moe")

NARROWER = 0.5
"""Bits by which a format must be narrower to be more than another layout of the same width."""


def weight_bits(model: Model, precision: Precision) -> float:
    """Effective bits per weight of the largest GEMMs: the experts', or those of the dense MLP."""
    largest = "expert_up_proj" if model.experts else "up_proj"
    return precision.weights.format_of(largest, precision.base, model.layers).bits


def no_narrower(model: Model, released: Precision, other: Precision, scheme: str) -> bool:
    """Whether other formats than the checkpoint's have wider weights, or neither narrower weights nor inputs.

    Inputs alone are narrower in a `scheme` in which the model is published: nobody makes NVFP4 of weights in MXFP4.
    """
    weights = weight_bits(model, other) - weight_bits(model, released)
    if abs(weights) >= NARROWER:
        return weights > 0
    return other.activations.bits - released.activations.bits > -NARROWER or scheme not in published_in(model.name)


class Formats(Struct, frozen=True):
    """The formats of a scenario's largest GEMM and KV cache; `peak` is that of its arithmetic (FLOP/s)."""

    weights: Format
    inputs: Format
    kv: Format
    arithmetic: str
    peak: float

    @property
    def unsupported(self) -> bool:
        """Whether weights and inputs are both narrower than the arithmetic they run in."""
        return max(_width(self.weights), _width(self.inputs)) < WIDTH[self.arithmetic]

    @property
    def mixed(self) -> bool:
        """Whether an operand is narrower than the arithmetic it runs in."""
        return min(_width(self.weights), _width(self.inputs)) < WIDTH[self.arithmetic]


def _width(format: Format) -> int:
    """Bits of the arithmetic native to a format; codebook formats decode to 16 bits."""
    return WIDTH.get(format.arithmetic, 16)


def formats_of(analysis: Analysis) -> Formats | None:
    """The formats of an analysis; None without a GEMM of weights."""
    placement = analysis.prefill.passes[-1].placement
    found = None
    for (op, _, section), arithmetic in zip(placement.ops, placement.arithmetic, strict=True):
        if section != "head" and arithmetic is not None and _weights(op) is not None and op.kind in GEMMS:
            found = (op, arithmetic)
            if "up" in op.name:  # every scheme quantizes the up projection
                break
    if found is None:
        return None
    op, arithmetic = found
    weights = _weights(op)
    assert weights is not None
    inputs = next((tensor.format for tensor in op.operands if tensor.role is not Role.WEIGHT), weights)
    peak = placement.hardware.matrix_peak(arithmetic)
    return Formats(weights, inputs, analysis.precision.kv, arithmetic, peak)


def _weights(op: Op) -> Format | None:
    return next((tensor.format for tensor in op.operands if tensor.role is Role.WEIGHT), None)


class WeightGemm(Struct, frozen=True):
    """The GEMM with most weight bytes of a phase: `rows` tokens share each weight of `bits`.

    `ridge` is the ridge point of its arithmetic (FLOP/byte).
    """

    figures: OpFigures
    rows: float
    bits: float
    arithmetic: str
    ridge: float

    @property
    def name(self) -> str:
        return self.figures.name

    @property
    def sharing(self) -> str:
        """Text: the number of tokens that share a weight."""
        return "one token uses each weight" if self.rows == 1 else f"{count_text(self.rows)} tokens share each weight"

    @property
    def crossover(self) -> float:
        """Rows from which it is compute-bound: 2 rows / (bits / 8) FLOP/byte reach the ridge, other traffic aside."""
        return self.crossover_at(self.bits)

    def crossover_at(self, bits: float) -> float:
        """The crossover for weights of so many bits in the same arithmetic."""
        return self.ridge * bits / 16

    @property
    def memory_bound(self) -> bool:
        return bool(self.figures.bound == Bound.MEMORY)

    @property
    def evidence(self) -> Mapping[str, str]:
        """Its intensity, ridge point and crossover as text."""
        return {
            "GEMM": self.name,
            "intensity": f"{count_text(self.figures.intensity)} FLOP/byte",
            "ridge point": f"{count_text(self.ridge)} FLOP/byte in {self.arithmetic}",
            "tokens that share a weight": count_text(self.rows),
            "crossover": f"{count_text(self.crossover)} tokens at {self.bits:.3g} bits per weight",
        }


def largest_gemm(phase: Phase) -> WeightGemm | None:
    """The GEMM of a phase that reads most weight bytes; None without one."""
    best: WeightGemm | None = None
    for op in phase.ops:
        weights = [tensor for tensor in op.op.operands if tensor.role is Role.WEIGHT]
        if op.kind not in GEMMS or not weights or op.arithmetic is None or not op.ridge or op.section == "head":
            continue
        if best is None or op.count * op.weight_bytes > best.figures.count * best.figures.weight_bytes:
            elements = sum(float(tensor.elements.evaluate(op.extents)) for tensor in weights)
            rows = float(op.flops) / (2 * elements) if elements else 0.0
            best = WeightGemm(op, rows, weights[0].format.bits, op.arithmetic, op.ridge)
    return best
