"""Benchmark of matrix products: C[m, n] = A[m, k] W[n, k]^T, weights stored as (outputs, inputs).

fp16, bf16 and fp32 have operands and output in one format. int8 and fp8 (e4m3) have an fp32 scale for every row of A
and of W, as engines quantise to 8 bits, and a bf16 output; the scales are 4 (m + n) bytes that `Work` does not count.
fp32 is multiplied in fp32, not in TF32.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from roofline.validate.kernels.benchmark import Benchmark, Tensors, Way
from roofline.validate.kernels.tools import format_refusal, generator, normal, poisoned, triton_refusal, uniform
from roofline.validate.kernels.work import BASES, Case

if TYPE_CHECKING:
    import torch

SCALED = ("int8", "fp8")
"""Formats whose products are multiplied by scales."""

_INT8_DEVIATION = 73.6
"""Of integers drawn uniformly from -127 to 127."""


class Gemm(Benchmark):
    """Matrix products: input (m, k), weight (n, k), for 8 bits row_scales (m, 1), column_scales (1, n); output (m, n).

    Numbers are drawn so that outputs have a deviation near one whatever k.
    """

    op = "gemm"
    dtypes = ("bf16", "fp16", "fp32", "int8", "fp8")

    @property
    def ways(self) -> Mapping[str, Way]:
        """`triton`, and `torch`: cuBLAS, or CUTLASS for fp8.

        The vendor's integer product ends in int32: PyTorch scales it in two more kernels, which are part of `torch`.
        """
        return MappingProxyType({"triton": _triton, "torch": _torch})

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Fresh random operands."""
        import torch

        random = generator(device, seed)
        m, n, k = case["m"], case["n"], case["k"]
        if case.dtype not in SCALED:
            source = normal((m, k), case.dtype, random)
            return {"input": source, "weight": normal((n, k), case.dtype, random, k**-0.5)}
        if case.dtype == "int8":
            source, weight = (
                torch.randint(-127, 128, (rows, k), dtype=torch.int8, device=device, generator=random)
                for rows in (m, n)
            )
        else:
            source, weight = normal((m, k), "fp8", random), normal((n, k), "fp8", random)
        unit = k**-0.5 * (_INT8_DEVIATION**-2 if case.dtype == "int8" else 1.0)
        return {
            "input": source,
            "weight": weight,
            "row_scales": uniform((m, 1), 0.5, 1.5, random),
            "column_scales": uniform((1, n), 0.5 * unit, 1.5 * unit, random),
        }

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """The poisoned product."""
        return {"output": poisoned((case["m"], case["n"]), BASES.get(case.dtype, "bf16"), device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The product in float64, in which integers up to 2^53 are exact, and its scales."""
        product = inputs["input"].double() @ inputs["weight"].double().T
        if case.dtype in SCALED:
            product = product * inputs["row_scales"].double() * inputs["column_scales"].double()
        return {"output": product}

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """What Triton, PyTorch or the device lacks for the case."""
        if case.dtype not in self.dtypes:
            return f"there is no {case.dtype} product here"
        reason = super().refusal(case, way, device) or format_refusal(case.dtype, device)
        if reason or way == "triton":
            return reason or triton_refusal(device)
        return _torch_refusal(case) if device.startswith("cuda") else None


def _torch_refusal(case: Case) -> str | None:
    """What PyTorch's products on a GPU ask of the shape."""
    m, n, k = case["m"], case["n"], case["k"]
    if case.dtype == "int8" and (m <= 16 or n % 8 or k % 8):
        return "torch multiplies int8 for m > 16 and n, k in eights only"
    if case.dtype == "fp8" and (n % 16 or k % 16):
        return "torch multiplies fp8 for n, k in sixteens only"
    return None


def _triton(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.programs.gemm import multiply

    del case
    scales = (inputs.get("row_scales"), inputs.get("column_scales"))
    multiply(inputs["input"], inputs["weight"], outputs["output"], *scales)


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    import torch

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


GEMM = Gemm()
"""Matrix products."""
