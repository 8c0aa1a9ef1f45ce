"""Rules about attention: its kernels, its structure, and long contexts."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.rules import Finding, Told, rule
from roofline.advisor.search.breakeven import HELPS
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
    found = context
    for attention in attentions:
        if attention.window is not None:
            found = min(found, attention.window + attention.extra)
        for limit in (attention.selected, attention.kept):
            if limit is not None:
                found = min(found, limit)
    return found


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
