"""The busiest rank of experts."""

import math

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Scenario, load_model
from roofline.serving import Load
from roofline.serving.load import Trace
from roofline.serving.policies import simulate
from roofline.serving.ranks import UNEVEN_EXPERTS, busiest, grouped
from roofline.serving.replica import replica_of
from roofline.serving.steady import largest_rate
from roofline.specs.engine import load_engine


@pytest.mark.parametrize("tokens", [1, 16, 256])
@pytest.mark.parametrize("ranks", [2, 8])
def test_the_busiest_expert_rank_is_that_of_random_routing(tokens, ranks) -> None:
    random = np.random.default_rng(0)
    experts = random.random((400, tokens, 256)).argpartition(8, axis=2)[:, :, :8]
    rows = (experts[..., np.newaxis] // (256 // ranks) == np.arange(ranks)).sum(axis=(1, 2))
    expected = rows.max(axis=1).mean() * ranks / 8
    assert float(busiest(np.array([float(tokens)]), ranks, 8)[0]) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("ranks", [4, 8, 32])
def test_the_busiest_expert_rank_is_that_of_uneven_experts(ranks) -> None:
    """With many tokens it is the largest sum of the loads of its experts, here of a log-normal distribution."""
    loads = np.random.default_rng(0).lognormal(0.0, UNEVEN_EXPERTS, (4000, ranks, 256 // ranks)).sum(axis=2)
    expected = (loads.max(axis=1) / loads.mean(axis=1)).mean()
    found = busiest(np.array([1e9]), ranks, 8, math.expm1(UNEVEN_EXPERTS**2) / 256)
    assert float(found[0]) / 1e9 == pytest.approx(expected, rel=0.1)


def test_the_busiest_of_32_ranks_is_as_measured() -> None:
    """2.56 times the mean of DeepSeek-R1's layers (NVIDIA/TensorRT-LLM, examples/wide_ep/ep_load_balancer)."""
    of_groups = grouped(load_model("deepseek-r1").experts[0], 32)
    found = busiest(np.array([4096.0]), 32, 8, math.expm1(UNEVEN_EXPERTS**2) / 256, of_groups)
    assert float(found[0]) / 4096 == pytest.approx(2.56, rel=0.08)


@pytest.mark.parametrize("ranks", [4, 8, 16])
@pytest.mark.parametrize("top_groups", [2, 4, 8])
def test_the_busiest_rank_is_that_of_group_limited_routing(ranks: int, top_groups: int) -> None:
    """Tokens choose groups by their two best experts, then eight experts of these; some experts are popular."""
    random, busy = np.random.default_rng(0), []
    for _ in range(40):
        logits = random.normal(0.0, 0.6, 256) + random.normal(0.0, 1.0, (600, 256))
        scores = 1 / (1 + np.exp(3 - logits))
        best = np.sort(scores.reshape(600, 8, 32), axis=2)[:, :, -2:].sum(axis=2)
        chosen = best >= np.sort(best, axis=1)[:, [8 - top_groups]]
        experts = np.where(np.repeat(chosen, 32, axis=1), scores, -1.0).argpartition(248, axis=1)[:, 248:]
        loads = np.bincount(experts.ravel(), minlength=256).reshape(ranks, -1).sum(axis=1)
        busy.append(loads.max() / loads.mean())
    spec = replace(load_model("deepseek-r1").experts[0], top_groups=top_groups)
    found = busiest(np.array([600.0]), ranks, 8, math.expm1(UNEVEN_EXPERTS**2) / 256, grouped(spec, ranks))
    assert float(found[0]) / 600 == pytest.approx(np.mean(busy), rel=0.06)


@pytest.mark.parametrize(("engine", "several"), [("vllm", True), ("sglang", False)])
def test_data_parallel_ranks_may_have_front_ends_of_their_own(engine: str, several: bool) -> None:
    """vLLM starts an API server a rank, so that no single tokenizer limits them; one request takes as long as ever."""
    load = Load(prompt=16, generate=2, rate=1.0)
    replica = replica_of(Scenario("gpt-oss-20b", "h200-sxm", engine=engine, dp=8, ep=8).without("batch"), load)
    own = load_engine(engine).scheduler
    assert (largest_rate(replica, load) * own.front(16) > 1.01) is several
    assert [replica.scheduler.received(tokens) for tokens in (16, 100_000)] == pytest.approx(
        [own.received(tokens) for tokens in (16, 100_000)]
    )


def test_a_short_prompt_passes_a_long_one_at_another_front_end() -> None:
    """Tokenizing 100,000 tokens holds up one rank's API server, not the others."""
    scenario = Scenario("gpt-oss-20b", "h200-sxm", engine="vllm", dp=8, ep=8).without("batch")
    load = Load(trace=Trace((0.0, 0.001), (100_000, 16), (1, 1), (0, 0)))
    one = replace(scenario.profile.scheduler, fronts="one")
    behind, beside = (simulate(replica_of(scenario, load, policy), load) for policy in (one, None))
    (short, long), (short_beside, long_beside) = (sorted(run.first - run.arrival) for run in (behind, beside))
    assert long_beside == pytest.approx(long, rel=1e-3)
    assert short_beside < 0.5 * short
