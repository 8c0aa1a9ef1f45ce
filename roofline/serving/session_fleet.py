"""A day of a fleet under sessions: each stays on a replica, and its cache is lost with that.

Between decisions a replica is in the steady state of `roofline.serving.sessions` at its number of sessions. New ones
come to the replica with the fewest. Those of a replica that stops, or is lost, go to the others, which compute their
contexts again, or load them from a tier that all replicas share: until then turns there miss their targets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from roofline.core.errors import RooflineError
from roofline.core.limits import MAX_CONCURRENCY
from roofline.scenario.cost import HOUR
from roofline.scenario.scenario import Scenario
from roofline.serving.fleet import STEP, Scaler, Scaling
from roofline.serving.outcome import Targets
from roofline.serving.sessions.deployed import Deployed, deployed_of, read_sessions, workload_of
from roofline.serving.sessions.served import SessionCurve, serve_sessions
from roofline.serving.sessions.theory import Theory
from roofline.serving.tables import Array

PARTS = (0.1, 0.3, 0.5, 0.7, 0.85, 1.0, 1.3, 2.0)
"""Numbers of sessions at which the steady state of a replica is simulated, over those that the theory gives it."""

TRIES = 4
"""Times that these are sought, from the theory's number of sessions, where the fewest miss the targets or all meet."""

MET, REMOTE, TURNS = 0.95, "remote", 2000
"""The part of turns within targets with the most sessions of a replica, the name of a tier that all replicas share
without saying so, and turns of a simulation."""


class Holding(NamedTuple):
    """A replica by its `sessions`: sessions that end a second, and the part of turns within targets.

    `most` sessions meet the targets; one that moves adds `moving` seconds of prompts or of loading.
    """

    curve: SessionCurve
    sessions: Array
    ends: Array
    good: Array
    most: float
    moving: float

    @property
    def lasting(self) -> float:
        """Seconds of a session on a replica with the most."""
        return self.most / float(np.interp(self.most, self.sessions, self.ends))


def holding(scenario: Scenario, targets: Targets, options: Mapping[str, Any]) -> Holding:
    """The steady states of a replica under the sessions of options; raises RooflineError where one misses targets."""
    asked = read_sessions(options)
    # A day is no benchmark: its sessions are of a random moment.
    work = replace(workload_of(scenario, asked), duration=None, rehearsal=None, begun=(0.0, 1.0), warmup=0)
    work = replace(work, idle=None, replayed=())
    stored: dict[str, Any] = {name: asked[name] for name in ("tiers", "pool", "routing") if name in asked}
    deployed = deployed_of(scenario, work, stored)
    theory, number = Theory(deployed), deployed.replica.copies
    while number < MAX_CONCURRENCY and (state := theory.warm(number / deployed.replica.copies)).ttft <= targets[0]:
        if state.tpot > targets[1]:
            break
        number *= 2
    for _ in range(TRIES):
        numbers = sorted({max(round(part * number), deployed.replica.copies) for part in PARTS})
        curve = serve_sessions(scenario, work, targets=targets, sessions=numbers, simulate=TURNS, **stored)
        good = np.array([each.met or 0.0 for each in curve.outcomes])
        if good[0] < MET and numbers[0] > deployed.replica.copies:
            number = numbers[0]
        elif good[-1] >= MET and numbers[-1] < MAX_CONCURRENCY / 2:
            number = numbers[-1]
        else:
            break
    if good[0] < MET:
        raise RooflineError(
            f"a replica misses the targets with {numbers[0]} sessions: take looser ones or more devices"
        )
    most = numbers[0]
    for low, high, one, two in zip(numbers, numbers[1:], good, good[1:], strict=False):
        if two < MET:
            most = math.floor(low + (high - low) * (one - MET) / (one - two))
            break
        most = high
    turns = np.array([each.turns_per_second for each in curve.outcomes]) * theory.main
    return Holding(
        curve,
        # With twice the sessions beyond the last, as many turns get done, each after twice the time.
        np.array([0.0, *numbers, 2 * numbers[-1]]),
        np.array([0.0, *turns, turns[-1]]) / work.turns.mean,
        np.array([1.0, *good, 0.0]),
        most,
        _moving(deployed, theory, most),
    )


def _moving(deployed: Deployed, theory: Theory, most: int) -> float:
    """Seconds of a replica that the context of a session takes which comes from another one, of `most` at a time.

    Of these contexts a shared tier has those that its part of a replica holds.
    """
    replica, chunk = deployed.replica, float(deployed.replica.budget)
    context = float((theory.turns.left * theory.turns.main).sum() / theory.turns.main.sum())
    computed = float(replica.steps.seconds(0.0, 0.0, chunk, context / 2)) * context / chunk
    mean = computed
    for tier, level in zip(deployed.store.tiers, deployed.store.levels, strict=True):
        if tier.shared or tier.name == REMOTE:
            part = min(level.blocks / max(most / replica.copies * context, 1.0), 1.0)
            mean = part * min(context * deployed.store.read(tier) / tier.bandwidth, mean) + (1 - part) * mean
    return mean / replica.copies / replica.data


def run_sessions(
    rates: Array, held: Holding, ttft: float, scaling: Scaling, random: Any
) -> tuple[Array, Array, Array, Array, int]:
    """Replicas that serve and start, sessions that wait for one, and new ones that fare badly; replicas lost.

    In each step of a day with so many new sessions a second. Fare badly: the part of the turns of all that miss.
    """
    rows, waiting, moved, lost = np.zeros((4, rates.size)), 0, 0, 0
    alive = round(float(rates[0]) * held.lasting)
    number = min(max(math.ceil(alive / held.most / scaling.share), scaling.least), scaling.most)
    scaler, sessions = Scaler(scaling), np.array([(alive + place) // number for place in range(number)], int)
    cold, arrivals = np.zeros(sessions.size), random.poisson(rates * STEP)
    for step, came in enumerate(arrivals):
        now = step * STEP
        new = scaler.begun(now)
        sessions, cold = np.append(sessions, np.zeros(new, int)), np.append(cold, np.zeros(new))
        gone = random.random(sessions.size) < -math.expm1(-scaling.loss * STEP / HOUR)
        lost += int(gone.sum())
        moved, sessions, cold = moved + int(sessions[gone].sum()), sessions[~gone], cold[~gone]
        waiting += int(came)
        ends = -np.expm1(-STEP * np.interp(sessions, held.sessions, held.ends) / np.maximum(sessions, 1))
        sessions = sessions - random.binomial(sessions, ends)
        alive = int(sessions.sum()) + waiting + moved
        for _ in range(scaler.stops(now, sessions.size, alive / held.most / scaling.share)):
            least = int(sessions.argmin())
            moved += int(sessions[least])
            sessions, cold = np.delete(sessions, least), np.delete(cold, least)
        if sessions.size:
            for place in range(moved + waiting):
                least = int(sessions.argmin())
                sessions[least] += 1
                cold[least] += held.moving * (place < moved)
            waiting = moved = 0
        good = np.where(cold > ttft, 0.0, np.interp(sessions, held.sessions, held.good))
        turns = np.interp(sessions, held.sessions, held.ends)
        queue = waiting + moved  # where no replica serves
        part = float(good @ turns / turns.sum()) if turns.sum() and not queue else float(not queue)
        rows[:, step] = sessions.size, len(scaler.starts), queue, rates[step] * STEP * max(1 - part, 0.0)
        cold = np.maximum(cold - STEP, 0.0)
    return rows[0], rows[1], rows[2], rows[3], lost
