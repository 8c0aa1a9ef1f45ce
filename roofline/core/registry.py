"""What a user's module adds to the program, and the caches that depend on it.

>>> shapes = Registry("shape", {"square": 4})
>>> with shapes.add("triangle", 3, sources=()):
...     sorted(shapes)
['square', 'triangle']
>>> "triangle" in shapes
False
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import lru_cache
from typing import Generic, NamedTuple, ParamSpec, TypeVar, cast

from roofline.core.errors import RooflineError, quote

Value = TypeVar("Value")
P = ParamSpec("P")
T = TypeVar("T")

_REGISTRIES: list[Registry[object]] = []
_CACHES: list[Callable[[], None]] = []


class Registration(ExitStack):
    """Something that was registered, until `undo` or, for a context manager, until the end of its block."""

    def undo(self) -> None:
        """Take it back: what it replaced holds again. A second call has no effect."""
        self.close()


class _Added(NamedTuple):
    name: str
    value: object
    digest: str


class Registry(Mapping[str, Value], Generic[Value]):
    """Values by name: the shipped ones, and those that were added, of which the last one of a name counts."""

    def __init__(self, what: str, shipped: Mapping[str, Value]) -> None:
        self.what, self.shipped = what, shipped
        self._added: list[_Added] = []
        self._all = dict(shipped)
        _REGISTRIES.append(cast(Registry[object], self))

    def add(self, name: str, value: Value, sources: Iterable[object], replace: bool = False) -> Registration:
        """Add a value that is made of functions, its `sources`.

        Raises RooflineError for a taken name, unless it is to `replace` what has it.
        """
        if not replace and name in self._all:
            raise RooflineError(f"the {self.what} {quote(name)} exists already; replace=True replaces it")
        entry = _Added(name, value, _digest(f"{self.what} {name}", *map(_text, sources)))
        self._added.append(entry)
        self._update()

        def undo() -> None:
            self._added = [other for other in self._added if other is not entry]
            self._update()

        registration = Registration()
        registration.callback(undo)
        return registration

    def digests(self) -> Iterator[str]:
        return (entry.digest for entry in self._added)

    def _update(self) -> None:
        self._all = {**self.shipped, **{entry.name: cast(Value, entry.value) for entry in self._added}}
        for clear in _CACHES:
            clear()

    def __getitem__(self, name: str) -> Value:
        return self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


def cached(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """`functools.lru_cache` of what depends on registries: whatever is added to one or taken back empties it."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        found = lru_cache(maxsize)(function)
        _CACHES.append(found.cache_clear)
        return cast(Callable[P, T], found)

    return decorate


def registered() -> str:
    """A digest of everything that was added, for keys of stored results; "" without any.

    It is equal in processes that add the same functions from files of the same text. A function without a file, or
    with values of a function around it, differs from those of every other process.
    """
    found = [digest for registry in _REGISTRIES for digest in registry.digests()]
    return _digest(*found) if found else ""


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def _text(source: object) -> str:
    """A text that changes with a source: of a function its name and its file, of a value that is none its own."""
    if not callable(source):
        return repr(source)
    if inspect.isfunction(source) and source.__closure__ is None:
        with suppress(OSError):
            return "".join((source.__qualname__, *inspect.findsource(source)[0]))
    return os.urandom(16).hex()
