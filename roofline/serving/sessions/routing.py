"""How turns come to data-parallel ranks."""

SESSION, PREFIX, REQUESTS = ROUTINGS = ("session", "prefix", "requests")
"""Routing to data-parallel ranks: sessions at random to one where they stay (consistent hashing), turns to the one with
the longest prefix of their prompt, or to the one with the fewest requests."""
