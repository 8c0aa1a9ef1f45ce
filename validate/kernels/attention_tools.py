"""What the attention and streaming benchmarks share: number formats, random and poisoned tensors, who may run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from roofline.validate.kernels.work import Case

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
"""PyTorch's name of each number format that these benchmarks have."""

CACHES = {**DTYPES, "fp8": torch.float8_e4m3fn}
"""The same for what a cache may be stored in. Its scale is one: another would only be a factor of scores and output."""


def cache_dtype(case: Case) -> torch.dtype:
    """The format that the keys and values of a case are stored in."""
    return CACHES[str(case.columns.get("kv_dtype", case.dtype))]


class Random:
    """Fresh random tensors from one seed, the same whatever the order of devices."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        self._generator = torch.Generator(device=device).manual_seed(seed)

    def normal(self, *shape: int, dtype: torch.dtype, mean: float = 0.0, deviation: float = 1.0) -> torch.Tensor:
        """Normally distributed numbers, rounded to `dtype` (drawn in it, so that large tensors fit)."""
        drawn = torch.empty(shape, dtype=dtype, device=self.device)
        return drawn.normal_(mean, deviation, generator=self._generator)

    def permutation(self, count: int) -> torch.Tensor:
        """The numbers from 0 to `count` - 1, shuffled."""
        return torch.randperm(count, generator=self._generator, device=self.device)


def poisoned(*shape: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    """NaN everywhere, so that an element that nobody writes shows."""
    return torch.full(shape, math.nan, dtype=dtype, device=device)


def deliver(result: torch.Tensor, output: torch.Tensor) -> None:
    """Make `output` the tensor that PyTorch returned, without a copy that would be timed."""
    output.set_(result.untyped_storage(), result.storage_offset(), result.size(), result.stride())


def visible(queries: int, keys: int, window: int, device: str | torch.device) -> torch.Tensor:
    """Which keys each query sees, (queries, keys) of bool: causal from the end, the last `window` of them if not 0."""
    position = torch.arange(queries, device=device)[:, None] + (keys - queries)
    key = torch.arange(keys, device=device)[None, :]
    seen = key <= position
    return seen & (key > position - window) if window else seen


def attention_reference(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int) -> torch.Tensor:
    """Causal attention of one sequence in float64, plainly.

    `query` (q_len, heads, head_dim); `keys` and `values` (kv_len, kv_heads, head_dim); like `query` out. A query that
    sees no key gives zeros.
    """
    queries, heads, width = query.shape
    count, kv_heads, _ = keys.shape
    hidden = ~visible(queries, count, window, query.device)
    output = torch.empty(query.shape, dtype=torch.float64, device=query.device)
    for head in range(heads):
        shared = head // (heads // kv_heads)
        scores = query[:, head].double() @ keys[:, shared].double().T / math.sqrt(width)
        weights = scores.masked_fill_(hidden, -math.inf).softmax(dim=-1).nan_to_num_(0.0)
        output[:, head] = weights @ values[:, shared].double()
    return output


def transposed(*tensors: torch.Tensor) -> Iterator[torch.Tensor]:
    """Tokens and heads swapped, as scaled_dot_product_attention wants them: views."""
    return (tensor.transpose(1, 2) for tensor in tensors)
