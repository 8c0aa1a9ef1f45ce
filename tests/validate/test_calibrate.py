"""Fits: recovery of synthetic hardware, priors for few points, errors for too few, round trips of files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from lab.fit.shared import fit_shared
from roofline.core.errors import RooflineError, SpecError
from roofline.specs.hardware import load_hardware
from roofline.timing.calibration import Calibration, Fit, Source
from roofline.timing.calibration_files import parse_calibration, render
from roofline.timing.chains import load_calibration
from roofline.timing.intervals.kernels import Residuals
from roofline.timing.intervals.levels import crossing_spread
from roofline.timing.kernels import kernel, kernel_time
from roofline.validate.check.measured import load_row_files
from roofline.validate.fit.calibrate import fit, hold_out
from roofline.validate.score.kernels import score
from roofline.validate.tables.rows import Measurements, shape_columns
from tests.cases import sampled
from tests.validate.synthetic import times

H100 = load_hardware("h100-sxm")
H200 = load_hardware("h200-sxm")
KNOWN = {"all": Residuals(0.9, 1.0, 1.1, 40)}
PRINTED = st.text(st.characters(codec="utf-8").filter(str.isprintable), max_size=20)


def machine(**changes: float) -> dict[str, float]:
    """The constants of a synthetic machine."""
    truth = {parameter.name: parameter.default for parameter in kernel("gemm").parameters("bf16")}
    return {**truth, "launch": 6e-6, "compute_efficiency": 0.62, "memory_efficiency": 0.71, **changes}


def gemm_rows(
    count: int, truth: dict[str, float], noise: float = 0.03, name: str = "h100-sxm", least: int = 1024
) -> Measurements:
    generator = np.random.default_rng(3)
    sizes = [least * step for step in (1, 2, 3, 4, 5, 8, 12, 16)]
    frame = pd.DataFrame(
        {
            "hardware": name,
            "op": "gemm",
            "dtype": "bf16",
            "m": generator.choice([1, 4, 16, 48, 128, 200, 512, 1000, 4096, 8192], count),
            "n": generator.choice(sizes, count),
            "k": generator.choice(sizes, count),
            "kernel": "synthetic",
            "software": "synthetic 1.0",
        }
    )
    time = times(Measurements("gemm", frame, "synthetic"), load_hardware(name), truth)
    frame["latency_us"] = time * 1e6 * np.exp(noise * generator.standard_normal(count))
    return Measurements("gemm", frame, "synthetic")


def error(calibration: Calibration, truth: dict[str, float]) -> float:
    test = gemm_rows(2000, truth, noise=0.0)
    return score([test], H100, calibration, by=("op",))[0].mape


def test_500_points_recover_the_constants() -> None:
    truth = machine()
    found = fit([gemm_rows(500, truth)], H100)
    assert error(found, truth) < 0.02
    constants = found.fits["gemm", "bf16"].parameters
    assert constants["compute_efficiency"] == pytest.approx(0.62, rel=0.08)
    assert constants["memory_efficiency"] == pytest.approx(0.71, rel=0.08)


def with_caches(op: str, rows: pd.DataFrame, truth: dict[str, float], noise: float = 0.0) -> Measurements:
    """The rows as the machine runs them, with the caches that the column `cache` says."""
    time = times(Measurements(op, rows, "synthetic"), H100, truth)
    scatter = np.exp(noise * np.random.default_rng(5).standard_normal(len(rows)))
    return Measurements(op, rows.assign(latency_us=time * 1e6 * scatter), "synthetic")


def decode_rows(count: int, caches: list[str]) -> pd.DataFrame:
    generator = np.random.default_rng(4)
    kv_heads = generator.choice([1, 2, 4, 8], count)
    return pd.DataFrame(
        {
            "hardware": "h100-sxm",
            "op": "attention_decode",
            "dtype": "bf16",
            "kv_dtype": "bf16",
            "batch": generator.choice([1, 2, 4, 16, 64], count),
            "q_len": 1,
            "kv_len": generator.choice([128, 512, 1000, 4096, 16384], count),
            "heads": kv_heads * generator.choice([1, 4, 8], count),
            "kv_heads": kv_heads,
            "head_dim": 128,
            "window": 0,
            "cache": generator.choice(caches, count),
        }
    )


@pytest.mark.parametrize("caches", sampled([["cold"], ["warm"], ["cold", "warm"]], 1))
def test_rows_are_fitted_with_their_cache_state(caches: list[str]) -> None:
    """A machine whose L2 is three times as fast as its memory is found again from rows of any kind.

    Its predictions of cold rows are right whichever it was fitted on, and rows scored without a word of their caches
    would be off.
    """
    truth = {parameter.name: parameter.default for parameter in kernel("attention_decode").parameters("bf16")}
    truth |= {"launch": 7e-6, "memory_efficiency": 0.75, "l2_speedup": 3.0, "unit_bandwidth": 200e9}
    found = fit([with_caches("attention_decode", decode_rows(600, caches), truth, noise=0.02)], H100)
    for kind in ("cold", "warm"):
        (group,) = score([with_caches("attention_decode", decode_rows(400, [kind]), truth)], H100, found, by=("op",))
        assert group.mape < (0.03 if caches[0] == kind or len(caches) > 1 else 0.15), kind
    cold = with_caches("attention_decode", decode_rows(400, ["cold"]), truth)
    silent = Measurements(cold.op, cold.frame.drop(columns="cache"), "synthetic")
    assert score([silent], H100, found, by=("op",))[0].mape > 0.05


@pytest.mark.slow
def test_cold_gemm_rows_are_fitted_cold() -> None:
    """Weights that fit the L2 several times over: taken for replayed they would seem to need no memory at all."""
    truth = machine(launch=2e-6)
    rows = gemm_rows(600, truth).frame.assign(cache="cold")
    small = rows[(rows["m"] <= 16) & (rows["n"] * rows["k"] < 2**22)]
    part = with_caches("gemm", rows, truth, noise=0.02)
    found = fit([part], H100)
    assert found.fits["gemm", "bf16"].parameters["memory_efficiency"] == pytest.approx(0.71, rel=0.05)
    assert score([with_caches("gemm", small, truth)], H100, found, by=("op",))[0].mape < 0.03


def test_optional_parameters(tmp_path: Path) -> None:
    """A file without them is read as having none of their effect; a fit finds them from 40 rows all the same."""
    (kept,) = [kept for kept in load_row_files() if kept.name == "xeon-2-threads"]
    inherited = load_calibration(kept.hardware)
    content = yaml.safe_load(render(inherited))
    for formats in content["kernels"].values():
        for body in formats.values():
            for name in ("cycles", "page", "packing", "vector_rows", "head_slowdown"):
                body["parameters"].pop(name, None)
    prior = replace(parse_calibration(content, "cpu.yaml"), parents=())
    lacking = prior.fits["softmax", "any"].parameters
    assert (lacking["cycles"], lacking["page"]) == (1e-6, 1e-24)
    assert prior.fits["gemm", "fp32"].parameters["packing"] == 1e-6
    truth = {"launch": 6e-6, "memory_efficiency": 0.9, "cycles": 1.2, "page": 2e-6}
    generator = np.random.default_rng(1)
    frame = pd.DataFrame(
        {"rows": generator.choice([1, 8, 64, 500, 4000, 32000], 40), "columns": generator.choice([512, 3000], 40)}
    )
    frame = frame.assign(
        hardware=kept.hardware.name, op="softmax", dtype=generator.choice(["fp32", "bf16"], 40), cache="cold"
    )
    time = kernel_time("softmax", shape_columns("softmax", frame), kept.hardware, truth)
    frame["latency_us"] = time * 1e6 * np.exp(0.02 * generator.standard_normal(40))
    found = fit([Measurements("softmax", frame, "synthetic")], kept.hardware, prior).fits["softmax", "any"]
    assert found.parameters["cycles"] == pytest.approx(1.2, rel=0.1)
    assert found.parameters["page"] == pytest.approx(2e-6, rel=0.1)


@pytest.mark.slow
def test_cpu_parameters_are_not_fitted_to_gpus() -> None:
    """They stay what has no effect, and cost no rows."""
    found = fit([gemm_rows(600, machine())], H100).fits["gemm", "bf16"].parameters
    assert (found["packing"], found["vector_rows"]) == (1e-6, 1)
    assert "packing" not in render(
        Calibration("h100-sxm", "calibrated", {("gemm", "bf16"): Fit("gemm", "bf16", found)})
    )


def test_50_points_and_a_prior_recover_the_constants() -> None:
    truth = machine()
    prior = Calibration(
        "hopper", "family", {("gemm", "bf16"): Fit("gemm", "bf16", machine(launch=4e-6, compute_efficiency=0.8))}
    )
    found = fit([gemm_rows(5000, truth)], H100, prior, points=50)
    assert found.fits["gemm", "bf16"].rows == 50
    assert error(found, truth) < 0.03
    assert error(prior, truth) > 0.1


def test_outliers_do_not_bend_a_fit() -> None:
    truth = machine()
    rows = gemm_rows(600, truth)
    rows.frame.loc[rows.frame.index[:30], "latency_us"] *= 20
    assert error(fit([rows], H100), truth) < 0.03


def test_intervals_cover_80_percent() -> None:
    truth = machine()
    found = fit([gemm_rows(1500, truth, noise=0.08)], H100)
    test = gemm_rows(3000, truth, noise=0.08)
    (group,) = score([test], H100, found, by=("op",))
    assert 0.75 < group.interval_coverage < 0.85
    assert group.rows == 3000


@pytest.mark.slow
def test_unusual_shapes_have_separate_intervals() -> None:
    """GEMMs of few columns scatter four times as much here: one interval for all would fit neither."""
    truth = machine()
    usual, narrow = gemm_rows(1500, truth, noise=0.05), gemm_rows(1500, truth, noise=0.2, least=64)
    found = fit([Measurements("gemm", pd.concat([usual.frame, narrow.frame], ignore_index=True), "both")], H100)
    residuals = found.fits["gemm", "bf16"].residuals
    assert residuals["m>=4096, n or k < 1024"].high > 1.1 > residuals["m>=4096"].high
    for rows in (usual, narrow):
        (group,) = score([rows], H100, found, by=("op",))
        assert 0.72 < group.interval_coverage < 0.88


def test_too_few_points_are_an_error_with_the_least_number() -> None:
    with pytest.raises(RooflineError, match="10 rows of gemm in bf16 are too few to fit; at least 33 are needed"):
        fit([gemm_rows(10, machine())], H100)
    with pytest.raises(RooflineError, match="at least 20 are needed"):
        fit([gemm_rows(10, machine())], H100, load_calibration(H100))


@pytest.mark.slow
def test_a_family_is_fitted_together() -> None:
    truth = machine()
    members = [(H100, [gemm_rows(300, truth)]), (H200, [gemm_rows(300, truth, name="h200-sxm")])]
    shared = fit_shared("hopper", members)
    assert shared.basis == "family"
    assert error(shared, truth) < 0.03


def test_whole_shapes_are_held_out() -> None:
    rows = gemm_rows(2000, machine())
    held = hold_out(rows)
    pairs = set(map(tuple, rows.frame.loc[held, ["n", "k"]].to_numpy().tolist()))
    others = set(map(tuple, rows.frame.loc[~held, ["n", "k"]].to_numpy().tolist()))
    assert pairs
    assert others
    assert not pairs & others


def test_a_file_round_trips() -> None:
    found = fit([gemm_rows(400, machine())], H100)
    text = render(found)
    again = parse_calibration(yaml.safe_load(text), "file")
    for key, own in found.fits.items():
        other = again.fits[key]
        assert other.rows == own.rows
        assert dict(other.parameters) == pytest.approx(dict(own.parameters), rel=1e-3)
        assert other.residuals.keys() == own.residuals.keys()
        assert other.ranges == own.ranges


@given(text=st.one_of(st.sampled_from(["null", "True", "yes", "ON", "n", "~", "1e3", "2026-11-20", "a: b"]), PRINTED))
def test_any_text_round_trips(text: str) -> None:
    source = Source(text, "", (text,), None, text)
    again = parse_calibration(yaml.safe_load(render(Calibration(text or "x", "calibrated", {}, source))), "file")
    assert (again.name, again.source) == (text or "x", source)


def test_the_search_path_has_calibrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("plain", "nested/hwspecs"):
        path = tmp_path / folder / "calibration" / "h100-sxm.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(f"name: {folder.split('/')[0]}\nkernels: {{}}\n")
        monkeypatch.setenv("ROOFLINE_SPECS", str(tmp_path / folder.split("/")[0]))
        names = [link.name for link in load_calibration(H100).chain if not link.engine]
        assert names == [folder.split("/")[0], "h100-sxm", "nvlink", "hopper", "h200-sxm", "pooled"]
    monkeypatch.setenv("ROOFLINE_SPECS", str(tmp_path / "absent"))
    with pytest.raises(RooflineError, match="does not exist"):
        load_calibration(H100)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"nam": "x"}, "unknown key 'nam'"),
        ({"kernels": {"gem": {}}}, "unknown kernel 'gem'"),
        ({"kernels": {"gemm": {"bf16": {}}}}, "the key .kernels.gemm.bf16.parameters. is missing"),
        ({"kernels": {"gemm": {"bf16": []}}}, "must be a mapping"),
        ({"kernels": {"gemm": {"bf16": {"parameters": {"launch": "4 us"}}}}}, "is missing"),
        ({"kernels": {"gemm": {"fp99": {"parameters": {}}}}}, "unknown kernel format"),
    ],
)
def test_invalid_files(change: dict[str, object], message: str) -> None:
    content = {"name": "x", "source": {}, "kernels": {}, **change}
    with pytest.raises(SpecError, match=message) as caught:
        parse_calibration(content, "file.yaml")
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_constant_out_of_bounds_is_refused() -> None:
    found = fit([gemm_rows(400, machine())], H100)
    content = yaml.safe_load(render(found))
    content["kernels"]["gemm"]["bf16"]["parameters"]["compute_efficiency"] = 1.4
    with pytest.raises(SpecError, match=r"compute_efficiency.*1.4 is outside"):
        parse_calibration(content, "file.yaml")


def test_score_has_the_fields_of_the_document() -> None:
    rows = gemm_rows(300, machine())
    groups = score([rows], by=("op", "format", "regime", "hardware"))
    document = {"groups": [group.document for group in groups]}
    first = document["groups"][0]
    assert list(first) == [
        "op", "format", "regime", "hardware", "engine", "version", "rows", "mape", "median_ape", "p90_ape", "bias",
        "bound_mape",
        "interval_coverage",
    ]  # fmt: skip
    assert sum(group["rows"] for group in document["groups"]) == 300
    assert {group["hardware"] for group in document["groups"]} == {"h100-sxm"}


def test_unknown_hardware_is_scored_as_another() -> None:
    rows = gemm_rows(100, machine())
    foreign = Measurements("gemm", rows.frame.assign(hardware="h900"), "file.csv")
    with pytest.raises(RooflineError, match=r"unknown hardware .*name the hardware to score it as"):
        score([foreign])
    assert score([foreign], H100, by=("op",))[0].rows == 100


def test_an_unmeasured_format_uses_a_relative() -> None:
    calibration = load_calibration(H100)
    own = calibration.find("gemm", "bf16")
    other = calibration.find("gemm", "fp32")
    assert own is not None
    assert other is not None
    assert other.spread > own.spread == crossing_spread("gemm", "bf16", ("table",))
    assert replace(calibration, fits={}, parents=()).find("gemm", "bf16") is None
    bare = replace(calibration, fits={}, parents=())
    expected = bare.expected("gemm", {"dtype": "bf16", "m": 1.0, "n": 64.0, "k": 64.0}, H100)
    assert expected.basis == "bound"
    assert expected.low == expected.high


def test_small_numbers_round_trip() -> None:
    """YAML 1.1 takes 1e-06 for text."""
    names = kernel("attention_decode").parameters("bf16")
    constants = {parameter.name: parameter.default for parameter in names}
    found = Calibration(
        "x", "family", {("attention_decode", "bf16"): Fit("attention_decode", "bf16", constants, KNOWN)}
    )
    text = render(found)
    assert "head_slowdown" not in text, "what a calibration may lack is left out where it says nothing"
    tiny = {**constants, "head_slowdown": 2e-6, "split_single": 1.0}
    changed = replace(found, fits={("attention_decode", "bf16"): Fit("attention_decode", "bf16", tiny, KNOWN)})
    read = parse_calibration(yaml.safe_load(render(changed)), "x").fits["attention_decode", "bf16"]
    assert read.parameters["head_slowdown"] == 2e-6


def test_a_fit_may_have_its_own_source() -> None:
    constants = {parameter.name: parameter.default for parameter in kernel("gemm").parameters("bf16")}
    fits = {("gemm", "bf16"): Fit("gemm", "bf16", constants, KNOWN, source="others, 2026")}
    found = Calibration("x", "family", fits, Source("ours"))
    read = parse_calibration(yaml.safe_load(render(found)), "x", "family")
    match = read.find("gemm", "bf16")
    assert match is not None
    assert match.source == "others, 2026"
