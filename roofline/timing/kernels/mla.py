"""Time of MLA (multi-head latent attention): prefill over the keys and values of all heads, decode over latents.

Prefill is that of other attention over keys and values that are expanded to all heads, or over latents with one KV head
(SGLang's tables of Hopper), with 3.4 times the FLOPs. In decode (absorbed) one latent a token serves as KV of all query
heads.

A latent has d_c + d_r elements (512 and 64 of DeepSeek); scores use all of it, the weighted sum its first d_c. Tiles
have R rows of query heads (`rows`: 16 or 64), full or not. The keys of a sequence are split in s parts that are
combined afterwards (`split`): TensorRT-LLM's kernels for Ampere and Ada, and for Blackwell with GDDR, never do so;
vLLM's in Triton makes four parts (num_kv_splits in its triton_mla.py of 0.14), later the power of two that leaves at
least 512 keys each (vllm-project/vllm, pull request 46832); the others choose. S is the number of multiprocessors, L
the keys rounded up to blocks of 64, b the bytes of a latent's element:

    tiles      U   = batch ceil(q_len heads / R)
    one key    T_k = max(2 R (2 d_c + d_r) / (e_F peak / S), (d_c + d_r) b / unit_bandwidth)
    units      T_S = min over s of  w(U s) (T_k L / s + tile_prologue) + combine log2(s) / 3
                                    + 8 s batch q_len heads d_c / bw
    memory     T_M = batch keys (d_c + d_r) b / (e_B bw)
    time       t   = launch + (T_S^p + T_M^p)^(1/p)

with w(N) = (1 - q) max(1, N / S) + q ceil(N / S), as in other decode attention (`roofline.timing.kernels.attention`).
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

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels import attention
from roofline.timing.kernels.attention import KEY_BLOCK, SPLITS, best_split, cached, from_memory
from roofline.timing.kernels.common import (
    Array,
    Columns,
    Mask,
    aligned,
    benchmarked,
    ceil_div,
    column,
    host_parameter,
    rounds,
    smooth_maximum,
    units,
)

FOUR, LEAST_KEYS = 4.0, 512.0
"""Parts of the keys in vLLM's Triton kernel of 0.14, and the least keys of one in its successor."""

ROWS = (16.0, 64.0)
"""Query heads of a tile: of Triton's kernel; of FlashMLA's, and of a warp group in FlashAttention-3 and FlashInfer."""

LAUNCH = 5e-6
"""Seconds of launch, before any data, and of a difference of two times, which has none (other decode attention takes 4
to 6 us in a step)."""

RESCHEDULES = re.compile(r"TensorRT-LLM v?(0|1\.[0-2]|1\.3\.0rc[0-7])\b", re.IGNORECASE)
"""Engine and version that plan FlashMLA's work in every layer; see the module."""

PLAN, PLAN_PART, PLAN_SEQUENCE, PLAN_WORK = 1.7e-6, 80e-9, 45e-9, 60e-9
"""Seconds of FlashMLA's plan: in all, a part of the multiprocessors, a sequence, and a part with keys.

From the short and the long contexts of TensorRT-LLM's BF16 tables on H100; on the others the median error is the same,
1% of 1.2.0rc5's time.
"""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, LAUNCH, "launch of the kernel"),
    Parameter("compute_efficiency", Unit.RATIO, 0.02, 1.0, 0.6, "matrix unit's achievable fraction of its peak"),
    Parameter("memory_efficiency", Unit.RATIO, 0.03, 1.0, 0.85, "achievable fraction of memory bandwidth"),
    Parameter("unit_bandwidth", Unit.BANDWIDTH, 2e9, 1500e9, 60e9, "latents into one multiprocessor"),
    Parameter("tile_prologue", Unit.SECONDS, 0.05e-6, 20e-6, 2e-6, "start and end of one work item"),
    Parameter("combine", Unit.SECONDS, 0.05e-6, 40e-6, 3e-6, "combining eight splits (three doublings)"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 3.0, "exponent of the smooth maximum of units and memory"),
    Parameter("wave_quantization", Unit.RATIO, 0.01, 1.0, 0.3, "fraction of the kernel that runs in whole waves"),
    Parameter("l2_share", Unit.RATIO, 0.05, 2.0, 0.8, "fraction of the L2 that holds a benchmark's latents"),
    Parameter("l2_speedup", Unit.RATIO, 1.0, 10.0, 2.0, "bandwidth of the L2 relative to the memory's"),
    Parameter("rows", Unit.CHOICE, 0, 1, 1, "query heads of a tile", start=1),
    Parameter("split", Unit.CHOICE, 0, 3, 1, "parts of keys: 0 one, 1 any, 2 four, 3 of at least 512 keys", start=1),
)


PREFILL = (
    *(one for one in attention.PREFILL if one.name not in ("pack_single", "softmax", "other_dim")),  # heads of one size
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
    time = attention.prefill_time(chosen, hardware, parameters, resident, softmax_in_products=SOFTMAX)
    return benchmarked(time, parameters, resident)


def prefill_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds of `prefill_time`, over expanded keys and values."""
    return attention.attention_bound(_expanded(columns), hardware, resident)


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


def _allowed(splits: Array, keys: Array, rule: int) -> Any:
    """Whether the keys may be in so many parts, by the choice `split`."""
    match rule:
        case 0:
            return splits == 1
        case 2:
            return splits == FOUR
        case 3:
            return splits == np.clip(2.0 ** np.floor(np.log2(np.maximum(keys / LEAST_KEYS, 1.0))), 1.0, splits.max())
    return splits > 0


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
    splits = SPLITS.reshape(-1, *(1 for _ in batch.shape))
    rows = ROWS[int(parameters.get("rows", 1.0))]
    waves = batch * ceil_div(queries * heads, rows) * splits / count
    multiply = 2.0 * rows * (2.0 * latent + rope) * count
    multiply = multiply / (parameters["compute_efficiency"] * hardware.matrix_peak(arithmetic))
    per_key = np.maximum(multiply, (latent + rope) * width / parameters["unit_bandwidth"])
    one = KEY_BLOCK * ceil_div(keys, KEY_BLOCK * splits) * per_key
    sparse = column(columns, "by_token", 0.0) > 0
    one = one + np.where(sparse, 0.0, parameters["tile_prologue"])
    partial = 8.0 * splits * batch * queries * heads * latent / bandwidth
    allowed = _allowed(splits, keys, int(parameters.get("split", 1.0)))
    parts = rounds(waves, parameters["wave_quantization"]) * one + np.where(sparse, parameters["tile_prologue"], 0.0)
    on_units = best_split(parts, partial, allowed, splits, parameters)
    moved = from_memory(batch * keys * (latent + rope) * width, resident, hardware, parameters)
    over_memory = moved / (parameters["memory_efficiency"] * bandwidth)
    return smooth_maximum(on_units, over_memory, parameters["sharpness"])
