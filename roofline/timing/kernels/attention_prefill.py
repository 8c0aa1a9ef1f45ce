"""Time of attention in prefill: query tiles over keys (FlashAttention: Dao, 2023).

A tile of b_m queries iterates over the keys that its last query sees, in blocks of b_n; under a causal mask with c
cached tokens, tile i ends at key c + (i+1) b_m and has kv_i keys; a window keeps the last w keys. S is the number of
multiprocessors, bw the memory bandwidth, e_F `compute_efficiency`, e_B `memory_efficiency`, q `wave_quantization`, p
`sharpness`; G and h(d) are those of `roofline.timing.kernels.attention`:

    tiles      U   = batch heads ceil(q_len / b_m)              or batch kv_heads ceil(G q_len / b_m), heads packed
    one tile   T_i = b_m kv_i h(d) (4 d / (e_F peak / S) + softmax / clock) + tile_prologue
    units      T_S = max(sum T_i / S * ((1 - q) + q ceil(U/S) / (U/S)), longest T_i)
    memory     T_M = (Q + O + K + V) / (e_B bw)
    KV write   T_W = (K + V of new tokens, read and written) / (e_B bw)        appending to the cache
    time       t   = launch + (T_S^p + T_M^p)^(1/p) + T_W + token batch q_len

with p sqrt(1 + max(T_S, T_M) / overlap) for p, since long kernels overlap loads and products better.

Single queries of a group fill one tile in FlashAttention's kernels, which pack no others, and one each in
TensorRT-LLM's and SGLang's of Blackwell (`pack_single`). The exponential of a score and what else each one takes beside
its 4 d FLOPs are not all hidden behind the products: they take `softmax` clocks of a multiprocessor, which computes 16
exponentials in one (FlashAttention-4: on Blackwell they take as long as the products), and half of that with 32 (the
spec's `exponentials`, Blackwell Ultra). General kernels are in Triton: vLLM's has tiles of 16 rows with packed heads,
SGLang's (`extend` 1) 128 queries of a head, and a window hides no keys from it.
"""

from __future__ import annotations

from msgspec import Struct

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.attention import OTHER_DIM, Attention, launch_alone, slowdown
from roofline.timing.kernels.common import OVERLAP, ceil_div, overlapping, reachable_bandwidth, unit_clocks, units
from roofline.timing.kernels.model import Array, Parameters, Term, Terms, one_flag

EXPONENTIALS = 16.0
"""Exponentials a clock and multiprocessor of GPUs whose spec says nothing else: those of NVIDIA's up to Blackwell.

CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions".
"""

GENERAL_SLOWDOWN = 0.5
"""The `other_dim` from which a library has no kernel at all, so that the engine's `GENERAL` one runs."""


class Tiling(Struct, frozen=True):
    """The tiles of a prefill kernel: query rows and keys; `packed`: the heads of a group fill the rows.

    An `adaptive` kernel has tiles of 16 and 64 rows as well, for short prompts (FlashInfer). A `cpu` kernel has tiles
    of 32, 64 or 256 queries, by their number, of which no fewer start for more queries, and computes no padding; but
    with cached tokens, where it is given a mask, it skips no masked keys (PyTorch's FlashAttentionKernel.cpp), if it
    does not test each one and `skips` it (llama.cpp's flash_attn_ext in ggml-cpu/ops.cpp).
    """

    name: str
    rows: float
    keys: float
    packed: bool = False
    adaptive: bool = False
    cpu: bool = False
    skips: bool = False

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
    Tiling("cpu, masked keys skipped", 256, 1, cpu=True, skips=True),
)
"""The values of the parameter `tiling`; a fit tries each."""

GENERAL, EXTEND = Tiling("16 x 32, packed", 16, 32, packed=True), Tiling("128 x 64", 128, 64)
"""The tiles of kernels in Triton for any head dimension: of vLLM's, and of SGLang's, which passes over all keys under a
window, too.

BLOCK_M and TILE_SIZE_PREFILL in vllm/attention/ops/triton_unified_attention.py; extend_attention.py in
sglang/srt/layers/attention/triton_ops, whose loop over new keys ends at the diagonal and starts at the first.
"""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.1e-6, 80e-6, 4e-6, "launch of the kernels: attention, KV write"),
    Parameter("compute_efficiency", Unit.RATIO, 0.05, 1.0, 0.6, "matrix unit's achievable fraction of its peak"),
    Parameter("memory_efficiency", Unit.RATIO, 0.3, 1.0, 0.85, "achievable fraction of memory bandwidth"),
    Parameter("tile_prologue", Unit.SECONDS, 0.01e-6, 30e-6, 1.5e-6, "filling the pipeline and writing one tile"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 1.8, "exponent of the smooth maximum of units and memory"),
    OVERLAP,
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 1.0, "fraction of the kernel that runs in whole waves"),
    Parameter("token", Unit.SECONDS, 0.001e-9, 20e-9, 1e-9, "preparing and writing the KV of one token"),
    Parameter("tiling", Unit.CHOICE, 0, 8, 0, "tiles of queries and keys"),
    Parameter("pack_single", Unit.CHOICE, 0, 1, 1, "1: single queries pack a group's heads in any tiling", start=1),
    Parameter("softmax", Unit.RATIO, 1e-5, 2.0, 1e-5, "clocks of a multiprocessor for one score's softmax", start=0.02),
    OTHER_DIM,
)


def terms(
    shape: Attention,
    hardware: Hardware,
    parameters: Parameters,
    softmax_in_products: float = 0.0,
    bandwidth: float | None = None,
) -> Terms:
    """Launch, tiles on the multiprocessors, traffic, and the kernels that prepare tokens and write the KV cache.

    `softmax_in_products` are clocks of one score's softmax that `compute_efficiency` holds, fitted with `EXPONENTIALS`;
    hardware with more of them saves a part. `bandwidth` is the memory's where it is not another one.
    """
    on_units = _on_units(shape, hardware, parameters, softmax_in_products)
    units = Term("units", "max(all tiles / units, longest tile)", on_units)
    rate = parameters["memory_efficiency"] * (hardware.memory_bandwidth if bandwidth is None else bandwidth)
    traffic = shape.cold * (shape.kv_traffic + shape.activation_traffic)
    memory = Term("memory", "(K + V + Q + O) / (memory_efficiency bandwidth)", traffic, rate)
    if one_flag(shape.bare, "bare"):
        launch = Term("launch", "launch without that of the KV write", launch_alone(parameters))
        return overlapping((launch,), units, memory, parameters)
    launch = Term("launch", "launch", parameters["launch"])
    written = shape.cold * shape.kv_write_traffic
    writing = Term("KV write", "new K and V, read and written, / (memory_efficiency bandwidth)", written, rate)
    tokens = Term("tokens", "token batch q_len", parameters["token"] * shape.batch * shape.q_len)
    return overlapping((launch, writing, tokens), units, memory, parameters)


def encoder_terms(shape: Attention, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of attention in both directions, whose operands move at the clock of the units at most."""
    return terms(shape, hardware, parameters, bandwidth=reachable_bandwidth(hardware))


def _on_units(shape: Attention, hardware: Hardware, parameters: Parameters, softmax_in_products: float) -> Array:
    """Seconds of all tiles on the multiprocessors, no less than those of the longest one."""
    tiling = TILINGS[int(parameters["tiling"])]
    count, whole = units(hardware), parameters["wave_quantization"]
    group, rows, block, window = _tiles(shape, tiling, parameters)
    filled = shape.q_len * group
    positions = np.minimum(rows / group, shape.q_len)
    tiles = filled / rows if tiling.cpu else ceil_div(filled, rows)
    blocks, longest_keys = _tile_keys(shape, window, positions, tiles, block, tiling.cpu and not tiling.skips)
    peak = hardware.matrix_peak(shape.cache.arithmetic(hardware))
    rate = parameters["compute_efficiency"] * peak / count
    longer = EXPONENTIALS / (hardware.exponentials or EXPONENTIALS)
    clocks = parameters.get("softmax", 0.0) * longer - softmax_in_products * (1.0 - longer)
    one_score = 4.0 * shape.head_dim / rate + clocks * count / unit_clocks(hardware)
    per_key = rows * one_score * slowdown(shape, parameters)
    independent = shape.batch * shape.heads / group
    starts = np.maximum(tiles, np.clip(filled / 64.0, 6.0, 12.0) * (filled >= 192.0)) if tiling.cpu else tiles
    work = independent * (blocks * per_key + starts * parameters["tile_prologue"])
    waves = independent * tiles / count
    balanced = work / count * ((1.0 - whole) + whole * np.ceil(waves) / waves)
    return np.asarray(np.maximum(balanced, longest_keys * per_key + parameters["tile_prologue"]))


def _tiles(shape: Attention, tiling: Tiling, parameters: Parameters) -> tuple[Array, Array, Array, Array]:
    """Heads that share a tile, rows of a tile, keys of a block, and the window that the kernel goes by."""
    group = shape.heads / shape.kv_heads
    packs_single = parameters.get("pack_single", 1.0) > 0.5
    packed = tiling.packed | ((shape.q_len == 1) & packs_single)
    together = np.where(packed, group, 1.0)
    rows, block = tiling.rows_for(shape.q_len * together), np.asarray(tiling.keys)
    if parameters.get("other_dim", 0.0) <= GENERAL_SLOWDOWN:
        return together, rows, block, shape.window
    general = shape.is_general
    extending = general & (np.asarray(shape.extend) > 0)
    packing = general & np.logical_not(extending)
    together = np.where(packing, group, np.where(extending, 1.0, together))
    rows = np.where(packing, np.maximum(GENERAL.rows, group), np.where(extending, EXTEND.rows, rows))
    block = np.where(packing, GENERAL.keys, np.where(extending, EXTEND.keys, block))
    return together, rows, block, np.where(extending, 0.0, shape.window)


def _tile_keys(
    shape: Attention, window: Array, positions: Array, tiles: Array, block: Array, whole: bool
) -> tuple[Array, Array]:
    """Keys that all tiles of one head iterate over, and the most of any tile; whole blocks, in closed form.

    Tile i ends at key c + (i+1) r for r positions a tile; the sum over i is an arithmetic series. Keys of a tile are
    rounded up to blocks: by half a block on average where r or c is no multiple of it. A window caps them at w + r.
    With cached tokens a kernel that goes by `whole` rows of a mask iterates over all keys.
    """
    cached = shape.kv_len - shape.q_len
    skipping = (shape.causal > 0) & np.logical_not((cached > 0) & whole)
    rounding = np.where((positions % block == 0) & (cached % block == 0), 0.0, block / 2)
    last = np.ceil(shape.kv_len / block) * block
    cap = np.where(window > 0, np.minimum(last, window + positions + block / 2), last)
    start, step = cached + rounding, positions
    uncapped = np.where(skipping, np.clip(np.floor((cap - start) / step), 0.0, tiles), 0.0)
    total = uncapped * start + step * uncapped * (uncapped + 1) / 2 + (tiles - uncapped) * cap
    return np.maximum(total, block * tiles), cap
