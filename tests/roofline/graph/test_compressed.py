"""DeepSeek-V4: the extents of compressed entries, its cache against DeepSeek-V3.2's, and its hyper-connections."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from roofline import Scenario, active_parameters, analyze, load_hardware, load_model, parameters
from roofline.graph.extents import AttentionMask, Step
from roofline.graph.network import network
from roofline.graph.op import Kind
from roofline.graph.tensor import Role
from roofline.specs.precision import parse_precision

B300 = load_hardware("b300-sxm")


def seen(mask: AttentionMask, cached: int, queries: int) -> Iterator[tuple[int, int]]:
    """The window and the entries that each query sees, one by one."""
    for position in range(cached, cached + queries):
        window = 0 if mask.window is None else min(position + 1, mask.window)
        entries = (position + 1) // (mask.ratio or 1)
        yield window, entries if mask.selected is None else min(entries, mask.selected)


@given(
    st.integers(0, 300),
    st.integers(1, 200),
    st.sampled_from([4, 7, 128]),
    st.sampled_from([None, 3, 20]),
    st.sampled_from([None, 16]),
)
def test_pairs_are_those_of_a_count(cached: int, queries: int, ratio: int, selected: int | None, window: int) -> None:
    mask = AttentionMask(window=window, selected=selected, ratio=ratio)
    values = mask.values(Step(1, queries, cached))
    pairs = list(seen(mask, cached, queries))
    assert values[f"pairs{mask.suffix}"] == sum(map(sum, pairs))
    entries = (cached + queries) // ratio
    near = 0 if window is None else min(cached, window - 1) + queries
    assert values[f"keys{mask.suffix}"] == near + (entries if selected is None else min(entries, queries * selected))
    held = 0 if window is None else min(cached + queries, window)
    assert values[f"held{mask.suffix}"] == held + entries


def test_a_grid_is_its_points() -> None:
    mask = AttentionMask(window=128, selected=512, ratio=4)
    cached = np.array([0.0, 100.0, 5000.0])
    grid = mask.values(Step(2, 16, cached))
    for index, value in enumerate(cached.tolist()):
        point = mask.values(Step(2, 16, value))
        assert all(grid[name][index] == point[name] for name in point)


def test_cache_is_a_tenth_of_deepseek_v3_2() -> None:
    """At a million tokens 10% of the cache of V3.2 for V4-Pro, and 7% for V4-Flash (DeepSeek-V4, 2026, abstract).

    There index keys have 4 bits and V3.2's latents 656 bytes; here 8 bits as in vLLM, and 576 bytes.
    """

    def cache(name: str, **options: str) -> float:
        model = load_model(name)
        answer = analyze(Scenario(model, B300, prompt=1_000_000, generate=1, tp=8, **options))
        return float(answer.memory.kv_cache)

    whole = cache("deepseek-v3.2", kv="fp8")
    assert cache("deepseek-v4-pro") / whole == pytest.approx(0.10, abs=0.03)
    assert cache("deepseek-v4-flash") / whole == pytest.approx(0.07, abs=0.02)


def test_active_parameters_are_the_published_ones() -> None:
    assert active_parameters(load_model("deepseek-v4-pro")) == pytest.approx(49e9, rel=0.02)
    assert active_parameters(load_model("deepseek-v4-flash")) == pytest.approx(13e9, rel=0.07)


def test_entries_cost_what_the_engine_stores() -> None:
    """584 bytes an entry (448 in FP8, 64 rotary in 16 bits, 8 of scales), 132 an index key; a waiting state in fp32."""
    graph = network(load_model("deepseek-v4-flash"), parse_precision("bf16"))
    cached = {t.name: t for op, _, section in graph.ops if section == "csa_routed" for t in op.reads}
    assert cached["latent_cache"].format.bytes * 512 == 584
    assert cached["index_key_cache"].format.bytes * 128 == 132
    assert cached["compress.state"].role is Role.STATE
    assert float(cached["compress.state"].stored_elements.evaluate({"batch": 1})) == 2 * 4 * 2 * 1024


def test_hyper_connections_keep_four_streams() -> None:
    graph = network(load_model("deepseek-v4-flash"), parse_precision("bf16"))
    ops = [op for op, _, section in graph.ops if section == "hca_routed" and op.kind is Kind.HYPER_CONNECTION]
    assert [op.name for op in ops] == ["attn_hc_pre", "attn_hc_post", "mlp_hc_pre", "mlp_hc_post"]
    assert ops[0].reads[1].shape == (24, 4 * 4096)


def test_kimi_k3_is_its_released_tensors() -> None:
    """Two FP4 codes and 1/32 of scales an element of an expert, and 2,208 zeros: the elements of its safetensors."""
    experts = 92 * 896 * 3 * 3584 * 3072
    rest = parameters(load_model("kimi-k3")) - experts
    assert experts * 17 / 32 + rest + 2208 == 1_503_647_073_024


def test_a_tower_that_ranks_do_not_divide_is_replicated() -> None:
    """Twelve heads of Kimi K3's tower on eight ranks."""
    scenario = Scenario(load_model("kimi-k3"), B300, tp=8, ep=8, prompt=1000, generate=10, images=1)
    assert scenario.image_tokens == 256
    assert analyze(scenario).memory.fits


def test_a_prediction_module_of_v4_keeps_a_window() -> None:
    """A draft costs a window of cache, not the entries of a compressed layer."""

    def cache(**more: object) -> float:
        model = load_model("deepseek-v4-flash")
        return float(analyze(Scenario(model, B300, prompt=100_000, generate=10, **more)).memory.kv_cache)

    drafted = cache(techniques=("multi-token-prediction",))
    assert cache() < drafted < cache() * 1.02
