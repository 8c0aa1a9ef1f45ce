"""The interface of a kernel benchmark: inputs of a case, a float64 reference, and the backends that compute it.

Outputs are poisoned before a backend runs, so that an element that it does not write shows. The backends are `triton`
(this project's kernels) and `torch` (PyTorch and the vendor libraries that it calls).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from roofline.validate.kernels.work import Case

if TYPE_CHECKING:
    import torch

Tensors: TypeAlias = "Mapping[str, torch.Tensor]"
"""Operands by name."""

Backend: TypeAlias = Callable[[Case, Tensors, Tensors], None]
"""One implementation of a benchmark: reads the inputs, fills the outputs, returns once the work is launched."""

_TORCH_NAMES = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp8": "float8_e4m3fn",
    "int8": "int8",
    "int32": "int32",
}


def torch_dtype(format: str) -> torch.dtype:
    """PyTorch's dtype of a number format. PyTorch is imported here, so that benchmarks can be listed without it."""
    import torch

    dtype: torch.dtype = getattr(torch, _TORCH_NAMES[format])
    return dtype


class Benchmark(ABC):
    """The benchmark of one `op` of the measurement schema, with its implementations by name.

    `dtypes` are the number formats that it has kernels for, `mixed` pairs of a format and another one of the KV cache:
    `bf16/fp8`.
    """

    op: str
    backends: Mapping[str, Backend]
    dtypes: tuple[str, ...]
    mixed: tuple[str, ...] = ()

    @abstractmethod
    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Random operands of a case."""

    @abstractmethod
    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """Outputs of a case, poisoned: NaN, or the largest integer."""

    @abstractmethod
    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The outputs in float64 (integers: int64), computed without fusion or tiling."""

    def refusal(self, case: Case, backend: str, device: str) -> str | None:
        """Why `backend` cannot compute the case on the device, in a few words; None if it can."""
        if backend not in self.backends:
            return f"there is no backend {backend}"
        if case.dtype not in self.dtypes:
            return f"no kernel for {case.dtype}"
        return self._refusal(case, backend, device)

    def _refusal(self, case: Case, backend: str, device: str) -> str | None:
        """What the backend or the device lacks for the sizes and formats of a case."""
        del case, backend, device
        return None


def benchmarks(device: str = "cuda") -> dict[str, Benchmark]:
    """The benchmark of every op that can be measured on the device (a CPU as eager PyTorch runs it); needs PyTorch."""
    from roofline.validate.kernels import attention, experts, gemm, streaming

    found: tuple[Benchmark, ...] = (gemm.GEMM, experts.EXPERTS, attention.PREFILL, attention.DECODE)
    if device == "cpu":
        found = (gemm.Gemm(streaming.FLOATS), *map(attention.EagerAttention, ("attention_prefill", "attention_decode")))
    return {benchmark.op: benchmark for benchmark in (*found, *streaming.BENCHMARKS)}
