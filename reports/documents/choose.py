"""The document and the blocks of `roofline choose`: the alternatives in one table, the verdict and its flips."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from roofline.advisor.choosing.decision import Decision
from roofline.advisor.choosing.rows import Row, rival_of
from roofline.advisor.fitting import of_means
from roofline.advisor.judged import handicap
from roofline.core.units import rate_text, seconds
from roofline.launch.repository import name_of
from roofline.reports.documents.odds import odds_document, sentence, sure
from roofline.reports.documents.serving import latencies, varied
from roofline.reports.documents.summary import targets_text
from roofline.reports.output.blocks import WIDTH, Block, Face, finite, picked
from roofline.reports.output.cells import cell
from roofline.scenario.analysis import analyze
from roofline.scenario.notes import without_effect
from roofline.whatif.command_line import serve_command
from roofline.whatif.odds import borrowed_acceptance

SCHEMA = "roofline.choose/1"

MEANINGS: Mapping[str, str] = {
    "throughput": "output tokens/s a device",
    "latency": "mean time of a request",
    "ttft": "mean TTFT",
    "tpot": "mean TPOT",
    "cost": "cost of a request",
}
"""What the objectives are."""


SHOWN, REFUSED = 6, 2
"""Alternatives that are shown, the best first, and of those that do not run, where they are many."""

TOKENS = ("prompt", "cached", "output")
"""The tokens that are priced apart."""


def decision_document(found: Decision) -> dict[str, Any]:
    """The JSON document of a decision; rows from the best on, money in USD, times in seconds."""
    load, scenario = found.load, found.scenario
    return {
        "schema": SCHEMA,
        "decided": str(found.decided),
        "model": name_of(scenario),
        "hardware": scenario.hardware_name,
        "weights": scenario.precision.weights.name,
        "engine": scenario.profile.name,
        "concurrency": load.concurrency,
        "requests_per_s": load.rate,
        "prompt": load.prompts.written,
        "generate": load.outputs.written,
        "prefix_hits": load.hits,
        "varied": load.outputs.is_scattered,
        "objective": str(found.objective),
        "limits": {**_limits(found), "quantile": "p95"},
        "hours_per_month": found.hours,
        "rows": [_row(row, found) for row in found.rows],
        "verdict": None if found.verdict is None else odds_document(found.verdict),
        "flips": [finite(picked(flip, "load", "above", "label")) for flip in found.flips],
        "sentence": told(found),
        "without_effect": _without_effect(found),
        "api_usd_per_million": None if found.api is None else finite(picked(found.api, *TOKENS)),
        "break_even": _even(found),
        "prices": _prices(found),
    }


def _row(row: Row, found: Decision) -> dict[str, Any]:
    outcome, alternative, scenario = row.outcome, row.alternative, row.alternative.scenario
    document: dict[str, Any] = {
        "choice": row.label,
        "fits": row.fits,
        "reason": row.reason or None,
        "not_known_to_run": list(row.unknown),
        "misses": list(row.missed),
        "devices": row.devices,
        "copies": alternative.copies,
        "apart": row.is_apart,
        "handicap": 1.0 if scenario is None else handicap(scenario),
        "ttft_s": None if outcome is None else latencies(outcome.ttft),
        "tpot_s": None if outcome is None else latencies(outcome.tpot),
        "output_tokens_per_s_per_device": finite(row.per_device),
        "requests_per_s": finite(row.requests_per_second),
        "largest_requests_per_s": finite(row.largest),
        "usd_per_million_tokens": None if row.money is None else finite(picked(row.money, *TOKENS)),
        "usd_per_month": None if row.money is None else finite(row.money.month),
        "borrowed_acceptance": None if scenario is None else borrowed_acceptance(scenario),
    }
    if scenario is not None and scenario.asked and alternative.pools is None and row.fits:
        document["command"] = serve_command(scenario, found.load)
    return document


def _limits(found: Decision) -> dict[str, float | None]:
    pairs = zip(("ttft_s", "tpot_s"), found.limits, strict=True)
    return {name: limit if math.isfinite(limit) else None for name, limit in pairs}


def _prices(found: Decision) -> list[dict[str, Any]]:
    """The hardware of the rows with its rent and where that is from; a rent of the user has no source."""
    listed = {}
    for scenario in (row.alternative.scenario for row in found.rows):
        if scenario is not None:
            price, own = scenario.hardware.price, scenario.price
            listed[scenario.hardware_name] = {
                "hardware": scenario.hardware_name,
                "usd_per_hour": own if own is not None else None if price is None else price.rent,
                "usd_to_buy": None if price is None else price.buy,
                "date": None if own is not None or price is None else price.date.isoformat(),
                "source": None if own is not None else scenario.hardware.sources.get("price.rent"),
            }
    return list(listed.values())


def _even(found: Decision) -> dict[str, float] | None:
    """The break-even volume a month: requests, and tokens of prompts and outputs."""
    if (requests := found.break_even) is None:
        return None
    served = next(row for row in found.rows if row.alternative.scenario is not None)
    return {
        "requests_per_month": requests,
        "tokens_per_month": requests * sum(found.load.means),
        "served_requests_per_month": served.requests_per_second * 3600 * found.hours,
    }


def told(found: Decision) -> str:
    """The verdict in one sentence, with how sure it is and when it flips."""
    rows, load = found.rows, found.load
    best = rows[0]
    limits = targets_text(_limits(found))
    head = ""
    if best.missed == ("load",) and best.largest is not None and load.rate is not None:
        most = f"{best.label} comes nearest, with at most {best.largest:.3g}"
        return f"No choice sustains {rate_text(load.rate)}: {most}."
    if best.missed:
        head = f"No choice meets {' and '.join(limits) or 'the load'} at p95. Without limits, "
    elif best.unknown:
        head = f"No choice is known to run {', '.join(best.unknown)}; as if it did, "
    head += _reason(found)
    flips = []
    for flip in found.flips:
        users = f"{flip.load:.0f} user{'s' if flip.load > 1 else ''}"
        amount = users if load.rate is None else f"{flip.load:.3g} requests/s"
        flips.append(f"from {amount} on {flip.label}" if flip.above else f"at {amount} and below {flip.label}")
    said = " and ".join(flips)
    return f"{head}. {said[0].upper()}{said[1:]}." if said else f"{head}."


def _reason(found: Decision) -> str:
    """The first alternative, and why it is before the second."""
    best, verdict = found.rows[0], found.verdict
    if (second := rival_of(found.rows)) is None:
        return f"{best.label}; nothing else fits"
    if found.api is not None and best.alternative.scenario is not None:
        second = next(row for row in found.rows if row.alternative.scenario is None)
    if second.unknown and not best.unknown:
        return f"{best.label}; the next, {second.label}, is not known to run {', '.join(second.unknown)}"
    if verdict is None:
        return f"{best.label}; what the next, {second.label}, costs is unknown"
    document = odds_document(verdict)
    if second.missed and not best.missed:
        return f"{best.label}; the next, {second.label}, misses {' and '.join(second.missed).upper()}, {sure(document)}"
    plain = found.objective == "throughput" or found.api is not None
    other = second.label if plain else f"the next, {second.label},"
    return sentence(document, found.objective, best.label, other)


def decision_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The verdict, the table, why alternatives do not run, and where the prices are from."""
    users, rate = document["concurrency"], document["requests_per_s"]
    load = rate_text(rate) if rate is not None else "1 user" if users == 1 else f"{users} users"
    lengths = f"{document['prompt']} + {document['generate']} tokens"
    title = f"choose {document['decided']}: {document['model']} for {load}, {lengths}"
    rows = [_cells(row) for row in _shown(document)]
    header = ("choice", "fits", "TTFT", "TPOT", "tok/s/dev", "$/M in", "cached", "out", "$/month")
    within = " and ".join(targets_text(document["limits"]))
    within = f", within {within} at p95" if within else ""
    return [
        Block(title, [document["sentence"], *_break_even(document)], width=WIDTH),
        Block(f"By {MEANINGS[document['objective']]}{within}", header=header, rows=rows),
        Block("Notes", list(_notes(document)), width=WIDTH),
    ]


def _cells(row: Mapping[str, Any]) -> list[str]:
    times = []
    for name in ("ttft", "tpot"):  # a mean, marked where its p95 misses the limit
        mid = None if row[f"{name}_s"] is None else row[f"{name}_s"]["mean"]["mid"]
        times.append("-" if mid is None else seconds(mid, 3) + ("!" if name in row["misses"] else ""))
    if "load" in row["misses"] and row["largest_requests_per_s"] is not None:
        times[0] = f"< {row['largest_requests_per_s']:.3g}/s"
    rate, usd, month = row["output_tokens_per_s_per_device"], row["usd_per_million_tokens"], row["usd_per_month"]
    money = [cell(usd and usd[key], _two_digits) for key in TOKENS]
    runs = "no" if not row["fits"] else "?" if row["not_known_to_run"] else "-" if not row["devices"] else "yes"
    return [row["choice"], runs, *times, cell(rate, _two_digits), *money, cell(month, ",.0f")]


def _two_digits(value: float) -> str:
    """A number with two digits, or all before its decimal point."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _break_even(document: Mapping[str, Any]) -> Iterator[str]:
    if (even := document["break_even"]) is None:
        return
    served, needed = even["served_requests_per_month"], even["requests_per_month"]
    verb = "more" if needed > served else "less"
    yield (
        f"renting costs less than the API from {even['tokens_per_month'] / 1e6:,.0f} million tokens a month on"
        f" ({needed:,.0f} requests, {verb} than the {served:,.0f} that this load is)"
    )


def _shown(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The rows that a screen has room for: the best, and behind them those that come nearest to running."""
    rows = document["rows"]
    if len(rows) <= SHOWN:
        return list(rows)
    best = rows[: min(sum(row["fits"] for row in rows) + REFUSED, SHOWN)]
    unlike = next((row for row in rows if row["apart"] is not best[0]["apart"]), best[-1])
    return best if unlike in best else [*best[:-1], unlike]


def _without_effect(found: Decision) -> list[str]:
    """The options that change no alternative that runs."""
    scenarios = [row.alternative.scenario for row in found.rows if row.fits and row.alternative.scenario is not None]
    told = [without_effect(analyze(of_means(scenario)), served=True) for scenario in scenarios]
    return [sentence for sentence in told[0] if all(sentence in each for each in told)] if told else []


def _notes(document: Mapping[str, Any]) -> Iterator[str]:
    rows = _shown(document)
    yield from document["without_effect"]
    if document["decided"] not in ("format", "engine", "hardware"):
        yield f"{document['weights']} on {document['engine']}"
    hidden = [row for row in document["rows"] if row not in rows]
    refused: dict[str, list[str]] = {}
    for row in rows:
        refused.setdefault(row["reason"], []).append(row["choice"])
    for reason, (first, *others) in refused.items():
        if reason:
            yield f"{first}{f', and {len(others)} more' if others else ''}: {reason}"
    if hidden:
        run = sum(row["fits"] for row in hidden)
        counts = ((run, "that run"), (len(hidden) - run, "that do not run"))
        yield f"not shown: {' and '.join(f'{count} {what}' for count, what in counts if count)}; --format json has them"
    for row in rows:
        if row["not_known_to_run"]:
            yield f"{row['choice']}: not known to run {', '.join(row['not_known_to_run'])}; times as if it did"
    if held := [row["handicap"] for row in rows if row["handicap"] > 1]:
        yield f"PP within a node is not measured: it comes first where it is {max(held):.2g} times better"
    borrowed: dict[str, list[str]] = {}
    for row in rows:
        if row["borrowed_acceptance"]:
            borrowed.setdefault(row["borrowed_acceptance"], []).append(row["choice"])
    for where, labels in borrowed.items():
        yield f"{', '.join(labels)}: no acceptance of {document['model']} is published; as {where}"
    if any("!" in cell for row in rows for cell in _cells(row)):
        yield "!: its p95 is over the limit"
    if document["varied"]:
        yield varied(document["generate"])
    if any("load" in row["misses"] for row in rows):
        yield "<: does not sustain the load; the largest rate that it sustains"
    for price in document["prices"]:
        rent, bought = price["usd_per_hour"], ""
        if price["usd_to_buy"] is not None:
            hours = f", as much as {price['usd_to_buy'] / rent:,.0f} hours of rent" if rent else ""
            bought = f"; to buy {price['usd_to_buy']:,.0f} USD{hours}"
        if rent is None:
            yield f"{price['hardware']}: rent unknown, no list has it (--price USD){bought}"
        else:
            dated = "given" if price["date"] is None else f"median of public lists of {price['date']} and later"
            yield f"{price['hardware']}: {rent:.4g} USD/h a device ({dated}){bought}"
    yield (
        "TTFT, TPOT: means; $/M: tokens of prompts, cached prefixes and outputs apart, by the seconds that each takes;"
        f" $/month: {document['hours_per_month']:g} hours of all devices"
    )


DECISION = Face(
    decision_document, decision_blocks, lambda document: document["rows"], lambda document: [document["sentence"]]
)
