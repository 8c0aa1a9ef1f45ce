"""The event simulation: closed forms of single requests, conservation, Little's law, policies, and memory."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import Scenario, load_hardware, load_model
from roofline.core.errors import RooflineError
from roofline.serving.load import Load, Trace, draw
from roofline.serving.policies import simulate
from roofline.serving.replica import Replica, replica_of
from roofline.serving.steps import StepTimes
from roofline.specs.scheduler import MIXED, ORDERS, PREFILL_FIRST, Scheduler

SCENARIO = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), engine="vllm")
STEPS = StepTimes(SCENARIO)
PLENTY = 400_000


def replica(kv_tokens: int = PLENTY, **policy) -> Replica:
    return Replica(STEPS, Scheduler(**{"tokens": 8192, "sequences": 256, **policy}), kv_tokens)


def test_a_request_alone_takes_its_prefill_and_its_steps() -> None:
    found = simulate(replica(latency=0.01), Load(prompt=1000, generate=65, concurrency=1, rounds=3))
    prefill = float(STEPS.seconds(0, 0, 1000))
    decode = float(STEPS.seconds(1, 1000 + 32))
    assert found.first - found.arrival == pytest.approx(0.01 + prefill, rel=1e-3)
    assert (found.last - found.first) / 64 == pytest.approx(decode, rel=5e-3)


def test_the_cache_holds_what_grows_between_two_events() -> None:
    """Requests of one length end together, with no event between their first and last tokens."""
    found = simulate(replica(), Load(prompt=100, generate=801, concurrency=8, rounds=3))
    assert found.cached == pytest.approx(8 * (100 + 400), rel=0.02)


def test_a_prompt_beyond_the_budget_takes_several_steps() -> None:
    found = simulate(replica(tokens=512), Load(prompt=2048, generate=1, concurrency=1, rounds=1))
    parts = sum(float(STEPS.seconds(0, 0, 512, cached)) for cached in (0, 512, 1024, 1536))
    assert float(found.first[0]) == pytest.approx(parts, rel=1e-3)
    assert found.steps == 4


LOADS = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from([16, 700, "uniform:10:3000", "lognormal:mean=500,p95=1500"]),
        "generate": st.sampled_from([1, 2, 300, "exponential:mean=100", "uniform:1:400"]),
        "hits": st.sampled_from([0.0, 0.5]),
    }
)
ARRIVALS = st.sampled_from([{"concurrency": 1}, {"concurrency": 50}, {"rate": 3.0}, {"rate": 40.0}, {"offline": 80}])
POLICIES = st.fixed_dictionaries(
    {
        "order": st.sampled_from(ORDERS),
        "tokens": st.sampled_from([64, 2048, 8192]),
        "sequences": st.sampled_from([4, 256]),
        "whole": st.booleans(),
        "reserved": st.sampled_from([0.0, 0.4, 1.0]),
        "lag": st.sampled_from([0, 1]),
        "poll": st.sampled_from([1, 10]),
        "gather": st.sampled_from([0, 20]),
        "pause": st.sampled_from([0, 7]),
        "piece": st.sampled_from([0, 512]),
        "stream": st.sampled_from([1, 10]),
    }
)


@given(load=LOADS, arrivals=ARRIVALS, policy=POLICIES, room=st.sampled_from([12_000, PLENTY]))
def test_every_token_is_computed_once_and_little_holds(load, arrivals, policy, room) -> None:
    asked = Load(**load, **arrivals)
    number = 80
    found = simulate(replica(room, **policy), asked, number, seed=3)
    drawn = draw(asked, number, 3)
    assert found.first.size == number
    assert found.output.sum() == drawn.output.sum()
    if not found.preemptions:
        assert found.prompt_tokens == drawn.prompt.sum()
    else:
        assert found.prompt_tokens > drawn.prompt.sum()
    assert (found.arrival <= found.first).all()
    assert (found.first <= found.last).all()
    assert found.cached <= room * (1 + 1e-9)
    # Little: the requests in the engine are the sum of their times over the duration.
    inside = (found.last - found.arrival).sum() / found.duration
    assert found.running + found.waiting == pytest.approx(inside, rel=0.02, abs=0.1)


@given(seed=st.integers(0, 2**31))
def test_equal_seeds_give_equal_runs(seed) -> None:
    load = Load(prompt="uniform:10:2000", generate="uniform:2:200", rate=10)
    one, two = (simulate(replica(), load, 50, seed) for _ in range(2))
    assert np.array_equal(one.last, two.last)


def test_prompts_first_have_a_shorter_ttft_and_a_longer_tpot() -> None:
    load = Load(prompt="uniform:1000:3000", generate=200, rate=9)
    mixed, first = (simulate(replica(order=order), load, 1500) for order in (MIXED, PREFILL_FIRST))
    ttft = [float((run.first - run.arrival).mean()) for run in (mixed, first)]
    tpot = [float(((run.last - run.first) / 199).mean()) for run in (mixed, first)]
    assert ttft[1] < ttft[0]
    assert tpot[0] < tpot[1]


def test_a_smaller_budget_evens_tpot_and_delays_the_first_token() -> None:
    """Sarathi-Serve (Agrawal et al. 2024): chunks bound the time between tokens."""
    load = Load(prompt=4096, generate=200, rate=4)
    small, large = (simulate(replica(tokens=tokens), load, 800) for tokens in (512, 8192))
    assert (small.first - small.arrival).mean() > (large.first - large.arrival).mean()


def test_a_full_cache_preempts_without_reservation_and_waits_with_it() -> None:
    load = Load(prompt=500, generate=1500, concurrency=20, rounds=2)
    free, reserved = (simulate(replica(12_000, reserved=part), load) for part in (0.0, 1.0))
    assert free.preemptions > 0
    assert reserved.preemptions == 0
    assert reserved.running <= 12_000 / 2000 + 1e-9
    assert free.running > reserved.running


def test_polls_delay_the_first_token_by_half_their_interval() -> None:
    load = Load(prompt="uniform:100:300", generate="uniform:400:600", concurrency=16)
    often, seldom = (simulate(replica(order=PREFILL_FIRST, poll=poll), load, 400) for poll in (1, 20))
    step = float(STEPS.seconds(16, 450))
    later = float((seldom.first - seldom.arrival).mean() - (often.first - often.arrival).mean())
    assert later == pytest.approx(9.5 * step, rel=0.35)


def test_prompts_that_gather_wait_for_others_while_sequences_decode() -> None:
    decoding = Trace(arrival=(0.0, 1.0), prompt=(1000, 1000), output=(1000, 10))
    step = float(STEPS.seconds(1, 1200))
    at_once, later = (simulate(replica(gather=steps), Load(trace=decoding)) for steps in (0, 20))
    waited = np.sort(later.first - later.arrival)[::-1] - np.sort(at_once.first - at_once.arrival)[::-1]
    assert waited == pytest.approx([20 * step, 0.0], rel=0.1, abs=step / 10)
    full = Trace(arrival=(0.0, *[1.0] * 8), prompt=(1000,) * 9, output=(1000, *[10] * 8))
    together = simulate(replica(gather=20), Load(trace=full))
    assert np.max(together.first - together.arrival) < 20 * step + float(STEPS.seconds(1, 1200, 8000, 0, 8))


def test_prompts_that_gather_wait_again_after_each_admission() -> None:
    waiting = Trace(arrival=(0.0, *[1.0] * 4), prompt=(1000,) * 5, output=(1000, *[500] * 4))
    served = simulate(replica(gather=20, tokens=2400, whole=True), Load(trace=waiting))
    one, other = np.sort(served.first - served.arrival)[[1, -1]]
    decode, both = float(STEPS.seconds(3, 1200)), float(STEPS.seconds(1, 1200, 2000, 0, 2))
    assert other - one == pytest.approx(20 * decode + both, rel=0.2)


def test_chunks_of_a_prompt_are_an_interval_apart_while_a_sequence_decodes() -> None:
    prompts = Trace(arrival=(0.0, 1.0), prompt=(1000, 2048), output=(1000, 10))
    step = float(STEPS.seconds(1, 1200))
    plain, apart = (simulate(replica(piece=512, pause=steps), Load(trace=prompts)) for steps in (0, 7))
    waited = np.sort(apart.first - apart.arrival)[::-1] - np.sort(plain.first - plain.arrival)[::-1]
    assert waited == pytest.approx([3 * 7 * step, 0.0], rel=0.1, abs=step / 10)
    whole, _ = np.sort(plain.first - plain.arrival)[::-1]
    assert whole > float(STEPS.seconds(1, 1200, 2048, 0))


def test_prompts_that_go_first_stop_the_sequences_of_their_rank_alone() -> None:
    """SGLang's ranks have batches of their own: that of a rank without prompts goes on, a token a step."""
    scenario = SCENARIO.with_(model="qwen3-30b-a3b", tp=1, dp=4, ep=4)
    first = Scheduler(order=PREFILL_FIRST, tokens=1024, sequences=8)
    ranks = replica_of(scenario, Load(prompt=9000.0, generate=200.0, concurrency=1).of(scenario), first)
    served = simulate(ranks, Load(trace=Trace(arrival=(0.0, 0.2), prompt=(1000, 8192), output=(100, 2))))
    assert served.steps == 1 + 99
    alone = simulate(ranks, Load(trace=Trace(arrival=(0.0,), prompt=(1000,), output=(100,))))
    longer = served.last[served.output == 100] - alone.last
    chunks = sum(float(ranks.steps.seconds(0, 0, 1024, 1024 * at)) for at in range(8))
    assert 0.5 * chunks < longer[0] < chunks


def test_steps_with_few_prompt_tokens_replay_graphs_of_pieces() -> None:
    """The host launches two kernels of a layer for each, and nearly all of its time hides behind them."""
    engine = SCENARIO.profile
    eager, captured, free = (
        STEPS.of(replace(engine, scheduler=Scheduler(dispatch=dispatch, captured=tokens)))
        for dispatch, tokens in ((2e-4, 0), (2e-4, 512), (0.0, 0))
    )
    few, more = (float(captured.seconds(0, 0, tokens)) for tokens in (512, 600))
    assert more > 3 * few
    assert few == pytest.approx(float(free.seconds(0, 0, 512)), rel=0.1)
    assert more == pytest.approx(float(eager.seconds(0, 0, 600)))
    assert captured.single(0, 0, 512, 0, 1, None) == pytest.approx(few, rel=1e-3)
    slow = STEPS.of(replace(engine, scheduler=Scheduler(dispatch=2e-3, captured=512)))
    assert float(slow.seconds(0, 0, 512)) > 5 * few


def test_the_first_token_reaches_the_client_with_the_first_message() -> None:
    load = Load(prompt=1000, generate=100, concurrency=1, rounds=1)
    at_once, later = (simulate(replica(stream=steps), load) for steps in (1, 10))
    step = float((at_once.last - at_once.first)[0]) / 99
    assert later.first - at_once.first == pytest.approx(9 * step)
    assert later.last == pytest.approx(at_once.last)


def test_the_front_end_serves_one_request_after_the_other() -> None:
    load = Load(prompt=16, generate=2, offline=30)
    found = simulate(replica(request=0.1), load)
    assert np.diff(np.sort(found.first)) == pytest.approx(0.1, abs=0.02)


def test_a_trace_arrives_when_it_says() -> None:
    load = Load(trace=Trace((0.0, 5.0, 5.0), (100, 200, 300), (2, 3, 4), (0, 128, 0)))
    found = simulate(replica(), load)
    assert sorted(found.arrival) == [0.0, 5.0, 5.0]
    assert found.prompt_tokens == 100 + (200 - 128) + 300
    assert found.output.sum() == 9


@pytest.fixture(scope="module")
def eight_ranks() -> StepTimes:
    from roofline.graph.parallel import Parallelism
    from roofline.scenario.settings import Settings

    model, hardware = load_model("deepseek-r1"), load_hardware("b200-sxm")
    settings = Settings(parallel=Parallelism(data=8, expert=8))
    return StepTimes(Scenario(model, hardware, settings=settings, engine="vllm"))


@pytest.mark.parametrize("number", [1, 2, 8])
def test_experts_see_tokens_of_ranks_without_a_sequence_unless_they_are_masked(
    eight_ranks: StepTimes, number: int
) -> None:
    load = Load(prompt=64, generate=100, offline=number)
    whole, masked = (
        simulate(Replica(eight_ranks, Scheduler(tokens=8192, masked=masked), PLENTY), load).duration
        for masked in (False, True)
    )
    saved = eight_ranks.experts(np.array([1.0, number / 8]))
    slower = eight_ranks.engine.kernel_slowdown("decode")
    assert whole - masked == pytest.approx(99 * (saved[0] - saved[1]) * slower, rel=0.01, abs=1e-9)
    assert (whole > 1.05 * masked) == (number < 8)


def test_data_parallel_ranks_compute_prompts_side_by_side(eight_ranks: StepTimes) -> None:
    found = [
        simulate(
            Replica(eight_ranks, Scheduler(tokens=8192), PLENTY), Load(prompt=1024, generate=1, offline=number)
        ).duration
        for number in (1, 8, 16)
    ]
    assert found[1] < 8 * found[0] / 3
    assert found[2] > 1.5 * found[1]


def test_a_request_longer_than_the_cache_is_refused() -> None:
    with pytest.raises(
        RooflineError, match=r"a request of 9000 prompt and 10 output tokens does not fit in the KV cache"
    ):
        simulate(replica(8000), Load(prompt=9000, generate=10, concurrency=2, rounds=1))
    with pytest.raises(RooflineError, match="no request fits"):
        replica_of(SCENARIO, Load(prompt=2_000_000, generate=10, concurrency=1))


def test_a_model_that_does_not_fit_is_refused() -> None:
    large = Scenario(load_model("llama-3.1-70b"), load_hardware("h100-sxm"), engine="vllm")
    with pytest.raises(RooflineError, match="does not fit on 1"):
        replica_of(large, Load(concurrency=1))
