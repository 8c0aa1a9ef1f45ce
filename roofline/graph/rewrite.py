"""Rewrites: rules that replace an operator, such as a linear layer, by other operators."""

from __future__ import annotations

import math
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from roofline.graph.extents import Pool, Tail, of_last
from roofline.graph.op import Kind, Op
from roofline.graph.size import as_size, product, rules_of
from roofline.graph.tensor import Role, Tensor


class Rewrite(Protocol):
    """A rule that replaces an operator; hashable, so that graphs are built once."""

    def apply(self, op: Op) -> list[Op]:
        """The operators that replace `op`; `[op]` where the rule does not apply."""


def _plain_linear(op: Op) -> tuple[Tensor, Tensor] | None:
    """Input and weight of a dense linear layer, None for any other operator."""
    if op.kind is not Kind.GEMM or len(op.operands) != 2:
        return None
    source, weight = op.operands
    plain = weight.role is Role.WEIGHT and len(weight.shape) == 2 and weight.stored is None
    return (source, weight) if plain and source in op.reads else None  # a convolution reads no windows


def _factors(op: Op, source: Tensor, weight: Tensor, rank: int) -> list[Op]:
    """`op` computed through a bottleneck: (x A^T) B^T."""
    outputs, inputs = weight.shape
    rows = source.shape[:-1] if product(source.shape[-1:]) == inputs else source.shape[:-2]
    low = Tensor(f"{op.name}_low", Role.ACTIVATION, (*rows, rank), source.format)
    down = replace(weight, name=f"{op.name}_a.weight", shape=(rank, inputs))
    up = replace(weight, name=f"{op.name}_b.weight", shape=(outputs, rank))
    count = product(rows) * weight.format.density
    first = Op(f"{op.name}_a", Kind.GEMM, (source, down), (low,), 2 * count * rank * inputs, operands=(source, down))
    others = tuple(tensor for tensor in op.reads if tensor is not source and tensor is not weight)
    second = replace(
        op, name=f"{op.name}_b", reads=(low, up, *others), matrix_flops=2 * count * rank * outputs, operands=(low, up)
    )
    return [first, second]


class LowRank(Struct, frozen=True):
    """Every linear layer W (o x i) as B (o x r) A (r x i), with the fraction `share` of its weights."""

    share: float

    def apply(self, op: Op) -> list[Op]:
        """Two GEMMs in place of a linear layer."""
        found = _plain_linear(op)
        if found is None or op.name == "router":
            return [op]
        source, weight = found
        outputs, inputs = (int(product((dim,)).evaluate({})) for dim in weight.shape)
        rank = max(1, int(self.share * outputs * inputs / (outputs + inputs)))
        return _factors(op, source, weight, rank)


class Adapter(Struct, frozen=True):
    """LoRA: a low-rank path of rank `rank`, added to every linear layer's output, with weights in the base format.

    Sequences choose among so many `adapters`, uniformly or with a popularity of rank^-`skew`, and a pass reads those of
    its sequences. So many `slots` are in memory (None: all), each of rank `allotted` (None: `rank`). `experts`: routed
    experts have one, too. Two grouped kernels gather the factors, also of a single adapter (SGMV in Punica and
    S-LoRA, shrink and expand in vLLM), of which the second adds to the output.
    """

    rank: int
    adapters: int = 1
    slots: int | None = None
    allotted: int | None = None
    skew: float = 0.0
    experts: bool = False

    @property
    def pool(self) -> Pool:
        """The adapters of the sequences of a pass."""
        return Pool(self.adapters, 1, self.skew, sequences=True)

    def apply(self, op: Op) -> list[Op]:
        """The layer, and the two factors."""
        if self.experts and op.kind is Kind.MOE:
            return self._grouped(op, *op.operands)
        found = _plain_linear(op)
        if found is None or not op.name.endswith("_proj"):
            return [op]
        return self._grouped(op, *found)

    def _grouped(self, op: Op, source: Tensor, weight: Tensor) -> list[Op]:
        """The layer, and the kernels that gather the adapters of its rows."""
        target, (*experts, outputs, inputs) = op.writes[0], weight.stored_shape
        reached = self.pool.touched
        if experts:
            (rule,) = rules_of([as_size(weight.shape[0])])
            last = rule if isinstance(rule, Tail) else None  # of a layer that runs the last tokens alone
            pool: Any = rule if last is None else last.rule
            reached = replace(pool, copies=self.adapters).touched
            reached = reached if last is None else of_last(last.tokens, reached)
        main = replace(target, name=f"{target.name}_main", role=Role.ACTIVATION)
        low = Tensor(f"{op.name}_lora_low", Role.ACTIVATION, (*source.shape[:-1], self.rank), target.format)
        held = (self.slots or self.adapters, *experts)
        allotted = self.allotted or self.rank
        ops = [replace(op, writes=(main, *op.writes[1:]))]
        for name, read, factor, size, written in (
            ("a", source, (self.rank, inputs), (allotted, inputs), low),
            ("b", low, (outputs, self.rank), (outputs, allotted), target),
        ):
            gathered = Tensor(
                f"{op.name}_lora_{name}.weight", Role.WEIGHT, (reached, *factor), target.format, (*held, *size)
            )
            flops = 2 * product(read.shape) * product(written.shape[-1:])
            reads = (read, gathered) if name == "a" else (read, gathered, main)
            ops.append(
                Op(f"{op.name}_lora_{name}", Kind.ELEMENTWISE, reads, (written,), flops, operands=(read, gathered))
            )
        return ops


class Rotation(Struct, frozen=True):
    """SliceGPT: a square matrix rotates the residual stream into the next block's basis before each addition."""

    def apply(self, op: Op) -> list[Op]:
        if op.name not in ("attn_add", "mlp_add"):
            return [op]
        stream, update = op.reads
        width = stream.shape[-1]
        weight = Tensor(f"{op.name}_rotation.weight", Role.WEIGHT, (width, width), stream.format)
        rotated = replace(stream, name=f"{stream.name}_rotated")
        flops = 2 * stream.elements * as_size(width)
        rotate = Op(f"{op.name}_rotation", Kind.GEMM, (stream, weight), (rotated,), flops, operands=(stream, weight))
        return [rotate, replace(op, reads=(rotated, update))]


class Incoherence(Struct, frozen=True):
    """Orthogonal transforms of the inputs of linear layers, and of their `outputs`, so that no weight stands out.

    A Hadamard transform adds log2(n) times an element (QuIP#, QuaRot); the product of two orthogonal matrices of
    sqrt(n) rows (`kronecker`, QuIP) takes 4 sqrt(n) FLOPs an element. `inputs` are the layers whose input is
    transformed; those that share it (k_proj and v_proj, gate_proj) read the result.
    """

    inputs: tuple[str, ...]
    outputs: bool
    kronecker: bool = False

    def apply(self, op: Op) -> list[Op]:
        """The layer between the transforms of its input and of its output."""
        found = _plain_linear(op)
        if found is None or not op.name.endswith("_proj"):
            return [op]
        before, after, layer = [], [], op
        if op.name in self.inputs:
            turned = replace(found[0], name=f"{op.name}_input_turned")
            before.append(self._transform(f"{op.name}_input_transform", found[0], turned))
        if self.outputs:
            raw = replace(op.writes[0], name=f"{op.name}_turned", role=Role.ACTIVATION)
            layer = replace(op, writes=(raw, *op.writes[1:]))
            after.append(self._transform(f"{op.name}_output_transform", raw, op.writes[0]))
        return [*before, layer, *after]

    def _transform(self, name: str, source: Tensor, target: Tensor) -> Op:
        width = max(2.0, float(product(tuple(dim for dim in source.shape if isinstance(dim, int))).evaluate({})))
        each = 4 * math.sqrt(width) if self.kronecker else math.log2(width)
        return Op(name, Kind.ELEMENTWISE, (source,), (target,), vector_flops=source.elements * each)


class Predictor(Struct, frozen=True):
    """Deja Vu: two small GEMMs before the MLP, through a bottleneck of `rank`, predict its active neurons."""

    rank: int

    def apply(self, op: Op) -> list[Op]:
        """The predictor and the first projection of the MLP."""
        if op.name != "up_proj":
            return [op]
        source, target = op.operands[0], op.writes[0]
        scores = replace(target, name="neuron_scores")
        weight = Tensor("neuron_predictor.weight", Role.WEIGHT, (target.shape[-1], source.shape[-1]), target.format)
        whole = Op("neuron_predictor", Kind.GEMM, (source, weight), (scores,), operands=(source, weight))
        return [*_factors(whole, source, weight, self.rank), op]


class ProjectedKeys(Struct, frozen=True):
    """Linformer: keys and values are projected along the sequence to a fixed length.

    The projections take as many FLOPs as the attention GEMMs on their output.
    """

    def apply(self, op: Op) -> list[Op]:
        """The attention GEMM with the FLOPs of its projection."""
        projected = op.name in ("qk_matmul", "sv_matmul")
        return [replace(op, matrix_flops=2 * op.matrix_flops) if projected else op]


class SharedCore(Struct, frozen=True):
    """MPOE: the matrix of an expert is a product of five tensors, of which all experts share the central one.

    Without truncation the central tensor has as many elements as the matrix, between bonds of `bond`, and an expert's
    other four have 2 (sqrt(bond) sqrt(bond) + sqrt(bond)^2 bond). Multiplying by the factors would take `bond` times
    the FLOPs of the matrix for each token, so that a pass rebuilds the experts that it touches: both pairs of outer
    tensors times the central one, 4 `bond` FLOPs an element.
    """

    bond: int

    @property
    def auxiliary(self) -> int:
        """Parameters of a matrix that an expert has of its own."""
        return 2 * (self.bond + self.bond * self.bond)

    def apply(self, op: Op) -> list[Op]:
        """The rebuilding of the experts' matrices, and the grouped GEMM."""
        if op.kind is not Kind.MOE or not op.name.endswith("_proj"):
            return [op]
        _, weight = op.operands
        (touched, *matrix), experts = weight.shape, weight.stored_shape[0]
        core = replace(weight, name=f"{op.name}.core", shape=tuple(matrix), stored=tuple(matrix))
        own = (self.auxiliary,)
        others = replace(weight, name=f"{op.name}.auxiliary", shape=(touched, *own), stored=(experts, *own))
        built = Tensor(f"{op.name}_built", Role.ACTIVATION, weight.shape, op.writes[0].format)
        flops = built.elements * (4 * self.bond)
        rebuild = Op(f"{op.name}_rebuild", Kind.ELEMENTWISE, (core, others), (built,), flops, operands=(core, others))
        read = replace(weight, stored=(experts, 0, 0))  # in place of the rebuilt one
        reads, operands = (
            tuple(read if tensor is weight else tensor for tensor in found) for found in (op.reads, op.operands)
        )
        return [rebuild, replace(op, reads=reads, operands=operands)]


class SharedWeights(Struct, frozen=True):
    """Cross-layer weight sharing: `repeats` layers share each stored weight; every layer still reads it."""

    repeats: int

    def apply(self, op: Op) -> list[Op]:
        """The operator with 1 / `repeats` of its weights stored per layer."""

        def shared(tensor: Tensor) -> Tensor:
            if tensor.role is not Role.WEIGHT:
                return tensor
            return replace(tensor, stored=(*tensor.stored_shape, as_size(1 / self.repeats)))  # experts are in front

        reads, operands = (tuple(map(shared, tensors)) for tensors in (op.reads, op.operands))
        return [replace(op, reads=reads, operands=operands)]
