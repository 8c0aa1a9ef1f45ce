"""The short answer: what is chosen, and that each figure is that of the commands that go deeper."""

from __future__ import annotations

import math
from textwrap import wrap
from typing import Any

import pytest

from roofline import RooflineError, Scenario, analyze, answer, choose, serve, size
from roofline.advisor.judged import judged
from roofline.advisor.planned import CONTEXT, LAYOUT
from roofline.launch import launch, launch_command
from roofline.reports.documents.answer import LINES, _height, answer_document
from roofline.scenario.analysis import filled
from roofline.techniques.unsupported import unsupported
from roofline.verdict.limit import Part
from roofline.verdict.run import run_command
from tests.cases import sampled
from tests.conftest import Run

QUESTIONS: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
    "70B on two 4090s": (("llama-3.3-70b", "2x4090"), {}),
    "70B on one 4090": (("llama-3.3-70b", "4090"), {}),
    "100 users on H200": (("qwen3-235b-a22b", "8xh200"), {"users": 100}),
    "100 users on B200": (("qwen3-235b-a22b", "8xb200"), {"users": 100}),
    "a rate": (("llama-3.1-8b", "l40s"), {"rate": "5/s"}),
    "a rate beyond": (("llama-3.1-8b", "l40s"), {"rate": 50}),
    "a target": (("llama-3.1-8b", "l40s"), {"users": 50, "tpot": "30ms"}),
    "a laptop": (("qwen3-32b", "m4-max"), {}),
    "an encoder": (("bert-base", "l4"), {}),
    "MLA": (("deepseek-v3", "8xh100-sxm"), {}),
    "a vision encoder": (("qwen2.5-vl-7b", "l4"), {"users": 4}),
}


@pytest.mark.parametrize(("names", "options"), sampled(QUESTIONS.values(), 2), ids=QUESTIONS)
def test_an_answer_is_at_most_eight_lines_of_eighty_columns(names: tuple[str, str], options: dict[str, Any]) -> None:
    *told, command = str(answer(*names, **options)).splitlines()
    assert told[0].startswith(("Yes: ", "No: "))
    assert command.startswith("Run it: ")
    # The command starts the eighth line of a terminal at the latest, but for what was tried where nothing fits, and for
    # what MODEL is in it.
    assert sum(len(wrap(line, 80)) for line in told if not line.startswith(("Tried: ", "MODEL: "))) <= 7


@pytest.mark.parametrize(("model", "hardware"), [("deepseek-v4-pro", "h200"), ("deepseek-v3", "h100-sxm")])
def test_more_devices_are_shown_beside_what_there_is(model: str, hardware: str) -> None:
    """What was tried gives way to the change that is many times as fast."""
    told = str(answer(model, hardware)).splitlines()
    assert any(line.startswith("8 x ") for line in told)
    assert any("CPU memory" in line for line in told)


def test_a_model_that_fits_only_in_four_bits_runs_where_its_files_do() -> None:
    found = answer("llama-3.3-70b", "2x4090")
    assert (found.fits, found.scenario.profile.name, found.scenario.given("quant")) == (True, "vllm", "awq")
    assert (found.plan.narrower, found.plan.elsewhere) == (True, False)
    layers = answer("llama-3.3-70b", "2x4090", engine="llama.cpp").scenario
    assert (layers.given("quant"), layers.settings.parallel.pipeline) == ("q4_k_m", 2)  # llama.cpp splits layers
    tried = found.plan.tried
    assert all(not each.memory(1).fits for each in tried[: tried.index(found.plan.candidate)])


def test_formats_as_released_come_first() -> None:
    found = answer("llama-3.1-8b", "h100-sxm")
    assert found.scenario == Scenario("llama-3.1-8b", "h100-sxm")
    assert not found.plan.narrower


def test_options_beside_a_scenario_replace_its_own() -> None:
    scenario = Scenario("llama-3.1-8b", "h100-sxm", kv="fp8")
    found = answer(scenario, "l40s", prompt=1000).scenario
    assert found == Scenario("llama-3.1-8b", "l40s", kv="fp8", prompt=1000)
    assert answer(scenario).scenario == scenario


def test_what_is_said_is_kept() -> None:
    found = answer("llama-3.3-70b", "4090", quant="awq", engine="vllm")
    assert not found.fits
    assert {each.scenario.profile.name for each in found.plan.tried} == {"vllm"}
    assert {each.scenario.precision.weights.name for each in found.plan.tried} == {"awq"}
    assert answer("llama-3.3-70b", "4xl40s", pp=4).scenario.settings.parallel.tensor == 1


def test_what_does_not_fit_has_changes_with_which_it_does_the_fastest_first() -> None:
    found = answer("llama-3.3-70b", "4090")
    assert not found.fits
    speeds = [fit.tokens_per_s for fit in found.plan.fits_with]
    assert speeds == sorted(speeds, reverse=True)
    assert all(analyze(fit.scenario).memory.fits for fit in found.plan.fits_with)
    kinds = [set(fit.options) & {"pp", "n_gpu_layers", "offload"} for fit in found.plan.fits_with]
    assert kinds == [set(), {"n_gpu_layers"}, {"offload"}]  # devices, a CPU's layers, streamed weights


def test_experts_go_to_the_cpu_before_whole_layers() -> None:
    """llama.cpp's --n-cpu-moe: attention stays on the GPU, and a token reads few experts."""
    found = answer("gpt-oss-120b", "rtx-3090", engine="llama.cpp").plan.fits_with
    beside = next(fit for fit in found if "with" in fit.options)
    host = beside.scenario.settings.host
    assert host is not None
    assert 0.5 < host.memory < 0.7  # 24 of 65 GB are on the GPU
    assert all("n_gpu_layers" not in fit.options for fit in found)


def test_a_load_is_that_of_serve_and_one_user_that_of_analyze() -> None:
    loaded = answer("llama-3.1-8b", "l40s", users=50, prompt=1000)
    curve = serve(Scenario("llama-3.1-8b", "l40s", prompt=1000), concurrency=50)
    assert loaded.outcome == curve.outcomes[0]
    assert loaded.usd_per_million_tokens == curve.cost(curve.outcomes[0])
    alone = answer("llama-3.1-8b", "l40s", prompt=1000)
    assert alone.analysis.expected == analyze(Scenario("llama-3.1-8b", "l40s", prompt=1000)).expected


def test_the_context_is_the_longest_that_fits() -> None:
    found = answer("llama-3.1-8b", "l40s")
    longest = found.context - 128
    fits = [analyze(Scenario("llama-3.1-8b", "l40s", prompt=longest + more)).memory.fits for more in (0, 1)]
    assert (fits == [True, False]) or found.context == found.scenario.model.max_context


@pytest.mark.parametrize(("model", "hw"), [("phi-4", "rtx-3060"), ("llama-3.3-70b", "2x4090")])
def test_the_server_is_started_with_a_short_context_as_stated(model: str, hw: str) -> None:
    found = answer(model, hw)
    assert f"--max-model-len {found.context}" in found.command.replace("\\\n", "")


def test_a_missed_load_has_no_replicas_that_its_options_exclude() -> None:
    """Layers on a CPU are simulated beside one set of devices, so that several servers are none of its changes."""
    found = answer("llama-3.1-8b", "h100-sxm", concurrency=4, engine="llama.cpp", quant="q4_k_m", n_gpu_layers=8)
    assert not found.met
    assert found.better is None or "hw" not in found.better.option


def test_a_missed_target_says_by_how_much_and_what_meets_it() -> None:
    found = answer("llama-3.1-8b", "l40s", users=50, tpot="30ms")
    assert found.missed["tpot"] > 0.03
    assert found.better is not None
    assert found.better.meets
    assert serve(found.better.scenario, concurrency=50).outcomes[0].tpot.p95.mid <= 0.03


def test_a_long_prompt_is_limited_by_prompts_and_a_short_one_by_weights() -> None:
    assert answer("llama-3.1-8b", "l40s", users=32, prompt=8000, generate=50).limit.part is Part.PROMPTS
    assert answer("llama-3.1-8b", "2xl40s", rate=100).limit.part is Part.PROMPTS  # as of the rate that it sustains
    assert answer("llama-3.1-8b", "l40s", rate=50, prompt=64, generate=1000).limit.part is Part.WEIGHTS
    assert answer("llama-3.1-8b", "l40s").limit.part is Part.WEIGHTS
    assert answer("llama-3.1-8b", "8xl40s", users=500, tp=8).limit.roof == "the links"  # prompts over PCIe


@pytest.mark.slow
def test_the_layout_of_several_users_is_the_fastest_that_fits() -> None:
    """Cards that PCIe joins serve a small model as replicas; one user has the latency of all devices."""
    found = answer("llama-3.1-8b", "8xl40s", users=500)
    rate = found.outcome.output_tokens_per_second
    assert found.scenario.settings.parallel.data > 1
    assert rate > 2 * answer("llama-3.1-8b", "8xl40s", users=500, tp=8).outcome.output_tokens_per_second
    assert answer("llama-3.1-8b", "8xl40s").scenario.settings.parallel.tensor == 8


def test_an_engine_that_is_not_known_to_run_it_is_not_chosen() -> None:
    """gpt-oss-120b on Strix Halo: llama.cpp at about 50 tokens/s, vLLM at 7.5 (vllm-project/vllm, issue 34578)."""
    found = answer("gpt-oss-120b", "ryzen-ai-max-395")
    assert found.scenario.profile.name == "llama.cpp"
    assert found.analysis.expected.tpot.low < 1 / 50 < found.analysis.expected.tpot.high


def test_what_is_no_question_is_refused() -> None:
    for options in ({"batch": 4}, {"users": 3, "rate": 2}, {"users": 0}, {"frobnicate": 1}):
        with pytest.raises(RooflineError):
            answer("llama-3.1-8b", "l40s", **options)
    with pytest.raises(RooflineError, match="hardware is missing"):
        answer("llama-3.1-8b")


def test_the_command_starts_the_engine_that_was_chosen() -> None:
    eight = answer("llama-3.3-70b", "8xh100-sxm")
    command = run_command(eight.scenario, eight.context)
    assert command == "vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 8"
    two = answer("llama-3.3-70b", "2x4090", engine="llama.cpp")
    assert "--ctx-size 4096 " in run_command(two.scenario, 4096)


@pytest.mark.slow
def test_a_release_in_few_bits_is_run_as_it_is() -> None:
    """Not in a format of a few bits more, which would be quantized anew; the command names the repository as it is."""
    found = answer("gpt-oss-120b", "b300-sxm")
    assert str(found).splitlines()[1] == "Chosen: mxfp4 as released"
    assert found.command == "vllm serve openai/gpt-oss-120b"
    assert answer("kimi-k2.6", "8xb200-sxm").command.startswith("vllm serve moonshotai/Kimi-K2.6 ")


def test_servers_of_one_computer_are_answered() -> None:
    small = answer("llama-3.1-8b", "m4-max", engine="mlx")
    assert str(small).splitlines()[0].startswith("Yes: llama-3.1-8b runs on m4-max, fp16 on mlx")
    assert small.command.startswith("mlx_lm.server")
    large = answer("llama-3.3-70b", "m4-max-64gb", engine="mlx")
    assert large.scenario.given("quant") in ("int8", "int4")
    assert large.command.startswith("mlx_lm.server")
    assert answer("llama-3.1-8b", "m4-max", engine="ollama").command.startswith("OLLAMA_")
    assert answer("qwen3-30b-a3b", "rtx-4090", engine="ollama").plan.candidate.formats == "q4_k_m"
    with pytest.raises(RooflineError, match="MLX does not run on NVIDIA's devices"):
        answer("llama-3.1-8b", "h100-sxm", engine="mlx")


@pytest.mark.parametrize(("model", "hardware"), [("gpt-oss-20b", "arc-b580"), ("llama-3.3-70b", "tpu-v6e")])
def test_what_would_fit_is_known_to_run(model: str, hardware: str) -> None:
    """Formats that the engine's documents do not have on a device are no way to fit where there are others."""
    fits = answer(model, hardware).plan.fits_with
    assert fits
    assert not any(unsupported(fit.scenario) for fit in fits)


@pytest.mark.parametrize(("model", "hardware"), [("glm-5.2", "8xh200"), ("qwen3-235b-a22b", "4xh100")])
def test_a_server_of_one_vendor_has_the_widest_documented_format(model: str, hardware: str) -> None:
    """TensorRT-LLM's documents name formats of weights, unlike MLX's: FP8, whose checkpoint there is, before MXFP4."""
    found = answer(model, hardware, engine="tensorrt-llm")
    assert found.scenario.given("quant") == answer(model, hardware).scenario.given("quant") == "fp8_block"
    assert "MODEL" not in found.command


def test_a_checkpoint_that_nothing_narrows_is_not_converted() -> None:
    """NVFP4 and FP8 are no narrower than gpt-oss's MXFP4, and no maker has it in them."""
    found = answer("gpt-oss-20b", "b200", users=8, engine="tensorrt-llm")
    assert found.plan.candidate.released
    assert "MODEL" not in found.command


def test_a_checkpoint_of_mlx_runs_on_apple_silicon_alone() -> None:
    checkpoint = "mlx-community/Llama-3.1-8B-Instruct-4bit"
    assert "affine4_g64 on mlx" in str(answer(checkpoint, "m4-max"))
    with pytest.raises(RooflineError, match="are for MLX, which does not run on h100-sxm: name the model"):
        answer(checkpoint, "h100-sxm")


def test_experts_are_not_cut_inside_blocks_of_their_weights() -> None:
    """vLLM's recipe of MiniMax-M2.5: pure TP 8 fails, TP with EP and DP with EP are for eight devices."""
    assert answer("minimax-m2", "8xh200").scenario.settings.parallel.expert == 8
    assert answer("deepseek-v3", "8xh200").scenario.settings.parallel.expert == 1
    with pytest.raises(RooflineError, match=r"does not start with experts of 1536 in FP8 blocks of 128 with TP 8"):
        launch(Scenario("minimax-m2", "h200-sxm", tp=8))


def test_experts_are_spread_whole_where_only_the_tensor_ranks_are_said() -> None:
    spread = answer("Qwen/Qwen3-235B-A22B-FP8", "8xh100", tp=8)
    assert (spread.plan.candidate.released, spread.scenario.settings.parallel.expert) == (True, 8)
    cut = answer("Qwen/Qwen3-235B-A22B-FP8", "8xh100", tp=8, ep=1)
    assert cut.plan.narrower
    assert "in FP8 blocks of 128 with TP 8" in str(cut)


@pytest.mark.parametrize(
    ("model", "hardware", "layout"),
    sampled(
        [
            ("kimi-k3", "72xgb300", (8, 1, 9)),
            ("kimi-k3", "72xgb200", (8, 3, 3)),
            ("llama-3.1-405b", "16xh100", (8, 2, 1)),
            ("llama-3.1-70b", "4x8xa100-80gb", (8, 1, 4)),  # most of its servers have one board of eight
            ("llama-3.3-70b", "6xh100", (2, 1, 3)),
            ("phi-4", "8xh100", (2, 1, 4)),
            ("smollm2-135m", "2x4090", (1, 1, 2)),
        ],
        1,
    ),
)
def test_a_count_has_no_wide_pipeline(model: str, hardware: str, layout: tuple[int, int, int]) -> None:
    """As few stages as hold the model, on every surface, and replicas on the other devices.

    vLLM's recipe starts Kimi K3 on 8 GB300; 24 ranks, which its 96 heads allow, nobody does.
    """
    found, asked = answer(model, hardware), Scenario(model, hardware)
    for parallel in (asked.settings.parallel, found.scenario.settings.parallel):
        assert (parallel.tensor, parallel.pipeline, parallel.data) == layout
    for command in (found.command, launch(asked).command):
        assert layout[0] == 1 or f"--tensor-parallel-size {layout[0]}" in command
        assert ("--nnodes" in command) == (layout[0] * layout[1] > asked.hardware.machine_devices)


@pytest.mark.parametrize("model", sampled(["kimi-k2", "deepseek-v3"], 1))
def test_a_mixture_on_a_rack_has_its_experts_on_all_devices(model: str) -> None:
    """As NVL72 is used: data-parallel attention and experts over all (NVIDIA/TensorRT-LLM, tech_blog 4)."""
    alone = Scenario(model, "72xgb200")
    for scenario in (alone.with_(batch=216), alone.laid_out_for(216)):
        parallel = scenario.settings.parallel
        assert (parallel.tensor, parallel.data, parallel.expert, parallel.pipeline) == (1, 72, 72, 1)
        assert parallel.exchange == "nvlink_one_sided"
    for scenario in (alone, alone.with_(batch=216).with_(batch=1)):
        parallel = scenario.settings.parallel
        assert (parallel.tensor, parallel.data, parallel.expert, parallel.pipeline) == (8, 9, 1, 1)
    asked = alone.with_(tp=8, pp=9).settings.parallel
    assert (asked.tensor, asked.data, asked.pipeline, asked.exchange) == (8, 1, 9, "")
    assert alone.with_(hw="8xh200").settings.parallel.data == 1


@pytest.mark.parametrize(
    ("model", "hardware", "users"),
    sampled([("kimi-k3", "72xgb200", 256), ("deepseek-v4-pro", "72xgb300", 512), ("gpt-oss-120b", "8xh100", 256)], 2),
)
def test_the_answer_of_many_devices_is_no_slower_than_replicas(model: str, hardware: str, users: int) -> None:
    """Which `choose layout` compares; experts over all devices, and a stage on each, are slower under a mixed load."""
    found, options = answer(model, hardware, users=users), {"tp": 4, "dp": int(hardware.partition("x")[0]) // 4}
    if model == "kimi-k3":  # which four do not hold
        options = {"tp": 8, "pp": 3, "dp": 3}
    (other,) = serve(Scenario(model, hardware, ep=1, **options), concurrency=[users]).outcomes
    assert found.outcome is not None
    assert found.outcome.output_tokens_per_second >= 0.95 * other.output_tokens_per_second
    parallel = found.scenario.settings.parallel
    assert parallel.pipeline <= 8
    assert parallel.devices == int(hardware.partition("x")[0])


@pytest.mark.parametrize("model", sampled(["kimi-k3", "deepseek-r1", "qwen3-235b-a22b", "gpt-oss-120b"], 1))
def test_a_rack_is_not_slower_than_a_part_of_it(model: str) -> None:
    """Where layers and heads are divided it is as fast; a tenth is for where sequences begin to be."""
    for batch in (1, 4, 16, 36, 72, 1152):
        rack, part = (analyze(Scenario(model, f"{n}xgb300", batch=batch)).expected.tpot.mid for n in (72, 8))
        assert rack <= (1.01 if batch < 36 else 1.1) * part


@pytest.mark.slow
def test_few_users_of_a_rack_have_replicas() -> None:
    """Each with all experts, which ranks of one vLLM server would share: its command is that of one of them."""
    few, part = (answer("gpt-oss-120b", hw, users=10) for hw in ("36xgb300", "8xgb300"))
    parallel = few.scenario.settings.parallel
    assert (parallel.tensor * parallel.data, parallel.expert) == (36, 1)
    assert few.outcome is not None
    assert part.outcome is not None
    assert few.outcome.output_tokens_per_second > part.outcome.output_tokens_per_second
    assert "data-parallel" not in few.command


def test_a_rate_has_the_layout_that_serves_it() -> None:
    """Two L40S on PCIe: tensor parallelism does not sustain what two stages or two replicas do."""
    found = answer("llama-3.1-8b", "2xl40s", rate=20)
    assert found.met
    assert found.scenario.settings.parallel.tensor == 1
    assert not answer("llama-3.1-8b", "2xl40s", rate=20, tp=2, kv="bf16").met


def test_a_rate_that_released_formats_do_not_sustain_has_a_smaller_cache() -> None:
    """As 1,000 users have, of whom as many requests/s come (28): 16-bit caches sustain 18."""
    found = answer("gpt-oss-120b", "h100-sxm", rate=22)
    assert found.met
    assert found.plan.candidate.formats == "mxfp4, KV fp8"


@pytest.mark.parametrize(
    ("names", "options", "most"),
    [
        (("llama-3.1-8b", "h100-sxm"), {"prompt": "200k"}, "131,072 tokens (prompt + output)"),
        (("llama-3.1-8b", "h100-sxm"), {"prompt": "1m", "users": 4}, "131,072 tokens (prompt + output)"),
        (("llama-3.1-8b", "h100-sxm"), {"max_model_len": 400}, "400 tokens as it is set"),
        (
            ("llama-3.3-70b", "h100-sxm"),
            {"context": "10m"},
            "131,072 tokens (prompt + output)",
        ),  # which has no room, too
        (("bge-m3", "t4"), {"prompt": "20k"}, "8,192 tokens (prompt)"),
        (("whisper-large-v3", "l4"), {"generate": 1000}, "448 tokens (output)"),
    ],
)
def test_sequences_beyond_the_maximum_context_are_a_no(
    names: tuple[str, str], options: dict[str, Any], most: str
) -> None:
    found = answer(*names, **options)
    assert not found.met
    assert str(found).startswith(f"No: {names[0]} takes at most {most}")
    with pytest.raises(RooflineError, match=r"takes at most|longer than"):
        launch(found.scenario)


def test_what_lacks_memory_is_not_answered_with_an_engine_that_does_not_run_it() -> None:
    """llama.cpp has room for DeepSeek-V4-Flash on two H100 and does not run it; vLLM needs more devices."""
    found = answer("deepseek-v4-flash", "2xh100-sxm", users=8)
    assert not found.fits
    assert {each.scenario.profile.name for each in found.plan.tried} == {"vllm"}
    assert "4 x h100-sxm" in str(found)


@pytest.mark.parametrize("options", [{"n_gpu_layers": 10}, {"ctx_size": 8192}])
def test_an_option_of_one_server_is_answered_with_its_engine(options: dict[str, Any]) -> None:
    found = answer("llama-3.1-8b", "h100-sxm", **options)
    assert found.scenario.profile.name == "llama.cpp"
    assert found.command.startswith("llama-server")


@pytest.mark.parametrize(("version", "told"), [("9.9", True), ("0.30", False), ("0.33", False), ("", False)])
def test_a_version_newer_than_all_known_is_said(version: str, told: bool) -> None:
    scenario = Scenario("llama-3.1-8b", "h100-sxm", engine=f"vllm@{version}".rstrip("@"))
    assert ("newest known" in str(answer(scenario))) is told
    assert any("newest known" in note for note in launch(scenario).notes) is told


def test_fewer_requests_at_once_than_users_is_what_to_change() -> None:
    found = answer("llama-3.1-8b", "h100-sxm", users=64, max_num_seqs=4)
    assert found.better is not None
    assert found.better.option == "--max-num-seqs 64"
    assert found.better.meets
    assert found.better.gain == pytest.approx(
        answer("llama-3.1-8b", "h100-sxm", users=64).outcome.requests_per_second / found.outcome.requests_per_second,
        rel=0.02,
    )


def test_a_hybrid_model_is_answered_with_the_sequences_that_its_command_has() -> None:
    """vLLM does not start where states of its own 1,024 sequences have no room: fewer leave room for all users."""
    found = answer("qwen3.8-flash-next", "h100-sxm", users=10)
    assert found.scenario.given("max_num_seqs") == 10
    assert "--max-num-seqs 10" in found.command
    assert found.at_once == 10
    named = answer("qwen3.8-flash-next", "h100-sxm", users=10, max_num_seqs=10)
    assert found.outcome == named.outcome


def test_one_user_is_a_load_of_one() -> None:
    assert (
        answer("llama-3.1-8b", "h100-sxm", users=1).outcome
        == (serve(Scenario("llama-3.1-8b", "h100-sxm"), concurrency=1).outcomes[0])
    )


@pytest.mark.slow
def test_an_engine_on_which_users_queue_is_not_left() -> None:
    found = answer("llama-3.1-8b", "rtx-4090", prompt="32k", users=8)
    assert found.scenario.profile.name == "vllm"
    released = answer("llama-3.1-8b", "rtx-4090", prompt="32k", users=8, engine="vllm", quant="awq")
    assert found.outcome.output_tokens_per_second >= released.outcome.output_tokens_per_second
    assert 1 < released.plan.candidate.room(8) < 8


@pytest.mark.slow
def test_a_cache_has_a_format_that_the_server_has() -> None:
    for users in (2, 8):
        found = answer("llama-3.1-8b", "rtx-4090", engine="llama.cpp", prompt="32k", users=users)
        assert found.command.startswith("llama-server ")


def test_released_weights_in_more_of_the_memory_come_before_narrower_ones() -> None:
    found = answer("kimi-k2", "8xh200", users=20)
    assert not found.plan.narrower
    assert found.scenario.given("gpu_memory_utilization") == 0.95


@pytest.mark.slow
def test_the_context_is_that_of_all_users_and_of_the_command() -> None:
    eight = answer("llama-3.1-8b", "rtx-4090", users=8)
    fits = [bool(filled(eight.scenario, 8, eight.context + more).fits) for more in (0, 1)]
    assert fits == [True, False]
    slots = answer("llama-3.1-8b", "m4-max", users=4, prompt="30k")
    assert f"--ctx-size {4 * slots.context} --parallel 4" in slots.command
    shared = answer("llama-3.1-8b", "m4-max", users=4, ctx_size=9000)
    assert shared.context == 9000 // 4


def test_memories_of_megabytes_hold_eight_bits_on_more_devices() -> None:
    """576 devices of 230 MB have less than the 141 GB of 16 bits a weight."""
    assert answer("llama-3.3-70b", "576xgroq-lpu").fits
    (fit, *_) = answer("llama-3.3-70b", "groq-lpu").plan.fits_with
    assert 300 < fit.scenario.settings.parallel.devices <= 576


@pytest.mark.parametrize(
    ("model", "hardware", "option", "needs"),
    sampled(
        [
            ("llama-3.3-70b", "2x4090", "--with speculative-decoding:draft=llama-3.2-1b", "draft model's memory"),
            ("whisper-large-v3", "4090", "--with fp8-kv", "accuracy"),
            ("deepseek-r1", "8xh200", "--with multi-token-prediction", "MTP"),  # which the checkpoint has
        ],
        2,
    ),
)
def test_what_is_proposed_can_be_launched(model: str, hardware: str, option: str, needs: str) -> None:
    """vLLM takes a small draft model; of Whisper it drafts nothing (its table of features)."""
    change = answer(model, hardware).better
    assert change is not None
    assert change.option.startswith(option)
    assert needs in change.gives_up
    assert launch_command(change.scenario)


@pytest.mark.parametrize(
    ("model", "hardware", "engine", "unknown"),
    [
        ("sdxl-base-1.0", "4090", None, "U-Nets"),
        ("whisper-large-v3", "m3-max", None, "encoder-decoder models of speech"),
        ("llama-3.1-8b", "m3-ultra", "vllm", "on m3-ultra"),
    ],
)
def test_what_no_server_starts_is_said(model: str, hardware: str, engine: str | None, unknown: str) -> None:
    options = {} if engine is None else {"engine": engine}
    found = answer(model, hardware, **options)
    assert str(found).startswith(f"No: {found.scenario.profile.name} is not known to run {unknown}")
    assert found.command.startswith("roofline ")
    with pytest.raises(RooflineError, match="no command starts it"):
        launch_command(found.scenario)


@pytest.mark.slow
def test_prefill_and_decode_apart_divide_the_devices() -> None:
    found = answer("llama-3.3-70b", "8xh200", users=64, disaggregation="1:1")
    asked = Scenario("llama-3.3-70b", "h200-sxm", tp=4)
    served = serve(asked, concurrency=64, disaggregation="1:1")
    assert found.outcome == served.outcomes[0]
    assert found.devices == 8
    assert found.hourly == answer("llama-3.3-70b", "8xh200").hourly
    assert found.command.startswith("roofline launch llama-3.3-70b --hw h200-sxm --tp 4 ")
    assert answer("llama-3.3-70b", "8xh200", tp=8, users=5, disaggregation="2:1").devices == 24
    with pytest.raises(RooflineError, match="8 devices do not divide among 3 replicas"):
        answer("llama-3.3-70b", "8xh200", users=5, disaggregation="2:1")
    with pytest.raises(RooflineError, match="give users or rate"):
        answer("llama-3.3-70b", "8xh200", disaggregation="1:1")


def test_a_user_has_a_context() -> None:
    found = answer("llama-3.1-8b", "h100-sxm", context=32_000)
    assert found.analysis.expected == analyze(Scenario("llama-3.1-8b", "h100-sxm", context=32_000)).expected
    loaded = answer("llama-3.1-8b", "h100-sxm", context=32_000, users=4)
    assert loaded.outcome == answer("llama-3.1-8b", "h100-sxm", prompt=32_000, users=4).outcome
    with pytest.raises(RooflineError, match="context is the prompt"):
        answer("llama-3.1-8b", "h100-sxm", context=32_000, prompt=512, users=4)


def test_what_no_engine_starts_names_devices_on_which_one_does() -> None:
    found = answer("deepseek-v3.2", "16xa100-sxm-80gb")  # llama.cpp has no option for two machines
    assert found.fits
    assert found.refused
    assert found.instead.startswith("on 16 x ")
    assert not answer("deepseek-v3.2", found.instead.removeprefix("on ")).refused


@pytest.mark.parametrize(
    ("names", "options", "told"),
    [
        (("glm-5.3-flash", "8xh200"), {"kv": "fp8"}, "without --kv"),
        (("deepseek-v4-pro", "8xmi300x"), {}, "with --engine sglang"),
        (("glm-5.3-flash", "8xh200"), {}, ""),  # which starts as it is
    ],
)
def test_an_answer_says_with_what_a_server_starts_where_its_own_does_not(
    names: tuple[str, str], options: dict[str, Any], told: str
) -> None:
    found = answer(*names, **options)
    assert found.instead == told
    assert told in str(found)
    if told == "without --kv":
        assert not answer(*names).refused
    elif told:
        assert not answer(*names, engine=told.split()[-1]).refused


SAME: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fewer bits": ("llama-3.3-70b", "2x4090", {"users": 4}),
    "more of the memory": ("gpt-oss-120b", "h100", {"rate": 1}),
    "another engine": ("qwen3.6-35b-a3b", "4090", {"users": 2}),
    "experts over all ranks": ("kimi-k3", "8xb300", {"users": 16}),
}


@pytest.mark.parametrize("question", SAME)
def test_what_is_chosen_is_the_same_in_every_answer(question: str, run: Run) -> None:
    model, hardware, load = SAME[question]
    found = answer(model, hardware, **load)
    decided = choose("layout", model, hardware, **load)
    formats = {name: value for name, value in found.plan.candidate.options.items() if name not in LAYOUT}
    assert {name: decided.scenario.given(name) for name in formats} == formats
    assert decided.limits == found.targets
    words = [text for name, value in load.items() for text in (f"--{name}", str(value))]
    status, out, _ = run("launch", model, "--hw", hardware, *words)
    assert status == 0
    kept = {"--quantization", "--tensor-parallel-size", "--enable-expert-parallel", "--gpu-memory-utilization"}
    started = {word for word in found.command.split() if word in kept}
    assert started <= set(out.replace("\\\n", " ").split())


def test_a_size_takes_more_of_the_memory_as_the_answer_does() -> None:
    assert answer("gpt-oss-120b", "h100-sxm", rate=1).met
    assert size("gpt-oss-120b", hw=["h100-sxm"], rate=1, most=1).choices[0].best.devices == 1


@pytest.mark.parametrize("width", [80, 50])
def test_requests_of_one_token_have_no_time_per_token(width: int) -> None:
    """A classifier or a router generates one: its server has a TTFT alone."""
    lines = answer_document(answer("llama-3.1-8b", "h100-sxm", users=16, generate=1), width=width)["lines"]
    assert not any("nan" in line or "TPOT" in line for line in lines)
    assert any("p95 TTFT" in line for line in lines)


def test_one_user_has_a_context_of_use() -> None:
    assert answer("gemma-4-31b", "4090").context >= CONTEXT
    assert answer("gemma-4-31b", "4090", prompt=128, generate=64).scenario.profile.name == "vllm"


def test_a_layout_that_is_close_to_another_is_not_stated_as_fact() -> None:
    found = answer("qwen3-235b-a22b", "8xh200", users=64)
    assert found.plan.rival is not None
    other, odds = found.plan.rival
    assert other.settings.parallel != found.scenario.settings.parallel
    assert 0.1 < odds.probability < 0.9  # below a half where the other is a pipeline, of which little is measured


def test_a_faster_engine_is_told() -> None:
    found = answer("gpt-oss-120b", "dgx-spark")
    assert found.plan.faster is not None
    name, _ = found.plan.faster
    assert name == choose("engine", "gpt-oss-120b", "dgx-spark").best.label == "llama.cpp"


@pytest.mark.parametrize("question", ["100 users on H200", "70B on one 4090", "MLA"])
def test_a_narrow_terminal_has_eight_lines_too(question: str) -> None:
    (model, hardware), options = QUESTIONS[question]
    assert _height(answer_document(answer(model, hardware, **options), width=60)["lines"], 60) <= LINES


def test_what_does_not_fit_has_eight_lines_for_long_names_too() -> None:
    found = answer("qwen3-coder-30b-a3b", "gtx-1080-ti")
    assert _height(answer_document(found, width=60)["lines"], 60) <= LINES


def test_weights_are_streamed_from_a_host_that_has_room_for_them() -> None:
    """The CPUs of a GB200 have half a terabyte a GPU; the memory of a card's host is not known."""
    found = answer("kimi-k3", "gb200")
    assert not any("offload" in fit.options for fit in found.plan.fits_with)
    with pytest.raises(RooflineError, match="host"):
        answer("kimi-k3", "gb200", offload="weights=0.9")
    assert answer("llama-3.3-70b", "gb200", offload="weights=0.5").fits
    assert answer("llama-3.3-70b", "4090", offload="weights=0.9").scenario.hardware.host_memory == math.inf


def test_no_offload_is_offered_where_no_source_names_it() -> None:
    for hardware, offered in (("tpu-v6e", False), ("l40s", True)):
        fits = answer("llama-3.3-70b", hardware, engine="vllm", quant="bf16").plan.fits_with
        assert any("offload" in fit.options for fit in fits) is offered


def test_a_total_of_sequences_is_divided_among_ranks_that_each_have_one() -> None:
    """SGLang's --max-running-requests is of all ranks of attention; the layouts that are compared leave such out."""
    few: dict[str, Any] = {"engine": "sglang", "max_num_seqs": 4}
    with pytest.raises(RooflineError, match="at least 8"):
        answer("deepseek-r1", "8xh200", users=4, dp_attention=True, **few)
    assert answer("deepseek-r1", "8xh200", users=4, **few).scenario.settings.parallel.data == 1
    labels = [row.label for row in choose("layout", "deepseek-r1", "8xh200", 4, **few).rows]
    assert "TP 8" in labels
    assert "attention DP, EP 8" not in labels


def test_formats_that_are_no_narrower_than_as_released_are_not_offered_unless_the_model_is_published_in_them() -> None:
    """gpt-oss has MXFP4 weights alone; of Kimi K2.5, released in INT4, NVIDIA publishes NVFP4 with narrower inputs."""
    for model, hardware, offered in (("gpt-oss-120b", "b200", False), ("kimi-k2.5", "8xb200", True)):
        labels = [row.label for row in choose("format", model, hardware, 16).rows]
        assert ("nvfp4" in labels) is offered
    lines = [line for line in str(answer("gpt-oss-120b", "b200", quant="nvfp4")).splitlines() if "Chosen" in line]
    assert "mxfp4" in lines[0]


def test_replicas_of_an_engine_that_splits_layers_are_answered() -> None:
    """Each of four servers has a quarter of the users: together they have four times the tokens of one."""
    options: dict[str, Any] = {"engine": "llama.cpp", "quant": "q4_k_m"}
    one, four = (
        answer("llama-3.1-8b", "4090", users=4, **options),
        answer("llama-3.1-8b", "4x4090", users=16, **options),
    )
    assert four.scenario.settings.parallel.data == 4
    assert one.outcome is not None
    assert four.outcome is not None
    assert four.outcome.output_tokens_per_second == pytest.approx(4 * one.outcome.output_tokens_per_second, rel=0.02)
    assert "--parallel 4 " in four.command
    assert "4 servers" in four.command
    assert not four.refused


def test_what_fits_is_judged_under_the_load() -> None:
    many, alone = (answer("llama-3.3-70b", "4090", **load) for load in ({"users": 40}, {}))
    speeds = [max(fit.tokens_per_s for fit in found.plan.fits_with) for found in (many, alone)]
    assert speeds[0] > 2 * speeds[1]


def test_a_technique_of_one_engine_is_run_there() -> None:
    assert answer("qwen3-30b-a3b", "4090", techniques="experts-on-cpu").scenario.profile.name == "llama.cpp"
    assert (
        answer("qwen3-30b-a3b", "4090", techniques="experts-on-cpu", engine="vllm").instead == "with --engine llama.cpp"
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"network": "4x400G-roce"}, "--network"),
        ({"dp_attention": True}, "--dp-attention"),
        ({"image_size": "640x480"}, "--image-size"),
    ],
)
def test_an_option_without_effect_is_said(options: dict[str, Any], told: str) -> None:
    document = answer_document(answer("qwen3-30b-a3b", "h100-sxm", users=4, **options), better=False)
    assert [sentence for sentence in document["without_effect"] if told in sentence]


def test_a_stage_of_one_device_has_no_ranks_of_experts() -> None:
    (told,) = answer("qwen3-30b-a3b", "2xh100-sxm", pp=2, enable_expert_parallel=True).to_dict()["without_effect"]
    assert "there is one device" not in told


def test_what_only_a_load_has_is_refused_of_one_user() -> None:
    with pytest.raises(RooflineError, match="of a load"):
        answer("llama-3.1-8b", "h100-sxm", prefix_hits=0.5)


def test_a_layout_that_was_asked_for_is_compared_with_the_others() -> None:
    """On eight devices of a node, weights of 4 bits have room on each: replicas answer many users fastest."""
    asked = answer("qwen3-8b", "8xh100-sxm", users=256, tp=8, quant="fp8")
    best = answer("qwen3-8b", "8xh100-sxm", users=256, quant="fp8")
    assert asked.outcome is not None
    assert best.outcome is not None
    gain = best.outcome.output_tokens_per_second / asked.outcome.output_tokens_per_second
    (change,) = asked._layouts()
    assert change.gain == pytest.approx(gain, rel=0.01)


def test_the_best_change_of_formats_is_one_that_a_choice_lists() -> None:
    """MXFP4 on MI355X: FP8 is slower there, and misses the target that MXFP4 meets."""
    found = answer("llama-3.3-70b", "mi355x", users=200)
    assert found.slow
    assert found.better is not None
    assert (found.better.option, found.better.meets) == ("--quant mxfp4", True)


def test_a_layout_is_not_compared_with_itself() -> None:
    """Four ranks cut blocks of FP8, so that four devices are two stages in this format without being asked for."""
    plan = answer("step-3.5-flash", "4xh100-sxm", quant="fp8_block").plan
    assert plan.scenario.settings.parallel.pipeline == 2
    assert plan.rival is None or plan.rival[0].settings.parallel != plan.scenario.settings.parallel


@pytest.mark.parametrize("load", [{}, {"users": 32}])
def test_formats_as_wide_are_tried_on_the_layouts_that_one_of_them_does_not_fit(load: dict[str, Any]) -> None:
    chosen = answer("step-3.5-flash", "4xh100-sxm", **load).plan
    asked = [answer("step-3.5-flash", "4xh100-sxm", quant=quant, **load).plan for quant in ("fp8", "fp8_block")]
    best = judged(chosen.scenario, chosen.load, chosen.targets)
    assert not any(judged(plan.scenario, plan.load, plan.targets) > best for plan in asked)


@pytest.mark.parametrize(("hardware", "told"), [("m4-max", "fp16 in place of bf16"), ("h100-sxm", "bf16 as released")])
def test_a_checkpoint_is_as_released_in_its_own_format_alone(hardware: str, told: str) -> None:
    """On Apple silicon llama.cpp has the 16-bit weights of a model in bf16 as fp16."""
    assert told in str(answer("llama-3.1-8b", hardware))


@pytest.mark.parametrize(
    ("model", "hardware", "load"),
    [("llama-3.1-405b", "h100-sxm", {"users": 100}), ("qwen3-235b-a22b", "2xl40s", {"users": 64})],
)
def test_what_fits_names_devices_that_serve_the_load(model: str, hardware: str, load: dict[str, Any]) -> None:
    """As many as `size` finds; each change that only fits is said to be too slow."""
    found = answer(model, hardware, **load)
    sized = size(model, hw=[hardware.partition("x")[2] if hardware[0].isdigit() else hardware], **load)
    serving = [fit for fit in found.fits_with if found.serves(fit.scenario)]
    assert [fit.scenario.settings.parallel.devices for fit in serving] == [sized.choices[0].best.devices]
    shown = [line for line in answer_document(found)["lines"] if line.endswith("tokens/s") or "too slow" in line]
    late = [line for line in shown if "too slow" in line]
    assert len(shown) == len(late) + 1


def test_more_devices_are_offered_for_a_load_that_nothing_else_meets() -> None:
    found = answer("llama-3.1-8b", "l40s", rate=50)
    assert not found.met
    assert found.better is not None
    assert found.better.meets
    assert found.better.scenario.settings.parallel.devices > found.devices
