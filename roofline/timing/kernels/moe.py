"""Time of the routed experts of one layer: two grouped GEMMs over the experts that tokens reach, and token permutation.

One device holds E' = experts / ep experts of width I' = intermediate / tp, and computes P = tokens top_k / ep pairs of
a token and an expert (more on the busiest device where routing is skewed). With n_j tokens at expert j:

    tiles      N_g = sum over experts of ceil(n_j / b_m) ceil(width_g / b_n),     g: up (and gate) GEMM, down GEMM
    units      T_S = min over b_m, b_n of the sum over g of waves(N_g) (tile_g + tile_prologue)       as for one GEMM
    weights    W   = experts reached x matrices x hidden I' bytes
    memory     T_M = (W + activations) / (e_B bw)
    time       t   = launch + (T_S^p + T_M^p)^(1/p) + P' (4 hidden + 6 I') / (e_P bw)

The last term is the kernels that sort and permute tokens, apply the activation, and add the experts' results; some
process all pairs of the batch, on whichever device: P' = (1 - g) P + g tokens top_k, with g = `whole_batch`.
Routing: `balanced` gives each expert equal tokens; `uniform` draws experts at random (1 - e^-n of them are reached);
`power_law_a` gives loads with a density falling as x^-a, from 1 to 0.8 tokens, sorted into equal parts here.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from roofline.core.errors import UnsupportedError, quote
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import (
    Array,
    Columns,
    Mask,
    Numbers,
    aligned,
    ceil_div,
    column,
    is_bare,
    l2_bytes,
    resident_share,
    rounds,
    smooth_maximum,
    storage,
    units,
)

TILES = ((16, 128), (32, 128), (64, 128), (128, 128), (128, 256))
"""Tiles of grouped GEMMs: tokens of one expert, columns."""

PARTS = 16
"""Number of equal parts of the experts, sorted by load."""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 1e-6, 150e-6, 25e-6, "launch of all kernels of the layer"),
    Parameter("compute_efficiency", Unit.RATIO, 0.05, 1.0, 0.6, "matrix unit's achievable fraction of its peak"),
    Parameter("memory_efficiency", Unit.RATIO, 0.1, 1.0, 0.8, "achievable fraction of memory bandwidth"),
    Parameter("tile_bandwidth", Unit.BANDWIDTH, 5e9, 1000e9, 100e9, "operands into one multiprocessor"),
    Parameter("tile_prologue", Unit.SECONDS, 0.01e-6, 30e-6, 2e-6, "filling the pipeline and writing one tile"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 2.0, "exponent of the smooth maximum of units and memory"),
    Parameter("wave_quantisation", Unit.RATIO, 0.01, 1.0, 0.3, "fraction of the kernel that runs in whole waves"),
    Parameter("permute_efficiency", Unit.RATIO, 0.02, 1.0, 0.5, "token permutation: fraction of memory bandwidth"),
    Parameter("whole_batch", Unit.RATIO, 0.001, 1.0, 0.1, "fraction of it done for other devices' pairs, too"),
    Parameter("unaligned", Unit.RATIO, 0.001, 2.0, 0.1, "slowdown of units where the width is no multiple of 16"),
    Parameter("imbalance", Unit.RATIO, 0.05, 3.0, 0.7, "excess load of the busiest device, in standard deviations"),
    Parameter("l2_share", Unit.RATIO, 0.05, 2.0, 0.8, "fraction of the L2 that holds a benchmark's weights"),
)


def routing_exponent(routing: str) -> float | None:
    """The exponent of a power-law routing; None for balanced and uniform routing."""
    if routing in ("balanced", "uniform"):
        return None
    try:
        return float(routing.removeprefix("power_law_"))
    except ValueError:
        message = f"unknown routing {quote(routing)}; known: balanced, uniform, power_law_<exponent>"
        raise UnsupportedError(message) from None


def expert_loads(
    tokens: Array, top_k: Array, experts: Array, ep: Array, routing: str, imbalance: float
) -> tuple[Array, Array]:
    """Tokens of an expert on the busiest device, and the fraction of experts reached; both (parts, rows).

    A density x^-a from 1 to X = 0.8 tokens has the quantiles (1 + u (X^(1-a) - 1))^(1/(1-a)). The busiest of `ep`
    devices with E' experts each exceeds the mean by about sqrt((cv^2 + 1/n) 2 ln ep / E'): cv is the variation of one
    expert's expected load, 1/n that of counting n tokens.
    """
    mean = tokens * top_k / experts
    exponent = routing_exponent(routing)
    if exponent is None:
        reached = np.minimum(1.0, mean) if routing == "balanced" else -np.expm1(-mean)
        return np.maximum(mean / reached, 1.0)[None], reached[None]
    quantiles = (np.arange(PARTS)[:, None] + 0.5) / PARTS
    largest, power = np.maximum(0.8 * tokens, 1.0001), 1.0 - exponent
    shape = (1.0 + quantiles * (largest**power - 1.0)) ** (1.0 / power)
    shape = shape / shape.mean(axis=0)
    local = np.maximum(experts / ep, 1.0)
    variance = shape.var(axis=0) + 1.0 / mean
    excess = 1.0 + imbalance * np.sqrt(variance * 2.0 * np.log(ep) / local)
    loads = np.minimum(mean * shape * excess, tokens)
    reached = np.minimum(1.0, loads)
    return np.maximum(loads, 1.0), reached


def _sizes(columns: Columns) -> tuple[Array, ...]:
    names = ("tokens", "hidden", "intermediate", "top_k", "experts")
    sizes = [column(columns, name) for name in names]
    defaults = [column(columns, "tp", 1.0), column(columns, "ep", 1.0), column(columns, "gated", 1.0)]
    return aligned(*sizes, *defaults)


def moe_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds with balanced routing: FLOPs, or the weights of the experts reached."""
    form = storage(columns)
    tokens, hidden, width, top_k, experts, tp, ep, gated = _sizes(columns)
    matrices, pairs = 2.0 + gated, tokens * top_k / ep
    compute = 2.0 * pairs * hidden * (width / tp) * matrices / hardware.matrix_peak(form.arithmetic)
    reached = np.minimum(np.maximum(experts / ep, 1.0), np.maximum(pairs / np.maximum(tokens, 1.0), 1.0))
    weights = reached * matrices * hidden * (width / tp) * form.bytes
    return np.where(resident, compute, np.maximum(compute, weights / hardware.memory_bandwidth))


def moe_time(columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False) -> Array:
    """Seconds for columns `dtype, tokens, hidden, intermediate, top_k, experts, tp, ep, routing` and optional ones.

    `routing` may differ by row. `gated` is 1 for experts of three matrices (the default), 0 for two. `touched`
    overrides the number of experts reached. See `storage` for unmeasured formats.
    """
    form = storage(columns)
    sizes = _sizes(columns)
    routing_column = np.asarray(columns.get("routing", "balanced"), dtype=object)
    routings = np.broadcast_to(routing_column, sizes[0].shape).reshape(-1)
    flat = [np.atleast_1d(size).reshape(-1) for size in sizes]
    touched = np.broadcast_to(column(columns, "touched", np.nan), sizes[0].shape).reshape(-1)
    warm = np.broadcast_to(resident, sizes[0].shape).reshape(-1)
    bare = is_bare(columns)
    seconds: Array = np.empty(flat[0].shape)
    for routing in set(routings.tolist()):
        rows = routings == routing
        chosen = [size[rows] for size in flat]
        seconds[rows] = _time(chosen, touched[rows], str(routing), form, hardware, parameters, warm[rows], bare)
    return seconds.reshape(np.shape(sizes[0]))


def _time(
    sizes: list[Array],
    touched: Array,
    routing: str,
    form: Numbers,
    hardware: Hardware,
    parameters: Mapping[str, float],
    resident: NDArray[np.bool_],
    bare: bool,
) -> Array:
    bandwidth = hardware.memory_bandwidth
    tokens, hidden, width, top_k, experts, tp, ep, gated = sizes
    width, local = width / tp, np.maximum(experts / ep, 1.0)
    loads, reached = expert_loads(tokens, top_k, experts, ep, routing, parameters["imbalance"])
    given = np.isfinite(touched)
    if given.any():
        counted = np.clip(np.where(given, touched / local, 1.0), 1e-9, 1.0)
        reached = np.where(given, counted, reached)
        loads = np.where(given, np.maximum(tokens * top_k / experts / counted, 1.0), loads)
    up = (hidden, (1.0 + gated) * width)
    down = (width, hidden)
    peak = hardware.matrix_peak(form.arithmetic)
    on_units = _units_time(loads, reached, local, (up, down), form.bytes, peak, hardware, parameters)
    on_units = on_units * (1.0 + parameters["unaligned"] * (width % 16 != 0))
    weights = reached.mean(axis=0) * local * (2.0 + gated) * hidden * width * form.bytes
    pairs = (loads * reached).mean(axis=0) * local
    activations = 2.0 * pairs * (2.0 * hidden + (2.0 + gated) * width)
    missing = weights
    if np.any(resident):
        stored = local * (2.0 + gated) * hidden * width * form.bytes
        missing = weights * (1.0 - resident * resident_share(stored, parameters["l2_share"] * l2_bytes(hardware), 8.0))
    over_memory = (missing + activations) / (parameters["memory_efficiency"] * bandwidth)
    kernel = smooth_maximum(on_units, over_memory, parameters["sharpness"])
    if bare:
        return np.asarray(parameters["launch"] + kernel)
    share = parameters["whole_batch"]
    moved = ((1.0 - share) * pairs + share * tokens * top_k) * (4.0 * hidden + 6.0 * width)
    permuting = moved / (parameters["permute_efficiency"] * bandwidth)
    time: Array = parameters["launch"] + kernel + permuting
    return time


def _units_time(
    loads: Array,
    reached: Array,
    local: Array,
    gemms: tuple[tuple[Array, Array], ...],
    width: float,
    peak: float,
    hardware: Hardware,
    parameters: Mapping[str, float],
) -> Array:
    """Seconds on the multiprocessors for both GEMMs, with the best tile."""
    count, whole = units(hardware), parameters["wave_quantisation"]
    rows, columns = np.asarray(TILES, dtype=np.float64).T[:, :, None]
    row_tiles = (reached * ceil_div(loads, rows[:, None])).mean(axis=1) * local
    multiply = 2.0 * rows * columns * count / (parameters["compute_efficiency"] * peak)
    one_step = np.maximum(multiply, (rows + columns) * width / parameters["tile_bandwidth"])
    total = np.zeros(row_tiles.shape)
    for depth, extent in gemms:
        waves = row_tiles * ceil_div(extent, columns) / count
        total = total + rounds(waves, whole) * (one_step * depth + parameters["tile_prologue"])
    best: Array = np.min(total, axis=0)
    return best
