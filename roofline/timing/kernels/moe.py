"""Time of the routed experts of one layer: two grouped GEMMs over the experts that tokens reach, and token permutation.

One device holds E' = experts / ep experts of width I' = intermediate / tp, and computes P = tokens top_k / ep pairs of
a token and an expert (more on the busiest device of a benchmark). With n_j tokens at expert j:

    tiles      N_g = sum over experts of ceil(n_j / b_m) ceil(width_g / b_n),     g: up (and gate) GEMM, down GEMM
    units      T_S = min over b_m, b_n of the sum over g of waves(N_g) (tile_g + tile_prologue)       as for one GEMM
    weights    W   = experts reached x matrices x hidden I' bytes
    memory     T_M = (W + activations) / (e_B bw)
    time       t   = launch (1 - few_tokens 4 / (tokens + 3)) + (T_S^p + T_M^p)^(1/p) + P' (4 hidden + 6 I') / (e_P bw)
                     + expert experts

The kernels that sort tokens are shorter for a few of them (`few_tokens`, the fraction that one token saves) and for a
few experts, whose tokens they count (`expert`). The last terms are the kernels that sort and permute tokens, apply the
activation, and add the experts' results; some process all pairs of the batch, on whichever device: P' = (1 - g) P +
g tokens top_k, with g = `whole_batch`.
`uniform` routing draws experts at random (1 - e^-n of them are reached), as in a served model. The others are those
of public benchmarks, which time the busiest of `ep` devices: under `balanced` tokens take turns, so the first device
has the most; under `power_law_a` the loads of experts are drawn from a density falling as x^-a, from 1 to 0.8 tokens,
or from 0.01 to 2 where there are fewer pairs than experts. Some of them compute a fraction `remote` of the pairs that
the tokens here have with experts elsewhere; a served model computes none.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import ceil
from typing import NamedTuple

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

FEW = 4.0
"""Tokens beyond which the launch takes its whole time, as a scale: three more than one save half as much."""

PARTS = 16
"""Number of equal parts of a device's experts, sorted by load."""

DRAWS = 4
"""Draws of a benchmark's routing that are averaged."""

MOST = 4096
"""Most experts of a benchmark."""

_UNIFORM = np.random.default_rng(0).random((DRAWS, MOST))

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 1e-6, 150e-6, 25e-6, "launch of all kernels of the layer"),
    Parameter("compute_efficiency", Unit.RATIO, 0.05, 1.0, 0.6, "matrix unit's achievable fraction of its peak"),
    Parameter("memory_efficiency", Unit.RATIO, 0.1, 1.0, 0.8, "achievable fraction of memory bandwidth"),
    Parameter("tile_bandwidth", Unit.BANDWIDTH, 5e9, 1000e9, 100e9, "operands into one multiprocessor"),
    Parameter("tile_prologue", Unit.SECONDS, 0.01e-6, 30e-6, 2e-6, "filling the pipeline and writing one tile"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 2.0, "exponent of the smooth maximum of units and memory"),
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 0.3, "fraction of the kernel that runs in whole waves"),
    Parameter("permute_efficiency", Unit.RATIO, 0.02, 1.0, 0.5, "token permutation: fraction of memory bandwidth"),
    Parameter("whole_batch", Unit.RATIO, 0.001, 1.0, 0.1, "fraction of it done for other devices' pairs, too"),
    Parameter("unaligned", Unit.RATIO, 0.001, 2.0, 0.1, "slowdown of units where the width is no multiple of 16"),
    Parameter(
        "remote", Unit.RATIO, 1e-3, 1.0, 1e-3, "fraction of pairs elsewhere that a benchmark computes, too", start=0.1
    ),
    Parameter("l2_share", Unit.RATIO, 0.05, 2.0, 0.8, "fraction of the L2 that holds a benchmark's weights"),
    Parameter("few_tokens", Unit.RATIO, 1e-3, 0.9, 1e-3, "fraction of the launch that one token saves", start=0.2),
    Parameter("expert", Unit.SECONDS, 1e-12, 1e-6, 1e-12, "sorting tokens: time an expert", start=10e-9),
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


class Loads(NamedTuple):
    """Tokens of an expert that is reached, and the fraction of experts that is, both (parts, rows) of one device.

    `remote` are pairs with experts of other devices, of tokens that have one here; known of benchmarks only.
    """

    tokens: Array
    reached: Array
    remote: Array | float = 0.0


def expert_loads(tokens: Array, top_k: Array, experts: Array, ep: Array, routing: str) -> Loads:
    """The loads of the busiest of `ep` devices."""
    if routing == "uniform":
        mean = tokens * top_k / experts
        reached = -np.expm1(-mean)
        return Loads(np.maximum(mean / reached, 1.0)[None], reached[None])
    rows = np.stack([tokens, top_k, experts, ep]).astype(np.int64)
    return _benchmarked(rows.tobytes(), routing_exponent(routing))


@lru_cache(maxsize=512)
def _benchmarked(rows: bytes, exponent: float | None) -> Loads:
    """The loads of rows (tokens, top_k, experts, ep) of a benchmark; `exponent` None is balanced routing."""
    found = [_device(*row, exponent) for row in np.frombuffer(rows, dtype=np.int64).reshape(4, -1).T.tolist()]
    tokens, reached, remote = (np.array(column).T for column in zip(*found, strict=True))
    return Loads(tokens, reached, remote)


@lru_cache(maxsize=65536)
def _device(tokens: int, top_k: int, experts: int, ep: int, exponent: float | None) -> tuple[Array, Array, float]:
    """The loads of one device in a benchmark."""
    experts = min(experts, MOST)
    local = max(1, experts // ep)
    shape = tokens, top_k, experts, local
    counts = _dealt(*shape) if exponent is None else _drawn(*shape, exponent)
    each = PARTS * ceil(local / PARTS)
    parts = counts[:, np.arange(each) * local // each].reshape(len(counts), PARTS, -1)
    reached = np.mean(parts > 0, axis=(0, 2))
    loads = np.maximum(np.mean(parts, axis=(0, 2)) / np.maximum(reached, 1e-9), 1.0)
    here = counts.sum(axis=1)
    some = 1.0 if exponent is None else 1.0 - np.prod(1.0 - counts / tokens, axis=1)
    touching = np.minimum(here, tokens * some)
    return loads, reached, float(np.mean(np.maximum(touching * top_k - here, 0.0)))


def _dealt(tokens: int, top_k: int, experts: int, local: int) -> Array:
    """Tokens of the first device's experts where tokens take turns: one goes to every `stride`th expert; (1, local)."""
    stride = ceil(experts / top_k)
    turn = np.arange(local, dtype=np.float64)[None] % stride
    if tokens >= stride:
        return np.asarray(tokens // stride + (turn < tokens % stride), dtype=np.float64)
    first, last = np.ceil(turn * tokens / stride), np.ceil((turn + 1.0) * tokens / stride)
    return np.asarray(np.minimum(last - first, 1.0))


def _drawn(tokens: int, top_k: int, experts: int, local: int, exponent: float) -> Array:
    """Tokens of the busiest device's experts, most first, drawn from a power law DRAWS times; (DRAWS, local)."""
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    power = 1.0 - exponent
    drawn = (low**power + _UNIFORM[:, :experts] * (high**power - low**power)) ** (1.0 / power)
    share = drawn / drawn.sum(axis=1, keepdims=True) * tokens * top_k
    counts = np.minimum(np.round(share), tokens)
    for row, most in zip(counts, np.argsort(-share, axis=1), strict=True):  # rounding loses some, a full expert others
        while (left := tokens * top_k - row.sum()) >= 1 and (free := most[row[most] < tokens]).size:
            row[free[: int(left)]] += max(1.0, left // len(free))
            np.minimum(row, tokens, out=row)
    devices = counts[:, : experts // local * local].reshape(DRAWS, -1, local)
    busiest = devices[np.arange(DRAWS), devices.sum(axis=2).argmax(axis=1)]
    return -np.sort(-busiest, axis=1)


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
    loads, reached, remote = expert_loads(tokens, top_k, experts, ep, routing)
    remote = np.where(resident, parameters.get("remote", 0.0) * remote, 0.0)
    given = np.isfinite(touched)
    if given.any():
        counted = np.clip(np.where(given, touched / local, 1.0), 1e-9, 1.0)
        reached = np.where(given, counted, reached)
        loads = np.where(given, np.maximum(tokens * top_k / experts / counted, 1.0), loads)
    up = (hidden, (1.0 + gated) * width)
    down = (width, hidden)
    peak = hardware.matrix_peak(form.arithmetic)
    on_units = _units_time(loads, reached, local, remote, (up, down), form.bytes, peak, hardware, parameters)
    on_units = on_units * (1.0 + parameters["unaligned"] * (width % 16 != 0))
    weights = reached.mean(axis=0) * local * (2.0 + gated) * hidden * width * form.bytes
    pairs = (loads * reached).mean(axis=0) * local + remote
    activations = 2.0 * pairs * (2.0 * hidden + (2.0 + gated) * width)
    missing = weights
    if np.any(resident):
        cache = parameters["l2_share"] * l2_bytes(hardware)
        missing = weights * (1.0 - resident * resident_share(weights, cache, 8.0))
    over_memory = (missing + activations) / (parameters["memory_efficiency"] * bandwidth)
    kernel = smooth_maximum(on_units, over_memory, parameters["sharpness"])
    launch = parameters["launch"] * (1.0 - parameters.get("few_tokens", 0.0) * FEW / (tokens + FEW - 1.0))
    if bare:
        return np.asarray(launch + kernel)
    share = parameters["whole_batch"]
    moved = ((1.0 - share) * pairs + share * tokens * top_k) * (4.0 * hidden + 6.0 * width)
    permuting = moved / (parameters["permute_efficiency"] * bandwidth) + parameters.get("expert", 0.0) * experts
    time: Array = launch + kernel + permuting
    return time


def _units_time(
    loads: Array,
    reached: Array,
    local: Array,
    remote: Array,
    gemms: tuple[tuple[Array, Array], ...],
    width: float,
    peak: float,
    hardware: Hardware,
    parameters: Mapping[str, float],
) -> Array:
    """Seconds on the multiprocessors for both GEMMs, with the best tile."""
    count, whole = units(hardware), parameters["wave_quantization"]
    rows, columns = np.asarray(TILES, dtype=np.float64).T[:, :, None]
    row_tiles = (reached * ceil_div(loads, rows[:, None])).mean(axis=1) * local + remote / rows
    multiply = 2.0 * rows * columns * count / (parameters["compute_efficiency"] * peak)
    one_step = np.maximum(multiply, (rows + columns) * width / parameters["tile_bandwidth"])
    total = np.zeros(row_tiles.shape)
    for depth, extent in gemms:
        waves = row_tiles * ceil_div(extent, columns) / count
        total = total + rounds(waves, whole) * (one_step * depth + parameters["tile_prologue"])
    best: Array = np.min(total, axis=0)
    return best
