"""Formats in use: what the products with weights store, are fed and multiply, and where they turn compute-bound."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from roofline.bound.roof import Bound
from roofline.graph.op import Op
from roofline.graph.tensor import Role
from roofline.scenario.analysis import Analysis
from roofline.scenario.phase import OpFigures, Phase
from roofline.specs.formats import WIDTH, Format
from roofline.specs.model import Model
from roofline.specs.precision import Precision

PRODUCTS = ("gemm", "moe")

NARROWER = 0.5
"""Bits by which another format has to be narrower, to be more than another layout of the same."""


def weight_bits(model: Model, precision: Precision) -> float:
    """Bits of a weight of the products that hold most of them: the experts', or the dense blocks'."""
    largest = "expert_up_proj" if model.experts else "up_proj"
    return precision.weights.format_of(largest, precision.base, model.layers).bits


def gains_nothing(model: Model, released: Precision, other: Precision) -> bool:
    """Whether other formats than a checkpoint's have wider weights, or neither narrower weights nor inputs."""
    weights = weight_bits(model, other) - weight_bits(model, released)
    inputs = other.activations.bits - released.activations.bits
    return weights >= NARROWER or min(weights, inputs) > -NARROWER


class Formats(Struct, frozen=True):
    """The formats of a scenario: of the weights and inputs of its largest products, of its cache, and its arithmetic.

    `peak` is that of the arithmetic (FLOP/s).
    """

    weights: Format
    inputs: Format
    kv: Format
    arithmetic: str
    peak: float

    @property
    def unsupported(self) -> bool:
        """Whether weights and inputs are both narrower than any arithmetic that the device has for them."""
        return max(_width(self.weights), _width(self.inputs)) < WIDTH[self.arithmetic]

    @property
    def mixed(self) -> bool:
        """Whether one operand is narrower than the other and gains no arithmetic by it."""
        return min(_width(self.weights), _width(self.inputs)) < WIDTH[self.arithmetic]


def _width(format: Format) -> int:
    """Bits of the arithmetic a format is native to; codes are only numbers once they are decoded, in 16 bits."""
    return WIDTH.get(format.arithmetic, 16)


def formats_of(analysis: Analysis) -> Formats | None:
    """The formats of an analysis; None where nothing is multiplied by weights."""
    placement = analysis.prefill.passes[-1].placement
    found = None
    for (op, _, section), arithmetic in zip(placement.ops, placement.arithmetic, strict=True):
        if section != "head" and arithmetic is not None and _weights(op) is not None and op.kind in PRODUCTS:
            found = (op, arithmetic)
            if "up" in op.name:  # the products that every scheme quantises
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


class Product(Struct, frozen=True):
    """The product with weights that a phase reads most of: `rows` tokens multiply each weight of `bits`.

    `ridge` is that of its arithmetic (FLOP/byte).
    """

    figures: OpFigures
    rows: float
    bits: float
    arithmetic: str
    ridge: float

    @property
    def name(self) -> str:
        """The operator."""
        return self.figures.name

    @property
    def sharing(self) -> str:
        """How many tokens share a weight, in words."""
        return "one token uses each weight" if self.rows == 1 else f"{counted(self.rows)} tokens share each weight"

    @property
    def crossover(self) -> float:
        """Rows from which it is compute-bound: 2 rows / (bits / 8) FLOP/byte reach the ridge, other traffic aside."""
        return self.crossover_at(self.bits)

    def crossover_at(self, bits: float) -> float:
        """The same for weights of so many bits in the same arithmetic."""
        return self.ridge * bits / 16

    @property
    def saturated_bits(self) -> float:
        """Bits of a weight at which it turns compute-bound: fewer than these save no time."""
        return 16 * self.rows / self.ridge

    @property
    def memory_bound(self) -> bool:
        """Whether it waits for memory."""
        return bool(self.figures.bound == Bound.MEMORY)

    @property
    def evidence(self) -> Mapping[str, str]:
        """Its numbers, in words."""
        return {
            "product": self.name,
            "intensity": f"{counted(self.figures.intensity)} FLOP/byte",
            "ridge": f"{counted(self.ridge)} FLOP/byte in {self.arithmetic}",
            "tokens that share a weight": counted(self.rows),
            "crossover": f"{counted(self.crossover)} tokens at {self.bits:.3g} bits a weight",
        }


def counted(value: float) -> str:
    """A count in words: three digits, or all that are whole."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def product_of(phase: Phase) -> Product | None:
    """The product of a phase that reads most bytes of weights; None where it has none."""
    best: Product | None = None
    for op in phase.ops:
        weights = [tensor for tensor in op.op.operands if tensor.role is Role.WEIGHT]
        if op.kind not in PRODUCTS or not weights or op.arithmetic is None or not op.ridge or op.section == "head":
            continue
        if best is None or op.count * op.weight_bytes > best.figures.count * best.figures.weight_bytes:
            elements = sum(float(tensor.elements.evaluate(op.extents)) for tensor in weights)
            rows = float(op.flops) / (2 * elements) if elements else 0.0
            best = Product(op, rows, weights[0].format.bits, op.arithmetic, op.ridge)
    return best
