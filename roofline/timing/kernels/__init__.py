"""How long kernels take: a formula for each kind, with fitted physical constants.

Every kind starts from `launch + (units^p + memory^p)^(1/p)`, a launch and a smooth maximum of the time on the
multiprocessors and the time over memory, and adds the terms that paid in the error on shapes not seen. Constants come
from `roofline.timing.calibration`; weights and KV are cold unless `resident` says that a benchmark replayed its
buffers, and a kernel is one of many in a step unless `alone` says that a benchmark replayed a graph of it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.errors import UnknownNameError
from roofline.core.parameters import Parameter
from roofline.specs.hardware import Hardware
from roofline.timing.kernels import attention, collective, elementwise, gemm, moe, top_k
from roofline.timing.kernels import gated_delta_rule as delta_rule
from roofline.timing.kernels import mla as latent
from roofline.timing.kernels.common import Array, Columns, Mask, column, text

__all__ = [
    "KERNELS",
    "Array",
    "Columns",
    "Kernel",
    "Mask",
    "column",
    "kernel",
    "kernel_bound",
    "kernel_regimes",
    "kernel_time",
    "kernel_times",
]


class _Time(Protocol):
    def __call__(
        self, columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False
    ) -> Array: ...


class _Bound(Protocol):
    def __call__(self, columns: Columns, hardware: Hardware, resident: Mask = False) -> Array: ...


class Unusual(Struct, frozen=True):
    """Shapes that kernels are not tuned for, so that errors are larger: what they are, and which rows have them."""

    name: str
    among: Callable[[Columns], NDArray[np.bool_]]


class Regimes(Struct, frozen=True):
    """Classes of shapes with errors of their own: `sizes` between `edges` (inclusive above) of `size(columns)`.

    Unusual shapes have the same classes once more.
    """

    size: Callable[[Columns], Array]
    edges: tuple[float, ...]
    sizes: tuple[str, ...]
    unusual: Unusual | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes: by size, then those of unusual shapes."""
        return self.sizes if self.unusual is None else (*self.sizes, *(f"{s}, {self.unusual.name}" for s in self.sizes))

    def __call__(self, columns: Columns) -> NDArray[np.int64]:
        """The index into `labels` of each row."""
        index = np.searchsorted(np.asarray(self.edges), self.size(columns), side="left")
        return index if self.unusual is None else index + len(self.sizes) * self.unusual.among(columns)


class Kernel(Struct, frozen=True):
    """One kind of kernel: its time, its bound, and how its measurements are grouped.

    `shape` names the columns of a measurement, `ranged` those whose fitted range is remembered, and `held_out` those
    whose combinations a fair test keeps together. `lone_launch` is the part of the fitted launch, in seconds, that a
    kernel measured alone pays for the graph around it, and that a kernel in the middle of a step does not. `formatted`
    are the columns that say which parameters it has: the data type, and that of the cache where it differs; exchanges
    move bytes, whatever these mean, and have their kind instead, delta rules the sort of kernels that compute them.
    """

    op: str
    time: _Time
    bound: _Bound
    parameters: Callable[[str], tuple[Parameter, ...]]
    regimes: Regimes
    shape: tuple[str, ...]
    ranged: tuple[str, ...]
    held_out: tuple[str, ...]
    lone_launch: float = 0.0
    formatted: tuple[str, ...] = ("dtype", "kv_dtype")

    def format(self, columns: Columns) -> str:
        """The format that parameters belong to: what the columns `formatted` say, each value once."""
        values: list[str] = []
        for name in self.formatted:
            values.append(text(columns, name, values[0] if values else None))
        return "/".join(dict.fromkeys(values)) or "any"


def _product(*names: str) -> Callable[[Columns], Array]:
    def size(columns: Columns) -> Array:
        return reduce(np.multiply, (column(columns, name) for name in names))

    return size


def _always(parameters: tuple[Parameter, ...]) -> Callable[[str], tuple[Parameter, ...]]:
    return lambda _format: parameters


LONE_LAUNCH = 4e-6
"""Seconds: attention benchmarks replay a graph of one call, and read 8 to 9 us where a step of a served model shows
about 4.5 (gpt-fast's and TensorRT-LLM's published decode steps)."""

_ATTENTION = ("dtype", "kv_dtype", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window")
_ATTENTION_RANGE = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window")

NARROW = Unusual("n or k < 1024", lambda columns: np.minimum(column(columns, "n"), column(columns, "k")) < 1024)
"""Products of few columns or a short sum: routers, low ranks, the shards of small layers."""

ODD_HEADS = Unusual(
    "head_dim not 128 or window",
    lambda columns: (column(columns, "head_dim") != 128) | (column(columns, "window", 0.0) > 0),
)
"""Attention that libraries have other kernels for than for the common case."""

KERNELS: Mapping[str, Kernel] = {
    entry.op: entry
    for entry in (
        Kernel(
            "gemm",
            gemm.gemm_time,
            gemm.gemm_bound,
            gemm.gemm_parameters,
            Regimes(_product("m"), (16, 128, 512, 4095), ("m<=16", "m<=128", "m<=512", "m<4096", "m>=4096"), NARROW),
            ("dtype", "m", "n", "k"),
            ("m", "n", "k"),
            ("n", "k"),
        ),
        Kernel(
            "attention_prefill",
            attention.prefill_time,
            attention.attention_bound,
            _always(attention.PREFILL),
            Regimes(_product("q_len"), (256, 1024, 4096), ("q<=256", "q<=1024", "q<=4096", "q>4096"), ODD_HEADS),
            _ATTENTION,
            _ATTENTION_RANGE,
            ("heads", "kv_heads"),
            LONE_LAUNCH,
        ),
        Kernel(
            "attention_decode",
            attention.decode_time,
            attention.attention_bound,
            _always(attention.DECODE),
            Regimes(
                _product("batch", "kv_len"),
                (1024, 16384, 262144),
                ("kv<=1k tokens", "kv<=16k tokens", "kv<=256k tokens", "kv>256k tokens"),
                ODD_HEADS,
            ),
            _ATTENTION,
            _ATTENTION_RANGE,
            ("heads", "kv_heads"),
            LONE_LAUNCH,
        ),
        Kernel(
            "latent_decode",
            latent.latent_time,
            latent.latent_bound,
            _always(latent.PARAMETERS),
            Regimes(
                _product("batch", "kv_len"),
                (16384, 262144),
                ("kv<=16k tokens", "kv<=256k tokens", "kv>256k tokens"),
            ),
            ("dtype", "kv_dtype", "batch", "q_len", "kv_len", "heads", "latent", "rope"),
            ("batch", "q_len", "kv_len", "heads"),
            ("heads", "batch"),
        ),
        Kernel(
            "moe",
            moe.moe_time,
            moe.moe_bound,
            _always(moe.PARAMETERS),
            Regimes(
                _product("tokens"),
                (16, 256, 2048),
                ("tokens<=16", "tokens<=256", "tokens<=2048", "tokens>2048"),
            ),
            ("dtype", "tokens", "hidden", "intermediate", "top_k", "experts", "tp", "ep", "routing"),
            ("tokens", "hidden", "intermediate", "top_k", "experts", "tp", "ep"),
            ("hidden", "intermediate", "top_k", "experts"),
        ),
        Kernel(
            "collective",
            collective.collective_time,
            collective.collective_bound,
            _always(collective.PARAMETERS),
            Regimes(
                _product("bytes"),
                (2**16, 2**20, 2**24),
                ("bytes<=64KiB", "bytes<=1MiB", "bytes<=16MiB", "bytes>16MiB"),
            ),
            ("collective", "dtype", "ranks", "bytes"),
            ("ranks", "bytes"),
            ("bytes",),
            formatted=("collective",),
        ),
        Kernel(
            "delta_rule",
            delta_rule.delta_rule_time,
            delta_rule.delta_rule_bound,
            _always(delta_rule.PARAMETERS),
            Regimes(_product("q_len"), (2048,), ("q<=2048", "q>2048")),
            ("variant", "batch", "q_len", "heads", "key_dim", "value_dim"),
            ("batch", "q_len", "heads"),
            ("batch", "heads"),
            formatted=("variant",),
        ),
        Kernel(
            "top_k",
            top_k.top_k_time,
            top_k.top_k_bound,
            _always(top_k.PARAMETERS),
            Regimes(_product("batch", "kv_len"), (262144,), ("scores<=256k", "scores>256k")),
            ("batch", "kv_len", "top_k"),
            ("batch", "kv_len", "top_k"),
            ("batch", "kv_len"),
            formatted=(),
        ),
        *(
            Kernel(
                op,
                elementwise.elementwise_time,
                elementwise.elementwise_bound,
                _always(elementwise.PARAMETERS),
                Regimes(elementwise.streamed, (1e6,), ("bytes<=1MB", "bytes>1MB")),
                ("dtype", "rows", "columns"),
                ("rows", "columns"),
                ("rows", "columns"),
                formatted=(),
            )
            for op in elementwise.PASSES
        ),
    )
}
"""By the names that measurement files use."""


def kernel(op: str) -> Kernel:
    """The model of the kind `op`; raises UnknownNameError."""
    if op not in KERNELS:
        raise UnknownNameError("kernel", op, KERNELS)
    return KERNELS[op]


def kernel_bound(op: str, columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The speed of light in seconds of each row; with `resident`, what memory would move may be in the cache."""
    return kernel(op).bound(_with_op(op, columns), hardware, resident)


def kernel_regimes(op: str, columns: Columns) -> NDArray[np.int64]:
    """The class of each row: an index into `kernel(op).regimes.labels`."""
    return kernel(op).regimes(_with_op(op, columns))


def _with_op(op: str, columns: Columns) -> Columns:
    """The columns, with the one that tells apart the passes of one formula (norm, softmax, ...)."""
    return columns if "op" in columns else {**columns, "op": op}


def kernel_time(
    op: str,
    columns: Columns,
    hardware: Hardware,
    parameters: Mapping[str, float],
    resident: Mask = False,
    alone: Mask = False,
) -> Array:
    """Seconds of each row: columns of the measurement schema (arrays or scalars; one `dtype`), constants of one format.

    Never below `kernel_bound`. `resident` is for rows of benchmarks that replay a few buffers, `alone` for those that
    replay a graph of one kernel; without them the kernel is one of a served model's step, its weights and cache cold.
    Raises UnknownNameError for an unknown op or an absent column, UnsupportedError where the hardware does not compute
    in the format.
    """
    return kernel_times(op, columns, hardware, parameters, resident, alone)[1]


def kernel_times(
    op: str,
    columns: Columns,
    hardware: Hardware,
    parameters: Mapping[str, float],
    resident: Mask = False,
    alone: Mask = False,
) -> tuple[Array, Array]:
    """`kernel_bound` and `kernel_time` of each row."""
    chosen = kernel(op)
    columns = _with_op(op, columns)
    graph = 0.0
    if chosen.lone_launch:
        launch = parameters["launch"]
        shared = max(launch - chosen.lone_launch, launch / 4)
        parameters, graph = {**parameters, "launch": shared}, launch - shared
    bound = chosen.bound(columns, hardware, resident)
    time = chosen.time(columns, hardware, parameters, resident) + graph * np.asarray(alone)
    return bound, np.maximum(time, bound)
