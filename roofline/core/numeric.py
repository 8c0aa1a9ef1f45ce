"""NumPy for models of kernels and steps, with functions that are fast for a single number.

A kernel of one workload has Python's numbers where those of a grid have arrays. These take a third of the time of
NumPy's numbers, and NumPy's functions take a microsecond or more of one number, ten to fifty times as long as these.
All else is NumPy's own: models import this module as `np`, and a type checker sees NumPy. Python's numbers differ from
NumPy's in three ways: `logical_not` stands for `~`, `shape` and `size` for the attributes, and division by zero raises.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from numpy import *  # noqa: F403
else:
    from numpy import bool_, broadcast, float64, inf, ndarray  # noqa: F401 - found faster than by __getattr__

    _NUMBER, _FLAG, _PLAIN = (float, int), (bool, bool_), (float, bool, bool_)

    def __getattr__(name: str) -> Any:
        return getattr(numpy, name)

    def _of_number(function: Any, of_arrays: Any) -> Any:
        """A function of one number, and NumPy's of arrays."""
        return lambda value: function(value) if isinstance(value, float) else of_arrays(value)

    ceil = _of_number(lambda value: float(math.ceil(value)) if math.isfinite(value) else value, numpy.ceil)
    floor = _of_number(lambda value: float(math.floor(value)) if math.isfinite(value) else value, numpy.floor)
    sqrt, log2 = _of_number(math.sqrt, numpy.sqrt), _of_number(math.log2, numpy.log2)

    def logical_not(value: Any) -> Any:
        """`numpy.logical_not`."""
        return not value if isinstance(value, _FLAG) else numpy.logical_not(value)

    def asarray(value: Any, dtype: Any = None) -> Any:
        """`numpy.asarray`, but numbers as they are."""
        if isinstance(value, _PLAIN):
            return value
        return float(value) if isinstance(value, int) else numpy.asarray(value, dtype=dtype)

    def shape(value: Any) -> tuple[int, ...]:
        """`numpy.shape`."""
        return value.shape if isinstance(value, ndarray) else ()

    def size(value: Any) -> int:
        """`numpy.size`."""
        return value.size if isinstance(value, ndarray) else 1

    def minimum(first: Any, second: Any) -> Any:
        """`numpy.minimum`."""
        if isinstance(first, _NUMBER) and isinstance(second, _NUMBER):
            return first if first < second else second
        return numpy.minimum(first, second)

    def maximum(first: Any, second: Any) -> Any:
        """`numpy.maximum`."""
        if isinstance(first, _NUMBER) and isinstance(second, _NUMBER):
            return first if first > second else second
        return numpy.maximum(first, second)

    def where(condition: Any, first: Any, second: Any) -> Any:
        """`numpy.where`."""
        if isinstance(condition, _FLAG) and isinstance(first, _NUMBER) and isinstance(second, _NUMBER):
            return first if condition else second
        return numpy.where(condition, first, second)

    def clip(value: Any, low: Any, high: Any) -> Any:
        """`numpy.clip`."""
        return minimum(maximum(value, low), high)

    def full_like(value: Any, number: float) -> Any:
        """`numpy.full_like`."""
        return float(number) if isinstance(value, float) else numpy.full_like(value, number)

    def zeros_like(value: Any) -> Any:
        """`numpy.zeros_like`."""
        return full_like(value, 0.0)

    def any(value: Any) -> Any:
        """`numpy.any`."""
        return value if isinstance(value, _FLAG) else numpy.any(value)

    def all(value: Any) -> Any:
        """`numpy.all`."""
        return value if isinstance(value, _FLAG) else numpy.all(value)


def fraction(part: Any, whole: Any) -> Any:
    """`part / whole`, 0 where there is no whole; numbers, or arrays of one shape."""
    if isinstance(whole, float):
        return part / whole if whole > 0 else 0.0
    return numpy.divide(part, whole, out=numpy.zeros(whole.shape), where=whole > 0)
