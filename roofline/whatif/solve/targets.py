"""Targets: what a scenario has to reach, and by how much it does or does not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.scenario import Scenario
from roofline.timing.estimate import READINGS, Reading

TIMES = ("ttft", "tpot", "total")
"""Targets that are seconds at most; `tokens_per_second` is a rate at least."""


class Targets(Struct, frozen=True):
    """Limits in seconds and tokens a second; None is no limit. `fits`: everything has to fit in memory.

    They are compared at the reading `at`: the pessimistic end of a rate is its low one.
    """

    ttft: float | None = None
    tpot: float | None = None
    total: float | None = None
    tokens_per_second: float | None = None
    fits: bool = True
    at: Reading = "mid"

    def __post_init__(self) -> None:
        if self.at not in READINGS:
            raise RooflineError(f"times are read at {', '.join(READINGS)}, not at '{self.at}'")
        for name in self.timed:
            value = getattr(self, name)
            if not value > 0 or not np.isfinite(value):
                raise RooflineError(f"the target of {name} must be above 0, got {value:g}")

    @property
    def timed(self) -> tuple[str, ...]:
        """The names of the targets of speed that are set."""
        return tuple(name for name in (*TIMES, "tokens_per_second") if getattr(self, name) is not None)

    @property
    def ceilings(self) -> Targets:
        """Those that more work breaks: times and memory."""
        return Targets(self.ttft, self.tpot, self.total, None, self.fits, self.at)

    @property
    def memory_only(self) -> Targets:
        """Fitting in memory alone."""
        return Targets(fits=self.fits, at=self.at)


class Figures(Struct, frozen=True):
    """What is compared with targets: seconds, tokens a second, bytes a device; arrays for a grid.

    `sequences_per_second` stands beside it, for models that only encode: those have no tokens a second.
    """

    ttft: Any
    tpot: Any
    total: Any
    tokens_per_second: Any
    sequences_per_second: Any
    memory: Any
    capacity: float


def figures(analysis: Analysis, at: Reading) -> Figures:
    """The figures of an analysis at a reading of time.

    `tpot` is None where a single token is generated, `tokens_per_second` where none is.
    """
    memory = analysis.memory
    if at == "bound":
        read = analysis.generation
        times = (read.ttft, read.tpot, read.total, read.tokens_per_second)
    else:
        if not analysis.times_are_expected:
            raise RooflineError("the llm-viewer convention has no expected times: read them at the bound")
        expected = analysis.expected
        end = {"low": "high", "mid": "mid", "high": "low"}[at]
        tpot = None if expected.tpot is None else getattr(expected.tpot, at)
        times = (
            getattr(expected.ttft, at),
            tpot,
            getattr(expected.total, at),
            getattr(expected.tokens_per_second, end),
        )
    ttft, tpot, total, rate = times
    return Figures(
        ttft=ttft,
        tpot=tpot,
        total=total,
        tokens_per_second=None if analysis.decode is None else rate,
        sequences_per_second=analysis.scenario.batch / total,
        memory=memory.total,
        capacity=memory.capacity,
    )


def ratios(scenario: Scenario, targets: Targets) -> Mapping[str, Any]:
    """Each target's use: figure over limit, limit over figure for a rate. At most 1 is met; arrays for a grid.

    Only what the targets need is worked out.
    """
    return ratios_of(analyze(scenario), targets)


def ratios_of(analysis: Analysis, targets: Targets) -> Mapping[str, Any]:
    """Each target's use by an analysis."""
    _check_task(analysis, targets)
    used: dict[str, Any] = {}
    if targets.fits:
        used["memory"] = analysis.memory.total / analysis.memory.capacity
    if targets.timed:
        found = figures(analysis, targets.at)
        for name in targets.timed:
            limit, value = getattr(targets, name), getattr(found, name)
            used[name] = limit / value if name == "tokens_per_second" else value / limit
    return used


def _check_task(analysis: Analysis, targets: Targets) -> None:
    if targets.tpot is None and targets.tokens_per_second is None:
        return
    if analysis.decode is None:
        raise RooflineError(f"{analysis.scenario.model.name} only encodes: it has no TPOT and no tokens a second")
    if targets.tpot is not None and np.any(np.asarray(analysis.scenario.generate) < 2):
        raise RooflineError("a TPOT needs at least two generated tokens: raise --generate")


def used(scenario: Scenario, targets: Targets) -> Any:
    """The largest of the ratios: at most 1 where all targets are met; 0 without targets."""
    found = ratios(scenario, targets)
    if not found:
        return np.zeros(scenario.shape) if scenario.shape else 0.0
    return np.max([np.broadcast_to(value, scenario.shape) for value in found.values()], axis=0)


class Check(Struct, frozen=True):
    """One candidate, simulated: its figures, how much of each target it uses, and those that it misses."""

    value: Any
    figures: Figures
    used: Mapping[str, float]

    @property
    def missed(self) -> tuple[str, ...]:
        """The targets that are not met."""
        return tuple(name for name, ratio in self.used.items() if not ratio <= 1)

    @property
    def meets(self) -> bool:
        """Whether all targets are."""
        return not self.missed


def check(value: Any, scenario: Scenario, targets: Targets) -> Check:
    """Simulate one candidate."""
    return check_of(value, analyze(scenario), targets)


def check_of(value: Any, analysis: Analysis, targets: Targets) -> Check:
    """One candidate as it was simulated."""
    found = {name: float(ratio) for name, ratio in ratios_of(analysis, targets).items()}
    read = figures(analysis, targets.at)
    plain = {name: getattr(read, name) for name in read.__struct_fields__}
    return Check(value, Figures(**plain), found)
