"""Times of kernels that stream their operands while S multiprocessors work on rows, one after another on each:

    memory   T_M = bytes / (memory_efficiency rate)                rate: the bandwidth of memory, unless below
    time     t   = launch + (T_C^p + T_M^p)^(1/p)                  T_C: the work on rows

Hyper-connections give the input of a sub-layer from the vectors of the residual stream, and the way back. Before a
sub-layer (`pre`) one kernel reads n vectors of d elements a token twice, for a small GEMM that yields weights and for
the weighted sum, and normalises the weights by Sinkhorn iterations; after it (`post`) another reads the vectors and the
output, and writes the vectors. In 16 bits:

    bytes    2 tokens d (2 n + 1)                                  T_C = ceil(tokens / S) row

A step of a recurrent layer reads the state of every head and writes it back. When q drafts are verified it writes a
state after each of them, of which the accepted one stays:

    bytes    (1 + q) B H d_k d_v 4                                 T_C = ceil(B H / S) q head

A causal convolution in front of a recurrent layer reads and writes its channels once, and the tokens before them
(`taps` - 1 of a sequence), at up to 16 bytes a clock of a multiprocessor (`common.reachable_bandwidth`):

    bytes    2 B C (2 q + taps)                                    T_C = B C / S row

The state-space scan of Mamba-2 in prefill (Dao and Gu 2024, section 6) goes through chunks of C tokens. A unit takes
one head of a sequence from chunk to chunk: the time does not depend on the heads until they are more than units, and a
short sequence takes as long as a chunk. For H heads of P channels, states of N and G groups:

    bytes    2 B L (2 H P + 2 G N + H) + 4 B H P N                 T_C = ceil(B H / S) (head + token C ceil(L / C))
"""

from __future__ import annotations

from typing import ClassVar

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import ceil_div, reachable_bandwidth, units
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Shape, Term, Terms, text

PRE, POST = "pre", "post"
"""The variants of hyper-connections."""

SEPARATE = "separate"
"""The variant of convolutions of queries, keys and values apart (Kimi's). SGLang runs three kernels in Triton for them,
whose blocks share out the tokens, and for others one in CUDA, whose block passes over all tokens of a channel: up to 12
times as long for many short prompts."""

STATE_BYTES = 4.0
"""States are fp32, as in the graph (`roofline.graph.layers.basic.STATE_FORMAT`)."""

_SHARPNESS = Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 4.0, "exponent of the smooth maximum of both")

MIXING = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 6e-6, "launch of the kernels"),
    Parameter("row", Unit.SECONDS, 1e-9, 50e-6, 1e-6, "work of a unit on one token"),
    Parameter("memory_efficiency", Unit.RATIO, 0.05, 1.0, 0.7, "achieved fraction of bandwidth"),
    _SHARPNESS,
)
STEP = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 4e-6, "launch of the kernel"),
    Parameter("head", Unit.SECONDS, 1e-9, 50e-6, 1e-6, "work of a unit on one head of a sequence"),
    Parameter("memory_efficiency", Unit.RATIO, 0.05, 1.0, 0.8, "achieved fraction of bandwidth on states"),
    _SHARPNESS,
)
CONVOLUTION = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 4e-6, "launch of the kernel"),
    Parameter("row", Unit.SECONDS, 1e-10, 10e-6, 5e-9, "work of a unit on one channel of a sequence"),
    Parameter("memory_efficiency", Unit.RATIO, 0.02, 1.0, 0.6, "achieved fraction of bandwidth on channels"),
    _SHARPNESS,
)
SCAN = (
    Parameter("launch", Unit.SECONDS, 1e-6, 300e-6, 10e-6, "launch of all kernels of a prompt"),
    Parameter("head", Unit.SECONDS, 0.1e-6, 100e-6, 4e-6, "start and end of a head of a sequence"),
    Parameter("token", Unit.SECONDS, 0.1e-9, 500e-9, 80e-9, "work of a unit on one token of a head"),
    Parameter("memory_efficiency", Unit.RATIO, 0.05, 1.0, 0.7, "achieved fraction of bandwidth on operands"),
    _SHARPNESS,
)


class Streaming(Shape, frozen=True):
    """Kernels that move `bytes`; the names and formulas of their work and of their traffic are for explanations."""

    WORK: ClassVar[tuple[str, str]]
    TRAFFIC: ClassVar[tuple[str, str]]

    @property
    def bytes(self) -> Array:
        """Bytes read and written."""
        raise NotImplementedError

    def work(self, count: float, parameters: Parameters) -> Array:
        """Seconds that so many multiprocessors work on rows."""
        raise NotImplementedError

    def rate(self, hardware: Hardware) -> float:
        """Bytes a second that such kernels reach at most."""
        return hardware.memory_bandwidth

    def bound(self, hardware: Hardware) -> Bound:
        """The traffic at the bandwidth, of a scan with the FLOPs at the peak."""
        return Bound(np.zeros_like(self.bytes), self.bytes / hardware.memory_bandwidth)


def terms(kernel: Streaming, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, and traffic over memory while units work on rows."""
    rate = parameters["memory_efficiency"] * kernel.rate(hardware)
    return Terms(
        (Term("launch", "launch", parameters["launch"]),),
        Term(*kernel.WORK, kernel.work(units(hardware), parameters)),
        Term(*kernel.TRAFFIC, kernel.bytes, rate),
        parameters["sharpness"],
    )


class Mixing(Streaming, frozen=True):
    """Hyper-connections of `tokens` with `streams` vectors of `hidden` elements each."""

    tokens: Array
    hidden: Array
    streams: Array
    WORK = "rows", "ceil(tokens / units) row"
    TRAFFIC = "memory", "2 tokens d (2 n + 1) / (memory_efficiency bandwidth)"

    @property
    def bytes(self) -> Array:
        return 2.0 * self.tokens * self.hidden * (2.0 * self.streams + 1.0)

    def work(self, count: float, parameters: Parameters) -> Array:
        return ceil_div(self.tokens, count) * parameters["row"]

    def bound(self, hardware: Hardware) -> Bound:
        bytes = 2.0 * self.tokens * self.hidden * (self.streams + 1.0)  # the vectors once, and the input or output
        return Bound(np.zeros_like(bytes), bytes / hardware.memory_bandwidth)


class Step(Streaming, frozen=True):
    """A step over `q_len` tokens of `batch` sequences and `heads` states of `key_dim` by `value_dim`."""

    batch: Array
    q_len: Array
    heads: Array
    key_dim: Array
    value_dim: Array
    WORK = "heads", "ceil(B H / units) tokens head"
    TRAFFIC = "states", "(1 + q) states / (memory_efficiency bandwidth)"

    @property
    def bytes(self) -> Array:
        state = self.batch * self.heads * self.key_dim * self.value_dim
        return (1.0 + self.q_len) * state * STATE_BYTES

    def work(self, count: float, parameters: Parameters) -> Array:
        return ceil_div(self.batch * self.heads, count) * self.q_len * parameters["head"]


class ShortConvolution(Streaming, frozen=True):
    """Convolutions over `q_len` tokens of `batch` sequences, `channels` wide and `taps` long, in 16 bits."""

    batch: Array
    q_len: Array
    channels: Array
    taps: Array
    WORK = "rows", "channels of all sequences / units x row"
    TRAFFIC = "memory", "channels / (memory_efficiency min(bandwidth, 16 S clock))"

    @property
    def bytes(self) -> Array:
        return 2.0 * self.batch * self.channels * (2.0 * self.q_len + self.taps)

    def work(self, count: float, parameters: Parameters) -> Array:
        return self.batch * self.channels / count * parameters["row"]

    def rate(self, hardware: Hardware) -> float:
        return reachable_bandwidth(hardware)


class Scan(Streaming, frozen=True):
    """Scans over `q_len` tokens of `batch` sequences: `heads` of `head_dim` by `state`, in `groups`, by `chunk`."""

    batch: Array
    q_len: Array
    heads: Array
    head_dim: Array
    state: Array
    groups: Array
    chunk: Array
    arithmetic: str
    WORK = "recurrence", "waves x (head + token x tokens)"
    TRAFFIC = "memory", "operands / (memory_efficiency bandwidth)"

    @property
    def bytes(self) -> Array:
        inner, shared = self.heads * self.head_dim, self.groups * self.state
        tokens = 2.0 * self.batch * self.q_len * (2.0 * inner + 2.0 * shared + self.heads)
        return tokens + 4.0 * self.batch * inner * self.state

    def work(self, count: float, parameters: Parameters) -> Array:
        padded = self.chunk * ceil_div(self.q_len, self.chunk)
        return ceil_div(self.batch * self.heads, count) * (parameters["head"] + parameters["token"] * padded)

    def bound(self, hardware: Hardware) -> Bound:
        flops = 4.0 * self.batch * self.q_len * self.heads * self.head_dim * self.state
        return Bound(flops / hardware.matrix_peak(self.arithmetic), self.bytes / hardware.memory_bandwidth)


def scan(row: Row) -> Scan:
    """The scans of rows with these columns and an optional `dtype`."""
    return Scan.of(row, arithmetic=text(row, "dtype", "bf16"))
