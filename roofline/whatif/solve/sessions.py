"""The most sessions at a time that a deployment holds within targets, with the tiers below its pool and without.

The theory of `roofline.serving.sessions` brackets the answer, and simulations of runs find it: targets hold at p95, and
are the usual ones of a load (`USUAL_TARGETS`) where none is given.
"""

from __future__ import annotations

import math
from typing import Unpack

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.display import Result
from roofline.core.errors import RooflineError
from roofline.scenario.argument import without_carbon
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import targets_of
from roofline.serving.outcome import Targets, targets_or_usual
from roofline.serving.sessions.deployed import Deployed, deployed_of, read_sessions
from roofline.serving.sessions.options import SessionOptions
from roofline.serving.sessions.served import SessionOutcome, outcome_at
from roofline.serving.sessions.theory import State
from roofline.serving.sessions.transient import theory_of

MAX_SESSIONS, CLOSE = 4096, 1.05
"""The most sessions that are tried, and the ratio of two numbers between which none is."""


class Held(Struct, frozen=True):
    """The most sessions within targets, 0 for none, what they yield, and the next number tried with what it misses."""

    sessions: int
    outcome: SessionOutcome | None
    next: int | None
    missed: tuple[str, ...]


class SessionsAnswer(Result, Struct, frozen=True):
    """The most sessions of a deployment within targets: with its tiers, and with `fewer`: none, the nearest, ....

    Of the `targets` those in `usual` are usual ones, as none was given.
    """

    scenario: Scenario
    deployed: Deployed
    targets: Targets
    held: Held
    fewer: tuple[Held, ...] = ()
    usual: tuple[str, ...] = ()

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
    """The most sessions at a time within targets of TTFT and TPOT at p95, by default `USUAL_TARGETS`.

    The options are those of `serve_sessions`. Raises RooflineError where the model or no turn fits.
    """
    without_carbon(scenario, "sessions")
    asked = read_sessions(options)
    if counts := [name for name in ("sessions", "session_rate") if name in asked]:
        raise RooflineError(f"{counts[0]} is what is asked for: omit it")
    given = targets_of(ttft, tpot)
    targets = targets_or_usual(*given)
    usual = tuple(name for name, limit in zip(("ttft", "tpot"), given, strict=True) if math.isinf(limit))
    deployed = deployed_of(scenario, None, asked)
    held = _most(deployed, targets, seed)
    tiers = deployed.store.tiers
    parts = (replace(deployed, store=replace(deployed.store, tiers=tiers[:count])) for count in range(len(tiers)))
    fewer = tuple(_most(part, targets, seed) for part in parts)
    return SessionsAnswer(scenario, deployed, targets, held, fewer, usual)


def _most(deployed: Deployed, targets: Targets, seed: int) -> Held:
    """The largest number that holds: away from where theory puts it until one holds and one misses, and bisection."""
    copies = deployed.replica.copies
    low, best, high, missed = 0, None, None, tuple[str, ...]()
    value, ratio = _guess(deployed, targets) * copies, STEP
    while 1 <= value <= MAX_SESSIONS:
        turns = int(min(max(LEAST_TURNS, OF_EACH * value), MOST_TURNS))
        found = outcome_at(
            deployed, None, value, is_open=False, targets=targets, simulate=turns, seed=seed, shortened=True
        )
        over = _missed(found, targets)
        if over:
            high, missed = value, over
        else:
            low, best = value, found
        if high is not None and high <= max(low + copies, math.ceil(low * CLOSE)):
            break
        if high is None or not low:
            near = low * ratio if high is None else high / ratio
            ratio = min(ratio * ratio, 2.0)
        else:
            near = math.sqrt(low * high)
        value = round(near / copies) * copies
        value = max(value, low + copies) if high is None else min(max(value, low + copies), high - copies)
    return Held(low, best, high, missed)


def _guess(deployed: Deployed, targets: Targets) -> int:
    """The sessions from which on the theory misses a target."""
    theory = theory_of(deployed, SAMPLE)
    known: dict[int, bool] = {}

    def holds(number: int, state: State) -> bool:
        known[number] = TAIL * state.ttft <= targets[0] and state.tpot <= targets[1]
        return known[number]

    # From a quarter of the contexts that the tiers hold.
    number = max(int(min(theory.sizes[-1] / 4 / theory.turns.left.mean(), MAX_SESSIONS / 4)), 1)
    at = theory.growing()
    if holds(number, at(number)):
        while number < MAX_SESSIONS and holds(2 * number, at(2 * number)):
            number *= 2
    else:
        while number > 1 and not holds(number // 2, theory.warm(number // 2)):
            number //= 2
        number //= 2
    while number * STEP < (high := min(each for each in (*known, MAX_SESSIONS) if each > number)):
        middle = round(math.sqrt(number * high))
        if not number < middle < high:
            break
        if holds(middle, theory.warm(middle)):
            number = middle
    return max(number, 1)


STEP = 1.2
"""The ratio of the first two numbers that are simulated."""

TAIL = 2.5
"""TTFT at p95 over its mean: it only says where simulations begin."""

SAMPLE = 100
"""Turns of the theory's sample: it brackets alone."""

LEAST_TURNS, OF_EACH, MOST_TURNS = 1000, 10, 12_000
"""Turns of a run: so many of each session, between limits."""


def _missed(outcome: SessionOutcome, targets: Targets) -> tuple[str, ...]:
    """The targets that an outcome misses at p95."""
    times = (("ttft", outcome.ttft), ("tpot", outcome.tpot))
    return tuple(name for (name, time), limit in zip(times, targets, strict=True) if time.p95.mid > limit)
