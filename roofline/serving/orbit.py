"""A closed loop, followed step by step for a few rounds: requests that began together stay together.

Where all outputs have one length, the requests of a burst end in one step, those that follow them wait for its end and
are computed in one step, and so on: the loop goes round an orbit that depends on its beginning, at which all are sent
at once as by a benchmark. Where outputs vary a loop forgets its beginning: it begins with requests in progress, of
length-biased outputs of which a uniform part is left. Steps and rules are those of `roofline.serving.simulation`, with
slots in the place of the KV cache and the mean context; lengths are quantiles of equal weight in random order.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.serving.load import Load
from roofline.serving.replica import UNLIMITED, Replica
from roofline.serving.times import Times

Array = NDArray[np.float64]

LEAST, ROUNDS, MOST = 250, 3, 1500
"""Requests that are observed: so many times those in flight, but at least and at most so many.

Where outputs are equal, as many before, after the first round.
"""

FILLED = 0.9
"""The part of a step's budget that requests in progress fill at most, so that others find room."""

Drawn = tuple[float, float, float]
"""Of a request: tokens to compute, cached tokens, output."""


class Orbit(NamedTuple):
    """TTFT, and TPOT in steps, of requests in seconds, and the mean time between two steps of a sequence.

    `prefilling` is the share of time in steps with prompts, `waiting` the requests that wait at any time.
    """

    ttft: Array
    tpot: Array
    step: float
    prefilling: float
    waiting: int


def orbit_of(replica: Replica, load: Load, times: Times, slots: int, users: int) -> Orbit:
    """The orbit of a loop of `users` requests in flight."""
    varied, some = load.outputs.varies, min(ROUNDS * users, MOST)
    count = max(LEAST, some)
    random = np.random.default_rng(0)
    loop = _Loop(replica, load, times, slots, _drawn(load, count, random))
    if varied:
        sample = np.sort(load.outputs.sample)
        places = np.interp(random.random(users), np.cumsum(sample) / sample.sum(), sample) * random.random(users)
        most = int(FILLED * replica.budget * replica.data / max(loop.tokens, 1))
        for output in places[: min(slots, most)].tolist():
            loop.admitted += 1
            loop.begin(loop.rank(), output / loop.accepted)
    waiting = users - loop.running
    for _ in range(waiting):
        loop.send()
    return loop.observe(waiting + (0 if varied else max(some, users)), count)


def _drawn(load: Load, count: int, random: np.random.Generator) -> Iterator[Drawn]:
    """Requests without end, whose lengths are `count` quantiles of equal weight, in random order."""
    while True:
        places = ((random.permutation(count) + 0.5) / count for _ in range(2))
        prompt, output = (
            np.maximum(np.round(lengths.inverse(place)), 1)
            for lengths, place in zip((load.prompts, load.outputs), places, strict=True)
        )
        cached = np.minimum(np.floor(load.hits * prompt), prompt - 1)
        yield from zip((prompt - cached).tolist(), cached.tolist(), output.tolist(), strict=True)


class _Loop:
    """The state of a loop: what runs, what waits, by data-parallel rank, and the time.

    A request is arrival, tokens to compute, cached tokens and output; before the first the step from which it may be
    admitted. `admitted` are the requests that run or whose prompts are computed.
    """

    def __init__(self, replica: Replica, load: Load, times: Times, slots: int, requests: Iterator[Drawn]) -> None:
        self.policy, self.single, self.accepted = replica.scheduler, replica.steps.single, replica.steps.accepted
        self.alone, self.budget, self.ranks, self.slots = times.alone, replica.budget, replica.data, slots
        self.tokens = 0 if times.alone else replica.steps.decode_tokens
        self.context = load.means[0] + load.biased_output / 2
        self.requests, self.decode = requests, times.per_rank.tolist()
        self.queues: list[deque[tuple[int, list[float]]]] = [deque() for _ in range(replica.data)]
        self.prefilling: list[list[list[float]]] = [[] for _ in range(replica.data)]
        self.held, self.decoding = [0] * replica.data, [0] * replica.data
        self.coming: deque[tuple[float, list[float]]] = deque()
        self.ends: dict[int, list[tuple[int, float, int]]] = {}
        self.running = self.admitted = self.waiting = self.step = self.iteration = self.polled = 0
        self.now, self.free = 0.0, -math.inf
        self.reset()

    def reset(self) -> None:
        """Observe from now on: TTFT and TPOT of requests, seconds and steps of sequences, seconds of prompts."""
        self.ttft: list[float] = []
        self.tpot: list[float] = []
        self.spent = self.steps = self.prefilled = 0.0
        self.least, self.since = UNLIMITED, self.now

    def observe(self, before: int, count: int) -> Orbit:
        """What `count` requests see after `before` others have their first token."""
        while len(self.ttft) < before:
            self.event()
        self.reset()
        while len(self.ttft) < count:
            self.event()
        duration, step = self.now - self.since, self.spent / max(self.steps, 1.0)
        return Orbit(np.array(self.ttft), np.array(self.tpot or [step]), step, self.prefilled / duration, self.least)

    def rank(self) -> int:
        """The data-parallel rank that the next request goes to."""
        rank = self.held.index(min(self.held))
        self.held[rank] += 1
        return rank

    def send(self) -> None:
        """The next request arrives, and passes the front end after those before it."""
        request = [self.now, *next(self.requests)]
        policy = self.policy
        self.free = max(self.free, self.now) + policy.request + policy.prompt_token * (request[1] + request[2])
        self.coming.append((self.free + policy.latency, request))

    def begin(self, rank: int, steps: float) -> None:
        """A prompt is computed, and some steps follow."""
        self.running += 1
        self.decoding[rank] += 1
        number = math.ceil(steps - 1e-9)
        self.ends.setdefault(self.iteration + number, []).append((rank, self.now, number))

    def event(self) -> None:
        """A step with prompts, a run of decode steps, or the time until the next arrival."""
        coming, policy, busy = self.coming, self.policy, self.admitted > self.running
        while coming and coming[0][0] <= self.now:
            ready = self.step + (policy.lag if self.admitted else 0)
            if self.running and not busy and self.step > self.polled:
                ready = max(ready, self.polled + policy.poll)
            self.queues[self.rank()].append((ready, coming.popleft()[1]))
            self.waiting += 1
        if (self.waiting or busy) and self._prompts():
            return
        if self.running:
            self._decode()
        elif self.waiting:
            self.step = min(queue[0][0] for queue in self.queues if queue)
        else:
            self.now = coming[0][0]

    def _prompts(self) -> bool:
        """A step with chunks of prompts, if there are any."""
        busiest, tokens, before = (-1.0, 0, 0.0, 0), 0.0, 0.0
        for rank in range(self.ranks):
            batch = self.decoding[rank] * self.tokens
            chunks = self._chunks(rank, self.budget - batch)
            taken = sum(chunk for chunk, _ in chunks)
            tokens += taken
            before += sum(chunk * cached for chunk, cached in chunks)
            busiest = max(busiest, (batch + taken, self.decoding[rank], taken, len(chunks)))
        if not tokens:
            return False
        self.least = min(self.least, self.waiting)
        number = 0 if self.alone else self.running
        mean = None if self.ranks == 1 else (number * self.tokens + tokens) / self.ranks
        _, batch, chunk, prompts = busiest
        seconds = self.single(batch if number else 0, self.context, chunk, before / tokens, prompts, mean)
        self._pass(seconds, 1 if number else 0)
        self.prefilled += seconds
        self.step += 1
        self.polled = self.step
        for rank, prefilling in enumerate(self.prefilling):
            while prefilling and not prefilling[0][1]:
                arrival, _, _, output = prefilling.pop(0)
                self.ttft.append(self.now - arrival)
                self.begin(rank, (output - 1) / self.accepted)
        self._finish()
        return True

    def _chunks(self, rank: int, left: float) -> list[tuple[float, float]]:
        """The chunks of a rank's prompts in a step: tokens, and those before."""
        found: list[tuple[float, float]] = []
        some = False
        prefilling, queue, whole = self.prefilling[rank], self.queues[rank], self.policy.whole
        while left > 0 or (whole and len(found) < len(prefilling)):
            if len(found) == len(prefilling):
                if not queue or self.admitted >= self.slots or queue[0][0] > self.step:
                    break
                if whole and some and queue[0][1][1] > left:
                    break
                prefilling.append(queue.popleft()[1])
                self.waiting -= 1
                self.admitted, some = self.admitted + 1, True
            entry = prefilling[len(found)]
            tokens = min(entry[1], self.budget if whole else left)
            found.append((tokens, entry[2]))
            entry[1] -= tokens
            entry[2] += tokens
            left -= tokens
        return found

    def _decode(self) -> None:
        """A run of steps without prompts: until a sequence ends, or a request is to be admitted."""
        number = 0
        while self.iteration + number not in self.ends:
            number += 1
        seconds = self.decode[min(max(self.decoding), len(self.decode) - 1)]
        if self.coming:
            number = min(number, max(1, math.ceil((self.coming[0][0] - self.now) / seconds - 1e-9)))
        if self.waiting and (later := min(queue[0][0] for queue in self.queues if queue)) > self.step:
            number = min(number, later - self.step)
        self._pass(number * seconds, number)
        self.step += number
        self.polled += (self.step - self.polled) // self.policy.poll * self.policy.poll
        self._finish()

    def _pass(self, seconds: float, number: int) -> None:
        self.now += seconds
        self.spent += seconds * self.running
        self.steps += number * self.running
        self.iteration += number

    def _finish(self) -> None:
        """Sequences that have all their tokens leave, and the next requests are sent."""
        for rank, first, steps in self.ends.pop(self.iteration, ()):
            self.running -= 1
            self.admitted -= 1
            self.decoding[rank] -= 1
            self.held[rank] -= 1
            if steps:
                self.tpot.append((self.now - first) / steps)
            self.send()
