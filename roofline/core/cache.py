"""What was worked out lately, by what it depends on: for answers whose questions hold arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Generic, TypeVar

SMALL = 2048
"""Numbers that an answer has at most for it to be kept; a larger one is of a sweep, which asks nothing twice."""

Value = TypeVar("Value")


class Remembered(Generic[Value]):
    """The values that were asked for last, at most `most`; threads may share it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Hashable) -> Value | None:
        """The value of `key`; None where it is not known any more, or never was."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
            return found

    def keep(self, key: Hashable, value: Value) -> None:
        """Keeps a value, in the place of the one that was not asked for longest."""
        with self._lock:
            self._values[key] = value
            if len(self._values) > self.most:
                self._values.popitem(last=False)

    def __len__(self) -> int:
        return len(self._values)

    def clear(self) -> None:
        """Forgets everything."""
        self._values.clear()
