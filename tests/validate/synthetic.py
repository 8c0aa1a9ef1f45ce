"""Measurements of made-up machines: what a harness shows of kernels with known constants."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from roofline.specs.hardware import Hardware
from roofline.timing.kernels import kernel
from roofline.timing.kernels.shapes import kernel_shape
from roofline.validate.kernels.work import Case, work_of
from roofline.validate.observation import MEASURED, Harness
from roofline.validate.tables.rows import Measurements


def times(
    part: Measurements, hardware: Hardware, truth: Mapping[str, float], harness: Harness = MEASURED
) -> NDArray[np.float64]:
    """Seconds of rows on a machine with these constants; those of the harness are as before any data."""
    usual = harness.known(part.op, kernel(part.op).format(part.columns), {})
    return harness.observe(harness.rows(part), hardware, {**usual, **truth}).seconds


RANKS = ("top_k", "experts", "intermediate", "tp", "ep")
"""Columns that the operators of one of several ranks cannot show: they have its part of the pairs only."""


def restored(case: Case) -> dict[str, float | str]:
    """The row of the measurement schema that the simulator derives from the operators of a case."""
    work = work_of(case)
    shape = kernel_shape(work.parts, work.arithmetic)
    assert shape is not None
    sizes = {name: round(size.evaluate(work.extents)) for name, size in shape.sizes.items()}
    whole = {name: case[name] for name in RANKS} if case.columns.get("ep", 1) != 1 else {}
    return {**shape.texts, **sizes, **whole}
