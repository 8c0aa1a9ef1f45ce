"""Versions of an engine: requests, overlays, aliases, and what is said about them."""

from __future__ import annotations

from pathlib import Path

import pytest

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.core.documents import read_mapping
from roofline.core.errors import RooflineError, SpecError, UnknownNameError
from roofline.scenario.notes import notes
from roofline.specs.engine import list_engines, load_engine
from roofline.specs.engine_files import parse_engine
from roofline.specs.engine_versions import split_name

MINE = """
name: mine
title: Mine
overlap: true
graphs: [decode]
parameters: {step: 1 ms, issue: 5 us}
versions:
  '0.10': {}
  '0.9': {overlap: false, parameters: {step: 2 ms}}
  '0.2': {graphs: [], parameters: {sequence: 9 us}}
aliases: {mine-sync: '0.9'}
"""


@pytest.fixture
def mine(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(MINE, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("vllm", ("vllm", "")),
        ("vllm@0.11", ("vllm", "0.11")),
        ("./a@b/mine.yaml", ("./a@b/mine.yaml", "")),
        ("vllm@0.4.yaml", ("vllm@0.4.yaml", "")),
        ("a@b/mine.yaml@1.0", ("a@b/mine.yaml", "1.0")),
    ],
)
def test_name_and_version(text: str, parts: tuple[str, str]) -> None:
    assert split_name(text) == parts


def test_a_version_changes_the_newest_key_by_key(mine: str) -> None:
    newest, middle, oldest = load_engine(mine), load_engine(f"{mine}@0.9.4"), load_engine(f"{mine}@0.3")
    assert (newest.overlap, newest["step"], newest["issue"]) == (True, 1e-3, pytest.approx(5e-6))
    assert (middle.overlap, middle["step"], middle["issue"]) == (False, 2e-3, newest["issue"])
    assert (oldest.overlap, oldest.graphs, oldest["step"], oldest["sequence"]) == (True, (), 1e-3, pytest.approx(9e-6))
    assert load_engine(f"{mine}@0.10.1").parameters == newest.parameters


@pytest.mark.parametrize(
    ("version", "profile", "note"),
    [
        ("0.1", "mine@0.2", "Mine 0.1 is older than the known versions: the profile is that of 0.2"),
        ("v0.9.4", "mine@0.9", "Mine 0.9.4: the profile is that of 0.9 to before 0.10"),
        ("0.10.0rc1", "mine@0.9", "Mine 0.10.0rc1: the profile is that of 0.9 to before 0.10"),
        ("7", "mine", "Mine 7: the profile is the newest one, from 0.10"),
    ],
)
def test_the_profile_of_a_version_is_named(mine: str, version: str, profile: str, note: str) -> None:
    engine = load_engine(f"{mine}@{version}")
    assert (engine.name, engine.label) == ("mine", f"mine {version.removeprefix('v')}")
    assert (engine.profile, engine.version_note) == (profile, note)
    assert note in notes(analyze(Scenario(load_model("llama-3.2-1b"), load_hardware("h100-sxm"), engine=engine)))


def test_without_a_version_nothing_is_said(mine: str) -> None:
    engine = load_engine(mine)
    assert (engine.label, engine.heading, engine.profile, engine.version_note) == ("mine", "Mine", "mine", "")


def test_an_engine_with_one_profile_takes_any_version() -> None:
    engine = load_engine("lmdeploy@0.6.1")
    assert (engine.heading, engine.profile) == ("LMDeploy (TurboMind) 0.6.1", "lmdeploy")
    assert engine.version_note == "LMDeploy (TurboMind) 0.6.1: the profile is the same for all versions"


def test_aliases_are_versions() -> None:
    assert load_engine("vllm-v0") == load_engine("vllm@0.5")
    assert load_engine("vllm-sync") == load_engine("vllm@0.11")
    assert not {"vllm-v0", "vllm-sync"} & set(list_engines())


@pytest.mark.parametrize(
    ("name", "engine"),
    [
        ("TensorRT-LLM", "tensorrt-llm"),
        ("trtllm@1.0", "tensorrt-llm@1.0"),
        ("vllm==0.9", "vllm@0.9"),
        ("vLLM v0.9.1", "vllm@0.9.1"),
        ("llama.cpp:b6000", "llama.cpp@b6000"),
        ("llamacpp", "llama.cpp"),
        ("vllm-gaudi", "vllm"),
        (" vLLM ", "vllm"),
        ("vllm @ 0.9", "vllm@0.9"),
    ],
)
def test_other_spellings_of_an_engine(name: str, engine: str) -> None:
    assert load_engine(name) == load_engine(engine)
    assert name not in list_engines()


@pytest.mark.parametrize(("name", "near"), [("tgi", "vllm"), ("koboldcpp@1.9", "llama.cpp"), ("exllamav2", "awq")])
def test_an_engine_that_is_not_described_names_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=near):
        load_engine(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlm@0.11", "unknown engine 'vlm'; did you mean 'vllm'"),
        ("vllm-v1", "did you mean 'vllm-v0'"),
        ("vllm@foo", "'foo' is not a version"),
        ("tensorrt-llm@foo", "'foo' is not a version"),
        ("vllm@", "'vllm@' lacks a version"),
        ("@0.11", "'@0.11' lacks an engine"),
        ("vllm-v0@0.6", "vllm-v0 is vllm@0.5: name another version of vllm"),
    ],
)
def test_invalid_requests(name: str, message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        load_engine(name)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ("versions: [0.9]", "'versions' must be a mapping"),
        ("versions: {'0.10': {}, '0.9': {step: 1 ms}}", "unknown key 'step'"),
        ("versions: {'0.10': {}, '0.9': {name: old}}", "'versions.0.9' cannot have the key 'name'"),
        ("versions: {'0.9': {overlap: true}}", "'versions.0.9' must be empty"),
        ("spellings: mine-too", "'spellings' must be a list of names"),
        ("aliases: {old: newest}", "'aliases': 'newest' is not a version"),
        ("version: '0.9'", "unknown key 'version'; did you mean 'versions'"),
    ],
)
def test_invalid_versions_in_a_file(tmp_path: Path, changes: str, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(f"name: mine\n{changes}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=message) as caught:
        load_engine(str(path))
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize("name", list_engines())
def test_the_versions_of_bundled_engines_have_sources(name: str) -> None:
    newest = load_engine(name)
    for start in newest.starts:
        assert load_engine(f"{name}@{start}").sources
    assert parse_engine(read_mapping(Path(f"roofline/specs/engines/{name}.yaml")), name) == newest
