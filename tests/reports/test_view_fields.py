"""Every field of the live page, turned in a headless Chromium: the figures are those of `roofline analyze`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

pytest.importorskip("uvicorn", reason="the live page needs uvicorn and Starlette")
pytest.importorskip("starlette", reason="the live page needs uvicorn and Starlette")

import yaml

from roofline.reports.view.setups import quantities
from roofline.whatif.options import OPTIONS, request_from
from tests.conftest import Run
from tests.paths import ROOT
from tests.reports.live import Live, figures_of, words
from tests.reports.test_view import setups

DENSE = {"model": "llama-3.1-8b", "hw": "h100-sxm", "batch": "4", "prompt": "1024"}
EXPERTS = {**DENSE, "model": "mixtral-8x7b", "tp": "2"}
IMAGES = {**DENSE, "model": "qwen2.5-vl-7b", "images": "1"}

FIELDS: Mapping[str, tuple[Mapping[str, str], str]] = {
    "model": (DENSE, "qwen3-8b"),
    "hw": (DENSE, "mi300x"),
    "batch": (DENSE, "32"),
    "prompt": (DENSE, "4k"),
    "generate": (DENSE, "300"),
    "context": ({**DENSE, "prompt": ""}, "3000"),
    "prefix": (DENSE, "512"),
    "images": (IMAGES, "3"),
    "image_size": (IMAGES, "1024x1024"),
    "quant": (DENSE, "fp8"),
    "quantization": (DENSE, "awq_marlin"),
    "dtype": (DENSE, "float32"),
    "weights": (DENSE, "int8"),
    "activations": (DENSE, "fp8"),
    "kv": (DENSE, "fp8"),
    "flash": (DENSE, "false"),
    "fuse": (DENSE, "gate_up+qkv"),
    "tp": (DENSE, "2"),
    "pp": (DENSE, "2"),
    "ep": (EXPERTS, "2"),
    "dp": (DENSE, "2"),
    "sp": (DENSE, "2"),
    "enable_expert_parallel": (EXPERTS, "true"),
    "dp_attention": ({**EXPERTS, "model": "deepseek-v3", "tp": "8"}, "true"),
    "nodes": ({**DENSE, "tp": "2"}, "2"),
    "micro_batches": ({**DENSE, "pp": "2"}, "2"),
    "expert_skew": (EXPERTS, "0.5"),
    "offload": (DENSE, "weights=0.5"),
    "with": (DENSE, "eagle-3"),
    "engine": (DENSE, "sglang"),
    "host": ({**DENSE, "hw": "l40s", "tp": "2"}, "pcie-switch"),
    "memory_reading": (DENSE, "static"),
    "gpu_memory_utilization": (DENSE, "0.5"),
    "max_model_len": (DENSE, "4096"),
    "max_num_seqs": (DENSE, "8"),
    "price": (DENSE, "1.25"),
    "convention": (DENSE, "llm-viewer"),
}
"""Of each option a set-up on which it has an effect, and a value."""


def analysed(run: Run, setup: Mapping[str, str]) -> dict[str, Any]:
    status, out, err = run("analyze", *words({name: text for name, text in setup.items() if text}), "--format", "json")
    assert status == 0, err
    document: dict[str, Any] = json.loads(out)
    return document


def test_every_option_has_a_field_that_is_turned() -> None:
    assert FIELDS.keys() == OPTIONS.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_a_field_has_the_effect_of_its_option(tab: Live, run: Run, name: str) -> None:
    base, text = FIELDS[name]
    tab.show(urlencode(base))
    tab.turn(name, text)
    assert tab.setups[0][name] == text
    after = analysed(run, {**base, name: text})
    assert after != analysed(run, base)
    assert tab.figures() == pytest.approx(figures_of(after))
    assert tab.complaints == []


EDITS = {found["key"]: found["text"] for found in quantities(request_from({"model": "llama-3.1-8b", "hw": "h100-sxm"}))}


@pytest.mark.parametrize("key", EDITS)
def test_an_edited_figure_of_the_hardware_is_that_of_an_edited_spec(
    tab: Live, run: Run, tmp_path: Path, key: str
) -> None:
    number, unit = EDITS[key].split(" ")
    text = f"{0.6 * float(number):.4g} {unit}"
    setup = {**DENSE, "tp": "2", "quant": "fp8"}
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


def test_random_states_show_the_figures_of_analyze(tab: Live, run: Run) -> None:
    shown = 0
    for setup in setups(16):
        tab.show(urlencode(setup))
        status, out, err = run("analyze", *words(setup), "--format", "json")
        if status:
            problem = tab.page.locator("#problem").inner_text()
            assert problem.rstrip(".").lower() == err.removeprefix("roofline: ").strip().rstrip(".").lower()
            continue
        shown += 1
        assert tab.figures() == pytest.approx(figures_of(json.loads(out))), setup
    assert shown >= 6
    tab.complaints.clear()  # the browser logs the status of refusals
