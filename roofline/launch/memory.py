"""The context that a server is started with, and the memory that it takes: the proof that it starts."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from roofline.bound.memory import Memory
from roofline.core.errors import RooflineError
from roofline.core.units import si
from roofline.scenario.analysis import analyze
from roofline.scenario.scenario import Scenario

STEP = 1024
"""A context that is limited by the memory is a multiple of so many tokens."""


class Room(NamedTuple):
    """A server's longest context in tokens, whether it is below the model's, its memory in words, and weight bytes."""

    context: int
    limited: bool
    memory: list[str]
    weights: float


def room_of(scenario: Scenario, slots: int, needed: int, allots: bool) -> Room:
    """The context of a server, and the memory that it takes.

    A server that `allots` the KV cache of all its `slots` at its start has the context that requests need, rounded up;
    others have the longest that one request can have. Raises RooflineError where not even that fits.
    """
    given, most = scenario.plain.settings.longest, scenario.model.max_context
    longest = given or (-(-needed // 256) * 256 if allots else most or needed)
    ranks = scenario.settings.parallel.data

    def filled(tokens: int) -> Memory:
        """The memory with sequences at their longest, which the scenario's limits do not check."""
        counts = {"batch": slots if allots else ranks, "prompt": max(tokens - 1, 1), "generate": 1, "prefix": 0}
        return analyze(scenario.changed(**counts, context=None)).memory

    if not filled(longest).fits:
        if given or allots or not filled(needed).fits:
            each, tokens = f" in each of {slots} slots" if allots else "", longest if given or allots else needed
            raise RooflineError(
                f"the server does not start: {tokens:,} tokens{each} do not fit in memory",
                options=["max_model_len", "max_num_seqs"] if allots else ["max_model_len", "kv", "tp"],
            )
        steps = range(needed // STEP + 1, longest // STEP)
        beyond = bisect_right(steps, False, key=lambda step: not filled(step * STEP).fits)
        longest = STEP * steps[beyond - 1] if beyond else needed
    memory = filled(longest)
    held = memory.weights + memory.activation_peak + memory.runtime
    room = memory.budget - held
    cache = memory.kv_cache + memory.state
    parts = [f"weights {si(memory.weights, 'B')}", f"activations {si(memory.activation_peak, 'B')}"]
    parts += [f"runtime {si(memory.runtime, 'B')}"] if memory.runtime else []
    what = (
        f"{slots} slot{'s' * (slots > 1)} of {longest:,} tokens take{'s' * (slots == 1)}"
        if allots
        else f"a sequence of {longest:,} tokens takes"
    )
    lines = [
        f"Memory of the fullest device: {' + '.join(parts)} of {si(float(memory.budget), 'B')} usable leave"
        f" {si(float(room), 'B')} for the KV cache, of which {what} {si(float(cache), 'B')}",
    ]
    return Room(longest, given is not None or (most is not None and longest != most), lines, memory.weights)
