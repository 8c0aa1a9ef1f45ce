"""YAML parsing: agrees with PyYAML, but safe, bounded, and with one sentence per problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from roofline.core.documents import MAX_DEPTH, read_mapping
from roofline.core.errors import SpecError, UnknownNameError
from tests.cases import sampled
from tests.paths import ROOT

SPECS = sorted(path for folder in ("hwspecs", "modelspecs") for path in (ROOT / folder).rglob("*.yaml"))

Read = Callable[[str], Any]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False),
    st.dates(),
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=12),
)
contents = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc<=*&?:1 ", max_size=4), inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture
def read(tmp_path: Path) -> Read:
    """Parses a text as a YAML file."""

    def of(text: str) -> Any:
        path = tmp_path / "spec.yaml"
        path.write_text(text, encoding="utf-8")
        return read_mapping(path)

    return of


@pytest.mark.parametrize("path", sampled(SPECS[::7], 16), ids=lambda path: path.stem)
def test_bundled_specs_parse_as_with_pyyaml(path: Path) -> None:
    assert read_mapping(path) == yaml.safe_load(path.read_text(encoding="utf-8"))


@given(content=contents, flow=st.sampled_from([None, True, False]))
def test_pyyaml_output_round_trips(tmp_path_factory: pytest.TempPathFactory, content: Any, flow: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_text(yaml.safe_dump({"content": content}, default_flow_style=flow, allow_unicode=True), encoding="utf-8")
    assert read_mapping(path) == {"content": content}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1:30", "1:30"),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("!!float 5", 5.0),
        ("1_000", 1000),
        ("~", None),
        ("", None),
        ("|\n  two\n  lines\n", "two\nlines\n"),
        ("!!seq [a]", ["a"]),
        ("!!map {a: 1}", {"a": 1}),
    ],
)
def test_scalar_values(read: Read, text: str, value: object) -> None:
    assert read(f"key: {text}") == {"key": value}


def test_aliases_share_the_anchored_value(read: Read) -> None:
    content = read("a: &a {x: &x 5}\nb: *a\nc: [*x, *a]\n")
    assert content == {"a": {"x": 5}, "b": {"x": 5}, "c": [5, {"x": 5}]}
    assert content["a"] is content["b"]


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, "the key 'a' appears twice"),
        ("a: 1\n5: 2\n", 2, "the key '5' is not text"),
        ("a: &a {b: 1}\nc:\n  <<: *a\n", 3, "merge keys"),
        ("a: 1\nb: !!binary aGk=\n", 2, "binary"),
        ("a: 1\nb: !!python/name:os.system\n", 2, "python/name:os.system"),
        ("a: &a\n  b: *a\n", 2, "the alias 'a' is recursive"),
        ("a: [1\n", 2, "']'"),
    ],
)
def test_errors_name_the_line(read: Read, text: str, line: int, problem: str) -> None:
    with pytest.raises(SpecError) as refusal:
        read(text)
    assert f"is not valid YAML (line {line}: " in str(refusal.value)
    assert problem in str(refusal.value)


def test_depth_is_bounded_also_through_aliases(read: Read) -> None:
    def nested(levels: int) -> str:
        return f"a: {'[' * levels}{']' * levels}"

    def chained(levels: int) -> str:
        return "k0: &k0 [1]\n" + "".join(f"k{level}: &k{level} [*k{level - 1}]\n" for level in range(1, levels))

    for make in (nested, chained):
        read(make(MAX_DEPTH - 1))
        with pytest.raises(SpecError, match="nested too deeply"):
            read(make(MAX_DEPTH))


def test_names_in_messages_are_short() -> None:
    message = str(UnknownNameError("source", "a" * 500, ["x" * 500, "y"]))
    assert len(message) < 200
