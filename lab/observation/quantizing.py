"""Activations that a benchmark quantizes in PyTorch operators, one kernel each, where engines run one kernel.

vLLM before 0.15 (vllm-project/vllm, pull request 32806) compiles them within models only:

    quantizing     kernels x 1.3 us + bytes m k / rate      rate = min(0.8 bandwidth, 12 S clock bytes), intermediates
                                                            in the L2 at 2.4 bandwidth
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roofline.specs.hardware import Hardware
from roofline.timing.kernels import Array
from roofline.timing.kernels.common import l2_bytes, unit_clocks
from roofline.validate.observation import held

EAGER: Mapping[str, tuple[float, float]] = {"fp8": (5.0, 27.0), "fp8_block": (14.0, 37.0)}
"""Kernels, and bytes an element, of eager quantization (vLLM's QuantFP8.forward_native).

With one scale: its reciprocal; to FP32 (2 + 4 bytes), product (4 + 4), clamp (4 + 4), to FP8 (4 + 1). By blocks:
absolute values (2 + 2), maxima, quotient (2 + 4), clamp (4 + 4), to FP8 (4 + 1), and ten of small tensors; the maxima
take as long as 14 bytes (H100, vLLM 0.14; as do those of H200 and GB200, which were looked at afterwards).
"""

EAGER_LAUNCH, EAGER_MEMORY, EAGER_CLOCK, EAGER_L2 = 1.3e-6, 0.8, 12.0, 2.4
"""Seconds of a small elementwise kernel in a graph; fraction of the memory bandwidth that a large one reaches; bytes a
clock and multiprocessor; bandwidth in the L2 over the memory's (FP8 GEMMs of vLLM 0.14 on H100, H200, L40S)."""


def eager_quantization(elements: Array, dtype: str, hardware: Hardware) -> Array:
    """Seconds to quantize activations of so many elements in PyTorch operators; see the module's formula."""
    kernels, bytes = EAGER[dtype]
    on_units, memory = EAGER_CLOCK * unit_clocks(hardware), hardware.memory_bandwidth
    inside = held(8.0 * elements, l2_bytes(hardware), 8.0)  # two FP32 tensors at a time
    slow, fast = min(EAGER_MEMORY * memory, on_units), min(EAGER_L2 * memory, on_units)
    return np.asarray(kernels * EAGER_LAUNCH + bytes * elements * ((1.0 - inside) / slow + inside / fast))
