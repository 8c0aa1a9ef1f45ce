"""Launches: the settings of a scenario as options of the engine, or a refusal."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from roofline import Scenario, analyze, answer, serve
from roofline.core.errors import RooflineError
from roofline.launch import launch, launch_command
from roofline.scenario.options import OPTIONS
from tests.cases import BESIDE, sampled
from tests.cli.test_cli import Run

BASE = Scenario("qwen3-30b-a3b", "h200-sxm", prompt=512, generate=64)


def words(scenario: Scenario, server: str | None = None) -> list[str]:
    return shlex.split(launch(scenario, server, concurrency=4).command)


def value(found: list[str], option: str) -> str:
    return found[found.index(option) + 1]


def test_vllm() -> None:
    found = words(BASE.with_(tp=4, ep=4, kv="fp8", max_model_len=8192, max_num_seqs=64, gpu_memory_utilization=0.8))
    assert found[:3] == ["vllm", "serve", "Qwen/Qwen3-30B-A3B"]
    assert value(found, "--tensor-parallel-size") == "4"
    assert "--enable-expert-parallel" in found
    assert value(found, "--kv-cache-dtype") == "fp8"
    assert value(found, "--max-model-len") == "8192"
    assert value(found, "--max-num-seqs") == "64"
    assert value(found, "--gpu-memory-utilization") == "0.8"


def test_sixteen_bits_are_a_type_that_an_engine_is_told_or_that_a_file_has() -> None:
    asked = Scenario("llama-3.1-8b", "h100-sxm", quant="fp16")
    assert value(words(asked), "--dtype") == "float16"
    assert "--dtype" not in words(asked.with_(quant="bf16"))  # as the checkpoint is
    assert value(words(asked.with_(engine="llama.cpp")), "--model") == "llama-3.1-8b-fp16.gguf"
    assert value(words(asked.with_(quant="Q4_K_M")), "--model") == "llama-3.1-8b-q4_k_m.gguf"
    with pytest.raises(RooflineError, match="dtype"):
        words(asked.with_(engine="tensorrt-llm"))


def test_the_short_command_has_what_differs_from_the_engine() -> None:
    assert launch_command(BASE) == "vllm serve Qwen/Qwen3-30B-A3B"
    assert launch_command(BASE.with_(tp=2)) == "vllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size 2"


def test_a_context_that_does_not_fit_is_limited() -> None:
    """Llama 3.1 8B leaves no room for 131,072 tokens (17 GB) on 24 GB, and vLLM would refuse to start."""
    scenario = Scenario("llama-3.1-8b", "rtx-4090")
    context = int(value(shlex.split(launch_command(scenario)), "--max-model-len"))
    fits = [
        bool(analyze(scenario.changed(prompt=tokens - 1, generate=1)).memory.fits)
        for tokens in (context, context + 1024)
    ]
    assert fits == [True, False]


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.5.3", ["--dp-size", "8", "--enable-dp-attention"]), ("0.5.23", ["--attn-dp-size", "8"])],
)
def test_sglang_names_attention_parallelism_by_version(version: str, expected: list[str]) -> None:
    found = words(Scenario("deepseek-r1", "h200-sxm", tp=8, dp_attention=True, engine=f"sglang@{version}"))
    place = found.index(expected[0])
    assert found[place : place + len(expected)] == expected
    assert value(found, "--tp-size") == value(found, "--ep-size") == "8"


def test_tensorrt_llm_has_a_file_of_settings() -> None:
    bundle = launch(BASE.with_(engine="tensorrt-llm", kv="fp8", enforce_eager=True), concurrency=4)
    assert value(shlex.split(bundle.command), "--extra_llm_api_options") == "config.yml"
    assert bundle.files["config.yml"] == "kv_cache_config:\n  dtype: fp8\ncuda_graph_config: null\n"


def test_llama_cpp_allots_the_context_of_all_slots() -> None:
    plain = Scenario("llama-3.1-8b", "rtx-4090", engine="llama.cpp", quant="q4_k_m", n_gpu_layers=20, kv="q8_0")
    assert int(value(words(plain), "--ctx-size")) > 100_000  # of lengths that nobody said, what there is room for
    found = words(plain.with_(prompt=512))
    assert int(value(found, "--ctx-size")) == 4 * 768  # 512 + 128 tokens, rounded up to 256
    assert value(found, "--parallel") == "4"
    assert value(found, "--n-gpu-layers") == "20"
    assert value(found, "--cache-type-k") == value(found, "--cache-type-v") == "q8_0"


@pytest.mark.parametrize(("share", "layers"), [("1", "36"), ("0.5", "18")])
def test_llama_cpp_keeps_experts_of_so_many_layers_on_the_cpu(share: str, layers: str) -> None:
    """gpt-oss-120b has 36 layers, all with experts; --n-cpu-moe counts layers."""
    technique = f"experts-on-cpu:share={share}"
    scenario = Scenario("gpt-oss-120b", "h100-sxm", engine="llama.cpp", techniques=[technique])
    assert value(words(scenario), "--n-cpu-moe") == layers


@pytest.mark.parametrize(
    ("name", "repository"),
    [
        ("qwen3-235b", "Qwen/Qwen3-235B-A22B"),
        ("qwen3-235b-a22b-instruct-2507", "Qwen/Qwen3-235B-A22B-Instruct-2507"),
        ("llama-3.1-8b-instruct", "meta-llama/Llama-3.1-8B-Instruct"),
        ("minimax/minimax-m3:free", "MiniMaxAI/MiniMax-M3"),  # OpenRouter's names
        ("Z.AI: GLM 4.6", "zai-org/GLM-4.6"),
        ("Google Gemma 3 27B", "google/gemma-3-27b-it"),
        ("qwen3.8", "Qwen/Qwen3.8-27B"),  # listed by the spec of qwen3.5-27b
        ("Qwen 3.8 27B", "Qwen/Qwen3.8-27B"),
        ("eurollm-22b", "utter-project/EuroLLM-22B-2512"),  # of a spec whose source is a paper
    ],
)
def test_the_repository_of_a_name(name: str, repository: str) -> None:
    """A name cut short is the spec's own repository; a listed one with more words is that one."""
    assert words(Scenario(name, "8xh200-sxm"))[2] == repository


@pytest.mark.parametrize(
    ("model", "hardware", "degrees", "nodes"),
    [
        ("deepseek-v3", "gb200", {"tp": 8}, 2),  # two trays of four GPUs
        ("llama-3.1-8b", "gb200", {"tp": 4}, 1),
        ("llama-3.1-405b", "h100-sxm", {"tp": 4, "pp": 3}, 3),  # four ranks of a stage on each: 6 + 6 would cut one
        ("llama-3.1-405b", "h100-sxm", {"tp": 8, "pp": 2}, 2),
        ("kimi-k3", "gb200", {"tp": 6, "pp": 2}, 3),  # trays of 4: six replicas of four trays are more than a rack has
    ],
)
def test_ranks_of_a_layer_share_a_machine(model: str, hardware: str, degrees: dict[str, int], nodes: int) -> None:
    found = words(Scenario(model, hardware, **degrees))
    assert (int(found[found.index("--nnodes") + 1]) if "--nnodes" in found else 1) == nodes


@pytest.mark.parametrize("asked", [("llama3.1:8b", {}), ("llama-3.1-8b", {"quant": "q4_k_m"})])
def test_vllm_reads_a_gguf_file_with_the_tokenizer_of_the_repository(asked: tuple[str, dict[str, str]]) -> None:
    """Its docs/features/quantization/gguf.md."""
    found = words(Scenario(asked[0], "h100-sxm", engine="vllm", **asked[1]))
    assert found[2].endswith("q4_k_m.gguf")
    assert found[found.index("--tokenizer") + 1] == "meta-llama/Llama-3.1-8B"


RECIPES = (
    ("qwen3-32b", {"hw": "2xh100-sxm"}, "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 2"),
    (
        "deepseek-r1",
        {"hw": "8xh200-sxm", "enable_expert_parallel": True},
        "vllm serve deepseek-ai/DeepSeek-R1 --trust-remote-code --tensor-parallel-size 8 --enable-expert-parallel",
    ),
    (
        "gpt-oss-120b",
        {"hw": "4xa100-sxm-80gb"},
        "vllm serve openai/gpt-oss-120b --tensor-parallel-size 4 --tool-call-parser openai --enable-auto-tool-choice",
    ),
    (
        "minimax-m3",
        {"hw": "8xh200-sxm", "quant": "mxfp8"},
        "vllm serve MiniMaxAI/MiniMax-M3-MXFP8 --tensor-parallel-size 8 --block-size 128 --tool-call-parser minimax_m3"
        " --reasoning-parser minimax_m3 --enable-auto-tool-choice",
    ),
    (
        "deepseek-v3.2",
        {"hw": "8xh200-sxm", "dp": 8, "enable_expert_parallel": True},
        "vllm serve deepseek-ai/DeepSeek-V3.2 --data-parallel-size 8 --enable-expert-parallel --trust-remote-code"
        " --tokenizer-mode deepseek_v32 --tool-call-parser deepseek_v32 --enable-auto-tool-choice"
        " --reasoning-parser deepseek_v3",
    ),
    (
        "deepseek-v4-flash",
        {"hw": "4xb300", "kv": "fp8"},
        "vllm serve deepseek-ai/DeepSeek-V4-Flash --tensor-parallel-size 4 --kv-cache-dtype fp8 --block-size 256"
        " --trust-remote-code --tokenizer-mode deepseek_v4 --tool-call-parser deepseek_v4 --enable-auto-tool-choice"
        " --reasoning-parser deepseek_v4",
    ),
    (
        "mistral-large-3",
        {"hw": "8xh200-sxm"},
        "vllm serve mistralai/Mistral-Large-3-675B-Instruct-2512 --tensor-parallel-size 8 --tokenizer-mode mistral"
        " --config-format mistral --load-format mistral --enable-auto-tool-choice --tool-call-parser mistral",
    ),
    (
        "nemotron-3-super",
        {"hw": "4xh100-sxm", "kv": "fp8"},
        "vllm serve nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-BF16 --kv-cache-dtype fp8 --tensor-parallel-size 4"
        " --trust-remote-code --enable-auto-tool-choice --tool-call-parser qwen3_xml --reasoning-parser nemotron_v3",
    ),
    (
        "minimax-m3",
        {"hw": "8xmi355x"},
        "VLLM_ROCM_USE_AITER=1 VLLM_ROCM_USE_AITER_MHA=0 VLLM_USE_BREAKABLE_CUDAGRAPH=0 vllm serve MiniMaxAI/MiniMax-M3"
        " --tensor-parallel-size 8 --block-size 128 --attention-backend TRITON_ATTN",
    ),
    (
        "Qwen/Qwen3-Reranker-8B",  # examples/offline_inference/qwen3_reranker.py of vllm-project/vllm
        {"hw": "l40s"},
        "vllm serve Qwen/Qwen3-Reranker-8B --runner pooling --hf-overrides {"
        '"architectures":["Qwen3ForSequenceClassification"],"classifier_from_token":["no","yes"],'
        '"is_original_qwen3_reranker":true}',
    ),
)
"""Models, deployments, and vLLM's commands for them (vllm-project/recipes, models/, 2026)."""


@pytest.mark.parametrize(("model", "options", "recipe"), RECIPES)
def test_the_recipes_of_vllm_are_contained(model: str, options: dict[str, object], recipe: str) -> None:
    bundle = launch(Scenario(model, **options), trust_remote_code="--trust" in recipe)  # type: ignore[arg-type]
    assert set(recipe.split()) <= set(shlex.split(bundle.command))


@pytest.mark.parametrize(
    ("model", "endpoint"),
    [
        ("Qwen/Qwen3-Embedding-8B", "/v1/embeddings"),
        ("Qwen/Qwen3-Reranker-8B", "/v1/rerank"),
        ("BAAI/bge-reranker-v2-m3", "/v1/rerank"),
    ],
)
def test_the_benchmark_of_a_reranker_asks_for_scores(model: str, endpoint: str) -> None:
    """A server of a classifier has no embeddings."""
    assert f"--endpoint {endpoint}" in launch(Scenario(model, "l40s")).files["benchmark.sh"]


@pytest.mark.parametrize(
    ("engine", "draft"),
    [("vllm", "eagle-3"), ("tensorrt-llm", "eagle-3"), ("llama.cpp", "speculative-decoding:draft=llama-3.2-1b")],
)
def test_replicas_with_drafts_start(engine: str, draft: str) -> None:
    """Under a load the drafts of a step follow from its sequences, after the techniques."""
    one, two = (
        launch(Scenario("llama-3.1-8b", "h100-sxm", dp=count, engine=engine, techniques=draft), concurrency=16)
        for count in (1, 2)
    )
    faster = [bundle.forecast.metrics["output_throughput_total"].mid for bundle in (one, two)]
    assert 1 < faster[1] / faster[0] <= 2


def test_the_short_command_has_what_a_model_does_not_start_right_without() -> None:
    """Blocks of MiniMax-M3's sparse attention (its recipe: mandatory on every platform), and no parsers."""
    assert "--block-size 128" in launch_command(Scenario("minimax-m3", "8xh200-sxm", quant="mxfp8"))
    assert "--tool-call-parser" not in launch_command(Scenario("minimax-m3", "8xh200-sxm", quant="mxfp8"))


@pytest.mark.parametrize(
    ("model", "scheme", "repository"),
    [
        ("glm-5.2", "fp8_block", "zai-org/GLM-5.2-FP8"),  # of a spec that also lists GLM-5.3, which is in FP8
        ("qwen3.6-27b", "fp8_block", "Qwen/Qwen3.6-27B-FP8"),
        ("NousResearch/Hermes-3-Llama-3.1-405B", "awq", "MODEL"),
    ],
)
def test_a_model_in_another_format_keeps_its_weights(model: str, scheme: str, repository: str) -> None:
    assert words(Scenario(model, "8xh200-sxm", quant=scheme))[2] == repository


@pytest.mark.parametrize(
    ("model", "loads"),
    [
        ("glm-4.7", ["zai-org/GLM-4.7-FP8"]),
        ("llama-3.3-70b", ["nvidia/Llama-3.3-70B-Instruct-FP8"]),
        ("meta-llama/Llama-3.1-8B", ["meta-llama/Llama-3.1-8B", "--quantization", "fp8"]),  # listed: Instruct alone
    ],
)
def test_a_listed_checkpoint_is_loaded_in_place_of_quantizing_at_start(model: str, loads: list[str]) -> None:
    found = shlex.split(launch(Scenario(model, "8xh100-sxm", quant="fp8")).command)
    assert found[2] == loads[0]
    assert ("--quantization" in found) == (len(loads) > 1)


def test_slots_of_llama_cpp_share_a_context_that_is_given() -> None:
    scenario = Scenario("llama-3.1-8b", "rtx-4090", engine="llama.cpp", quant="q4_k_m", ctx_size=4096)
    assert value(words(scenario), "--ctx-size") == "4096"
    with pytest.raises(RooflineError, match="no room for 8 requests"):
        launch(scenario, concurrency=8)


def test_ollama_has_variables() -> None:
    bundle = launch(Scenario("llama-3.1-8b", "m4-max", prompt=512, quant="q4_k_m", engine="ollama"), concurrency=2)
    assert bundle.command.startswith("OLLAMA_CONTEXT_LENGTH=768 OLLAMA_NUM_PARALLEL=2 ")


def test_a_draft_is_the_engines_own_setting() -> None:
    scenario = Scenario("llama-3.1-8b", "h100-sxm", techniques=["eagle-3"])
    draft = json.loads(value(words(scenario), "--speculative-config"))
    assert draft == {"method": "eagle3", "model": "DRAFT", "num_speculative_tokens": 3}
    found = words(scenario.with_(engine="sglang"))
    assert value(found, "--speculative-algorithm") == "EAGLE3"
    assert value(found, "--speculative-num-draft-tokens") == "4"


@pytest.mark.parametrize(("engine", "slots"), [("vllm", "--max-loras"), ("sglang", "--max-loras-per-batch")])
def test_adapters_have_slots_and_the_largest_rank(engine: str, slots: str) -> None:
    scenario = Scenario("llama-3.1-8b", "h100-sxm", engine=engine)
    found = words(scenario.with_(techniques=["lora:rank=20,largest=64,adapters=100,slots=8"]))
    assert "--enable-lora" in found
    assert (value(found, "--max-lora-rank"), value(found, slots)) == ("64", "8")
    with pytest.raises(RooflineError, match="lora_rank"):
        words(scenario.with_(techniques=["lora"], engine="llama.cpp"))


def test_remote_code_is_trusted_only_where_the_user_says_so() -> None:
    scenario = Scenario("deepseek-r1", "h200-sxm", tp=8)
    plain, trusted = launch(scenario), launch(scenario, trust_remote_code=True)
    assert "--trust-remote-code" not in plain.command
    assert any("--trust-remote-code" in note for note in plain.notes)
    assert "--trust-remote-code" in trusted.command


def test_servers_without_remote_code_say_nothing_of_it() -> None:
    """A server of GGUF files runs no code of a repository, whatever vLLM's recipe of it does."""
    assert any("remote" in note for note in launch(Scenario("qwen3.6-35b-a3b", "h100-sxm", quant="fp8")).notes)
    gguf = launch(Scenario("qwen3.6-35b-a3b", "rtx-4090", engine="llama.cpp", quant="q4_k_m"))
    assert not any("remote" in note for note in gguf.notes)


def test_a_format_of_a_model_without_a_repository_is_quantized_at_start() -> None:
    """Of Mistral 7B v0.1 no spec names a repository."""
    assert launch_command(Scenario("mistral-7b-v0.1", "h100", quant="fp8")).startswith("vllm serve MODEL")


def test_a_scheme_without_a_repository_is_a_placeholder_that_says_so() -> None:
    bundle = launch(Scenario("gemma-2-27b", "h100-sxm", quant="awq", tp=2))
    assert shlex.split(bundle.command)[2] == "MODEL"
    assert "MODEL: a checkpoint of gemma-2-27b in awq" in bundle.notes[0]
    named = launch(Scenario("Qwen/Qwen3-32B-AWQ", "h100-sxm"))
    assert shlex.split(named.command)[2] == "Qwen/Qwen3-32B-AWQ"
    listed = launch(Scenario("qwen3-coder-480b-a35b-fp8", "h200-sxm", tp=8, ep=8))
    assert shlex.split(listed.command)[2] == "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8"


EXAMPLES = [
    name
    for name, option in OPTIONS.items()
    if name not in ("model", "hw", "engine", "price", "convention", "memory_reading", "expert_skew", "host")
]


@pytest.mark.parametrize("name", sampled(EXAMPLES, 14))
def test_no_option_is_dropped(name: str) -> None:
    """An option changes the files of a launch, or is refused."""
    option = OPTIONS[name]
    given = {"model": "llama-3.1-8b", "hw": "h100-sxm", **BESIDE.get(option.name, {})}
    base = Scenario(**{key: OPTIONS[key].read(text) for key, text in given.items()})
    changed = base.with_(**{option.keyword: option.read(option.example)})
    try:
        bundle = launch(changed)
    except RooflineError:
        return
    assert bundle.files != launch(base).files, name


@pytest.mark.parametrize("technique", ["h2o", "medusa", "static-batching", "rtn", "lookahead"])
def test_techniques_without_an_option_are_refused(technique: str) -> None:
    with pytest.raises(RooflineError, match="vLLM has no option for"):
        launch(Scenario("llama-3.1-8b", "h100-sxm", techniques=[technique]))


@pytest.mark.parametrize(
    ("options", "load", "message"),
    [
        ({"ep": 2, "tp": 4}, {}, "among all 4 ranks or none"),
        ({"kv": "int8", "engine": "sglang"}, {}, "has no kv int8"),
        ({"engine": "vllm@0.6"}, {}, "before 0.11.0 are not known"),
        ({}, {"offline": 100}, "at a concurrency or a rate"),
        ({}, {"rate": 1e5}, "faster than the server answers"),
        ({"max_model_len": 256}, {}, "longer than"),
    ],
)
def test_refusals(options: dict[str, object], load: dict[str, object], message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        launch(BASE.with_(**options), **load)  # type: ignore[arg-type]


def test_hostile_names_are_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "$(touch x); 'a' \"b\""
    folder.mkdir()
    text = (Path(__file__).parents[2] / "data/configs/llama-3.1-8b.json").read_text(encoding="utf-8")
    (folder / "config.json").write_text(text, encoding="utf-8")
    bundle = launch(Scenario(str(folder / "config.json"), "h100-sxm"))
    assert shlex.split(bundle.command)[2] == str(folder)
    assert str(folder) in shlex.split(bundle.benchmark)


def test_the_benchmark_sends_what_was_predicted() -> None:
    bundle = launch(BASE, rate=2.0, prefix_hits=0.5, burstiness=0.5)
    found = shlex.split(bundle.benchmark)
    assert int(value(found, "--random-prefix-len")) + int(value(found, "--random-input-len")) == 512
    assert value(found, "--request-rate") == "2"
    assert value(found, "--burstiness") == "0.5"
    assert bundle.forecast.load == "open loop 2 req/s"


def test_the_command_writes_a_folder(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "out"
    status, out, _ = run("launch", "qwen3-8b", "--hw", "h100-sxm", "--concurrency", "4", "--output", target)
    assert status == 0
    assert {path.name for path in target.iterdir()} == {"serve.sh", "benchmark.sh", "prediction.json"}
    assert len(out.splitlines()) == 3
    assert "vllm serve Qwen/Qwen3-8B" in (target / "serve.sh").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--hw", "rtx-4090"), "does not fit"),
        (("--hw", "8xh100-sxm", "--as", "helm"), "unknown target"),
        (("--hw", "8xh100-sxm", "--engine", "lmdeploy"), "unknown engine"),
        (("--hw", "8xh100-sxm", "--with", "h2o"), "no option for the technique h2o"),
    ],
)
def test_errors_are_one_sentence(run: Run, more: tuple[str, ...], message: str) -> None:
    status, out, err = run("launch", "llama-3.3-70b", *more)
    assert (status, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_what_is_launched_is_read_back_as_the_same_scenario(run: Run) -> None:
    """The options of a launch, given to `roofline serve`, make the prediction of the launch."""
    scenario = BASE.with_(tp=2, kv="fp8", max_model_len=4096, enable_expert_parallel=True, enforce_eager=True)
    options = shlex.split(launch_command(scenario))[3:]
    common = ("--hw", "h200-sxm", "--prompt", "512", "--generate", "fixed:64", "--concurrency", "4", "--rounds", "10")
    status, out, err = run("serve", "qwen3-30b-a3b", *common, *options, "--format", "json")
    assert status == 0, err
    found = launch(scenario, concurrency=4).forecast.metrics["tpot_mean"].mid / 1e3
    assert json.loads(out)["points"][0]["tpot_s"]["mean"]["mid"] == pytest.approx(found, rel=1e-6)


def test_a_benchmark_sends_one_length_and_users_do_not() -> None:
    scenario = Scenario("llama-3.1-8b", "h100-sxm", prompt=2000, generate=300)
    found = launch(scenario, concurrency=64).forecast
    (sent,) = serve(scenario.with_(generate="fixed:300"), concurrency=64, rounds=10).outcomes
    (users,) = serve(scenario, concurrency=64).outcomes
    assert found.metrics["ttft_mean"].mid == pytest.approx(1e3 * sent.ttft.mean.mid)
    assert found.steady == pytest.approx(1e3 * users.ttft.mean.mid)


def test_ollama_is_told_the_slots_that_are_predicted() -> None:
    """It takes one request at a time without OLLAMA_NUM_PARALLEL (envconfig/config.go)."""
    bundle = launch(Scenario("llama-3.1-8b", "rtx-4090", engine="ollama"), concurrency=4)
    assert "OLLAMA_NUM_PARALLEL=4" in bundle.command
    alone = launch(Scenario("llama-3.1-8b", "rtx-4090", engine="ollama"), concurrency=1)
    found, one = (each.forecast.metrics["output_throughput_total"].mid for each in (bundle, alone))
    assert found > 2 * one


def test_images_take_a_projector_and_mamba2_a_converted_checkpoint() -> None:
    scenario = Scenario("qwen2.5-vl-7b", "m3-max", engine="llama.cpp")
    assert "--mmproj" in words(scenario.with_(images=1))
    assert "--mmproj" not in words(scenario)
    assert launch_command(Scenario("mamba2-2.7b", "rtx-4090")) == "vllm serve MODEL"


def test_states_of_hardware_are_launched() -> None:
    limited = launch(Scenario("llama-3.1-8b", "rtx-3090-250w"), concurrency=1)
    assert "nvidia-smi -pl 250" in limited.files["serve.sh"]
    locked = launch(Scenario("llama-3.1-8b", "rtx-3090-1400mhz"), concurrency=1)
    assert "nvidia-smi -lgc 1400" in locked.files["serve.sh"]
    part = launch(Scenario("llama-3.2-1b", "h100-sxm-1g.10gb"), target="kubernetes", concurrency=1)
    assert "nvidia.com/mig-1g.10gb: 1" in part.files["kubernetes.yaml"]


@pytest.mark.parametrize(
    ("engine", "tiers", "words"),
    [
        ("vllm", "dram=400GiB", ["--kv-offloading-size 400"]),
        (
            "vllm",
            "lmcache:dram=400GB,redis=inf",
            ["LMCACHE_MAX_LOCAL_CPU_SIZE=100", "LMCACHE_REMOTE_URL=redis://", '{"kv_connector":"LMCacheConnectorV1"'],
        ),
        (
            "vllm",
            "mooncake:remote=4TB",
            ["MOONCAKE_CONFIG_PATH=", '"MooncakeStoreConnector"', "# mooncake_config.json:"],
        ),
        ("sglang", "dram=400GB", ["--enable-hierarchical-cache --hicache-size 100"]),
        (
            "sglang",
            "dram=2x:write=selective,mooncake=inf",
            ["--hicache-ratio 2 ", "--hicache-write-policy write_through_selective", "storage-backend mooncake"],
        ),
        ("tensorrt-llm", "dram=400GB", ["host_cache_size: 100000000000"]),
        ("llama.cpp", "dram=64GiB", ["--cache-ram 65536"]),
    ],
)
def test_tiers_are_the_connectors_options(engine: str, tiers: str, words: list[str]) -> None:
    scenario = Scenario("llama-3.1-70b", "4xh100-sxm", tp=4, engine=engine)
    text = launch(scenario, concurrency=4, tiers=tiers).text.replace("\\\n  ", "")
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("engine", "tiers", "option", "most"),
    [
        ("sglang", "dram=800GB", "--hicache-size ", 100),
        ("vllm", "lmcache:dram=800GB", "LMCACHE_MAX_LOCAL_CPU_SIZE=", 100),
        ("vllm", "dram=800GiB", "--kv-offloading-size ", 100),
    ],
)
def test_ranks_that_share_experts_share_a_tier(engine: str, tiers: str, option: str, most: int) -> None:
    """The sizes of all are together that of the tier; of copies each has such a tier."""
    shared = Scenario("deepseek-v3", "8xh200", dp=8, ep=8, engine=engine)
    copies = Scenario("llama-3.1-8b", "8xh200", dp=8, engine=engine)
    for scenario, size in ((shared, most), (copies, 8 * most)):
        text = launch(scenario, concurrency=8, tiers=tiers).text.replace("\\\n  ", "")
        assert f"{option}{size} " in text, text


@pytest.mark.parametrize(
    ("options", "tiers", "message"),
    [
        ({"engine": "ollama", "quant": "q4_k_m"}, "dram=1GB", "not known to have tiers"),
        ({"engine": "vllm"}, "dram=1GB:block=64", "no option for offloading.block"),
        ({"engine": "vllm"}, "dram=inf", "give one"),
        ({"engine": "vllm@0.11"}, "dram=1GB", "another version has"),
        ({"engine": "sglang"}, "dram=1GB,ssd=1TB:bandwidth=9GB/s", "has no hicache.store"),
    ],
)
def test_tiers_that_a_server_is_not_told_are_refused(options: dict[str, object], tiers: str, message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        launch(Scenario("llama-3.1-8b", "h100-sxm", **options), concurrency=4, tiers=tiers)  # type: ignore[arg-type]


def test_sglang_is_told_the_requests_of_all_ranks_and_those_that_run_with_drafts() -> None:
    """It divides them, as a step's tokens, by the ranks of attention; with drafts it runs 48 unless told more."""
    scenario = Scenario("deepseek-v3", "h200-sxm", tp=1, dp=8, ep=8, engine="sglang")
    limited = scenario.with_(max_num_seqs=64)
    assert serve(limited, concurrency=1).replica.scheduler.sequences == 8
    assert "--max-running-requests 64" in launch(limited).command
    budget = serve(scenario, concurrency=1).replica.scheduler.tokens
    assert f"--chunked-prefill-size {8 * budget}" in launch_command(scenario)
    assert serve(scenario.with_(max_num_batched_tokens=8 * 512), concurrency=1).replica.scheduler.tokens == 512
    drafting = Scenario("llama-3.1-8b", "h100-sxm", engine="sglang", techniques="eagle-3")
    assert "--max-running-requests" not in launch(drafting, concurrency=32).command
    assert "--max-running-requests 128" in launch(drafting, concurrency=128).command


@pytest.mark.parametrize(
    ("model", "hardware", "loaded"),
    [
        ("llama-3.3-70b", "mi355x", "amd/Llama-3.3-70B-Instruct-MXFP4-Preview"),
        ("deepseek-r1", "8xmi355x", "amd/DeepSeek-R1-MXFP4-Preview"),
        ("llama-3.3-70b", "b200-sxm", "MODEL"),
        ("qwen3-32b", "mi355x", "MODEL"),
    ],
)
def test_a_checkpoint_that_a_vendor_makes_is_loaded_on_its_devices(model: str, hardware: str, loaded: str) -> None:
    command = launch_command(Scenario(model, hardware, quant="mxfp4"))
    assert f"vllm serve {loaded}" in command


def test_the_exchange_that_was_chosen_is_in_the_command() -> None:
    """vLLM gathers the tokens of all expert ranks where it is not told another exchange."""
    found = answer("deepseek-r1", "gb200", dp=72, ep=72, users=500, prompt=1000)
    assert found.scenario.settings.parallel.exchange == "nvlink_one_sided"
    assert "--all2all-backend flashinfer_nvlink_one_sided" in found.command
    asked = answer("deepseek-r1", "gb200", dp=72, ep=72, all_to_all="allgather_reducescatter", users=500, prompt=1000)
    assert asked.outcome is not None
    assert found.outcome is not None
    assert found.outcome.output_tokens_per_second > asked.outcome.output_tokens_per_second
