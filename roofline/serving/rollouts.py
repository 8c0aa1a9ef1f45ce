"""Rollouts of reinforcement learning: steps of generations, between which the weights change.

A step ends when all its `offline` requests have ended, or with `over` > 1 so many of the more that are begun (partial
rollouts: APRIL, Kimi k1.5). Then the weights of the trained model come to the devices, in `sync` seconds, and what is
unfinished goes on in the next step, its KV cache computed again by the new weights. Training is not in the times.
"""

from __future__ import annotations

import math

from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.units import Dimension, parse_quantity
from roofline.serving.load import Load, Requests, Rollouts, draw
from roofline.serving.replica import Replica
from roofline.serving.sequence import Served
from roofline.serving.simulation import Simulation

KEYS = ("steps", "over", "sync")
MOST = 1000
"""The most steps, and the most requests that are begun for one."""

MOST_REQUESTS = 10**6
"""The most rollouts of all steps: a simulation of more would take hours."""


def parse_rollouts(text: str) -> Rollouts:
    """The rollouts of `8` steps or of `steps=8,over=1.5,sync=3s`; raises RooflineError."""
    pairs = [("steps", text)] if text.isdigit() else [part.strip().partition("=")[::2] for part in text.split(",")]
    given = dict(pairs)
    if unknown := [key for key in given if key not in KEYS]:
        raise UnknownNameError("key of rollouts", unknown[0], KEYS)
    if len(given) < len(pairs):
        raise RooflineError(f"rollouts have a key twice in {quote(text)}")
    sync = parse_quantity(given["sync"], Dimension.TIME).value if "sync" in given else 0.0
    try:
        found = Rollouts(int(given.get("steps", "1")), float(given.get("over", "1")), sync)
    except ValueError:
        found = Rollouts(0)
    if not (1 <= found.steps <= MOST and 1 <= found.over <= MOST):
        raise RooflineError(f"rollouts are steps=8,over=1.5,sync=3s, both from 1 to {MOST}, got {quote(text)}")
    return found


def simulate_rollouts(replica: Replica, load: Load, seed: int) -> Served:
    """The run of all steps; of several copies of the replica each has its share of a step."""
    rollouts, each = load.rollouts, load.offline
    assert rollouts is not None
    assert each is not None
    count = each * rollouts.steps + math.ceil(each * rollouts.over)
    if count > MOST_REQUESTS:
        raise RooflineError(f"{count:,} rollouts are more than the {MOST_REQUESTS:,} that are simulated")
    requests = draw(load, count, seed)
    return RolloutSimulation(replica, requests, each, rollouts).run()


class RolloutSimulation(Simulation):
    """A replica that generates in steps."""

    def __init__(self, replica: Replica, requests: Requests, each: int, rollouts: Rollouts) -> None:
        super().__init__(replica, requests, None)
        self.awaited, self.rollouts = each, rollouts

    def run(self) -> Served:
        """All steps."""
        begun = math.ceil(self.awaited * self.rollouts.over)
        for step in range(1, self.rollouts.steps + 1):
            while self.sent < len(self.done) + begun and self.sent < len(self.lengths):
                self.send(self.now)
            while len(self.done) < step * self.awaited:
                self.event()
            if step < self.rollouts.steps:
                for sequence in [each for each in self.order if each.ends > 0]:
                    self._evict(sequence)
                self._pass_time(self.rollouts.sync)
        return self._served()
