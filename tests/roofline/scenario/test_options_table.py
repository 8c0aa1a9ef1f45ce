"""The tables of options (YAML) and the keywords with their types are of the same options."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from roofline.core.options import Kind, Option
from roofline.scenario.options import OPTIONS
from roofline.scenario.options.keywords import Options
from roofline.scenario.question import OBJECTS
from roofline.serving.options import LOAD_OPTIONS, LoadOptions
from roofline.serving.sessions.options import SESSION_OPTIONS, SessionOptions
from roofline.serving.sessions.profiles import PROFILES

TABLE = Path(sys.modules["roofline.scenario.options"].__file__ or "").with_name("options.yaml")
TYPES = {Kind.INTEGER: "int", Kind.NUMBER: "float", Kind.SWITCH: "bool", Kind.TIME: "float", Kind.LIST: "list[str]"}
ROWS = [
    (option, keywords)
    for table, keywords in ((OPTIONS, Options), (LOAD_OPTIONS, LoadOptions), (SESSION_OPTIONS, SessionOptions))
    for option in table.values()
]


@pytest.mark.parametrize(
    ("table", "keywords", "objects"),
    [
        (OPTIONS, Options, OBJECTS.keys() - {"drawn"}),
        (LOAD_OPTIONS, LoadOptions, set()),
        (SESSION_OPTIONS, SessionOptions, set()),
    ],
)
def test_each_keyword_has_a_row_or_is_an_object(table: dict[str, Option], keywords: Any, objects: set[str]) -> None:
    rows = {option.keyword for option in table.values()}
    assert rows | objects == set(keywords.__annotations__)
    assert not rows & objects


@pytest.mark.parametrize(("option", "keywords"), ROWS, ids=lambda part: getattr(part, "name", ""))
def test_a_keyword_takes_values_of_its_kind(option: Option, keywords: Any) -> None:
    hint = keywords.__annotations__[option.keyword]
    written = getattr(hint, "__forward_arg__", str(hint))
    assert TYPES.get(option.kind, "") in written
    assert written.endswith("| None")


def test_what_a_row_names_is_there() -> None:
    named = re.findall(r"(roofline[\w.]+):(\w+)", TABLE.read_text())
    assert len(named) > 20
    for module, name in named:
        assert hasattr(import_module(module), name)


def test_the_profiles_of_sessions_are_told() -> None:
    assert all(name in SESSION_OPTIONS["profile"].help for name in PROFILES)
