"""Replicas of a deployment in one event simulation: where each request goes, and what moves between replicas.

    balanced   to the replica with the fewest requests (least-loaded, of routers), of unequal ones for their rates
    round-robin, random, power-of-two
               in turn, at random, or to that with fewer requests of two at random (Mitzenmacher 2001): routers of plain
               requests (Dynamo's --router-mode, SGLang's --policy)
    llumnix    to the freest replica; running requests move with their KV cache to balance it (Sun et al. 2024)
    dedicated  a model for each tenant, and each replica has one of the models
    alpaserve  a model for each tenant, and each replica has all of them or some, which take turns at its steps
               (Li et al. 2023); which of them are where is searched in `roofline.serving.placement`
    reroute    instances are lost; the requests of their replica begin anew elsewhere, and it waits for another instance
    spotserve  the replica goes on with one stage fewer, or its requests elsewhere, with their KV cache
               (Miao et al. 2023)
    petals     another instance takes the place of a lost one at once, without its KV cache (Borzunov et al. 2023)

Replicas are the copies of data parallelism that share no experts; an instance is a pipeline stage of one.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ordered
from functools import cache
from operator import itemgetter
from types import MappingProxyType

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core.errors import RooflineError
from roofline.scenario.cost import HOUR
from roofline.serving.load import STARTUP, Load, Requests
from roofline.serving.options import DEDICATED, OF_FLEETS, PLACEMENT, ROUTES
from roofline.serving.replica import DoesNotFitError, Replica, replica_of
from roofline.serving.sequence import Finished, Sequence, Served
from roofline.serving.simulation import Simulation
from roofline.specs.hardware import NETWORK


class Member(Simulation):
    """A replica of several, or one model of a replica that has more: `beside` are all that share its devices."""

    def __init__(self, replica: Replica, requests: Requests) -> None:
        super().__init__(replica, requests, None)
        self.left: list[tuple[int, Finished]] = []
        self.free = 0.0  # when its link has sent what is due
        self.pace = 1.0  # seconds a request where it is full, among unequal replicas
        self.own = set[int]()  # requests whose prompts it computes although it receives others
        self.beside: Ordered[Member] = (self,)

    def _leave(self, index: int, times: Finished) -> None:
        self.left.append((index, times))

    def _is_computed(self, sequence: Sequence) -> bool:
        return (super()._is_computed(sequence) and sequence.index not in self.own) or not sequence.left

    @property
    def ready(self) -> float:
        """The time of the next event."""
        busy = self.running or self.prefilling or self.waiting
        own = self.now if busy else self.coming[0][0] if self.coming else math.inf
        return max(own, self.now) if len(self.beside) == 1 else max(own, *(each.now for each in self.beside))

    @property
    def due(self) -> float:
        """The time of the next event, or at which requests leave: until then a router sees them."""
        return self.left[0][1][2] if self.left else self.ready

    @property
    def requests(self) -> int:
        """The requests on its devices."""
        return sum(sum(each.held) + len(each.coming) + len(each.left) for each in self.beside)

    def turn(self, until: float) -> None:
        """One event, in which the models beside it wait; others may send a request at the time `until`."""
        self._pass_time(max(max(each.now for each in self.beside) - self.now, 0.0))
        self.horizon = min([until, *(each.ready for each in self.beside if each is not self)])
        self.event()

    @property
    def decoders(self) -> list[Sequence]:
        """The requests that decode."""
        return [each for each in self.order if each.ends > 0]

    def release(self, sequence: Sequence) -> Sequence:
        """A request that decodes leaves, and its KV cache goes with it."""
        self._evict(sequence)
        self.queues[sequence.rank].popleft()
        self.waiting -= 1
        self.held[sequence.rank] -= 1
        self.blocked = False  # as after an end, there is room
        sequence.left, sequence.generated = 0, max(sequence.generated - 1, 1)
        return sequence

    def receive(self, sequence: Sequence, at: float) -> None:
        """A request comes with its KV cache."""
        insort(self.coming, (at, sequence), key=itemgetter(0))


def _fewest(members: Ordered[Member], index: int, random: np.random.Generator) -> Member:  # noqa: ARG001
    return min(members, key=lambda each: (each.requests + 1) * each.pace)


def _of_two(members: Ordered[Member], index: int, random: np.random.Generator) -> Member:
    some = random.choice(len(members), min(2, len(members)), replace=False)
    return _fewest([members[one] for one in some], index, random)


Router = Callable[[Ordered[Member], int, np.random.Generator], Member]
"""The replica of a request: among replicas, by its number, and what is random."""

ROUTERS: Mapping[str, Router] = {
    **dict.fromkeys(ROUTES[:2], _fewest),
    "round-robin": lambda members, index, _: members[index % len(members)],
    "random": lambda members, _, random: members[int(random.integers(len(members)))],
    "power-of-two": _of_two,
}
"""Routers of plain requests by the name of their policy."""


class Replicas:
    """The replicas of a load; `next` is when `happen` is due, what a policy does beside its routing.

    Where replicas are `linked`, what one of them ends another goes on with.
    """

    linked = False

    def __init__(self, replica: Replica, requests: Requests, load: Load, tenant: NDArray[np.intp], seed: int) -> None:
        self.replica, self.load, self.tenant = replica, load, tenant.tolist()
        self.drawn, self.retired = requests, list[Member]()
        self.sent, self.done = 0, dict[int, tuple[float, float]]()
        self.arriving = deque(requests.arrival[: load.concurrency or requests.arrival.size].tolist())
        self.next = math.inf
        self.members = [Member(each, requests) for each in replica.members]
        if replica.beside:
            lengths = float(requests.prompt.mean()), float(requests.output.mean())
            for member in self.members:
                member.pace = member.replica.pace(*lengths)
        self.router, self.random = ROUTERS.get(load.policy, _fewest), np.random.default_rng(seed)
        self.begin()

    def begin(self) -> None:
        """What a policy sets before the run."""

    def place(self, index: int) -> Member:
        """The replica of a request."""
        return self.router(self.able(index), index, self.random)

    def able(self, index: int) -> list[Member]:  # noqa: ARG002
        """The replicas that may take a request."""
        return self.members

    def enter(self, index: int, at: float) -> None:
        """A request arrives, or begins anew."""
        self.place(index).enter(index, at)

    def happen(self) -> None:
        """What is due at `next`."""

    def leave(self, member: Member) -> None:
        """Requests leave a replica; in a closed loop others follow."""
        for index, (_, first, last, _) in member.left:
            self.done[index] = first, last
            if self.load.concurrency and self.sent + len(self.arriving) < self.drawn.arrival.size:
                insort(self.arriving, last)
        member.left.clear()

    def run(self) -> Served:
        """The whole run."""
        count, arrivals = self.drawn.arrival.size, np.array(self.drawn.arrival)
        coupled = self.linked or self.load.concurrency is not None
        while len(self.done) < count:
            # Who has ended leaves before what begins at that time; models of a device take turns.
            dues = [(each.due, not each.left, each.now) for each in self.members]
            first = min(dues, default=(math.inf, True, math.inf))
            due, coming = first[0], self.arriving[0] if self.arriving else math.inf
            if self.next <= min(due, coming):
                self.happen()
                continue
            if coming < due or (coming == due and first[1]):
                arrivals[self.sent] = self.arriving.popleft()
                self.enter(self.sent, arrivals[self.sent])
                self.sent += 1
                continue
            member = self.members[dues.index(first)]
            if member.left:
                self.leave(member)
                continue
            others = zip(dues, self.members, strict=True) if coupled else ()
            member.turn(min([self.next, coming, *(at for (at, *_), each in others if each not in member.beside)]))
        begun, last = np.array([self.done[index] for index in range(count)]).T
        return self.served(Served(arrivals, begun, last, self.drawn.output.astype(float), *(0,) * 8))

    def served(self, found: Served) -> Served:
        """A run with what its replicas counted."""
        everyone = [*self.members, *self.retired]
        tenant = np.array(self.tenant) if self.load.tenants else None
        return together(everyone, everyone, found, len(self.replica.members))._replace(tenant=tenant, whole=True)


def together(prefills: Ordered[Member], decodes: Ordered[Member], found: Served, replicas: int = 0) -> Served:
    """A run with the shares and counts of so many `replicas` (0: as many as members).

    Tokens in the KV cache are those of a replica of decode.
    """
    every = list(dict.fromkeys((*prefills, *decodes)))
    duration = max(float(found.last.max()), 1e-12)
    running = sum(each.area[0] for each in every)
    return found._replace(
        duration=duration,
        prefilling=sum(each.prefill_time for each in prefills) / (replicas or len(prefills)) / duration,
        running=running / duration,
        waiting=max(float((found.last - found.arrival).sum()) - running, 0.0) / duration,
        cached=sum(each.area[2] for each in decodes) / (replicas or len(decodes)) / duration,
        preemptions=sum(each.preemptions for each in decodes),
        steps=sum(each.steps for each in every),
        prompt_tokens=sum(each.prompt_tokens for each in prefills),
    )


DOWNTIME = 0.03
"""Seconds in which a request does not decode while it moves: 20 to 30 ms, whatever its length (Llumnix, 6.2)."""

PERIOD = 0.2
"""Seconds between the looks for requests to move. The code polls every 0.05 s; a longer period is simulated faster."""

LEAST = 3.0
"""Decode steps for which the KV cache has room, below which a replica gives requests away (migrate_out_threshold in the
code, github.com/AlibabaPAI/llumnix)."""


class Llumnix(Replicas):
    """Requests go to the freest replica, and move from the least free ones."""

    def begin(self) -> None:
        self.next = 0.0

    @staticmethod
    def freeness(member: Member) -> float:
        """Decode steps for which the KV cache has room, with the first waiting request as if it ran (section 4.4)."""
        head = next((queue[0][1].prompt for queue in member.queues if queue), 0)
        coming = sum(sequence.prompt for _, sequence in member.coming)
        used = member.context + member.promised + head + coming
        return (member.room - used) / max(member.running + len(member.prefilling), 1)

    def place(self, index: int) -> Member:  # noqa: ARG002
        return max(self.members, key=self.freeness)

    def happen(self) -> None:
        """The least free replica gives its shortest requests to the freest, the next one to the next."""
        at, self.next = self.next, self.next + PERIOD
        ordered = sorted(self.members, key=self.freeness)
        for source, target in zip(ordered[: len(ordered) // 2], reversed(ordered), strict=False):
            for sequence in sorted(source.decoders, key=lambda each: each.prompt + source.decoded(each)):
                if self.freeness(source) >= LEAST or self.freeness(target) <= LEAST or target.waiting:
                    break
                target.receive(source.release(sequence), max(at, source.now) + DOWNTIME)


class AlpaServe(Replicas):
    """Each replica has the models of all tenants, or of some."""

    def begin(self) -> None:
        models = models_of(self.load)
        each, shares = replace(self.replica, kv_tokens=self.replica.kv_tokens // models), self.load.tenants
        self.members, self.of = list[Member](), {model: list[Member]() for model in range(len(shares))}
        for group in placed(shares, self.replica.copies, models):
            beside = {model: Member(each, self.drawn) for model in group}
            self.members += beside.values()
            for model, member in beside.items():
                member.beside = tuple(beside.values())
                self.of[model].append(member)

    def able(self, index: int) -> list[Member]:
        return self.of[self.tenant[index]]


def models_of(load: Load) -> int:
    """The models on each replica."""
    return 1 if load.policy == DEDICATED else load.models or len(load.tenants)


def placed(shares: Ordered[float], groups: int, models: int) -> list[list[int]]:
    """The models of each group, with room for so many: next is the model with the most requests for each of its copies.

    It is placed on the group with the fewest models.
    """
    copies, found = [0] * len(shares), [list[int]() for _ in range(groups)]
    for _ in range(groups * models):
        group = min(found, key=len)
        rest = [model for model in range(len(shares)) if model not in group]
        most = max(rest, key=lambda model: (not copies[model], shares[model] / max(copies[model], 1)))
        copies[most] += 1
        group.append(most)
    return found


MOST_REPLICAS = 1000
"""The most replicas of a fleet, each of which is looked at in every event."""

MOST_LOSSES = 10_000
"""The most losses and arrivals of instances in a run, of one whose requests never end."""


class Reroute(Replicas):
    """Instances are lost at random, and replaced after `startup`.

    Where a replica `recovers` its stages have their part of the lost weights after `moved` seconds, over the network.
    """

    recovers, moved = False, 0.0

    def begin(self) -> None:
        self.stages = self.replica.steps.scenario.settings.parallel.pipeline
        self.lost, self.alive = [0] * self.replica.copies, dict(enumerate(self.members))
        self.events = 0
        self.limbo = list[tuple[Sequence | int, float]]()
        self.due = [(self._later(), each, 1) for each in range(self.replica.copies) for _ in range(self.stages)]
        heapq.heapify(self.due)
        self.next = self.due[0][0]

    def _later(self, at: float = 0.0) -> float:
        return at + float(self.random.exponential(HOUR / self.load.loss)) if self.load.loss else math.inf

    def enter(self, index: int, at: float) -> None:
        if self.members:
            super().enter(index, at)
        else:
            self.limbo.append((index, at))

    def _event(self) -> tuple[float, int, int]:
        """The time, the replica, and 1 for a loss or -1; raises RooflineError for losses without end."""
        self.events += 1
        if self.events > MOST_LOSSES:
            raise RooflineError(f"requests do not end: {MOST_LOSSES:,} instances were lost or came", options=["loss"])
        return heapq.heappop(self.due)

    def happen(self) -> None:
        """An instance of a replica is lost, or another one has come."""
        at, each, lost = self._event()
        self.lost[each] += lost
        again = at + self.load.startup if lost > 0 else self._later(at)
        heapq.heappush(self.due, (again, each, -lost))
        self.next = self.due[0][0]
        before, replica = self.alive.pop(each, None), self._with(self.stages - self.lost[each])
        if before is not None:
            at = max(at, before.now)
            self.leave(before)
        if replica is not None:
            self.alive[each] = Member(replica, self.drawn)
            self.alive[each].now = at + self.moved
        self.members = list(self.alive.values())
        waiting, self.limbo = self.limbo, []
        if before is not None:
            self.retired.append(before)
            waiting += [(sequence, at) for sequence in self._all(before)]
        for request, since in waiting:
            self._again(request, max(since, at), self.alive.get(each))

    def _again(self, request: Sequence | int, at: float, own: Member | None) -> None:
        """A request goes on, or begins anew, where it was or elsewhere."""
        if not self.members:
            self.limbo.append((request, at))
        elif isinstance(request, Sequence) and self.recovers and not request.left:
            (own or self.place(request.index)).receive(request, at)
        else:
            self.enter(request.index if isinstance(request, Sequence) else request, at)

    @staticmethod
    def _all(member: Member) -> list[Sequence]:
        """The requests of a replica that ends, those that decode with their KV cache."""
        queued = [sequence for queue in member.queues for _, sequence in queue]
        others = [*member.prefilling, *queued, *(sequence for _, sequence in member.coming)]
        return [*others, *(member.release(sequence) for sequence in member.decoders)]

    @cache  # noqa: B019 - as long as the run
    def _with(self, stages: int) -> Replica | None:
        """The replica with so many stages; None where it does not run."""
        if stages == self.stages:
            return self.replica
        if not self.recovers or not stages:
            return None
        scenario = self.replica.steps.scenario
        parallel = replace(scenario.settings.parallel, pipeline=stages, nodes=None)
        try:
            return replica_of(scenario.changed(settings=replace(scenario.settings, parallel=parallel)), self.load)
        except DoesNotFitError:
            return None


class Petals(Reroute):
    """Another machine has a lost one's layers at once, and computes its caches again from what the clients keep."""

    def happen(self) -> None:
        """A machine leaves: the requests of its replica pass their tokens once more, through all its machines."""
        at, each, _ = self._event()
        heapq.heappush(self.due, (self._later(at), each, 1))
        self.next = self.due[0][0]
        for sequence in self.members[each].decoders:
            self.members[each]._evict(sequence)


class SpotServe(Reroute):
    """Replicas go on with fewer stages, and requests with their KV cache."""

    recovers = True

    def begin(self) -> None:
        super().begin()
        steps = self.replica.steps
        self.moved = steps.weights / steps.scenario.hardware.link(NETWORK).bandwidth


FLEETS: Mapping[str, type[Replicas]] = MappingProxyType(
    dict.fromkeys(ROUTES, Replicas)
    | dict(zip(OF_FLEETS, (Llumnix, AlpaServe, AlpaServe, Reroute, SpotServe, Petals), strict=True))
)
"""The policies over replicas by name."""

AMONG_MODELS, OF_LOSSES = (DEDICATED, "alpaserve", PLACEMENT), OF_FLEETS[3:]
"""Those with a model for each tenant, and those of instances that are lost."""


def check_fleet(load: Load, replica: Replica) -> None:
    """Raise RooflineError for a fleet that its policy does not have."""
    copies = len(replica.members)
    if replica.beside and load.policy not in ROUTERS:
        raise RooflineError(f"unequal replicas are behind one of {', '.join(ROUTERS)}", options=["policy", "beside"])
    if load.models is not None and load.policy != "alpaserve":
        raise RooflineError("models on each replica are told under alpaserve alone", options=["models", "policy"])
    if load.loss and load.policy not in OF_LOSSES:
        raise RooflineError(f"instances are lost under {', '.join(OF_LOSSES)} alone", options=["loss", "policy"])
    if load.policy in FLEETS and copies > MOST_REPLICAS:
        raise RooflineError(f"{copies:,} replicas are more than the {MOST_REPLICAS:,} of a fleet", options=["dp"])
    if load.policy == "petals" and load.startup != STARTUP:
        raise RooflineError("petals replaces a lost instance at once: omit startup", options=["startup"])
    if load.policy in (*ROUTERS, "llumnix") and copies < 2:
        raise RooflineError(
            f"{load.policy} is among replicas that share no experts: give --dp 2 or more", options=["policy"]
        )
    if load.policy in AMONG_MODELS and copies * models_of(load) < len(load.tenants):
        raise RooflineError("each model is on some replica: give --dp as many", options=["policy"])
