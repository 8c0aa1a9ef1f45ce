"""From operators to kernels: the row of the measurement schema for an operator, or for several fused ones.

Formats and shapes come from the tensors, visible keys from the mask, collectives from the link. Shapes stay symbolic,
so that one kernel is evaluated for a whole grid of workloads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from roofline.graph.op import Kind, Link, Op
from roofline.graph.parallel import Collective, bus_factor
from roofline.graph.size import Dim, Size, as_size, product, total
from roofline.graph.tensor import Role, Tensor
from roofline.specs.formats import Format
from roofline.timing.kernels import ggml
from roofline.timing.kernels.attention import encoder_width
from roofline.timing.kernels.formats import FORMATS
from roofline.timing.kernels.streaming import POST, PRE, SEPARATE

COLLECTIVES: Mapping[Collective, str] = {
    Collective.ALL_REDUCE: "all_reduce",
    Collective.ALL_GATHER: "all_gather",
    Collective.REDUCE_SCATTER: "reduce_scatter",
    Collective.ALL_TO_ALL: "alltoall",
}
"""The names of measurement files."""

PASSES: Mapping[Kind, str] = {
    Kind.NORM: "norm",
    Kind.SOFTMAX: "softmax",
    Kind.ACTIVATION: "activation",
    Kind.ROPE: "rope",
    Kind.ELEMENTWISE: "copy",
    Kind.GATHER: "copy",
}
"""Elementwise kernels, by the names of measurement files."""

DECODE_QUERIES = 8
"""Query tokens of a sequence up to which split-KV decode kernels run (several when drafts are verified).

Kernels for drafts are asked for 2 to 8 queries (flashinfer-ai/flashinfer, issue 4567), and more queries are pieces of
prompts. Where prompts' attention has constants as well, the faster kernel of both counts for 2 to 8 queries.
"""

NO_TEXTS: Mapping[str, str | float] = MappingProxyType({})


class KernelShape(Struct, frozen=True, eq=False):
    """A kernel in the measurement schema: its op, text columns, and symbolic numeric columns; equal to itself only.

    The op of attention is `attention`: the queries of the workload decide between the prefill and the decode kernel.
    """

    op: str
    texts: Mapping[str, str | float]
    sizes: Mapping[str, Size]

    @classmethod
    def of(cls, op: str, texts: Mapping[str, str | float] = NO_TEXTS, **sizes: Dim | float) -> KernelShape:
        """A kernel with these sizes, numbers or symbolic."""
        return cls(op, texts, {name: as_size(size) for name, size in sizes.items()})

    @property
    def by_token(self) -> bool:
        """Whether each token is a sequence with its own keys: `pairs` of tokens and keys take the place of `kv_len`."""
        return "pairs" in self.sizes


@lru_cache(maxsize=4096)
def kernel_shape(parts: tuple[Op, ...], arithmetic: str | None) -> KernelShape | None:
    """The kernel that computes the fused operators `parts`; None where the schema has no row for it.

    `arithmetic` is that of the GEMMs (see `roofline.bound.roof.arithmetic_of`).
    """
    first = parts[0]
    if first.link is not None and first.link.collective in COLLECTIVES:
        return _collective(first)
    experts = [op for op in parts if op.kind is Kind.MOE]
    if len(experts) > 1:
        return _experts(experts, arithmetic)
    if all(op.kind is Kind.GEMM for op in parts):
        return _gemm(parts, arithmetic)
    if first.kind is Kind.INDEX and len(parts) == 2:
        return _sparse(parts[1], first)
    if first.kind is Kind.ATTENTION and len(first.operands) == 4:
        return _attention(first)
    if len(parts) == 1 and first.kind in OF_THEIR_OWN:
        return OF_THEIR_OWN[first.kind](first, arithmetic)
    if all(op.kind in PASSES for op in parts):
        kind = Kind.NORM if any(op.kind is Kind.NORM for op in parts) else parts[-1].kind
        moved = total(tensor.elements for op in parts for tensor in op.tensors)
        return KernelShape.of(PASSES[kind], bytes=total(op.bytes for op in parts), elements=moved)
    return None


def dtype_of(arithmetic: str, weight: Format) -> dict[str, str | float]:
    """The text columns of a GEMM: its `dtype`, and how the storage of upcast weights differs from it."""
    if weight.arithmetic == arithmetic:
        block, micro = weight.name == "fp8_block", weight.name == "nvfp4"
        dtype = "fp8_block" if block else {"fp4": "nvfp4" if micro else "mxfp4"}.get(arithmetic, arithmetic)
    elif arithmetic in ("bf16", "fp16"):
        dtype = "w4a16_mxfp4" if weight.name == "mxfp4" else "int4_wo"
    else:
        dtype = "w4a8_mxfp4_mxfp8" if arithmetic == "fp8" and weight.name == "mxfp4" else arithmetic
    texts: dict[str, str | float] = {"dtype": dtype}
    form = FORMATS[dtype]
    if abs(weight.bytes - form.bytes) > 1e-3:
        texts["weight_bytes"] = weight.bytes
    if form.arithmetic != arithmetic:
        texts["arithmetic"] = arithmetic
    return texts


def _matrices(op: Op) -> list[Tensor]:
    """The weight matrices of a GEMM, each (outputs, inputs) in its last two dimensions."""
    return [tensor for tensor in op.operands if tensor.role is Role.WEIGHT and len(tensor.shape) >= 2]


def weight_format(ops: Sequence[Op]) -> Format:
    """The format of the first weight matrix of GEMMs."""
    return next(weight.format for op in ops for weight in _matrices(op))


def _gemm(parts: Sequence[Op], arithmetic: str | None) -> KernelShape | None:
    """The GEMM C[m, n] = A[m, k] B[k, n]; several weights on one input are one GEMM with their columns concatenated.

    None for batched GEMMs with a weight per head, for which the schema has no row. Sparse weights multiply a fraction
    of k; their bytes an element are reduced already.
    """
    weights = [weight for op in parts for weight in _matrices(op)]
    if not weights or arithmetic is None:
        return None
    weight = weights[0]
    given = [dim for dim in parts[0].operands[0].shape if isinstance(dim, int)]
    if len(given) > 1 and math.prod(given) != weight.shape[-1]:
        return None
    density = weight.format.density
    depth = as_size(weight.shape[-1]) * density
    columns = total(as_size(tensor.shape[-2]) for tensor in weights)
    texts = dtype_of(arithmetic, weight.format)
    if density != 1 or any(tensor.format != weight.format for tensor in weights):
        texts["weight_bytes"] = _mean_bytes(weights) / density
    source, windows = parts[0].reads[0], parts[0].operands[0]
    if windows not in parts[0].reads:  # a convolution
        texts["input_share"] = _per_element(source) / _per_element(windows)
    rows = product(tuple(dim for dim in windows.shape if isinstance(dim, Size)))  # that vary with the workload
    return KernelShape.of("gemm", texts, m=rows, n=columns, k=depth)


def _per_element(tensor: Tensor) -> float:
    """The elements of a tensor at extents of one."""
    return sum(tensor.elements.terms.values())


def _mean_bytes(weights: Sequence[Tensor]) -> float:
    """Mean bytes an element over several weights of different formats, of a layer before where that stores them."""
    elements = [sum(tensor.stored_elements.terms.values()) for tensor in weights]
    if not any(elements):
        elements = [sum(tensor.elements.terms.values()) for tensor in weights]
    stored = sum(tensor.format.bytes * count for tensor, count in zip(weights, elements, strict=True))
    return stored / sum(elements)


def of_ggml(shape: KernelShape, parts: Sequence[Op], arithmetic: str) -> KernelShape:
    """GEMMs, experts or attention as llama.cpp computes them on a CPU: formats are those of weights and cache."""
    if shape.op == "attention":
        cached = parts[0].operands[1].format.bytes
        return replace(shape, texts={**shape.texts, "dtype": "fp32", "kv_dtype": "fp32", "kv_bytes": cached})
    weights = [weight for op in parts for weight in _matrices(op)]
    dtype = ggml.PREFIX + weights[0].format.name.partition("/")[0] if weights else ""
    if shape.op not in ("gemm", "moe") or dtype not in FORMATS:
        return shape
    formats = {"dtype": dtype, "arithmetic": arithmetic, "weight_bytes": _mean_bytes(weights)}
    return replace(shape, texts={**(shape.texts if shape.op == "moe" else {}), **formats})


def _attention(op: Op) -> KernelShape | None:
    """Fused attention; MLA where one tensor is both keys and values."""
    query, keys, _, values = op.operands
    if op.mask is None:
        return None
    if keys.name == values.name:
        return _mla(op)
    batch, queries, heads, width = query.shape
    # Expanded keys and values have a head for each query head; cached ones one for each group.
    _, seen, kv_heads, _ = keys.shape
    dim = (as_size(width) + as_size(values.shape[-1])) / 2
    texts = {**_cached(query, keys), "causal": float(op.mask.causal)}
    if not op.mask.causal:
        texts["variant"] = encoder_width(dim.terms.get((), 0.0))
    if width != values.shape[-1]:
        texts["uneven"] = 1.0
    if keys.role is Role.ACTIVATION and not op.mask.causal:
        texts["bare"] = 1.0  # there is no KV cache to write (U-Nets)
    window = op.mask.reach or 0
    if window and op.mask.window is None:
        texts["selected"] = 1.0
    if op.mask.chunk is not None:  # each chunk is a sequence of its own
        batch, queries, window = product((batch, op.mask.pieces)), op.mask.piece_queries, 0
        seen = op.mask.piece_keys
    sizes = {"batch": batch, "q_len": queries, "kv_len": seen, "heads": heads, "kv_heads": kv_heads, "window": window}
    return KernelShape.of("attention", texts, **sizes, head_dim=dim)


def _mla(op: Op) -> KernelShape | None:
    """MLA decode; with an indexer, or where one vector is key and value, sparse attention."""
    query, latents, *_ = op.operands
    if op.mask is None:
        return None
    if op.mask.selected is not None or query.shape[-1] == op.writes[0].shape[-1]:
        return _sparse(op)
    batch, queries, heads, width = query.shape
    latent = as_size(op.writes[0].shape[-1])
    sizes = {"batch": batch, "q_len": queries, "kv_len": latents.shape[1], "heads": heads}
    rope = as_size(width) + -1 * latent
    return KernelShape.of("mla_decode", _cached(query, latents), **sizes, latent=latent, rope=rope)


def _cached(query: Tensor, cache: Tensor) -> dict[str, str | float]:
    """The text columns of attention: its `dtype`, and the format and bytes of a KV cache in another format."""
    dtype = query.format.name if query.format.name in FORMATS else query.format.arithmetic
    if cache.format.name == query.format.name:
        return {"dtype": dtype}
    return {"dtype": dtype, "kv_dtype": "fp8" if cache.format.bits < 10 else dtype, "kv_bytes": cache.format.bytes}


def _experts(gemms: Sequence[Op], arithmetic: str | None) -> KernelShape | None:
    """The grouped GEMMs of one device's experts, with the number of experts reached from the graph."""
    first, last = gemms[0], gemms[-1]
    rows, weight = first.operands
    if arithmetic is None or len(rows.shape) != 4:
        return None
    batch, queries, top_k, hidden = rows.shape
    touched, width, _ = weight.shape
    texts = {**dtype_of(arithmetic, weight.format), "routing": "uniform"}
    if texts["dtype"] == "int4_wo" and weight.format.arithmetic == "int8":
        texts["dtype"] = "int8_wo"
    sizes = {"tokens": product((batch, queries)), "hidden": hidden, "intermediate": width, "top_k": top_k}
    experts = last.operands[1].stored_shape[0]
    return KernelShape.of("moe", texts, **sizes, experts=experts, touched=touched, gated=len(gemms) - 2)


def _delta_rule(op: Op, arithmetic: str | None) -> KernelShape | None:
    """The recurrence of a delta rule; the engine selects the kernel variant."""
    if arithmetic is None:
        return None
    batch, queries, heads, values = op.writes[0].shape
    state = _state(op)
    *_, width = op.reads[0].shape  # queries and keys of all key heads, and values, concatenated
    key_dim = state.shape[2]
    assert isinstance(key_dim, int)
    key_heads = (as_size(width) + -1 * product((heads, values))) / (2 * key_dim)
    sizes = {"batch": batch, "q_len": queries, "heads": heads, "value_dim": values, "key_dim": key_dim}
    return KernelShape.of(op.kind.value, {"dtype": arithmetic}, **sizes, key_heads=key_heads)


def _state(op: Op) -> Tensor:
    """The state that a recurrent operator reads, (batch, heads or channels, ...)."""
    return next(tensor for tensor in op.reads if tensor.role is Role.STATE)


def _mamba2(op: Op, arithmetic: str | None) -> KernelShape | None:
    """The scan of Mamba-2, with chunks of the kernel's own."""
    if arithmetic is None:
        return None
    batch, queries, inner = op.writes[0].shape
    _, heads, head_dim, state = _state(op).shape
    *_, width = op.reads[0].shape  # channels, and B and C of all groups
    groups = (as_size(width) + -1 * as_size(inner)) / (2.0 * _whole(state))
    sizes = {"batch": batch, "q_len": queries, "heads": heads, "head_dim": head_dim, "state": state}
    return KernelShape.of("mamba2", {"dtype": arithmetic}, **sizes, groups=groups, chunk=CHUNK)


CHUNK = 128
"""Tokens of a chunk of Mamba-2's kernels in engines (chunk_size of Nemotron-H's files)."""


def _whole(dim: Dim) -> int:
    """A dimension that no workload changes."""
    assert isinstance(dim, int)
    return dim


def _convolution(op: Op, _: str | None) -> KernelShape:
    """A causal convolution, whose state is the tokens before; Kimi's queries, keys and values have one each."""
    batch, queries, channels = op.writes[0].shape
    variant, taps = SEPARATE if op.name.startswith("qkv") else "any", _whole(_state(op).shape[-1]) + 1
    return KernelShape.of("convolution", {"variant": variant}, batch=batch, q_len=queries, channels=channels, taps=taps)


def _hyper_connection(op: Op, _: str | None) -> KernelShape | None:
    """Hyper-connections before and after a sub-layer; the one at the end of a model has no row."""
    variant = op.name.rpartition("_")[2]
    if variant not in (PRE, POST):
        return None
    stream = op.reads[0] if variant == PRE else op.writes[0]
    hidden = op.writes[0].width if variant == PRE else op.reads[1].width
    tokens, streams = product(stream.shape[:-1]), stream.width // hidden
    return KernelShape.of("hyper_connection", {"variant": variant}, tokens=tokens, hidden=hidden, streams=streams)


def _sparse(attention: Op, index: Op | None = None) -> KernelShape | None:
    """Sparse attention, for which every token has its own keys, with the `index` scores in front of it."""
    mask, (query, keys, _, values) = attention.mask, attention.operands
    if mask is None:
        return None
    batch, queries, heads, width = query.shape
    output, cached = attention.writes[0].shape[-1], _cached(query, keys)
    vectors = [keys] if keys.name == values.name else [keys, values]
    variant = "msa" if len(vectors) > 1 else "dsa" if width != output else "hca" if mask.selected is None else "csa"
    per_key = [math.prod(map(_whole, tensor.shape[2:])) * tensor.format.bytes for tensor in vectors]
    # Every token is a sequence of one query with its own keys.
    sizes: dict[str, Dim | float] = {"batch": product((batch, queries)), "pairs": product((batch, mask.pairs))}
    sizes |= {"q_len": queries, "heads": heads}
    sizes |= {"width": 2.0 * (_whole(width) + _whole(output)), "entry": sum(per_key)}
    sizes |= {"slots": (mask.selected or 0) + (mask.window or 0), "scored": 0, "index_flops": 0, "index_key": 0}
    stored = "fp8" if "fp8" in cached.values() else "bf16"
    computed = "bf16" if cached["dtype"] == "fp8" else cached["dtype"]  # efficiencies are of the 16-bit peak
    texts = {**cached, "dtype": computed, "kv_dtype": stored, "variant": variant, "causal": 0.0}
    if index is not None and index.mask is not None:
        asked, known, *_ = index.operands
        texts["index_dtype"] = asked.format.arithmetic
        sizes["scored"] = product((batch, index.mask.pairs))
        sizes["index_flops"] = 2 * _whole(asked.shape[2]) * _whole(asked.shape[3])
        sizes["index_key"] = known.width * known.format.bytes
    return KernelShape.of("sparse_attention", texts, **sizes)


def _top_k(op: Op, _: str | None) -> KernelShape:
    """The top-k selection among every token's visible scores, one FLOP each."""
    *rows, picked = op.writes[0].shape
    return KernelShape.of("top_k", batch=product(tuple(rows)), q_len=1, pairs=op.vector_flops, top_k=picked)


OF_THEIR_OWN: Mapping[Kind, Callable[[Op, str | None], KernelShape | None]] = {
    Kind.GATED_DELTA_RULE: _delta_rule,
    Kind.KIMI_DELTA: _delta_rule,
    Kind.MAMBA2: _mamba2,
    Kind.CONVOLUTION: _convolution,
    Kind.HYPER_CONNECTION: _hyper_connection,
    Kind.TOP_K: _top_k,
}
"""Kinds of operators that are kernels by themselves."""


def _collective(op: Op) -> KernelShape:
    link = op.link
    assert link is not None
    assert link.collective is not None
    message = link.bytes / bus_factor(link.collective, link.ranks)
    return collective_shape(link, COLLECTIVES[link.collective], message)


def collective_shape(link: Link, name: str, message: Size) -> KernelShape:
    """A collective of a message among the ranks of a link."""
    texts: dict[str, str | float] = {"collective": name, "dtype": "any"}
    if link.reach != link.ranks:
        texts["reach"] = float(link.reach)
    return KernelShape.of("collective", texts, bytes=message, ranks=link.ranks)
