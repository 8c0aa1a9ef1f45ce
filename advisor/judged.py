"""How well a deployment serves a load: the targets that it misses, and what is better the more."""

from __future__ import annotations

import math
from functools import lru_cache

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import ExpectedGeneration
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import serve
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome, Targets
from roofline.timing.intervals import Estimate


def as_served(scenario: Scenario, found: ExpectedGeneration) -> ExpectedGeneration:
    """What one user sees of the engine's server: its first token comes after what the server takes for a request."""
    if found.tpot is None:
        return found
    policy, (low, mid, high) = scenario.profile.scheduler, found.ttft
    below, above = policy.spread_ttft
    first = mid + policy.received(float(scenario.prompt))
    return found._replace(ttft=Estimate(first - below * (mid - low), first, first + above * (high - mid)).at_least(mid))


def missed(found: Outcome | ExpectedGeneration, targets: Targets) -> dict[str, float]:
    """The targets that are missed, each with the value at p95 of a load, or that of one user (s)."""
    if isinstance(found, Outcome):
        values = {"ttft": found.ttft.p95.mid, "tpot": found.tpot.p95.mid}
    else:
        values = {"ttft": found.ttft.mid, "tpot": 0.0 if found.tpot is None else found.tpot.mid}
    pairs = zip(values.items(), targets, strict=True)
    return {name: float(value) for (name, value), target in pairs if value > target}


def speed(outcome: Outcome, load: Load) -> float:
    """What is better the more: tokens/s of users, or, of requests that arrive at a rate, one over their latency."""
    if load.rate is None:
        return outcome.output_tokens_per_second
    return 1 / outcome.e2e.mean.mid if outcome.stable else math.nan


def gain(outcome: Outcome, over: Outcome, load: Load) -> float:
    """How many times better an outcome is than another, of which a larger rate is better where queues grow."""
    if over.stable:
        return speed(outcome, load) / speed(over, load)
    return (outcome.saturated_at or 0) / over.saturated_at if over.saturated_at else math.nan


@lru_cache(maxsize=64)
def judged(scenario: Scenario, load: Load, targets: Targets) -> tuple[bool, int, float]:
    """What ranks scenarios under a load: whether it is sustained, the targets that are met, and the speed."""
    try:
        (outcome,) = serve(scenario, load, untold=False).outcomes
    except RooflineError:
        return (False, -len(targets), -1.0)
    value = speed(outcome, load) if outcome.stable else outcome.saturated_at or 0.0
    return (outcome.stable, -len(missed(outcome, targets)), value)
