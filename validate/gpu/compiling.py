"""Compile the kernels of a plan on all cores, for a GPU that need not be there.

Triton keeps binaries on disk, by their source, constants and target: what is compiled here is not compiled again when
kernels are measured. On sixteen cores this takes a tenth of the time that the first launches would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from roofline.validate.gpu.correctness import benchmark_of
from roofline.validate.gpu.pool import Answer, each
from roofline.validate.gpu.shapes import Point

if TYPE_CHECKING:
    from roofline.validate.kernels.triton_kernels.launch import Binary


class Target(Struct, frozen=True):
    """An NVIDIA GPU to compile for: its compute capability times ten, and its streaming multiprocessors."""

    capability: int = 90
    multiprocessors: int = 132


H100 = Target()


def compiled(point: Point, target: Target, listed: bool = False) -> list[Binary]:
    """Compile every binary that a launch of the point may need; the process must not have run a kernel.

    With `listed` the binaries are returned, else none: disassembling them takes as long again.
    """
    from roofline.validate.kernels.triton_kernels.launch import compiled_only

    case, backend = point
    benchmark = benchmark_of(point)
    with compiled_only(target.capability, target.multiprocessors) as found:
        benchmark.backends[backend](case, benchmark.inputs(case, "meta", 0), benchmark.outputs(case, "meta"))
        return found() if listed else []


def compile_points(
    points: Sequence[Point],
    target: Target,
    workers: int,
    done: Callable[[Answer], None],
    seconds: float = float("inf"),
    listed: bool = False,
) -> int:
    """Compile the Triton kernels of the points in `workers` processes; `done` is called with each answer.

    Returns how many points were left when the `seconds` were over.
    """
    own = [point for point in points if point[1].startswith("triton")]
    return each(lambda point: compiled(point, target, listed), own, workers, done, seconds)
