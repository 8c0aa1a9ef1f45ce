"""KV cache capacity: closed forms, laws, and capacities reported by vLLM."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Scenario, analyze, launch_command, load_hardware, load_model, parse_precision, serve
from roofline.bound.held import held_bytes
from roofline.bound.memory import kv_bytes_per_token
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.units import GIB
from roofline.graph.parallel import Parallelism
from roofline.scenario.kv_capacity import Capacity, kv_capacity, startable_sequences, waves
from roofline.scenario.memory import memory_reserve
from roofline.scenario.notes import notes
from roofline.scenario.settings import Settings
from roofline.scenario.speculation import Speculation
from roofline.specs.checkpoint import precision_of
from roofline.specs.engine import load_engine, resolve_engine
from roofline.specs.hardware import load_devices
from roofline.specs.reserve import NO_RESERVE, SAMPLER_BYTES, captured, parse_reserve, visible_memory
from roofline.techniques.drafts import prediction_module

VLLM_SYNC, VLLM_V0 = (load_engine(name).memory for name in ("vllm-sync", "vllm-v0"))
SGLANG, TENSORRT_LLM = (load_engine(name).memory for name in ("sglang", "tensorrt-llm"))
H100, A6000 = load_hardware("h100-sxm"), load_hardware("a6000")
LLAMA = load_model("llama-3-8b")


def test_cache_is_the_remaining_memory() -> None:
    found = kv_capacity(LLAMA, H100, reserve=VLLM_V0)
    assert found.budget == pytest.approx(0.9 * 0.99 * 80 * GIB)
    assert found.cache == found.budget - found.weights - found.activations - found.context
    assert found.bytes_per_token == 2 * 32 * 8 * 128 * 2
    assert found.tokens is not None
    assert found.tokens % 16 == 0
    assert 0 <= found.cache - found.tokens * found.bytes_per_token < 16 * found.bytes_per_token


def test_visible_memory_is_less_than_nominal() -> None:
    # torch reports 79.15 to 79.22 GiB of 80 GB cards, 47.54 of an A6000, 44.4 to 44.5 of an L40S (vLLM logs).
    for name, low, high in (("h100-sxm", 79.1, 79.3), ("a6000", 47.4, 47.6), ("l40s", 44.3, 44.6)):
        assert low < visible_memory(load_hardware(name)) / GIB < high
    stated = replace(H100, memory_visible=70e9)
    assert visible_memory(stated) == 70e9
    # ROCm reports all 288 GiB of an MI355X (InferenceX pull request 2522), CUDA 121.69 GiB of a DGX Spark.
    assert visible_memory(load_hardware("mi355x")) == 288 * GIB
    assert visible_memory(load_hardware("dgx-spark")) == 121.69 * GIB
    assert visible_memory(load_hardware("gaudi-3")) == load_hardware("gaudi-3").memory_capacity


# Blocks of 16 tokens that vLLM's first engine printed: pull requests 2031 (A100 80GB) and 4454 (RTX A6000).
PRINTED = (
    ("llama-2-7b", "a100-sxm-80gb", "fp16", None, 7351),
    ("llama-3-8b", "a6000", "bf16", None, 13248),
    ("mistral-7b", "a6000", "bf16", None, 12735),
    ("llama-2-7b", "a6000", "fp16", "gptq", 4877),
    ("opt-125m", "a6000", "fp16", None, 75937),
)


@pytest.mark.parametrize(("model", "hardware", "base", "scheme", "blocks"), PRINTED)
def test_capacities_reported_by_vllm(model: str, hardware: str, base: str, scheme: str | None, blocks: int) -> None:
    found = kv_capacity(load_model(model), load_hardware(hardware), parse_precision(base, scheme), reserve=VLLM_V0)
    assert found.tokens == pytest.approx(16 * blocks, rel=0.05)


def test_activations_are_the_larger_peak() -> None:
    """Sampling over 128,256 entries outweighs 8192 tokens; a window of 32,768 tokens outweighs sampling over 32,000."""
    assert kv_capacity(LLAMA, H100, reserve=VLLM_V0).activations == 256 * 128256 * SAMPLER_BYTES
    mistral = kv_capacity(load_model("mistral-7b"), A6000, reserve=VLLM_V0)
    assert mistral.activations > 256 * 32000 * SAMPLER_BYTES


def test_profiling_tokens_follow_the_engine() -> None:
    assert VLLM_V0.pass_tokens(LLAMA.max_context) == 8192
    assert VLLM_V0.pass_tokens(load_model("llama-3.1-8b").max_context) == 2048
    assert VLLM_SYNC.on(H100).pass_tokens(LLAMA.max_context) == 8192
    assert VLLM_SYNC.on(H100).sequences == 1024
    assert VLLM_SYNC.on(load_hardware("a100-sxm-80gb")).sequences == VLLM_SYNC.on(A6000).sequences == 256
    assert load_engine("hf-eager").memory.pass_tokens(8192) is None


def test_ranks_share_heads_and_weights() -> None:
    precision = parse_precision("bf16")
    one = kv_capacity(LLAMA, H100, precision, reserve=VLLM_V0)
    two = kv_capacity(LLAMA, H100, precision, Parallelism(tensor=2), VLLM_V0)
    assert two.bytes_per_token == one.bytes_per_token / 2
    assert two.weights < 0.51 * one.weights
    assert two.context == VLLM_V0.group_context
    latent = load_model("deepseek-v3")
    assert (
        kv_bytes_per_token(latent, precision) == kv_bytes_per_token(latent, precision, Parallelism(tensor=8)) == 70272
    )


def test_more_memory_and_smaller_formats_hold_more() -> None:
    plain = kv_capacity(LLAMA, H100).tokens or 0
    assert (kv_capacity(LLAMA, load_hardware("h200-sxm")).tokens or 0) > plain
    assert (kv_capacity(LLAMA, H100, parse_precision("bf16", "fp8")).tokens or 0) > plain
    assert (kv_capacity(LLAMA, H100, parse_precision("bf16", kv="fp8")).tokens or 0) >= 2 * plain - 32
    assert (kv_capacity(LLAMA, H100, reserve=SGLANG).tokens or 0) < plain * 1.05


def test_no_memory_left_means_no_tokens() -> None:
    full = kv_capacity(load_model("llama-3-70b"), H100)
    assert full.tokens == 0
    assert full.cache < 0


def test_model_without_kv_cache_has_no_capacity() -> None:
    assert kv_capacity(load_model("mamba2-1.3b"), H100).tokens is None


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"utilization": 0.0}, "'memory.utilization' must be a number > 0"),
        ({"utilization": 1.5}, "must be a number <= 1.0, got '1.5'"),
        ({"block": 0}, "'memory.block' must be a whole number >= 1"),
        ({"tokens": 0}, "'memory.tokens'"),
        ({"of": "host"}, "'memory.of' must be 'device', 'free' or 'start', got 'host'"),
    ],
)
def test_invalid_reserve(settings: dict[str, float], message: str) -> None:
    with pytest.raises(RooflineError, match=message):
        parse_reserve(settings, "file")


def test_utilization_of_the_remaining_memory() -> None:
    found = kv_capacity(LLAMA, H100, reserve=TENSORRT_LLM)
    assert found.cache == pytest.approx(0.9 * (found.visible - found.weights - found.activations - found.context))


def test_waves_are_as_large_as_fits() -> None:
    room = Capacity(0, 64_000, 0, 0, 0, bytes_per_token=10, block=16)
    assert room.tokens == 6400
    assert waves(3, 1000, room) == (3,)
    assert waves(15, 1000, room) == (6, 6, 3)  # 1000 tokens take 63 blocks
    assert waves(12, 1000, room) == (6, 6)
    assert sum(waves(997, 77, room)) == 997
    assert waves(9, 1000, replace(room, bytes_per_token=0)) == (9,)
    with pytest.raises(RooflineError, match="no sequence of 7000 tokens"):
        waves(2, 7000, room)


# Sequences that vLLM 0.30 runs at once on an H100 (its own count), by formats, prompt and generated tokens.
RUNNING = ((None, 8192, 512, 43), (None, 1024, 128, 327), ("fp8", 8192, 512, 49))


@pytest.mark.parametrize(("scheme", "prompt", "generate", "running"), RUNNING)
def test_as_many_sequences_fit_as_vllm_runs(scheme: str | None, prompt: int, generate: int, running: int) -> None:
    model, precision = load_model("qwen3-8b"), parse_precision("bf16", scheme)
    batches = np.arange(1, 512)
    asked = Scenario(model, H100, batch=batches, prompt=prompt, generate=generate, precision=precision)
    most = int(batches[analyze(asked).memory.fits].max())
    assert most == pytest.approx(running, rel=0.05)
    tokens = kv_capacity(model, H100, precision).tokens
    assert tokens is not None
    assert most == tokens // (prompt + generate)  # one truth


@pytest.mark.parametrize(("model", "scheme", "tokens"), [("qwen2.5-7b", None, 95_712), ("qwen3-32b", "awq", 5_312)])
def test_a_consumer_card_holds_as_many_tokens_as_vllm_says(model: str, scheme: str | None, tokens: int) -> None:
    """Tokens of the KV cache of vLLM 0.30 on an RTX 4090, its own count."""
    found = kv_capacity(load_model(model), load_hardware("rtx-4090"), parse_precision("bf16", scheme))
    assert found.tokens == pytest.approx(tokens, rel=0.05)


@pytest.mark.parametrize("engine", ["vllm", "vllm-sync", "vllm-v0", "sglang", "tensorrt-llm", "lmdeploy", "llama.cpp"])
def test_a_scenario_fits_as_far_as_the_capacity_goes(engine: str) -> None:
    """Whatever the engine's rules, the batch that fits is the KV cache capacity over the sequence, in whole blocks."""
    reserve, batches = load_engine(engine).memory, np.arange(1, 2000)
    tokens = kv_capacity(LLAMA, A6000, reserve=reserve).tokens
    scenario = Scenario(LLAMA, A6000, batch=batches, prompt=1000, generate=10, engine=engine)
    block = -(-1009 // reserve.block) * reserve.block
    assert tokens is not None
    assert int(batches[analyze(scenario).memory.fits].max()) == pytest.approx(tokens // block, abs=1)


def test_unified_memory_is_what_metal_recommends() -> None:
    """llama.cpp's logs under macOS 26, in MB; the sizes of a chip's memory are written behind its name."""
    for name, size in (
        ("m4-24gb", 19069.67),
        ("M4 Max 48GB", 40200.90),
        ("m3-max-64gb", 55662.79),
        ("m4-max", 115448.73),
        ("2x M3 Ultra 96GB", 83494.17),
    ):
        assert visible_memory(load_devices(name)[0]) == pytest.approx(size * 1e6, rel=1e-4)
    for name, share in (("m4-max-macos15", 3 / 4), ("m4-24gb-macos15", 2 / 3), ("M3 Max 36GB macOS15", 3 / 4)):
        found = load_devices(name)[0]
        assert visible_memory(found) == pytest.approx(share * found.memory_capacity / 1e9 * GIB)
        assert load_hardware(found.name) == found
    for wrong in ("m4-64gb", "m4-macos9", "h100-macos15"):  # more than Apple sold, older than its chips, no Mac
        with pytest.raises(UnknownNameError):
            load_hardware(wrong)


def test_what_engines_allocate_beyond_the_file() -> None:
    """vLLM pads gpt-oss' experts in MXFP4: 64.38 GiB (issue 33155, 0.14), 65.97 GiB (issue 23278, 0.10.1)."""
    model = load_model("gpt-oss-120b")
    for engine, size in (("vllm@0.14", 64.38), ("vllm@0.10", 65.97), ("sglang", 60.77)):
        weights = analyze(Scenario(model, load_hardware("h100-sxm"), engine=engine)).memory.weights
        assert weights / GIB == pytest.approx(size, rel=0.005)


def test_the_runtime_of_a_group_depends_on_its_links() -> None:
    """Two RTX 4090 hold 0.25 GiB beside PyTorch's memory (vllm-project/vllm, issue 13061), on H100 3.58 GiB."""
    memory = load_engine("vllm@0.7").memory
    assert memory.on(load_hardware("rtx-4090")).runtime(2) == 0.25 * GIB
    assert memory.on(load_hardware("h100-sxm")).runtime(2) == 3.58 * GIB
    assert load_engine("llama.cpp").memory.on(load_hardware("m4-max")).runtime(1) == 0


def test_indexer_scores_are_computed_in_parts() -> None:
    """A prompt of a million tokens takes 2 TB of scores in one pass, and 512 MiB in vLLM's parts."""
    model, b200 = load_model("glm-5.2"), load_hardware("b200-sxm")
    settings = Settings(parallel=Parallelism(tensor=8))
    engine = analyze(Scenario(model, b200, prompt=1_000_000, settings=settings)).memory
    static = analyze(Scenario(model, b200, prompt=1_000_000, settings=replace(settings, memory="static"))).memory
    assert engine.activation_peak < 10e9
    # 1,000,127 tokens in blocks of 16; latents of 78 layers in 16 bits, their index keys in FP8 with a scale.
    assert engine.kv_cache == 1_000_128 * 78 * (576 * 2 + 132)
    assert engine.total == pytest.approx(296.9e9, rel=1e-3)
    assert static.activation_peak > 1e12
    assert (static.runtime, static.budget) == (0, b200.memory_capacity)


def test_scores_that_are_kept_are_those_of_whole_prompts() -> None:
    plain = Scenario(LLAMA, H100, batch=4, prompt=8192, fusions=())
    static = plain.changed(settings=Settings(memory="static"))
    kept = analyze(static).memory.activation_peak
    assert analyze(plain).memory.activation_peak == kept
    assert kept > 4 * 32 * 8192**2 * 2


def test_an_encoder_runs_whole_sequences() -> None:
    """Bidirectional attention cannot be split: a pass of 2048 tokens on an A100 is one sequence of 4096."""
    model, a100 = load_model("bigbird-roberta-base"), load_hardware("a100-sxm-80gb")
    one = analyze(Scenario(model, a100, prompt=4096, settings=Settings(memory="static"))).memory
    assert load_engine("vllm").memory.on(a100).tokens == 2048
    for batch in (1, 64):
        assert analyze(Scenario(model, a100, batch=batch, prompt=4096)).memory.activation_peak == one.activation_peak


def test_activations_of_an_encoder_decoder_do_not_grow_with_the_batch() -> None:
    """Whisper's 1500 positions per sequence: a pass of 2048 tokens encodes one, and projects its keys and values."""
    few, many = (
        analyze(Scenario(load_model("whisper-large-v3"), A6000, batch=batch, generate=2)).memory for batch in (16, 64)
    )
    assert few.activation_peak == many.activation_peak
    assert many.kv_cache == 4 * few.kv_cache


def test_a_stated_utilization_replaces_that_of_the_engine() -> None:
    budget = analyze(Scenario(LLAMA, H100, settings=Settings(utilization=0.5))).memory.budget
    assert budget == pytest.approx(0.5 * 0.99 * 80 * GIB)
    free = analyze(Scenario(LLAMA, H100, settings=Settings(utilization=0.5), engine="tensorrt-llm")).memory
    rest = free.weights + free.activation_peak + free.runtime
    assert free.budget - rest == pytest.approx(0.5 * (visible_memory(H100) - rest))
    with pytest.raises(RooflineError, match="must be a number above 0 and at most 1"):
        Settings(utilization=0.0)


def test_a_pool_of_pages_is_that_of_vllm() -> None:
    """Qwen3.5 27B: pages of 784 tokens, 371 of 1,484 / 4 logged as 290,864 tokens (vllm-project/vllm, issue 40691)."""
    held = held_bytes(load_model("qwen3.5-27b"), parse_precision("bf16"), pages=True)
    assert (held.block, 290_864 % held.block) == (784, 0)
    assert held.page == 16 * 784 * 4 * 256 * 2 * 2  # 16 layers a group, 4 heads of 256, keys and values in 16 bits
    assert held.state == 3 * held.page  # 48 layers of the gated delta rule


@pytest.mark.parametrize(
    ("name", "tensor", "gib", "longest", "draft", "copies", "logged"),
    [
        ("qwen3.5-27b", 2, 4.99, 131_072, False, 2, 302_921),  # mitchross/talos-argocd-proxmox, pull request 1995
        ("qwen3.5-35b-a3b", 1, 5.98, 131_072, False, 2, 567_978),  # noonghunna/club-3090, issue 612
        ("qwen3.5-35b-a3b", 1, 6.01, 131_072, False, 2, 569_878),  # issue 652
        ("qwen3.5-27b", 2, 11.05, 262_144, True, 5, 623_873),  # issue 642: a prefix cache, and three drafted tokens
    ],
)
def test_a_prefix_cache_and_drafts_take_pages_of_states(
    name: str, tensor: int, gib: float, longest: int, draft: bool, copies: int, logged: int
) -> None:
    """Pools in FP8 that vLLM 0.24 to 0.26 printed, of the same shapes in Qwen3.6 and 3.8."""
    model, parallel = load_model(name), Parallelism(tensor=tensor)
    held = held_bytes(
        model,
        parse_precision("bf16", kv="fp8"),
        parallel,
        pages=True,
        draft=prediction_module(model) if draft else None,
        copies=copies,
    )
    assert gib * GIB / held.at(longest) * longest == pytest.approx(logged, rel=0.004)


def test_the_pool_of_a_hybrid_model_that_older_vllm_prints_is_one_of_its_groups() -> None:
    """Qwen3.6 35B, MTP of 2, DGX Spark: 52.66 GiB are 1,253,392 tokens (eugr/spark-vllm-docker, pull request 200)."""
    model, device = load_model("qwen3.5-35b-a3b"), load_hardware("dgx-spark")
    reserve = load_engine("vllm@0.19").memory.on(device)
    module = Speculation(2, 2.5, 2, prediction_module(model), shared_ends=("embedding", "head"))
    found = kv_capacity(model, device, parse_precision("bf16", "fp8", kv="fp8"), reserve=reserve, speculation=module)
    pool = replace(found, budget=found.budget - found.cache + 52.66 * GIB)
    assert pool.logged(65_536, 0, reserve) == pytest.approx(1_253_392, rel=0.001)


def test_a_draft_takes_memory_of_the_pool() -> None:
    """DeepSeek-R1's module: its weights, and one layer of the cache beside 61, which are of one kind in any layer."""
    model, device = load_model("deepseek-r1"), load_hardware("b200-sxm")
    module = Speculation(1, 1.8, 1, prediction_module(model), shared_ends=("embedding", "head"))
    plain, drafts = (
        kv_capacity(model, device, parallel=Parallelism(tensor=8), speculation=speculation)
        for speculation in (None, module)
    )
    assert plain.bytes_per_token == pytest.approx(kv_bytes_per_token(model, precision_of(model, device)))
    assert drafts.bytes_per_token == pytest.approx(plain.bytes_per_token * 62 / 61)
    assert 0 < drafts.weights - plain.weights < 0.03 * plain.weights


def test_layers_of_a_pool_are_padded_to_equal_groups() -> None:
    """Gemma 3 27B: 52 layers with a window and 10 without are 7 groups of 10; gpt-oss 12 and 12 are 2 of 12."""
    model, precision = load_model("gemma-3-27b"), parse_precision("bf16")
    plain, paged = (held_bytes(model, precision, pages=pages) for pages in (False, True))
    assert paged.tokens == plain.tokens == 10 * kv_bytes_per_token(model, precision) / 62
    assert paged.windows == ((1024, plain.windows[0][1] * 60 / 52),)
    even = load_model("gpt-oss-20b")
    assert held_bytes(even, precision, pages=True).each == held_bytes(even, precision).each


def test_windows_and_states_make_the_tokens_that_fit_depend_on_their_length() -> None:
    """A sequence beyond the window takes its further tokens in the other layers alone; a short one has its states."""
    gemma, h100 = load_model("gemma-3-27b"), load_hardware("h100-sxm")
    found = kv_capacity(gemma, h100)
    assert found.tokens is not None
    tokens = [found.tokens_of(length) or 0 for length in (512, 8192, 65536)]
    assert tokens[0] <= found.tokens * 52 / 60 + 1024 < tokens[1] < tokens[2]
    whole = kv_capacity(gemma, h100, reserve=load_engine("vllm@0.5").memory)
    assert whole.tokens_of(512) == whole.tokens_of(65536) == whole.tokens
    states = kv_capacity(load_model("qwen3.5-27b"), load_hardware("h200-sxm"))
    assert (states.tokens_of(64) or 0) < (states.tokens_of(65536) or 0) < (states.tokens or 0)


def test_vllm_logs_its_pool_by_version() -> None:
    """Gemma 4 31B on an A100: about 55,000 tokens up to 0.20, 525,000 from 0.21 on, of some 50 GiB (issue 43308).

    Its global layers have half the bytes of a token, so that their blocks have twice the tokens, and 0.20 counts those
    of the others. The steps are the least with which that model starts (vllm-project/recipes, issue 441); of the
    issue's two figures 131,072 tokens follow as the maximum length, which it does not say.
    """
    model, device, logged = load_model("gemma-4-31b"), load_hardware("a100-sxm-80gb"), []
    for version in ("0.20", "0.21"):
        reserve = resolve_engine(device, f"vllm@{version}", model).memory.on(device)
        found = kv_capacity(model, device, parse_precision("bf16", "awq"), reserve=reserve)
        pool = replace(found, budget=found.budget - found.cache + 50.4 * GIB)
        logged.append(pool.logged(131_072, reserve.tokens or 0, reserve))
    assert logged == [pytest.approx(55_000, rel=0.01), pytest.approx(525_000, rel=0.02)]


def test_the_states_for_which_vllm_has_room() -> None:
    """Qwen3.6 27B in FP8 on an H100 at 0.95, the shapes of Qwen3.5's: 856 (vllm-project/recipes, pull request 551)."""
    reserve = load_engine("vllm@0.22").memory.on(H100).limited(0.95, None, None)
    found = kv_capacity(load_model("qwen3.5-27b"), H100, parse_precision("bf16", "fp8"), reserve=reserve)
    assert found.states == pytest.approx(856, rel=0.08)  # without the vision encoder
    assert kv_capacity(LLAMA, H100).states is None


def test_cuda_graphs_take_memory_by_their_number() -> None:
    """51 batch sizes by default (vLLM's logs), 7 for 16 sequences."""
    memory = load_engine("vllm").memory.on(H100)
    assert (captured(1024), captured(256), captured(16)) == (51, 51, 7)
    assert memory.context - memory.limited(None, None, 16).context == pytest.approx(0.5 * GIB * 44 / 51)


def test_layers_with_a_window_have_room_for_a_pass_in_llama_cpp() -> None:
    """Gemma 3 27B: 52 layers with a window of 1,024 tokens hold 512 more, in multiples of 256."""
    model, hardware = load_model("gemma-3-27b"), load_hardware("rtx-5090")
    cache = [
        analyze(Scenario(model, hardware, prompt=4000, generate=1, batch=batch, engine=engine)).memory.kv_cache
        for engine, batch in (("llama.cpp", 1), ("llama.cpp", 2), ("hf-eager", 1))
    ]
    assert cache[0] - cache[2] == 52 * 512 * 16 * 128 * 2 * 2
    assert cache[1] == 2 * cache[0]
    reserve = load_engine("llama.cpp").memory
    assert (reserve.window_kept(1024), reserve.window_kept(128), reserve.window_kept(1000)) == (1536, 768, 1536)


def test_llama_cpp_loads_a_vision_encoder_for_images_alone() -> None:
    model = load_model("gemma-3-27b")
    text, seen, vllm = (
        analyze(Scenario(model, load_hardware("h100-sxm"), images=images, engine=engine)).memory.weights
        for engine, images in (("llama.cpp", 0), ("llama.cpp", 1), ("vllm", 0))
    )
    assert text < seen == vllm


def test_an_engine_starts_with_as_many_sequences_as_have_states() -> None:
    """What is said, launched and served of a hybrid model for which the engine's own number is too large."""
    scenario = Scenario("qwen3.5-27b", "h100-sxm", quant="fp8")
    most = startable_sequences(scenario)
    assert most is not None
    assert 256 < most < 1024
    assert any(f"--max-num-seqs {most}" in note for note in notes(analyze(scenario)))
    assert serve(scenario, concurrency=1).replica.scheduler.sequences == most
    assert startable_sequences(scenario.with_(max_num_seqs=most)) is None
    with pytest.raises(RooflineError, match="does not start with"):
        serve(scenario.with_(max_num_seqs=1024), concurrency=1)
    assert startable_sequences(scenario.with_(engine="vllm@0.16")) is None
    assert f"--max-num-seqs {most}" in launch_command(scenario, concurrency=8)


def test_attention_in_llama_cpp_has_a_mask_and_wider_keys() -> None:
    """A mask of 4 bytes for 512 tokens and every key; one layer's keys and values in 16 bits where they have fewer."""
    model, hardware = load_model("qwen3-8b"), load_hardware("rtx-4090")

    def peak(prompt: int, kv: str) -> float:
        asked = Scenario(model, hardware, prompt=prompt, generate=1, quant="q4_k_m", kv=kv, engine="llama.cpp")
        return float(analyze(asked).memory.activation_peak)

    more = 8192 * 512 * 4
    assert peak(16384, "fp16") - peak(8192, "fp16") == more
    assert peak(16384, "q8_0") - peak(8192, "q8_0") == more + 8192 * 2 * 8 * 128 * 2


def test_a_3_bit_model_with_a_long_context_exceeds_a_card_of_16_gb() -> None:
    """Qwen3.5 27B in Q3_K_M with a cache in Q8_0 of 65,536 tokens on an RTX 5080 (sudoingX/qwen38-mtp, issue 62)."""
    asked = Scenario("qwen3.5-27b", "rtx-5080", quant="q3_k_m", kv="q8_0", prompt=65_512, engine="llama.cpp")
    assert not analyze(asked).memory.fits
    assert analyze(asked.with_(prompt=32_768)).memory.fits


@pytest.mark.parametrize(("tokens", "peak"), [(2048, 2.21), (3072, 2.32), (4096, 2.42), (8192, 2.84)])
def test_vllm_profiles_its_largest_images(tokens: int, peak: float) -> None:
    """GiB of activations of Qwen3.8 27B, the shapes of Qwen3.5's, on an RTX 5090 (vllm-project/vllm, issue 52872)."""
    card = load_hardware("rtx-5090")
    reserve = load_engine("vllm@0.27").memory.on(card).limited(0.93, tokens, 4)
    found = kv_capacity(load_model("qwen3.5-27b"), card, reserve=reserve)
    assert found.activations / GIB == pytest.approx(peak, rel=0.05)


def test_two_cards_hold_as_many_tokens_of_a_vision_model_as_vllm_says() -> None:
    """On each of two cards (mitchross/talos-argocd-proxmox, pull request 1995; noonghunna/club-3090, issue 1087)."""
    model, formats = load_model("qwen3.5-27b"), parse_precision("bf16", "fp8_block")
    for card, tokens, pool in (("rtx-3090", 8192, 4.99), ("rtx-5090", 4096, 12.26)):
        hardware = load_hardware(card)
        reserve = load_engine("vllm@0.26").memory.on(hardware).limited(None, tokens, 2)
        found = kv_capacity(model, hardware, formats, Parallelism(tensor=2), reserve)
        assert found.cache / GIB == pytest.approx(pool, rel=0.08)


@pytest.mark.parametrize(
    ("engine", "parallel", "passes", "length", "sequences"),
    [
        ("vllm@0.25", Parallelism(tensor=8, expert=8), 1, 1_048_576, 20.43),  # issue 51454: a maximum concurrency
        ("vllm@0.25", Parallelism(data=8, expert=8), 1, 1_048_576, 156.9 / 8),
        ("vllm@0.28", Parallelism(data=8, expert=8), 2, 1_048_576, None),
    ],
)
def test_blocks_of_deepseek_v4_are_those_of_vllm(
    engine: str, parallel: Parallelism, passes: int, length: int, sequences: float | None
) -> None:
    model, hardware = load_model("deepseek-v4-flash"), load_hardware("b200-sxm")
    reserve = load_engine(engine).memory.on(hardware).limited(0.95, 8192, 256)
    assert reserve.in_flight == passes
    found = kv_capacity(model, hardware, parallel=parallel, reserve=reserve)
    # vllm-project/vllm, issue 54703: pages of 22 windows, 21 layers of CSA with index keys, 20 of HCA.
    assert found.held.tokens * 256 == 823_680 + 21 * 8_640 + 34_560
    if sequences is not None:
        assert found.sequences_of(length, 8192) == pytest.approx(sequences, rel=0.015)


def test_a_sequence_of_deepseek_v4_takes_what_vllm_asks_for() -> None:
    held = held_bytes(load_model("deepseek-v4-flash"), parse_precision("bf16"), pages=True)
    # vllm-project/vllm, issue 44376: 6.66 GiB for 30,000 tokens and passes of 16,384; 13,528 tokens take 5.44 GiB.
    assert held.at(30_000, 16_384) / GIB == pytest.approx(6.66, rel=0.015)
    assert held.at(13_528, 16_384) / GIB == pytest.approx(5.44, rel=0.015)


@pytest.mark.parametrize(
    ("model", "hardware", "engine", "parallel", "quant", "tokens", "error"),
    [
        # SemiAnalysisAI/InferenceX, pull request 2268; llm-d's prefill ranks, 2026: both of the agents' runs.
        ("glm-5.2", "b300-sxm", "sglang", Parallelism(tensor=8), "nvfp4", 3.3e6, 0.05),
        ("glm-5.2", "h200-sxm", "vllm@0.20", Parallelism(data=16, expert=16, nodes=2), "fp8_block", 0.99e6, 0.05),
    ],
)
def test_pools_of_sparse_attention(
    model: str, hardware: str, engine: str, parallel: Parallelism, quant: str, tokens: float, error: float
) -> None:
    options = {"batch": parallel.data, "prompt": 128, "engine": engine, "quant": quant, "kv": "fp8"}
    scenario, device = Scenario(model, hardware, **options), load_hardware(hardware)
    reserve = load_engine(engine).memory.on(device).limited(0.9 if "vllm" in engine else None, None, None)
    found = kv_capacity(load_model(model), device, scenario.run_precision, parallel, reserve)
    assert found.tokens == pytest.approx(tokens, rel=error)


def test_windows_have_a_pool_of_their_own_in_sglang() -> None:
    model, reserve = load_model("gpt-oss-120b"), SGLANG.on(H100)
    found = kv_capacity(model, H100, parallel=Parallelism(tensor=2), reserve=reserve)
    assert found.bytes_per_token == pytest.approx((18 + 0.8 * 18) * 2 * 4 * 64 * 2)
    whole = kv_capacity(
        model, H100, parallel=Parallelism(tensor=2), reserve=load_engine("sglang@0.4.9").memory.on(H100)
    )
    assert whole.bytes_per_token == 36 * 2 * 4 * 64 * 2


def test_sglang_has_a_pool_of_recurrent_states_beside_the_kv_cache() -> None:
    """As 2,211 states of 25.28 GiB beside 28.1 GiB of keys and values in a log of Nemotron with the default of 0.9."""
    scenario = Scenario("qwen3.5-27b", "h200-sxm", engine="sglang")
    found = serve(scenario, concurrency=1).replica
    capacity = found.capacity
    assert capacity is not None
    states, keys = capacity.apart * capacity.cache, found.kv_tokens * capacity.bytes_per_token
    assert states / keys == pytest.approx(25.28 / 28.1, rel=1e-3)
    assert found.scheduler.sequences == int(states / capacity.held.state / 5)
    for length in (100, 100_000):  # a pool of tokens, however long the sequences that take them
        assert capacity.tokens_of(length) == found.kv_tokens
    drafting = serve(scenario.with_(techniques="multi-token-prediction:length=3", max_num_seqs=500), concurrency=1)
    assert drafting.replica.scheduler.sequences < found.scheduler.sequences * 5 / 9
    at_once = found.scheduler.sequences  # and as many fit in a static batch
    fits = [analyze(scenario.changed(batch=batch)).memory.fits for batch in (at_once, at_once + 1)]
    assert fits == [True, False]
    vllm = serve(Scenario("qwen3.5-27b", "h200-sxm", engine="vllm"), concurrency=1).replica.capacity
    assert vllm is not None
    assert vllm.running is None


@pytest.mark.parametrize(
    ("engine", "model", "hardware", "options", "fraction"),
    [
        ("sglang", "deepseek-v3.2", "h200-sxm", {"tp": 8}, 0.897),  # a log of it without an option
        ("sglang", "llama-3.1-8b", "h100-sxm", {"gpu_memory_utilization": 0.7}, 0.7),
        ("sglang@0.4.9", "llama-3.1-8b", "h100-sxm", {}, 0.88),
    ],
)
def test_sglang_leaves_memory_by_the_device_and_the_layout(
    engine: str, model: str, hardware: str, options: dict[str, float], fraction: float
) -> None:
    found = memory_reserve(Scenario(model, hardware, engine=engine, **options)).utilization
    assert found == pytest.approx(fraction, abs=0.0015)


def test_sglang_leaves_less_for_the_cache_with_longer_passes_drafts_and_a_vision_encoder() -> None:
    plain = Scenario("llama-3.1-8b", "h100-sxm", engine="sglang")
    others = [plain.with_(max_num_batched_tokens=16384), plain.with_(techniques="eagle-3")]
    left = [memory_reserve(scenario).utilization for scenario in (plain, *others)]
    assert max(left) == left[0] > max(left[1:])
    text, seen = (
        memory_reserve(Scenario(name, "h100-sxm", engine="sglang")) for name in ("gemma-2-27b", "gemma-3-27b")
    )
    assert seen.utilization < text.utilization


def test_a_fraction_of_a_profile_holds_in_the_place_of_what_a_device_leaves(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("based_on: sglang\nname: own\nmemory: {utilization: 0.5}\n")
    assert memory_reserve(Scenario("llama-3.1-8b", "h100-sxm", engine=str(own))).utilization == 0.5


def test_sglang_takes_its_fraction_of_what_is_free_before_the_weights() -> None:
    reserve = replace(NO_RESERVE, utilization=0.8, context=2e9, group_context=2e9)
    taken = [float(replace(reserve, of=of).budget(80e9, 0.0, 0.0, 2e9)) for of in ("device", "start")]
    assert taken == pytest.approx([64e9, 64.4e9])
    # 4 H100 run it in BF16 with SGLang (sgl-cookbook, Qwen3.5): the anchor of its TTFT
    assert analyze(Scenario("qwen3.5-122b-a10b", "4xh100-sxm", engine="sglang", prompt=8192, generate=1)).memory.fits
