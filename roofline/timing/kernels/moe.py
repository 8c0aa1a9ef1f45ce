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
or from 0.01 to 2 where there are fewer pairs than experts. The pairs that rounding leaves go to the emptiest expert of
each device in turn, or (`consecutive` 1) to the emptiest of all, those of one device after the other: with few tokens
the busiest device has some pairs, or all. Some benchmarks take only the tokens with an expert on the device (`arriving`
1), which are then the tokens of the launch and of P'. Their pairs with experts elsewhere are computed with the first
expert here (`clamped`, in P), or they choose anew among the experts here (`rerouted`); others compute none of them.

Tiles are the best ones, or (`tiles`) those that vLLM's Triton kernels have by default; tuned ones exist for 3 to 15% of
public rows. Depths of less than FETCHED bytes read as much.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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
    some,
    storage,
    text,
    units,
)

TILES = ((16, 128), (32, 128), (64, 128), (128, 128), (128, 256))
"""Tiles of grouped GEMMs: tokens of one expert, columns."""

TILES_BEFORE, TILES_SINCE = 1.0, 2.0
"""Values of the column `tiles`: those of vLLM before and since pull request 34846 (0.17); 0 for the best of TILES."""

FETCHED = 64.0
"""Bytes that an L2 of NVIDIA fetches at least by default (cudaLimitMaxL2FetchGranularity)."""

FEW = 4.0
"""Tokens beyond which the launch takes its whole time, as a scale: three more than one save half as much."""

OPTIONS = ("consecutive", "arriving", "clamped", "rerouted")
"""Columns of benchmarks of several devices, 0 by default and 1 where it is so (see above)."""

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

    `arriving` are the tokens that have an expert here; known of benchmarks only.
    """

    tokens: Array
    reached: Array
    arriving: Array | float = np.inf


def expert_loads(tokens: Array, top_k: Array, experts: Array, ep: Array, routing: str, *options: Array) -> Loads:
    """The loads of the busiest of `ep` devices; `options` are `consecutive` and `rerouted`, both 0 by default."""
    if routing == "uniform":
        mean = tokens * top_k / experts
        reached = -np.expm1(-mean)
        return Loads(np.maximum(mean / reached, 1.0)[None], reached[None])
    rows = np.stack(aligned(tokens, top_k, experts, ep, *(options or (np.zeros(1),) * 2))).astype(np.int64)
    return _benchmarked(rows.tobytes(), routing_exponent(routing))


@lru_cache(maxsize=512)
def _benchmarked(rows: bytes, exponent: float | None) -> Loads:
    """The loads of rows, as the arguments of `_device`, of a benchmark; `exponent` None is balanced routing."""
    found = [_device(*row, exponent) for row in np.frombuffer(rows, dtype=np.int64).reshape(6, -1).T.tolist()]
    loads, reached, arriving = (np.array(column).T for column in zip(*found, strict=True))
    return Loads(loads, reached, arriving)


@lru_cache(maxsize=65536)
def _device(
    tokens: int, top_k: int, experts: int, ep: int, consecutive: int, rerouted: int, exponent: float | None
) -> tuple[Array, Array, float]:
    """The loads of one device in a benchmark."""
    experts = min(experts, MOST)
    local = max(1, experts // ep)
    shape = tokens, top_k, experts, local
    counts, arriving = _dealt(*shape) if exponent is None else _drawn(*shape, exponent, consecutive)
    if rerouted and ep > 1:
        return _device(max(1, round(arriving)), top_k, local, 1, consecutive, 0, exponent)
    each = PARTS * ceil(local / PARTS)
    parts = counts[:, np.arange(each) * local // each].reshape(len(counts), PARTS, -1)
    reached = np.mean(parts > 0, axis=(0, 2))
    loads = np.maximum(np.mean(parts, axis=(0, 2)) / np.maximum(reached, 1e-9), 1.0)
    return loads, reached, arriving


def _dealt(tokens: int, top_k: int, experts: int, local: int) -> tuple[Array, float]:
    """Tokens of the first device's experts where tokens take turns, (1, local), and how many tokens these are.

    A token goes to every `stride`th expert.
    """
    stride = ceil(experts / top_k)
    turn = np.arange(local, dtype=np.float64)[None] % stride
    if tokens >= stride:
        counts = np.asarray(tokens // stride + (turn < tokens % stride), dtype=np.float64)
    else:
        first, last = np.ceil(turn * tokens / stride), np.ceil((turn + 1.0) * tokens / stride)
        counts = np.minimum(last - first, 1.0)
    return counts, min(float(counts.sum()), tokens)


def _drawn(tokens: int, top_k: int, experts: int, local: int, exponent: float, consecutive: int) -> tuple[Array, float]:
    """Tokens of the busiest device's experts, most first, drawn from a power law DRAWS times, (DRAWS, local).

    Rounding leaves some pairs, full experts others: devices take turns to get one for their emptiest expert, or
    (`consecutive`) the emptiest experts of all do, those of the last devices first. Also how many tokens these are.
    """
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    power = 1.0 - exponent
    drawn = (low**power + _UNIFORM[:, :experts] * (high**power - low**power)) ** (1.0 / power)
    share = np.round(drawn / drawn.sum(axis=1, keepdims=True) * tokens * top_k)
    devices = max(1, experts // local)
    deal = _emptiest if consecutive else _in_turn
    counts = np.array([deal(row, tokens, tokens * top_k, devices) for row in share])
    places = np.arange(devices * local).reshape(-1, local)
    busiest = places[counts[:, places].sum(axis=2).argmax(axis=1)]
    arriving = float(np.mean([_arriving(*drawn, tokens) for drawn in zip(counts, busiest, strict=True)]))
    return -np.sort(-np.take_along_axis(counts, busiest, axis=1), axis=1), arriving


def _emptiest(counts: Array, most: int, pairs: int, _devices: int) -> Array:
    """The experts' tokens, of at most so many each, with the pairs that are left."""
    over, counts = np.maximum(counts - most, 0.0).sum(), np.minimum(counts, most)
    order = np.argsort(-counts, kind="stable")[::-1]
    room = np.minimum(np.cumsum(most - counts[order]), over)
    counts[order] += np.diff(room, prepend=0.0)
    left = int(pairs - counts.sum())
    order = np.argsort(-counts, kind="stable")[::-1]
    if left > 0:
        counts[order[counts[order] < most][:left]] += 1.0
    else:
        filled = counts[order[:-left]] > 0
        counts[order[:-left][filled]] -= 1.0
        counts[counts.argmax()] -= (~filled).sum()
    return counts


def _in_turn(counts: Array, most: int, pairs: int, devices: int) -> Array:
    """The experts' tokens, of at most so many each, with the pairs that are left dealt to devices in turn."""
    counts = np.minimum(counts, most)
    rows = counts[: len(counts) // devices * devices].reshape(devices, -1)
    left = pairs - counts.sum()
    shares = np.floor((abs(left) + devices - 1 - np.arange(devices)) / devices)[:, None]
    sign = 1.0 if left > 0 else -1.0
    ordered = np.sort(sign * rows, axis=1)
    filled = ordered * np.arange(1, ordered.shape[1] + 1) - np.cumsum(ordered, axis=1)  # to lift all before to this one
    many = np.maximum((filled <= shares).sum(axis=1, keepdims=True), 1)
    level = (np.take_along_axis(np.cumsum(ordered, axis=1), many - 1, axis=1) + shares) / many
    whole = np.floor(level)
    lifted = np.maximum(ordered, whole)
    more = shares - (lifted - ordered).sum(axis=1, keepdims=True)
    lifted[np.arange(lifted.shape[1]) < more] += 1.0
    return np.asarray(np.clip(sign * lifted, 0.0, most).reshape(-1))


def _arriving(counts: Array, here: NDArray[np.int64], tokens: int) -> float:
    """Tokens with one of the experts `here`: each takes the next ones of a circle of tokens, the fullest first."""
    order = np.argsort(-counts, kind="stable")
    begin = np.empty(len(counts))
    begin[order] = (np.cumsum(counts[order]) - counts[order]) % tokens
    begin, end = begin[here], begin[here] + counts[here]
    begin, end = np.append(begin, np.zeros(len(end))), np.append(np.minimum(end, tokens), end - tokens)
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    before = np.append(0.0, np.maximum.accumulate(end)[:-1])
    return float(np.maximum(end - np.maximum(begin, before), 0.0).sum())


def _sizes(columns: Columns) -> tuple[Array, ...]:
    names = ("tokens", "hidden", "intermediate", "top_k", "experts")
    sizes = [column(columns, name) for name in names]
    defaults = [column(columns, "tp", 1.0), column(columns, "ep", 1.0), column(columns, "gated", 1.0)]
    return aligned(*sizes, *defaults)


def moe_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds: FLOPs, or the weights of the experts that one token reaches, or a benchmark's tokens."""
    form, sizes = storage(columns), _sizes(columns)
    tokens, hidden, width, top_k, experts, tp, ep, gated = sizes
    matrices, pairs = 2.0 + gated, tokens * top_k / ep
    compute = 2.0 * pairs * hidden * (width / tp) * matrices / hardware.matrix_peak(form.arithmetic)
    reached = np.minimum(np.maximum(experts / ep, 1.0), np.maximum(pairs / np.maximum(tokens, 1.0), 1.0))
    known: Array = np.zeros(np.size(tokens))
    for routing, rows, own, options in _by_routing(columns, sizes):
        if routing != "uniform":
            loads = expert_loads(own[0], own[3], own[4], own[6], routing, options[2], options[-1])
            known[rows] = loads.reached.mean(axis=0) * np.maximum(own[4] / own[6], 1.0)
    reached = np.maximum(reached, known.reshape(np.shape(tokens)))
    weights = reached * matrices * hidden * (width / tp) * form.bytes
    return np.where(resident, compute, np.maximum(compute, weights / hardware.memory_bandwidth))


def moe_time(columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False) -> Array:
    """Seconds for columns `dtype, tokens, hidden, intermediate, top_k, experts, tp, ep, routing` and optional ones.

    `routing` may differ by row. `gated` is 1 for experts of three matrices (the default), 0 for two. `touched`
    overrides the number of experts reached. See `storage` for unmeasured formats.
    """
    form, sizes, bare = storage(columns), _sizes(columns), is_bare(columns)
    warm = np.broadcast_to(resident, sizes[0].shape).reshape(-1)
    seconds: Array = np.empty(np.size(sizes[0]))
    for routing, rows, own, options in _by_routing(columns, sizes):
        blocks = _tiles(options[1], own[0], own[4] / own[6], text(columns, "dtype"), form.bytes)
        seconds[rows] = _time(own, options, blocks, routing, form, hardware, parameters, warm[rows], bare)
    return seconds.reshape(np.shape(sizes[0]))


def _by_routing(
    columns: Columns, sizes: tuple[Array, ...]
) -> Iterator[tuple[str, NDArray[np.bool_], list[Array], list[Array]]]:
    """Each routing with its rows, and their sizes, and `touched`, `tiles` and OPTIONS."""
    shape = sizes[0].shape
    routings = np.broadcast_to(np.asarray(columns.get("routing", "balanced"), dtype=object), shape).reshape(-1)
    optional = (("touched", np.nan), ("tiles", 0.0), *((name, 0.0) for name in OPTIONS))
    options = [np.broadcast_to(column(columns, *one), shape).reshape(-1) for one in optional]
    flat = [np.atleast_1d(size).reshape(-1) for size in sizes]
    for routing in set(routings.tolist()):
        rows = routings == routing
        yield str(routing), rows, [size[rows] for size in flat], [option[rows] for option in options]


def _time(
    sizes: list[Array],
    options: list[Array],
    blocks: tuple[Array, Array, Array],
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
    touched, _, consecutive, arriving, clamped, rerouted = options
    loads, reached, arrived = expert_loads(tokens, top_k, experts, ep, routing, consecutive, rerouted)
    tokens = np.where(arriving > 0, np.minimum(arrived, tokens), tokens)
    here = (loads * reached).mean(axis=0) * local
    remote = np.where(clamped > 0, np.maximum(tokens * top_k - here, 0.0), 0.0)
    given = np.isfinite(touched)
    if given.any():
        counted = np.clip(np.where(given, touched / local, 1.0), 1e-9, 1.0)
        reached = np.where(given, counted, reached)
        loads = np.where(given, np.maximum(tokens * top_k / experts / counted, 1.0), loads)
    up = (hidden, (1.0 + gated) * width)
    down = (width, hidden)
    peak = hardware.matrix_peak(form.arithmetic)
    on_units = _units_time(loads, reached, local, remote, blocks, (up, down), peak, hardware, parameters)
    on_units = on_units * (1.0 + parameters["unaligned"] * (width % 16 != 0))
    weights = reached.mean(axis=0) * local * (2.0 + gated) * hidden * width * form.bytes
    pairs = (loads * reached).mean(axis=0) * local + remote
    activations = 2.0 * pairs * (2.0 * hidden + (2.0 + gated) * width)
    missing = weights
    if some(resident):
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


def _tiles(kind: Array, tokens: Array, local: Array, format: str, size: float) -> tuple[Array, Array, Array]:
    """Rows and columns of tiles, (tiles, rows), and the bytes that an element of an operand takes to read.

    vLLM's are those of `get_default_config` in its fused_moe.py.
    """
    best = np.asarray(TILES, dtype=np.float64).T[:, :, None]
    if not kind.any():
        return best[0], best[1], np.asarray(size)
    before, few, small = kind == TILES_BEFORE, tokens <= local, tokens <= 64
    if format.startswith("fp8_block"):
        rows, columns, depth = np.where(before | ~small, 64.0, 16.0), np.full(kind.shape, 128.0), np.asarray(128.0)
    else:
        since = np.array((16.0, 32.0, 64.0, 128.0))[np.searchsorted((32, 96, 512), tokens)]
        rows = np.where(before, np.where(few, 16.0, 64.0), since)
        columns = np.where(before, np.where(few, 32.0, 64.0), np.where(small, 64.0, 128.0))
        depth = np.where(before & ~few, 32.0, 64.0)
    read = np.where(kind > 0, np.maximum(size, FETCHED / depth), size)
    return np.where(kind > 0, rows, best[0]), np.where(kind > 0, columns, best[1]), read


def _units_time(
    loads: Array,
    reached: Array,
    local: Array,
    remote: Array,
    blocks: tuple[Array, Array, Array],
    gemms: tuple[tuple[Array, Array], ...],
    peak: float,
    hardware: Hardware,
    parameters: Mapping[str, float],
) -> Array:
    """Seconds on the multiprocessors for both GEMMs, with the best tile."""
    count, whole = units(hardware), parameters["wave_quantization"]
    rows, columns, read = blocks
    row_tiles = (reached * ceil_div(loads, rows[:, None])).mean(axis=1) * local + remote / rows
    multiply = 2.0 * rows * columns * count / (parameters["compute_efficiency"] * peak)
    one_step = np.maximum(multiply, (rows + columns) * read / parameters["tile_bandwidth"])
    total = np.zeros(row_tiles.shape)
    for depth, extent in gemms:
        waves = row_tiles * ceil_div(extent, columns) / count
        total = total + rounds(waves, whole) * (one_step * depth + parameters["tile_prologue"])
    best: Array = np.min(total, axis=0)
    return best
