"""What kernel models share: the multiprocessors of a device, waves of work on them, and their overlap with memory."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.core.parameters import Parameter, Unit
from roofline.specs.hardware import Hardware
from roofline.timing.kernels.model import Array, Term, Terms


def units(hardware: Hardware) -> float:
    """The number of multiprocessors, compute units or cores.

    Where no document gives it, it is estimated from the peak: one unit for each 16 TFLOP/s, as on accelerators of 2022
    to 2024; it only sets the granularity of waves. The few large cores of an NPU are estimated so, too, since the
    constants of a unit are a GPU's. Hardware whose peaks are varied keeps its number: faster units, not more of them.
    """
    if hardware.assumed_units is not None:
        return hardware.assumed_units
    if hardware.units is not None and hardware.kind != "npu":
        return float(hardware.units)
    peak = max((*hardware.tensor.values(), *hardware.vector.values()))
    return max(1.0, peak / 16e12)


def has_tensor_memory(hardware: Hardware) -> bool:
    """Whether the matrix units have the instructions of tensor memory (tcgen05): those of Blackwell with HBM.

    GeForce, RTX PRO and GB10 have the `mma` of Ada, and such kernels (CUTLASS, functionality.md: SM100 and SM120).
    """
    return hardware.family == "blackwell" and hardware.memory_class == "hbm"


def unit_clocks(hardware: Hardware) -> float:
    """Clocks a second of all multiprocessors; without a clock in the spec, those of 128 FP32 lanes at the FP32 peak."""
    if hardware.clock:
        return units(hardware) * hardware.clock
    return (hardware.vector_peak or np.inf) / 256.0


def l2_bytes(hardware: Hardware) -> float:
    """The last-level cache in bytes; 0 where it is unknown."""
    return hardware.l2 or 0.0


OVERLAP = Parameter("overlap", Unit.SECONDS, 1e-6, 1.0, 1.0, "duration from which sharpness grows", start=20e-6)
"""Of attention, and of GEMMs and MLA decode on 16-bit operands; others gain nothing."""


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
    serial: tuple[Term, ...],
    units: Term,
    memory: Term,
    parameters: Mapping[str, float],
    slowdown: Array | float = 1.0,
) -> Terms:
    """The terms of a kernel whose overlap of units and memory grows with its length (`sharpness`)."""
    longer = np.maximum(units.seconds, memory.seconds)
    return Terms(serial, units, memory, sharpness(longer, parameters), slowdown)
