"""Random scenarios of the table of options stay equal through every text form that they have."""

from __future__ import annotations

import copy
import json
import pickle
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from roofline import RooflineError, Scenario
from roofline.cli.scenario_options import parse_scenarios
from roofline.core.options import Kind, Option
from roofline.scenario.options import OPTIONS, read_options
from roofline.whatif.command_line import command_words, option_texts
from roofline.whatif.schema import scenario_schema
from roofline.whatif.study import make_study, read_study
from tests.cases import BESIDE
from tests.roofline.json_schema import problems

USUAL = {"model": "llama-3.1-8b", "hw": "h100-sxm"}
LENGTHS = ("uniform:128:1024", "lognormal:mean=512,p95=1500", "exponential:mean=300")


def values(option: Option) -> st.SearchStrategy[Any]:
    """Values of an option, from its range, its names or its kind."""
    match option.kind:
        case Kind.SWITCH:
            return st.booleans()
        case Kind.NUMBER:
            return st.floats(option.low, option.high)
        case Kind.GRID | Kind.INTEGER:
            counts = st.integers(int(option.low), int(option.high)) | st.integers(int(option.low), 64)
            return counts | st.sampled_from(LENGTHS) if option.other else counts
        case Kind.LIST:
            return st.lists(st.sampled_from(option.names), min_size=1, max_size=3, unique=True)
    return st.sampled_from((*option.names, option.example))


@st.composite
def options(draw: st.DrawFn) -> dict[str, Any]:
    """Keywords of a scenario: some options with random values, one of them at its example in its context."""
    example = OPTIONS[draw(st.sampled_from(sorted(OPTIONS)))]
    names = draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=6, unique=True))
    chosen = {name: draw(values(OPTIONS[name])) for name in names}
    return {**USUAL, **chosen, **read_options({**BESIDE.get(example.name, {}), example.name: example.example})}


@pytest.mark.slow
def test_random_scenarios_stay_equal(tmp_path: Path) -> None:
    seen: set[frozenset[tuple[str, str]]] = set()
    schema = scenario_schema()

    @settings(
        max_examples=300,
        derandomize=True,
        deadline=None,
        suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
    )
    @given(chosen=options())
    @example(chosen={"model": "deepseek-v3", "hw": "h100-sxm", "quant": "q8_0", "ep": 8, "engine": "vllm"})
    def check(chosen: dict[str, Any]) -> None:
        try:
            scenario = Scenario(**chosen)
        except RooflineError:
            assume(False)
        texts = option_texts(scenario)
        seen.add(frozenset(texts.items()))
        for form, found in copies(scenario, texts, tmp_path).items():
            assert found == scenario, (form, texts)
            assert hash(found) == hash(scenario), (form, texts)
            if form != "command":  # which does not name what is the default
                assert found.options == scenario.options, form
        for written in (texts, scenario.options):
            assert list(problems(schema, written)) == []

    check()
    assert len(seen) >= 200
    assert {name for texts in seen for name, _ in texts} == OPTIONS.keys()


def copies(scenario: Scenario, texts: dict[str, str], folder: Path) -> dict[str, Scenario]:
    """The scenario through each form, by its name."""
    return {
        "command": parse_scenarios([shlex.join(command_words(scenario))])[0],
        "JSON": Scenario(**json.loads(json.dumps(scenario.options))),
        "address": Scenario(**read_options(dict(parse_qsl(urlencode(texts))))),
        "study": studied(texts, folder / "study.yaml"),
        "pickle": pickle.loads(pickle.dumps(scenario)),
        "copy": copy.deepcopy(copy.copy(scenario)),
        "with": scenario.with_(),
    }


def studied(texts: dict[str, str], path: Path) -> Scenario:
    """The one point of a study file that varies the last of the options."""
    *rest, axis = texts
    path.write_text(yaml.safe_dump({**{name: texts[name] for name in rest}, "over": {axis: [texts[axis]]}}))
    study = make_study(**read_study(path))
    assert study.points == 1
    (value,) = study.axes[0].values
    return Scenario(**study.question.fixed, **{axis: value.item() if isinstance(value, np.generic) else value})
