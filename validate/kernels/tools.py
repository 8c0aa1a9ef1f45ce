"""What the benchmarks share: random and poisoned tensors of a format, and what a device can run.

PyTorch is imported only when a tensor is asked for, so that this module costs nothing where it is missing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

LEAST_CAPABILITY = {"bf16": (8, 0), "fp8": (8, 9)}
"""The NVIDIA compute capability from which on matrix units multiply a format; older devices know the others."""

_DTYPES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "int32": "int32",
}

_CPU_PROCESSORS = 4
"""Stands for a device's multiprocessors in the interpreter, where sizes are small."""


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter on the CPU: `TRITON_INTERPRET` as it was when Triton came in."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in {"1", "true", "on", "yes", "y"}


def triton_refusal(device: str) -> str | None:
    """Why Triton kernels cannot run on the device, in a few words; None if they can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    if device.startswith("cpu") and not interpreted():
        return "triton needs a GPU, or TRITON_INTERPRET=1"
    return None


def format_refusal(dtype: str, device: str) -> str | None:
    """Why the device's matrix units do not multiply a format, in a few words; None if they do."""
    least, has = LEAST_CAPABILITY.get(dtype), capability(device)
    if least is None or has is None or has >= least:
        return None
    return f"{dtype} needs compute capability {least[0]}.{least[1]}, the device has {has[0]}.{has[1]}"


def capability(device: str) -> tuple[int, int] | None:
    """The compute capability of an NVIDIA device; None for others."""
    import torch

    if not device.startswith("cuda") or torch.version.hip is not None:
        return None
    return torch.cuda.get_device_capability(device)


@lru_cache(maxsize=16)
def processors(device: str) -> int:
    """The multiprocessors of a device."""
    import torch

    if not device.startswith("cuda"):
        return _CPU_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def torch_dtype(format: str) -> torch.dtype:
    """PyTorch's type for a number format of the schema."""
    import torch

    dtype: torch.dtype = getattr(torch, _DTYPES[format])
    return dtype


def generator(device: str, seed: int) -> torch.Generator:
    """A random generator on the device."""
    import torch

    return torch.Generator(device).manual_seed(seed)


def normal(shape: Sequence[int], format: str, random: torch.Generator, deviation: float = 1.0) -> torch.Tensor:
    """Normally distributed numbers around zero, in a floating-point format of the schema."""
    import torch

    dtype = torch_dtype(format)
    drawn = torch.float32 if dtype.itemsize == 1 else dtype
    return torch.randn(*shape, dtype=drawn, device=random.device, generator=random).mul_(deviation).to(dtype)


def uniform(shape: Sequence[int], low: float, high: float, random: torch.Generator) -> torch.Tensor:
    """Uniformly distributed fp32 numbers in [low, high)."""
    import torch

    return torch.rand(*shape, device=random.device, generator=random).mul_(high - low).add_(low)


def poisoned(shape: Sequence[int], format: str, device: str) -> torch.Tensor:
    """A tensor in which every element that is not written shows: NaN, or the largest integer."""
    import torch

    dtype = torch_dtype(format)
    value = float("nan") if dtype.is_floating_point else torch.iinfo(dtype).max
    return torch.full(tuple(shape), value, dtype=dtype, device=device)
