"""The most sessions at a time that a deployment holds within targets, with the tiers below its pool and without.

The theory of `roofline.serving.sessions` brackets the answer, and simulations of runs find it: targets hold at p95.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.display import Result
from roofline.core.errors import RooflineError
from roofline.scenario.argument import without_carbon
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import targets_of
from roofline.serving.outcome import Targets
from roofline.serving.sessions.options import SessionOptions
from roofline.serving.sessions.served import Deployed, SessionOutcome, deployed_of, outcome_at, read_sessions
from roofline.serving.sessions.theory import Theory

if TYPE_CHECKING:
    from typing import Unpack

MAX_SESSIONS, CLOSE = 4096, 1.05
"""The most sessions that are tried, and the ratio of two numbers between which none is."""


class Held(Struct, frozen=True):
    """The most sessions within targets, 0 for none, what they yield, and the next number tried with what it misses."""

    sessions: int
    outcome: SessionOutcome | None
    next: int | None
    missed: tuple[str, ...]


class SessionsAnswer(Result, Struct, frozen=True):
    """The most sessions of a deployment within targets: with its tiers, and with `fewer`: none, the nearest, ...."""

    scenario: Scenario
    deployed: Deployed
    targets: Targets
    held: Held
    fewer: tuple[Held, ...] = ()

    @property
    def alone(self) -> Held | None:
        """With the pool of the devices alone; None where there are no tiers."""
        return self.fewer[0] if self.fewer else None


def max_sessions(
    scenario: Scenario,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    seed: int = 0,
    **options: Unpack[SessionOptions],
) -> SessionsAnswer:
    """The most sessions at a time within targets of TTFT and TPOT at p95.

    Without a target, those beyond which the throughput of turns does not grow. The options are those of
    `serve_sessions`. Raises RooflineError where the model or no turn fits.
    """
    without_carbon(scenario, "sessions")
    asked = read_sessions(options)
    if given := [name for name in ("sessions", "session_rate") if name in asked]:
        raise RooflineError(f"{given[0]} is what is asked for: omit it")
    targets = targets_of(ttft, tpot)
    deployed = deployed_of(scenario, None, asked)
    held = _most(deployed, targets, seed)
    tiers = deployed.store.tiers
    parts = (replace(deployed, store=replace(deployed.store, tiers=tiers[:count])) for count in range(len(tiers)))
    return SessionsAnswer(scenario, deployed, targets, held, tuple(_most(part, targets, seed) for part in parts))


def _most(deployed: Deployed, targets: Targets, seed: int) -> Held:
    """A growing series of numbers until one misses, from where theory puts it, and bisection."""
    copies = deployed.replica.copies
    low, best, high, missed = 0, None, None, tuple[str, ...]()
    value, most = _guess(deployed, targets) * copies, 0.0
    while 1 <= value <= MAX_SESSIONS:
        turns = int(min(max(LEAST_TURNS, OF_EACH * value), MOST_TURNS))
        found = outcome_at(deployed, None, value, False, targets, turns, seed)
        over = _missed(found, targets, most)
        most = max(most, found.turns_per_second) if low <= value else most
        if over:
            high, missed = value, over
        else:
            low, best = value, found
        if high is None:
            value *= 2
            continue
        if high <= max(low + copies, math.ceil(low * CLOSE)):
            break
        middle = round(math.sqrt(low * high)) if low else high // 2
        value = max(middle // copies, 1) * copies
        if value in (low, high):
            break
    return Held(low, best, high, missed)


def _guess(deployed: Deployed, targets: Targets) -> int:
    """The sessions from which on the theory misses a target, or gains nothing."""
    theory = Theory(deployed.replica, deployed.store, deployed.workload, tandem=deployed.tandem, count=SAMPLE)
    number, most = 1, 0.0
    while number < MAX_SESSIONS:
        state = theory.warm(number)
        if state.ttft > targets[0] or state.tpot > targets[1] or state.turns_per_second < GAIN * most:
            break
        most, number = state.turns_per_second, 2 * number
    return max(number // 2, 1)


SAMPLE = 200
"""Turns of the theory's sample: it brackets alone."""

LEAST_TURNS, OF_EACH, MOST_TURNS = 1500, 12, 12_000
"""Turns of a run: so many of each session, between limits."""

GAIN = 1.1
"""The least growth of throughput with twice the sessions that counts as one."""


def _missed(outcome: SessionOutcome, targets: Targets, most: float) -> tuple[str, ...]:
    """The targets that an outcome misses at p95; without any, throughput that does not grow."""
    times = (("ttft", outcome.ttft), ("tpot", outcome.tpot))
    over = [name for (name, time), limit in zip(times, targets, strict=True) if time.p95.mid > limit]
    if not any(map(math.isfinite, targets)) and outcome.turns_per_second < most * 1.02:
        over.append("throughput")
    return tuple(over)
