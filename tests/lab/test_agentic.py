"""Published runs of coding agents: how they are read and parted."""

from pathlib import Path

import pytest

from lab.score.agentic import HALVES, read_runs, score
from roofline.validate.score.serving import Predictor
from roofline.validate.tables.text import csv_text

COLUMNS = (
    *("experiment", "workload", "model", "precision", "hardware", "gpus", "tp", "ep", "dp", "pd_layout"),
    *("engine_version", "spec_method", "gpu_kv_capacity_tokens", "host_cache_type", "host_cache_capacity_GB"),
    *("concurrency_or_rate", "overall_hit_frac", "gpu_prefix_hit_frac", "ttft_s_p50", "total_tok_s"),
    *("total_tok_s_per_gpu", "itl_ms_p50", "itl_ms_mean", "user_tok_s_p50", "source"),
)
TRACES = "AgentX cc-traces-weka-062126 (393 traces)"
ROW = {
    "experiment": "a run",
    "workload": TRACES,
    "model": "GLM-5.2",
    "precision": "NVFP4",
    "hardware": "B300",
    "gpus": "8.0",
    "tp": "8.0",
    "dp": "1.0",
    "pd_layout": "aggregated",
    "engine_version": "SGLang (2026-07-18)",
    "spec_method": "none",
    "gpu_kv_capacity_tokens": "3300000",
    "concurrency_or_rate": "2",
    "overall_hit_frac": "0.9",
    "user_tok_s_p50": "100",
    "total_tok_s_per_gpu": "5000",
}


def written(path: Path, *changes: dict[str, str]) -> Path:
    path.write_text(csv_text(({**ROW, **change} for change in changes), COLUMNS))
    return path


def test_a_configuration_stays_whole_and_others_are_counted(tmp_path: Path) -> None:
    changes = [{}, {"concurrency_or_rate": "32"}, {"workload": "ShareGPT"}, {"model": "none of ours"}, {"dp": "8"}]
    runs, skipped = read_runs(written(tmp_path / "runs.csv", *changes))
    assert [run.sessions for run in runs] == [2, 32, 2]
    assert runs[0].configuration == runs[1].configuration != runs[2].configuration
    assert runs[0].half == runs[1].half
    assert runs[0].half in HALVES
    assert len(skipped) == 2


def test_the_memory_that_a_row_states_is_the_engines(tmp_path: Path) -> None:
    changes = [{"engine_version": f"SGLang (2026-07-18){text}"} for text in ("", ", util 0.7")]
    runs, _ = read_runs(written(tmp_path / "runs.csv", *changes))
    usual, stated = (run.case.scenario.profile.memory.utilization for run in runs)
    assert stated == 0.7 != usual


@pytest.mark.slow
def test_what_is_stated_is_scored_in_its_unit(tmp_path: Path) -> None:
    ((run,), _) = read_runs(written(tmp_path / "runs.csv", {}))
    found = {each.metric: each for each in score(run, 1, Predictor())}
    assert found.keys() == {"hits", "TPOT", "tokens/s"}
    assert found["TPOT"].measured == pytest.approx(0.01)
    assert found["tokens/s"].measured == pytest.approx(40_000)
    assert found["hits"].error == pytest.approx(found["hits"].mid - 0.9)
    assert run.case.agents is not None
    assert run.case.agents.profile == "coding-agent-2026-07"
