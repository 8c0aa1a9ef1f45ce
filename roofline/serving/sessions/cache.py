"""A prefix cache of several tiers, simulated: a tree of runs of blocks, with the engine's eviction.

Prompts are paths in a tree whose nodes are runs of blocks: a system prompt, the history of a session, that of its
sub-agent. A request that ends has touched its whole path at one time, so that along a path the time of the last use
never grows, and what is evicted first is always the end of the run that was used longest ago. So one number for each
run and tier says what is cached: how many of its first blocks the tier holds. This is exact for LRU eviction with the
last block of a request first: vLLM's queue of free blocks (vllm/v1/core/block_pool.py), and the leaves of
TensorRT-LLM's tree, where runs of lower `priority` go before others. SGLang evicts the nodes of its radix tree whole
(`whole`; sglang/srt/mem_cache/radix_cache.py): what one request added.

A tier below the first takes what the tier above evicts (write back: a block is in one tier), or a copy of what is
computed (write through: it also holds what the tiers above hold, and its order is that of all uses), which selective
ones take at the second use (sglang/srt/mem_cache/hiradix_cache.py: write_through_threshold).

Layers with a recurrent state or a window go on after a prefix only from a snapshot of them at its end. A request leaves
one at the end of its path, and of each run that it passes, as vLLM does at the ends of prompts and where prefixes part
(`mamba_cache_mode` align) and SGLang at those of its nodes, of which each chunk of a prompt leaves one
(mamba_radix_cache.py, swa_radix_cache.py: cache_unfinished_req). A hit ends at the last snapshot
before the place where the prompt parts from what is cached. An earlier snapshot stays until its time to be evicted has
come, and the last one of a run goes after the blocks of the run.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple


class Level(NamedTuple):
    """A tier of a cache: the blocks that it holds, and how it takes a copy of what is computed.

    It takes this at once (through), when it is used again (selective), or of what the tier above evicts (back); without
    `outputs` only of prompts. One that `refuses` evicts nothing: what finds no room is not written.
    """

    blocks: float
    write: str = "back"
    outputs: bool = True
    refuses: bool = False

    @property
    def through(self) -> bool:
        """Whether it also holds what the tiers above hold."""
        return self.write != "back"


class Run:
    """A run of `length` blocks after all of its `parent`, of which tier i holds those before `held[i]`.

    A tier that writes back has of these only those that no tier above holds. `start` are the blocks before the run,
    `marks` the lengths that it had after each request that made it longer; `pins` counts the running requests that use
    it, and `ends` are the blocks after which each tier has snapshots, in order.
    """

    __slots__ = ("ends", "held", "length", "marks", "parent", "pins", "priority", "serial", "start", "time")

    def __init__(self, serial: int, parent: Run | None, tiers: int, priority: int) -> None:
        self.serial, self.parent, self.priority = serial, parent, priority
        self.start: int = 0 if parent is None else parent.start + parent.length
        self.length: int = 0
        self.pins, self.time = 0, -math.inf
        self.held = [0] * tiers
        self.ends: list[list[int]] = [[] for _ in range(tiers)]
        self.marks: list[int] = []

    def path(self) -> list[Run]:
        """The runs from the root to this one."""
        found: list[Run] = []
        run: Run | None = self
        while run is not None:
            found.append(run)
            run = run.parent
        return found[::-1]


class PrefixCache:
    """The tiers of one replica: the first is the pool of the device, in which running requests pin their paths.

    `used` are the blocks in each tier, `pinned` those of the first that running requests use, and `shared` by how much
    the sum over these requests exceeds it. `stored` counts blocks that came into the cache, `dropped` those that left
    the last tier, `written` those that each tier took. A `snapshot` takes as much as so many blocks (0: a hit needs
    none), in the first tier nothing where they are `apart`, in a pool of their own; a tier has `states` of them. There
    is one after `every` blocks that are computed, too (0: at ends alone).
    """

    def __init__(
        self, levels: Sequence[Level], whole: bool = False, snapshot: float = 0.0, apart: bool = False, every: int = 0
    ) -> None:
        tiers = len(levels)
        self.levels, self.whole = tuple(levels), whole
        self.snapshot, self.every, self.now = snapshot, every, -math.inf
        self.weights = [0.0 if apart else snapshot, *[snapshot] * (tiers - 1)]
        self.states = [0] * tiers
        self._older: list[deque[tuple[float, Run, int]]] = [deque() for _ in range(tiers)]
        self.used, self.written = [0] * tiers, [0.0] * tiers
        self.pinned = self.shared = self.stored = self.dropped = 0
        self._orders: list[list[tuple[int, float, int, int, Run]]] = [[] for _ in range(tiers)]
        self._serial = count()

    def run(self, parent: Run | None = None, priority: int = 0) -> Run:
        """A new run, of no block yet, after all of `parent`."""
        return Run(next(self._serial), parent, len(self.levels), priority)

    def leave(self, blocks: int, now: float) -> None:
        """Put blocks into the first tier that no path finds, such as those of windows that have passed."""
        run = self.run()
        run.length, run.time = blocks, now
        self._hold(run, 0, blocks)
        self._order(run)

    def split(self, run: Run, length: int) -> Run:
        """The first blocks of a run, at most all, as a run of their own that the rest of it follows."""
        first, length = self.run(run.parent, run.priority), min(length, run.length)
        first.length, first.time, first.pins = length, run.time, run.pins
        first.marks = [mark for mark in run.marks if mark < length] + [length]
        first.held = [min(held, length) for held in run.held]
        first.ends = [[place for place in places if place <= length] for places in run.ends]
        run.held = [max(held - length, 0) for held in run.held]
        run.ends = [[place - length for place in places if place > length] for places in run.ends]
        run.marks = [mark - length for mark in run.marks if mark > length]
        run.parent, run.start, run.length = first, run.start + length, run.length - length
        self._order(first)
        self._order(run)
        return first

    def found(self, tail: Run, end: int) -> list[int]:
        """The leading blocks of a path, up to `end` or a snapshot, that each tier has and no tier above it has."""
        hits = usable = [0] * len(self.levels)
        for run in tail.path():
            most = min(run.length, end - run.start)
            covered = min(max(run.held), most)
            if self.snapshot and (place := self._last(run, covered)):
                usable = self._within(run, hits, place)
            hits = self._within(run, hits, covered)
            if covered < most:
                break
        return usable if self.snapshot else hits

    @staticmethod
    def _last(run: Run, covered: int) -> int:
        """The blocks of a run before the last snapshot that some tier has within those `covered`, 0 without one."""
        found = 0
        for places in run.ends:
            place = bisect_right(places, covered)
            found = max(found, places[place - 1] if place else 0)
        return found

    @staticmethod
    def _within(run: Run, hits: list[int], most: int) -> list[int]:
        """The `hits` of each tier, with those of a run whose first `most` blocks are hit."""
        found, here = hits.copy(), 0
        for tier, held in enumerate(run.held):
            if here < min(held, most):
                found[tier] += min(held, most) - here
                here = min(held, most)
        return found

    def pin(self, tail: Run) -> None:
        """Pin a path that a request begins to use."""
        for run in tail.path():
            if run.pins:
                self.shared += run.held[0]
            else:
                self.pinned += run.held[0]
            run.pins += 1
            for tier, level in enumerate(self.levels):
                if level.write == "selective" and run.held[0] > run.held[tier]:
                    self._copy(run, tier, run.held[0])

    def insert(self, tail: Run, end: int, outputs: bool = False) -> None:
        """The first tier has a pinned path up to `end`, which may be of `outputs`: what no tier had is computed."""
        for run in tail.path():
            length = min(max(end - run.start, 0), run.length)
            if run is tail and end - run.start > run.length:
                length = run.length = end - run.start
                run.marks.append(length)
            known = max(run.held)
            if (added := length - run.held[0]) > 0:
                self.stored += max(length - known, 0)
                self.pinned += added
                self.shared += (run.pins - 1) * added
                self._hold(run, 0, length)
            for tier, level in enumerate(self.levels):
                copied = level.write == "through" and (level.outputs or not outputs)
                if tier and copied and length > run.held[tier]:
                    self._copy(run, tier, length)
                if self.snapshot and (not tier or copied) and run.held[tier] >= length:
                    for place in range(known + self.every, length, self.every) if self.every else ():
                        self._mark(run, tier, place)
                    self._mark(run, tier, length)
                elif run.ends[tier] and not level.through:
                    self._unmark(run, tier)  # the first tier has it now

    def _copy(self, run: Run, tier: int, length: int) -> None:
        """A tier takes a copy of a run up to `length`, or what it has room for; with the snapshot at its end."""
        before, length = run.held[tier], min(length, run.held[tier] + self._room(tier))
        self.written[tier] += length - before
        self._hold(run, tier, length)
        if self.levels[tier].write == "selective" and (place := bisect_right(run.ends[0], length)):
            self._mark(run, tier, run.ends[0][place - 1])

    def _room(self, tier: int) -> int:
        """Blocks that a tier takes without an eviction, where it makes none."""
        if not self.levels[tier].refuses:
            return 1 << 60
        return max(int(self.levels[tier].blocks - self.used[tier] - self.weights[tier] * (self.states[tier] + 1)), 0)

    def _mark(self, run: Run, tier: int, place: int) -> None:
        """A tier has a snapshot of a run after so many blocks, and earlier ones until they are evicted."""
        places = run.ends[tier]
        if place > (places[-1] if places else 0):
            if places:
                self._older[tier].append((self.now, run, places[-1]))
            places.append(place)
            self.states[tier] += 1
            self.written[tier] += self.weights[tier]

    def _unmark(self, run: Run, tier: int) -> None:
        self.states[tier] -= len(run.ends[tier])
        run.ends[tier].clear()

    def unpin(self, tail: Run, now: float) -> None:
        """A request has used its path, which may be evicted."""
        self.now = now
        for run in tail.path():
            run.pins -= 1
            run.time = now
            if run.pins:
                self.shared -= run.held[0]
            else:
                self.pinned -= run.held[0]
            self._order(run)
        for tier in range(1, len(self.levels)):
            self.shrink(tier, self.levels[tier].blocks)

    def shrink(self, tier: int, blocks: float, states: float = math.inf) -> None:
        """Evict from a tier until it has so many blocks and snapshots at most, or only pinned ones."""
        order, older, weight = self._orders[tier], self._older[tier], self.weights[tier]
        while (over := self.used[tier] + weight * self.states[tier] - blocks) > 0 or self.states[tier] > states:
            time, run = math.inf, None
            if order:
                _, time, above, _, run = order[0]
                own = self._own(run, tier)
                if not own or time != run.time or above != -run.start or (run.pins and not tier):
                    heappop(order)
                    continue
            if older and older[0][0] <= time and (weight or over <= 0):
                _, earlier, place = older.popleft()
                if place in earlier.ends[tier]:
                    earlier.ends[tier].remove(place)
                    self.states[tier] -= 1
                continue
            if run is None:
                return
            kept = run.held[tier] - (min(own, math.ceil(over)) if over > 0 else own)
            if self.whole and not tier:
                place = bisect_right(run.marks, kept)
                kept = run.marks[place - 1] if place else 0
            self._evict(run, tier, kept)

    def _evict(self, run: Run, tier: int, kept: int) -> None:
        """A tier keeps the first `kept` blocks of a run; the next one takes the others if it writes back."""
        held, below, place = run.held[tier], tier + 1, max(run.ends[tier], default=0)
        self._hold(run, tier, kept)
        if not self._own(run, tier):
            self._unmark(run, tier)
        if below == len(self.levels):
            self.dropped += held - max(kept, *run.held[:tier], 0)
        elif run.marks and not self.levels[below].through:
            self.written[below] += held - kept
            self._hold(run, below, max(run.held[below], held))
            self._mark(run, below, place)
            self._order(run)
            self.shrink(below, self.levels[below].blocks)

    def _own(self, run: Run, tier: int) -> int:
        """The blocks of a run that take room in a tier: without those that tiers above have, where it writes back."""
        if not tier or self.levels[tier].through:
            return run.held[tier]
        return max(run.held[tier] - max(run.held[:tier]), 0)

    def _hold(self, run: Run, tier: int, length: int) -> None:
        """A tier holds a run up to `length`; tiers below it that write back have what is beyond."""
        rows = range(tier, len(self.levels))
        before = [self._own(run, row) for row in rows]
        run.held[tier] = length
        for row, had in zip(rows, before, strict=True):
            self.used[row] += self._own(run, row) - had

    def _order(self, run: Run) -> None:
        """Enter a run in the order of eviction of each tier that has blocks of it, unless the pool has it pinned."""
        for tier, order in enumerate(self._orders):
            if self._own(run, tier) and not (run.pins and not tier):
                heappush(order, (run.priority, run.time, -run.start, run.serial, run))
