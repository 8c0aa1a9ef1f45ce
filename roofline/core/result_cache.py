"""A thread-safe LRU cache for results whose keys include arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

MAX_CACHED_VALUES = 2048
"""Results of more values than this are not cached: they belong to sweeps, which do not repeat a point."""

Value = TypeVar("Value")


class LruCache(Generic[Value]):
    """At most `capacity` values; the least recently used one is evicted."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable) -> Value | None:
        """The value of `key`, or None if it is not cached."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def put(self, key: Hashable, value: Value) -> None:
        """Cache a value; evict the least recently used one if the cache is full."""
        with self._lock:
            self._values[key] = value
            if len(self._values) > self.capacity:
                self._values.popitem(last=False)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        self._values.clear()
