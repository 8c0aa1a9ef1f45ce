"""The document and the blocks of `roofline serve --sessions`: a line for each number of sessions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import asdict, replace

from roofline.core.units import seconds, si
from roofline.launch.repository import name_of
from roofline.reports.documents.serving import TIMES, deployed_on, times_document
from roofline.reports.documents.summary import limits_lines
from roofline.reports.output.blocks import Block, Face, finite, picked
from roofline.reports.output.cells import BYTES, Column, cell, csv_of, table_of
from roofline.scenario.analysis import analyze
from roofline.scenario.memory import hardware_name
from roofline.scenario.notes import notes
from roofline.serving.outcome import Targets
from roofline.serving.sessions.deployed import Deployed
from roofline.serving.sessions.served import SessionCurve, SessionOutcome
from roofline.serving.sessions.store import Store
from roofline.whatif.solve.sessions import Held, SessionsAnswer

SCHEMA = "roofline.serve-sessions/1"

TOKENS = ("input_tokens_per_second", "output_tokens_per_second")

FIGURES = (
    *("turns_per_second", "input_tokens_per_second", "output_tokens_per_second", "endless", "recomputed"),
    *("running", "waiting", "pool_use", "preemptions", "thrashes", "met"),
)


def sessions_document(curve: SessionCurve) -> dict[str, Any]:
    """The JSON document of a curve of sessions."""
    return {
        "schema": SCHEMA,
        **_deployment(curve),
        "targets": _targets(curve.targets),
        "notes": list(_notes(curve)),
        "points": [
            {"session_rate" if curve.open else "sessions": finite(value), **_outcome(curve.store, found)}
            for value, found in zip(curve.values, curve.outcomes, strict=True)
        ],
    }


def _notes(deployed: Deployed) -> tuple[str, ...]:
    """The notes on a request of the mean length in an endless cache."""
    work, scenario = deployed.workload, deployed.replica.scenario
    prompt, output = max(round((work.first or work.new).mean), 1), max(round(work.output.mean), 1)
    return notes(analyze(scenario.changed(batch=1, prompt=prompt, generate=output)))


def _targets(targets: Targets) -> dict[str, Any]:
    return {"ttft_s": finite(targets[0]), "tpot_s": finite(targets[1])}


def _deployment(deployed: Deployed) -> dict[str, Any]:
    """The model, its devices, the workload and the cache."""
    work, store, scenario = deployed.workload, deployed.store, deployed.scenario
    return {
        "model": name_of(scenario),
        "hardware": hardware_name(scenario),
        "devices": deployed.whole.devices,
        "engine": scenario.profile.name,
        "weights": scenario.run_precision.weights.name,
        "kv": scenario.run_precision.kv.name,
        "workload": {
            "name": work.name,
            "turns": work.turns.written,
            "first": (work.first or work.new).written,
            "new": work.new.written,
            "output": work.output.written,
            "means": {
                "turns": work.turns.mean,
                "first": (work.first or work.new).mean,
                "new": work.new.mean,
                "output": work.output.mean,
            },
            "gap": work.gap.written,
            **picked(work, "shared", "groups", "kept", "replaced", "asides", "limit", "branches", "source"),
            **picked(work, "duration", "rehearsal"),
            "begun": list(work.begun),
            "traces": work.traces,
        },
        "cache": {
            "pool_tokens": finite(store.tokens * deployed.replica.copies),
            "block_tokens": store.block,
            "snapshot_tokens": finite(store.snapshot) or None,
            "snapshots": store.states and store.states * deployed.replica.copies,
            "tiers": [asdict(tier) for tier in store.tiers],
        },
    }


def _outcome(store: Store, found: SessionOutcome) -> dict[str, Any]:
    names = ("pool", *(tier.name for tier in store.tiers))
    return {
        **times_document(found),
        "hits": dict(zip(names, map(finite, found.hits), strict=True)),
        "hit": finite(found.hit),
        "hit_low": finite(found.near[0]),
        "hit_high": finite(found.near[1]),
        **finite(picked(found, *FIGURES)),
        "read_bytes_per_s": dict(zip(names[1:], map(finite, found.reads), strict=True)),
        "written_bytes_per_s": dict(zip(names[1:], map(finite, found.writes), strict=True)),
        "usd": None if found.cost is None else asdict(found.cost),
        "example": [asdict(turn) for turn in found.example],
    }


def as_csv(document: Mapping[str, Any]) -> str:
    """One row a point: the sessions, latencies, hits and rates."""
    points = document["points"]
    name, hits = next(iter(points[0])), {f"hit_{tier}": f"hits.{tier}" for tier in points[0]["hits"]}
    return csv_of({name: name, **TIMES, **hits, **{figure: figure for figure in FIGURES}}, points)


COLUMNS = (
    Column("TTFT", "ttft_s.mean.mid", seconds),
    Column("p95", "ttft_s.p95.mid", seconds),
    Column("TPOT", "tpot_s.mean.mid", seconds),
    Column("p95", "tpot_s.p95.mid", seconds),
    Column("turns/s", "turns_per_second", ".3g"),
    Column("tok/s/GPU", "tokens_per_second_per_device", si),
    Column("hit", "hit", ".0%"),
)

USE = (
    Column("range", "range"),
    Column("endless", "endless", ".0%"),
    Column("lost/turn", "recomputed", si),
    Column("running", "running", ".1f"),
    Column("pool", "pool_use", ".0%"),
)


def sessions_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The curve as a table, and what limits it."""
    points = document["points"]
    name, first = next(iter(points[0])), points[0]
    rows = [
        {
            **point,
            "tokens_per_second_per_device": sum(point[name] for name in TOKENS) / document["devices"],
            "range": f"{point['hit_low']:.0%}-{point['hit_high']:.0%}",
        }
        for point in points
    ]
    columns = [Column(name.replace("_", " "), name, "g"), *COLUMNS]
    columns += [Column(f"in {tier}", f"hits.{tier}", ".0%") for tier in list(first["hits"])[1:]]
    columns += [*USE, *([Column("met", "met", ".0%")] if first["met"] is not None else [])]
    columns += [Column("USD/session", "usd.session", ".3g")] if first["usd"] is not None else []
    title = f"{document['model']} on {deployed_on(document)}"
    curve = Block(title, _about(document), *table_of(columns, rows))
    return [curve, *(Block(lines=[line]) for line in _limits(points, name))]


def _about(document: Mapping[str, Any]) -> list[str]:
    """The lines on the workload, and how a benchmark replays it, on the cache and on the deployment."""
    work, cache = document["workload"], document["cache"]
    shared = f", {work['shared']:,} tokens shared" if work["shared"] else ""
    means = work["means"]
    below = "".join(f", {tier['name']} {cell(tier['bytes'], BYTES, 'without limit')}" for tier in cache["tiers"])
    pool = f"pool of {cache['pool_tokens']:,.0f} tokens"
    if each := cache["snapshot_tokens"]:  # a hit needs one
        apart = cache["snapshots"]
        size = f"{apart} in a pool of their own" if apart else f"each as much as {each:,.0f} tokens"
        pool += f" in blocks of {cache['block_tokens']}, with snapshots of states or windows ({size})"
    replayed = ""
    if work["duration"]:
        low, high = work["begun"]
        traces = f", the first {work['traces']} with the means of its traces" if work["traces"] else ""
        if work["rehearsal"]:
            traces += f", after {work['rehearsal']:,.0f} s without pauses and with one token of each output"
        begun = f"sessions begun at {low:.0%} to {high:.0%} of their turns{traces}"
        replayed = f"; runs of {work['duration']:,.0f} s of {begun}"
    return [
        f"Sessions ({work['name']}), on average: {means['turns']:.3g} turns, {means['first']:,.0f} tokens at first,"
        f" {means['new']:,.0f} new and {means['output']:,.0f} output tokens a turn{shared}{replayed}",
        f"Cache: {pool}{below}; weights {document['weights']}, KV cache {document['kv']}",
        *(f"note: {note}" for note in document["notes"]),
    ]


def _limits(points: list[Mapping[str, Any]], name: str) -> Iterator[str]:
    """Where the cache thrashes, and what tokens cost."""
    best = max(points, key=lambda point: point["turns_per_second"])
    if thrashing := [point for point in points if point["thrashes"]]:
        least = f" (of {name.replace('_', ' ')} from {thrashing[0][name]:g} on)" if len(points) > 1 else ""
        most = f" At {best[name]:g} there are the most turns/s of those asked." if least else ""
        yield f"The cache thrashes{least}: turns compute again what was evicted.{most}"
    if best["usd"] is not None:
        usd = best["usd"]
        yield (
            f"USD per million tokens at {best[name]:g}: {usd['prompt']:.3g} of prompts computed, {usd['cached']:.3g}"
            f" cached, {usd['output']:.3g} of output."
        )
    low, high = (best["tpot_s"]["mean"][end] for end in ("low", "high"))
    if low is not None and high is not None:
        yield f"80% interval of the mean TPOT at {best[name]:g}: {seconds(low)} to {seconds(high)}."


SESSIONS = Face(sessions_document, sessions_blocks, lambda document: document["points"])


def most_document(answer: SessionsAnswer) -> dict[str, Any]:
    """The JSON document of the most sessions within targets."""
    store = answer.deployed.store
    return {
        "schema": "roofline.solve-sessions/1",
        "question": "max-sessions",
        **_deployment(answer.deployed),
        "targets": _targets(answer.targets),
        "usual_targets": list(answer.usual),
        "notes": list(_notes(answer.deployed)),
        "with_tiers" if answer.alone else "answer": _held(store, answer.held),
        **({} if answer.alone is None else {"without": _held(replace(store, tiers=()), answer.alone)}),
        "fewer_tiers": [
            {"tiers": count, **_held(replace(store, tiers=store.tiers[:count]), held)}
            for count, held in enumerate(answer.fewer)
        ],
    }


def _held(store: Store, held: Held) -> dict[str, Any]:
    found = None if held.outcome is None else _outcome(store, held.outcome)
    return {"sessions": held.sessions, "next": held.next, "missed": list(held.missed), "outcome": found}


def most_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The most sessions, what they yield, and what the next number misses."""
    names = [tier["name"] for tier in document["cache"]["tiers"]]
    whole = document.get("answer") or document["with_tiers"]
    steps = [*document["fewer_tiers"], whole]
    titles = ["the pool alone" if names else "the pool", *(f"with {' and '.join(names[:at])}" for at in range(1, 9))]
    lines = [*_about(document), *limits_lines(document["targets"], document["usual_targets"])]
    lines += [_held_line(title, found) for title, found in zip(titles, steps, strict=False)]
    lines += [_added(*each) for each in zip(names, steps, steps[1:], strict=False)]
    return [Block(f"The most sessions of {document['model']} on {deployed_on(document)}", lines)]


def _added(name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """What a tier adds, in sessions and in the rent of one."""
    more = after["sessions"] - before["sessions"]
    usd = [((step["outcome"] or {}).get("usd") or {}).get("session") for step in (before, after)]
    rent = f"; a session costs {usd[1] / usd[0] - 1:+.0%}" if usd[0] and usd[1] else ""
    if more <= 0:
        return f"{name} adds no sessions within the targets{rent}"
    first, last = before["sessions"] + 1, after["sessions"]
    pays = f"from {first} to {last}" if more > 1 else f"at {last}"
    return f"{name} adds {more} session{'s' * (more > 1)}: it pays {pays}{rent}"


def _held_line(title: str, found: Mapping[str, Any]) -> str:
    missed = f"; {found['next']} miss {' and '.join(found['missed'])}" if found["next"] else ""
    if (point := found["outcome"]) is None:
        return f"{title}: not one session meets the targets{missed}"
    parts = [f"{name} {part:.0%}" for name, part in point["hits"].items()]
    hits = f"{point['hit']:.0%}" + (f", in {', '.join(parts)}" if len(parts) > 1 else "")
    price = "" if point["usd"] is None else f", {point['usd']['session']:.3g} USD a session"
    times = ", ".join(f"{name.upper()} p95 {seconds(point[f'{name}_s']['p95']['mid'])}" for name in ("ttft", "tpot"))
    return (
        f"{title}: {found['sessions']} sessions (hit rate {hits}, {times},"
        f" {point['turns_per_second']:.3g} turns/s{price}){missed}"
    )


MOST = Face(most_document, most_blocks, lambda document: [document.get("answer") or document["with_tiers"]])
