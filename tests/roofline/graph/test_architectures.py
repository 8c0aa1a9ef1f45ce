"""Architectures: parameters, KV cache, states, MoE, MLA, sliding windows, encoders."""

from __future__ import annotations

import json
import warnings
from typing import Any

import pytest
from msgspec.structs import replace

from roofline import (
    Analysis,
    Model,
    Scenario,
    SpecError,
    active_parameters,
    analyze,
    kv_bytes_per_token,
    load_hardware,
    load_model,
    parameters,
    parse_precision,
    state_bytes_per_sequence,
)
from roofline.graph.parallel import Parallelism
from roofline.scenario.phase import OpFigures
from roofline.scenario.settings import Settings
from roofline.specs.formats import find_format
from roofline.specs.huggingface import translate
from roofline.specs.modelspec import parse_model
from roofline.specs.sublayers import Attention, LatentAttention, MixtureOfExperts
from roofline.techniques.drafts import prediction_module
from tests.cases import MODELS
from tests.paths import CONFIGS

H100 = load_hardware("h100-sxm")
BF16 = parse_precision("bf16")
STATIC = Settings(memory="static")  # KV caches in closed form, not in the engine's blocks


def run(model: str | Model, **settings: Any) -> Analysis:
    return analyze(Scenario(load_model(model) if isinstance(model, str) else model, H100, **settings))


def found(answer: Analysis, name: str, phase: str = "prefill") -> list[OpFigures]:
    return [op for op in getattr(answer, phase).ops if op.name == name]


def one(answer: Analysis, name: str, phase: str = "prefill") -> OpFigures:
    return found(answer, name, phase)[0]


def shape(op: OpFigures, name: str) -> tuple[float, ...]:
    return next(tensor.shape for tensor in op.tensors if tensor.name == name)


# Published totals; without the multi-token-prediction modules, and with the vision towers.
PARAMETERS = {
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "deepseek-v3.2": 671_877_944_064,
    "kimi-k2": 1_026_408_232_448,
    "qwen2-57b-a14b": 57_408_658_944,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "llama-4-scout": 107_769_861_120 + 871_932_416,
    "llama-4-maverick": 400_711_848_960 + 871_932_416,
    "glm-4.5": 352_797_829_024,
    "minimax-m2": 228_689_764_864,
    "llama-3.3-nemotron-super-49b": 49_867_145_216,
    "olmoe-1b-7b": 6_919_161_856,
    "granite-3.0-1b-a400m": 1_334_628_352,
    "jamba-v0.1": 51_570_323_328,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-397b-a17b": 396_346_350_336 + 456_010_480,
    "nemotron-nano-9b-v2": 8_888_227_328,
    "mamba-2.8b": 2_768_345_600,
    "mamba-codestral-7b": 7_285_403_648,
    "rwkv-4-14b": 14_148_597_760,
    "rwkv-7-2.9b": 2_947_735_040,
    "bert-base": 109_482_240,
    "roberta-large": 355_359_744,
    "longformer-base-4096": 148_659_456,
    "t5-11b": 11_307_321_344,
    "flan-t5-xxl": 11_135_332_352,
    "whisper-large-v3": 1_543_490_560,
    "whisper-large-v3-turbo": 808_878_080,
    "whisper-small": 241_734_912,
    "bart-large": 406_291_456,
    "bart-base": 139_420_416,
    "qwen2-vl-7b": 675_759_104 + 7_615_616_512,
    "qwen2.5-vl-7b": 676_550_144 + 7_615_616_512,
    "llava-1.5-7b": 303_507_456 + 20_979_712 + 6_738_939_904,
    "olmo-2-7b": 7_298_617_344,
    "stablelm-2-1.6b": 1_644_515_328,
}
# Sums over the tensors of models whose publishers give no exact figure.
DERIVED = {
    "dbrx": 131_596_523_520,
    "grok-1": 315_684_820_992,
    "phi-3.5-moe": 41_873_153_344,
    "nemotron-h-56b": 56_324_350_464,
    "mamba2-2.7b": 2_702_599_680,
    "rwkv-6-7b": 7_635_746_816,
    "retnet-6.7b": 6_442_717_184 + 50_257 * 4096,
    "h3-125m": 126_387_456,  # as github.com/HazyResearch/H3 prints
    "rwkv-5-7b": 7_518_044_160,
    "rwkv-7-0.1b": 191_034_624,
    # 3 d e + d s and four vectors of s for each unit (Hua et al. 2022, section 2), and the embedding
    "gau": 24 * (3 * 768 * 1536 + 768 * 128 + 4 * 128) + 12_000 * 768,
    "retnet-1.3b-100b": 1_351_727_104,
    "command-r": 34_980_831_232,
    "minicpm3-4b": 4_073_875_968,
    "bigbird-roberta-base": 127_468_800,
    "palm-540b": 540_356_474_880,
    "gpt-3-175b": 174_604_259_328,
    "glam-64e": 1_161_756_155_904,
}
ACTIVE = {
    "mixtral-8x7b": 12_879_925_248,
    "deepseek-v3": 37_552_297_472,
    "kimi-k2": 32_861_500_928,
    "qwen3-30b-a3b": 3_353_032_704,
    "gpt-oss-120b": 5_711_982_912,
    "jamba-v0.1": 12_110_311_296,
    "glam-64e": 96_604_266_496,
    "llama-4-scout": 17_172_894_720 + 871_932_416,
    "llama-2-7b": 6_738_415_616,
}


@pytest.mark.parametrize("name", [*PARAMETERS, *DERIVED])
def test_parameters(name: str) -> None:
    assert parameters(load_model(name)) == {**PARAMETERS, **DERIVED}[name]


@pytest.mark.parametrize("name", ACTIVE)
def test_active_parameters(name: str) -> None:
    assert active_parameters(load_model(name)) == ACTIVE[name]


@pytest.mark.parametrize("name", MODELS)
def test_active_parameters_as_in_the_spec(name: str) -> None:
    model = load_model(name)
    if model.active_parameters is not None:
        assert active_parameters(model) == model.active_parameters < parameters(model)


def test_parameters_of_s4_are_nearly_those_published() -> None:
    """249M (Gu et al. 2021, table 8); an embedding of one width stands for the adaptive one."""
    assert parameters(load_model("s4")) == pytest.approx(249e6, rel=0.01)


def test_h3_names_its_sizes() -> None:
    sizes = {"355m": 355e6, "1.3b": 1.3e9, "2.7b": 2.7e9}
    for name, size in sizes.items():
        assert parameters(load_model(f"h3-{name}")) == pytest.approx(size, rel=0.025)


def test_a_gated_unit_in_chunks_is_linear_in_the_context() -> None:
    short, long = (run("flash", prompt=prompt).prefill.flops / prompt for prompt in (2048, 8192))
    assert long == pytest.approx(short, rel=0.01)


def test_state_spaces_are_linear_in_the_context_and_do_not_grow() -> None:
    for name in ("s4", "rwkv-5-7b"):
        short, long = (run(name, prompt=prompt) for prompt in (512, 4096))
        assert long.prefill.flops / short.prefill.flops == pytest.approx(8, rel=0.03)
        assert long.memory.state == short.memory.state


# --- caches and states ------------------------------------------------------------------------------------------------


KV_BYTES = {
    "mixtral-8x7b": 131_072,
    "deepseek-v2-lite": 31_104,
    "deepseek-v3": 70_272,  # 61 layers * (512 + 64) * 2 bytes, for all 128 heads
    "deepseek-v3.2": 70_272 + 61 * 132,  # and the indexer's keys, in FP8 with a scale
    "glm-5.2": 78 * ((512 + 64) * 2 + 132),  # keys of an indexer are allocated where none is run as well
    "minicpm3-4b": 62 * 288 * 2,
    "gpt-oss-120b": 36 * 2 * 8 * 64 * 2,
    "qwen3-next-80b-a3b": 24_576,  # the 12 layers of 48 that attend
    "jamba-v0.1": 16_384,  # 4 of 32
    "nemotron-h-56b": 40_960,  # 10 of 118
    "palm-540b": 118 * 2 * 256 * 2,
    "mamba-2.8b": 0,
    "rwkv-7-2.9b": 0,
    "retnet-6.7b": 0,
}
# fp32: matrices of state, and the shifted token; 16 bits: convolutions' last kernel - 1 inputs.
STATE_BYTES = {
    "mamba-2.8b": 64 * 5120 * (4 * 16 + 2 * 3),
    "mamba2-2.7b": 64 * (4 * 5120 * 128 + 2 * (5120 + 2 * 128) * 3),
    "mamba-codestral-7b": 64 * (4 * 8192 * 128 + 2 * (8192 + 2 * 8 * 128) * 3),
    "rwkv-4-14b": 4 * 40 * 5 * 5120,
    "rwkv-6-7b": 4 * 32 * (2 * 4096 + 64 * 64 * 64),
    "rwkv-7-2.9b": 4 * 32 * 66 * 2560,
    "rwkv-5-7b": 4 * 32 * (2 * 4096 + 64 * 64 * 64),
    "s4": 4 * 32 * 1024 * 64,
    "h3-125m": 4 * 11 * 768 * 2 * 64,
    "flash": 4 * 24 * 128 * 1536,
    "retnet-6.7b": 4 * 32 * 512 * 4096,
    "jamba-v0.1": 28 * 8192 * (4 * 16 + 2 * 3),
    "qwen3-next-80b-a3b": 36 * (4 * 32 * 128 * 128 + 2 * (2 * 16 * 128 + 32 * 128) * 3),
    "nemotron-h-8b": 24 * (4 * 8192 * 128 + 2 * (8192 + 2 * 8 * 128) * 3),
    "llama-2-7b": 0,
}


@pytest.mark.parametrize("name", KV_BYTES)
def test_kv_bytes_per_token(name: str) -> None:
    assert kv_bytes_per_token(load_model(name), BF16) == KV_BYTES[name]


@pytest.mark.parametrize("name", STATE_BYTES)
def test_state_bytes_per_sequence(name: str) -> None:
    assert state_bytes_per_sequence(load_model(name), BF16) == STATE_BYTES[name]


def test_a_state_does_not_grow_with_the_context() -> None:
    short, long = (run("mamba-2.8b", batch=4, prompt=prompt) for prompt in (64, 8192))
    assert short.memory.state == long.memory.state == 4 * STATE_BYTES["mamba-2.8b"]
    assert short.memory.kv_cache == long.memory.kv_cache == 0
    assert short.decode is not None
    assert long.decode is not None
    assert short.decode.bytes == long.decode.bytes


@pytest.mark.parametrize("name", ["jamba-v0.1", "qwen3-next-80b-a3b", "nemotron-h-8b"])
def test_hybrids_have_a_state_and_a_kv_cache(name: str) -> None:
    memory = run(name, batch=3, prompt=1000, generate=1, settings=STATIC).memory
    assert memory.state == 3 * STATE_BYTES[name]
    assert memory.kv_cache == pytest.approx(3 * 1001 * kv_bytes_per_token(load_model(name), BF16))


@pytest.mark.parametrize("name", ["mamba-2.8b", "rwkv-6-7b"])
def test_a_decode_step_reads_and_writes_the_state(name: str) -> None:
    answer = run(name, batch=5)
    assert answer.decode is not None
    assert sum(op.count * op.state_bytes for op in answer.decode.ops) == 2 * 5 * STATE_BYTES[name]


def test_sliding_window_layers_stop_growing() -> None:
    """gpt-oss: a query of every other layer sees 128 tokens, its own included; caches keep no more."""
    model = load_model("gpt-oss-20b")
    windows = [group.layer.mixer.window for group in model.groups if isinstance(group.layer.mixer, Attention)]
    assert windows == [128, None]
    assert model.pattern[:2] == ("local", "global")
    answer = run(model, context=4095, prompt=1, generate=1)
    local, full = found(answer, "fused_attention", "decode")
    assert shape(local, "key_cache") == (1, 128, 8, 64)
    assert shape(full, "key_cache") == (1, 4096, 8, 64)
    assert answer.memory.kv_cache == 12 * (128 + 4096) * 2 * 8 * 64 * 2


# --- experts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "batch"), [("mixtral-8x7b", 1), ("qwen3-30b-a3b", 1), ("deepseek-v3", 16)])
def test_a_step_reads_the_experts_that_its_tokens_touch(name: str, batch: int) -> None:
    (moe,) = load_model(name).experts
    op = one(run(name, batch=batch, precision=BF16), "expert_up_proj", "decode")
    touched = moe.experts * (1 - (1 - moe.top_k / moe.experts) ** batch)
    assert op.weight_bytes == pytest.approx(touched * moe.width * load_model(name).hidden * 2)
    assert op.flops == 2 * batch * moe.top_k * moe.width * load_model(name).hidden


def test_a_long_prefill_touches_all_experts() -> None:
    op = one(run("mixtral-8x7b", prompt=4096), "expert_down_proj")
    assert op.weight_bytes == pytest.approx(8 * 14336 * 4096 * 2)


def test_shared_experts_run_for_every_token() -> None:
    op = one(run("deepseek-v2-lite", batch=7), "shared_up_proj", "decode")
    assert op.flops == 2 * 7 * 2048 * 2 * 1408
    assert op.weight_bytes == 2 * 2048 * 2 * 1408
    assert found(run("qwen1.5-moe-a2.7b"), "shared_expert_gate")
    assert not found(run("mixtral-8x7b"), "shared_up_proj")


def test_first_layers_of_deepseek_are_dense() -> None:
    model = load_model("deepseek-v3")
    assert model.pattern == ("dense",) * 3 + ("moe",) * 58
    answer = run(model)
    assert one(answer, "up_proj").count == 3
    assert one(answer, "router").count == 58
    assert load_model("llama-4-maverick").pattern[:4] == ("dense_local", "moe_local", "dense_local", "moe_global")


# --- latent attention -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["deepseek-v3", "deepseek-v2-lite", "kimi-k2", "minicpm3-4b"])
def test_mla_decode_is_absorbed(name: str) -> None:
    mixer = load_model(name).groups[0].layer.mixer
    assert isinstance(mixer, LatentAttention)
    answer = run(name, batch=2, context=999, fusions=())
    gemms = [one(answer, part, "decode") for part in ("qk_matmul", "sv_matmul")]
    pair = 2 * (2 * mixer.kv_rank + mixer.rope_dim) * mixer.heads
    assert sum(op.flops for op in gemms) == 2 * 1000 * pair
    assert shape(gemms[0], "latent_cache") == (2, 1000, mixer.kv_rank + mixer.rope_dim)


def test_mla_prefill_is_expanded() -> None:
    answer = run("deepseek-v3", prompt=64, fusions=())
    pairs = 64 * 65 / 2
    assert one(answer, "qk_matmul").flops == 2 * 128 * pairs * (128 + 64)
    assert one(answer, "sv_matmul").flops == 2 * 128 * pairs * 128
    assert one(answer, "kv_b_proj").flops == 2 * 64 * 512 * 128 * (128 + 128)


def test_absorbed_and_expanded_mla_read_the_same_weights() -> None:
    answer = run("deepseek-v2-lite", batch=1, prompt=1, context=0)
    assert answer.decode is not None
    expanded, absorbed = (
        sum(op.count * op.weight_bytes for op in phase.ops) for phase in (answer.prefill, answer.decode)
    )
    assert expanded == absorbed


def test_dsa_attends_to_the_selected_keys() -> None:
    """DeepSeek-V3.2: the indexer scores all keys, attention sees the best 2048."""
    answer = run("deepseek-v3.2", context=99_999, fusions=())
    assert shape(one(answer, "qk_matmul", "decode"), "latent_cache")[1] == 2048
    assert shape(one(answer, "index_scores", "decode"), "index_key_cache") == (1, 100_000, 128)


def test_layers_may_share_an_indexer() -> None:
    """GLM-5.2: layers 0 to 2 and every fourth after them run one (21 of 78), the module that predicts ahead as well."""
    model = load_model("glm-5.2")
    full = [layer for layer, kind in enumerate(model.pattern) if kind.endswith("full")]
    assert full == [0, 1, 2, *range(6, 78, 4)]
    answer = run(model, context=99_999, fusions=())
    assert sum(op.count for op in found(answer, "index_scores", "decode")) == 21
    assert sum(op.count for op in found(answer, "qk_matmul", "decode")) == 78
    assert {shape(op, "latent_cache")[1] for op in found(answer, "qk_matmul", "decode")} == {2048}
    indexer = 2048 * 32 * 128 + 6144 * 128 + 2 * 128 + 6144 * 32
    assert parameters(load_model("glm-5")) - parameters(model) == 57 * indexer
    assert prediction_module(model).groups[-1].layer.mixer.own_indexer is not None


@pytest.mark.parametrize(
    "changes",
    [
        {"index_topk_freq": 4, "index_skip_topk_offset": 3},
        {"index_topk_pattern": "FFF" + "SSSF" * 18 + "SSS"},
    ],
)
def test_three_spellings_of_the_indexer_schedule(changes: dict[str, Any]) -> None:
    model = parse_model(translate({**config("glm-5"), **changes}, "x", "x"), "x")
    assert model.pattern == load_model("glm-5.2").pattern


# --- encoders, encoder-decoders, vision -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert-base", "roberta-large", "longformer-base-4096", "bigbird-roberta-base"])
def test_encoders_have_no_decode_phase(name: str) -> None:
    answer = run(name, batch=8, prompt=384)
    assert answer.decode is None
    assert answer.memory.kv_cache == 0
    assert answer.generation.total == answer.prefill.bound_time


def test_an_encoder_sees_the_whole_sequence() -> None:
    flops = one(run("bert-base", prompt=384, fusions=()), "qk_matmul").flops
    assert flops == 2 * 384 * 384 * 768


def test_sparse_encoders_attend_to_a_fixed_number_of_keys() -> None:
    for name, reach in (("longformer-base-4096", 513), ("bigbird-roberta-base", 512)):
        assert one(run(name, prompt=4096, fusions=()), "qk_matmul").flops == 2 * 4096 * reach * 768


def test_the_pooler_is_stored_but_not_run() -> None:
    model = load_model("bert-base")
    answer = run(model, prompt=1)
    assert answer.memory.weights == 2 * parameters(model)
    touched = sum(op.count * op.weight_bytes for op in answer.prefill.ops)
    tables = (30_522 - 1 + 512 - 1 + 2 - 1) * 768
    assert touched == 2 * (parameters(model) - tables - (768 * 768 + 768))


def test_cross_attention_projects_the_encoder_output_once() -> None:
    """T5: keys and values of the prompt are made when generation starts, and only read afterwards."""
    answer = run("t5-base", batch=2, prompt=300, generate=1, settings=STATIC)
    for name in ("cross_k_proj", "cross_v_proj"):
        assert one(answer, name).flops == 2 * 2 * 300 * 768 * 768
        assert one(answer, name, "decode").flops == one(answer, name, "decode").bytes == 0
    step = one(answer, "cross_fused_attention", "decode")
    assert shape(step, "cross_key_cache") == (2, 300, 12, 64)
    # The prompt's keys and values, and those of the start token and the one being generated.
    assert answer.memory.kv_cache == 12 * 2 * 2 * 768 * 2 * (300 + 2)


def test_encoder_and_decoder_share_the_embedding_table() -> None:
    answer = run("t5-base")
    assert answer.memory.weights == 2 * 222_903_552
    assert one(answer, "embedding").section == "encoder embedding"


def test_whisper_encodes_thirty_seconds_of_mel_frames() -> None:
    """3000 frames of 128 bands, two convolutions of three frames, the second with stride 2: 1500 positions."""
    answer = run("whisper-large-v3", batch=2)
    assert answer.scenario.prompt == 1500
    first, second = one(answer, "convolution_0"), one(answer, "convolution_1")
    assert first.flops == 2 * 3000 * (2 * 3 * 128 * 1280 + 1280)
    assert second.flops == 2 * 1500 * (2 * 3 * 1280 * 1280 + 1280)
    # Each frame is read once, not once for every window it is in.
    assert first.bytes == 2 * (2 * 3000 * (128 + 1280) + 3 * 128 * 1280 + 1280)
    assert second.bytes == 2 * (2 * (3000 + 1500) * 1280 + 3 * 1280 * 1280 + 1280)
    assert answer.memory.weights == 2 * 1_543_490_560
    assert not answer.beyond_max_context
    assert run("whisper-large-v3", prompt=1501).beyond_max_context
    assert run("whisper-large-v3", generate=450).beyond_max_context


def test_whispers_keys_have_no_bias() -> None:
    answer = run("whisper-small")
    for name in ("q_proj", "v_proj", "cross_q_proj", "cross_v_proj", "o_proj", "cross_o_proj"):
        assert [tensor.name for tensor in one(answer, name).tensors if "bias" in tensor.name]
    for name in ("k_proj", "cross_k_proj"):
        assert not [tensor.name for tensor in one(answer, name).tensors if "bias" in tensor.name]


def test_bart_normalises_after_each_sublayer_and_shares_one_table() -> None:
    answer = run("bart-large", prompt=600)
    assert answer.memory.weights == 2 * 406_291_456
    assert one(answer, "embedding_norm").section == "encoder embedding"
    assert not found(answer, "final_norm")
    assert run("bart-large", prompt=1025).beyond_max_context


def test_image_tokens_join_the_prompt() -> None:
    without, with_image = run("llava-1.5-7b", prompt=100), run("llava-1.5-7b", prompt=100, images=1)
    assert not [op for op in without.prefill.ops if op.section.startswith("encoder")]
    q_proj = [op for op in with_image.prefill.ops if op.name == "q_proj"]
    assert [(op.section, op.flops) for op in q_proj] == [
        ("encoder layer", 576 * (2 * 1024 * 1024 + 1024)),  # with a bias
        ("layer", 2 * (100 + 576) * 4096 * 4096),
    ]
    assert with_image.scenario.first_cached == 676
    assert with_image.memory.kv_cache - without.memory.kv_cache == 576 * 524_288


@pytest.mark.parametrize(
    ("name", "tokens"), [("llava-1.5-13b", 576), ("qwen2-vl-7b", 256), ("qwen3.5-27b", 256), ("llama-4-scout", 144)]
)
def test_vision_encoders_merge_patches(name: str, tokens: int) -> None:
    assert load_model(name).image_tokens == tokens


def test_vision_encoder_layers_may_have_windows() -> None:
    """Qwen2.5-VL: 28 of 32 layers see 64 patches each."""
    tower = load_model("qwen2.5-vl-7b").tower
    assert tower is not None
    assert [index for index, name in enumerate(tower.pattern) if name == "full"] == [7, 15, 23, 31]
    answer = run("qwen2.5-vl-7b", images=1, fusions=())
    local, full = (op for op in answer.prefill.ops if op.name == "qk_matmul" and op.section.startswith("encoder"))
    assert (local.flops, full.flops) == (2 * 1024 * 64 * 1280, 2 * 1024 * 1024 * 1280)


# --- every model, and what cannot be read -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_analysed(name: str) -> None:
    model = load_model(name)
    images = 1 if model.tower_kind == "vision" else 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = run(model, batch=2, prompt=128, generate=16, images=images)
        assert answer.prefill.flops > 0
        plain = run(model, precision=BF16, offload="tables=0")
        narrow = sum(engram.rows * engram.width for engram in model.engrams if engram.format is not None)
        tables = narrow * find_format("mxfp8").bytes
        assert plain.memory.weights == pytest.approx(2 * (parameters(model) - narrow) + tables, rel=1e-12)
        assert answer.generation.total > 0
        assert (answer.decode is None) == (model.task == "encode")
        if answer.decode is not None:
            assert answer.decode.flops > 0


def config(name: str, **changes: Any) -> dict[str, Any]:
    return {**json.loads((CONFIGS / f"{name}.json").read_text()), **changes}


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("qwen3-30b-a3b", {"use_sliding_window": True}, "use_sliding_window"),
        ("minimax-m2", {"attn_type_list": [0] * 62}, "attn_type_list"),
        ("mamba-codestral-7b", {"num_heads": 64}, "num_heads"),
        ("llama-3.3-nemotron-super-49b", {"block_configs": []}, "block_configs"),
        ("mimo-v2-flash", {"moe_layer_freq": [1]}, "moe_layer_freq"),
        ("step-3.5-flash", {"use_rope_layers": [True, False]}, "use_rope_layers"),
        ("deepseek-v4-pro", {"mlp_layer_types": ["moe"]}, "mlp_layer_types"),
        ("longformer-base-4096", {"attention_window": [256] * 6 + [512] * 6}, "attention_window"),
        ("llava-1.5-7b", {"vision_config": {"model_type": "siglip_vision_model"}}, "vision_config"),
        ("retnet-1.3b-100b", {"use_short_conv": True}, "use_short_conv"),
        ("gemma-4-26b-a4b", {"hidden_size_per_layer_input": 256}, "attention_k_eq_v"),
        ("gemma-4-26b-a4b", {"num_hidden_layers": None}, "'num_hidden_layers' is missing"),
        ("glm-5", {"index_topk_pattern": "FS"}, "index_topk_pattern"),
        ("glm-5.2", {"indexer_types": ["shared"] * 78}, "indexer_types"),
    ],
)
def test_invalid_specs_are_refused(name: str, changes: dict[str, Any], word: str) -> None:
    with pytest.raises(SpecError, match=word):
        translate(config(name, **changes), name, name)


def test_experts_may_compute_on_a_latent() -> None:
    """LatentMoE: Nemotron 3 Super has 120 billion parameters, of which 12 are active (arXiv 2604.12374)."""
    model = load_model("nemotron-3-super-120b-a12b")
    assert parameters(model) == pytest.approx(120e9, abs=1e9)
    assert active_parameters(model) == pytest.approx(12e9, abs=1e9)
    answer = run(model, batch=2, prompt=100, settings=Settings(parallel=Parallelism(tensor=2, data=4, expert=8)))
    assert shape(one(answer, "expert_up_proj"), "expert_latent")[-1] == 1024
    assert shape(one(answer, "dispatch_all_to_all"), "dispatched")[-1] == 1024, "latents are sent, not tokens"
    for name in ("latent_down_proj", "latent_up_proj"):
        assert one(answer, name).weight_bytes == 2 * 4096 * 1024, "each rank has the projections whole"
    assert one(answer, "mlp_all_reduce").link_bytes == one(answer, "attn_all_reduce").link_bytes, "sums are tokens"


def test_values_may_be_narrower_than_keys() -> None:
    """MiMo-V2-Flash: 309 billion parameters, of which 15 are active (arXiv 2601.02780); sinks in windows alone."""
    mimo = replace(load_model("mimo-v2-flash"), quantization=None)
    assert parameters(mimo) == pytest.approx(309e9, abs=5e8)
    assert active_parameters(mimo) == pytest.approx(15e9, abs=5e8)
    answer = run(mimo, batch=2, prompt=100, generate=1)
    assert {op.weight_bytes for op in found(answer, "o_proj")} == {2 * 64 * 128 * 4096}
    score, softmax, weighted = 2 * 192, 5, 2 * 128  # FLOPs of a head for a query and a key that it sees
    pairs = 2 * 100 * 101 / 2
    for op in (op for op in answer.prefill.ops if any(tensor.name == "key_cache" for tensor in op.tensors)):
        assert (shape(op, "key_cache")[-1], shape(op, "value_cache")[-1]) == (192, 128)
        assert op.flops == pairs * 64 * (score + softmax + weighted)


def test_a_gate_may_be_a_number_for_each_head() -> None:
    """Step 3.5 Flash: 196 billion parameters, of which 11 are active (its model card); 96 heads where a window is."""
    step = load_model("step-3.5-flash")
    assert parameters(step) == pytest.approx(196.81e9, rel=1e-3)
    assert active_parameters(step) - 2 * step.vocabulary * step.hidden == pytest.approx(11e9, abs=5e8)
    answer = run(step, batch=2, prompt=100)
    assert {op.weight_bytes for op in found(answer, "q_gate_proj")} == {2 * 4096 * 64, 2 * 4096 * 96}


def test_puzzle_leaves_attention_out_of_layers() -> None:
    """The published 253 billion parameters of Ultra; half of its 162 layers are left out whole."""
    ultra = load_model("llama-3.1-nemotron-ultra-253b")
    assert parameters(ultra) == pytest.approx(253e9, abs=5e8)
    given = config("llama-3.1-nemotron-ultra-253b")["block_configs"]
    assert sum(group.count for group in ultra.groups) == sum(
        not (block["attention"]["no_op"] and block["ffn"]["no_op"]) for block in given
    )


def test_values_may_be_the_keys() -> None:
    """Gemma 4: values are normalised without weights, and its global layers take the keys' projection for them."""
    gemma = load_model("gemma-4-31b")
    answer = run(gemma, batch=2, prompt=100, fusions=())
    (projection,) = found(answer, "v_proj")
    assert projection.count == 50
    assert [(op.count, op.weight_bytes) for op in found(answer, "v_norm")] == [(50, 0), (10, 0)]
    _, full = found(answer, "v_norm")
    assert shape(full, "key_projected") == shape(full, "value") == (2, 100, 4, 512)
    heads, width = 16 * 256, 4 * 512
    assert kv_bytes_per_token(gemma, parse_precision("bf16")) == 2 * 2 * (50 * heads + 10 * width)
    assert gemma.tower is not None
    assert parameters(gemma) - parameters(gemma.tower) == (
        262144 * 5376
        + 5376
        + 60 * (3 * 5376 * 21504 + 4 * 5376)
        + 50 * (5376 * 256 * (2 * 32 + 2 * 16) + 2 * 256)
        + 10 * (5376 * 512 * (2 * 32 + 4) + 2 * 512)
    )


@pytest.mark.parametrize(
    ("name", "total", "active"),
    [
        ("gemma-4-31b", 30.7e9, 30.7e9),
        ("gemma-4-26b-a4b", 25.2e9, 3.8e9),
        ("glm-5", 744e9, 40e9),
    ],
)
def test_sizes_as_rounded_on_the_model_cards(name: str, total: float, active: float) -> None:
    model = load_model(name)
    tower = parameters(model.tower) if model.tower else 0  # the cards count the decoder
    assert parameters(model) - tower == pytest.approx(total, rel=0.002)
    assert active_parameters(model) - tower == pytest.approx(active, rel=0.05)


def test_the_vision_encoder_of_gemma_4() -> None:
    """As extracted from the released checkpoint, with the 2,304 values of its standardization."""
    tower = load_model("gemma-4-31b").tower
    assert tower is not None
    assert parameters(tower) == 569_550_384 - 2_304 + 1152 * 5376


@pytest.mark.parametrize("name", ["llama-4-maverick", "qwen3.5-27b", "qwen3.5-35b-a3b"])
def test_text_decoder_of_a_vision_language_model(name: str) -> None:
    text = config(name)["text_config"]
    model = parse_model(translate(text, name, name), name)
    whole = load_model(name)
    assert model.tower is None
    assert model.groups == whole.groups
    assert whole.tower is not None
    assert parameters(model) + parameters(whole.tower) == parameters(whole)


def test_defaults_of_missing_config_keys() -> None:
    """Keys that the published files leave out."""
    mamba = parse_model(translate(config("mamba-130m"), "x", "x"), "x")
    assert mamba.tied_embeddings
    grok = load_model("grok-1")
    assert grok.tied_embeddings
    assert grok.norm.placement == "sandwich"
    oss = config("gpt-oss-20b")
    del oss["layer_types"]
    assert parse_model(translate(oss, "x", "x"), "x").pattern == load_model("gpt-oss-20b").pattern
    scout = load_model("llama-4-scout")
    rotating = [group.layer.mixer.rotary for group in scout.groups if isinstance(group.layer.mixer, Attention)]
    assert rotating == [None, False]
    assert scout.pattern[3] == "global"
    assert all(isinstance(group.layer.feed_forward, MixtureOfExperts) for group in scout.groups)


# --- attention in chunks (Llama 4) ------------------------------------------------------------------------------------


def scores_flops(answer: Analysis, phase: str = "prefill") -> float:
    return sum(op.count * op.flops for op in getattr(answer, phase).ops if op.name in ("qk_matmul", "sv_matmul"))


def test_llama_4_attends_within_chunks_in_three_of_four_layers() -> None:
    """Pairs: eight chunks of 8192 causal tokens each in 36 layers, 65536 tokens in the 12 without rotary embedding."""
    answer = run("llama-4-scout", prompt=65536, generate=2, fusions=(), settings=STATIC)
    chunked, whole = 8 * 8192 * 8193 // 2, 65536 * 65537 // 2
    assert scores_flops(answer) == 4 * 40 * 128 * (36 * chunked + 12 * whole)
    # The next token starts a chunk: one key there, 65537 elsewhere.
    assert scores_flops(answer, "decode") == 4 * 40 * 128 * (36 * 1 + 12 * 65537)
    kept = [op for op in answer.decode.ops if op.name == "qk_matmul"] if answer.decode else []
    assert [op.count for op in kept] == [36, 12]
    token = 2 * 8 * 128 * 2  # bytes of a layer's keys and values
    assert answer.memory.kv_cache == token * (36 * 8192 + 12 * 65537)


def test_a_short_llama_4_prompt_is_one_chunk() -> None:
    answer = run("llama-4-scout", prompt=8192, generate=2, fusions=())
    assert scores_flops(answer) == 4 * 40 * 128 * 48 * 8192 * 8193 // 2


def test_chunks_run_as_sequences_of_their_own() -> None:
    """vLLM's virtual batches: attention to 65536 tokens in chunks is as fast as a batch of eight chunks."""
    scout, dense = load_model("llama-4-scout"), load_model("llama-3.1-8b")

    def seconds(chunk: int | None, batch: int, prompt: int) -> float:
        group = dense.groups[0]
        mixer = replace(group.layer.mixer, chunk=chunk)  # type: ignore[type-var]
        model = replace(dense, groups=(replace(group, layer=replace(group.layer, mixer=mixer)),))
        return float(run(model, batch=batch, prompt=prompt, generate=1).expected.ttft.mid)

    assert scout.attentions[0].chunk == 8192
    assert seconds(8192, 1, 65536) == pytest.approx(seconds(None, 8, 8192), rel=2e-3)  # but for seven rows of logits
    assert seconds(None, 1, 65536) > 1.5 * seconds(8192, 1, 65536)


def test_a_chunk_excludes_a_window() -> None:
    with pytest.raises(SpecError, match="attention in chunks is causal and has no window"):
        parse_model({"name": "x", "hidden": 64, "layers": 1, "vocabulary": 10, "norm": {"kind": "rmsnorm"},
                     "attention": {"heads": 4, "window": 8, "chunk": 8}}, "x.yaml")  # fmt: skip


# --- the scan of Mamba-2 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "heads", "width", "state", "groups", "chunk"),
    [("mamba-codestral-7b", 128, 64, 128, 8, 256), ("nemotron-h-8b", 128, 64, 128, 8, 128)],
)
def test_mamba_2_scans_in_the_chunks_of_its_checkpoint(
    name: str, heads: int, width: int, state: int, groups: int, chunk: int
) -> None:
    """Dao and Gu 2024, section 6: three whole chunks and one of 100 tokens, then a single token."""
    answer = run(name, batch=3, prompt=3 * chunk + 100, generate=2)
    inner, tokens = heads * width, 3 * chunk + 100
    pairs = sum(at % chunk + 1 for at in range(tokens))
    scores, outputs = 2 * pairs * groups * state, 2 * pairs * inner
    states = 4 * tokens * inner * state
    elementwise = 4 * inner * state + 2 * tokens * inner + 3 * pairs * heads
    assert one(answer, "scan").flops == 3 * (scores + outputs + states + elementwise)
    assert one(answer, "scan", "decode").flops == 3 * inner * (4 * state + state + 2)
