"""Keys, pairs and held tokens against brute force; touched experts against Monte Carlo."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline.graph.extents import AttentionMask, Pool, Step, extents, popularity, touched

limits = st.one_of(st.none(), st.integers(1, 70))


def value(mask: AttentionMask, step: Step, name: str) -> float:
    return extents(step, [mask])[f"{name}{mask.suffix}"]


@given(st.integers(1, 40), st.integers(0, 60), limits)
def test_window_against_brute_force(queries: int, cached: int, window: int | None) -> None:
    reach = window or 10**9
    seen_by = [range(max(0, cached + i + 1 - reach), cached + i + 1) for i in range(queries)]
    mask, step = AttentionMask(window), Step(3, queries, cached)
    assert value(mask, step, "pairs") == sum(map(len, seen_by))
    assert value(mask, step, "keys") == len(set().union(*seen_by))
    assert value(mask, step, "held") == min(cached + queries, reach)


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 30))
def test_chunks_against_brute_force(queries: int, cached: int, chunk: int) -> None:
    """Llama 4: a token sees the tokens of its own chunk up to itself; chunks start at multiples of their size."""
    seen_by = [range((cached + i) // chunk * chunk, cached + i + 1) for i in range(queries)]
    mask, step = AttentionMask(chunk=chunk), Step(3, queries, cached)
    assert value(mask, step, "pairs") == sum(map(len, seen_by))
    assert value(mask, step, "keys") == len(set().union(*seen_by))
    assert value(mask, step, "held") == min(cached + queries, chunk)
    pieces, each = value(mask, step, "pieces"), value(mask, step, "piece_queries")
    assert each == max(Counter(keys.start for keys in seen_by).values())  # the longest chunk
    assert pieces * each == pytest.approx(queries)
    # A kernel that runs each piece as a causal sequence of its own computes the same pairs.
    ends = value(mask, step, "piece_keys")
    assert pieces * (each * ends - each * (each - 1) / 2) == pytest.approx(sum(map(len, seen_by)))


@given(st.integers(1, 40), st.integers(0, 60), limits, st.integers(0, 20), limits, limits)
def test_limits_only_remove_keys(
    queries: int, cached: int, window: int | None, extra: int, selected: int | None, kept: int | None
) -> None:
    step, full = Step(1, queries, cached), AttentionMask()
    limited = AttentionMask(window, extra if window else 0, selected, kept)
    for name in ("keys", "pairs", "held"):
        assert 0 < value(limited, step, name) <= value(full, step, name)
    assert value(limited, step, "pairs") <= queries * (limited.reach or 10**9)


@given(st.integers(1, 40), st.integers(0, 60), st.integers(1, 50))
def test_selection_limits_reads_but_not_the_cache(queries: int, cached: int, selected: int) -> None:
    mask, step = AttentionMask(selected=selected), Step(1, queries, cached)
    assert value(mask, step, "pairs") == sum(min(cached + i + 1, selected) for i in range(queries))
    assert value(mask, step, "held") == cached + queries
    assert value(mask, Step(1, 1, cached), "keys") == min(cached + 1, selected)


def test_a_bounded_cache_stops_growing() -> None:
    mask = AttentionMask(kept=100)
    assert value(mask, Step(1, 1, 50), "pairs") == 51
    assert value(mask, Step(1, 1, 5000), "pairs") == 101
    assert value(mask, Step(1, 1000, 0), "pairs") == 1000 * 1001 / 2  # prefill is whole


def test_bidirectional_attention_sees_all_keys() -> None:
    assert value(AttentionMask(causal=False), Step(1, 8, 4), "pairs") == 8 * 12
    cross = AttentionMask(cross=True, causal=False)
    assert value(cross, Step(1, 8, 4, source=30), "pairs") == 8 * 30
    assert value(cross, Step(1, 8, 4, source=30), "keys") == 30


@given(st.lists(st.integers(1, 50), min_size=1), st.integers(0, 60), limits, st.integers(0, 9), limits, limits)
def test_arrays_equal_scalars(
    queries: list[int], cached: int, window: int | None, extra: int, selected: int | None, kept: int | None
) -> None:
    mask, pool = AttentionMask(window, extra if window else 0, selected, kept), Pool(16, 2, 0.7)
    rules = [mask, pool, AttentionMask(chunk=window or 7)]
    many = extents(Step(1, np.array(queries, float), cached), rules)
    for index, one in enumerate(queries):
        for name, single in extents(Step(1, one, cached), rules).items():
            assert np.broadcast_to(many[name], len(queries))[index] == pytest.approx(single, rel=1e-12)


def test_causal_prefill_sees_half_the_pairs() -> None:
    values = extents(Step(1, 4096, 0), [AttentionMask()])
    assert values["pairs"] == 4096 * 4097 / 2
    assert values["keys"] == 4096


def test_routed_blocks_have_extents_of_their_own() -> None:
    """Experts and neurons of one number: loads of experts alone are uneven, and reach fewer of them."""
    step, pools = Step(6, 1, 0), [Pool(64, 4), Pool(64, 4, routed=True)]
    plain, routed = (extents(step, [each, replace(pools[1], uneven=1.0)])[f"touched{each.suffix}"] for each in pools)
    assert plain > 1.05 * routed
    assert plain == extents(step, pools)[f"touched{pools[1].suffix}"]


@pytest.mark.parametrize("skew", [0.0, 0.5, 1.2])
@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(8, 2, 1), (8, 2, 5), (64, 6, 20), (256, 8, 64)])
def test_touched_experts_against_monte_carlo(experts: int, top_k: int, tokens: int, skew: float) -> None:
    """Each token uses expert e with its probability, independently of other experts (the closed form's assumption)."""
    shares = popularity(experts, top_k, skew)
    draw = np.random.default_rng(1).random((4000, tokens, experts)) < shares
    drawn = draw.any(axis=1).sum(axis=1)
    expected = touched(experts, top_k, tokens, skew)
    assert drawn.mean() == pytest.approx(expected, abs=4 * drawn.std() / np.sqrt(len(drawn)) + 1e-9)


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(8, 2, 5), (64, 6, 20), (256, 8, 64)])
def test_uniform_routing_of_exactly_k_experts(experts: int, top_k: int, tokens: int) -> None:
    """Tokens that draw exactly k distinct experts touch E (1 - (1 - k/E)^T) of them on average."""
    generator = np.random.default_rng(2)
    draws = generator.random((2000, tokens, experts)).argpartition(top_k, axis=-1)[..., :top_k]
    counts = np.array([np.unique(draw).size for draw in draws])
    expected = experts * (1 - (1 - top_k / experts) ** tokens)
    assert touched(experts, top_k, tokens) == pytest.approx(expected, rel=1e-12)
    assert counts.mean() == pytest.approx(expected, abs=4 * counts.std() / np.sqrt(counts.size))


@given(st.integers(1, 256), st.integers(1, 16), st.integers(1, 10_000), st.floats(0, 3), st.floats(0.05, 2))
def test_skew_lowers_the_touched_experts(experts: int, top_k: int, tokens: int, skew: float, more: float) -> None:
    top_k = min(top_k, experts)
    few, many = touched(experts, top_k, tokens, skew + more), touched(experts, top_k, tokens, skew)
    assert top_k - 1e-6 <= few <= many * (1 + 1e-9) <= experts * (1 + 1e-8)


@pytest.mark.parametrize(("experts", "top_k", "tokens"), [(128, 4, 1), (128, 4, 16), (256, 8, 64), (256, 8, 512)])
def test_uneven_experts_against_monte_carlo(experts: int, top_k: int, tokens: int) -> None:
    """Experts whose loads are log-normal, drawn anew for each layer; a token reaches as many as of even ones."""
    loads = np.random.default_rng(3).lognormal(0.0, 1.08, (2000, experts))
    shares = np.minimum(top_k * loads / loads.sum(axis=1, keepdims=True), 1.0)
    expected = (1 - (1 - shares) ** tokens).sum(axis=1).mean()
    assert touched(experts, top_k, tokens, uneven=1.08) == pytest.approx(expected, rel=0.02)


def test_a_large_batch_touches_all_experts() -> None:
    assert touched(256, 8, 10_000) == pytest.approx(256)
    assert touched(256, 8, 1) == pytest.approx(8)
    assert touched(8, 8, 1) == 8


@given(st.integers(1, 300), st.integers(1, 20), st.floats(0, 4))
def test_popularity_is_a_distribution(size: int, used: int, skew: float) -> None:
    shares = popularity(size, min(used, size), skew)
    assert shares.sum() == pytest.approx(min(used, size))
    assert (shares <= 1 + 1e-12).all()
    assert (np.diff(shares) <= 1e-12).all()
