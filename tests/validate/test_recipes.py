"""InferenceX's configurations as rows, and its results likewise."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from roofline.core.errors import RooflineError, SpecError
from roofline.graph.parallel import Parallelism
from roofline.timing.exchanges import GATHERED
from roofline.validate.imports.recipes import import_recipes, is_recipe
from roofline.validate.tables import inferencex
from roofline.validate.tables.serving import ServingCase
from roofline.validate.tables.text import Line
from tests.conftest import Run

CONFIGURATIONS = """
fixed:
  image: lmsysorg/sglang:v0.5.14-cu130
  model: Qwen/Qwen3.5-397B-A17B-FP8
  model-prefix: qwen3.5
  runner: b200
  precision: fp8
  framework: sglang
  scenarios:
    fixed-seq-len:
    - { isl: 8192, osl: 1024, search-space: [{ tp: 4, ep: 1, conc-start: 4, conc-end: 24 }] }
agents:
  image: vllm/vllm-openai:v0.22.0
  model: moonshotai/Kimi-K2.5
  model-prefix: kimik2.5
  runner: cluster:b200-dgxc
  precision: int4
  framework: vllm
  scenarios:
    agentic-coding:
    - dram-utilization: 0.5
      search-space:
      - { tp: 8, kv-offloading: none, conc-list: [1] }
      - { tp: 8, ep: 8, dp-attn: true, kv-offloading: dram, conc-list: [2, 3] }
      - { tp: 4, dcp-size: 4, spec-decoding: mtp, conc-list: [4] }
earlier:
  image: vllm/vllm-openai:v0.22.0
  model: moonshotai/Kimi-K2.5
  model-prefix: kimik2.5
  runner: b200-dgxc
  precision: int4
  framework: vllm
  multinode: false
  scenarios:
    agentic-coding:
    - duration: 1800
      available-cpu-dram-mib: 3_774_874
      cpu-offload-utilization: 0.80
      gpus-per-node: 8
      search-space:
      # comments between entries
      - { tp: 8, offloading: none,  conc-list: [1] }
      - { tp: 8, offloading: cpu, conc-list: [2] }
      - { tp: 4, offloading: hicache, total-cpu-dram-gb: 1474, conc-list: [3] }
apart:
  image: nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.8.1
  model: deepseek-ai/DeepSeek-R1-0528
  model-prefix: dsr1
  runner: gb300-nv
  precision: fp8
  framework: dynamo-trt
  disagg: true
  scenarios:
    fixed-seq-len:
    - isl: 8192
      osl: 1024
      search-space:
      - spec-decoding: mtp
        conc-list: [24]
        prefill: { num-worker: 2, tp: 1, ep: 4, dp-attn: true }
        decode: { num-worker: 3, tp: 8, ep: 1, dp-attn: false }
wide:
  image: vllm/vllm-openai:kimi-k3
  model-prefix: kimik3
  runner: cluster:gb200-nv
  precision: fp4
  framework: dynamo-vllm
  disagg: false
  scenarios:
    agentic-coding:
    - search-space:
      - { conc-list: [64], num-nodes: 4, worker: { num-worker: 1, tp: 4, ep: 16, dp-attn: true } }
      - { conc-list: [64], worker: { num-worker: 2, tp: 8, pp: 2, ep: 1, dp-attn: false } }
other:
  image: rocm/atom:nightly
  model-prefix: dsr1
  runner: mi355x
  precision: fp4
  framework: atom
  seq-len-configs:
  - { isl: 1024, osl: 1024, search-space: [{ tp: 8, conc-list: [4] }] }
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "master.yaml"
    path.write_text(CONFIGURATIONS)
    return path


def rows(*paths: Path, **options: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(import_recipes(paths, **options).text)))


def cases(path: Path, name: str) -> list[ServingCase]:
    return [inferencex.to_case(Line(1, "", row)) for row in rows(path, names=[name]) if not row["reason"]]


def test_a_search_space_is_a_row_a_number(file: Path) -> None:
    found = cases(file, "fixed")
    assert [case.load.concurrency for case in found] == [4, 8, 16, 24]
    assert {case.scenario.settings.parallel for case in found} == {Parallelism(tensor=4)}
    assert found[0].scenario.model.name == "qwen3.5-397b-a17b"


def test_agents_have_a_tier_of_the_hosts_memory(file: Path) -> None:
    first, *others = cases(file, "agents")
    assert first.agents is not None
    assert (first.agents.profile, first.agents.tiers) == ("coding-agent", "")
    assert [case.load.concurrency for case in others] == [2, 3, 4]
    assert others[0].scenario.settings.parallel == Parallelism(data=8, expert=8)
    assert others[0].agents is not None
    assert others[0].agents.tiers == "dram=1623.2GB"  # half of 3,095,781 MiB


def test_entries_of_june_name_the_memory_and_the_time_of_a_run(file: Path) -> None:
    found = [case.agents for case in cases(file, "earlier")]
    assert [(each.tiers, each.duration) for each in found if each] == [
        ("", 1800),
        ("dram=3166.4GB", 1800),  # 0.8 of 3,774,874 MiB
        ("dram=1474GB", 1800),
    ]


def test_pools_count_the_devices_of_wide_workers(file: Path) -> None:
    (found,) = cases(file, "apart")
    assert found.pools is not None
    gathering = Parallelism(data=4, expert=4, exchange=GATHERED)  # DeepGEMM's experts in FP8
    assert found.scenario.settings.parallel == gathering
    assert (found.pools.prefills, found.pools.decodes) == (2, 3)
    assert found.scenario.settings.speculation is not None


def test_workers_that_do_both(file: Path) -> None:
    """Ranks of several devices with the experts over all, and workers that divide the requests."""
    first, second = cases(file, "wide")
    assert first.scenario.settings.parallel == Parallelism(tensor=4, data=4, expert=16)
    assert second.scenario.settings.parallel == Parallelism(tensor=8, pipeline=2)
    assert (first.load.concurrency, second.load.concurrency) == (64, 32)


def test_what_cannot_be_asked_is_named(file: Path) -> None:
    """ATOM is asked with an assumption that its predicted rows name, as are kernels that no prediction has."""
    (row,) = rows(file, names=["other"], predict=True)
    assert "SGLang" in row["reason"]
    assert 0 < float(row["predicted_tpot"]) < 0.1
    slow = file.with_name("slow.yaml")
    slow.write_text(
        CONFIGURATIONS.replace("framework: atom", "framework: vllm").replace("prefix: dsr1", "prefix: dsv4")
    )
    (row,) = rows(slow, names=["other"], predict=True)
    assert row["predicted_tpot"]
    assert "triton_unfused" in row["reason"]
    imported = import_recipes([file])
    assert "15 rows; 6 of 6 configurations can be asked" in imported.notes[0]
    odd = file.with_name("odd.yaml")
    odd.write_text(CONFIGURATIONS.replace("framework: atom", "framework: tilert"))
    assert import_recipes([odd]).notes[1] == "other: no engine profile is for 'tilert'"
    with pytest.raises(RooflineError, match="unknown configuration 'fixd'"):
        import_recipes([file], ["fixd"])


def test_a_result_is_a_row_with_times(tmp_path: Path) -> None:
    """Fixed lengths as of its process_result.py, turns of sessions as of process_agentic_result.py."""
    shared = {
        "hw": "b200-dgxc",
        "framework": "vllm",
        "precision": "int4",
        "infmax_model_prefix": "kimik2.5",
        "tp": 8,
        "conc": 4,
        "disagg": False,
        "dp_attention": "false",
    }
    fixed = shared | {"isl": 8192, "osl": 1024, "median_ttft": 0.5, "median_tpot": 0.01, "output_tput_per_gpu": 40.0}
    latency = {"ttft": {"mean": 2.0, "p50": 1.0}, "tpot": {"mean": 0.03, "p50": 0.02}, "e2el": {}}
    agents = shared | {
        "scenario_type": "agentic-coding",
        "kv_offloading": "dram",
        "allocated_cpu_dram_gb": 800,
        "kv_cache_pool_tokens": 3_300_000,
        "request_metrics": {"latency": latency, "throughput": {"per_gpu": {"output_tput_tps": 30.0}}},
    }
    path = tmp_path / "agg.json"
    path.write_text(json.dumps([fixed, agents]))
    assert is_recipe(path)
    one, other = (inferencex.to_case(Line(1, "", row)) for row in rows(path))
    assert (one.ttft, one.tpot, one.throughput, one.agents) == (0.5, 0.01, pytest.approx(1 / 320), None)
    assert (other.ttft, other.tpot, other.throughput) == (1.0, 0.02, pytest.approx(1 / 240))
    assert other.agents is not None
    assert (other.agents.profile, other.agents.tiers, other.agents.pool) == ("coding-agent", "dram=800GB", 3_300_000)
    *_, row = rows(path)
    july = inferencex.to_case(Line(1, "", {**row, "date": "2026-07-18"})).agents
    assert july is not None
    assert july.profile == "coding-agent-2026-07"


@pytest.mark.parametrize(
    "text",
    [
        "a: 1",
        "a: {scenarios: {x: [{search-space: [{conc-list: [1], prefill: 3}]}]}}",
        "a: {scenarios: {x: 1}}",
        "a: {scenarios: {x: [{search-space: [1]}]}}",
        "- 1",
    ],
)
def test_other_yaml_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(SpecError):
        import_recipes([path])


def test_the_command_predicts(file: Path, run: Run) -> None:
    status, out, err = run("validate", "import", str(file), "--configuration", "fixed", "--predict")
    assert status == 0
    found = list(csv.DictReader(io.StringIO(out)))
    assert all(0 < float(row["predicted_tpot"]) < 0.1 for row in found)
    assert "4 rows; 1 of 1 configurations" in err


def test_agents_have_the_memory_and_the_drafts_of_their_scripts(tmp_path: Path) -> None:
    """Of fixed lengths other ones; where no script is known the engine's own stay."""
    shared = {"hw": "b200", "framework": "sglang", "precision": "fp4", "spec_decoding": "mtp", "conc": 8, "tp": 8}
    row = shared | {"infmax_model_prefix": "dsv4", "disagg": False}
    row |= {"ep": 8, "dp_attention": True, "image": "", "scenario_type": "agentic-coding"}
    path = tmp_path / "agg.json"
    path.write_text(json.dumps([row, row | {"hw": "h200"}]))
    found = [inferencex.to_case(Line(1, "", each)).scenario for each in rows(path)]
    memories = [scenario.profile.memory for scenario in found]
    assert memories[0].utilization > memories[1].utilization
    assert memories[0].window_shares != memories[1].window_shares
    for scenario in found:
        drafts = scenario.settings.speculation
        assert drafts is not None
        assert drafts.accepted == pytest.approx(2.49, abs=0.005)
        assert drafts.error == 0
