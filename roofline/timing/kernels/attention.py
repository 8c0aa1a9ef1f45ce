"""Time of fused attention: query tiles over keys in prefill, KV splits over multiprocessors in decode.

G = heads / kv_heads query heads share a KV head. S is the number of multiprocessors, bw the memory bandwidth.

Prefill (FlashAttention: Dao, 2023). A tile of b_m queries iterates over the keys that its last query sees, in blocks of
b_n; under a causal mask with c cached tokens, tile i ends at key c + (i+1) b_m; a window keeps the last w keys:

    tiles      U   = batch heads ceil(q_len / b_m)              or batch kv_heads ceil(G q_len / b_m), heads packed
    one tile   T_i = b_m kv_i h(d) (4 d / (e_F peak / S) + softmax / clock) + tile_prologue
    units      T_S = max(sum T_i / S * ((1 - q) + q ceil(U/S) / (U/S)), longest T_i)
    memory     T_M = (Q + O + K + V) / (e_B bw)
    KV write   T_W = (K + V of new tokens, read and written) / (e_B bw)        appending to the cache
    time       t   = launch + (T_S^p + T_M^p)^(1/p) + T_W + token batch q_len          in both phases with
                                                            p sqrt(1 + max(T_S, T_M) / overlap) for p: long kernels
                                                            overlap loads and products better

Single queries of a group fill one tile in FlashAttention's kernels, which pack no others, and one each in TensorRT-
LLM's and SGLang's of Blackwell (`pack_single`). The exponential of a score and what else each one takes beside its 4 d
FLOPs are not all hidden behind the products: they take `softmax` clocks of a multiprocessor, which computes 16
exponentials in one (FlashAttention-4: on Blackwell they take as long as the products), and half of that with 32 (the
spec's `exponentials`, Blackwell Ultra). Libraries lack kernels of some head dimensions d, and engines run a general one
there, up to 11 times as slow: h(d) is 1 + `other_dim` where d is 192, the only one that was measured. vLLM's general
kernel, in Triton, has tiles of 16 rows with packed heads. Expanded heads of MLA (192 for keys, 128 for values) have
kernels, and a mean d of 160.

Decode (split KV: "Flash-Decoding", Dao et al., 2023). One work item is a KV head of a sequence, with at most 64 query
heads; its keys may be split in s parts that are combined afterwards:

    units      T_S = min over s of  w(U s) (2 d kv_bytes L / s / unit_bandwidth + tile_prologue)
                                    + combine log2(s) / 3 + 8 s batch heads d / bw
    memory     T_M = KV / (e_B bw) + (Q + O) / bw
    time       t   = launch + h(d) (T_S^p + T_M^p)^(1/p) + sequence batch + [G > 1 and batch > 1] regroup

with w(N) = (1 - q) max(1, N / S) + q ceil(N / S), and L the keys rounded up to blocks of 64. The products and the
softmax of the query heads of a group are not all hidden behind the loads: a key takes 4 d G `head_slowdown` / (peak /
S) longer, where the peak is that of the vector units without matrix units for the format. FlashAttention-2 splits the
keys only where heads share a KV head (`split_single` 0), and rearranges Q and O so that the heads of a group fill the
rows of a tile (`regroup`). The column `split_kv` overrides that: 0 for kernels that never split, as before Flash-
Decoding, 2 for those that always may; the former were not measured, and an item of theirs takes at least as long as 64
bytes a clock, which the L2 sends to one multiprocessor. A kernel without grouped heads (`grouped`) has an item for each
query head, which starts and ends in `head_prologue`; TensorRT-LLM, which has both, takes it for few items, too
(`BUSY`), and its blocks differ (`GROUPED_BLOCK`). FlashAttention-2 groups no heads under a window (`window_grouped` 0;
seqlenq_ngroups_swapped in its flash_api.cpp). Blocks of keys start anywhere in a window, so that kernels read more keys
than it has: `window_blocks` blocks more, up to all keys. In a benchmark that replays its buffers, the part of the KV
cache in the L2 is read at `l2_speedup` times the memory bandwidth. Where `keys_only` is 1 a benchmark's cache holds
keys, which stand for the values, too: the grouped kernel, which goes through both together, reads half of them from the
L2, the other one passes over them twice. `ungrouped` 1 is a benchmark without the grouped kernel.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import (
    OVERLAP,
    Array,
    Columns,
    Mask,
    aligned,
    ceil_div,
    column,
    has_tensor_memory,
    is_bare,
    l2_bytes,
    numbers,
    overlapped,
    resident_share,
    rounds,
    some,
    text,
    unit_clocks,
    units,
)

SPLITS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128], dtype=np.float64)[:, None]
"""Parts that the keys of a sequence are split into in decode."""

UNIT_FILL = 64.0
"""Bytes a clock from the L2 into one multiprocessor (Jia et al. 2018, Dissecting the NVIDIA Volta GPU Architecture)."""

EXPONENTIALS = 16.0
"""Exponentials a clock and multiprocessor of GPUs whose spec says nothing else: those of NVIDIA's up to Blackwell.

CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions".
"""

KEY_BLOCK = 64.0
"""Keys of a block of a decode kernel."""

GENERAL_DIM = 192.0
"""The head dimension for which libraries lack a kernel."""

GENERAL_SLOWDOWN, GENERAL_ROWS, GENERAL_KEYS = 0.5, 16.0, 32.0
"""The `other_dim` from which a library has no kernel at all, and the rows, heads of a group packed, and keys of the
tiles of vLLM's Triton attention, which runs instead.

BLOCK_M and TILE_SIZE_PREFILL in vllm/attention/ops/triton_unified_attention.py.
"""

GROUP_ROWS = 64.0
"""Query heads of one KV head in a matrix-unit tile in decode."""


KV_WRITE_LAUNCH = 2.8e-6
"""Seconds of launch of the kernel that writes the KV cache: the difference between the shortest rows of public tables
with and without it (vLLM 0.24 and 0.22) on H200 and B200."""

GROUPED = (0.0, 32.0, np.inf)
"""Values of the parameter `grouped`: the largest group of query heads that one item of a decode kernel serves.

Kernels without grouped heads have an item for each query head, which reads the keys again, from the L2. TensorRT-LLM
has both: its grouped kernels serve groups of 2 to 32 where they fill the device (XQA, `BUSY`), those of Blackwell with
HBM all up to 16 (`TENSOR_MEMORY_GROUP`).
"""

TENSOR_MEMORY_GROUP = 16.0
"""The largest group of TensorRT-LLM's grouped kernel for tensor memory (trtllm-gen): larger ones take the time of the
kernel without grouped heads in its public rows of B200."""

NO_BLOCKS = 2e-3
"""Values of `window_blocks` below this mean none; any more starts another block."""

ALONE_BLOCK, GROUPED_BLOCK = 16.0, 128.0
"""Keys of a block where a library has both: of a single head's kernel, and of the grouped one, whose times are flat up
to 128 keys and rise by as much for each 128 more (TensorRT-LLM 1.0 on A100)."""

BUSY = 4.0
"""TensorRT-LLM runs its grouped kernel where a quarter of the multiprocessors have a block of `GROUPED_BLOCK` keys or
a shorter sequence (`mayHavePerfGain` in its decoderXQAImplJIT.cpp)."""


class Tiling(Struct, frozen=True):
    """The tiles of a prefill kernel: query rows and keys; `packed`: the heads of a group fill the rows.

    An `adaptive` kernel has tiles of 16 and 64 rows as well, for short prompts (FlashInfer). A `cpu` kernel has tiles
    of 32, 64 or 256 queries, by their number, of which no fewer start for more queries, and computes no padding; but
    with cached tokens, where it is given a mask, it skips no masked keys (PyTorch's FlashAttentionKernel.cpp).
    """

    name: str
    rows: float
    keys: float
    packed: bool = False
    adaptive: bool = False
    cpu: bool = False

    def rows_for(self, filled: Array) -> Array:
        """Rows of the largest tile, for `filled` rows in all."""
        if self.cpu:
            return np.minimum(filled, np.where(filled < 192, 32.0, np.where(filled < 768, 64.0, self.rows)))
        small = np.where(filled <= 16, 16.0, np.where(filled <= 64, 64.0, self.rows))
        return small if self.adaptive else np.full_like(filled, self.rows)


TILINGS = (
    Tiling("128 x 128", 128, 128),
    Tiling("128 x 128, packed", 128, 128, packed=True),
    Tiling("64 x 128", 64, 128),
    Tiling("256 x 128", 256, 128),
    Tiling("128 x 64", 128, 64),
    Tiling("64 x 64", 64, 64),
    Tiling("128 x 64, packed, adaptive", 128, 64, packed=True, adaptive=True),
    Tiling("cpu", 256, 1, cpu=True),
)
"""The values of the parameter `tiling`; a fit tries each."""

_OTHER_DIM = Parameter(
    "other_dim", Unit.RATIO, 1e-3, 30.0, 1e-3, "slowdown of head dimensions without a kernel", 0.1, local=True
)

PREFILL = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 8e-6, "launch of the kernels: attention, KV write"),
    Parameter("compute_efficiency", Unit.RATIO, 0.05, 1.0, 0.6, "matrix unit's achievable fraction of its peak"),
    Parameter("memory_efficiency", Unit.RATIO, 0.3, 1.0, 0.85, "achievable fraction of memory bandwidth"),
    Parameter("tile_prologue", Unit.SECONDS, 0.01e-6, 30e-6, 1.5e-6, "filling the pipeline and writing one tile"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 1.8, "exponent of the smooth maximum of units and memory"),
    OVERLAP,
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 0.8, "fraction of the kernel that runs in whole waves"),
    Parameter("token", Unit.SECONDS, 0.001e-9, 20e-9, 1e-9, "preparing and writing the KV of one token"),
    Parameter("l2_share", Unit.RATIO, 0.05, 2.0, 0.8, "fraction of the L2 that holds a benchmark's operands"),
    Parameter("l2_speedup", Unit.RATIO, 1.0, 10.0, 2.0, "bandwidth of the L2 relative to the memory's"),
    Parameter("tiling", Unit.CHOICE, 0, 7, 0, "tiles of queries and keys"),
    Parameter(
        "pack_single", Unit.CHOICE, 0, 1, 1, "1: single queries pack the heads of a group in any tiling", start=1
    ),
    Parameter("softmax", Unit.RATIO, 1e-5, 2.0, 1e-5, "clocks of a multiprocessor for one score's softmax", start=0.02),
    _OTHER_DIM,
)

DECODE = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 8.5e-6, "launch of the kernels: attention, KV write"),
    Parameter("memory_efficiency", Unit.RATIO, 0.3, 1.0, 0.9, "achievable fraction of memory bandwidth"),
    Parameter("unit_bandwidth", Unit.BANDWIDTH, 5e9, 1500e9, 100e9, "KV into one multiprocessor"),
    Parameter("tile_prologue", Unit.SECONDS, 0.05e-6, 10e-6, 2e-6, "start and end of one work item"),
    Parameter("combine", Unit.SECONDS, 0.05e-6, 40e-6, 3e-6, "combining eight splits (three doublings)"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 2.0, "exponent of the smooth maximum of units and memory"),
    OVERLAP,
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 0.5, "fraction of the kernel that runs in whole waves"),
    Parameter("sequence", Unit.SECONDS, 0.01e-9, 40e-9, 5e-9, "scheduling and writing the KV of one sequence"),
    Parameter("regroup", Unit.SECONDS, 0.001e-6, 15e-6, 1e-6, "rearranging the heads of a group where batch > 1"),
    Parameter("split_single", Unit.CHOICE, 0, 1, 1, "1: KV heads with one query head are split, too"),
    Parameter("l2_share", Unit.RATIO, 0.05, 2.0, 0.8, "fraction of the L2 that holds a benchmark's KV"),
    Parameter("l2_speedup", Unit.RATIO, 1.0, 10.0, 2.0, "bandwidth of the L2 relative to the memory's"),
    Parameter("grouped", Unit.CHOICE, 0, 2, 2, "heads of a group that share one reading of its keys", start=2),
    Parameter("head_prologue", Unit.SECONDS, 1e-9, 20e-6, 1e-9, "start and end of one head's item", start=1.5e-6),
    Parameter("window_blocks", Unit.RATIO, 1e-3, 2.0, 1e-3, "blocks of keys read beyond a window", start=0.3),
    Parameter("window_grouped", Unit.CHOICE, 0, 1, 1, "0: under a window each query head reads the keys", start=1),
    Parameter(
        "head_slowdown", Unit.RATIO, 1e-6, 100.0, 1e-6, "FLOPs of a group's heads, over the time at the peak", start=0.1
    ),
    _OTHER_DIM,
)


class _Shape(Struct, frozen=True):
    """The columns of an attention measurement as arrays of one shape."""

    batch: Array
    queries: Array
    keys: Array
    heads: Array
    kv_heads: Array
    dim: Array
    window: Array
    causal: Array
    keys_only: Array
    bytes: float
    kv_bytes: float
    arithmetic: str

    @property
    def seen(self) -> Array:
        """Keys that the last query sees."""
        return np.where(self.window > 0, np.minimum(self.keys, self.window), self.keys)

    @property
    def read_keys(self) -> Array:
        """Keys that any query sees."""
        return np.where(self.window > 0, np.minimum(self.keys, self.window + self.queries - 1), self.keys)

    @property
    def kv_traffic(self) -> Array:
        """Bytes of K and V in memory."""
        return (2.0 - self.keys_only) * self.batch * self.kv_heads * self.read_keys * self.dim * self.kv_bytes

    @property
    def activation_traffic(self) -> Array:
        """Bytes of Q and O."""
        return 2.0 * self.batch * self.heads * self.queries * self.dim * self.bytes

    @property
    def kv_write_traffic(self) -> Array:
        """Bytes of new K and V, read and written to the cache."""
        new = 2.0 * self.batch * self.queries * self.kv_heads * self.dim
        return new * (self.bytes + self.kv_bytes)

    @property
    def pairs(self) -> Array:
        """Query-key pairs of one head under the causal mask and the window: sum over queries of the keys seen."""
        cached = self.keys - self.queries
        full = self.queries * cached + self.queries * (self.queries + 1) / 2
        beyond = np.where(self.window > 0, np.maximum(0.0, self.keys - self.window), 0.0)
        first = np.where(self.window > 0, np.maximum(0.0, cached - self.window), 0.0)
        hidden: Array = (beyond * (beyond + 1) - first * (first + 1)) / 2
        return np.where(self.causal > 0, full - hidden, self.queries * self.seen)


def _shape(columns: Columns, hardware: Hardware) -> _Shape:
    names = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    sizes = [column(columns, name) for name in names]
    options = [column(columns, name, usual) for name, usual in (("window", 0.0), ("causal", 1.0), ("keys_only", 0.0))]
    batch, queries, keys, heads, kv_heads, dim, window, causal, keys_only = aligned(*sizes, *options)
    computed = numbers(text(columns, "dtype"))
    kv_bytes, arithmetic = cached(columns, hardware)
    own = (batch, queries, keys, heads, kv_heads, dim, window, causal, keys_only)
    return _Shape(*own, computed.bytes, kv_bytes, arithmetic)


def cached(columns: Columns, hardware: Hardware) -> tuple[float, str]:
    """Bytes of a KV cache element, and the arithmetic of attention."""
    dtype = text(columns, "dtype")
    stored, computed = numbers(text(columns, "kv_dtype", dtype)), numbers(dtype)
    arithmetic = stored.arithmetic if hardware.supports(stored.arithmetic) else computed.arithmetic
    return float(column(columns, "kv_bytes", stored.bytes)), arithmetic


def attention_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds: `max(4 heads d pairs / peak, (Q + O + K + V) / bandwidth)`; `resident`: no memory term."""
    shape = _shape(columns, hardware)
    flops = 4.0 * shape.batch * shape.heads * shape.dim * shape.pairs
    compute = flops / hardware.matrix_peak(shape.arithmetic)
    memory = (shape.kv_traffic + shape.activation_traffic) / hardware.memory_bandwidth
    return np.where(resident, compute, np.maximum(compute, memory))


def prefill_time(
    columns: Columns,
    hardware: Hardware,
    parameters: Mapping[str, float],
    resident: Mask = False,
    *,
    softmax_in_products: float = 0.0,
) -> Array:
    """Seconds for columns `dtype, kv_dtype, batch, q_len, kv_len, heads, kv_heads, head_dim, window`.

    Attention is causal unless `causal` is 0; `kv_bytes` overrides the bytes of a cache element; `uneven` is 1 where
    `head_dim` is a mean over keys and values. `softmax_in_products` are clocks of one score's softmax that
    `compute_efficiency` holds, fitted with `EXPONENTIALS`; hardware with more of them saves a part. See the module for
    the formula. Raises UnknownNameError for an absent column.
    """
    shape = _shape(columns, hardware)
    tiling = TILINGS[int(parameters["tiling"])]
    count, whole = units(hardware), parameters["wave_quantization"]
    single = (shape.queries == 1) & (parameters.get("pack_single", 1.0) > 0.5)
    general = (parameters.get("other_dim", 0.0) > GENERAL_SLOWDOWN) & _is_general(shape.dim, columns)
    group = np.where(tiling.packed | single | general, shape.heads / shape.kv_heads, 1.0)
    filled = shape.queries * group
    rows = np.where(general, np.maximum(GENERAL_ROWS, group), tiling.rows_for(filled))
    block = np.where(general, GENERAL_KEYS, tiling.keys)
    positions = np.minimum(rows / group, shape.queries)
    tiles = filled / rows if tiling.cpu else ceil_div(filled, rows)
    blocks, longest_keys = _tile_keys(shape, positions, tiles, block, tiling.cpu)
    rate = parameters["compute_efficiency"] * hardware.matrix_peak(shape.arithmetic) / count
    longer = EXPONENTIALS / (hardware.exponentials or EXPONENTIALS)
    clocks = parameters.get("softmax", 0.0) * longer - softmax_in_products * (1.0 - longer)
    one_score = 4.0 * shape.dim / rate + clocks * count / unit_clocks(hardware)
    per_key = rows * one_score * slowdown(shape.dim, columns, parameters)
    independent = shape.batch * shape.heads / group
    starts = np.maximum(tiles, np.clip(filled / 64.0, 6.0, 12.0) * (filled >= 192.0)) if tiling.cpu else tiles
    work = independent * (blocks * per_key + starts * parameters["tile_prologue"])
    waves = independent * tiles / count
    on_units = work / count * ((1.0 - whole) + whole * np.ceil(waves) / waves)
    on_units = np.maximum(on_units, longest_keys * per_key + parameters["tile_prologue"])
    traffic = shape.kv_traffic + shape.activation_traffic
    slowness = np.ones_like(traffic)
    if some(resident):
        held = resident * resident_share(traffic, parameters["l2_share"] * l2_bytes(hardware), 4.0)
        slowness = 1.0 - held + held / parameters["l2_speedup"]
    bandwidth = parameters["memory_efficiency"] * hardware.memory_bandwidth
    kernel = overlapped(on_units, slowness * traffic / bandwidth, parameters)
    if is_bare(columns):
        return np.asarray(launch_alone(parameters) + kernel)
    writing = slowness * shape.kv_write_traffic / bandwidth
    return parameters["launch"] + kernel + writing + parameters["token"] * shape.batch * shape.queries


def slowdown(dim: Array, columns: Columns, parameters: Mapping[str, float]) -> Array:
    """The factor h(d) of head dimensions for which a library has no kernel of its own."""
    return np.asarray(1.0 + np.where(_is_general(dim, columns), parameters.get("other_dim", 0.0), 0.0))


def _is_general(dim: Array, columns: Columns) -> NDArray[np.bool_]:
    return np.asarray((dim == GENERAL_DIM) & (column(columns, "uneven", 0.0) == 0))


def _tile_keys(shape: _Shape, positions: Array, tiles: Array, block: Array, cpu: bool) -> tuple[Array, Array]:
    """Keys that all tiles of one head iterate over, and the most of any tile; whole blocks, in closed form.

    Tile i ends at key c + (i+1) r for r positions a tile; the sum over i is an arithmetic series. Keys of a tile are
    rounded up to blocks: by half a block on average where r or c is no multiple of it. A window caps them at w + r.
    """
    cached = shape.keys - shape.queries
    skipping = (shape.causal > 0) & ~((cached > 0) & cpu)
    rounding = np.where((positions % block == 0) & (cached % block == 0), 0.0, block / 2)
    last = np.ceil(shape.keys / block) * block
    cap = np.where(shape.window > 0, np.minimum(last, shape.window + positions + block / 2), last)
    start, step = cached + rounding, positions
    uncapped = np.where(skipping, np.clip(np.floor((cap - start) / step), 0.0, tiles), 0.0)
    total = uncapped * start + step * uncapped * (uncapped + 1) / 2 + (tiles - uncapped) * cap
    return np.maximum(total, block * tiles), cap


def decode_time(columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False) -> Array:
    """Seconds of attention of one or a few new tokens a sequence to its KV cache (the module's formula)."""
    shape = _shape(columns, hardware)
    count, whole, bandwidth = units(hardware), parameters["wave_quantization"], hardware.memory_bandwidth
    group = shape.heads / shape.kv_heads
    alone, block = _items(shape, columns, hardware, parameters)
    prologue = np.where(alone, parameters.get("head_prologue", 0.0), parameters["tile_prologue"])
    if parameters.get("window_grouped", 1.0) < 0.5:
        alone = alone | _has_window(shape, columns)
    read = _keys_read(shape, columns, block, parameters, resident)
    rows = shape.queries * np.where(alone, 1.0, group)
    work = shape.batch * np.where(alone, shape.heads, shape.kv_heads * ceil_div(rows, GROUP_ROWS))
    splits = SPLITS.reshape(-1, *(1 for _ in shape.batch.shape))
    keys = block * ceil_div(read, block * splits)
    waves = work * splits / count
    per_key = 2.0 * shape.dim * shape.kv_bytes / parameters["unit_bandwidth"]
    slower = parameters.get("head_slowdown", 0.0) * count / hardware.matrix_peak(shape.arithmetic)
    per_key = per_key + 4.0 * shape.dim * np.minimum(rows, GROUP_ROWS) * slower
    one = per_key * keys + prologue
    partial = 8.0 * splits * shape.batch * shape.heads * shape.queries * shape.dim / bandwidth
    grouped = shape.heads > shape.kv_heads
    splitting = column(columns, "split_kv", 1.0)
    may_split = (splitting > 0) & (grouped | (splitting > 1) | (parameters["split_single"] > 0.5))
    allowed = (splits == 1) | may_split
    on_units = best_split(rounds(waves, whole) * one, partial, allowed, splits, parameters)
    cache = shape.kv_traffic * (read / shape.seen)
    missing = from_memory(cache, resident, hardware, parameters) * (1.0 + alone * shape.keys_only)
    over_memory = missing / (parameters["memory_efficiency"] * bandwidth) + shape.activation_traffic / bandwidth
    kernel = overlapped(on_units, over_memory, parameters) * slowdown(shape.dim, columns, parameters)
    if np.any(splitting <= 0):
        filling = 2.0 * shape.dim * shape.kv_bytes * keys[0] * count / (UNIT_FILL * unit_clocks(hardware))
        kernel = np.where(splitting > 0, kernel, np.maximum(kernel, rounds(work / count, whole) * filling))
    regrouping = np.where(grouped & (shape.batch > 1), parameters["regroup"], 0.0)
    launch = launch_alone(parameters) if is_bare(columns) else parameters["launch"]
    return launch + kernel + parameters["sequence"] * shape.batch + regrouping


def _items(
    shape: _Shape, columns: Columns, hardware: Hardware, parameters: Mapping[str, float]
) -> tuple[NDArray[np.bool_], Array]:
    """Whether each query head has an item of its own, and the keys of a block."""
    group = shape.heads / shape.kv_heads
    most = GROUPED[int(parameters.get("grouped", len(GROUPED) - 1))]
    alone = np.asarray(group > most)
    if not np.isfinite(most):
        return alone, np.asarray(KEY_BLOCK)
    if has_tensor_memory(hardware):
        alone = group > min(most, TENSOR_MEMORY_GROUP)
    else:
        parts = shape.batch * shape.kv_heads * np.maximum(1.0, np.floor(shape.keys / GROUPED_BLOCK))
        alone = alone | (group == 1) | (BUSY * parts < units(hardware))
    alone = alone | (column(columns, "ungrouped", 0.0) > 0)
    return alone, np.where(alone, ALONE_BLOCK, GROUPED_BLOCK)


def _has_window(shape: _Shape, columns: Columns) -> NDArray[np.bool_]:
    """Whether keys are limited by a window, and not selected."""
    return np.asarray((shape.window > 0) & (column(columns, "selected", 0.0) == 0))


def _keys_read(shape: _Shape, columns: Columns, block: Array, parameters: Mapping[str, float], resident: Mask) -> Array:
    """Keys that a decode kernel reads of each sequence: more than those in a window that hides keys.

    The keys of a model's layer end at its window; a benchmark states them all.
    """
    blocks = parameters.get("window_blocks", 0.0)
    if blocks < NO_BLOCKS:
        return shape.seen
    hides = (shape.keys > shape.window) | ((shape.keys == shape.window) & ~np.asarray(resident))
    beyond = blocks * block * (hides & _has_window(shape, columns))
    most = np.where(shape.keys > shape.window, shape.keys, np.inf)
    return np.asarray(np.minimum(most, shape.seen + beyond))


def keys_over_seen(columns: Columns, hardware: Hardware, parameters: Mapping[str, float]) -> Array:
    """Keys that a decode kernel of a model's layer reads, over those that the last query sees."""
    shape = _shape(columns, hardware)
    _, block = _items(shape, columns, hardware, parameters)
    return np.asarray(_keys_read(shape, columns, block, parameters, False) / shape.seen)


def launch_alone(parameters: Mapping[str, float]) -> float:
    """The launch of attention in a table without the kernel that writes the KV cache."""
    return max(parameters["launch"] - KV_WRITE_LAUNCH, parameters["launch"] / 4)


def best_split(parts: Array, partial: Array, allowed: Array, splits: Array, parameters: Mapping[str, float]) -> Array:
    """Seconds on the units with the fastest of the `allowed` splits: `parts`, then combining the `partial` results."""
    combining = np.where(splits > 1, parameters["combine"] * np.log2(splits) / 3.0 + partial, 0.0)
    fastest: Array = np.min(np.where(allowed, parts + combining, np.inf), axis=0)
    return fastest


def from_memory(cache: Array, resident: Mask, hardware: Hardware, parameters: Mapping[str, float]) -> Array:
    """Effective bytes from memory: the KV cache, less where the L2 holds part of it (`resident` rows)."""
    if not some(resident):
        return cache
    held = resident * resident_share(cache, parameters["l2_share"] * l2_bytes(hardware), 16.0)
    missing: Array = cache * (1.0 - held + held / parameters["l2_speedup"])
    return missing
