"""Time of the state-space scan of Mamba-2 in prefill (Dao and Gu 2024, section 6), in chunks of C tokens.

A unit takes one head of a sequence from chunk to chunk: the time does not depend on the heads until they are more than
units, and a short sequence takes as long as a chunk. For H heads of P channels, states of N and G groups:

    recurrence     T_C = ceil(B H / S) (head + token C ceil(L / C))
    memory         T_M = (2 B L (2 H P + 2 G N + H) + 4 B H P N) / (memory_efficiency bandwidth)
    time           t   = launch + (T_C^p + T_M^p)^(1/p)              `head`: the first and the last state
"""

from __future__ import annotations

from msgspec import Struct

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import ceil_div, units
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Term, Terms, aligned, column, text

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 1e-6, 300e-6, 10e-6, "launch of all kernels of a prompt"),
    Parameter("head", Unit.SECONDS, 0.1e-6, 100e-6, 4e-6, "start and end of a head of a sequence"),
    Parameter("token", Unit.SECONDS, 0.1e-9, 500e-9, 80e-9, "work of a unit on one token of a head"),
    Parameter("memory_efficiency", Unit.RATIO, 0.05, 1.0, 0.7, "achieved fraction of bandwidth on operands"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 4.0, "exponent of the smooth maximum of both"),
)


class Scan(Struct, frozen=True):
    """Scans over `q_len` tokens of `batch` sequences: `heads` of `head_dim` by `state`, in `groups`, by `chunk`."""

    batch: Array
    q_len: Array
    heads: Array
    head_dim: Array
    state: Array
    groups: Array
    chunk: Array
    arithmetic: str

    @property
    def flops(self) -> Array:
        """FLOPs of the products with states."""
        return 4.0 * self.batch * self.q_len * self.heads * self.head_dim * self.state

    @property
    def bytes(self) -> Array:
        """Bytes of inputs, outputs and states."""
        inner, shared = self.heads * self.head_dim, self.groups * self.state
        tokens = 2.0 * self.batch * self.q_len * (2.0 * inner + 2.0 * shared + self.heads)
        return tokens + 4.0 * self.batch * inner * self.state


def shape(row: Row) -> Scan:
    """The scans of rows with `batch, q_len, heads, head_dim, state, groups, chunk` and optional `dtype`."""
    names = ("batch", "q_len", "heads", "head_dim", "state", "groups", "chunk")
    batch, queries, heads, width, state, groups, chunk = aligned(*(column(row, name) for name in names))
    return Scan(batch, queries, heads, width, state, groups, chunk, text(row, "dtype", "bf16"))


def bound(scan: Scan, hardware: Hardware) -> Bound:
    """The products at the peak; operands at the bandwidth."""
    return Bound(scan.flops / hardware.matrix_peak(scan.arithmetic), scan.bytes / hardware.memory_bandwidth)


def terms(scan: Scan, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, and heads from chunk to chunk while operands pass through memory."""
    waves = ceil_div(scan.batch * scan.heads, units(hardware))
    padded = scan.chunk * ceil_div(scan.q_len, scan.chunk)
    work = waves * (parameters["head"] + parameters["token"] * padded)
    recurrence = Term("recurrence", "waves x (head + token x tokens)", work)
    rate = parameters["memory_efficiency"] * hardware.memory_bandwidth
    memory = Term("memory", "operands / (memory_efficiency bandwidth)", scan.bytes, rate)
    return Terms((Term("launch", "launch", parameters["launch"]),), recurrence, memory, parameters["sharpness"])
