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

from msgspec import Struct

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import units
from roofline.timing.kernels.formats import numbers
from roofline.timing.kernels.model import Array, Bound, Parameters, Row, Term, Terms, column, text

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


class Stream(Struct, frozen=True):
    """Elementwise kernels that move `bytes` and so many `elements` (0 where unknown); arrays of one shape.

    `results` of those are written. `rows` and `columns` are of a measurement.
    """

    bytes: Array
    elements: Array
    results: float
    rows: Array | None = None
    columns: Array | None = None


def shape(row: Row) -> Stream:
    """The kernels of rows with `op, bytes` and optionally `elements`; or with `op, dtype, rows, columns`."""
    moved = PASSES[text(row, "op")]
    if "bytes" in row:
        streamed = column(row, "bytes")
        elements = column(row, "elements") if "elements" in row else np.zeros_like(streamed)
        return Stream(streamed, elements, 1.0 / moved)
    rows, columns = column(row, "rows"), column(row, "columns")
    elements = np.asarray(moved * rows * columns, dtype=np.float64)
    dtype = row.get("dtype")
    if isinstance(dtype, np.ndarray):
        width: Array | float = np.array([numbers(str(name)).bytes for name in dtype])
    else:
        width = numbers(text(row, "dtype")).bytes
    return Stream(np.asarray(elements * width, dtype=np.float64), elements, 1.0 / moved, rows, columns)


def bound(stream: Stream, hardware: Hardware) -> Bound:
    """Every byte moved once."""
    return Bound(np.zeros_like(stream.bytes), stream.bytes / hardware.memory_bandwidth)


def terms(stream: Stream, hardware: Hardware, parameters: Parameters) -> Terms:
    """Launch, memory, and on CPUs the computing and the mapping of results, one after the other."""
    on_cpu, most = hardware.kind == "cpu", units(hardware)
    threads = np.clip(stream.results * stream.elements / GRAIN, 1.0, most) if on_cpu else most
    rate = parameters["memory_efficiency"] * hardware.memory_bandwidth
    found = [
        Term("launch", "launch", parameters["launch"]),
        Term("memory", "bytes / (memory_efficiency bandwidth)", stream.bytes, rate),
        Term(
            "computing",
            "elements cycles / (clock threads)",
            stream.elements * parameters["cycles"],
            (hardware.clock or CLOCK) * threads,
        ),
    ]
    if on_cpu:
        result = stream.results * stream.bytes
        pages = np.where(result > MAPPED, result / PAGE, 0.0)
        found.append(Term("mapping", "pages x page / threads", pages * parameters.get("page", 0.0), most))
    return Terms(tuple(found))
