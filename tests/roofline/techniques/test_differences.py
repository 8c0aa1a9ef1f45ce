"""What tells apart techniques of one mechanism, and entries that say that they have the simulation of another."""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from roofline import Analysis, RooflineError, Scenario, analyze, load_hardware, load_model
from roofline.specs.reserve import STATIC
from roofline.techniques import Technique, apply_techniques, techniques

H100 = load_hardware("h100-sxm")
SETTINGS = (
    ("opt-6.7b", "a100-sxm-80gb", {"batch": 4, "prompt": 2000, "generate": 64}),
    ("mixtral-8x7b", "b200-sxm", {"batch": 4, "prompt": 2000, "generate": 64}),
    ("bert-large", "h100-sxm", {"batch": 2, "prompt": 500}),
)


def run(*requests: str, model: str = "llama-2-7b", **workload: Any) -> Analysis:
    plain = Scenario(load_model(model), H100, **{"prompt": 1000, "generate": 64, **workload})
    return analyze(apply_techniques(plain, requests))


def request(entry: Technique) -> str:
    needed = {"draft": "opt-125m", "model": "opt-125m", "accept": "2"}
    given = [f"{p.name}={needed[p.name]}" for p in entry.parameters if p.default is None and p.name in needed]
    return f"{entry.name}:{','.join(given)}" if given else entry.name


@lru_cache(maxsize=1)
def outcomes() -> dict[tuple[object, ...], list[Technique]]:
    """The entries by what they do to three scenarios."""
    found: dict[tuple[object, ...], list[Technique]] = defaultdict(list)
    scenarios = [Scenario(load_model(model), load_hardware(hw), **workload) for model, hw, workload in SETTINGS]
    for entry in techniques().values():
        seen: list[object] = [entry.slot]
        for scenario in scenarios:
            try:
                answer = analyze(apply_techniques(scenario, [request(entry)]))
            except RooflineError:
                seen.append(None)
                continue
            times = answer.generation.total, answer.generation.tpot, answer.generation.tokens_per_second
            seen += [*times, answer.memory.total, answer.expected.total.mid]
        found[tuple(seen)].append(entry)
    return found


@pytest.mark.slow
def test_entries_of_one_slot_with_one_outcome_say_so() -> None:
    """Those that change nothing on the default engine are named: their effect is relative to another engine."""
    relative = [{"flash-decoding", "flashdecoding-plus-plus"}, {"paged-attention", "token-attention"}]
    for (_, *seen), entries in outcomes().items():
        if not any(seen):
            continue  # refused everywhere
        simulated = [entry for entry in entries if entry.change is not None]
        named = {entry.same_as or entry.name for entry in simulated}
        assert len(named) <= 1 or {entry.name for entry in simulated} in relative, named


def test_entries_that_share_a_simulation_name_an_entry_of_their_slot() -> None:
    for entry in techniques().values():
        if entry.same_as:
            assert techniques()[entry.same_as].slot == entry.slot, entry.name
            assert not techniques()[entry.same_as].same_as, entry.name


def test_a_buffer_that_drops_tokens_holds_less_than_a_full_budget() -> None:
    h2o, scissorhands = run("h2o:budget=400"), run("scissorhands:budget=400,drop=0.5")
    assert scissorhands.memory.kv_cache == pytest.approx(h2o.memory.kv_cache * 301 / 401)
    assert run("scissorhands:budget=400,drop=0").generation == h2o.generation


def test_calm_computes_keys_and_values_of_skipped_layers() -> None:
    calm, skip = run("calm:depth=0.5"), run("skipdecode:depth=0.5")
    assert calm.decode is not None
    assert skip.decode is not None
    assert calm.decode.flops - skip.decode.flops == pytest.approx(16 * 2 * 2 * 4096 * 4096)
    assert calm.decode.expected.mid > skip.decode.expected.mid
    assert run("calm:depth=1").generation == run().generation


def test_quip_transforms_inputs_and_outputs_and_tsld_does_not() -> None:
    """A Hadamard transform of n elements takes n log2(n) additions; two matrices of sqrt(n) rows take 4 n sqrt(n)."""
    answers = {name: run(name).decode for name in ("quip", "quip-sharp", "tsld")}
    flops = {}
    for name, decode in answers.items():
        assert decode is not None
        flops[name] = sum(op.count * op.flops for op in decode.ops if "transform" in op.name)
    inputs, outputs = 3 * [4096] + [11008], 4 * [4096] + 2 * [11008] + [4096]
    assert flops["quip-sharp"] == pytest.approx(32 * sum(n * np.log2(n) for n in inputs + outputs))
    assert flops["quip"] == pytest.approx(32 * sum(4 * n * np.sqrt(n) for n in inputs + outputs))
    assert flops["tsld"] == 0


def test_affine_transformations_leave_integers_that_a_weight_only_kernel_runs() -> None:
    assert run("affinequant").expected == run("gptq").expected
    assert run("norm-tweaking").expected != run("gptq").expected  # two bits have no kernel


def test_s3_reserves_up_to_the_end_of_a_bucket() -> None:
    """The engine allocates blocks of 16 tokens, whatever is asked for: 1,136 for 1,129 tokens, 1,200 for a bucket."""
    token = run("token-attention", generate=130).memory.kv_cache / 1136
    assert run("s3:bucket=100", generate=130).memory.kv_cache == pytest.approx(1200 * token)
    assert run("paged-attention:block=64", generate=130).memory.kv_cache == pytest.approx(1152 * token)


@pytest.mark.parametrize(
    ("name", "published"), [("skeleton-of-thought", (1.89, 2.39)), ("apar", (1.4, 2.0)), ("sgd", (1.4, 1.68))]
)
@pytest.mark.parametrize("model", ["llama-7b", "llama-13b", "llama-30b"])
def test_parallel_parts_within_the_published_gain(name: str, published: tuple[float, float], model: str) -> None:
    """Ning et al. 2023: 1.89 to 2.33 by category, at most 2.39 by model, on LLaMA 7B, 13B and 33B and one A100."""
    plain = Scenario(load_model(model), load_hardware("a100-sxm-80gb"), prompt=100, generate=256)
    before, after = (analyze(one).expected.total.mid for one in (plain, apply_techniques(plain, [name])))
    assert published[0] < before / after < published[1]


# --- entries that were only named -------------------------------------------------------------------------------------


def test_top_k_reads_all_keys_and_few_values() -> None:
    plain, top = run(prompt=8000), run("top-k-attention:keys=100", prompt=8000)
    read = []
    for answer in (plain, top):
        assert answer.decode is not None
        read.append(
            sum(op.count * op.kv_bytes for op in answer.decode.ops if "attention" in op.name or "page" in op.name)
        )
    keys = 32 * 4096 * 2
    assert read[0] == pytest.approx(keys * 2 * 8001)
    assert read[1] == pytest.approx(keys * (8001 + 2 * 100), rel=1e-3)
    assert top.memory.kv_cache == plain.memory.kv_cache
    assert top.prefill.bound_time == plain.prefill.bound_time


def test_funnel_blocks_halve_the_tokens() -> None:
    """Linear layers of three equal blocks process 1, 1/2 and 1/4 of the tokens."""
    plain, funnel = (run(*names, model="bert-large", prompt=512) for names in ((), ("funnel-transformer",)))
    linear = []
    for answer in (plain, funnel):
        linear.append(
            sum(op.count * op.flops for op in answer.prefill.ops if op.kind == "gemm" and op.section == "layer")
        )
    assert linear[1] / linear[0] == pytest.approx((1 + 1 / 2 + 1 / 4) / 3)
    with pytest.raises(RooflineError, match="encoders"):
        run("funnel-transformer")


def test_token_pruning_keeps_a_mean_share_of_the_cache() -> None:
    plain, pruned = run(prompt=4096), run("token-pruning:keep=0.5", prompt=4096)
    assert pruned.memory.kv_cache == pytest.approx(0.75 * plain.memory.kv_cache, rel=1e-3)
    assert pruned.prefill.flops < 0.78 * plain.prefill.flops
    assert pruned.decode is not None
    assert plain.decode is not None
    assert pruned.decode.bytes < plain.decode.bytes
    assert run("token-pruning:keep=1").generation.ttft == pytest.approx(run().generation.ttft)
    with pytest.raises(RooflineError, match="whole passes"):
        run("token-pruning", "chunked-prefill")


def test_cachegen_loads_what_it_does_not_compute() -> None:
    plain, loaded = run(prompt=8000), run("cachegen:hit=0.9,ratio=4,bandwidth=1GB/s", prompt=8000)
    sent = 7200 * 2 * 32 * 4096 * 2 / 4
    rest = run(prompt=800, prefix=7200)
    assert loaded.generation.ttft == pytest.approx(rest.generation.ttft + sent / 1e9, rel=1e-6)
    assert loaded.memory.kv_cache == plain.memory.kv_cache
    assert run("cachegen:hit=0.9,bandwidth=100GB/s", prompt=8000).generation.ttft < plain.generation.ttft


def test_a_group_of_tokens_takes_its_refinements() -> None:
    answer = run("non-autoregressive:tokens=30,refinements=10")
    assert answer.tokens_per_iteration == 3
    assert answer.generation.tpot < run().generation.tpot / 2.5
    with pytest.raises(RooflineError, match="slower than decoding"):
        run("non-autoregressive:tokens=5,refinements=10")


def test_blocks_along_the_sequence_read_the_weights_for_each_block() -> None:
    plain, blocks = run(prompt=8192), run("blockwise-parallel-transformer:block=2048", prompt=8192)
    assert blocks.prefill.flops == pytest.approx(plain.prefill.flops, rel=1e-6)
    static = [one.scenario.changed(settings=replace(one.scenario.settings, memory=STATIC)) for one in (plain, blocks)]
    whole, cut = (analyze(one).memory.activation_peak for one in static)
    assert cut < whole / 3
    assert blocks.prefill.bytes > plain.prefill.bytes


def test_what_is_only_named_says_why() -> None:
    """Schedulers of a service change waiting times: the entry names the command that shows them."""
    named = [entry for entry in techniques().values() if entry.change is None]
    assert not [entry.name for entry in named if not entry.command]
    assert all(entry.caveat or entry.effect for entry in named)
