"""The document and the blocks of `roofline serve`: a line for each concurrency or rate."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from roofline.core.units import seconds, si
from roofline.reports.documents.analysis import interval
from roofline.reports.output.blocks import Block, finite
from roofline.reports.output.export import csv_text
from roofline.serving.curve import Curve
from roofline.serving.load import Arrivals
from roofline.serving.outcome import Latency, Outcome

SCHEMA = "roofline.serve/1"

LATENCIES = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p95", "p99")

RATES = (
    *("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "output_tokens_per_s_per_device"),
    *("output_tokens_per_s_per_user", "running", "waiting", "kv_use", "prefill_share", "preemptions_per_request"),
    *("goodput_requests_per_s", "usd_per_million_tokens", "joules_per_token_tdp"),
)


def serving_document(curve: Curve, targets: tuple[float, float]) -> dict[str, Any]:
    """The JSON document of a curve."""
    scenario, load, policy = curve.scenario, curve.load, curve.replica.scheduler
    prompt, output = load.means
    return {
        "schema": SCHEMA,
        "model": scenario.model.name,
        "hardware": scenario.hardware.name,
        "devices": curve.replica.devices,
        "engine": scenario.profile.name,
        "weights": scenario.run_precision.weights.name,
        "kv": scenario.run_precision.kv.name,
        "arrivals": str(load.arrivals),
        "prompt": load.prompts.written if load.trace is None else "trace",
        "prompt_mean": finite(prompt),
        "generate": load.outputs.written if load.trace is None else "trace",
        "generate_mean": finite(output),
        "prefix_hits": load.hits,
        "simulated": curve.simulated,
        "scheduler": {
            "order": policy.order,
            "tokens": policy.tokens,
            "sequences": policy.sequences or None,
            "kv_tokens": curve.replica.kv_tokens,
        },
        "targets": {"ttft_s": finite(targets[0]), "tpot_s": finite(targets[1])},
        "points": [_point(curve, value, found) for value, found in zip(curve.values, curve.outcomes, strict=True)],
    }


def _point(curve: Curve, value: float, found: Outcome) -> dict[str, Any]:
    kind = curve.load.arrivals
    name = {Arrivals.CLOSED: "concurrency", Arrivals.OPEN: "rate"}.get(kind, "requests")
    figures = {
        "requests_per_s": found.requests_per_second,
        "output_tokens_per_s": found.output_tokens_per_second,
        "total_tokens_per_s": found.total_tokens_per_second,
        "output_tokens_per_s_per_device": found.output_per_device,
        "output_tokens_per_s_per_user": found.per_user,
        "running": found.running,
        "waiting": found.waiting,
        "kv_use": found.kv_use,
        "prefill_share": found.prefill_share,
        "preemptions_per_request": found.preemptions,
        "goodput_requests_per_s": found.goodput,
        "usd_per_million_tokens": curve.cost(found),
        "joules_per_token_tdp": curve.energy(found),
    }
    return {
        name: finite(value),
        "stable": found.stable,
        "saturation_requests_per_s": finite(found.saturated_at),
        **{f"{latency}_s": latencies(getattr(found, latency)) for latency in LATENCIES},
        **{key: finite(figure) for key, figure in figures.items()},
    }


def latencies(latency: Latency) -> dict[str, Any]:
    """The statistics of a latency, with their intervals."""
    return {name: finite(interval(getattr(latency, name))) for name in STATISTICS}


def as_csv(document: Mapping[str, Any]) -> str:
    """One row a point: the load, mid values of all latencies, and rates."""
    first = document["points"][0]
    name = next(iter(first))
    header = (name, "stable", *(f"{latency}_{each}_s" for latency in LATENCIES for each in STATISTICS), *RATES)
    rows = [
        (
            point[name],
            point["stable"],
            *(point[f"{latency}_s"][each]["mid"] for latency in LATENCIES for each in STATISTICS),
            *(point[key] for key in RATES),
        )
        for point in document["points"]
    ]
    return csv_text(header, [["" if cell is None else cell for cell in row] for row in rows])


def serving_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The curve as a table, and what limits it."""
    devices = document["devices"]
    title = f"{document['model']} on {devices} {document['hardware']}, {document['engine']}"
    lines = [
        f"Prompt {document['prompt']}, output {document['generate']} tokens; weights {document['weights']}, KV cache"
        f" {document['kv']}",
        _policy(document),
    ]
    header, rows = _table(document)
    return [Block(title, lines, header, rows, left=1), *_notes(document)]


def _policy(document: Mapping[str, Any]) -> str:
    policy = document["scheduler"]
    budget = "no token budget" if policy["tokens"] is None else f"{policy['tokens']:,} tokens a step"
    how = "simulated request by request" if document["simulated"] else "steady state"
    return f"Scheduler: {policy['order']}, {budget}, KV cache of {policy['kv_tokens']:,} tokens; {how}"


def _table(document: Mapping[str, Any]) -> tuple[tuple[str, ...], list[list[str]]]:
    points = document["points"]
    name = next(iter(points[0]))
    goodput, cost = (any(point[key] is not None for point in points) for key in RATES[-3:-1])
    header = [name, "TTFT", "p95", "TPOT", "p95", "E2E p95", "tok/s/GPU", "tok/s/user", "running", "KV", "prefill"]
    header += ["goodput/s"] if goodput else []
    header += ["USD/Mtok"] if cost else []
    return tuple(header), [_row(point, name, goodput, cost) for point in points]


def _row(point: Mapping[str, Any], name: str, goodput: bool, cost: bool) -> list[str]:
    ttft, tpot, e2e = (point[f"{latency}_s"] for latency in LATENCIES)
    times = (ttft["mean"], ttft["p95"], tpot["mean"], tpot["p95"], e2e["p95"])
    return [
        f"{point[name]:g}",
        *(_seconds(time["mid"]) for time in times),
        si(point["output_tokens_per_s_per_device"], ""),
        _number(point["output_tokens_per_s_per_user"], "{:.1f}"),
        _number(point["running"], "{:.1f}"),
        _number(point["kv_use"], "{:.0%}"),
        _number(point["prefill_share"], "{:.0%}"),
        *([_number(point["goodput_requests_per_s"], "{:.2f}")] if goodput else []),
        *([_number(point["usd_per_million_tokens"], "{:.3f}")] if cost else []),
    ]


def _seconds(value: float | None) -> str:
    return "unbounded" if value is None else seconds(value)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _notes(document: Mapping[str, Any]) -> Iterator[Block]:
    points = document["points"]
    over = [point for point in points if not point["stable"]]
    if over:
        most, rates = over[0]["saturation_requests_per_s"], ", ".join(f"{point['rate']:g}/s" for point in over)
        text = f"Above {most:.3g} requests/s, the largest sustainable rate, queues grow without bound: at {rates}."
        yield Block(lines=[text])
    waiting = [point for point in points if point["waiting"] is not None and point["waiting"] > 1]
    if waiting and not over:
        point = waiting[0]
        name = next(iter(point))
        yield Block(lines=[f"From {name} {point[name]:g} on, requests wait for a slot or the KV cache."])
    first = points[0]
    if first["ttft_s"]["mean"]["mid"] is not None and not math.isnan(first["ttft_s"]["mean"]["mid"]):
        low, high = first["tpot_s"]["mean"]["low"], first["tpot_s"]["mean"]["high"]
        name = next(iter(first))
        if low is not None and high is not None:
            yield Block(
                lines=[f"80% interval of the mean TPOT at {name} {first[name]:g}: {seconds(low)} to {seconds(high)}."]
            )
