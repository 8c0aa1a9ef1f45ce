"""Versions of software: their order, and the nearest one of those that are known."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import total_ordering

from roofline.core.errors import RooflineError, quote

NEAR = 2
"""Minor releases between versions that count as near."""

_STAGES = ("dev", "a", "b", "rc", "", "post")
"""Suffixes in the order of PEP 440: development, alpha, beta, release candidate, the release itself, post-release."""

_RELEASE = _STAGES.index(""), 0
_SUFFIX = re.compile(r"[.\-_]?(dev|a|b|rc|post)[.\-_]?(\d{0,9})")
_FORM = re.compile(rf"[vb]?(\d{{1,9}}(?:\.\d{{1,9}})*)((?:{_SUFFIX.pattern})*)(?:\+[a-z0-9.]+)?", re.ASCII)


@total_ordering
class Version:
    """A version such as `0.11`, `v1.2.0rc5` or `b4000`; raises RooflineError for a text that is none.

    Versions compare by their numbers, then by their suffix (PEP 440): 0.9 < 0.10 < 0.11.1, 1.2.0rc5 < 1.2.0 = 1.2. A
    local part (`+cu128`) does not count.

    >>> sorted(map(Version, ("0.10", "1.2.0", "0.9", "1.2.0rc5")))
    [Version('0.9'), Version('0.10'), Version('1.2.0rc5'), Version('1.2.0')]
    """

    __slots__ = ("_order", "text")

    def __init__(self, text: str) -> None:
        found = _FORM.fullmatch(text.strip().lower())
        if found is None:
            raise RooflineError(f"{quote(text)} is not a version; write it like 0.11 or 1.2.0rc5")
        self.text = text.strip().lower().removeprefix("v")
        numbers = [int(number) for number in found[1].split(".")]
        while numbers and not numbers[-1]:
            numbers.pop()
        suffixes = [(_STAGES.index(stage), int(number or 0)) for stage, number in _SUFFIX.findall(found[2])]
        self._order = (tuple(numbers), (*suffixes, _RELEASE))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Version) and self._order == other._order

    def __lt__(self, other: Version) -> bool:
        return self._order < other._order

    def is_far(self, other: Version) -> bool:
        """Whether they are more than `NEAR` minor releases apart, or differ in the first number.

        >>> Version("0.24").is_far(Version("0.22.1")), Version("0.8.3").is_far(Version("0.14"))
        (False, True)
        """
        return self.apart(other) > (0, NEAR)

    def apart(self, other: Version) -> tuple[int, int]:
        """The difference of their first numbers, and of their minor releases where these are equal.

        >>> Version("0.19").apart(Version("0.22.1")), Version("0.19").apart(Version("1.0"))
        ((0, 3), (1, 0))
        """
        (first, minor), (of_other, minor_of_other) = ((*one._order[0], 0, 0)[:2] for one in (self, other))
        return abs(first - of_other), abs(minor - minor_of_other) if first == of_other else 0

    def __hash__(self) -> int:
        return hash(self._order)

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"Version({self.text!r})"


def between(version: str, since: str, before: str) -> bool:
    """Whether a version is `since` or newer, and older than `before`; "" is no limit.

    >>> between("0.11", "0.11", "0.15"), between("0.15", "0.11", "0.15"), between("0.9", "", "")
    (True, False, True)
    """
    older = not before or Version(version) < Version(before)
    return older and (not since or Version(version) >= Version(since))


def nearest(version: Version, known: Iterable[Version]) -> Version:
    """The latest of the `known` versions that is not newer, else the oldest; raises ValueError if none is known.

    >>> nearest(Version("0.11"), [Version("0.14"), Version("0.8"), Version("0.4")])
    Version('0.8')
    """
    ordered = sorted(known)
    return max((one for one in ordered if one <= version), default=min(ordered))


def closest(version: Version, known: Iterable[Version]) -> Version:
    """The `nearest` of the `known` versions that are the fewest minor releases apart; raises ValueError without any.

    >>> closest(Version("0.19"), [Version("0.14"), Version("0.22"), Version("0.24")])
    Version('0.22')
    """
    found = list(known)
    least = min(version.apart(one) for one in found)
    return nearest(version, (one for one in found if version.apart(one) == least))
