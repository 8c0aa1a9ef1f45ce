"""Fits of engine profiles: the table against the simulator, recovered parameters, the prior."""

from __future__ import annotations

import csv
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
from msgspec.structs import replace
from yaml import safe_load

from lab.fit.engines import (
    PARAMETER,
    PRIORS,
    STIFFNESS,
    Fitted,
    described,
    errors,
    fit_all,
    fit_engine,
    kernel_error,
    main,
    prior,
    profiles,
    space,
    spread,
    weights_of,
)
from lab.fit.pass_times import TABULATED, passes_of, tabulate
from roofline import analyze
from roofline.specs.engine import Engine, load_engine
from roofline.specs.engine_files import parse_engine
from roofline.specs.engine_written import render
from roofline.validate.score.end_to_end import Case, map_rows, predict
from roofline.validate.score.errors import Predicted
from roofline.validate.tables.published import COLUMNS, read_rows

TRUE = {"step": 0.9e-3, "sequence": 40e-6, "launch": 1.5, "prefill": 1.15}
"""What the synthetic engine of the rows below does differently from the prior."""

SHAPES = (
    ("llama-2-7b", "1", "1", "128", "32"),
    ("llama-2-7b", "1", "16", "256", "64"),
    ("llama-3-8b", "1", "32", "1024", "64"),
    ("llama-3-8b", "2", "8", "512", "32"),
    ("mistral-7b", "1", "4", "256", "32"),
    ("mistral-7b", "2", "48", "256", "32"),
)


def table(path: Path, values: list[float] | None = None, metrics: tuple[str, ...] = ("batch_latency", "ttft")) -> Path:
    rows = [(metric, *shape) for shape in SHAPES for metric in metrics]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for index, (metric, model, gpus, batch, prompt, output) in enumerate(rows):
            value = 1.0 if values is None else values[index]
            fixed = ("a100-sxm-80gb", gpus, "TensorRT-LLM 9", "fp16", "fp16")
            writer.writerow((model, *fixed, batch, prompt, output, metric, value, "s", "made up"))
    return path


def cases(path: Path) -> list[Case]:
    found, left = map_rows(read_rows(path))
    assert not left
    return found


def changed(values: dict[str, float]) -> Engine:
    start = prior("tensorrt-llm")
    return replace(start, parameters=MappingProxyType({**start.parameters, **values}))


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows that the synthetic engine would have measured."""
    path = tmp_path_factory.mktemp("figures") / "made-up.csv"
    blank = cases(table(path))
    return table(path, [predict(case, changed(TRUE)).mid for case in blank])


def test_the_table_is_exact_at_its_centre_and_near_around_it(measured: Path) -> None:
    rows = cases(measured)
    engine = prior("tensorrt-llm")
    found = tabulate([passes_of(case) for case in rows], engine)
    around = space(engine)
    exact = [predict(case, engine).mid for case in rows]
    at_centre = found.seconds(around.values(np.zeros(len(around.names))), engine, len(rows))
    assert at_centre == pytest.approx(exact, rel=2e-3)  # contexts are rounded to whole tokens
    moved = {"launch": 1.3, "memory": 0.93, "collective": 0.8, "step": 1e-3, "prefill": 1.1, "gap": 0.4e-6}
    values = {**around.values(np.zeros(len(around.names))), **moved}
    near = found.seconds(values, engine, len(rows))
    assert near == pytest.approx([predict(case, changed(moved)).mid for case in rows], rel=0.01)


@pytest.fixture(scope="module")
def fitted(measured: Path) -> Fitted:
    return fit_engine("tensorrt-llm", cases(measured))


def test_parameters_are_recovered(fitted: Fitted) -> None:
    found = fitted
    before, after = (errors(found.cases, rows).mean() for rows in (found.unfitted, found.held_out))
    assert before > 0.1
    assert after < before / 3
    assert found.folds == "model"
    assert found.engine["prefill"] == pytest.approx(TRUE["prefill"], rel=0.1)
    # Host time and launches can stand for each other; together they are what the prior lacks.
    assert found.engine["step"] + found.engine["launch"] > prior("tensorrt-llm")["step"] + 1
    for name in STIFFNESS:
        assert PARAMETER[name].low <= found.engine[name] <= PARAMETER[name].high
    text = described(found).sources[0]
    assert text.startswith("lab.fit.engines: 12 rows of made-up.csv; fitted, held out by model")


def test_a_model_is_scored_without_its_own_rows(measured: Path, fitted: Fitted, tmp_path: Path) -> None:
    """Changing one model's measurements does not move its own held-out predictions."""
    rows = cases(measured)
    altered = [case.measured * (3.0 if case.scenario.model.name == "mistral-7b" else 1.0) for case in rows]
    other = cases(table(tmp_path / "altered.csv", altered))
    first, second = fitted, fit_engine("tensorrt-llm", other)
    own = [index for index, case in enumerate(rows) if case.scenario.model.name == "mistral-7b"]
    rest = [index for index in range(len(rows)) if index not in own]
    mids = np.array([[one.mid for one in found.held_out] for found in (first, second)])
    assert mids[0, own] == pytest.approx(mids[1, own], rel=0.02)
    assert not np.allclose(mids[0, rest], mids[1, rest], rtol=0.02)


def test_one_model_on_one_device_keeps_the_prior(tmp_path: Path, measured: Path) -> None:
    only = [case for case in cases(measured) if case.scenario.model.name == "mistral-7b"]
    found = fit_engine("tensorrt-llm", only)
    assert found.folds == "hardware"
    assert [one.mid for one in found.held_out] == pytest.approx([one.mid for one in found.unfitted], rel=0.02)


def test_weights_of_many_rows_of_a_model_saturate() -> None:
    few, many = weights_of(["a"] * 3), weights_of(["a"] * 300)
    assert few.sum() < many.sum() < 15 * few.sum()
    assert weights_of(["a"]).sum() == 1


def test_spread_holds_eighty_percent() -> None:
    random = np.random.default_rng(5)
    measured = np.exp(0.2 * random.standard_normal(4000))
    predicted = [Predicted(0.5, 0.95, 1.0, 1.05)] * 4000
    low, high = spread(measured, predicted)
    below, above = np.hypot(0.05, 1 - low), np.hypot(0.05, high - 1)
    assert np.mean((measured >= 1 - below) & (measured <= 1 + above)) == pytest.approx(0.8, abs=0.01)
    assert spread(np.ones(10), predicted[:10]) == (1.0, 1.0)


def test_the_error_of_inherited_kernels_shrinks_to_what_holds_eighty_percent() -> None:
    """Errors of 15% at most, four in five of them: half of 30% and no spread hold them, a fraction of 0.4 does not."""
    predicted = [Predicted(0.5, 0.7, 1.0, 1.3)] * 100
    measured = np.concatenate([np.full(80, 1.15 - 1e-9), np.full(20, 2.0)])
    assert kernel_error(measured, predicted, (1.0, 1.0)) == 0.5
    assert kernel_error(measured, predicted, (0.8, 1.2)) == 0.3
    assert kernel_error(np.full(10, 2.0), predicted[:10], (1.0, 1.0)) == 1.0


def test_priors_are_within_the_bounds_of_parameters() -> None:
    for name, values in PRIORS.items():
        profile, _, backend = name.partition(" ")
        assert load_engine(profile).profile == profile
        assert not backend or backend in load_engine(profile).vendors
        for key, value in values.items():
            assert PARAMETER[key].low <= value <= PARAMETER[key].high
    for name, grid in TABULATED.items():
        assert PARAMETER[name].low <= min(grid)
        assert max(grid) <= PARAMETER[name].high


def test_a_backend_is_fitted_apart(measured: Path, tmp_path: Path) -> None:
    """Rows of a vendor with a backend of its own do not move the parameters of the rest; its own are kept beside."""
    rows = "".join(
        f"llama-2-7b,{gpu},1,llama.cpp {backend},Q4_0,fp16,1,512,128,decode_throughput,{value},tokens/s,x\n"
        for gpu, backend, values in (("rtx-4090", "CUDA", (180, 190)), ("m2-max", "Metal", (60, 62)))
        for value in values
    )
    path = tmp_path / "rows.csv"
    path.write_text(f"{','.join(COLUMNS)}\n{rows}")
    whole = fit_all(read_rows(path))
    assert [found.backend for found in whole] == ["", "Apple"]
    path.write_text(f"{','.join(COLUMNS)}\n{''.join(line + chr(10) for line in rows.splitlines() if 'CUDA' in line)}")
    (alone,) = fit_all(read_rows(path))
    (engine,) = profiles(whole)
    assert engine.parameters == alone.engine.parameters
    assert engine.vendors["Apple"]["gap"] > 5e-6
    assert parse_engine(safe_load(render(engine)), "x.yaml").vendors["Apple"] == pytest.approx(
        dict(engine.vendors["Apple"]), rel=1e-3
    )


def test_the_command(measured: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "engines"
    assert main([str(measured), "--engine", "tensorrt-llm", "--output", str(folder)]) == 0
    assert "held out" in capsys.readouterr().out
    written = load_engine(str(folder / "tensorrt-llm.yaml"))
    assert written.sources
    row = cases(measured)[0]
    assert analyze(row.scenario.changed(engine=written)).expected.total.mid > 0
    assert main([str(measured), "--engine", "vlm"]) == 2
    assert main([str(tmp_path / "absent.csv")]) == 2
    assert capsys.readouterr().err.count("\n") == 2
