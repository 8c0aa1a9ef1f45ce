"""Rows of InferenceX runs, and of disaggregated deployments: layouts of workers, versions, drafts, and scores."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from roofline import analyze
from roofline.graph.parallel import Parallelism
from roofline.serving.pools import Pools
from roofline.validate.score.serving import Predictor, read_cases, score_serving
from roofline.validate.tables import disaggregated, inferencex
from roofline.validate.tables.names import Unmapped
from roofline.validate.tables.serving import ServingCase
from roofline.validate.tables.text import Line

ONE = {
    **dict.fromkeys(inferencex.COLUMNS, ""),
    "framework": "sglang",
    "hardware": "b200-sxm",
    "model": "dsr1",
    "precision": "fp8",
    "speculation": "none",
    "disaggregated": "False",
    "isl": "1024",
    "osl": "1024",
    "concurrency": "8",
    "tp": "8.0",
    "ep": "1.0",
    "dp_attention": "False",
    "median_ttft": "0.2",
    "median_tpot": "0.009",
    "mean_ttft": "3.0",
    "mean_tpot": "0.01",
    "output_tokens_per_s_per_gpu": "100",
    "image": "lmsysorg/sglang:v0.5.6-cu129-amd64",
    "date": "",
}
APART = ONE | {
    "framework": "dynamo-trt",
    "hardware": "gb200",
    "disaggregated": "True",
    "tp": "",
    "ep": "",
    "precision": "fp4",
    "prefill_tp": "4.0",
    "prefill_ep": "4.0",
    "prefill_dp_attention": "True",
    "prefill_num_workers": "5.0",
    "prefill_gpus": "20.0",
    "decode_tp": "8.0",
    "decode_ep": "8.0",
    "decode_dp_attention": "False",
    "decode_num_workers": "4.0",
    "decode_gpus": "32.0",
    "concurrency": "256",
}


def case(row: dict[str, str], **cells: str) -> ServingCase:
    return inferencex.to_case(Line(1, "file", {**row, **cells}))


def test_a_deployment_of_one_node() -> None:
    """Medians are measured; output tokens/s of a GPU are of all eight."""
    found = case(ONE)
    assert found.scenario.settings.parallel == Parallelism(tensor=8)
    assert (found.ttft, found.tpot, found.median, found.deployment) == (0.2, 0.009, True, "one node")
    assert found.throughput == pytest.approx(1 / 800)
    assert found.load.concurrency == 8


@pytest.mark.parametrize(
    ("cells", "layout"),
    [
        ({"ep": "8.0"}, Parallelism(tensor=8, expert=8)),
        ({"ep": "8.0", "dp_attention": "True"}, Parallelism(data=8, expert=8)),
        ({"ep": "1.0", "dp_attention": "True", "tp": "4.0"}, Parallelism(data=4, expert=4)),
    ],
)
def test_data_parallel_attention_divides_the_experts_among_all(cells: dict[str, str], layout: Parallelism) -> None:
    assert case(ONE, **cells).scenario.settings.parallel == layout


def test_pools_have_layouts_of_their_own() -> None:
    """Five workers of prefill of four devices each, and four of decode of eight, whose tokens are counted."""
    found = case(APART)
    assert found.scenario.settings.parallel == Parallelism(data=4, expert=4)
    assert found.pools == Pools(5, 4, parallel=Parallelism(tensor=8, expert=8))
    assert found.throughput == pytest.approx(1 / 3200)
    assert found.deployment == "disaggregated"


def test_a_worker_is_its_pools_devices_over_its_workers() -> None:
    """Also where its tensor parallelism is written as 1."""
    found = case(APART, decode_tp="1.0", decode_ep="1.0", decode_dp_attention="True", decode_num_workers="1.0")
    assert found.pools is not None
    assert found.pools.parallel == Parallelism(data=32, expert=32)


def test_unstated_layouts_of_gb200_are_those_of_its_recipes() -> None:
    """Workers of four devices that decode are tensor-parallel, and so is what fills them."""
    cells = {"framework": "dynamo-sglang", "prefill_tp": "1.0", "decode_tp": "1.0", "decode_dp_attention": "True"}
    found = case(APART, **cells, decode_num_workers="8.0")
    assert found.scenario.settings.parallel == Parallelism(tensor=4)
    assert found.pools is not None
    assert found.pools.parallel == Parallelism(tensor=4)
    assert case(APART, **cells).scenario.settings.parallel == Parallelism(data=4, expert=4)


@pytest.mark.parametrize(
    ("cells", "sequences"),
    [
        ({"decode_dp_attention": "True", "decode_num_workers": "1.0", "concurrency": "1075"}, 32),
        ({"decode_dp_attention": "True", "decode_num_workers": "1.0", "concurrency": "12288"}, 384),
        ({"concurrency": "26"}, 4),
        ({"concurrency": "24"}, None),
        ({"concurrency": "24", "precision": "fp8"}, 4),
    ],
)
def test_requests_beyond_the_sequences_of_a_recipe_wait(cells: dict[str, str], sequences: int | None) -> None:
    found = case(APART, **cells)
    assert found.pools is not None
    assert found.pools.sequences == sequences


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"prefill_num_workers": "0.0"}, "prefill_num_workers is not stated"),
        ({"decode_gpus": "30.0"}, "equal workers"),
        ({"speculation": "eagle3"}, "drafts other than MTP"),
        ({"framework": "tilert"}, "no engine profile"),
        ({"model": "unheard-of-1b", "checkpoint": ""}, "no bundled model"),
    ],
)
def test_what_is_not_stated_is_not_guessed(cells: dict[str, str], reason: str) -> None:
    with pytest.raises(Unmapped, match=reason):
        case(APART, **cells)


@pytest.mark.parametrize(
    ("cells", "profile"),
    [
        ({"framework": "trt", "image": "", "date": "2025-12-15"}, "tensorrt-llm@1.1"),
        ({"framework": "trt", "image": "", "date": "2026-05-18"}, "tensorrt-llm"),
        ({"framework": "trt", "image": "nvcr.io/nvidia/tensorrt-llm/release:1.3.0rc14"}, "tensorrt-llm"),
        ({"framework": "dynamo-trt", "image": "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.5.1-rc0.pre3"},
         "tensorrt-llm@1.1"),
        ({"framework": "dynamo-trt", "image": "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:0.9.1", "date": ""},
         "tensorrt-llm"),
        ({"framework": "dynamo-trt", "image": "nvcr.io/nvidia/ai-dynamo/tensorrtllm-runtime:1.1.0", "date": ""},
         "tensorrt-llm"),
        ({"framework": "dynamo-vllm", "image": "nvcr.io/nvidia/ai-dynamo/vllm-runtime:0.9.1", "date": ""}, "vllm"),
        ({"framework": "vllm", "image": "vllm/vllm-openai:v0.11.2"}, "vllm-sync"),
    ],
)  # fmt: skip
def test_the_version_is_of_the_image_or_of_the_date(cells: dict[str, str], profile: str) -> None:
    from roofline.specs.engine import load_engine

    assert case(ONE, **cells).scenario.profile.profile == load_engine(profile).profile


@pytest.mark.parametrize(
    ("framework", "image", "version"),
    [
        ("dynamo-trt", "tensorrtllm-runtime:1.0.1", "1.3.0rc5"),
        ("dynamo-sglang", "sglang-runtime:1.2.0", "0.5.11"),
        ("dynamo-vllm", "vllm-runtime:1.4.2", "0.26.0"),
        ("dynamo-sglang", "sglang-runtime:9.0", "0.5.9"),
    ],
)
def test_images_of_dynamo_have_the_engines_of_its_release(framework: str, image: str, version: str) -> None:
    """An unknown release has the version of the date."""
    found = case(ONE, framework=framework, image=f"nvcr.io/nvidia/ai-dynamo/{image}", date="2026-03-02")
    assert found.scenario.profile.version == version


def test_releases_of_one_profile_have_kernels_of_their_own_also_side_by_side() -> None:
    """TensorRT-LLM plans FlashMLA's work in every layer until 1.3.0rc8: 61 of them, some 20 us each."""
    image, predictor = "nvcr.io/nvidia/tensorrt-llm/release:", Predictor()
    old, new = (
        case(ONE, framework="trt", hardware="h200-sxm", image=f"{image}{version}")
        for version in ("1.2.0rc6", "1.3.0rc14")
    )
    assert old.scenario.profile.profile == new.scenario.profile.profile
    slow, fast, again = (predictor(each).tpot.p50.mid for each in (old, new, old))
    assert 0.5e-3 < slow - fast < 3e-3
    assert again == slow


def test_atom_is_asked_as_the_newest_sglang_and_says_so() -> None:
    found = case(ONE, framework="atom", hardware="mi355x", image="rocm/atom:rocm7.1.1-atom0.1.3")
    assert found.scenario.profile.name == "sglang"
    assert not found.scenario.profile.version
    assert "ATOM" in found.assumed


def test_drafts_are_those_of_the_scripts() -> None:
    """Two with SGLang; three with TensorRT-LLM, and one with data-parallel attention."""
    for cells, length in (
        ({}, 2),
        ({"framework": "trt"}, 3),
        ({"framework": "trt", "dp_attention": "True", "ep": "8.0"}, 1),
    ):
        found = case(ONE, speculation="mtp", **cells)
        drafts = found.scenario.settings.speculation
        assert drafts is not None
        assert drafts.length == length
        assert found.deployment == "one node with drafts"
        if found.scenario.profile.name == "sglang":  # which runs 48 at once unless its scripts say more
            assert found.scheduler.sequences > 1000
            assert found.scenario.profile.scheduler.sequences > 1000


@pytest.mark.parametrize(
    ("requests", "context", "tpot"),
    [("64", {"isl": "8192"}, 41.8e-3), ("4", {"isl": "8192"}, 9.8e-3), ("64", {}, 23.1e-3)],
)
def test_gemms_of_flashinfer_take_what_servers_measure(requests: str, context: dict[str, str], tpot: float) -> None:
    """SGLang 0.5.6 in FP8 on 8 B200 (InferenceX), whose GEMMs have a kernel benchmark's constants."""
    found = case(ONE, concurrency=requests, **context)
    assert Predictor()(found).tpot.p50.mid == pytest.approx(tpot, rel=0.11)


@pytest.mark.parametrize(
    ("hardware", "date", "drafted"),
    [
        ("mi325x", "2026-05-18", False),
        ("mi300x", "2026-05-21", False),
        ("mi325x", "2026-07-01", True),
        ("mi355x", "2026-05-18", True),
    ],
)
def test_launchers_without_a_suffix_ran_no_drafts(hardware: str, date: str, drafted: bool) -> None:
    """16 requests that MI325X's rows call MTP take 19.2 ms a token, 8 without drafts 16.2 (runs of one day)."""
    found = case(ONE, speculation="mtp", hardware=hardware, date=date, image="lmsysorg/sglang:v0.5.12-rocm700")
    assert (found.scenario.settings.speculation is not None) == drafted


@pytest.mark.parametrize(
    ("image", "date", "version"),
    [
        ("lmsysorg/sglang:v0.5.9-cu130", "2025-12-20", "0.5.9"),
        ("", "2025-12-20", "0.5.6"),
        ("", "2026-05-20", "0.5.12"),
        ("", "", ""),
    ],
)
def test_the_version_that_ran_is_asked(image: str, date: str, version: str) -> None:
    assert case(ONE, hardware="h200-sxm", image=image, date=date).scenario.profile.version == version


def test_a_nightly_of_vllm_has_the_release_of_its_month() -> None:
    nightly = case(ONE, framework="vllm", image="vllm/vllm-openai-rocm:nightly-09663abd", date="2026-07-09")
    assert nightly.scenario.profile.version == "0.26"


def test_kernels_that_a_launcher_sets_instead_of_tuned_ones_are_slower_and_less_sure() -> None:
    """DeepSeek-V4 on MI355X with its indexer in PyTorch, beside the kernels of SGLang itself."""
    set_by = case(ONE | {"model": "dsv4", "precision": "fp4", "image": ""}, hardware="mi355x").scenario
    own = set_by.changed(engine=replace(set_by.profile, told={}), prompt=32_768)
    slow, other = (analyze(one.changed(prompt=32_768, generate=2)).expected.ttft for one in (set_by, own))
    assert slow.mid > other.mid
    assert slow.high - slow.mid > other.high - other.mid


WORKERS = {
    **dict.fromkeys(disaggregated.COLUMNS, "1.0"),
    "backend": "trtllm",
    "backend_version": "1.2.0",
    "model_path": "deepseek-ai/DeepSeek-V3",
    "precision": "fp8",
    "hardware": "gb200",
    "isl": "1024",
    "osl": "8192",
    "concurrency": "2048",
    "decode_attention_dp_size": "32.0",
    "decode_moe_ep_size": "32.0",
    "silicon_ttft_ms": "1877",
    "silicon_tpot_ms": "24.5",
    "prefill_tp_size": "8.0",
    "prefill_moe_ep_size": "8.0",
    "prefill_num_workers": "3.0",
}


def test_stated_disaggregated_deployments() -> None:
    found = disaggregated.to_case(Line(1, "file", WORKERS))
    assert found.scenario.settings.parallel == Parallelism(tensor=8, expert=8)
    assert found.pools == Pools(3, 1, parallel=Parallelism(data=32, expert=32))
    assert (found.ttft, found.tpot) == pytest.approx((1.877, 0.0245))


@pytest.mark.parametrize(
    ("backend", "stated", "runs"),
    [
        ("trtllm", "0.8.1.post2", "1.2.0rc6"),
        ("trtllm", "0.5.1-rc0.pre3", "1.1.0rc5"),
        ("trtllm", "1.2.0rc6.post3", "1.2.0rc6"),
        ("sglang", "0.5.8.post1", "0.5.8"),
    ],
)
def test_pools_of_tensorrt_llm_state_the_image_of_dynamo_in_which_it_runs(backend: str, stated: str, runs: str) -> None:
    """TensorRT-LLM 0.8 is of 2024 and serves no pools; Dynamo 0.8 has 1.2.0rc6 inside."""
    found = disaggregated.to_case(Line(1, "file", WORKERS | {"backend": backend, "backend_version": stated}))
    assert found.scenario.profile.version == runs


@pytest.mark.parametrize(
    ("hardware", "requests", "tpot"), [("h100-sxm", 4, 4.17e-3), ("h100-sxm", 16, 5.92e-3), ("h200-sxm", 16, 5.68e-3)]
)
def test_experts_of_marlin_take_what_servers_measure(hardware: str, requests: int, tpot: float) -> None:
    """InferenceMAX, runs 20662362255 and 20667906037: gpt-oss-120b, of which no table of Marlin on Hopper is."""
    served = {"framework": "vllm", "image": "vllm/vllm-openai:v0.13.0", "model": "gptoss", "precision": "fp4"}
    found = case(ONE | served, hardware=hardware, tp="4.0", concurrency=str(requests))
    assert Predictor()(found).tpot.p50.mid == pytest.approx(tpot, rel=0.06)


@pytest.mark.parametrize(("requests", "tpot"), [(64, 31.4), (128, 41.3), (256, 58.3)])
def test_gpt_oss_on_amd_takes_what_servers_measure(requests: int, tpot: float) -> None:
    """An MI300X, vLLM 0.17 (SemiAnalysisAI/InferenceX, pull request 1061), whose script asks for no Marlin."""
    served = {"framework": "vllm", "image": "vllm/vllm-openai-rocm:v0.17.0", "model": "gptoss", "precision": "fp4"}
    found = Predictor()(case(ONE | served, hardware="mi300x", tp="1.0", concurrency=str(requests)))
    assert found.tpot.p50.mid == pytest.approx(1e-3 * tpot, rel=0.1)


def test_a_file_is_scored_by_deployment(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    rows = [ONE, APART | {"concurrency": "8", "prefill_num_workers": "1", "prefill_gpus": "4"}, ONE | {"tp": ""}]
    path.write_text("\n".join([",".join(ONE), *(",".join(row.values()) for row in rows)]) + "\n")
    cases, skipped = read_cases(path)
    assert (len(cases), [each.reason for each in skipped]) == (2, ["tp is not stated"])
    document = score_serving(path, ("deployment", "metric"))
    groups = {(group["deployment"], group["metric"]): group["rows"] for group in document["groups"]}
    assert groups == {
        (deployment, metric): 1
        for deployment in ("one node", "disaggregated")
        for metric in ("ttft", "tpot", "throughput")
    }
