"""Rules about attention: its kernels, its structure, and long contexts."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import NEGLIGIBLE, Case
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, NoBenefit, rule
from roofline.advisor.search.breakeven import HELPS
from roofline.core.units import si
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


@rule("Long contexts need fused attention: scores stay on the chip and take no memory.", "yuan R21, miao D19")
def flash_attention(case: Case) -> Iterator[Finding]:
    """Applies where attention is unfused and its scores grow with the square of the prompt."""
    if "attention" in case.analysis.fusions:
        yield NoBenefit(("flash-attention",), "attention is fused already")
        return
    prefill = case.analysis.prefill
    parts = [op for op in prefill.ops if op.name.endswith(("softmax", "qk", "sv"))]
    moved = sum(float(op.count * op.bytes) for op in parts)
    share = moved / float(prefill.bytes)
    if not moved or share < FLASH_BYTES:
        return
    time = case.time_share(prefill, lambda op: op in parts)
    if share >= NEGLIGIBLE:
        yield Bottleneck(
            f"{share:.0%} of the bytes of prefill are attention's, most of them scores written and read back:"
            f" {time:.0%} of its time",
            case.prefill_share * time,
            {
                "bytes of attention": si(moved, "B"),
                "peak of activations": si(float(case.analysis.memory.activation_peak), "B"),
            },
        )
    yield Hint(
        ("flash-attention", "whole-layer-fusion"),
        f"with prompts of {int(case.scenario.prompt_tokens)} tokens attention moves {share:.0%} of prefill's bytes,"
        " most of them scores that a fused kernel keeps on the chip",
    )


@rule(
    "Few sequences with long contexts: split attention over the keys to occupy the whole device.", "zhou 19, miao D17"
)
def flash_decoding(case: Case) -> Iterator[Finding]:
    """Applies where decode attention has fewer sequences and KV heads than the device has SMs."""
    units, attentions = case.hardware.units, case.model.attentions
    if not case.generates or units is None or not attentions or case.decode_stake < NEGLIGIBLE:
        return
    heads = max(1, max(part.kv_heads for part in attentions) // case.scenario.settings.parallel.tensor)
    blocks = case.batch * heads
    share = case.time_share(case.decode, lambda op: op.kv_bytes > 0)
    if share < NEGLIGIBLE:
        yield NoBenefit(("decode attention kernel",), f"attention takes {share:.1%} of a decode step")
    if blocks >= units or share < FLASH_DECODING_SHARE:
        return
    text = (
        f"attention takes {share:.0%} of a decode step and without splitting the keys has {blocks} thread blocks for"
        f" {units} SMs (batch {case.batch}, {heads} KV heads)"
    )
    if "attention" in case.analysis.fusions:
        yield Caution(f"{text}: the predicted times assume split-KV kernels, so choose one")
    else:
        yield Hint(("decode attention kernel",), text)


@rule(
    "Where every head has its own keys and values and decode reads mostly KV cache, share KV heads, after training.",
    "yuan R29, zhou 14, zhou 27",
)
def gqa(case: Case) -> Iterator[Finding]:
    """Applies to MHA models whose decode reads much KV cache."""
    trained = tuple(
        move.name
        for move in case.moves.values()
        if move.slot in RETRAINED_STRUCTURES and move.price.value == "retraining" and case.gain(move.name) > HELPS
    )
    if trained:
        yield Caution("a different architecture: it needs training from scratch or long uptraining", trained)
    if not case.generates or not (attentions := case.model.attentions):
        return
    share = case.bytes_share(case.decode, "kv")
    group = min(attention.group for attention in attentions)
    heads = max(attention.heads for attention in attentions)
    if group > 1:
        yield NoBenefit(("gqa",), f"{group} query heads share each KV head already")
    elif heads > 1 and share < CACHE_BYTES:
        yield NoBenefit(("KV heads",), f"KV cache is {share:.1%} of the bytes of a decode step")
    elif heads > 1:
        yield Bottleneck(
            f"each of {heads} heads has its own keys and values: KV cache is {share:.0%} of the bytes of a decode step",
            case.decode_share * case.kind_shares.get("attention", 0.0),
            {"KV cache": f"{float(case.analysis.memory.kv_cache) / 1e9:.3g} GB"},
        )
        yield Hint(
            ("KV heads",), f"{heads} heads have their own keys and values, {share:.0%} of the bytes of a decode step"
        )


@rule(
    "Long contexts that tolerate some accuracy loss: quantize the KV cache, keep sinks and a window, evict, attend"
    " sparsely or compress prompts.",
    "yuan R22, zhou 12, zhou 15, miao D12",
)
def long_context(case: Case) -> Iterator[Finding]:
    """Applies where attention takes much of prefill or of decode."""
    prefill = _attention_share(case, case.analysis.prefill)
    decode = _attention_share(case, case.decode) if case.generates else 0.0
    share = case.prefill_share * prefill + case.decode_share * decode
    context = int(case.scenario.first_cached + case.scenario.generate)
    memory = case.analysis.memory
    if share >= LONG_CONTEXT_SHARE:
        yield Bottleneck(
            f"attention over contexts of {context} tokens takes {share:.0%} of the time",
            share,
            {"of prefill": f"{prefill:.0%}", "of a decode step": f"{decode:.0%}"},
        )
    stake = case.prefill_stake * prefill + case.decode_stake * decode
    if stake >= LONG_CONTEXT_SHARE or memory.kv_cache > LONG_CONTEXT_SHARE * memory.total:
        yield Hint(
            (*TOKEN_DROPPING, "prompt", "KV format"),
            f"at contexts of {context} tokens attention takes {prefill:.0%} of prefill and {decode:.0%} of decode",
        )
    for name, trial in case.placed_of(*TOKEN_DROPPING):
        attentions = trial.analysis.scenario.model.attentions
        if not attentions:
            continue
        visible = _visible(attentions, context)
        if visible < context:
            yield Caution(
                f"a token attends to {visible} of {context} others: information in the rest may be lost", (name,)
            )
        else:
            yield NoBenefit((name,), f"contexts of {context} tokens leave nothing to drop")
    for name, trial in case.placed_of("prompt"):
        kept = int(trial.analysis.scenario.prompt_tokens)
        yield Caution(
            f"{kept} of {int(case.scenario.prompt_tokens)} prompt tokens remain: information in the rest may be lost",
            (name,),
        )


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


@rule(
    "State-space models and linear attention decode in a time independent of length; they need training anew and"
    " their quality is less established.",
    "zhou 15",
)
def linear_attention(case: Case) -> Iterator[Finding]:
    """Applies to models with a recurrent state, and to others whose decode reads much KV cache."""
    if not case.generates:
        return
    memory = case.analysis.memory
    if float(memory.state) > 0:
        yield Bottleneck(
            f"each sequence keeps {si(float(memory.state) / case.batch, 'B')} of state, independent of its length, and"
            f" {si(float(memory.kv_cache) / case.batch, 'B')} of KV cache",
            float(memory.state) / float(memory.total),
            of="memory",
        )
        return
    share = case.bytes_share(case.decode, "kv")
    if share < STATE_BYTES:
        yield NoBenefit(FIXED_STATE, f"KV cache is only {share:.1%} of the bytes of a decode step")
        return
    yield Hint(
        FIXED_STATE, f"KV cache is {share:.0%} of the bytes of a decode step and grows with length; a state does not"
    )
    if any(case.gain(name) > HELPS for name in FIXED_STATE):
        yield Caution("the quality of such models relative to transformers is still being studied", FIXED_STATE)
