"""The functions of a decoder as eager PyTorch runs them, on any device: `measure.decoder` and the benchmarks call them.

The simulator models each as one kernel, though PyTorch may launch several: `rotate` multiplies and concatenates.
PyTorch is imported on the first call.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

EPSILON, ROPE_BASE = 1e-6, 10000.0
"""The defaults of Transformers' `LlamaConfig` for `rms_norm_eps` and the base of RoPE; no time depends on them."""


def linear(source: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x W^T (+ b), W stored as (outputs, inputs)."""
    import torch

    return torch.nn.functional.linear(source, weight, bias)


def rms_norm(source: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x / rms(x) times the weight."""
    import torch

    return torch.nn.functional.rms_norm(source, (source.shape[-1],), weight, EPSILON)


def add_norm(stream: torch.Tensor, added: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The residual stream with a layer's output added, and its norm."""
    summed = stream + added
    return summed, rms_norm(summed, weight)


def silu_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    """The gated activation silu(gate) up."""
    import torch

    return torch.nn.functional.silu(gate) * up


@lru_cache(maxsize=64)
def angles(positions: int, width: int, dtype: Any, device: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of the rotary embedding: (positions, width), each angle twice."""
    import torch

    frequencies = ROPE_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    half = torch.outer(torch.arange(positions, dtype=torch.float64), frequencies)
    both = torch.cat([half, half], dim=-1)
    return both.cos().to(dtype=dtype, device=device), both.sin().to(dtype=dtype, device=device)


def rotate(source: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """The rotary embedding of (..., width), the two halves of a head being the pairs' coordinates."""
    import torch

    first, second = source.chunk(2, dim=-1)
    return source * cosine + torch.cat([-second, first], dim=-1) * sine


def attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int = 0) -> torch.Tensor:
    """Causal attention of (batch, heads, queries, width) over (batch, kv_heads, keys, width), aligned to the last key.

    For one query a sequence, the heads of a group are the rows of one GEMM; keys before the window are not read.
    """
    import torch

    sdpa = torch.nn.functional.scaled_dot_product_attention
    batch, heads, queries, width = query.shape
    kv_heads, seen = keys.shape[1], keys.shape[2]
    if queries == 1:
        if window:
            keys, values = keys[:, :, -window:], values[:, :, -window:]
        grouped = query.reshape(batch, kv_heads, heads // kv_heads, width)
        return sdpa(grouped, keys, values).reshape(batch, heads, 1, width)
    gqa = heads > kv_heads
    if queries == seen and not window:
        return sdpa(query, keys, values, is_causal=True, enable_gqa=gqa)
    return sdpa(query, keys, values, attn_mask=visible(queries, seen, window, query.device), enable_gqa=gqa)


@lru_cache(maxsize=2)
def visible(queries: int, keys: int, window: int, device: Any) -> torch.Tensor:
    """Which keys each query sees, (queries, keys) of bool: causal, aligned to the last key, in a window if not 0."""
    import torch

    distance = torch.arange(keys - queries, keys, device=device)[:, None] - torch.arange(keys, device=device)[None, :]
    return (distance >= 0) & (distance < window) if window else distance >= 0
