"""Sessions on a replica, step by step, with a prefix cache that is simulated.

The steps are those of `roofline.serving.simulation`: here a request finds in the cache what its tiers hold when it is
admitted, loads what lower tiers have, pins its path while it runs, and leaves it to be evicted. The next turn comes a
gap after the end of one, and a session that ends is followed by another one.

A load takes the link of its tier, one after the other, for latency + bytes / bandwidth, less the part of the request's
own prefill that hides it; its blocks are held meanwhile, and others go before it (as of vLLM's connectors), or wait
with it where the tier stalls the engine. Copies to a tier that writes through take the other direction of the link;
their bytes are counted, and take time where they stall.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from heapq import heappop, heappush
from itertools import count

import numpy as np

from roofline.serving.load import Requests
from roofline.serving.sequence import Finished, Piece, Sequence
from roofline.serving.sessions.cache import Level, PrefixCache, Run
from roofline.serving.sessions.decoding import Decoding
from roofline.serving.sessions.deployed import Deployed
from roofline.serving.sessions.drawn import Draw, Session, Turn, grown, turn_of
from roofline.serving.sessions.routing import PREFIX, SESSION, chosen
from roofline.serving.sessions.workload import waits
from roofline.serving.simulation import Simulation

HOST = "dram"
"""The tier that a stalled engine writes to; others are written from there."""


class _Request(Sequence):
    """A turn inside the engine: whether it has pinned its path, and is loading; `need` are the tokens of its memory.

    `refused` is the last change of the memory (`SessionRun.changes`) after which it found no room.
    """

    __slots__ = ("loaded", "need", "pinned", "refused", "turn")

    def __init__(self, index: int, at: float, turn: Turn, output: int) -> None:
        super().__init__(index, at, turn.prompt, output, 0)
        self.turn, self.pinned, self.loaded, self.need, self.refused = turn, False, False, 0.0, -1


class SessionRun(Simulation):
    """The state of a replica that serves sessions; with a `tandem` it is a worker of prefill, and others decode.

    No run of decode steps goes beyond `limit`.
    """

    limit = math.inf

    def __init__(self, deployed: Deployed, draw: Draw, sessions: int | None, rate: float | None) -> None:
        nothing, store = np.zeros(0, np.int64), deployed.store
        super().__init__(deployed.replica, Requests(np.zeros(0), nothing, nothing, nothing), None)
        self.draw, self.work, self.store = draw, draw.workload, store
        self.decode = None if deployed.tandem is None else Decoding(deployed.tandem)
        self.routing, self.rate, self.block = deployed.routing, rate, store.block
        self.pool = store.tokens
        self.room = self.pool  # type: ignore[assignment]
        levels = [Level(self.pool / self.data / self.block)]
        levels += [level._replace(blocks=level.blocks / self.data / self.block) for level in store.levels]
        self.states, self.slots = math.inf if store.states is None else store.states / self.data, store.slots
        snapshot, apart = store.snapshot / self.block, store.states is not None
        every = store.every // store.block
        self.caches = [PrefixCache(levels, store.whole, snapshot, apart, every) for _ in range(self.data)]
        self.taken = [0.0] * self.data
        self.links = [0.0] * len(store.tiers)
        self.read = [0.0] * len(levels)
        self.roots: list[list[Run]] = [[self._root(cache) for _ in range(self.work.groups)] for cache in self.caches]
        self.tails: dict[tuple[int, int], Run] = {}
        self.tools: dict[tuple[int, int], Run] = {}
        self.joins: dict[int, tuple[float, Turn, set[int]]] = {}
        self.homes: dict[int, int] = {}
        self.due: list[tuple[float, int, Turn | None]] = []
        self.loading: list[tuple[float, int, _Request]] = []
        self.aside, self.changes = True, 0
        self.number, self.active = count(), dict[int, Turn]()
        self.rows: list[tuple[float, ...]] = []
        self.found: list[tuple[int, ...]] = []
        self.random = np.random.default_rng([draw.seed, 2**31])
        self.rehearsed = self.work.rehearsal or 0.0
        for lane in range(sessions or 0):
            session = draw.session(self.work.begun, self.work.duration is None, place=lane if rate is None else None)
            place = min(max(session.place - 1, 0), len(session.gap) - 1)
            self._later(self.random.random() * session.gap[place], self._turn(session))
        if rate is not None:
            self._later(0.0, None)

    @property
    def ready(self) -> float:
        """The time of the next event: one replica alone is always next."""
        return self.now

    @property
    def written(self) -> list[float]:
        """Bytes written to each tier."""
        each = np.array([0.0, *map(self.store.stored, self.store.tiers)]) * self.block
        return [float(size) for size in np.sum([cache.written for cache in self.caches], axis=0) * each]

    def event(self) -> None:
        """What is due, then a step, a run of decode steps, or the time until something is."""
        idle, since = self.work.idle, self.now if self.decode is None else max(self.now, self.decode.until)
        if idle and self.rate is None and self.due and not self.active and self.due[0][0] > since + idle:
            sooner = self.due[0][0] - since - idle
            self.due[:] = [(at - sooner, number, turn) for at, number, turn in self.due]  # in order, of all replicas
        while self.due and self.due[0][0] <= self.now:
            at, _, turn = heappop(self.due)
            if turn is None:
                turn = self._turn(self.draw.session())
                assert self.rate is not None
                self._later(at + self.random.exponential(1 / self.rate), None)
            self._arrive(at, turn)
        while self.loading and self.loading[0][0] <= self.now:
            self._is_loaded(heappop(self.loading)[2])
        self.horizon = min(self._sooner(), self.limit)
        super().event()

    def _sooner(self) -> float:
        """The time of the next turn, or of the end of a load."""
        due = self.due[0][0] if self.due else math.inf
        return min(due, self.loading[0][0]) if self.loading else due

    def _awaited(self) -> float:
        return min(self._sooner(), self.coming[0][0] if self.coming else math.inf)

    def _let_pass(self, ready: int, sequence: Sequence) -> None:
        if ready <= self.step and (self.loading or (self.due and self.promised > 0)):
            self._pass_time(max(self._awaited() - self.now, 0.0))  # what loads leaves no room
            return
        super()._let_pass(ready, sequence)

    def _later(self, at: float, turn: Turn | None) -> None:
        heappush(self.due, (at, next(self.number), turn))

    def _arrive(self, at: float, turn: Turn) -> None:
        self.enter_turn(at, turn)

    def enter_turn(self, at: float, turn: Turn) -> None:
        """A turn comes to this replica."""
        request = _Request(next(self.number), at, turn, turn.output if self.decode is None else 1)
        self.active[request.index] = turn
        self._come(request)

    # Routing and paths

    def _assign(self, sequence: Sequence) -> None:
        """The rank of a request, by the routing; the longest prefix, unless too many are there."""
        assert isinstance(sequence, _Request)
        turn = sequence.turn
        if self.data > 1 and self.routing == SESSION:
            rank = self.homes.setdefault(turn.session.number, int(self.random.integers(self.data)))
        else:
            known = self.known(turn) if self.data > 1 and self.routing == PREFIX else [0] * self.data
            rank = chosen(known, self.held)
        sequence.rank = rank
        self.held[rank] += 1
        cache, group = self.caches[rank], turn.session.group
        turn.tail = cache.run(self.roots[rank][group]) if turn.aside else self._tail(turn.session, rank)

    def known(self, turn: Turn) -> list[int]:
        """Blocks of a turn's prompt that the tiers of each rank hold."""
        end = turn.prompt // self.block
        return [sum(cache.found(self._tail(turn.session, rank), end)) for rank, cache in enumerate(self.caches)]

    def _root(self, cache: PrefixCache) -> Run:
        root = cache.run(priority=self.store.priority)
        root.length = self.work.shared // self.block
        root.marks.append(root.length)
        return root

    def _tail(self, session: Session, rank: int) -> Run:
        key = session.number, rank
        if key not in self.tails:
            self.tails[key] = self.caches[rank].run(self.roots[rank][session.group])
        return self.tails[key]

    # Memory

    def _admit(self, queue: deque[tuple[int, Sequence]], left: int, found: list[Piece]) -> None:
        first = queue[0][1]
        assert isinstance(first, _Request)
        if first.refused == self.changes:  # running requests have only grown since
            return
        self.aside = True
        while queue and queue[0][0] <= self.step and self.store.tiers and self._set_aside(queue):
            pass
        self.aside = not self.store.tiers
        super()._admit(queue, left, found)

    def _set_aside(self, queue: deque[tuple[int, Sequence]]) -> bool:
        """Load the first waiting request's prefix from lower tiers, if there is some and the pool has room."""
        request = queue[0][1]
        assert isinstance(request, _Request)
        if request.loaded:
            return False
        total = request.base + request.prompt
        hits = self._hits(request, total)
        if not any(hits[1:]) or not self._fits(request, total + self.reserved * request.output):
            return False
        cache, tail = self.caches[request.rank], request.turn.tail
        assert tail is not None
        queue.popleft()
        self.waiting -= 1
        self._admitted(request)
        self.promised += request.need
        self._trim(request.rank)
        at = self.now
        hidden = self._single(0, 0.0, float(min(total - sum(hits) * self.block, self.budget)), 0.0, 1.0, None)
        for tier, (blocks, link) in enumerate(zip(hits[1:], self.store.tiers, strict=True)):
            if blocks:
                last = not any(hits[tier + 2 :])  # its snapshot comes with the end of the prefix
                size = (blocks * self.block + last * self.store.snapshot) * self.store.read(link)
                self.read[tier + 1] += size
                begin = max(self.now, self.links[tier])
                self.links[tier] = begin + size / link.bandwidth
                at = max(at, self.links[tier] + link.latency - link.overlap * hidden)
        request.loaded = True
        cache.insert(tail, sum(hits))
        if any(blocks and link.stalls for blocks, link in zip(hits[1:], self.store.tiers, strict=True)):
            self._pass_time(max(at - self.now, 0.0))
        self._changed()
        heappush(self.loading, (at, next(self.number), request))
        self.horizon = min(self.horizon, at)
        return True

    def _is_loaded(self, request: _Request) -> None:
        """A request whose prefix is in the pool goes before those that wait."""
        self.promised = max(self.promised - request.need, 0.0)
        self.changes += 1
        if self.data > 1:
            self.taken[request.rank] -= request.need
        self.waiting += 1
        self.queues[request.rank].appendleft((self.step, request))

    def _hits(self, request: _Request, total: int) -> list[int]:
        """Blocks of a request's prefix in each tier; at least one token is computed."""
        tail = request.turn.tail
        assert tail is not None
        hits = self.caches[request.rank].found(tail, min((total - 1) // self.block, self._known(request)))
        for tier, link in enumerate(self.store.tiers, 1):
            if hits[tier] and link.block > self.block and not self.store.snapshot:
                above, each = sum(hits[:tier]), link.block // self.block
                hits[tier] = max((above + hits[tier]) // each * each - above, 0)
        return hits

    def _known(self, request: _Request) -> int:
        """Blocks of the prompt that earlier turns may have left; of a preempted request, all that it computed."""
        if request.generated:
            return 1 << 60
        return request.turn.reusable // self.block

    def _fits(self, sequence: Sequence, need: float) -> bool:
        assert isinstance(sequence, _Request)
        tail = sequence.turn.tail
        assert tail is not None
        sequence.need = need + (self.store.own if self.data > 1 else 0.0)
        if sequence.loaded:
            self._find(sequence)
            return True
        cache = self.caches[sequence.rank]
        known = sum(run.held[0] for run in tail.path() if run.pins) * self.block
        need += self.store.own
        over = self._taken(sequence.rank) + need - min(known, need) > self.pool / self.data + cache.shared * self.block
        if over or self.slots * (self._active(sequence.rank) + 1) > self.states:
            sequence.refused = self.changes
            return False
        below = any(self._find(sequence)[1:])
        # One whose prefix is in a lower tier is set aside first, at the latest before the next step.
        return self.aside or not below

    def _find(self, request: _Request) -> list[int]:
        """The blocks in each tier that a request need not compute."""
        total = request.base + request.prompt
        hits = self._hits(request, total)
        request.base = min(hits[0] * self.block, total - 1)
        request.prompt = request.left = total - request.base
        if not request.generated and not request.loaded:
            request.turn.hits = tuple(each * self.block for each in hits)
        return hits

    def _admitted(self, sequence: Sequence) -> None:
        assert isinstance(sequence, _Request)
        assert sequence.turn.tail is not None
        if self.data > 1:
            self.taken[sequence.rank] += sequence.need
        if not sequence.pinned:
            self.caches[sequence.rank].pin(sequence.turn.tail)
            sequence.pinned = True
        self._changed()

    def _mixed_step(self, pieces: list[Piece]) -> None:
        for rank in range(self.data):
            self._trim(rank)
        super()._mixed_step(pieces)

    def _begin(self, sequence: Sequence) -> None:
        """The prompt is computed: others may use its blocks."""
        assert isinstance(sequence, _Request)
        tail = sequence.turn.tail
        assert tail is not None
        end, cache = (sequence.base + sequence.prompt) // self.block, self.caches[sequence.rank]
        self._leave_windows(cache, sequence.prompt)
        if end > tail.start:
            before = cache.written.copy()
            cache.insert(tail, end)
            for link, had, has in zip(self.store.tiers, before[1:], cache.written[1:], strict=True):
                if link.stalls and link.name == HOST:
                    self._pass_time((has - had) * self.block * self.store.stored(link) / link.bandwidth)
        self._changed()
        super()._begin(sequence)

    def _leave_windows(self, cache: PrefixCache, tokens: int) -> None:
        """The windows that have passed over so many tokens leave blocks behind."""
        if blocks := int(self.store.left * tokens / self.block):
            cache.leave(blocks, self.now)

    def _free(self, sequence: Sequence, steps: int) -> None:
        assert isinstance(sequence, _Request)
        tail = sequence.turn.tail
        assert tail is not None
        cache = self.caches[sequence.rank]
        self._trim(sequence.rank)
        tokens = sequence.base + sequence.prompt + (int(steps * self.accepted) if self.work.kept else 0)
        end = min(tokens, sequence.turn.prompt + sequence.turn.output) // self.block
        self._leave_windows(cache, max(tokens - sequence.base - sequence.prompt, 0))
        if end > tail.start:
            cache.insert(tail, end, outputs=True)
        cache.unpin(tail, self.now)
        sequence.pinned = sequence.loaded = False
        if self.data > 1:
            self.taken[sequence.rank] -= sequence.need
        super()._free(sequence, steps)
        self._changed()
        self._trim(sequence.rank)

    def _trim(self, rank: int) -> None:
        """Evict what running requests need room for."""
        cache = self.caches[rank]
        free = max(self.pool / self.data - self._taken(rank), 0.0) / self.block
        cache.shrink(0, free + cache.pinned + cache.shared, self.states - self._active(rank))

    def _active(self, rank: int) -> int:
        """Requests of a rank that are admitted."""
        return self.held[rank] - len(self.queues[rank])

    def _taken(self, rank: int) -> float:
        """Tokens of a rank's pool that its running requests take, with their states and windows."""
        if self.data > 1:
            return self.taken[rank]
        return self.context + self.promised + self.store.own * self._active(rank)

    def _changed(self) -> None:
        """The memory that running requests take has changed other than by the tokens that they generate."""
        self.changes += 1
        own = self.store.own * (self.running + len(self.prefilling))
        self.room = self.pool - own + sum(cache.shared for cache in self.caches) * self.block  # type: ignore[assignment]

    # Turns

    def _leave(self, index: int, times: Finished) -> None:
        turn = self.active.pop(index)
        session, after = turn.session, self.now
        if self.decode is not None:
            first, after = self.decode.times(after, turn.prompt, turn.output)
            times = (times[0], first, after, turn.output)
        self.rows.append((*times, turn.prompt, turn.reusable, turn.gap, session.number))
        self.found.append(turn.hits)
        if session.replayed is not None and after < self.rehearsed:  # what its trace is like is known of the time after
            self._later(after, self._turn(session))
            return
        children = [self._start_branch(session, after) for _ in range(self.work.branch_agents * turn.branch)]
        known = grown(session, self.work)
        if session.place >= len(session.new):
            self._end(session, after, children)
            return
        if not known:
            self._forget(session)
        self._follow(session, children, after + turn.gap, self._turn(session))

    def _turn(self, session: Session) -> Turn:
        """The turn that a session is at; in a rehearsal with one token of output, and the next one at once."""
        turn = turn_of(session, self.work)
        return turn if self.now >= self.rehearsed else replace(turn, output=1, gap=0.0)

    def _follow(self, session: Session, children: list[Session], at: float, turn: Turn) -> None:
        """The turn after one of a session comes at a time, or when the last sub-agent ends that it waits for."""
        if children and waits(self.work, session.replayed is not None):
            left = {child.number for child in children}
            self.joins |= dict.fromkeys(left, (at, turn, left))
        else:
            self._later(at, turn)

    def _start_branch(self, session: Session, at: float) -> Session:
        """A sub-agent begins with a part of the context."""
        context = max(int(self.work.branch_context * session.context), self.work.shared)
        child = self.draw.branch(session, context)
        for rank, cache in enumerate(self.caches):
            tail = self._tail(session, rank)
            place = context // self.block - tail.start
            parent = cache.split(tail, place) if 0 < place <= tail.length else tail.parent
            if self.work.branch_shared:
                parent = self._tools(session, rank, child.context)
            self.tails[child.number, rank] = cache.run(parent)
        self._later(at, self._turn(child))
        return child

    def _tools(self, session: Session, rank: int, tokens: int) -> Run:
        """What all sub-agents of a session begin with, of one whose first prompt has so many tokens."""
        key, cache = (session.number, rank), self.caches[rank]
        if key not in self.tools:
            run = self.tools[key] = cache.run(self.roots[rank][session.group])
            run.length = self.work.branch_shared // self.block
            run.marks.append(run.length)
        run, end = self.tools[key], tokens // self.block
        while run.parent is not None and run.start >= end:
            run = run.parent
        return cache.split(run, end - run.start) if run.start < end < run.start + run.length else run

    def _end(self, session: Session, at: float, children: list[Session]) -> None:
        self._forget(session)
        if session.number in self.joins:
            due, turn, left = self.joins.pop(session.number)
            left.remove(session.number)
            if not left:
                self._later(max(due, at), turn)
        if self.rate is None and not session.child:
            self._follow(session, children, at + session.gap[-1], self._turn(self.draw.session()))

    def _forget(self, session: Session) -> None:
        for rank in range(self.data):
            self.tails.pop((session.number, rank), None)
            if session.place >= len(session.new):
                self.tools.pop((session.number, rank), None)
