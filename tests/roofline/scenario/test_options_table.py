"""The table of options (`options.yaml`) and the keywords with their types are of the same options."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from roofline.core.options import Kind
from roofline.scenario.options import OPTIONS
from roofline.scenario.options.keywords import Options
from roofline.scenario.question import OBJECTS

TABLE = Path(sys.modules["roofline.scenario.options"].__file__ or "").with_name("options.yaml")
KEYWORDS = {option.keyword: option for option in OPTIONS.values()}
TYPES = {Kind.INTEGER: "int", Kind.NUMBER: "float", Kind.SWITCH: "bool", Kind.TIME: "float", Kind.LIST: "list[str]"}


def test_each_keyword_has_a_row_or_is_an_object() -> None:
    assert set(Options.__annotations__) - set(KEYWORDS) == OBJECTS.keys() - {"drawn"}
    assert set(KEYWORDS) <= set(Options.__annotations__)


@pytest.mark.parametrize("keyword", KEYWORDS)
def test_a_keyword_takes_values_of_its_kind(keyword: str) -> None:
    hint = Options.__annotations__[keyword]
    written = getattr(hint, "__forward_arg__", str(hint))
    assert TYPES.get(KEYWORDS[keyword].kind, "") in written
    assert written.endswith("| None")


def test_what_a_row_names_is_there() -> None:
    named = re.findall(r"(roofline[\w.]+):(\w+)", TABLE.read_text())
    assert len(named) > 20
    for module, name in named:
        assert hasattr(import_module(module), name)
