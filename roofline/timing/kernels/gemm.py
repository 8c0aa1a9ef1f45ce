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
    time           t = launch + x  [+ row m + (2 + bytes) m k / min(Q, bandwidth)]  the activation-quantizing kernel

k' is k / s rounded up to 64; `bytes` are those of an element of A in a row of the tile, of B in a column, and of A in
the last line. e_F is `compute_efficiency`, e_B `memory_efficiency`, q `wave_quantization`, d `throttling`, p
`sharpness`, row `quantize_row`, v `vector_rows`, and Q is `quantize_bandwidth`, some 2 TB/s on H100 to B200 alike in
most libraries, as the L2 holds most activations, and the memory's on L40S and RTX PRO 6000. Matrix units multiply whole
tiles of b_m rows, but for a smaller m only as many rows as take no longer than streaming the weights; hardware without
matrix units multiplies m rows. CPU libraries multiply a few rows as GEMVs, v rows for each pass over the weights, and
more rows in blocks, for which they first pack the weights (Goto and van de Geijn, 2008): that reads, writes and reads
them again. On accelerators there is one pass. The tile model is that of CUTLASS's documentation ("Efficient GEMM in
CUDA") and of Stream-K (Osama et al., 2023); constants are fitted (`roofline.validate.fit.calibrate`). A convolution is
an implicit GEMM, whose windows of A overlap: the memory term counts each element of its input once.

A weight-only kernel (`roofline.specs.weight_only`) reads packed weights and converts each tile of them, in c seconds a
weight for all units, before the matrix units multiply it, at up to i FMAs a clock and unit where its instructions limit
it:

    conversion     c  = instructions / (64 S clock) + lookups / (S clock)              64 integer lanes a multiprocessor
    peak           min(e_F peak, 2 i S clock)
    one tile       2 b_m b_n k' / (e_F peak / S) becomes 2 b_m b_n k' / (e_F peak / S) + c S b_n k'    b_m up to a limit
    few rows       T_S = c n k + 2 m n k / vector peak                                 kernels without matrix units
    many rows      t = launch + max(c n k, (B + 2 n k) / (e_B bandwidth)) + the 16-bit GEMM's t    weights in memory
    kernels beside t += (in m k + out m n) / (e_B bandwidth)       LLM.int8() quantizes, splits, scales and adds up

So it gains where memory dominates, and loses where the units do: every b_m rows convert the weights again. Engines that
multiply packed weights by a few vectors in a kernel of its own have `roofline.timing.kernels.vectors` for those.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.specs.weight_only import WEIGHT_ONLY_KERNELS, WeightOnlyKernel
from roofline.timing.kernels import ggml, vectors
from roofline.timing.kernels.common import INTEGER_LANES, OVERLAP, ceil_div, overlapping, rounds, unit_clocks, units
from roofline.timing.kernels.formats import Numbers, numbers, storage
from roofline.timing.kernels.model import (
    Array,
    Bound,
    Flags,
    Parameters,
    Row,
    Shape,
    Term,
    Terms,
    flags,
    one_flag,
    text,
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


class Dispatch(Struct, frozen=True, dict=True):
    """The tiles (rows, columns) and splits of k that a library chooses among.

    `fixed_rows` is the least height of tiles where m > 64: fixed rules, as in CUTLASS's FP8 kernels. `batches`, where
    given, are the m of each tile: above the first number, up to the second.
    """

    name: str
    tiles: tuple[tuple[int, int], ...]
    splits: tuple[int, ...] = (1,)
    fixed_rows: int = 0
    batches: tuple[tuple[float, float], ...] = ()

    @cached_property
    def sizes(self) -> Array:
        """Rows, then columns of the tiles, (2, tiles)."""
        return np.asarray(self.tiles, dtype=np.float64).T

    @cached_property
    def parts(self) -> Array:
        """The splits of k."""
        return np.asarray(self.splits, dtype=np.float64)


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

FEW_ROWS = 16
"""Rows up to which all splits take less time than finding that none is worth it."""

INSTRUCTION_ROWS = 16.0
"""Least rows of a matrix-unit instruction."""

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
    Parameter("throttling", Unit.RATIO, 0.001, 1.2, 0.001, "slowdown of long GEMMs by power limits", start=0.1),
    Parameter("dispatch", Unit.CHOICE, 0, 6, 1, "tiles and splits that the library chooses among"),
)
_QUANTIZING = (
    Parameter("odd_rows", Unit.RATIO, 0.001, 1.0, 0.1, "slowdown where m > 64 is no multiple of 8"),
    Parameter("quantize_row", Unit.SECONDS, 0.01e-9, 40e-9, 3e-9, "quantizing kernel: time a row of activations"),
    Parameter("quantize_bandwidth", Unit.BANDWIDTH, 0.1e12, 10e12, 0.7e12, "quantizing kernel, whatever the memory"),
)
_PLAIN = (
    OVERLAP,
    Parameter("packing", Unit.RATIO, 1e-6, 8.0, 1e-6, "passes over weights that packing adds", start=1.0, kind="cpu"),
    Parameter("vector_rows", Unit.CHOICE, 1, 4, 1, "rows of one pass without packing", start=2, kind="cpu"),
)


class Gemm(Shape, frozen=True):
    """GEMMs C[m, n] = A[m, k] B[k, n] in one format; arrays of one shape, a kernel a row.

    `bare` ones do not quantize their activations, `weight_only` is their kernel where it is an engine's own. `cold` is
    the fraction of the weights' bytes that come from memory, not from a cache. Engines pad batches to multiples of 8
    rows; where they are not `padded`, `odd_rows` counts.
    """

    m: Array
    n: Array
    k: Array
    dtype: str
    form: Numbers
    bare: Flags = False
    weight_only: WeightOnlyKernel | None = None
    cold: Array | float = 1.0
    padded: Flags = True

    @property
    def weight_bytes(self) -> Array:
        """Bytes of the weights."""
        return self.form.bytes * self.n * self.k

    @property
    def activation_bytes(self) -> Array:
        """Bytes of the inputs, each element once, and of the outputs in 16 bits."""
        return self.form.input_share * self.form.input_bytes * self.m * self.k + 2.0 * self.m * self.n


def shape(row: Row) -> Gemm:
    """The GEMMs of rows with `dtype, m, n, k`, the optional columns of `storage`, and `weight_only`."""
    kernel = WEIGHT_ONLY_KERNELS[text(row, "weight_only")] if "weight_only" in row else None
    return Gemm.of(row, dtype=text(row, "dtype"), form=storage(row), bare=flags(row, "bare"), weight_only=kernel)


def parameters(dtype: str) -> tuple[Parameter, ...]:
    """The parameters of GEMMs in the format `dtype`."""
    if dtype.startswith(ggml.PREFIX):
        return ggml.PARAMETERS
    return (*_COMMON, *(_QUANTIZING if numbers(dtype).quantizes else _PLAIN))


def bound(gemm: Gemm, hardware: Hardware) -> Bound:
    """`2 m n k / peak`, and `(A + B + C) / bandwidth`."""
    moved = gemm.weight_bytes + gemm.form.input_bytes * gemm.m * gemm.k + 2.0 * gemm.m * gemm.n
    flops = 2.0 * gemm.m * gemm.n * gemm.k
    return Bound(flops / hardware.matrix_peak(gemm.form.arithmetic), moved / hardware.memory_bandwidth)


def terms(gemm: Gemm, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, tiles on the multiprocessors, traffic, and the kernel that quantizes the activations."""
    if gemm.dtype.startswith(ggml.PREFIX):
        return ggml.terms(gemm.m, gemm.n, gemm.k, gemm.form, hardware, parameters)
    if "vector_launch" in parameters:
        few = vectors.terms(
            np.minimum(gemm.m, vectors.MOST_ROWS), gemm.n, gemm.k, gemm.weight_bytes, hardware, parameters
        )
        if np.all(gemm.m <= vectors.MOST_ROWS):
            return few
        many = _by_tiles(gemm, hardware, parameters)  # more rows never take less time
        return _where((gemm.m <= vectors.MOST_ROWS) | (few.seconds > many.seconds), few, many)
    return _by_tiles(gemm, hardware, parameters)


def _by_tiles(gemm: Gemm, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of kernels that divide C into tiles, of packed weights those of their own kernel."""
    if gemm.weight_only is not None:
        return _weight_only_terms(gemm, gemm.weight_only, hardware, parameters)
    launch = Term("launch", "launch", parameters["launch"])
    units = Term("units", _HOW[parameters.get("throttling", 0.0) > 0], _on_units(gemm, hardware, parameters))
    passes = weight_passes(gemm.m, parameters)
    memory = Term(
        "memory",
        "(B + A + C) / (memory_efficiency bandwidth)",
        gemm.weight_bytes * passes * gemm.cold + gemm.activation_bytes,
        parameters["memory_efficiency"] * hardware.memory_bandwidth,
    )
    if not gemm.form.quantizes or one_flag(gemm.bare, "bare"):
        return overlapping((launch,), units, memory, parameters)
    return overlapping((launch, _quantizing(gemm, hardware, parameters)), units, memory, parameters)


_HOW = {
    False: "min over tiles and splits of waves x (tile + prologue)",
    True: "T (1 + throttling T / (T + 500 us)), T = min over tiles and splits of waves x (tile + prologue)",
}


def _quantizing(gemm: Gemm, hardware: Hardware, parameters: Parameters) -> Term:
    """The kernel that quantizes 16-bit activations, in seconds of a row and of the traffic."""
    moved = (2.0 + gemm.form.input_bytes) * gemm.m * gemm.k
    over_memory = moved / min(parameters["quantize_bandwidth"], hardware.memory_bandwidth)
    formula = "quantize_row m + (2 + bytes) m k / min(quantize_bandwidth, bandwidth)"
    return Term("quantizing", formula, parameters.get("quantize_row", 0.0) * gemm.m + over_memory)


def weight_passes(m: Array, parameters: Parameters) -> Array | float:
    """Passes over the weights in memory, by m."""
    packing = parameters.get("packing", 0.0)
    if packing < NO_PACKING:
        return 1.0
    return np.minimum(ceil_div(m, parameters["vector_rows"]), 1.0 + packing)


def _weight_only_terms(gemm: Gemm, chosen: WeightOnlyKernel, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of a weight-only kernel, which runs one of three ways by its rows (the module's formula)."""
    m, n, k = gemm.m, gemm.n, gemm.k
    bandwidth, packed = parameters["memory_efficiency"] * hardware.memory_bandwidth, gemm.weight_bytes
    over_memory = (packed / chosen.memory + 2.0 * m * (k + n)) / bandwidth
    converting = conversion_time(chosen, hardware) * n * k
    on_vectors = np.where(
        m <= chosen.vector_rows, converting + 2.0 * m * n * k / (hardware.vector_peak or np.inf), np.inf
    )
    on_units = np.minimum(on_vectors, _on_units(gemm, hardware, parameters))
    beside = (chosen.input_traffic * k + chosen.output_traffic * n) * m / bandwidth
    launching = Term("launch", "launch, and that of kernels beside it", parameters["launch"] + chosen.launch)
    packed_terms = overlapping(
        (launching, Term("beside", "(in m k + out m n) / (memory_efficiency bandwidth)", beside)),
        Term("units", "conversion and products of a tile, by tile", on_units),
        Term("memory", "(packed weights + A + C) / (memory_efficiency bandwidth)", over_memory),
        parameters,
    )
    if chosen.sharpness:
        packed_terms = replace(packed_terms, sharpness=chosen.sharpness)
    if not chosen.library_rows:
        return packed_terms
    plain = replace(gemm, form=replace(gemm.form, bytes=2.0, activation_bytes=None), bare=True, weight_only=None)
    library = terms(plain, hardware, parameters)
    first = parameters["launch"] + np.maximum(converting, (packed + 2.0 * n * k) / bandwidth)
    converted = replace(library, serial=(*library.serial, Term("conversion", "launch + max(c n k, traffic)", first)))
    return _where((m >= chosen.library_rows) | (converted.seconds < packed_terms.seconds), converted, packed_terms)


def _where(mask: NDArray[np.bool_], first: Terms, second: Terms) -> Terms:
    """The terms of the first way for the rows of the mask, of the second one for the others."""

    def of(term: Term | None, rows: NDArray[np.bool_]) -> Term | None:
        return None if term is None else Term(term.name, term.formula, np.where(rows, term.seconds, 0.0))

    def units_of(one: Term | None, other: Term | None) -> Term | None:
        assert one is not None
        assert other is not None
        return Term(one.name, other.formula, np.where(mask, one.seconds, other.seconds))

    serial = [*(of(term, mask) for term in first.serial), *(of(term, np.logical_not(mask)) for term in second.serial)]
    return Terms(
        tuple(term for term in serial if term is not None and np.any(np.asarray(term.seconds) > 0)),
        units_of(first.units, second.units),
        units_of(first.memory, second.memory),
        np.where(mask, first.sharpness, second.sharpness),
    )


def conversion_time(chosen: WeightOnlyKernel, hardware: Hardware) -> float:
    """Seconds that all multiprocessors take to convert one weight each time; 0 for what no document gives."""
    clocks = unit_clocks(hardware)
    rate = INTEGER_LANES * clocks if hardware.kind == "gpu" else (hardware.vector_peak or np.inf) / 2.0
    return chosen.conversion / rate + chosen.lookup / clocks


@lru_cache(maxsize=16)
def _weight_only_tiles(chosen: WeightOnlyKernel) -> Dispatch:
    """The tiles of a weight-only kernel: those of libraries from its lowest to its highest, with split k."""
    tiles = {tile for tile in (*_CLASSIC, *_THIN) if chosen.few_rows <= tile[0] <= chosen.tile_rows}
    return Dispatch(chosen.name, tuple(sorted(tiles)), _SPLITS)


def _padded(m: Array, form: Numbers, hardware: Hardware, parameters: Parameters) -> Array:
    """Rows that are multiplied: `m` in whole instructions of the matrix unit, or the rows that memory time hides.

    A relative of a measured device hides them as long as that one does, whatever part of its own peak it achieves.
    """
    if form.arithmetic not in hardware.tensor:
        return m
    peak = parameters.get("carried", 1.0) * hardware.matrix_peak(form.arithmetic)
    hidden = peak * form.bytes / (2.0 * hardware.memory_bandwidth)
    return np.maximum(INSTRUCTION_ROWS * ceil_div(m, INSTRUCTION_ROWS), hidden)


def _on_units(gemm: Gemm, hardware: Hardware, parameters: Parameters) -> Array:
    """Seconds on the multiprocessors, in parts of CHUNK rows."""
    if np.size(gemm.m) <= CHUNK:
        return _fastest(gemm, hardware, parameters)
    padded = np.broadcast_to(gemm.padded, gemm.m.shape)
    sizes = [np.reshape(size, -1) for size in (gemm.m, gemm.n, gemm.k, padded)]
    found: Array = np.empty(gemm.m.size)
    for start in range(0, gemm.m.size, CHUNK):
        m, n, k, few = (size[start : start + CHUNK] for size in sizes)
        found[start : start + CHUNK] = _fastest(replace(gemm, m=m, n=n, k=k, padded=few), hardware, parameters)
    return found.reshape(gemm.m.shape)


def _fastest(gemm: Gemm, hardware: Hardware, parameters: Parameters) -> Array:
    """Seconds with the best tile (first axis) and split of k (second axis), at the clock that power limits leave."""
    m, n, k, weight_only, form = gemm.m, gemm.n, gemm.k, gemm.weight_only, gemm.form
    count, prologue, whole = units(hardware), parameters["tile_prologue"], parameters["wave_quantization"]
    dispatch = DISPATCHES[int(parameters["dispatch"])] if weight_only is None else _weight_only_tiles(weight_only)
    below = tuple(1 for _ in np.shape(m))
    rows, columns = dispatch.sizes.reshape(2, -1, *below)
    tiles = ceil_div(m, rows) * ceil_div(n, columns)
    if dispatch.fixed_rows:
        tiles = np.where((rows < dispatch.fixed_rows) & (m > 64), NEVER, tiles)
    if dispatch.batches:
        above, most = np.asarray(dispatch.batches).T.reshape(2, -1, *below)
        tiles = np.where((m > above) & (m <= most), tiles, NEVER)
    peak = parameters["compute_efficiency"] * hardware.matrix_peak(form.arithmetic)
    if weight_only is not None and weight_only.multiply_adds:
        peak = min(peak, 2.0 * weight_only.multiply_adds * unit_clocks(hardware))
    multiply = np.minimum(rows, _padded(m, form, hardware, parameters)) * (2.0 * columns * count / peak)
    if not np.all(gemm.padded):
        odd = (m % 8 != 0) & (m > 64) & np.logical_not(gemm.padded)
        multiply = multiply * (1.0 + parameters.get("odd_rows", 0.0) * odd)
    if weight_only is not None:
        multiply = multiply + conversion_time(weight_only, hardware) * columns * count
    operands = rows * form.input_bytes + columns * form.bytes
    one_step = np.maximum(multiply, operands / parameters["tile_bandwidth"])
    adding, every = m * n * 8.0 / (3.0 * hardware.memory_bandwidth), dispatch.parts.reshape(-1, *below)

    def fastest(splits: Array) -> Array:
        steps = one_step * (64.0 * ceil_div(k, 64.0 * splits))[:, None] + prologue
        parts = (rounds(tiles * splits[:, None] / count, whole) * steps).min(axis=1)
        found: Array = (parts + (splits > 1) * (adding * splits + prologue)).min(axis=0)
        return found

    best = fastest(every if np.size(m) <= FEW_ROWS else every[:1])
    # Parts of k multiply as much, and are added: many tiles are not worth splitting.
    if np.size(m) > FEW_ROWS and np.any((tiles / count * one_step).min(axis=0) * k + 2.0 * adding + prologue < best):
        best = np.minimum(best, fastest(every))
    return best * (1.0 + parameters.get("throttling", 0.0) * best / (best + THROTTLING_TIME))
