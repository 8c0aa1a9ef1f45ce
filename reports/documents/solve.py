"""The documents and the blocks of `roofline solve`: inverse questions and crossovers."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from roofline.core.units import seconds, si
from roofline.reports.documents.analysis import scenario_header, subject
from roofline.reports.documents.summary import limits_lines, rate_columns, time_columns
from roofline.reports.output.blocks import Block, Document, Face, finite, picked
from roofline.reports.output.cells import Column, cell, table_of
from roofline.scenario.scenario import Scenario
from roofline.serving.outcome import Outcome
from roofline.whatif.command_line import command_line
from roofline.whatif.notes import is_served, users_command
from roofline.whatif.solve import Answer, Check, Crossovers, LoadAnswer, Targets
from roofline.whatif.solve.load import load_of

SCHEMA = "roofline.solve/1"

TARGETS = {"ttft": "TTFT", "tpot": "TPOT", "total": "total", "tokens_per_second": "tokens/s", "memory": "memory"}
"""Display names of targets."""


def answer_document(answer: Answer) -> dict[str, Any]:
    """The JSON document of an answer, with the figures of the answer, its neighbour and other candidates.

    A break-even has both scenarios as commands.
    """
    scenario, targets, against = answer.scenario, answer.targets, answer.other
    assert scenario is not None
    assert targets is not None
    return {
        "schema": SCHEMA,
        **_header(answer.question, scenario),
        **({} if against is None else {"scenarios": [command_line(each) for each in (scenario, against)]}),
        "targets": {
            **{f"{name}_s": getattr(targets, name) for name in ("ttft", "tpot", "total")},
            "tokens_per_s": targets.tokens_per_second,
            "fits": targets.fits,
            "at": targets.at,
        },
        **finite(picked(answer, "verdict", "value", "unit", "limited_by", "note")),
        "under_load": _under_load(answer, scenario, targets),
        "answer": _check(answer.check),
        "neighbour": None if answer.neighbour is None else _check(answer.neighbour),
        "candidates": [_check(entry) for entry in answer.candidates],
    }


def _under_load(answer: Answer, scenario: Scenario, targets: Targets) -> str | None:
    """The command that answers for a service, of a question about the latency of a batch."""
    users = int(scenario.batch) if is_served(scenario) else 0
    words = []
    for name in ("ttft", "tpot"):
        if (limit := getattr(targets, name)) is not None:
            words += [f"--{name}", f"{limit * 1e3:g}ms" if limit < 1 else f"{limit:g}s"]
    if not words or not users:
        return None
    if answer.question == "max-batch":
        return " ".join([command_line(scenario.with_(batch=1), "solve max-concurrency"), *words])
    if users == 1:
        return None
    if answer.question == "min-gpus":
        scheme = scenario.question.formats.get("scheme")
        words += ["--hw", scenario.hardware_name, *(["--quant", scheme] if scheme else [])]
        load = load_of(scenario, users)
        words += ["--prompt", load.prompts.written, "--generate", load.outputs.written, "--concurrency", str(users)]
        return shlex.join(["roofline", "size", scenario.model_name, *words])
    return users_command(scenario, users)


def _header(question: str, scenario: Scenario) -> dict[str, Any]:
    return {"question": question, **scenario_header(scenario), "techniques": list(scenario.techniques)}


def _check(entry: Check) -> dict[str, Any]:
    figures = entry.figures
    found = {
        **picked(entry, "value", "meets", "missed"),
        "target_use": entry.used,
        **{f"{name}_s": getattr(figures, name) for name in ("ttft", "tpot", "total")},
        "tokens_per_s": figures.tokens_per_second,
        "sequences_per_s": figures.sequences_per_second,
        "memory_bytes": figures.memory,
        "capacity_bytes": figures.capacity,
    }
    return {name: finite(value) for name, value in found.items()}


def answer_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The answer in a sentence, then the simulated candidates."""
    question, never = document["question"], document["verdict"] == "never"
    between = question == "break-even"
    default = "next smaller" if question.startswith("min-") else "next"
    next_ones = {"max-bits": "next wider", "min-bits": "next narrower", "max-draft": "no draft" if never else "next"}
    first, second = "best tried" if never else "answer", next_ones.get(question, default)
    if between:
        first, second = "these options", "the others"
    others, neighbour = document["candidates"], document["neighbour"]
    told = [(first, document["answer"]), *([] if neighbour is None else [(second, neighbour)])]
    entries = [*(entry for _, entry in told), *others]
    columns = time_columns(entries), rate_columns(entries)
    told += zip((first, second), others, strict=False) if between else ()
    rows = [_row(document, label, entry, *columns) for label, entry in told]
    header = ("", "value", *(title for titles in columns for title in titles.values()), "memory", "misses")
    title = f"{document['question']}: {subject(document)}"
    scenarios = zip((first, second), document.get("scenarios", ()), strict=False)
    under_load, static = document["under_load"], "A static batch: all prompts are prefilled at once. Under load:"
    blocks = [
        Block(title, [_sentence(document), *map(": ".join, scenarios)]),
        *([Block(lines=[static], commands=[under_load])] if under_load is not None else []),
        Block(header=header, rows=rows, left=2),
    ]
    if others and not between:
        heading = "Known hardware that meets the targets" if _of_device(document) else "Simulated"
        rows = [_row(document, "", entry, *columns)[1:] for entry in others]
        blocks.append(Block(heading, header=header[1:], rows=rows))
    if _of_device(document) and not others and document["verdict"] != "never":
        blocks.append(Block(lines=["no known hardware meets the targets, or none was searched"]))
    return blocks


def _of_device(document: Mapping[str, Any]) -> bool:
    return document["question"] in ("min-memory", "min-bandwidth", "min-peak")


def _sentence(document: Mapping[str, Any]) -> str:
    targets, verdict = document["targets"], document["verdict"]
    requested = [
        f"{TARGETS[name]} {seconds(targets[f'{name}_s'])}" for name in ("ttft", "tpot", "total") if targets[f"{name}_s"]
    ]
    requested += [f"{targets['tokens_per_s']:g} tokens/s"] if targets["tokens_per_s"] else []
    requested += ["fits in memory"] if targets["fits"] else []
    readings = {"bound": "the bound", "mid": "expected times"}
    reading = readings.get(targets["at"], f"the {targets['at']} end of expected times")
    condition = f"{', '.join(requested) or 'no target'}, at {reading}"
    limits = ", ".join(TARGETS.get(name, name) for name in document["limited_by"])
    limit = f"; limited by {limits}" if limits else ""
    note = f" ({document['note']})" if document["note"] else ""
    found = "never" if verdict == "never" else _shown(document, document["value"])
    always = "always: " if verdict == "always" else ""
    return f"{always}{found}{limit}{note}; {condition}"


def _shown(document: Mapping[str, Any], value: Any) -> str:
    unit = document["unit"]
    if isinstance(value, str):
        return value
    return (
        si(value, unit, 4)
        if unit in ("B", "B/s", "FLOP/s")
        else f"{value:,} {unit.removesuffix('s') if value == 1 else unit}"
    )


def _row(
    document: Mapping[str, Any], label: str, entry: Mapping[str, Any], times: Iterable[str], rates: Iterable[str]
) -> list[str]:
    used, capacity = entry["memory_bytes"], entry["capacity_bytes"]
    digits = 3
    while used > capacity and digits < 9 and si(used, "B", digits) == si(capacity, "B", digits):
        digits += 1  # as many as tell what does not fit from what does
    return [
        label,
        cell(entry["value"], partial(_shown, document)),
        *(cell(entry[f"{name}_s"], partial(seconds, digits=4)) for name in times),
        *(cell(entry[name], ",.1f") for name in rates),
        f"{si(used, 'B', digits)} of {si(capacity, 'B', digits)}",
        ", ".join(TARGETS.get(name, name) for name in entry["missed"]) or "-",
    ]


def crossover_document(found: Crossovers) -> dict[str, Any]:
    """The JSON document of the bounds of all operators along batch, prompt and context."""
    scenario = found.scenario
    return {
        "schema": SCHEMA,
        **_header("crossover", scenario),
        **finite(picked(scenario, "batch", "prompt")),
        "context": finite(scenario.decode_context),
        "crossovers": [
            {
                **picked(entry, "phase", "name", "axis"),
                "from": 1,
                "to": entry.stop,
                "changes": [{"at": change.start, "bound": change.bound} for change in entry.changes],
            }
            for entry in found
        ],
    }


def crossover_blocks(document: Mapping[str, Any]) -> list[Block]:
    """A table per phase and axis: the bound of each operator at 1, and the values at which it changes."""
    title = f"crossover: {subject(document)}"
    workload = ", ".join(f"{name} {document[name]}" for name in ("batch", "prompt", "context"))
    legend = "at the bound; 'from 321: compute' means compute-bound from the value 321 on"
    blocks = [Block(title, [f"{workload}; one is varied at a time", legend])]
    groups = dict.fromkeys((entry["phase"], entry["axis"]) for entry in document["crossovers"])
    for phase, axis in groups:
        entries = [entry for entry in document["crossovers"] if (entry["phase"], entry["axis"]) == (phase, axis)]
        rows = [
            [
                f"all of {phase}" if entry["name"] == phase else entry["name"],
                entry["changes"][0]["bound"],
                ", ".join(f"from {change['at']:,}: {change['bound']}" for change in entry["changes"][1:]) or "-",
            ]
            for entry in entries
        ]
        title = f"{phase.capitalize()}, {axis} 1 to {entries[0]['to']:,}"
        blocks.append(Block(title, header=("operator", f"at {axis} 1", "then"), rows=rows, left=3))
    return blocks


def load_document(answer: LoadAnswer) -> dict[str, Any]:
    """The JSON document of the largest load within targets."""
    targets = answer.targets
    return {
        "schema": SCHEMA,
        **_header(answer.question, answer.scenario),
        "prompt": answer.load.prompts.mean,
        "generate": answer.load.outputs.mean,
        "targets": {"ttft_s": targets.ttft, "tpot_s": targets.tpot, "quantile": 0.95, "at": targets.at},
        "usual_targets": list(answer.usual),
        "verdict": "found" if answer.value else "impossible",
        **finite(picked(answer, "value", "unit", "limited_by")),
        "answer": None if answer.outcome is None else _outcome(answer.outcome),
        "neighbour": _outcome(answer.neighbour),
    }


def _outcome(found: Outcome) -> dict[str, Any]:
    return {
        "ttft_p95_s": finite(found.ttft.p95.mid),
        "tpot_p95_s": finite(found.tpot.p95.mid),
        "tpot_mean_s": finite(found.tpot.mean.mid),
        "requests_per_s": finite(found.requests_per_second),
        "output_tokens_per_s": finite(found.output_tokens_per_second),
        **finite(picked(found, "running", "kv_use", "stable")),
    }


LIMITS = {"ttft": "TTFT at p95", "tpot": "TPOT at p95", "saturation": "the largest sustainable load"}


def load_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The answer in a line, its figures, and what limits it."""
    title = f"{document['question']}: {subject(document)}, {document['engine']}"
    limits = ", ".join(LIMITS[name] for name in document["limited_by"])
    first = f"{document['value']:.4g} {document['unit']}" if document["value"] else f"none: {limits} is missed at once"
    lines = [first, f"prompt {document['prompt']:g}, output {document['generate']:g} tokens; limited by {limits}"]
    lines += limits_lines(document["targets"], document["usual_targets"])
    found = {"answer": document["answer"], "next": document["neighbour"]}
    rows = [{**outcome, "name": name} for name, outcome in found.items() if outcome is not None]
    return [Block(title, lines, *table_of(LOADED, rows))]


def _unknown(row: Mapping[str, Any]) -> str:
    """Without a bound there is no TTFT either; a TPOT alone is missing where requests have one token."""
    return "unbounded" if row["ttft_p95_s"] is None else "-"


LOADED = (
    Column("", "name"),
    Column("TTFT p95", "ttft_p95_s", seconds, _unknown),
    Column("TPOT p95", "tpot_p95_s", seconds, _unknown),
    Column("requests/s", "requests_per_s", si),
    Column("tokens/s", "output_tokens_per_s", si),
    Column("running", "running", ".1f"),
    Column("KV", "kv_use", ".0%"),
)


def _crossover_rows(document: Document) -> list[Document]:
    keys = ("phase", "name", "axis")
    found = document["crossovers"]
    return [{**{key: entry[key] for key in keys}, **change} for entry in found for change in entry["changes"]]


def _answer_rows(document: Document) -> list[Document]:
    found = (document["answer"], document["neighbour"], *document.get("candidates", ()))
    return [row for row in found if row is not None]


ANSWER = Face(answer_document, answer_blocks, _answer_rows)
LOAD_ANSWER = Face(load_document, load_blocks, _answer_rows)
CROSSOVERS = Face(crossover_document, crossover_blocks, _crossover_rows)
