"""Trials: combinations of moves (changes of a scenario), each simulated at most once and when its figures are asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Demand, Goal, Objective
from roofline.advisor.search.moves import Move, price_of
from roofline.core.errors import RooflineError, UnsupportedError
from roofline.scenario.analysis import Analysis, analyze, prefetch_expected
from roofline.scenario.scenario import Scenario
from roofline.techniques.base import Price
from roofline.techniques.unsupported import Lack, lacks
from roofline.timing.intervals import Estimate
from roofline.whatif.command_line import command_line, serve_command
from roofline.whatif.odds import Timed, gain

Moves = frozenset[Move]
NOTHING: Moves = frozenset()


@lru_cache(maxsize=1024)
def names(moves: Moves) -> tuple[str, ...]:
    """The sorted names of a combination's moves."""
    return tuple(sorted(move.name for move in moves))


def level(figures: Any) -> Any:
    """Figures rounded to DIGITS significant digits; 0, NaN and infinite ones as they are."""
    figures = np.asarray(figures, float)
    with np.errstate(divide="ignore", invalid="ignore"):
        unit = 10.0 ** (np.floor(np.log10(np.abs(figures))) - DIGITS + 1)
        return np.where(np.isfinite(unit) & (unit > 0), np.round(figures / unit) * unit, figures)


MAX_OVERCOMMIT = 8
"""Memory over capacity beyond which no further move makes it fit: quantization goes from 16 bits to 2 at best."""

ORDER = {"hardware": 0, "engine": 1, "parallelism": 2}
"""Slots that are applied first; techniques apply in the catalogue's order."""

DIGITS = 10
"""Significant digits by which scores are compared: further ones depend on the order of summation."""

LIMITED_METRICS = ("ttft", "tpot", "memory")
"""Metrics that limits may be set on. The search keeps the best combination for each, so tight limits find one."""


@dataclass(frozen=True)
class Trial:
    """A scenario with moves applied, simulated at its own batch or at a grid of batches."""

    moves: Moves
    scenario: Scenario
    goal: Goal

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.moves, self.scenario, self.goal, vars(self).get("analysis"))

    @cached_property
    def analysis(self) -> Analysis:
        return analyze(self.scenario)

    @cached_property
    def value(self) -> Any:
        return self.goal.value(self.analysis)

    @cached_property
    def used(self) -> Mapping[str, Any]:
        """Value over limit for each limit: at most 1 meets it."""
        return self.goal.used(self.analysis)

    @property
    def missed(self) -> tuple[str, ...]:
        return tuple(name for name, use in self.used.items() if not use <= 1)

    @cached_property
    def price(self) -> Price:
        prices = [price_of(move, self.analysis.scenario) for move in self.moves]
        return max(prices, key=list(Price).index, default=Price.LOSSLESS)

    def figure(self, name: str) -> Any:
        try:
            return self.goal.figure(self.analysis, name)
        except RooflineError:
            return np.nan

    @cached_property
    def fits(self) -> Any:
        """Whether it fits in memory, at each batch; needs no times."""
        return np.asarray(self.goal.filled(self.analysis)) <= 1

    @cached_property
    def scores(self) -> tuple[float, ...]:
        """The objective and the limited metrics, lower is better: the best over the batches that fit in memory."""
        guides = (_least(partial(self._guide, name), self.fits | (name == "memory")) for name in LIMITED_METRICS)
        return (_least(lambda: self.cost, self.fits), *level(list(guides)).tolist())

    def _guide(self, name: str) -> Any:
        """A limited metric as a score; where the objective is a rate within limits, all that meet it are equal."""
        if self.goal.fills_limits and name in self.goal.limits.given and name != "memory":
            return max(self.used[name], 1.0)
        return self.figure(name)

    @cached_property
    def score_ignoring_memory(self) -> float:
        """The objective, lower is better, regardless of memory."""
        return _least(lambda: self.cost, self.fits | True)

    @cached_property
    def ceiling(self) -> float:
        """An upper bound of the objective, as of `Goal.ceiling`; infinite where there is none."""
        try:
            return self.goal.ceiling(self.analysis) if self.fits.any() else math.inf
        except RooflineError:
            return math.inf

    def is_beaten(self, others: Iterable[Trial]) -> bool:
        """Whether one of the others, within all limits and with as little memory, is surely better."""
        most, memory = self.ceiling, float(self.figure("memory"))
        return math.isfinite(most) and any(
            float(other.value) > most and float(other.figure("memory")) <= memory and not other.missed
            for other in others
        )

    @property
    def cost(self) -> Any:
        """The objective at each batch, lower is better."""
        value = np.asarray(self.value, float)
        return level(value if self.goal.metric.better < 0 else 1 / value)

    @property
    def command(self) -> str:
        if self.goal.loaded:
            load = self.goal.served(self.analysis).load
            return serve_command(self.scenario, asdict(self.goal.demand or Demand()) if load is None else load)
        return command_line(self.scenario)

    @property
    def names(self) -> tuple[str, ...]:
        return names(self.moves)


class Gain(Struct, frozen=True):
    """A move, simulated: the scenario after it, and its gain with its interval."""

    move: Move
    trial: Trial
    better: Estimate

    @property
    def certain(self) -> bool:
        """Whether the whole interval is a gain."""
        return certain(self.better)

    @property
    def command(self) -> str:
        """The command that reproduces the scenario after the move."""
        return self.trial.command


def _restored(moves: Moves, scenario: Scenario, goal: Goal, analysis: Analysis | None) -> Trial:
    trial = Trial(moves, scenario, goal)
    if analysis is not None:
        vars(trial)["analysis"] = analysis
    return trial


def _least(figure: Callable[[], Any], counted: Any) -> float:
    """The minimum of a metric over the points of `counted`; not evaluated if there are none."""
    if not counted.any():
        return math.inf
    return float(np.fmin.reduce(np.where(counted, figure(), np.inf), axis=None, initial=np.inf))


class Trials:
    """The trials of one scenario and goal, each combination simulated once."""

    def __init__(self, scenario: Scenario, goal: Goal) -> None:
        self.scenario = scenario
        self.goal = goal
        self._found: dict[Moves, Trial | RooflineError] = {}
        self._requests: dict[tuple[Move, ...], Scenario] = {(): scenario}

    def __reduce__(self) -> tuple[Any, ...]:
        # Only the base keeps its figures in another process: all else is simulated again there when asked for.
        return Trials, (self.scenario, self.goal), {"_found": {NOTHING: self.base}}

    @cached_property
    def _lacking(self) -> frozenset[Lack]:
        """What the engine is not known to run in the scenario as given: no move is refused for that."""
        return frozenset(_lacks(self.scenario))

    @property
    def base(self) -> Trial:
        """The scenario without moves; raises RooflineError if it cannot be simulated."""
        return self._of(NOTHING)

    def attempt(self, moves: Iterable[Move]) -> Trial | None:
        """The trial of a combination; None if it cannot be simulated."""
        try:
            return self._of(frozenset(moves))
        except RooflineError:
            return None

    def fitting(self, moves: Moves, beside: Collection[Trial] = ()) -> Trial | None:
        """The trial of a combination; None if it cannot be simulated, or one of those `beside` it is surely better.

        The times of one that does not fit in memory are not computed.
        """
        try:
            trial = self._placed(moves)
            if beside and "value" not in vars(trial) and trial.is_beaten(beside):
                return None
            return trial if moves and not trial.fits.any() else self._of(moves)
        except RooflineError:
            return None

    def ceiling(self, moves: Moves) -> float:
        """The ceiling of a combination; infinite where there is none."""
        trial = self.placed(moves) if self.goal.fills_limits else None
        return math.inf if trial is None else trial.ceiling

    def placed(self, moves: Moves) -> Trial | None:
        """The trial of a combination before its times; None if there is none."""
        try:
            return self._placed(moves)
        except RooflineError:
            return None

    def refusal(self, move: Move) -> str:
        """Why a move cannot be applied, or why its simulation failed if it was tried, in a sentence; else empty."""
        try:
            self._placed(frozenset({move}))
        except RooflineError as error:
            return str(error)
        return ""

    def prefetch(self, combinations: Iterable[Moves], fitting: bool = True) -> None:
        """Prefetch the expected times of combinations in one batch; `fitting` skips those that do not fit in memory."""
        if self.goal.at == "bound":
            return
        placed = [self.placed(moves) for moves in combinations if moves not in self._found or not fitting]
        wanted = (trial for trial in placed if trial is not None and (trial.fits.any() or not fitting))
        prefetch_expected(trial.analysis for trial in wanted)

    def _of(self, moves: Moves) -> Trial:
        """The trial of a combination with its figures; raises RooflineError if it cannot be simulated."""
        trial = self._placed(moves)
        try:
            trial.value, trial.used  # noqa: B018 - raises here if it cannot be simulated
            if moves and not np.any(np.isfinite(trial.value)):
                raise UnsupportedError("the objective has no value there")
        except RooflineError as error:
            self._found[moves] = error
            raise
        return trial

    def _placed(self, moves: Moves) -> Trial:
        """The trial of a combination before its times; raises RooflineError if there is none."""
        if moves not in self._found:
            try:
                self._found[moves] = self._made(moves)
            except RooflineError as error:
                self._found[moves] = error
        found = self._found[moves]
        if isinstance(found, RooflineError):
            raise found
        return found

    def _made(self, moves: Moves) -> Trial:
        """The trial of a combination; raises RooflineError if moves or engine do not allow it, or it never fits."""
        engine = next((move.engine for move in moves if move.engine), self.scenario.profile.name)
        for move in moves:
            if not move.runs_on(engine):
                raise UnsupportedError(f"{engine} is not known to run {move.name}")
        changed = self._requested(tuple(ordered(moves)))
        if told := set(_lacks(changed)) - self._lacking:
            raise UnsupportedError(f"{changed.profile.name} is not known to run {min(map(str, told))}")
        trial = Trial(moves, changed, self.goal)
        if moves and not np.any(np.asarray(self.goal.filled(trial.analysis)) < MAX_OVERCOMMIT):
            raise UnsupportedError(f"it needs more than {MAX_OVERCOMMIT} times the memory of a device")
        return trial

    def _requested(self, moves: tuple[Move, ...]) -> Scenario:
        """The scenario with moves applied in order; every prefix is built once."""
        if moves not in self._requests:
            self._requests[moves] = moves[-1](self._requested(moves[:-1]))
        return self._requests[moves]

    def __len__(self) -> int:
        return len(self._found)


def _lacks(scenario: Scenario) -> Iterator[Lack]:
    return lacks(scenario.profile, scenario.model, scenario.hardware, scenario.precision.kv)


def ordered(moves: Iterable[Move]) -> list[Move]:
    """Moves in the order in which they are applied."""
    return sorted(moves, key=lambda move: (ORDER.get(move.slot, 3), move.name))


def better(before: Trial, after: Trial) -> Estimate:
    """How many times better the objective gets, with its 80% interval if the objective rests on times."""
    objective, goal = before.goal.objective, before.goal
    middle = float(goal.gain(before.value, after.value))
    if objective is Objective.MEMORY or goal.at == "bound":
        return Estimate(middle, middle, middle)
    faster = gain(before.analysis, after.analysis, _TIMED.get(objective, "total"))
    # Factors of the objective other than time (devices of a price, tokens of a rate) are exact.
    return Estimate(middle * faster.low / faster.mid, middle, middle * faster.high / faster.mid)


def certain(gain: Estimate) -> bool:
    """Whether the whole interval lies above 1."""
    return bool(gain.low > 1)


def sure(gain: Estimate) -> bool:
    """Whether a gain justifies a change: certain, and more than 1%."""
    return certain(gain) and gain.mid > HELPS


_TIMED: Mapping[Objective, Timed] = {Objective.TTFT: "ttft", Objective.TPOT: "tpot"}
"""The time that an objective rests on, where that is not the total."""
