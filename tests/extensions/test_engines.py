"""Engine profiles of one's own, in the folder `engines` of `ROOFLINE_SPECS`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from roofline import RooflineError, UnknownNameError
from roofline.specs import list_engines, load_engine
from roofline.whatif.study import make_study
from tests.extensions.conftest import decode_time, put

OURS = """
name: ours
title: Our server
based_on: vllm
kernels_of: vllm
parameters: {step: 5 ms}
versions:
  '2.0': {}
  '1.0': {parameters: {step: 8 ms}}
aliases: {ours-classic: '1.0'}
"""


def test_a_profile_is_found_by_name_and_follows_its_file(specs: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown engine 'ours'"):
        load_engine("ours")
    path = put(specs / "engines" / "ours.yaml", OURS)
    assert "ours" in list_engines()
    assert load_engine("ours").fusions == load_engine("vllm").fusions
    new, old = decode_time(engine="ours"), decode_time(engine="ours-classic")
    assert old - new == pytest.approx(3e-3)
    assert decode_time(engine="ours@1.0") == old
    path.write_text(OURS.replace("5 ms", "6 ms").replace("classic", "first"), encoding="utf-8")
    assert decode_time(engine="ours") - new == pytest.approx(1e-3)
    assert decode_time(engine="ours-first") == old
    with pytest.raises(UnknownNameError):
        load_engine("ours-classic")
    path.unlink()
    assert "ours" not in list_engines()
    with pytest.raises(UnknownNameError):
        load_engine("ours")


def test_a_profile_comes_before_the_bundled_one_that_it_may_be_based_on(specs: Path) -> None:
    shipped = decode_time(engine="vllm")
    path = put(specs / "engines" / "vllm.yaml", "name: vllm\nbased_on: vllm\nparameters: {step: 1 s}\n")
    assert decode_time(engine="vllm") > 1 > shipped
    path.unlink()
    assert decode_time(engine="vllm") == shipped


def test_the_first_folder_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        put(tmp_path / name / "engines" / "ours.yaml", f"name: ours\ntitle: {name}\n")
    monkeypatch.setenv("ROOFLINE_SPECS", os.pathsep.join(str(tmp_path / name) for name in ("two", "one")))
    assert load_engine("ours").title == "two"


def test_results_of_studies_have_another_key(specs: Path) -> None:
    def key() -> str:
        return make_study({"batch": "1,2"}, model="llama-3.1-8b", hw="h100-sxm", engine="ours").key

    path = put(specs / "engines" / "ours.yaml", OURS)
    first = key()
    path.write_text(OURS.replace("5 ms", "6 ms"), encoding="utf-8")
    assert key() != first


def test_a_mistake_names_the_file_and_the_key(specs: Path) -> None:
    path = put(specs / "engines" / "ours.yaml", "name: ours\nparameters: {stepp: 1 ms}\n")
    with pytest.raises(RooflineError) as caught:
        load_engine("ours")
    assert str(caught.value) == f"{path}: unknown key 'stepp' in 'parameters'; did you mean 'step'?"
