"""Compile the kernels of a plan on all cores, for a GPU that need not be there.

Triton keeps binaries on disk, by their source, constants and target: what is compiled here is not compiled again when
kernels are measured. On sixteen cores this takes a tenth of the time that the first launches would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct

from roofline.validate.gpu.pool import Answer, each
from roofline.validate.gpu.shapes import Point
from roofline.validate.kernels.registry import benchmarks


class Target(Struct, frozen=True):
    """An NVIDIA GPU to compile for: its compute capability times ten, and its streaming multiprocessors."""

    capability: int
    multiprocessors: int


def compiled(point: Point, target: Target) -> list[Any]:
    """Triton's compiled kernels, of which a launch of the point may need each; the process must not have run one."""
    from roofline.validate.kernels.triton_kernels.launch import compiled_only

    case, backend = point
    benchmark = benchmarks()[case.op]
    with compiled_only(target.capability, target.multiprocessors) as found:
        benchmark.backends[backend](case, benchmark.inputs(case, "meta", 0), benchmark.outputs(case, "meta"))
        return found


def compile_points(
    points: Sequence[Point],
    target: Target,
    workers: int,
    done: Callable[[Answer], None],
    seconds: float = float("inf"),
) -> int:
    """Compile the Triton kernels of the points in `workers` processes; `done` is called with each answer.

    Returns how many points were left when the `seconds` were over.
    """
    own = [point for point in points if point[1].startswith("triton")]
    return each(lambda point: len(compiled(point, target)), own, workers, done, seconds)
