"""Bundled calibrations: all of them, product lines and families only, and added fits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from lab.fit.ship import main, of_others
from roofline.core.documents import read_mapping
from roofline.specs.hardware import load_hardware
from roofline.timing.calibration_files import parse_calibration
from roofline.timing.kernels import kernel, kernel_time
from roofline.timing.kernels.gated_delta_rule import CHUNKED, FUSED
from roofline.validate.tables.rows import shape_columns

SIZES = [1024, 1536, 2048, 3072, 4096, 6144, 8192]


def gemm_rows(path: Path, name: str, efficiency: float, count: int = 90) -> None:
    generator = np.random.default_rng(7)
    frame = pd.DataFrame({"hardware": name, "op": "gemm", "dtype": "bf16", "cache": "cold", "bare": 1}, range(count))
    frame["software"] = "synthetic 1.0"
    for size, choices in (("m", [1, 16, 128, 512, 2048, 8192]), ("n", SIZES), ("k", SIZES)):
        frame[size] = generator.choice(choices, count)
    frame = frame.drop_duplicates()
    truth = {parameter.name: parameter.default for parameter in kernel("gemm").parameters("bf16")}
    truth["compute_efficiency"] = efficiency
    columns = shape_columns("gemm", frame)
    frame["latency_us"] = kernel_time("gemm", columns, load_hardware(name), truth) * 1e6
    frame.to_csv(path / f"{name}.csv", index=False)


def recurrences(path: Path, name: str, token: float) -> None:
    shapes = [(batch, tokens, heads) for batch in (1, 4) for tokens in (1024, 4096, 16384) for heads in (8, 16, 32, 64)]
    frame = pd.DataFrame(shapes, columns=["batch", "q_len", "heads"])
    frame = pd.concat([frame.assign(variant=variant) for variant in (CHUNKED, FUSED)], ignore_index=True)
    frame = frame.assign(hardware=name, op="gated_delta_rule", key_dim=128, value_dim=128, cache="cold", software="any")
    truth = {parameter.name: parameter.default for parameter in kernel("gated_delta_rule").parameters("any")}
    for variant in (CHUNKED, FUSED):
        rows = frame["variant"] == variant
        columns = shape_columns("gated_delta_rule", frame[rows])
        time = kernel_time("gated_delta_rule", columns, load_hardware(name), {**truth, "token": token})
        frame.loc[rows, "latency_us"] = time * 1e6
    frame.to_csv(path / f"{name}.delta.csv", index=False)


def test_lines_and_families_leave_the_pooled_calibration(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows", tmp_path / "out"
    rows.mkdir()
    output.mkdir()
    gemm_rows(rows, "mi300x", 0.45)
    gemm_rows(rows, "mi355x", 0.60)
    assert main([str(rows), "--output", str(output), "--families", "--repository", "here"]) == 0
    assert sorted(path.name for path in output.iterdir()) == ["cdna.yaml", "cdna3.yaml", "cdna4.yaml"]
    fits = {
        name: parse_calibration(read_mapping(output / f"{name}.yaml"), name, "family").fits["gemm", "bf16"]
        for name in ("cdna", "cdna3", "cdna4")
    }
    assert fits["cdna3"].parameters["compute_efficiency"] == pytest.approx(0.45, rel=0.05)
    assert fits["cdna4"].parameters["compute_efficiency"] == pytest.approx(0.60, rel=0.05)
    assert 0.44 < fits["cdna"].parameters["compute_efficiency"] < 0.61
    assert fits["cdna"].residuals["all"].low < 0.9, "each family predicted from the other"


def test_families_with_few_rows_inherit_from_their_line(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows", tmp_path / "out"
    rows.mkdir()
    output.mkdir()
    gemm_rows(rows, "mi300x", 0.45, count=40)
    gemm_rows(rows, "mi355x", 0.60)
    assert main([str(rows), "--output", str(output), "--families"]) == 0
    assert "gemm" not in read_mapping(output / "cdna3.yaml")["kernels"]
    assert "gemm" in read_mapping(output / "cdna.yaml")["kernels"]


def test_fits_are_added_to_existing_files(tmp_path: Path) -> None:
    rows, output = tmp_path / "rows", tmp_path / "out"
    rows.mkdir()
    output.mkdir()
    for name in ("h100-sxm", "a100-sxm-80gb"):
        gemm_rows(rows, name, 0.5)
    assert main([str(rows), "--output", str(output), "--repository", "first"]) == 0
    before = {path.name: read_mapping(path) for path in output.iterdir()}
    (rows / "h100-sxm.csv").unlink()
    (rows / "a100-sxm-80gb.csv").unlink()
    for name, token in (("h100-sxm", 20e-9), ("a100-sxm-80gb", 40e-9)):
        recurrences(rows, name, token)
    assert main([str(rows), "--output", str(output), "--add", "--repository", "second"]) == 0
    after = {path.name: read_mapping(path) for path in output.iterdir()}
    assert after.keys() == before.keys()
    for name, content in after.items():
        assert {**content, "kernels": None} == {**before[name], "kernels": None}
        assert content.get("kernels", {}).get("gemm") == before[name].get("kernels", {}).get("gemm")
    assert set(after["pooled.yaml"]["kernels"]["gated_delta_rule"]) == {CHUNKED}, "others do not have the fused kernel"
    hopper = after["hopper.yaml"]["kernels"]["gated_delta_rule"]
    assert set(hopper) == {CHUNKED, FUSED}
    assert "second" in hopper[FUSED]["source"]
    assert "gated_delta_rule" not in after["h100-sxm.yaml"]["kernels"]
    for path in rows.iterdir():
        path.unlink()
    for name in ("h100-sxm", "a100-sxm-80gb"):
        gemm_rows(rows, name, 0.6)
    assert main([str(rows), "--output", str(output), "--repository", "third"]) == 0
    again = read_mapping(output / "hopper.yaml")
    assert again["source"]["repository"] == "third"
    assert again["kernels"]["gated_delta_rule"] == hopper, "what came from others stays"


def test_a_refit_keeps_what_an_engine_has_from_other_measurements() -> None:
    bundled = Path(__file__).parents[2] / "hwspecs/calibration"
    there = {key for fits in of_others(bundled / "vllm" / "pooled.yaml", set()).values() for key in fits}
    fitted = {key for key in there if key[0] == "kimi_delta"}
    found = of_others(bundled / "vllm" / "pooled.yaml", fitted)
    kept = {key for fits in found.values() for key in fits}
    assert {"sparse_decode", "encoder_attention"} <= {op for op, _ in kept}
    assert fitted
    assert kept == there - fitted
    assert "mla_decode" not in {op for op, _ in kept}  # of the tables that are fitted whole
    beside = of_others(bundled / "sglang" / "blackwell.yaml", {("gemm", "fp8_block")})
    assert any(("gemm", "fp8_block_flashinfer") in fits for fits in beside.values())
    assert all(fit.source for fits in found.values() for fit in fits.values())
    assert of_others(bundled / "vllm" / "absent.yaml", set()) == {}
