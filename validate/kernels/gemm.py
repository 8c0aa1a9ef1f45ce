"""Benchmarks of op `gemm`: C[m, n] = A[m, k] W[n, k]^T, with weights stored as (outputs, inputs).

fp16, bf16 and fp32 have operands and output in one format. int8 and fp8 (e4m3) have an fp32 scale for every row of A
and of W, as engines quantise to 8 bits, and a bf16 output; the scales are 4 (m + n) bytes that `Work` does not count.
fp32 is multiplied in fp32, not in TF32.

Weight-only: bf16 activations, weights from -8 to 7 with an fp16 scale for each group of 128 along k and no zero points.
Weights are packed two a byte within their group: byte j holds weight j in its low and weight 64 + j in its high four
bits, each plus 8.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch

from roofline.validate.kernels.benchmark import Backend, Benchmark, Tensors
from roofline.validate.kernels.tools import Random, format_refusal, poisoned, triton_refusal
from roofline.validate.kernels.work import BASES, GROUP, Case

SCALED = ("int8", "fp8")
"""Formats whose results are multiplied by scales."""

_INT8_DEVIATION = 73.6
"""Of integers drawn uniformly from -127 to 127."""

_INT4_DEVIATION = 4.6
"""Of integers drawn uniformly from -8 to 7."""


class Gemm(Benchmark):
    """GEMM: input (m, k), weight (n, k), for 8 bits row_scales (m, 1) and column_scales (1, n); output (m, n).

    Operands are drawn so that outputs have a standard deviation near one for every k.
    """

    op = "gemm"
    dtypes = ("bf16", "fp16", "fp32", "int8", "fp8")

    @property
    def backends(self) -> Mapping[str, Backend]:
        """`triton`, and `torch`: cuBLAS, or CUTLASS for fp8.

        cuBLAS returns int32 for int8: PyTorch scales it in two more kernels, which are part of `torch`.
        """
        return MappingProxyType({"triton": _triton, "torch": _torch})

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Random operands."""
        random = Random(device, seed)
        m, n, k = case["m"], case["n"], case["k"]
        if case.dtype not in SCALED:
            source = random.normal(m, k, dtype=case.dtype)
            return {"input": source, "weight": random.normal(n, k, dtype=case.dtype, deviation=k**-0.5)}
        if case.dtype == "int8":
            source, weight = (random.integers(rows, k, low=-127, high=128, dtype=torch.int8) for rows in (m, n))
        else:
            source, weight = (random.normal(rows, k, dtype="fp8") for rows in (m, n))
        unit = k**-0.5 * (_INT8_DEVIATION**-2 if case.dtype == "int8" else 1.0)
        return {
            "input": source,
            "weight": weight,
            "row_scales": random.uniform(m, 1, low=0.5, high=1.5),
            "column_scales": random.uniform(1, n, low=0.5 * unit, high=1.5 * unit),
        }

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """The poisoned output."""
        return {"output": poisoned(case["m"], case["n"], dtype=BASES.get(case.dtype, "bf16"), device=device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The GEMM in float64, which is exact for integers up to 2^53, times its scales."""
        output = inputs["input"].double() @ inputs["weight"].double().T
        if case.dtype in SCALED:
            output = output * inputs["row_scales"].double() * inputs["column_scales"].double()
        return {"output": output}

    def refusal(self, case: Case, backend: str, device: str) -> str | None:
        """What Triton, PyTorch or the device lacks for the case."""
        if case.dtype not in self.dtypes:
            return f"there is no {case.dtype} GEMM here"
        reason = super().refusal(case, backend, device) or format_refusal(case.dtype, device)
        if reason or backend == "triton":
            return reason or triton_refusal(device)
        return _torch_refusal(case) if device.startswith("cuda") else None


def _torch_refusal(case: Case) -> str | None:
    """Which sizes PyTorch's 8-bit GEMMs on a GPU require, where the case has others."""
    m, n, k = case["m"], case["n"], case["k"]
    if case.dtype == "int8" and (m <= 16 or n % 8 or k % 8):
        return "torch requires m > 16 and n, k divisible by 8 for int8"
    if case.dtype == "fp8" and (n % 16 or k % 16):
        return "torch requires n, k divisible by 16 for fp8"
    return None


def _triton(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.triton_kernels.gemm import gemm

    del case
    scales = (inputs.get("row_scales"), inputs.get("column_scales"))
    gemm(inputs["input"], inputs["weight"], outputs["output"], *scales)


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    source, weight, output = inputs["input"], inputs["weight"].T, outputs["output"]
    if case.dtype == "int8":
        by_row = torch._int_mm(source, weight) * inputs["row_scales"]
        torch.mul(by_row, inputs["column_scales"], out=output)
    elif case.dtype == "fp8":
        torch._scaled_mm(
            source,
            weight,
            scale_a=inputs["row_scales"],
            scale_b=inputs["column_scales"],
            out_dtype=output.dtype,
            use_fast_accum=True,
            out=output,
        )
    else:
        torch.matmul(source, weight, out=output)


class WeightOnlyGemm(Benchmark):
    """W4A16 GEMM: input (m, k), weight (n, k / 2) in bytes, scales (k / 128, n); output (m, n)."""

    op = "gemm"
    dtypes = ("int4_wo",)

    @property
    def backends(self) -> Mapping[str, Backend]:
        """`triton` unpacks weights inside the GEMM; `torch` writes them to memory in bf16, then multiplies.

        No vendor library that PyTorch calls has a GEMM of this layout; PyTorch's own int4 GEMM takes weights in a
        layout of its own, with zero points.
        """
        return MappingProxyType({"triton": _triton_weight_only, "torch": _torch_weight_only})

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Random operands; outputs have a standard deviation near one for every k."""
        random = Random(device, seed)
        m, n, k = case["m"], case["n"], case["k"]
        unit = k**-0.5 / _INT4_DEVIATION
        return {
            "input": random.normal(m, k, dtype="bf16"),
            "weight": random.integers(n, k // 2, low=0, high=256, dtype=torch.uint8),
            "scales": random.uniform(k // GROUP, n, low=0.5 * unit, high=1.5 * unit).half(),
        }

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """The poisoned output."""
        return {"output": poisoned(case["m"], case["n"], dtype="bf16", device=device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The GEMM in float64 with dequantised weights that are not rounded."""
        del case
        return {"output": inputs["input"].double() @ dequantised(inputs, torch.float64).T}

    def refusal(self, case: Case, backend: str, device: str) -> str | None:
        """What Triton or the device lacks for the case."""
        if case.dtype not in self.dtypes:
            return f"there is no {case.dtype} GEMM here"
        if case["k"] % GROUP:
            return f"k must be a multiple of {GROUP}"
        reason = super().refusal(case, backend, device) or format_refusal("bf16", device)
        return reason or (triton_refusal(device) if backend == "triton" else None)


def dequantised(inputs: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """The weights (n, k) in a floating-point dtype, computed in it."""
    packed, scales = inputs["weight"], inputs["scales"]
    groups = packed.view(packed.shape[0], -1, GROUP // 2)
    integers = torch.cat([groups & 15, groups >> 4], dim=-1).to(dtype) - 8
    return (integers * scales.T.to(dtype)[:, :, None]).view(packed.shape[0], -1)


def _triton_weight_only(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.triton_kernels.weight_only import weight_only_gemm

    del case
    weight_only_gemm(inputs["input"], inputs["weight"], inputs["scales"], outputs["output"])


def _torch_weight_only(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    del case
    output = outputs["output"]
    torch.matmul(inputs["input"], dequantised(inputs, output.dtype).T, out=output)


GEMM = Gemm()
WEIGHT_ONLY = WeightOnlyGemm()
