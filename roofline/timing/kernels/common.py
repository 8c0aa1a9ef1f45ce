"""What the kernel models share: their parameters, the number formats of kernels, and the smooth maximum."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core.errors import UnknownNameError, UnsupportedError
from roofline.specs.hardware import Hardware

Array = NDArray[np.float64]
Columns = Mapping[str, Array | float | str]
"""The shape columns of the measurement schema, one kernel a row; `dtype` and other names are one text for all rows."""

Mask = bool | NDArray[np.bool_]
"""Something that holds for all rows, for none, or row by row."""


class Numbers(Struct, frozen=True):
    """How a kernel stores its operands (bytes an element, scales included) and in which arithmetic it multiplies them.

    `bytes` are those of weights, and of activations unless they have their own. `quantises` says whether 16-bit
    activations pass through a separate kernel that converts them first.
    """

    arithmetic: str
    bytes: float
    quantises: bool = False
    activation_bytes: float | None = None

    @property
    def input_bytes(self) -> float:
        """Bytes an element of the activations."""
        return self.bytes if self.activation_bytes is None else self.activation_bytes


FORMATS: Mapping[str, Numbers] = {
    "fp32": Numbers("fp32", 4),
    "tf32": Numbers("tf32", 4),
    "bf16": Numbers("bf16", 2),
    "fp16": Numbers("fp16", 2),
    "fp8": Numbers("fp8", 1, quantises=True),
    "int8": Numbers("int8", 1, quantises=True),
    "fp8_block": Numbers("fp8", 1 + 4 / 128**2, quantises=True),
    "nvfp4": Numbers("fp4", 0.5 + 1 / 16, quantises=True),
    "mxfp4": Numbers("fp4", 0.5 + 1 / 32, quantises=True),
    "int4": Numbers("int4", 0.5, quantises=True),
    "int4_wo": Numbers("bf16", 0.5 + 2 / 128, activation_bytes=2),
    "w4a16_mxfp4": Numbers("bf16", 0.5 + 1 / 32, activation_bytes=2),
    "w4a8_mxfp4_mxfp8": Numbers("fp8", 0.5 + 1 / 32, quantises=True, activation_bytes=1 + 1 / 32),
}
"""By the names that measurement files use. A weight-only format multiplies in its activations' arithmetic."""


def numbers(dtype: str) -> Numbers:
    """The storage and arithmetic of the format `dtype`; raises UnknownNameError."""
    if dtype not in FORMATS:
        raise UnknownNameError("kernel format", dtype, FORMATS)
    return FORMATS[dtype]


def storage(columns: Columns) -> Numbers:
    """The storage and arithmetic of the rows' `dtype`.

    Optional columns override it for kernels that nobody measured: `weight_bytes` (an element, scales included) and
    `arithmetic`, where a 16-bit kernel runs in another one on older hardware.
    """
    form = numbers(text(columns, "dtype"))
    if "weight_bytes" in columns:
        own = float(text(columns, "weight_bytes"))
        form = replace(form, bytes=own, activation_bytes=form.input_bytes)
    return replace(form, arithmetic=text(columns, "arithmetic")) if "arithmetic" in columns else form


def text(columns: Columns, name: str, default: str | None = None) -> str:
    """The one value of a text column such as `dtype`."""
    value = columns.get(name, default)
    if value is None:
        raise UnknownNameError("column", name, columns)
    if isinstance(value, (str, float)):
        return str(value)
    values = np.unique(np.asarray(value))
    if len(values) != 1:
        raise UnsupportedError(f"kernels of one {name} at a time; got {', '.join(map(str, values[:5]))}")
    return str(values[0])


def column(columns: Columns, name: str, default: float | None = None) -> Array:
    """A shape column as floats; raises UnknownNameError where it is needed and absent."""
    value = columns.get(name, default)
    if value is None:
        raise UnknownNameError("column", name, columns)
    return np.asarray(value, dtype=np.float64)


def is_bare(columns: Columns) -> bool:
    """Whether the rows time one kernel alone: none that quantises activations, sorts tokens or writes the cache.

    Tables of tuned kernels do; a served model runs those others, too. Raises UnsupportedError for a mixture.
    """
    if "bare" not in columns:
        return False
    values = column(columns, "bare") != 0
    if values.any() and not values.all():
        raise UnsupportedError("rows of bare kernels and rows with what runs around them, one sort at a time")
    return bool(values.any())


SMALL = 4096
"""Rows up to which a column is copied to another shape, at a fifth of what a view of it costs to make."""


def aligned(*columns: Array) -> tuple[Array, ...]:
    """Columns broadcast to one shape; not to be written to."""
    shape = np.broadcast(*columns).shape
    return tuple(column if column.shape == shape else _stretched(column, shape) for column in columns)


def _stretched(column: Array, shape: tuple[int, ...]) -> Array:
    if math.prod(shape) > SMALL:
        return np.broadcast_to(column, shape)
    found = np.empty(shape)
    found[...] = column
    return found


def units(hardware: Hardware) -> float:
    """Multiprocessors (or compute units, or cores) that tiles spread over.

    Where no document gives their number, it is estimated from the peak: one unit for each 16 TFLOP/s, as on the
    accelerators of 2022 to 2024; the number only sets how finely work is quantised. The few large cores of tensor
    processors count as many, since the constants of a unit are those of a GPU's.
    """
    if hardware.units is not None and hardware.kind != "npu":
        return float(hardware.units)
    peak = max((*hardware.tensor.values(), *hardware.vector.values()))
    return max(1.0, peak / 16e12)


def l2_bytes(hardware: Hardware) -> float:
    """The last-level cache in bytes; 0 where it is unknown, which makes nothing resident."""
    return hardware.l2 or 0.0


def smooth_maximum(first: Array, second: Array, sharpness: float) -> Array:
    """`(first^p + second^p)^(1/p)`: the maximum where one dominates, up to 2^(1/p) times it where they are equal.

    Compute and memory overlap within a kernel, but not perfectly; p = 1 is no overlap at all.
    """
    larger = np.maximum(first, second)
    smaller = np.minimum(first, second)
    ratio = np.divide(smaller, larger, out=np.zeros(np.broadcast(smaller, larger).shape), where=larger > 0)
    return larger * (1.0 + ratio**sharpness) ** (1.0 / sharpness)


def rounds(waves: Array, quantisation: float) -> Array:
    """Times that every multiprocessor is filled: whole waves for the share `quantisation` of a kernel, else balanced.

    A kernel that fills no wave takes one all the same.
    """
    return (1.0 - quantisation) * np.maximum(1.0, waves) + quantisation * np.ceil(waves)


def resident_share(footprint: Array, cache: float, exponent: float) -> Array:
    """The share of repeatedly used data that a cache of `cache` bytes still holds: 1 far below, 0 far above.

    A benchmark that replays the same buffers meets them there; a served model does not (its weights and KV are cold).
    """
    if cache <= 0:
        return np.zeros_like(footprint)
    return 1.0 / (1.0 + np.minimum(footprint / cache, 1e6) ** exponent)


def ceil_div(amount: Array, step: Array | float) -> Array:
    """`amount / step`, rounded up."""
    return np.ceil(amount / step)
