"""The clock that a power limit leaves to a kernel, by what the kernel does.

    P = static + memory r c + a (TDP - static) c max(c, FLOOR)^2

at the fraction `c` of the clock: switching power is proportional to the clock and to the square of the voltage, which
does not fall below a least one. `static` is the power at rest. The memory takes what a byte costs times its bandwidth,
of which the kernel reaches the part `r` at the full clock, and less with the clock. `a` is the activity of the units:
1 for matrix products, which reach the TDP at the full clock, and

    a = WAITING + BYTES r / (FLOP of the peak for each byte of the bandwidth)

for kernels that stream. What a kernel takes beyond its memory traffic at the full bandwidth is done on the chip, so
that its time is t_memory + (t - t_memory) / c.

Published of cards under limits: llama.cpp decodes Qwen3.6 27B in Q3_K_XL on an RTX 3090 at 1, 0.95 and 0.66 of the
tokens/s of 388 W at 330 and 230 W, on another at 0.93 and 0.61 of 370 W at 290 and 230, and on a 4090 at 0.97, 0.95 and
0.93 of 400 W at 300, 280 and 260 (noonghunna/club-3090, docs/HARDWARE.md); here 0.98 and 0.84, 0.95 and 0.84, and
0.96, 0.95 and 0.93. On an H200 no limit is reached in decoding: 137 to 300 W (arXiv 2605.11999).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.specs.hardware import Hardware

STATIC, FLOOR = 0.2, 0.8
"""The share of the TDP at rest where a spec has neither `power.static` nor `energy.static` (A100 80 of 400 W, H100 122
of 700), and the clock below which the voltage stays.

Prefill on six RTX 3090 under limits of 350 to 150 W has 1, 0.94, 0.85, 0.60 and 0.26 of the tokens/s (llmgarage.ai,
power limit sweep, February 2026); the law has 1, 0.93, 0.84, 0.59 and 0.26.
"""

JOULES_PER_BYTE = {"gddr": 58e-12, "hbm": 31e-12}
"""Of a memory and its interface: 7.25 pJ/bit (Micron, GDDR6X, 2020), and 3.9 (HBM2; O'Connor et al., MICRO 2017)."""

WAITING, BYTES = 0.1, 120.0
"""Of the activity of units that stream.

By the clocks and watts in llama.cpp (club-3090, as above) it is 0.99 on an RTX 3090 at 0.56 of the bandwidth, and 0.65
on a 4090 at 0.75, from which the constants are. They have 0.8 on a 5090 (0.78), and 0.44 on an H100 (0.62 by the energy
of its bytes).
"""


def static_power(hardware: Hardware) -> float:
    """Watts at rest, ready to run."""
    measured = hardware.static or (hardware.energy and hardware.energy.static)
    return measured or STATIC * (hardware.tdp or 0.0)


def least_limit(hardware: Hardware) -> float:
    """The watts that leave matrix products a tenth of the clock."""
    return static_power(hardware) + 0.1 * FLOOR**2 * ((hardware.tdp or 0.0) - static_power(hardware))


def streaming_activity(hardware: Hardware, reached: Any) -> Any:
    """The activity of units in kernels that reach this part of the memory bandwidth."""
    peak = hardware.tensor.get("fp16")
    return 1.0 if peak is None else np.minimum(WAITING + BYTES * reached * hardware.memory_bandwidth / peak, 1.0)


def clock_at(hardware: Hardware, watts: float, activity: Any, reached: Any) -> Any:
    """The fraction of the clock, at most 1, at which hardware takes `watts`; `reached` of the memory bandwidth at 1."""
    rest = static_power(hardware)
    units = activity * ((hardware.tdp or rest) - rest)
    memory = JOULES_PER_BYTE.get(hardware.memory_class, 0.0) * hardware.memory_bandwidth * reached
    low = (watts - rest) / (memory + units * FLOOR**2)
    clock = np.minimum(low, 1.0)
    for _ in range(5):  # Newton's method from above on the convex cubic of clocks above the floor
        clock = clock - (memory * clock + units * clock**3 - (watts - rest)) / (memory + 3 * units * clock**2)
    return np.where(low < FLOOR, low, np.clip(clock, FLOOR, 1.0))


def stretched(hardware: Hardware, watts: float, spent: Any, compute: Any, memory: Any) -> Any:
    """How many times as long kernels take under a limit that take `spent` seconds at the full clock.

    `compute` and `memory` are their seconds at the peak and at the full bandwidth.
    """
    spent = np.maximum(spent, 1e-12)
    reached = np.minimum(memory / spent, 1.0)
    products = compute / np.maximum(compute + memory, 1e-12)
    activity = products + (1 - products) * streaming_activity(hardware, reached)
    return reached + (1 - reached) / clock_at(hardware, watts, activity, reached)
