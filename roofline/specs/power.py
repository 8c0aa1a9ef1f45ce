"""The clock that a power limit or a lock leaves to a kernel, by what the kernel does.

    P = static + (memory r + a (TDP - static) max(c, FLOOR)^2) w(c),    w(c) = 1 / (r + (1 - r) / c)

at the fraction `c` of the clock: the energy of what is done goes with the square of the voltage, which does not fall
below a least one, and the power with the rate `w` at which it is done, over that at the full clock. Units that wait
switch little: where memory limits a kernel, a lower clock at the least voltage saves nothing until the kernel itself
gets slower. On an RTX 3090 that decodes Qwen3.6 27B the clock falls from 1,395 to 480 MHz between 250 and 200 W.

`static` is the power at rest. The memory takes what a byte costs times its bandwidth, of which the kernel reaches the
part `r`. What a kernel takes beyond its traffic at the full bandwidth is done on the chip, and goes with the clock. `a`
is the activity of the units: 1 for matrix products, which reach the TDP at the full clock, and for others the larger of

    min(WAITING + BYTES r / (FLOP of the peak for each byte of the bandwidth), STREAMING)    of units that stream
    BUSY u                                      of units that unpack weights for the part `u` of the time
"""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.specs.hardware import Hardware

STATIC = 0.2
"""The share of the TDP at rest where a spec has neither `power.static` nor `energy.static` (A100 80 of 400 W, H100 122
of 700)."""

FLOOR, FLOORS = 0.79, {"ada": 0.75, "hopper": 0.75, "blackwell": 0.75}
"""The clock below which the voltage stays, by family: GPUs from Ada on are of later processes than those before.

Prefill on six RTX 3090 under limits of 350 to 150 W has 1, 0.94, 0.85, 0.60 and 0.26 of the tokens/s (llmgarage.ai,
power limit sweep, February 2026); the law has 1, 0.93, 0.84, 0.60 and 0.27. Ada's is from a 4090 that decodes at 0.93
with 260 of 400 W (club-3090, docs/HARDWARE.md); a 5090 and a 5060 Ti set no constant, but were seen with the form.
"""

JOULES_PER_BYTE = {"gddr": 58e-12, "hbm": 31e-12}
"""Of a memory and its interface: 7.25 pJ/bit (Micron, GDDR6X, 2020), and 3.9 (HBM2; O'Connor et al., MICRO 2017)."""

WAITING, BYTES, STREAMING = 0.1, 120.0, 0.78
"""Of the activity of units that stream.

By the watts at the full clock an RTX 3090 has 0.80 at 0.60 of the bandwidth (333 W; jeanfbrito.github.io, RTX 3090
power limit, April 2026) and an H100 0.44 (0.62 by the energy of its bytes). The constants did not see a 5060 Ti with
0.80 at 0.85 (173 W; inventivehq.com) and a 5090 with 0.76 at 0.78 (547 W; club-3090); they have 0.78 of both.
"""

BUSY = 1.22
"""The activity of units that unpack weights all the time, over that of matrix products.

An RTX 3090 that unpacks Q3_K for 0.87 of its time takes all of 388 W, more than its TDP (club-3090). A 4090, which did
not choose it, unpacks for 0.59 of its time and takes 392 W: an activity of 0.72, as here.
"""


def static_power(hardware: Hardware) -> float:
    """Watts at rest, ready to run."""
    measured = hardware.static or (hardware.energy and hardware.energy.static)
    return measured or STATIC * (hardware.tdp or 0.0)


def floor_of(hardware: Hardware) -> float:
    """The fraction of the clock below which the voltage stays."""
    return FLOORS.get(hardware.family or "", FLOOR)


def least_limit(hardware: Hardware) -> float:
    """The watts that leave matrix products a tenth of the clock."""
    return float(power_at(hardware, 0.1))


def power_at(hardware: Hardware, clock: Any) -> Any:
    """Watts of matrix products at this fraction of the clock."""
    rest = static_power(hardware)
    return rest + ((hardware.tdp or rest) - rest) * np.maximum(clock, floor_of(hardware)) ** 2 * clock


def streaming_activity(hardware: Hardware, reached: Any) -> Any:
    """The activity of units in kernels that reach this part of the memory bandwidth."""
    peak = hardware.tensor.get("fp16")
    if peak is None:
        return STREAMING
    return np.minimum(WAITING + BYTES * reached * hardware.memory_bandwidth / peak, STREAMING)


def clock_at(hardware: Hardware, watts: float, activity: Any, reached: Any) -> Any:
    """The fraction of the clock, at most 1, at which hardware takes `watts`; `reached` of the memory bandwidth at 1."""
    rest = static_power(hardware)
    units, left, floor = activity * ((hardware.tdp or rest) - rest), watts - rest, floor_of(hardware)
    memory = JOULES_PER_BYTE.get(hardware.memory_class, 0.0) * hardware.memory_bandwidth * reached
    # At the least voltage the rate follows from the energy of the work: c / (r c + 1 - r) = w.
    rate = left / (memory + units * floor**2)
    low = rate * (1 - reached) / np.maximum(1 - rate * reached, 1e-12)
    low = np.where(rate * reached < 1, low, 1.0)
    clock = np.ones(np.broadcast(activity, reached).shape)
    for _ in range(6):  # Newton's method from above on the convex cubic of clocks above the floor
        short = (memory + units * clock**2) * clock - left * (reached * clock + 1 - reached)
        clock = clock - short / np.maximum(memory + 3 * units * clock**2 - left * reached, 1e-12)
    return np.where(low < floor, low, np.clip(clock, floor, 1.0))


def stretched(limited: Hardware, spent: Any, compute: Any, memory: Any) -> Any:
    """How many times as long kernels take on `limited` hardware that take `spent` seconds at the full clock.

    `compute` and `memory` are their seconds at the peak and at the full bandwidth.
    """
    spent, hardware = np.maximum(spent, 1e-12), limited.unlimited or limited
    reached = np.minimum(memory / spent, 1.0)
    if limited.locked is not None:
        return reached + (1 - reached) / limited.locked
    share, busy = compute / np.maximum(compute + memory, 1e-12), compute / spent
    activity = np.maximum(np.maximum(share, BUSY * busy), streaming_activity(hardware, reached))
    return reached + (1 - reached) / clock_at(hardware, limited.tdp or 0.0, activity, reached)
