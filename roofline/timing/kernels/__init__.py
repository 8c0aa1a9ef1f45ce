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

from msgspec import Struct, convert, structs
from numpy.typing import NDArray

from roofline.core import numeric as np
from roofline.core.documents import bundled
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
from roofline.timing.kernels.common import REFERENCE_CLOCK, unit_clocks, units
from roofline.timing.kernels.model import (
    Array,
    Bound,
    Formula,
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
    "launch_factor",
    "register",
    "text",
    "times",
]


_ByFormat = Callable[[str], tuple[Parameter, ...]]


def _own_bound(shape: streaming.Streaming, hardware: Hardware) -> Bound:
    return shape.bound(hardware)


NARROW = Unusual("n or k < 1024", lambda gemm: np.minimum(gemm.n, gemm.k) < 1024)
"""GEMMs with small n or k: routers, low-rank projections, shards of small layers."""

ODD_HEADS = Unusual("head_dim not 128 or window", lambda shape: (shape.head_dim != 128) | (shape.window > 0))
"""Attention with other library kernels than the common case."""


class _Schema(Struct, frozen=True, forbid_unknown_fields=True):
    """A row of the file, which says what each field means."""

    texts: tuple[str, ...]
    sizes: tuple[str, ...]
    held_out: tuple[str, ...]
    size: tuple[str, ...]
    classes: dict[str, float]
    formatted: tuple[str, ...] | None = None
    ranged: int | None = None
    derived: tuple[str, ...] = ()


_SCHEMA = convert(bundled("timing/kernels/schema.yaml"), dict[str, _Schema])


def _shipped(
    op: str,
    shape: Callable[[Row], Any],
    bound: Callable[[Any, Hardware], Bound],
    terms: Formula,
    parameters: tuple[Parameter, ...] | _ByFormat,
    unusual: Unusual | None = None,
    schema: str = "",
    instructions: Callable[[str], float] = lambda _format: np.inf,
) -> Kernel:
    """A kernel with its measurements as a row of the file says, that of its op or another one."""
    row = _SCHEMA[schema or op]
    sizes = [attrgetter(name) for name in row.size]
    *edges, _ = row.classes.values()
    return Kernel(
        op,
        shape,
        bound,
        terms,
        parameters if callable(parameters) else lambda _format: parameters,
        Regimes(lambda shape: reduce(mul, (size(shape) for size in sizes)), tuple(edges), tuple(row.classes), unusual),
        (*row.texts, *row.sizes),
        (*row.sizes[: row.ranged], *row.derived),
        row.held_out,
        row.texts if row.formatted is None else row.formatted,
        instructions,
    )


_ATTENTION, _STREAMING = (attention.shape, attention.bound), (_own_bound, streaming.terms)

_SHIPPED: Mapping[str, Kernel] = {
    entry.op: entry
    for entry in (
        _shipped("gemm", gemm.shape, gemm.bound, gemm.terms, gemm.parameters, NARROW),
        _shipped("attention_prefill", *_ATTENTION, attention_prefill.terms, attention_prefill.PARAMETERS, ODD_HEADS),
        _shipped("attention_decode", *_ATTENTION, attention_decode.terms, attention_decode.PARAMETERS, ODD_HEADS),
        _shipped("mla_prefill", mla.prefill_shape, attention.bound, mla.prefill_terms, mla.PREFILL),
        _shipped("mla_decode", mla.shape, mla.bound, mla.terms, mla.parameters),
        _shipped("moe", moe.shape, moe.bound, moe.terms, moe.parameters, instructions=moe.instructions),
        _shipped("collective", collective.shape, collective.bound, collective.terms, collective.PARAMETERS),
        _shipped(
            "gated_delta_rule",
            gated_delta_rule.shape,
            gated_delta_rule.bound,
            gated_delta_rule.terms,
            gated_delta_rule.PARAMETERS,
        ),
        _shipped("top_k", top_k.Selection.of, top_k.bound, top_k.terms, top_k.PARAMETERS),
        _shipped(
            "kimi_delta",
            gated_delta_rule.kimi_shape,
            gated_delta_rule.bound,
            gated_delta_rule.terms,
            gated_delta_rule.KIMI,
        ),
        _shipped("mamba2", streaming.scan, *_STREAMING, streaming.SCAN),
        _shipped("state_update", streaming.Step.of, *_STREAMING, streaming.STEP),
        _shipped("convolution_prefill", streaming.ShortConvolution.of, *_STREAMING, streaming.CONVOLUTION),
        _shipped("convolution_decode", streaming.ShortConvolution.of, *_STREAMING, streaming.CONVOLUTION),
        *(
            _shipped(f"sparse_{phase}", sparse.shape, sparse.bound, terms, parameters, schema="sparse")
            for phase, terms, parameters in (
                ("prefill", sparse.prefill_terms, sparse.prefill_parameters),
                ("decode", sparse.decode_terms, sparse.decode_parameters),
            )
        ),
        _shipped("hyper_connection", streaming.Mixing.of, *_STREAMING, streaming.MIXING),
        _shipped("encoder_attention", *_ATTENTION, attention_prefill.encoder_terms, attention_prefill.PARAMETERS),
        *(
            _shipped(op, expert_exchange.shape, expert_exchange.bound, terms, parameters, schema="exchange")
            for op, terms, parameters in (
                ("deepep_low_latency", expert_exchange.low_latency_terms, expert_exchange.LOW_LATENCY),
                ("deepep_normal", expert_exchange.normal_terms, expert_exchange.NORMAL),
                ("nvlink_one_sided", expert_exchange.nvlink_terms, expert_exchange.NVLINK),
                ("nvlink_two_sided", expert_exchange.nvlink_terms, expert_exchange.NVLINK),
            )
        ),
        *(
            _shipped(
                op,
                elementwise.shape,
                elementwise.bound,
                elementwise.terms,
                elementwise.PARAMETERS,
                schema="elementwise",
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


def launch_factor(hardware: Hardware) -> float:
    """The launch of a kernel on a device over that at `REFERENCE_CLOCK`, at which constants of all devices have it.

    It takes about as many clocks on NVIDIA's: an engine's shortest attention kernels are 11 to 14 us long on A100 (1.4
    GHz), 8 to 9 on L40S and RTX PRO 6000 (2.5 GHz). Of devices of one family it is equal. Others were not compared.
    """
    if hardware.kind != "gpu" or hardware.vendor != "NVIDIA":
        return 1.0
    return REFERENCE_CLOCK * units(hardware) / unit_clocks(hardware)


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
