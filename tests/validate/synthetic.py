"""Measurements of made-up machines: what a harness shows of kernels with known constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from roofline.specs.hardware import Hardware
from roofline.timing.kernels import kernel
from roofline.validate.observation import MEASURED, Harness
from roofline.validate.tables.rows import Measurements


def times(
    part: Measurements, hardware: Hardware, truth: Mapping[str, float], harness: Harness = MEASURED
) -> NDArray[np.float64]:
    """Seconds of rows on a machine with these constants; those of the harness are as before any data."""
    usual = harness.known(part.op, kernel(part.op).format(part.columns), {})
    return harness.observe(harness.rows(part), hardware, {**usual, **truth}).seconds
