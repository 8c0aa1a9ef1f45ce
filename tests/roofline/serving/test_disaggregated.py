"""Disaggregated prefill and decode: closed forms, the steady state against the simulation, Little's law, monotony."""

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.core.errors import RooflineError, UnsupportedError
from roofline.graph.parallel import Parallelism
from roofline.serving import Load, Trace, serve
from roofline.serving.disaggregated import simulate_tandem, steady_tandem
from roofline.serving.pools import Pools, Tandem, parse_pools, seconds_of, tandem_of
from roofline.specs.scheduler import MIXED, ORDERS, Scheduler
from roofline.techniques import apply_techniques
from tests.cases import sampled

SCENARIO = Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), engine="vllm")
LOAD = Load(prompt="uniform:500:3500", generate="uniform:100:400", rate=1.0)
ONE = Load(prompt=2000, generate=65, concurrency=1, rounds=3)


@cache
def tandem(text: str = "", **policy) -> Tandem:
    return tandem_of(SCENARIO, LOAD, parse_pools(text), Scheduler(**{"tokens": 8192, "sequences": 256, **policy}))


def test_a_request_alone_is_prefill_transfer_and_decode() -> None:
    found, pools = simulate_tandem(tandem(), ONE), tandem()
    alone = float(pools.prefill.steps.seconds(0, 0, 2000)) + float(pools.transfer(2000))
    assert found.first - found.arrival == pytest.approx(alone, rel=1e-3)
    assert (found.last - found.first) / 64 == pytest.approx(float(pools.decode.steps.seconds(1, 2032)), rel=5e-3)
    quick = steady_tandem(pools, replace(ONE, rounds=None), 1)
    assert quick.ttft[0, 0] == pytest.approx(alone, rel=0.01)


def test_the_kv_cache_of_a_prompt_is_sent_once() -> None:
    """128 KiB a token of Llama 3.1 8B (32 layers, 8 KV heads of 128, K and V, 2 bytes) over 50 GB/s."""
    sent = analyze(apply_techniques(SCENARIO.changed(prompt=2000), ["disaggregation"])).prefill.link_bytes
    assert sent == pytest.approx(2000 * 131072)
    assert float(tandem().transfer(2000)) == pytest.approx(sent / 50e9, rel=0.5)
    assert float(tandem().transfer(2000)) > sent / 50e9
    assert float(tandem("link=node").transfer(2000)) < float(tandem().transfer(2000)) / 4
    assert float(tandem("link=NVLink 4").transfer(2000)) == float(tandem("link=node").transfer(2000))


@pytest.mark.slow
def test_a_random_router_finds_slots_taken_while_others_are_free() -> None:
    """As many requests as slots: in turn each finds one, at random a third of them waits for another's output."""
    pools = tandem("decodes=4,sequences=1")
    load = replace(LOAD, prompt=500, generate=200, rate=None, concurrency=4, rounds=50)
    waits = {}
    for policy in ("round-robin", "balanced", "power-of-two", "random"):
        run = simulate_tandem(pools, replace(load, policy=policy))
        waits[policy] = float(np.mean(run.first - run.arrival)) / float(np.mean(run.last - run.first))
    assert waits["round-robin"] == pytest.approx(waits["balanced"], abs=0.05)
    assert waits["balanced"] < waits["power-of-two"] < waits["random"]
    assert 0.3 < waits["random"] < 1
    assert (
        simulate_tandem(pools, load).first.tolist()
        == simulate_tandem(pools, replace(load, policy="round-robin")).first.tolist()
    )


@given(
    gaps=st.lists(st.floats(0.0, 0.4), min_size=12, max_size=24),
    long=st.lists(st.booleans(), min_size=24, max_size=24),
    prefills=st.integers(2, 4),
)
@settings(max_examples=20, deadline=None)
def test_a_balanced_router_sees_who_is_free_when_a_request_comes(gaps, long, prefills) -> None:
    """It waits for no other where fewer are on their way than replicas, however long the prompts of those are."""
    prompts = tuple(8000 if each else 200 for each in long[: len(gaps)])
    trace = Trace(tuple(np.cumsum(gaps).tolist()), prompts, (1,) * len(gaps), (0,) * len(gaps))
    pools = tandem(f"prefills={prefills},decodes=4,link=node")
    run = simulate_tandem(pools, Load(trace=trace, policy="balanced"))
    alone = {n: float(pools.prefill.steps.seconds(0, 0, n)) + float(pools.transfer(n)) for n in (200, 8000)}
    for index, at in enumerate(run.arrival):
        others = int(((run.arrival <= at) & (run.first > at)).sum()) - 1
        if others < prefills:
            assert run.first[index] - at == pytest.approx(alone[prompts[index]], rel=1e-2)


def test_routers_that_look_have_shorter_queues_of_prefill() -> None:
    """Open loop, prompts of unequal length: the shortest queue, the shorter one of two, at random (Mitzenmacher)."""
    pools = tandem("prefills=4,decodes=4")
    load = replace(LOAD, prompt="uniform:100:8000", rate=0.75 * steady_tandem(pools, LOAD, 1.0).saturation / 2)
    waits = {
        policy: float(np.mean(run.first - run.arrival))
        for policy in ("balanced", "power-of-two", "random")
        for run in [simulate_tandem(pools, replace(load, policy=policy), 1500)]
    }
    assert 1.05 * waits["balanced"] < waits["power-of-two"] < 0.8 * waits["random"]


def test_short_prompts_are_computed_where_they_decode() -> None:
    """Dynamo's max_local_prefill_length: no transfer for them, and steps of decode that wait; above all, no prefill."""
    load = replace(LOAD, rate=4.0)
    runs = {text: simulate_tandem(tandem(text), load, 600) for text in ("", "local=1", "local=1500", "local=5000")}
    assert runs[""].first.tolist() == runs["local=1"].first.tolist()
    assert runs[""].prefilling > runs["local=1500"].prefilling > 0
    assert runs["local=5000"].prefilling == 0
    tpot = {text: float(((run.last - run.first) / (run.output - 1)).mean()) for text, run in runs.items()}
    assert tpot[""] < tpot["local=1500"] < tpot["local=5000"]
    with pytest.raises(RooflineError, match="how many requests to simulate"):
        serve(SCENARIO.changed(prompt=1000, generate=100), rate=1, disaggregation="local=2000")


SEEING = Scenario("qwen2.5-vl-7b", "h100-sxm", prompt=200, generate=64, images=4)


def test_encoders_apart_take_the_images() -> None:
    """A request alone waits for its images, their embeddings and its prompt; the encoders limit the rate."""
    together = serve(SEEING, rate=1e-3).outcomes[0]
    encoded, sent = seconds_of(SEEING, Pools(encoders=1))
    bare = serve(SEEING, rate=[1e-3, 8.0], disaggregation="encoders=1").outcomes
    assert bare[0].ttft.mean.mid == pytest.approx(together.ttft.mean.mid + sent, rel=0.1)
    assert bare[0].devices == 2
    assert bare[1].tpot.mean.mid < serve(SEEING, rate=8.0).outcomes[0].tpot.mean.mid
    small = serve(SEEING, rate=1.0, disaggregation="encoders=1,encoder=l4,prefills=1,decodes=1")
    assert small.outcomes[0].saturated_at == pytest.approx(
        1 / seconds_of(SEEING, Pools(encoder=load_hardware("l4")))[0]
    )
    assert [hardware.name for hardware, _ in small.pools] == ["h100-sxm", "h100-sxm", "l4"]
    assert encoded > sent > 0


@pytest.mark.parametrize(
    ("pools", "layout"),
    [
        ("prefills=2,decodes=1", {}),
        ("prefills=4,decodes=2,prefill-dp=2", {}),
        ("", {"dp": 4}),
        ("", {"dp": 4, "ep": 4}),
    ],
)
def test_replicas_share_what_encoders_send(pools: str, layout: dict[str, int]) -> None:
    """One slow encoder limits all of them alike, whatever front ends they have, and a request alone waits for none."""
    scenario = Scenario("qwen3-vl-30b-a3b", "h100-sxm", engine="vllm", prompt=200, generate=2, images=4, **layout)
    found = serve(scenario, rate=1e-3, disaggregation=",".join(filter(None, (pools, "encoders=1,encoder=t4"))))
    encoded, _ = seconds_of(scenario, Pools(encoder=load_hardware("t4")))
    assert found.outcomes[0].saturated_at == pytest.approx(1 / encoded, rel=1e-3)
    assert encoded < found.outcomes[0].ttft.mean.mid < 1.5 * encoded


@pytest.mark.parametrize(
    ("scenario", "text", "message"),
    [
        (SEEING.with_(images=0), "encoders=1", "how many a prompt has"),
        (SEEING.with_(engine="llama.cpp"), "encoders=1", "no encoders apart"),
        (SEEING, "encoder=l4", "say how many"),
    ],
)
def test_encoders_that_are_not_there_are_refused(scenario, text, message) -> None:
    with pytest.raises(RooflineError, match=message):
        serve(scenario, rate=1, disaggregation=text)


@pytest.mark.parametrize("text", sampled(["", "prefills=2,decodes=1,tp=2", "decodes=2"], 1))
@pytest.mark.parametrize("share", sampled([0.2, 0.5, 0.8], 2))
def test_a_steady_rate_agrees_with_its_simulation(text, share) -> None:
    pools = tandem(text)
    rate = share * steady_tandem(pools, LOAD, 1.0).saturation
    load = replace(LOAD, rate=rate)
    quick, run = steady_tandem(pools, load, rate), simulate_tandem(pools, load, 3000)
    kept = run.arrival > run.duration / 5
    tpot = (run.last - run.first)[kept].sum() / (run.output[kept] - 1).sum()
    assert float(quick.tpot[0, 0]) == pytest.approx(tpot, rel=0.03)
    assert float(quick.ttft[0, 0]) == pytest.approx((run.first - run.arrival)[kept].mean(), rel=0.1)


@pytest.mark.parametrize("concurrency", sampled([2, 16, 64, 160], 2))
def test_a_closed_loop_agrees_with_its_simulation(concurrency) -> None:
    load = replace(LOAD, rate=None, concurrency=concurrency)
    quick, run = steady_tandem(tandem(), load, concurrency), simulate_tandem(tandem(), load, 20 * concurrency + 1000)
    kept = (run.arrival > run.duration / 4) & (run.arrival < 0.9 * run.duration)
    tpot = (run.last - run.first)[kept].sum() / (run.output[kept] - 1).sum()
    assert float(quick.tpot[0, 0]) == pytest.approx(tpot, rel=0.05)
    assert float(quick.rate[0]) == pytest.approx(run.output.size / run.duration, rel=0.05)


@pytest.mark.slow
@given(
    load=st.sampled_from(["prompt", "generate"]),
    pools=st.sampled_from(["", "prefills=3", "decodes=2,link=node", "prefills=2,decodes=3,tp=2"]),
    arrivals=st.sampled_from([{"concurrency": 1}, {"concurrency": 40}, {"rate": 3.0}, {"rate": 60.0}, {"offline": 60}]),
    order=st.sampled_from(ORDERS),
    reserved=st.sampled_from([0.0, 0.4, 1.0]),
    room=st.sampled_from([12_000, 400_000]),
)
def test_every_request_is_served_once_and_little_holds(load, pools, arrivals, order, reserved, room) -> None:
    asked = Load(**{"prompt": "uniform:10:3000", "generate": "uniform:1:400", load: 300, **arrivals})
    found = tandem(pools, order=order, reserved=reserved)
    found = replace(found, decode=replace(found.decode, kv_tokens=room))
    run = simulate_tandem(found, asked, 60, seed=3)
    assert run.output.size == 60
    assert (run.arrival < run.first).all()
    assert (run.first <= run.last).all()
    assert run.cached <= room
    # Little, of the requests that decode: from their first token on, unless they are preempted.
    if not run.preemptions:
        assert run.running >= (run.last - run.first).sum() / run.duration * 0.98 - 0.05
    assert run.running + run.waiting == pytest.approx((run.last - run.arrival).sum() / run.duration)


@pytest.mark.parametrize("text", sampled(["", "prefills=2", "decodes=2"], 1))
@pytest.mark.parametrize("prompt", sampled([300, "uniform:500:3500", 8000], 1))
def test_little_holds_in_the_steady_state(text, prompt) -> None:
    users = np.array([1, 20, 400, 3000])
    found = steady_tandem(tandem(text), replace(LOAD, prompt=prompt, rate=None, concurrency=1), users)
    each = found.ttft[0] + 249 * found.tpot[0]
    assert found.rate * each == pytest.approx(users, rel=0.01)
    assert found.running + found.waiting == pytest.approx(users, rel=0.01)
    assert found.e2e[0] == pytest.approx(each)


@pytest.mark.parametrize("text", sampled(["", "prefills=3", "decodes=3,tp=2"], 1))
def test_latency_rises_with_the_load_and_the_slower_stage_limits_it(text) -> None:
    pools = tandem(text)
    most = steady_tandem(pools, LOAD, 1.0).saturation
    points = steady_tandem(pools, LOAD, np.linspace(0.05, 0.95, 12) * most)
    assert (np.diff(points.tpot[0]) >= 0).all()
    assert (np.diff(points.ttft[0]) >= -0.01 * points.ttft[0, 1:]).all()
    curve = steady_tandem(pools, replace(LOAD, rate=None, concurrency=1), [1, 4, 16, 64, 256, 1024])
    assert (np.diff(curve.rate) >= 0).all()
    assert (curve.rate <= most).all()
    beyond = steady_tandem(pools, LOAD, 1.1 * most)
    assert np.isinf(beyond.ttft).all()
    run = simulate_tandem(pools, replace(LOAD, rate=None, offline=4000))
    assert run.output.size / run.duration == pytest.approx(most, rel=0.15)


def test_replicas_add_what_they_serve() -> None:
    most = {
        text: steady_tandem(tandem(text), LOAD, 1.0).saturation for text in ("", "prefills=2", "prefills=2,decodes=2")
    }
    assert most[""] <= most["prefills=2"] <= most["prefills=2,decodes=2"]
    assert most["prefills=2,decodes=2"] == pytest.approx(2 * most[""], rel=1e-6)


def test_a_steady_state_is_that_of_its_own_load_whatever_was_asked_before() -> None:
    """Outputs that vary about a number are written as that number is."""
    equal = Load(prompt=1000, generate=500, concurrency=64)
    one, other = tandem(), tandem()
    varied, before = (steady_tandem(one, load, [64]).e2e[2] for load in (equal.apart, equal))
    assert steady_tandem(other, equal, [64]).e2e[2] == before
    assert steady_tandem(other, equal.apart, [64]).e2e[2] == varied
    assert varied > 1.02 * before


def test_outputs_that_would_not_fit_where_they_decode_do_not_vary() -> None:
    both = tandem()
    full = replace(both, decode=replace(both.decode, kv_tokens=2000))
    load = Load(prompt=1000, generate=950, concurrency=2)
    assert steady_tandem(full, load.apart, [2]).e2e[2] == steady_tandem(full, load, [2]).e2e[2]


def test_decode_steps_are_not_delayed_by_prompts() -> None:
    """DistServe (Zhong et al. 2024): no interference."""
    load = Load(prompt=3000, generate=200, rate=8)
    both = serve(SCENARIO, load).outcomes[0]
    apart = serve(SCENARIO, load, disaggregation=Pools()).outcomes[0]
    assert apart.devices == 2 * both.devices
    assert apart.tpot.mean.mid < both.tpot.mean.mid
    assert apart.tpot.p95.mid < both.tpot.p95.mid


def test_a_scenario_with_decode_hardware_is_served_apart() -> None:
    scenario = apply_techniques(SCENARIO, ["disaggregation:decode=a100-sxm-80gb"])
    found = serve(scenario, Load(prompt=1000, generate=100, concurrency=8))
    assert [(hardware.name, devices) for hardware, devices in found.pools] == [("h100-sxm", 1), ("a100-sxm-80gb", 1)]
    rents = [hardware.price.rent for hardware, _ in found.pools]
    hourly = found.cost(found.outcomes[0]) * found.outcomes[0].output_tokens_per_second * 3600 / 1e6
    assert hourly == pytest.approx(sum(rents))


@pytest.mark.parametrize("decodes", sampled([2, 7, 16], 1))
def test_workers_of_several_devices_that_share_experts(decodes: int) -> None:
    scenario = Scenario(load_model("qwen3-30b-a3b"), load_hardware("h100-sxm"))
    load, pools = Load(prompt=1000, generate=100, rate=4), parse_pools(f"decodes={decodes},dp=8,ep=8")
    found = tandem_of(scenario, load, pools)
    assert (found.decodes, found.decode.devices, found.devices) == (decodes, 8, 1 + 8 * decodes)
    quick = serve(scenario, load, disaggregation=pools).outcomes[0]
    slow = serve(scenario, load, disaggregation=pools, simulate=300).outcomes[0]
    assert quick.devices == slow.devices == 1 + 8 * decodes
    assert quick.tpot.mean.mid == pytest.approx(slow.tpot.mean.mid, rel=0.1)


def test_requests_wait_for_a_slot_of_decode() -> None:
    """Two sequences at a time: what is left of C = L (TTFT + G T) waits."""
    load = Load(prompt=1000, generate=100, concurrency=8)
    few, many = (serve(SCENARIO, load, disaggregation=text).outcomes[0] for text in ("sequences=2", "decodes=1"))
    assert few.tpot.mean.mid < many.tpot.mean.mid
    assert few.ttft.mean.mid > many.ttft.mean.mid + 2 * (few.e2e.mean.mid - few.ttft.mean.mid)


def test_a_trace_keeps_its_times() -> None:
    load = Load(trace=Trace((0.0, 5.0, 5.0), (100, 200, 300), (2, 3, 1), (0, 128, 0)))
    found = simulate_tandem(tandem_of(SCENARIO, load, Pools()), load)
    assert found.arrival.tolist() == [0.0, 5.0, 5.0]
    assert found.prompt_tokens == 100 + (200 - 128) + 300
    assert found.last[2] == pytest.approx(found.first[2])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=1", "unknown key of disaggregation 'x'"),
        ("prefills", "takes a ratio"),
        ("prefills=0", "whole number from 1 to"),
        ("decodes=1,decodes=2", "given twice"),
        ("decode=nothing", "unknown hardware"),
        ("tp=2,ep=3", "3 expert-parallel devices are not divisible by 2"),
    ],
)
def test_what_is_no_pool_is_told(text, message) -> None:
    with pytest.raises(RooflineError, match=message):
        parse_pools(text)


def test_a_link_that_a_device_lacks_is_told() -> None:
    with pytest.raises(RooflineError, match="unknown link of h100-sxm 'token ring'; known: host, infiniband ndr"):
        tandem_of(SCENARIO, LOAD, Pools(link="token ring"))
    with pytest.raises(UnsupportedError, match="has no interconnect across nodes"):
        tandem_of(SCENARIO.changed(hardware=load_hardware("rtx-4090")), LOAD, Pools())


def test_policies_of_a_pool() -> None:
    policy = Scheduler(order=MIXED, tokens=4096, latency=0.02, request=0.001, stream=10)
    found = tandem_of(SCENARIO, LOAD, Pools(), policy)
    assert (found.prefill.scheduler.latency, found.decode.scheduler.latency) == (0.02, 0.0)
    assert (found.prefill.scheduler.stream, found.decode.scheduler.stream) == (1, 10)
    assert found.decode.received


@pytest.mark.slow
def test_few_requests_of_a_replica_of_prefill_with_several_ranks_wait_no_negative_time() -> None:
    scenario = Scenario("deepseek-v2-lite", "h100-sxm", ep=4, engine="sglang")
    load = Load(prompt=4096, generate=256, concurrency=64)
    found = tandem_of(scenario, load, parse_pools("prefills=6,decodes=1,ep=8"))
    alone = float(found.prefill.steps.seconds(0, 0, 4096))
    steady = steady_tandem(found, load, [8, 64])
    assert (steady.ttft > 0.9 * alone).all()
    assert (steady.running <= [8, 64]).all()


@pytest.mark.parametrize(
    ("text", "devices", "decode"),
    [
        ("decodes=7,dp=8,ep=8", 8 + 7 * 8, {"data": 8, "expert": 8}),
        ("decodes=7,tp=8,ep=8,dp-attention", 8 + 7 * 8, {"data": 8, "expert": 8}),
        ("decode_num_workers=7,decode_tp=8,decode_dp_attention=true", 8 + 7 * 8, {"data": 8, "expert": 8}),
        ("decodes=2,tp=8,dp=4,dp-attention", 8 + 2 * 8, {"tensor": 2, "data": 4, "expert": 8}),
        ("prefills=2,prefill-tp=4,prefill-ep=4,decodes=1", 2 * 4 + 4, {"tensor": 4, "expert": 4}),
    ],
)
def test_layouts_of_both_pools_are_workers_of_so_many_devices(text: str, devices: int, decode: dict[str, int]) -> None:
    scenario = Scenario("deepseek-v2-lite", "h100-sxm", tp=8)
    found = tandem_of(scenario, Load(prompt=1000, generate=100, rate=1), parse_pools(text))
    assert found.devices == devices
    assert found.decode.scenario.settings.parallel == Parallelism(**decode)


@pytest.mark.parametrize(
    "text", ["tp=8,ep=4,dp-attention", "tp=8,dp=3,dp-attention", "dp-attention=perhaps", "decode-tp=0"]
)
def test_layouts_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(RooflineError, match="disaggregation: "):
        parse_pools(text)


def test_decode_looks_for_a_request_and_for_its_cache_at_every_poll() -> None:
    """Beside others a request waits for a whole interval of steps, and for half of one on average."""
    load = replace(LOAD, rate=None, concurrency=64)
    often, seldom = (simulate_tandem(tandem(poll=poll), load, 1500) for poll in (1, 10))
    more = np.mean(seldom.first - seldom.arrival) - np.mean(often.first - often.arrival)
    step = (seldom.last - seldom.first).sum() / (seldom.output - 1).sum()
    assert more == pytest.approx(13.5 * step, rel=0.15)


def test_no_rank_starves_where_requests_wait_for_slots() -> None:
    """Each rank has slots of its own, and the first of all that wait is the next: TTFT is that of Little, for all."""
    scenario = Scenario("qwen3-30b-a3b", "h100-sxm", engine="vllm")
    load = Load(prompt=500, generate="uniform:100:200", concurrency=48)
    pools = tandem_of(scenario, load, parse_pools("prefills=2,decodes=1,dp=4,ep=4,sequences=8"))
    run = simulate_tandem(pools, load, 1000)
    ttft = (run.first - run.arrival)[200:-48]
    assert ttft.max() < 4 * ttft.mean()
    assert ttft.mean() == pytest.approx(16 / 48 * (run.last - run.arrival)[200:-48].mean(), rel=0.3)


@pytest.mark.parametrize("text", ["2:1", "2P1D", "2p:1d"])
def test_a_ratio_is_replicas_of_prefill_and_decode(text: str) -> None:
    assert parse_pools(text) == parse_pools("prefills=2,decodes=1")
    assert parse_pools(f"{text},tp=8") == parse_pools("prefills=2,decodes=1,tp=8")


def test_counted_hardware_with_a_layout_is_that_of_all_pools() -> None:
    """16 devices with TP 8 and 1:1 are a replica of prefill and one of decode."""
    load = {"rate": 2.0, "disaggregation": "1:1"}
    counted = serve(Scenario("llama-3.3-70b", "16xh200-sxm", tp=8, prompt=512, generate=64), **load)
    named = serve(Scenario("llama-3.3-70b", "h200-sxm", tp=8, prompt=512, generate=64), **load)
    assert counted.outcomes == named.outcomes
    assert sum(devices for _, devices in counted.pools) == 16
    with pytest.raises(RooflineError, match="have 24, not 16"):
        serve(Scenario("llama-3.3-70b", "16xh200-sxm", tp=8), rate=2.0, disaggregation="2:1")


def test_pools_of_counted_hardware_keep_the_layout_that_they_are_given() -> None:
    pools = parse_pools("1:1,prefill-tp=8,prefill-dp-attention=true")
    for hardware in ("16xh200-sxm", "h200-sxm"):
        scenario = Scenario("qwen3-30b-a3b", hardware, tp=8)
        found = tandem_of(scenario, Load(prompt=512.0, generate=64.0, rate=1.0).of(scenario), pools)
        assert found.prefill.scenario.settings.parallel == pools.prefill_parallel
        assert (found.prefill.devices, found.decode.devices) == (8, 8)
