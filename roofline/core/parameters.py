"""Fitted physical constants: unit, believable range and default of each."""

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
    """A physical constant of a kernel model, with the range that is believable and the value before any data.

    An `optional` one is a term that a calibration may lack: its default is too small to matter, and a fit begins at
    `start` instead, from where it can feel its way. One of a `kind` is fitted on hardware of that kind alone.
    """

    name: str
    unit: Unit
    low: float
    high: float
    default: float
    meaning: str
    start: float | None = None
    kind: str = ""

    @property
    def optional(self) -> bool:
        """Whether a calibration may lack it."""
        return self.start is not None
