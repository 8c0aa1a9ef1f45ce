"""`roofline schema`: every option, every shipped file, and what schemas refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from roofline.scenario.options import OPTIONS, SPELLINGS, read_options
from roofline.whatif.schema import STUDY_KEYS, scenario_schema, study_schema
from roofline.whatif.study import QUERY_KEYS
from tests.cases import BESIDE
from tests.conftest import Run
from tests.paths import ROOT
from tests.roofline.json_schema import problems

USUAL = {"model": "llama-3.1-8b", "hw": "h100-sxm"}


def printed(run: Run, *words: str) -> Any:
    status, out, err = run("schema", *words)
    assert status == 0, err
    return json.loads(out)


def test_it_is_printed_or_written(run: Run, tmp_path: Path) -> None:
    assert printed(run) == json.loads(json.dumps(scenario_schema()))
    run("schema", "study", "--output", str(tmp_path / "study.json"))
    assert json.loads((tmp_path / "study.json").read_text()) == json.loads(json.dumps(study_schema()))


@pytest.mark.slow
@pytest.mark.parametrize("subject", ["hardware", "model", "study"])
def test_the_shipped_files_are_of_their_schema(run: Run, subject: str) -> None:
    schema = printed(run, subject)
    folder = {"hardware": "hwspecs", "model": "modelspecs", "study": "lab/gallery"}[subject]
    found = 0
    for path in (ROOT / folder).glob("*.yaml"):
        content = json.loads(json.dumps(yaml.safe_load(path.read_text()), default=str))
        assert list(problems(schema, content)) == [], path.name
        assert list(problems(schema, {**content, "nothing": 1})) != []
        found += 1
    assert found > 10


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_takes_its_example_in_a_scenario_a_study_and_an_axis(name: str) -> None:
    option = OPTIONS[name]
    for value in (option.example, option.read(option.example)):
        texts = {**USUAL, **BESIDE.get(name, {}), name: value}
        assert list(problems(scenario_schema(), texts)) == []
        assert list(problems(study_schema(), {**texts, "over": {name: [value]}})) == []
    assert read_options({name: option.example}) == {name: option.read(option.example)}
    told = scenario_schema()["properties"][name]
    assert option.help in told["description"]
    assert told["title"]
    assert told.get("default") == option.usual
    if option.kind.ranged:
        assert list(problems(scenario_schema(), {**USUAL, name: option.low - 1})) != []


@pytest.mark.parametrize("name", [name for name in SPELLINGS if name not in OPTIONS])
def test_engines_names_are_keys(name: str) -> None:
    option = OPTIONS[SPELLINGS[name]]
    texts = {key: text for key, text in USUAL.items() if key != option.name}
    for key in (name, name.replace("_", "-")):
        assert list(problems(scenario_schema(), {**texts, key: option.example})) == []
        assert list(problems(study_schema(), {**USUAL, "over": {key: option.example}})) == []


@pytest.mark.parametrize(
    "wrong",
    [{}, {"model": "a"}, {**USUAL, "batch": "many"}, {**USUAL, "flash": 2}, {**USUAL, "tp": 1.5}, {**USUAL, "x": 1}],
)
def test_other_values_are_refused(wrong: dict[str, object]) -> None:
    assert list(problems(scenario_schema(), wrong)) != []


def test_the_keys_of_studies_are_those_that_are_read() -> None:
    assert {*STUDY_KEYS, "over"} == {*QUERY_KEYS, "figure"}
