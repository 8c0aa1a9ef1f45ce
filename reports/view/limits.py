"""What each client of a shared page may take: requests at once, and seconds of work and bytes, which come back."""

from __future__ import annotations

import asyncio
import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct, field

from roofline.core.errors import RooflineError

AT_ONCE, RUNNING = 12, 2
"""Requests of a client that may wait, and that may run: a page asks for about six at a time."""

WORK, WORK_RATE = 60.0, 0.5
"""Seconds of work of a client at first, and those that come back each second."""

BYTES, BYTES_RATE = 64 << 20, 256 << 10
"""Bytes that a client may send at first, and those that come back each second."""

CLIENTS = 10_000
"""Clients that are remembered; the one that was seen longest ago is forgotten first."""


class TooMuchError(RooflineError):
    """More than a client, or all of them, may have; `wait` are the seconds after which it may ask again."""

    def __init__(self, message: str, status: int, wait: float) -> None:
        super().__init__(message)
        self.status, self.wait = status, max(1, math.ceil(wait))


class Budget:
    """An amount that is taken, may be overdrawn once, and comes back with time."""

    def __init__(self, most: float, rate: float) -> None:
        self.most, self.rate, self._left, self._seen = most, rate, most, time.monotonic()

    @property
    def left(self) -> float:
        now = time.monotonic()
        self._left = min(self.most, self._left + self.rate * (now - self._seen))
        self._seen = now
        return self._left

    def take(self, amount: float) -> None:
        """Take an amount, also one that is not left."""
        self._left = self.left - amount


class Client:
    """What a client has taken."""

    def __init__(self) -> None:
        self.work, self.sent = Budget(WORK, WORK_RATE), Budget(BYTES, BYTES_RATE)
        self.turn = asyncio.Semaphore(RUNNING)
        self.asked = 0

    @contextmanager
    def asking(self, length: int) -> Iterator[None]:
        """Within the block a request of so many bytes is under way. Raises TooMuchError."""
        if self.asked >= AT_ONCE:
            raise TooMuchError(f"{AT_ONCE} questions of yours are being answered: ask again", 429, 1)
        for budget, what in ((self.work, "work"), (self.sent, "bytes")):
            if budget.left <= 0:
                wait = (1 - budget.left) / budget.rate
                raise TooMuchError(f"your share of {what} is used up for {max(1, math.ceil(wait))} s", 429, wait)
        self.sent.take(length)
        self.asked += 1
        try:
            yield
        finally:
            self.asked -= 1


class Clients(Struct):
    """Clients by address; all of an IPv6 network of 64 bits are one."""

    known: OrderedDict[str, Client] = field(default_factory=OrderedDict)

    def of(self, address: str) -> Client:
        key = _network(address)
        found = self.known.setdefault(key, Client())
        self.known.move_to_end(key)
        while len(self.known) > CLIENTS:
            self.known.popitem(last=False)
        return found


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return ""
    if found.version == 4:
        return str(found)
    return str(ipaddress.ip_network((found.packed, 64), strict=False))
