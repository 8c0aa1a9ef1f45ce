"""Time of llama.cpp's GEMMs on CPUs: rows of block-scaled integers or 16-bit floats, multiplied on the vector units.

    units       T_S = 2 n k (g (1 / (e_1 P_1) - 1 / (e P)) + m' / (e P))   a multiply-add is two FLOP
    memory      T_M = (B + A + C) / (e_B bandwidth)
    time        t = barrier S + T_S + T_M                                  S threads wait for each other
    interleaved t = barrier S + max(T_S, T_M)

e_1 is `row_efficiency`, e `compute_efficiency`, e_B `memory_efficiency`, S the number of threads, one for each core.
Both peaks, P_1 of the first row and P of the further ones, are the CPU's FP32 vector peak, for integers, too: the
kernels of most formats spend their time on unpacking and scaling blocks, not on the integer products. Kernels with the
widest vectors of the CPU (`wide`) follow its vector peak for INT8, or four times that for FP32 where it is not known:
PyTorch's FP32 GEMM, which measures a peak, leaves half of AVX-512 unused on some CPUs. In F16 they are those of all
rows (`wide: 2`). e_1 is the efficiency of the first row, for which weights are unpacked, e that of the further ones;
both may exceed 1. g is the number of rows that unpack the weights: the first. m' are the m rows in whole tiles
(`tile`), but for a single row, which has a kernel of its own: Q8_0 multiplies four rows at a time, so that two to four
take about the same. Weights are not fetched while others are multiplied: prefill of 32 tokens takes the time of 32 rows
and that of reading the weights.

Q4_0 is interleaved as it is loaded (`interleaved`; ggml-cpu/arch/x86/repack.cpp): its rows are read in order, so that
the CPU fetches them while it multiplies. Rows are multiplied in tiles of 16, what is left in tiles of four, and what is
left then one by one; each of these unpacks the weights, and g counts them. The kernel of tiles has AVX-512
instructions, that of a single row has 256-bit ones alone (`wide: 1`). So that more rows never take less time, a rest
takes at most what a whole tile does.

x86 CPUs without integer dot products (VNNI: Zen 3 and older, Intel before Ice Lake) multiply the bytes of Q8_0 and Q4_0
in two instructions and have half the rates; they are the family `avx2`, with constants of its own. Other formats have
kernels without VNNI on all x86 CPUs.

e_B is 1 for a bandwidth that was measured on the machine by streaming: the constants are those of datasheets. Layers of
one mixture of formats have the constants of the most frequent one. The barrier includes those of the small operators
around a GEMM; with 56 threads they are a large part of a decode step. With more than S_0 threads
(`UNCROWDED_THREADS`) they get in each other's way: e is divided by 1 + (S - S_0) / `CROWDING_THREADS`.
"""

from __future__ import annotations

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import units
from roofline.timing.kernels.formats import Numbers
from roofline.timing.kernels.model import Array, Parameters, Term, Terms

UNCROWDED_THREADS, CROWDING_THREADS = 32.0, 65.0
"""Threads up to which rows take the time of a thread's arithmetic (a Threadripper's 32 do), and further ones that
double it: all read the inputs of the other rows. Llama 3.1 70B in Q8_0 on the 128 cores of a Xeon 6980P takes 20.3 s
for 1,024 tokens (LMSYS on Xeon, 2025-07), 2.5 times as long as at the rates of a Ryzen 9's cores: a single figure."""

PREFIX = "ggml_"
"""Of the formats of these kernels; the rest is the format of the weights."""

PARAMETERS = (
    Parameter("barrier", Unit.SECONDS, 0.01e-6, 10e-6, 0.5e-6, "barriers of a GEMM and of what is around it, a thread"),
    Parameter("compute_efficiency", Unit.RATIO, 0.01, 10.0, 0.8, "further rows: FLOP/s over the vector peak"),
    Parameter("row_efficiency", Unit.RATIO, 0.01, 10.0, 0.5, "the first row: FLOP/s over the vector peak"),
    Parameter("interleaved", Unit.CHOICE, 0, 1, 0, "weights are interleaved: tiles of 16 and 4 rows; overlap", start=1),
    Parameter("memory_efficiency", Unit.RATIO, 0.3, 1.0, 0.9, "achievable fraction of a datasheet's memory bandwidth"),
    Parameter("tile", Unit.CHOICE, 1, 16, 1, "rows that are multiplied at a time", start=1),
    Parameter("wide", Unit.CHOICE, 0, 2, 0, "rows at the INT8 vector peak: 1 the further ones, 2 all", start=1),
)


def terms(m: Array, n: Array, k: Array, form: Numbers, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of GEMMs of m rows (the module's formula); interleaved weights are fetched while others multiply."""
    peak = hardware.vector_peak or np.inf
    widest, wide = hardware.vector.get("int8", 4.0 * peak), parameters.get("wide", 0)
    first = parameters["row_efficiency"] * (widest if wide >= 2 else peak)
    further = parameters["compute_efficiency"] * (widest if wide >= 1 else peak)
    further /= 1.0 + max(units(hardware) - UNCROWDED_THREADS, 0.0) / CROWDING_THREADS
    reached = 1.0 if hardware.bandwidth_is_achieved else parameters["memory_efficiency"]
    memory = Term(
        "memory",
        "(B + A + C) / (memory_efficiency bandwidth)",
        form.bytes * n * k + form.input_bytes * m * k + 4.0 * m * n,
        reached * hardware.memory_bandwidth,
    )
    row = 1.0 / further
    unpack = 1.0 / first - row
    barriers = Term("barriers", "barrier x threads", parameters["barrier"] * units(hardware))
    if parameters.get("interleaved", 0):
        tiled = Term("units", "tiles of 16 and 4 rows", 2.0 * n * k * _tiles(m, max(unpack, 0.0), row))
        return Terms((barriers,), tiled, memory, np.inf)
    tile = parameters.get("tile", 1)
    rows = np.where(m > 1, np.ceil(m / tile - 1e-9) * tile, m)
    on_units = Term("units", "2 n k (1 / (e_1 P_1) - 1 / (e P) + m' / (e P))", 2.0 * n * k * (unpack + rows * row))
    return Terms((barriers, on_units, memory))


def _tiles(m: Array, unpack: float, row: float) -> Array:
    """The time of m rows in tiles of 16, of four, and of one, each of which unpacks the weights."""
    four, whole = unpack + 4.0 * row, unpack + 16.0 * row
    single = np.minimum(np.ceil(m % 4.0 - 1e-9) * unpack + m % 4.0 * row, four)
    return np.floor(m / 16.0) * whole + np.minimum(np.floor(m % 16.0 / 4.0) * four + single, whole)
