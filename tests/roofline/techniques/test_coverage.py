"""Every system that the source papers name is in the catalogue, in the vocabulary or in a spec, or says why it is not.

The list is tests/data/named_systems.csv: the names of three surveys (zhou: Zhou et al. 2024, miao: Miao et al. 2023,
yuan: the LLM-Viewer paper as 003 and the tutorial on accelerators as 004, with the section that names each). What a
reason must hold depends on the kind of the name, as the tests below say.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from typing import NamedTuple

import pytest

from roofline import list_hardware, list_models
from roofline.specs.model import FEED_FORWARDS, MIXERS
from roofline.techniques import find_technique, names, techniques
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
    """What is wrong, beside how many names of each kind there are."""
    counts = ", ".join(f"{count} {kind}" for kind, count in Counter(system.kind for system in SYSTEMS).most_common())
    return f"{wrong}\n({len(SYSTEMS)} names: {counts})"


def is_sentence(text: str) -> bool:
    return len(text.split()) >= 3 and text[0].isupper() and text.endswith(".")


def vocabulary() -> set[str]:
    """The keys of a model spec: the sections of layers, and every key that the vocabulary's description shows."""
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


def test_no_name_stands_twice() -> None:
    twice = [name for name, count in Counter(system.name.lower() for system in SYSTEMS).items() if count > 1]
    assert not twice, report(twice)


def test_the_notes_are_all_read() -> None:
    assert {system.note for system in SYSTEMS} == NOTES
    assert len(SYSTEMS) >= 500, report("names are missing")


def test_every_technique_is_in_the_catalogue() -> None:
    missing = [system.name for system in of_kind("technique") if system.name.lower() not in names()]
    assert not missing, report(missing)


def test_what_the_catalogue_cannot_simulate_says_why() -> None:
    entries = [find_technique(system.name) for system in of_kind("technique")]
    silent = {entry.name for entry in entries if entry.change is None and len(entry.caveat.split()) < 3}
    assert not silent, report(silent)


@pytest.mark.parametrize(
    ("system", "entry"),
    [
        ("OPTQ", "gptq"),
        ("PagedAttention", "paged-attention"),
        ("Splitwise", "disaggregation"),
        ("ORCA", "continuous-batching"),
    ],
)
def test_a_name_of_the_list_finds_the_entry_that_stands_for_it(system: str, entry: str) -> None:
    assert find_technique(system).name == entry


def test_no_name_is_claimed_by_two_entries() -> None:
    claims = Counter(name for entry in techniques().values() for name in {entry.name, *map(str.lower, entry.covers)})
    twice = [name for name, count in claims.items() if count > 1]
    assert not twice, report(twice)


def test_every_architecture_is_a_spec_or_in_the_vocabulary() -> None:
    known = {*list_models(), *vocabulary()}
    wrong = [system for system in of_kind("architecture") if system.reason.partition(":")[0] not in known]
    assert not wrong, report(wrong)


def test_every_hardware_is_a_spec_or_says_why_not() -> None:
    known = set(list_hardware())
    wrong = [system for system in of_kind("hardware") if system.reason not in known and not is_sentence(system.reason)]
    assert not wrong, report(wrong)


def test_what_is_not_simulated_says_why() -> None:
    wrong = [s for s in of_kind("engine", "training", "evaluation", "out-of-scope") if not is_sentence(s.reason)]
    assert not wrong, report(wrong)


def test_each_reason_for_leaving_out_is_its_own() -> None:
    reasons = Counter(system.reason for system in of_kind("out-of-scope"))
    assert max(reasons.values()) == 1, report([reason for reason, count in reasons.items() if count > 1])
