"""Time of an elementwise kernel, which streams its operands once: norm, activation, rotary embedding, softmax, copy.

    t = launch + bytes / (e bandwidth) + (elements cycles / clock + pages page) / threads

`elements` are those moved, of any width: CPUs convert 16-bit numbers before computing and take as long as for 32-bit
ones. PyTorch runs a kernel on one thread for each `GRAIN` results, at most all (ATen/ParallelOpenMP.h,
at::internal::GRAIN_SIZE). `pages` are those of results too large for the C library to reuse memory (`MAPPED`): the
operating system maps each page when a thread first writes to it, for the result and for temporaries. On accelerators
both terms are zero.
`bytes` counts every element read and written: a softmax, a rotary embedding and a copy read and write the rows once; a
gated activation reads two rows for each that it writes; a norm includes the residual addition before it, as in engines:
it reads the stream and the addend, and writes the sum and its norm.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import Array, Columns, Mask, column, numbers, text, units

PASSES: Mapping[str, float] = {"norm": 4.0, "softmax": 2.0, "rope": 2.0, "copy": 2.0, "activation": 3.0}
"""Elements moved for each element of `columns`, by op."""

PARAMETERS = (
    Parameter("launch", Unit.SECONDS, 0.3e-6, 80e-6, 2e-6, "launch of the kernel"),
    Parameter("memory_efficiency", Unit.RATIO, 0.1, 1.0, 0.8, "achievable fraction of memory bandwidth"),
    Parameter("cycles", Unit.RATIO, 1e-6, 100.0, 1e-6, "clock cycles of a thread for an element moved", start=0.1),
    Parameter("page", Unit.SECONDS, 1e-24, 50e-6, 1e-24, "time of a thread to map a page", start=1.5e-6, kind="cpu"),
)

CLOCK = 2e9
"""Hz of hardware whose clock is unknown."""

GRAIN = 32768
"""Results that occupy a thread of a CPU."""

MAPPED = 2.0**25
"""Bytes beyond which every result is mapped anew: `DEFAULT_MMAP_THRESHOLD_MAX` of glibc on 64 bits (mallopt(3))."""

PAGE = 4096.0
"""Bytes of a page of memory."""


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


def elements(columns: Columns) -> Array:
    """Elements moved: the column `elements`, or `op`, `rows` and `columns` of a measurement; 0 where unknown."""
    if "elements" in columns:
        return column(columns, "elements")
    if "bytes" in columns:
        return np.zeros_like(column(columns, "bytes"))
    counted = PASSES[text(columns, "op")] * column(columns, "rows") * column(columns, "columns")
    return np.asarray(counted, dtype=np.float64)


def cycle_rate(columns: Columns, hardware: Hardware) -> Array:
    """Clock cycles a second of all threads that compute each row."""
    results = elements(columns) / PASSES[text(columns, "op")]
    most = units(hardware)
    threads = np.clip(results / GRAIN, 1.0, most) if hardware.kind == "cpu" else np.full_like(results, most)
    return (hardware.clock or CLOCK) * threads


def pages(columns: Columns, hardware: Hardware) -> Array | float:
    """Pages of a newly mapped result; 0 for small results and on accelerators."""
    if hardware.kind != "cpu":
        return 0.0
    result = streamed(columns) / PASSES[text(columns, "op")]
    return np.where(result > MAPPED, result / PAGE, 0.0)


def elementwise_bound(columns: Columns, hardware: Hardware, resident: Mask = False) -> Array:
    """The bound in seconds: `bytes / bandwidth`; 0 for `resident` rows."""
    moved = streamed(columns)
    return np.where(resident, 0.0, moved / hardware.memory_bandwidth)


def elementwise_time(
    columns: Columns, hardware: Hardware, parameters: Mapping[str, float], resident: Mask = False
) -> Array:
    """Seconds for columns `op, bytes` and optionally `elements`; or `op, dtype, rows, columns`."""
    del resident
    over_memory = streamed(columns) / (parameters["memory_efficiency"] * hardware.memory_bandwidth)
    computing = elements(columns) * parameters["cycles"] / cycle_rate(columns, hardware)
    mapping = pages(columns, hardware) * parameters.get("page", 0.0) / units(hardware)
    time: Array = parameters["launch"] + over_memory + computing + mapping
    return time
