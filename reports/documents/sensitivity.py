"""The document and the blocks of `roofline sensitivity`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.reports.documents.analysis import scenario_header, subject
from roofline.reports.output.blocks import Block, Face, finite, picked
from roofline.reports.output.cells import Column, table_of
from roofline.whatif.sensitivities import MORE, Sensitivities, sensitivity

SCHEMA = "roofline.sensitivity/1"

COLUMNS = {"ttft": "TTFT", "tpot": "TPOT", "total": "total", "tokens_per_s": "tokens/s", "memory": "memory"}


def sensitivity_document(found: Sensitivities) -> dict[str, Any]:
    """The JSON document; its readings are by times: those of `found`, and the bound."""
    readings = {str(found.at): found}
    if found.at != "bound":
        readings["bound"] = sensitivity(found.scenario, "bound", found.step)
    return {
        "schema": SCHEMA,
        **scenario_header(found.scenario),
        "techniques": list(found.scenario.techniques),
        "step": found.step,
        "readings": {
            at: [
                {
                    "setting": entry.name,
                    "meaning": entry.meaning,
                    **finite(picked(entry, "value", "low", "high")),
                    "elasticity": finite(_named(entry.elasticities)),
                    "change_with_10_percent_more": finite(_named(entry.more)),
                }
                for entry in entries
            ]
            for at, entries in readings.items()
        },
    }


def _named(figures: Mapping[str, float | None]) -> dict[str, float | None]:
    return {name.replace("tokens_per_second", "tokens_per_s"): value for name, value in figures.items()}


def sensitivity_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The two settings of which 10% more cut TTFT and TPOT most, then a table of elasticities per reading of time."""
    lines, first = [], next(iter(document["readings"].values()))
    for metric in ("ttft", "tpot"):
        changes = [(entry["change_with_10_percent_more"][metric], entry["setting"]) for entry in first]
        faster = sorted((change, name) for change, name in changes if change is not None and change < -1e-3)
        lines += [f"{MORE - 1:.0%} more {name} cuts {COLUMNS[metric]} by {-change:.1%}" for change, name in faster[:2]]
    blocks = [Block(f"Sensitivity: {subject(document)}", lines)]
    for at, entries in document["readings"].items():
        where = "at the bound" if at == "bound" else f"at expected times ({at})"
        figures = [Column(f"{title}, %", f"elasticity.{name}", _elasticity) for name, title in COLUMNS.items()]
        columns = (Column("1% more", "setting"), *figures, Column("meaning", "meaning"))
        title = f"Elasticities {where}, steps of {document['step']:.1%}"
        blocks.append(Block(title, (), *table_of(columns, entries)))
    return blocks


def _elasticity(value: float) -> str:
    return "0" if abs(value) < 5e-4 else f"{value:+.3f}"


SENSITIVITIES = Face(
    sensitivity_document,
    sensitivity_blocks,
    lambda document: [{"at": at, **entry} for at, entries in document["readings"].items() for entry in entries],
)
