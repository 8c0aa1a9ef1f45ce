"""What prefill and decode of fused attention share: the shape, its traffic and bound, and general kernels.

G = heads / kv_heads query heads share a KV head, and h(d) is the slowdown of the head dimension d. Libraries lack
kernels of some head dimensions, and engines run a general one there, up to 11 times as slow: h(d) is 1 + `other_dim`
where d is 192, the only one that was measured. Expanded heads of MLA (192 for keys, 128 for values) have kernels, and a
mean d of 160.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import Array, Columns, Mask, aligned, column, numbers, text

GENERAL_DIM = 192.0
"""The head dimension for which libraries lack a kernel."""

NO_OTHER = 2e-3
"""Values of `other_dim` below this mean that it was not measured."""

KV_WRITE_LAUNCH = 2.8e-6
"""Seconds of launch of the kernel that writes the KV cache: the difference between the shortest rows of public tables
with and without it (vLLM 0.24 and 0.22) on H200 and B200."""

OTHER_DIM = Parameter(
    "other_dim", Unit.RATIO, 1e-3, 30.0, 1e-3, "slowdown of head dimensions without a kernel", 0.1, local=True
)


class AttentionShape(Struct, frozen=True):
    """The columns of an attention measurement as arrays of one shape."""

    batch: Array
    queries: Array
    keys: Array
    heads: Array
    kv_heads: Array
    dim: Array
    window: Array
    causal: Array
    keys_only: Array
    bytes: float
    kv_bytes: float
    arithmetic: str

    @property
    def seen(self) -> Array:
        """Keys that the last query sees."""
        return np.where(self.window > 0, np.minimum(self.keys, self.window), self.keys)

    @property
    def read_keys(self) -> Array:
        """Keys that any query sees."""
        return np.where(self.window > 0, np.minimum(self.keys, self.window + self.queries - 1), self.keys)

    @property
    def kv_traffic(self) -> Array:
        """Bytes of K and V in memory."""
        return (2.0 - self.keys_only) * self.batch * self.kv_heads * self.read_keys * self.dim * self.kv_bytes

    @property
    def activation_traffic(self) -> Array:
        """Bytes of Q and O."""
        return 2.0 * self.batch * self.heads * self.queries * self.dim * self.bytes

    @property
    def kv_write_traffic(self) -> Array:
        """Bytes of new K and V, read and written to the cache."""
        new = 2.0 * self.batch * self.queries * self.kv_heads * self.dim
        return new * (self.bytes + self.kv_bytes)

    @property
    def pairs(self) -> Array:
        """Query-key pairs of one head under the causal mask and the window: sum over queries of the keys seen."""
        cached = self.keys - self.queries
        full = self.queries * cached + self.queries * (self.queries + 1) / 2
        beyond = np.where(self.window > 0, np.maximum(0.0, self.keys - self.window), 0.0)
        first = np.where(self.window > 0, np.maximum(0.0, cached - self.window), 0.0)
        hidden: Array = (beyond * (beyond + 1) - first * (first + 1)) / 2
        return np.where(self.causal > 0, full - hidden, self.queries * self.seen)


def attention_shape(columns: Columns, hardware: Hardware) -> AttentionShape:
    """The shape that columns describe; raises UnknownNameError for an absent one."""
    names = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim")
    sizes = [column(columns, name) for name in names]
    options = [column(columns, name, usual) for name, usual in (("window", 0.0), ("causal", 1.0), ("keys_only", 0.0))]
    batch, queries, keys, heads, kv_heads, dim, window, causal, keys_only = aligned(*sizes, *options)
    computed = numbers(text(columns, "dtype"))
    kv_bytes, arithmetic = cached(columns, hardware)
    own = (batch, queries, keys, heads, kv_heads, dim, window, causal, keys_only)
    return AttentionShape(*own, computed.bytes, kv_bytes, arithmetic)


def cached(columns: Columns, hardware: Hardware) -> tuple[float, str]:
    """Bytes of a KV cache element, and the arithmetic of attention."""
    dtype = text(columns, "dtype")
    stored, computed = numbers(text(columns, "kv_dtype", dtype)), numbers(dtype)
    arithmetic = stored.arithmetic if hardware.supports(stored.arithmetic) else computed.arithmetic
    return float(column(columns, "kv_bytes", stored.bytes)), arithmetic


def attention_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds: `max(4 heads d pairs / peak, (Q + O + K + V) / bandwidth)`; `resident`: no memory term."""
    shape = attention_shape(columns, hardware)
    flops = 4.0 * shape.batch * shape.heads * shape.dim * shape.pairs
    compute = flops / hardware.matrix_peak(shape.arithmetic)
    memory = (shape.kv_traffic + shape.activation_traffic) / hardware.memory_bandwidth
    return np.where(resident, compute, np.maximum(compute, memory))


def slowdown(dim: Array, columns: Columns, parameters: Mapping[str, float]) -> Array:
    """The factor h(d) of head dimensions for which a library has no kernel of its own."""
    slower = parameters.get("other_dim", 0.0)
    if slower < NO_OTHER:
        return np.asarray(1.0)
    return np.asarray(1.0 + np.where(is_general(dim, columns), slower, 0.0))


def is_general(dim: Array, columns: Columns) -> NDArray[np.bool_]:
    """Where a library has no kernel of its own for the head dimension."""
    return np.asarray((dim == GENERAL_DIM) & (column(columns, "uneven", 0.0) == 0))


def launch_alone(parameters: Mapping[str, float]) -> float:
    """The launch of attention in a table without the kernel that writes the KV cache."""
    return max(parameters["launch"] - KV_WRITE_LAUNCH, parameters["launch"] / 4)
