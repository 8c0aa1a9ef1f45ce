"""The document and the blocks of `roofline serve`: a line for each concurrency or rate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from roofline.core.errors import RooflineError
from roofline.core.units import seconds, si
from roofline.launch.repository import name_of
from roofline.reports.documents.analysis import interval
from roofline.reports.output.blocks import Block, Face, finite, picked
from roofline.reports.output.cells import Column, cell, csv_of, table_of
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

TIMES = {f"{latency}_{each}_s": f"{latency}_s.{each}.mid" for latency in LATENCIES for each in STATISTICS}
"""The columns of latencies in CSV, each with its key."""

RATES = (
    *("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "output_tokens_per_s_per_device"),
    *("output_tokens_per_s_per_user", "running", "waiting", "kv_use", "prefill_share", "preemptions_per_request"),
    *("goodput_requests_per_s", "usd_per_million_tokens", "joules_per_token_tdp"),
)


def serving_document(curve: Curve) -> dict[str, Any]:
    """The JSON document of a curve."""
    scenario, load, replica, policy = curve.scenario, curve.load, curve.replica, curve.replica.scheduler
    prompt, output = load.means
    return {
        "schema": SCHEMA,
        "model": name_of(scenario),
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
            "kv_tokens": sum(each.kv_tokens for each in replica.members),
            "logged_kv_tokens": None if replica.logged is None or replica.beside else replica.logged * replica.copies,
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


def _scenario_notes(curve: Curve) -> Iterator[str]:
    """That devices are those of one replica, of which pools have several; then the notes on the longest request."""
    each, total = curve.scenario.settings.parallel.devices, sum(devices for _, devices in curve.pools)
    if curve.tandem is not None and each > 1 and each != total:
        pools = f"{curve.tandem.prefills} of prefill and {curve.tandem.decodes} of decode"
        yield f"{each} devices are those of a replica: {pools} have {total}"
    yield from _slot_notes(curve)
    if curve.load.trace is None and curve.load.outputs.is_scattered:
        yield varied(curve.load.outputs.written)
    output = max(round(curve.load.means[1]), 1)
    prompt = max(round(curve.load.longest) - output - curve.load.beside, 1)
    output = curve.scenario.generate if curve.scenario.model.task == "encode" else output
    yield from notes(analyze(curve.scenario.changed(batch=1, prompt=prompt, generate=output)), served=True)


def varied(generate: str) -> str:
    """A note on outputs that vary about a number."""
    return f"outputs vary by up to a ninth about {generate} tokens; with --generate fixed:{generate} they do not"


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
        **_rates(found),
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
        **times_document(found),
        **finite(figures),
        **(
            {"tenants": [finite(_rates(each)) | times_document(each) for each in found.tenants]}
            if found.tenants
            else {}
        ),
    }


def _rates(found: Outcome) -> dict[str, Any]:
    return {"requests_per_s": found.requests_per_second, "output_tokens_per_s": found.output_tokens_per_second}


def times_document(found: Any) -> dict[str, Any]:
    """The latencies of an outcome, of requests or of turns."""
    return {f"{latency}_s": latencies(getattr(found, latency)) for latency in LATENCIES}


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


def _rows(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The points of all deployments, each with the values of its axes and its mean prompt."""
    return [
        {**point, "axes": deployment.get("axes", {}), "prompt_mean": deployment["prompt_mean"]}
        for deployment in document.get("deployments", [document])
        for point in deployment["points"]
    ]


def as_csv(document: Mapping[str, Any]) -> str:
    """One row a point: values of axes, the load, mid values of all latencies, and rates."""
    rows = _rows(document)
    axes = {axis: f"axes.{axis}" for axis in rows[0]["axes"]}
    plain = {key: key for key in (next(iter(rows[0])), "stable")}
    return csv_of({**axes, **plain, **TIMES, **{key: key for key in RATES}}, rows)


def serving_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The curve as a table, and what limits it; of several deployments, their values of the axes first."""
    if "deployments" in document:
        first = document["deployments"][0]
        refused = [
            f"{', '.join(f'{name} {value}' for name, value in entry['axes'].items())}: {entry['reason']}"
            for entry in document["refused"]
        ]
        title = f"{first['model']} over {', '.join(first['axes'])}"
        return [_table(title, (), document, first), *([Block("Not served", refused)] if refused else [])]
    lines = [*_about(document), *(f"note: {note}" for note in document["notes"])]
    limits = [Block(lines=[limit]) for limit in _limits(document)]
    carbon = [point.get("g_co2e_per_million_tokens_tdp") for point in document["points"]]
    if any(grams is not None for grams in carbon):
        found = ", ".join(cell(grams, ",.3g") for grams in carbon)
        limits.append(Block(lines=[f"Carbon: at most {found} g CO2e per million output tokens, all devices at TDP."]))
    curve = _table(f"{document['model']} on {deployed_on(document)}", lines, document, document)
    return [curve, *_tenants(document), *limits]


def _latency(title: str, key: str) -> Column:
    """A column of a latency: none, as of TPOT with one token, is another thing than one without bound."""
    return Column(title, f"{key}.mid", seconds, lambda row: "-" if row["stable"] else "unbounded")


GENERATING = (
    _latency("TTFT", "ttft_s.mean"),
    _latency("TTFT p95", "ttft_s.p95"),
    _latency("TPOT", "tpot_s.mean"),
    _latency("TPOT p95", "tpot_s.p95"),
    _latency("E2E p95", "e2e_s.p95"),
    Column("tok/s/GPU", "output_tokens_per_s_per_device", si),
    Column("tok/s/user", "output_tokens_per_s_per_user", ".1f"),
    Column("running", "running", ".1f"),
    Column("KV", "kv_use", ".0%"),
    Column("prefill", "prefill_share", ".0%"),
    Column("goodput/s", "goodput_requests_per_s", ".2f"),
    Column("USD/Mtok", "usd_per_million_tokens", ".3f"),
)

ENCODING = (
    _latency("latency", "e2e_s.mean"),
    _latency("p95", "e2e_s.p95"),
    _latency("p99", "e2e_s.p99"),
    Column("sequences/s", "requests_per_s", ",.4g"),
    Column("tok/s", "prompt_tokens_per_s", si),
    Column("busy", "prefill_share", ".0%"),
    Column("USD/M", "usd_per_million_requests", ",.3g"),
)

OF_TENANTS = (
    Column("requests/s", "requests_per_s", ".3g"),
    Column("tok/s", "output_tokens_per_s", si),
    _latency("TTFT", "ttft_s.mean"),
    _latency("TTFT p95", "ttft_s.p95"),
    _latency("TPOT", "tpot_s.mean"),
    _latency("E2E p95", "e2e_s.p95"),
)

USE = ("running", "kv_use", "prefill_share")
"""Figures of a single deployment, in whose place several have the values of axes."""


def _table(title: str, lines: Sequence[str], document: Mapping[str, Any], first: Mapping[str, Any]) -> Block:
    """The points as a table, of generated tokens or of a model that only encodes, as the first deployment is."""
    rows = _rows(document)
    axes, name = rows[0]["axes"], next(iter(rows[0]))
    columns: tuple[Column, ...] = ENCODING
    if first["task"] == "encode":
        rows = [{**row, "prompt_tokens_per_s": row["requests_per_s"] * row["prompt_mean"]} for row in rows]
    else:
        unknown = [key for key in RATES[-3:-1] if all(row[key] is None for row in rows)]
        columns = tuple(column for column in GENERATING if column.key not in (*unknown, *(USE if axes else ())))
    columns = (*(Column(axis, f"axes.{axis}", str, "None") for axis in axes), Column(name, name, "g"), *columns)
    return Block(title, lines, *table_of(columns, rows), left=len(axes) or 1)


def _tenants(document: Mapping[str, Any]) -> Iterator[Block]:
    """A line for each tenant of each point, where a load has several."""
    name = next(iter(document["points"][0]))
    rows = [
        {**each, "tenant": number, name: point[name], "stable": point["stable"]}
        for point in document["points"]
        for number, each in enumerate(point.get("tenants", ()), 1)
    ]
    if any(row["tenant"] > 1 for row in rows):
        columns = (Column("tenant", "tenant"), Column(name, name, "g"), *OF_TENANTS)
        yield Block("By tenant", (), *table_of(columns, rows))


def deployed_on(document: Mapping[str, Any]) -> str:
    """The devices, which names of two kinds have counted, and the engine."""
    encoders = document.get("encoders", {"devices": 0})["devices"]
    count = "" if "+" in document["hardware"] else f"{document['devices'] - encoders} "
    apart = f" and {encoders} {document['encoders']['hardware']}" if encoders else ""
    return f"{count}{document['hardware']}{apart}, {document['engine']}"


def _about(document: Mapping[str, Any]) -> Iterator[str]:
    """The lengths of requests and the formats, the scheduler, which models are where, and the pools apart."""
    encodes, policy = document["task"] == "encode", document["scheduler"]
    count, tokens, kind = document["images"], document["image_tokens"], document["encoded"]
    images = f" and {count} {kind}{'s' * (count > 1)} of {tokens // count:,} tokens" if count else ""
    images = f" and {tokens:,} tokens of images" if tokens and not count else images
    budget = "no token budget" if policy["tokens"] is None else f"{policy['tokens']:,} tokens a step"
    how = "simulated request by request" if document["simulated"] else "steady state"
    how += "" if document["policy"] == FCFS else f", {document['policy']}"
    if encodes:
        yield f"Sequences of {document['prompt']} tokens{images}; weights {document['weights']}"
        yield f"Scheduler: {budget}, sequences without padding; {how}"
    else:
        formats = f"weights {document['weights']}, KV cache {document['kv']}"
        yield f"Prompt {document['prompt']}{images}, output {document['generate']} tokens; {formats}"
        room, logged = policy["kv_tokens"], policy["logged_kv_tokens"]
        same = logged is None or abs(logged - room) <= 0.02 * room
        stated = "" if same else f" at this length ({document['engine']} prints {logged:,})"
        yield f"Scheduler: {policy['order']}, {budget}, KV cache of {room:,} tokens{stated}; {how}"
    if found := document.get("placement"):
        groups = Counter(", ".join(map(str, group)) for group in found["models"])
        told = "; ".join(f"{count} with models {group}" for group, count in groups.items())
        yield f"Placement: TP {found['tensor']}, PP {found['pipeline']}; replicas: {told}"
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


def _limits(document: Mapping[str, Any]) -> Iterator[str]:
    """What limits the load: the largest rate, waiting; and how certain the times are."""
    points = document["points"]
    first, name = points[0], next(iter(points[0]))
    if over := [point for point in points if not point["stable"]]:
        most, rates = over[0]["saturation_requests_per_s"], " and ".join(f"{point['rate']:g}/s" for point in over)
        rate = min(point["rate"] for point in over)
        # A rate that differs from the largest by less than its digits would read as sustained.
        digits = next(digits for digits in range(3, 16) if digits == 15 or f"{most:.{digits}g}" != f"{rate:.{digits}g}")
        yield f"{rates}: above {most:.{digits}g} requests/s, the largest sustainable rate, queues grow without bound."
    if document["arrivals"] == Arrivals.OFFLINE and first["requests_per_s"]:
        number, most = first["requests"], first["e2e_s"]["p95"]["mid"]
        end = number / first["requests_per_s"]
        if (steps := document.get("steps")) is not None:
            every = f"{steps} steps" if steps > 1 else "1 step"
            yield f"{every} of {number:g} requests: done after {seconds(steps * end)}, {seconds(end)} a step."
            return
        yield f"All {number:g} requests are done after {seconds(end)}, 95% of them after {seconds(most)}."
    waiting = next((point[name] for point in points if (point["waiting"] or 0) > 1), None)
    if waiting is not None and not over:
        yield f"From {name} {waiting:g} on, requests wait for a slot, the KV cache or the tokens of a step."
    low, high = (first["tpot_s"]["mean"][end] for end in ("low", "high"))
    if first["ttft_s"]["mean"]["mid"] is not None and low is not None and high is not None:
        yield f"80% interval of the mean TPOT at {name} {first[name]:g}: {seconds(low)} to {seconds(high)}."


CURVE = Face(serving_document, serving_blocks, lambda document: document["points"])
