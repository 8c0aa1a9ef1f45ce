"""The busiest rank of experts."""

import math

import numpy as np
import pytest

from roofline.serving.ranks import UNEVEN_EXPERTS, busiest


@pytest.mark.parametrize("tokens", [1, 16, 256])
@pytest.mark.parametrize("ranks", [2, 8])
def test_the_busiest_expert_rank_is_that_of_random_routing(tokens, ranks) -> None:
    random = np.random.default_rng(0)
    experts = random.random((400, tokens, 256)).argpartition(8, axis=2)[:, :, :8]
    rows = (experts[..., np.newaxis] // (256 // ranks) == np.arange(ranks)).sum(axis=(1, 2))
    expected = rows.max(axis=1).mean() * ranks / 8
    assert float(busiest(np.array([float(tokens)]), ranks, 8)[0]) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("ranks", [4, 8, 32])
def test_the_busiest_expert_rank_is_that_of_uneven_experts(ranks) -> None:
    """With many tokens it is the largest sum of the loads of its experts, here of a log-normal distribution."""
    loads = np.random.default_rng(0).lognormal(0.0, UNEVEN_EXPERTS, (4000, ranks, 256 // ranks)).sum(axis=2)
    expected = (loads.max(axis=1) / loads.mean(axis=1)).mean()
    found = busiest(np.array([1e9]), ranks, 8, math.expm1(UNEVEN_EXPERTS**2) / 256)
    assert float(found[0]) / 1e9 == pytest.approx(expected, rel=0.1)


def test_the_busiest_of_32_ranks_is_as_measured() -> None:
    """2.56 times the mean of DeepSeek-R1's layers (NVIDIA/TensorRT-LLM, examples/wide_ep/ep_load_balancer)."""
    found = busiest(np.array([4096.0]), 32, 8, math.expm1(UNEVEN_EXPERTS**2) / 256)
    assert float(found[0]) / 4096 == pytest.approx(2.56, rel=0.08)
