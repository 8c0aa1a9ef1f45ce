"""Time of MLA (multi-head latent attention): prefill over the keys and values of all heads, decode over latents.

Prefill is that of other attention over keys and values that are expanded to all heads, or over latents with one KV head
(SGLang's tables of Hopper), with 3.4 times the FLOPs. In decode (absorbed) one latent a token serves as KV of all query
heads.

A latent has d_c + d_r elements (512 and 64 of DeepSeek); scores use all of it, the weighted sum its first d_c. Tiles
have R rows of query heads, full or not, and m multiprocessors share the reading of the latents of one. The keys of a
sequence are split in s parts that are combined afterwards. S is the number of multiprocessors, L the keys rounded up to
blocks of 64, b the bytes of a latent's element:

    tiles      U   = batch ceil(q_len heads / R)
    one key    T_k = max(2 R (2 d_c + d_r) S / rate, (d_c + d_r) b / (m unit_bandwidth))
    units      T_S = min over s of  w(U s) (T_k L / s + tile_prologue) + combine log2(s) / 3
                                    + 8 s batch q_len heads d_c / bw
    memory     T_M = r batch keys (d_c + d_r) b (1 / (e_B bw) + 1 / (S conversion))
                                    + batch q_len heads (b_q (d_c + d_r) + 2 d_c) / bw
    time       t   = launch + (T_S^p + T_M^p)^(1/p)                  with p sqrt(1 + max(T_S, T_M) / overlap) for p

with w(N) = (1 - q) max(1, N / S) + q ceil(N / S), as in `roofline.timing.kernels.attention_decode`. Queries are read
and results written in 16 bits (b_q = 2); for products in 8 bits queries are converted before, which reads, writes and
reads them again (b_q = 4). Some libraries convert latents of 8 bits for products in 16, on the multiprocessors
(`conversion`): SGLang's and vLLM 0.14's on Hopper take as long on H100 as on H200.

Hopper and Blackwell with HBM have kernels of their own, which all engines run: FlashMLA's and FlashAttention-3's with
R = 64, and those of trtllm-gen. These have tiles of 16 heads for up to 32, and for more where so many tiles are on the
multiprocessors at once with at most 1024 keys each, otherwise of 64, and m = 2 with 128 heads
(selectMlaGenerationKernel in fmhaKernels.h of NVIDIA/TensorRT-LLM and of FlashInfer). There the rate is e_F peak, and s
any.

NVIDIA's other GPUs multiply `mma_rate` FLOP in a clock of a multiprocessor, whatever their peak: 200 in Triton's
kernels and 600 to 1000 in TensorRT-LLM's, on A100, L40S and RTX PRO 6000; other vendors' GPUs no more than that, nor
than e_F peak. `rows` and `split` say which kernel. TensorRT-LLM's never splits the keys. SGLang's in Triton makes up to
eight parts, vLLM's four, and since 0.20 the next power of two of keys / 512, up to two a multiprocessor
(vllm-project/vllm, pull request 33529). Triton's blocks start with those of the first heads of all sequences: tiles of
other heads that start later read the latents again,

    rereads    r   = min(max(U / S, 1), ceil(q_len heads / R)),     R = 16

vLLM's public benchmarks time whole modules, projections included: the time of one less that of the same with
fewer keys (`less_kv`) is that of the formula less that of the formula with so many. Latents of a benchmark that stay in
the L2 are read at `l2_speedup` times the memory bandwidth.

FlashMLA's kernel for Hopper is told beforehand which keys each multiprocessor takes. A single thread plans that, once a
step, but in TensorRT-LLM before 1.3.0rc8 in every layer (`scheduled`; NVIDIA/TensorRT-LLM, pull request 12161). It
goes through P parts of the multiprocessors and the sequences, and longer where a part has keys at all:

    plan       t_P = 1.7 us + 80 ns P + 45 ns batch + 60 ns min(P, batch L / 64),      P = S / ceil(q_len heads / 64)

which is the time that 1.2.0rc5 takes beyond 1.3.0rc10 in public tables, on H100 and H200, with caches in 16 and 8 bits.

In sparse attention (DSA, DeepSeek-V3.2) every token attends to its own keys, picked by an indexer (`by_token`). Each
token of a prompt is then a sequence: `batch` is the number of tokens, `keys` the mean number of their keys. Tiles start
while others end, so that the prologue counts once (the published times of FlashMLA's sparse prefill, which the tests
have: 8 to 60% too long otherwise, 36% at most so).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.specs.version import Releases
from roofline.timing.kernels import attention_prefill
from roofline.timing.kernels.attention import attention_bound, cached
from roofline.timing.kernels.attention_decode import KEY_BLOCK, SPLITS, best_split, from_memory
from roofline.timing.kernels.common import (
    OVERLAP,
    Array,
    Columns,
    Mask,
    aligned,
    benchmarked,
    ceil_div,
    column,
    has_tensor_memory,
    host_parameter,
    numbers,
    overlapped,
    rounds,
    text,
    unit_clocks,
    units,
)

FOUR, EIGHT, PART_KEYS, PARTS = 4.0, 8.0, 512.0, 2.0
"""Parts of the keys in Triton's kernels: of vLLM's `FOUR_PARTS`, the most of SGLang (its default of
`--triton-attention-num-kv-splits`), and of vLLM since: the keys of one, and the most on a multiprocessor."""

ROWS = (16.0, 64.0)
"""Query heads of a tile: of Triton's kernel; of FlashMLA's, and of a warp group in FlashAttention-3 and FlashInfer."""

GEN_STEP, GEN_KEYS = 256.0, 1024.0
"""Keys of a step of trtllm-gen's kernels, and the most of one multiprocessor with tiles of 16 query heads for any."""

LAUNCH = 5e-6
"""Seconds of launch, before any data, and of a difference of two times, which has none (other decode attention takes 4
to 6 us in a step)."""

RESCHEDULES = Releases("tensorrt-llm", before="1.3.0rc8")
"""Versions that plan FlashMLA's work in every layer; see the module."""

FOUR_PARTS = Releases("vllm", before="0.20")
"""vLLM's versions whose Triton kernel has `FOUR` parts of the keys: before pull request 33529, of April 2026."""

PLAN, PLAN_PART, PLAN_SEQUENCE, PLAN_WORK = 1.7e-6, 80e-9, 45e-9, 60e-9
"""Seconds of FlashMLA's plan: in all, a part of the multiprocessors, a sequence, and a part with keys.

From the short and the long contexts of TensorRT-LLM's BF16 tables on H100; on the others the median error is the same,
1% of 1.2.0rc5's time.
"""

CONVERSION = Parameter(
    "conversion", Unit.BANDWIDTH, 1e9, 1e13, 1e13, "cached latents that a multiprocessor converts", 300e9, local=True
)

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, LAUNCH, "launch of the kernel"),
    Parameter("compute_efficiency", Unit.RATIO, 0.02, 1.0, 0.6, "matrix unit's achievable fraction of its peak"),
    Parameter("mma_rate", Unit.RATIO, 20, 4096, 4096, "FLOP in a clock of a multiprocessor of other GPUs", start=400),
    Parameter("memory_efficiency", Unit.RATIO, 0.6, 1.0, 0.85, "achievable fraction of memory bandwidth"),
    Parameter("unit_bandwidth", Unit.BANDWIDTH, 2e9, 1500e9, 60e9, "latents into one multiprocessor"),
    Parameter("tile_prologue", Unit.SECONDS, 0.05e-6, 20e-6, 2e-6, "start and end of one work item"),
    Parameter("combine", Unit.SECONDS, 0.05e-6, 40e-6, 3e-6, "combining eight splits (three doublings)"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 3.0, "exponent of the smooth maximum of units and memory"),
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 0.3, "fraction of the kernel that runs in whole waves"),
    Parameter("l2_share", Unit.RATIO, 0.05, 2.0, 0.8, "fraction of the L2 that holds a benchmark's latents"),
    Parameter("l2_speedup", Unit.RATIO, 1.0, 10.0, 2.0, "bandwidth of the L2 relative to the memory's"),
    Parameter("rows", Unit.CHOICE, 0, 1, 1, "query heads of other GPUs' tiles: 0 16 (Triton), 1 64", start=1),
    Parameter("split", Unit.CHOICE, 0, 3, 1, "their parts of the keys: 0 one, 1 any, 2 vLLM's, 3 up to 8", start=1),
)


def parameters_of(format: str) -> tuple[Parameter, ...]:
    """The parameters of decode: with a cache in another format, such as bf16/fp8, `CONVERSION`, otherwise `OVERLAP`."""
    return (*PARAMETERS, CONVERSION if "/" in format else OVERLAP)


PREFILL = (
    *(
        one for one in attention_prefill.PARAMETERS if one.name not in ("pack_single", "softmax", "other_dim")
    ),  # heads of one size
    Parameter("absorbed", Unit.CHOICE, 0, 1, 0, "1: queries attend to latents, as in decode", start=0),
    host_parameter(1e-3, 150e-6),
)

SOFTMAX = 0.05
"""Clocks of a multiprocessor for one score's softmax in prefill, which heads of one size do not tell from the products.

The constants hold it; GPUs with more exponentials a clock save a part. TensorRT-LLM's FP8 prefill on B200 takes 0.097
in all, and half of these less where exponentials take half the time: the 1.35 times that NVIDIA publishes for
DeepSeek-V3 on GB300 over GB200 ("Making Softmax More Efficient with NVIDIA Blackwell Ultra"). Other attention there
takes 0.03 to 0.06.
"""

MLA_DIMS, LATENT_DIMS = (128 + 64 + 128) / 2, (512 + 64 + 512) / 2
"""Mean dimension of DeepSeek's keys and values: of each head's expanded ones, and of the latents of all heads."""


def prefill_time(
    columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False
) -> Array:
    """Seconds of MLA prefill for columns `..., batch, q_len, kv_len, heads`.

    Keys and values are expanded to every head, or `absorbed`: all heads attend to latents, with 3.4 times the FLOPs.
    """
    absorbed = {**columns, "kv_heads": 1.0, "head_dim": LATENT_DIMS}
    chosen = absorbed if parameters.get("absorbed", 0.0) > 0 else _expanded(columns)
    time = attention_prefill.prefill_time(chosen, hardware, parameters, resident, softmax_in_products=SOFTMAX)
    return benchmarked(time, parameters, resident)


def prefill_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds of `prefill_time`, over expanded keys and values."""
    return attention_bound(_expanded(columns), hardware, resident)


def _expanded(columns: Columns) -> Columns:
    """The columns of attention with a KV head for each query head."""
    return {**columns, "kv_heads": columns["heads"], "head_dim": MLA_DIMS}


def _sizes(columns: Columns) -> tuple[Array, ...]:
    names = ("batch", "q_len", "kv_len", "heads", "latent", "rope")
    return aligned(*(column(columns, name) for name in names))


def mla_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds: the FLOPs of all heads, or the latents read once."""
    batch, queries, keys, heads, latent, rope = _sizes(columns)
    keys = keys - column(columns, "less_kv", 0.0)
    width, arithmetic = cached(columns, hardware)
    compute = 2.0 * batch * queries * heads * keys * (2.0 * latent + rope) / hardware.matrix_peak(arithmetic)
    memory = batch * keys * (latent + rope) * width / hardware.memory_bandwidth
    # Under a causal mask, earlier ones of several queries see fewer keys.
    compute = np.where(queries > 1, compute * (keys - (queries - 1.0) / 2.0) / keys, compute)
    return np.where(resident, compute, np.maximum(compute, memory))


def has_own_kernels(hardware: Hardware) -> bool:
    """Whether there are kernels for the matrix instructions of such GPUs: FlashMLA's and trtllm-gen's."""
    return hardware.family == "hopper" or has_tensor_memory(hardware)


def _tiles(columns: Columns, hardware: Hardware, parameters: Mapping[str, float]) -> tuple[Array, Array]:
    """Query heads of a tile, and the multiprocessors that share the reading of its latents."""
    few, many = ROWS
    if hardware.family == "hopper":
        return np.asarray(many), np.asarray(1.0)
    if not has_tensor_memory(hardware):
        return np.asarray(ROWS[int(parameters.get("rows", 1.0))]), np.asarray(1.0)
    batch, queries, keys, heads, *_ = _sizes(columns)
    tiles = batch * queries * ceil_div(heads, few)
    splits = np.minimum(ceil_div(keys, GEN_STEP), np.maximum(np.floor(units(hardware) / tiles), 1.0))
    small = (heads <= 2 * few) | ((tiles <= units(hardware)) & (keys <= splits * GEN_KEYS))
    small = small & (column(columns, "by_token", 0.0) == 0)
    return np.where(small, few, many), np.where(small | (heads < 2 * many), 1.0, 2.0)


def _splits(columns: Columns, keys: Array, hardware: Hardware, rule: int) -> Array:
    """The numbers of parts that the keys may be in, by the choice `split`, along the first axis."""
    every = SPLITS.reshape(-1, *(1 for _ in keys.shape))
    if has_own_kernels(hardware):
        return every
    match rule:
        case 0:
            return every[:1]
        case 2:
            parts = 2.0 ** np.ceil(np.log2(np.maximum(np.floor(keys / PART_KEYS), 1.0)))
            parts = np.minimum(parts, PARTS * units(hardware))
            return np.where(column(columns, "four", 0.0) > 0, FOUR, parts)[None]
        case 3:
            return every[every.ravel() <= EIGHT]
    return every


def mla_time(columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False) -> Array:
    """Seconds for columns `dtype, kv_dtype, batch, q_len, kv_len, heads, latent, rope` (the module's formula).

    Rows with `less_kv` above zero are differences of a benchmark: the time less that of so many keys, and the launch.
    """
    time = _kernel_time(columns, hardware, parameters, resident)
    if hardware.family == "hopper" and np.any(scheduled := column(columns, "scheduled", 0.0)):
        time = time + scheduled * _plan(columns, hardware)
    less = column(columns, "less_kv", 0.0)
    if not np.any(less > 0):
        return np.asarray(parameters["launch"] + time)
    fewer = _kernel_time({**columns, "kv_len": np.maximum(less, 1.0)}, hardware, parameters, resident)
    return np.where(less > 0, LAUNCH + time - fewer, parameters["launch"] + time)


def _plan(columns: Columns, hardware: Hardware) -> Array:
    """Seconds of the kernel that plans FlashMLA's work."""
    batch, queries, keys, heads, *_ = _sizes(columns)
    parts = units(hardware) / ceil_div(queries * heads, ROWS[1])
    busy = np.minimum(parts, batch * ceil_div(keys, KEY_BLOCK))
    return np.asarray(PLAN + PLAN_PART * parts + PLAN_SEQUENCE * batch + PLAN_WORK * busy)


def _kernel_time(columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask) -> Array:
    """Seconds without the launch."""
    batch, queries, keys, heads, latent, rope = _sizes(columns)
    width, arithmetic = cached(columns, hardware)
    count, bandwidth = units(hardware), hardware.memory_bandwidth
    splits = _splits(columns, keys, hardware, int(parameters.get("split", 1.0)))
    rows, sharing = _tiles(columns, hardware, parameters)
    tiles = ceil_div(queries * heads, rows)
    multiply = 2.0 * rows * (2.0 * latent + rope) * count / _rate(arithmetic, hardware, parameters)
    per_key = np.maximum(multiply, (latent + rope) * width / (sharing * parameters["unit_bandwidth"]))
    one = KEY_BLOCK * ceil_div(keys, KEY_BLOCK * splits) * per_key
    sparse = column(columns, "by_token", 0.0) > 0
    one = one + np.where(sparse, 0.0, parameters["tile_prologue"])
    partial = 8.0 * splits * batch * queries * heads * latent / bandwidth
    waves = rounds(batch * tiles * splits / count, parameters["wave_quantization"])
    parts = waves * one + np.where(sparse, parameters["tile_prologue"], 0.0)
    on_units = best_split(parts, partial, np.asarray(True), splits, parameters)
    moved = from_memory(batch * keys * (latent + rope) * width, resident, hardware, parameters)
    if not has_own_kernels(hardware) and int(parameters.get("rows", 1.0)) == 0:
        moved = moved * np.clip(batch * tiles / count, 1.0, tiles)
    conversion = parameters.get("conversion", CONVERSION.default) * count
    activations = activation_bytes(columns, hardware)
    rate = 1.0 / (parameters["memory_efficiency"] * bandwidth) + 1.0 / conversion
    return overlapped(on_units, moved * rate + activations / bandwidth, parameters)


def activation_bytes(columns: Columns, hardware: Hardware) -> Array:
    """Bytes of queries read and results written; see the module."""
    batch, queries, _, heads, latent, rope = _sizes(columns)
    query = 2.0 if cached(columns, hardware)[1] == numbers(text(columns, "dtype")).arithmetic else 4.0
    return batch * queries * heads * (query * (latent + rope) + 2.0 * latent)


def _rate(arithmetic: str, hardware: Hardware, parameters: Mapping[str, float]) -> float:
    """FLOP/s of the products of all multiprocessors."""
    peak = hardware.matrix_peak(arithmetic)
    if has_own_kernels(hardware) or hardware.kind != "gpu":
        return parameters["compute_efficiency"] * peak
    if hardware.vendor != "NVIDIA":
        peak *= parameters["compute_efficiency"]
    return min(peak, parameters["mma_rate"] * unit_clocks(hardware))
