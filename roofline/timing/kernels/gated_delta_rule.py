"""Time of the gated delta rule in prefill: a linear attention with a state a head that every token updates.

Kernels process chunks of C = 64 tokens (Yang et al., 2024): GEMMs within a chunk, and the state from chunk to chunk.
H heads of d_k by d_v, L tokens a sequence, B sequences, S units:

    recurrence     T_C = L token ceil(B H / S)              the heads of a unit one after another, chunk after chunk
    GEMMs          T_F = B L H (6 d_k d_v + 2 C (3 d_k + 2 d_v)) / (e_F peak)
    memory         T_M = (operands + intermediate_traffic x intermediates) / bw
    time           t   = launch + (T_C^p + T^p)^(1/p),     T = T_F + T_M of chunked kernels, max(T_F, T_M) of fused ones

The `chunked` variant (FLA's, in Triton) is a series of kernels that pass w, u, the inverse of a chunk's triangle, the
states of all chunks and the new values through memory; all but one of them process the chunks in parallel. The `fused`
variant (FlashInfer's) keeps these intermediates on chip: a unit processes one head of a sequence from its first chunk
to its last.

    operands       2 B L (2 H_k d_k + 2 H d_v) + 8 B H d_k d_v bytes       of H_k key heads; states are in 32 bits
    intermediates  2 B L H (4 d_k + 4 d_v + 7 C + 2 d_k d_v / C) bytes     chunked; the triangle is in 32 bits

`intermediate_traffic` is below 1 where intermediates stay in the L2, and above 1 where kernels leave memory idle.

H counts value heads, several of which share a key head. Decode has another kernel, which reads and writes every state;
its public timings are of other engines than those that run it, so it counts as unmeasured (`roofline.timing.passes`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.core.parameters import Parameter, Unit
from roofline.specs.engine import GATED_DELTA_RULE_KERNELS
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import Array, Columns, Mask, aligned, ceil_div, column, smooth_maximum, text, units

CHUNK = 64.0
"""Tokens of a chunk in FLA, FlashInfer and AITER."""

CHUNKED, FUSED = GATED_DELTA_RULE_KERNELS

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 1e-6, 200e-6, 20e-6, "launch of all kernels of a prompt"),
    Parameter("token", Unit.SECONDS, 0.1e-9, 500e-9, 30e-9, "recurrence of the state over one token"),
    Parameter("compute_efficiency", Unit.RATIO, 0.005, 1.0, 0.2, "matrix unit's achievable fraction of its peak"),
    Parameter("intermediate_traffic", Unit.RATIO, 0.01, 4.0, 0.9, "memory time of intermediates over that at the peak"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 3.0, "exponent of the smooth maximum of recurrence and GEMMs"),
)


def _sizes(columns: Columns) -> tuple[Array, ...]:
    return aligned(*(column(columns, name) for name in ("batch", "q_len", "heads", "key_dim", "value_dim")))


def peak(columns: Columns, hardware: Hardware) -> float:
    """The peak of the GEMMs (FLOP/s), in the arithmetic of the column `dtype`, or in BF16."""
    return hardware.matrix_peak(text(columns, "dtype", "bf16"))


def waves(columns: Columns, hardware: Hardware) -> Array:
    """Heads that each unit processes one after another."""
    batch, _, heads, *_ = _sizes(columns)
    return ceil_div(batch * heads, units(hardware))


def flops(columns: Columns) -> Array:
    """FLOPs of the GEMMs over a prompt, within chunks and with the state."""
    batch, queries, heads, keys, values = _sizes(columns)
    return batch * queries * heads * (6.0 * keys * values + 2.0 * CHUNK * (3.0 * keys + 2.0 * values))


def operand_bytes(columns: Columns) -> Array:
    """Bytes of inputs and outputs of a prompt's kernels, states included."""
    batch, queries, heads, keys, values = _sizes(columns)
    key_heads = column(columns, "key_heads") if "key_heads" in columns else heads
    return 4.0 * batch * queries * (key_heads * keys + heads * values) + 8.0 * batch * heads * keys * values


def intermediate_bytes(columns: Columns) -> Array:
    """Bytes of intermediates, written by one kernel and read by another."""
    batch, queries, heads, keys, values = _sizes(columns)
    if text(columns, "variant") == FUSED:
        return np.zeros_like(batch)
    return 2.0 * batch * queries * heads * (4.0 * (keys + values) + 7.0 * CHUNK + 2.0 * keys * values / CHUNK)


def gated_delta_rule_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds: the FLOPs of the recurrence, or its operands and states, read and written."""
    batch, queries, heads, keys, values = _sizes(columns)
    compute = 6.0 * batch * queries * heads * keys * values / peak(columns, hardware)
    return np.where(resident, compute, np.maximum(compute, operand_bytes(columns) / hardware.memory_bandwidth))


def gated_delta_rule_time(
    columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False
) -> Array:
    """Seconds for columns `variant, batch, q_len, heads, key_dim, value_dim`, optional `dtype`, `key_heads`.

    See the module for the formula; `resident` has no effect.
    """
    del resident
    recurrence = _sizes(columns)[1] * parameters["token"] * waves(columns, hardware)
    gemms = flops(columns) / (parameters["compute_efficiency"] * peak(columns, hardware))
    moved = operand_bytes(columns) + parameters["intermediate_traffic"] * intermediate_bytes(columns)
    over_memory = moved / hardware.memory_bandwidth
    fused = text(columns, "variant") == FUSED
    work = np.maximum(gemms, over_memory) if fused else gemms + over_memory
    time: Array = parameters["launch"] + smooth_maximum(recurrence, work, parameters["sharpness"])
    return time
