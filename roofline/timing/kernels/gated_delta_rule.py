"""Time of the gated delta rule over a prompt: a state a head that every token changes.

Kernels take chunks of C = 64 tokens (Yang et al., 2024): products within a chunk, and the state passed from chunk to
chunk. H heads of d_k by d_v, L tokens a sequence, B sequences, S units:

    chain      T_C = L token ceil(B H / S)                     one head of a sequence after another, chunk after chunk
    products   T_F = B L H (6 d_k d_v + 2 C (3 d_k + 2 d_v)) / (e_F peak)
    memory     T_M = (operands + handing_on x handed on) / bw
    time       t   = launch + (T_C^p + T^p)^(1/p),       T = T_F + T_M of chunked kernels, max(T_F, T_M) of a fused one

Kernels are of two sorts. `chunked` ones (FLA's, in Triton) are several after each other, which hand w, u, the inverse
of a chunk's triangle, the states of all chunks and the new values on to each other; any of them but one works on all
chunks at once. A `fused` one (FlashInfer's) keeps all that on the chip: a unit takes one head of a sequence from its
first chunk to its last.

    operands   2 B L (2 H_k d_k + 2 H d_v) + 8 B H d_k d_v bytes       of H_k heads of keys; states are in 32 bits
    handed on  2 B L H (4 d_k + 4 d_v + 7 C + 2 d_k d_v / C) bytes              chunked ones; the triangle is in 32 bits

`handing_on` is below 1 where the L2 still has what the kernel before has written, and above it where kernels leave
memory idle.

H counts the heads of the values, several of which share one of the keys. A step of a few tokens has a kernel of its
own, which reads and writes every state; public timings of it are of other engines' than those that run it, and it is
taken as one that nobody measured (`roofline.timing.passes`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.core.parameters import Parameter, Unit
from roofline.specs.engine import GATED_DELTA_RULE_KERNELS
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import Array, Columns, Mask, aligned, ceil_div, column, smooth_maximum, text, units

CHUNK = 64.0
"""Tokens of a chunk, as FLA, FlashInfer and AITER have them."""

CHUNKED, FUSED = GATED_DELTA_RULE_KERNELS

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 1e-6, 200e-6, 20e-6, "start and end of all kernels of a prompt"),
    Parameter("token", Unit.SECONDS, 0.1e-9, 500e-9, 30e-9, "passing the state on by one token"),
    Parameter("compute_efficiency", Unit.RATIO, 0.005, 1.0, 0.2, "matrix unit's achievable fraction of its peak"),
    Parameter("handing_on", Unit.RATIO, 0.01, 4.0, 0.9, "memory time of what kernels hand on, over that at the peak"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 3.0, "exponent of the smooth maximum of chain and products"),
)


def _sizes(columns: Columns) -> tuple[Array, ...]:
    return aligned(*(column(columns, name) for name in ("batch", "q_len", "heads", "key_dim", "value_dim")))


def peak(columns: Columns, hardware: Hardware) -> float:
    """The peak of the products (FLOP/s), in the arithmetic of the column `dtype`, or in BF16."""
    return hardware.matrix_peak(text(columns, "dtype", "bf16"))


def waves(columns: Columns, hardware: Hardware) -> Array:
    """Heads of sequences that each unit takes, one after another."""
    batch, _, heads, *_ = _sizes(columns)
    return ceil_div(batch * heads, units(hardware))


def flops(columns: Columns) -> Array:
    """FLOPs of the products over a prompt, those within chunks among them."""
    batch, queries, heads, keys, values = _sizes(columns)
    return batch * queries * heads * (6.0 * keys * values + 2.0 * CHUNK * (3.0 * keys + 2.0 * values))


def operands(columns: Columns) -> Array:
    """Bytes that go into a prompt's kernels and come out of them, the states among them."""
    batch, queries, heads, keys, values = _sizes(columns)
    key_heads = column(columns, "key_heads") if "key_heads" in columns else heads
    return 4.0 * batch * queries * (key_heads * keys + heads * values) + 8.0 * batch * heads * keys * values


def handed_on(columns: Columns) -> Array:
    """Bytes that a prompt's kernels write for each other and read again."""
    batch, queries, heads, keys, values = _sizes(columns)
    if text(columns, "variant") == FUSED:
        return np.zeros_like(batch)
    return 2.0 * batch * queries * heads * (4.0 * (keys + values) + 7.0 * CHUNK + 2.0 * keys * values / CHUNK)


def delta_rule_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The speed of light in seconds: the recurrence's own FLOPs, or its operands and the states, read and written."""
    batch, queries, heads, keys, values = _sizes(columns)
    compute = 6.0 * batch * queries * heads * keys * values / peak(columns, hardware)
    return np.where(resident, compute, np.maximum(compute, operands(columns) / hardware.memory_bandwidth))


def delta_rule_time(
    columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False
) -> Array:
    """Seconds for columns `variant, batch, q_len, heads, key_dim, value_dim`, optional `dtype`, `key_heads`.

    See the module for the formula. Benchmarks whose operands a cache holds are not told apart.
    """
    del resident
    queries = _sizes(columns)[1]
    chain = queries * parameters["token"] * waves(columns, hardware)
    products = flops(columns) / (parameters["compute_efficiency"] * peak(columns, hardware))
    over_memory = (operands(columns) + parameters["handing_on"] * handed_on(columns)) / hardware.memory_bandwidth
    fused = text(columns, "variant") == FUSED
    work = np.maximum(products, over_memory) if fused else products + over_memory
    time: Array = parameters["launch"] + smooth_maximum(chain, work, parameters["sharpness"])
    return time
