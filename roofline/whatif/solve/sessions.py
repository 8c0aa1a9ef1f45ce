"""The most sessions at a time that a deployment holds within targets, with the tiers below its pool and without.

The theory of `roofline.serving.sessions` brackets the answer, and simulations of runs find it: targets hold at p95.
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
from roofline.serving.outcome import NO_TARGETS, Targets
from roofline.serving.sessions.deployed import Deployed, deployed_of, read_sessions
from roofline.serving.sessions.options import SessionOptions
from roofline.serving.sessions.served import SessionOutcome, outcome_at
from roofline.serving.sessions.theory import State
from roofline.serving.sessions.transient import theory_of

MAX_SESSIONS, CLOSE, FLAT = 4096, 1.05, 1.1
"""The most sessions that are tried, and the ratio of two numbers between which none is: where throughput no longer
grows it is flat."""


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
    """The largest number that holds: away from where theory puts it until one holds and one misses, and bisection."""
    copies = deployed.replica.copies
    low, best, high, missed = 0, None, None, tuple[str, ...]()
    value, most, ratio = _guess(deployed, targets) * copies, 0.0, STEP
    while 1 <= value <= MAX_SESSIONS:
        turns = int(min(max(LEAST_TURNS, OF_EACH * value), MOST_TURNS))
        found = outcome_at(
            deployed, None, value, is_open=False, targets=targets, simulate=turns, seed=seed, shortened=True
        )
        over = _missed(found, targets, most)
        most = max(most, found.turns_per_second) if low <= value else most
        if over:
            high, missed = value, over
        else:
            low, best = value, found
        close = CLOSE if targets != NO_TARGETS else FLAT
        if high is not None and high <= max(low + copies, math.ceil(low * close)):
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
    """The sessions from which on the theory misses a target, or gains nothing."""
    theory = theory_of(deployed, SAMPLE)
    known, most, limited = dict[int, bool](), 0.0, targets != NO_TARGETS

    def holds(number: int, state: State) -> bool:
        nonlocal most
        grows = state.turns_per_second >= GAIN * most
        most = max(most, state.turns_per_second)
        known[number] = TAIL * state.ttft <= targets[0] and state.tpot <= targets[1] and (grows or limited)
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
    while limited and number * STEP < (high := min(each for each in (*known, MAX_SESSIONS) if each > number)):
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

GAIN = 1.1
"""The least growth of throughput with twice the sessions that counts as one."""


def _missed(outcome: SessionOutcome, targets: Targets, most: float) -> tuple[str, ...]:
    """The targets that an outcome misses at p95; without any, throughput that does not grow."""
    times = (("ttft", outcome.ttft), ("tpot", outcome.tpot))
    over = [name for (name, time), limit in zip(times, targets, strict=True) if time.p95.mid > limit]
    if targets == NO_TARGETS and outcome.turns_per_second < most * 1.02:
        over.append("throughput")
    return tuple(over)
