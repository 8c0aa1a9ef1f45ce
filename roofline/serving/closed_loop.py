"""A closed loop of a fixed number of requests in flight, simulated for a few rounds (a round: each is replaced once).

Where all outputs have one length, requests that begin together end together, and so do those that replace them: the
loop is periodic, on an orbit that depends on its beginning, at which all are sent at once as by a benchmark. Where
outputs vary a loop forgets its beginning, and here begins with requests in progress, as a stationary renewal process
has them: of length-biased outputs, of which a uniform part is left. Lengths are quantiles of equal weight in random
order. Accepted drafts are drawn, so that requests of one length take different numbers of steps.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from roofline.serving.load import Load, Requests, computed
from roofline.serving.replica import Replica
from roofline.serving.sequence import Sequence
from roofline.serving.simulation import Simulation
from roofline.serving.tables import Array
from roofline.specs.scheduler import MIXED

LEAST, ROUNDS, MOST = 500, 6, 3000
"""Requests that are observed: ROUNDS times those in flight, but at least LEAST and at most MOST.

Where outputs have one length, as many go before, in which the loop finds its orbit.
"""

SAME = 1e-6
"""A round whose TTFTs differ by less than this part of their mean from the round before repeats it: the orbit."""

FILLED = 0.9
"""The part of a step's token budget that the first requests in progress fill at most, so that prompts find room."""


class Orbit(NamedTuple):
    """TTFT, TPOT and E2E latency of requests in seconds, and the mean time between two tokens of a sequence.

    `prefilling` is the share of time in steps with prompts, `running` and `cached` are the mean requests in prefill or
    decode and tokens in the KV cache, and `queued` requests wait for the scheduler at any time.
    """

    ttft: Array
    tpot: Array
    e2e: Array
    token: float
    prefilling: float
    running: float
    cached: float
    queued: int


class _Mark(NamedTuple):
    """A loop after a round: its time and that of steps with prompts (s), and requests with a first and a last token.

    `running` and `cached` are integrals over time of requests and of tokens; `least` are the fewest that ever waited.
    """

    now: float
    prefilled: float
    running: float
    cached: float
    begun: int
    done: int
    least: int


class _Loop(Simulation):
    """A closed loop that may begin with requests in progress."""

    def resume(self) -> None:
        """Send the next request with its prompt already in the KV cache: it decodes at once."""
        sequence = Sequence(self.sent, self.now, *self.lengths[self.sent])
        self.sent += 1
        self._assign(sequence)
        self._receive(sequence)


@lru_cache(maxsize=256)
def orbit_of(replica: Replica, load: Load, slots: float, users: int) -> Orbit:
    """The orbit of a loop of `users` requests in flight, of which `slots` run at most."""
    varied = load.outputs.varies
    constant = not (varied or load.prompts.varies) and replica.steps.accepted == 1
    count, running = max(LEAST, min(ROUNDS * users, MOST)), min(int(slots), users) if varied else 0
    if replica.scheduler.order == MIXED:
        running = min(running, int(FILLED * replica.budget * replica.data / replica.steps.decode_tokens))
    most = users + count * (1 if varied else 2)
    loop = _Loop(replica, _drawn(load, running, most + 3 * users, count), users)
    for _ in range(running):
        loop.resume()
    for _ in range(users - running):
        loop.send(0.0)
    marks = [_round(loop, 0), _round(loop, users)]
    while len(loop.begun) < most and not (constant and _repeats(loop.begun, users)):
        marks.append(_round(loop, users))
    repeated = len(loop.begun) < most
    first = len(marks) - 2 if repeated else next(at for at, mark in enumerate(marks) if mark.begun >= most - count)
    if first == len(marks) - 1:  # as many begin in the first round as in all others
        marks.append(_round(loop, users))
    one, other = marks[first], marks[-1]
    # Without those in progress at the beginning.
    arrival, began, last, output = np.array([each for each in loop.done[one.done :] if each[1] > each[0]], float).T
    spent, tokens = (last - began)[output > 1], output[output > 1] - 1
    prefilling, running, cached = (
        (getattr(other, name) - getattr(one, name)) / (other.now - one.now)
        for name in ("prefilled", "running", "cached")
    )
    queued = min(mark.least for mark in marks[first + 1 :])
    if not tokens.size:
        spent, tokens = np.zeros(1), np.ones(1)
    token = float(spent.sum() / tokens.sum())
    ttft = np.array(loop.begun[one.begun :])
    return Orbit(ttft, spent / tokens, last - arrival, token, prefilling, running, cached, queued)


def _round(loop: Simulation, users: int) -> _Mark:
    """Follow a loop until so many more requests began."""
    begun, least = len(loop.begun) + users, loop.waiting + users
    while len(loop.begun) < begun:
        loop.event()
        least = min(least, loop.waiting)
    running, _, cached = loop.area
    return _Mark(loop.now, loop.prefill_time, running, cached, len(loop.begun), len(loop.done), least)


def _repeats(begun: list[float], users: int) -> bool:
    """Whether the last round was as the one before."""
    if len(begun) < 3 * users:
        return False
    one, other = np.array(begun[-2 * users :]).reshape(2, users)
    return bool((np.abs(one - other) <= SAME * other.mean()).all())


def _drawn(load: Load, running: int, total: int, count: int) -> Requests:
    """Requests whose lengths are `count` quantiles of equal weight in random order, the first of them in progress."""
    random, blocks = np.random.default_rng(0), range(math.ceil(total / count))
    places = (np.concatenate([random.permutation(count) for _ in blocks]) for _ in range(2))
    prompt, output = (
        np.maximum(np.round(lengths.inverse((place + 0.5) / count)), 1)
        for lengths, place in zip((load.prompts, load.outputs), places, strict=True)
    )
    prompt += load.beside
    cached = np.floor(load.hits * prompt)
    # Of those in progress, of length-biased outputs, a uniform part is left.
    sample = np.sort(load.outputs.sample)
    whole = np.interp(random.random(running), np.cumsum(sample) / sample.sum(), sample)
    left = np.ceil(whole * random.random(running))
    output[:running] = left + 1
    prompt[:running] += whole - left
    return computed(np.zeros(prompt.size), *(each.astype(np.int64) for each in (prompt, output, cached)))
