"""Analyses and lists as text in one of the formats of the command line: JSON, CSV and Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from roofline.core.units import seconds, si
from roofline.graph.network import ENDS

OP_COLUMNS = (
    *("name", "kind", "section", "count", "arithmetic", "flops", "bytes", "link_bytes", "weight_bytes"),
    *(
        "activation_bytes",
        "kv_bytes",
        "state_bytes",
        "upcast_flops",
        "intensity",
        "ridge",
        "attainable_flops_per_s",
        "bound",
        "bound_time_s",
        "share",
    ),
)


EXPECTED_COLUMNS = ("expected_time_low_s", "expected_time_mid_s", "expected_time_high_s", "basis")


def as_json(document: Mapping[str, Any]) -> str:
    """The document as indented JSON; NaN and infinity are refused."""
    return json.dumps(document, indent=2, allow_nan=False, ensure_ascii=False) + "\n"


def as_csv(document: Mapping[str, Any]) -> str:
    """The operators of every phase, one row each, in base units."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("model", "hardware", "phase", *OP_COLUMNS, *EXPECTED_COLUMNS))
    for phase, content in document["phases"].items():
        for op in content["ops"]:
            row = (document["model"], document["hardware"], phase, *(op[column] for column in OP_COLUMNS))
            expected = op.get("expected_time_s", {})
            times = (*(expected.get(end, "") for end in ("low", "mid", "high")), op.get("basis", ""))
            writer.writerow([inert(cell) for cell in (*row, *times)])
    return out.getvalue()


def inert(cell: object) -> object:
    """Text that a spreadsheet would run as a formula is quoted so that it stays text."""
    return f"'{cell}" if isinstance(cell, str) and cell[:1] in ("=", "+", "-", "@", "\t", "\r") else cell


def as_markdown(document: Mapping[str, Any]) -> str:
    """The analysis as Markdown: summary, then one table a phase."""
    parts = [f"# {escape(document['model'])} on {escape(document['hardware'])}", ""]
    parts += [f"- {escape(line)}" for line in summary_lines(document)] + [""]
    for name, phase in document["phases"].items():
        parts += [f"## {name.capitalize()}", "", escape(phase_line(phase)), ""]
        header, rows = op_rows(phase)
        parts += [*markdown_table(header, rows), ""]
    return "\n".join(parts)


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> list[str]:
    """The lines of a Markdown table whose first `left` columns are text; every cell is escaped."""
    return [
        f"| {' | '.join(header)} |",
        f"|{'|'.join('---' if index < left else '---:' for index in range(len(header)))}|",
        *(f"| {' | '.join(escape(cell) for cell in row)} |" for row in rows),
    ]


def escape(text: str) -> str:
    """`text` on one line with everything that Markdown or HTML would interpret made literal."""
    flat = "".join(char if char.isprintable() else " " for char in str(text))
    flat = flat.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for char in "\\`*_[]|#":
        flat = flat.replace(char, f"\\{char}")
    return flat


def summary_lines(document: Mapping[str, Any]) -> list[str]:
    """The answer in a few lines: what was asked, does it fit, how fast at the bound."""
    scenario, memory, generation = document["scenario"], document["memory"], document["generation"]
    asked = f"batch {scenario['batch']}, prompt {scenario['prompt']}"
    asked += "" if scenario["generate"] is None else f", generate {scenario['generate']}"
    if scenario["prefix"]:
        asked += f", cached prefix {scenario['prefix']}"
    formats = f"weights {scenario['weights']}, activations {scenario['activations']}"
    formats += "" if scenario["kv"] is None else f", KV {scenario['kv']}"
    verdict = "fits" if memory["fits"] else "DOES NOT FIT"
    room = si(abs(memory["headroom_bytes"]), "B") + (" free" if memory["fits"] else " too much")
    rate, unit = rate_of(generation)
    bound = f"{rate_text(generation[rate])} {unit}"
    devices = _devices(document["parallelism"])
    lines = [
        f"{asked}; {formats}" + ("; FlashAttention" if scenario["flash"] else ""),
        *([f"on {devices}; operators and memory are those of one device"] if devices else []),
        f"memory: {si(memory['total_bytes'], 'B')} of {si(memory['capacity_bytes'], 'B')}: {verdict}, {room}"
        f" ({', '.join(_memory_parts(memory))})",
        f"at the bound: {_times(generation, '', seconds)}total {seconds(generation['total_s'])}, {bound}",
        *(expected_lines(scenario["engine"], generation) if "expected_time_s" in generation else []),
    ]
    of_prompts = encodes(generation)
    lines += [*energy_lines(document["energy"], of_prompts), *cost_lines(document["cost"], of_prompts)]
    if generation["tokens_per_iteration"] != 1:
        lines.append(f"a decode iteration yields {generation['tokens_per_iteration']:.3g} tokens a sequence")
    if document["techniques"]:
        lines.append(f"techniques: {', '.join(document['techniques'])}")
    if scenario["convention"] != "physical":
        lines.append(f"counted by the {scenario['convention']} convention")
    return [*lines, *(f"note: {note}" for note in document["notes"])]


def encodes(rates: Mapping[str, Any]) -> bool:
    """Whether figures with rates are those of a model that only encodes: it generates no tokens."""
    return rates.get("tokens_per_s") is None


def rate_of(rates: Mapping[str, Any]) -> tuple[str, str]:
    """The rate that matters, and its unit: generated tokens, or sequences where none are generated."""
    return ("sequences_per_s", "sequences/s") if encodes(rates) else ("tokens_per_s", "tokens/s")


def rates_of(entries: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """The rates that matter of several scenarios, with what their columns are called."""
    found = {rate_of(entry) for entry in entries}
    return dict(sorted(found, reverse=True))


def times_of(entries: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """The times of several scenarios that matter, with what their columns are called: encoders have the whole alone."""
    whole = {"total": "total"}
    return whole if all(map(encodes, entries)) else {"ttft": "TTFT", "tpot": "TPOT", **whole}


def _times(generation: Mapping[str, Any], prefix: str, shown: Callable[[Any], str]) -> str:
    """TTFT and TPOT, which a model that only encodes has not: all its time is the total."""
    if encodes(generation):
        return ""
    tpot = generation[f"{prefix}tpot_s"]
    return f"TTFT {shown(generation[f'{prefix}ttft_s'])}, TPOT {'-' if tpot is None else shown(tpot)}, "


def rate_interval(rate: Mapping[str, float]) -> str:
    """A rate with the ends of its interval."""
    return f"{rate_text(rate['mid'])} ({rate_text(rate['low'])} to {rate_text(rate['high'])})"


def expected_lines(engine: str, generation: Mapping[str, Any]) -> list[str]:
    """The expected times of a generation with their 80% intervals, and what they rest on."""
    name, unit = rate_of(generation)
    rate = f"{rate_interval(generation[f'expected_{name}'])} {unit}"
    return [
        f"expected on {engine}: {_times(generation, 'expected_', spread)}"
        f"total {spread(generation['expected_time_s'])}, {rate}",
        f"in brackets 8 of 10 measurements; {BASES[generation['basis']]} ({generation['source']})",
    ]


def energy_lines(energy: Mapping[str, Any], of_prompts: bool = False) -> list[str]:
    """What a token draws, generated or of a prompt, modelled or at most; nothing where neither is known."""
    modelled, most = (read(energy, key, "J") for key in energy_keys(of_prompts))
    token = "prompt token" if of_prompts else "token"
    if modelled is not None:
        power = energy.get("expected_power_w", {"mid": energy["power_w"]})["mid"]
        return [f"energy: {modelled} a {token}, {power:,.0f} W a device (modelled)"]
    return [] if most is None else [f"energy: at most {most} a {token}, all devices at their TDP"]


def energy_keys(of_prompts: bool) -> tuple[str, str]:
    """Where the energy of a token stands: modelled, and at most."""
    if of_prompts:
        return "prefill_j_per_prompt_token", "at_most_prefill_j_per_prompt_token"
    return "j_per_token", "at_most_j_per_token"


def cost_key(of_prompts: bool) -> str:
    """Where the cost of a million tokens stands: where none are generated, those processed are the prompts'."""
    return "usd_per_million_processed_tokens" if of_prompts else "usd_per_million_tokens"


def cost_lines(cost: Mapping[str, Any] | None, of_prompts: bool = False) -> list[str]:
    """What a million tokens cost, generated or of prompts, and the price it rests on; nothing where it is unknown."""
    if cost is None or (shown := read(cost, cost_key(of_prompts), "USD")) is None:
        return []
    prices = " and ".join(
        f"{price['usd_per_hour']:g} USD an hour" + ("" if price["date"] is None else f" ({price['date']})")
        for price in cost["prices"]
    )
    return [f"cost: {shown} a million {'prompt' if of_prompts else 'generated'} tokens, a device at {prices}"]


def read(figures: Mapping[str, Any], key: str, unit: str) -> str | None:
    """A figure at expected times with its interval, else at the bound; None where there is none."""
    if (expected := figures.get(f"expected_{key}")) is not None:
        return f"{expected['mid']:.3g} {unit} ({expected['low']:.3g} to {expected['high']:.3g})"
    return None if figures[key] is None else f"{figures[key]:.3g} {unit} at the bound"


BASES = {
    "calibrated": "calibrated on this hardware",
    "family": "calibrated on its family",
    "pooled": "calibrated on other hardware",
    "bound": "not calibrated",
}
"""What an expected time rests on, in words."""


def spread(interval: Mapping[str, float]) -> str:
    """An expected time with the ends of its interval: '12.3 ms (11.0 to 14.1)', in one unit where it can be."""
    low, mid, high = (seconds(interval[name]) for name in ("low", "mid", "high"))
    unit = mid.split()[-1]
    ends = [end.removesuffix(f" {unit}") if end.endswith(f" {unit}") else end for end in (low, high)]
    return f"{mid} ({ends[0]} to {ends[1]})"


def rate_text(value: float) -> str:
    """A rate, with digits enough that a slow one does not read as nothing."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _memory_parts(memory: Mapping[str, Any]) -> list[str]:
    names = (("weights", "weights"), ("kv_cache", "KV cache"), ("state", "state"), ("activation_peak", "activations"))
    return [f"{label} {si(memory[f'{key}_bytes'], 'B')}" for key, label in names if memory[f"{key}_bytes"]]


def _devices(parallelism: Mapping[str, Any]) -> str:
    """The devices of a parallel run in words, empty for a single one."""
    more = parallelism["decode_devices"]
    if parallelism["devices"] == 1:
        return "1 device, and another one that decodes" if more else ""
    kinds = ("tensor", "pipeline", "expert", "data", "sequence")
    degrees = ", ".join(f"{kind} {parallelism[kind]}" for kind in kinds if parallelism[kind] > 1)
    nodes = f" on {parallelism['nodes']} nodes" if parallelism["nodes"] > 1 else ""
    return f"{parallelism['devices']} devices{nodes} ({degrees})" + (f", and {more} more that decode" if more else "")


def phase_line(phase: Mapping[str, Any]) -> str:
    """The totals of a phase in a line, and its expected time in another."""
    sent = f" {si(phase['link_bytes'], 'B')} sent," if phase["link_bytes"] else ""
    line = (
        f"{si(phase['flops'], 'FLOP')}, {si(phase['bytes'], 'B')},{sent}"
        f" {seconds(phase['bound_time_s'])} at the bound, mostly {phase['bound']}-bound"
    )
    if "expected_time_s" not in phase:
        return line
    host = f", {seconds(phase['host_time_s'])} of it the host's" if phase["host_time_s"] else ""
    return f"{line}\nexpected {spread(phase['expected_time_s'])}{host}"


OP_HEADER = ("operator", "count", "FLOP", "bytes", "FLOP/B", "attainable", "bound", "at bound", "expected", "share")


def op_rows(phase: Mapping[str, Any]) -> tuple[Sequence[str], list[list[str]]]:
    """The operator table of a phase, formatted; figures are for one instance, share for all of them."""
    several = len({op["section"] for op in phase["ops"]} - ENDS) > 1
    rows = [
        [
            f"{op['name']} ({op['section']})" if several and op["section"] not in ENDS else op["name"],
            f"{op['count']:.4g}",
            si(op["flops"]),
            si(op["bytes"]),
            f"{op['intensity']:.3g}",
            si(op["attainable_flops_per_s"], "FLOP/s"),
            op["bound"],
            seconds(op["bound_time_s"]),
            *([seconds(op["expected_time_s"]["mid"])] if "expected_time_s" in op else []),
            f"{op['share']:.1%}",
        ]
        for op in phase["ops"]
    ]
    expected = any("expected_time_s" in op for op in phase["ops"])
    return [name for name in OP_HEADER if expected or name != "expected"], rows
