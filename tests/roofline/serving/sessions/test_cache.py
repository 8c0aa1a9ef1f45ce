"""The simulated prefix cache against a plain LRU of single blocks, and what it conserves."""

from __future__ import annotations

import math
import random
from collections import OrderedDict

import pytest

from roofline.serving.sessions.cache import Level, PrefixCache


class Blocks:
    """A list of single blocks, the last of a request before the others: what vLLM's queue does."""

    def __init__(self, size: int) -> None:
        self.size, self.order = size, OrderedDict[tuple[int, int], None]()

    def request(self, session: int, length: int, more: int) -> int:
        hits = 0
        while hits < length and (session, hits) in self.order:
            hits += 1
        blocks = [(session, place) for place in range(length + more)]
        for block in blocks:
            self.order.pop(block, None)
        while len(self.order) + len(blocks) > self.size:
            self.order.popitem(last=False)
        self.order.update(dict.fromkeys(reversed(blocks)))
        return hits


@pytest.mark.parametrize("size", [30, 60, 120, 10**6])
def test_runs_are_evicted_as_single_blocks_are(size: int) -> None:
    draw, blocks, cache = random.Random(size), Blocks(size), PrefixCache([Level(size)])
    runs = [cache.run() for _ in range(8)]
    for now in range(400):
        session, more = draw.randrange(8), draw.randrange(3)
        run = runs[session]
        if run.length > 20:
            run = runs[session] = cache.run()
            blocks.order = OrderedDict(
                (key if key[0] != session else (now + 10**6, key[1]), None) for key in blocks.order
            )
        length = run.length
        (hits,) = cache.found(run, length)
        cache.pin(run)
        cache.shrink(0, size - (length + more) + run.held[0])
        cache.insert(run, length + more)
        cache.unpin(run, float(now))
        assert hits == blocks.request(session, length, more)
        assert cache.used[0] == len(blocks.order)


def play(levels: list[Level], seed: int, whole: bool = False) -> tuple[PrefixCache, list[int]]:
    """Sessions with a shared prefix and branches, at random."""
    draw, cache = random.Random(seed), PrefixCache(levels, whole)
    shared = cache.run()
    tails = [cache.run(shared) for _ in range(6)]
    hits = [0] * len(levels)
    for now in range(300):
        place = draw.randrange(len(tails))
        tail = tails[place]
        end = max(tail.start, 4) + tail.length
        found = cache.found(tail, end)
        hits = [one + other for one, other in zip(hits, found, strict=True)]
        cache.pin(tail)
        end += draw.randrange(4)
        cache.shrink(0, max(levels[0].blocks - end + sum(run.held[0] for run in tail.path()), 0))
        if not shared.length:
            cache.insert(shared, 4)
            for each in tails:
                each.start = 4
        cache.insert(tail, max(end, 4))
        cache.unpin(tail, float(now))
        if draw.random() < 0.1 and tail.length > 2:
            tails[draw.randrange(len(tails))] = cache.run(cache.split(tail, tail.length // 2))
    return cache, hits


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("whole", [False, True])
def test_blocks_are_conserved(seed: int, whole: bool) -> None:
    cache, _ = play([Level(40), Level(30), Level(50)], seed, whole)
    assert cache.stored == sum(cache.used) + cache.dropped
    assert cache.pinned == cache.shared == 0
    assert all(used <= level.blocks for used, level in zip(cache.used[1:], cache.levels[1:], strict=True))


@pytest.mark.parametrize("seed", range(4))
def test_hits_grow_with_the_pool_and_with_a_tier(seed: int) -> None:
    totals = [sum(play([Level(size)], seed)[1]) for size in (30, 40, 60, 100, 300)]
    assert totals == sorted(totals)
    # Two tiers have what one of both sizes has, but for what moves between them while a request runs.
    for levels in ([Level(40), Level(60)], [Level(40), Level(100, through=True)]):
        assert totals[1] < sum(play(levels, seed)[1]) == pytest.approx(totals[3], rel=0.06)


def test_a_tier_without_end_forgets_nothing() -> None:
    cache, hits = play([Level(40), Level(math.inf)], 1)
    _, all_ = play([Level(math.inf)], 1)
    assert sum(hits) == sum(all_)
    assert not cache.dropped
