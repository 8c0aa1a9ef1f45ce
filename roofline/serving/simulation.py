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
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter

import numpy as np

from roofline.core.errors import RooflineError
from roofline.serving.load import Requests
from roofline.serving.replica import Replica
from roofline.serving.sequence import Finished, Piece, Sequence, Served
from roofline.specs.scheduler import PREFILL_FIRST

GATHERED = 0.9
"""Fraction of a step's budget with which prompts stop waiting for others (`gather` of the scheduler)."""


class Simulation:
    """The state of a replica: what runs, what waits, and the time."""

    def __init__(self, replica: Replica, requests: Requests, concurrency: int | None) -> None:
        scheduler = replica.scheduler
        self.replica, self.concurrency, self.arrival = replica, concurrency, requests.arrival
        self.lengths = list(zip(*(column.tolist() for column in requests[1:]), strict=True))
        self.alone = scheduler.order == PREFILL_FIRST
        self.budget, self.room = replica.budget, replica.kv_tokens
        self.most = replica.sequences // replica.data  # on a data-parallel rank
        self.whole, self.reserved, self.lag = scheduler.whole, scheduler.reserved, round(scheduler.lag)
        self.poll, self.polled = scheduler.poll, 0
        self.gather, self.gathered = scheduler.gather, GATHERED * replica.budget
        self.admitted = 0  # the step after the last one that admitted a request
        self.pause, self.piece = scheduler.pause, scheduler.piece or self.budget
        self.after = 0  # the first step that may have prompts while sequences decode
        self.stream = scheduler.stream
        self.front_free = -math.inf
        self.tokens, self.accepted, self.data = replica.steps.decode_tokens, replica.steps.accepted, replica.data
        self.now, self.iteration, self.step = 0.0, 0, 0
        self.context, self.promised = 0.0, 0.0  # tokens in the KV cache, and reserved ones beyond them
        # By data-parallel rank: iterations without its tokens, sequences by the iteration that ends them, and a heap.
        self.behind = [0] * replica.data
        self.ends: list[dict[int, list[Sequence]]] = [{} for _ in range(replica.data)]
        self.next_ends: list[list[int]] = [[] for _ in range(replica.data)]
        self.order: list[Sequence] = []  # as they were admitted
        self.prefilling: list[Sequence] = []
        # By data-parallel rank: (step from which it may be admitted, request), the requests, and those that decode.
        self.queues: list[deque[tuple[int, Sequence]]] = [deque() for _ in range(replica.data)]
        self.blocked = False  # nothing is admitted after a preemption, until a sequence ends
        self.waiting, self.held, self.decoding = 0, [0] * replica.data, [0] * replica.data
        self.coming: deque[tuple[float, Sequence]] = deque()  # (time in the queue, request), as they pass the front end
        self.running, self.sent = 0, 0
        self.horizon = math.inf  # of a run of decode steps: others may send a request at that time
        self.done: list[Finished] = []
        self.begun: list[float] = []  # TTFT by the time of the first token
        self.area = [0.0, 0.0, 0.0]  # seconds times running and waiting requests, and cached tokens
        self.prefill_time, self.preemptions, self.steps, self.prompt_tokens = 0.0, 0, 0, 0
        self._single = replica.steps.single

    def run(self) -> Served:
        """The whole run."""
        count = len(self.lengths)
        start = count if self.concurrency is None else min(self.concurrency, count)
        for at in self.arrival[:start].tolist():
            self.send(at)
        if self.concurrency is not None and self.arrival[start - 1] == self.arrival[0]:
            # A front end serves clients that come at once together: all have passed it when the last has.
            self.coming = deque((self.coming[-1][0], sequence) for _, sequence in self.coming)
        while len(self.done) < count:
            self.event()
        return self._served()

    def event(self) -> None:
        """A step, a run of decode steps, or the time until the next arrival."""
        self._admit_arrivals()
        pieces = self._pieces() if self.waiting or self.prefilling else None
        if pieces:
            self._mixed_step(pieces)
        elif self.running:
            self._decode_steps()
        elif self.waiting:
            self._let_pass(*self._next())
        else:
            self._pass_time(max(self._awaited() - self.now, 0.0))

    def _awaited(self) -> float:
        """The time until which there is nothing to do."""
        return self.coming[0][0]

    def _next(self) -> tuple[int, Sequence]:
        """The waiting request that may be admitted first, and the step."""
        return min((queue[0] for queue in self.queues if queue), key=lambda first: first[0])

    def _let_pass(self, ready: int, sequence: Sequence) -> None:
        """Nothing runs and the first waiting request may not be admitted yet, or never."""
        if ready > self.step:
            self.step = ready
            return
        raise RooflineError(
            f"a request of {sequence.base + sequence.prompt} prompt and {sequence.output} output tokens does not fit in"
            f" the KV cache, which has room for {self.room:.0f} tokens"
        )

    def send(self, at: float) -> None:
        """The next request arrives."""
        self.enter(self.sent, at)
        self.sent += 1

    def enter(self, index: int, at: float) -> None:
        """A request arrives."""
        self._come(Sequence(index, at, *self.lengths[index]))

    def _come(self, sequence: Sequence) -> None:
        """A request passes the front end, which takes one after the other; of several one may pass another."""
        policy, free = self.replica.scheduler, max(self.front_free, sequence.arrival)
        tokens = sequence.prompt + sequence.base
        self.front_free = free + policy.front(tokens)
        insort(self.coming, (free + policy.received(tokens), sequence), key=itemgetter(0))

    def _assign(self, sequence: Sequence) -> None:
        """The data-parallel rank with the fewest requests takes another one."""
        if self.data > 1:
            sequence.rank = self.held.index(min(self.held))
        self.held[sequence.rank] += 1

    def _admit_arrivals(self) -> None:
        """Requests whose front end has passed join the queue, at the next poll."""
        coming, now = self.coming, self.now
        if not coming or coming[0][0] > now:
            return
        ready = self.step
        if self.running and not self.prefilling and ready > self.polled:
            ready = max(ready, self.polled + self.poll)
        if self.running or self.prefilling:
            ready += self.lag
        while coming and coming[0][0] <= now:
            sequence = coming.popleft()[1]
            self._assign(sequence)
            self.queues[sequence.rank].append((ready, sequence))
            self.waiting += 1
            self.area[1] += now - sequence.arrival

    def _pieces(self) -> list[Piece]:
        """The chunks of the next step."""
        found: list[Piece] = []
        if self.step < self.after and self.running:
            return found
        left = [self.budget - (0 if self.alone else number * self.tokens) for number in self.decoding]
        for sequence in self.prefilling:
            left[sequence.rank] -= self._take(sequence, left[sequence.rank], found)
        if self.waiting and not self.blocked and not (self.gather and self._gathering(found)):
            # Ranks share the KV cache, in order of arrival.
            queues = [queue for queue in self.queues if queue]
            if len(queues) > 1:
                queues.sort(key=lambda queue: queue[0][1].arrival)
            for queue in queues:
                self._admit(queue, left[queue[0][1].rank], found)
            if found:
                self.admitted = self.step + 1
        return found

    def _due(self) -> int:
        """The step from which prompts do not wait for others; with data-parallel ranks, whether some wait or not."""
        first = self._next()[0]
        if not self.gather:
            return first
        if self.data == 1:
            return max(first, self.admitted) + self.gather
        return self.admitted - 1 + self.gather * max(-(-(first - self.admitted + 1) // self.gather), 1)

    def _admit(self, queue: deque[tuple[int, Sequence]], left: int, found: list[Piece]) -> None:
        """Requests of a data-parallel rank that fit in its budget of the step, a sequence slot and the KV cache."""
        some, held, most = False, self.held, self.most
        while queue and left > 0:
            ready, sequence = queue[0]
            if held[sequence.rank] - len(queue) >= most:
                return
            need = sequence.base + sequence.prompt + self.reserved * sequence.output
            if ready > self.step or not self._fits(sequence, need):
                return
            if self.whole and some and sequence.left > left:
                return
            queue.popleft()
            self.waiting -= 1
            self._admitted(sequence)
            if self._is_computed(sequence):
                self._receive(sequence)
                continue
            self.prefilling.append(sequence)
            self.context += sequence.base
            self.promised += need - sequence.base
            left, some = left - self._take(sequence, left, found), True

    def _fits(self, sequence: Sequence, need: float) -> bool:  # noqa: ARG002
        """Whether the KV cache has room for the tokens of a request."""
        return self.context + self.promised + need <= self.room

    def _is_computed(self, sequence: Sequence) -> bool:
        """Whether the KV cache of the prompt exists, so that the request decodes at once."""
        return self.replica.received and not sequence.generated

    def _admitted(self, sequence: Sequence) -> None:
        """A request leaves the queue."""

    def _receive(self, sequence: Sequence) -> None:
        """The KV cache of a prompt is there."""
        self.context += sequence.base + sequence.prompt
        self.promised += self.reserved * sequence.output
        self._begin(sequence)

    def _gathering(self, found: list[Piece]) -> bool:
        """Whether prompts wait for others: until every data-parallel rank has one, or one rank a full step."""
        if found or not self.running or self.step >= self._due():
            return False
        if self.data > 1:
            return all(self.decoding) and not all(self.queues)
        tokens = self.running * self.tokens
        for _, sequence in self.queues[0]:
            if self.whole and tokens + sequence.left > self.budget:
                break
            tokens += sequence.left
        return tokens < self.gathered

    def _take(self, sequence: Sequence, left: int, found: list[Piece]) -> int:
        """Put tokens of a prompt into the step; a prompt runs on one rank, within its budget."""
        most = self.budget if self.whole else left if left < self.piece else self.piece
        tokens = sequence.left if sequence.left < most else most
        if tokens > 0:
            found.append((sequence, tokens))
        return tokens

    def _seconds(self, pieces: list[Piece], decoding: int) -> float:
        """Seconds of a step: those of the data-parallel rank that takes longest, for which the others wait."""
        context = self._mean_context()
        if self.data == 1:
            chunk = sum(tokens for _, tokens in pieces)
            earlier = sum(tokens * (one.base + one.prompt - one.left) for one, tokens in pieces)
            return float(self._single(decoding, context, chunk, earlier / chunk, len(pieces)))
        chunks, before, counts = ([0] * self.data for _ in range(3))
        for sequence, tokens in pieces:
            chunks[sequence.rank] += tokens
            before[sequence.rank] += tokens * (sequence.base + sequence.prompt - sequence.left)
            counts[sequence.rank] += 1
        beside = [0 if self.alone and chunk else own for own, chunk in zip(self.decoding, chunks, strict=True)]
        mean = (decoding * self.tokens + sum(chunks)) / self.data
        ranks = {rank for rank, chunk in enumerate(chunks) if chunk} | {beside.index(max(beside))}
        means = [total / max(chunk, 1) for total, chunk in zip(before, chunks, strict=True)]
        found = (self._single(beside[one], context, chunks[one], means[one], counts[one], mean) for one in ranks)
        return float(max(found))

    def _mixed_step(self, pieces: list[Piece]) -> None:
        """One step with chunks of prompts."""
        decoding = self._beside(pieces) if self.alone else self.running
        chunk, seconds = sum(tokens for _, tokens in pieces), self._seconds(pieces, decoding)
        self.prefill_time += seconds
        self.prompt_tokens += chunk
        self._pass_time(seconds)
        self.step, self.steps = self.step + 1, self.steps + 1
        self.polled = self.step
        if self.pause and (self.alone or not self.waiting):
            self.after = self.step + self.pause
        if decoding:
            self._advance(1, decoding)
        self.context += chunk
        self.promised -= chunk
        for sequence, tokens in pieces:
            sequence.left -= tokens
            if not sequence.left:
                self._begin(sequence)
        self.prefilling = [sequence for sequence in self.prefilling if sequence.left]
        self._finish()

    def _begin(self, sequence: Sequence) -> None:
        """The prompt is computed: its first token, or the next one of a preempted sequence."""
        if not sequence.generated:
            sequence.first = self.now
            self.begun.append(self.now - sequence.arrival)
        sequence.generated += 1
        rank = sequence.rank
        sequence.started = self.iteration - self.behind[rank]
        sequence.ends = ends = sequence.started + sequence.iterations(self.accepted, self.replica.steps.scatter)
        self.running += 1
        self.decoding[rank] += 1
        self.order.append(sequence)
        if ends in self.ends[rank]:
            self.ends[rank][ends].append(sequence)
        else:
            self.ends[rank][ends] = [sequence]
            heapq.heappush(self.next_ends[rank], ends)

    def decoded(self, sequence: Sequence) -> int:
        """The iterations in which a running sequence has decoded."""
        return self.iteration - self.behind[sequence.rank] - sequence.started

    def _decode_steps(self) -> None:
        """A run of steps without prompts: until a sequence ends, a request arrives, or the KV cache is full."""
        grown = self.running * self.accepted
        next_ends = [ends[0] + behind for ends, behind in zip(self.next_ends, self.behind, strict=True) if ends]
        number = max(min(next_ends) - self.iteration, 0)
        free = self.room - self.context - (self.promised if self.reserved >= 1 else 0.0)
        if self.reserved < 1 and free < grown and number:
            self._preempt()
            return
        if self.reserved < 1:
            number = min(number, max(int(free / grown), 1))
        if self.waiting and (later := self._due()) > self.step:
            number = min(number, later - self.step)
        if (self.waiting or self.prefilling) and self.after > self.step:
            number = min(number, self.after - self.step)
        context, seconds_of = self._mean_context(), self._decode_of()
        sooner = min(self.coming[0][0], self.horizon) if self.coming else self.horizon
        if number and sooner < math.inf:
            some = 1
            for _ in range(2):  # steps become longer as the context grows
                each = seconds_of(context + (some - 1) / 2 * self.accepted)
                some = min(number, max(1, math.ceil((sooner - self.now) / each - 1e-9)))
            number = some
        if number:
            self._pass_time(number * seconds_of(context + (number - 1) / 2 * self.accepted), (number - 1) / 2 * grown)
            self.step, self.steps = self.step + number, self.steps + number
            self.polled += (self.step - self.polled) // self.poll * self.poll
            self._advance(number, self.running)
        self._finish()

    def _decode_of(self) -> Callable[[float], float]:
        """The seconds of a step of the sequences that decode, by their mean context."""
        return self.replica.steps.decode_of(max(self.decoding), self.replica.routed(self.running / self.data))

    def _beside(self, pieces: list[Piece]) -> int:
        """The sequences that decode beside prompts that go first: those of other data-parallel ranks.

        Each rank of SGLang has its own batch in a step that all share (sglang/srt/managers/scheduler.py,
        get_next_batch_to_run); those of ranks with prompts get their tokens a step later.
        """
        if self.data == 1 or not self.running:
            return 0
        ranks = {sequence.rank for sequence, _ in pieces}
        found = self.running - sum(self.decoding[rank] for rank in ranks)
        if found:
            for rank in ranks:
                self.behind[rank] += 1
        return found

    def _advance(self, number: int, running: int) -> None:
        """`number` decode tokens of running sequences; a reservation is used up as the context grows."""
        self.iteration += number
        grown = running * self.accepted * number
        self.context += grown
        if self.reserved:
            self.promised = max(self.promised - grown * self.reserved, 0.0)

    def _finish(self) -> None:
        """Sequences that have all their tokens leave."""
        for rank, next_ends in enumerate(self.next_ends):
            while next_ends and next_ends[0] <= self.iteration - self.behind[rank]:
                for sequence in self.ends[rank].pop(heapq.heappop(next_ends)):
                    self._ended(sequence)
                self.blocked = False
        if not self.running:
            self.blocked = False
            self.order.clear()
            if not self.prefilling:
                self.context = self.promised = 0.0

    def _ended(self, sequence: Sequence) -> None:
        """A sequence has all its tokens."""
        sequence.ends, steps = -1, self.decoded(sequence)
        self._free(sequence, steps)
        if self.reserved:
            over = self.reserved * (sequence.output - steps * self.accepted)
            self.promised = max(self.promised - max(over, 0.0), 0.0)
        self.held[sequence.rank] -= 1
        first = sequence.first
        if self.stream > 1:
            first += (self.now - first) * min((self.stream - 1) / max(steps, 1), 1.0)
        self._leave(sequence.index, (sequence.arrival, first, self.now, sequence.output))

    def _free(self, sequence: Sequence, steps: int) -> None:
        """A sequence does not decode any more, and its tokens leave the KV cache."""
        left = self.context - (sequence.base + sequence.prompt + steps * self.accepted)
        self.context = left if left > 0.0 else 0.0
        self.running -= 1
        self.decoding[sequence.rank] -= 1

    def _leave(self, index: int, times: Finished) -> None:  # noqa: ARG002
        """A request is finished."""
        self.done.append(times)
        if self.concurrency is not None and self.sent < len(self.lengths):
            self.send(self.now)

    def _preempt(self) -> None:
        """The sequence admitted last leaves the KV cache and waits, to be computed again with what it generated."""
        while self.order[-1].ends < 0:
            self.order.pop()
        sequence = self.order[-1]
        if self.running <= 1:
            self._let_pass(self.step, sequence)
        self._evict(sequence)
        self.preemptions += 1
        self.blocked = True

    def _evict(self, sequence: Sequence) -> None:
        """A running sequence leaves the KV cache and waits first in the queue, its prompt with what it generated."""
        self.order.remove(sequence)
        rank, steps = sequence.rank, self.decoded(sequence)
        self.ends[rank][sequence.ends].remove(sequence)
        if not self.ends[rank][sequence.ends]:
            del self.ends[rank][sequence.ends]
            self.next_ends[rank].remove(sequence.ends)
            heapq.heapify(self.next_ends[rank])
        self._free(sequence, steps)
        new = int(steps * self.accepted)
        sequence.generated += new
        sequence.prompt = sequence.left = min(sequence.prompt + new + 1, self.room - sequence.base - 1)
        sequence.ends = 0
        self.waiting += 1
        self.queues[sequence.rank].appendleft((self.step, sequence))

    def _mean_context(self) -> float:
        return self.context / (self.running + len(self.prefilling)) if self.running else 0.0

    def _pass_time(self, seconds: float, more: float = 0.0) -> None:
        """Let seconds pass, in which the KV cache has so many tokens `more` than at their beginning on average."""
        self.now += seconds
        area = self.area
        area[0] += seconds * (self.running + len(self.prefilling))
        area[1] += seconds * self.waiting
        area[2] += seconds * (self.context + more)

    def _served(self) -> Served:
        duration = max(self.now, 1e-12)
        running, waiting, cached = (value / duration for value in self.area)
        arrival, first, last, output = np.array(self.done, float).T
        counts = (self.preemptions, self.steps, self.prompt_tokens)
        share = self.prefill_time / duration
        return Served(arrival, first, last, output, duration, share, running, waiting, cached, *counts)
