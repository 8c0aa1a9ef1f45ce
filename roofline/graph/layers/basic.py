"""The operators common to all layers: linear layers, norms, residual additions, collectives."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES
from roofline.graph.layers.flops import NORM_FLOPS
from roofline.graph.op import Kind, Link, Op, Routed
from roofline.graph.parallel import SINGLE, Collective, Parallelism, bus_factor, link_steps
from roofline.graph.size import ZERO, Dim, Size, product
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import FORMATS, Format
from roofline.specs.model import Norm
from roofline.specs.precision import Precision
from roofline.specs.schemes import BLOCK

STATE_FORMAT = FORMATS["fp32"]
"""Recurrent states are fp32 by default, as in the reference implementations of Mamba, RWKV and Gated DeltaNet."""


class Formats(Struct, frozen=True):
    """The options common to all layers of a network: number formats, parallelism, and expert routing.

    `decode`: a graph for single queries. `skew`: that of expert routing. `capacity`: the capacity factor, padded rows
    over rows of an expert. `conditioned`: a vector per sample modulates every layer.
    """

    precision: Precision
    layers: int
    group: int
    parallel: Parallelism = SINGLE
    decode: bool = False
    skew: float = 0.0
    capacity: float = 1.0
    conditioned: bool = False

    def weight(self, component: str, columns: int = BLOCK) -> Format:
        """The format in which the checkpoint stores a component, a matrix of so many columns."""
        return self.precision.weights.format_of(component, self.precision.base, self.layers, self.group, columns)

    @property
    def base(self) -> Format:
        return self.precision.base

    @property
    def activations(self) -> Format:
        """The format of the inputs of linear layers."""
        return self.precision.activations

    @property
    def kv(self) -> Format:
        return self.precision.kv

    @property
    def attention(self) -> Format:
        """The format of queries and probabilities in attention."""
        return self.precision.attention

    @property
    def without_experts(self) -> Formats:
        """The same for operators outside MoE blocks, without expert parallelism and routing (a cache key)."""
        return replace(self, parallel=self.parallel.without_experts, skew=0.0, capacity=1.0)

    @property
    def without_cache(self) -> Formats:
        """The same for operators without KV cache, without its format and phase (a cache key)."""
        return replace(self, precision=replace(self.precision, kv=self.base), decode=False)


def activation(name: str, format: Format, *width: Dim) -> Tensor:
    """An activation of shape (batch, queries, *width)."""
    return Tensor(name, Role.ACTIVATION, (BATCH, QUERIES, *width), format)


class Ops(list[Op]):
    """The operators of a layer in the order they run: each method adds one and returns what it writes."""

    def __init__(self, formats: Formats) -> None:
        super().__init__()
        self.formats = formats

    def run(self, op: Op) -> Tensor:
        """The first tensor that `op` writes."""
        self.append(op)
        return op.writes[0]

    def project(
        self, name: str, source: Tensor, made: str, *width: Dim, bias: bool = False, component: str | None = None
    ) -> Tensor:
        """The activation `made` of a linear layer, in the base format and of shape (batch, queries, *width)."""
        target = activation(made, self.formats.base, *width)
        return self.run(linear(name, source, target, self.formats, bias, component))


def vectors(op: str, names: Iterable[str], width: int, format: Format) -> tuple[Tensor, ...]:
    """Learned vectors of an operator, all of length `width`."""
    return tuple(Tensor(f"{op}.{name}", Role.WEIGHT, (width,), format) for name in names)


def linear(
    name: str, source: Tensor, target: Tensor, formats: Formats, bias: bool = False, component: str | None = None
) -> Op:
    """x W^T (+ b) with W of shape (outputs, inputs): 2 * rows * inputs * outputs FLOPs.

    Rows are the symbolic dimensions (batch, and queries unless only the last position is used); inputs and outputs are
    the remaining ones of source and target. `component` is the kind of weight in the quantization scheme.
    """
    rows = tuple(dim for dim in source.shape if not isinstance(dim, int))
    inputs = _fixed(product(source.shape[len(rows) :]))
    outputs = _fixed(product(target.shape[len(rows) :]))
    weight = Tensor(f"{name}.weight", Role.WEIGHT, (outputs, inputs), formats.weight(component or name, inputs))
    return Op(
        name,
        Kind.GEMM,
        reads=(source, weight, *vectors(name, ["bias"] if bias else [], outputs, formats.weight("bias"))),
        writes=(target,),
        matrix_flops=product(rows) * (2 * inputs * outputs * weight.format.density),
        vector_flops=product(rows) * outputs if bias else ZERO,
        operands=(source, weight),
    )


def convolution(name: str, source: Tensor, target: Tensor, taps: int, formats: Formats) -> Op:
    """An implicit GEMM with a bias: 2 * positions * taps * inputs * outputs FLOPs for windows of `taps` positions.

    A kernel reads each element of the source once, however many windows it is in.
    """
    inputs = source.width
    windows = replace(source, shape=(*target.shape[:-1], taps * inputs))
    gemm = linear(name, windows, target, formats, bias=True, component="convolution")
    return replace(gemm, reads=(source, *gemm.reads[1:]))


def _fixed(size: Size) -> int:
    """The value of a size that does not depend on the workload."""
    return int(size.evaluate({}))


def normalise(name: str, norm: Norm, source: Tensor, target: Tensor, formats: Formats) -> Op:
    """A norm over the last dimension of `source`."""
    width = source.width
    learned = vectors(name, ("weight", "bias")[: norm.vectors], width, formats.weight("norm"))
    flops = source.elements * NORM_FLOPS[norm.kind]
    return Op(name, Kind.NORM, reads=(source, *learned), writes=(target,), vector_flops=flops)


def low_rank_query(ops: Ops, norm: Norm, source: Tensor, down: Tensor, normed: Tensor, target: Tensor) -> None:
    """Queries through a low rank: the projection down, a norm, and the projection up."""
    ops.append(linear("q_a_proj", source, down, ops.formats))
    ops.append(normalise("q_a_norm", norm, down, normed, ops.formats))
    ops.append(linear("q_b_proj", normed, target, ops.formats))


def add(name: str, left: Tensor, right: Tensor, target: Tensor) -> Op:
    """A residual addition, 1 FLOP per element."""
    return Op(name, Kind.ELEMENTWISE, reads=(left, right), writes=(target,), vector_flops=target.elements)


def elementwise(name: str, kind: Kind, sources: tuple[Tensor, ...], target: Tensor, flops: Size = ZERO) -> Op:
    """Vector work of `flops` FLOPs that reads `sources` and writes `target`."""
    return Op(name, kind, reads=sources, writes=(target,), vector_flops=flops)


def collective(
    name: str,
    kind: Collective,
    source: Tensor,
    target: Tensor,
    ranks: int,
    reach: int,
    share: float = 1.0,
    routed: Routed | None = None,
) -> Op:
    """A collective of the fraction `share` of `source` among `ranks` devices."""
    link = Link(source.bytes * (share * bus_factor(kind, ranks)), link_steps(kind, ranks), ranks, reach, kind, routed)
    return Op(name, Kind.COLLECTIVE, reads=(source,), writes=(target,), link=link)
