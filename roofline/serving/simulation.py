"""An engine's steps under a load, one after the other: the event simulation.

Every step has the decode tokens of the running sequences and the chunks of prompts that the scheduler admits
(`roofline.specs.scheduler`). While nothing is admitted or ends, steps differ only in their context, in which their time
is linear: such a run of steps is one event. Times are those of `StepTimes`; a run is reproducible by its seed.

A request is admitted in order of arrival, when its front end and the steps scheduled ahead have passed, a sequence slot
is free, and the KV cache has room for its prompt and the `reserved` part of its output. Where the KV cache runs out the
sequence admitted last is preempted, and computed again (vLLM).
"""

from __future__ import annotations

import heapq
import math
from collections import deque

import numpy as np

from roofline.core.errors import RooflineError
from roofline.serving.load import Load, Requests, draw, share_of
from roofline.serving.replica import Replica
from roofline.serving.served import Finished, Served
from roofline.specs.scheduler import PREFILL_FIRST

CONTEXTS = 48
"""Contexts at which decode steps are tabulated."""

GATHERED = 0.9
"""Fraction of a step's budget with which prompts stop waiting for others (`gather` of the scheduler)."""


class _Sequence:
    """A request inside the engine."""

    __slots__ = ("arrival", "base", "first", "generated", "left", "output", "prompt", "rank", "started", "version")

    def __init__(self, arrival: float, prompt: int, output: int, base: int) -> None:
        self.arrival, self.prompt, self.output, self.base = arrival, prompt, output, base
        self.left, self.generated, self.first = prompt, 0, math.nan
        self.started, self.version, self.rank = 0, 0, 0


class Simulation:
    """The state of a replica: what runs, what waits, and the time."""

    def __init__(self, replica: Replica, requests: Requests, concurrency: int | None) -> None:
        scheduler = replica.scheduler
        self.replica, self.requests, self.concurrency = replica, requests, concurrency
        self.alone = scheduler.order == PREFILL_FIRST
        self.budget, self.most, self.room = replica.budget, replica.sequences, replica.kv_tokens
        self.whole, self.reserved, self.lag = scheduler.whole, scheduler.reserved, round(scheduler.lag)
        self.poll, self.polled = scheduler.poll, 0
        self.gather, self.gathered = scheduler.gather, GATHERED * replica.budget
        self.stream = scheduler.stream
        self.latency, self.each, self.per_token = scheduler.latency, scheduler.request, scheduler.prompt_token
        self.front_free = -math.inf
        self.tokens, self.accepted, self.data = replica.steps.decode_tokens, replica.steps.accepted, replica.data
        self.now, self.iteration, self.step = 0.0, 0, 0
        self.context, self.promised = 0.0, 0.0  # tokens in the KV cache, and reserved ones beyond them
        self.heap: list[tuple[int, int, int]] = []
        self.sequences: dict[int, _Sequence] = {}
        self.order: list[int] = []
        self.prefilling: deque[int] = deque()
        # By data-parallel rank: (step from which it may be admitted, index), the requests, and those that decode.
        self.queues: list[deque[tuple[int, int]]] = [deque() for _ in range(replica.data)]
        self.blocked = False  # nothing is admitted after a preemption, until a sequence ends
        self.waiting, self.held, self.decoding = 0, [0] * replica.data, [0] * replica.data
        self.coming: list[tuple[float, int]] = []  # (time in the queue, index)
        self.running, self.sent = 0, 0
        self.received = replica.received
        self.horizon = math.inf  # of a run of decode steps: others may send a request at that time
        self.done: list[Finished] = []
        self.area = [0.0, 0.0, 0.0]
        self.prefill_time, self.preemptions, self.steps, self.prompt_tokens = 0.0, 0, 0, 0
        self._rows: dict[int, list[float]] = {}
        top = float(replica.steps.decode.columns[-1])
        self._stride = top / (CONTEXTS - 1)
        self._contexts = np.arange(CONTEXTS) * self._stride

    def run(self) -> Served:
        """The whole run."""
        count = len(self.requests.arrival)
        start = count if self.concurrency is None else min(self.concurrency, count)
        for _ in range(start):
            self._send(float(self.requests.arrival[self.sent]))
        while len(self.done) < count:
            self.event()
        return self._served()

    def event(self) -> None:
        """A step, a run of decode steps, or the time until the next arrival."""
        self._admit_arrivals()
        pieces = self._pieces()
        if pieces:
            self._mixed_step(pieces)
        elif self.running:
            self._decode_steps()
        elif self.waiting:
            self._let_pass(self._next())
        else:
            self._pass_time(max(self.coming[0][0] - self.now, 0.0))

    def _next(self) -> tuple[int, int]:
        """The waiting request that may be admitted first: the step, and the index."""
        return min(queue[0] for queue in self.queues if queue)

    def _let_pass(self, entry: tuple[int, int]) -> None:
        """Nothing runs and the first waiting request may not be admitted yet, or never."""
        ready, index = entry
        if ready > self.step:
            self.step = ready
            return
        sequence = self.sequences[index]
        raise RooflineError(
            f"a request of {sequence.base + sequence.prompt} prompt and {sequence.output} output tokens does not fit in"
            f" the KV cache, which has room for {self.room} tokens"
        )

    def _send(self, at: float) -> None:
        """The next request arrives."""
        index, self.sent = self.sent, self.sent + 1
        self.enter(index, at)

    def enter(self, index: int, at: float) -> None:
        """A request arrives."""
        prompt, base = int(self.requests.prompt[index]), int(self.requests.cached[index])
        self.sequences[index] = _Sequence(at, prompt, int(self.requests.output[index]), base)
        self.front_free = max(self.front_free, at) + self.each + self.per_token * (prompt + base)
        heapq.heappush(self.coming, (self.front_free + self.latency, index))

    def _admit_arrivals(self) -> None:
        """Requests whose front end has passed join the queue, at the next poll."""
        while self.coming and self.coming[0][0] <= self.now:
            ready = self.step
            if self.running or self.prefilling:
                ready += self.lag
            if self.running and not self.prefilling and self.step > self.polled:
                ready = max(ready, self.polled + self.poll)
            index = heapq.heappop(self.coming)[1]
            sequence = self.sequences[index]
            sequence.rank = self.held.index(min(self.held))
            self.held[sequence.rank] += 1
            self.queues[sequence.rank].append((ready, index))
            self.waiting += 1
            self.area[1] += self.now - sequence.arrival

    def _pieces(self) -> list[tuple[int, int, int]]:
        """The chunks of the next step: (index, tokens, tokens before)."""
        found: list[tuple[int, int, int]] = []
        left = [self.budget - (0 if self.alone else number * self.tokens) for number in self.decoding]
        for index in self.prefilling:
            rank = self.sequences[index].rank
            left[rank] = self._take(index, left[rank], found)
        if self.waiting and not self.blocked and not self._gathering(found):
            for rank, queue in enumerate(self.queues):
                self._admit(queue, left[rank], found)
        return found

    def _admit(self, queue: deque[tuple[int, int]], left: int, found: list[tuple[int, int, int]]) -> None:
        """Requests of a data-parallel rank that fit in its budget of the step, a sequence slot and the KV cache."""
        some = False
        while queue and left > 0 and self.running + len(self.prefilling) < self.most:
            ready, index = queue[0]
            sequence = self.sequences[index]
            need = sequence.base + sequence.prompt + self.reserved * sequence.output
            if ready > self.step or self.context + self.promised + need > self.room:
                return
            if self.whole and some and sequence.left > left:
                return
            queue.popleft()
            self.waiting -= 1
            if self.received and not sequence.generated:
                self.context += sequence.base + sequence.prompt
                self.promised += self.reserved * sequence.output
                self._begin(index, sequence)
                continue
            self.prefilling.append(index)
            self.context += sequence.base
            self.promised += need - sequence.base
            left, some = self._take(index, left, found), True

    def _gathering(self, found: list[tuple[int, int, int]]) -> bool:
        """Whether prompts wait for others: until every data-parallel rank has one, or one rank a full step."""
        if not self.gather or found or not self.running or self.step >= self._next()[0] + self.gather:
            return False
        if len(self.queues) > 1:
            return not all(self.queues)
        tokens = sum(self.sequences[index].left for _, index in self.queues[0])
        return tokens + self.running * self.tokens < self.gathered

    def _take(self, index: int, left: int, found: list[tuple[int, int, int]]) -> int:
        """Put tokens of a prompt into the step; a prompt runs on one rank, within its budget."""
        sequence = self.sequences[index]
        tokens = min(sequence.left, self.budget if self.whole else left, self.budget)
        if tokens > 0:
            found.append((index, tokens, sequence.base + sequence.prompt - sequence.left))
        return left - tokens

    def _busiest(self, pieces: list[tuple[int, int, int]]) -> tuple[int, int, int]:
        """Decoding sequences, tokens of prompts and prompts of the data-parallel rank with the most tokens."""
        chunks, counts = [0] * self.data, [0] * self.data
        for index, tokens, _ in pieces:
            rank = self.sequences[index].rank
            chunks[rank] += tokens
            counts[rank] += 1
        decoding = [0] * self.data if self.alone else self.decoding
        most = max(range(self.data), key=lambda rank: decoding[rank] * self.tokens + chunks[rank])
        return decoding[most], chunks[most], counts[most]

    def _mixed_step(self, pieces: list[tuple[int, int, int]]) -> None:
        """One step with chunks of prompts."""
        decoding = 0 if self.alone else self.running
        chunk = sum(tokens for _, tokens, _ in pieces)
        before = sum(tokens * cached for _, tokens, cached in pieces) / chunk
        batch, most, prompts = (decoding, chunk, len(pieces)) if self.data == 1 else self._busiest(pieces)
        mean = None if self.data == 1 else (decoding * self.tokens + chunk) / self.data
        seconds = self.replica.steps.single(batch, self._mean_context(), most, before, prompts, mean)
        self.prefill_time += seconds
        self.prompt_tokens += chunk
        self._pass_time(seconds)
        self.step, self.steps = self.step + 1, self.steps + 1
        self.polled = self.step
        if decoding:
            self._advance(1)
        for index, tokens, _ in pieces:
            sequence = self.sequences[index]
            sequence.left -= tokens
            self.context += tokens
            self.promised -= tokens
            if not sequence.left:
                self.prefilling.remove(index)
                self._begin(index, sequence)
        self._finish()

    def _begin(self, index: int, sequence: _Sequence) -> None:
        """The prompt is computed: its first token, or the next one of a preempted sequence."""
        if math.isnan(sequence.first):
            sequence.first = self.now
        sequence.generated += 1
        left = sequence.output - sequence.generated
        sequence.started = self.iteration
        ends = self.iteration + math.ceil(left / self.accepted - 1e-9)
        self.running += 1
        self.decoding[sequence.rank] += 1
        self.order.append(index)
        heapq.heappush(self.heap, (ends, index, sequence.version))

    def _decode_steps(self) -> None:
        """A run of steps without prompts: until a sequence ends, a request arrives, or the KV cache is full."""
        grown = self.running * self.accepted
        number = max(self.heap[0][0] - self.iteration, 0)
        free = self.room - self.context - (self.promised if self.reserved >= 1 else 0.0)
        if self.reserved < 1 and free < grown and number:
            self._preempt()
            return
        if self.reserved < 1:
            number = min(number, max(int(free / grown), 1))
        if self.waiting and (later := self._next()[0] + self.gather) > self.step:
            number = min(number, later - self.step)
        context, batch = self._mean_context(), max(self.decoding)
        sooner = min(self.coming[0][0], self.horizon) if self.coming else self.horizon
        if number and sooner < math.inf:
            each = self._step_seconds(batch, context)
            some = min(number, max(1, math.ceil((sooner - self.now) / each - 1e-9)))
            # Steps become longer as the context grows.
            each = self._step_seconds(batch, context + (some - 1) / 2 * self.accepted)
            number = min(number, max(1, math.ceil((sooner - self.now) / each - 1e-9)))
        if number:
            seconds = number * self._step_seconds(batch, context + (number - 1) / 2 * self.accepted)
            self._pass_time(seconds)
            self.step, self.steps = self.step + number, self.steps + number
            self.polled += (self.step - self.polled) // self.poll * self.poll
            self._advance(number)
        self._finish()

    def _advance(self, number: int) -> None:
        """`number` decode tokens of every running sequence; a reservation is used up as the context grows."""
        self.iteration += number
        grown = self.running * self.accepted * number
        self.context += grown
        self.promised = max(self.promised - grown * min(self.reserved, 1.0), 0.0)

    def _finish(self) -> None:
        """Sequences that have all their tokens leave."""
        while self.heap and self.heap[0][0] <= self.iteration:
            _, index, version = heapq.heappop(self.heap)
            sequence = self.sequences.get(index)
            if sequence is None or sequence.version != version:
                continue
            steps = self.iteration - sequence.started
            held = sequence.base + sequence.prompt + steps * self.accepted
            self.context = max(self.context - held, 0.0)
            over = self.reserved * sequence.output - steps * self.accepted * min(self.reserved, 1.0)
            self.promised = max(self.promised - max(over, 0.0), 0.0)
            self.running -= 1
            self.decoding[sequence.rank] -= 1
            self.held[sequence.rank] -= 1
            del self.sequences[index]
            first = sequence.first + (self.now - sequence.first) * min((self.stream - 1) / max(steps, 1), 1.0)
            self.blocked = False
            self._leave(index, (sequence.arrival, first, self.now, sequence.output))
        if not self.running:
            self.blocked = False
            self.heap.clear()
            self.order.clear()
            if not self.prefilling:
                self.context = self.promised = 0.0

    def _leave(self, index: int, times: Finished) -> None:  # noqa: ARG002
        """A request is finished."""
        self.done.append(times)
        if self.concurrency is not None and self.sent < len(self.requests.arrival):
            self._send(self.now)

    def _preempt(self) -> None:
        """The sequence admitted last leaves the KV cache and waits, to be computed again with what it generated."""
        while self.order and self.order[-1] not in self.sequences:
            self.order.pop()
        if self.running <= 1:
            self._let_pass((self.step, self.order[-1]))
        index = self.order.pop()
        sequence = self.sequences[index]
        steps = self.iteration - sequence.started
        generated = sequence.generated + int(steps * self.accepted)
        self.context = max(self.context - (sequence.base + sequence.prompt + steps * self.accepted), 0.0)
        sequence.prompt += generated - (sequence.generated - 1)
        sequence.generated = generated
        sequence.prompt = min(sequence.prompt, self.room - sequence.base - 1)
        sequence.left = sequence.prompt
        sequence.version += 1
        self.heap = [entry for entry in self.heap if entry[1] != index]
        heapq.heapify(self.heap)
        self.running -= 1
        self.decoding[sequence.rank] -= 1
        self.preemptions += 1
        self.blocked = True
        self.waiting += 1
        self.queues[sequence.rank].appendleft((self.step, index))

    def _mean_context(self) -> float:
        return self.context / (self.running + len(self.prefilling)) if self.running else 0.0

    def _step_seconds(self, batch: int, context: float) -> float:
        """Seconds of a decode step, from a row of the table at equidistant contexts."""
        row = self._rows.get(batch)
        if row is None:
            row = self._rows[batch] = self.replica.steps.seconds(float(batch), self._contexts).tolist()
        place = context / self._stride
        low = min(int(place), CONTEXTS - 2)
        return row[low] + (place - low) * (row[low + 1] - row[low])

    def _pass_time(self, seconds: float) -> None:
        self.now += seconds
        area = self.area
        area[0] += seconds * (self.running + len(self.prefilling))
        area[1] += seconds * self.waiting
        area[2] += seconds * self.context

    def _served(self) -> Served:
        duration = max(self.now, 1e-12)
        running, waiting, cached = (value / duration for value in self.area)
        arrival, first, last, output = np.array(self.done, float).T
        counts = (self.preemptions, self.steps, self.prompt_tokens)
        share = self.prefill_time / duration
        return Served(arrival, first, last, output, duration, share, running, waiting, cached, *counts)


def simulate(replica: Replica, load: Load, requests: int = 1000, seed: int = 0) -> Served:
    """The run of `requests` requests (all of a trace, or `rounds` of a closed loop); raises RooflineError.

    Of several copies of the replica, it is that of one with its share of the load.
    A request that does not fit in the KV cache is an error.
    """
    if replica.copies > 1:
        load = share_of(load, replica.copies)
    return Simulation(replica, draw(load, count_of(load, requests), seed), load.concurrency).run()


def count_of(load: Load, requests: int) -> int:
    """The requests of a run: all of an offline load, `rounds` of a closed loop, else `requests`."""
    if load.concurrency is not None and load.rounds is not None:
        return max(1, round(load.rounds * load.concurrency))
    return load.offline or requests
