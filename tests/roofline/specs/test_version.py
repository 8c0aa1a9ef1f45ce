"""Versions: their order and the nearest one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version as Pep440

from roofline.core.errors import RooflineError
from roofline.specs.version import Version, nearest

_numbers = st.lists(st.integers(0, 30), min_size=1, max_size=4).map(lambda numbers: ".".join(map(str, numbers)))
_suffixes = st.sampled_from(("", "rc1", "rc10", "a2", "b1", ".dev3", ".post1", "rc2.dev7", "+cu128"))
TEXTS = st.builds("{}{}".format, _numbers, _suffixes)


@given(TEXTS, TEXTS)
def test_the_order_is_that_of_pep_440(first: str, second: str) -> None:
    ours, theirs = (Version(first), Version(second)), tuple(Pep440(text.split("+")[0]) for text in (first, second))
    assert (ours[0] < ours[1], ours[0] == ours[1]) == (theirs[0] < theirs[1], theirs[0] == theirs[1])
    if ours[0] == ours[1]:
        assert hash(ours[0]) == hash(ours[1])


@pytest.mark.parametrize(
    ("text", "shown"), [("v0.11", "0.11"), (" 1.2.0RC5 ", "1.2.0rc5"), ("0.8.3dev", "0.8.3dev"), ("b4000", "b4000")]
)
def test_the_forms_of_projects(text: str, shown: str) -> None:
    assert str(Version(text)) == shown


@pytest.mark.parametrize("text", ["", "foo", "latest", "1..2", "0.11 beta", "1.2rc5x", "-1", "٣", "9" * 5000, "1\n2"])
def test_nonsense_is_no_version(text: str) -> None:
    with pytest.raises(RooflineError, match=r"is not a version; write it like 0\.11 or 1\.2\.0rc5") as caught:
        Version(text)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("asked", "found"), [("0.4", "0.4"), ("0.7.3", "0.4"), ("0.13.9", "0.8"), ("0.14.0rc1", "0.8"), ("9", "0.14")]
)
def test_the_nearest_is_the_latest_that_is_not_newer(asked: str, found: str) -> None:
    assert nearest(Version(asked), map(Version, ("0.14", "0.4", "0.8"))) == Version(found)


def test_older_than_all_is_the_oldest() -> None:
    assert nearest(Version("0.1"), map(Version, ("0.14", "0.4"))).text == "0.4"
