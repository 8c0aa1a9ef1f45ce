"""What kernel models share: the multiprocessors of a device, waves of work on them, and their overlap with memory."""

from __future__ import annotations

from collections.abc import Mapping

from roofline.core import numeric as np
from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.model import Array, Term, Terms

TYPICAL_UNITS = {"gpu hbm": 132, "gpu": 72, "soc": 20, "cpu": 32, "npu": 57}
"""Units where no document gives them: the median of the bundled hardware of that kind, by kind of memory.

The few large cores of an NPU are not the units of these models, whose constants are a GPU's: as many as give 16 TFLOP/s
each, the median of the bundled ones. No peak of a device is in them: a higher peak is faster units, not more of them.
"""


def units(hardware: Hardware) -> float:
    """The number of multiprocessors, compute units or cores, which sets the granularity of waves."""
    if hardware.units is not None and hardware.kind != "npu":
        return float(hardware.units)
    return float(TYPICAL_UNITS.get(f"{hardware.kind} {hardware.memory_class}", TYPICAL_UNITS[hardware.kind]))


def unit_clocks(hardware: Hardware) -> float:
    """Clocks a second of all multiprocessors; without a clock in the spec, those of 128 FP32 lanes at the FP32 peak."""
    if hardware.clock:
        return units(hardware) * hardware.clock
    return (hardware.vector_peak or np.inf) / 256.0


INTEGER_LANES = 64.0
"""Integer and logic instructions a clock and multiprocessor: 64 from Turing to B200, while FP32 lanes doubled.

CUDA C++ Programming Guide, "Throughput of Native Arithmetic Instructions".
"""

REFERENCE_CLOCK = 1.8e9
"""The clock in Hz that constants of a multiprocessor are stated at, about that of H100."""

ON_CHIP = 16.0
"""Bytes that a multiprocessor of a GPU moves in a clock in kernels that engines write in Triton or generate.

Such kernels take as long on H100 as on H200, whose memory has 1.4 times the bandwidth; on B200 they do not gain the
factor of 1.6 of its memory over that of H200 either.
"""


def on_chip_bandwidth(hardware: Hardware) -> float:
    """Bytes a second that all multiprocessors of a GPU move at `ON_CHIP`; of other hardware the memory bandwidth."""
    return ON_CHIP * unit_clocks(hardware) if hardware.kind == "gpu" else hardware.memory_bandwidth


def reachable_bandwidth(hardware: Hardware) -> float:
    """Bytes a second of the memory that multiprocessors reach at `ON_CHIP`."""
    return min(hardware.memory_bandwidth, on_chip_bandwidth(hardware))


def l2_bytes(hardware: Hardware) -> float:
    """The last-level cache in bytes; 0 where it is unknown."""
    return hardware.l2 or 0.0


OVERLAP = Parameter("overlap", Unit.SECONDS, 1e-6, 1.0, 1.0, "duration from which sharpness grows", start=20e-6)
"""A parameter of attention, and of GEMMs and MLA decode on 16-bit operands; other fits gain nothing by it."""


def sharpness(longer: Array | float, parameters: Mapping[str, float]) -> Array | float:
    """The exponent of a kernel whose longer part takes so many seconds.

    The first loads and the last tiles overlap with nothing, whatever the length of a kernel.
    """
    begun = parameters.get("overlap")
    return parameters["sharpness"] * (1.0 if begun is None else np.sqrt(1.0 + longer / begun))


def rounds(waves: Array, quantization: float) -> Array:
    """Effective waves: whole waves for the fraction `quantization` of a kernel, else balanced; at least one."""
    return (1.0 - quantization) * np.maximum(1.0, waves) + quantization * np.ceil(waves)


def ceil_div(amount: Array, step: Array | float) -> Array:
    """`amount / step`, rounded up."""
    return np.ceil(amount / step)


def overlapping(
    serial: tuple[Term, ...], units: Term, memory: Term, parameters: Mapping[str, float], slowdown: Array | float = 1.0
) -> Terms:
    """The terms of a kernel whose overlap of units and memory grows with its length (`sharpness`)."""
    longer = np.maximum(units.seconds, memory.seconds)
    return Terms(serial, units, memory, sharpness(longer, parameters), slowdown)
