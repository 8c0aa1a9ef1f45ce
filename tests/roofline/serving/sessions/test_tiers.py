"""Tiers of the KV cache by the connectors that engines have: their rows, sizes, policies and published figures."""

from __future__ import annotations

import math

import pytest

from roofline import Scenario
from roofline.core.errors import RooflineError
from roofline.serving.load import Load
from roofline.serving.replica import replica_of
from roofline.serving.sessions.cache import Level, PrefixCache, Run
from roofline.serving.sessions.connectors import connector_of, connectors
from roofline.serving.sessions.deployed import deployed_of, read_sessions
from roofline.serving.sessions.served import serve_sessions
from roofline.serving.sessions.store import Store, store_of
from roofline.serving.sessions.tiers import Tier, parse_tiers

LLAMA = Scenario("llama-3.1-8b", "h100-sxm")
SHORT = {"turns": 8, "first": "2k", "new": 500, "gap": "2s", "simulate": 300, "pool": 40_000}


def tier(text: str, scenario: Scenario = LLAMA) -> Tier:
    (found,) = parse_tiers(text, scenario)
    return found


def store(scenario: Scenario, tiers: str) -> Store:
    return deployed_of(scenario, None, read_sessions({"tiers": tiers, "new": 1000, "turns": 4})).store


@pytest.mark.parametrize("connector", connectors(), ids=lambda each: each.name)
def test_every_row_is_settings_of_tiers(connector) -> None:  # type: ignore[no-untyped-def]
    assert connector.sources
    for engine, oldest in connector.engines.items():
        for version in {oldest, ""}:
            scenario = LLAMA.with_(engine=f"{engine}@{version}".rstrip("@"))
            for name in connector.tiers:
                found = tier(f"{connector.name}:{name}=1TB:bandwidth=9GB/s", scenario)
                assert (found.name, found.bytes, found.bandwidth) == (name, 1e12, 9e9)


def test_an_engine_has_its_own_connector() -> None:
    assert [connector_of("", LLAMA.with_(engine=each).profile).name for each in ("vllm", "sglang", "tensorrt-llm")] == [
        "offloading",
        "hicache",
        "host-cache",
    ]
    assert connector_of("", LLAMA.with_(engine="vllm@0.10").profile) is None
    assert tier("dram=1TB", LLAMA.with_(engine="sglang")).overlap == 1
    assert tier("dram=1TB", LLAMA.with_(engine="tensorrt-llm")).write == "back"
    assert [tier("dram=1TB", LLAMA.with_(engine=f"vllm@{each}")).outputs for each in ("0.20", "0.33")] == [True, False]
    assert tier("dram=1TB:write=write_through_selective", LLAMA.with_(engine="sglang")).write == "selective"


def test_copies_of_a_layer_are_slower_than_of_a_block() -> None:
    # Blocks of 2 MB and 0.5 MB reached 47.7 and 39.5 GB/s; vLLM 0.12 has 4 and 5 times 0.11's speed (vLLM's post).
    assert tier("dram=1TB").bandwidth == pytest.approx(47.7e9, rel=0.02)
    assert tier("dram=1TB", LLAMA.with_(model="llama-3.2-1b")).bandwidth == pytest.approx(39.5e9, rel=0.02)
    old = tier("dram=1TB", LLAMA.with_(engine="vllm@0.11")).bandwidth
    assert 4 < tier("dram=1TB", LLAMA.with_(engine="vllm@0.12")).bandwidth / old < 6


def test_each_copy_of_a_model_has_the_links_of_its_own_devices() -> None:
    one, copies = (store(LLAMA.with_(dp=number), "dram=1TB,remote=1TB").tiers for number in (1, 4))
    assert copies == one


def test_ports_carry_what_mooncake_measured() -> None:
    # 190 GB/s of eight ports of 400 Gbps.
    assert tier("mooncake:remote=1TB", LLAMA.with_(hw="8xh100-sxm", tp=8)).bandwidth == pytest.approx(190e9)


def test_each_rank_has_latents_of_its_own_at_its_host() -> None:
    glm = Scenario("glm-5.2", "8xb300", tp=8, quant="nvfp4", kv="fp8", engine="sglang")
    # 335 GB a rank, with index keys and the draft, are 6.0 million tokens (InferenceX, glm5.2_fp4_b200_sglang_mtp.sh).
    assert store(glm, f"dram={8 * 335}GB").levels[0].blocks == pytest.approx(6.0e6, rel=0.1)
    once = store(glm, "hicache:mooncake=2680GB:bandwidth=90GB/s")
    assert once.levels[0].blocks == pytest.approx(8 * store(glm, "dram=2680GB").levels[0].blocks)
    assert once.read(once.tiers[0]) == pytest.approx(8 * once.stored(once.tiers[0]))
    assert store(LLAMA.with_(hw="8xh100-sxm", tp=8), "dram=1TB").copies == pytest.approx(1)


def test_a_size_may_be_that_of_so_many_pools() -> None:
    for scenario in (LLAMA.with_(engine="sglang"), Scenario("qwen3.5-27b", "h100-sxm", engine="sglang")):
        found = store(scenario, "dram=2x")
        whole = found.tokens * (1 if found.states is None else 1.9)  # the ratio is of all pools
        assert found.levels[0].blocks == pytest.approx(2 * whole, rel=0.01)


def used(levels: list[Level], lengths: list[int], repeats: int = 1) -> tuple[PrefixCache, list[Run]]:
    """Requests one after the other, each so often."""
    cache = PrefixCache(levels)
    runs = [cache.run() for _ in lengths]
    for now, (run, length) in enumerate(zip(runs * repeats, lengths * repeats, strict=True)):
        cache.pin(run)
        cache.insert(run, length)
        cache.unpin(run, float(now))
    return cache, runs


def test_a_selective_tier_takes_what_is_used_again() -> None:
    once, _ = used([Level(100), Level(100, "selective")], [5, 7])
    again, _ = used([Level(100), Level(100, "selective")], [5, 7], 2)
    assert (once.used[1], again.used[1]) == (0, 12)


def test_a_tier_that_refuses_keeps_what_came_first() -> None:
    cache, runs = used([Level(10), Level(12, "through", refuses=True)], [5, 5, 5, 5])
    cache.shrink(0, 0)
    assert [sum(cache.found(run, 5)) for run in runs] == [5, 5, 2, 0]
    assert cache.written[1] == cache.used[1] == 12


def test_a_tier_of_prompts_takes_outputs_with_the_next_prompt() -> None:
    cache, (run,) = used([Level(100), Level(100, "through", outputs=False)], [5])
    cache.pin(run)
    cache.insert(run, 8, outputs=True)
    assert cache.used == [8, 5]
    cache.insert(run, 9)
    assert cache.used == [9, 9]


@pytest.mark.slow
def test_policies_lose_hits_and_a_stall_costs_time() -> None:
    def outcome(tiers: str):  # type: ignore[no-untyped-def]
        return serve_sessions(LLAMA, sessions=24, tiers=tiers, **SHORT).outcomes[0]  # type: ignore[arg-type]

    through, selective = outcome("dram=40GB"), outcome("dram=40GB:write=selective")
    assert selective.hit < through.hit - 0.01
    assert selective.writes[0] < through.writes[0]
    assert outcome("dram=40GB:block=1024").hit < through.hit
    evicts, refuses = outcome("dram=8GB"), outcome("dram=8GB:full=refuse")
    assert refuses.writes[0] < evicts.writes[0]
    slow = "dram=40GB:bandwidth=2GB/s"
    assert outcome(f"{slow}:stalls=true").tpot.mean.mid > 1.5 * outcome(slow).tpot.mean.mid


@pytest.mark.slow
def test_loads_may_take_every_place() -> None:
    scenario = LLAMA.with_(max_num_seqs=2, generate=1)
    slow = {"gap": "0s", "turns": 10, "first": 4096, "new": 4096, "pool": 90_000, "simulate": 150}
    found = serve_sessions(scenario, sessions=8, tiers="dram=inf:bandwidth=1GB/s", **slow)  # type: ignore[arg-type]
    assert found.outcomes[0].hit > 0.5


@pytest.mark.parametrize(
    ("tiers", "part"),
    [
        ("hicache:dram=1TB", "it has offloading, lmcache, mooncake"),
        ("hicahe:dram=1TB", "hicache"),
        ("dram=1TB:write=back:full=refuse", "omit full=refuse"),
        ("dram=1TB:write=behind", "through"),
        ("dram=1TB:block=many", "block of the tier 'dram'"),
        ("dram=1TB:overlap=2", "overlap"),
        ("dram=0x", "ratio"),
        ("lmcache:ssd=1TB", "bandwidth"),
    ],
)
def test_errors_say_what_is_wrong(tiers: str, part: str) -> None:
    with pytest.raises(RooflineError, match=part):
        parse_tiers(tiers, LLAMA)


def test_an_endless_tier_has_no_size() -> None:
    replica = replica_of(LLAMA, Load(prompt=1000.0, generate=100.0, concurrency=1).of(LLAMA))
    assert store_of(replica, parse_tiers("dram=inf", LLAMA)).levels[0].blocks == math.inf


@pytest.mark.parametrize(
    ("model", "engine", "left"),
    [
        ("gpt-oss-120b", "vllm", 1),
        ("gemma-3-27b", "vllm", 5.2),
        ("gpt-oss-120b", "sglang", 0),
        ("llama-3.1-8b", "vllm", 0),
    ],
)
def test_windows_leave_blocks_behind_with_vllm(model: str, engine: str, left: float) -> None:
    """As many layers with windows as others in gpt-oss, 52 and 10 in Gemma 3 27B; SGLang frees what leaves a window."""
    scenario = Scenario(model, "h100-sxm", tp=4, engine=engine)
    assert store(scenario, "").left == pytest.approx(left, rel=0.2)


def test_blocks_left_behind_are_evicted_before_what_came_after_them() -> None:
    cache = PrefixCache([Level(10), Level(100)])
    cache.leave(4, 0.0)
    tail = cache.run()
    cache.pin(tail)
    cache.insert(tail, 6)
    cache.unpin(tail, 1.0)
    cache.shrink(0, 7)
    assert cache.found(tail, 6) == [6, 0]
    assert (cache.used[0], cache.used[1]) == (7, 0)  # the other tier takes no blocks that no prompt finds
    cache.shrink(0, 4)
    assert cache.found(tail, 6)[0] == 4


def test_a_pool_holds_fewer_prompts_where_windows_leave_blocks() -> None:
    scenario = Scenario("gpt-oss-20b", "h100-sxm", max_num_seqs=8, generate=50)
    work = {"turns": 100, "first": "16k", "new": 1, "gap": 0, "simulate": 400}
    held, overflown = (
        serve_sessions(scenario, sessions=sessions, pool=640_000, **work).outcomes[0].hit for sessions in (18, 30)
    )
    assert held > 0.9
    assert overflown < 0.5
