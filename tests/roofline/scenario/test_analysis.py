"""Closed forms of FLOPs, bytes, memory and times of an analysis."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Analysis, RooflineError, Scenario, analyze, load_hardware, load_model, parameters, parse_precision
from roofline.scenario.phase import OpFigures
from roofline.scenario.settings import Settings

A100, H100 = load_hardware("a100-sxm-80gb"), load_hardware("h100-sxm")


def run(model: str = "llama-3-8b", **settings: object) -> Analysis:
    return analyze(Scenario(load_model(model), A100, **settings))  # type: ignore[arg-type]


def named(answer: Analysis, phase: str = "prefill") -> dict[str, OpFigures]:
    return {op.name: op for op in getattr(answer, phase).ops}


def test_flops_approach_two_per_parameter_and_token() -> None:
    """2 N FLOPs per token without norms, softmax and attention; N excludes the embedding table."""
    model = load_model("llama-3-8b")
    table = model.vocabulary * model.hidden
    answer = run(batch=4096, prompt=1, context=0)
    assert answer.decode.flops == pytest.approx(2 * (parameters(model) - table) * 4096, rel=2e-3)


def test_decode_bytes_are_weights_and_cache() -> None:
    model = load_model("llama-2-7b")
    answer = run("llama-2-7b", batch=16, context=4000, prompt=1)
    weights = 2 * (parameters(model) - (model.vocabulary - 16) * model.hidden)  # 16 rows of the table are gathered
    cache = 16 * 524_288 * 4002  # 4000 and the new token are read, the new token is written
    assert sum(op.count * op.weight_bytes for op in answer.decode.ops) == weights
    assert sum(op.count * op.kv_bytes for op in answer.decode.ops) == cache
    assert answer.decode.bytes == pytest.approx(weights + cache, rel=5e-3)


def test_causal_attention_does_half_the_work_of_the_full_square() -> None:
    op = named(run(prompt=8192, fusions=()))
    full = 2 * 8192 * 8192 * 32 * 128
    assert op["qk_matmul"].flops == full * 8193 / 8192 / 2
    assert op["sv_matmul"].flops == op["qk_matmul"].flops


def test_cached_prefix_is_attended_to_but_not_computed() -> None:
    op = named(run(prompt=100, prefix=900, fusions=()))
    assert op["q_proj"].flops == 2 * 100 * 4096 * 4096
    assert op["qk_matmul"].flops == 2 * 32 * 128 * sum(900 + i + 1 for i in range(100))
    assert next(t.shape for t in op["qk_matmul"].tensors if t.name == "key_cache") == (1, 1000, 8, 128)


def test_flash_attention_moves_queries_keys_values_and_output_once() -> None:
    op = named(run("llama-2-7b", prompt=2048))["fused_attention"]
    assert op.bytes == 4 * 2 * 2048 * 4096


def test_decode_attention_stays_at_its_intensity_whatever_the_batch() -> None:
    for batch in (1, 64, 4096):
        multi_head = named(run("llama-2-7b", batch=batch, context=8000, prompt=1), "decode")["fused_attention"]
        grouped = named(run("llama-3-8b", batch=batch, context=8000, prompt=1), "decode")["fused_attention"]
        # 2 * 2 FLOP a key and query head, 5 more for its softmax element per head_dim, over 2 * 2 bytes a kv head.
        assert multi_head.intensity == pytest.approx(1 * (1 + 5 / (4 * 128)), rel=1e-3)
        assert grouped.intensity == pytest.approx(4 * (1 + 5 / (4 * 128)), rel=2e-3)
        assert (multi_head.bound, grouped.bound) == ("memory", "memory")


def test_linear_layers_become_compute_bound_at_the_ridge_point() -> None:
    """2 n m k / (2 (n k + n m + m k)) meets the ridge at m = ridge / (1 - ridge (n + k) / (n k))."""
    ridge = 312e12 / 2.039e12
    n, k = 4096, 14336
    crossover = int(np.ceil(ridge / (1 - ridge * (n + k) / (n * k))))
    bounds = [named(run(batch=batch, context=0, prompt=1), "decode")["gate_proj"].bound for batch in
              (crossover - 1, crossover)]  # fmt: skip
    assert bounds == ["memory", "compute"]


def test_lm_head_runs_on_the_last_position_only() -> None:
    op = named(run(batch=3, prompt=1000))["lm_head"]
    assert op.flops == 2 * 3 * 4096 * 128256
    assert named(run(batch=3), "decode")["lm_head"].flops == op.flops


def test_embedding_is_a_gather() -> None:
    op = named(run(batch=2, prompt=100))["embedding"]
    assert op.flops == 0
    assert op.attainable == 0
    assert op.weight_bytes == 2 * 100 * 4096 * 2


def test_tied_embeddings_are_stored_once() -> None:
    tied = load_model("llama-3.2-1b")
    untied = replace(tied, name="untied", tied_embeddings=False)
    table = tied.vocabulary * tied.hidden
    assert parameters(untied) - parameters(tied) == table
    weights = [analyze(Scenario(model, A100)).memory.weights for model in (tied, untied)]
    assert weights[1] - weights[0] == 2 * table


def test_sliding_window_layers_read_and_store_only_their_window() -> None:
    answer = run("gemma-2-9b", context=10_000, prompt=1, batch=2)
    windowed, full = (op for op in answer.decode.ops if op.name == "fused_attention")
    assert (windowed.section, full.section) == ("local", "global")
    assert windowed.kv_bytes == 2 * 2 * 4096 * 8 * 256 * 2
    assert full.kv_bytes == 2 * 2 * 10_001 * 8 * 256 * 2
    layer = 2 * 8 * 256 * 2
    assert answer.memory.kv_cache == 2 * layer * (21 * 4096 + 21 * 10_016)  # blocks of 16 tokens


def test_multi_query_attention_reads_one_head() -> None:
    op = named(run("falcon-7b", context=2000, prompt=1), "decode")["fused_attention"]
    assert op.kv_bytes == 2 * 2001 * 64 * 2


def test_explicit_head_dim() -> None:
    op = named(run("qwen3-0.6b", prompt=10))
    assert op["q_proj"].flops == 2 * 10 * 1024 * (16 * 128)
    assert op["o_proj"].flops == op["q_proj"].flops
    assert op["q_norm"].weight_bytes == 128 * 2


def test_operator_names_without_fusion() -> None:
    expected = (
        "embedding attn_norm q_proj k_proj v_proj rope qk_matmul softmax sv_matmul o_proj attn_add mlp_norm gate_proj"
        " up_proj mlp_act down_proj mlp_add final_norm lm_head"
    )
    assert [op.name for op in run(fusions=()).prefill.ops] == expected.split()


def test_activation_peak_by_liveness() -> None:
    """Llama-3-8B, one prompt: the peak is in the MLP, where gate, up and their product live beside the residual."""
    tokens = 1000
    alive = 2 * tokens * (4096 + 3 * 14336)
    static = Settings(memory="static")
    assert run(prompt=tokens, settings=static).memory.activation_peak == alive
    # Without FlashAttention a long prompt's scores and probabilities take over.
    tokens = 8192
    alive = 2 * (2 * 32 * tokens * tokens + 4096 * tokens)
    assert run(prompt=tokens, fusions=(), settings=static).memory.activation_peak == alive


def test_negative_headroom() -> None:
    memory = run("llama-3.1-405b").memory
    assert not memory.fits
    assert memory.headroom == memory.budget - memory.total < 0


def test_generation_definitions() -> None:
    generation = run(batch=4, prompt=300, generate=50).generation
    assert generation.total == pytest.approx(generation.ttft + 49 * generation.tpot, rel=1e-12)
    assert generation.tokens_per_second == pytest.approx(4 * 50 / generation.total, rel=1e-12)
    single = run(generate=1).generation
    assert single.tpot is None
    assert single.total == single.ttft


def test_weight_only_quantization_does_not_speed_up_compute_bound_prefill() -> None:
    plain = named(run("llama-2-13b", prompt=4096))
    four = named(run("llama-2-13b", prompt=4096, precision=parse_precision("fp16", "W4")))
    assert four["gate_proj"].bound_time == plain["gate_proj"].bound_time
    assert four["gate_proj"].bytes < plain["gate_proj"].bytes


def test_grids_broadcast() -> None:
    batch, prompt = np.array([1, 8, 64])[:, None], np.array([128, 1024])[None, :]
    answer = run(batch=batch, prompt=prompt, generate=10)
    assert answer.decode.bound.shape == answer.memory.fits.shape == answer.generation.tpot.shape == (3, 2)
    assert named(answer)["q_proj"].bound_time.shape == (3, 2)
    assert answer.generation.tokens_per_second[2, 0] > answer.generation.tokens_per_second[0, 0]


@pytest.mark.parametrize(
    "settings",
    [
        {"batch": 0},
        {"batch": 1.5},
        {"batch": "eight"},
        {"prompt": 10**12},
        {"context": -1},
        {"batch": np.array([0.5])},
        {"convention": "llmviewer"},
        {"fusions": ["flash"]},
    ],
    ids=str,
)
def test_bad_workloads(settings: dict[str, object]) -> None:
    with pytest.raises(RooflineError):
        run(**settings)


def test_a_diffusion_transformer_runs_one_denoising_step() -> None:
    """Peebles and Xie 2023 give 118.64 "Gflops" for DiT-XL/2 at 256 x 256, which are multiply-adds."""
    model = load_model("dit-xl-2")
    answer = analyze(Scenario(model, A100, prompt=256))
    assert parameters(model) == 675_129_632
    assert answer.decode is None
    products = sum(op.count * op.flops for op in answer.prefill.ops if op.kind in ("gemm", "attention"))
    assert products / 2 == pytest.approx(118.64e9, rel=2e-3)


@pytest.mark.parametrize(
    ("model", "hardware", "quant", "activations"),
    [
        ("llama-3.1-8b", "mi355x", "mxfp4", "mxfp4"),
        ("amd/Llama-3.3-70B-Instruct-MXFP4-Preview", "mi355x", None, "mxfp4"),
        ("llama-3.1-8b", "mi300x", "mxfp4", "bf16"),
        ("gpt-oss-20b", "mi355x", None, "bf16"),
        ("llama-3.1-8b", "mi355x", "nvfp4", "bf16"),
        ("llama-3.1-8b", "b200-sxm", "nvfp4", "nvfp4"),
    ],
)
def test_four_bits_are_multiplied_where_the_hardware_has_their_blocks(
    model: str, hardware: str, quant: str | None, activations: str
) -> None:
    given = {} if quant is None else {"quant": quant}
    assert Scenario(model, hardware, engine="vllm", **given).run_precision.activations.name == activations
