"""Time of the gated delta rule in prefill: a linear attention with a state a head that every token updates.

Kernels process chunks of C = 64 tokens (Yang et al., 2024): GEMMs within a chunk, and the state from chunk to chunk.
H heads of d_k by d_v, L tokens a sequence, B sequences, S units. A chunk that a sequence does not fill takes as long as
a full one, so that L' = C ceil(L / C) tokens are computed; p is `sharpness`:

    recurrence     T_C = ceil(B H / S) (head + token L')    the heads of a unit one after another, chunk after chunk
    GEMMs          T_F = B L' H (6 d_k d_v + 2 C (3 d_k + 2 d_v)) / (compute_efficiency peak)
    memory         T_M = operands / bandwidth + intermediate_traffic x intermediates / (16 S clock)
    time           t   = launch + (T_C^p + T^p)^(1/p),     T = T_F + T_M of chunked kernels, max(T_F, T_M) of fused ones

The start and end of a head (`head`) count in Kimi's kernels alone. The `chunked` variant (FLA's, in Triton) is a
series of kernels that pass w, u, the inverse of a chunk's triangle, the states of all chunks and the new values through
memory; all but one of them process the chunks in parallel. The `fused` variant (FlashInfer's) keeps these intermediates
on chip: a unit processes one head of a sequence from its first chunk to its last.

    operands       2 B L (2 H_k d_k + 2 H d_v) + 8 B H d_k d_v bytes       of H_k key heads; states are in 32 bits
    intermediates  2 B H (L (4 d_k + 4 d_v + 7 C) + L' 2 d_k d_v / C) bytes    chunked; the triangle is in 32 bits

The peak of `chunked` kernels is that of Hopper's instructions on all units (`MMA`). Intermediates go by the clock of
the units (`common.ON_CHIP`): the L2 holds most of them, and kernels leave memory idle.

H counts value heads, several of which share a key head. Decode has another kernel (`streaming`).

Kimi's delta attention has a decay for each channel of a key: 2 B L H d_k bytes more of operands. Its GEMMs and memory
take turns in both variants (`fused` is FlashKDA's): T = T_F + T_M.
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.engine import GATED_DELTA_RULE_KERNELS
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import ceil_div, on_chip_bandwidth, unit_clocks, units
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Shape, Term, Terms, text

CHUNK = 64.0
"""Tokens of a chunk in FLA, FlashInfer and AITER."""

MMA = 4096.0
"""FLOPs of a multiprocessor in a clock that kernels in Triton reach at most: Hopper's, not Blackwell's tensor memory.

The same kernels take as long on B200 as on H100 where GEMMs bound them."""

CHUNKED, FUSED = GATED_DELTA_RULE_KERNELS

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 1e-6, 200e-6, 20e-6, "launch of all kernels of a prompt"),
    Parameter("token", Unit.SECONDS, 0.1e-9, 500e-9, 30e-9, "recurrence of the state over one token"),
    Parameter("compute_efficiency", Unit.RATIO, 0.005, 1.0, 0.5, "matrix unit's achievable fraction of its peak"),
    Parameter("intermediate_traffic", Unit.RATIO, 0.1, 4.0, 0.9, "time of intermediates over that at 16 S clock"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 3.0, "exponent of the smooth maximum of recurrence and GEMMs"),
)

KIMI = (*PARAMETERS, Parameter("head", Unit.SECONDS, 0.1e-6, 100e-6, 5e-6, "start and end of a head of a sequence"))


class DeltaRule(Shape, frozen=True):
    """Prompts of `batch` sequences of `q_len` tokens over `heads` value heads; arrays of one shape.

    States are `key_dim` by `value_dim`; `fused` kernels keep intermediates on chip. GEMMs multiply in `arithmetic`.
    `channels`: each channel of a key has a decay (Kimi's).
    """

    batch: Array
    q_len: Array
    heads: Array
    key_dim: Array
    value_dim: Array
    key_heads: Array
    fused: bool
    arithmetic: str
    channels: bool = False

    @property
    def state(self) -> Array:
        """Elements of all states."""
        return self.batch * self.heads * self.key_dim * self.value_dim

    @property
    def padded(self) -> Array:
        """Tokens of a sequence in whole chunks."""
        return CHUNK * ceil_div(self.q_len, CHUNK)

    @property
    def flops(self) -> Array:
        """FLOPs of the GEMMs over a prompt, within chunks and with the state."""
        within = 2.0 * CHUNK * (3.0 * self.key_dim + 2.0 * self.value_dim)
        return self.batch * self.padded * self.heads * (6.0 * self.key_dim * self.value_dim + within)

    def gemm_peak(self, hardware: Hardware) -> float:
        """The peak of the GEMMs of such kernels."""
        peak = hardware.matrix_peak(self.arithmetic)
        return peak if self.fused else min(peak, MMA * unit_clocks(hardware))

    @property
    def operand_bytes(self) -> Array:
        """Bytes of inputs and outputs of a prompt's kernels, states included."""
        tokens = self.key_heads * self.key_dim + self.heads * self.value_dim
        found = 4.0 * self.batch * self.q_len * tokens + 8.0 * self.state
        return found + 2.0 * self.batch * self.q_len * self.heads * self.key_dim if self.channels else found

    @property
    def intermediate_bytes(self) -> Array:
        """Bytes of intermediates, written by one kernel and read by another."""
        if self.fused:
            return np.zeros_like(self.batch)
        states = 2.0 * self.key_dim * self.value_dim / CHUNK * self.padded
        tokens = (4.0 * (self.key_dim + self.value_dim) + 7.0 * CHUNK) * self.q_len
        return 2.0 * self.batch * self.heads * (tokens + states)


def shape(row: Row) -> DeltaRule:
    """The kernels of rows with `variant, batch, q_len, heads, key_dim, value_dim`, optional `dtype`, `key_heads`."""
    fused, arithmetic = text(row, "variant") == FUSED, text(row, "dtype", "bf16")
    return DeltaRule.of({"key_heads": row["heads"], **row}, fused=fused, arithmetic=arithmetic)


def kimi_shape(row: Row) -> DeltaRule:
    """Kimi's kernels of such rows, which have as many heads of keys as of values."""
    return replace(shape({**row, "key_heads": row["heads"]}), channels=True)


def bound(rule: DeltaRule, hardware: Hardware) -> Bound:
    """The FLOPs of the recurrence; its operands and states, read and written."""
    flops = 6.0 * rule.q_len * rule.state
    return Bound(flops / hardware.matrix_peak(rule.arithmetic), rule.operand_bytes / hardware.memory_bandwidth)


def terms(rule: DeltaRule, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, the recurrence from token to token, and what the units and the memory do meanwhile."""
    waves = ceil_div(rule.batch * rule.heads, units(hardware))
    one = parameters.get("head", 0.0) + parameters["token"] * rule.padded
    recurrence = Term("recurrence", "rounds of heads x (head + token x tokens of a sequence)", waves * one)
    gemms = rule.flops / (parameters["compute_efficiency"] * rule.gemm_peak(hardware))
    moved = parameters["intermediate_traffic"] * rule.intermediate_bytes / on_chip_bandwidth(hardware)
    memory = rule.operand_bytes / hardware.memory_bandwidth + moved
    overlapping = rule.fused and not rule.channels
    how = "max(GEMMs, memory)" if overlapping else "GEMMs + memory"
    work = Term("GEMMs and memory", how, np.maximum(gemms, memory) if overlapping else gemms + memory)
    return Terms((Term("launch", "launch", parameters["launch"]),), recurrence, work, parameters["sharpness"])
