"""Correctness of the kernels against float64: the cases of the tests, and how far each format may be off.

Shapes fit no tile, so that every mask is used. Outputs are poisoned, so that an element that is not written shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from roofline.validate.gpu.shapes import Point
from roofline.validate.kernels.registry import benchmarks
from roofline.validate.kernels.work import Case, attention_case, experts_case, gemm_case, rows_case

if TYPE_CHECKING:
    from collections.abc import Iterator

TOLERANCES: Mapping[str, float] = {"fp32": 1e-5, "fp16": 1e-2, "bf16": 1e-2, "fp8": 1e-2, "int8": 3e-3, "int4_wo": 3e-3}
"""The norm of the error over that of the result, by format; int8 and 4-bit sums are exact, their outputs rounded."""


prefill_case, decode_case = (partial(attention_case, op) for op in ("attention_prefill", "attention_decode"))

PREFILLS: Mapping[str, Case] = {
    "one token": prefill_case(),
    "one query on a prefix": prefill_case("bf16", kv_len=70, heads=3),
    "no prefix, odd": prefill_case(q_len=45, kv_len=45, heads=2, kv_heads=2),
    "a prefix, three heads a group": prefill_case(
        "bf16", batch=2, q_len=19, kv_len=52, heads=6, kv_heads=2, head_dim=96
    ),
    "a prefix one short of a block": prefill_case(q_len=20, kv_len=34),
    "eight heads a group": prefill_case("bf16", q_len=33, kv_len=33, heads=8, head_dim=128),
    "the widest head": prefill_case(q_len=34, kv_len=39, head_dim=256),
    "a head that is no tile": prefill_case(q_len=17, kv_len=20, head_dim=40),
    "a window shorter than a block": prefill_case(q_len=60, kv_len=60, heads=2, window=5),
    "a window of one": prefill_case(q_len=18, kv_len=18, window=1),
    "a window of a block, with a prefix": prefill_case("bf16", q_len=40, kv_len=77, heads=3, kv_heads=1, window=16),
    "a window of several blocks": prefill_case(q_len=70, kv_len=130, window=67),
    "a window one short of blocks": prefill_case(q_len=97, kv_len=97, window=63),
    "a window longer than the keys": prefill_case(q_len=21, kv_len=37, window=500),
    "an fp8 cache": prefill_case(
        "bf16", batch=2, q_len=19, kv_len=52, heads=6, kv_heads=2, head_dim=96, kv_dtype="fp8"
    ),
    "an fp8 cache in a window": prefill_case(q_len=40, kv_len=77, heads=3, window=16, kv_dtype="fp8"),
    "an fp8 cache of whole blocks": prefill_case("bf16", q_len=32, kv_len=96, kv_dtype="fp8"),
}

DECODES: Mapping[str, Case] = {
    "one token": decode_case(),
    "three heads a group": decode_case("bf16", batch=3, kv_len=83, heads=6, kv_heads=2),
    "eight heads a group": decode_case("bf16", kv_len=129, heads=8, head_dim=128),
    "no groups, an odd width": decode_case(batch=2, kv_len=47, heads=2, kv_heads=2, head_dim=96),
    "the widest head": decode_case(kv_len=35, heads=2, head_dim=256),
    "a window inside a page": decode_case(batch=2, kv_len=61, heads=2, kv_heads=1, window=7),
    "a window over pages": decode_case("bf16", kv_len=100, heads=3, window=50),
    "a window longer than the keys": decode_case(kv_len=33, window=100),
    "a few queries": decode_case("bf16", batch=2, q_len=3, kv_len=40, heads=6, kv_heads=2),
    "a few queries in a window": decode_case(q_len=4, kv_len=66, heads=3, kv_heads=3, window=20),
    "more rows than a tile": decode_case(q_len=9, kv_len=30, heads=8, kv_heads=1),
    "an fp8 cache": decode_case("bf16", batch=3, kv_len=83, heads=6, kv_heads=2, head_dim=128, kv_dtype="fp8"),
    "an fp8 cache in a window": decode_case(batch=2, q_len=2, kv_len=61, heads=3, window=7, kv_dtype="fp8"),
    "an fp8 cache, split": decode_case("bf16", kv_len=700, heads=4, kv_heads=2, kv_dtype="fp8"),
}

GEMM_SHAPES = ((1, 1, 1), (17, 24, 48), (33, 48, 16), (70, 40, 96), (5, 33, 2100))
"""Rows, outputs and inputs of GEMMs; the last one is split along k."""

GEMM_FORMATS = ("bf16", "fp16", "fp32", "int8", "fp8")

WEIGHT_ONLY_SHAPES = ((1, 1, 128), (3, 70, 384), (33, 48, 256), (66, 17, 128))

EXPERTS: tuple[Case, ...] = (
    experts_case(1, 33, 17, 1, 1),
    experts_case(1, 16, 48, 3, 7, dtype="fp16"),
    experts_case(3, 64, 32, 4, 4),
    experts_case(9, 40, 50, 2, 5),
    experts_case(6, 24, 40, 2, 4, "balanced", dtype="fp16"),
    experts_case(40, 48, 66, 1, 2, tp=2),
    experts_case(7, 24, 32, 3, 8, ep=4),
    experts_case(33, 40, 24, 2, 4, "balanced", ep=2, tp=2),
    experts_case(1, 16, 16, 1, 16, ep=16),
)

ROW_SHAPES = ((1, 1), (1, 2), (5, 6), (3, 128), (7, 100), (2, 129), (3, 384), (9, 50), (2, 514))
"""Rows and columns. Interpreted, a block has 128 elements: the last rows are wider, and short ones go together."""

ROW_OPS = ("norm", "softmax", "activation", "rope", "copy")

ROW_FORMATS = ("fp32", "fp16", "bf16")

LARGE: tuple[Case, ...] = (
    *(gemm_case(dtype, *shape) for shape in ((300, 1100, 2052), (2, 4100, 4096)) for dtype in ("bf16", "fp8")),
    gemm_case("int4_wo", 100, 1000, 4096),
    gemm_case("int8", 600, 1000, 2048),
    *(prefill_case("bf16", batch=2, q_len=500, kv_len=2003, heads=16, kv_heads=4, head_dim=dim) for dim in (64, 128)),
    prefill_case("bf16", q_len=1000, kv_len=1000, heads=8, kv_heads=2, head_dim=256),
    prefill_case("bf16", q_len=1500, kv_len=1500, heads=8, kv_heads=8, head_dim=128, window=300),
    prefill_case("bf16", q_len=700, kv_len=1400, heads=8, kv_heads=2, head_dim=128, kv_dtype="fp8"),
    *(decode_case("bf16", batch=2, kv_len=8191, heads=16, kv_heads=4, head_dim=dim) for dim in (64, 128, 256)),
    decode_case("bf16", batch=3, q_len=4, kv_len=999, heads=16, kv_heads=4, head_dim=128, window=300),
    decode_case("bf16", batch=2, kv_len=5000, heads=32, kv_heads=4, head_dim=128, kv_dtype="fp8"),
    experts_case(300, 512, 768, 4, 16),
    experts_case(20, 2048, 768, 8, 128),
    *(rows_case(op, "bf16", *shape) for op in ROW_OPS for shape in ((300, 14336), (3, 40000), (10000, 128))),
)
"""Sizes at which a GPU runs every tile that tuning may choose; too large for the interpreter."""


def points(large: bool = True) -> list[Point]:
    """Every case with Triton's backend and with PyTorch's, of which some refuse some cases."""
    gemms = [gemm_case(dtype, *shape) for shape in GEMM_SHAPES for dtype in GEMM_FORMATS]
    weights = [gemm_case("int4_wo", *shape) for shape in WEIGHT_ONLY_SHAPES]
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
