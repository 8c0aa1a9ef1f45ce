"""How well a deployment serves a load: the targets that it misses, and what is better the more."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from roofline.core.errors import RooflineError
from roofline.scenario.analysis import ExpectedGeneration, analyze, static_batch
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import serve
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome, Targets
from roofline.specs.hardware import SERVER_DEVICES
from roofline.specs.model_names import published_in
from roofline.timing.intervals import Estimate
from roofline.whatif.odds import NODES, Odds, odds

PUBLISHED = 1.15
"""How many times better a format without a checkpoint has to be than one that the model is published in."""


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


def handicap(scenario: Scenario) -> float:
    """How many times better a layout has to be than others to come before them.

    No pipeline within a node is measured: one is chosen that is better by more than the error of those over nodes.
    """
    parallel, node = scenario.settings.parallel, scenario.hardware.node_devices
    inside = parallel.tensor < min(node, SERVER_DEVICES) or parallel.tensor * parallel.pipeline <= node
    return 1 + NODES if parallel.pipeline > 1 and inside and not scenario.profile.split_layers else 1.0


def unready(scenario: Scenario) -> float:
    """How many times better formats have to be than others to come before them: those without a checkpoint more."""
    return 1.0 if scenario.given("quant") in (None, *published_in(scenario.model.name)) else PUBLISHED


class Judged(NamedTuple):
    """What ranks scenarios under a load: whether it is sustained, less the targets missed, and the speed.

    `running` are the requests that run on average.
    """

    sustained: bool
    met: int
    value: float
    running: float = 1.0

    @property
    def served(self) -> bool:
        """Whether the load is sustained within all targets."""
        return self.sustained and self.met == 0


@lru_cache(maxsize=64)
def judged(scenario: Scenario, load: Load | None, targets: Targets) -> Judged:
    """How well a scenario serves a load; without one, how many requests/s a user alone has answered."""
    try:
        if load is None:
            return Judged(sustained=True, met=0, value=1 / float(analyze(scenario).expected.total.mid))
        (outcome,) = serve(scenario, load, draft_limit=False).outcomes
    except RooflineError:
        return Judged(sustained=False, met=-len(targets), value=-1.0)
    value = speed(outcome, load) if outcome.stable else outcome.saturated_at or 0.0
    return Judged(outcome.stable, -len(missed(outcome, targets)), value, outcome.running)


def compared(one: Scenario, other: Scenario, load: Load | None, targets: Targets) -> Odds | None:
    """How sure it is that one serves a load better than another; None where they are sustained or late unlike."""
    first, second = (judged(each, load, targets) for each in (one, other))
    if first[:2] != second[:2] or not (first.sustained and second.value > 0):
        return None
    better, worse = static_batch(one, first.running), static_batch(other, second.running)
    return odds(better, worse, ratio=first.value / second.value)
