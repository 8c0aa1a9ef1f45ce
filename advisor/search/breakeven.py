"""Break-even: where a move stops helping, found by simulation over batches, prompts and acceptance rates.

A move helps where it makes the objective better by more than a hundredth. The stretch of values around the present one
in which it does is found on a grid with equal ratios, and closed down to neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.advisor.search.goal import Goal
from roofline.advisor.search.moves import Move, technique_move
from roofline.core.errors import RooflineError
from roofline.core.limits import MAX_LENGTH
from roofline.core.search import bracket_root, integer_geomspace
from roofline.scenario.analysis import analyze, prefetch_expected
from roofline.scenario.scenario import Scenario
from roofline.techniques import check_request

HELPS = 1.01
"""Smallest gain that counts as help."""

POINTS = 33
"""Values simulated at once."""

MOST_BATCH = 8192
"""The largest batch at which a technique is asked whether it still helps, beyond what engines run at once."""

DRAFT_KEYS = ("accept", "acceptance")
"""Parameters of speculative decoding that give the acceptance."""

_CACHE_SLOTS = (
    "KV format",
    "attention pattern",
    "KV cache eviction",
    "KV heads",
    "KV sharing",
    "decode attention kernel",
)
AXES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys((*_CACHE_SLOTS, "sequence parallelism", "parallelism", "prompt"), ("batch", "prompt")),
    "attention kernel": ("prompt",),
    "speculative decoding": ("batch", "acceptance"),
}
"""The variable that the gain of a slot's moves depends on; the batch for all other slots."""

Helps = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


class Condition(Struct, frozen=True):
    """The range of `variable` in which a move helps, `low` to `high`; None at an end without a limit.

    `most` is the largest value that was looked at, `ends` why there.
    """

    variable: str
    low: float | None
    high: float | None
    most: float
    ends: str

    @property
    def text(self) -> str:
        if self.variable == "acceptance":
            return "whatever is accepted" if self.low is None else f"from {self.low:.3g} {self.ends}"
        name = {"batch": "at batch", "prompt": "with prompts of"}[self.variable]
        match self.low, self.high:
            case None, None:
                return f"{name} 1 to {self.most:.0f}, {self.ends}"
            case None, high:
                return f"{name} 1 to {high:.0f}"
            case low, None:
                return f"{name} {low:.0f} and more, tried to {self.most:.0f}"
        return f"{name} {self.low:.0f} to {self.high:.0f}"


class BreakEven:
    """The break-even points of moves for the objective of a scenario; the scenario's own values are simulated once."""

    def __init__(self, scenario: Scenario, goal: Goal) -> None:
        self._request = scenario
        self._goal = goal
        self._before: dict[str, dict[int, float]] = defaultdict(dict)

    def conditions(self, move: Move) -> tuple[Condition, ...]:
        """The range in which `move` helps; it must help at the scenario's own values."""
        found = list[Condition | None]()
        for variable in AXES.get(move.slot, ("batch",)):
            with suppress(RooflineError):
                found.append(self._acceptance(move) if variable == "acceptance" else self._counted(variable, move))
        return tuple(condition for condition in found if condition is not None)

    def _counted(self, variable: str, move: Move) -> Condition | None:
        changed = move(self._request)
        present = int(getattr(self._request, variable))

        def helps(values: NDArray[np.int64]) -> NDArray[np.bool_]:
            before, after = self._values(variable, values, changed)
            better: NDArray[np.bool_] = self._goal.gain(before, after) > HELPS
            return better

        most, ends = _most(variable, changed, present)
        low, high = stretch(helps, present, 1, most, _limit(variable, changed))
        if low is None:
            return None
        return Condition(variable, None if low == 1 else low, None if high == most else high, most, ends)

    def _values(self, variable: str, values: NDArray[np.int64], changed: Scenario) -> tuple[Any, Any]:
        """The objective at each value, of the scenario and of the changed scenario."""
        known, goal = self._before[variable], self._goal
        new = [value for value in values.tolist() if value not in known]
        after = analyze(changed.at(**{variable: values}))
        before = analyze(self._request.at(**{variable: np.array(new)})) if new else None
        if goal.timed:
            prefetch_expected([after] if before is None else [before, after])
        if before is not None:
            known.update(zip(new, np.broadcast_to(goal.value(before), len(new)).tolist(), strict=True))
        return np.array([known[value] for value in values.tolist()]), np.broadcast_to(goal.value(after), values.shape)

    def _acceptance(self, move: Move) -> Condition | None:
        """The smallest acceptance at which speculative decoding helps."""
        entry, goal = check_request(move.name), self._goal
        known = {parameter.name: parameter for parameter in entry.parameters}
        given = {name: known[name].default for name in DRAFT_KEYS if name in known}
        speculation = move(self._request).settings.speculation
        if "accept" in given and speculation is not None and speculation.measured:
            given = {"accept": speculation.accepted}
        key, default = next(((name, value) for name, value in given.items() if value is not None), ("", 0.0))
        if not key:
            return None

        present = goal.value(analyze(self._request))

        def excess(value: float) -> float:
            changed = technique_move(entry, f"{entry.name}:{key}={value!r}")(self._request)
            return float(goal.gain(present, goal.value(analyze(changed)))) - HELPS

        low, high = float(known[key].low or 0.0), float(default)
        unit = "tokens a step" if key == "accept" else "of drafted tokens accepted"
        least = crossing(excess, low, high)
        return Condition("acceptance", least, None, high, unit)


def _limit(variable: str, scenario: Scenario) -> int:
    if variable == "batch":
        return min(MOST_BATCH, scenario.max_batch)
    return min(scenario.model.max_context or MAX_LENGTH, 1 << 20)


def _most(variable: str, scenario: Scenario, present: int) -> tuple[int, str]:
    """The largest value that is possible, at least the present one, and why."""
    limit = _limit(variable, scenario)
    ends = "the longest context of the model" if variable == "prompt" and limit < 1 << 20 else "the most tried"

    def fits(values: NDArray[np.int64]) -> NDArray[np.bool_]:
        memory = analyze(scenario.at(**{variable: values})).memory
        holds: NDArray[np.bool_] = np.broadcast_to(memory.fits, values.shape)
        return holds

    if limit <= present or not fits(np.array([present]))[0]:
        return max(present, 1), "more do not fit in memory" if limit > present else ends
    _, high = stretch(fits, present, present, limit, limit)
    assert high is not None
    return high, ends if high == limit else "the most that fits in memory"


def stretch(helps: Helps, present: int, low: int, high: int, limit: int) -> tuple[int, int] | tuple[None, None]:
    """The first and last simulated value of the range around `present` that helps; None if `present` does not.

    They are those of one series up to `limit`, whatever `high` is: what is known of one is of use for another.
    """
    series = integer_geomspace(low, limit, POINTS).tolist()
    values = np.array(sorted({present, high, *(value for value in series if value < high)}))
    answers = helps(values)
    where = int(np.flatnonzero(values == present)[0])
    if not answers[where]:
        return None, None
    failing = np.flatnonzero(~answers)
    below, above = failing[failing < where], failing[failing > where]
    first = (
        low if not below.size else _edge(helps, int(values[below[-1]]), int(values[below[-1] + 1]))
    )  # between one that fails and its neighbour that holds
    last = high if not above.size else _edge(helps, int(values[above[0]]), int(values[above[0] - 1]))
    return first, last


def _edge(helps: Helps, fails: int, holds: int) -> int:
    """The value next to the edge that holds, between one that fails and one that holds."""
    while abs(holds - fails) > 1:
        inside = np.linspace(fails, holds, min(POINTS, abs(holds - fails) + 1)).round().astype(np.int64)
        answers = helps(inside)
        last = int(np.flatnonzero(~answers)[-1])
        fails, holds = int(inside[last]), int(inside[last + 1])
    return holds


CLOSE = 1e-3
"""Relative tolerance of a crossing."""


def crossing(excess: Callable[[float], float], low: float, high: float) -> float | None:
    """The point at which an increasing function crosses 0; None if it is above 0 at `low`.

    It is `high` where the function is not above 0 there either.
    """
    below, above = excess(low), excess(high)
    if below > 0:
        return None
    if above <= 0:
        return high
    return bracket_root(excess, low, high, below, above, relative=CLOSE)[1]
