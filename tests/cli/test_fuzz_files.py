"""Fuzzing of calibrations, engine profiles, predictions, anchors, studies and measurements, which others write, too.

Every value of a file in turn becomes one of a list of hostile values, so that the cases are the same in every run.
"""

import copy
import datetime
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from roofline import RooflineError, Scenario, analyze, load_hardware, load_model
from roofline.core.documents import finite_number, read_mapping
from roofline.reports.documents.analysis import analysis_document
from roofline.reports.output.export import as_json
from roofline.specs.engine import load_engine
from roofline.specs.engine_files import parse_engine
from roofline.timing.calibration_files import parse_calibration
from roofline.validate.check.anchor import FOLDER, read_anchors
from roofline.validate.check.check import PREDICTIONS, read_predictions
from roofline.validate.fit.calibrate import fitted
from roofline.validate.score.kernels import score_file
from roofline.validate.tables.rows import read_measurements
from roofline.whatif.study import read_study
from tests.conftest import Run
from tests.fuzzing import HUGE, attempt, disordered, dumped, measured_gemms, mutants
from tests.paths import ROOT

pytestmark = pytest.mark.slow


def check_times(scenario: Scenario) -> None:
    """No figure of an analysis is out of order, and its document is JSON."""
    document = analysis_document(analyze(scenario))
    assert not disordered(document)
    as_json(document)


PROFILE = yaml.safe_load((ROOT / "roofline" / "specs" / "engines" / "vllm.yaml").read_text("utf-8"))


@pytest.mark.parametrize("value", [HUGE, -HUGE, 1e308, float("nan"), None, [], "text"])
@pytest.mark.parametrize("key", [("parameters", "memory"), ("parameters", "step"), ("spread", 1), ("shared_stream",)])
def test_values_of_profiles(key: tuple[Any, ...], value: object) -> None:
    content = copy.deepcopy(PROFILE)
    holder: Any = content
    for part in key[:-1]:
        holder = holder[part]
    holder[key[-1]] = value
    with pytest.raises(RooflineError, match=str(key[0])):
        parse_engine(content, "own.yaml")


def test_profiles() -> None:
    model, hardware = load_model("llama-3.2-1b"), load_hardware("h100-sxm")
    for content in mutants(PROFILE, 150):
        engine = attempt(lambda content=content: parse_engine(content, "own.yaml"))  # type: ignore[misc]
        if engine is not None:
            check_times(Scenario(model, hardware, batch=2, prompt=64, generate=8, engine=engine))


@pytest.mark.parametrize("prefill", [0.2, 0.5])
def test_a_profile_faster_than_physics_runs_at_the_bound(prefill: float) -> None:
    engine = parse_engine({**PROFILE, "parameters": {"memory": 1.5, "prefill": prefill}}, "own.yaml")
    check_times(Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), prompt=8192, engine=engine))


@pytest.mark.parametrize(
    ("parameters", "spread", "workload"),
    [
        ({"prefill": 0.2}, [1, 1], {"prompt": 512, "generate": 128}),
        ({"prefill": 0.2, "launch": 10, "step": "50 ms"}, [0.3, 1], {"batch": 17, "prompt": 5000, "generate": 100}),
        ({"prefill": 3, "launch": 10, "step": "50 ms"}, [0.3, 1], {"batch": 17, "prompt": 5000, "generate": 3}),
        ({"memory": 0.3, "launch": 0.1, "prefill": 3}, [0.5, 2], {"batch": 17, "prompt": 1024, "generate": 2}),
    ],
)
@pytest.mark.parametrize(("model", "hardware"), [("llama-3.1-8b", "h100-sxm"), ("deepseek-v3.2", "a100-sxm-80gb")])
def test_energy_and_times_of_any_profile_are_in_order(
    parameters: Any, spread: Any, workload: Any, model: str, hardware: str
) -> None:
    content = {**PROFILE, "parameters": parameters, "spread": spread, "graphs": ["prefill", "decode"]}
    engine = parse_engine(content, "own.yaml")
    check_times(Scenario(load_model(model), load_hardware(hardware), engine=engine, **workload))


def test_intervals_of_offloaded_models(run: Run) -> None:
    options = "--batch 17 --prompt 1 --quant nvfp4 --offload weights=1,kv=1 --format json"
    status, out, err = run("analyze", "deepseek-v3.2", "--hw", "rtx-5090", *options.split())
    assert (status, err) == (0, "")
    assert not disordered(json.loads(out))


CALIBRATION = yaml.safe_load((ROOT / "hwspecs" / "calibration" / "a100-sxm-80gb.yaml").read_text("utf-8"))


def test_calibrations() -> None:
    small = {**CALIBRATION, "kernels": {"gemm": CALIBRATION["kernels"]["gemm"]}}
    for content in mutants(small, 400):
        found = attempt(lambda content=content: parse_calibration(content, "own.yaml"))  # type: ignore[misc]
        for fit in found.fits.values() if found else ():
            for residual in fit.residuals.values():
                assert 0 < residual.low <= residual.mid <= residual.high < float("inf")


def test_predictions_and_anchors(tmp_path: Path) -> None:
    content = read_mapping(PREDICTIONS)
    content = {name: dict(list((content[name] or {}).items())[:6]) for name in ("moved", "kernels", "predictions")}
    path = tmp_path / "predictions.yaml"
    for changed in mutants(content, 60):
        path.write_text(dumped(changed), "utf-8")
        attempt(lambda: read_predictions(path))
    anchors = read_mapping(sorted(FOLDER.glob("*.yaml"))[0])
    anchors["anchors"] = anchors["anchors"][:2]
    for changed in mutants(anchors, 60):
        path.write_text(dumped(changed), "utf-8")
        attempt(lambda: read_anchors(path))


STUDY = {
    "model": "llama-3.2-1b",
    "generate": 8,
    "over": {"hw": ["h100-sxm", "a6000"], "batch": "1:4:log2"},
    "metrics": ["ttft", "tpot"],
    "where": "fits",
    "top": 2,
    "by": "tpot",
}


def test_studies(tmp_path: Path) -> None:
    from roofline.whatif.study import assemble

    path = tmp_path / "study.yaml"
    for changed in mutants(STUDY, 120):
        path.write_text(dumped(changed), "utf-8")
        attempt(lambda: read_study(path))
        attempt(lambda: assemble(str(path), (), {}, {}))


@pytest.mark.parametrize("axis", ["hw", "model"])
def test_an_axis_of_null(axis: str, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, "over": {"batch": [1, 2], "hw": ["a6000"], axis: [None]}, "model": None}))
    status, out, err = run("sweep", path)
    assert (status, out) == (2, "")
    assert axis in err
    assert err.count("\n") == 1


# Measurements

CELLS: dict[str, Any] = {
    "text": "many",
    "number as text": "64",
    "blank": " ",
    "nothing": None,
    "truth": True,
    "bytes": b"64",
    "list": [64],
    "mapping": {"a": 64},
    "decimal": Decimal(64),
    "huge": HUGE,
    "huge text": "9" * 400,
    "infinity": float("inf"),
    "date": datetime.date(2026, 1, 1),
    "complex": 64j,
    "large": 1e300,
    "tiny": 5e-324,
}


OF_EACH_SORT = ("op", "dtype", "m", "latency_us", "cache", "bare")
"""Columns: a name, a format, a size, the time, a choice, one that may be empty."""


@pytest.fixture
def frame() -> pd.DataFrame:
    return measured_gemms(24)


def read(path: Path) -> None:
    """Everything that reads a file of measurements."""
    if attempt(lambda: read_measurements(path)) is None:
        return
    found: Any = attempt(lambda: score_file(path, None, ["hardware", "op", "format", "regime"]))
    if found is not None:
        attempt(lambda: as_json(found))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.filterwarnings("ignore")
def test_columns_of_other_types(frame: pd.DataFrame, tmp_path: Path, cell: str) -> None:
    """One cell of a text file; all of a column of a typed one."""
    for name in OF_EACH_SORT:
        column = [CELLS[cell], *frame[name].astype(object).tolist()[1:]]
        frame.assign(**{name: pd.Series(column, dtype=object)}).to_csv(tmp_path / "rows.csv", index=False)
        read(tmp_path / "rows.csv")
        try:
            all_of_it = pd.Series([CELLS[cell]] * len(frame), dtype=object)
            frame.assign(**{name: all_of_it}).to_parquet(tmp_path / "rows.parquet")
        except Exception:  # not a column that a file can hold
            continue
        read(tmp_path / "rows.parquet")


@pytest.mark.parametrize(
    "cell", ["text", "blank", "bytes", "huge text", "infinity", "date", "large", "timedelta", "tiny"]
)
@pytest.mark.parametrize("name", ["rows.csv", "rows.parquet"])
def test_cells_are_refused_with_file_row_and_column(frame: pd.DataFrame, tmp_path: Path, cell: str, name: str) -> None:
    path, value = tmp_path / name, {**CELLS, "timedelta": pd.Timedelta(1)}[cell]
    for column in ("m", "n", "k", "latency_us", "bare"):
        if column == "bare" and cell == "blank":  # a column that may be empty
            continue
        changed = frame.assign(**{column: pd.Series([value] * len(frame), dtype=object)})
        changed.to_csv(path, index=False) if path.suffix == ".csv" else changed.to_parquet(path)
        with pytest.raises(RooflineError, match=rf"{name}: '{column}' .*\(rows 1, 2, 3, 4, 5 and 19 more\)"):
            read_measurements(path)


@pytest.mark.parametrize("column", ["hardware", "op", "dtype", "kernel", "software", "cache"])
@pytest.mark.parametrize("cell", ["huge text", "large", "infinity", "truth", "bytes", "date"])
def test_names_are_short_texts(frame: pd.DataFrame, tmp_path: Path, column: str, cell: str) -> None:
    changed = frame.assign(**{column: pd.Series([CELLS[cell]] * len(frame), dtype=object)})
    changed.to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(RooflineError, match=rf"rows.parquet: .*{column}.*\(rows 1, 2, 3, 4, 5 and 19 more\)"):
        read_measurements(tmp_path / "rows.parquet")


@pytest.mark.parametrize("kind", ["category", "string", "Int64", "float32", "bool", "datetime64[ns]", "int8", "uint64"])
@pytest.mark.filterwarnings("ignore")
def test_columns_of_other_dtypes(frame: pd.DataFrame, tmp_path: Path, kind: str) -> None:
    for name in OF_EACH_SORT:
        try:
            changed = frame.assign(**{name: frame[name].astype(kind)})  # type: ignore[call-overload]
        except (ValueError, TypeError):
            continue
        changed.to_parquet(tmp_path / "rows.parquet")
        read(tmp_path / "rows.parquet")


def test_categories_and_decimals_are_read(frame: pd.DataFrame, tmp_path: Path) -> None:
    changed = frame.assign(
        dtype=frame["dtype"].astype("category"), n=pd.Series([Decimal(4096)] * len(frame), dtype=object)
    )
    changed.to_parquet(tmp_path / "rows.parquet")
    (part,) = read_measurements(tmp_path / "rows.parquet")
    assert part.columns["dtype"] == "bf16"
    assert np.all(np.asarray(part.columns["n"]) == 4096.0)


@pytest.mark.parametrize(("column", "value"), [("k", 1e300), ("latency_us", 1e300), ("latency_us", 1e-300)])
def test_fits_of_implausible_rows(frame: pd.DataFrame, tmp_path: Path, column: str, value: float) -> None:
    frame.assign(**{column: [value + row * value for row in range(len(frame))]}).to_csv(tmp_path / "rows.csv")
    with pytest.raises(RooflineError, match=column):
        fitted(tmp_path / "rows.csv", "h100-sxm", None)


# Numbers, documents and interrupted sweeps


@pytest.mark.parametrize(("value", "number"), [(1, 1.0), (HUGE, None), (True, None), ("1", None), (float("nan"), None)])
def test_finite_numbers(value: object, number: float | None) -> None:
    assert finite_number(value) == number


def test_json_names_the_figure_that_is_no_number() -> None:
    with pytest.raises(RooflineError, match=r"'phases\.0\.time'"):
        as_json({"fine": 1.0, "phases": [{"time": float("nan")}]})


@pytest.mark.parametrize("args", ["--definitions --format json", "ttft llama-3.1-8b --format json --definitions"])
def test_definitions_as_json(run: Run, args: str, tmp_path: Path) -> None:
    status, out, err = run("explain", *args.split())
    assert (status, err) == (0, "")
    assert "ttft" in json.loads(out)["definitions"]
    assert run("explain", *args.split(), "-o", tmp_path / "definitions.json") == (0, "", "")
    assert (tmp_path / "definitions.json").read_text("utf-8") == out


SWEEP = (*("sweep", "deepseek-v3", "--hw", "h100-sxm", "--over", "batch=1:2000", "--over"), "prompt=1000:2000")


@pytest.mark.skipif(sys.platform != "linux", reason="needs signals")
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("options", [(), ("--workers", "2")])
def test_ended_sweeps_leave_nothing(tmp_path: Path, sent: int, status: int, options: tuple[str, ...]) -> None:
    # A shell that runs the tests in the background ignores SIGINT, which processes inherit.
    heeding = "import signal, runpy; signal.signal(signal.SIGINT, signal.default_int_handler);"
    run = f"{heeding} runpy.run_module('roofline', run_name='__main__')"
    command = [sys.executable, "-c", run, *SWEEP, *options, "-o", str(tmp_path / "answer.parquet")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        for _ in range(600):
            if list(tmp_path.iterdir()):
                break
            time.sleep(0.05)
        time.sleep(0.3)
        os.killpg(process.pid, sent)
        _, err = process.communicate(timeout=60)
    hint = "roofline: interrupted; with --resume, a sweep keeps its complete chunks\n"
    assert (process.returncode, err) == (status, hint if sent == signal.SIGINT else "")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_sweep_to_parquet(run: Run, tmp_path: Path, recwarn: Callable[..., Any]) -> None:
    options = ("--over", "tp=3,5", "-o", tmp_path / "answer.parquet")
    status, out, err = run("sweep", "llama-3.1-70b", "--hw", "rtx-4090", *options)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_bundled_profiles_still_read() -> None:
    assert load_engine("vllm").name == "vllm"
