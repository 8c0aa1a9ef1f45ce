"""Steady states: against the event simulation over random settings, Little's law, limits, and monotony."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import Scenario, serve
from roofline.core.errors import RooflineError
from roofline.serving.few import FEW
from roofline.serving.load import Load
from roofline.serving.outcome import outcome_of, steady_outcomes
from roofline.serving.policies import simulate
from roofline.serving.replica import Replica
from roofline.serving.steady import saturation_of, steady
from roofline.serving.times import slots_of, times_of
from roofline.specs.scheduler import MIXED, ORDERS, PREFILL_FIRST, Scheduler
from tests.cases import sampled
from tests.roofline.serving.agreement import DEPLOYMENTS, PROMPTS, RANKED, ratios, simulated, steps, within

SETTINGS, REQUESTS = 100, 3000
"""Random settings that the two are compared over, and the least requests of a run."""

LEAST = {
    (): (0.84, 0.89, 0.8),
    ("closed",): (0.97, 0.93, 0.93),
    ("closed", "equal outputs"): (0.94, 0.84, 0.84),
    ("open",): (0.72, 0.8, 0.64),
    ("open", "plain", "light"): (0.88, 0.9, 0.88),
}
"""The least parts of classes with TPOT, TTFT and both within limits, of few settings and one run of each.

Log-normal loads of ranks of experts cost two open settings of twenty with such ranks: their p95 of TTFT is 15 and 16%
below the simulation's, where it was 11 and 12% (0.88 and 0.78 of all were within limits with normal loads). Kernels and
ranks of 2026-11-28 moved five settings across a limit, two of them inside (p95 of TTFT 1.9 and 1.3 times, now 1.1) and
three outside by up to 2%. With ranks that take requests in turn (equal outputs) two open settings of gpt-oss on four
ranks with steps of 512 tokens are within limits again.

Of 200 settings and two runs (docs/limits.md), 97% of closed loops are within both.
"""

OUTPUTS = (64, 200, 800, "uniform:50:400", "exponential:mean=250")


def replica(place: int, kv_tokens: int = 10**6, **policy) -> Replica:
    name, hardware, degrees = DEPLOYMENTS[place]
    found = steps(name, hardware, tuple(degrees.items()))
    return Replica(found, Scheduler(**{"tokens": 8192, "sequences": 1024, **policy}), kv_tokens)


@pytest.mark.slow
def test_steady_states_agree_with_simulations_of_random_settings() -> None:
    drawn, found, _ = ratios(SETTINGS, runs=1, requests=REQUESTS)
    for classes, least in LEAST.items():
        assert (np.array(within(drawn, found, *classes)[1:]) >= least).all(), classes


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_only_ranks_with_prompts_wait_where_prompts_go_first(share) -> None:
    """Of SGLang's data-parallel ranks the others go on decoding."""
    name, hardware, degrees = RANKED[1]
    policy = Scheduler(tokens=8192, sequences=256, order=PREFILL_FIRST)
    found = Replica(steps(name, hardware, tuple(degrees.items()), "sglang"), policy, 4 * 10**6)
    load = Load(prompt=1024, generate=200, rate=1.0)
    rate = share * saturation_of(found, load, times_of(found, load, slots_of(found, load)))
    load = replace(load, rate=rate)
    quick = steady(found, load, rate)
    tpot, _ = simulated(found, load, float(quick.running[0]), requests=2000)
    assert float(quick.tpot[0, 0]) == pytest.approx(tpot, rel=0.1)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("concurrency", [1, 8, 64, 200])
def test_a_closed_loop_agrees_with_its_simulation(order, concurrency) -> None:
    found = replica(1, order=order)
    load = Load(prompt="uniform:500:1500", generate="uniform:100:500", concurrency=concurrency)
    quick, run = steady(found, load, concurrency), simulate(found, load, max(600, 20 * concurrency))
    # The concurrency is lower while the last requests finish.
    kept = (run.arrival > run.duration / 4) & (run.arrival < 0.9 * run.duration)
    tpot = (run.last - run.first)[kept].sum() / (run.output[kept] - 1).sum()
    assert float(quick.tpot[0, 0]) == pytest.approx(tpot, rel=0.05)
    assert float(quick.rate[0]) == pytest.approx(run.output.size / run.duration, rel=0.07)


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "tokens"), [(1024, 1), (4000, 24), (512, 4), ("exponential:mean=2000", 16)])
@pytest.mark.parametrize("order", ORDERS)
def test_steps_with_room_for_a_hundredth_of_a_prompt(prompt, tokens, order) -> None:
    found = replica(0, order=order, tokens=tokens)
    alone = steady(found, Load(prompt=prompt, generate=64, concurrency=1), 1)
    rate = 0.2 / float(alone.ttft[0, 0] + 63 * alone.tpot[0, 0])
    load = Load(prompt=prompt, generate=64, rate=rate)
    quick, run = steady(found, load, [rate, rate / 10]), simulate(found, load, 400)
    assert float(quick.ttft[0, 0]) == pytest.approx((run.first - run.arrival).mean(), rel=0.5)
    slowest = found.steps.seconds(8, 1000, tokens)
    assert 0 < float(quick.tpot[0, 1]) <= float(quick.tpot[0, 0])
    assert order != MIXED or float(quick.tpot[0, 0]) < slowest


def test_graphs_that_no_step_exceeds_are_as_good_as_graphs_without_a_limit() -> None:
    """A step of just the limit in tokens is not priced as one of a few more, which has no graphs."""
    name, hardware, degrees = DEPLOYMENTS[1]
    found, load = steps(name, hardware, tuple(degrees.items())), Load(prompt="uniform:200:2000", generate=64, rate=2.0)
    policy = found.engine.scheduler
    limited, free = (
        Replica(
            found.of(replace(found.engine, scheduler=replace(policy, captured=limit))),
            replace(policy, tokens=512),
            10**6,
        )
        for limit in (512, 10**6)
    )
    one, other = (steady(each, load, [1.0, 4.0]) for each in (limited, free))
    assert one.saturation == pytest.approx(other.saturation)
    assert one.tpot == pytest.approx(other.tpot)
    assert one.ttft == pytest.approx(other.ttft)


def test_prompts_of_many_steps_delay_those_alone_that_begin_among_them() -> None:
    """Of a prompt that waits behind another, not of each step of either: TPOT of a light load is the simulation's."""
    found, load = replica(0, tokens=200), Load(prompt=4000, generate=64, rate=0.2)
    quick, run = steady(found, load, load.rate), simulate(found, load, 1000)
    tpot = (run.last - run.first).sum() / (run.output - 1).sum()
    alone = float(found.steps.seconds(1, 4000))
    assert float(quick.tpot[0, 0]) - alone == pytest.approx(tpot - alone, rel=0.3)


def test_prompts_wait_for_the_end_of_a_sequence_that_fills_a_step() -> None:
    found = replica(0, tokens=1)
    for users in (1, 3):
        load = Load(prompt=300, generate=50, concurrency=users)
        quick, run = steady(found, load, users), simulate(found, load, 20 * users)
        assert float(quick.running[0]) <= 1
        assert float(quick.rate[0]) == pytest.approx(run.output.size / run.duration, rel=0.1)


@given(
    place=st.integers(0, len(DEPLOYMENTS) - 1),
    order=st.sampled_from(ORDERS),
    tokens=st.sampled_from([2048, 8192, 16384]),
    prompt=st.sampled_from((*PROMPTS, 4000, 8000)),
    generate=st.sampled_from((*OUTPUTS, 10, 30)),
    concurrency=st.integers(1, 3000),
)
def test_a_closed_loop_is_at_most_as_fast_as_the_largest_stable_rate(
    place, order, tokens, prompt, generate, concurrency
) -> None:
    load = Load(prompt, generate, concurrency=concurrency)
    point = steady(replica(place, order=order, tokens=tokens), load, concurrency)
    assert point.rate[0] <= point.saturation
    # Little's law, of all requests.
    each = point.ttft[0, 0] + (load.outputs.mean - 1) * point.tpot[0, 0]
    assert float(point.rate[0] * each) == pytest.approx(concurrency, rel=0.03)


LOADS = st.builds(
    lambda prompt, output: Load(prompt=prompt, generate=output, rate=1.0),
    st.sampled_from(PROMPTS),
    st.sampled_from(OUTPUTS),
)


# Left out: where most of the time is prefill, TPOT may fall where more prompts share a step.
LONG = LOADS.filter(lambda load: load.prompts.mean > 500 and load.outputs.mean > 100)


@pytest.mark.slow
@settings(max_examples=20)
@given(load=LONG, place=st.integers(0, len(DEPLOYMENTS) - 1), order=st.sampled_from(ORDERS))
def test_latency_rises_with_the_rate_and_throughput_never_falls(load, place, order) -> None:
    found = replica(place, order=order)
    most = steady(found, load, [1e-3]).saturation
    points = steady(found, load, np.linspace(0.05, 0.9, 10) * most)
    # The chain tells few states apart, TTFT is the mean of a sample of 256 requests, and a closed loop a run.
    # With all slots taken no more decode, and requests wait for them: TPOT may fall.
    free = points.running[1:] < 0.9 * points.slots
    assert (np.diff(points.tpot[0]) >= -0.02 * points.tpot[0, 1:])[free].all()
    assert (np.diff(points.ttft[0]) >= -0.02 * points.ttft[0, 1:]).all()
    closed = replace(load, rate=None, concurrency=1)
    curve = steady(found, closed, [1, 4, 16, 64, 256])
    assert (np.diff(curve.rate) >= -0.02 * curve.rate[1:]).all()
    assert (np.diff(curve.tpot[0]) >= -0.02 * curve.tpot[0, 1:]).all()


@settings(max_examples=10)
@given(
    place=st.integers(0, len(DEPLOYMENTS) - 1),
    order=st.sampled_from(ORDERS),
    tokens=st.sampled_from([2048, 8192, 16384]),
    prompt=st.sampled_from([100, 256, 1024, 4000, 8000]),
    generate=st.sampled_from([64, 200, 500, 800]),
)
def test_more_users_have_no_shorter_waits(place, order, tokens, prompt, generate) -> None:
    """While slots are free. Of equal outputs three of 40 settings have a p95 of TTFT that falls, by up to 13%."""
    load = Load(prompt, generate, concurrency=1).apart
    late = steady(replica(place, order=order, tokens=tokens), load, [1, 2, 4, 8, 16, 32, 64, 128, 256]).ttft[2]
    assert (np.diff(late) >= -0.02 * late[1:]).all()  # of one run each


@given(load=LOADS, place=st.integers(0, len(DEPLOYMENTS) - 1), share=st.floats(0.05, 0.9))
def test_little_holds(load, place, share) -> None:
    found = replica(place)
    rate = share * steady(found, load, [1e-3]).saturation
    point = steady(found, load, rate)
    decoding = rate * (load.outputs.mean - 1) * float(point.tpot[0, 0])
    inside = float(point.running[0] + point.waiting[0])
    assert inside == pytest.approx(rate * float(point.ttft[0, 0]) + decoding, rel=0.01)
    assert inside == pytest.approx(rate * float(point.e2e[0, 0]), rel=0.01)
    assert decoding <= 1.001 * point.running[0] <= 1.01 * inside


@pytest.mark.parametrize("place", sampled([0, 3], 1))
@pytest.mark.parametrize("order", sampled(ORDERS, 1))
@pytest.mark.parametrize(
    ("output", "arrivals"),
    [
        (256, {"concurrency": 64}),
        ("uniform:50:400", {"concurrency": 9}),
        ("exponential:mean=250", {"concurrency": 200}),
        (200, {"rate": 0.5}),
        ("uniform:50:400", {"rate": 0.7}),
        ("exponential:mean=250", {"rate": 0.3}),
    ],
)
def test_outcomes_are_those_of_the_simulation(place, order, output, arrivals) -> None:
    """What runs and waits, the KV cache, and E2E latency, whose p95 is not the sum of those of TTFT and TPOT."""
    found, load = replica(place, order=order, latency=0.02, request=0.002, lag=1), Load(1024, output, **arrivals)
    if load.rate:
        load = replace(load, rate=load.rate * steady(found, load, [1e-3]).saturation)
    quick = steady_outcomes(found, load, steady(found, load, load.rate or load.concurrency))[0]
    # A loop takes a hundred rounds to forget its beginning.
    run = outcome_of(found, load, simulate(found, load, max(8_000, 100 * (load.concurrency or 0))))
    for name in ("running", "kv_use"):
        assert getattr(quick, name) == pytest.approx(getattr(run, name), rel=0.07), name
    # A run begins with more: all of a closed loop wait.
    assert quick.waiting == pytest.approx(run.waiting, rel=0.1, abs=0.01 * (run.running + run.waiting))
    for name, most in (("mean", 0.05), ("p50", 0.05), ("p95", 0.1), ("p99", 0.13)):
        assert getattr(quick.e2e, name).mid == pytest.approx(getattr(run.e2e, name).mid, rel=most), name


def test_almost_no_load_is_a_request_alone() -> None:
    found = replica(0, order=MIXED)
    point = steady(found, Load(prompt=1024, generate=200, rate=1.0), 1e-4)
    alone = found.steps
    assert float(point.ttft[0, 0]) == pytest.approx(float(alone.seconds(0, 0, 1024)), rel=0.02)
    assert float(point.tpot[0, 0]) == pytest.approx(float(alone.seconds(1, 1124)), rel=0.01)


@pytest.mark.parametrize(("prompt", "output", "slots"), [(150_000, 200, 2), (40_000, 400, 4)])
@pytest.mark.parametrize("share", sampled([0.3, 0.6, 0.85], 1))
def test_few_sequences_that_fill_the_cache_agree_with_their_simulation(prompt, output, slots, share) -> None:
    found = replica(0, kv_tokens=slots * (prompt + output) + prompt // 2)
    load = Load(prompt=prompt, generate=output, rate=1.0)
    load = replace(load, rate=share * steady(found, load, [1e-6]).saturation)
    quick, run = steady(found, load, load.rate), simulate(found, load, 2000)
    tpot = (run.last - run.first).sum() / (run.output - 1).sum()
    assert float(quick.tpot[0, 0]) == pytest.approx(tpot, rel=0.15)
    assert float(quick.ttft[0, 0]) == pytest.approx((run.first - run.arrival).mean(), rel=0.25)


def test_few_sequences_are_in_order_and_keep_littles_law() -> None:
    found, load = replica(0, kv_tokens=200_000), Load(prompt="uniform:40000:60000", generate=300, rate=1.0)
    rate = np.linspace(0.05, 0.95, 12) * steady(found, load, [1e-6]).saturation
    points = steady(found, load, rate)
    assert points.slots < FEW
    assert (np.diff(points.tpot) >= 0).all()
    assert (np.diff(points.ttft) >= -0.02 * points.ttft[:, 1:]).all()
    assert points.running + points.waiting == pytest.approx(rate * (points.ttft[0] + 299 * points.tpot[0]))
    assert (points.running <= points.slots).all()


def test_beyond_saturation_queues_grow_without_bound() -> None:
    found, load = replica(0), Load(prompt=1024, generate=200, rate=1.0)
    most = steady(found, load, [1e-3]).saturation
    point = steady(found, load, [1.01 * most])
    assert np.isinf(point.ttft).all()
    assert point.rate[0] == pytest.approx(most)
    run = simulate(found, replace(load, offline=3000, rate=None))
    assert run.output.size / run.duration == pytest.approx(most, rel=0.15)


@pytest.mark.slow
def test_ten_thousand_points_are_one_call() -> None:
    found = replica(0)
    points = np.linspace(1, 900, 10_000)
    curve = steady(found, Load(prompt=1024, generate=200, concurrency=1), points)
    assert curve.ttft.shape == (4, 10_000)
    assert np.isfinite(curve.tpot).all()


@pytest.mark.parametrize("slots", [3000, 4096])
def test_varied_requests_of_more_slots_than_are_observed_fill_them(slots: int) -> None:
    """Those in progress at the beginning are more than those that are observed."""
    scenario = Scenario("llama-3.2-1b", "h200-sxm", max_num_seqs=slots, prompt=64, generate="uniform:200:400")
    some, many = serve(scenario, concurrency=[slots, 2 * slots]).outcomes
    assert many.requests_per_second == pytest.approx(some.requests_per_second, rel=0.02)
    assert many.running == pytest.approx(slots)
    assert many.waiting == pytest.approx(slots)


@pytest.mark.parametrize("tokens", [5, 900, 7.8])
def test_outputs_of_a_number_vary_about_it_where_requests_are_in_flight(tokens: float) -> None:
    load = Load(prompt=100, generate=tokens, concurrency=1)
    assert load.apart.outputs.varies
    assert load.apart.means == pytest.approx(load.means)
    assert (load.apart.longest, load.apart.shortest) == (load.longest, load.shortest)
    assert load.apart.apart == load.apart
    for other in (
        replace(load, concurrency=None, rate=3.0),
        replace(load, generate=f"exponential:mean={tokens}"),
        replace(load, generate=f"fixed:{tokens:.0f}"),
        replace(load, generate=1),
    ):
        assert other.apart == other


def test_a_load_has_the_outputs_of_the_question_whoever_says_them() -> None:
    asked, load = Scenario("llama-3.2-1b", "l4"), Load(concurrency=8)
    equal, varied = (load.of(asked.with_(generate=text)) for text in ("fixed:300", 300))
    assert not equal.outputs.varies
    assert varied.outputs.varies
    assert varied == replace(load, generate=300).of(asked) == varied.of(asked) == varied.of(asked.with_(generate=300))
    assert equal == replace(load, generate="fixed:300").of(asked)
    assert pickle.loads(pickle.dumps(varied)) == varied


def test_outputs_that_would_not_fit_do_not_vary() -> None:
    """The cache has room for what was asked, and not for a ninth more."""
    found, load = replica(0, kv_tokens=2000), Load(prompt=1000, generate=950, concurrency=2)
    varied, equal = (steady(found, each, 2) for each in (load.apart, load))
    assert float(varied.rate[0]) == float(equal.rate[0])
    with pytest.raises(RooflineError, match="does not fit"):
        simulate(found, load.apart, 100)


def test_a_full_cache_limits_what_runs() -> None:
    load = Load(prompt=1000, generate=1000, concurrency=100)
    point = steady(replica(0, kv_tokens=20_000, reserved=1.0), load, 100)
    assert point.slots == pytest.approx(10)
    assert point.queued[0] == pytest.approx(90)
    assert point.waiting[0] == pytest.approx(90, abs=1)
    free = steady(replica(0, kv_tokens=20_000), load, 100)
    assert free.slots > point.slots


@pytest.mark.parametrize(("burstiness", "share", "prompt"), [(0.2, 0.1, 256), (0.2, 0.6, 1024), (0.1, 0.6, 256)])
def test_bursts_wait_as_in_a_simulation(burstiness: float, share: float, prompt: int) -> None:
    found = replica(0)
    load = Load(prompt=prompt, generate=64, rate=1.0, burstiness=burstiness)
    rate = share * float(steady(found, load, 1e-3).saturation)
    quick, run = steady(found, load, rate), simulate(found, replace(load, rate=rate), 3000)
    waits = run.first - run.arrival
    assert float(quick.ttft[0, 0]) == pytest.approx(waits.mean(), rel=0.2)
    assert float(quick.ttft[2, 0]) == pytest.approx(np.quantile(waits, 0.95), rel=0.2)
    tpot = (run.last - run.first).sum() / (run.output - 1).sum()
    assert float(quick.tpot[0, 0]) == pytest.approx(tpot, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("prompt", [1024, "uniform:1000:4000"])
def test_ranks_that_take_requests_in_turn_queue_less_than_ranks_at_random(prompt) -> None:
    """Of small steps, which the prompts of a rank fill: the wait is that of the simulation, near saturation too."""
    name, hardware, degrees = RANKED[1]
    policy = Scheduler(tokens=512, sequences=256)
    found = Replica(steps(name, hardware, tuple(degrees.items())), policy, 4 * 10**6)
    load = Load(prompt=prompt, generate=200, rate=1.0)
    rate = 0.8 * saturation_of(found, load, times_of(found, load, slots_of(found, load)))
    load = replace(load, rate=rate)
    quick = steady(found, load, rate)
    _, ttft = simulated(found, load, float(quick.running[0]), requests=20_000)
    assert float(quick.ttft[2, 0]) == pytest.approx(ttft, rel=0.25)
