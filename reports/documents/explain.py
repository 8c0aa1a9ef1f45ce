"""The document and the blocks of `roofline explain`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from msgspec.structs import asdict

from roofline.core.units import seconds, si
from roofline.reports.documents.analysis import scenario_header, subject
from roofline.reports.documents.summary import BASES
from roofline.reports.output.blocks import Block, Face, finite, picked
from roofline.reports.output.cells import Form, cell
from roofline.whatif.explanation import DEFINITIONS, Explanation

SCHEMA = "roofline.explain/1"


def explain_document(found: Explanation) -> dict[str, Any]:
    """The JSON document of an explanation."""
    kernel, scenario = found.kernel, found.scenario
    assert scenario is not None
    return {
        "schema": SCHEMA,
        **scenario_header(scenario),
        **finite(picked(found, "subject", "definition", "value", "unit")),
        "lines": [finite(asdict(line)) for line in found.lines],
        "bound": None if found.margin is None else finite(asdict(found.margin)),
        "kernel": None
        if kernel is None
        else {
            **finite(picked(kernel, "op", "format", "parts", "basis", "source")),
            "measurements": kernel.rows,
            "in_fitted_range": kernel.inside,
            "interval_widening": kernel.widening,
            "constants": [
                dict(zip(("name", "value", "unit", "meaning"), each, strict=True)) for each in kernel.constants
            ],
            "fitted_range": {
                name: {"low": low, "high": high, "here": finite(here)}
                for name, (low, high, here) in kernel.ranges.items()
            },
        },
        "assumptions": list(found.assumptions),
        "measure_with": [{"tool": tool, "command": command} for tool, command in found.commands],
    }


def explain_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The figure and its definition, the formulas, the kernel, the assumptions, and how to measure it."""
    title = f"{document['subject']}: {subject(document)}"
    lines = [document["definition"], f"{document['subject']} = {_shown(document['value'], document['unit'])}"]
    if (bound := document["bound"]) is not None and document["subject"] == "memory":
        lines.append(f"{bound['bound']}: the engine may use {bound['ratio']:.3g} times the memory needed")
    elif bound is not None:
        margin = " alone" if bound["ratio"] is None else f", {bound['ratio']:.3g} times the time of {bound['next']}"
        lines.append(f"bound by {bound['bound']}{margin}")
    rows = [
        [line["name"], line["formula"], line["substituted"], _shown(line["value"], line["unit"])]
        for line in document["lines"]
    ]
    measured = [f"{entry['tool']}: {entry['command']}" for entry in document["measure_with"]]
    return [
        Block(title, lines),
        Block(header=("step", "formula", "with numbers", "value"), rows=rows, left=3),
        *(_kernel_blocks(document["kernel"]) if document["kernel"] is not None else ()),
        Block(ASSUMPTIONS, document["assumptions"]),
        Block("To measure it ($MODEL is a checkpoint)", measured),
    ]


ASSUMPTIONS = "Assumptions"


def without_assumptions(blocks: list[Block]) -> list[Block]:
    """The blocks with one line in the place of the assumptions and their sources."""
    brief = Block(lines=["-v lists the assumptions, with their sources"])
    return [brief if block.title == ASSUMPTIONS else block for block in blocks]


def _kernel_blocks(kernel: Mapping[str, Any]) -> list[Block]:
    lines = [f"computes {', '.join(kernel['parts'])}", f"{BASES[kernel['basis']]}: {kernel['source']}"]
    if not kernel["constants"]:
        return [Block("Kernel (not measured)", lines)]
    inside = "inside the fitted range" if kernel["in_fitted_range"] else "OUTSIDE the fitted range"
    lines.append(f"{kernel['measurements']} measurements; this shape is {inside}")
    forms: Mapping[str, Form] = {"s": seconds, "B/s": partial(si, unit="B/s")}
    rows = [
        [entry["name"], cell(entry["value"], forms.get(entry["unit"], ".4g")), entry["meaning"]]
        for entry in kernel["constants"]
    ]
    constants = Block("Fitted constants", header=("constant", "value", "meaning"), rows=rows, left=1)
    found = [Block(f"Kernel: {kernel['op']} in {kernel['format']}", lines), constants]
    ranges = [
        [name, f"{entry['low']:g} to {entry['high']:g}", cell(entry["here"], "g")]
        for name, entry in kernel["fitted_range"].items()
    ]
    if ranges:
        found.append(Block("Fitted range", header=("column", "fitted", "here"), rows=ranges))
    return found


def _shown(value: float, unit: str) -> str:
    if unit == "s":
        return seconds(value, 5)
    return si(value, unit, 5) if unit in ("B", "FLOP") else f"{value:,.5g} {unit}"


def definitions_document() -> dict[str, Any]:
    """Every figure and its definition as a document."""
    return {"schema": "roofline.definitions/1", "definitions": dict(DEFINITIONS)}


def definitions() -> list[Block]:
    """A table of every figure and its definition."""
    return [Block("Definitions", header=("figure", "definition"), rows=[[*row] for row in DEFINITIONS.items()], left=2)]


EXPLANATION = Face(explain_document, explain_blocks, lambda document: document["lines"])
