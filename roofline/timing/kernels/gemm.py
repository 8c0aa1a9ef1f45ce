"""Time of a GEMM C[m,n] = A[m,k] B[k,n]: launch, tiles on multiprocessors, and memory traffic.

A kernel divides C into tiles of b_m x b_n, and may split k into s parts (split-K). With S multiprocessors (units):

    tiles          N  = ceil(m / b_m) ceil(n / b_n) s
    one tile       T1 = max(2 b_m b_n k' / (e_F peak / S),  (b_m + b_n) k' bytes / tile_bandwidth) + tile_prologue
    waves          w  = (1 - q) max(1, N / S) + q ceil(N / S)            q = 1: whole waves; q = 0: perfectly balanced
    split          T2 = [s > 1] (8 s m n / (3 bandwidth) + tile_prologue)                       partial sums in FP32
    units          T_S = min over (b_m, b_n, s) of w T1 + T2                              libraries pick a good tile
    memory         T_M = (passes B + A + C) / (e_B bandwidth)               passes = min(ceil(m / v), 1 + packing)
    throttling     T_S (1 + d T_S / (T_S + 500 us))                                  long GEMMs lower the clock
    kernel         x  = (T_S^p + T_M^p)^(1/p)              16-bit formats: p sqrt(1 + max(T_S, T_M) / overlap) for p
    time           t = launch + x  [+ row m + (2 + bytes) m k / (e_Q bandwidth)]      the activation-quantizing kernel
                       [+ padding]                       a benchmark's block-scaled rows, where m is no multiple of 4

k' is k / s rounded up to 64. Matrix units multiply whole tiles of b_m rows, but for a smaller m only as many rows as
take no longer than streaming the weights; hardware without matrix units multiplies m rows. CPU libraries multiply a few
rows as GEMVs, v rows for each pass over the weights, and more rows in blocks, for which they first pack the weights
(Goto and van de Geijn, 2008): that reads, writes and reads them again. On accelerators there is one pass. The tile
model is that of CUTLASS's documentation ("Efficient GEMM in CUDA") and of Stream-K (Osama et al., 2023); constants are
fitted (`roofline.validate.fit.constants`). A benchmark that replays its buffers keeps B in the L2 cache: the memory
term then counts the misses only. A convolution is an implicit GEMM, whose windows of A overlap: the memory term counts
each element of its input once.

Where `eager` is 1, a benchmark quantizes activations in PyTorch operators, one kernel each, where engines run one
kernel or compile them into one (vLLM before 0.15; vllm-project/vllm, pull request 32806):

    quantizing     kernels x 1.3 us + bytes m k / rate      rate = min(0.8 bandwidth, 12 S clock bytes), intermediates
                                                            in the L2 at 2.4 bandwidth; replaces row m + ...

A weight-only kernel (`roofline.specs.weight_only`) reads packed weights and converts each tile of them, in c seconds a
weight for all units, before the matrix units multiply it, at up to i FMAs a clock and unit where its instructions limit
it:

    conversion     c  = instructions / (64 S clock) + lookups / (S clock)              64 integer lanes a multiprocessor
    peak           min(e_F peak, 2 i S clock)
    one tile       2 b_m b_n k' / (e_F peak / S) becomes 2 b_m b_n k' / (e_F peak / S) + c S b_n k'    b_m up to a limit
    few rows       T_S = c n k + 2 m n k / vector peak                                 kernels without matrix units
    many rows      t = launch + max(c n k, (B + 2 n k) / (e_B bandwidth)) + the 16-bit GEMM's t    weights in memory
    kernels beside t += (in m k + out m n) / (e_B bandwidth)       LLM.int8() quantizes, splits, scales and adds up

So it gains where memory dominates, and loses where the units do: every b_m rows convert the weights again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.specs.weight_only import WEIGHT_ONLY_KERNELS, WeightOnlyKernel
from roofline.timing.kernels import ggml
from roofline.timing.kernels.common import (
    OVERLAP,
    Array,
    Columns,
    Mask,
    Numbers,
    aligned,
    benchmarked,
    ceil_div,
    column,
    host_parameter,
    is_bare,
    l2_bytes,
    numbers,
    overlapped,
    resident_share,
    rounds,
    smooth_maximum,
    some,
    storage,
    text,
    unit_clocks,
    units,
)

_CLASSIC = ((64, 64), (128, 64), (64, 128), (128, 128), (128, 256), (256, 128), (256, 256))
_WIDE = (*_CLASSIC, (192, 128), (128, 192), (192, 192), (320, 128))
_THIN = (*_CLASSIC, (16, 64), (16, 128), (16, 256), (32, 64), (32, 128), (32, 256))
_SPLITS = (1, 2, 3, 4, 6, 8, 16)
_BY_ROWS = {
    (16, 64): (0, 16),
    (16, 128): (0, 16),
    (32, 64): (16, 32),
    (32, 128): (16, 32),
    (64, 64): (32, 64),
    (64, 128): (32, 256),
    (128, 128): (64, np.inf),
    (256, 128): (256, np.inf),
}
"""Tiles with the m that each is for: above the first number, up to the second.

vLLM's CUTLASS kernels of FP8 for Ada (csrc/quantization, scaled_mm_c2x_sm89_fp8_dispatch.cuh), without its rules by n.
"""


class Dispatch(Struct, frozen=True):
    """The tiles (rows, columns) and splits of k that a library chooses among.

    `fixed_rows` is the least height of tiles where m > 64: fixed rules, as in CUTLASS's FP8 kernels. `batches`, where
    given, are the m of each tile: above the first number, up to the second.
    """

    name: str
    tiles: tuple[tuple[int, int], ...]
    splits: tuple[int, ...] = (1,)
    fixed_rows: int = 0
    batches: tuple[tuple[float, float], ...] = ()


DISPATCHES = (
    Dispatch("classic", _CLASSIC),
    Dispatch("classic, split k", _CLASSIC, _SPLITS),
    Dispatch("wide, split k", _WIDE, _SPLITS),
    Dispatch("thin", _THIN),
    Dispatch("fixed rows", _CLASSIC, fixed_rows=128),
    Dispatch("one tile", ((128, 128),)),
    Dispatch("by rows", tuple(_BY_ROWS), batches=tuple(_BY_ROWS.values())),
)
"""The values of the parameter `dispatch`; a fit tries each."""

NEVER = 1e30
"""Number of tiles that excludes a choice; finite, so that arithmetic on it stays defined."""

CHUNK = 2048
"""Rows evaluated at a time, so that the tile alternatives stay in the CPU's cache."""

REPLAYED_COPIES = {"nvfp4": 1.0}
"""Copies of the weights that the public benchmark cycles through; 6 for other formats."""

EAGER: Mapping[str, tuple[float, float]] = {"fp8": (5.0, 27.0), "fp8_block": (14.0, 37.0)}
"""Kernels, and bytes an element, of eager quantization (vLLM's QuantFP8.forward_native).

With one scale: its reciprocal; to FP32 (2 + 4 bytes), product (4 + 4), clamp (4 + 4), to FP8 (4 + 1). By blocks:
absolute values (2 + 2), maxima, quotient (2 + 4), clamp (4 + 4), to FP8 (4 + 1), and ten of small tensors; the maxima
take as long as 14 bytes (H100, vLLM 0.14; as do those of H200 and GB200, which were looked at afterwards).
"""

EAGER_LAUNCH, EAGER_MEMORY, EAGER_CLOCK, EAGER_L2 = 1.3e-6, 0.8, 12.0, 2.4
"""Seconds of a small elementwise kernel in a graph; fraction of the memory bandwidth that a large one reaches; bytes a
clock and multiprocessor; bandwidth in the L2 over the memory's (FP8 GEMMs of vLLM 0.14 on H100, H200, L40S)."""

BLOCK = 128.0
"""Elements with one scale of a row of block-scaled activations; rows of a single block need no other layout."""

INSTRUCTION_ROWS = 16.0
"""Least rows of a matrix-unit instruction."""

INTEGER_LANES = 64.0
"""Integer and logic instructions a clock and multiprocessor: 64 from Turing to B200, while FP32 lanes doubled.

CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions".
"""

NO_PACKING = 1e-3
"""Values of `packing` below this mean none (accelerators)."""

THROTTLING_TIME = 500e-6
"""Seconds that a GEMM runs before power limits lower the clock."""

_COMMON = (
    Parameter("launch", Unit.SECONDS, 0.3e-6, 30e-6, 4e-6, "launch, first loads and end of the kernel"),
    Parameter("compute_efficiency", Unit.RATIO, 0.1, 1.0, 0.85, "matrix unit's achievable fraction of its peak"),
    Parameter("memory_efficiency", Unit.RATIO, 0.3, 1.0, 0.85, "achievable fraction of memory bandwidth"),
    Parameter("tile_bandwidth", Unit.BANDWIDTH, 10e9, 1000e9, 200e9, "operands into one multiprocessor"),
    Parameter("tile_prologue", Unit.SECONDS, 0.01e-6, 12e-6, 1e-6, "filling the pipeline and writing one tile"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 2.5, "exponent of the smooth maximum of units and memory"),
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 0.3, "fraction of the kernel that runs in whole waves"),
    Parameter("l2_share", Unit.RATIO, 0.05, 2.0, 0.8, "fraction of the L2 that holds a benchmark's weights"),
    Parameter("throttling", Unit.RATIO, 0.001, 1.2, 0.001, "slowdown of long GEMMs by power limits", start=0.1),
    Parameter("dispatch", Unit.CHOICE, 0, 6, 1, "tiles and splits that the library chooses among"),
)
_QUANTIZING = (
    Parameter("odd_rows", Unit.RATIO, 0.001, 1.0, 0.1, "slowdown where m > 64 is no multiple of 8"),
    Parameter("quantize_row", Unit.SECONDS, 0.01e-9, 40e-9, 3e-9, "quantizing kernel: time a row of activations"),
    Parameter("quantize_efficiency", Unit.RATIO, 0.05, 1.0, 0.4, "quantizing kernel: fraction of bandwidth"),
)
_BLOCKS = (Parameter("padding", Unit.SECONDS, 1e-9, 30e-6, 1e-9, "kernels that pad m to a multiple of 4", start=1e-6),)
_HOST = (
    host_parameter(500e-6, 60e-6),
    Parameter("host_few_rows", Unit.RATIO, 0.3, 2.0, 1.0, "factor on it where m < 32", start=1.0, host=True),
    Parameter("host_padding", Unit.RATIO, 1e-3, 1.0, 1e-3, "increase where m % 4 > 0: padded scales", 0.1, host=True),
    Parameter(
        "host_gap",
        Unit.SECONDS,
        1e-9,
        200e-6,
        1e-9,
        "idle time between the kernels of one GEMM",
        start=10e-6,
        host=True,
    ),
)
"""Host time of benchmarks without CUDA graphs, which hides the time of short kernels; predictions do not use it."""

_PLAIN = (
    OVERLAP,
    Parameter("packing", Unit.RATIO, 1e-6, 8.0, 1e-6, "passes over weights that packing adds", start=1.0, kind="cpu"),
    Parameter("vector_rows", Unit.CHOICE, 1, 4, 1, "rows of one pass without packing", start=2, kind="cpu"),
)


def gemm_parameters(dtype: str) -> tuple[Parameter, ...]:
    """The parameters of GEMMs in the format `dtype`."""
    if dtype.startswith(ggml.PREFIX):
        return ggml.PARAMETERS
    if not numbers(dtype).quantizes:
        return (*_COMMON, *_PLAIN)
    return (*_COMMON, *_QUANTIZING, *(_BLOCKS if dtype == "fp8_block" else ()), *_HOST)


def gemm_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds: `max(2mnk / peak, (A + B + C) / bandwidth)`; `resident` rows have no memory term."""
    form = storage(columns)
    m, n, k = (column(columns, name) for name in ("m", "n", "k"))
    compute = 2.0 * m * n * k / hardware.matrix_peak(form.arithmetic)
    memory = (form.bytes * n * k + form.input_bytes * m * k + 2.0 * m * n) / hardware.memory_bandwidth
    return np.where(resident, compute, np.maximum(compute, memory))


def gemm_time(columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False) -> Array:
    """Seconds for columns `dtype, m, n, k` (the module's formula) and the optional ones of `storage`."""
    dtype, form = text(columns, "dtype"), storage(columns)
    if dtype.startswith(ggml.PREFIX):
        return ggml.gemm_time(columns, hardware, parameters)
    m, n, k = aligned(*(column(columns, name) for name in ("m", "n", "k")))
    shape = m.shape
    m, n, k = (np.atleast_1d(size).reshape(-1) for size in (m, n, k))
    warm = _flags(resident, shape)
    bare, chosen = is_bare(columns), weight_only_kernel(columns)
    eager = _flags("eager" in columns and column(columns, "eager") > 0, shape)
    parts = [
        _time(m[part], n[part], k[part], dtype, form, hardware, parameters, _of(warm, part), bare, _of(eager, part))
        if chosen is None
        else _weight_only_time(m[part], n[part], k[part], form, hardware, parameters, chosen)
        for part in (slice(start, start + CHUNK) for start in range(0, len(m), CHUNK))
    ]
    return np.concatenate(parts).reshape(shape) if parts else np.zeros(shape)


def _flags(mask: Mask, shape: tuple[int, ...]) -> Mask:
    """One flag a row in a flat array; False where no row has it."""
    return np.broadcast_to(mask, shape).reshape(-1) if some(mask) else False


def _of(mask: Mask, part: slice) -> Mask:
    return mask if isinstance(mask, bool) else mask[part]


def _time(
    m: Array,
    n: Array,
    k: Array,
    dtype: str,
    form: Numbers,
    hardware: Hardware,
    parameters: Mapping[str, float],
    resident: Mask,
    bare: bool,
    eager: Mask = False,
) -> Array:
    bandwidth = hardware.memory_bandwidth
    on_units = _throttled(_units_time(m, n, k, form, hardware, parameters, odd=resident), parameters)
    weights, activations = form.bytes * n * k, form.input_share * form.input_bytes * m * k + 2.0 * m * n
    missing = weights * weight_passes(m, parameters)
    if some(resident):
        footprint = REPLAYED_COPIES.get(dtype, 6.0) * weights + activations
        cache = parameters["l2_share"] * l2_bytes(hardware)
        missing = missing * (1.0 - resident * resident_share(footprint, cache, 8.0))
    over_memory = (missing + activations) / (parameters["memory_efficiency"] * bandwidth)
    kernel = overlapped(on_units, over_memory, parameters)
    if bare or not form.quantizes:
        return parameters["launch"] + kernel
    quantizing = parameters.get("quantize_row", 0.0) * m + (2.0 + form.input_bytes) * m * k / (
        parameters["quantize_efficiency"] * bandwidth
    )
    if some(eager):
        quantizing = np.where(eager, eager_quantization(m * k, dtype, hardware), quantizing)
    time: Array = parameters["launch"] + kernel + quantizing
    if not some(resident):
        return time
    time = time + parameters.get("padding", 0.0) * (resident & (m % 4 != 0) & (m > 1) & (k > BLOCK))
    gaps = np.where(resident, parameters.get("host_gap", 0.0), 0.0)
    return benchmarked(time + gaps, parameters, resident, _host_growth(m, parameters))


def eager_quantization(elements: Array, dtype: str, hardware: Hardware) -> Array:
    """Seconds to quantize activations of so many elements in PyTorch operators; see the module's formula."""
    kernels, bytes = EAGER[dtype]
    on_units, memory = EAGER_CLOCK * unit_clocks(hardware), hardware.memory_bandwidth
    inside = resident_share(8.0 * elements, l2_bytes(hardware), 8.0)  # two FP32 tensors at a time
    slow, fast = min(EAGER_MEMORY * memory, on_units), min(EAGER_L2 * memory, on_units)
    return np.asarray(kernels * EAGER_LAUNCH + bytes * elements * ((1.0 - inside) / slow + inside / fast))


def weight_only_kernel(columns: Columns) -> WeightOnlyKernel | None:
    """The kernel that the optional text column `weight_only` names."""
    return WEIGHT_ONLY_KERNELS[text(columns, "weight_only")] if "weight_only" in columns else None


def _weight_only_time(
    m: Array,
    n: Array,
    k: Array,
    form: Numbers,
    hardware: Hardware,
    parameters: Mapping[str, float],
    chosen: WeightOnlyKernel,
) -> Array:
    """Seconds of a weight-only kernel, which runs one of three ways by its rows (the module's formula)."""
    bandwidth, packed = parameters["memory_efficiency"] * hardware.memory_bandwidth, form.bytes * n * k
    over_memory = (packed / chosen.memory + 2.0 * m * (k + n)) / bandwidth
    converting = conversion_time(chosen, hardware) * n * k
    on_vectors = np.where(
        m <= chosen.vector_rows, converting + 2.0 * m * n * k / (hardware.vector_peak or np.inf), np.inf
    )
    on_units = np.minimum(on_vectors, _throttled(_units_time(m, n, k, form, hardware, parameters, chosen), parameters))
    kernel = (
        smooth_maximum(on_units, over_memory, chosen.sharpness)
        if chosen.sharpness
        else overlapped(on_units, over_memory, parameters)
    )
    beside = (chosen.input_traffic * k + chosen.output_traffic * n) * m / bandwidth
    launching = parameters["launch"] + chosen.launch
    time: Array = launching + beside + kernel
    if not chosen.library_rows:
        return time
    plain = replace(form, bytes=2.0, activation_bytes=None)
    library = _time(m, n, k, form.arithmetic, plain, hardware, parameters, False, bare=True)
    first = parameters["launch"] + np.maximum(converting, (packed + 2.0 * n * k) / bandwidth)
    return np.where(m < chosen.library_rows, np.minimum(time, first + library), first + library)


def _throttled(on_units: Array, parameters: Mapping[str, float]) -> Array:
    """Seconds on the multiprocessors at the clock that power limits leave to long GEMMs."""
    return on_units * (1.0 + parameters.get("throttling", 0.0) * on_units / (on_units + THROTTLING_TIME))


def conversion_time(chosen: WeightOnlyKernel, hardware: Hardware) -> float:
    """Seconds that all multiprocessors take to convert one weight each time; 0 for what no document gives."""
    clocks = unit_clocks(hardware)
    rate = INTEGER_LANES * clocks if hardware.kind == "gpu" else (hardware.vector_peak or np.inf) / 2.0
    return chosen.conversion / rate + chosen.lookup / clocks


def weight_passes(m: Array, parameters: Mapping[str, float]) -> Array | float:
    """Passes over the weights in memory, by m."""
    packing = parameters.get("packing", 0.0)
    if packing < NO_PACKING:
        return 1.0
    return np.minimum(ceil_div(m, parameters["vector_rows"]), 1.0 + packing)


def _host_growth(m: Array, parameters: Mapping[str, float]) -> Array:
    """The host time of separate launches over that of most m: the measured time of short GEMMs without CUDA graphs."""
    path = np.where(m < 32, parameters.get("host_few_rows", 1.0), 1.0)
    return np.asarray(path * (1.0 + parameters.get("host_padding", 0.0) * (m % 4 != 0)))


@lru_cache(maxsize=16)
def _weight_only_tiles(chosen: WeightOnlyKernel) -> Dispatch:
    """The tiles of a weight-only kernel: those of libraries from its lowest to its highest, with split k."""
    tiles = {tile for tile in (*_CLASSIC, *_THIN) if chosen.few_rows <= tile[0] <= chosen.tile_rows}
    return Dispatch(chosen.name, tuple(sorted(tiles)), _SPLITS)


def _padded(m: Array, form: Numbers, hardware: Hardware) -> Array:
    """Rows that are multiplied: `m` in whole instructions of the matrix unit, or the rows that memory time hides."""
    if form.arithmetic not in hardware.tensor:
        return m
    hidden = hardware.matrix_peak(form.arithmetic) * form.bytes / (2.0 * hardware.memory_bandwidth)
    return np.maximum(INSTRUCTION_ROWS * ceil_div(m, INSTRUCTION_ROWS), hidden)


def _units_time(
    m: Array,
    n: Array,
    k: Array,
    form: Numbers,
    hardware: Hardware,
    parameters: Mapping[str, float],
    weight_only: WeightOnlyKernel | None = None,
    odd: Mask = False,
) -> Array:
    """Seconds on the multiprocessors with the best tile and split, of those that a weight-only kernel has.

    `odd` rows pay for an m that is no multiple of 8: those of benchmarks, since engines pad their batches.
    """
    count, prologue, whole = units(hardware), parameters["tile_prologue"], parameters["wave_quantization"]
    dispatch = DISPATCHES[int(parameters["dispatch"])] if weight_only is None else _weight_only_tiles(weight_only)
    rows, columns = np.asarray(dispatch.tiles, dtype=np.float64).T[:, :, None]
    tiles = ceil_div(m, rows) * ceil_div(n, columns)
    if dispatch.fixed_rows:
        tiles = np.where((rows < dispatch.fixed_rows) & (m > 64), NEVER, tiles)
    if dispatch.batches:
        above, most = np.asarray(dispatch.batches).T[:, :, None]
        tiles = np.where((m > above) & (m <= most), tiles, NEVER)
    peak = parameters["compute_efficiency"] * hardware.matrix_peak(form.arithmetic)
    if weight_only is not None and weight_only.multiply_adds:
        peak = min(peak, 2.0 * weight_only.multiply_adds * unit_clocks(hardware))
    filled = np.minimum(rows, _padded(m, form, hardware))
    multiply = 2.0 * filled * columns * count / peak
    if some(odd):
        multiply = multiply * (1.0 + parameters.get("odd_rows", 0.0) * ((m % 8 != 0) & (m > 64) & odd))
    if weight_only is not None:
        multiply = multiply + conversion_time(weight_only, hardware) * columns * count
    operands = rows * form.input_bytes + columns * form.bytes
    one_step = np.maximum(multiply, operands / parameters["tile_bandwidth"])
    splits = np.asarray(dispatch.splits, dtype=np.float64)[:, None]
    depth = 64.0 * ceil_div(k, 64.0 * splits)
    waves = tiles * (splits / count)[:, None]
    times = np.min(rounds(waves, whole) * (one_step * depth[:, None] + prologue), axis=1)
    adding = 8.0 * splits * m * n / (3.0 * hardware.memory_bandwidth) + prologue
    best: Array = np.min(np.where(splits > 1, times + adding, times), axis=0)
    return best
