"""Fitted constants of the kernel models and engine profiles: unit, plausible range and default of each."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Unit(StrEnum):
    """The unit of a parameter."""

    SECONDS = "s"
    BANDWIDTH = "B/s"
    RATIO = "1"
    CHOICE = "choice"


class Parameter(Struct, frozen=True):
    """A constant of a kernel model or engine profile, with its plausible range and its default without data.

    An `optional` parameter belongs to a term that a calibration may lack: its default makes the term negligible, where
    a fit has no gradient, so the fit starts at `start`. With a `kind` it is fitted on hardware of that kind only. A
    `local` one is of the kernels that an engine's library has for a family of devices: it says nothing of other engines
    and families.
    """

    name: str
    unit: Unit
    low: float
    high: float
    default: float
    meaning: str
    start: float | None = None
    kind: str = ""
    local: bool = False

    @property
    def optional(self) -> bool:
        """Whether a calibration may lack this parameter."""
        return self.start is not None
