"""Correctness of the kernels against float64: the cases of the tests, and how far each format may be off.

Shapes (cases.yaml) fit no tile, so that every mask is used. Outputs are poisoned, so that an element that is not
written shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from roofline.core.documents import bundled
from roofline.validate.gpu.shapes import Point
from roofline.validate.kernels.benchmark import benchmarks
from roofline.validate.kernels.work import Case, attention_case, experts_case, gemm_case, rows_case

if TYPE_CHECKING:
    from collections.abc import Iterator

TOLERANCES: Mapping[str, float] = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 1e-2, "fp8": 1e-2, "int8": 3e-3, "int4_wo": 3e-3}
"""The norm of the error over that of the result, by format; int8 and 4-bit sums are exact, their outputs rounded."""


ATTENTION = ("attention_prefill", "attention_decode")
GEMM_FORMATS = ("bf16", "fp16", "fp32", "int8", "fp8")
ROW_OPS = ("norm", "softmax", "activation", "rope", "copy")
ROW_FORMATS = ("fp32", "fp16", "bf16")

_CASES = bundled("validate/gpu/cases.yaml")
_LARGE = _CASES["large"]

PREFILLS, DECODES = ({name: attention_case(op, **sizes) for name, sizes in _CASES[op].items()} for op in ATTENTION)
EXPERTS = tuple(experts_case(**sizes) for sizes in _CASES["moe"])
ROW_SHAPES: list[list[int]] = _CASES["rows"]

LARGE: tuple[Case, ...] = (
    *(gemm_case(*shape) for shape in _LARGE["gemm"]),
    *(attention_case(op, "bf16", **sizes) for op in ATTENTION for sizes in _LARGE[op]),
    *(experts_case(**sizes) for sizes in _LARGE["moe"]),
    *(rows_case(op, "bf16", *shape) for op in ROW_OPS for shape in _LARGE["rows"]),
)
"""Sizes at which a GPU runs every tile that tuning may choose; too large for the interpreter."""


def points(large: bool = True) -> list[Point]:
    """Every case with Triton's backend and with PyTorch's, of which some refuse some cases."""
    gemms = [gemm_case(dtype, *shape) for shape in _CASES["gemm"] for dtype in GEMM_FORMATS]
    weights = [gemm_case("int4_wo", *shape) for shape in _CASES["weight_only"]]
    rows = [rows_case(op, dtype, *shape) for op in ROW_OPS for dtype in ROW_FORMATS for shape in ROW_SHAPES]
    cases = [*gemms, *weights, *PREFILLS.values(), *DECODES.values(), *EXPERTS, *rows]
    first = [*(LARGE if large else ()), *cases]
    return [
        *((case, "triton") for case in first),
        *((case, "torch") for case in cases if case.op != "moe" and case.op not in ROW_OPS),
    ]


class Verdict(Struct, frozen=True):
    """Whether a backend computed a case: its relative error, how large it may be, and why it was refused."""

    error: float = 0.0
    allowed: float = 0.0
    refused: str = ""

    @property
    def correct(self) -> bool:
        """Within the tolerance; NaN, which is what nobody wrote, is not."""
        return not self.refused and self.error <= self.allowed


def verdict(point: Point, device: str, seed: int = 1) -> Verdict:
    """Run a case and compare all that it leaves with float64; inputs must be left as they were."""
    case, backend = point
    benchmark = benchmarks()[case.op]
    refused = benchmark.refusal(case, backend, device)
    if refused is not None:
        return Verdict(refused=refused)
    inputs, outputs = benchmark.inputs(case, device, seed), benchmark.outputs(case, device)
    before = {name: tensor.clone() for name, tensor in inputs.items()}
    with poisoned_allocations(device, backend):
        benchmark.backends[backend](case, inputs, outputs)
    if not all(_same(tensor, before[name]) for name, tensor in inputs.items()):
        return Verdict(float("inf"), TOLERANCES[case.dtype])
    expected = benchmark.reference(case, inputs)
    # PyTorch rounds 4-bit weights to bf16 before it multiplies.
    loose = case.dtype == "int4_wo" and backend == "torch"
    allowed = TOLERANCES["bf16" if loose else case.dtype]
    return Verdict(max(relative_error(outputs[name], expected[name]) for name in expected), allowed)


def relative_error(result: Any, exact: Any) -> float:
    """The norm of the error over that of the exact result; infinite if a shape differs."""
    if result.shape != exact.shape:
        return float("inf")
    return float((result.double() - exact).norm() / exact.norm().clamp_min(1e-300))


@contextmanager
def poisoned_allocations(device: str, backend: str) -> Iterator[None]:
    """Memory that a kernel allocates in the interpreter holds NaN until it is written, as PyTorch can make it."""
    import torch

    torch.use_deterministic_algorithms(device == "cpu" and backend.startswith("triton"))
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


def _same(tensor: Any, other: Any) -> bool:
    """Whether two tensors have the same bytes: fp8 has no comparison, and NaN is not equal to itself."""
    import torch

    return bool(torch.equal(tensor.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)))
