"""The decode step of one decoder layer of a dense Llama-like model, with its real dimensions and real kernels.

GEMMs are PyTorch's; norms, RoPE, attention and activation are this project's kernels (backend `triton`) or PyTorch's
(backend `torch`). Nothing is read back from the device and no shape depends on its data, so that a step can be captured
in a CUDA graph: call it once (this compiles and tunes the kernels), capture, replay. A replay writes the same slot of
the cache again and computes the same.
"""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from msgspec import Struct
from torch.nn import functional

from roofline.core.errors import UnknownNameError, UnsupportedError, quote
from roofline.specs.model import Attention, Layer, Mlp, Model
from roofline.validate.kernels.attention import PAGE_SIZE
from roofline.validate.kernels.streaming import EPSILON, ROPE_BASE, rotate, rotations
from roofline.validate.kernels.tools import Random, attention_reference, heads_first, triton_refusal


class LayerShape(Struct, frozen=True):
    """The dimensions of a layer: norm, GQA over a cache, norm, gated feed-forward block."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    width: int
    window: int = 0
    rotary: bool = True
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


class Weights(Struct, frozen=True):
    """A layer's weights, stored as (out, in); q, k and v are one projection, gate and up another."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    output: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor
    qkv_bias: torch.Tensor | None = None
    output_bias: torch.Tensor | None = None
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None
    query_norm: torch.Tensor | None = None
    key_norm: torch.Tensor | None = None

    @property
    def bytes(self) -> int:
        """Their size in bytes."""
        tensors = (getattr(self, name) for name in self.__struct_fields__)
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors if tensor is not None)


class State(Struct, frozen=True):
    """The operands of a step beside weights: the residual stream, the paged cache, and the slot of the new token.

    `hidden` and `residual` (batch, hidden): the last output of the previous layer, and the stream before it. The caches
    (pages, page, kv_heads, head_dim), `block_table` (batch, pages a sequence), `lengths` (batch) including the new
    token, `slots` (batch): the row of the cache, over all pages, where its key and value are written. `cosine` and
    `sine` (batch, head_dim / 2) of its position. All sequences have `kv_len` tokens.
    """

    hidden: torch.Tensor
    residual: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_table: torch.Tensor
    lengths: torch.Tensor
    slots: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor
    kv_len: int


def layer_shape(model: Model, group: str | None = None) -> LayerShape:
    """The dimensions of the layers of `group` (default: the first that is dense) of a model.

    Raises UnknownNameError for a group that the model does not have, and UnsupportedError if no layer is Llama-like.
    """
    names = [entry.name for entry in model.groups]
    if group is not None and group not in names:
        raise UnknownNameError("layer group", group, names)
    problems = []
    for entry in model.groups:
        if group in (None, entry.name):
            problem = _problem(model, entry.layer)
            if problem is None:
                return _shape(model, entry.layer)
            problems.append(problem)
    raise UnsupportedError(f"{quote(model.name)} has no dense Llama-like layer to run: {', '.join(problems)}")


def _problem(model: Model, layer: Layer) -> str | None:
    """Why a layer is not the supported one (norm, attention, norm, gated feed-forward); None if it is."""
    attention, mlp, norm = layer.mixer, layer.feed_forward, layer.norm
    if not isinstance(attention, Attention) or not isinstance(mlp, Mlp):
        return "its layers are not softmax attention and a dense feed-forward block"
    checks = {
        "its norms are not RMSNorms before each block": norm.kind == "rmsnorm"
        and norm.placement == "pre"
        and norm.weight,
        "its blocks run in parallel": layer.residual == "sequential",
        "it attends to an encoder": layer.cross is None,
        "its positions are not rotary": model.positions.kind in ("rope", "none"),
        "its attention is not plain": attention.causal
        and not (attention.extra or attention.selected or attention.kept)
        and not (attention.sinks or attention.gate or attention.kv_shared)
        and attention.qk_norm in (False, True),
        "its feed-forward block is not SwiGLU": mlp.gated
        and mlp.activation == "silu"
        and not (mlp.receptance or mlp.shift)
        and mlp.active == 1,
    }
    return next((problem for problem, good in checks.items() if not good), None)


def _shape(model: Model, layer: Layer) -> LayerShape:
    attention, mlp = layer.mixer, layer.feed_forward
    assert isinstance(attention, Attention)
    assert isinstance(mlp, Mlp)
    rotary = model.positions.kind == "rope" if attention.rotary is None else attention.rotary
    return LayerShape(
        hidden=model.hidden,
        heads=attention.heads,
        kv_heads=attention.kv_heads,
        head_dim=attention.head_dim,
        width=mlp.width,
        window=attention.window or 0,
        rotary=rotary,
        qkv_bias=bool(attention.qkv_bias),
        output_bias=attention.output_bias,
        mlp_bias=mlp.bias,
        qk_norm=bool(attention.qk_norm),
    )


def make_weights(shape: LayerShape, dtype: str, device: str, seed: int) -> Weights:
    """Random weights that keep the stream's scale: deviation 1 / sqrt(in), norms near 1, small biases."""
    random = Random(device, seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return random.normal(rows, columns, dtype=dtype, deviation=1 / math.sqrt(columns))

    def vector(size: int, mean: float = 0.0) -> torch.Tensor:
        return random.normal(size, dtype=dtype, mean=mean, deviation=0.1)

    rows = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
    return Weights(
        attention_norm=vector(shape.hidden, 1.0),
        qkv=matrix(rows, shape.hidden),
        output=matrix(shape.hidden, shape.heads * shape.head_dim),
        mlp_norm=vector(shape.hidden, 1.0),
        gate_up=matrix(2 * shape.width, shape.hidden),
        down=matrix(shape.hidden, shape.width),
        qkv_bias=vector(rows) if shape.qkv_bias else None,
        output_bias=vector(shape.hidden) if shape.output_bias else None,
        gate_up_bias=vector(2 * shape.width) if shape.mlp_bias else None,
        down_bias=vector(shape.hidden) if shape.mlp_bias else None,
        query_norm=vector(shape.head_dim, 1.0) if shape.qk_norm else None,
        key_norm=vector(shape.head_dim, 1.0) if shape.qk_norm else None,
    )


def make_state(
    shape: LayerShape, batch: int, kv_len: int, dtype: str, device: str, seed: int, page: int = PAGE_SIZE
) -> State:
    """A random stream and cache of `batch` sequences of `kv_len` tokens, the new one included, in shuffled pages."""
    random = Random(device, seed)
    pages = math.ceil(kv_len / page)
    table = random.permutation(batch * pages).view(batch, pages)
    cache = (batch * pages, page, shape.kv_heads, shape.head_dim)
    last = kv_len - 1
    positions = torch.full((batch,), last, device=device)
    cosine, sine = rotations(positions, shape.head_dim, ROPE_BASE)
    return State(
        hidden=random.normal(batch, shape.hidden, dtype=dtype),
        residual=random.normal(batch, shape.hidden, dtype=dtype),
        key_cache=random.normal(*cache, dtype=dtype),
        value_cache=random.normal(*cache, dtype=dtype),
        block_table=table.to(torch.int32),
        lengths=torch.full((batch,), kv_len, dtype=torch.int32, device=device),
        slots=table[:, last // page] * page + last % page,
        cosine=cosine,
        sine=sine,
        kv_len=kv_len,
    )


def step_refusal(shape: LayerShape, backend: str, dtype: str, device: str) -> str | None:
    """Why a backend cannot run a step, in a few words; None if it can."""
    if backend not in ("triton", "torch"):
        return f"there is no backend {backend}"
    if backend == "torch":
        return None
    if dtype not in ("fp16", "bf16"):
        return f"no attention kernel for {dtype}"
    return "head_dim must be even" if shape.rotary and shape.head_dim % 2 else triton_refusal(device)


def decode_step(
    shape: LayerShape, weights: Weights, state: State, backend: Literal["triton", "torch"]
) -> tuple[torch.Tensor, torch.Tensor]:
    """One new token of each sequence through the layer; its key and value go to the cache.

    Returns the last output of the layer and the stream before it, each (batch, hidden): the next layer's `hidden` and
    `residual`. With `torch` the cache is gathered in every step, since PyTorch's attention has no paged cache.
    """
    kernels: Any = _Torch if backend == "torch" else _Triton
    batch = state.hidden.shape[0]
    query_width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim

    stream, normed = kernels.add_norm(state.hidden, state.residual, weights.attention_norm)
    projected = functional.linear(normed, weights.qkv, weights.qkv_bias)
    query, key, value = torch.split(projected, [query_width, kv_width, kv_width], dim=1)
    if weights.query_norm is not None and weights.key_norm is not None:
        query = kernels.norm(query.reshape(-1, shape.head_dim), weights.query_norm).view(batch, query_width)
        key = kernels.norm(key.reshape(-1, shape.head_dim), weights.key_norm).view(batch, kv_width)
    if shape.rotary:
        query = kernels.rope(query, state.cosine, state.sine)
        key = kernels.rope(key, state.cosine, state.sine)
    for cache, new in ((state.key_cache, key), (state.value_cache, value)):
        cache.view(-1, kv_width).index_copy_(0, state.slots, new)
    attended = kernels.attention(query.reshape(batch, 1, shape.heads, -1).contiguous(), state, shape.window)
    output = functional.linear(attended.view(batch, query_width), weights.output, weights.output_bias)

    stream, normed = kernels.add_norm(output, stream, weights.mlp_norm)
    gate, up = functional.linear(normed, weights.gate_up, weights.gate_up_bias).chunk(2, dim=1)
    return functional.linear(kernels.swiglu(gate, up), weights.down, weights.down_bias), stream


class _Torch:
    """PyTorch's kernels."""

    @staticmethod
    def add_norm(hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        summed = hidden + residual
        return summed, _Torch.norm(summed, weight)

    @staticmethod
    def norm(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(rows, (rows.shape[1],), weight, EPSILON)

    @staticmethod
    def rope(rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        return rotate(rows, cosine, sine)

    @staticmethod
    def attention(query: torch.Tensor, state: State, window: int) -> torch.Tensor:
        begin = max(0, state.kv_len - window) if window else 0
        caches = (
            cache[state.block_table].flatten(1, 2)[:, begin : state.kv_len]
            for cache in (state.key_cache, state.value_cache)
        )
        gqa = query.shape[2] != state.key_cache.shape[2]
        queries, keys, values = heads_first(query, *caches)
        result = functional.scaled_dot_product_attention(queries, keys, values, enable_gqa=gqa)
        return result.transpose(1, 2).contiguous()

    @staticmethod
    def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return functional.silu(gate) * up


class _Triton:
    """Triton kernels."""

    @staticmethod
    def add_norm(hidden: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> Any:
        from roofline.validate.kernels.triton_kernels.streaming import norm

        summed, output = torch.empty_like(hidden), torch.empty_like(hidden)
        norm(hidden, residual, weight, summed, output, EPSILON)
        return summed, output

    @staticmethod
    def norm(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        from roofline.validate.kernels.triton_kernels.streaming import norm

        output = torch.empty_like(rows)
        norm(rows, None, weight, None, output, EPSILON)
        return output

    @staticmethod
    def rope(rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        from roofline.validate.kernels.triton_kernels.streaming import rope

        output = rows.new_empty(rows.shape)
        rope(rows, cosine, sine, output)
        return output

    @staticmethod
    def attention(query: torch.Tensor, state: State, window: int) -> torch.Tensor:
        from roofline.validate.kernels.triton_kernels.decode import decode

        output = torch.empty_like(query)
        decode(query, state.key_cache, state.value_cache, state.block_table, state.lengths, output, window)
        return output

    @staticmethod
    def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        from roofline.validate.kernels.triton_kernels.streaming import swiglu

        output = gate.new_empty(gate.shape)
        swiglu(gate, up, output)
        return output


def step_reference(shape: LayerShape, weights: Weights, state: State) -> tuple[torch.Tensor, torch.Tensor]:
    """The results of `decode_step` in float64, without fusion; the cache is not written."""

    def wide(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return None if tensor is None else tensor.double()

    def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return functional.linear(rows, weight.double(), wide(bias))

    def norm(rows: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        if weight is None:
            return rows
        return rows * (rows.square().mean(-1, keepdim=True) + EPSILON).rsqrt() * weight.double()

    batch = state.hidden.shape[0]
    stream = state.hidden.double() + state.residual.double()
    projected = linear(norm(stream, weights.attention_norm), weights.qkv, weights.qkv_bias)
    counts = [shape.heads, shape.kv_heads, shape.kv_heads]
    query, key, value = torch.split(projected.view(batch, -1, shape.head_dim), counts, dim=1)
    query, key = norm(query, weights.query_norm), norm(key, weights.key_norm)
    if shape.rotary:
        angles = state.cosine.double(), state.sine.double()
        query, key = (rotate(rows.flatten(1), *angles).view_as(rows) for rows in (query, key))
    attended = []
    for index in range(batch):
        pages = state.block_table[index]
        past = (
            cache[pages].flatten(0, 1)[: state.kv_len - 1].double() for cache in (state.key_cache, state.value_cache)
        )
        keys, values = (torch.cat((old, new[index : index + 1])) for old, new in zip(past, (key, value), strict=True))
        attended.append(attention_reference(query[index : index + 1], keys, values, shape.window).flatten())
    stream = stream + linear(torch.stack(attended), weights.output, weights.output_bias)
    gate, up = linear(norm(stream, weights.mlp_norm), weights.gate_up, weights.gate_up_bias).chunk(2, dim=1)
    return linear(gate * torch.sigmoid(gate) * up, weights.down, weights.down_bias), stream
