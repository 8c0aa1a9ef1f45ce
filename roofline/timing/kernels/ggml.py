"""Time of llama.cpp's GEMMs on CPUs: rows of block-scaled integers or 16-bit floats, multiplied on the vector units.

    units       T_S = 2 n k (1 / (e_1 P_1) + (m' - 1) / (e P))    a multiply-add is two FLOP
    memory      T_M = (B + A + C) / (e_B bandwidth)
    time        t = barrier S + T_S + T_M                         S threads wait for each other

Both peaks are the CPU's FP32 vector peak, for integers, too: the kernels of most formats spend their time on unpacking
and scaling blocks, not on the integer products. Kernels with the widest vectors of the CPU (`wide`) follow its vector
peak for INT8, or four times that for FP32 where it is not known: PyTorch's FP32 GEMM, which measures a peak, leaves
half of AVX-512 unused on some CPUs. In F16 they are those of all rows (`wide: 2`). Q4_0 is interleaved as it is loaded;
its kernel of several rows has AVX-512 instructions, that of a single row has 256-bit ones alone (`wide: 1`;
ggml-cpu/arch/x86/repack.cpp): one thread of a Zen 4 and of a Zen 5 EPYC, whose INT8 peaks differ by a factor of 2.4,
take 1.65 and 1.8 FLOP of a single row per FLOP of the FP32 peak. e_1 is the efficiency of the first row, for which
weights are unpacked, e that of the further ones; both may exceed 1. m' are the m rows in whole tiles (`tile`), but for
a single row, which has a kernel of its own: Q8_0 and Q4_0 multiply four rows at a time, so that two to four take about
the same (Qwen2.5-0.5B in Q8_0 on a Zen 4 EPYC: 31 ms for one row, 57, 66, 69 ms for two, three, four, 87 ms for five).
e_B is 1 for a bandwidth that was measured on the machine by streaming: the constants are those of datasheets. Weights
are not fetched while others are multiplied: prefill of 32 tokens takes the time of 32 rows and that of reading the
weights. Layers of one mixture of formats have the constants of the most frequent one. The barrier includes those of the
small operators around a GEMM; with 56 threads they are a large part of a decode step.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import Array, Columns, aligned, column, storage, units

PREFIX = "ggml_"
"""Of the formats of these kernels; the rest is the format of the weights."""

PARAMETERS = (
    Parameter("barrier", Unit.SECONDS, 0.01e-6, 10e-6, 0.5e-6, "barriers of a GEMM and of what is around it, a thread"),
    Parameter("compute_efficiency", Unit.RATIO, 0.01, 10.0, 0.8, "further rows: FLOP/s over the vector peak"),
    Parameter("row_efficiency", Unit.RATIO, 0.01, 10.0, 0.5, "the first row: FLOP/s over the vector peak"),
    Parameter("memory_efficiency", Unit.RATIO, 0.3, 1.0, 0.9, "achievable fraction of a datasheet's memory bandwidth"),
    Parameter("tile", Unit.CHOICE, 1, 16, 1, "rows that are multiplied at a time", start=1),
    Parameter("wide", Unit.CHOICE, 0, 2, 0, "rows at the INT8 vector peak: 1 the further ones, 2 all", start=1),
)


def gemm_time(columns: Columns, hardware: Hardware, parameters: Mapping[str, float]) -> Array:
    """Seconds for columns `dtype, m, n, k` (the module's formula) and the optional ones of `storage`."""
    form = storage(columns)
    m, n, k = aligned(*(column(columns, name) for name in ("m", "n", "k")))
    peak = hardware.vector_peak or np.inf
    widest, wide = hardware.vector.get("int8", 4.0 * peak), parameters.get("wide", 0)
    first = parameters["row_efficiency"] * (widest if wide >= 2 else peak)
    further = parameters["compute_efficiency"] * (widest if wide >= 1 else peak)
    tile = parameters.get("tile", 1)
    rows = np.where(m > 1, np.ceil(m / tile - 1e-9) * tile, m)
    on_units = 2.0 * n * k * (1.0 / first + (rows - 1.0) / further)
    traffic = form.bytes * n * k + form.input_bytes * m * k + 4.0 * m * n
    reached = 1.0 if hardware.bandwidth_is_achieved else parameters["memory_efficiency"]
    return parameters["barrier"] * units(hardware) + on_units + traffic / (reached * hardware.memory_bandwidth)
