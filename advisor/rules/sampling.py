"""Sampling: several sequences a request keep several caches, and a large vocabulary makes every step longer."""

from __future__ import annotations

from collections.abc import Iterator

from roofline.advisor.case import Case
from roofline.advisor.rules import Finding, Hint, Rule, Said

NOTICED = 0.1
"""The share of a decode step from which the vocabulary is worth a word."""


def look(case: Case) -> Iterator[Said]:
    """Applies where requests are decoded as several sequences, or where the output matrix takes a tenth of a step."""
    if not case.generates:
        return
    beams, memory = case.scenario.settings.beams, case.analysis.memory
    cache = float(memory.kv_cache)
    if beams > 1:
        yield Finding(
            f"every request is decoded as {beams} sequences, which keep {cache / 1e9:.3g} GB of cache",
            cache / float(memory.total) * (1 - 1 / beams),
            {"cache": f"{cache / float(memory.total):.0%} of the memory in use"},
            of="memory",
        )
        yield Hint(("KV format", "kv heads"), f"{beams} sequences a request keep {cache / 1e9:.3g} GB of cache")
    parts = case.decode_parts
    share = parts.parts.get("lm_head", 0.0) / parts.total
    if share >= NOTICED:
        words = case.model.vocabulary
        yield Finding(
            f"the output matrix over {words} tokens of vocabulary takes {share:.0%} of a decode step",
            case.decode_share * share,
            {"vocabulary": f"{words}", "hidden size": f"{case.model.hidden}"},
        )
        yield Hint(("vocabulary",), f"the output matrix over {words} tokens takes {share:.0%} of a decode step")


RULE = Rule(
    "sampling",
    "Beam and parallel sampling multiply the cache; a large vocabulary takes its share of every step.",
    ("miao D25",),
    look,
)
