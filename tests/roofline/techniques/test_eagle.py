"""EAGLE, EAGLE-2 and EAGLE-3 as engines run them, against published speed-ups, and published acceptance."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import Scenario, UnknownNameError, analyze, load_hardware, load_model, parameters
from roofline.scenario.speculation import acceptance_rate, accepted_tokens
from roofline.techniques import apply_techniques, techniques
from roofline.techniques.acceptance import TASKS, Acceptance, published_acceptance, published_rows, relative_rate
from roofline.techniques.drafts import eagle_3_layer

H100 = load_hardware("h100-sxm")


def gain(scenario: Scenario, request: str) -> np.ndarray:
    """The expected speed-up of decode."""
    before, after = (analyze(one).expected.tpot for one in (scenario, apply_techniques(scenario, [request])))
    assert before is not None
    assert after is not None
    return np.asarray(before.mid / after.mid)


def test_the_draft_layer_of_eagle_3() -> None:
    """Matrices of the released draft of Qwen3-8B: fc 4096 x 12288, q, k and v on 8192 inputs, lm_head of 32,000."""
    draft = eagle_3_layer(load_model("qwen3-8b"))
    mlp, output = 3 * 4096 * 12288, 4096 * 4096
    projections = 8192 * (4096 + 2 * 1024)
    matrices = 4096 * 12288 + projections + output + mlp + 32_000 * 4096
    embedding = 32_000 * 4096  # the target's, which is not stored again
    assert parameters(draft) - embedding == pytest.approx(matrices, rel=1e-3)


@pytest.mark.parametrize(
    ("request_", "published", "tolerance"), [("eagle", 1.54, 0.10), ("eagle-3", 2.36, 0.06)], ids=["eagle", "eagle-3"]
)
def test_one_sequence_on_sglang(request_: str, published: float, tolerance: float) -> None:
    """Li et al. 2025, EAGLE-3: 158.34, 244.10 and 373.25 tokens/s of Llama 3.1 8B on MT-Bench, a chain of 3 drafts."""
    scenario = Scenario(load_model("llama-3.1-8b"), H100, prompt=128, generate=256, engine="sglang@0.4.4")
    expected = analyze(scenario).expected.tpot
    assert expected is not None
    assert 1 / expected.mid == pytest.approx(158.34, rel=0.07)
    assert gain(scenario, request_) == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize(
    ("model", "accepted", "published", "tolerance"),
    [
        ("qwen3-1.7b", 2.17, 642.93 / 381.05, 0.06),
        ("qwen3-4b", 2.08, 386.94 / 233.26, 0.06),
        ("qwen3-8b", 1.99, 257.52 / 151.81, 0.06),
        ("qwen3-14b", 1.79, 145.33 / 93.26, 0.06),
        ("qwen3-32b", 1.91, 74.1 / 43.32, 0.06),
        pytest.param(
            *("qwen3-30b-a3b", 2.04, 438.07 / 320.87, 0.08),
            marks=pytest.mark.xfail(strict=True, reason="10% too small since vLLM 0.14's experts were fitted anew"),
        ),
    ],
)
def test_one_sequence_on_vllm(model: str, accepted: float, published: float, tolerance: float) -> None:
    """AngelSlim, README: two draft tokens on one H20 with vLLM 0.11.2, means over four tasks.

    The launch of experts that one token saves, found in kernel timings, makes the gain of the MoE model too small; one
    token of it takes 1.9 times as long as published.
    """
    scenario = Scenario(load_model(model), load_hardware("h20"), prompt=128, generate=1024, engine="vllm-sync")
    assert gain(scenario, f"eagle-3:length=2,accept={accepted}") == pytest.approx(published, rel=tolerance)


def test_a_chain_gains_where_a_tree_loses() -> None:
    """At batch 64 a chain of 3 gains 1.38 times the throughput on SGLang (Li et al. 2025); a tree of 25 loses."""
    batches = np.array([1, 4, 16, 64])
    scenario = Scenario(load_model("llama-3.1-8b"), H100, batch=batches, prompt=128, generate=64, engine="sglang@0.4.4")
    chain = gain(scenario, "eagle-3")
    assert chain[-1] == pytest.approx(1.38, rel=0.15)
    assert (np.diff(chain) < 0).all()
    tree = gain(scenario, "eagle:tree=25,topk=10,length=5,accept=3.94")
    assert tree[0] > 1.5
    assert tree[-1] < 1


def test_eagle_3_drafts_faster_than_eagle_by_its_smaller_vocabulary() -> None:
    scenario = Scenario(load_model("llama-3.1-8b"), H100)
    one, other = (analyze(apply_techniques(scenario, [f"{name}:accept=2.5"])) for name in ("eagle", "eagle-3"))
    flops = []
    for answer in (one, other):
        assert answer.decode is not None
        flops.append(
            next(op.flops for op in answer.decode.ops if op.name == "lm_head" and op.section.startswith("draft"))
        )
    assert flops[0] / flops[1] == pytest.approx(128256 / 32000)
    assert other.generation.tpot < one.generation.tpot


# --- published acceptance ---------------------------------------------------------------------------------------------


@given(st.floats(0.01, 0.99), st.integers(1, 12))
def test_the_acceptance_rate_inverts_the_accepted_tokens(rate: float, length: int) -> None:
    assert acceptance_rate(accepted_tokens(rate, length), length) == pytest.approx(rate, abs=1e-6)


def test_acceptance_by_model_and_task() -> None:
    of_position = published_acceptance("eagle", "llama-2-7b", "mt-bench")
    assert of_position is not None
    assert of_position.of(1) == pytest.approx(1.76)
    assert of_position.of(3) == pytest.approx(1 + 0.76 + 0.76 * 0.69 + 0.76 * 0.69 * 0.67)
    tree = published_acceptance("eagle-3", "llama-3.1-8b", "humaneval", tree=True)
    assert tree is not None
    assert tree.tokens == 6.74
    lookup = published_acceptance("prompt-lookup", "llama-7b", "cnn-dm")
    assert lookup is not None
    assert lookup.tokens == 2.72
    assert published_acceptance("medusa", "llama-7b", "mt-bench") is None
    with pytest.raises(UnknownNameError, match="did you mean 'gsm8k'"):
        published_acceptance("eagle", "llama-7b", "gsm8")


def test_a_tree_of_another_size_lies_between_the_chain_and_the_published_tree() -> None:
    """SGLang's usual tree of 15 draft tokens, 3 deep, against three of a chain and three levels of the paper's tree."""
    chain = published_acceptance("eagle-3", "llama-3.1-8b", "mt-bench")
    tree = published_acceptance("eagle-3", "llama-3.1-8b", "mt-bench", tree=True)
    assert chain is not None
    assert tree is not None
    levels = accepted_tokens(acceptance_rate(tree.tokens, tree.length), 3)
    assert chain.tokens < tree.of(3, 15, 4) < levels < 4
    assert chain.of(3, 15, 4) == pytest.approx(tree.of(3, 15, 4), rel=0.05)
    assert tree.of(8, 60, 10) == tree.tokens


def test_golden_acceptance_lengths_by_number_of_drafts() -> None:
    """InferenceX, golden_al_distribution: GLM-5.2 with MTP, Kimi K2.5 with EAGLE-3, thinking."""
    module = published_acceptance("multi-token-prediction", "glm-5.2", "coding")
    layer = published_acceptance("eagle-3", "kimi-k2.5", "coding")
    assert module is not None
    assert layer is not None
    assert [module.of(length) for length in (1, 3, 8)] == pytest.approx([1.84, 2.99, 4.06])
    assert layer.of(4) == pytest.approx(3.24)


@pytest.mark.parametrize("row", published_rows(), ids=lambda row: f"{row.method}-{row.model}-{row.task}-{row.tree}")
def test_published_rows_are_consistent(row: Acceptance) -> None:
    assert row.task in TASKS
    assert 1 < row.tokens <= row.length + 1
    assert row.method in techniques()
    load_model(row.model)


def test_the_default_is_the_published_figure_and_says_of_what() -> None:
    scenario = Scenario(load_model("gpt-oss-20b"), H100)
    speculation = apply_techniques(scenario, ["eagle-3"]).settings.speculation
    assert speculation is not None
    assert speculation.accepted == pytest.approx(2.56, abs=0.01)
    assert "gpt-oss-20b on mt-bench" in speculation.measured
    other = apply_techniques(Scenario(load_model("mistral-7b"), H100), ["eagle-3"]).settings.speculation
    assert other is not None
    assert "llama-3.1-8b" in other.measured
    given_ = apply_techniques(scenario, ["eagle-3:accept=2"]).settings.speculation
    assert given_ is not None
    assert (given_.accepted, given_.measured) == (2.0, "")


@pytest.mark.parametrize("model", ["llama-7b", "llama-13b", "llama-2-7b", "llama-2-13b"])
def test_a_sibling_says_how_predictable_a_model_is(model: str) -> None:
    """EAGLE-2's published rates come from EAGLE's on the same model within 6%, and without them off by 14 to 20%."""
    reference = "llama-3.1-8b"
    rates = {}
    for row in published_rows():
        if row.method == "eagle-2":
            rates.setdefault(row.model, acceptance_rate(row.of(3), 3))
    borrowed = rates[reference] * relative_rate("eagle-2", model, reference)
    assert borrowed == pytest.approx(rates[model], rel=0.06)
    assert abs(rates[reference] / rates[model] - 1) > 0.14


@pytest.mark.parametrize("model", ["qwen3-32b", "qwen3-8b", "kimi-k2.5", "llama-3.1-405b", "gpt-oss-20b"])
def test_a_borrowed_figure_does_not_put_an_older_draft_before_a_newer(model: str) -> None:
    """EAGLE-3 yields more than EAGLE wherever both were measured, and so where either is borrowed."""
    older, newer = (published_acceptance(method, model, TASKS[0]) for method in ("eagle", "eagle-3"))
    assert older is not None
    assert newer is not None
    assert older.scale is not None
    assert all(older.of(length) < newer.of(length) for length in (1, 2, 3, 5))
