"""Sessions on several replicas behind a router: each turn goes to one of them, where its steps are simulated.

The router knows how many requests each replica has, or how much of a prompt its caches hold. The replica whose time is
earliest goes on, up to the time of the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from roofline.core.errors import RooflineError
from roofline.serving.outcome import NO_TARGETS, Targets
from roofline.serving.sessions.deployed import Deployed
from roofline.serving.sessions.drawn import Draw, Turn
from roofline.serving.sessions.observed import WARM, Ran, observed, watched
from roofline.serving.sessions.routing import PREFIX, chosen
from roofline.serving.sessions.simulation import SessionRun


class Routed(SessionRun):
    """A replica whose turns, those that are due, wait or run, are also of the `others`; it is one of them."""

    others: Sequence[Routed] = ()

    @property
    def ready(self) -> float:
        """The time of the next event."""
        busy = self.running or self.prefilling or self.waiting
        return self.now if busy else max(self.now, self._awaited())

    def event(self) -> None:
        """Likewise, up to the time of the others."""
        self.limit = min(each.ready for each in self.others if each is not self)
        super().event()

    def _arrive(self, at: float, turn: Turn) -> None:
        loads = [sum(each.held) + len(each.coming) for each in self.others]
        known = [max(each.known(turn)) if self.routing == PREFIX else 0 for each in self.others]
        self.others[chosen(known, loads)].enter_turn(at, turn)


FEWEST, MOST_RUNS, LANE = 2000, 8, 60
"""The fewest turns of a benchmark's runs together, of at most so many runs, and the turns of a session in one."""


def simulate_sessions(
    deployed: Deployed,
    turns: int | None,
    sessions: int | None = None,
    rate: float | None = None,
    seed: int = 0,
    copies: int = 1,
    limits: Targets = NO_TARGETS,
) -> Ran:
    """A run of so many turns, of a number of `sessions`, each followed by another one, or of a `rate` of new ones.

    Without `turns`, runs of a benchmark, each as long as the workload's `duration`, of other sessions. With a rate,
    `sessions` are those at the start. With a tandem the replica is a worker of its prefill. Turns go to several
    `copies` by the routing, other than by session. A run of turns ends where a twentieth of them has missed one of the
    `limits` of TTFT and TPOT. Raises RooflineError without sessions.
    """
    if not sessions and rate is None:
        raise RooflineError("sessions are a number of them, or a rate of new ones: give one of both")
    work = deployed.workload

    def start(seed: int) -> list[SessionRun]:
        draw = Draw(work, seed, every=max(deployed.replica.copies // copies, 1))
        if copies == 1:
            return [SessionRun(deployed, draw, sessions, rate)]
        runs = [Routed(deployed, draw, None if place else sessions, rate) for place in range(copies)]
        for run in runs:
            run.others, run.due, run.active, run.number = runs, runs[0].due, runs[0].active, runs[0].number
            run.joins = runs[0].joins
        return [*runs]

    if turns is not None:
        warm = round(turns * WARM)
        return observed([watched(start(seed), warm, turns - warm, limits=limits)])
    assert sessions
    assert work.duration is not None
    number = min(max(math.ceil(FEWEST / (LANE * sessions)), 1), MOST_RUNS)
    seeds = range(seed, seed + number)
    return observed([watched(start(each), work.warmup * sessions, None, work.duration) for each in seeds])
