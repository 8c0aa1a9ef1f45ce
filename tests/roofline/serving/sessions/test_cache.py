"""The simulated prefix cache against a plain LRU of single blocks, and what it conserves."""

from __future__ import annotations

import math
import random
from collections import OrderedDict

import pytest

from roofline.serving.sessions.cache import Level, PrefixCache, Run


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
    for levels in ([Level(40), Level(60)], [Level(40), Level(100, "through")]):
        assert totals[1] < sum(play(levels, seed)[1]) == pytest.approx(totals[3], rel=0.06)


def test_a_tier_without_end_forgets_nothing() -> None:
    cache, hits = play([Level(40), Level(math.inf)], 1)
    _, all_ = play([Level(math.inf)], 1)
    assert sum(hits) == sum(all_)
    assert not cache.dropped


def turn(cache: PrefixCache, tail: Run, end: int, now: float) -> int:
    """The blocks found of a request of `end` blocks, which are all there afterwards."""
    found = sum(cache.found(tail, end))
    cache.pin(tail)
    cache.shrink(0, cache.levels[0].blocks - end + sum(run.held[0] for run in tail.path()))
    cache.insert(tail, end)
    cache.unpin(tail, now)
    cache.shrink(0, cache.levels[0].blocks)
    return found


def test_a_hit_ends_at_a_snapshot_and_needs_all_blocks_before() -> None:
    cache = PrefixCache([Level(30)], snapshot=4)
    one, other = cache.run(), cache.run()
    assert turn(cache, one, 10, 0.0) == 0
    assert cache.found(one, 9) == [0]  # within the prompt there is none
    assert turn(cache, one, 12, 1.0) == 10
    assert (cache.used, cache.states) == ([12], [2])  # the older one stays
    assert turn(cache, other, 10, 2.0) == 0
    assert (cache.used, cache.states) == ([22], [2])  # and goes first
    assert turn(cache, other, 11, 3.0) == 10
    assert cache.used[0] + 4 * cache.states[0] <= 30
    assert turn(cache, one, 13, 4.0) == 0  # its last blocks are gone, so the others are of no use


def test_chunks_of_a_prompt_leave_snapshots() -> None:
    """A prompt that parts from another one goes on from the last chunk before; what is found is not marked again."""
    cache = PrefixCache([Level(math.inf)], snapshot=4, every=4)
    one = cache.run()
    turn(cache, one, 10, 0.0)
    assert [sum(cache.found(one, end)) for end in (3, 7, 9, 10)] == [0, 4, 8, 10]
    turn(cache, one, 19, 1.0)
    assert [sum(cache.found(one, end)) for end in (13, 17, 18, 19)] == [10, 14, 18, 19]
    assert cache.states == [6]


def test_an_earlier_snapshot_is_a_fallback_until_it_is_evicted() -> None:
    cache = PrefixCache([Level(40)], snapshot=4)
    one, other = cache.run(), cache.run()
    for now, end in enumerate((10, 12, 14)):
        turn(cache, one, end, float(now))
    assert [sum(cache.found(one, end)) for end in (9, 11, 13, 14)] == [0, 10, 12, 14]
    turn(cache, other, 12, 3.0)  # 26 blocks and two snapshots leave room for one more: the oldest goes
    assert [sum(cache.found(one, end)) for end in (11, 13, 14)] == [0, 12, 14]


def test_a_pool_of_snapshots_alone_limits_their_number() -> None:
    cache = PrefixCache([Level(1000)], snapshot=4, apart=True)
    runs = [cache.run() for _ in range(5)]
    for now, run in enumerate(runs):
        turn(cache, run, 10, float(now))
    cache.shrink(0, 1000, 3)
    assert cache.states == [3]
    assert [sum(cache.found(run, 10)) for run in runs] == [0, 0, 10, 10, 10]


def test_what_is_evicted_is_found_in_the_next_tier_with_its_snapshot() -> None:
    for write in ("back", "through"):
        cache = PrefixCache([Level(15), Level(100, write)], snapshot=3)
        one, other = cache.run(), cache.run()
        turn(cache, one, 10, 0.0)
        turn(cache, other, 10, 1.0)
        assert sum(cache.found(one, 10)) == 10
        assert cache.found(one, 10)[1] > 0


def test_runs_that_part_leave_a_snapshot_where_they_do() -> None:
    cache = PrefixCache([Level(math.inf)], snapshot=2)
    one = cache.run()
    turn(cache, one, 10, 0.0)
    first = cache.split(one, 6)
    assert turn(cache, cache.run(first), 9, 1.0) == 0  # there was none
    assert turn(cache, cache.run(first), 8, 2.0) == 6
