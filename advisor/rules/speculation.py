"""Drafting pays while decode waits for memory: verification multiplies more tokens with the same weights."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import LITTLE, Case
from roofline.advisor.formats import counted
from roofline.advisor.rules import Caution, Hint, Rule, Said, Vain
from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.trials import Trial

MUCH = 0.5
"""The share of the cache in the bytes of a step from which drafting may pay by it alone."""


def look(case: Case) -> Iterator[Said]:
    """Applies to every technique that drafts, on either side of the crossover."""
    product = case.decode_product
    if product is None or case.decode_stake < LITTLE:
        return
    cache = case.bytes_share(case.decode, "kv")
    for name, trial in case.trials_of("drafting"):
        speculation = trial.analysis.scenario.settings.speculation
        if speculation is None:
            continue
        verified = (speculation.verified + 1) * product.rows
        step = f"{speculation.verified + 1} tokens a sequence make {counted(verified)} that share each weight in a step"
        if verified > product.crossover:
            text = (
                f"{step}, beyond the crossover at {counted(product.crossover)}: products are compute-bound in verifying"
            )
            yield Vain((name,), text)
            if cache >= MUCH:
                yield Hint(
                    (name,), f"{text}; it is the cache, {cache:.0%} of the bytes, that several tokens read at once"
                )
        else:
            yield Hint((name,), f"{step}, and up to {counted(product.crossover)} wait for memory no longer than one")
        yield from _cost(case, name, trial)


def _cost(case: Case, name: str, trial: Trial) -> Iterator[Said]:
    """What drafting and verifying take of the tokens that a step yields."""
    tokens, before = trial.analysis.tokens_per_iteration, case.analysis.expected.tpot
    after = trial.analysis.expected.tpot
    if before is None or after is None:
        return
    faster = float(before.mid / after.mid)
    if HELPS < faster < tokens:
        yield Caution(
            f"a step yields {tokens:.3g} tokens and takes {tokens / faster:.3g} times as long with its drafts: tokens"
            f" come {faster:.3g} times as fast",
            (name,),
        )


RULE = Rule(
    "speculation",
    "Speculative decoding keeps the answers and helps while decode is memory-bound, less than by the tokens accepted"
    " since drafts cost time, and no more once drafted tokens times batch cross the ridge.",
    ("yuan R12", "zhou 22"),
    look,
)
