"""Parallelism: conserved FLOPs, divided weights and KV cache, bytes sent."""

from __future__ import annotations

from collections import Counter
from math import comb

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline import (
    Analysis,
    Model,
    RooflineError,
    Scenario,
    UnsupportedError,
    analyze,
    load_hardware,
    load_model,
    parse_precision,
)
from roofline.graph.layers.mlp import destinations
from roofline.graph.network import Build, _stage
from roofline.graph.offload import Offload, parse_offload
from roofline.graph.parallel import Collective, Nodes, Parallelism, bus_factor, stages
from roofline.graph.ranks import imbalance, rank_model
from roofline.scenario.settings import Host, Settings
from roofline.specs.hardware import NETWORK, Span
from roofline.specs.sublayers import Hyena, StateSpace, UNet
from roofline.techniques import apply_techniques
from roofline.timing.chains import load_calibration
from roofline.timing.kernels import kernel_bound
from tests.cases import MODELS

H100, H200 = load_hardware("h100-sxm"), load_hardware("h200-sxm")
BF16 = parse_precision("bf16")


def run(model: str | Model, settings: Settings | None = None, **workload: object) -> Analysis:
    loaded = load_model(model) if isinstance(model, str) else model
    return analyze(Scenario(loaded, H100, settings=settings or Settings(), **workload))  # type: ignore[arg-type]


def parallel(**degrees: int) -> Settings:
    return Settings(parallel=Parallelism(**degrees))


ON_DEVICE = Settings(offload=Offload(tables=0.0))
"""Settings with tables of n-grams on the device."""


def matrix_flops(answer: Analysis) -> float:
    """FLOPs of GEMMs, attention and scans, which tensor parallelism divides; norms and additions are replicated."""
    kinds = ("gemm", "attention", "moe", "scan", "gated_delta_rule")
    return sum(op.count * op.flops for op in answer.prefill.ops if op.kind in kinds)


@pytest.mark.parametrize("name", MODELS)
def test_one_device_is_the_identity(name: str) -> None:
    plain, single = (
        run(name, settings) for settings in (ON_DEVICE, replace(ON_DEVICE, parallel=Parallelism(tensor=1)))
    )
    assert single.prefill.bound_time == plain.prefill.bound_time
    assert single.memory == plain.memory
    assert not any(op.link_bytes for op in single.prefill.ops)


@pytest.mark.parametrize("name", ["llama-3-8b", "mixtral-8x7b", "mistral-7b", "falcon-180b", "gpt-3-175b", "t5-3b"])
@pytest.mark.parametrize("degree", [2, 4, 8])
def test_tensor_parallelism_conserves_flops_and_weights(name: str, degree: int) -> None:
    whole, rank = run(name, prompt=1024, batch=4), run(name, parallel(tensor=degree), prompt=1024, batch=4)
    # Routers and norms are repeated on every rank, the vocabulary is padded.
    assert matrix_flops(rank) * degree == pytest.approx(matrix_flops(whole), rel=0.02)
    assert rank.memory.weights * degree == pytest.approx(whole.memory.weights, rel=0.02)


def test_kv_heads_are_replicated_beyond_their_number() -> None:
    caches = [run("llama-3-8b", parallel(tensor=degree)).memory.kv_cache for degree in (1, 2, 8, 16, 32)]
    assert [caches[0] / cache for cache in caches] == [1, 2, 8, 8, 8]


@pytest.mark.parametrize("degree", [2, 4, 16])
def test_expert_parallelism_conserves_flops_and_divides_the_experts(degree: int) -> None:
    whole = run("qwen3-30b-a3b", prompt=512, batch=32)
    rank = run("qwen3-30b-a3b", parallel(expert=degree), prompt=512, batch=32)
    assert rank.parallel.devices == degree
    assert matrix_flops(rank) * degree == pytest.approx(matrix_flops(whole), rel=1e-9)
    experts = 48 * 128 * 3 * 2048 * 768 * 2
    assert whole.memory.weights - rank.memory.weights == pytest.approx(experts * (1 - 1 / degree), rel=1e-12)


@pytest.mark.parametrize("degree", [2, 4, 8])
def test_sequence_parallelism_conserves_flops_and_divides_the_cache(degree: int) -> None:
    whole, rank = run("llama-3-8b", prompt=8192), run("llama-3-8b", parallel(sequence=degree), prompt=8192)

    def body(answer: Analysis) -> float:
        return sum(op.count * op.flops for op in answer.prefill.ops if op.section != "head")

    assert body(rank) * degree == pytest.approx(body(whole), rel=1e-9)
    assert rank.memory.kv_cache * degree == pytest.approx(whole.memory.kv_cache, rel=1e-9)
    assert rank.decode is not None
    assert "attn_merge_all_reduce" in [op.name for op in rank.decode.ops]


def test_decode_context_parallelism_divides_the_cache_and_its_reads_alone() -> None:
    """Each rank has the heads of all for its tokens: as many pairs, and more bytes sent, by what is gathered."""
    whole, rank = (run("deepseek-v3", parallel(tensor=8, context=degree), prompt=8192, batch=16) for degree in (1, 8))
    assert rank.memory.kv_cache * 8 == pytest.approx(whole.memory.kv_cache, rel=1e-9)
    assert rank.memory.weights == whole.memory.weights
    assert matrix_flops(rank) == matrix_flops(whole)
    assert rank.decode is not None
    assert whole.decode is not None
    one, other = ({op.name: op for op in answer.decode.ops if op.section == "moe"} for answer in (rank, whole))
    read = [ops["fused_attention"] for ops in (one, other)]
    assert read[0].flops == pytest.approx(read[1].flops, rel=1e-9)
    assert read[0].bytes < read[1].bytes / 4
    assert one["query_all_gather"].link_bytes == pytest.approx(16 * 128 * 576 * 2 * 7 / 8)
    assert one["attn_reduce_scatter"].link_bytes == pytest.approx(16 * 128 * 512 * 2 * 7 / 8)


@pytest.mark.parametrize(
    ("hardware", "share", "link"), [("h100-sxm", 1, 450e9), ("gb200", 1, 900e9), ("a100-sxm-80gb", 2 * 3 / 4, 300e9)]
)
def test_two_all_reduces_per_layer(hardware: str, share: float, link: float) -> None:
    """A ring sends 2 (r - 1) / r of the message; a switch that reduces takes it once."""
    settings = parallel(tensor=4)
    answer = analyze(
        Scenario(load_model("llama-2-13b"), load_hardware(hardware), settings=settings, batch=8, prompt=100)
    )
    reductions = [op for op in answer.prefill.ops if op.name in ("attn_all_reduce", "mlp_all_reduce")]
    assert len(reductions) == 2
    for op in reductions:
        assert op.count == 40
        assert op.link_bytes == pytest.approx(share * 8 * 100 * 5120 * 2)
        assert op.bound == "link"
        assert op.bound_time == pytest.approx(op.link_bytes / link)


@pytest.mark.parametrize(("model", "ranks", "sums"), [("minimax-m2", 4, 2), ("minimax-m2", 1, 0), ("qwen3-8b", 4, 0)])
def test_ranks_add_up_the_squares_of_a_norm_over_all_heads(model: str, ranks: int, sums: int) -> None:
    """Norms over each head need none (the size of the message: vLLM's minimax_m2.py, one FP32 sum each of q and k)."""
    answer = run(model, parallel(tensor=ranks), batch=8, prompt=100)
    reductions = [op for op in answer.prefill.ops if op.name == "qk_norm_all_reduce"]
    assert [op.link_bytes for op in reductions] == [pytest.approx(8 * 100 * sums * 4)] * (sums > 0)


@pytest.mark.parametrize(("model", "reductions"), [("falcon-180b", 1), ("palm-540b", 1), ("gpt-j-6b", 2)])
def test_parallel_branches_that_are_added_before_one_all_reduce(model: str, reductions: int) -> None:
    """vLLM and TensorRT-LLM reduce the sum of Falcon's attention and MLP; the work is the same."""
    whole, rank = run(model, batch=2, prompt=64), run(model, parallel(tensor=4), batch=2, prompt=64)
    reduced = [op for op in rank.prefill.ops if op.name in ("attn_all_reduce", "mlp_all_reduce")]
    assert len(reduced) == reductions
    for op in reduced:
        assert op.link_bytes == pytest.approx(2 * 64 * load_model(model).hidden * 2)  # to the switch, which reduces
    assert 4 * matrix_flops(rank) == pytest.approx(
        matrix_flops(whole), rel=0.02
    )  # fewer KV heads than ranks are copied
    assert [op.name for op in whole.prefill.ops if op.name.endswith("_add")] == [
        op.name for op in rank.prefill.ops if op.name.endswith("_add")
    ]


def test_dispatch_and_combine_bytes() -> None:
    settings = parallel(expert=8)
    answer = run("qwen3-30b-a3b", settings, batch=64, prompt=128)
    all_to_alls = [op for op in answer.prefill.ops if op.op.is_all_to_all]
    assert [op.name for op in all_to_alls] == ["dispatch_all_to_all", "combine_all_to_all"]
    for op in all_to_alls:
        assert op.link_bytes == pytest.approx((64 / 8) * 128 * 2048 * 2 * 7 * (1 - comb(112, 8) / comb(128, 8)))


def test_dispatch_across_nodes_sends_a_token_once_per_node() -> None:
    settings = parallel(expert=16, nodes=4)
    answer = run("qwen3-30b-a3b", settings, batch=64, prompt=128)
    dispatch = next(op for op in answer.prefill.ops if op.name == "dispatch_all_to_all")
    remote = 3 * (1 - comb(96, 8) / comb(128, 8))
    assert dispatch.link_bytes == pytest.approx((64 / 16) * 128 * remote * 2048 * 2)


def without_replacement(draw: np.random.Generator, of: int, count: int) -> np.ndarray:
    """20,000 rows of so many different numbers."""
    return draw.random((20_000, of)).argpartition(count, axis=1)[:, :count]


def distinct(rows: np.ndarray) -> np.ndarray:
    """The numbers of different values in each row."""
    return 1 + (np.diff(np.sort(rows, axis=1), axis=1) > 0).sum(axis=1)


def test_a_token_is_sent_once_to_a_rank() -> None:
    """Drawing 8 of 128 experts by chance, over 8 ranks of 16 (qwen3-235b-a22b): 5.34 ranks, not 8 copies."""
    spec, draw = load_model("qwen3-235b-a22b").experts[0], np.random.default_rng(27)
    drawn = without_replacement(draw, 128, 8) // 16
    assert destinations(replace(spec, experts=16), 8, 8) == pytest.approx(distinct(drawn).mean(), rel=5e-3)
    assert 8 / destinations(replace(spec, experts=16), 8, 8) == pytest.approx(1.498, abs=5e-3)


@pytest.mark.parametrize(("ranks", "among"), [(8, 8), (16, 16), (32, 4), (64, 8), (32, 3), (16, 5)])
def test_group_limited_routing_bounds_the_destinations(ranks: int, among: int) -> None:
    """DeepSeek-V3: 8 experts in 4 of 8 groups; destinations may hold parts of groups, and groups parts of them."""
    spec, draw = load_model("deepseek-v3").experts[0], np.random.default_rng(5)
    assert (spec.groups, spec.top_groups) == (8, 4)
    cuts = [index * 256 // among for index in range(1, among)]
    groups, picked = without_replacement(draw, 8, 4), without_replacement(draw, 128, 8)
    experts = np.take_along_axis(groups, picked // 32, axis=1) * 32 + picked % 32
    found = destinations(replace(spec, experts=256 // ranks), ranks, among)
    assert found == pytest.approx(distinct(np.searchsorted(cuts, experts, side="right")).mean(), rel=1e-2)
    assert found < destinations(replace(spec, experts=256 // ranks, groups=1, top_groups=1), ranks, among)


def test_deepseek_v3_reaches_at_most_four_nodes_of_eight() -> None:
    """DeepSeek-V3 (2024), section 2.1.2: each token is sent to at most 4 nodes."""
    spec = load_model("deepseek-v3").experts[0]
    assert 3.5 < destinations(replace(spec, experts=4), 64, 8) <= 4
    assert destinations(replace(spec, experts=4, groups=1, top_groups=1), 64, 8) > 5


@pytest.mark.parametrize(("kind", "share"), [(Collective.ALL_REDUCE, 1.5), (Collective.ALL_GATHER, 0.75)])
def test_bus_factors(kind: Collective, share: float) -> None:
    assert bus_factor(kind, 4) == share
    assert bus_factor(kind, 1) == 0


@pytest.mark.parametrize(("nodes", "seconds"), [(1, 1 / 450e9), (2, 0.25 / 50e9), (4, 0.75 / 50e9), (8, 1.75 / 50e9)])
def test_all_reduce_across_nodes_uses_the_network(nodes: int, seconds: float) -> None:
    """Every device has a port: on two nodes four devices each send 2 (1/2) of a fourth of the message, side by side."""
    far = run("llama-3.1-70b", parallel(tensor=8, nodes=nodes), prompt=4096)
    reduced = next(op for op in far.prefill.ops if op.name == "attn_all_reduce")
    message = 4096 * 8192 * 2
    assert reduced.bound_time == pytest.approx(seconds * message)
    assert far.prefill.bound == ("link" if nodes > 2 else "compute")


def test_published_all_reduce_bandwidth_across_nodes() -> None:
    """NCCL on two nodes of 8 H100 with a port of 400 Gbit/s each: 330 to 430 GB/s (NVIDIA/nccl, issue 1221)."""
    ranks = {"collective": "all_reduce", "ranks": 16.0, "bytes": 8e9, "across_nodes": 1.0, "members": 8.0}
    sent = 2 * 15 / 16 * 8e9
    assert sent / float(kernel_bound("collective", ranks, H100)) > 430e9
    found = load_calibration(H100).expected("collective", ranks, H100)
    assert 330e9 < sent / float(found.mid) < 1.15 * 430e9


@pytest.mark.parametrize(
    ("name", "ranks", "published"),
    [("h100-sxm", 8, 480e9), ("h200-sxm", 8, 475e9), ("h800-sxm", 8, 215e9), ("b300-sxm", 8, 845e9)],
)
def test_published_all_reduces_through_a_switch_are_not_faster_than_the_bound(
    name: str, ranks: int, published: float
) -> None:
    """Bus bandwidth by NCCL: NVIDIA/nccl, issues 1455, 1374 and 2140; NVIDIA/nccl-tests, issue 272 (H200)."""
    hardware = load_hardware(name)
    columns = {"collective": "all_reduce", "ranks": float(ranks), "bytes": 1e9}
    seconds = 2 * (ranks - 1) / ranks * 1e9 / published
    assert float(kernel_bound("collective", columns, hardware)) < seconds
    ring = 2 * (ranks - 1) / ranks * 1e9 / hardware.link(Span(ranks, across_nodes=False)).bandwidth
    assert (seconds < ring) is (name != "b300-sxm")


@given(ranks=st.integers(2, 8), size=st.floats(1e3, 1e9))
def test_a_switch_changes_the_bound_of_all_reduces_alone(ranks: int, size: float) -> None:
    """Its bound is the message over the link, equal to a ring's of two; expected times stay what was fitted."""
    plain_link = [replace(link, reduction=None) for link in H100.interconnects]
    ring = replace(H100, interconnects=tuple(plain_link))
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "alltoall"):
        columns = {"collective": kind, "ranks": float(ranks), "bytes": size}
        found, without = (float(kernel_bound("collective", columns, device)) for device in (H100, ring))
        assert found == pytest.approx(size / 450e9 if kind == "all_reduce" else without)
        assert found <= without * (1 + 1e-12)
        expected = [load_calibration(H100).expected("collective", columns, device) for device in (H100, ring)]
        assert float(expected[0].mid) == float(expected[1].mid)


def test_pipelines_divide_memory_and_fill_with_micro_batches() -> None:
    whole = run("llama-3.1-70b", batch=32, prompt=2048)
    alone = run("llama-3.1-70b", parallel(pipeline=4), batch=32, prompt=2048)
    filled = run("llama-3.1-70b", parallel(pipeline=4, micro_batches=8), batch=32, prompt=2048)
    assert alone.memory.weights < 0.28 * whole.memory.weights
    assert alone.memory.kv_cache == whole.memory.kv_cache / 4
    # One micro-batch goes through all stages in a row; bubbles are (p - 1) / (m + p - 1) of the time.
    assert alone.prefill.bound_time >= whole.prefill.bound_time
    assert filled.prefill.bound_time == pytest.approx(alone.prefill.bound_time * (8 + 3) / (8 * 4), rel=0.02)


def test_bubbles_of_a_pipeline_do_no_work() -> None:
    """Four stages and micro-batches take 7/4 of the time of a stage's share, and do that share of the work."""
    one = run("llama-3.1-8b", batch=4)
    four = run("llama-3.1-8b", parallel(pipeline=4, micro_batches=4), batch=4)
    assert one.decode is not None
    assert four.decode is not None
    assert four.prefill.flops == pytest.approx(one.prefill.flops / 4, rel=1e-3)
    assert four.decode.flops == pytest.approx(one.decode.flops / 4, rel=1e-3)
    assert sum(op.count * op.busy * op.flops for op in four.prefill.ops) == pytest.approx(four.prefill.flops)
    weights = sum(op.count * op.busy * op.weight_bytes for op in four.decode.ops)
    single = sum(op.count * op.busy * op.weight_bytes for op in one.decode.ops)
    assert weights == pytest.approx(single, rel=1e-3)  # a stage reads its quarter once for each micro-batch


def test_no_micro_batch_is_empty() -> None:
    """Of eight sequences, two on each rank, there are eight micro-batches, and two, at most."""

    def times(batch: object, count: int, data: int = 1) -> tuple[object, object]:
        settings = parallel(pipeline=4, data=data, micro_batches=count)
        answer = run("llama-3.1-8b", settings, batch=batch, generate=8)
        assert answer.expected.tpot is not None
        return answer.generation.total, answer.expected.tpot.mid

    assert times(8, 64) == times(8, 16) == times(8, 8) != times(8, 4)
    assert times(8, 64, data=4) == times(8, 2, data=4)
    assert times(1, 4) == times(1, 1)
    grid = times(np.array([1, 3, 8, 32]), 8)
    for figures, single in zip(grid, zip(*(times(batch, 8) for batch in (1, 3, 8, 32)), strict=True), strict=True):
        assert figures == pytest.approx(np.array(single))


def test_more_sequences_never_take_a_pipeline_less_time() -> None:
    settings = parallel(pipeline=4, micro_batches=8)
    answer = run("llama-3.1-8b", settings, batch=np.arange(1, 40), prompt=512, generate=16)
    assert np.all(np.diff(answer.generation.ttft) >= 0)
    assert np.all(np.diff(answer.generation.total) >= 0)


def test_micro_batches_without_a_pipeline_are_a_no_op() -> None:
    cut, whole = (run("llama-3.1-8b", parallel(micro_batches=count), batch=8) for count in (4, 1))
    assert cut.generation == whole.generation
    assert cut.expected == whole.expected


def test_number_of_nodes_follows_from_the_devices() -> None:
    """Sixteen devices, eight per node: by degrees, by a technique, and with disaggregated decode."""
    given = {"prompt": 512, "generate": 8}
    plain, explicit = (
        run("llama-3.1-405b", settings, **given).generation
        for settings in (parallel(tensor=16), parallel(tensor=16, nodes=2))
    )
    assert plain == explicit != run("llama-3.1-405b", parallel(tensor=16, nodes=1), **given).generation
    scenario = Scenario(load_model("llama-3.1-405b"), H100, **given)
    assert analyze(apply_techniques(scenario, ["tensor-parallelism:degree=16"])).generation == plain
    rack = load_hardware("gb200")
    apart = Scenario(load_model("llama-3.1-405b"), rack, settings=parallel(tensor=16), **given)
    apart = apart.changed(settings=replace(apart.settings, decode_hardware=H100))
    assert analyze(apart).generation.tpot == plain.tpot
    assert analyze(apart).parallel.nodes == 1


def test_contradicting_degrees_are_refused() -> None:
    with pytest.raises(RooflineError, match=r"8 expert-parallel devices exceed the 2 of 1 x 2 \(tensor x data\)"):
        Parallelism(expert=8, data=2)
    assert Parallelism(expert=8).data == Parallelism(expert=8, data=8).data == 8


@given(st.integers(1, 32))
def test_stages_partition_the_layers(pipeline: int) -> None:
    shape = [len(stage) for stage in stages(load_model("llama-3-8b"), pipeline)]
    assert sum(shape) == 32
    assert max(shape) - min(shape) <= 1


def test_data_parallelism_divides_the_batch() -> None:
    whole, replica = run("llama-3-8b", batch=64), run("llama-3-8b", parallel(data=4), batch=64)
    quarter = run("llama-3-8b", batch=16)
    assert replica.prefill.bound_time == quarter.prefill.bound_time < whole.prefill.bound_time
    assert replica.generation.tokens_per_second == pytest.approx(4 * quarter.generation.tokens_per_second)


def test_skew_increases_the_imbalance() -> None:
    assert imbalance(128, 8, 8, 0) == 1
    assert 1 < imbalance(128, 8, 8, 0.5) < imbalance(128, 8, 8, 1.0) < 8


def test_copies_of_popular_experts_level_the_load() -> None:
    alone = imbalance(256, 8, 32, 0.6)
    few, many = imbalance(256, 8, 32, 0.6, 32), imbalance(256, 8, 32, 0.6, 256)
    assert 1 <= many < few < alone


@pytest.mark.parametrize(("degree", "slots"), [(48, 288), (72, 288), (96, 288), (144, 288), (64, 256)])
def test_any_degree_divides_the_experts_with_some_copies(degree: int, slots: int) -> None:
    found = rank_model(load_model("deepseek-v3"), Parallelism(expert=degree))
    assert found.experts[0].experts == slots // degree


def test_redundant_experts_are_stored_by_all_ranks_alike() -> None:
    found = rank_model(load_model("deepseek-v3"), Parallelism(expert=32, redundant=32))
    assert found.experts[0].experts == 9


@pytest.mark.parametrize(
    ("model", "degrees", "words"),
    [
        ("llama-3-8b", {"tensor": 3}, "tensor parallelism of 3 does not divide the 32 attention heads of llama-3-8b"),
        ("llama-3-8b", {"expert": 2}, "no experts"),
        ("llama-3-8b", {"pipeline": 64}, "only 32 layers"),
        (
            "qwen3-30b-a3b",
            {"tensor": 4, "expert": 6},
            "6 expert-parallel devices are not divisible by 4 tensor-parallel ones",
        ),
        ("llama-3-8b", {"tensor": 8, "nodes": 9}, "9 nodes exceed the 8 devices"),
        ("llama-3-8b", {"tensor": 0}, "the degree of tensor parallelism must be an integer between 1"),
        ("llama-3-8b", {"tensor": 8, "context": 2}, "2 does not divide the 1 copies of keys"),
        ("deepseek-v3", {"tensor": 4, "context": 8}, "divides the 4 tensor-parallel devices"),
        ("glm-5", {"tensor": 8, "context": 8}, "glm-5 selects some"),
        ("mamba-2.8b", {"sequence": 2}, "sequence parallelism is simulated for softmax attention only"),
    ],
)
def test_degrees_that_do_not_fit(model: str, degrees: dict[str, int], words: str) -> None:
    with pytest.raises(RooflineError, match=words):
        run(model, parallel(**degrees))


def test_hardware_without_links_is_refused() -> None:
    scenario = Scenario(load_model("llama-3-8b"), load_hardware("core-i9-13900k"), settings=parallel(tensor=2))
    with pytest.raises(UnsupportedError, match="has no interconnect"):
        analyze(scenario).prefill.bound_time  # noqa: B018


@pytest.mark.parametrize("name", MODELS)
def test_every_model_runs_on_two_devices_or_is_refused(name: str) -> None:
    model = load_model(name)
    mixers = [group.layer.mixer for group in model.groups]
    if any(isinstance(mixer, Hyena | StateSpace | UNet) or getattr(mixer, "heads", 2) % 2 for mixer in mixers):
        with pytest.raises(RooflineError, match=name):
            run(model, parallel(tensor=2), batch=2)
        return
    answer = run(model, parallel(tensor=2), batch=2)
    assert np.isfinite(answer.generation.total)
    assert answer.prefill.link_bytes > 0


# --- offloading -------------------------------------------------------------------------------------------------------

shares = st.floats(0, 1)


@given(st.sampled_from(["llama-2-13b", "qwen3-30b-a3b", "mamba-2.8b"]), shares, shares, st.integers(1, 64))
def test_offloading_never_beats_resident(name: str, weights: float, kv: float, batch: int) -> None:
    resident = run(name, batch=batch)
    away = run(name, Settings(offload=Offload(weights, kv)), batch=batch)
    assert away.decode is not None
    assert resident.decode is not None
    assert away.decode.bound_time >= resident.decode.bound_time * (1 - 1e-12)
    assert away.prefill.bound_time >= resident.prefill.bound_time * (1 - 1e-12)
    assert away.memory.weights == pytest.approx(resident.memory.weights * (1 - weights))
    assert away.memory.kv_cache == pytest.approx(resident.memory.kv_cache * (1 - kv))


def test_offloaded_weights_take_the_host_link() -> None:
    answer = run("llama-2-13b", Settings(offload=Offload(weights=1.0)), context=0, prompt=1)
    assert answer.decode is not None
    op = next(op for op in answer.decode.ops if op.name == "up_proj")
    assert op.bound == "link"
    assert op.bound_time == op.weight_bytes / 64e9


def test_host_computes_a_fraction_of_the_layers() -> None:
    cpu = load_hardware("xeon-platinum-8480plus")
    device, split = run("llama-2-13b"), run("llama-2-13b", Settings(host=Host(cpu, 0.25, 0.25)))
    alone = analyze(Scenario(load_model("llama-2-13b"), cpu, precision=device.precision))
    assert split.decode is not None
    assert device.decode is not None
    assert alone.decode is not None
    expected = 0.75 * device.decode.bound_time + 0.25 * alone.decode.bound_time
    assert split.decode.bound_time == pytest.approx(expected, rel=1e-12)
    assert split.memory.weights == 0.75 * device.memory.weights


@pytest.mark.parametrize(
    ("text", "offload"),
    [
        ("weights=0.5", Offload(weights=0.5)),
        ("kv=1,weights=0.25", Offload(0.25, 1.0)),
        ("weights=1,bandwidth=7 GB/s", Offload(1.0, bandwidth=7e9)),
        (None, Offload()),
    ],
)
def test_parse_offload(text: str | None, offload: Offload) -> None:
    assert parse_offload(text) == offload


@pytest.mark.parametrize(
    "text", ["weights", "weights=x", "weights=2", "kv=-1", "wieghts=1", "", "weights=nan", "kv=1,kv=1"]
)
def test_bad_offloads(text: str) -> None:
    with pytest.raises(RooflineError):
        parse_offload(text)


def test_moe_weight_traffic_approaches_all_experts() -> None:
    answers = [run("qwen3-30b-a3b", batch=batch, context=0, prompt=1) for batch in (1, 64, 4096)]
    traffic = [
        sum(op.count * op.weight_bytes for op in answer.decode.ops if op.kind == "moe")
        for answer in answers
        if answer.decode
    ]
    everything = 48 * 128 * 3 * 2048 * 768 * 2
    assert traffic[0] == pytest.approx(everything * 8 / 128)
    assert traffic[0] < traffic[1] < traffic[2]
    assert traffic[2] == pytest.approx(everything, rel=1e-6)
    assert answers[0].memory.weights > everything


def test_2d_tensor_parallelism_sends_less_with_more_ranks() -> None:
    """Pope et al. 2022: 4 T sqrt(E F / n) on a grid against 2 T E in one dimension, which no rank count lowers."""

    def sent(degree: int, *, grid: bool) -> float:
        settings = Settings(parallel=Parallelism(tensor=degree, grid=grid))
        ops = run("gpt-3-175b", settings, batch=8, prompt=256).prefill.ops
        return sum(op.link_bytes for op in ops if op.name.startswith("mlp_") and op.kind == "collective")

    tokens, hidden, width = 8 * 256, 12288, 4 * 12288
    assert sent(16, grid=True) == pytest.approx(4 * tokens * np.sqrt(hidden * width / 16) * 3 / 4 * 2)
    assert sent(96, grid=False) > sent(16, grid=False)
    assert sent(16, grid=True) < sent(4, grid=True)
    with pytest.raises(RooflineError, match="square number"):
        Parallelism(tensor=8, grid=True)


@given(
    st.integers(1, 8), st.integers(1, 12), st.sampled_from([1, 2, 3, 4, 6]), st.none() | st.integers(2, 6)
)  # fmt: skip
def test_send_receive_takes_the_link_between_stages(size: int, count: int, nodes: int, bridge: int | None) -> None:
    """Every device of a stage sends to its counterpart in the next; the farthest of them decides."""
    assume(size * count % nodes == 0 and (bridge is None or bridge <= size * count // nodes))
    ranks = Parallelism(tensor=size, pipeline=count, nodes=nodes)

    def parts(stage: int, joined: int | None) -> bool:
        senders = range(stage * size, (stage + 1) * size)
        return joined is not None and any(device // joined != (device + size) // joined for device in senders)

    expected = Counter((parts(stage, ranks.devices_per_node), parts(stage, bridge)) for stage in range(count - 1))
    found: Counter[tuple[bool, bool]] = Counter()
    for reach, times in ranks.stage_transfers(bridge).items():
        across = ranks.span(reach).across_nodes
        found[across, bridge is not None and reach > bridge] += times
    if bridge is not None:  # what leaves a node leaves what a bridge joins
        expected = Counter((over, out or over) for over, out in expected.elements())
    assert found == expected


def test_pipeline_over_two_nodes_crosses_the_network_once() -> None:
    answer = run("llama-3.1-70b", parallel(tensor=4, pipeline=4, nodes=2), prompt=1000)
    sent = {op.name: op for op in answer.prefill.ops if op.name.startswith("send_receive")}
    assert (sent["send_receive"].count, sent["send_receive_far"].count) == (2, 1)
    near, far = sent["send_receive"], sent["send_receive_far"]
    assert near.link_bytes == far.link_bytes
    hardware = answer.scenario.hardware
    assert far.bound_time == pytest.approx(far.link_bytes / hardware.link(NETWORK).bandwidth)
    assert near.bound_time < far.bound_time / 5


@given(
    st.sampled_from(["llama-3-8b", "deepseek-v2-lite", "qwen3-30b-a3b", "mixtral-8x7b"]),
    *(st.sampled_from(degrees) for degrees in ([1, 2, 4], [1, 2], [1, 2, 4], [1, 2, 4], [1, 2], [1, 3])),
    st.booleans(),
)  # fmt: skip
def test_equal_stage_parallelism_builds_identical_operators(
    name: str, tensor: int, pipeline: int, expert: int, data: int, nodes: int, batches: int, decode: bool
) -> None:
    """Operators are the same objects for all degrees that `of_stage` ignores."""
    try:
        ranks = Parallelism(tensor, pipeline, expert, data, nodes=nodes, micro_batches=batches)
        plain = Build(("attention",), parallel=ranks, decode=decode, skew=0.5, capacity=1.25)
        made = _stage.__wrapped__(load_model(name), BF16, plain)
    except RooflineError:
        assume(False)
    assert made == _stage.__wrapped__(load_model(name), BF16, replace(plain, parallel=ranks.of_stage))
    assert ranks.of_stage.of_stage == ranks.of_stage
    assert ranks.without_experts.of_stage == ranks.without_experts


def test_data_parallel_replicas_share_graph_and_placement() -> None:
    answers = [run("llama-3-8b", parallel(data=data), batch=8 * data) for data in (1, 2, 4)]
    placements = [answer.decode.passes[0].placement for answer in answers]
    assert placements[0] is placements[1] is placements[2]
    apart = run("llama-3-8b", parallel(data=4, nodes=2), batch=32).decode.passes[0].placement
    assert apart is not placements[0]
    assert apart.nodes == Nodes(2)
