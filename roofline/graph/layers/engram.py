"""Engram: a memory of n-grams, looked up by the hashes of a token and those before it (DeepSeek-V4.1, 2026).

Two layers of DeepSeek-V4.1-Flash have a table of 384 million rows in FP8, of which a token takes 24; one of
Qwen3.8-Flash-Next has 320 million, of which a token takes 16. Tensor ranks hold
a part of the rows each and add what they find (the reference code's ParallelEngramEmbedding, and SGLang's page on
Engram), and every rank has the projection whole.
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.graph.extents import BATCH, QUERIES
from roofline.graph.layers.basic import Formats, Ops, activation, collective, vectors
from roofline.graph.layers.flops import GATE_FLOPS, NORM_FLOPS
from roofline.graph.op import Kind, Op
from roofline.graph.parallel import Collective
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import find_format
from roofline.specs.sublayers import Engram

ENGRAM, TABLE = "engram", "engram.weight"


def engram_ops(spec: Engram, streams: int, hidden: int, formats: Formats) -> list[Op]:
    """The lookup, the projection to keys and a value, and the gated addition to the residual stream."""
    ranks, taken = formats.parallel.tensor, spec.taken * spec.width
    touched = (BATCH, QUERIES * (spec.taken / ranks), spec.width)
    kept = formats.base if spec.format is None else find_format(spec.format)
    table = Tensor(TABLE, Role.WEIGHT, touched, kept, (spec.rows, spec.width))
    rows = activation("engram_rows", formats.activations, taken)
    found = rows if ranks == 1 else replace(rows, name="engram_rows_partial")
    ops = Ops(formats)
    ops.append(Op(ENGRAM, Kind.GATHER, (table,), (found,)))
    if ranks > 1:
        ops.append(collective("engram_all_reduce", Collective.ALL_REDUCE, found, rows, ranks, ranks))
    projected = ops.project("engram_proj", rows, "engram_projected", (streams + 1) * hidden)
    stream = activation("hidden", formats.base, streams * hidden)
    learned = vectors("engram", ["query", "key"], streams * hidden, formats.weight("norm"))
    flops = (2 * NORM_FLOPS["rmsnorm"] + GATE_FLOPS) * stream.elements
    ops.append(Op("engram_gate", Kind.NORM, (stream, projected, *learned), (stream,), vector_flops=flops))
    return ops
