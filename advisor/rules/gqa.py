"""Heads that share keys and values: less cache to keep and to read, after training."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Said, Vain
from roofline.advisor.search.breakeven import HELPS

STRUCTURES = ("kv heads", "kv sharing", "attention pattern", "experts")
"""Slots that hold other structures, some of which are trained from scratch."""

NOTICED = 0.1
"""The share of a decode step's bytes from which the cache is worth a word."""


def look(case: Case) -> Iterator[Said]:
    """Applies to models whose heads each have keys and values of their own, where decode reads much cache."""
    trained = tuple(
        move.name
        for move in case.moves.values()
        if move.slot in STRUCTURES and move.price.value == "retraining" and case.gain(move.name) > HELPS
    )
    if trained:
        yield Caution(
            "another structure: it is trained from scratch or for long, where compression is calibrated", trained
        )
    if not case.generates or not (attentions := case.model.attentions):
        return
    share = case.bytes_share(case.decode, "kv")
    group = min(attention.group for attention in attentions)
    if group > 1:
        yield Vain(("gqa",), f"{group} query heads share each key and value head already")
        return
    heads = max(attention.heads for attention in attentions)
    if heads == 1 or share < NOTICED:
        if heads > 1:
            yield Vain(("kv heads",), f"the cache is {share:.1%} of the bytes of a decode step")
        return
    yield Finding(
        f"each of {heads} heads keeps its own keys and values: the cache is {share:.0%} of the bytes of a decode step",
        case.decode_share * case.kind_shares.get("attention", 0.0),
        {"cache": f"{float(case.analysis.memory.kv_cache) / 1e9:.3g} GB"},
    )
    yield Hint(
        ("kv heads",), f"{heads} heads keep their own keys and values, {share:.0%} of the bytes of a decode step"
    )


RULE = Rule(
    "grouped-queries",
    "Where every head has its own keys and values and decode waits for them, let heads share: after training.",
    ("yuan R29", "zhou 14", "zhou 27"),
    look,
)
