"""Model files against the classes of Transformers 5.24: each key of each family dropped, doubled and flipped.

`classes.jsonl` has a small file of every family, and the parameters and routing buffers of the class that Transformers
makes of it (on the meta device), and of those that single keys change.
"""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from roofline import SpecError, parameters
from roofline.specs.huggingface import translate
from roofline.specs.modelspec import parse_model
from tests.cases import sampled
from tests.paths import DATA

FAMILIES = [json.loads(line) for line in (DATA / "classes.jsonl").read_text().splitlines()]

KNOWN = {
    ("llava", "text_config.tie_word_embeddings"),  # the class ties by either file
    ("nemotron_h", "moe_shared_expert_intermediate_size"),  # of 0, for which the class takes another width
}


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    content = deepcopy(base)
    *sections, key = path.split(".")
    place = content
    for section in sections:
        place = place[section]
    if value == "DROP":
        place.pop(key, None)
    elif key:
        place[key] = value
    return content


@pytest.mark.parametrize("family", sampled(FAMILIES, 12), ids=[family["type"] for family in FAMILIES])
def test_counts_are_those_of_the_class(family: dict[str, Any]) -> None:
    read = 0
    for path, value, count, buffers in family["counts"]:
        if (family["type"], path) in KNOWN:
            continue
        try:
            model = parse_model(translate(changed(family["base"], path, value), "config.json", "own"), "config.json")
        except SpecError:
            assert path, "a family's own file is read"
            continue
        read += 1
        assert parameters(model) in (count, count + buffers), (path, value)
    assert read
