"""How turns come to replicas, and to data-parallel ranks."""

from __future__ import annotations

from collections.abc import Sequence

SESSION, PREFIX, REQUESTS = ROUTINGS = ("session", "prefix", "requests")
"""Routing: sessions at random to one where they stay (consistent hashing), turns to the one with the longest prefix of
their prompt, or to the one with the fewest requests."""

CROWD = 4
"""Requests by which the one with the longest prefix may be ahead of the one with the fewest."""


def chosen(known: Sequence[int], held: Sequence[int]) -> int:
    """The one that knows most of a prompt, unless it is too crowded: then, and of equals, that with the fewest."""
    best = max(range(len(held)), key=lambda one: (known[one], -held[one]))
    return best if held[best] - min(held) <= CROWD else min(range(len(held)), key=held.__getitem__)
