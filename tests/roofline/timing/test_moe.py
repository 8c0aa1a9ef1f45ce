"""Loads of experts: the routing of public benchmarks, the busiest device, and the tokens that arrive there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import Scenario, analyze, load_hardware, load_model
from roofline.graph.parallel import Parallelism
from roofline.scenario.settings import Settings
from roofline.timing.calibration import Calibration, Fit
from roofline.timing.kernels import Array, kernel_bound, kernel_time
from roofline.timing.kernels.moe import PARAMETERS, Loads, _arriving, _emptiest, _in_turn, expert_loads

H100 = load_hardware("h100-sxm")
DEFAULTS = {parameter.name: parameter.default for parameter in PARAMETERS}
ROUTINGS = ("balanced", "power_law_1.01", "power_law_1.2")


def loads(
    tokens: int, top_k: int, experts: int, ep: int, routing: str, consecutive: int = 0, rerouted: int = 0
) -> Loads:
    sizes = [np.array([float(size)]) for size in (tokens, top_k, experts, ep, consecutive, rerouted)]
    return expert_loads(*sizes[:4], routing, *sizes[4:])


def pairs(found: Loads, experts: int) -> float:
    return float((found.tokens * found.reached).mean() * experts)


@given(st.integers(1, 20480), st.sampled_from((1, 2, 8)), st.sampled_from((8, 16, 128, 256)), st.sampled_from(ROUTINGS))
def test_one_device_computes_every_pair(tokens: int, top_k: int, experts: int, routing: str) -> None:
    found = loads(tokens, top_k, experts, 1, routing)
    assert pairs(found, experts) == pytest.approx(tokens * top_k, rel=0.02, abs=1)
    assert float(found.tokens.max()) <= tokens
    assert float(np.max(found.arriving)) == pytest.approx(tokens)


@given(st.integers(1, 300), st.sampled_from((1, 2, 8)), st.sampled_from((8, 64, 256)), st.sampled_from((1, 2, 8)))
def test_balanced_tokens_take_turns(tokens: int, top_k: int, experts: int, ep: int) -> None:
    stride, counts = experts // top_k, np.zeros(experts)
    for token in range(tokens):
        first = token if tokens >= stride else token * stride // tokens
        counts[[(first + turn * stride) % experts for turn in range(top_k)]] += 1
    local = counts[: experts // ep]
    found = loads(tokens, top_k, experts, ep, "balanced")
    assert pairs(found, experts // ep) == pytest.approx(local.sum(), rel=1e-9)
    assert float(found.reached.mean()) == pytest.approx((local > 0).mean())


@pytest.mark.parametrize("routing", ["power_law_1.01", "power_law_1.2"])
def test_the_busiest_device_has_more_than_its_share(routing: str) -> None:
    shares = [pairs(loads(4096, 8, 256, ep, routing), 256 // ep) / (4096 * 8 / ep) for ep in (1, 8, 64, 256)]
    assert shares == sorted(shares)
    assert shares[-1] > 3


@pytest.mark.parametrize("routing", ["power_law_1.01", "power_law_1.2"])
def test_of_few_pairs_the_busiest_device_has_as_many_as_others_or_all(routing: str) -> None:
    """One token with 8 of 128 experts, on 16 devices: the two kinds of public tables differ by the weights of eight."""
    assert pairs(loads(1, 8, 128, 16, routing), 8) < 3
    assert pairs(loads(1, 8, 128, 16, routing, consecutive=1), 8) > 5


@given(
    st.lists(st.integers(0, 60), min_size=8, max_size=8).map(lambda counts: np.array(counts, dtype=float)),
    st.sampled_from((1, 2, 4)),
    st.integers(20, 50),
)
def test_pairs_that_rounding_leaves_are_dealt_to_devices_in_turn(counts: np.ndarray, devices: int, most: int) -> None:
    target = 4 * most
    found, dealt = _in_turn(counts, most, target, devices), np.minimum(counts, most).reshape(devices, -1)
    for turn in range(int(abs(target - dealt.sum()))):
        own = dealt[turn % devices]
        if dealt.sum() < target:
            own[own.argmin()] += 1
        else:
            own[own.argmax()] -= 1
    if (dealt >= 0).all() and (dealt <= most).all():  # otherwise a full device's turn is the next one's
        np.testing.assert_array_equal(np.sort(found.reshape(devices, -1)), np.sort(dealt))


def test_pairs_that_rounding_leaves_go_to_the_emptiest_experts_the_last_ones_first() -> None:
    assert _emptiest(np.array([2.0, 1, 0, 0, 0, 0]), 9, 5, 2).tolist() == [2, 1, 0, 0, 1, 1]
    assert _emptiest(np.array([12.0, 1, 0, 0]), 9, 12, 2).tolist() == [8, 1, 0, 3]  # nine tokens, twelve for the first


def test_tokens_that_arrive_have_one_of_the_experts_here() -> None:
    """Experts take tokens in turn, the fullest first: a table of all tokens and their choices has the same."""
    generator = np.random.default_rng(0)
    for tokens, top_k, experts in ((7, 2, 8), (40, 4, 16), (5, 3, 32)):
        drawn = np.bincount(generator.integers(0, experts, tokens * top_k), minlength=experts)
        counts = _in_turn(drawn.astype(np.float64), tokens, tokens * top_k, 1)
        chosen = np.repeat(np.argsort(-counts, kind="stable"), np.sort(counts)[::-1].astype(int))
        here = np.arange(experts // 4)
        arriving = np.isin(chosen.reshape(top_k, tokens), here).any(axis=0).sum()
        assert _arriving(counts, here, tokens) == arriving


def test_rerouted_tokens_are_those_of_one_device() -> None:
    """Of 320 tokens with 8 of 256 experts, a tenth meets the first of 16 devices, each with one of its experts."""
    own, less = loads(320, 8, 256, 16, "balanced", rerouted=1), loads(160, 8, 16, 1, "balanced")
    assert own.arriving == 160
    np.testing.assert_array_equal(own.tokens, less.tokens)


def seconds(**options: float) -> Array:
    columns: dict[str, Any] = {"tokens": 4096.0, "hidden": 7168.0, "intermediate": 2048.0, "top_k": 8.0, **options}
    columns |= {"dtype": "bf16", "experts": 256.0, "ep": 64.0, "routing": "balanced"}
    return kernel_time("moe", columns, H100, {**DEFAULTS, "whole_batch": 0.5})


def test_benchmarks_take_the_tokens_with_an_expert_here_or_compute_their_pairs_elsewhere() -> None:
    assert seconds(arriving=1.0) < seconds() < seconds(arriving=1.0, clamped=1.0)


@pytest.mark.parametrize(("tokens", "before"), [(1.0, 1.0), (4096.0, 2.0)])
def test_older_tiles_of_triton_take_longer_for_many_tokens(tokens: float, before: float) -> None:
    """Half as wide each way as those since vLLM 0.17, and in FP8 half of each fetch is of the next tile."""
    slow = {**DEFAULTS, "tile_bandwidth": 20e9, "launch": 1e-6}
    columns = {"dtype": "fp8", "tokens": tokens, "hidden": 4096.0, "intermediate": 1536.0, "top_k": 8.0}
    columns |= {"experts": 128.0, "routing": "balanced"}
    old, new, best = (float(kernel_time("moe", {**columns, "tiles": kind}, H100, slow)) for kind in (1.0, 2.0, 0.0))
    assert old / new > before
    assert best <= new


def test_a_benchmark_reads_the_experts_that_its_tokens_reach() -> None:
    """160 tokens with 8 of 384 experts reach all of them, in turn: public rows of a kernel that took a fifth failed."""
    columns = {"dtype": "bf16", "tokens": 160.0, "hidden": 7168.0, "intermediate": 2048.0, "top_k": 8.0}
    one, every = (
        kernel_bound("moe", {**columns, "experts": 384.0, "routing": routing}, H100)
        for routing in ("uniform", "balanced")
    )
    assert every / one == pytest.approx(384 / 8)


def test_impossible_sizes_are_computed() -> None:
    assert np.isfinite(loads(10**15, 8, 10**14, 7, "power_law_1.2").tokens).all()
    assert np.isfinite(loads(10**15, 10**6, 10**14, 10**9, "balanced").tokens).all()


def test_few_tokens_save_a_part_of_the_launch() -> None:
    tokens = np.array([1.0, 5.0, 4096.0])
    columns = {"dtype": "bf16", "tokens": tokens, "hidden": 2048.0, "intermediate": 512.0, "top_k": 8.0}
    columns |= {"experts": 128.0, "routing": "uniform"}
    whole, less = (kernel_time("moe", columns, H100, {**DEFAULTS, "few_tokens": share}) for share in (0.0, 0.5))
    np.testing.assert_allclose((whole - less) / DEFAULTS["launch"], [0.5, 0.25, 0.0], atol=1e-3)


@pytest.mark.parametrize(
    ("parallel", "version", "format"),
    [
        (Parallelism(tensor=4), "0.24.0", "fp8_block"),
        (Parallelism(tensor=4, expert=4), "0.24.0", "fp8_block_ep"),
        (Parallelism(tensor=4, expert=4), "0.14.0", "fp8_block"),  # which has no such kernel
    ],
)
def test_expert_ranks_run_the_kernel_that_an_engine_has_for_them(
    parallel: Parallelism, version: str, format: str
) -> None:
    def made(*formats: str, version: str) -> Calibration:
        fits = {("moe", one): Fit("moe", one, DEFAULTS, version=version) for one in formats}
        return Calibration("h100-sxm", "calibrated", fits, engine="vllm")

    own = made("fp8_block", version=version)
    newest = made("fp8_block", "fp8_block_ep", version="0.24.0")
    links = (newest,) if version == "0.24.0" else (own, newest)
    chain = Calibration("h100-sxm", "calibrated", links[0].fits, parents=links[1:], engine="vllm")
    scenario = Scenario(load_model("minimax-m2"), H100, settings=Settings(parallel=parallel))
    phase = analyze(scenario, lambda *_: chain).prefill
    kernels = [found for run in phase.passes for found in phase.timed(run).kernels if "moe" in found.matches]
    assert {found.matches["moe"].fit.format for found in kernels} == {format}


@pytest.mark.parametrize(("version", "format"), [("0.14.0", "bf16_triton"), ("0.22.0", "bf16")])
def test_kernels_that_benchmarks_call_by_name_are_those_of_versions_that_run_them(version: str, format: str) -> None:
    """Up to vLLM 0.14 Triton's experts on Blackwell; later versions run FlashInfer's, whatever their tables time."""
    gpu = load_hardware("b200-sxm")
    fits = {("moe", one): Fit("moe", one, DEFAULTS, version="0.24.0") for one in ("bf16", "bf16_triton")}
    measured = Calibration("b200-sxm", "calibrated", fits, engine="vllm", version=version)
    phase = analyze(Scenario(load_model("qwen3-30b-a3b"), gpu), lambda *_: measured).prefill
    kernels = [found for run in phase.passes for found in phase.timed(run).kernels if "moe" in found.matches]
    assert {found.matches["moe"].fit.format for found in kernels} == {format}
    assert {"tiles" in found.shape.texts for found in kernels if found.shape} == {format == "bf16_triton"}
