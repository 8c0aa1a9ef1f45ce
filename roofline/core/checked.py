"""Values that are checked where they are made: the annotations of a type say what its fields may hold.

A file is converted by the same annotations, so that a value that YAML would refuse cannot be made in Python either.

>>> from typing import Annotated
>>> from msgspec import Meta
>>> class Link(Checked, frozen=True):
...     bandwidth: Annotated[float, Meta(gt=0)]
...     devices: Annotated[int, Meta(ge=2)] | None = None
>>> Link(9e11, 8).devices
8
>>> Link(-1.0)
Traceback (most recent call last):
...
roofline.core.errors.RooflineError: bandwidth of Link must be a number above 0, got -1.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import fields, force_setattr

from roofline.core.errors import RooflineError, quote

Positive = Annotated[float, Meta(gt=0)]
"""A number above 0."""

NotNegative = Annotated[float, Meta(ge=0)]
"""A number of at least 0."""

Fraction = Annotated[float, Meta(ge=0, le=1)]
"""A number from 0 to 1."""

Share = Annotated[float, Meta(gt=0, le=1)]
"""A number above 0, at most 1."""

Count = Annotated[int, Meta(ge=1)]
"""A whole number of at least 1."""


class Checked(Struct, frozen=True):
    """A Struct whose fields hold what their annotations allow; raises RooflineError for others.

    Numbers are finite, and of Python or NumPy; a field annotated with Any, or with one of several classes, is not
    checked. A class with a check of its own calls this one first.
    """

    def __post_init__(self) -> None:
        for name, allowed, wanted, default in _rules(type(self)):
            value = getattr(self, name)
            if value is not default and not allowed(value):
                raise RooflineError(f"{name} of {type(self).__name__} must be {wanted}, got {_shown(value)}")
            if type(value) is dict:  # one object of a name serves the whole process
                force_setattr(self, name, MappingProxyType(value))


Rule = tuple[Callable[[Any], bool], str]
"""Whether a value is allowed, and what is allowed in words."""


@lru_cache(maxsize=256)
def _rules(kind: type[Struct]) -> tuple[tuple[str, Callable[[Any], bool], str, object], ...]:
    hints, found = get_type_hints(kind, include_extras=True), fields(kind)
    rules = ((each, _rule(hints[each.name])) for each in found)
    return tuple((each.name, *rule, each.default) for each, rule in rules if rule is not None)


def _rule(hint: Any, bounds: Meta | None = None) -> Rule | None:
    """What a type allows, within the bounds of its annotation; None for a type that is not checked."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _rule(parts[0], next((part for part in parts[1:] if isinstance(part, Meta)), bounds))
    if origin in (Union, UnionType):
        found = [_rule(part) for part in parts if part is not type(None)]
        if len(found) != 1 or found[0] is None:
            return None
        allowed, wanted = found[0]
        return (lambda value: value is None or allowed(value)), f"{wanted}, or None"
    if origin is Literal:
        return (lambda value: value in parts), " or ".join(map(repr, parts))
    if origin is Mapping:
        if (inner := _rule(parts[1])) is None:
            return None
        each, wanted = inner
        return (lambda value: isinstance(value, Mapping) and all(map(each, value.values()))), f"a mapping to {wanted}"
    if hint is bool:
        return (lambda value: isinstance(value, (bool, np.bool_))), "True or False"
    if hint is float:
        return _numbers(bounds or Meta(), (int, float, np.integer, np.floating), "a number")
    if hint is int:
        return _numbers(bounds or Meta(), (int, np.integer), "a whole number")
    if isinstance(hint, type) and hint not in (Any, object):
        return (lambda value: isinstance(value, hint)), _WORDS.get(hint, f"of type {hint.__name__}")
    return None


_WORDS: Mapping[type, str] = {str: "a text", Mapping: "a mapping"}


T = TypeVar("T")


def object_of(given: object, kind: type[T] | tuple[type[T], ...], needed: str) -> T:
    """An object of a kind. Raises RooflineError for another one, with what is needed in words."""
    if isinstance(given, kind):
        return given
    shown = quote(given) if given is None or isinstance(given, (str, int, float)) else quote(type(given).__name__)
    raise RooflineError(f"{needed}, got {shown}")


def expect(value: object, kind: type, name: str) -> None:
    """Raise RooflineError for a value of another kind than `name` takes."""
    object_of(value, kind, f"{name} takes {_WORDS.get(kind, f'a {kind.__name__}')}")


def _numbers(bounds: Meta, types: Any, noun: str) -> Rule:
    """Finite numbers of these types within bounds; True and False are no numbers."""
    least, most = _or(bounds.ge, -math.inf), _or(bounds.le, math.inf)
    above, below = _or(bounds.gt, -math.inf), _or(bounds.lt, math.inf)

    def allowed(value: Any) -> bool:
        if type(value) is bool or not isinstance(value, types):
            return False
        number = float(value)
        return least <= number <= most and above < number < below

    limits = (("above", bounds.gt), ("of at least", bounds.ge), ("below", bounds.lt), ("at most", bounds.le))
    return allowed, " and ".join((" ".join((noun, *_words(limits[:2]))), *_words(limits[2:])))


def _or(bound: Any, otherwise: float) -> float:
    """A bound, or another number where there is none."""
    return otherwise if bound is None else float(bound)


def _words(limits: Iterable[tuple[str, Any]]) -> Iterator[str]:
    return (f"{word} {bound:g}" for word, bound in limits if bound is not None)


def _shown(value: object) -> str:
    """A value in a message: a number as it is, any other in quotes and not at length."""
    return repr(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else quote(str(value))
