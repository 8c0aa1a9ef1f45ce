"""Adapters beyond the slots of a device: a batch has no more of them than slots, and others come from host memory.

A request whose adapter has no slot waits for its weights, one request after the other, over each device's link to its
host; the slots hold the most popular adapters. Sequences are as many as have together, on average, one adapter a slot
(vLLM passes over requests whose adapter finds no slot, so that it fills batches further where many wait).
"""

from __future__ import annotations

from msgspec.structs import replace

from roofline.core import numeric as np
from roofline.graph.extents import popularity, touched
from roofline.graph.rewrite import Adapter
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario
from roofline.serving.sessions.tiers import parse_tiers
from roofline.specs.scheduler import Scheduler

MOST = 4096
"""The most sequences that are counted."""


def with_slots(scenario: Scenario, policy: Scheduler) -> Scheduler:
    """The scheduler with the limits of the slots of adapters, and the time of reading those that have none."""
    adapter = next((each for each in scenario.settings.rewrites if isinstance(each, Adapter)), None)
    if adapter is None or adapter.slots is None or adapter.slots >= adapter.adapters:
        return policy
    slots = adapter.slots
    whole = scenario.changed(
        batch=scenario.settings.parallel.data, prompt=1, generate=2, prefix=0, images=0, context=None
    )
    others = tuple(each for each in scenario.settings.rewrites if each is not adapter)
    plain = whole.changed(settings=replace(scenario.settings, rewrites=others))
    size = (analyze(whole).memory.weights - analyze(plain).memory.weights) / slots
    (memory,) = parse_tiers("dram=1TB", scenario)
    missed = 1 - float(popularity(adapter.adapters, 1, adapter.skew)[:slots].sum())
    reading = missed * size * scenario.settings.parallel.devices / memory.bandwidth
    at_once = touched(adapter.adapters, 1, np.arange(1, MOST + 1), adapter.skew)
    most = max(int(np.searchsorted(at_once, slots, side="right")), 1)
    return replace(policy, request=policy.request + reading, sequences=min(policy.sequences or MOST, most))
