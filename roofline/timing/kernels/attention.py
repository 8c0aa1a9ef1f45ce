"""What prefill and decode of fused attention share: the shape, its traffic and bound, and general kernels.

G = heads / kv_heads query heads share a KV head, and h(d) is the slowdown of the head dimension d. Libraries lack
kernels of some head dimensions, and engines run a general one there, up to 11 times as slow: h(d) is 1 + `other_dim`
where d is 192, the only one that was measured. Expanded heads of MLA (192 for keys, 128 for values) have kernels, and a
mean d of 160.
"""

from __future__ import annotations

from msgspec import Struct
from numpy.typing import NDArray

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.formats import Numbers, numbers
from roofline.timing.kernels.model import Array, Bound, Flags, Parameters, Row, Shape, column, flags, one_flag, text

GENERAL_DIM = 192.0
"""The head dimension for which libraries lack a kernel."""

NO_OTHER = 2e-3
"""Values of `other_dim` below this mean that it was not measured."""

KV_WRITE_LAUNCH = 2.8e-6
"""Seconds of launch of the kernel that writes the KV cache: the difference between the shortest rows of public tables
with and without it (vLLM 0.24 and 0.22) on H200 and B200."""

ODD_WIDTHS = 72.0, 80.0
"""Head dimensions of vision encoders that are no power of two: kernels of their own, or general ones, by library.

TensorRT-LLM 1.3's on B200 reach 660 TFLOP/s with heads of 64 and 170 to 200 with these.
"""


def encoder_width(head_dim: float) -> str:
    """The width whose kernels encoders with such heads run: constants of an encoder's attention are by width."""
    return f"{head_dim:g}" if head_dim in ODD_WIDTHS else "64"


OTHER_DIM = Parameter(
    "other_dim", Unit.RATIO, 1e-3, 30.0, 1e-3, "slowdown of head dimensions without a kernel", 0.1, local=True
)


class Cache(Struct, frozen=True):
    """The format of queries and products (`computed`), and of a KV cache (`stored`, of `bytes` an element)."""

    computed: Numbers
    stored: Numbers
    bytes: float

    def arithmetic(self, hardware: Hardware) -> str:
        """The arithmetic of attention: that of the cache where the hardware has it."""
        return self.stored.arithmetic if hardware.supports(self.stored.arithmetic) else self.computed.arithmetic


def cache_of(row: Row) -> Cache:
    """The formats of rows with `dtype`, optional `kv_dtype` and `kv_bytes`."""
    dtype = text(row, "dtype")
    stored = numbers(text(row, "kv_dtype", dtype))
    return Cache(numbers(dtype), stored, float(column(row, "kv_bytes", stored.bytes)))


class Attention(Shape, frozen=True):
    """Attention of `q_len` new tokens of `batch` sequences to `kv_len` keys; arrays of one shape, a kernel a row.

    `window` keys at most are seen (0: all), those up to the query where it is `causal`. `selected` keys are picked, not
    a window's. `head_dim` is a mean over keys and values where these are `uneven`. A cache of `keys_only` has keys that
    stand for the values, too. `split_kv` is 0 for decode kernels that never split the keys, 2 for those that always
    may. `extend`, `ungrouped`: the engine's general prefill kernel is SGLang's, its decode kernel has no grouped heads.
    The keys of a layer end at its window, beyond which kernels read more; those of `all_keys` do not. `cold` is the
    time over memory relative to that of operands that no cache holds. `bare` kernels do not write the KV cache.
    """

    batch: Array
    q_len: Array
    kv_len: Array
    heads: Array
    kv_heads: Array
    head_dim: Array
    window: Array
    causal: Array
    keys_only: Array
    cache: Cache
    selected: bool = False
    uneven: bool = False
    split_kv: float = 1.0
    extend: Array | float = 0.0
    ungrouped: Array | float = 0.0
    all_keys: Flags = False
    cold: Array | float = 1.0
    bare: Flags = False

    @property
    def seen(self) -> Array:
        """Keys that the last query sees."""
        return np.where(self.window > 0, np.minimum(self.kv_len, self.window), self.kv_len)

    @property
    def read_keys(self) -> Array:
        """Keys that any query sees."""
        return np.where(self.window > 0, np.minimum(self.kv_len, self.window + self.q_len - 1), self.kv_len)

    @property
    def kv_traffic(self) -> Array:
        """Bytes of K and V in memory."""
        return (2.0 - self.keys_only) * self.batch * self.kv_heads * self.read_keys * self.head_dim * self.cache.bytes

    @property
    def activation_traffic(self) -> Array:
        """Bytes of Q and O."""
        return 2.0 * self.batch * self.heads * self.q_len * self.head_dim * self.cache.computed.bytes

    @property
    def kv_write_traffic(self) -> Array:
        """Bytes of new K and V, read and written to the cache."""
        new = 2.0 * self.batch * self.q_len * self.kv_heads * self.head_dim
        return new * (self.cache.computed.bytes + self.cache.bytes)

    @property
    def pairs(self) -> Array:
        """Query-key pairs of one head under the causal mask and the window: sum over queries of the keys seen."""
        cached = self.kv_len - self.q_len
        full = self.q_len * cached + self.q_len * (self.q_len + 1) / 2
        beyond = np.where(self.window > 0, np.maximum(0.0, self.kv_len - self.window), 0.0)
        first = np.where(self.window > 0, np.maximum(0.0, cached - self.window), 0.0)
        hidden: Array = (beyond * (beyond + 1) - first * (first + 1)) / 2
        return np.where(self.causal > 0, full - hidden, self.q_len * self.seen)

    @property
    def is_general(self) -> NDArray[np.bool_]:
        """Where a library has no kernel of its own for the head dimension."""
        return np.asarray((self.head_dim == GENERAL_DIM) & (not self.uneven))


def shape(row: Row) -> Attention:
    """The attention of rows with `dtype, batch, q_len, kv_len, heads, kv_heads, head_dim` and optional columns."""
    return Attention.of(
        {"window": 0.0, "causal": 1.0, "keys_only": 0.0, **row},
        cache=cache_of(row),
        selected=one_flag(flags(row, "selected"), "selected"),
        uneven=one_flag(flags(row, "uneven"), "uneven"),
        split_kv=float(column(row, "split_kv", 1.0)),
        extend=column(row, "extend", 0.0),
        ungrouped=column(row, "ungrouped", 0.0),
        bare=flags(row, "bare"),
    )


def bound(attention: Attention, hardware: Hardware) -> Bound:
    """`4 heads d pairs / peak`, and `(Q + O + K + V) / bandwidth`."""
    flops = 4.0 * attention.batch * attention.heads * attention.head_dim * attention.pairs
    peak = hardware.matrix_peak(attention.cache.arithmetic(hardware))
    traffic = attention.kv_traffic + attention.activation_traffic
    return Bound(flops / peak, traffic / hardware.memory_bandwidth)


def slowdown(attention: Attention, parameters: Parameters) -> Array:
    """The factor h(d) of head dimensions for which a library has no kernel of its own."""
    slower = parameters.get("other_dim", 0.0)
    if slower < NO_OTHER:
        return np.asarray(1.0)
    return np.asarray(1.0 + np.where(attention.is_general, slower, 0.0))


def launch_alone(parameters: Parameters) -> float:
    """The launch of attention without the kernel that writes the KV cache."""
    return max(parameters["launch"] - KV_WRITE_LAUNCH, parameters["launch"] / 4)
