"""The verdict of `roofline validate import --prediction` on a benchmark's result."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import Run

RESULT = {
    "model_id": "Qwen/Qwen3-8B",
    "tokenizer_id": "Qwen/Qwen3-8B",
    "backend": "vllm",
    "max_concurrency": 8,
    "request_rate": "inf",
    "completed": 80,
    "total_input_tokens": 80 * 512,
    "total_output_tokens": 80 * 128,
    "request_throughput": 8.0,
}


@pytest.fixture
def folder(run: Run, tmp_path: Path) -> Path:
    status, _, err = run("launch", "qwen3-8b", "--hw", "h100-sxm", "--concurrency", "8", "--output", tmp_path / "out")
    assert status == 0, err
    return tmp_path / "out"


def said(run: Run, folder: Path, **changes: float) -> str:
    """The verdict on a result whose figures are the predicted ones, times `changes`."""
    metrics = json.loads((folder / "prediction.json").read_text(encoding="utf-8"))["metrics"]
    names = {"ttft_mean": "mean_ttft_ms", "tpot_mean": "mean_tpot_ms", "e2e_mean": "mean_e2el_ms"}
    names["output_throughput_total"] = "output_throughput"
    figures = {name: metrics[metric]["mid"] * changes.get(metric, 1) for metric, name in names.items()}
    more = {name: value for name, value in changes.items() if name in RESULT}
    (folder / "measured.json").write_text(json.dumps({**RESULT, **figures, **more}), encoding="utf-8")
    status, out, err = run("validate", "import", folder / "measured.json", "--prediction", folder / "prediction.json")
    assert status == 0, err
    return out


def test_what_is_predicted_is_hit(run: Run, folder: Path) -> None:
    lines = said(run, folder).splitlines()
    assert [line.rpartition(": ")[2] for line in lines] == ["hit"] * 4


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"ttft_mean": 3}, "while decode steps are as predicted"),
        ({"tpot_mean": 3}, "decode steps take 3.00 times"),
        ({"output_throughput_total": 0.3}, "with fewer requests in flight"),
        ({"ttft_mean": 3, "total_input_tokens": 80 * 1024}, "the prompt was 1024, not 512"),
        ({"ttft_mean": 3, "max_concurrency": 16}, "the load was closed loop 16"),
    ],
)
def test_a_miss_says_where_it_comes_from(run: Run, folder: Path, changes: dict[str, float], cause: str) -> None:
    out = said(run, folder, **changes)
    assert ": miss" in out
    assert cause in out.splitlines()[-1]


def test_another_file_is_no_prediction(run: Run, folder: Path) -> None:
    said(run, folder)
    status, out, err = run("validate", "import", folder / "measured.json", "--prediction", folder / "serve.sh")
    assert (status, out) == (2, "")
    assert "is no prediction" in err
