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
    large. `source`: where the constants come from.
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


_KERNELS = (
    WeightOnlyKernel(
        "fpa-intb",
        "TensorRT-LLM's CUTLASS kernel for FP16 activations and integer weights; below 5 rows (SMALL_M_FAST_PATH of its"
        " weight-only plugins) the vector units multiply; fitted to LLaMA-2-7B on A100 (Zhou et al. 2024, Table 4)",
        conversion=1.75,
        memory=0.9,
        few_rows=64,
        vector_rows=4,
        fitted=("ampere",),
    ),
    WeightOnlyKernel(
        "unmeasured",
        "no kernel of this weight format was measured: constants typical of others, and a wide interval",
        conversion=2.75,
        memory=0.9,
        widening=2.0,
    ),
    WeightOnlyKernel(
        "llm-int8",
        "bitsandbytes' LLM.int8(): inputs are quantized by row and their outlier columns split off, sums of 32 bits are"
        " scaled and added; launches and traffic fitted to its layers of 768 to 12288 on A100, memory to BLOOM-176B, a"
        " token of which takes 1.15 to 1.23 times as long as in BF16 (Dettmers et al. 2022, Tables 5 and 4)",
        conversion=0.0,
        memory=0.56,
        tile_rows=256,
        few_rows=64,
        launch=230e-6,
        input_traffic=7.0,
        output_traffic=14.0,
        fitted=("ampere",),
        widening=2.0,
    ),
    WeightOnlyKernel(
        "turbomind",
        "LMDeploy's TurboMind; fitted to LLaMA-2-7B on A100 (Zhou et al. 2024, Table 4)",
        conversion=1.25,
        memory=0.9,
        fitted=("ampere",),
    ),
    WeightOnlyKernel(
        "marlin",
        "Marlin (Frantar et al. 2024), tiles of up to 64 rows; fitted to its benchmark on LLaMA-13B's layers on A100"
        " (vllm-project/vllm, pull request 2497), the launch to LLaMA-3.1-8B on H100 (pull requests 23197 and 26051);"
        " mma.sync reaches 63% of H100's peak (Luo et al. 2024), and within 12% B200's times follow (flashinfer-ai/"
        "flashinfer, pull request 4466)",
        conversion=2.75,
        multiply_adds=1280.0,
        memory=0.9,
        tile_rows=64,
        launch=3e-6,
        sharpness=4.0,
        fitted=("ampere", "hopper"),
    ),
    WeightOnlyKernel(
        "machete",
        "Machete, vLLM's kernel for Hopper (vllm-project/vllm, pull request 7701); Marlin's launch and bandwidth, and a"
        " conversion with which it decodes 64 sequences of Llama 3.1 70B on an H100 1.29 times as fast as Marlin (1.29"
        " and 1.32 times its throughput of inputs and outputs by its authors, Neural Magic, 2024-10)",
        conversion=1.75,
        memory=0.9,
        launch=3e-6,
        sharpness=4.0,
        family="hopper",
        otherwise="marlin",
        widening=2.5,
    ),
    WeightOnlyKernel(
        "awq",
        "the kernel of the AWQ authors, tiles of 16 rows (m16n128k32), and from 256 rows on FP16 weights in memory"
        " (vllm-project/vllm, pull request 2566); the conversion from 3,900 prompt tokens/s of LLaMA-2-7B on A100"
        " (casper-hansen/AutoAWQ, issue 276); Marlin's bandwidth",
        conversion=5.0,
        memory=0.9,
        tile_rows=16,
        library_rows=256,
    ),
    WeightOnlyKernel(
        "bitsandbytes",
        "bitsandbytes: a kernel of its own for one row, else 16-bit weights in memory and the library's GEMM (its"
        " matmul_4bit); not fitted: the conversion of AWQ's kernel",
        conversion=5.0,
        memory=0.9,
        library_rows=2,
        widening=2.0,
    ),
    WeightOnlyKernel(
        "aqlm",
        "AQLM's kernels for one codebook of 16 bits, which is looked up in the L2 cache; fitted to LLaMA-2-7B on"
        " RTX 3090 Ti, 75 tokens/s (Vahe1994/AQLM, issue 133)",
        conversion=0.5,
        library_rows=7,  # vLLM's threshold between its kernel and a converting one
        lookup=0.264,
    ),
)

WEIGHT_ONLY_KERNELS: Mapping[str, WeightOnlyKernel] = MappingProxyType({kernel.name: kernel for kernel in _KERNELS})
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
