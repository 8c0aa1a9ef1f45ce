"""Long contexts: what drops or merges tokens saves cache and may lose what they said."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said, Vain
from roofline.scenario.phase import OpFigures, Phase
from roofline.specs.model import Attention

DROPPING = ("attention pattern", "cache budget")
SHORTENING = ("prompt",)
MUCH = 0.25
"""The share of a phase's time from which attention is told."""


def look(case: Case) -> Iterator[Said]:
    """Applies where attention takes much of prefill or of decode."""
    first = _attention(case, case.analysis.prefill)
    then = _attention(case, case.decode) if case.generates else 0.0
    share = case.prefill_share * first + case.decode_share * then
    context = int(case.scenario.first_cached + case.scenario.generate)
    if share >= MUCH:
        yield Finding(
            f"attention over contexts of {context} tokens takes {share:.0%} of the time",
            share,
            {"of prefill": f"{first:.0%}", "of a decode step": f"{then:.0%}"},
        )
    felt = case.prefill_stake * first + case.decode_stake * then
    if felt >= MUCH or case.analysis.memory.kv_cache > MUCH * case.analysis.memory.total:
        yield Hint(
            (*DROPPING, *SHORTENING, "KV format"),
            f"the context of {context} tokens costs: attention takes {first:.0%} of prefill and {then:.0%} of a decode"
            " step",
        )
    for name, trial in case.trials_of(*DROPPING):
        attentions = trial.analysis.scenario.model.attentions
        if not attentions:
            continue
        seen = _seen(attentions, context)
        if seen < context:
            text = f"a token attends to {seen} of {context} others: what the rest say may be lost"
            yield Caution(text, (name,))
        else:
            yield Vain((name,), f"contexts of {context} tokens leave it nothing to drop")
    for name, trial in case.trials_of(*SHORTENING):
        kept = int(trial.analysis.scenario.prompt_tokens)
        yield Caution(
            f"{kept} of {int(case.scenario.prompt_tokens)} prompt tokens stay: what the others say may be lost", (name,)
        )


def _attention(case: Case, phase: Phase) -> float:
    """The share of attention in a phase: of its bound time, so that launches count for nothing, or of the expected."""
    bound = sum(float(op.share) for op in phase.ops if _attends(op))
    return min(bound, case.parts_share(phase, _attends))


def _attends(op: OpFigures) -> bool:
    return bool(op.kv_bytes > 0) or op.kind == "attention" or op.name.endswith("softmax")


def _seen(attentions: tuple[Attention, ...], context: int) -> int:
    """The most tokens that a query attends to in the layer that sees fewest."""
    found = context
    for attention in attentions:
        if attention.window is not None:
            found = min(found, attention.window + attention.extra)
        for limit in (attention.selected, attention.kept):
            if limit is not None:
                found = min(found, limit)
    return found


RULE = Rule(
    "long-context",
    "Long contexts that may lose some accuracy: quantise the cache, keep sinks and a window, evict, attend sparsely,"
    " shorten prompts; each may lose what matters.",
    ("yuan R22", "zhou 12", "zhou 15", "miao D12"),
    look,
)
