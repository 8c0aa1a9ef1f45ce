"""`roofline validate fit` and `score`, on synthetic measurements."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from roofline import cli, load_hardware
from roofline.specs.hardware import Hardware

H100 = load_hardware("h100-sxm")


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["roofline", *words])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    return int(stop.value.code or 0), captured.out, captured.err


def measured(path: Path, hardware: Hardware, rows: int = 200, slower: float = 1.25, launch: float = 4e-6) -> Path:
    """GEMM times: launch + 1.25 x bound, with 2% noise."""
    random = np.random.default_rng(3)
    m, n, k = (2 ** random.integers(low, high, rows) for low, high in ((4, 13), (10, 14), (10, 14)))
    bound = np.maximum(
        2.0 * m * n * k / hardware.tensor["bf16"], 2.0 * (m * k + n * k + m * n) / hardware.memory_bandwidth
    )
    seconds = (launch + slower * bound) * np.exp(0.02 * random.standard_normal(rows))
    frame = pd.DataFrame({"m": m, "n": n, "k": k}).drop_duplicates()
    frame = frame.assign(
        hardware=hardware.name, op="gemm", dtype="bf16", latency_us=1e6 * seconds[frame.index], kernel="x", software="y"
    )
    frame.to_csv(path, index=False)
    return path


@pytest.fixture
def measurements(tmp_path: Path) -> Path:
    return measured(tmp_path / "measured.csv", H100)


def test_fit_then_score(
    measurements: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay = tmp_path / "specs" / "calibration"
    overlay.mkdir(parents=True)
    fitted = overlay / "h100-sxm.yaml"
    status, _, err = run(
        capsys, monkeypatch, "validate", "fit", str(measurements), "--hw", "h100-sxm", "--output", str(fitted)
    )
    assert (status, err) == (0, "roofline: the rows are of no single engine: fitted as this machine's own\n")
    written = yaml.safe_load(fitted.read_text())
    assert written["source"]["command"] == f"roofline validate fit {measurements.name} --hw h100-sxm"
    constants = written["kernels"]["gemm"]["bf16"]
    assert set(constants) >= {"rows", "parameters", "range", "residuals"}
    monkeypatch.setenv("ROOFLINE_SPECS", str(tmp_path / "specs"))
    status, out, _ = run(capsys, monkeypatch, "validate", "score", str(measurements), "--by", "op", "--format", "json")
    (group,) = json.loads(out)["groups"]
    assert status == 0
    assert group["op"] == "gemm"
    assert group["mape"] < 0.06 < 0.15 < group["bound_mape"]
    assert 0.6 < group["interval_coverage"] < 1


@pytest.mark.parametrize("format", ["table", "csv", "markdown"])
def test_score_prints_every_format(
    format: str, measurements: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = run(capsys, monkeypatch, "validate", "score", str(measurements), "--format", format)
    assert (status, err) == (0, "")
    assert "gemm" in out


def test_bad_measurements(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    good = measured(tmp_path / "good.csv", H100).read_text()
    header, first, *rest = good.splitlines()
    latency = header.split(",").index("latency_us")

    def with_latency(value: str) -> str:
        cells = first.split(",")
        cells[latency] = value
        return ",".join(cells)

    cases = {
        "empty": ("", "empty"),
        "columns": ("m,n\n1,2\n", "op"),
        "zero": ("\n".join([header, with_latency("0"), *rest]), "row 1"),
        "negative": ("\n".join([header, with_latency("-3"), *rest]), "row 1"),
        "missing": ("\n".join([header, with_latency(""), *rest]), "row 1"),
        "twice": ("\n".join([header, first, first, *rest]), "row"),
        "op": (good.replace(",gemm,", ",gemmm,"), "gemm"),
    }
    for name, (text, word) in cases.items():
        path = tmp_path / f"{name}.csv"
        path.write_text(text)
        status, out, err = run(capsys, monkeypatch, "validate", "fit", str(path), "--hw", "h100-sxm")
        assert (status, out) == (2, ""), name
        assert err.count("\n") == 1, name
        assert word in err, (name, err)
        assert "Traceback" not in err


def test_too_few_points_report_the_minimum(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = measured(tmp_path / "few.csv", H100, rows=5)
    status, _, err = run(capsys, monkeypatch, "validate", "fit", str(path), "--hw", "h100-sxm")
    assert status == 2
    assert any(character.isdigit() for character in err)


WHOLE_MODEL = "model,hardware,gpus,engine,weights,kv,batch,input_len,output_len,metric,value,unit,source\n"
OF_VLLM = "llama-3.1-8b,{},1,vLLM 0.11.0,,,{},512,128,{},{},ms,x\n"
CLOSED = [OF_VLLM.format("h100-sxm", f"closed loop {users}", "tpot_mean", time) for users, time in ((4, 8), (16, 10))]
UNKNOWN = OF_VLLM.format("a-card-of-no-spec", "closed loop 4", "tpot_mean", 8)


def test_a_check_of_rows_needs_all_of_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A static batch among loads is a row of its own; a row that cannot be predicted stops the check, and is named."""
    path, committed = tmp_path / "rows.csv", tmp_path / "golden.yaml"
    words = ("validate", "check", "--anchors", str(path), "--predictions", str(committed), "--accept")
    path.write_text(WHOLE_MODEL + "".join([*CLOSED, UNKNOWN]))
    status, out, err = run(capsys, monkeypatch, *words)
    assert (status, out) == (2, "")
    assert "row 3: " in err
    assert not committed.exists()
    path.write_text(WHOLE_MODEL + "".join([*CLOSED, OF_VLLM.format("h100-sxm", 1, "tpot", 7)]))
    assert run(capsys, monkeypatch, *words)[0] == 0
    assert len(yaml.safe_load(committed.read_text())["predictions"]) == 3


@pytest.mark.slow
def test_a_fit_leaves_out_rows_that_it_cannot_predict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = []
    for more in ("", UNKNOWN):
        path, profile = tmp_path / "rows.csv", tmp_path / "own.yaml"
        path.write_text(WHOLE_MODEL + "".join([*CLOSED, more]))
        status, _, err = run(capsys, monkeypatch, "validate", "fit", str(path), "--output", str(profile))
        assert status == 0, err
        assert len(err.splitlines()) == (2 if more else 1)  # what is left out is told
        fitted.append(profile.read_text())
    assert fitted[0] == fitted[1]
