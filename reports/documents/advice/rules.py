"""The rules of the advisor as a list."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roofline.advisor.rules import rules
from roofline.reports.output.blocks import WIDTH, Block


def rules_document() -> list[dict[str, Any]]:
    """Every rule: its name, what it says and where that is from."""
    return [
        {"name": rule.name, "statement": rule.statement, "sources": list(rule.sources)} for rule in rules().values()
    ]


def rules_blocks(documents: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The rules as a table, and what their sources are."""
    rows = [[entry["name"], entry["statement"], ", ".join(entry["sources"])] for entry in documents]
    sources = (
        "yuan: Yuan et al. 2024 (LLM-Viewer) and Park et al. 2024, R1 to R29; zhou: Zhou et al. 2024, 1 to 34; miao:"
        " Miao et al. 2023, D1 to D26; by the numbers of this project's notes on them."
    )
    return [
        Block(f"{len(rows)} rules of the advisor", header=("rule", "what it says", "sources"), rows=rows, left=3),
        Block("", [sources], width=WIDTH),
    ]
