"""llama.cpp's server measured over several starts: what is kept, medians, and errors of models that no fit saw."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.llama_cpp import served
from lab.llama_cpp.random_model import write_random_model
from roofline import load_hardware, load_model
from roofline.core.errors import RooflineError
from tests.validate import stub_server
from tests.validate.stub_server import PREFILL, STEP

CPU = load_hardware("ryzen-9-7950x")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_random_model(load_model("llama-68m"), "q8_0", tmp_path / "llama-68m-q8_0.gguf")


def test_starts_are_kept_and_not_measured_again(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Path] = []

    @contextmanager
    def serving(path: Path, threads: int, context: int) -> Iterator[str]:
        started.append(path)
        with stub_server.serving() as server:
            yield server.url

    monkeypatch.setattr(served, "serving", serving)
    rows = served.measure([model], CPU, 1, (16, 48), tmp_path / "served.csv")
    assert [(row["concurrency"], row["start"]) for row in rows] == [("1", "0"), ("1", "0"), ("2", "0")]
    assert served.measure([model], CPU, 2, (16, 48), tmp_path / "served.csv")[:3] == rows
    assert started == [model, model]
    for case in served.cases_of(model, rows, CPU):
        assert case.ttft > PREFILL
        assert case.tpot is not None
        assert case.tpot > STEP


def rows_of(path: Path, scale: float, start: int = 0) -> dict[str, str]:
    point = {"concurrency": 1, "requests": 5, "prompt": 48, "output": 16, "ttft": 0.1 * scale, "tpot": 0.01 * scale}
    figures = {**point, "e2e": 0.25 * scale, "throughput": 64 / scale}
    return {"file": path.name, "start": str(start), **{name: str(value) for name, value in figures.items()}}


def test_the_median_start_counts(model: Path) -> None:
    (case,) = served.cases_of(model, [rows_of(model, scale, start) for start, scale in enumerate((1, 5, 1.1))], CPU)
    assert case.ttft == pytest.approx(0.11)
    assert case.tpot == pytest.approx(0.011)


def test_a_model_is_predicted_by_a_fit_to_the_others(model: Path, tmp_path: Path) -> None:
    other = write_random_model(load_model("llama-68m"), "q8_0", tmp_path / "other-q8_0.gguf")
    alone = list(served.compare([list(served.cases_of(model, [rows_of(model, 1)], CPU))]))
    assert all(figure.fitted == figure.shipped for figure in alone)
    alike = [list(served.cases_of(path, [rows_of(path, 1)], CPU)) for path in (model, other)]
    for figure in served.compare(alike):
        assert abs(figure.fitted / figure.measured - 1) < abs(figure.shipped / figure.measured - 1)


def test_a_server_that_does_not_start_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RooflineError, match="did not start"), served.serving(tmp_path / "none.gguf", 1, 64):
        pass
