"""Speculative decoding under load: a lone request takes as long as in a batch of one, however few tokens it has."""

import numpy as np
import pytest

from roofline import Scenario, analyze, serve
from roofline.scenario.speculation import Speculation, acceptance_rate, iterations
from roofline.serving import Load


@pytest.mark.parametrize("technique", ["eagle-2", "prompt-lookup:accept=2"])
@pytest.mark.parametrize("generate", [2, 3, 8, 64])
def test_few_tokens_take_as_long_under_load(technique: str, generate: int) -> None:
    scenario = Scenario("llama-3.1-8b", "h100-sxm", generate=generate, techniques=technique)
    alone = analyze(scenario).expected.tpot
    assert alone is not None
    for load in ({"concurrency": 1}, {"rate": 0.01}):
        assert serve(scenario, **load).outcomes[0].tpot.mean.mid == pytest.approx(alone.mid, rel=0.06)


def test_iterations_are_whole_for_one_token_and_a_mean_for_many() -> None:
    assert iterations(1, 3.0) == 1
    assert iterations(100, 1.0) == 100
    assert iterations(0, 3.0) == 0
    assert iterations(1e6, 2.5) == pytest.approx(4e5, rel=1e-5)


def test_requests_of_a_loop_part_with_drafts() -> None:
    """Whatever an iteration yields: before, whole iterations of some acceptances kept the requests together."""
    found = [
        serve(
            Scenario("llama-3.1-8b", "h100-sxm", techniques=f"eagle-3:length=3,accept={accepted}"), concurrency=8
        ).outcomes[0]
        for accepted in (2.0, 2.2, 2.4, 2.6, 2.8, 3.0)
    ]
    ttft = [outcome.ttft.mean.mid for outcome in found]
    assert max(ttft) < 1.2 * min(ttft)
    equal = Scenario("llama-3.1-8b", "h100-sxm", generate="fixed:128")
    alone = serve(equal, concurrency=8).outcomes[0].ttft.mean.mid
    assert max(ttft) < 0.7 * alone  # which stay together


def test_fewer_drafts_decode_more_of_many_sequences() -> None:
    """DeepSeek-R1 decodes on H20 with EP16: three drafts in place of one gain 21% with one sequence a GPU, and lose 18%
    with 32 (LMSYS and Ant Group, 26 September 2025). Prompts are short, as they are computed elsewhere."""
    plain = Scenario("deepseek-r1", "h20-141gb", engine="sglang", dp=16, ep=16, sequences=512, prompt=100)
    rates = []
    for drafts in (0, 1, 3):
        scenario = plain.with_(techniques=f"multi-token-prediction:length={drafts}") if drafts else plain
        curve = serve(scenario, Load(generate="uniform:1350:1650", concurrency=16), [16, 512])
        rates.append([outcome.requests_per_second for outcome in curve.outcomes])
    none, one, three = np.array(rates)
    assert (one > none).all()
    assert (three > none).all()
    assert three / one == pytest.approx([1.21, 0.82], rel=0.15)


@pytest.mark.parametrize(("options", "ranks"), [({}, 1), ({"tp": 8, "dp": 8, "ep": 8}, 8)])
def test_sglang_runs_fewer_requests_at_once_with_drafts_than_without(options: dict[str, int], ranks: int) -> None:
    """48 unless it is told another number, as its server arguments say; ranks of attention divide them."""
    model = "deepseek-v3" if options else "llama-3.1-8b"
    technique = "multi-token-prediction" if options else "eagle-3"
    scenario = Scenario(model, "h200-sxm", engine="sglang", techniques=technique, **options)
    replica = serve(scenario, concurrency=1).replica
    assert (replica.scheduler.sequences, replica.sequences) == (48 // ranks, 48)
    assert serve(scenario.with_(max_num_seqs=100), concurrency=1).replica.scheduler.sequences == 100 // ranks
    assert serve(Scenario(model, "h200-sxm", engine="sglang", **options), concurrency=1).replica.sequences > 1000


@pytest.mark.parametrize("accepted", [1.5, 2.5, 3.5])
def test_the_scatter_of_iterations_is_that_of_drawn_acceptances(accepted: float) -> None:
    speculation, tokens = Speculation(3, accepted, 3), 400
    random, rate = np.random.default_rng(0), acceptance_rate(accepted, 3)
    kept = (random.random((4000, tokens, 3)) < rate).cumprod(axis=2).sum(axis=2) + 1
    counts = (kept.cumsum(axis=1) < tokens).sum(axis=1) + 1
    assert counts.var() == pytest.approx(tokens * speculation.scatter, rel=0.1)
    assert counts.mean() == pytest.approx(float(iterations(tokens, accepted)), rel=0.01)


def test_a_context_of_a_decoder_leaves_the_source_of_an_encoder() -> None:
    """Whisper hears 30 s whatever its decoder has written."""
    scenario = Scenario("whisper-large-v3", "h100-sxm", context=100)
    assert scenario.prompt == scenario.with_(context=None).prompt == 1500


def test_a_context_alone_is_within_a_longer_generation() -> None:
    """Its keys are those of a prompt as long, and no token that an iteration yields is lost at the end."""
    scenario = Scenario("llama-3.1-8b", "h100-sxm", context=4096, prefix=96, generate=2, techniques="eagle-2")
    found = analyze(scenario)
    assert (scenario.prompt, scenario.first_cached) == (4000, 4096)
    assert found.decode is not None
    assert found.expected.tpot is not None
    assert found.expected.tpot.mid == pytest.approx(found.decode.expected.mid / found.tokens_per_iteration, rel=1e-6)
