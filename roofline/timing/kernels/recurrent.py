"""Times of one step of recurrent layers, and of the short convolutions in front of them.

In decode a layer reads the state of every head and writes it back. When q drafts are verified it writes a state after
each of them, of which the accepted one stays:

    states   T_M = (1 + q) B H d_k d_v 4 bytes / (memory_efficiency bandwidth)
    time     t   = launch + (T_M^p + (ceil(B H / S) q head)^p)^(1/p)       of S units, `head` for the work of one head

A causal convolution reads and writes its channels once, and the tokens before them (`kernel` - 1 of a sequence):

    memory   T_M = 2 B C (2 q + kernel) / (memory_efficiency min(bandwidth, 16 S clock))
    time     t   = launch + (T_M^p + (B C / S row)^p)^(1/p)                `row` for one channel of a sequence
"""

from __future__ import annotations

from msgspec import Struct

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import ceil_div, reached, units
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Term, Terms, aligned, column

SEPARATE = "separate"
"""The variant of convolutions of queries, keys and values apart (Kimi's). SGLang runs three kernels in Triton for them,
whose blocks share out the tokens, and for others one in CUDA, whose block passes over all tokens of a channel: up to 12
times as long for many short prompts."""

STATE_BYTES = 4.0
"""States are fp32, as in the graph (`roofline.graph.layers.basic.STATE_FORMAT`)."""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 4e-6, "launch of the kernel"),
    Parameter("head", Unit.SECONDS, 1e-9, 50e-6, 1e-6, "work of a unit on one head of a sequence"),
    Parameter("memory_efficiency", Unit.RATIO, 0.05, 1.0, 0.8, "achieved fraction of bandwidth on states"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 4.0, "exponent of the smooth maximum of both"),
)

CONVOLUTION = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 4e-6, "launch of the kernel"),
    Parameter("row", Unit.SECONDS, 1e-10, 10e-6, 5e-9, "work of a unit on one channel of a sequence"),
    Parameter("memory_efficiency", Unit.RATIO, 0.02, 1.0, 0.6, "achieved fraction of bandwidth on channels"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 4.0, "exponent of the smooth maximum of both"),
)


class Step(Struct, frozen=True):
    """A step over `q_len` tokens of `batch` sequences and `heads` states of `key_dim` by `value_dim`."""

    batch: Array
    q_len: Array
    heads: Array
    key_dim: Array
    value_dim: Array

    @property
    def bytes(self) -> Array:
        """Bytes of states: read once, written after each token."""
        state = self.batch * self.heads * self.key_dim * self.value_dim
        return (1.0 + self.q_len) * state * STATE_BYTES


def shape(row: Row) -> Step:
    """The steps of rows with `batch, q_len, heads, key_dim, value_dim`."""
    return Step(*aligned(*(column(row, name) for name in ("batch", "q_len", "heads", "key_dim", "value_dim"))))


def bound(kernel: Step | ShortConvolution, hardware: Hardware) -> Bound:
    """The states or channels at the bandwidth."""
    return Bound(np.zeros_like(kernel.batch), kernel.bytes / hardware.memory_bandwidth)


def terms(step: Step, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, and states over memory while units work on heads."""
    rate = parameters["memory_efficiency"] * hardware.memory_bandwidth
    rounds = ceil_div(step.batch * step.heads, units(hardware)) * step.q_len
    work = Term("heads", "ceil(B H / units) tokens head", rounds * parameters["head"])
    memory = Term("states", "(1 + q) states / (memory_efficiency bandwidth)", step.bytes, rate)
    return Terms((Term("launch", "launch", parameters["launch"]),), work, memory, parameters["sharpness"])


class ShortConvolution(Struct, frozen=True):
    """Convolutions over `q_len` tokens of `batch` sequences, `channels` wide and `taps` long, in 16 bits."""

    batch: Array
    q_len: Array
    channels: Array
    taps: Array

    @property
    def bytes(self) -> Array:
        """Bytes in and out, and those of the tokens before."""
        return 2.0 * self.batch * self.channels * (2.0 * self.q_len + self.taps)


def convolution_shape(row: Row) -> ShortConvolution:
    """The convolutions of rows with `batch, q_len, channels, taps`."""
    return ShortConvolution(*aligned(*(column(row, name) for name in ("batch", "q_len", "channels", "taps"))))


def convolution_terms(convolution: ShortConvolution, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, and channels over memory while units work on them."""
    rate = parameters["memory_efficiency"] * reached(hardware)
    rows = convolution.batch * convolution.channels / units(hardware)
    work = Term("rows", "channels of all sequences / units x row", rows * parameters["row"])
    memory = Term("memory", "channels / (memory_efficiency min(bandwidth, 16 S clock))", convolution.bytes, rate)
    return Terms((Term("launch", "launch", parameters["launch"]),), work, memory, parameters["sharpness"])
