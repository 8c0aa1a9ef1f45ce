"""Every field of the live page, turned in a headless Chromium: the figures are those of `roofline analyze`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")
pytest.importorskip("starlette", reason="the live page needs uvicorn and Starlette")

import yaml

from roofline.reports.view.setups import quantities
from roofline.scenario.options import OPTIONS
from roofline.scenario.scenario import Scenario
from tests.cases import BESIDE
from tests.conftest import Run
from tests.paths import ROOT
from tests.reports.live import Live, figures_of, words
from tests.reports.test_view import setups

BASE = {"model": "llama-3.1-8b", "hw": "h100-sxm", "batch": "4", "prompt": "1024"}


def analysed(run: Run, setup: Mapping[str, str]) -> dict[str, Any]:
    status, out, err = run("analyze", *words({name: text for name, text in setup.items() if text}), "--format", "json")
    assert status == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIONS)
def test_a_field_has_the_effect_of_its_option(tab: Live, run: Run, name: str) -> None:
    option = OPTIONS[name]
    base, text = {**BASE, **BESIDE.get(option.name, {})}, option.example
    tab.show(urlencode(base))
    tab.turn(name, text)
    assert tab.setups[0][name] == text
    after = analysed(run, {**base, name: text})
    assert after != analysed(run, base)
    assert tab.figures() == pytest.approx(figures_of(after))
    assert tab.complaints == []


EDITS = {found["key"]: found["text"] for found in quantities(Scenario(model="llama-3.1-8b", hw="h100-sxm"))}


@pytest.mark.slow
@pytest.mark.parametrize("key", EDITS)
def test_an_edited_figure_of_the_hardware_is_that_of_an_edited_spec(
    tab: Live, run: Run, tmp_path: Path, key: str
) -> None:
    number, unit = EDITS[key].split(" ")
    text = f"{0.6 * float(number):.4g} {unit}"
    setup = {**BASE, "tp": "2", "quant": "fp8"}
    tab.show(urlencode(setup))
    tab.turn(key, text)
    spec: Any = yaml.safe_load((ROOT / "hwspecs/h100-sxm.yaml").read_text())
    holder, (*sections, last) = spec, key.split(".")[1:]
    for section in sections:
        holder = holder[int(section) if section.isdigit() else section]
    holder[last] = text
    path = tmp_path / "edited.yaml"
    path.write_text(yaml.safe_dump(spec))
    assert tab.figures() == pytest.approx(figures_of(analysed(run, {**setup, "hw": str(path)})))
    assert tab.complaints == []


@pytest.mark.slow
def test_random_states_show_the_figures_of_analyze(tab: Live, run: Run) -> None:
    shown = 0
    for setup in setups(16):
        tab.show(urlencode(setup))
        status, out, err = run("analyze", *words(setup), "--format", "json")
        if status:
            problem = tab.page.locator("#problem").inner_text()
            told = re.sub(r" \((--[a-z-]+(, )?)+\)$", "", err.removeprefix("roofline: ").strip())
            assert problem.rstrip(".").lower() == told.rstrip(".").lower()  # the page names no flags
            continue
        shown += 1
        assert tab.figures() == pytest.approx(figures_of(json.loads(out))), setup
    assert shown >= 6
    tab.complaints.clear()  # the browser logs the status of refusals
