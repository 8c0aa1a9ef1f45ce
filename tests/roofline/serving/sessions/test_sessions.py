"""Sessions on a replica: Little's law, today's answers as special cases, and the theory against the simulation."""

from __future__ import annotations

import math
import random
from functools import cache

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Scenario
from roofline.core.errors import RooflineError
from roofline.scenario.lengths import parse_lengths
from roofline.serving.load import Load, Requests
from roofline.serving.outcome import Spread
from roofline.serving.policies import simulate
from roofline.serving.pools import parse_pools, tandem_of
from roofline.serving.replica import Replica, replica_of
from roofline.serving.sequence import Sequence
from roofline.serving.sessions.deployed import Deployed, deployed_of, workload_of
from roofline.serving.sessions.drawn import WINDOW, Draw
from roofline.serving.sessions.profiles import PROFILES, profile
from roofline.serving.sessions.replicas import Ran, hit_rates, simulate_sessions
from roofline.serving.sessions.routing import PREFIX, REQUESTS, SESSION
from roofline.serving.sessions.served import SessionOutcome, beside_prompts, serve_sessions, with_states
from roofline.serving.sessions.store import Store, store_of
from roofline.serving.sessions.theory import Theory
from roofline.serving.sessions.tiers import Tier, parse_tiers
from roofline.serving.sessions.transient import theory_of
from roofline.serving.sessions.workload import Replayed, Workload, parse_gaps, plain
from roofline.serving.simulation import Simulation
from roofline.whatif.solve.sessions import max_sessions
from tests.cases import sampled

SCENARIO = Scenario("llama-3.1-8b", "h100-sxm")


@cache
def replica(engine: str = "vllm") -> Replica:
    scenario = SCENARIO.with_(engine=engine)
    return replica_of(scenario, Load(prompt=40_000.0, generate=2000.0, concurrency=1).of(scenario))


def workload(**changes: object) -> Workload:
    given: dict[str, object] = {
        "turns": parse_lengths("uniform:4:12"),
        "first": parse_lengths("exponential:mean=2000"),
        "new": parse_lengths("exponential:mean=400"),
        "output": parse_lengths("exponential:mean=60"),
        "gap": parse_gaps("exponential:mean=5s"),
    }
    return Workload(**(given | changes))  # type: ignore[arg-type]


def deployed(work: Workload, store: Store | None = None, routing: str = SESSION) -> Deployed:
    return Deployed(replica(), store_of(replica()) if store is None else store, work, routing=routing)


def run(store: Store, work: Workload, sessions: int = 20, turns: int = 900, **options: object) -> Ran:
    return simulate_sessions(deployed(work, store), turns, sessions, seed=1, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("pool", sampled([40_000, 10**6], 1))
@pytest.mark.parametrize("tiers", ["", "dram=8GB", "dram=4GB:write=back,ssd=inf:bandwidth=20GB/s:write=back"])
def test_littles_law_and_the_sum_of_what_was_found(pool: int, tiers: str) -> None:
    ran = run(store_of(replica(), parse_tiers(tiers, SCENARIO), pool), workload(shared=500))
    sessions = float((ran.last - ran.arrival + ran.gaps).sum()) / ran.duration
    assert sessions == pytest.approx(20, rel=0.1)
    in_engine = float((ran.last - ran.arrival).sum()) / ran.duration
    # Beside them are front end and loads.
    assert ran.running + ran.waiting <= in_engine * 1.1
    assert (ran.hits.sum(axis=1) <= np.minimum(np.maximum(ran.reusable, 500), ran.prompt - 1)).all()
    assert ran.used[0] <= pool


def test_hits_grow_with_the_pool_and_with_tiers() -> None:
    work = workload()
    rates = [sum(hit_rates(run(store_of(replica(), (), pool), work))) for pool in (30_000, 60_000, 120_000, 10**6)]
    assert rates == sorted(rates)
    endless = run(store_of(replica(), parse_tiers("dram=inf", SCENARIO), 30_000), work)
    assert sum(hit_rates(endless)) == pytest.approx(rates[-1], abs=0.02)


def test_requests_without_turns_are_a_closed_loop() -> None:
    prompt, output = parse_lengths("uniform:200:800"), parse_lengths("exponential:mean=80")
    served = simulate(replica(), Load(prompt=prompt, generate=output, concurrency=16), 1500)
    ran = run(store_of(replica()), plain(prompt, output), 16, 1500)
    assert not ran.hits.any()
    rate = served.first.size / served.duration
    assert ran.prompt.size / ran.duration == pytest.approx(rate, rel=0.03)
    assert np.mean(ran.first - ran.arrival) == pytest.approx(np.mean(served.first - served.arrival), rel=0.1)


def test_a_cache_without_end_finds_what_is_there() -> None:
    ran = run(store_of(replica(), (), 1e12), workload(shared=640), sessions=4, turns=300)
    block = store_of(replica()).block
    known = np.minimum(ran.reusable, ran.prompt - 1) // block * block
    assert ran.hits[:, 0] == pytest.approx(known, abs=block)


def test_prefixes_are_found_where_requests_are_routed_to() -> None:
    scenario = SCENARIO.with_(model="qwen3-30b-a3b", tp=1, dp=4, ep=4, engine="vllm")
    found = replica_of(scenario, Load(prompt=20_000.0, generate=500.0, concurrency=1).of(scenario))
    near, far = (
        simulate_sessions(Deployed(found, store_of(found), workload(), routing=routing), 400, 12, seed=1)
        for routing in (PREFIX, REQUESTS)
    )
    assert sum(hit_rates(near)) > sum(hit_rates(far)) + 0.1


@pytest.mark.slow
@pytest.mark.parametrize("routing", [PREFIX, REQUESTS])
def test_replicas_behind_a_router_conserve_sessions(routing: str) -> None:
    """Little's law over all copies; a router that knows prefixes finds those that each copy computed once."""
    work, store = workload(), store_of(replica(), (), 10**6)
    ran = simulate_sessions(deployed(work, store, routing), 900, 20, seed=1, copies=3)
    assert 3 * float((ran.last - ran.arrival + ran.gaps).sum()) / ran.duration == pytest.approx(20, rel=0.1)
    assert sum(hit_rates(ran)) > 0.75 if routing == PREFIX else sum(hit_rates(ran)) < 0.6


@pytest.mark.parametrize("routing", [PREFIX, REQUESTS])
def test_gaps_that_are_cut_are_cut_for_all_replicas(routing: str) -> None:
    """A session has one turn at a time, also where the time without requests is cut short."""
    work = workload(idle=1.0, gap=parse_gaps("exponential:mean=60s"))
    ran = simulate_sessions(deployed(work, routing=routing), 200, 2, seed=1, copies=2)
    for owner in set(ran.owner):
        arrival, last = (np.sort(times[ran.owner == owner]) for times in (ran.arrival, ran.last))
        assert (arrival[1:] >= last[:-1]).all()


@pytest.mark.parametrize("engine", sampled(["vllm", "sglang"], 1))
def test_hybrid_models_find_what_snapshots_leave(engine: str) -> None:
    """A prefix ends at a block as large as a state in vLLM; states alone fill SGLang's pool of them."""
    scenario = Scenario("qwen3.5-27b", "h100-sxm", engine=engine)
    found = replica_of(scenario, Load(prompt=20_000.0, generate=500.0, concurrency=1).of(scenario))
    store = store_of(found)
    if engine == "vllm":
        assert (store.block, store.states) == (784, None)
        assert store.snapshot == 3 * 784  # 48 of 64 layers, in pages that are as large as 784 tokens of the others
        assert store_of(found, (), found.logged).tokens == pytest.approx(store.tokens)
    else:
        assert store.states is not None
        assert 0 <= 0.9 * store.tokens - store.states * store.snapshot < store.snapshot  # whole states
    work = workload(first=parse_lengths(6000), new=parse_lengths(900))
    few, many = (simulate_sessions(Deployed(found, store, work), 300, sessions, seed=1) for sessions in (3, 60))
    for ran in (few, many):
        assert not (ran.hits % store.block).any()
        assert (ran.hits.sum(axis=1) <= np.minimum(ran.reusable, ran.prompt - 1)).all()
    assert sum(hit_rates(few)) > 0.75
    assert sum(hit_rates(many)) < 0.3
    theory = Theory(Deployed(found, store, work)).warm(3)
    assert sum(theory.hits) == pytest.approx(sum(hit_rates(few)), abs=0.06)


def test_a_hashed_session_stays_on_its_rank() -> None:
    """Its turns find what it left; ranks are uneven, which the cache of a rank that is even has not."""
    scenario = SCENARIO.with_(model="qwen3-30b-a3b", tp=1, dp=4, ep=4, engine="vllm")
    found = replica_of(scenario, Load(prompt=20_000.0, generate=500.0, concurrency=1).of(scenario))
    ran = simulate_sessions(Deployed(found, store_of(found, (), 1e9), workload()), 400, 12, seed=1)
    block = store_of(found).block
    known = np.minimum(ran.reusable, ran.prompt - 1) // block * block
    assert ran.hits[:, 0] == pytest.approx(known, abs=block)


@pytest.mark.slow
def test_theory_has_ranks_that_wait_for_the_one_with_prompts() -> None:
    """Without the others' prompts a token would take two thirds of its time, and a prompt half."""
    scenario = SCENARIO.with_(model="qwen3-30b-a3b", tp=1, dp=4, enable_expert_parallel=True, engine="vllm")
    found = replica_of(scenario, Load(prompt=20_000.0, generate=500.0, concurrency=1).of(scenario))
    parts = Deployed(found, store_of(found, (), 1e9), profile("swe-agent"))
    ran, theory = simulate_sessions(parts, 1200, 48, seed=1), Theory(parts).warm(48)
    assert theory.turns_per_second == pytest.approx(ran.prompt.size / ran.duration, rel=0.1)
    assert theory.tpot == pytest.approx((ran.last - ran.first).sum() / (ran.output - 1).sum(), rel=0.15)
    assert theory.ttft == pytest.approx((ran.first - ran.arrival).mean(), rel=0.25)


@pytest.mark.slow
def test_theory_of_ranks_has_what_they_do_beyond_their_pools() -> None:
    """Hits go, and each step waits for some rank's prompt, beside which a part of the others have one."""
    scenario = Scenario("qwen3-30b-a3b", "4xh100", dp=4, enable_expert_parallel=True, engine="vllm")
    parts = deployed_of(scenario, profile("swe-agent"), {})
    ran, theory = simulate_sessions(parts, 1200, 128, seed=1), Theory(parts).warm(128)
    assert sum(theory.hits) == pytest.approx(sum(hit_rates(ran)), abs=0.1)
    assert theory.turns_per_second == pytest.approx(ran.prompt.size / ran.duration, rel=0.15)
    assert theory.tpot == pytest.approx((ran.last - ran.first).sum() / (ran.output - 1).sum(), rel=0.15)
    assert theory.ttft == pytest.approx((ran.first - ran.arrival).mean(), rel=0.25)


@pytest.mark.slow
@pytest.mark.parametrize("captured", [0, 512])
def test_theory_has_the_steps_of_many_short_prompts(captured: int) -> None:
    """Launched by the host whatever their number, or replayed: by a mean step TPOT was 7% longer, TTFT 28% shorter."""
    scenario = Scenario("qwen3-30b-a3b", "4xh100", dp=4, enable_expert_parallel=True, engine="vllm")
    short = {"first": "200", "new": "100", "output": "150"}
    work = workload(
        **{name: parse_lengths(f"exponential:mean={mean}") for name, mean in short.items()},
        gap=parse_gaps("exponential:mean=2s"),
    )
    parts = deployed_of(scenario, work, {})
    engine = parts.replica.steps.engine
    engine = replace(engine, scheduler=replace(engine.scheduler, captured=captured))
    parts = replace(parts, replica=replace(parts.replica, steps=parts.replica.steps.of(engine)))
    ran, theory = simulate_sessions(parts, 5000, 200, seed=1), Theory(parts).warm(200)
    assert theory.turns_per_second == pytest.approx(ran.prompt.size / ran.duration, rel=0.03)
    assert theory.tpot == pytest.approx((ran.last - ran.first).sum() / (ran.output - 1).sum(), rel=0.05)
    assert theory.ttft == pytest.approx((ran.first - ran.arrival).mean(), rel=0.1)


def test_a_step_waits_for_the_rank_with_the_longest_prefix() -> None:
    """As long as if all prompts had it, not as prompts of all ranks on average."""
    scenario = SCENARIO.with_(model="qwen3-30b-a3b", tp=1, dp=4, enable_expert_parallel=True, engine="vllm")
    found = replica_of(scenario, Load(prompt=40_000.0, generate=500.0, concurrency=1).of(scenario))
    none = np.zeros(0, np.int64)
    run = Simulation(found, Requests(np.zeros(0), none, none, none), None)

    def seconds(*prefixes: int) -> float:
        pieces = [(Sequence(rank, 0.0, 1000, 1, prefix), 1000) for rank, prefix in enumerate(prefixes)]
        for rank, (sequence, _) in enumerate(pieces):
            sequence.rank = rank
        return run._seconds(pieces, 0)

    assert seconds(0, 30_000) == seconds(30_000, 30_000) > 1.2 * seconds(0, 0)


@pytest.mark.slow
def test_prefill_and_decode_apart_conserve_sessions() -> None:
    """Little's law over both pools, and decode that is never reached by prompts: TPOT is that of its steps."""
    load = Load(prompt=20_000.0, generate=500.0, concurrency=1).of(SCENARIO)
    tandem = tandem_of(SCENARIO, load, parse_pools("prefills=2,decodes=1"))
    parts = Deployed(tandem.prefill, store_of(tandem.prefill), workload(), tandem, REQUESTS)
    ran = simulate_sessions(parts, 900, 20, seed=1)
    assert float((ran.last - ran.arrival + ran.gaps).sum()) / ran.duration == pytest.approx(20, rel=0.1)
    several = ran.output > 1
    tpot = ((ran.last - ran.first) / (ran.output - 1).clip(1))[several]
    alone = float(tandem.decode.steps.seconds(1.0, 2000.0))
    assert tpot.min() >= 0.9 * alone
    assert np.median(tpot) < 2 * alone
    theory = Theory(parts).warm(20)
    assert theory.turns_per_second == pytest.approx(ran.prompt.size / ran.duration, rel=0.15)


def test_idle_time_of_all_ends_early() -> None:
    work = workload(gap=parse_gaps("60s"), turns=parse_lengths(10))
    rates = [
        run(store_of(replica()), each, sessions=1, turns=120)
        for each in (work, workload(gap=work.gap, turns=work.turns, idle=10.0))
    ]
    slow, fast = (ran.duration / ran.prompt.size for ran in rates)
    assert slow - fast == pytest.approx(50, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("joined", [False, True])
def test_a_turn_waits_for_the_sub_agents_before_it(joined: bool) -> None:
    """One session then has one request at a time; the theory has its cycle."""
    shape = {"branches": 0.3, "branch_turns": parse_lengths(4), "branch_first": parse_lengths(500)}
    work = workload(turns=parse_lengths(20), joined=joined, **shape)
    one = run(store_of(replica()), work, sessions=1, turns=400)
    order = np.argsort(one.arrival)
    assert (one.arrival[order][1:] >= one.last[order][:-1]).all() == joined
    ran = run(store_of(replica()), work, sessions=8, turns=3000)
    theory = Theory(deployed(work)).warm(8)
    assert theory.turns_per_second == pytest.approx(ran.prompt.size / ran.duration, rel=0.15)


def test_theory_of_a_benchmark_with_a_rehearsal_has_its_first_traces() -> None:
    """As long prompts as they have overflow the pool or not; without them it is of sessions without end."""
    shape = {"turns": parse_lengths(400), "duration": 300.0, "begun": (0.25, 0.75), "kept": False, "rehearsal": 20.0}
    store = store_of(replica(), pool=200_000)
    short, long = (
        theory_of(deployed(workload(**shape, replayed=(Replayed(10, prompt=prompt),)), store)).warm(10)
        for prompt in (8_000, 60_000)
    )
    assert sum(short.hits) > 0.8 > 0.3 > sum(long.hits)
    assert isinstance(theory_of(deployed(workload(**shape), store)), Theory)


@pytest.mark.parametrize("agents", [1, 3])
def test_a_turn_waits_for_all_sub_agents_beside_each_other(agents: int) -> None:
    """As many turns of sub-agents as groups, agents and their turns say, of which so many run at once."""
    shape = {"branches": 0.3, "branch_turns": parse_lengths(4), "branch_first": parse_lengths(500)}
    work = workload(turns=parse_lengths(20), joined=True, branch_agents=agents, gap=parse_gaps(0), **shape)
    one = run(store_of(replica()), work, sessions=1, turns=800)
    at_once = [((one.arrival <= at) & (one.last > at)).sum() for at in one.arrival]
    assert max(at_once) == agents
    assert one.prompt.size / np.unique(one.arrival).size > 1 or agents == 1
    ran = run(store_of(replica()), work, sessions=8, turns=3000)
    theory = Theory(deployed(work)).warm(8)
    assert theory.turns_per_second == pytest.approx(ran.prompt.size / ran.duration, rel=0.1)


def test_sub_agents_of_a_session_find_what_they_share() -> None:
    """In an endless cache all but the first of a session find it, in theory as simulated."""
    shape = {"branches": 0.3, "branch_turns": parse_lengths(1), "branch_first": parse_lengths(3000)}
    hits = []
    for common in (0, 2000):
        work = workload(turns=parse_lengths(40), joined=True, branch_agents=3, branch_shared=common, **shape)
        ran = run(store_of(replica(), (), 1e9), work, turns=8000)
        hits.append((float(ran.hits.sum() / ran.prompt.sum()), sum(Theory(deployed(work)).warm(8).hits)))
        first = ran.prompt == 3000
        assert np.median(ran.hits[first, 0]) == common // 16 * 16
    (before, said), (since, told) = hits
    assert since > before + 0.05
    assert told - said == pytest.approx(since - before, abs=0.02)


@pytest.mark.parametrize("common", [16, 2500, 10**6])
def test_sub_agents_whose_prompts_end_in_what_they_share_find_it(common: int) -> None:
    """An endless cache has all that is known, also of prompts that are no longer than what sub-agents share."""
    firsts = parse_lengths("uniform:1000:4000")
    shape = {"branches": 0.3, "branch_turns": parse_lengths(4), "branch_first": firsts}
    work = workload(turns=parse_lengths(40), joined=True, branch_agents=3, branch_shared=common, **shape)
    ran = run(store_of(replica(), (), 1e9), work, turns=2000)
    known = np.minimum(ran.reusable, ran.prompt - 1) // 16 * 16
    assert (ran.hits[:, 0] >= known - 32).mean() > 0.97  # the others begin beside the first of their session


@pytest.mark.slow
def test_a_turn_waits_for_sub_agents_that_a_router_sends_elsewhere() -> None:
    """As many sessions go on among two copies as on two apart."""
    shape = {"branches": 0.3, "branch_turns": parse_lengths(4), "branch_first": parse_lengths(500)}
    work = workload(turns=parse_lengths(20), joined=True, **shape)
    apart = run(store_of(replica()), work, sessions=4, turns=500)
    routed = simulate_sessions(deployed(work, routing=REQUESTS), 1000, 8, seed=1, copies=2)
    # The seconds of a run of copies are those of all together.
    assert routed.prompt.size / routed.duration == pytest.approx(apart.prompt.size / apart.duration, rel=0.1)


def test_calls_beside_a_session_are_new_and_leave_it_cached() -> None:
    work = workload(asides=0.2, aside=900)
    ran = run(store_of(replica(), (), 1e9), work, turns=600)
    beside = (ran.prompt == 900) & (ran.reusable == 0)
    assert beside.mean() == pytest.approx(0.2 * (1 - 1 / 8), abs=0.05)
    assert not ran.hits[beside].any()
    after = ~beside & (ran.reusable > 0)
    assert (ran.hits[after, 0] >= np.minimum(ran.reusable, ran.prompt - 1)[after] - store_of(replica()).block).all()


def test_the_last_tokens_of_a_prompt_are_replaced() -> None:
    """A turn finds all of its context but those, in whole blocks; of snapshots those at the ends of earlier prompts."""
    store = store_of(replica(), (), 10**9)
    ran = run(store, workload(replaced=150, kept=False))
    later = ran.reusable > 0
    known = np.minimum(ran.reusable, ran.prompt - 1)[later] // store.block * store.block
    assert ran.hits[later, 0] == pytest.approx(known, abs=store.block)
    whole = run(store, workload(kept=False))
    lost = (whole.reusable[whole.reusable > 0].mean() - ran.reusable[later].mean()) / 150
    assert lost == pytest.approx(1, abs=0.5)


def benchmark(**changes: object) -> Workload:
    return workload(duration=600.0, begun=(0.25, 0.75), warmup=2, turns=parse_lengths(60), **changes)


@pytest.mark.slow
def test_a_benchmark_is_runs_of_its_duration() -> None:
    work = benchmark()
    ran = simulate_sessions(deployed(work), None, 8, seed=1)
    runs = len(ran.each)
    assert runs == math.ceil(2000 / (60 * 8))
    assert ran.duration / runs == pytest.approx(600, rel=0.05)
    assert float((ran.last - ran.arrival + ran.gaps).sum()) / ran.duration == pytest.approx(8, rel=0.1)
    assert min(ran.each) <= sum(hit_rates(ran)) <= max(ran.each)
    long = simulate_sessions(deployed(work), 3000, 8, seed=1)
    assert len(np.unique(ran.owner // 1e9)) == runs
    assert ran.prompt.mean() < long.prompt.mean() * 1.2


def test_after_a_rehearsal_sessions_are_at_later_turns_with_their_own_outputs() -> None:
    """It takes turns one after the other; of the run itself no pause and no output is of the rehearsal."""
    shape = {"turns": parse_lengths(400), "duration": 100.0, "begun": (0.0, 0.0), "warmup": 0}
    works = [workload(**shape, rehearsal=seconds) for seconds in (None, 10.0)]
    before, after = (simulate_sessions(deployed(work), None, 10, seed=1) for work in works)
    assert after.prompt.mean() > 1.5 * before.prompt.mean()
    assert after.output.mean() == pytest.approx(before.output.mean(), rel=0.1)
    assert after.gaps.mean() == pytest.approx(before.gaps.mean(), rel=0.1)
    assert after.duration == pytest.approx(before.duration, rel=0.05)
    assert after.first.min() > 10
    with pytest.raises(RooflineError, match="duration"):
        workload(rehearsal=10.0)


def test_a_run_near_a_steady_state_is_in_it_and_another_is_between_them() -> None:
    """Its interval reaches the states on the other side of a cliff, also where theory has none on the run's own."""
    spread = Spread(0.8, 1.2)
    alone = with_states(spread, 1.0, ())
    same = with_states(spread, 1.0, (1.1, 1.1))
    assert same == pytest.approx(alone)
    near, far = with_states(spread, 1.0, (1.1, 11.0)), with_states(spread, 1.0, (9.0, 11.0))
    assert near.high > 10 > 5 * alone.high
    assert far.high > near.high
    assert near.low == far.low == alone.low
    assert with_states(spread, 1.0, (0.1, 1.1)).low < 0.1


def test_turns_of_one_token_have_no_tpot_and_no_warning() -> None:
    work = workload(turns=parse_lengths(1), output=parse_lengths(1))
    (found,) = serve_sessions(SCENARIO, work, sessions=3).outcomes
    assert math.isnan(found.tpot.mean.mid)
    assert found.ttft.mean.low < found.ttft.mean.mid == found.e2e.mean.mid < found.ttft.mean.high


def test_a_tpot_between_prompts_errs_as_these_do() -> None:
    deployment = replica()
    low, high = (each.nearest(512.0, 4096.0) for each in deployment.steps.spread[2:])
    spread = Spread(0.9, 1.1)
    assert beside_prompts(spread, deployment, 512.0, 4096.0, 0.0) == spread
    assert beside_prompts(spread, deployment, 512.0, 4096.0, 1.0)[:2] == pytest.approx((low, high))


def test_first_traces_have_their_means_after_a_rehearsal() -> None:
    """However many turns it takes: others have grown by then."""
    shape = {"turns": parse_lengths(400), "duration": 100.0, "begun": (0.25, 0.75), "warmup": 0, "kept": False}
    works = [
        workload(**shape, rehearsal=20.0, replayed=traces) for traces in ((), (Replayed(5, prompt=20_000, gap=0.5),))
    ]
    grown, held = (simulate_sessions(deployed(work), None, 5, seed=1) for work in works)
    assert held.prompt.mean() == pytest.approx(20_000, rel=0.15)
    assert grown.prompt.mean() > 1.5 * held.prompt.mean()
    assert held.first.min() > 20
    assert held.hits.sum() > 0.9 * held.prompt.sum()


@pytest.mark.parametrize("agents", [1, 3])
def test_first_traces_wait_for_several_sub_agents_not_for_one(agents: int) -> None:
    """A single one runs beside the next turns of them: as simulated, so in theory."""
    lengths = {"branch_turns": 5, "branch_first": 500, "turns": 100}
    shape = {"branches": 0.3, "branch_agents": agents, "duration": 1000.0, "begun": (0.0, 0.0), "warmup": 0}
    parts = {name: parse_lengths(each) for name, each in lengths.items()}
    works = [workload(**shape, **parts, joined=joined, replayed=(Replayed(5, output=50),)) for joined in (False, True)]
    free, joined = (simulate_sessions(deployed(work), None, 5, seed=1) for work in works)
    assert (joined.prompt.size < 0.95 * free.prompt.size) == (agents > 1)
    for work, ran in zip(works, (free, joined), strict=True):
        rate = ran.prompt.size / ran.duration
        assert theory_of(deployed(work)).warm(5).turns_per_second == pytest.approx(rate, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("sessions", [10, 20])
def test_theory_agrees_with_a_benchmark(sessions: int) -> None:
    work, store = benchmark(), store_of(replica())
    ran = simulate_sessions(deployed(work, store), None, sessions, seed=1)
    state = theory_of(deployed(work, store)).warm(sessions)
    assert state.turns_per_second == pytest.approx(ran.prompt.size / ran.duration, rel=0.1)
    assert sum(state.hits) == pytest.approx(sum(hit_rates(ran)), abs=0.03)


OVERFLOWING = [
    benchmark(),
    benchmark(first=parse_lengths("exponential:mean=8000"), new=parse_lengths("exponential:mean=800")),
    benchmark(first=parse_lengths(15_000), new=parse_lengths(200), gap=parse_gaps("exponential:mean=20s")),
]


@pytest.mark.slow
@pytest.mark.parametrize("work", OVERFLOWING)
def test_theory_agrees_with_a_benchmark_that_overflows_the_pool(work: Workload) -> None:
    """Contexts grow until the pool is full; from then on turns get done slowly. More sessions never find more."""
    store, numbers = store_of(replica()), (20, 25, 30, 35, 40, 50, 60)
    theory = theory_of(deployed(work, store))
    states = [theory.warm(number) for number in numbers]
    hits = [sum(state.hits) for state in states]
    assert hits == sorted(hits, reverse=True)
    runs = [simulate_sessions(deployed(work, store), None, number, seed=1) for number in numbers]
    apart = np.abs(np.array(hits) - [sum(hit_rates(ran)) for ran in runs])
    assert apart.mean() < 0.05
    assert apart.max() < 0.2
    rates = np.array([ran.prompt.size / ran.duration for ran in runs])
    parts = np.array([state.turns_per_second for state in states]) / rates - 1
    assert np.median(np.abs(parts)) < 0.1


@pytest.mark.slow
def test_hits_of_a_benchmark_grow_with_the_pool() -> None:
    pools = (200_000, 300_000, 400_000, 600_000, 10**6)
    hits = [sum(theory_of(deployed(benchmark(), store_of(replica(), (), pool))).warm(30).hits) for pool in pools]
    assert hits == sorted(hits)
    assert hits[0] < 0.05
    assert hits[-1] > 0.95


@pytest.mark.slow
def test_all_sessions_are_somewhere_beyond_the_overflow() -> None:
    """Those that prompts' server has no time for wait, and their contexts are evicted (it had hits of 0.3 to 0.5)."""
    work, store = workload(turns=parse_lengths(60)), store_of(replica())
    theory = Theory(deployed(work, store))
    hits = [sum(theory.warm(sessions).hits) for sessions in (20, 25, 30, 35, 40, 50, 60)]
    assert hits == sorted(hits, reverse=True)
    ran = run(store, work, sessions=50, turns=2000)
    assert hits[-2] == pytest.approx(sum(hit_rates(ran)), abs=0.03)


@pytest.mark.slow
def test_the_range_of_a_benchmark_has_runs_of_other_sessions() -> None:
    work = benchmark()
    (found,) = serve_sessions(SCENARIO, work, sessions=25).outcomes
    others = [sum(hit_rates(simulate_sessions(deployed(work), None, 25, seed=seed))) for seed in (10, 11, 12)]
    assert found.near[0] <= min(others)
    assert max(others) <= found.near[1]


def near_a_cliff(faster: float = 1.0, part: float = 1.0) -> SessionOutcome:
    """16 sessions whose contexts nearly fill a pool, or a `part` of it; gaps last as many steps as with faster ones."""
    gap = parse_gaps(f"exponential:mean={3 * faster}s")
    work = workload(first=parse_lengths(8000), turns=parse_lengths(30), gap=gap)
    return serve_sessions(SCENARIO, work, sessions=16, pool=int(part * 200_000), simulate=2000).outcomes[0]


@pytest.mark.slow
def test_hits_with_slower_steps_and_a_smaller_pool_lie_within_the_range_near_a_cliff() -> None:
    """Errors of both, each as far as 0.7 of the end of its own 80% interval, which is 80% of them together."""
    found = near_a_cliff()
    for slower, part in ((1.15, 0.91), (0.87, 1.1)):
        other = near_a_cliff(1 / slower, part)
        assert found.near[0] <= other.hit <= found.near[1]


@pytest.mark.parametrize("sessions", [10, 20, 40])
def test_slower_steps_are_shorter_gaps_in_another_unit_of_time(sessions: int) -> None:
    works = [
        workload(first=parse_lengths(8000), turns=parse_lengths(30), gap=parse_gaps(f"exponential:mean={gap}s"))
        for gap in (6, 3)
    ]
    slow, short = (Theory(deployed(work, store_of(replica(), (), 200_000))) for work in works)
    one, other = slow.warm(sessions, 2.0), short.warm(sessions)
    assert sum(one.hits) == pytest.approx(sum(other.hits), abs=0.005)
    assert one.tpot == pytest.approx(2 * other.tpot, rel=0.02)
    assert one.turns_per_second == pytest.approx(other.turns_per_second / 2, rel=0.02)


def test_the_most_sessions_meet_the_targets_and_a_few_more_miss_them() -> None:
    found = max_sessions(SCENARIO, ttft=0.5, tpot=0.05, profile="swe-agent", pool=200_000)
    held = found.held
    assert held.outcome is not None
    assert held.next is not None
    assert held.outcome.ttft.p95.mid <= 0.5
    assert held.outcome.tpot.p95.mid <= 0.05
    assert held.sessions < held.next <= max(held.sessions + 1, math.ceil(1.05 * held.sessions))


def settings(seed: int) -> tuple[Workload, int, Store]:
    """A workload, sessions and a cache, at random."""
    draw = random.Random(seed)
    turns, shared = draw.choice([4, 8, 16]), draw.choice([0, 0, 4000])
    work = workload(
        turns=parse_lengths(f"uniform:{turns // 2}:{turns * 3 // 2}"),
        first=parse_lengths(f"exponential:mean={10 ** draw.uniform(2.5, 4):.0f}"),
        new=parse_lengths(f"exponential:mean={10 ** draw.uniform(2, 3.2):.0f}"),
        gap=parse_gaps(f"exponential:mean={10 ** draw.uniform(0.3, 1.7):.1f}s"),
        shared=shared,
        groups=draw.choice([1, 5]) if shared else 1,
        kept=draw.random() < 0.7,
    )
    sessions = round(10 ** draw.uniform(0.9, 1.9))
    size = sessions * float(Theory(deployed(work)).turns.left.mean()) + shared
    tokens = max(size * 10 ** draw.uniform(-0.4, 0.4), 3 * work.longest)
    store = store_of(replica(), (), tokens)
    if draw.random() < 0.4:
        bytes_ = size * draw.uniform(0.3, 2) * store.token_bytes
        tier = Tier("dram", bytes_, 40e9, write="back" if draw.random() < 0.5 else "through")
        store = store_of(replica(), (tier,), tokens)
    return work, sessions, store


def errors(seed: int) -> tuple[float, float] | None:
    """By how much the theory's hit rate, and its throughput in parts, differ; None where the cache thrashes."""
    work, sessions, store = settings(seed)
    theory = Theory(deployed(work, store)).at(sessions)
    if theory.thrashes or theory.warm.pinned > 0.6:
        return None
    ran = simulate_sessions(deployed(work, store), max(4000, sessions * 60), sessions, seed=seed + 7)
    rate = ran.prompt.size / ran.duration
    return sum(theory.warm.hits) - sum(hit_rates(ran)), theory.warm.turns_per_second / rate - 1


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 20))
def test_theory_agrees_with_the_simulation(first: int) -> None:
    found = [each for each in map(errors, range(first, first + 20)) if each is not None]
    hit, rate = np.abs(np.array(found)).T
    # Where hundreds of turns touch few contexts, three points are also the noise of a run.
    assert (hit < 0.03).mean() >= 0.8
    assert (rate < 0.1).mean() >= 0.9
    assert hit.max() < 0.1


def test_theory_agrees_in_a_few_settings() -> None:
    for seed in (7, 17):
        found = errors(seed)
        assert found is not None
        assert abs(found[0]) < 0.03
        assert abs(found[1]) < 0.1


def test_prompts_take_no_more_than_all_time_before_a_point_is_found() -> None:
    """Coming from fewer sessions: a warm cache lets more turns through than a cold one has time for."""
    theory = Theory(deployed(workload(), store_of(replica(), (), 200_000)))
    load = theory.load(1.0)
    theory.solve(50, load, 100)
    for _ in range(6):
        theory.solve(200, load, 2)
        assert load.busy <= 1


def test_a_point_is_found_where_waits_and_hits_would_go_around_it() -> None:
    """From a full cache and from an empty one alike: 8% lay between, of rounds in a circle of four."""
    work, sessions, store = settings(20)
    found = Theory(deployed(work, store)).at(sessions)
    assert found.warm.turns_per_second == pytest.approx(found.cold.turns_per_second, rel=0.005)
    assert found.warm.ttft == pytest.approx(found.cold.ttft, rel=0.01)
    # Simulations of 4,000 turns, of three seeds: 1.94 to 2.07 turns/s and 0.110 to 0.116 s of TPOT.
    assert found.warm.turns_per_second == pytest.approx(2.03, rel=0.1)
    assert found.warm.tpot == pytest.approx(0.1136, rel=0.15)


@pytest.mark.slow
def test_more_sessions_than_the_pool_holds_lose_throughput() -> None:
    work = workload(first=parse_lengths(8000), turns=parse_lengths(30), gap=parse_gaps("exponential:mean=3s"))
    theory = Theory(deployed(work, store_of(replica(), (), 200_000)))
    rates = [theory.warm(sessions).turns_per_second for sessions in (5, 10, 60)]
    assert rates[1] > 1.5 * rates[0]
    assert rates[2] < rates[1] * 1.2
    # A tier that holds all contexts, and one that holds too few: turns/s of simulations of 4,000 turns, of two seeds.
    for size, simulated in (("150GB", 10.9), ("50GB", 2.17)):
        tiered = Theory(deployed(work, store_of(replica(), parse_tiers(f"dram={size}", SCENARIO), 200_000)))
        assert tiered.warm(60).turns_per_second == pytest.approx(simulated, rel=0.1)


@pytest.mark.slow
def test_the_answer_has_hits_by_tier_and_costs() -> None:
    curve = serve_sessions(
        SCENARIO, workload(), sessions=[4, 16], simulate=200, tiers="dram=10GB", pool=60_000, targets=(1.0, math.inf)
    )
    one = curve.outcomes[0]
    assert len(one.hits) == 2
    assert one.near[0] <= one.hit <= one.near[1]
    assert one.cost is not None
    assert one.cost.session == pytest.approx(2.99 / 3600 / one.turns_per_second * curve.workload.turns.mean, rel=0.5)
    assert one.cost.cached < one.cost.prompt < one.cost.output
    assert "hit" in str(curve)
    assert curve.to_dict()["points"][1]["sessions"] == 16


@pytest.mark.slow
def test_a_rate_of_sessions_has_as_many_as_little_says() -> None:
    curve = serve_sessions(SCENARIO, workload(), session_rate=0.5, simulate=600)
    (found,) = curve.outcomes
    assert found.turns_per_second == pytest.approx(0.5 * curve.workload.turns.mean, rel=0.2)
    with pytest.raises(RooflineError, match="no steady state"):
        serve_sessions(SCENARIO, workload(), session_rate=500.0)


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_say_where_they_are_from(name: str) -> None:
    work = profile(name)
    assert work.source
    session = Draw(work, 3).session()
    assert session.context >= work.shared + 1


@pytest.mark.slow
def test_the_first_sessions_of_a_benchmark_have_the_means_of_its_first_traces() -> None:
    """Of prompts after the warm-up, outputs and gaps; those after them are of the workload, whatever the seed."""
    traces = (Replayed(2, prompt=40_000, output=900, gap=4.0, branches=0.0), Replayed(4, prompt=3000, output=50))
    shape = {"turns": 400, "new": "uniform:50:150", "first": "8k", "branch_turns": 4, "branch_first": 500}
    lengths = {name: parse_lengths(each) for name, each in shape.items()}
    usually = workload(**lengths, kept=False, branches=0.2, duration=3600.0, warmup=10)
    work = replace(usually, replayed=traces)
    for seed in range(3):
        draw, before = Draw(work, seed), Draw(usually, seed)
        found = [draw.session((0.25, 0.75), place=place) for place in range(5)]
        usual = [before.session((0.25, 0.75), place=place) for place in range(5)]
        for session, trace in zip(found, [traces[0]] * 2 + [traces[1]] * 2, strict=False):
            at, turns = session.place, work.warmup + WINDOW
            prompts = session.context + np.cumsum([0, *session.new[at + 1 : at + turns]])
            assert prompts.mean() == pytest.approx(trace.prompt, rel=0.02)
            assert np.mean(session.output) == pytest.approx(trace.output, rel=0.2)
        assert not any(found[0].branch)
        assert np.mean(found[1].gap) == pytest.approx(4.0, rel=0.2)
        assert (found[4].new, found[4].context) == (usual[4].new, usual[4].context)


def test_replicas_share_the_first_traces_of_a_benchmark() -> None:
    work = replace(workload(), duration=600, replayed=(Replayed(4, prompt=20_000),))
    spread, whole = Draw(work, every=2), Draw(work)
    assert [spread.session(place=place).replayed is not None for place in range(3)] == [True, True, False]
    assert [whole.session(place=place).replayed is not None for place in range(5)] == [True] * 4 + [False]


def test_an_option_replaces_what_traces_are_like() -> None:
    asked = {"profile": "coding-agent"}
    assert workload_of(SCENARIO, asked).replayed
    assert not workload_of(SCENARIO, {**asked, "gap": 1.0}).replayed


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "give one"),
        ({"sessions": 4, "profile": "coding-agnt"}, "coding-agent"),
        ({"sessions": 4, "tiers": "ssd=1TB"}, "bandwidth"),
        ({"sessions": 4, "turns": "many"}, "turns"),
        ({"sessions": 4, "turns": 10**6}, "at most 10,000 turns"),
        ({"sessions": 4, "gap": "5x"}, "a gap between turns is a time"),
        ({"sessions": 4, "first": "100k", "pool": 20_000}, "does not fit"),
    ],
)
def test_errors_say_what_is_wrong(options: dict[str, object], part: str) -> None:
    with pytest.raises(RooflineError, match=part):
        serve_sessions(SCENARIO, **options)  # type: ignore[arg-type]
