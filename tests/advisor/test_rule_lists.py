"""Every rule of the research notes' lists is a source of some rule, and has a case for it and one against it."""

from __future__ import annotations

import sys
from functools import lru_cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from roofline.advisor.rules import rules

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
