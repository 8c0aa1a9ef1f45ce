"""Benchmark of products with 4-bit weights: bf16 activations, integers from -8 to 7 with an fp16 scale for 128 inputs.

Weights are packed two a byte within their group of 128 along k: byte j holds weight j in its low and weight 64 + j in
its high four bits, each plus 8. There are no zero points.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from roofline.validate.kernels.benchmark import Benchmark, Tensors, Way
from roofline.validate.kernels.tools import format_refusal, generator, normal, poisoned, triton_refusal, uniform
from roofline.validate.kernels.work import GROUP, Case

if TYPE_CHECKING:
    import torch

_DEVIATION = 4.6
"""Of integers drawn uniformly from -8 to 7."""


class WeightOnly(Benchmark):
    """Products with 4-bit weights: input (m, k), weight (n, k / 2) in bytes, scales (k / 128, n); output (m, n)."""

    op = "gemm"
    dtypes = ("int4_wo",)

    @property
    def ways(self) -> Mapping[str, Way]:
        """`triton` unpacks weights inside the product; `torch` first writes them out in bf16, then multiplies.

        PyTorch hands no product of this layout to a vendor's library: the vendor's has none, and PyTorch's own int4
        product takes weights in a layout of its own, with zero points.
        """
        return MappingProxyType({"triton": _triton, "torch": _torch})

    def inputs(self, case: Case, device: str, seed: int) -> dict[str, torch.Tensor]:
        """Fresh random operands; outputs have a deviation near one whatever k."""
        import torch

        random = generator(device, seed)
        m, n, k = case["m"], case["n"], case["k"]
        unit = k**-0.5 / _DEVIATION
        return {
            "input": normal((m, k), "bf16", random),
            "weight": torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device=device, generator=random),
            "scales": uniform((k // GROUP, n), 0.5 * unit, 1.5 * unit, random).half(),
        }

    def outputs(self, case: Case, device: str) -> dict[str, torch.Tensor]:
        """The poisoned product."""
        return {"output": poisoned((case["m"], case["n"]), "bf16", device)}

    def reference(self, case: Case, inputs: Tensors) -> dict[str, torch.Tensor]:
        """The product in float64 with the weights that integers and scales stand for, unrounded."""
        import torch

        del case
        return {"output": inputs["input"].double() @ dequantised(inputs, torch.float64).T}

    def refusal(self, case: Case, way: str, device: str) -> str | None:
        """What Triton or the device lacks for the case."""
        if case.dtype not in self.dtypes:
            return f"there is no {case.dtype} product here"
        if case["k"] % GROUP:
            return f"k must be a multiple of {GROUP}"
        reason = super().refusal(case, way, device) or format_refusal("bf16", device)
        return reason or (triton_refusal(device) if way == "triton" else None)


def dequantised(inputs: Tensors, dtype: torch.dtype) -> torch.Tensor:
    """The weights (n, k) as numbers of a floating-point type, computed in it."""
    import torch

    packed, scales = inputs["weight"], inputs["scales"]
    groups = packed.view(packed.shape[0], -1, GROUP // 2)
    numbers = torch.cat([groups & 15, groups >> 4], dim=-1).to(dtype) - 8
    return (numbers * scales.T.to(dtype)[:, :, None]).view(packed.shape[0], -1)


def _triton(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    from roofline.validate.kernels.programs.weight_only import multiply

    del case
    multiply(inputs["input"], inputs["weight"], inputs["scales"], outputs["output"])


def _torch(case: Case, inputs: Tensors, outputs: Tensors) -> None:
    import torch

    del case
    output = outputs["output"]
    torch.matmul(inputs["input"], dequantised(inputs, output.dtype).T, out=output)


WEIGHT_ONLY = WeightOnly()
"""Products with 4-bit weights."""
