"""Every system that the source papers name is a technique, a spec or a spec key, or has a reason why not.

The list is tests/data/named_systems.csv: the names of three surveys (zhou: Zhou et al. 2024, miao: Miao et al. 2023,
yuan: the LLM-Viewer paper as 003 and the tutorial on accelerators as 004), each with its section. The content of a
reason depends on the kind of the name.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from typing import NamedTuple

import pytest

from roofline import list_hardware, list_models
from roofline.specs.sublayers import FEED_FORWARDS, MIXERS
from roofline.techniques import Technique, find_technique, names, techniques
from tests.paths import ROOT

LIST = ROOT / "tests" / "data" / "named_systems.csv"
NOTES = {"zhou", "miao", "yuan"}
KINDS = {"technique", "architecture", "engine", "hardware", "training", "evaluation", "out-of-scope"}


class Named(NamedTuple):
    """A line of the list."""

    name: str
    note: str
    section: str
    kind: str
    reason: str


with LIST.open(newline="", encoding="utf-8") as file:
    HEADER, *LINES = csv.reader(file)
SYSTEMS = [Named(*line) for line in LINES]


def of_kind(*kinds: str) -> list[Named]:
    return [system for system in SYSTEMS if system.kind in kinds]


def report(wrong: object) -> str:
    """The message of a failure, with the number of names of each kind."""
    counts = ", ".join(f"{count} {kind}" for kind, count in Counter(system.kind for system in SYSTEMS).most_common())
    return f"{wrong}\n({len(SYSTEMS)} names: {counts})"


def is_sentence(text: str) -> bool:
    return len(text.split()) >= 3 and text[0].isupper() and text.endswith(".")


def spec_keys() -> set[str]:
    """The keys of a model spec: the sections of layers, and every key in the examples of modelspecs/README.md."""
    text = (ROOT / "modelspecs" / "README.md").read_text(encoding="utf-8")
    examples = re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.partition("#")[0] for example in examples for line in example.splitlines()]
    return {*MIXERS, *FEED_FORWARDS, *re.findall(r"(\w+):(?:\s|$)", "\n".join(lines), re.MULTILINE)}


def test_the_list_is_well_formed() -> None:
    assert tuple(HEADER) == Named._fields
    wrong = [
        system
        for system in SYSTEMS
        if system.note not in NOTES or system.kind not in KINDS or not system.name.strip() or not system.section.strip()
    ]
    assert not wrong, report(wrong)


def test_names_are_unique() -> None:
    twice = [name for name, count in Counter(system.name.lower() for system in SYSTEMS).items() if count > 1]
    assert not twice, report(twice)


def test_all_surveys_are_listed() -> None:
    assert {system.note for system in SYSTEMS} == NOTES
    assert len(SYSTEMS) >= 500, report("names are missing")


def test_every_technique_is_in_the_catalogue() -> None:
    missing = [system.name for system in of_kind("technique") if system.name.lower() not in names()]
    assert not missing, report(missing)


def test_techniques_that_are_not_simulated_have_a_reason() -> None:
    entries = [find_technique(system.name) for system in of_kind("technique")]
    missing = {entry.name for entry in entries if entry.change is None and len(entry.caveat.split()) < 3}
    assert not missing, report(missing)


@pytest.mark.parametrize(
    ("system", "entry"),
    [
        ("OPTQ", "gptq"),
        ("llm.int8()", "llm-int8"),
        ("PagedAttention", "paged-attention"),
        ("Splitwise", "disaggregation"),
        ("ORCA", "continuous-batching"),
    ],
)
def test_a_covered_name_finds_its_technique(system: str, entry: str) -> None:
    assert find_technique(system).name == entry


@pytest.mark.parametrize("entry", techniques().values(), ids=lambda entry: entry.name)
def test_entries_are_well_formed(entry: Technique) -> None:
    assert re.fullmatch(r"[a-z0-9]+([-.][a-z0-9]+)*", entry.name)
    assert is_sentence(entry.effect)
    assert len(re.findall(r"\.(\s|$)", entry.effect)) == 1
    assert all((entry.title, entry.reference, entry.slot))
    if entry.change is None or entry.level == "model":
        assert entry.caveat
    for parameter in entry.parameters:
        assert parameter.meaning
        if isinstance(parameter.default, (int, float)):
            assert parameter.low is not None
            assert parameter.high is not None
            assert parameter.low <= parameter.default <= parameter.high
    assert all(published.effect and published.source for published in entry.published)


def test_no_name_belongs_to_two_techniques() -> None:
    owners = Counter(name for entry in techniques().values() for name in {entry.name, *map(str.lower, entry.covers)})
    twice = [name for name, count in owners.items() if count > 1]
    assert not twice, report(twice)


def test_every_architecture_is_a_spec_or_a_spec_key() -> None:
    known = {*list_models(), *spec_keys()}
    wrong = [system for system in of_kind("architecture") if system.reason.partition(":")[0] not in known]
    assert not wrong, report(wrong)


def test_every_hardware_is_a_spec_or_has_a_reason() -> None:
    known = set(list_hardware())
    wrong = [system for system in of_kind("hardware") if system.reason not in known and not is_sentence(system.reason)]
    assert not wrong, report(wrong)


def test_names_out_of_scope_have_a_reason() -> None:
    wrong = [s for s in of_kind("engine", "training", "evaluation", "out-of-scope") if not is_sentence(s.reason)]
    assert not wrong, report(wrong)


def test_reasons_are_unique() -> None:
    reasons = Counter(system.reason for system in of_kind("out-of-scope"))
    assert max(reasons.values()) == 1, report([reason for reason, count in reasons.items() if count > 1])
