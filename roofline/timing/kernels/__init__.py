"""Kernel times: a model for each kind of kernel that an engine runs (`roofline.timing.kernels.model`).

Constants come from `roofline.timing.calibration`. Weights and KV cache are cold, a kernel is one of many in a step of a
served model; how benchmarks time kernels otherwise is none of this package's business. `register` adds a kernel model
from a user's module, or replaces one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import attrgetter, mul
from typing import Any

from msgspec import structs
from numpy.typing import NDArray

from roofline.core import numeric as np
from roofline.core.errors import UnknownNameError
from roofline.core.parameters import Parameter, Unit
from roofline.core.registry import Registration, Registry
from roofline.specs.hardware import Hardware
from roofline.timing.kernels import (
    attention,
    attention_decode,
    attention_prefill,
    collective,
    elementwise,
    expert_exchange,
    gated_delta_rule,
    gemm,
    mla,
    moe,
    sparse,
    streaming,
    top_k,
)
from roofline.timing.kernels.common import unit_clocks, units
from roofline.timing.kernels.model import (
    Array,
    Bound,
    Kernel,
    Parameters,
    Regimes,
    Row,
    Term,
    Terms,
    Unusual,
    aligned,
    column,
    text,
)

__all__ = [
    "KERNELS",
    "Array",
    "Bound",
    "Kernel",
    "Parameter",
    "Parameters",
    "Regimes",
    "Row",
    "Term",
    "Terms",
    "Unit",
    "Unusual",
    "aligned",
    "at_clock",
    "column",
    "kernel",
    "kernel_bound",
    "kernel_regimes",
    "kernel_time",
    "register",
    "text",
    "times",
]


def _product(*names: str) -> Callable[[Any], Array]:
    sizes = [attrgetter(name) for name in names]
    return lambda shape: reduce(mul, (size(shape) for size in sizes))


def _always(parameters: tuple[Parameter, ...]) -> Callable[[str], tuple[Parameter, ...]]:
    return lambda _format: parameters


def _own_bound(shape: streaming.Streaming, hardware: Hardware) -> Bound:
    return shape.bound(hardware)


_ATTENTION = ("dtype", "kv_dtype", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window")
_ATTENTION_RANGE = ("batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim", "window")
_LATENTS = ("dtype", "kv_dtype", "batch", "q_len", "kv_len", "heads")

NARROW = Unusual("n or k < 1024", lambda gemm: np.minimum(gemm.n, gemm.k) < 1024)
"""GEMMs with small n or k: routers, low-rank projections, shards of small layers."""

ODD_HEADS = Unusual("head_dim not 128 or window", lambda shape: (shape.head_dim != 128) | (shape.window > 0))
"""Attention with other library kernels than the common case."""

BY_QUERIES = Regimes(_product("q_len"), (256, 1024, 4096), ("q<=256", "q<=1024", "q<=4096", "q>4096"))

_SHIPPED: Mapping[str, Kernel] = {
    entry.op: entry
    for entry in (
        Kernel(
            "gemm",
            gemm.shape,
            gemm.bound,
            gemm.terms,
            gemm.parameters,
            Regimes(_product("m"), (16, 128, 512, 4095), ("m<=16", "m<=128", "m<=512", "m<4096", "m>=4096"), NARROW),
            ("dtype", "m", "n", "k"),
            ("m", "n", "k"),
            ("n", "k"),
        ),
        Kernel(
            "attention_prefill",
            attention.shape,
            attention.bound,
            attention_prefill.terms,
            _always(attention_prefill.PARAMETERS),
            structs.replace(BY_QUERIES, unusual=ODD_HEADS),
            _ATTENTION,
            _ATTENTION_RANGE,
            ("heads", "kv_heads"),
        ),
        Kernel(
            "attention_decode",
            attention.shape,
            attention.bound,
            attention_decode.terms,
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
        ),
        Kernel(
            "mla_prefill",
            mla.prefill_shape,
            attention.bound,
            mla.prefill_terms,
            _always(mla.PREFILL),
            BY_QUERIES,
            _LATENTS,
            ("batch", "q_len", "kv_len", "heads"),
            ("heads", "batch"),
        ),
        Kernel(
            "mla_decode",
            mla.shape,
            mla.bound,
            mla.terms,
            mla.parameters,
            Regimes(
                _product("batch", "kv_len"), (16384, 262144), ("kv<=16k tokens", "kv<=256k tokens", "kv>256k tokens")
            ),
            (*_LATENTS, "latent", "rope"),
            ("batch", "q_len", "kv_len", "heads"),
            ("heads", "batch"),
        ),
        Kernel(
            "moe",
            moe.shape,
            moe.bound,
            moe.terms,
            moe.parameters,
            Regimes(_product("tokens"), (16, 256, 2048), ("tokens<=16", "tokens<=256", "tokens<=2048", "tokens>2048")),
            ("dtype", "tokens", "hidden", "intermediate", "top_k", "experts", "tp", "ep", "routing"),
            ("tokens", "hidden", "intermediate", "top_k", "experts", "tp", "ep"),
            ("hidden", "intermediate", "top_k", "experts"),
            instructions=moe.instructions,
        ),
        Kernel(
            "collective",
            collective.shape,
            collective.bound,
            collective.terms,
            _always(collective.PARAMETERS),
            Regimes(
                _product("bytes"), (2**16, 2**20, 2**24), ("bytes<=64KiB", "bytes<=1MiB", "bytes<=16MiB", "bytes>16MiB")
            ),
            ("collective", "dtype", "ranks", "bytes"),
            ("ranks", "bytes"),
            ("bytes",),
            formatted=("collective",),
        ),
        Kernel(
            "gated_delta_rule",
            gated_delta_rule.shape,
            gated_delta_rule.bound,
            gated_delta_rule.terms,
            _always(gated_delta_rule.PARAMETERS),
            Regimes(_product("q_len"), (2048,), ("q<=2048", "q>2048")),
            ("variant", "batch", "q_len", "heads", "key_dim", "value_dim"),
            ("batch", "q_len", "heads"),
            ("batch", "heads"),
            formatted=("variant",),
        ),
        Kernel(
            "top_k",
            top_k.Selection.of,
            top_k.bound,
            top_k.terms,
            _always(top_k.PARAMETERS),
            Regimes(_product("batch", "kv_len"), (262144,), ("scores<=256k", "scores>256k")),
            ("batch", "kv_len", "top_k"),
            ("batch", "kv_len", "top_k"),
            ("batch", "kv_len"),
            formatted=(),
        ),
        Kernel(
            "kimi_delta",
            gated_delta_rule.kimi_shape,
            gated_delta_rule.bound,
            gated_delta_rule.terms,
            _always(gated_delta_rule.KIMI),
            Regimes(_product("q_len"), (128, 2048), ("q<=128", "q<=2048", "q>2048")),
            ("variant", "batch", "q_len", "heads", "key_dim", "value_dim"),
            ("batch", "q_len", "heads"),
            ("batch", "heads"),
            formatted=("variant",),
        ),
        Kernel(
            "mamba2",
            streaming.scan,
            _own_bound,
            streaming.terms,
            _always(streaming.SCAN),
            Regimes(_product("q_len"), (2048,), ("q<=2048", "q>2048")),
            ("batch", "q_len", "heads", "head_dim", "state", "groups", "chunk"),
            ("batch", "q_len", "heads"),
            ("batch", "heads"),
            formatted=(),
        ),
        Kernel(
            "state_update",
            streaming.Step.of,
            _own_bound,
            streaming.terms,
            _always(streaming.STEP),
            Regimes(_product("batch", "heads"), (512,), ("states<=512", "states>512")),
            ("variant", "batch", "q_len", "heads", "key_dim", "value_dim"),
            ("batch", "q_len", "heads"),
            ("batch", "heads"),
            formatted=("variant",),
        ),
        *(
            Kernel(
                op,
                streaming.ShortConvolution.of,
                _own_bound,
                streaming.terms,
                _always(streaming.CONVOLUTION),
                Regimes(_product("batch", "q_len"), (1024,), ("tokens<=1k", "tokens>1k")),
                (*formatted, "batch", "q_len", "channels", "taps"),
                ("batch", "q_len", "channels"),
                ("batch", "channels"),
                formatted=formatted,
            )
            for op, formatted in (("convolution_prefill", ("variant",)), ("convolution_decode", ()))
        ),
        *(
            Kernel(
                op,
                sparse.shape,
                sparse.bound,
                terms,
                parameters,
                Regimes(_product("batch"), (132, 4096), ("tokens<=132", "tokens<=4k", "tokens>4k")),
                ("variant", "dtype", "kv_dtype", *sparse.NAMES),
                ("batch", "kv_len", "heads"),
                ("batch", "heads"),
                formatted=("variant", "kv_dtype"),
            )
            for op, terms, parameters in (
                ("sparse_prefill", sparse.prefill_terms, sparse.prefill_parameters),
                ("sparse_decode", sparse.decode_terms, _always(sparse.PARAMETERS)),
            )
        ),
        Kernel(
            "hyper_connection",
            streaming.Mixing.of,
            _own_bound,
            streaming.terms,
            _always(streaming.MIXING),
            Regimes(_product("tokens"), (1024,), ("tokens<=1k", "tokens>1k")),
            ("variant", "tokens", "hidden", "streams"),
            ("tokens", "hidden"),
            ("tokens", "hidden"),
            formatted=("variant",),
        ),
        Kernel(
            "encoder_attention",
            attention.shape,
            attention.bound,
            attention_prefill.encoder_terms,
            _always(attention_prefill.PARAMETERS),
            BY_QUERIES,
            ("dtype", "variant", "batch", "q_len", "kv_len", "heads", "kv_heads", "head_dim"),
            ("batch", "q_len", "heads", "head_dim"),
            ("heads", "head_dim"),
            formatted=("dtype", "variant"),
        ),
        *(
            Kernel(
                op,
                expert_exchange.shape,
                expert_exchange.bound,
                terms,
                _always(parameters),
                Regimes(_product("tokens"), (32, 256), ("tokens<=32", "tokens<=256", "tokens>256")),
                ("direction", "tokens", "row_bytes", "top_k", "experts", "ranks", "members"),
                ("tokens", "top_k", "experts", "ranks"),
                ("tokens", "top_k", "experts"),
                formatted=("direction",),
            )
            for op, terms, parameters in (
                ("deepep_low_latency", expert_exchange.low_latency_terms, expert_exchange.LOW_LATENCY),
                ("deepep_normal", expert_exchange.normal_terms, expert_exchange.NORMAL),
                ("nvlink_one_sided", expert_exchange.nvlink_terms, expert_exchange.NVLINK),
                ("nvlink_two_sided", expert_exchange.nvlink_terms, expert_exchange.NVLINK),
            )
        ),
        *(
            Kernel(
                op,
                elementwise.shape,
                elementwise.bound,
                elementwise.terms,
                _always(elementwise.PARAMETERS),
                Regimes(_product("bytes"), (1e6,), ("bytes<=1MB", "bytes>1MB")),
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


_ByFormat = Callable[[str], tuple[Parameter, ...]]


def _both(shipped: _ByFormat, own: _ByFormat) -> _ByFormat:
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


def shape_of(op: str, row: Row) -> Any:
    """The shape of the kernels of a row; `op` distinguishes the elementwise kernels of one formula (norm, softmax)."""
    return kernel(op).shape(row if "op" in row else {**row, "op": op})


def kernel_bound(op: str, row: Row, hardware: Hardware) -> Array:
    """The bound of each kernel in seconds."""
    return kernel(op).bound(shape_of(op, row), hardware).seconds


def kernel_regimes(op: str, row: Row) -> NDArray[np.int64]:
    """The class of each kernel: an index into `kernel(op).regimes.labels`."""
    return kernel(op).regimes(shape_of(op, row))


REFERENCE_CLOCK = 1.8e9
"""The clock in Hz that constants of a multiprocessor are stated at, about that of H100."""

IN_CLOCKS: Mapping[str, float] = {
    **dict.fromkeys(("tile_prologue", "head_prologue", "combine"), -1.0),
    **dict.fromkeys(("unit_bandwidth", "tile_bandwidth"), 1.0),
}
"""Constants of what a multiprocessor does in so many clocks, and the power of the clock that they grow with."""


def at_clock(parameters: Parameters, hardware: Hardware) -> Parameters:
    """The constants at the clock of a GPU; those of other hardware are its own."""
    if hardware.kind != "gpu":
        return parameters
    ratio = unit_clocks(hardware) / units(hardware) / REFERENCE_CLOCK
    return {name: value * ratio ** IN_CLOCKS.get(name, 0.0) for name, value in parameters.items()}


def kernel_time(op: str, row: Row, hardware: Hardware, parameters: Parameters) -> Array:
    """Seconds of each kernel of a row, never below `kernel_bound`, with constants as calibrations state them.

    Raises UnknownNameError for an unknown op or an absent column, UnsupportedError where the hardware does not compute
    in the format.
    """
    return times(kernel(op), shape_of(op, row), hardware, at_clock(parameters, hardware))[1]


def times(model: Kernel, shape: Any, hardware: Hardware, constants: Parameters) -> tuple[Array, Array]:
    """The bound and the time of kernels of a shape, with constants `at_clock`."""
    bound = model.bound(shape, hardware).seconds
    return bound, np.maximum(model.terms(shape, hardware, constants).seconds, bound)
