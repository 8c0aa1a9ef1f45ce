"""The largest numbers that are accepted, wherever they come from."""

MAX_LENGTH = 10**9
"""Tokens of a sequence."""

MAX_BATCH = 10**7
"""Sequences of a batch."""

MAX_DEVICES = 10**6
"""Devices of a degree of parallelism, and nodes."""

MAX_CONCURRENCY = 10**6
"""Requests in flight."""

MAX_RATE = 1e6
"""Requests/s that arrive."""

LEAST_PRICE, MAX_PRICE = 1e-4, 1e6
"""USD per device hour."""
