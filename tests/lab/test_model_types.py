"""Every text-generating model type of the installed Transformers, and random variations, against the class itself."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
pytest.importorskip("torch")

from lab.model_types import Row, compare, known_types, page, varied

EVERY = 3
"""One type of so many is varied: variations of all of them take as long as the rest of the suite."""

CACHED_OTHERWISE = frozenset({"deepseek_v32", "deepseek_v4", "glm_moe_dsa"})
"""Types whose readers count the keys of the indexer, or compressed entries, which the class keeps otherwise."""

COMPUTED_OTHERWISE = frozenset(
    {
        "deepseek_v4",  # further rows of its hyper-connections
        *("inkling_mm_model", "inkling_text"),  # shared experts in one tensor, among the other products here
        "jamba",  # the class multiplies by the weights of dt_proj without calling it
        *("llama4", "llama4_text"),  # the class runs every expert
        "zaya",  # its router is a network, and its experts are among the other products
    }
)
"""Types whose class multiplies otherwise than an engine, or counts it elsewhere."""


def wrong(rows: list[Row]) -> list[Row]:
    return [
        row
        for row in rows
        if row.kind != "longcat_flash"  # its class has weights for experts that return their input
        and row.way in ("native", "class")
        and not (
            row.exact
            and (row.same_flops is not False or row.kind in COMPUTED_OTHERWISE)
            and (row.same_cache is not False or row.kind in CACHED_OTHERWISE)
        )
    ]


def test_every_model_type_is_read_as_its_class() -> None:
    rows = [compare(kind) for kind in known_types()]
    assert wrong(rows) == []
    assert sum(row.exact for row in rows) > 250
    assert page(rows, "5").count("\n| `") == len(rows)


def test_variations_are_read_as_their_class() -> None:
    rows = [compare(kind, changes) for kind in known_types()[::EVERY] for changes in varied(kind, 1)]
    assert [(row.kind, row.read - row.parameters) for row in wrong(rows)] == []
