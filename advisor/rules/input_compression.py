"""Shorter prompts for prefill, answers in parallel parts for decode."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Hint, Rule, Said, Vain
from roofline.bound.roof import Bound

NOTICED = 0.25
"""The share of the whole time from which a phase is worth shortening."""

ORGANISED = ("skeleton-of-thought", "sgd", "apar")
"""Moves that answer in parallel parts."""


def look(case: Case) -> Iterator[Said]:
    """Shorter prompts apply where prefill takes time, parallel parts where decode does and waits for memory."""
    prompt = int(case.scenario.prompt)
    if case.prefill_share >= NOTICED:
        yield Hint(
            ("prompt",),
            f"prefill of {prompt} tokens takes {case.prefill_share:.0%} of the time, and falls with the prompt",
        )
    else:
        yield Vain(("prompt",), f"prefill of {prompt} tokens takes {case.prefill_share:.1%} of the time")
    if not case.generates:
        return
    waiting = case.bound_share(case.decode, Bound.MEMORY)
    if case.decode_share < NOTICED:
        yield Vain(ORGANISED, f"decode takes {case.decode_share:.1%} of the time")
    elif waiting >= 0.5:
        yield Hint(
            ORGANISED,
            f"decode takes {case.decode_share:.0%} of the time and waits for memory: parts of an answer written"
            " together share what is read",
        )
    else:
        yield Vain(
            ORGANISED, f"only {waiting:.0%} of a decode step waits for memory: parts written together share little"
        )


RULE = Rule(
    "input-compression",
    "Shorter prompts help prefill; answers written in parallel parts help decode, by sharing what it reads.",
    ("zhou 17",),
    look,
)
