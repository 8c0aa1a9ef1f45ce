"""Which kernel the vendor's library runs for a GEMM: its name (tile, stages, cluster, split of k), grid and time.

What cuBLAS chooses by is published nowhere. PyTorch's profiler sees the names, and a shape costs a few launches:
thousands of shapes take seconds. Operands lie in a buffer larger than the L2 cache, and each launch reads another part.

    python -m lab.library_kernels FOLDER    # beside the rows of `roofline validate gpu`, for `lab.publish`
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from lab.command import run_command
from roofline.core.inputs import read_bytes
from roofline.validate.gpu.summary import rows_in, table
from roofline.validate.kernels.benchmark import torch_dtype
from roofline.validate.measure.device import Cuda, open_device
from roofline.validate.measure.machine import examine
from roofline.validate.tables.rowfile import RowFile
from roofline.validate.tables.text import MAX_BYTES

KERNELS = "kernels.csv"
"""The file of a visit's folder that grows row by row."""

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


DRAWN = 1200
"""GEMMs of random sizes that the library is asked about, beside those of models: what a rule says of others."""


def asked() -> list[tuple[int, int, int]]:
    """Rows, outputs and inputs of the GEMMs whose kernel the vendor's library is asked for: some 2,600.

    Every power of two of rows and those between, against the widths of published models and their tensor-parallel
    parts: enough to see where the library changes its tile, its cluster and its split of k. And sizes between.
    """
    rows = sorted({m for power in range(15) for m in (1 << power, 3 << max(0, power - 1)) if m <= 16384} | {5, 17, 100})
    widths = ((4096, 4096), (6144, 4096), (28672, 4096), (4096, 14336), (14336, 4096), (1024, 4096), (128256, 4096),
              (8192, 8192), (10240, 8192), (1280, 8192), (7168, 8192), (8192, 1024), (8192, 28672), (8192, 3584),
              (57344, 8192), (2048, 2048), (1024, 2048), (2048, 1024), (512, 2048), (2048, 8192), (5120, 5120),
              (1536, 5120), (27648, 5120), (5120, 27648), (3072, 3072), (2112, 7168), (24576, 1536), (7168, 16384),
              (4608, 7168), (7168, 2304), (36864, 7168), (7168, 18432), (256, 7168), (2880, 4096), (5120, 2880),
              (768, 768), (3072, 768), (896, 896), (4864, 896), (896, 4864), (3584, 3584), (37888, 3584),
              (3584, 18944), (4097, 4096), (4096, 4098), (1000, 1000), (333, 3336))  # fmt: skip
    drawn = np.random.default_rng(DRAWN).uniform(size=(DRAWN, 3))
    low, high = np.array([1, 128, 128]), np.array([16384, 65536, 32768])
    between = [tuple(int(size) for size in row) for row in low * (high / low) ** drawn]
    multiples = [(m, -(-n // 64) * 64, -(-k // 64) * 64) for m, n, k in between if n * k < 1 << 28]
    grid = [(m, n, k) for n, k in widths for m in rows]
    return sorted({*grid, *multiples})


def choices(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """The section of a page on the kernels of a visit; none without rows."""
    if not rows:
        return []
    lines = []
    for dtype in sorted({row["dtype"] for row in rows}):
        own = [row for row in rows if row["dtype"] == dtype]
        split = [row for row in own if "splitk" in row["kernel"].lower() or int(row["kernels"]) > 1]
        lines.append((dtype, len(own), len({row["kernel"] for row in own}), len(split)))
    header = ("format", "GEMMs", "different kernels", "with k split or several kernels")
    return ["## What the library chose", "", *table(header, lines), *_rules(rows)]


ROWS_OF_GEMMS = (1, 9, 65, 129, 257, 1025, 4097)
"""The first number of rows of each group of GEMMs."""


def _rules(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """What holds of the tiles of 16-bit GEMMs, by rows: how tiles divide m, and how many programs run."""
    known = [(row, found) for row in rows if row["dtype"] == "bf16" and (found := choice(row["kernel"])) is not None]
    if not known:
        return []
    lines = []
    for low, high in zip(ROWS_OF_GEMMS, (*ROWS_OF_GEMMS[1:], 1 << 31), strict=True):
        group = [(row, found) for row, found in known if low <= int(row["m"]) < high]
        if not group:
            continue
        facts = [_facts(row, found) for row, found in group]
        shares = (100 * statistics.mean(getattr(fact, name) for fact in facts) for name in Facts.__struct_fields__[:4])
        lines.append(
            (
                f"{low} to {high - 1}" if high < 1 << 31 else f"from {low}",
                len(group),
                *(f"{share:.0f}%" for share in shares),
                f"{statistics.median(fact.columns for fact in facts):.0f}",
            )
        )
    header = (
        *("rows m", "GEMMs", "tile rows = m / row tiles, to 8", "one row of tiles", "all tiles at once", "k split"),
        "median tile columns",
    )
    note = (
        "By the names of the bf16 kernels (cuBLAS's nvjet family): how often a tile is as high as m divided by the rows"
        " of tiles, rounded up to a multiple of 8; how often one row of tiles covers m; how often all tiles run at"
        " once, at most one a multiprocessor; how often k is split over programs."
    )
    asked = sum(row["dtype"] == "bf16" for row in rows)
    rest = f" The other {asked - len(known)} of {asked} kernels are of other families." if asked > len(known) else ""
    return [note + rest, "", *table(header, lines)]


class Facts(Struct, frozen=True):
    """Of a GEMM's kernel: whether its tiles divide m evenly, cover m in one row, all run at once, split k; columns."""

    even: bool
    single: bool
    at_once: bool
    split: bool
    columns: int


def _facts(row: Mapping[str, str], found: Choice) -> Facts:
    m, n = int(row["m"]), int(row["n"])
    high, wide = found.tiles(m, n)
    even = found.rows == 8 * math.ceil(math.ceil(m / high) / 8)
    programs = 1
    for part in row["grid"].split("x"):
        programs *= int(part)
    return Facts(even, high == 1, high * wide <= programs, found.split, found.columns)


def ask(folder: Path, seconds: float) -> str:
    """Ask the library on this GPU for at most so many seconds, into the folder of a visit; GEMMs there are kept."""
    device, count, end = open_device("cuda"), 0, time.monotonic() + seconds
    assert isinstance(device, Cuda)
    origin = {"hardware": examine(device).hardware.name, "software": device.software}
    done = {tuple(row[name] for name in ("dtype", "m", "n", "k")) for row in rows_in(folder / KERNELS)}
    with RowFile(folder / KERNELS, COLUMNS) as file:
        for dtype in FORMATS:
            wanted = [shape for shape in asked() if (dtype, *map(str, shape)) not in done]
            for row in library_kernels(device.torch, dtype, wanted, lambda: end - time.monotonic()):
                file.append({**row, **origin})
                count += 1
            device.release()
    return f"{count} GEMMs with the kernels that the library chose, {len(done)} already there\n"


def main() -> None:
    """Ask from the command line."""
    parser = argparse.ArgumentParser(description=ask.__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=40.0)
    raise SystemExit(run_command(parser, lambda given: ask(given.folder, given.seconds)))


if __name__ == "__main__":
    main()
