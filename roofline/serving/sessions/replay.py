"""Requests of a trace with block hashes through a prefix cache: the hit rate over its size."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

from roofline.serving.sessions.cache import PrefixCache, Run


def replay(requests: Iterable[Sequence[Hashable]], cache: PrefixCache) -> list[int]:
    """The leading blocks of each request that some tier has, one request after the other.

    A request is the list of its blocks' hashes, each of which stands for all blocks before it as well.
    """
    tree = _Tree(cache)
    return [tree.request(list(hashes)) for hashes in requests]


class _Tree:
    """The runs of a cache by the hashes of their blocks."""

    def __init__(self, cache: PrefixCache) -> None:
        self.cache, self.now = cache, 0
        self.hashes: dict[int, list[Hashable]] = {}
        self.next: dict[tuple[int | None, Hashable], Run] = {}

    def request(self, hashes: list[Hashable]) -> int:
        """The blocks found; afterwards all are cached."""
        if not hashes:
            return 0
        cache, tail = self.cache, self._path(hashes)
        self.now += 1
        end = len(hashes)
        known = sum(cache.found(tail, end))
        cache.pin(tail)
        resident = sum(run.held[0] for run in tail.path())
        cache.shrink(0, max(cache.levels[0].blocks - (end - resident), 0))
        cache.insert(tail, end)
        cache.unpin(tail, float(self.now))
        return known

    def _path(self, hashes: list[Hashable]) -> Run:
        """The run at whose end a request ends: a known one, divided where they part, and a new one for the rest."""
        parent: Run | None = None
        place = 0
        while place < len(hashes):
            key = None if parent is None else parent.serial, hashes[place]
            run = self.next.get(key)
            if run is None:
                run = self.cache.run(parent)
                self.hashes[run.serial] = hashes[place:]
                self.next[key] = run
                return run
            own = self.hashes[run.serial]
            part = hashes[place : place + len(own)]
            common = len(own)
            if own != part:
                common = next(
                    (at for at, (one, two) in enumerate(zip(own, part, strict=False)) if one != two), len(part)
                )
            if common < len(own):
                first = self.cache.split(run, common)
                self.hashes[first.serial], self.hashes[run.serial] = own[:common], own[common:]
                self.next[key] = first
                self.next[first.serial, own[common]] = run
                run = first
            parent, place = run, place + common
        assert parent is not None
        return parent
