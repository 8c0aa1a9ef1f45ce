"""Rules about attention: its kernels, its structure, long contexts, and the KV cache."""

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
from roofline.scenario.phase import OpFigures, Phase
from roofline.specs.sublayers import Attention

FLASH_BYTES = 0.01
"""Attention's share of the bytes of prefill from which FlashAttention is worth a hint."""

FLASH_DECODING_SHARE = 0.2
"""Attention's share of a decode step from which its thread blocks are counted."""

LONG_CONTEXT_SHARE = 0.25
"""Attention's share of the time, or the KV cache's of memory, from which long-context methods are hinted at."""

CACHE_BYTES = 0.1
"""The KV cache's share of a decode step's bytes from which shared KV heads are worth a hint."""

STATE_BYTES = 0.25
"""The KV cache's share of a decode step's bytes from which a state of fixed size is worth a hint."""

TOKEN_DROPPING = ("attention pattern", "KV cache eviction")
RETRAINED_STRUCTURES = ("KV heads", "KV sharing", "attention pattern", "experts")
"""Slots of other architectures, some of which are trained from scratch."""

FIXED_STATE = ("linear-attention",)
"""Moves that keep a state of fixed size."""


@rule
def flash_attention(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where attention is unfused and its scores grow with the square of the prompt."""
    if "attention" in case.analysis.fusions:
        yield from told("fused")
        return
    prefill = case.analysis.prefill
    parts = [op for op in prefill.ops if op.name.endswith(("softmax", "qk", "sv"))]
    moved = sum(float(op.count * op.bytes) for op in parts)
    share = moved / float(prefill.bytes)
    if not moved or share < FLASH_BYTES:
        return
    if share >= NEGLIGIBLE:
        time = case.time_share(prefill, lambda op: op in parts)
        yield from told("scores", case.prefill_share * time, share=share, time=time, moved=moved)
    yield from told("unfused", share=share)


@rule
def flash_decoding(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where decode attention has fewer sequences and KV heads than the device has SMs."""
    units, attentions = case.hardware.units, case.model.attentions
    if not case.generates or units is None or not attentions or case.decode_stake < NEGLIGIBLE:
        return
    heads = max(1, max(part.kv_heads for part in attentions) // case.scenario.settings.parallel.tensor)
    blocks = case.batch * heads
    share = case.time_share(case.decode, lambda op: op.kv_bytes > 0)
    if share < NEGLIGIBLE:
        yield from told("short", share=share)
    if blocks < units and share >= FLASH_DECODING_SHARE:
        fused = "attention" in case.analysis.fusions
        yield from told("fused" if fused else "unfused", share=share, blocks=blocks, heads=heads)


@rule
def gqa(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to MHA models whose decode reads much KV cache."""
    trained = tuple(
        move.name
        for move in case.moves.values()
        if move.slot in RETRAINED_STRUCTURES and move.price.value == "retraining" and case.gain(move.name) > HELPS
    )
    if trained:
        yield from told("trained", moves=trained)
    if not case.generates or not (attentions := case.model.attentions):
        return
    share = case.bytes_share(case.decode, "kv")
    group = min(attention.group for attention in attentions)
    heads = max(attention.heads for attention in attentions)
    if group > 1:
        yield from told("shared", group=group)
    elif heads > 1 and share < CACHE_BYTES:
        yield from told("small", share=share)
    elif heads > 1:
        weight = case.decode_share * case.kind_shares.get("attention", 0.0)
        yield from told("large", weight, heads=heads, share=share, cache=float(case.analysis.memory.kv_cache) / 1e9)


@rule
def long_context(case: Case, told: Told) -> Iterator[Finding]:
    """Applies where attention takes much of prefill or of decode."""
    prefill = _attention_share(case, case.analysis.prefill)
    decode = _attention_share(case, case.decode) if case.generates else 0.0
    share = case.prefill_share * prefill + case.decode_share * decode
    context = int(case.scenario.first_cached + case.scenario.generate)
    memory, shares = case.analysis.memory, {"context": context, "prefill": prefill, "decode": decode}
    if share >= LONG_CONTEXT_SHARE:
        yield from told("slow", share, share=share, **shares)
    stake = case.prefill_stake * prefill + case.decode_stake * decode
    if stake >= LONG_CONTEXT_SHARE or memory.kv_cache > LONG_CONTEXT_SHARE * memory.total:
        yield from told("methods", moves=(*TOKEN_DROPPING, "prompt", "KV format"), **shares)
    for name, trial in case.placed_of(*TOKEN_DROPPING):
        if attentions := trial.analysis.scenario.model.attentions:
            visible = _visible(attentions, context)
            yield from told("dropped" if visible < context else "kept", moves=(name,), visible=visible, context=context)
    for name, trial in case.placed_of("prompt"):
        yield from told("compressed", moves=(name,), kept=int(trial.analysis.scenario.prompt_tokens))


def _attention_share(case: Case, phase: Phase) -> float:
    """Attention's share of a phase: of the bound time, which excludes launches, or of the expected time if lower."""
    bound = sum(float(op.share) for op in phase.ops if _attends(op))
    return min(bound, case.time_share(phase, _attends))


def _attends(op: OpFigures) -> bool:
    return bool(op.kv_bytes > 0) or op.kind == "attention" or op.name.endswith("softmax")


def _visible(attentions: tuple[Attention, ...], context: int) -> int:
    """Tokens that a query attends to in the layer with the fewest."""
    windows = [each.window + each.extra for each in attentions if each.window is not None]
    limits = [limit for each in attentions for limit in (each.selected, each.kept) if limit is not None]
    return min(context, *windows, *limits)


@rule
def linear_attention(case: Case, told: Told) -> Iterator[Finding]:
    """Applies to models with a recurrent state, and to others whose decode reads much KV cache."""
    if not case.generates:
        return
    memory = case.analysis.memory
    if float(memory.state) > 0:
        state, cache = (float(size) / case.batch for size in (memory.state, memory.kv_cache))
        yield from told("recurrent", float(memory.state) / float(memory.total), state=state, cache=cache)
        return
    share = case.bytes_share(case.decode, "kv")
    if share < STATE_BYTES:
        yield from told("small", moves=FIXED_STATE, share=share)
        return
    yield from told("large", moves=FIXED_STATE, share=share)
    if any(case.gain(name) > HELPS for name in FIXED_STATE):
        yield from told("studied", moves=FIXED_STATE)


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
    kept = max((attention.kv_heads for attention in case.model.attentions), default=0)
    heads, parallel = 1 if case.model.uses_mla else kept, case.analysis.parallel  # those that can be divided
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
