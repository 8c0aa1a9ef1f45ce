"""KV cache capacity: closed forms, laws, and capacities reported by vLLM."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model, parse_precision
from roofline.bound.memory import kv_bytes_per_token
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.graph.parallel import Parallelism
from roofline.scenario.kv_capacity import Capacity, kv_capacity, waves
from roofline.scenario.memory import SAMPLER_BYTES
from roofline.scenario.settings import Settings
from roofline.specs.engine import load_engine
from roofline.specs.hardware import load_devices
from roofline.specs.reserve import GIB, parse_reserve, visible_memory

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
        ({"utilization": 0.0}, "'memory.utilization': expected a number > 0"),
        ({"utilization": 1.5}, "expected a number <= 1.0, got '1.5'"),
        ({"block": 0}, "'memory.block': expected a whole number >= 1"),
        ({"tokens": 0}, "'memory.tokens'"),
        ({"of": "host"}, "'memory.of': must be 'device' or 'free', got 'host'"),
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


def test_ranks_must_divide() -> None:
    with pytest.raises(RooflineError, match="tensor parallelism of 3 does not divide"):
        kv_capacity(LLAMA, H100, None, Parallelism(tensor=3))


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
    with pytest.raises(UnknownNameError):
        load_hardware("m4-64gb")  # more than Apple sold


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
    # 1,000,127 tokens in blocks of 16; latents of 78 layers in 16 bits, keys of 21 indexers in FP8 with a scale.
    assert engine.kv_cache == 1_000_128 * (78 * 576 * 2 + 21 * 132)
    assert engine.total == pytest.approx(290.4e9, rel=1e-3)
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
    with pytest.raises(RooflineError, match="must be above 0 and at most 1"):
        Settings(utilization=0.0)
