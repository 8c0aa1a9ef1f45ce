"""The estimator of every fit: the mode of a posterior (MAP) with robust residuals.

    loss(x) = sum over rows of w^2 rho(errors(x) / scale) + |off(x)|^2

`errors` are logarithms of predicted over measured time; `off` are distances from the prior in its standard deviations.
rho is quadratic for small residuals, and beyond `knee` of them grows linearly, or as a logarithm (`outliers`): then far
rows hardly count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Array = NDArray[np.float64]


def rooted(residuals: Array, knee: float, outliers: bool = False) -> Array:
    """Values whose squares are rho of the residuals."""
    if math.isinf(knee):
        return residuals
    scaled = residuals / knee
    root = np.log1p(scaled**2) if outliers else 2 * (np.sqrt(1 + scaled**2) - 1)
    return np.asarray(np.sign(scaled) * knee * np.sqrt(root))


def mode(
    errors: Callable[[Array], Array],
    off: Callable[[Array], Array],
    start: Array,
    *,
    scale: float,
    knee: float = math.inf,
    outliers: bool = False,
    weights: Array | float = 1.0,
    **options: Any,
) -> Array:
    """The point of least loss from a start; `options` are those of SciPy's `least_squares`, such as bounds."""

    def residuals(at: Array) -> Array:
        return np.concatenate([weights * rooted(errors(at) / scale, knee, outliers), off(at)])

    found: Array = least_squares(residuals, start, **options).x
    return found
