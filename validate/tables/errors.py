"""The figures that say how far off predictions are, the same for kernels and for whole models."""

from __future__ import annotations

from typing import Any

import numpy as np


def error_figures(measured: Any, low: Any, mid: Any, high: Any, bound: Any) -> dict[str, float]:
    """Errors of predicted over measured seconds as fractions, and the share of rows inside the interval.

    MAPE, its median and 90th percentile, the signed bias, and the MAPE of the bound; arrays of one shape.
    """
    error = mid / measured - 1.0
    return {
        "mape": float(np.mean(np.abs(error))),
        "median_ape": float(np.median(np.abs(error))),
        "p90_ape": float(np.percentile(np.abs(error), 90)),
        "bias": float(np.mean(error)),
        "bound_mape": float(np.mean(np.abs(bound / measured - 1.0))),
        "interval_coverage": float(np.mean((measured >= low) & (measured <= high))),
    }
