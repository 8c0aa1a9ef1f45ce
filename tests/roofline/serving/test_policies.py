"""Policies of the event simulation: which request is next."""

import numpy as np
import pytest

from roofline import Scenario, serve
from roofline.core.errors import RooflineError
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome
from roofline.serving.policies import POLICIES, simulate
from roofline.serving.replica import replica_of

HEAVY_TAILED = Scenario("opt-13b", "a100-sxm-40gb", prompt=200, generate="lognormal:mean=250,p95=900")
CROWDED = Scenario("llama-2-7b", "a10g", prompt=256, generate=256)


def outcome(
    scenario: Scenario, rate: float, policy: str, tenants: tuple[float, ...] = (), requests: int = 600
) -> Outcome:
    return serve(scenario, rate=rate, simulate=requests, policy=policy, tenants=tenants).outcomes[0]


@pytest.mark.parametrize("policy", POLICIES)
def test_every_request_gets_its_tokens(policy: str) -> None:
    load = Load(rate=4.0, policy=policy, tenants=(1.0, 2.0)).of(HEAVY_TAILED)
    served = simulate(replica_of(HEAVY_TAILED, load), load, 300, 1)
    plain = simulate(replica_of(HEAVY_TAILED, load), Load(rate=4.0).of(HEAVY_TAILED), 300, 1)
    assert sorted(served.output) == sorted(plain.output)
    assert np.ptp(served.arrival) == pytest.approx(np.ptp(plain.arrival), rel=0.15)
    assert (served.first > served.arrival).all()
    assert (served.last >= served.first).all()


def test_one_tenant_in_order_of_arrival_is_the_plain_simulation() -> None:
    load = Load(rate=4.0, tenants=(1.0,)).of(HEAVY_TAILED)
    replica = replica_of(HEAVY_TAILED, load)
    own, plain = (simulate(replica, each, 300, 1) for each in (load, Load(rate=4.0).of(HEAVY_TAILED)))
    np.testing.assert_array_equal(own.last, plain.last)


@pytest.mark.slow
def test_fastserve_serves_more_at_the_same_latency_than_in_order_of_arrival() -> None:
    """Up to 6.1 times vLLM's throughput at the same average latency (Wu et al. 2026, NSDI)."""
    busy, more = (outcome(HEAVY_TAILED, *at, requests=1200) for at in ((3, "fcfs"), (4, "fastserve")))
    assert more.e2e.mean.mid < busy.e2e.mean.mid
    assert more.ttft.p95.mid < busy.ttft.p95.mid / 10


def test_short_requests_first_lowers_the_mean_wait() -> None:
    assert outcome(HEAVY_TAILED, 4, "shortest").ttft.mean.mid < 0.3 * outcome(HEAVY_TAILED, 4, "fcfs").ttft.mean.mid


def test_fair_counters_protect_a_tenant_from_the_requests_of_another() -> None:
    """Of two tenants the one below its fair share waits little, and the other takes the rest (Sheng et al. 2024)."""
    light, heavy = outcome(CROWDED, 6, "vtc", (1, 3)).tenants
    together = outcome(CROWDED, 6, "fcfs", (1, 3)).tenants
    assert light.ttft.mean.mid < 0.3 * heavy.ttft.mean.mid
    assert together[0].ttft.mean.mid == pytest.approx(together[1].ttft.mean.mid, rel=0.3)


def test_priority_classes_wait_for_no_lower_class() -> None:
    urgent, other = outcome(CROWDED, 6, "priority", (1, 3)).tenants
    assert urgent.ttft.p95.mid < 0.2 * other.ttft.p95.mid


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "shortest"},
        {"tenants": (1, 3)},
        {"tenants": "1,-3"},
        {"policy": "priority", "simulate": 9},
        {"tenants": (3,), "simulate": 9},
    ],
)
def test_what_a_run_does_not_have_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(RooflineError):
        serve(CROWDED, rate=2.0, **options)
