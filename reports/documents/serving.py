"""The document and the blocks of `roofline serve`: a line for each concurrency or rate."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

from roofline.core.errors import RooflineError
from roofline.core.units import seconds, si
from roofline.reports.documents.analysis import interval
from roofline.reports.output.blocks import Block, Face, finite, picked
from roofline.reports.output.export import csv_text
from roofline.scenario.analysis import analyze
from roofline.scenario.memory import hardware_name
from roofline.scenario.notes import notes
from roofline.scenario.options import OPTIONS
from roofline.serving.curve import Curve
from roofline.serving.load import Arrivals
from roofline.serving.options import FCFS
from roofline.serving.outcome import Latency, Outcome
from roofline.serving.replicas import AMONG_MODELS, models_of, placed

SCHEMA, SWEEP_SCHEMA = "roofline.serve/1", "roofline.serve-sweep/1"

LATENCIES = ("ttft", "tpot", "e2e")
STATISTICS = ("mean", "p50", "p95", "p99")

RATES = (
    *("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "output_tokens_per_s_per_device"),
    *("output_tokens_per_s_per_user", "running", "waiting", "kv_use", "prefill_share", "preemptions_per_request"),
    *("goodput_requests_per_s", "usd_per_million_tokens", "joules_per_token_tdp"),
)


def serving_document(curve: Curve) -> dict[str, Any]:
    """The JSON document of a curve."""
    scenario, load, policy = curve.scenario, curve.load, curve.replica.scheduler
    prompt, output = load.means
    return {
        "schema": SCHEMA,
        "model": scenario.model.name,
        "hardware": _hardware(curve),
        "devices": sum(devices for _, devices in curve.pools),
        "engine": scenario.profile.name,
        "task": scenario.model.task,
        "images": int(scenario.images),
        "encoded": scenario.model.encoded,
        "image_tokens": load.beside,
        "weights": scenario.run_precision.weights.name,
        "kv": scenario.run_precision.kv.name,
        "arrivals": str(load.arrivals),
        "prompt": load.prompts.written if load.trace is None else "trace",
        "prompt_mean": finite(prompt),
        "generate": load.outputs.written if load.trace is None else "trace",
        "generate_mean": finite(output),
        "prefix_hits": load.hits,
        "simulated": curve.simulated,
        "policy": load.policy,
        **({} if load.rollouts is None else {"steps": load.rollouts.steps}),
        "scheduler": {
            **picked(policy, "order", "tokens"),
            "sequences": policy.sequences or None,
            "kv_tokens": sum(each.kv_tokens for each in curve.replica.members),
            "logged_kv_tokens": _logged(curve),
        },
        **_apart(curve),
        **_placement(curve),
        "targets": {"ttft_s": finite(curve.targets[0]), "tpot_s": finite(curve.targets[1])},
        "notes": list(_scenario_notes(curve)),
        "points": [_point(curve, value, found) for value, found in zip(curve.values, curve.outcomes, strict=True)],
    }


def _hardware(curve: Curve) -> str:
    """The devices by name, those of unequal replicas joined by a plus."""
    if not curve.replica.beside:
        return hardware_name(curve.scenario)
    counts = Counter[str]()
    for hardware, devices in curve.pools:
        counts[hardware.name] += devices
    return "+".join(f"{devices}x{name}" for name, devices in counts.items())


def _logged(curve: Curve) -> int | None:
    """The tokens of the KV cache as equal replicas print them."""
    replica = curve.replica
    return None if replica.logged is None or replica.beside else replica.logged * replica.copies


def _apart(curve: Curve) -> dict[str, Any]:
    """The pools of disaggregated prefill and decode; nothing for one deployment."""
    beside = (curve.replica if curve.tandem is None else curve.tandem).encoders
    encoders = {"encoders": {"devices": beside[0][1], "hardware": beside[0][0].name}} if beside else {}
    if curve.tandem is None:
        return encoders
    (first, devices), (second, others) = curve.tandem.pools[:2]
    return {
        **encoders,
        "disaggregation": {
            "prefill": {"replicas": curve.tandem.prefills, "devices": devices, "hardware": first.name},
            "decode": {"replicas": curve.tandem.decodes, "devices": others, "hardware": second.name},
            "link": curve.tandem.link,
            "transfer_s": finite(float(curve.tandem.transfer(curve.load.means[0]))),
        },
    }


def _placement(curve: Curve) -> dict[str, Any]:
    """Which models are on which replicas, where replicas have several; nothing for other policies."""
    if curve.load.policy not in AMONG_MODELS:
        return {}
    groups = placed(curve.load.tenants, curve.replica.copies, models_of(curve.load))
    models = [sorted(model + 1 for model in group) for group in groups]
    return {
        "placement": {**picked(curve.replica.steps.scenario.settings.parallel, "tensor", "pipeline"), "models": models}
    }


def _placed(document: Mapping[str, Any]) -> Iterator[str]:
    if found := document.get("placement"):
        groups = Counter(", ".join(map(str, group)) for group in found["models"])
        told = "; ".join(f"{count} with models {group}" for group, count in groups.items())
        yield f"Placement: TP {found['tensor']}, PP {found['pipeline']}; replicas: {told}"


def _scenario_notes(curve: Curve) -> tuple[str, ...]:
    """The notes on the longest request alone."""
    output = max(round(curve.load.means[1]), 1)
    prompt = max(round(curve.load.longest) - output - curve.load.beside, 1)
    output = curve.scenario.generate if curve.scenario.model.task == "encode" else output
    longest = curve.scenario.changed(batch=1, prompt=prompt, generate=output)
    return (*_pool_notes(curve), *_slot_notes(curve), *notes(analyze(longest)))


def _pool_notes(curve: Curve) -> Iterator[str]:
    """That the devices that are named are those of one replica, of which the pools have several."""
    each, total = curve.scenario.settings.parallel.devices, sum(devices for _, devices in curve.pools)
    if curve.tandem is not None and each > 1 and each != total:
        pools = f"{curve.tandem.prefills} of prefill and {curve.tandem.decodes} of decode"
        yield f"{each} devices are those of a replica: {pools} have {total}"


def _slot_notes(curve: Curve) -> Iterator[str]:
    """What lets no more requests run at once, where more are there: states that have room, or drafts."""
    replica, scenario = curve.replica, curve.scenario
    engine, most = scenario.profile.name, replica.sequences
    closed = curve.load.arrivals == Arrivals.CLOSED
    taken = curve.values if closed else [found.running / FULL for found in curve.outcomes]
    if max(taken) <= most * replica.copies:
        return
    if replica.capacity is not None and replica.scheduler.sequences == replica.capacity.running:
        yield f"{engine} has room for the states of {most} requests at once"
    elif replica.scheduler.drafted and scenario.settings.speculation and scenario.settings.sequences is None:
        yield f"{engine} runs {most} requests at once with drafts; more with {OPTIONS['max_num_seqs'].flag}"


FULL = 0.98
"""The part of its slots from which a server that has all taken is told: one is free between two requests."""


def _point(curve: Curve, value: float, found: Outcome) -> dict[str, Any]:
    kind = curve.load.arrivals
    name = {Arrivals.CLOSED: "concurrency", Arrivals.OPEN: "rate"}.get(kind, "requests")
    figures = {
        "requests_per_s": found.requests_per_second,
        "output_tokens_per_s": found.output_tokens_per_second,
        "total_tokens_per_s": found.total_tokens_per_second,
        "output_tokens_per_s_per_device": found.output_per_device,
        "output_tokens_per_s_per_user": found.per_user,
        **picked(found, "running", "waiting", "kv_use", "prefill_share"),
        "preemptions_per_request": found.preemptions,
        "goodput_requests_per_s": found.goodput,
        "usd_per_million_tokens": curve.cost(found),
        "usd_per_million_requests": curve.cost(found, found.requests_per_second),
        "joules_per_token_tdp": curve.energy(found),
        "g_co2e_per_million_tokens_tdp": curve.carbon(found),
    }
    return {
        name: finite(value),
        "stable": found.stable,
        "saturation_requests_per_s": finite(found.saturated_at),
        **{f"{latency}_s": latencies(getattr(found, latency)) for latency in LATENCIES},
        **{key: finite(figure) for key, figure in figures.items()},
        **({"tenants": list(map(_tenant, found.tenants))} if found.tenants else {}),
    }


def _tenant(found: Outcome) -> dict[str, Any]:
    rates = {"requests_per_s": found.requests_per_second, "output_tokens_per_s": found.output_tokens_per_second}
    times = {f"{latency}_s": latencies(getattr(found, latency)) for latency in LATENCIES}
    return {**{key: finite(rate) for key, rate in rates.items()}, **times}


def latencies(latency: Latency) -> dict[str, Any]:
    """The statistics of a latency, with their intervals."""
    return {name: finite(interval(getattr(latency, name))) for name in STATISTICS}


Labels = Mapping[str, Any]
"""Values of axes, by name."""


def swept(
    combinations: Iterable[tuple[Labels, Mapping[str, Any]]], served: Callable[[Mapping[str, Any]], Curve]
) -> tuple[list[tuple[Labels, Curve]], list[tuple[Labels, str]]]:
    """The curves of combinations of options, and the reasons of those that cannot be served.

    Raises RooflineError where none can.
    """
    found, refused = [], []
    for labels, options in combinations:
        try:
            found.append((labels, served(options)))
        except RooflineError as error:
            refused.append((labels, str(error)))
    if not found:
        raise RooflineError(f"no combination of the axes can be served: {refused[0][1]}")
    return found, refused


def sweep_document(found: Iterable[tuple[Labels, Curve]], refused: Iterable[tuple[Labels, str]]) -> dict[str, Any]:
    """The JSON document of the curves of several deployments."""
    return {
        "schema": SWEEP_SCHEMA,
        "deployments": [{"axes": dict(labels), **serving_document(curve)} for labels, curve in found],
        "refused": [{"axes": dict(labels), "reason": reason} for labels, reason in refused],
    }


def _deployments(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(document.get("deployments", [document]))


def as_csv(document: Mapping[str, Any]) -> str:
    """One row a point: values of axes, the load, mid values of all latencies, and rates."""
    deployments = _deployments(document)
    name = next(iter(deployments[0]["points"][0]))
    times = (f"{latency}_{each}_s" for latency in LATENCIES for each in STATISTICS)
    header = (*deployments[0].get("axes", ()), name, "stable", *times, *RATES)
    rows = [
        (
            *deployment.get("axes", {}).values(),
            point[name],
            point["stable"],
            *(point[f"{latency}_s"][each]["mid"] for latency in LATENCIES for each in STATISTICS),
            *(point[key] for key in RATES),
        )
        for deployment in deployments
        for point in deployment["points"]
    ]
    return csv_text(header, rows)


def serving_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The curve as a table, and what limits it; of several deployments, their values of the axes first."""
    deployments = _deployments(document)
    header, rows = (_encoded if deployments[0]["task"] == "encode" else _table)(deployments)
    if "deployments" in document:
        first = document["deployments"][0]
        axes = list(first["axes"])
        refused = [
            f"{', '.join(f'{name} {value}' for name, value in entry['axes'].items())}: {entry['reason']}"
            for entry in document["refused"]
        ]
        title = f"{first['model']} over {', '.join(axes)}"
        block = Block(title, (), header, rows, left=len(axes))
        return [block, *([Block("Not served", refused)] if refused else [])]
    title = f"{document['model']} on {deployed_on(document)}"
    lines = [
        _lengths(document),
        _policy(document),
        *_placed(document),
        *_pools(document),
        *(f"note: {note}" for note in document["notes"]),
    ]
    limits = [Block(lines=[limit]) for limit in _limits(document)]
    if any(point.get("g_co2e_per_million_tokens_tdp") is not None for point in document["points"]):
        found = ", ".join(_number(point["g_co2e_per_million_tokens_tdp"], "{:,.3g}") for point in document["points"])
        limits.append(Block(lines=[f"Carbon: at most {found} g CO2e per million output tokens, all devices at TDP."]))
    return [Block(title, lines, header, rows, left=1), *_tenants(document), *limits]


def _tenants(document: Mapping[str, Any]) -> Iterator[Block]:
    """A line for each tenant of each point, where a load has several."""
    header = ("tenant", next(iter(document["points"][0])), "requests/s", "tok/s", "TTFT", "TTFT p95", "TPOT", "E2E p95")
    rows = [
        [
            str(number),
            f"{point[header[1]]:g}",
            _number(each["requests_per_s"], "{:.3g}"),
            si(each["output_tokens_per_s"], ""),
            *(
                _seconds(point, each[f"{latency}_s"][name])
                for latency, name in (("ttft", "mean"), ("ttft", "p95"), ("tpot", "mean"), ("e2e", "p95"))
            ),
        ]
        for point in document["points"]
        for number, each in enumerate(point.get("tenants", ()), 1)
    ]
    if len({row[0] for row in rows}) > 1:
        yield Block("By tenant", (), header, rows, left=1)


def _lengths(document: Mapping[str, Any]) -> str:
    """The lengths of requests, and the formats."""
    count, tokens, kind = document["images"], document["image_tokens"], document["encoded"]
    images = f" and {count} {kind}{'s' * (count > 1)} of {tokens // count:,} tokens" if count else ""
    images = f" and {tokens:,} tokens of images" if tokens and not count else images
    if document["task"] == "encode":
        return f"Sequences of {document['prompt']} tokens{images}; weights {document['weights']}"
    formats = f"weights {document['weights']}, KV cache {document['kv']}"
    return f"Prompt {document['prompt']}{images}, output {document['generate']} tokens; {formats}"


def deployed_on(document: Mapping[str, Any]) -> str:
    """The devices, which names of two kinds have counted, and the engine."""
    encoders = document.get("encoders", {"devices": 0})["devices"]
    count = "" if "+" in document["hardware"] else f"{document['devices'] - encoders} "
    apart = f" and {encoders} {document['encoders']['hardware']}" if encoders else ""
    return f"{count}{document['hardware']}{apart}, {document['engine']}"


def _policy(document: Mapping[str, Any]) -> str:
    policy = document["scheduler"]
    budget = "no token budget" if policy["tokens"] is None else f"{policy['tokens']:,} tokens a step"
    how = "simulated request by request" if document["simulated"] else "steady state"
    how += "" if document["policy"] == FCFS else f", {document['policy']}"
    if document["task"] == "encode":
        return f"Scheduler: {budget}, sequences without padding; {how}"
    room, logged = policy["kv_tokens"], policy["logged_kv_tokens"]
    same = logged is None or abs(logged - room) <= 0.02 * room
    stated = "" if same else f" at this length ({document['engine']} prints {logged:,})"
    return f"Scheduler: {policy['order']}, {budget}, KV cache of {room:,} tokens{stated}; {how}"


def _pools(document: Mapping[str, Any]) -> Iterator[str]:
    """The lines on encoders, and on disaggregated prefill and decode."""
    if (encoders := document.get("encoders")) is not None:
        yield f"Images are encoded on {encoders['devices']} {encoders['hardware']} apart"
    if (apart := document.get("disaggregation")) is not None:
        each = [
            f"{phase} {apart[phase]['replicas']} x {apart[phase]['devices'] // apart[phase]['replicas']}"
            f" {apart[phase]['hardware']}"
            for phase in ("prefill", "decode")
        ]
        sent = f"KV cache of a mean prompt over {apart['link']} in {seconds(apart['transfer_s'])}"
        yield f"Apart: {', '.join(each)}; {sent}"


USE = ("running", "KV", "prefill")
"""Columns of a single deployment."""


def _table(deployments: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Header and rows; the values of axes take the place of the columns USE."""
    points = [(deployment.get("axes", {}), point) for deployment in deployments for point in deployment["points"]]
    axes = list(points[0][0])
    name = next(iter(points[0][1]))
    header = [name, "TTFT", "TTFT p95", "TPOT", "TPOT p95", "E2E p95", "tok/s/GPU", "tok/s/user", *USE]
    header += ["goodput/s", "USD/Mtok"]
    given = (any(point[key] is not None for _, point in points) for key in RATES[-3:-1])
    known = dict(zip(header[-2:], given, strict=True))
    shown = [known.get(title, title not in USE or not axes) for title in header]
    rows = [[*map(str, values.values()), *compress(_row(point, name), shown)] for values, point in points]
    return (*axes, *compress(header, shown)), rows


def _row(point: Mapping[str, Any], name: str) -> list[str]:
    ttft, tpot, e2e = (point[f"{latency}_s"] for latency in LATENCIES)
    times = (ttft["mean"], ttft["p95"], tpot["mean"], tpot["p95"], e2e["p95"])
    return [
        f"{point[name]:g}",
        *(_seconds(point, time) for time in times),
        si(point["output_tokens_per_s_per_device"], ""),
        _number(point["output_tokens_per_s_per_user"], "{:.1f}"),
        _number(point["running"], "{:.1f}"),
        _number(point["kv_use"], "{:.0%}"),
        _number(point["prefill_share"], "{:.0%}"),
        _number(point["goodput_requests_per_s"], "{:.2f}"),
        _number(point["usd_per_million_tokens"], "{:.3f}"),
    ]


def _encoded(deployments: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Header and rows of a model that only encodes."""
    points = [(deployment, point) for deployment in deployments for point in deployment["points"]]
    axes, name = list(deployments[0].get("axes", {})), next(iter(points[0][1]))
    rows = [
        [
            *map(str, deployment.get("axes", {}).values()),
            f"{point[name]:g}",
            *(_seconds(point, point["e2e_s"][statistic]) for statistic in ("mean", "p95", "p99")),
            _number(point["requests_per_s"], "{:,.4g}"),
            si(point["requests_per_s"] * deployment["prompt_mean"], ""),
            _number(point["prefill_share"], "{:.0%}"),
            _number(point["usd_per_million_requests"], "{:,.3g}"),
        ]
        for deployment, point in points
    ]
    return (*axes, name, "latency", "p95", "p99", "sequences/s", "tok/s", "busy", "USD/M"), rows


def _seconds(point: Mapping[str, Any], time: Mapping[str, Any]) -> str:
    """The expected latency of a point: none, as of TPOT with one token, is another thing than one without bound."""
    return seconds(time["mid"]) if time["mid"] is not None else "-" if point["stable"] else "unbounded"


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def _limits(document: Mapping[str, Any]) -> Iterator[str]:
    """What limits the load: the largest rate, waiting; and how certain the times are."""
    points = document["points"]
    over = [point for point in points if not point["stable"]]
    if over:
        most, rates = over[0]["saturation_requests_per_s"], " and ".join(f"{point['rate']:g}/s" for point in over)
        rate = min(point["rate"] for point in over)
        # A rate that differs from the largest by less than its digits would read as sustained.
        digits = next(digits for digits in range(3, 16) if digits == 15 or f"{most:.{digits}g}" != f"{rate:.{digits}g}")
        yield f"{rates}: above {most:.{digits}g} requests/s, the largest sustainable rate, queues grow without bound."
    if document["arrivals"] == Arrivals.OFFLINE and points[0]["requests_per_s"]:
        number, most = points[0]["requests"], points[0]["e2e_s"]["p95"]["mid"]
        end, steps = number / points[0]["requests_per_s"], document.get("steps")
        if steps is not None:
            every = f"{steps} steps" if steps > 1 else "1 step"
            yield f"{every} of {number:g} requests: done after {seconds(steps * end)}, {seconds(end)} a step."
            return
        yield f"All {number:g} requests are done after {seconds(end)}, 95% of them after {seconds(most)}."
    waiting = [point for point in points if point["waiting"] is not None and point["waiting"] > 1]
    if waiting and not over:
        point = waiting[0]
        name = next(iter(point))
        yield f"From {name} {point[name]:g} on, requests wait for a slot, the KV cache or the tokens of a step."
    first = points[0]
    if first["ttft_s"]["mean"]["mid"] is not None and not math.isnan(first["ttft_s"]["mean"]["mid"]):
        low, high = first["tpot_s"]["mean"]["low"], first["tpot_s"]["mean"]["high"]
        name = next(iter(first))
        if low is not None and high is not None:
            yield f"80% interval of the mean TPOT at {name} {first[name]:g}: {seconds(low)} to {seconds(high)}."


CURVE = Face(serving_document, serving_blocks, lambda document: document["points"])
