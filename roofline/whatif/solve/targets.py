"""Targets of latency, throughput and memory, checks of scenarios against them, and answers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypedDict

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from roofline.core.checked import object_of
from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.options import Kind, Option, names_in
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.argument import beside, scenario_of
from roofline.scenario.scenario import Scenario
from roofline.serving.load import told
from roofline.serving.options import LOAD_OPTIONS
from roofline.timing.intervals import INVERSE, READINGS, Reading

TIMES: Mapping[str, Option] = {
    "ttft": LOAD_OPTIONS["ttft"],
    "tpot": LOAD_OPTIONS["tpot"],
    "total": Option("Maximum E2E latency of the batch, such as 500ms.", Kind.TIME, name="total", bare=600),
}
"""Targets that are maximum seconds, as options; `tokens_per_second` is a minimum rate."""


class Targets(Struct, frozen=True):
    """Limits in seconds and tokens/s; None is no limit. `fits`: the scenario must fit in memory.

    They apply at the reading `at` (p10, p50, p90 of times, hence p90, p50, p10 of rates).
    """

    ttft: float | None = None
    tpot: float | None = None
    total: float | None = None
    tokens_per_second: float | None = None
    fits: bool = True
    at: Reading = "mid"

    def __post_init__(self) -> None:
        check_reading(self.at)
        for name in TIMES:
            force_setattr(self, name, read_time(name, getattr(self, name)))
        force_setattr(self, "tokens_per_second", read_value("tokens_per_s", Kind.NUMBER, self.tokens_per_second))
        if self.tokens_per_second is not None and not self.tokens_per_second > 0:
            raise RooflineError(f"tokens_per_s must be above 0, got {self.tokens_per_second:g}")
        force_setattr(self, "fits", read_value("fits", Kind.SWITCH, self.fits))

    @property
    def timed(self) -> tuple[str, ...]:
        """The names of the latency and throughput targets that are set."""
        return tuple(name for name in (*TIMES, "tokens_per_second") if getattr(self, name) is not None)

    @property
    def ceilings(self) -> Targets:
        """The targets that more work violates: times and memory."""
        return Targets(self.ttft, self.tpot, self.total, None, self.fits, self.at)

    @property
    def memory_only(self) -> Targets:
        return Targets(fits=self.fits, at=self.at)


class TargetOptions(TypedDict, total=False):
    """The targets of a question by keyword: seconds, or texts such as 30ms; a minimum of tokens/s of all sequences.

    A number of seconds that may be milliseconds, such as 10 of TPOT, is refused (`Option.bare`).
    """

    ttft: float | str | None
    tpot: float | str | None
    total: float | str | None
    tokens_per_s: float | None
    fits: bool
    at: Reading


def read_time(name: str, value: float | str | None) -> float | None:
    """The seconds of a target: a number above 0, or a text such as 30ms. Raises RooflineError."""
    found: float | None = read_value(name, Kind.TIME, value)
    return found


def read_value(name: str, kind: Kind, value: object) -> Any:
    """A value of a kind of options, as from the command line or from Python. Raises RooflineError."""
    return Option("", kind, "", name=name, low=-math.inf).read(value)


def check_reading(at: object, known: Iterable[str] = READINGS) -> None:
    """Raise RooflineError for what is no reading of times."""
    if not isinstance(at, str) or at not in known:
        raise UnknownNameError("reading of times", at, known, options=["at"])


def check_keywords(kind: str, given: Mapping[str, object], options: type, instead: str | None) -> None:
    """Raise RooflineError for keywords beside the object that stands `instead` of them, and for unknown ones.

    `options` is the TypedDict of the known ones, a `kind` of options.
    """
    if instead is not None and given:
        raise RooflineError(f"{beside(list(given))} {instead}: give one of them")
    for name in given:
        if name not in options.__annotations__:
            raise UnknownNameError(kind, name, options.__annotations__)


def read_targets(scenario: object, targets: Targets | None, given: TargetOptions, finds: Iterable[str] = ()) -> Targets:
    """The targets of a question about a single scenario: of keywords, or of an object in their place.

    Raises RooflineError, also for what is no scenario, and for one with a value of the options that the question
    `finds`.
    """
    for name in told(scenario_of(scenario, single=True), finds):
        raise RooflineError(f"{name} is what is asked for: omit it", options=[name])
    check_keywords("target", given, TargetOptions, None if targets is None else "targets")
    if targets is not None:
        return object_of(targets, Targets, "targets are a Targets, or keywords such as tpot='30ms'")
    fits: Any = given.get("fits", True)
    times = {name: option.read(given.get(name)) for name, option in TIMES.items()}
    limits: dict[str, Any] = {**times, "tokens_per_second": given.get("tokens_per_s")}
    return Targets(**limits, fits=fits, at=given.get("at", "mid"))


def listed_names(what: str, names: Iterable[str] | str) -> tuple[str, ...]:
    """The names of a list, or of a text with commas. Raises RooflineError."""
    if isinstance(names, str):
        return names_in(names)
    found = tuple(names) if isinstance(names, Iterable) else (names,)
    if not all(isinstance(name, str) for name in found):
        raise RooflineError(f"{what} are a list of names, got {quote(names)}")
    return found


def check_any(targets: Targets, what: str) -> None:
    """Raise RooflineError for a question about `what` without any target."""
    if not targets.fits and not targets.timed:
        raise RooflineError(f"{what} needs a target, such as a TPOT of 30ms, or the memory limit", options=["tpot"])


class Figures(Struct, frozen=True):
    """The figures that targets limit: seconds, tokens/s, bytes per device; arrays for a grid.

    `sequences_per_second` has no target; encoder models have it in place of tokens/s.
    """

    ttft: Any
    tpot: Any
    total: Any
    tokens_per_second: Any
    sequences_per_second: Any
    memory: Any
    capacity: float


def figures(analysis: Analysis, at: Reading) -> Figures:
    """The figures of an analysis at a reading of times.

    `tpot` is None for a single generated token, `tokens_per_second` for encoder models.
    """
    ttft, tpot, total = (analysis.figure(name, at) for name in ("ttft", "tpot", "total"))
    end = INVERSE.get(at, at)
    rate = None if analysis.decode is None else analysis.figure("tokens_per_second", end)
    memory = analysis.memory
    return Figures(ttft, tpot, total, rate, analysis.scenario.batch / total, memory.total, memory.budget)


def ratios(analysis: Analysis, targets: Targets) -> Mapping[str, Any]:
    """Figure over limit of each target (limit over figure for a rate): at most 1 is met. Arrays for a grid."""
    if targets.tpot is not None or targets.tokens_per_second is not None:
        if analysis.decode is None:
            raise RooflineError(f"{analysis.scenario.model.name} only encodes: it has no TPOT and no tokens/s")
        if targets.tpot is not None and np.any(np.asarray(analysis.scenario.generate) < 2):
            raise RooflineError("a TPOT needs at least two generated tokens", options=["generate"])
    used: dict[str, Any] = {}
    if targets.fits:
        used["memory"] = analysis.memory.total / analysis.memory.budget
    if targets.timed:
        found = figures(analysis, targets.at)
        for name in targets.timed:
            limit, value = getattr(targets, name), getattr(found, name)
            used[name] = limit / value if name == "tokens_per_second" else value / limit
    return used


def used(scenario: Scenario, targets: Targets) -> Any:
    """The largest ratio: at most 1 if all targets are met; 0 without targets."""
    found = ratios(analyze(scenario), targets)
    if not found:
        return np.zeros(scenario.shape) if scenario.shape else 0.0
    return np.max([np.broadcast_to(value, scenario.shape) for value in found.values()], axis=0)


class Check(Struct, frozen=True):
    """The simulation of one candidate: its figures, and the ratio of each target (`used`)."""

    value: Any
    figures: Figures
    used: Mapping[str, float]

    @property
    def missed(self) -> tuple[str, ...]:
        return tuple(name for name, ratio in self.used.items() if not ratio <= 1)

    @property
    def meets(self) -> bool:
        return not self.missed


def check(value: Any, scenario: Scenario, targets: Targets) -> Check:
    """Simulate one candidate."""
    return check_of(value, analyze(scenario), targets)


def check_of(value: Any, analysis: Analysis, targets: Targets) -> Check:
    """The check of an analysis."""
    found = {name: float(ratio) for name, ratio in ratios(analysis, targets).items()}
    return Check(value, figures(analysis, targets.at), found)


Verdict = Literal["found", "never", "always"]


class Answer(Result, Struct, frozen=True):
    """The answer to an inverse question.

    `value` is in `unit`, None for the verdict "never". `check` is the simulation of the answer (of "never": of the best
    value tried; of "always": of the end of the range), `neighbour` that of the next value, which misses a target.
    `candidates` are further settings simulated, with their name as value. `scenario` and `targets` are those of the
    question, `other` the second scenario of a break-even.
    """

    question: str
    unit: str
    verdict: Verdict
    value: Any
    check: Check
    neighbour: Check | None = None
    note: str = ""
    candidates: tuple[Check, ...] = ()
    scenario: Scenario | None = None
    targets: Targets | None = None
    other: Scenario | None = None

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The targets that the next value misses: they limit the answer."""
        if self.verdict == "never":
            return self.check.missed
        return self.neighbour.missed if self.neighbour is not None else ()
