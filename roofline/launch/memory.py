"""The context that a server is started with, and the memory that it takes: the proof that it starts."""

from __future__ import annotations

from typing import NamedTuple

from roofline.core.errors import RooflineError
from roofline.core.units import si
from roofline.scenario.analysis import filled, longest_context
from roofline.scenario.scenario import Scenario

STEP = 1024
"""A context that is limited by the memory is a multiple of so many tokens, if it has more than 16 times as many."""


def padded(tokens: int) -> int:
    """A context as llama.cpp rounds it up, to a multiple of 256 tokens (`GGML_PAD` in src/llama-context.cpp)."""
    return -(-tokens // 256) * 256


class Room(NamedTuple):
    """A server's longest context in tokens, whether it is below the model's, its memory in words, and weight bytes."""

    context: int
    limited: bool
    memory: list[str]
    weights: float


def room_of(scenario: Scenario, slots: int, needed: int, allots: bool) -> Room:
    """The context of a server, and the memory that it takes.

    A server that `allots` the KV cache of all its `slots` at its start has the context that requests of a length that
    was said need, rounded up; others have the longest that there is room for. Raises RooflineError where not even that
    fits.
    """
    given, most = scenario.plain.settings.longest, scenario.model.max_context
    rounded = padded(needed)
    exact = allots and (most is None or any(scenario.given(name) is not None for name in ("prompt", "generate")))
    longest = given or (rounded if exact else most or needed)
    sequences = slots if allots else scenario.settings.parallel.data
    if not filled(scenario, sequences, longest).fits:
        if given or exact or not filled(scenario, sequences, needed).fits:
            each, tokens = f" in each of {slots} slots" if allots else "", longest if given or exact else needed
            raise RooflineError(
                f"the server does not start: {tokens:,} tokens{each} do not fit in memory",
                options=["max_model_len", "max_num_seqs"] if allots else ["max_model_len", "kv", "tp"],
            )
        held = longest_context(scenario, sequences)
        longest = max(held // STEP * STEP if held > 16 * STEP else held, needed)
    memory = filled(scenario, sequences, longest)
    room = memory.budget - (memory.weights + memory.activation_peak + memory.runtime)
    cache = memory.kv_cache + memory.state
    parts = [f"weights {si(memory.weights, 'B')}", f"activations {si(memory.activation_peak, 'B')}"]
    parts += [f"runtime {si(memory.runtime, 'B')}"] if memory.runtime else []
    what = (
        f"{slots} slot{'s' * (slots > 1)} of {longest:,} tokens take{'s' * (slots == 1)}"
        if allots
        else f"a sequence of {longest:,} tokens takes"
    )
    kept = f" for the KV cache, of which {what} {si(float(cache), 'B')}" if cache else ""
    lines = [
        f"Memory of the fullest device: {' + '.join(parts)} of {si(float(memory.budget), 'B')} usable leave"
        f" {si(float(room), 'B')}{kept}"
    ]
    return Room(longest, given is not None or (most is not None and longest != most), lines, memory.weights)
