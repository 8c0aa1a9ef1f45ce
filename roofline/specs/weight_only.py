"""Weight-only GEMM kernels: low-bit weights, converted to the 16-bit format of the activations within the kernel.

A kernel reads packed weights. Each thread block converts its tile of the weights again, on the vector units, before
the matrix units multiply it; part of that does not overlap. Kernels differ in the height of their tiles (how many rows
share a conversion), in that part, in the bandwidth that they reach, and in what they run for few and for many rows
(`roofline.timing.kernels.gemm` has the formula). A profile of an engine names the kernel of each format.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from roofline.specs.records import bundled_record


class WeightOnlyKernel(Struct, frozen=True):
    """Constants of a weight-only kernel, relative to the 16-bit GEMM of the same hardware.

    `conversion`: instructions of the integer units to convert a weight of a tile, those that do not overlap with the
    matrix units. `multiply_adds`: the most FMAs a clock and multiprocessor that its matrix instructions reach (0: all).
    `memory`: achieved bandwidth over that of the 16-bit GEMM. `few_rows`, `tile_rows`: rows of the lowest and of the
    highest tile. `vector_rows`: GEMMs of up to this many rows are multiplied on the vector units where that is faster.
    `library_rows`: those of this many and more, and of fewer where that is faster, are converted in memory, by a kernel
    of its own, and multiplied by the library's 16-bit GEMM (0: none). `launch`: seconds on top of that GEMM's launch.
    `sharpness`: exponent of the smooth maximum of units and memory (0: that of the 16-bit GEMM); kernels that copy
    asynchronously overlap both better. `lookup`: cycles of a multiprocessor to look a weight up in a codebook.
    `input_traffic`, `output_traffic`: bytes that kernels before and after the GEMM move per element of its inputs and
    outputs. `family`: the hardware that it runs on, with the kernel `otherwise` on the rest. `fitted`: the families of
    the hardware that the constants were fitted to; on others the logarithm of the interval is `widening` times as
    large. `launches`: of the host for one GEMM, without a CUDA graph. `source`: where the constants come from.
    """

    name: str
    source: str
    conversion: float
    multiply_adds: float = 0.0
    memory: float = 1.0
    tile_rows: int = 128
    few_rows: int = 16
    vector_rows: int = 0
    library_rows: int = 0
    launch: float = 0.0
    sharpness: float = 0.0
    lookup: float = 0.0
    input_traffic: float = 0.0
    output_traffic: float = 0.0
    family: str = ""
    otherwise: str = ""
    fitted: tuple[str, ...] = ()
    widening: float = 1.5
    launches: float = 1.0


class _Table(Struct, frozen=True):
    kernels: tuple[WeightOnlyKernel, ...]


WEIGHT_ONLY_KERNELS: Mapping[str, WeightOnlyKernel] = MappingProxyType(
    {kernel.name: kernel for kernel in bundled_record(_Table, "specs/weight_only.yaml").kernels}
)
"""The kernels by name."""

UNMEASURED = "unmeasured"
"""The kernel of formats for which a profile names none."""

METHODS = ("llm-int8",)
"""Formats that only their authors' kernel of the same name multiplies, whatever the engine."""


def kernel_of(format: str, kernels: Mapping[str, str], family: str = "") -> WeightOnlyKernel:
    """The kernel of the weight format `format` on hardware of a family.

    `kernels` are an engine's by format; that of `awq` is also for `awq-g64`.
    """
    named = {**{method: method for method in METHODS}, **kernels}
    keys = [key for key in named if format == key or format.startswith(f"{key}-")]
    chosen = WEIGHT_ONLY_KERNELS[named[max(keys, key=len)] if keys else UNMEASURED]
    return chosen if chosen.family in ("", family) else WEIGHT_ONLY_KERNELS[chosen.otherwise]
