"""Rules about the KV cache: its size, its format, its allocation, and the room it leaves."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.rules import Finding, Told, rule
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Objective
from roofline.advisor.search.moves import Kind
from roofline.bound.memory import kv_bytes_per_token
from roofline.core.errors import RooflineError
from roofline.core.units import si
from roofline.graph.parallel import Parallelism

LARGE_CACHE = 0.3
"""Share of bytes from which the KV cache is reported."""

WASTED = 0.05
"""Share of device memory reserved but unused from which it is reported."""

UNUSED = 0.2
"""Share of device memory free from which it is reported."""

OVERPREDICTED = "s3:excess=2"
"""A length predictor that reserves twice the tokens needed."""


@rule
def kv_cache_growth(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where the KV cache is a large part of the bytes of a step, or of memory."""
    memory = case.analysis.memory
    if not case.generates or not memory.kv_cache:
        return
    read, activations = (case.bytes_share(case.decode, role) for role in ("kv", "activation"))
    each = float(memory.kv_cache + memory.state) / case.batch
    room = int(max(float(memory.headroom) + each * case.batch, 0) // each)
    if read >= LARGE_CACHE:
        prefill = case.bytes_share(case.analysis.prefill, "activation")
        yield from told("read", case.decode_share * read, read=read, activations=activations, prefill=prefill)
    if memory.kv_cache >= (LARGE_CACHE * memory.total if not memory.fits else memory.weights):
        part = float(memory.kv_cache / memory.total)
        yield from told("held", part, of_memory=part, room=room, each=each)
    limited = not memory.fits or case.goal.batch_varies or case.goal.objective is Objective.MEMORY
    if (read >= LARGE_CACHE and case.decode_stake >= NEGLIGIBLE) or (
        limited and memory.kv_cache > NEGLIGIBLE * memory.total
    ):
        yield from told("large", read=read, room=room)
    elif read < NEGLIGIBLE and memory.fits:
        yield from told("small", read=read, weights=case.bytes_share(case.decode, "weight"))


@rule
def paged_cache(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where memory is reserved for longer sequences than there are."""
    scenario, memory = case.scenario, case.analysis.memory
    if scenario.settings.kv_reserved is None or not case.generates or not memory.kv_cache:
        return
    used, reserved = int(scenario.first_cached + scenario.generate - 1), float(scenario.settings.kv_reserved)
    wasted = 1 - used / reserved
    if wasted <= 0:
        return
    weight, lost = float(memory.kv_cache / memory.total) * wasted, float(memory.kv_cache) * wasted
    yield from told("reserved", weight, wasted=wasted, reserved=reserved, used=used, lost=lost)
    yield from told("scattered")


@rule
def kv_allocation(case: Case, told: Told) -> Iterator[Finding]:
    """Compares the memory reserved for KV cache with allocation by the token."""
    exact = case.technique("token-attention") if case.generates else None
    if exact is None:
        return
    memory, settings = case.analysis.memory, case.scenario.settings
    wasted = float(memory.kv_cache) - float(exact.analysis.memory.kv_cache)
    if wasted > WASTED * float(memory.budget):
        block = settings.kv_reserved or settings.kv_block
        yield from told("wasted", wasted / float(memory.total), wasted=wasted, block=block)
        return
    left = float(memory.headroom)
    state = f"{si(left, 'B')} of memory are free" if left > 0 else "the memory shortfall has other causes"
    yield from told("used", wasted=wasted, left=state)


@rule
def length_prediction(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where reserving memory for predicted lengths is offered and helps."""
    offered = case.moves.get("s3")
    trial = None if offered is None else case.trials.attempt([offered])
    if trial is None or (len(trial.missed) >= len(case.base.missed) and case.gain("s3") <= HELPS):
        return
    if (missed := case.technique(OVERPREDICTED)) is not None:
        exact, twice = (float(found.analysis.memory.total) / 1e9 for found in (trial, missed))
        fits = "fits" if missed.used["capacity"] <= 1 else "does not fit"
        yield from told("exact", exact=exact, twice=twice, fits=fits)


@rule
def unused_memory(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where the batch may vary, a larger one fits, and a fifth of the memory is free."""
    memory = case.analysis.memory
    left = float(memory.headroom) / float(memory.budget)
    if case.goal.batch_varies and left >= UNUSED and case.max_batch != case.batch:
        yield from told("free", left, left=left)


@rule
def kv_heads(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where the tensor-parallel degree exceeds the KV heads, now or after a move of the same devices."""
    heads, parallel = _divisible_heads(case), case.analysis.parallel
    if not heads or not case.generates:
        return
    degrees = {
        move.name: trial.analysis.parallel.tensor
        for move, trial in case.offered(Kind.PARALLELISM)
        if trial.analysis.parallel.devices == parallel.devices
    }
    shared = "all query heads share one cache" if heads == 1 else f"there are {heads} KV heads"
    unit = "one device" if heads == 1 else f"{heads} tensor-parallel devices"
    if beyond := tuple(name for name, tensor in degrees.items() if tensor > max(heads, parallel.tensor)):
        yield from told("beyond", moves=beyond, unit=unit, shared=shared)
    if parallel.tensor <= heads:
        return
    try:
        now, before = (
            kv_bytes_per_token(case.model, case.precision, Parallelism(tensor=tensor, pipeline=parallel.pipeline))
            for tensor in (parallel.tensor, heads)
        )
    except RooflineError:
        return
    if now < before:
        return
    memory, copies = case.analysis.memory, parallel.tensor // heads
    weight = float(memory.kv_cache / memory.total) * (1 - heads / parallel.tensor)
    fewer = tuple(name for name, tensor in degrees.items() if tensor <= heads)
    moves = (*fewer, "sequence parallelism", "KV format")
    yield from told("copied", weight, moves, shared=shared, unit=unit, tensor=parallel.tensor, copies=copies, now=now)


def _divisible_heads(case: Case) -> int:
    """KV heads that tensor parallelism can divide: 1 with MLA, 0 without attention."""
    if case.model.uses_mla:
        return 1
    return max((attention.kv_heads for attention in case.model.attentions), default=0)
