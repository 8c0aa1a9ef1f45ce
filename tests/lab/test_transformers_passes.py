"""Passes of Hugging Face Transformers: kernels that a trace counted, and a small model that runs here."""

import csv
from pathlib import Path

import pytest

from lab.transformers_passes import COLUMNS, passes, score
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.specs.engine import load_engine

ROWS = Path(__file__).resolve().parents[2] / "lab" / "data" / "transformers" / "h200.csv"

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 100}  # fmt: skip


@pytest.mark.parametrize("model", ["llama-3.1-8b", "llama-2-7b", "qwen3-0.6b", "qwen3-30b-a3b"])
def test_kernels_of_a_pass_are_those_that_a_trace_counted(model: str) -> None:
    with ROWS.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == model and row["phase"] == "decode"]
    counted = min(int(row["kernels"]) for row in rows if row["batch"] == "1")
    engine = load_engine("hf-eager")
    expected = analyze(Scenario(model, "h200-sxm", engine=engine, precision="bf16", prompt=1024, generate=2)).expected
    assert expected is not None
    assert expected.tpot is not None
    launched = (float(expected.tpot.mid) - engine["step"] - engine["sequence"]) / engine["issue"]
    assert launched == pytest.approx(counted, rel=0.08)


def test_a_small_model_is_timed_and_scored(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    rows = list(passes("llama-3.2-1b", "cpu", given=SMALL))
    assert [row["phase"] for row in rows] == ["prefill"] * 4 + ["decode"] * 4
    assert all(float(str(row["low_us"])) <= float(str(row["latency_us"])) <= float(str(row["high_us"])) for row in rows)
    path = tmp_path / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    assert score(path, "h200-sxm").count("llama-3.2-1b") == 8
