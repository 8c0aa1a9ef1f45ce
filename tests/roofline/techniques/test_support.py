"""The table of what engines run: closed against the catalogue, the profiles and the hardware, and pinned facts."""

from __future__ import annotations

import pytest

from roofline import list_hardware, load_hardware
from roofline.core.errors import UnknownNameError
from roofline.specs.engine import list_engines
from roofline.specs.formats import find_format
from roofline.techniques import check_request, find_technique, techniques
from roofline.techniques.support import (
    Support,
    documented_engines,
    engines_with,
    is_documented,
    load_support,
    runs,
    support,
)

ENGINES = ("vllm", "sglang", "tensorrt-llm", "llama.cpp", "mlx", "gpt-fast", "hf-eager", "lmdeploy")
ROWS = [
    pytest.param(technique, engine, row, id=f"{technique}-{engine}")
    for technique, rows in load_support().techniques.items()
    for engine, row in rows.items()
]


def families() -> set[str]:
    return {load_hardware(name).family for name in list_hardware()}


@pytest.mark.parametrize(("technique", "engine", "row"), ROWS)
def test_rows_can_be_acted_upon(technique: str, engine: str, row: Support) -> None:
    """Parameters are the technique's own; what is no default says how it is switched on, beam search apart."""
    if row.parameters:
        check_request(f"{technique}:{row.parameters}")
    assert row.option or row.default or technique == "beam-search"
    assert "https://" in row.source


def test_every_engine_has_rows_and_every_technique_an_engine() -> None:
    table = load_support()
    assert {engine for rows in table.techniques.values() for engine in rows} == set(ENGINES)
    assert all(table.techniques.values())


def test_families_are_those_of_the_hardware() -> None:
    table = load_support()
    named = {family for limit in table.engines.values() for family in limit.families}
    named |= {family for rows in table.techniques.values() for row in rows.values() for family in row.families}
    assert named <= families() | set(list_hardware())


def test_a_limit_is_within_what_the_engine_runs_on() -> None:
    table = load_support()
    for technique, rows in table.techniques.items():
        for engine, row in rows.items():
            if engine in table.engines:
                devices = [name for name in row.families if name in list_hardware()]
                named = set(row.families).difference(devices) | {load_hardware(name).family for name in devices}
                assert named <= set(table.engines[engine].families), (technique, engine)


def test_an_engine_settles_nothing_twice_by_default() -> None:
    """Two defaults of one slot would contradict each other."""
    for engine in ENGINES:
        slots = [
            find_technique(technique).slot
            for technique, rows in load_support().techniques.items()
            if engine in rows and rows[engine].default
        ]
        assert len(slots) == len(set(slots)), engine


def test_pinned_facts() -> None:
    awq = support("awq", "vllm")
    assert awq is not None
    assert not awq.default
    cache = support("fp8-kv", "vllm")
    assert cache is not None
    assert cache.option == "--kv-cache-dtype fp8"
    assert support("paged-attention", "llama.cpp") is None
    assert support("deja-vu", "vllm") is None
    assert engines_with("lookahead") == ("tensorrt-llm",)
    assert engines_with("deja-vu") == ()
    assert set(engines_with("speculative-decoding")) == set(ENGINES) - {"lmdeploy"}
    assert engines_with("eagle-3") == ("vllm", "sglang", "tensorrt-llm", "llama.cpp")


def test_profiles_of_one_engine_share_its_rows() -> None:
    assert support("awq", "vllm-v0") == support("awq", "vllm") == support("awq", "vllm@0.11")
    assert documented_engines() == ENGINES
    assert not is_documented("ideal")


@pytest.mark.parametrize("technique", ["paged-attention", "continuous-batching", "chunked-prefill", "prefix-caching"])
def test_what_vllm_does_by_itself(technique: str) -> None:
    found = support(technique, "vllm")
    assert found is not None
    assert found.default


@pytest.mark.parametrize(
    ("technique", "engine", "hardware", "expected"),
    [
        ("fp8", "vllm", "h100-sxm", True),
        ("fp8", "vllm", "a100-sxm-80gb", False),
        ("fp8", "vllm", "mi300x", True),
        ("awq", "vllm", "mi300x", False),
        ("awq", "sglang", "mi300x", True),
        ("smoothquant", "vllm", "b200-sxm", False),
        ("smoothquant", "vllm", "t4", True),
        ("nvfp4", "tensorrt-llm", "b200-sxm", True),
        ("nvfp4", "tensorrt-llm", "h100-sxm", False),
        ("fp8-kv", "tensorrt-llm", "a100-sxm-80gb", True),
        ("tensor-parallelism", "tensorrt-llm", "mi300x", False),
        ("prompt-lookup", "llama.cpp", "m3-max", True),
        ("paged-attention", "llama.cpp", "m3-max", False),
    ],
)
def test_where_engines_run_techniques(technique: str, engine: str, hardware: str, expected: bool) -> None:
    assert runs(technique, engine, load_hardware(hardware)) is expected


def test_systems_that_a_technique_covers_mean_the_technique() -> None:
    assert support("RadixAttention", "sglang") == support("radix-attention", "sglang")
    with pytest.raises(UnknownNameError, match="did you mean 'awq'"):
        support("awqq", "vllm")


def test_an_engine_of_ones_own_is_not_known() -> None:
    assert support("awq", "mine.yaml") is None
    assert not runs("awq", "mine.yaml", load_hardware("h100-sxm"))


def test_names_in_the_file_exist_and_every_source_is_cited() -> None:
    table, engines = load_support(), set(list_engines())
    rows = [row for section in (table.techniques, table.weights, table.kv) for row in section.values()]
    assert set(table.techniques) <= set(techniques())
    assert {
        *table.engines,
        *table.architectures,
        *table.profiles.values(),
        *(name for row in rows for name in row),
    } <= engines
    assert {feature for able in table.architectures.values() for feature in able.features} <= set(table.features)
    for name in {*table.weights, *table.kv} - {"gguf"}:
        find_format(name)
    lacking = [row for own in table.lacks.values() for row in own]
    assert set(table.lacks) <= set(table.architectures)
    assert {row.part for row in lacking} <= {*table.features, *table.kinds}
    assert {row.kv for row in lacking} - {""} <= {*table.kv, "fp8"}
    found = [*table.engines.values(), *table.architectures.values(), *(entry for row in rows for entry in row.values())]
    found += lacking
    assert all(entry.sources for entry in found)
    assert {key for entry in found for key in entry.sources} == set(table.sources)
