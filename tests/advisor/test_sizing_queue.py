"""A replica under load: closed forms, and a simulation of what an engine does, step by step."""

import heapq
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from roofline.advisor.sizing.queueing import Prefill, Replica, Targets, load, replicas_for


def replica(
    prefill: float = 0.08, step: float = 0.008, each: float = 2e-4, steps: float = 100, size: int = 64
) -> Replica:
    return Replica(Prefill(prefill, prefill**2, prefill), step + each * np.arange(size), steps, 1 / steps)


def simulated(found: Replica, rate: float, limit: int, drawn: str, requests: int = 20000) -> dict[str, np.ndarray]:
    """Discrete events: prefill first, one prompt at a time, where a slot is free; else a step of all that decode."""
    random = np.random.default_rng(1)
    arrivals = np.cumsum(random.exponential(1 / rate, requests))
    lengths = {
        "constant": lambda: np.full(requests, found.steps),
        "exponential": lambda: np.maximum(1, random.exponential(found.steps, requests).round()),
    }[drawn]()
    now, begun = 0.0, 0
    active: list[tuple[float, int]] = []  # by the step after which they end
    done_steps = 0
    first, last = np.zeros(requests), np.zeros(requests)
    while begun < requests or active:
        if begun < requests and arrivals[begun] <= now and len(active) < limit:
            now += found.prefill.mean
            first[begun] = now
            heapq.heappush(active, (done_steps + lengths[begun], begun))
            begun += 1
        elif active:
            now += found.step[len(active) - 1]
            done_steps += 1
            while active and active[0][0] <= done_steps:
                last[heapq.heappop(active)[1]] = now
        else:
            now = arrivals[begun]
    kept = slice(requests // 10, requests * 9 // 10)
    ttft, tpot = first - arrivals, (last - first) / lengths
    tokens = np.average(tpot[kept], weights=lengths[kept])
    return {"ttft": ttft[kept], "tpot": tpot[kept], "mean_tpot": tokens}


@pytest.mark.parametrize("drawn", ["constant", "exponential"])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.6, 0.8])
@pytest.mark.parametrize("limit", [64, 12])
def test_waits_and_steps_agree_with_a_simulation(share, limit, drawn) -> None:
    found = replica()
    if drawn == "exponential":
        lengths = np.maximum(1, (-100 * np.log1p(-(np.arange(1000) + 0.5) / 1000)).round())
        found = replace(found, inverse=float(np.mean(1 / lengths)))
    rate = share * float(found.ceilings[limit - 1])
    events = simulated(found, rate, limit, drawn)
    mean, most = load(found, rate), load(found, rate, 0.95)
    at = limit - 1
    assert mean.tpot[at] == pytest.approx(events["mean_tpot"], rel=0.16)
    assert mean.ttft[at] == pytest.approx(events["ttft"].mean(), rel=0.15)
    for name in ("tpot", "ttft"):
        assert 0.75 <= getattr(most, name)[at] / np.quantile(events[name], 0.95) <= 1.4


def test_without_decoding_the_wait_is_that_of_pollaczek_and_khinchine() -> None:
    rate, prefill = 5.0, Prefill(0.1, 0.02, 0.1)
    found = load(Replica(prefill, np.full(64, 1e-9), 1.0, 1.0), rate)
    wait = rate * prefill.second / 2 / (1 - rate * prefill.mean)
    assert found.ttft[-1] == pytest.approx(prefill.mean + wait, rel=1e-6)


def test_with_one_slot_and_no_prefill_it_is_the_queue_of_one_server() -> None:
    """M/M/1: the time in the system is 1 / (mu - L), and the server is busy a share L / mu of the time."""
    steps, step, rate = 50.0, 0.01, 1.2
    found = load(Replica(Prefill(1e-12, 1e-24, 1e-12), np.array([step]), steps, 1 / steps), rate)
    served = 1 / (steps * step)
    assert found.batch[0] == pytest.approx(rate / served, rel=1e-9)
    assert found.tpot[0] == pytest.approx(step, rel=1e-9)
    queued = 1 / (served - rate) - 1 / served
    assert found.ttft[0] - rate / served * step / 2 == pytest.approx(queued, rel=1e-6)


def test_at_next_to_no_load_nothing_waits() -> None:
    found = replica()
    for quantile in (None, 0.5, 0.95):
        loaded = load(found, 1e-7, quantile)
        assert loaded.ttft[-1] == pytest.approx(found.prefill.mean, rel=1e-4)
        assert loaded.tpot[-1] == pytest.approx(found.step[0], rel=1e-3)


@given(st.floats(0.01, 0.95), st.integers(1, 64), st.floats(0.5, 0.99))
def test_little_and_order(share, limit, quantile) -> None:
    """Sequences are rate times steps times TPOT; all rises with the rate."""
    found = replica()
    at = limit - 1
    rate = share * float(found.ceilings[at])
    mean = load(found, rate)
    assert mean.batch[at] == pytest.approx(rate * found.steps * mean.tpot[at], rel=1e-9)
    assert found.step[0] <= mean.tpot[at] * (1 + 1e-9)
    for chosen in (None, quantile):
        below, above = load(found, rate * 0.9, chosen), load(found, rate, chosen)
        assert below.ttft[at] <= above.ttft[at] * (1 + 1e-9)
        assert below.tpot[at] <= above.tpot[at] * (1 + 1e-9)


def test_beyond_its_ceiling_a_replica_has_no_steady_state() -> None:
    found = replica()
    assert math.isinf(load(found, float(found.ceilings[-1]) * 1.0001).ttft[-1])
    assert math.isfinite(load(found, float(found.ceilings[-1]) * 0.9999).ttft[-1])


@given(st.floats(0.1, 3), st.floats(0.009, 0.1), st.floats(1, 3))
def test_the_largest_rate_meets_the_targets_and_rises_with_them(ttft, tpot, looser) -> None:
    found = replica()
    targets_of = Targets(found, ttft, tpot, 0.9)
    rate = targets_of.max_rate()
    assert Targets(found, ttft * looser, tpot, 0.9).max_rate() >= rate
    assert Targets(found, ttft, tpot * looser, 0.9).max_rate() >= rate
    if rate:
        loaded = load(found, rate, 0.9)
        chosen = targets_of.slots(loaded)
        assert loaded.ttft[chosen - 1] <= ttft
        assert loaded.tpot[chosen - 1] <= tpot


@given(st.floats(0.1, 3), st.floats(0.009, 0.1), st.floats(1e-4, 300))
def test_the_fewest_replicas_are_those_of_the_largest_rate(ttft, tpot, rate) -> None:
    """One to four are found without it, others by it."""
    targets_of = Targets(replica(), ttft, tpot, 0.9)
    largest = targets_of.max_rate()
    assert targets_of.min_replicas(rate) == (replicas_for(rate, largest) if largest else 0)
    assert Targets(replica(), ttft, tpot, 0.9).min_replicas(rate) == targets_of.min_replicas(rate)
