"""Time of llama.cpp's products of a quantised matrix and a few vectors on NVIDIA's GPUs (ggml-cuda's mmvq):

    rate       r = min(e_B bandwidth, 8 S R / latency)
    time       t = launch + ((B / r)^2 + ((m - 1) n k INSTRUCTIONS / (64 S clock))^2)^(1/2)

Each row of the matrix is a block of threads. A thread loads two integers, 8 bytes, of a row, waits `latency` for them,
multiplies and goes on, so that S multiprocessors with R resident threads hold 8 S R bytes in flight (Little's law):
that limits GPUs with HBM, and GeForce cards with much bandwidth for their multiprocessors. `launch` is that of two
kernels, of which the first rounds the vectors to 8 bits, and of filling and draining the device. Both pass in clocks.
Further vectors take integer instructions alone. `roofline.timing.corrections` adds the unpacking of other formats than
Q4_0 and Q8_0.
"""

from __future__ import annotations

from collections.abc import Mapping

from roofline.specs.hardware import Hardware
from roofline.timing.kernels.common import INTEGER_LANES, REFERENCE_CLOCK, unit_clocks, units
from roofline.timing.kernels.model import Array, Parameters, Term, Terms

MOST_ROWS = 8
"""Vectors up to which the product is one of vectors (MMVQ_MAX_BATCH_SIZE in ggml/src/ggml-cuda/mmvq.cuh)."""

THREAD_BYTES = 8.0
"""Bytes of weights that a thread loads at a time (VDR_Q4_0_Q8_1_MMVQ and others, 2, in ggml-cuda/vecdotq.cuh)."""

INSTRUCTIONS = 10.0 / 16.0
"""Instructions of a weight and further vector: a thread has four loads and four dp4a of the vector for 16 weights of
Q4_0, the load of its scale and sum, and a conversion (vec_dot_q4_0_q8_1_impl in ggml-cuda/vecdotq.cuh)."""

RESIDENT: Mapping[str, float] = {
    "volta": 2048,
    "turing": 1024,
    "ampere": 1536,
    "ada": 1536,
    "hopper": 2048,
    "blackwell": 1536,
}
"""Most resident threads of a multiprocessor, of chips without HBM where a family has both (those have 2048): CUDA C++
Programming Guide, technical specifications by compute capability. Other families run other code."""


def constants(hardware: Hardware, launch: float, latency: float, efficiency: float) -> Mapping[str, float]:
    """The parameters that such kernels need beside those of a GEMM; none on other hardware than `RESIDENT`'s.

    The launch and the latency are those at REFERENCE_CLOCK.
    """
    if hardware.family not in RESIDENT or hardware.kind not in ("gpu", "soc"):
        return {}
    resident = RESIDENT["hopper" if hardware.memory_class == "hbm" else hardware.family]
    clocks = unit_clocks(hardware) / REFERENCE_CLOCK
    return {
        "vector_launch": launch * units(hardware) / clocks,
        "vector_bandwidth": min(efficiency * hardware.memory_bandwidth, THREAD_BYTES * resident * clocks / latency),
    }


def terms(m: Array, n: Array, k: Array, weight_bytes: Array, hardware: Hardware, parameters: Parameters) -> Terms:
    """The terms of m vectors, at most MOST_ROWS, with a matrix of n rows of k weights."""
    instructions = (m - 1.0) * n * k * INSTRUCTIONS
    return Terms(
        (Term("launch", "launch of two kernels, their start and end", parameters["vector_launch"]),),
        Term("units", "(m - 1) n k instructions / (64 S clock)", instructions, INTEGER_LANES * unit_clocks(hardware)),
        Term("memory", "B / min(e_B bandwidth, 8 S R / latency)", weight_bytes, parameters["vector_bandwidth"]),
        2.0,
    )
