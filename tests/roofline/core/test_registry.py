"""Registries: which value of a name counts, and what their caches and digests follow."""

from __future__ import annotations

import pytest

from roofline.core.errors import RooflineError
from roofline.core.registry import Registry, cached, registered


def test_the_last_one_of_a_name_counts_in_whatever_order_they_are_undone() -> None:
    numbers = Registry("number", {"one": 1})
    first = numbers.add("two", 2, ())
    second = numbers.add("two", 22, (), replace=True)
    third = numbers.add("one", 11, (), replace=True)
    assert dict(numbers) == {"one": 11, "two": 22}
    first.undo()
    assert numbers["two"] == 22
    third.undo()
    third.undo()
    second.undo()
    assert dict(numbers) == {"one": 1}


def test_a_taken_name_is_refused() -> None:
    numbers = Registry("number", {"one": 1})
    with pytest.raises(RooflineError, match=r"^the number 'one' exists already; replace=True replaces it$"):
        numbers.add("one", 0, ())


def test_caches_are_emptied_by_what_is_added_and_undone() -> None:
    numbers = Registry("number", {"one": 1})

    @cached(maxsize=4)
    def doubled(name: str) -> int:
        return 2 * numbers[name]

    assert doubled("one") == 2
    with numbers.add("one", 5, (), replace=True):
        assert doubled("one") == 10
    assert doubled("one") == 2


def one() -> int:
    return 1


def other() -> int:
    return 2


def test_the_digest_follows_names_and_functions() -> None:
    numbers = Registry("number", {"one": 1})
    plain, found = registered(), []
    for name, source in (("a", one), ("a", one), ("a", other), ("b", one), ("a", 3), ("a", lambda: plain)):
        with numbers.add(name, 1, (source,)):
            found.append(registered())
    assert found[0] == found[1]
    assert len({plain, *found}) == 6
    assert registered() == plain
