"""Residual connections beyond a sum: hyper-connections, and attention over earlier blocks of layers.

Hyper-connections keep the residual stream as several vectors (mHC; DeepSeek-V4, 2026, section 2.2). One small GEMM over
all of them gives each token weights: of the vectors in a sub-layer's input, of its output in each vector, and a matrix
that mixes them, which Sinkhorn iterations make doubly stochastic.

With attention residuals (Kimi K3, 2026) a sub-layer's input is a softmax mean over the outputs of earlier blocks of
layers and the sum within its own block, scored by one learned vector after a norm.
"""

from __future__ import annotations

from roofline.graph.extents import TOKENS
from roofline.graph.layers.basic import STATE_FORMAT, Formats, activation, vectors
from roofline.graph.layers.flops import SINKHORN_FLOPS, SOFTMAX_FLOPS
from roofline.graph.op import Kind, Op
from roofline.graph.size import product
from roofline.graph.tensor import Role, Tensor

SINKHORN = 20
"""Iterations (hc_sinkhorn_iters of the released files)."""


def gathered(name: str, streams: int, source: Tensor, target: Tensor, formats: Formats) -> tuple[Op, Tensor]:
    """The input of a sub-layer from the vectors of the stream, and the weights that `spread` uses after it."""
    width, columns = int(source.width), streams * (2 + streams)
    mix = activation(f"{name}_mix", STATE_FORMAT, streams * (1 + streams))
    learned = (
        Tensor(f"{name}_hc.weight", Role.WEIGHT, (columns, width), formats.weight("router")),
        *vectors(f"{name}_hc", ["bias"], columns, formats.weight("norm")),
        *vectors(f"{name}_hc", ["scale"], 3, formats.weight("norm")),
    )
    flops = TOKENS * (2 * width + SINKHORN * SINKHORN_FLOPS * streams * streams + 2 * width)
    matrix = TOKENS * (2 * width * columns)
    op = Op(
        f"{name}_hc_pre",
        Kind.HYPER_CONNECTION,
        (source, *learned),
        (target, mix),
        matrix,
        flops,
        operands=(source, learned[0]),
    )
    return op, mix


def spread(name: str, streams: int, source: Tensor, output: Tensor, mix: Tensor, target: Tensor) -> Op:
    """The stream after a sub-layer: its vectors mixed, and the output added to each with a weight."""
    flops = TOKENS * (int(source.width) * (2 * streams + 2))
    return Op(f"{name}_hc_post", Kind.HYPER_CONNECTION, (source, output, mix), (target,), vector_flops=flops)


def collapsed(streams: int, source: Tensor, target: Tensor, formats: Formats) -> Op:
    """The hidden state at the end of a model from the vectors of the stream."""
    width = int(source.width)
    rows = source.elements / width
    learned = (
        Tensor("final_hc.weight", Role.WEIGHT, (streams, width), formats.weight("router")),
        *vectors("final_hc", ["bias"], streams, formats.weight("norm")),
        *vectors("final_hc", ["scale"], 1, formats.weight("norm")),
    )
    return Op(
        "final_hc",
        Kind.HYPER_CONNECTION,
        (source, *learned),
        (target,),
        rows * (2 * width * streams),
        rows * (4 * width),
        operands=(source, learned[0]),
    )


def averaged(name: str, blocks: float, source: Tensor, target: Tensor, formats: Formats) -> Op:
    """The input of a sub-layer as a mean over the outputs of `blocks` earlier blocks and the sum of its own."""
    width, rows = int(source.width), product(source.shape[:-1])
    read = Tensor("block_outputs", Role.ACTIVATION, (rows * blocks, width), source.format)
    learned = vectors(f"{name}_residual", ["norm", "score"], width, formats.weight("norm"))
    flops = rows * ((blocks + 1) * (8 * width + SOFTMAX_FLOPS))  # norm 4, score 2, weighted sum 2
    return Op(f"{name}_residual", Kind.NORM, (source, read, *learned), (target,), vector_flops=flops)
