"""Kernel times: a formula for each kind of kernel, with fitted physical constants.

Every formula starts from `launch + (units^p + memory^p)^(1/p)`, a launch and a smooth maximum of the time on the
multiprocessors and the time over memory, and adds the terms that lowered the error on held-out shapes. Constants come
from `roofline.timing.calibration`. Weights and KV cache are cold except in `resident` rows, of benchmarks that replay
their buffers; a kernel is one of many in a step except in `alone` rows: benchmarks that replay a graph of one kernel.
`register` adds a kernel model from a user's module, or replaces one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Protocol

import numpy as np
from msgspec import Struct, structs
from numpy.typing import NDArray

from roofline.core.errors import UnknownNameError
from roofline.core.parameters import Parameter, Unit
from roofline.core.registry import Registration, Registry
from roofline.specs.hardware import Hardware
from roofline.timing.kernels import (
    attention_decode,
    attention_prefill,
    collective,
    elementwise,
    gated_delta_rule,
    gemm,
    mla,
    moe,
    top_k,
)
from roofline.timing.kernels.attention import attention_bound
from roofline.timing.kernels.common import NO_HOST, Array, Columns, Mask, column, some, text, unit_clocks, units

__all__ = [
    "KERNELS",
    "Array",
    "Columns",
    "Kernel",
    "Mask",
    "Parameter",
    "Regimes",
    "Unit",
    "Unusual",
    "column",
    "in_step",
    "kernel",
    "kernel_bound",
    "kernel_regimes",
    "kernel_time",
    "kernel_times",
    "register",
    "served_times",
]


class _Time(Protocol):
    def __call__(
        self, columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False
    ) -> Array: ...


class _Bound(Protocol):
    def __call__(self, columns: Columns, hardware: Hardware, resident: Mask = False) -> Array: ...


class Unusual(Struct, frozen=True):
    """Shapes that kernels are not tuned for, whose errors are larger: their name, and a mask of the rows with them."""

    name: str
    among: Callable[[Columns], NDArray[np.bool_]]


class Regimes(Struct, frozen=True):
    """Classes of shapes with separate residuals: `sizes` between `edges` (inclusive above) of `size(columns)`.

    Unusual shapes have another set of the same classes.
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


_Parameters = Callable[[str], tuple[Parameter, ...]]
"""The parameters of a kernel model by format."""


class Kernel(Struct, frozen=True):
    """One kind of kernel: its time, its bound, and how its measurements are grouped.

    `shape` lists the columns of a measurement, `ranged` those with a fitted range, and `held_out` those whose
    combinations are held out as a whole. `graph_overhead` is the part of the fitted launch, in seconds, that only a
    CUDA graph of a single kernel has, not a kernel within a step. `formatted` are the columns that select a set of
    parameters: the data type, and the cache's where it differs; for collectives their kind (they move bytes of any
    type), for the gated delta rule the kernel variant.
    """

    op: str
    time: _Time
    bound: _Bound
    parameters: _Parameters
    regimes: Regimes
    shape: tuple[str, ...]
    ranged: tuple[str, ...]
    held_out: tuple[str, ...]
    graph_overhead: float = 0.0
    formatted: tuple[str, ...] = ("dtype", "kv_dtype")

    def format(self, columns: Columns) -> str:
        """The format that parameters belong to: the distinct values of the columns `formatted`."""
        values: list[str] = []
        for name in self.formatted:
            values.append(text(columns, name, values[0] if values else None))
        return "/".join(dict.fromkeys(values)) or "any"

    def launch_in_step(self, parameters: Mapping[str, float]) -> float:
        """The launch seconds of a kernel within a step: the fitted ones without `graph_overhead`."""
        return max(parameters["launch"] - self.graph_overhead, parameters["launch"] / 4)


def _product(*names: str) -> Callable[[Columns], Array]:
    def size(columns: Columns) -> Array:
        return reduce(np.multiply, (column(columns, name) for name in names))

    return size


def _always(parameters: tuple[Parameter, ...]) -> _Parameters:
    return lambda _format: parameters


GRAPH_OVERHEAD = 4e-6
"""Seconds: attention benchmarks replay a graph of one call and measure 8 to 9 us, where a step of a served model takes
about 4.5 (gpt-fast's and TensorRT-LLM's published decode steps)."""

_ATTENTION = ("dtype", "kv_dtype", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window")
_ATTENTION_RANGE = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window")

NARROW = Unusual("n or k < 1024", lambda columns: np.minimum(column(columns, "n"), column(columns, "k")) < 1024)
"""GEMMs with small n or k: routers, low-rank projections, shards of small layers."""

ODD_HEADS = Unusual(
    "head_dim not 128 or window",
    lambda columns: (column(columns, "head_dim") != 128) | (column(columns, "window", 0.0) > 0),
)
"""Attention with other library kernels than the common case."""

_SHIPPED: Mapping[str, Kernel] = {
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
            attention_prefill.prefill_time,
            attention_bound,
            _always(attention_prefill.PARAMETERS),
            Regimes(_product("q_len"), (256, 1024, 4096), ("q<=256", "q<=1024", "q<=4096", "q>4096"), ODD_HEADS),
            _ATTENTION,
            _ATTENTION_RANGE,
            ("heads", "kv_heads"),
            GRAPH_OVERHEAD,
        ),
        Kernel(
            "attention_decode",
            attention_decode.decode_time,
            attention_bound,
            _always(attention_decode.PARAMETERS),
            Regimes(
                _product("batch", "kv_len"),
                (1024, 16384, 262144),
                ("kv<=1k tokens", "kv<=16k tokens", "kv<=256k tokens", "kv>256k tokens"),
                ODD_HEADS,
            ),
            _ATTENTION,
            _ATTENTION_RANGE,
            ("heads", "kv_heads"),
            GRAPH_OVERHEAD,
        ),
        Kernel(
            "mla_prefill",
            mla.prefill_time,
            mla.prefill_bound,
            _always(mla.PREFILL),
            Regimes(_product("q_len"), (256, 1024, 4096), ("q<=256", "q<=1024", "q<=4096", "q>4096")),
            ("dtype", "kv_dtype", "batch", "q_len", "kv_len", "heads"),
            ("batch", "q_len", "kv_len", "heads"),
            ("heads", "batch"),
            GRAPH_OVERHEAD,
        ),
        Kernel(
            "mla_decode",
            mla.mla_time,
            mla.mla_bound,
            mla.parameters_of,
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
            "gated_delta_rule",
            gated_delta_rule.gated_delta_rule_time,
            gated_delta_rule.gated_delta_rule_bound,
            _always(gated_delta_rule.PARAMETERS),
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

KERNELS: Registry[Kernel] = Registry("kernel", _SHIPPED)
"""By the op names of measurement files."""


def register(model: Kernel, *, replace: bool = False) -> Registration:
    """Predict kernels of the kind `model.op` with a model of one's own, until the registration is undone.

    Its constants are those of calibration files. One that replaces a shipped model has that one's `parameters`, too,
    and calibrations may lack the others, which then have their defaults. Raises RooflineError for a kind that has a
    model, unless it is to `replace` it.
    """
    shipped = _SHIPPED.get(model.op)
    known = {} if shipped is None else structs.asdict(shipped)
    own = tuple(value for name, value in structs.asdict(model).items() if value is not known.get(name))
    if shipped is not None and model.parameters is not shipped.parameters:
        model = structs.replace(model, parameters=_both(shipped.parameters, model.parameters))
    return KERNELS.add(model.op, model, own, replace)


def _both(shipped: _Parameters, own: _Parameters) -> _Parameters:
    """The parameters of a shipped model, and those of the one in its place, which are optional."""

    def of(format: str) -> tuple[Parameter, ...]:
        known = {one.name: one for one in shipped(format)}
        added = {one.name: one for one in own(format) if one.name not in known}
        optional = (structs.replace(one, start=one.default) if one.start is None else one for one in added.values())
        return (*known.values(), *optional)

    return of


def kernel(op: str) -> Kernel:
    """The model of the kind `op`; raises UnknownNameError."""
    try:
        return KERNELS[op]
    except KeyError:
        raise UnknownNameError("kernel", op, KERNELS) from None


def kernel_bound(op: str, columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound of each row in seconds; operands of `resident` rows may be in the cache."""
    return kernel(op).bound(_with_op(op, columns), hardware, resident)


def kernel_regimes(op: str, columns: Columns) -> NDArray[np.int64]:
    """The class of each row: an index into `kernel(op).regimes.labels`."""
    return kernel(op).regimes(_with_op(op, columns))


def _with_op(op: str, columns: Columns) -> Columns:
    """The columns with `op`, which distinguishes the elementwise kernels of one formula (norm, softmax, ...)."""
    return columns if "op" in columns else {**columns, "op": op}


REFERENCE_CLOCK = 1.8e9
"""The clock in Hz that constants of a multiprocessor are stated at, about that of H100."""

IN_CLOCKS: Mapping[str, float] = {
    **dict.fromkeys(("tile_prologue", "head_prologue", "combine"), -1.0),
    **dict.fromkeys(("unit_bandwidth", "tile_bandwidth"), 1.0),
}
"""Constants of what a multiprocessor does in so many clocks, and the power of the clock that they grow with."""


def at_clock(parameters: Mapping[str, float], hardware: Hardware) -> Mapping[str, float]:
    """The constants at the clock of a GPU; those of other hardware are its own."""
    if hardware.kind != "gpu":
        return parameters
    ratio = unit_clocks(hardware) / units(hardware) / REFERENCE_CLOCK
    return {name: value * ratio ** IN_CLOCKS.get(name, 0.0) for name, value in parameters.items()}


def kernel_time(
    op: str,
    columns: Columns,
    hardware: Hardware,
    parameters: Mapping[str, float],
    resident: Mask = False,
    alone: Mask = False,
) -> Array:
    """Seconds of each row, never below `kernel_bound`, from columns (arrays or scalars; one `dtype`) and constants.

    `resident` marks rows of benchmarks that replay a few buffers, `alone` those that replay a graph of one kernel, or
    launch it anew each time (column `graph` 0); all others are kernels of a served model's step. Raises
    UnknownNameError for an unknown op or an absent column, UnsupportedError where the hardware does not compute in the
    format.
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
    served = in_step(op, parameters, hardware)
    if not some(alone):
        return served_times(op, columns, hardware, served, resident)
    chosen, columns = kernel(op), _with_op(op, columns)
    bound = chosen.bound(columns, hardware, resident)
    benchmark, graph = at_clock(parameters, hardware), 0.0
    if chosen.graph_overhead:
        graph = parameters["launch"] - served["launch"]
        benchmark = {**benchmark, "launch": served["launch"]}
    time = graph * np.asarray(alone)
    launched = np.asarray(alone) & (column(columns, "graph", 1.0) == 0.0)
    for rows, known in (
        (launched, benchmark),
        (np.asarray(alone) & ~launched, _in_graph(benchmark)),
        (~np.asarray(alone), served),
    ):
        if np.any(rows):
            time = np.where(rows, time + chosen.time(columns, hardware, known, resident), time)
    return bound, np.maximum(time, bound)


def _in_graph(benchmark: Mapping[str, float]) -> Mapping[str, float]:
    """The constants in a benchmark with CUDA graphs: those of one without lose its host time and gaps."""
    return benchmark if benchmark.get("host", NO_HOST) <= NO_HOST else _without_host(benchmark)


def _without_host(parameters: Mapping[str, float]) -> Mapping[str, float]:
    return {name: value for name, value in parameters.items() if not name.startswith("host")}


def in_step(op: str, parameters: Mapping[str, float], hardware: Hardware) -> Mapping[str, float]:
    """The constants of a kernel in a step of a served model: without the host and the graph of a benchmark."""
    chosen, at = kernel(op), at_clock(parameters, hardware)
    served = _without_host(at)
    return {**served, "launch": chosen.launch_in_step(at)} if chosen.graph_overhead else served


def served_times(
    op: str, columns: Columns, hardware: Hardware, constants: Mapping[str, float], resident: Mask = False
) -> tuple[Array, Array]:
    """`kernel_bound` and `kernel_time` of kernels in a step of a served model, with the constants of `in_step`."""
    chosen, columns = kernel(op), _with_op(op, columns)
    bound = chosen.bound(columns, hardware, resident)
    return bound, np.maximum(chosen.time(columns, hardware, constants, resident), bound)
