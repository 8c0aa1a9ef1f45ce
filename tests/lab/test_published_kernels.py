"""Published kernel timings: errors of the bundled constants, and that the constants are fitted to them."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from lab.fit.ship import shared
from lab.observation.collector import Collector
from lab.score.accuracy import Data, load
from roofline.core.documents import read_mapping
from roofline.specs.hardware import load_hardware
from roofline.timing.calibration import Source
from roofline.timing.calibration_files import parse_calibration
from roofline.timing.chains import load_calibration
from roofline.validate.fit.calibrate import constants_of, log_errors
from roofline.validate.tables.rows import Measurements
from tests.paths import ROOT

DATA = ROOT / "lab" / "data"
CDNA, DELTA, TOP_K = (load(DATA / name) for name in ("cdna", "gated_delta_rule", "top_k"))


def parts(data: Data) -> list[tuple[str, str, str]]:
    return [(name, op, form) for name, ops in data.items() for op, part in ops.items() for form in part.formats()]


def errors(data: Data, name: str, op: str, form: str, basis: str | None = None, link: str = "") -> np.ndarray:
    """Relative errors of the shipped constants, or of those of a basis in the chain, whose names start with `link`."""
    hardware, rows = load_hardware(name), data[name][op].formats()[form]
    calibration = load_calibration(hardware)
    if basis is not None:
        first, *rest = (found for found in calibration.chain if found.basis == basis and found.name.startswith(link))
        calibration = replace(first, parents=tuple(rest))
    match = calibration.find(op, form)
    assert match is not None
    assert isinstance(rows, Measurements)
    return np.abs(np.expm1(log_errors(rows, hardware, constants_of(match.fit), Collector())))


@pytest.mark.parametrize(("name", "op", "form"), parts(CDNA))
def test_amd_constants_are_better_than_pooled_ones(name: str, op: str, form: str) -> None:
    own, others = errors(CDNA, name, op, form), errors(CDNA, name, op, form, basis="pooled")
    assert np.median(own) < 0.2
    assert np.mean(own) < 0.9 * np.mean(others)


@pytest.mark.parametrize(("name", "op", "form"), parts(DELTA))
def test_published_gated_delta_rule(name: str, op: str, form: str) -> None:
    """Constants of the device's family are made from the kernels' own benchmarks; engines have their own constants."""
    assert np.mean(errors(DELTA, name, op, form, "family", load_hardware(name).family)) < 0.1


@pytest.mark.parametrize(("name", "op", "form"), parts(TOP_K))
def test_published_top_k(name: str, op: str, form: str) -> None:
    assert np.median(errors(TOP_K, name, op, form)) < 0.3


@pytest.mark.parametrize(
    ("data", "names"), [(DELTA, ("hopper", "blackwell", "blackwell-gddr")), (TOP_K, ("pooled", "blackwell"))]
)
def test_the_bundled_constants_are_fitted_to_these_rows(data: Data, names: tuple[str, ...]) -> None:
    found = {calibration.name: calibration for calibration in shared(data, Source())}
    for name in names:
        path = ROOT / "hwspecs" / "calibration" / f"{name}.yaml"
        shipped = parse_calibration(read_mapping(path), name, "family").fits
        for key, fit in found[name].fits.items():
            assert shipped[key].rows == fit.rows
            assert dict(shipped[key].parameters) == pytest.approx(dict(fit.parameters), rel=0.02)
