"""Intervals of served latencies: what a median, drafts, and exchanges without measured constants do to them."""

import pytest

from roofline import Scenario, serve
from roofline.serving.outcome import Outcome


def served(hardware: str, pools: str | None = None, **options: object) -> Outcome:
    scenario = Scenario("deepseek-r1", hardware, engine="sglang", prompt=1000, generate=200, **options)
    return serve(scenario, concurrency=16, disaggregation=pools).outcomes[0]


@pytest.mark.parametrize("drafts", [None, "multi-token-prediction:length=3"])
@pytest.mark.parametrize("pools", [None, "2:1"])
def test_a_median_is_surer_than_a_mean_and_drafts_make_both_alike(drafts: str | None, pools: str | None) -> None:
    """A mean has stalls in it that a median has not; what a run accepts moves every request of it."""
    found = served("h200-sxm", pools, tp=8, techniques=[drafts] if drafts else None)
    for latency in (found.tpot, found.ttft):
        mean, median = ((each.low / each.mid, each.high / each.mid) for each in (latency.mean, latency.p50))
        if drafts:
            assert median == pytest.approx(mean)
        else:
            assert mean[0] < median[0] < 1 < median[1] < mean[1]
        assert latency.p95.low >= latency.p50.low


def test_ranks_that_exchange_by_mori_may_take_twice_as_long_within_a_node() -> None:
    """InferenceX's rows on 8 MI355X: 1.0 to 2.0 times the expected time; other exchanges there are measured."""
    mori, other = (served("mi355x", ep=8, all_to_all=name).tpot.mean for name in ("mori", "deepep"))
    assert mori.high >= 2 * mori.mid
    assert mori.low / mori.mid < other.low / other.mid
    assert other.high < 1.5 * other.mid
