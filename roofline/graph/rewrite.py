"""Rewrites of linear layers: each replaces one operator by operators that compute something else in its place."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from roofline.graph.op import Kind, Op
from roofline.graph.size import as_size, product
from roofline.graph.tensor import Role, Tensor


class Rewrite(Protocol):
    """A rule that replaces an operator; hashable, so that graphs are built once."""

    def apply(self, op: Op) -> list[Op]:
        """The operators in the place of `op`: itself, where the rule does not concern it."""


def _plain_linear(op: Op) -> tuple[Tensor, Tensor] | None:
    """Input and weight of an ordinary linear layer, None for any other operator."""
    if op.kind is not Kind.GEMM or len(op.operands) != 2:
        return None
    source, weight = op.operands
    return (source, weight) if weight.role is Role.WEIGHT and len(weight.shape) == 2 and weight.stored is None else None


def _factors(op: Op, source: Tensor, weight: Tensor, rank: int) -> list[Op]:
    """`op` computed through a bottleneck: x A^T, then B of it."""
    outputs, inputs = weight.shape
    rows = source.shape[:-1] if product(source.shape[-1:]) == inputs else source.shape[:-2]
    low = Tensor(f"{op.name}_low", Role.ACTIVATION, (*rows, rank), source.format)
    down = replace(weight, name=f"{op.name}_a.weight", shape=(rank, inputs))
    up = replace(weight, name=f"{op.name}_b.weight", shape=(outputs, rank))
    count = product(rows) * weight.format.density
    first = Op(f"{op.name}_a", Kind.GEMM, (source, down), (low,), 2 * count * rank * inputs, operands=(source, down))
    others = tuple(tensor for tensor in op.reads if tensor is not source and tensor is not weight)
    second = replace(
        op,
        name=f"{op.name}_b",
        reads=(low, up, *others),
        matrix_flops=2 * count * rank * outputs,
        operands=(low, up),
    )
    return [first, second]


class LowRank(Struct, frozen=True):
    """Every linear layer W (o x i) as B (o x r) A (r x i), r such that the factors keep this share of its weights."""

    share: float

    def apply(self, op: Op) -> list[Op]:
        """Two operators for a linear layer whose rank is below the full one."""
        found = _plain_linear(op)
        if found is None or op.name == "router":
            return [op]
        source, weight = found
        outputs, inputs = (int(product((dim,)).evaluate({})) for dim in weight.shape)
        rank = max(1, int(self.share * outputs * inputs / (outputs + inputs)))
        return _factors(op, source, weight, rank)


class Adapter(Struct, frozen=True):
    """LoRA: beside every linear layer a product of rank `rank`, added to its output, its weights in the base format."""

    rank: int

    def apply(self, op: Op) -> list[Op]:
        """The layer, the two factors, and the addition."""
        found = _plain_linear(op)
        if found is None or not op.name.endswith("_proj"):
            return [op]
        source, weight = found
        target = op.writes[0]
        main, update = (
            replace(target, name=f"{target.name}_main", role=Role.ACTIVATION),
            replace(target, name=f"{target.name}_update", role=Role.ACTIVATION),
        )
        named = replace(op, name=f"{op.name}_lora")
        factors = _factors(named, source, replace(weight, format=target.format), self.rank)
        last = replace(
            factors[1], reads=factors[1].operands, writes=(update,), vector_flops=factors[1].vector_flops * 0
        )
        summed = Op(f"{op.name}_lora_add", Kind.ELEMENTWISE, (main, update), op.writes, vector_flops=target.elements)
        return [replace(op, writes=(main, *op.writes[1:])), factors[0], last, summed]


class Rotation(Struct, frozen=True):
    """SliceGPT: the residual stream is turned into the next block's basis before each addition, by a square matrix."""

    def apply(self, op: Op) -> list[Op]:
        """The product with the matrix, and the addition of what it turned."""
        if op.name not in ("attn_add", "mlp_add"):
            return [op]
        stream, update = op.reads
        width = stream.shape[-1]
        weight = Tensor(f"{op.name}_rotation.weight", Role.WEIGHT, (width, width), stream.format)
        turned = replace(stream, name=f"{stream.name}_turned")
        flops = 2 * stream.elements * as_size(width)
        turn = Op(f"{op.name}_rotation", Kind.GEMM, (stream, weight), (turned,), flops, operands=(stream, weight))
        return [turn, replace(op, reads=(turned, update))]


class Predictor(Struct, frozen=True):
    """Deja Vu: before the MLP two small products, through a bottleneck of `rank`, say which neurons a token needs."""

    rank: int

    def apply(self, op: Op) -> list[Op]:
        """The predictor and the first projection of the MLP."""
        if op.name != "up_proj":
            return [op]
        source, target = op.operands[0], op.writes[0]
        scores = replace(target, name="neuron_scores")
        weight = Tensor("neurons.weight", Role.WEIGHT, (target.shape[-1], source.shape[-1]), target.format)
        whole = Op("neurons", Kind.GEMM, (source, weight), (scores,), operands=(source, weight))
        return [*_factors(whole, source, weight, self.rank), op]


class ProjectedKeys(Struct, frozen=True):
    """Linformer: keys and values are projected along the sequence to as many as each query then sees.

    Projecting them is as many multiply-adds as multiplying with what comes out.
    """

    def apply(self, op: Op) -> list[Op]:
        """The product with the projection before it."""
        projected = op.name in ("qk_matmul", "sv_matmul")
        return [replace(op, matrix_flops=2 * op.matrix_flops) if projected else op]


class SharedWeights(Struct, frozen=True):
    """Each weight of the layers is stored once for `repeats` of them; every layer still reads it."""

    repeats: int

    def apply(self, op: Op) -> list[Op]:
        """The operator with weights of which only a part is stored for each layer."""

        def shared(tensor: Tensor) -> Tensor:
            if tensor.role is not Role.WEIGHT:
                return tensor
            return replace(tensor, stored=(as_size(1 / self.repeats), *tensor.stored_shape))

        reads, operands = (tuple(map(shared, tensors)) for tensors in (op.reads, op.operands))
        return [replace(op, reads=reads, operands=operands)]
