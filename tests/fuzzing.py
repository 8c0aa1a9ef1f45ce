"""What the fuzz tests and `make fuzz` share: hostile values, mutated documents, and what must hold for every input."""

from __future__ import annotations

import copy
import datetime
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import yaml

from roofline import RooflineError

Answer = TypeVar("Answer")
Document = dict[str, Any]

HUGE = 10**400
HOSTILE: tuple[Any, ...] = (
    *(None, True, "", "text", "1e999 s", "nan", [], {}, [[1]], {"a": 1}, datetime.date(2026, 1, 1)),
    *(0, -1, HUGE, -HUGE, int("f" * 5000, 16), 1e308, 5e-324, float("inf"), float("-inf"), float("nan"), 0.5, 1e-9),
)


def attempt(read: Callable[[], Answer]) -> Answer | None:
    """The result of `read`, or None if it fails with one short sentence; anything else fails the test."""
    try:
        return read()
    except RooflineError as error:
        message = str(error)
        assert message.isprintable(), ascii(message)
        assert 0 < len(message) < 600, message
        return None


def places(content: object) -> list[tuple[Any, Any]]:
    """Every (container, key) of a document."""
    if not isinstance(content, (dict, list)):
        return []
    keys = list(content) if isinstance(content, dict) else list(range(len(content)))
    return [place for key in keys for place in [(content, key), *places(content[key])]]


def mutants(document: Document, count: int, seed: int = 0) -> Iterator[Document]:
    """Copies of a document with null at every key, then `count` with a random value anywhere."""
    generator, size = random.Random(seed), len(places(document))
    chosen = [(index, None) for index in range(size)][: 2 * count]
    chosen += [(generator.randrange(size), generator.choice(HOSTILE)) for _ in range(count)]
    for index, value in chosen:
        changed = copy.deepcopy(document)
        holder, key = places(changed)[index]
        holder[key] = value
        yield changed


def dumped(content: object, write: Callable[[Any], str] = yaml.safe_dump) -> str:
    """The YAML of a document (or JSON), also of integers that Python usually does not print."""
    before = sys.get_int_max_str_digits()
    try:
        sys.set_int_max_str_digits(0)
        return write(content)
    finally:
        sys.set_int_max_str_digits(before)


def disordered(document: object, place: str = "") -> list[str]:
    """The figures of a JSON document that cannot be true: intervals out of order, or on the wrong side of the bound."""
    found = []
    if isinstance(document, dict):
        for name, value in document.items():
            inside = f"{place}.{name}"
            if isinstance(value, dict) and {"low", "mid", "high"} <= set(value):
                found += [inside] if not value["low"] <= value["mid"] <= value["high"] else []
                bound = _bound(document, name)
                if bound is not None and not ("power" in name or "rate" in name):
                    above = "per_s" in name
                    found += [inside] if (value["high"] > bound if above else value["low"] < bound) else []
            found += disordered(value, inside)
    elif isinstance(document, list):
        for index, value in enumerate(document):
            found += disordered(value, f"{place}.{index}")
    return found


def _bound(document: Document, name: str) -> float | None:
    """The bound beside an expected figure."""
    plain = name.removeprefix("expected_")
    names = ("bound_time_s", "total_s") if name == "expected_time_s" else (plain,) if plain != name else ()
    return next((document[key] for key in names if isinstance(document.get(key), float)), None)
