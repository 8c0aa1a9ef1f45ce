"""The document and the blocks of `roofline compare`: scenarios side by side, and waterfalls by operator."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from roofline.core.units import seconds, si
from roofline.reports.documents import summary
from roofline.reports.documents.analysis import (
    cost_document,
    energy_document,
    interval,
    memory_document,
    rates_document,
    scenario_header,
    subject,
)
from roofline.reports.documents.odds import odds_document, sentence
from roofline.reports.output.blocks import Block, Face, finite, picked
from roofline.reports.output.cells import cell
from roofline.scenario.analysis import Analysis
from roofline.scenario.notes import generates
from roofline.techniques.unsupported import unsupported
from roofline.whatif.comparison import METRICS, Metric, Waterfall, readings, waterfall
from roofline.whatif.notes import notes
from roofline.whatif.odds import flip_batch, odds

SCHEMA = "roofline.compare/1"

CHANGES = ("before", "after", "change")
TITLES = {"ttft": "TTFT", "tpot": "mean decode step (TPOT)", "total": "total time"}


def compare_document(analyses: Sequence[Analysis], labels: Sequence[str], top: int | None = None) -> dict[str, Any]:
    """The JSON document: every scenario's totals, and waterfalls from the first scenario to each of the others.

    `top` limits the parts of a waterfall; the rest is summed.
    """
    first, *others = analyses
    return {
        "schema": SCHEMA,
        "scenarios": [_totals(analysis, label) for analysis, label in zip(analyses, labels, strict=True)],
        "waterfalls": [
            _waterfall(first, other, index, metric, top) for index, other in enumerate(others, 1) for metric in METRICS
        ],
        "verdicts": [found for index, other in enumerate(others, 1) for found in _verdicts(first, other, index)],
    }


def _verdicts(first: Analysis, other: Analysis, index: int) -> Iterator[dict[str, Any]]:
    """The verdict on the first scenario and another by each metric, with the batch from which it flips."""
    expected = first.times_are_expected and other.times_are_expected
    for metric in METRICS if expected else ():
        times = [getattr(found.expected, metric) for found in (first, other)]
        if None in times:
            continue
        ahead = times[0].mid <= times[1].mid
        better, worse = (first, other) if ahead else (other, first)
        yield {
            "better": 0 if ahead else index,
            "other": index if ahead else 0,
            "metric": metric,
            **odds_document(odds(better, worse, metric)),
            "flips_from_batch": flip_batch(better.scenario, worse.scenario, metric),
        }


def _told(found: Mapping[str, Any], scenarios: Sequence[Mapping[str, Any]]) -> str:
    """A verdict in one sentence, with when it flips; of what does not fit in memory, that alone."""
    better, other = (str(found[name] + 1) for name in ("better", "other"))
    beyond = sorted({found[name] for name in ("better", "other") if not scenarios[found[name]]["memory"]["fits"]})
    if beyond:
        which = " and ".join(f"{place + 1} ({summary.used_of(scenarios[place]['memory'])})" for place in beyond)
        do, its = ("do", "their") if len(beyond) > 1 else ("does", "its")
        return f"{which} {do} not fit in memory: {its} times are as if there were more of it"
    text = sentence(found, found["metric"], better, other)
    batch = found["flips_from_batch"]
    return text if batch is None else f"{text}; from batch {batch} on {other}"


def _totals(analysis: Analysis, label: str) -> dict[str, Any]:
    scenario, generation = analysis.scenario, analysis.generation
    document: dict[str, Any] = {
        "label": label,
        **scenario_header(scenario),
        "techniques": list(scenario.techniques),
        **finite(picked(scenario, "batch", "prompt")),
        "generate": finite(scenario.generate) if generates(analysis) else None,
        "ttft_s": finite(generation.ttft),
        "tpot_s": finite(generation.tpot),
        "total_s": finite(generation.total),
        **rates_document(analysis),
        "energy": energy_document(analysis),
        "cost": cost_document(analysis),
        "memory": memory_document(analysis),
        "unsupported": list(map(str, unsupported(scenario))),
        "notes": list(notes(analysis)),
    }
    if analysis.times_are_expected:
        expected = analysis.expected
        document |= {
            "expected_ttft_s": interval(expected.ttft),
            "expected_tpot_s": None if expected.tpot is None else interval(expected.tpot),
            "expected_total_s": interval(expected.total),
        }
    return document


def _waterfall(before: Analysis, after: Analysis, index: int, metric: Metric, top: int | None) -> dict[str, Any]:
    """Expected time, bound time and bytes of each part in both scenarios, the largest changes first."""
    falls = {reading: waterfall(before, after, metric, reading) for reading in readings(before, after)}
    names = [entry.name for fall in falls.values() for entry in fall.differences]
    ordered = list(dict.fromkeys(names))
    by_name = {key: {entry.name: entry for entry in fall.differences} for key, fall in falls.items()}

    def part(name: str, included: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {"name": name}
        for key, entries in by_name.items():
            own = [entries[one] for one in included if one in entries]
            found[_unit(key)] = {each: sum(getattr(entry, each) for entry in own) for each in CHANGES}
        return found

    kept = ordered if top is None else ordered[:top]
    rest = ordered[len(kept) :]
    return {
        "from": 0,
        "to": index,
        "metric": metric,
        "totals": {_unit(key): picked(fall, *CHANGES) for key, fall in falls.items()},
        "parts": [part(name, [name]) for name in kept] + ([part(f"{len(rest)} others", rest)] if rest else []),
    }


def _unit(reading: str) -> str:
    """The key of a reading's figures."""
    return reading if reading == "bytes" else f"{reading}_s"


def compare_blocks(document: Mapping[str, Any], metric: str) -> list[Block]:
    """Tables of latency, throughput, memory, energy and cost per scenario, then the waterfalls of `metric`."""
    scenarios = document["scenarios"]
    expected = all("expected_total_s" in entry for entry in scenarios)
    rates, times = summary.rate_columns(scenarios), summary.time_columns(scenarios)
    header = ("", "scenario", *times.values(), *rates.values(), "memory")
    named = [f"{index}: {entry['label']}" for index, entry in enumerate(scenarios, 1)]
    noted = [f"note on {index}: {note}" for index, entry in enumerate(scenarios, 1) for note in entry["notes"]]
    blocks = [Block("Comparison", [*named, *noted])]
    if expected:
        rows = _numbered([subject(entry), *_figures(entry, times, rates, expected=True)] for entry in scenarios)
        blocks.append(Block("Expected (80% interval)", header=header[:-1], rows=rows, left=2))
    rows = _numbered(
        [subject(entry), *_figures(entry, times, rates, expected=False), _memory(entry)] for entry in scenarios
    )
    blocks.append(Block("At the bound, and memory per device", header=header, rows=rows, left=2))
    all_encoders = all(map(summary.is_encoder, scenarios))
    suffixes = [" (of prompts)" if summary.is_encoder(entry) and not all_encoders else "" for entry in scenarios]
    ends = zip(scenarios, suffixes, strict=True)
    rows = _numbered([subject(entry), *_energy_and_cost(entry, end)] for entry, end in ends)
    if any(cell != "-" for row in rows for cell in row[2:]):
        token = "prompt token" if all_encoders else "token"
        titles = ("", "scenario", f"energy per {token}", "power per device", f"cost per million {token}s")
        blocks.append(Block("Energy and cost", header=titles, rows=rows, left=2))
    blocks += [_fall_block(fall) for fall in document["waterfalls"] if fall["metric"] == metric]
    judged = [_told(found, scenarios) for found in document["verdicts"] if found["metric"] == metric]
    return blocks + ([Block("Verdict", judged)] if judged else [])


def _numbered(rows: Iterable[list[str]]) -> list[list[str]]:
    return [[str(index), *cells] for index, cells in enumerate(rows, 1)]


def compare_lines(document: Mapping[str, Any], metric: str) -> list[str]:
    """Each scenario's times and memory in a line; then the difference of `metric`, and the operator behind it."""
    scenarios = document["scenarios"]
    shown = scenarios[:MOST_SHOWN] if len(scenarios) > MOST_SHOWN + 1 else scenarios
    lines = [f"Comparison of {len(scenarios)} scenarios by {TITLES[metric]}"]
    for index, entry in enumerate(shown, 1):
        times = summary.time_columns([entry])
        expected = "expected_total_s" in entry
        cells = zip(times.values(), _figures(entry, times, (), expected=expected), strict=True)
        told = ", ".join(map(" ".join, cells))
        lines.append(f"{index}: {entry['label']}: {told}{'' if expected else ' at the bound'}; memory {_memory(entry)}")
    falls = [fall for fall in document["waterfalls"] if fall["metric"] == metric]
    judged = [_told(found, scenarios) for found in document["verdicts"] if found["metric"] == metric]
    return [*lines, *map(_fall_line, falls[: MOST_SHOWN - 1]), *judged[:1]]


MOST_SHOWN = 3
"""Scenarios in a summary."""


def _fall_line(fall: Mapping[str, Any]) -> str:
    """The difference of two scenarios, and the operator that changes most."""
    key, whole = next(iter(fall["totals"].items()))
    part = fall["parts"][0]
    relative = f" ({whole['change'] / whole['before']:+.1%})" if whole["before"] else ""
    most = f", of which {part['name']} {_signed(part[key]['change'], seconds)}" if part[key]["change"] else ""
    return f"from 1 to {fall['to'] + 1}: {_signed(whole['change'], seconds)}{relative}{most}"


def comparison(metric: Metric) -> Face:
    """The face of a comparison whose difference of `metric` is explained."""
    return Face(
        lambda found: compare_document(found.analyses, found.labels),
        partial(compare_blocks, metric=metric),
        lambda document: document["scenarios"],
        partial(compare_lines, metric=metric),
    )


def waterfall_document(found: Waterfall) -> dict[str, Any]:
    """The JSON document of a waterfall."""
    parts = [picked(entry, "name", *CHANGES) for entry in found.differences]
    return {**picked(found, "metric", "reading", *CHANGES), "parts": parts}


def waterfall_blocks(document: Mapping[str, Any]) -> list[Block]:
    """A table of the operators that change."""
    shown = partial(si, unit="B") if document["reading"] == "bytes" else seconds
    rows = [
        [part["name"], shown(part["before"]), shown(part["after"]), f"{part['change'] / (document['change'] or 1):.1%}"]
        for part in document["parts"]
        if part["change"]
    ]
    title = f"{document['metric']}: {shown(document['before'])} to {shown(document['after'])} ({document['reading']})"
    return [Block(title, header=("operator", "before", "after", "share of the change"), rows=rows)]


def _figures(entry: Mapping[str, Any], times: Iterable[str], rates: Iterable[str], *, expected: bool) -> list[str]:
    """The times and rates of a scenario: expected with their intervals, or at the bound."""
    which = "expected_" if expected else ""
    time, rate = (summary.time_interval, partial(summary.interval_text, form=",.4g")) if expected else (seconds, ",.4g")
    shown = [cell(entry[f"{which}{name}_s"], time) for name in times]
    return [*shown, *(cell(entry[f"{which}{name}"], rate) for name in rates)]


def _energy_and_cost(entry: Mapping[str, Any], suffix: str) -> list[str]:
    """Energy per token, power and cost; `suffix` marks prompt tokens in a table of mixed models."""
    energy, cost, of_prompts = entry["energy"], entry["cost"], summary.is_encoder(entry)
    joules, at_tdp = (summary.figure_text(energy, key, "J") for key in summary.energy_keys(of_prompts))
    power = summary.figure_text(energy, "power_w", "W")
    price = None if cost is None else summary.figure_text(cost, summary.cost_key(of_prompts), "USD")
    shown = joules if at_tdp is None or joules is not None else f"at most {at_tdp}"
    return [cell(shown, lambda text: f"{text}{suffix}"), power or "-", cell(price, lambda text: f"{text}{suffix}")]


def _memory(entry: Mapping[str, Any]) -> str:
    return summary.used_of(entry["memory"]) + ("" if entry["memory"]["fits"] else ", DOES NOT FIT")


def _fall_block(fall: Mapping[str, Any]) -> Block:
    first, *others = keys = list(fall["totals"])
    names = {"expected_s": "expected", "bound_s": "at bound", "bytes": "bytes"}
    header = ["operator", names[first], "share", *(names[key] for key in others)]
    rows = [_fall_row(part["name"], part, fall["totals"], keys) for part in fall["parts"]]
    rows.append(_fall_row("total", fall["totals"], fall["totals"], keys))
    title = f"From 1 to {fall['to'] + 1}, {TITLES[fall['metric']]}: change by operator"
    return Block(title, header=header, rows=rows)


def _fall_row(name: str, part: Mapping[str, Any], totals: Mapping[str, Any], keys: Sequence[str]) -> list[str]:
    row = [name]
    for key in keys:
        shown = (lambda value: si(value, "B")) if key == "bytes" else seconds
        change, whole = part[key]["change"], totals[key]["change"]
        before, after = shown(part[key]["before"]), shown(part[key]["after"])
        moved = f"{before} → {after}"
        if key == keys[0]:  # the table is about this figure; the others are for comparison
            row += [f"{moved} ({_signed(change, shown)})", f"{change / whole:.0%}" if whole else "-"]
        else:
            row.append(moved)
    return row


def _signed(value: float, shown: Any) -> str:
    return "0" if value == 0 else f"{'+' if value > 0 else '−'}{shown(abs(value))}"


WATERFALL = Face(waterfall_document, waterfall_blocks, lambda document: document["parts"])
