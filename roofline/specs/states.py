"""What the end of a hardware's name says of its state: a slice (h100-sxm-1g.10gb), or a power limit (rtx-3090-250w).

A slice (NVIDIA's MIG) has multiprocessors, memory, bandwidth and L2 of its own, and no links to other devices. A power
limit lowers the clock of the compute units; the clock of the memory stays. The power of a device is

    P = base + (TDP - base) c max(c, FLOOR)^2,    base = BASE x TDP

at the fraction `c` of its clock: switching power is proportional to the clock and to the square of the voltage, which
does not fall below a least one. `base` has idle power and memory.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from roofline.core.documents import read_mapping
from roofline.core.errors import UnsupportedError, quote
from roofline.specs.hardware import Hardware
from roofline.specs.records import record

SLICED = re.compile(r"(?P<hardware>.+?)[-\s]+(?:mig[-\s]*)?(?P<slices>\d)g\.(?P<memory>\d+)gb", re.IGNORECASE)
LIMITED = re.compile(r"(?P<hardware>.+?)(?:[-\s]+|\s*@\s*)(?P<watts>\d{2,4})\s*w", re.IGNORECASE)

BASE, FLOOR = 0.34, 0.75
"""Of the TDP, and of the clock below which the voltage stays.

They follow prefill on six RTX 3090 under limits of 350 to 100 W: 1, 0.94, 0.85, 0.60, 0.26 and 0.14 of the tokens/s
(llmgarage.ai, power limit sweep, February 2026); the law has 1, 0.94, 0.87, 0.62, 0.24 and nothing.
"""


class _Profile(Struct, frozen=True):
    """A slice: its compute slices, the fraction of the memory, and its multiprocessors."""

    slices: Annotated[int, Meta(ge=1, le=7)]
    memory: Annotated[float, Meta(gt=0, le=1)]
    units: Annotated[int, Meta(ge=1)]


class _Family(Struct, frozen=True):
    """The slices of a family's GPUs, and where they are documented."""

    profiles: tuple[_Profile, ...]
    source: str


@lru_cache(maxsize=1)
def _families() -> dict[str, _Family]:
    path = Path(__file__).with_name("partitions.yaml")
    return {name: record(_Family, content, str(path), name) for name, content in read_mapping(path).items()}


def profiles(hardware: Hardware) -> dict[str, _Profile]:
    """The slices of a GPU by name, such as 3g.40gb; none of GPUs that have no slices, or none that are documented."""
    family = _families().get(hardware.family)
    if family is None or hardware.memory_class != "hbm":
        return {}
    size = hardware.memory_capacity / 1e9
    return {f"{each.slices}g.{int(size * each.memory + 0.5)}gb": each for each in family.profiles}


def sliced(hardware: Hardware, name: str) -> Hardware:
    """A slice of a GPU; raises UnsupportedError with the known ones."""
    known = profiles(hardware)
    if (profile := known.get(name)) is None or hardware.units is None:
        have = f"its slices are {', '.join(known)}" if known else "no slices of it are known"
        raise UnsupportedError(f"{hardware.name} has no slice {quote(name)}: {have}")
    units = min(profile.units, hardware.units)
    share = units / hardware.units
    return replace(
        hardware,
        name=f"{hardware.name}-{name}",
        title=f"{hardware.title}, MIG {name}",
        memory_capacity=hardware.memory_capacity * profile.memory,
        memory_bandwidth=hardware.memory_bandwidth * profile.memory,
        memory_visible=None if hardware.memory_visible is None else hardware.memory_visible * profile.memory,
        l2=None if hardware.l2 is None else hardware.l2 * profile.memory,
        units=units,
        tensor={format: peak * share for format, peak in hardware.tensor.items()},
        vector={format: peak * share for format, peak in hardware.vector.items()},
        interconnects=tuple(link for link in hardware.interconnects if link.scope == "host"),
        tdp=None,
        energy=None,
        price=None,
    )


def slice_of(hardware: Hardware) -> str:
    """The name of a slice, such as 1g.10gb; "" for hardware that is none."""
    found = SLICED.fullmatch(hardware.name)
    return f"{found['slices']}g.{found['memory']}gb" if found else ""


def limit_of(hardware: Hardware) -> int | None:
    """The power limit that the name of hardware says, in W; None for none."""
    found = LIMITED.fullmatch(hardware.name)
    return int(found["watts"]) if found else None


def check_linked(hardware: Hardware, tensor: int, pipeline: int) -> None:
    """Raise UnsupportedError for parallelism over slices, between which there is no peer-to-peer (NVIDIA's MIG guide).

    Replicas exchange nothing and may have a slice each.
    """
    if max(tensor, pipeline) > 1 and (name := slice_of(hardware)):
        raise UnsupportedError(
            f"slices ({name}) have no links to each other: give each a replica (dp) in place of tp and pp",
            options=["tp" if tensor > 1 else "pp"],
        )


def clock_at(watts: float, tdp: float) -> float:
    """The fraction of the clock at which a device of this TDP takes `watts`, at most 1; 0 below its base power."""
    base = BASE * tdp
    share = (watts - base) / (tdp - base)
    return float(np.clip(np.cbrt(share) if share > FLOOR**3 else share / FLOOR**2, 0.0, 1.0))


def limited(hardware: Hardware, watts: float) -> Hardware:
    """Hardware under a power limit; raises UnsupportedError without a TDP, and for a limit out of its range."""
    if hardware.tdp is None:
        raise UnsupportedError(f"{hardware.name} has no TDP in its spec, which a power limit needs")
    clock = clock_at(watts, hardware.tdp)
    if watts > hardware.tdp or clock < 0.1:
        least = (BASE + 0.1 * FLOOR**2 * (1 - BASE)) * hardware.tdp
        raise UnsupportedError(
            f"a power limit of {hardware.name} must be {least:.0f} to {hardware.tdp:.0f} W, got {watts:g} W"
        )
    return replace(
        hardware,
        name=f"{hardware.name}-{watts:g}w",
        title=f"{hardware.title}, limited to {watts:g} W",
        clock=None if hardware.clock is None else hardware.clock * clock,
        tensor={format: peak * clock for format, peak in hardware.tensor.items()},
        vector={format: peak * clock for format, peak in hardware.vector.items()},
        tdp=watts,
    )
