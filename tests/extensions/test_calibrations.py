"""Calibrations of one's own, in the folder `calibration` of `ROOFLINE_SPECS`."""

from __future__ import annotations

from pathlib import Path

import pytest

from roofline import load_hardware
from roofline.timing.chains import load_calibration
from roofline.timing.intervals.levels import crossing_spread
from roofline.whatif.study import make_study
from tests.extensions.conftest import decode_time, put

NORM = """
name: h100-sxm
kernels:
  norm: {any: {rows: 50, parameters: {launch: 50 us, memory_efficiency: 0.5}, residuals: {all: [0.9, 1, 1.1, 50]}}}
"""


def test_a_file_of_a_device_comes_first_and_is_read_again_when_it_changes(specs: Path) -> None:
    shipped = decode_time()
    path = put(specs / "calibration" / "h100-sxm.yaml", NORM)
    slow = decode_time()
    assert slow > shipped + 64 * 40e-6  # two norms a layer
    path.write_text(NORM.replace("50 us", "60 us"), encoding="utf-8")
    assert decode_time() > slow
    path.unlink()
    assert decode_time() == shipped


def test_kernels_of_an_engine_of_ones_own_have_a_folder(specs: Path) -> None:
    put(specs / "engines" / "ours.yaml", "name: ours\nparameters: {step: 1 ms}\n")
    before = decode_time(engine="ours")
    put(specs / "calibration" / "ours" / "h100-sxm.yaml", NORM)
    match = load_calibration(load_hardware("h100-sxm"), engine="ours").find("norm", "any")
    assert match is not None
    assert (match.engine, match.basis) == ("ours", "calibrated")
    assert decode_time(engine="ours") > before
    assert load_calibration(load_hardware("h100-sxm"), engine="vllm").find("norm", "any") != match


def test_the_spread_of_levels_follows_its_file(specs: Path) -> None:
    shipped = crossing_spread("other", "", ("family",))
    levels = "{table: 1, version: 1, release: 1, family: 2, engine: 1, pooled: 1, format: 1}"
    path = put(specs / "calibration" / "levels.yaml", f"components: {{other: {levels}}}\n")
    assert crossing_spread("other", "", ("family",)) == 2 != shipped
    path.unlink()
    assert crossing_spread("other", "", ("family",)) == shipped


def test_results_of_studies_have_another_key(specs: Path) -> None:
    def key() -> str:
        return make_study({"batch": "1,2"}, model="llama-3.1-8b", hw="h100-sxm").key

    plain = key()
    path = put(specs / "calibration" / "h100-sxm.yaml", NORM)
    first = key()
    path.write_text(NORM.replace("50 us", "60 us"), encoding="utf-8")
    assert len({plain, first, key()}) == 3
    path.unlink()
    assert key() == plain


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("launch: 50 us", "launch: 50 s", "'kernels.norm.any.parameters.launch': 50 is outside"),
        ("norm:", "nrom:", "unknown kernel 'nrom' in 'kernels'; did you mean 'norm'?"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(old: str, new: str, message: str, specs: Path) -> None:
    path = put(specs / "calibration" / "h100-sxm.yaml", NORM.replace(old, new))
    with pytest.raises(Exception, match=r"h100-sxm\.yaml") as caught:
        decode_time()
    assert str(caught.value).startswith(f"{path}: {message}")
