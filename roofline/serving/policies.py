"""Policies of which request is next, in the event simulation: `roofline serve --policy NAME --tenants SHARES`.

    fcfs       in order of arrival
    priority   the first tenant first, and within a tenant in order of arrival (priority classes of vLLM and SGLang)
    shortest   the fewest tokens first, as if outputs were known
    vtc        the tenant with the least service first: prompt tokens and twice the output tokens (Sheng et al. 2024)
    fastserve  the lowest level of a multi-level feedback queue first; a running request of a higher level gives way,
               and its KV cache is swapped out (Wu et al. 2023)

FastServe: a request enters at the level whose slice holds its prefill, and descends a level whenever it has decoded for
a slice; the slice of level n is 2^n decode steps. Swaps are hidden behind other steps, as the paper's are. Policies of
where a request goes, among replicas, are those of `roofline.serving.replicas`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.serving.load import Load, Requests, count_of, draw, share_of
from roofline.serving.options import FCFS, ORDERS
from roofline.serving.replica import Replica
from roofline.serving.replicas import AMONG_MODELS, FLEETS, check_fleet
from roofline.serving.rollouts import simulate_rollouts
from roofline.serving.sequence import Finished, Sequence, Served
from roofline.serving.simulation import Simulation

OUTPUT_WEIGHT = 2.0
"""Service of an output token over one of a prompt, as in the experiments of the paper."""


class Scheduled(Simulation):
    """A replica whose waiting requests are admitted in the order of `key`, least first; each is of a tenant."""

    def __init__(self, replica: Replica, requests: Requests, load: Load, tenant: NDArray[np.intp]) -> None:
        super().__init__(replica, requests, load.concurrency)
        self.tenant = tenant.tolist()
        self.finished: list[int] = []

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        """The order of admission."""
        return (sequence.index,)

    def _sort(self, queue: deque[tuple[int, Sequence]]) -> None:
        ordered = sorted(queue, key=lambda waiting: self.key(waiting[1]))
        queue.clear()
        queue.extend(ordered)

    def _admit(self, queue: deque[tuple[int, Sequence]], left: int, found: list[tuple[Sequence, int]]) -> None:
        self._sort(queue)
        super()._admit(queue, left, found)

    def _leave(self, index: int, times: Finished) -> None:
        self.finished.append(index)
        super()._leave(index, times)

    def _served(self) -> Served:
        return super()._served()._replace(tenant=np.array([self.tenant[index] for index in self.finished]))


class Priority(Scheduled):
    """The first tenant first."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (self.tenant[sequence.index], sequence.index)


class Shortest(Scheduled):
    """The fewest tokens first."""

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (sequence.prompt + sequence.output, sequence.index)


class Fair(Scheduled):
    """Virtual token counter: the tenant that was served least."""

    def __init__(self, replica: Replica, requests: Requests, load: Load, tenant: NDArray[np.intp]) -> None:
        super().__init__(replica, requests, load, tenant)
        tenants = max(self.tenant) + 1
        self.service, self.decodes, self.queued = [0.0] * tenants, [0] * tenants, [0] * tenants

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (self.service[self.tenant[sequence.index]], sequence.index)

    def _assign(self, sequence: Sequence) -> None:
        super()._assign(sequence)
        own = self.tenant[sequence.index]
        if not self.queued[own]:  # no credit for time without requests
            others = [self.service[one] for one, number in enumerate(self.queued) if number]
            self.service[own] = max(self.service[own], min(others, default=0.0))
        self.queued[own] += 1

    def _admitted(self, sequence: Sequence) -> None:
        own = self.tenant[sequence.index]
        self.queued[own] -= 1
        self.service[own] += sequence.prompt
        self._sort(self.queues[sequence.rank])

    def _begin(self, sequence: Sequence) -> None:
        super()._begin(sequence)
        self.decodes[self.tenant[sequence.index]] += 1

    def _free(self, sequence: Sequence, steps: int) -> None:
        super()._free(sequence, steps)
        self.decodes[self.tenant[sequence.index]] -= 1

    def _evict(self, sequence: Sequence) -> None:
        super()._evict(sequence)
        self.queued[self.tenant[sequence.index]] += 1

    def _advance(self, number: int, running: int) -> None:
        super()._advance(number, running)
        part = number * running / max(self.running, 1)  # of those that decode, where prompts stop others of their rank
        for tenant, decoding in enumerate(self.decodes):
            self.service[tenant] += OUTPUT_WEIGHT * decoding * self.accepted * part


class Feedback(Scheduled):
    """FastServe's multi-level feedback queue, which a request joins below the levels that its prefill would use up."""

    def __init__(self, replica: Replica, requests: Requests, load: Load, tenant: NDArray[np.intp]) -> None:
        super().__init__(replica, requests, load, tenant)
        self.entry: dict[int, int] = {}

    def _entered(self, sequence: Sequence) -> int:
        """The steps that a request enters with: 2 to the power of its first level."""
        if sequence.index not in self.entry:
            prefill = self._single(0, 0.0, sequence.prompt, sequence.prompt / 2, 1, None)
            steps = prefill / self.replica.steps.decode_of(1)(float(sequence.prompt))
            self.entry[sequence.index] = 2 ** max(math.ceil(math.log2(steps)), 0)
        return self.entry[sequence.index]

    def _steps(self, sequence: Sequence) -> int:
        """The steps that count for the level: those of the first level, and those decoded."""
        decoding = self.decoded(sequence) if sequence.ends > 0 else 0
        return self._entered(sequence) + max(sequence.generated - 1, 0) + decoding

    def level(self, sequence: Sequence) -> int:
        """The level of a request: the lowest is served first."""
        return int(math.log2(self._steps(sequence)))

    def key(self, sequence: Sequence) -> tuple[float, ...]:
        return (self.level(sequence), sequence.index)

    def event(self) -> None:
        self._admit_arrivals()
        self.horizon = math.inf
        if self.waiting and self.running:
            self._give_way()
            running = [sequence for sequence in self.order if sequence.ends > 0]
            if self.waiting and running:
                steps = min(2 ** (self.level(each) + 1) - self._steps(each) for each in running)
                self.horizon = self.now + max(steps, 1) * self._decode_of()(self._mean_context())
        super().event()

    def _give_way(self) -> None:
        """Running requests of the highest levels leave for waiting ones of lower levels that have no room."""
        for queue in self.queues:
            self._sort(queue)
            for ready, sequence in list(queue):
                running = [each for each in self.order if each.ends > 0 and each.rank == sequence.rank]
                need = sequence.base + sequence.prompt + self.reserved * sequence.output
                full = self.held[sequence.rank] - len(queue) >= self.most or not self._fits(sequence, need)
                if ready > self.step or not running or not full:
                    break
                last = max(running, key=self.key)
                if self.level(last) <= self.level(sequence):
                    break
                self._evict(last)
                last.left, last.generated = 0, last.generated - 1

    def _is_computed(self, sequence: Sequence) -> bool:
        return super()._is_computed(sequence) or not sequence.left


POLICIES: Mapping[str, type[Scheduled]] = MappingProxyType(
    dict(zip(ORDERS, (Scheduled, Priority, Shortest, Fair, Feedback), strict=True))
)
"""The policies by name."""

AMONG_TENANTS = ("priority", "vtc", *AMONG_MODELS)
"""Those that tell tenants apart: with one they are in order of arrival."""


def simulate(replica: Replica, load: Load, requests: int = 1000, seed: int = 0) -> Served:
    """The run of a load under its policy: `requests` requests, all of a trace, or `rounds` of a closed loop.

    Of several copies of the replica it is that of one with its share of the load; policies over replicas run all
    copies. Raises RooflineError, also where a request does not fit in the KV cache.
    """
    check_fleet(load, replica)
    plain = load.policy == FCFS and not load.tenants
    if load.rollouts is not None and not plain:
        raise RooflineError("rollouts are in order of arrival: omit policy and tenants", options=["rollouts"])
    fleet = FLEETS.get(load.policy)
    if replica.copies > 1 and fleet is None:
        load = share_of(load, replica.copies)
    if load.rollouts is not None:
        return simulate_rollouts(replica, load, seed)
    drawn = draw(load, count_of(load, requests), seed)
    if plain:
        return Simulation(replica, drawn, load.concurrency).run()
    drawn, tenant = _of_tenants(load, drawn, seed)
    if fleet is not None:
        return fleet(replica, drawn, load, tenant, seed).run()
    return POLICIES[load.policy](replica, drawn, load, tenant).run()


def _of_tenants(load: Load, drawn: Requests, seed: int) -> tuple[Requests, NDArray[np.intp]]:
    """The requests and their tenants, each of which sends its share of a rate at times, and in bursts, of its own."""
    shares, count, random = np.array(load.tenants or (1.0,), float), drawn.arrival.size, np.random.default_rng(seed)
    shares /= shares.sum()
    if load.rate is None or shares.size == 1:
        return drawn, random.choice(shares.size, count, p=shares)
    shape = load.burstiness
    times = [random.gamma(shape, 1 / (shape * load.rate * share), count).cumsum() for share in shares]
    first = np.argsort(np.concatenate(times))[:count]
    arrival = np.concatenate(times)[first]
    return drawn._replace(arrival=arrival - arrival[0]), first // count
