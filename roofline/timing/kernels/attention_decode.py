"""Time of attention in decode: KV splits over multiprocessors ("Flash-Decoding", Dao et al., 2023).

One work item is a KV head of a sequence, with at most 64 query heads; its keys may be split in s parts that are
combined afterwards, which write their results in FP32 and read them again. S is the number of multiprocessors, bw the
memory bandwidth, e_B `memory_efficiency`, q `wave_quantization`, p `sharpness`; G and h(d) are those of
`roofline.timing.kernels.attention`:

    items      U   = batch kv_heads ceil(G q_len / 64)          or batch heads, where each query head has its own
    units      T_S = min over s of  w(U s) (2 d kv_bytes L / s / unit_bandwidth + tile_prologue)
                                    + combine log2(s) / 3 + 8 s batch q_len heads d / bw
    memory     T_M = KV / (e_B bw) + (Q + O) / bw
    time       t   = launch + h(d) (T_S^p + T_M^p)^(1/p) + sequence batch + [G > 1 and batch > 1] regroup

with w(N) = (1 - q) max(1, N / S) + q ceil(N / S), L the keys rounded up to blocks of 64, and p sqrt(1 + max(T_S, T_M) /
overlap) for p, since long kernels overlap loads and products better. The products and the softmax of the query heads of
a group are not all hidden behind the loads: a key takes 4 d G `head_slowdown` / (peak / S) longer, where the peak is
that of the vector units without matrix units for the format. FlashAttention-2 splits the keys only where heads share a
KV head (`split_single` 0), and rearranges Q and O so that the heads of a group fill the rows of a tile (`regroup`). The
column `split_kv` overrides that: 0 for kernels that never split, as before Flash-Decoding, 2 for those that always
may; the former were not measured, and an item of theirs takes at least as long as 64 bytes a clock, which the L2 sends
to one multiprocessor. A kernel without grouped heads (`grouped`) has an item for each query head, which starts and ends
in `head_prologue`; TensorRT-LLM, which has both, takes it for few items, too (`BUSY`), and its blocks differ
(`GROUPED_BLOCK`). FlashAttention-2 groups no heads under a window (`window_grouped` 0; seqlenq_ngroups_swapped in its
flash_api.cpp). TensorRT-LLM's grouped kernel splits the keys by a rule, not as is fastest (`_parts_by_rule`). Blocks of
keys start anywhere in a window, so that kernels read more keys than it has: `window_blocks` blocks more, up to all
keys. Where `keys_only` is 1 the cache holds keys, which stand for the values, too: the grouped kernel, which goes
through both together, reads half of them from the L2, the other one passes over them twice. `ungrouped` is an engine
without the grouped kernel.
"""

from __future__ import annotations

from numpy.typing import NDArray

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.attention import OTHER_DIM, Attention, launch_alone, slowdown
from roofline.timing.kernels.common import OVERLAP, ceil_div, overlapping, rounds, unit_clocks, units
from roofline.timing.kernels.model import Array, Parameters, Term, Terms, one_flag

SPLITS = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128], dtype=np.float64)[:, None]
"""Parts that the keys of a sequence are split into in decode."""

UNIT_FILL = 64.0
"""Bytes a clock from the L2 into one multiprocessor (Jia et al. 2018, Dissecting the NVIDIA Volta GPU Architecture)."""

KEY_BLOCK = 64.0
"""Keys of a block of a decode kernel."""

GROUP_ROWS = 64.0
"""Query heads of one KV head in a matrix-unit tile in decode."""

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
to 128 keys and rise by as much for each 128 more (TensorRT-LLM 1.0 on A100). All engines'
kernels for tensor memory, which are TensorRT-LLM's (trtllm-gen), have blocks of 128 keys too: on B200 their times in
SGLang are flat up to 128."""

MOST_WAVES = 8.0
"""Waves of items up to which the grouped kernel splits the keys (kTargetWaveFactor in decoderXQAConstants.h)."""

BUSY = 4.0
"""TensorRT-LLM runs its grouped kernel where a quarter of the multiprocessors have a block of `GROUPED_BLOCK` keys or
a shorter sequence (`mayHavePerfGain` in its decoderXQAImplJIT.cpp)."""


PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.1e-6, 80e-6, 4.5e-6, "launch of the kernels: attention, KV write"),
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
    Parameter("grouped", Unit.CHOICE, 0, 2, 2, "heads of a group that share one reading of its keys", start=2),
    Parameter("head_prologue", Unit.SECONDS, 1e-9, 20e-6, 1e-9, "start and end of one head's item", start=1.5e-6),
    Parameter("window_blocks", Unit.RATIO, 1e-3, 2.0, 1e-3, "blocks of keys read beyond a window", start=0.3),
    Parameter("window_grouped", Unit.CHOICE, 0, 1, 1, "0: under a window each query head reads the keys", start=1),
    Parameter(
        "head_slowdown", Unit.RATIO, 1e-6, 100.0, 1e-6, "FLOPs of a group's heads, over the time at the peak", start=0.1
    ),
    OTHER_DIM,
)


def terms(shape: Attention, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, items on the multiprocessors, traffic, and what each sequence and the regrouping of heads take."""
    bandwidth = hardware.memory_bandwidth
    alone, block = _items(shape, hardware, parameters)
    prologue = np.where(alone, parameters.get("head_prologue", 0.0), parameters["tile_prologue"])
    if parameters.get("window_grouped", 1.0) < 0.5:
        alone = alone | _has_window(shape)
    read = _keys_read(shape, block, parameters)
    on_units, filling = _on_units(shape, alone, prologue, block, read, hardware, parameters)
    cache = shape.kv_traffic * (read / shape.seen) * shape.cold * (1.0 + alone * shape.keys_only)
    over_memory = cache / (parameters["memory_efficiency"] * bandwidth) + shape.activation_traffic / bandwidth
    grouped = (shape.heads > shape.kv_heads) & (shape.batch > 1)
    launch = launch_alone(parameters) if one_flag(shape.bare, "bare") else parameters["launch"]
    found = overlapping(
        (
            Term("launch", "launch", launch),
            Term("sequences", "sequence batch", parameters["sequence"] * shape.batch),
            Term("regrouping", "regroup, where heads share keys", np.where(grouped, parameters["regroup"], 0.0)),
        ),
        Term("units", "min over splits of waves x (keys of a split / unit bandwidth + prologue) + combining", on_units),
        Term("memory", "(K + V) / (memory_efficiency bandwidth) + (Q + O) / bandwidth", over_memory),
        parameters,
        slowdown(shape, parameters),
    )
    if filling is None:
        return found
    kernel = Term("kernel", "units and memory together", found.overlapped)
    return Terms(found.serial, Term("filling", "keys from the L2 into the multiprocessors", filling), kernel, np.inf)


def cache_bytes(shape: Attention, hardware: Hardware, parameters: Parameters) -> Array:
    """Bytes of keys and values that the kernel reads, each once."""
    _, block = _items(shape, hardware, parameters)
    return np.asarray(shape.kv_traffic * (_keys_read(shape, block, parameters) / shape.seen))


def _on_units(
    shape: Attention,
    alone: NDArray[np.bool_],
    prologue: Array,
    block: Array,
    read: Array,
    hardware: Hardware,
    parameters: Parameters,
) -> tuple[Array, Array | None]:
    """Seconds of all items with the fastest split of the keys; of kernels that never split, the least beside it."""
    count, whole, bandwidth = units(hardware), parameters["wave_quantization"], hardware.memory_bandwidth
    rows = shape.q_len * np.where(alone, 1.0, shape.heads / shape.kv_heads)
    work = shape.batch * np.where(alone, shape.heads, shape.kv_heads * ceil_div(rows, GROUP_ROWS))
    per_key = 2.0 * shape.head_dim * shape.cache.bytes / parameters["unit_bandwidth"]
    slower = parameters.get("head_slowdown", 0.0) * count / hardware.matrix_peak(shape.cache.arithmetic(hardware))
    per_key = per_key + 4.0 * shape.head_dim * np.minimum(rows, GROUP_ROWS) * slower
    waves, keys = work / count, block * ceil_div(read, block)
    unsplit = rounds(waves, whole) * (per_key * keys + prologue)
    if shape.split_kv <= 0:
        filling = 2.0 * shape.head_dim * shape.cache.bytes * keys * count / (UNIT_FILL * unit_clocks(hardware))
        return unsplit, rounds(waves, whole) * filling
    # Parts read as many keys, and each has a prologue: where many items run anyway no split is faster.
    may_split = (shape.heads > shape.kv_heads) | (shape.split_kv > 1 or parameters["split_single"] > 0.5)
    ruled = _has_rule(shape, hardware, parameters) & np.logical_not(alone)
    if not np.any(may_split & (ruled | (unsplit > waves * (per_key * read + 2.0 * prologue)))):
        return unsplit, None
    splits = SPLITS.reshape(-1, *(1 for _ in np.shape(shape.batch)))
    splits = np.where(ruled, _parts_by_rule(shape.kv_len, waves), splits)
    partial = 8.0 * shape.batch * shape.heads * shape.q_len * shape.head_dim / bandwidth * splits
    parts = rounds(work * splits / count, whole) * (per_key * (block * ceil_div(read, block * splits)) + prologue)
    fastest = best_split(parts, partial, splits, parameters)
    return (fastest if np.all(may_split) else np.where(may_split, fastest, unsplit)), None


def _has_rule(shape: Attention, hardware: Hardware, parameters: Parameters) -> bool:
    """Whether the library splits the keys of its grouped kernel by `_parts_by_rule`: that of 16-bit caches.

    FP8 caches have another kernel on Hopper, whose times do not follow the rule under a window.
    """
    has_both = GROUPED[int(parameters.get("grouped", len(GROUPED) - 1))] < np.inf
    return has_both and shape.cache.bytes > 1 and not hardware.has_tensor_memory


def _parts_by_rule(keys: Array, waves: Array) -> Array:
    """Parts of a sequence of `keys`, also of those that a window hides, with `waves` of items before the split.

    One for each `GROUPED_BLOCK` keys, but no more than the root of 8 times as many, nor than make `MOST_WAVES` in all
    (`computeMultiBlockCount` in TensorRT-LLM's decoderXQAImplCommon.h).
    """
    blocks = np.floor(keys / GROUPED_BLOCK)
    parts = np.minimum(blocks, np.floor(np.sqrt(8.0 * blocks) + 0.5))
    return np.maximum(1.0, np.minimum(parts, np.floor(MOST_WAVES / waves)))


def _items(shape: Attention, hardware: Hardware, parameters: Parameters) -> tuple[NDArray[np.bool_], Array]:
    """Whether each query head has an item of its own, and the keys of a block."""
    group = shape.heads / shape.kv_heads
    most = GROUPED[int(parameters.get("grouped", len(GROUPED) - 1))]
    alone = np.asarray(group > most)
    if not np.isfinite(most):
        return alone, np.asarray(GROUPED_BLOCK if hardware.has_tensor_memory else KEY_BLOCK)
    if hardware.has_tensor_memory:
        alone = group > min(most, TENSOR_MEMORY_GROUP)
    else:
        parts = shape.batch * shape.kv_heads * np.maximum(1.0, np.floor(shape.kv_len / GROUPED_BLOCK))
        alone = alone | (group == 1) | (BUSY * parts < units(hardware))
    alone = alone | (np.asarray(shape.ungrouped) > 0)
    return alone, np.where(alone, ALONE_BLOCK, GROUPED_BLOCK)


def _has_window(shape: Attention) -> NDArray[np.bool_]:
    """Whether keys are limited by a window, and not selected."""
    return np.asarray((shape.window > 0) & (not shape.selected))


def _keys_read(shape: Attention, block: Array, parameters: Parameters) -> Array:
    """Keys that a decode kernel reads of each sequence: those that the last query sees, and more beyond a window."""
    blocks = parameters.get("window_blocks", 0.0)
    if blocks < NO_BLOCKS:
        return shape.seen
    hides = (shape.kv_len > shape.window) | ((shape.kv_len == shape.window) & np.logical_not(shape.all_keys))
    beyond = blocks * block * (hides & _has_window(shape))
    most = np.where(shape.kv_len > shape.window, shape.kv_len, np.inf)
    return np.asarray(np.minimum(most, shape.seen + beyond))


def best_split(parts: Array, partial: Array, splits: Array, parameters: Parameters) -> Array:
    """Seconds on the units with the fastest of the splits: `parts`, then combining the `partial` results."""
    fastest: Array = (parts + (splits > 1) * (parameters["combine"] / 3.0 * np.log2(splits) + partial)).min(axis=0)
    return fastest
