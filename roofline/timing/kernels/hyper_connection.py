"""Times of hyper-connections: the input of a sub-layer from the vectors of the residual stream, and the way back.

Before a sub-layer (`pre`) one kernel reads n vectors of d elements a token twice, for a small GEMM that yields weights
and for the weighted sum, and normalises the weights by Sinkhorn iterations; after it (`post`) another reads the vectors
and the output, and writes the vectors. In 16 bits:

    pre    T_M = 2 tokens d (2 n + 1) / (memory_efficiency bandwidth)
    post   T_M = 2 tokens d (2 n + 1) / (memory_efficiency bandwidth)
    rows   T_C = ceil(tokens / S) row
    time   t   = launch + (T_C^p + T_M^p)^(1/p)
"""

from __future__ import annotations

from msgspec import Struct

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import ceil_div, units
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Term, Terms, aligned, column

PRE, POST = "pre", "post"

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.5e-6, 80e-6, 6e-6, "launch of the kernels"),
    Parameter("row", Unit.SECONDS, 1e-9, 50e-6, 1e-6, "work of a unit on one token"),
    Parameter("memory_efficiency", Unit.RATIO, 0.05, 1.0, 0.7, "achieved fraction of bandwidth"),
    Parameter("sharpness", Unit.RATIO, 1.0, 20.0, 4.0, "exponent of the smooth maximum of rows and memory"),
)


class Mixing(Struct, frozen=True):
    """Hyper-connections of `tokens` with `streams` vectors of `hidden` elements each."""

    tokens: Array
    hidden: Array
    streams: Array

    @property
    def bytes(self) -> Array:
        """Bytes read and written."""
        return 2.0 * self.tokens * self.hidden * (2.0 * self.streams + 1.0)


def shape(row: Row) -> Mixing:
    """The kernels of rows with `tokens, hidden, streams`."""
    return Mixing(*aligned(*(column(row, name) for name in ("tokens", "hidden", "streams"))))


def bound(mixing: Mixing, hardware: Hardware) -> Bound:
    """The vectors once, and the input or output of the sub-layer."""
    least = 2.0 * mixing.tokens * mixing.hidden * (mixing.streams + 1.0)
    return Bound(np.zeros_like(mixing.tokens), least / hardware.memory_bandwidth)


def terms(mixing: Mixing, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, and tokens of the units while vectors pass through memory."""
    rate = parameters["memory_efficiency"] * hardware.memory_bandwidth
    rows = Term("rows", "ceil(tokens / units) row", ceil_div(mixing.tokens, units(hardware)) * parameters["row"])
    memory = Term("memory", "2 tokens d (2 n + 1) / (memory_efficiency bandwidth)", mixing.bytes, rate)
    return Terms((Term("launch", "launch", parameters["launch"]),), rows, memory, parameters["sharpness"])
