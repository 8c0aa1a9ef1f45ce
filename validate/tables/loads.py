"""The load of a benchmark as text: the column `batch` of whole-model rows that were measured on a server.

A number is a static batch. `closed loop 8` has 8 requests in flight, `open loop 4 req/s` a rate of Poisson arrivals,
and `all 1000 requests at once` is offline. The first two may end with a remark: `closed loop 8; 80 requests` says how
many were sent, others are not read.
"""

from __future__ import annotations

import re

from roofline.core.errors import quote
from roofline.serving.load import Load
from roofline.validate.tables.names import Unmapped

REQUESTS = 500
"""Requests of a benchmark at a rate that does not say how many it sent. At an infinite one of TensorRT-LLM's documents,
more would take its prompts at over 90% of the peak of an H100; at 2 to 16 requests/s, its throughput over the offered
one says 400 to 900 with outputs of 256 tokens."""

ROUNDS = 10.0
"""Requests over the concurrency of a benchmark that does not say how many it sent."""

CLOSED = re.compile(r"closed loop (\d{1,7})(?:; (\d{1,9}) requests)?(?:;.*)?")
OPEN = re.compile(r"open loop (\d+(?:\.\d+)?|INF) req/s(?:;.*)?")
OFFLINE = re.compile(r"all (\d{1,9}) requests at once")


def closed_loop(concurrency: int, requests: int | None = None) -> str:
    """The text of a fixed number of requests in flight."""
    return f"closed loop {concurrency}" + (f"; {requests} requests" if requests else "")


def benchmark_load(rate: float | None, concurrency: int | None, requests: int | None) -> str:
    """The text of a benchmark with a rate (None: infinite) and a limit of requests in flight (None: none).

    A benchmark with both is neither loop, and its text says so.
    """
    if rate is not None:
        return f"open loop {rate:g} req/s" + (f" with at most {concurrency} in flight" if concurrency else "")
    if concurrency is not None:
        return closed_loop(concurrency, requests)
    return f"all {requests} requests at once" if requests else "open loop INF req/s"


def is_load(text: str) -> bool:
    """Whether the text of a column `batch` is a load, not a static batch."""
    return text.startswith(("closed loop", "open loop", "all "))


def parse_load(text: str, prompt: float, output: float) -> Load:
    """The load of a text with mean lengths in tokens; raises Unmapped for a text that is none."""
    if found := CLOSED.fullmatch(text):
        concurrency = int(found[1])
        rounds = max(int(found[2]) / concurrency, 1.0) if found[2] and concurrency else ROUNDS
        return Load(prompt, output, concurrency=concurrency, rounds=rounds)
    if (found := OPEN.fullmatch(text)) and found[1] != "INF":
        return Load(prompt, output, rate=float(found[1]))
    if found or (found := OFFLINE.fullmatch(text)):
        return Load(prompt, output, offline=REQUESTS if found[1] == "INF" else int(found[1]))
    raise Unmapped(f"the load is not that of a closed loop, an open loop or offline ({quote(text)})")
