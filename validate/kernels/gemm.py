"""Benchmarks of op `gemm`: C[m, n] = A[m, k] W[n, k]^T, with weights stored as (outputs, inputs).

fp16, bf16 and fp32 have operands and output in one format. int8 and fp8 (e4m3) have an fp32 scale for every row of A
and of W, as engines quantize to 8 bits, and a bf16 output; the scales are 4 (m + n) bytes that `Work` does not count.
fp32 is multiplied in fp32, not in TF32.

int4_wo is weight-only: bf16 activations, weights from -8 to 7 with an fp16 scale for each group of 128 along k and no
zero points. Weights are packed two a byte within their group: byte j holds weight j in its low and weight 64 + j in its
high four bits, each plus 8.
"""

from __future__ import annotations

import torch

from roofline.validate.kernels.benchmark import Benchmark, Tensors
from roofline.validate.kernels.tools import Random, format_refusal, poisoned, triton_refusal
from roofline.validate.kernels.work import BASES, GROUP, Case

SCALED = ("int8", "fp8")
"""Formats whose results are multiplied by scales."""

WEIGHT_ONLY = "int4_wo"

_INT8_DEVIATION = 73.6
"""Of integers drawn uniformly from -127 to 127."""

_INT4_DEVIATION = 4.6
"""Of integers drawn uniformly from -8 to 7."""


class Gemm(Benchmark):
    """GEMM: input (m, k), weight (n, k), for 8 bits row_scales (m, 1) and column_scales (1, n); output (m, n).

    Weight-only: weight (n, k / 2) in bytes, scales (k / 128, n). Operands are drawn so that outputs have a standard
    deviation near one for every k.

    `torch` is cuBLAS, or CUTLASS for fp8. cuBLAS returns int32 for int8, which PyTorch scales in two more kernels. No
    vendor library has a GEMM of the weight-only layout: weights are written to memory in bf16, then multiplied.
    """

    op = "gemm"

    def __init__(self, dtypes: tuple[str, ...] = ("bf16", "fp16", "fp32", *SCALED, WEIGHT_ONLY)) -> None:
        self.dtypes = dtypes
        self.backends = {"triton": _triton, "torch": _torch}

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        random = Random(device, seed)
        m, n, k = case["m"], case["n"], case["k"]
        if case.dtype == WEIGHT_ONLY:
            unit = k**-0.5 / _INT4_DEVIATION
            return {
                "input": random.normal(m, k, dtype="bf16"),
                "weight": random.integers(n, k // 2, low=0, high=256, dtype=torch.uint8),
                "scales": random.uniform(k // GROUP, n, low=0.5 * unit, high=1.5 * unit).half(),
            }
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
        return {"output": poisoned(case["m"], case["n"], dtype=BASES.get(case.dtype, "bf16"), device=device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The GEMM in float64, which is exact for integers up to 2^53, with unrounded weights, times its scales."""
        weight_only = case.dtype == WEIGHT_ONLY
        weight = dequantized(inputs, torch.float64) if weight_only else inputs["weight"].double()
        output = inputs["input"].double() @ weight.T
        if case.dtype in SCALED:
            output = output * inputs["row_scales"].double() * inputs["column_scales"].double()
        return {"output": output}

    def _refusal(self, case: Case, backend: str, device: str) -> str | None:
        """Which sizes the format or PyTorch's 8-bit GEMMs on a GPU require, or what Triton or the device lacks."""
        m, n, k = case["m"], case["n"], case["k"]
        if case.dtype == WEIGHT_ONLY and k % GROUP:
            return f"k must be a multiple of {GROUP}"
        if reason := format_refusal("bf16" if case.dtype == WEIGHT_ONLY else case.dtype, device):
            return reason
        if backend == "triton":
            return triton_refusal(device)
        if case.dtype == "int8" and device.startswith("cuda") and (m <= 16 or n % 8 or k % 8):
            return "torch requires m > 16 and n, k divisible by 8 for int8"
        if case.dtype == "fp8" and device.startswith("cuda") and (n % 16 or k % 16):
            return "torch requires n, k divisible by 16 for fp8"
        return None


def dequantized(inputs: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """The weights (n, k) of a weight-only GEMM in a floating-point dtype, computed in it."""
    packed, scales = inputs["weight"], inputs["scales"]
    groups = packed.view(packed.shape[0], -1, GROUP // 2)
    integers = torch.cat([groups & 15, groups >> 4], dim=-1).to(dtype) - 8
    return (integers * scales.T.to(dtype)[:, :, None]).view(packed.shape[0], -1)


def _triton(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.triton_kernels.gemm import gemm
    from roofline.validate.kernels.triton_kernels.weight_only import weight_only_gemm

    if case.dtype == WEIGHT_ONLY:
        weight_only_gemm(inputs["input"], inputs["weight"], inputs["scales"], outputs["output"])
    else:
        scales = (inputs.get("row_scales"), inputs.get("column_scales"))
        gemm(inputs["input"], inputs["weight"], outputs["output"], *scales)


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    source, weight, output = inputs["input"], inputs["weight"].T, outputs["output"]
    match case.dtype:
        case "int8":
            by_row = torch._int_mm(source, weight) * inputs["row_scales"]
            torch.mul(by_row, inputs["column_scales"], out=output)
        case "fp8":
            scales = {"scale_a": inputs["row_scales"], "scale_b": inputs["column_scales"]}
            torch._scaled_mm(source, weight, **scales, out_dtype=output.dtype, use_fast_accum=True, out=output)
        case "int4_wo":
            torch.matmul(source, dequantized(inputs, output.dtype).T, out=output)
        case _:
            torch.matmul(source, weight, out=output)


GEMM = Gemm()
