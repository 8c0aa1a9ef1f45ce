"""Routing of public benchmarks: loads of experts, the busiest device, and the tokens that arrive there."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.observation.routing import Dealt, _arriving, _to_devices_in_turn, _to_emptiest_experts, dealt
from roofline import load_hardware
from roofline.timing.kernels import kernel_bound
from tests.lab.observation.conftest import Collect

H100 = load_hardware("h100-sxm")
ROUTINGS = ("balanced", "power_law_1.01", "power_law_1.2")


def loads(
    tokens: int, top_k: int, experts: int, ep: int, routing: str, consecutive: int = 0, rerouted: int = 0
) -> Dealt:
    sizes = [np.array([float(size)]) for size in (tokens, top_k, experts, ep, consecutive, rerouted)]
    return dealt(*sizes[:4], routing, *sizes[4:])


def pairs(found: Dealt, experts: int) -> float:
    return float((found.loads.tokens * found.loads.reached).mean() * experts)


@given(st.integers(1, 20480), st.sampled_from((1, 2, 8)), st.sampled_from((8, 16, 128, 256)), st.sampled_from(ROUTINGS))
def test_one_device_computes_every_pair(tokens: int, top_k: int, experts: int, routing: str) -> None:
    found = loads(tokens, top_k, experts, 1, routing)
    assert pairs(found, experts) == pytest.approx(tokens * top_k, rel=0.02, abs=1)
    assert float(found.loads.tokens.max()) <= tokens
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
    assert float(found.loads.reached.mean()) == pytest.approx((local > 0).mean())


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
    found, turns = _to_devices_in_turn(counts, most, target, devices), np.minimum(counts, most).reshape(devices, -1)
    for turn in range(int(abs(target - turns.sum()))):
        own = turns[turn % devices]
        if turns.sum() < target:
            own[own.argmin()] += 1
        else:
            own[own.argmax()] -= 1
    if (turns >= 0).all() and (turns <= most).all():  # otherwise a full device's turn is the next one's
        np.testing.assert_array_equal(np.sort(found.reshape(devices, -1)), np.sort(turns))


def test_pairs_that_rounding_leaves_go_to_the_emptiest_experts_the_last_ones_first() -> None:
    assert _to_emptiest_experts(np.array([2.0, 1, 0, 0, 0, 0]), 9, 5, 2).tolist() == [2, 1, 0, 0, 1, 1]
    first = np.array([12.0, 1, 0, 0])  # twelve pairs for the first expert, of nine tokens
    assert _to_emptiest_experts(first, 9, 12, 2).tolist() == [8, 1, 0, 3]


def test_tokens_that_arrive_have_one_of_the_experts_here() -> None:
    """Experts take tokens in turn, the fullest first: a table of all tokens and their choices has the same."""
    generator = np.random.default_rng(0)
    for tokens, top_k, experts in ((7, 2, 8), (40, 4, 16), (5, 3, 32)):
        drawn = np.bincount(generator.integers(0, experts, tokens * top_k), minlength=experts)
        counts = _to_devices_in_turn(drawn.astype(np.float64), tokens, tokens * top_k, 1)
        chosen = np.repeat(np.argsort(-counts, kind="stable"), np.sort(counts)[::-1].astype(int))
        here = np.arange(experts // 4)
        arriving = np.isin(chosen.reshape(top_k, tokens), here).any(axis=0).sum()
        assert _arriving(counts, here, tokens) == arriving


def test_rerouted_tokens_are_those_of_one_device() -> None:
    """Of 320 tokens with 8 of 256 experts, a tenth meets the first of 16 devices, each with one of its experts."""
    own, less = loads(320, 8, 256, 16, "balanced", rerouted=1), loads(160, 8, 16, 1, "balanced")
    assert own.arriving == 160
    np.testing.assert_array_equal(own.loads.tokens, less.loads.tokens)


def test_impossible_sizes_are_computed() -> None:
    assert np.isfinite(loads(10**15, 8, 10**14, 7, "power_law_1.2").loads.tokens).all()
    assert np.isfinite(loads(10**15, 10**6, 10**14, 10**9, "balanced").loads.tokens).all()


def test_benchmarks_take_the_tokens_with_an_expert_here_or_compute_their_pairs_elsewhere(collect: Collect) -> None:
    row = {"dtype": "bf16", "tokens": 4096.0, "hidden": 7168.0, "intermediate": 2048.0, "top_k": 8.0}
    row |= {"experts": 256.0, "tp": 1.0, "ep": 64.0, "routing": "balanced"}

    def seconds(**options: float) -> float:
        return float(collect("moe", {**row, **options}, H100, {"whole_batch": 0.5}).seconds[0])

    assert seconds(arriving=1.0) < seconds() < seconds(arriving=1.0, clamped=1.0)


def test_a_benchmark_reads_the_experts_that_its_tokens_reach(collect: Collect) -> None:
    """160 tokens with 8 of 384 experts reach all of them, in turn: public rows of a kernel that took a fifth failed."""
    row = {"dtype": "bf16", "tokens": 160.0, "hidden": 7168.0, "intermediate": 2048.0, "top_k": 8.0, "experts": 384.0}
    dealt_to = collect("moe", {**row, "tp": 1.0, "ep": 1.0, "routing": "balanced", "cache": "cold"}, H100, {})
    assert float(dealt_to.bound[0] / kernel_bound("moe", row, H100)) == pytest.approx(384 / 8)
