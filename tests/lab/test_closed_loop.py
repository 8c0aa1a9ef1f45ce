"""Closed loops of AIConfigurator's data: layouts, formats and loads of their rows, and scores."""

import gzip

import pytest

from lab.score.serving import main
from lab.tables.closed_loop import COLUMNS, to_case
from roofline.specs.engine import load_engine
from roofline.specs.scheduler import MIXED, PREFILL_FIRST, Scheduler
from roofline.validate.tables.names import Unmapped, find_model
from roofline.validate.tables.serving import find_profile
from roofline.validate.tables.text import Line

ROW = {
    "backend": "vllm",
    "backend_version": "0.19.0",
    "model_path": "meta-llama/Llama-3.1-8B-Instruct",
    "system": "h100_sxm",
    "precision": "",
    "isl": "1024",
    "osl": "1024",
    "concurrency": "16.0",
    "batch_size": "16.0",
    "tp_size": "1.0",
    "pp_size": "1.0",
    "attention_dp_size": "1.0",
    "moe_tp_size": "1.0",
    "moe_ep_size": "1.0",
    "gemm_quant_mode": "",
    "moe_quant_mode": "",
    "silicon_ttft_ms": "100",
    "silicon_tpot_ms": "9",
}


def line(**cells: object) -> Line:
    return Line(1, "file", {**ROW, **{name: str(value) for name, value in cells.items()}})


def parallel(**cells: object) -> tuple[int, int, int]:
    found = to_case(line(model_path="deepseek-ai/DeepSeek-R1", system="b200_sxm", precision="fp8", **cells))
    chosen = found.scenario.settings.parallel
    return chosen.tensor, chosen.data, chosen.expert


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ({"tp_size": 8, "moe_tp_size": 8, "moe_ep_size": 1}, (8, 1, 1)),
        ({"tp_size": 8, "moe_tp_size": 1, "moe_ep_size": 8}, (8, 1, 8)),
        ({"tp_size": 64, "moe_tp_size": 8, "moe_ep_size": 8}, (8, 1, 8)),
        ({"tp_size": 16, "moe_tp_size": 4, "moe_ep_size": 4}, (4, 1, 4)),
        ({"tp_size": 1, "attention_dp_size": 8, "moe_tp_size": 1, "moe_ep_size": 8}, (1, 8, 8)),
        ({"tp_size": 1, "attention_dp_size": 64, "moe_tp_size": 8, "moe_ep_size": 8}, (1, 8, 8)),
        ({"tp_size": 4, "attention_dp_size": 4, "moe_tp_size": 1, "moe_ep_size": 16}, (1, 4, 4)),
        ({"tp_size": 1, "attention_dp_size": "", "moe_tp_size": 4, "moe_ep_size": 1}, (1, 4, 4)),
    ],
)
def test_layouts_have_one_reading(cells, expected) -> None:
    assert parallel(**cells) == expected


@pytest.mark.parametrize("name", ["mi300x", "mi325x", "mi355x", "h20", "b300-sxm", "rtx-pro-6000-server"])
def test_rows_of_any_bundled_device(name) -> None:
    """The column has underscores in some files."""
    for system in {name, name.replace("-", "_"), name.upper()}:
        assert to_case(line(system=system)).scenario.hardware.name == name


def test_fp4_of_amd_devices_is_mxfp4() -> None:
    for system, weights in (("mi355x", "mxfp4"), ("b200_sxm", "nvfp4")):
        precision = to_case(line(system=system, precision="fp4")).scenario.precision
        assert precision is not None
        assert (precision.weights.name, precision.activations.name) == (weights, weights)


def test_many_devices_have_decode_apart() -> None:
    found = to_case(
        line(
            backend="trtllm",
            model_path="deepseek-ai/DeepSeek-R1",
            system="gb200",
            precision="fp4",
            tp_size=36,
            moe_tp_size=36,
            concurrency=256,
            batch_size=256,
        )
    )
    assert found.decode is not None
    scenario, load = found.decode
    assert scenario.settings.parallel.devices == 8
    assert load.concurrency == 64


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1"),
        ("nvidia/DeepSeek-V3.1-NVFP4", "deepseek-v3"),
        ("openai/gpt-oss-120b", "gpt-oss-120b"),
        ("MiniMaxAI/MiniMax-M2.5", "minimax-m2"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", "qwen3-235b-a22b"),
        ("moonshotai/Kimi-K2.5", "kimi-k2.5"),
        ("zai-org/GLM-5-FP8", "glm-5"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama-3.3-70b"),
        ("Qwen/Qwen3.5-397B-A17B-FP8", "qwen3.5-397b-a17b"),
    ],
)
def test_repositories_have_the_architecture_of_a_bundled_model(path, name) -> None:
    assert find_model(path).name == name


def test_what_is_unknown_is_told() -> None:
    for cells in ({"model_path": "some/Model-9B"}, {"system": "tpu"}, {"backend": "tgi"}, {"tp_size": "many"}):
        with pytest.raises(Unmapped):
            to_case(line(**cells))
    assert find_profile("vllm", "") == "vllm"


@pytest.mark.parametrize(
    ("backend", "version", "profile"),
    [
        *(("vllm", "0.7.3", "vllm@0.4"), ("vllm", "v0.8.0", "vllm@0.8"), ("vllm", "0.13.1", "vllm@0.8")),
        *(("vllm", "0.14.0", "vllm"), ("vllm", "1.0.0", "vllm"), ("trtllm", "0.20.0", "tensorrt-llm@0.18")),
        *(("trtllm", "v1.2.0rc5", "tensorrt-llm@0.18"), ("trtllm", "1.2.0rc6.post1", "tensorrt-llm")),
        *(("trtllm", "1.2.0", "tensorrt-llm"), ("sglang", "v0.5.6", "sglang@0.5.6"), ("sglang", "main", "sglang")),
    ],
)
def test_a_version_has_the_profile_that_begins_before_it(backend: str, version: str, profile: str) -> None:
    assert load_engine(find_profile(backend, version)).profile == load_engine(profile).profile


def test_formats_follow_engine_and_device() -> None:
    quantized = to_case(line(system="h200_sxm", precision="fp8", gemm_quant_mode="fp8", moe_quant_mode="fp8"))
    assert quantized.scenario.run_precision.kv.name == "fp8"
    assert to_case(line()).scenario.run_precision.kv.name == "bf16"
    deepseek = to_case(line(model_path="deepseek-ai/DeepSeek-R1", system="h200_sxm", precision="fp8", tp_size=8))
    assert deepseek.scenario.run_precision.weights.name == "fp8_block"


def test_loads_are_those_of_the_benchmarks() -> None:
    found = to_case(line()).load
    assert (found.prompts.written, found.concurrency, found.rounds) == ("uniform:819:1024", 16, 10)
    assert not to_case(line(isl=2048, osl=128)).load.prompts.varies


def test_the_first_requests_of_constant_lengths_take_a_second_at_most() -> None:
    few, many = (to_case(line(isl=2048, osl=128, concurrency=count, batch_size=count)).load for count in (8, 400))
    assert few.ramp == 0.04
    assert many.ramp == pytest.approx(1 / 400)


def test_prompts_in_thousands_repeat_after_a_hundred() -> None:
    hits = [to_case(line(isl=4000, osl=500, concurrency=count, batch_size=count)).load.hits for count in (8, 20, 100)]
    assert hits == pytest.approx([0, 0.5, 0.9])
    assert to_case(line(isl=4096, osl=512)).load.hits == 0
    assert to_case(line(backend="sglang", isl=4000, osl=500)).load.hits == 0


def test_budgets_and_waits_are_those_of_the_benchmarks_scripts() -> None:
    def scheduler(**cells: object) -> Scheduler:
        return to_case(line(**{"system": "b200_sxm", **cells})).scheduler

    def tensorrt_llm(**cells: object) -> Scheduler:
        return scheduler(**{"backend": "trtllm", "backend_version": "1.1.0rc2.post2", **cells})

    llama = tensorrt_llm(tp_size=4)
    deepseek = {"model_path": "deepseek-ai/DeepSeek-V3", "precision": "fp8", "tp_size": 8}
    assert (llama.tokens, llama.gather) == (16384, 20)
    assert tensorrt_llm(tp_size=8).gather == 0
    assert tensorrt_llm(tp_size=4, osl=8192).gather == 0
    assert (tensorrt_llm(**deepseek).tokens, tensorrt_llm(**deepseek).stream) == (8192, 10)
    assert tensorrt_llm(**{**deepseek, "isl": 8192}).tokens == 8320
    assert tensorrt_llm(**deepseek, backend_version="1.2.0rc6").stream == 1
    many = {**deepseek, "concurrency": 64, "batch_size": 64}
    assert [tensorrt_llm(**many, backend_version=text).gather for text in ("1.1.0rc2", "1.2.0rc6")] == [0, 40]
    drafts = tensorrt_llm(**{**many, "model_path": "deepseek-ai/DeepSeek-R1"})
    assert (drafts.tokens, drafts.gather) == (1024 + 4 * 64 + 64, 0)
    gpt_oss = tensorrt_llm(model_path="openai/gpt-oss-120b", precision="fp4", tp_size=8)
    assert (gpt_oss.tokens, gpt_oss.stream) == (20000, 20)
    sglang = {"backend": "sglang", "backend_version": "0.5.9"}
    fp4 = {**deepseek, "precision": "fp4", "gemm_quant_mode": "nvfp4", "moe_quant_mode": "nvfp4"}
    few, fewer = (scheduler(**sglang, **cells) for cells in (deepseek, fp4))
    hopper = scheduler(**sglang, **{**deepseek, "system": "h200_sxm"})
    assert [(each.tokens, each.poll) for each in (few, fewer, hopper)] == [(32768, 30), (16384, 30), (32768, 1)]
    glm = {**deepseek, "model_path": "zai-org/GLM-5-FP8"}
    assert [scheduler(**sglang, **{**glm, "system": name}).tokens for name in ("b200_sxm", "h200_sxm")] == [32768, 8192]
    minimax = {**deepseek, "model_path": "MiniMaxAI/MiniMax-M2.5", "isl": 8192}
    new, old = (scheduler(**minimax, backend_version=text) for text in ("0.19.0", "nightly-5b8c30d6"))
    assert [(each.tokens, each.captured) for each in (new, old)] == [(16384, 2048), (None, 512)]
    ranks = {**deepseek, "tp_size": 1, "attention_dp_size": 8, "moe_ep_size": 8}
    assert tensorrt_llm(**ranks, concurrency=128, batch_size=16).gather == 60
    constant = {"isl": 4000, "osl": 500}
    assert tensorrt_llm(**constant).tokens == 4000 + 1500 + 16
    assert scheduler(backend_version="0.12.0", **constant).tokens == 4000 + 1500
    old, new = (scheduler(backend="sglang", backend_version=text, **constant) for text in ("0.5.1.post1", "0.5.6"))
    assert (old.order, new.order, new.tokens) == (PREFILL_FIRST, MIXED, 5500)


def written(tmp_path, lines):
    path = tmp_path / "rows.csv.gz"
    text = "\n".join([",".join(COLUMNS), *(",".join(each.cells[name] for name in COLUMNS) for each in lines)])
    path.write_bytes(gzip.compress(text.encode()))
    return path


def test_rows_are_scored_by_group(tmp_path, capsys) -> None:
    path = written(tmp_path, [line(), line(concurrency=4, batch_size=4), line(model_path="some/Model")])
    assert main([str(path), "--by", "model,metric"]) == 0
    out = capsys.readouterr().out
    assert [row.split()[:3] for row in out.splitlines() if "llama" in row] == [
        ["llama-3.1-8b", "ttft", "2"],
        ["llama-3.1-8b", "tpot", "2"],
    ]
    assert "2 of 3 rows simulated" in out
    assert main([str(path), "--by", "colour"]) == 2
