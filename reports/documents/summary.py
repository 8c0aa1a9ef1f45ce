"""The text of an analysis: workload, memory, times, energy, cost and operators, from its document."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from roofline.core.errors import alternatives
from roofline.core.units import count_text, seconds, si, target_text
from roofline.graph.network import ENDS
from roofline.reports.output.cells import Column, Form, cell, table_of
from roofline.specs.reserve import STATIC


def summary_lines(document: Mapping[str, Any], verbose: bool = True) -> list[str]:
    """The workload, memory, latency, throughput, energy and cost of an analysis, one line each, then its notes.

    `verbose`: with the sources of the calibration.
    """
    generation, devices = document["generation"], _devices(document["parallelism"])
    lines = [
        workload_line(document),
        *([f"on {devices}; operators and memory are per device"] if devices else []),
        *memory_lines(document["memory"]),
        *times_lines(document, verbose),
        *energy_lines(document["energy"], is_encoder(generation)),
        *cost_lines(document["cost"], is_encoder(generation)),
    ]
    if generation["tokens_per_iteration"] != 1:
        accepted = f"a decode iteration yields {generation['tokens_per_iteration']:.3g} tokens per sequence"
        source = generation["acceptance_source"]
        lines.append(accepted if source in (None, "given") else f"{accepted}, as measured for {source}")
    if document["techniques"]:
        lines.append(f"techniques: {', '.join(document['techniques'])}")
    convention = document["scenario"]["convention"]
    if convention != "physical":
        lines.append(f"FLOPs and bytes counted by the {convention} convention")
    return [*lines, *(f"note: {note}" for note in document["notes"])]


def workload_line(document: Mapping[str, Any]) -> str:
    """The workload and the formats of an analysis."""
    scenario = document["scenario"]
    workload = f"batch {scenario['batch']}, prompt {scenario['prompt']}"
    workload += "" if scenario["generate"] is None else f", generate {scenario['generate']}"
    if scenario["prefix"]:
        workload += f", cached prefix {scenario['prefix']}"
    formats = f"weights {scenario['weights']}, activations {scenario['activations']}"
    formats += "" if scenario["kv"] is None else f", KV {scenario['kv']}"
    return f"{workload}; {formats}" + ("; FlashAttention" if scenario["flash"] else "")


def memory_lines(memory: Mapping[str, Any]) -> list[str]:
    """The memory in use, whether it fits, and its parts; then with what a scenario fits that does not."""
    verdict = "fits" if memory["fits"] else "DOES NOT FIT"
    headroom = si(abs(memory["headroom_bytes"]), "B") + (" free" if memory["fits"] else " over")
    usable = si(memory["budget_bytes"], "B") + ("" if memory["reading"] == STATIC else " usable")
    sizes = ((title, memory[f"{key}_bytes"]) for key, title in MEMORY_PARTS.items())
    parts = ", ".join(f"{title} {si(size, 'B')}" for title, size in sizes if size)
    line = f"memory: {si(memory['total_bytes'], 'B')} of {usable}: {verdict}, {headroom} ({parts})"
    return [line, *([f"it fits with {alternatives(memory['fits_with'])}"] if memory.get("fits_with") else [])]


def used_of(memory: Mapping[str, Any]) -> str:
    """The memory in use of what may be used."""
    return f"{si(memory['total_bytes'], 'B')} of {si(memory['budget_bytes'], 'B')}"


def times_lines(document: Mapping[str, Any], verbose: bool = True) -> list[str]:
    """TTFT, TPOT, total and throughput at the bound; then expected, with their intervals, and their calibration."""
    generation = document["generation"]
    rate, unit = rate_of(generation)
    bound = f"{count_text(generation[rate])} {unit}"
    return [
        f"at the bound: {_latencies(generation, '', seconds)}total {seconds(generation['total_s'])}, {bound}",
        *(_expected_lines(document, verbose) if "expected_time_s" in generation else []),
    ]


def is_encoder(rates: Mapping[str, Any]) -> bool:
    """Whether the rates are those of an encoder, which generates no tokens."""
    return rates.get("tokens_per_s") is None


def rate_of(rates: Mapping[str, Any]) -> tuple[str, str]:
    """Key and unit of the throughput: sequences/s of an encoder, else generated tokens/s."""
    return ("sequences_per_s", "sequences/s") if is_encoder(rates) else ("tokens_per_s", "tokens/s")


def rate_columns(entries: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """Column titles by key of the throughputs of several scenarios."""
    return dict(sorted({rate_of(entry) for entry in entries}, reverse=True))


def time_columns(entries: Iterable[Mapping[str, Any]]) -> Mapping[str, str]:
    """Column titles by key of the latencies of several scenarios: the total alone if all are encoders."""
    total = {"total": "total"}
    return total if all(map(is_encoder, entries)) else {"ttft": "TTFT", "tpot": "TPOT", **total}


def _latencies(generation: Mapping[str, Any], prefix: str, shown: Callable[[Any], str]) -> str:
    """TTFT and TPOT; empty for an encoder."""
    if is_encoder(generation):
        return ""
    tpot = generation[f"{prefix}tpot_s"]
    return f"TTFT {shown(generation[f'{prefix}ttft_s'])}, TPOT {'-' if tpot is None else shown(tpot)}, "


def interval_text(interval: Mapping[str, float], form: Form) -> str:
    """A figure with its 80% interval: '12.3 (11.0 to 14.1)'."""
    low, mid, high = (cell(interval[end], form) for end in ("low", "mid", "high"))
    return f"{mid} ({low} to {high})"


def rate_interval(rate: Mapping[str, float]) -> str:
    """A rate with its 80% interval."""
    return interval_text(rate, count_text)


def _expected_lines(document: Mapping[str, Any], verbose: bool) -> list[str]:
    """The expected times of a generation with their 80% intervals, and their calibration."""
    engine, generation = document["scenario"]["engine"], document["generation"]
    name, unit = rate_of(generation)
    rate = f"{rate_interval(generation[f'expected_{name}'])} {unit}"
    tpot = generation["expected_tpot_s"]
    decoding = []
    if tpot:
        alone = rate_interval({"low": 1 / tpot["high"], "mid": 1 / tpot["mid"], "high": 1 / tpot["low"]})
        decoding = [f"decoding alone: {alone} tokens/s a user"]
    source = generation["source"] if verbose else generation["source"].partition(":")[0] + "; sources with -v"
    where, kernels = (f"as if {engine} ran it", "kernels ") if document["unsupported"] else (f"on {engine}", "")
    return [
        f"expected {where}: {_latencies(generation, 'expected_', time_interval)}"
        f"total {time_interval(generation['expected_time_s'])}, {rate}",
        *decoding,
        f"80% intervals in parentheses; {kernels}{BASES[generation['basis']]} ({source})",
    ]


def energy_lines(energy: Mapping[str, Any], of_prompts: bool = False) -> list[str]:
    """Energy per generated or prompt token, modelled or else the upper bound at TDP; empty if neither is known."""
    modelled, at_tdp = (figure_text(energy, key, "J") for key in energy_keys(of_prompts))
    token = "prompt token" if of_prompts else "token"
    emitted = figure_text(energy, "g_co2e_per_million_tokens", "g") if "g_co2e_per_million_tokens" in energy else None
    grams = "" if emitted is None else f", {emitted} CO2e per million tokens"
    if modelled is not None:
        power = energy.get("expected_power_w", {"mid": energy["power_w"]})["mid"]
        return [f"energy: {modelled} per {token}, {power:,.0f} W per device{grams} (modelled)"]
    return [] if at_tdp is None else [f"energy: at most {at_tdp} per {token}{grams}, all devices at TDP"]


def energy_keys(of_prompts: bool) -> tuple[str, str]:
    """Keys of the energy per token: modelled, and at TDP."""
    if of_prompts:
        return "prefill_j_per_prompt_token", "tdp_prefill_j_per_prompt_token"
    return "j_per_token", "tdp_j_per_token"


def cost_key(of_prompts: bool) -> str:
    """Key of the cost per million generated tokens; of an encoder, which generates none, per million processed."""
    return "usd_per_million_processed_tokens" if of_prompts else "usd_per_million_tokens"


def cost_lines(cost: Mapping[str, Any] | None, of_prompts: bool = False) -> list[str]:
    """Cost per million tokens, generated or of prompts, and the device prices; empty if unknown."""
    if cost is None or (shown := figure_text(cost, cost_key(of_prompts), "USD")) is None:
        return []
    told = (
        f"{price['usd_per_hour']:g} USD/h" + ("" if price["date"] is None else f" ({price['date']})")
        for price in cost["prices"]
    )
    prices = " and ".join(dict.fromkeys(told))
    return [f"cost: {shown} per million {'prompt' if of_prompts else 'generated'} tokens, devices at {prices}"]


def targets_text(limits: Mapping[str, Any]) -> list[str]:
    """The limits of TTFT and TPOT that there are."""
    return [f"{name.upper()} {target_text(limits[f'{name}_s'])}" for name in ("ttft", "tpot") if limits[f"{name}_s"]]


def limits_lines(limits: Mapping[str, Any], usual: Sequence[str]) -> list[str]:
    """The line of the limits at p95, of which some are usual ones; none where there are no limits."""
    told = targets_text(limits)
    names = " and ".join(name.upper() for name in usual)
    default = "" if not usual else ", by default" if len(usual) == len(told) else f"; {names} by default"
    return [f"within {' and '.join(told)} at p95{default}"] if told else []


def figure_text(figures: Mapping[str, Any], key: str, unit: str) -> str | None:
    """A figure at expected times with its 80% interval, else at the bound; None if unknown."""
    if (expected := figures.get(f"expected_{key}")) is not None:
        return f"{expected['mid']:.3g} {unit} ({expected['low']:.3g} to {expected['high']:.3g})"
    return None if figures[key] is None else f"{figures[key]:.3g} {unit} at the bound"


BASES = {
    "calibrated": "calibrated on this hardware",
    "version": "calibrated with another version of the engine",
    "family": "calibrated on its family",
    "engine": "calibrated with another engine",
    "pooled": "calibrated on other hardware",
    "unmeasured": "with constants of other formats: no kernel of this one was measured",
    "bound": "not calibrated",
}
"""Descriptions of the basis of an expected time."""


def time_interval(interval: Mapping[str, float]) -> str:
    """An expected time with its 80% interval: '12.3 ms (11.0 to 14.1)'."""
    low, mid, high = (seconds(interval[name]) for name in ("low", "mid", "high"))
    unit = mid.split()[-1]
    if low.endswith(f" {unit}") and high.endswith(f" {unit}"):
        low, high = (end.removesuffix(f" {unit}") for end in (low, high))
    return f"{mid} ({low} to {high})"


MEMORY_PARTS = {
    "weights": "weights",
    "kv_cache": "KV cache",
    "state": "state",
    "activation_peak": "activations",
    "runtime": "runtime",
}
"""The parts of a device's memory, with their titles."""


def _devices(parallelism: Mapping[str, Any]) -> str:
    """The devices and parallelism; empty for a single device."""
    more = parallelism["decode_devices"]
    if parallelism["devices"] == 1:
        return "1 device for prefill and 1 for decode" if more else ""
    kinds = ("tensor", "pipeline", "expert", "data", "sequence", "context")
    degrees = ", ".join(f"{kind} {parallelism[kind]}" for kind in kinds if parallelism.get(kind, 1) > 1)
    nodes = f" on {parallelism['nodes']} nodes" if parallelism["nodes"] > 1 else ""
    return f"{parallelism['devices']} devices{nodes} ({degrees})" + (f", and {more} more for decode" if more else "")


def phase_line(phase: Mapping[str, Any]) -> str:
    """The totals of a phase, and its expected time on a second line."""
    sent = f" {si(phase['link_bytes'], 'B')} sent," if phase["link_bytes"] else ""
    line = (
        f"{si(phase['flops'], 'FLOP')}, {si(phase['bytes'], 'B')},{sent}"
        f" {seconds(phase['bound_time_s'])} at the bound, mostly {phase['bound']}-bound"
    )
    busy = phase["ops"][0]["busy"] if phase["ops"] else 1
    if busy < 1:
        line += f"\nwork is that of one device, which runs {busy:.3g} of the instances; times are those of all stages"
    if "expected_time_s" not in phase:
        return line
    host = f", including {seconds(phase['host_time_s'])} host time" if phase["host_time_s"] else ""
    return f"{line}\nexpected {time_interval(phase['expected_time_s'])}{host}"


OPERATORS = (
    Column("operator", "title"),
    Column("count", "count", ".4g"),
    Column("FLOP", "flops", si),
    Column("bytes", "bytes", si),
    Column("FLOP/B", "intensity", count_text),
    Column("attainable", "attainable_flops_per_s", partial(si, unit="FLOP/s")),
    Column("bound", "bound"),
    Column("at bound", "bound_time_s", seconds),
    Column("expected", "expected_time_s.mid", seconds),
    Column("share", "share", ".1%"),
)


def op_rows(phase: Mapping[str, Any]) -> tuple[Sequence[str], list[list[str]]]:
    """Header and rows of the operator table of a phase; figures are per instance, the share is of all instances."""
    several = len({op["section"] for op in phase["ops"]} - ENDS) > 1
    rows = [
        {**op, "title": f"{op['name']} ({op['section']})" if several and op["section"] not in ENDS else op["name"]}
        for op in phase["ops"]
    ]
    expected = any("expected_time_s" in op for op in rows)
    return table_of([column for column in OPERATORS if expected or column.title != "expected"], rows)
