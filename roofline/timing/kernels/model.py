"""A kernel model: the shape of its operands, its parameters, and the terms of its time.

Every kind of kernel has a module here with three things: a frozen `Shape` of arrays, one row a kernel; the `Parameter`s
that are fitted; and `terms(shape, hardware, parameters)`, the named parts of its time. One rule adds the terms up
(`Terms.seconds`): a kernel takes its launch, a smooth maximum of the time on the multiprocessors and the time over
memory, and whatever runs one after the other with them,

    t = sum of serial terms + slowdown (units^p + memory^p)^(1/p)

where p is the `sharpness`: infinite if both overlap perfectly, 1 if not at all.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, Protocol, Self

from msgspec import Struct
from numpy.typing import NDArray

from roofline.core import numeric as np
from roofline.core.errors import UnknownNameError, UnsupportedError, quote
from roofline.core.parameters import Parameter
from roofline.specs.hardware import Hardware

Array = NDArray[np.float64]

Row = Mapping[str, Array | float | str]
"""Kernels in the measurement schema: shape columns as numbers or arrays, and texts such as `dtype`."""

Parameters = Mapping[str, float]
"""The constants of a kernel model by name, in SI units."""


ONE = 1.0
"""The rate of an amount in seconds, by identity: dividing by it takes as long as a sum of arrays."""


class Term(NamedTuple):
    """A part of a kernel's time: an `amount` of work over its `rate`, or so many seconds.

    `formula` says in symbols what it is, for `roofline explain`.
    """

    name: str
    formula: str
    amount: Array | float
    rate: Array | float = ONE

    @property
    def seconds(self) -> Array | float:
        """Seconds of each row."""
        return self.amount if self.rate is ONE else self.amount / self.rate


class Terms(Struct, frozen=True):
    """The named parts of the time of kernels; `units` and `memory` overlap, the `serial` ones do not.

    `slowdown` multiplies the overlapping parts.
    """

    serial: tuple[Term, ...]
    units: Term | None = None
    memory: Term | None = None
    sharpness: Array | float = 1.0
    slowdown: Array | float = 1.0

    @property
    def seconds(self) -> Array:
        """Seconds of each row."""
        time: Any = self.overlapped
        for term in self.serial:
            time = time + term.seconds
        return np.asarray(time, dtype=np.float64)

    @property
    def overlapped(self) -> Array:
        """Seconds of units and memory together, with the slowdown; 0 of a kernel without."""
        if self.units is None or self.memory is None:
            return np.asarray(0.0)
        both = smooth_maximum(np.asarray(self.units.seconds), np.asarray(self.memory.seconds), self.sharpness)
        return np.asarray(self.slowdown * both)

    def __getitem__(self, name: str) -> Term:
        """A term by its name; raises KeyError."""
        return next(term for term in self if term.name == name)

    def __iter__(self) -> Iterator[Term]:
        """The terms in the order in which they are explained."""
        first, rest = self.serial[:1], self.serial[1:]
        yield from first
        yield from (term for term in (self.units, self.memory) if term is not None)
        yield from rest


def smooth_maximum(first: Array, second: Array, sharpness: Array | float) -> Array:
    """`(first^p + second^p)^(1/p)`: the maximum where one dominates, 2^(1/p) times it where they are equal."""
    larger, smaller = np.maximum(first, second), np.minimum(first, second)
    return np.asarray(larger * (1.0 + np.fraction(smaller, larger) ** sharpness) ** (1.0 / sharpness))


class Bound(NamedTuple):
    """What the datasheet allows: seconds of the arithmetic at its peak, and of the traffic at the full bandwidth."""

    compute: Array
    memory: Array

    @property
    def seconds(self) -> Array:
        """The larger of both."""
        return np.maximum(self.compute, self.memory)


class Unusual(Struct, frozen=True):
    """Shapes that kernels are not tuned for, whose errors are larger: their name, and a mask of the rows with them."""

    name: str
    among: Callable[[Any], NDArray[np.bool_]]


class Regimes(Struct, frozen=True, dict=True):
    """Classes of shapes with separate residuals: `sizes` between `edges` (inclusive above) of `size(shape)`.

    Unusual shapes have another set of the same classes.
    """

    size: Callable[[Any], Array]
    edges: tuple[float, ...]
    sizes: tuple[str, ...]
    unusual: Unusual | None = None

    @cached_property
    def _edges(self) -> Array:
        return np.asarray(self.edges)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The names of the classes: by size, then those of unusual shapes."""
        return self.sizes if self.unusual is None else (*self.sizes, *(f"{s}, {self.unusual.name}" for s in self.sizes))

    def __call__(self, shape: Any) -> NDArray[np.int64]:
        """The index into `labels` of each row."""
        size = self.size(shape)
        index = bisect_left(self.edges, size) if isinstance(size, float) else self._edges.searchsorted(size)
        return index if self.unusual is None else index + len(self.sizes) * self.unusual.among(shape)


class Formula(Protocol):
    """The terms of kernels of some shape."""

    def __call__(self, shape: Any, hardware: Hardware, parameters: Parameters, /) -> Terms: ...


class Kernel(Struct, frozen=True):
    """One kind of kernel: its shape, bound, terms and parameters, and how its measurements are grouped.

    `shape` reads rows of the measurement schema: arrays, a kernel a row, or Python's numbers of one. `columns` are the
    shape columns of a measurement, `ranged` the sizes with a fitted range, `held_out` the columns whose combinations
    are held out as a whole. `formatted` are the columns that select a set of parameters: the data type, and the cache's
    where it differs; for collectives their kind (they move bytes of any type), for the gated delta rule the kernel
    variant.
    `instructions` are the most FLOP in a cycle of a multiprocessor that kernels in a format reach, whatever its peak.
    """

    op: str
    shape: Callable[[Row], Any]
    bound: Callable[[Any, Hardware], Bound]
    terms: Formula
    parameters: Callable[[str], tuple[Parameter, ...]]
    regimes: Regimes
    columns: tuple[str, ...]
    ranged: tuple[str, ...]
    held_out: tuple[str, ...]
    formatted: tuple[str, ...] = ("dtype", "kv_dtype")
    instructions: Callable[[str], float] = lambda _format: math.inf

    def format(self, row: Row) -> str:
        """The format that parameters belong to: the distinct values of the columns `formatted`."""
        values: list[str] = []
        for name in self.formatted:
            values.append(text(row, name, values[0] if values else None))
        return "/".join(dict.fromkeys(values)) or "any"


def text(row: Row, name: str, default: str | None = None) -> str:
    """The value of a text column such as `dtype`; raises UnsupportedError for several values."""
    value = row.get(name, default)
    if value is None:
        raise UnknownNameError("column", name, row)
    if isinstance(value, (str, float)):
        return str(value)
    values = np.unique(np.asarray(value))
    if len(values) != 1:
        raise UnsupportedError(f"kernels of one {name} at a time; got {', '.join(map(str, values[:5]))}")
    return str(values[0])


def column(row: Row, name: str, default: float | None = None) -> Array:
    """A shape column as floats; raises UnknownNameError where it is absent and has no default."""
    value = row.get(name, default)
    if value is None:
        raise UnknownNameError("column", name, row)
    return np.asarray(value, dtype=np.float64)


class Shape(Struct, frozen=True):
    """Sizes of kernels, arrays of one shape with a kernel a row; fields without a default are columns of the schema."""

    @classmethod
    def of(cls, row: Row, **others: Any) -> Self:
        """The kernels of rows; `others` are fields that are no columns. Raises UnknownNameError for absent columns."""
        fields = cls.__struct_fields__
        needed = fields[: len(fields) - len(cls.__struct_defaults__)]
        names = [name for name in needed if name not in others]
        sizes = aligned(*(column(row, name) for name in names))
        return cls(**dict(zip(names, sizes, strict=True)), **others)


SMALL = 4096
"""Rows up to which broadcasting copies a column, which takes a fifth of the time of making a view."""


def aligned(*columns: Array) -> tuple[Array, ...]:
    """Columns broadcast to one shape; read-only."""
    if all(isinstance(column, float) for column in columns):
        return columns
    shape = np.broadcast(*columns).shape
    return tuple(column if np.shape(column) == shape else _stretched(column, shape) for column in columns)


def _stretched(column: Array, shape: tuple[int, ...]) -> Array:
    if math.prod(shape) > SMALL:
        return np.broadcast_to(column, shape)
    found = np.empty(shape)
    found[...] = column
    return found


Flags = NDArray[np.bool_] | bool
"""One flag for all rows, or one a row."""


def flags(row: Row, name: str) -> Flags:
    """A column of ones and zeros; False where it is absent."""
    return column(row, name) != 0 if name in row else False


def one_flag(found: Flags, name: str) -> bool:
    """The flag that all rows have; raises UnsupportedError for a mixture."""
    if np.any(found) and not np.all(found):
        raise UnsupportedError(f"rows with and without {quote(name)} in one call; evaluate them separately")
    return bool(np.any(found))
