"""Every rule of the research notes' lists is a source of some rule, and has a case for it and one against it."""

from __future__ import annotations

import ast
import sys
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from string import Formatter
from types import FunctionType

import pytest

from roofline.advisor.rules import rules
from roofline.core.documents import read_mapping

NOTES = (
    *(f"yuan R{number}" for number in range(1, 30)),
    *(f"zhou {number}" for number in range(1, 35)),
    *(f"miao D{number}" for number in range(1, 27)),
)

SPEED = frozenset(
    (
        *(f"yuan R{number}" for number in range(1, 24)),
        *(f"yuan R{number}" for number in (26, 27)),
        *(f"zhou {number}" for number in (*range(1, 13), 15, 19, 22, 24, 25, 26, 28, 32)),
        *(f"miao D{number}" for number in (1, 2, 4, 7, 10, 11, 12, 13, 15, 17, 19, 20, 26)),
    )
)
"""The rules whose cases are in `test_rules_speed.py`; those of all others are in `test_rules_serving.py`."""


@lru_cache(maxsize=2)
def covered(name: str) -> frozenset[str]:
    """The rules that the table of a test file has cases for."""
    path = Path(__file__).with_name(name)
    if not path.exists():
        pytest.skip(f"{name} is not there")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return frozenset(module.COVERED)


@pytest.mark.parametrize("number", NOTES)
def test_every_rule_of_the_notes_is_a_source_and_has_cases(number: str) -> None:
    assert number in covered("test_rules_speed.py" if number in SPEED else "test_rules_serving.py")
    assert number in {source for rule in rules().values() for source in rule.sources}


def test_sources_are_rules_of_the_notes() -> None:
    written = {source for rule in rules().values() for source in rule.sources}
    assert {source for source in written if source.startswith(("yuan R", "zhou ", "miao D"))} <= set(NOTES)


ALWAYS = {"case", "scenario", "memory", "engine"}
"""Facts that every text may have."""


@lru_cache(maxsize=16)
def said(path: str) -> tuple[frozenset[str], frozenset[str]]:
    """The texts of a module of rules, among them keys of findings, and the names of facts that it gives."""
    nodes = list(ast.walk(ast.parse(Path(path).read_text())))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return frozenset(texts), frozenset(
        texts | {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
    )


@pytest.mark.parametrize("name", rules())
def test_the_words_of_a_rule_have_the_facts_that_its_module_gives(name: str) -> None:
    found = rules()[name]
    assert isinstance(found.function, FunctionType)
    keys, facts = said(found.function.__code__.co_filename)
    assert found.findings.keys() <= keys
    for texts in found.findings.values():
        for text in (texts.bottleneck, texts.hint, texts.caution, texts.no_benefit, *texts.evidence.values()):
            fields = {field for _, field, _, _ in Formatter().parse(text) if field is not None}
            assert {field.partition(".")[0].partition("[")[0] for field in fields} <= facts | ALWAYS


def test_every_record_has_its_function() -> None:
    path = Path(sys.modules["roofline.advisor.rules"].__file__ or "").with_name("rules.yaml")
    assert set(read_mapping(path)) == set(rules())
