"""Shared by the benchmarks: random and poisoned tensors, reference attention, and what a device can run."""

from __future__ import annotations

import math
import os
from functools import lru_cache
from importlib.util import find_spec

import torch

from roofline.validate.kernels.benchmark import torch_dtype
from roofline.validate.kernels.eager import visible

MIN_CAPABILITY = {"bf16": (8, 0), "fp8": (8, 9)}
"""The lowest NVIDIA compute capability whose tensor cores multiply a format; the other formats have no minimum here."""

RANDOM_BLOCK = 1 << 18
"""Normal numbers drawn for an operand; repeating them costs a copy, drawing all of a large one on a CPU a minute."""

_INTERPRETER_MULTIPROCESSORS = 4
"""The number of multiprocessors assumed in the interpreter, where sizes are small."""

absent_multiprocessors: int | None = None
"""The number of multiprocessors of the GPU that kernels are being compiled for (`launch.compiled_only`)."""


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter on the CPU (`TRITON_INTERPRET`, which Triton reads on import)."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "on", "yes", "y"}


def triton_refusal(device: str) -> str | None:
    """Why Triton kernels cannot run on the device, in a few words; None if they can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if device.startswith("cpu") and not interpreted():
        return "triton needs a GPU, or TRITON_INTERPRET=1"
    return None


def format_refusal(dtype: str, device: str) -> str | None:
    """Why the device's tensor cores do not multiply a format, in a few words; None if they do."""
    least, has = MIN_CAPABILITY.get(dtype), capability(device)
    if least is None or has is None or has >= least:
        return None
    return f"{dtype} needs compute capability {least[0]}.{least[1]}, the device has {has[0]}.{has[1]}"


def capability(device: str) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA device; None for others."""
    if not device.startswith("cuda") or torch.version.hip is not None:
        return None
    return torch.cuda.get_device_capability(device)


def multiprocessors(device: str) -> int:
    """The number of streaming multiprocessors of a device, or of the absent one that kernels are compiled for."""
    if device.startswith("cuda"):
        return _counted(device)
    return absent_multiprocessors or _INTERPRETER_MULTIPROCESSORS


@lru_cache(maxsize=16)
def _counted(device: str) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


class Random:
    """Random tensors from one seed, in the number formats of the schema; shapes alone on the device `meta`."""

    def __init__(self, device: str, seed: int) -> None:
        self.device = device
        self._generator = None if device == "meta" else torch.Generator(device=device).manual_seed(seed)

    def normal(self, *shape: int, dtype: str, mean: float = 0.0, deviation: float = 1.0) -> torch.Tensor:
        """Normally distributed numbers; a large tensor repeats `RANDOM_BLOCK` of them."""
        count = math.prod(shape)
        block = torch.empty(min(count, RANDOM_BLOCK), device=self.device)
        block = block.normal_(mean, deviation, generator=self._generator).to(torch_dtype(dtype))
        return block.repeat(-(-count // len(block)))[:count].view(shape)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
        """Uniformly distributed fp32 numbers in [low, high)."""
        return torch.empty(shape, device=self.device).uniform_(low, high, generator=self._generator)

    def integers(self, *shape: int, low: int, high: int, dtype: torch.dtype) -> torch.Tensor:
        """Uniformly distributed integers in [low, high)."""
        return torch.randint(low, high, shape, dtype=dtype, device=self.device, generator=self._generator)

    def permutation(self, count: int) -> torch.Tensor:
        return torch.randperm(count, generator=self._generator, device=self.device)


def poisoned(*shape: int, dtype: str, device: str) -> torch.Tensor:
    """A tensor of NaN, or of the largest integer, in which an element that is never written shows."""
    target = torch_dtype(dtype)
    value = math.nan if target.is_floating_point else torch.iinfo(target).max
    return torch.full(shape, value, dtype=target, device=device)


def assign(output: torch.Tensor, result: torch.Tensor) -> None:
    """Make `output` share the storage of `result`, without a copy that would be timed."""
    output.set_(result.untyped_storage(), result.storage_offset(), result.size(), result.stride())


def attention_reference(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int) -> torch.Tensor:
    """Causal attention of one sequence in float64, one head at a time.

    `query` (q_len, heads, head_dim); `keys` and `values` (kv_len, kv_heads, head_dim); the result has the shape of
    `query`. A query that sees no key gives zeros.
    """
    queries, heads, head_dim = query.shape
    kv_len, kv_heads, _ = keys.shape
    hidden = ~visible(queries, kv_len, window, query.device)
    output = torch.empty(query.shape, dtype=torch.float64, device=query.device)
    for head in range(heads):
        kv_head = head // (heads // kv_heads)
        scores = query[:, head].double() @ keys[:, kv_head].double().T / math.sqrt(head_dim)
        weights = scores.masked_fill_(hidden, -math.inf).softmax(dim=-1).nan_to_num_(0.0)
        output[:, head] = weights @ values[:, kv_head].double()
    return output


def heads_first(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Views with tokens and heads swapped, the order that scaled_dot_product_attention takes."""
    return tuple(tensor.transpose(1, 2) for tensor in tensors)
