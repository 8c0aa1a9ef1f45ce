"""Time of a kernel that streams its operands once: norm, activation, rotary embedding, softmax, copy.

    t = launch + bytes / (e bandwidth)

`bytes` counts every element read and written: a softmax, a rotary embedding and a copy read and write the rows once, a
gated activation reads two rows for each that it writes, and a norm is the one that engines run, with the residual
addition before it: it reads the stream and what is added, and writes the sum and its norm.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.hardware import Hardware
from roofline.kernels.parameters import Array, Columns, Mask, Parameter, Unit, column, numbers, text

PASSES: Mapping[str, float] = {"norm": 4.0, "softmax": 2.0, "rope": 2.0, "copy": 2.0, "activation": 3.0}
"""Elements moved for each element of `columns`, by op."""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.3e-6, 20e-6, 2e-6, "start and end of the kernel"),
    Parameter("memory_efficiency", Unit.RATIO, 0.1, 1.0, 0.8, "achievable fraction of memory bandwidth"),
)


def streamed(columns: Columns) -> Array:
    """Bytes moved: the column `bytes`, or `op`, `dtype`, `rows` and `columns` of a measurement."""
    if "bytes" in columns:
        return column(columns, "bytes")
    dtype = columns.get("dtype")
    if isinstance(dtype, np.ndarray):
        width: Array | float = np.array([numbers(str(name)).bytes for name in dtype])
    else:
        width = numbers(text(columns, "dtype")).bytes
    moved = PASSES[text(columns, "op")] * width * column(columns, "rows") * column(columns, "columns")
    return np.asarray(moved, dtype=np.float64)


def elementwise_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The speed of light in seconds: `bytes / bandwidth`; nothing where all is in the cache."""
    moved = streamed(columns)
    return np.where(resident, 0.0, moved / hardware.memory_bandwidth)


def elementwise_time(
    columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False
) -> Array:
    """Seconds for a column `bytes`, or `op, dtype, rows, columns`."""
    del resident
    return parameters["launch"] + streamed(columns) / (parameters["memory_efficiency"] * hardware.memory_bandwidth)
