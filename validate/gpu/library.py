"""Which kernel the vendor's library runs for a GEMM: its name (tile, stages, cluster, split of k), grid and time.

What cuBLAS chooses by is published nowhere. PyTorch's profiler sees the names, and a shape costs a few launches:
thousands of shapes take seconds. Operands lie in a buffer larger than the L2 cache, and each launch reads another part.
"""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import Struct

from roofline.core.inputs import read_bytes
from roofline.validate.kernels.benchmark import torch_dtype
from roofline.validate.tables.text import MAX_BYTES

COLUMNS = (
    *("hardware", "dtype", "m", "n", "k", "kernel", "kernels", "grid", "block", "registers", "shared_bytes"),
    *("latency_us", "other_us", "software"),
)
"""A row for each GEMM: the kernel that takes longest, the number of kernels, the time of it and of the others."""

BATCH = 200
"""GEMMs under one profile."""

MARKER = "spin_kernel"
"""PyTorch's kernel that waits: one between two GEMMs tells whose the kernels between two of them are."""

FORMATS = ("bf16", "fp8_tensor", "fp8", "fp16")
"""Formats that the library is asked about: `fp8` has a scale for each row and column, `fp8_tensor` one a matrix."""

POOL = 3 << 30
"""Bytes of operands to rotate through."""

OUTPUTS = 1 << 28
"""Elements of the outputs to rotate through: more than an L2 cache holds."""

Shape = tuple[int, int, int]


class Operands(Struct):
    """Parts of a large random buffer, of which each call returns the next."""

    buffer: Any
    position: int = 0

    def next(self, rows: int, columns: int) -> Any:
        """A matrix (rows, columns) that begins at a multiple of 256 elements."""
        count = rows * columns
        if self.position + count > self.buffer.numel():
            self.position = 0
        found = self.buffer[self.position : self.position + count].view(rows, columns)
        self.position += -(-count // 256) * 256
        return found


def library_kernels(
    torch: Any, dtype: str, shapes: Sequence[Shape], left: Callable[[], float]
) -> Iterator[dict[str, object]]:
    """A row of each GEMM in `dtype`, one of `FORMATS`, until no seconds are `left`."""
    operands = _operands(torch, dtype.partition("_")[0])
    for start in range(0, len(shapes), BATCH):
        if left() <= 0:
            return
        chosen = [shape for shape in shapes[start : start + BATCH] if _fits(shape, operands, dtype)]
        calls = _calls(torch, dtype, chosen, operands)
        for call in calls:
            call()  # the library chooses and loads its kernels
        torch.cuda.synchronize()
        try:
            found = profiled(torch, calls)
        except ValueError:  # the profiler lost events: the next batch has its own
            continue
        for shape, kernels in zip(chosen, found, strict=True):
            if kernels:
                yield _row(dtype, shape, kernels)


def _operands(torch: Any, dtype: str) -> Operands:
    """The buffer, of normal numbers: a part of it is drawn, and repeated."""
    element = torch.empty((), dtype=torch_dtype(dtype)).element_size()
    block = torch.randn(1 << 24, device="cuda").to(torch_dtype(dtype))
    free, _ = torch.cuda.mem_get_info(0)
    return Operands(block.repeat(max(1, int(min(POOL, 0.4 * free)) // element // (1 << 24))))


def _fits(shape: Shape, operands: Operands, dtype: str) -> bool:
    """Whether the operands fit in the buffer, and PyTorch multiplies such sizes in the format."""
    m, n, k = shape
    return max(m, n) * k <= operands.buffer.numel() // 2 and (not dtype.startswith("fp8") or not (n % 16 or k % 16))


def _calls(torch: Any, dtype: str, shapes: Sequence[Shape], operands: Operands) -> list[Callable[[], object]]:
    """A GEMM of each shape. All write parts of one buffer: outputs of their own are more than a GPU of 80 GB holds."""
    quantized = dtype.startswith("fp8")
    largest = max([OUTPUTS, *(m * n for m, n, _ in shapes)])
    kind = torch.bfloat16 if quantized else torch_dtype(dtype)
    outputs = Operands(torch.empty(largest, dtype=kind, device="cuda"))

    def call(m: int, n: int, k: int) -> None:
        source, weight, output = operands.next(m, k), operands.next(n, k).T, outputs.next(m, n)
        if quantized:
            apart = ((), ()) if dtype == "fp8_tensor" else ((m, 1), (1, n))
            rows, columns = (ones[: math.prod(scale)].view(scale) for scale in apart)
            scales = {"scale_a": rows, "scale_b": columns, "out_dtype": torch.bfloat16}
            torch._scaled_mm(source, weight, **scales, use_fast_accum=True, out=output)
        else:
            torch.matmul(source, weight, out=output)

    ones = torch.ones(max([1, *(max(m, n) for m, n, _ in shapes)]), device="cuda")
    return [partial(call, *shape) for shape in shapes]


def profiled(torch: Any, calls: Sequence[Callable[[], object]]) -> list[list[Mapping[str, Any]]]:
    """The kernels of each call, in order, as events of a trace."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for call in calls:
            torch.cuda._sleep(100)
            call()
        torch.cuda._sleep(100)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.export_chrome_trace(str(path))
        return by_call(json.loads(read_bytes(path, MAX_BYTES))["traceEvents"], len(calls))


def by_call(events: Sequence[Mapping[str, Any]], calls: int) -> list[list[Mapping[str, Any]]]:
    """The kernels between markers. Raises ValueError where markers are missing, so that nothing is misattributed."""
    kernels = sorted((event for event in events if event.get("cat") == "kernel"), key=lambda event: float(event["ts"]))
    groups: list[list[Mapping[str, Any]]] = []
    for event in kernels:
        if MARKER in event["name"]:
            groups.append([])
        elif groups:
            groups[-1].append(event)
    if len(groups) != calls + 1:
        raise ValueError(f"the profiler saw {len(groups)} of {calls + 1} markers")
    return groups[:-1]


def _row(dtype: str, shape: Shape, kernels: Sequence[Mapping[str, Any]]) -> dict[str, object]:
    longest = max(kernels, key=lambda event: float(event["dur"]))
    facts = longest.get("args", {})
    spent = sum(float(event["dur"]) for event in kernels)
    m, n, k = shape
    return {
        "dtype": dtype,
        "m": m,
        "n": n,
        "k": k,
        "kernel": str(longest["name"])[:160],
        "kernels": len(kernels),
        "grid": "x".join(map(str, facts.get("grid", ()))),
        "block": "x".join(map(str, facts.get("block", ()))),
        "registers": facts.get("registers per thread", ""),
        "shared_bytes": facts.get("shared memory", ""),
        "latency_us": f"{float(longest['dur']):.4g}",
        "other_us": f"{spent - float(longest['dur']):.4g}",
    }


_NVJET = re.compile(
    r"nvjet_\w+?_(\d+)x(\d+)_(\d+)x(\d+)_(\d+)x(\d+)_[vh]_bz(?:_coop[AB])?(_splitK)?(?:_ovscale)?_TN([NT])$"
)


class Choice(Struct, frozen=True):
    """What the name of a cuBLAS kernel for Hopper says of C[m, n] = A[m, k] W[n, k]^T.

    A tile has `rows` of m, `columns` of n and `depth` of k, `stages` of which are in shared memory. Tiles of a cluster,
    `cluster_rows` by `cluster_columns`, share loads. With `split` several programs add to a tile.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    cluster_rows: int
    cluster_columns: int
    split: bool

    def tiles(self, m: int, n: int) -> tuple[int, int]:
        """Rows and columns of tiles."""
        return -(-m // self.rows), -(-n // self.columns)


def choice(name: str) -> Choice | None:
    """The choice that a kernel's name spells out; None for kernels of other families (CUTLASS, GEMV).

    cuBLAS counts in column-major order: the first number of a tile runs along n, and along m in names that end in TNN.
    Both were read off grids of an H200, which have as many programs as there are tiles, or one a multiprocessor.
    """
    found = _NVJET.search(name)
    if found is None:
        return None
    first, second, depth, stages, wide, high = map(int, found.groups()[:6])
    if found[8] == "N":
        first, second, wide, high = second, first, high, wide
    return Choice(second, first, depth, stages, high, wide, found[7] is not None)
