"""The KV cache grows with batch and context: where it is much of what is read or kept, store it in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.rules import Finding, Hint, Rule, Said, Vain
from roofline.advisor.search.goal import Objective
from roofline.core.units import si

MUCH = 0.3
"""The share of bytes from which the cache is told."""


def look(case: Case) -> Iterator[Said]:
    """Applies where the cache is a large part of the bytes of a step, or of memory."""
    memory = case.analysis.memory
    if not case.generates or not memory.kv_cache:
        return
    read = case.bytes_share(case.decode, "kv")
    each = float(memory.total - memory.weights) / case.batch  # cache and activations, which grow with the batch
    room = int(max(memory.capacity - memory.weights, 0) // each)
    if read >= MUCH:
        yield Finding(
            f"{read:.0%} of the bytes of a decode step are KV cache",
            case.decode_share * read,
            {
                "cache": si(float(memory.kv_cache), "B"),
                "weights": si(float(memory.weights), "B"),
                "activations in a decode step": f"{case.bytes_share(case.decode, 'activation'):.2%} of its bytes",
                "activations in prefill": f"{case.bytes_share(case.analysis.prefill, 'activation'):.0%} of its bytes",
            },
        )
    if memory.kv_cache >= (MUCH * memory.total if not memory.fits else memory.weights):
        yield Finding(
            f"KV cache is {memory.kv_cache / memory.total:.0%} of what has to be in memory:"
            f" {room} sequences of this length fit, {case.batch} are asked for",
            float(memory.kv_cache / memory.total),
            {
                "cache": si(float(memory.kv_cache), "B"),
                "capacity": si(float(memory.capacity), "B"),
                "a sequence": f"{si(each, 'B')} of cache and activations",
            },
            of="memory",
        )
    limited = not memory.fits or case.goal.batch_varies or case.goal.objective is Objective.MEMORY
    if (read >= MUCH and case.decode_stake >= LITTLE) or (limited and memory.kv_cache > LITTLE * memory.total):
        yield Hint(
            ("KV format",),
            f"cache is {read:.0%} of a step's bytes, and memory has room for {room} sequences where {case.batch} are"
            " asked for",
        )
    elif read < LITTLE and memory.fits:
        yield Vain(
            ("KV format",),
            f"cache is {read:.1%} of the bytes of a decode step, weights are"
            f" {case.bytes_share(case.decode, 'weight'):.0%}: fewer bits of it save next to nothing",
        )


RULE = Rule(
    "growing-cache",
    "The KV cache grows with batch and context and lives as long as a request: quantise it where it dominates bytes or"
    " limits the batch.",
    ("yuan R7", "yuan R18", "zhou 10"),
    look,
)
