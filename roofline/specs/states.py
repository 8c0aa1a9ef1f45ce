"""What the end of a hardware's name says of its state: h100-sxm-1g.10gb, rtx-3090-250w, rtx-3090-1400mhz.

A slice (NVIDIA's MIG) has multiprocessors, memory, bandwidth and L2 of its own, and no links to other devices. Under a
power limit (`roofline.specs.power`) the peaks are those at the clock of matrix products, under a locked clock those at
that one; the memory's clock stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated

from msgspec import Meta, Struct, convert
from msgspec.structs import replace

from roofline.core.checked import Count, Share
from roofline.core.documents import bundled
from roofline.core.errors import UnsupportedError, quote
from roofline.specs.hardware import Hardware
from roofline.specs.power import clock_at, least_limit, power_at

SLICED = re.compile(r"(?P<hardware>.+?)[-\s]+(?:mig[-\s]*)?(\d)g\.(\d+)gb", re.IGNORECASE)
LIMITED = re.compile(r"(?P<hardware>.+?)(?:[-\s]+|\s*@\s*)(\d{2,4})\s*w", re.IGNORECASE)
LOCKED = re.compile(r"(?P<hardware>.+?)(?:[-\s]+|\s*@\s*)(\d{3,4})\s*mhz", re.IGNORECASE)


class _Profile(Struct, frozen=True):
    """A slice: its compute slices, the fraction of the memory, and its multiprocessors."""

    slices: Annotated[int, Meta(ge=1, le=7)]
    memory: Share
    units: Count


class _Family(Struct, frozen=True):
    """The slices of a family's GPUs, and where they are documented."""

    profiles: tuple[_Profile, ...]
    source: str


def profiles(hardware: Hardware) -> dict[str, _Profile]:
    """The slices of a GPU by name, such as 3g.40gb; none of GPUs that have no slices, or none that are documented."""
    family = convert(bundled("specs/partitions.yaml"), dict[str, _Family]).get(hardware.family)
    if family is None or hardware.memory_class != "hbm":
        return {}
    size = hardware.memory_capacity / 1e9
    return {f"{each.slices}g.{int(size * each.memory + 0.5)}gb": each for each in family.profiles}


def _sliced(hardware: Hardware, slices: str, gigabytes: str) -> Hardware:
    """A slice of a GPU; raises UnsupportedError with the known ones."""
    known, name = profiles(hardware), f"{slices}g.{gigabytes}gb"
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
    return f"{found[2]}g.{found[3]}gb" if found else ""


def limit_of(hardware: Hardware) -> int | None:
    """The power limit that the name of hardware says, in W; None for none."""
    return _number(LIMITED, hardware)


def lock_of(hardware: Hardware) -> int | None:
    """The clock that the name of hardware locks, in MHz; None for none."""
    return _number(LOCKED, hardware)


def _number(state: re.Pattern[str], hardware: Hardware) -> int | None:
    """The number, after the hardware, of a state that the name of hardware says; None for none."""
    found = state.fullmatch(hardware.name)
    return int(found[2]) if found else None


def check_linked(hardware: Hardware, tensor: int, pipeline: int) -> None:
    """Raise UnsupportedError for parallelism over slices, between which there is no peer-to-peer (NVIDIA's MIG guide).

    Replicas exchange nothing and may have a slice each.
    """
    if max(tensor, pipeline) > 1 and (name := slice_of(hardware)):
        raise UnsupportedError(
            f"slices ({name}) have no links to each other: give each a replica (dp) in place of tp and pp",
            options=["tp" if tensor > 1 else "pp"],
        )


def _limited(hardware: Hardware, said: str) -> Hardware:
    """Hardware under a power limit in W; raises UnsupportedError without a TDP, and for a limit out of its range."""
    watts = float(said)
    if hardware.tdp is None:
        raise UnsupportedError(f"{hardware.name} has no TDP in its spec, which a power limit needs")
    if not (least := least_limit(hardware)) <= watts <= hardware.tdp:
        raise UnsupportedError(
            f"a power limit of {hardware.name} must be {least:.0f} to {hardware.tdp:.0f} W, got {watts:g} W"
        )
    return _slowed(
        hardware, float(clock_at(hardware, watts, 1.0, 0.0)), f"{watts:g}w", f"limited to {watts:g} W", watts
    )


def _locked(hardware: Hardware, said: str) -> Hardware:
    """Hardware with a locked clock (nvidia-smi --lock-gpu-clocks); raises UnsupportedError for one out of its range."""
    megahertz = float(said)
    if hardware.clock is None:
        raise UnsupportedError(f"{hardware.name} has no clock in its spec, which a locked one is a part of")
    most = hardware.clock / 1e6
    if not 0.1 * most <= megahertz <= most:
        raise UnsupportedError(
            f"a locked clock of {hardware.name} must be {0.1 * most:.0f} to {most:.0f} MHz, got {megahertz:g} MHz"
        )
    clock = megahertz / most
    watts = None if hardware.tdp is None else float(power_at(hardware, clock))
    found = _slowed(hardware, clock, f"{megahertz:g}mhz", f"locked to {megahertz:g} MHz", watts)
    return replace(found, locked=clock)


def _slowed(hardware: Hardware, clock: float, suffix: str, words: str, watts: float | None) -> Hardware:
    """Hardware with its peaks at this fraction of the clock, and a TDP of `watts`."""
    if hardware.unlimited is not None:
        raise UnsupportedError(f"{hardware.name} has a limit already: name one")
    return replace(
        hardware,
        name=f"{hardware.name}-{suffix}",
        title=f"{hardware.title}, {words}",
        clock=None if hardware.clock is None else hardware.clock * clock,
        tensor={format: peak * clock for format, peak in hardware.tensor.items()},
        vector={format: peak * clock for format, peak in hardware.vector.items()},
        tdp=watts,
        unlimited=hardware,
    )


STATES: Mapping[re.Pattern[str], Callable[..., Hardware]] = {SLICED: _sliced, LIMITED: _limited, LOCKED: _locked}
"""The function of each state, which takes the hardware and what the name says of the state."""
