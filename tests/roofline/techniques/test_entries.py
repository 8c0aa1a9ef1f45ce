"""Files of the catalogue: functions take the parameters of their entries, and mistakes are reported with their key."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any

import pytest

from roofline.core.errors import SpecError
from roofline.techniques import Technique, techniques
from roofline.techniques.changes import REQUIREMENTS
from roofline.techniques.entries import read_entries

ENTRY = {
    "title": "A window",
    "level": "model",
    "price": "lossy",
    "reference": "none",
    "effect": "Fewer keys.",
    "slot": "attention pattern",
    "function": "attention.limit_to_window",
    "parameters": {"window": {"default": 8, "low": 1, "high": 64, "meaning": "tokens"}, "extra": {"meaning": "others"}},
}


@pytest.mark.parametrize(
    "entry", [entry for entry in techniques().values() if entry.function], ids=lambda entry: entry.name
)
def test_the_function_takes_the_constants_and_parameters(entry: Technique) -> None:
    module, function = entry.function.split(".")
    signature = inspect.signature(getattr(import_module(f"roofline.techniques.{module}"), function))
    values = {parameter.name: parameter.default for parameter in entry.parameters}
    assert not set(values) & set(entry.constants)
    signature.bind(None, entry.name, **entry.constants, **values)
    assert set(entry.requires) <= set(REQUIREMENTS)


def test_an_entry_takes_from_its_mechanism_what_it_does_not_state() -> None:
    shared = {"slot": "KV format", "parameters": {"bits": {"low": 2, "high": 8, "meaning": "bits"}}}
    own = {**ENTRY, "mechanism": "few-bits", "parameters": {"bits": 4}}
    del own["slot"]
    content = {"defaults": {"caveat": "none"}, "mechanisms": {"few-bits": shared}, "techniques": {"kv4": own}}
    (entry,) = read_entries(content, "here")
    assert (entry.name, entry.slot, entry.caveat, entry.price) == ("kv4", "KV format", "none", "lossy")
    assert entry.values({}) == {"bits": 4}
    assert entry.parameters[0].high == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mechanism": "few-bit"}, "here: 'techniques.kv4': unknown mechanism 'few-bit'; did you mean 'few-bits'?"),
        ({"slots": "x"}, "here: unknown key 'slots' in 'techniques.kv4'; did you mean 'slot'?"),
        ({"price": "free"}, "here: 'techniques.kv4.price' must be"),
        ({"parameters": {"bits": {"low": 2, "high": 8}}}, "'techniques.kv4.parameters.0.meaning' is missing"),
    ],
)
def test_mistakes_are_reported_with_their_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        list(read_entries({"mechanisms": {"few-bits": {}}, "techniques": {"kv4": {**ENTRY, **change}}}, "here"))
    assert message in str(caught.value)
