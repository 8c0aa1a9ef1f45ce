"""NumPy for models of kernels and steps, with functions that are fast for a single number.

A kernel of one workload has numbers where those of a grid have arrays. NumPy computes with its numbers (`float64`) as
fast as Python does, but calls of its functions take a microsecond or more, ten to fifty times as long as these. All
else is NumPy's own: models import this module as `np`, and a type checker sees NumPy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy

if TYPE_CHECKING:
    from numpy import *  # noqa: F403
else:
    from numpy import bool_, broadcast, ceil, float64, floor, inf, log2, ndarray, sqrt  # noqa: F401 - found faster than by __getattr__

    _NUMBER, _FLAG = (float, int), (bool, bool_)

    def __getattr__(name: str) -> Any:
        return getattr(numpy, name)

    def asarray(value: Any, dtype: Any = None) -> Any:
        """`numpy.asarray`, but NumPy's numbers for numbers."""
        if isinstance(value, float):
            return value if type(value) is float64 else float64(value)
        return bool_(value) if isinstance(value, _FLAG) else numpy.asarray(value, dtype=dtype)

    def minimum(first: Any, second: Any) -> Any:
        """`numpy.minimum`."""
        if isinstance(first, _NUMBER) and isinstance(second, _NUMBER):
            return float64(first if first < second else second)
        return numpy.minimum(first, second)

    def maximum(first: Any, second: Any) -> Any:
        """`numpy.maximum`."""
        if isinstance(first, _NUMBER) and isinstance(second, _NUMBER):
            return float64(first if first > second else second)
        return numpy.maximum(first, second)

    def where(condition: Any, first: Any, second: Any) -> Any:
        """`numpy.where`."""
        if isinstance(condition, _FLAG) and isinstance(first, _NUMBER) and isinstance(second, _NUMBER):
            return float64(first if condition else second)
        return numpy.where(condition, first, second)

    def clip(value: Any, low: Any, high: Any) -> Any:
        """`numpy.clip`."""
        return minimum(maximum(value, low), high)

    def full_like(value: Any, number: float) -> Any:
        """`numpy.full_like`."""
        return float64(number) if isinstance(value, float) else numpy.full_like(value, number)

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
        return part / whole if whole > 0 else numpy.float64(0.0)
    return numpy.divide(part, whole, out=numpy.zeros(whole.shape), where=whole > 0)
