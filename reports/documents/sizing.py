"""The document and the blocks of `roofline size`: the chosen deployments, their load, and what changes the choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from roofline.advisor.sizing.configurations import Configuration
from roofline.advisor.sizing.deployments import Choice, Deployment
from roofline.advisor.sizing.sizing import Sizing, percent
from roofline.core.errors import RooflineError, quote
from roofline.core.units import Dimension, parse_quantity, rate_text, seconds, si
from roofline.reports.documents.serving import latencies, varied
from roofline.reports.documents.summary import targets_text
from roofline.reports.output.blocks import WIDTH, Block, Face, finite, picked
from roofline.reports.output.cells import cell
from roofline.specs.hardware import hardware_name

SCHEMA = "roofline.size/2"

MIN_BEYOND = 1e-4
"""Fraction of requests beyond the maximum context from which a note is shown."""


def sizing_document(found: Sizing) -> dict[str, Any]:
    """The JSON document of a sizing."""
    service = found.service
    return {
        "schema": SCHEMA,
        "model": found.name,
        "service": {
            "requests_per_s": service.rate,
            "concurrency": service.concurrency,
            "prompt": service.prompts.written,
            "prompt_mean": finite(service.prompts.mean),
            "generate": service.answers.written,
            "generate_mean": finite(service.answers.mean),
            "varied": service.answers.is_scattered,
            "prefix_hits": service.hits,
            "ttft_s": service.ttft,
            "tpot_s": service.tpot,
            "quantile": service.quantile,
            "encodes": not service.steps,
        },
        "quality": str(found.quality),
        "at": found.at,
        "max_context": found.model.max_context,
        "beyond_context": finite(found.beyond),
        "budget_usd": None if math.isinf(found.budget) else found.budget,
        "feasible": found.feasible,
        "choices": [_choice(entry) for entry in found.choices],
        "closest": {name: _configuration(found.closest[name]) for name in found.binding if name in found.closest},
        "apart": _pools(found),
        **finite(picked(found, "binding", "nearest", "considered", "capable", "simulated", "unpriced")),
    }


def _pools(found: Sizing) -> dict[str, Any] | None:
    if found.apart is None:
        return None
    outcome, ratio = found.apart.outcome, found.apart.ratio
    return {
        "hardware": found.choices[0].best.configuration.scenario.hardware_name,
        **picked(ratio, "devices", "prefills", "decodes", "written"),
        "usd": finite(found.apart.usd),
        "ttft_s": latencies(outcome.ttft),
        "tpot_s": latencies(outcome.tpot),
        "command": found.apart.command,
    }


def _configuration(configuration: Configuration) -> dict[str, Any]:
    return {
        "hardware": configuration.scenario.hardware_name,
        "devices": configuration.devices,
        "parallelism": configuration.split,
        "formats": configuration.formats,
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "objective": choice.objective.name,
        "meaning": choice.objective.meaning,
        "best": _deployment(choice.best),
        "runner_up": None if choice.runner_up is None else _deployment(choice.runner_up),
        **finite(picked(choice, "differs", "tied", "runner_up_has_lower_modelled_energy")),
        "changes": [finite(picked(change, "what", "value")) for change in choice.changes],
    }


def _deployment(deployment: Deployment) -> dict[str, Any]:
    configuration, figures, outcome = deployment.configuration, deployment.figures, deployment.outcome
    price = deployment.hardware.price
    return {
        "hardware": configuration.scenario.hardware_name,
        **picked(deployment, "devices", "replicas"),
        "devices_per_replica": configuration.devices,
        "parallelism": configuration.split,
        "formats": configuration.formats,
        "quality_price": str(configuration.price),
        "engine": configuration.engine.label,
        "running": finite(outcome.running),
        "utilisation": finite(deployment.utilisation),
        "max_per_replica": finite(deployment.max_load),
        "requests_per_s": finite(outcome.requests_per_second * deployment.replicas),
        "ttft_s": latencies(outcome.ttft),
        "tpot_s": latencies(outcome.tpot),
        "usd": finite(figures.cost),
        "usd_per_device": finite(deployment.price),
        "price_date": None if deployment.price is None or price is None else price.date.isoformat(),
        "joules_per_token_tdp": finite(figures.energy),
        "joules_per_token_modelled": finite(deployment.modelled_energy),
        "command": deployment.command,
    }


def sizing_blocks(document: Mapping[str, Any]) -> list[Block]:
    """A line per choice, a table of figures, energy, what changes a choice, commands to reproduce it, and a legend."""
    service = document["service"]
    rate, users = service["requests_per_s"], service["concurrency"]
    alone = rate is None and users is None
    load = (
        "one user" if alone else f"{users} request{'s' * (users != 1)} in flight" if rate is None else rate_text(rate)
    )
    output = "" if service["encodes"] else f" + {service['generate']}"
    title = f"size: {document['model']} for {load}, {service['prompt']}{output} tokens"
    if targets := targets_text(service):
        title += f", within {' and '.join(targets)} at {service['quantile']}"
    if (budget := document["budget_usd"]) is not None:
        title += f", for at most {budget:,.4g} USD{'' if alone else '/h'}"
    beyond = []
    if (share := document["beyond_context"]) >= MIN_BEYOND:
        beyond = [
            f"note: {percent(share)} of requests exceed the maximum context of {document['model']},"
            f" {document['max_context']} tokens, with their outputs; they are counted as if they were served"
        ]
    if not document["feasible"]:
        return [Block(title, [*_infeasible(document), *beyond], width=WIDTH)]
    lines = [_answer(entry, alone, service["encodes"]) for entry in document["choices"]]
    changes = [line for entry in document["choices"] for line in _changes(entry, document, alone)]
    commands = [entry["best"]["command"] for entry in document["choices"]]
    if (apart := document["apart"]) is not None:
        what = f"apart: {apart['devices']} x {apart['hardware']}, {apart['written']}, {_money(apart, alone=False)}"
        lines.append(f"{what}{_late(apart, encodes=False)}")
        commands.append(apart["command"])
    return [
        Block(title, [*lines, *beyond], width=WIDTH),
        _table(document, alone),
        _details(document),
        Block("What changes a choice", changes, width=WIDTH),
        Block("Commands that reproduce the figures of a replica", commands=list(dict.fromkeys(commands))),
        Block("Legend", _legend(document, alone), width=WIDTH),
    ]


def _answer(choice: Mapping[str, Any], alone: bool, encodes: bool) -> str:
    best = choice["best"]
    figure = _money(best, alone)
    if choice["objective"] == "efficient":
        modelled = best["joules_per_token_modelled"]
        figure = f"at most {_joules(best, 'tdp')} J/{'sequence' if encodes else 'token'}"
        figure += "" if modelled is None else f", {_joules(best, 'modelled')} modelled"
    answer = f"{choice['objective']}: {_counted(best, choice)}, {best['formats']}, {figure}"
    answer += _late(best, encodes) if choice["objective"] == "cheapest" and not alone else ""
    if not choice["tied"]:
        return answer
    other = _counted(choice["runner_up"], choice)
    formats = "" if _hardware_differs(choice) else f", {choice['runner_up']['formats']}"
    return f"{answer}; tied with {other}{formats}"


def _money(deployment: Mapping[str, Any], alone: bool) -> str:
    if deployment["usd"] is None:
        return "price unknown"
    return f"{deployment['usd']:,.0f} USD" if alone else f"{deployment['usd']:,.2f} USD/h"


def _late(deployment: Mapping[str, Any], encodes: bool) -> str:
    """The latencies at p95, which a low price is paid with."""
    if encodes:
        return f" (p95: {seconds(deployment['ttft_s']['p95']['mid'], 2)})"
    ttft, tpot = (seconds(deployment[f"{name}_s"]["p95"]["mid"], 2) for name in ("ttft", "tpot"))
    return f" (p95: TTFT {ttft}, TPOT {tpot})"


def _hardware_differs(choice: Mapping[str, Any]) -> bool:
    return not choice["differs"] or "hardware" in choice["differs"]


def _parallelism(deployment: Mapping[str, Any]) -> str:
    return deployment["parallelism"] or "tp=1"


def _counted(deployment: Mapping[str, Any], choice: Mapping[str, Any]) -> str:
    """The devices of a deployment, with its parallelism if that is what differs from the other one."""
    if _hardware_differs(choice) or "parallelism" not in choice["differs"]:
        return _named(deployment)
    replicas = "" if deployment["replicas"] == 1 else f" ({deployment['replicas']} replicas)"
    return f"{deployment['devices']} x {deployment['hardware']} {_parallelism(deployment)}{replicas}"


def _apart(deployment: Mapping[str, Any], choice: Mapping[str, Any]) -> str:
    """The hardware of a deployment, with parallelism and formats if these differ from the other one."""
    if _hardware_differs(choice):
        return str(deployment["hardware"])
    known = {"parallelism": _parallelism(deployment), "formats": deployment["formats"]}
    words = [word for name, word in known.items() if name in choice["differs"]]
    return f"{deployment['hardware']} ({', '.join(words)})" if words else _named(deployment)


def _named(deployment: Mapping[str, Any]) -> str:
    each, replicas = deployment["devices_per_replica"], deployment["replicas"]
    count = f"{deployment['devices']} x {deployment['hardware']}"
    return count if each == 1 or replicas == 1 else f"{count} ({replicas} replicas of {each})"


def _table(document: Mapping[str, Any], alone: bool) -> Block:
    rows = []
    for choice in document["choices"]:
        rows.append(_row(choice["objective"], choice["best"], document, alone))
        if choice["runner_up"] is not None:
            rows.append(_row("  runner-up", choice["runner_up"], document, alone))
    load = [] if alone else ["running", "load" if document["service"]["requests_per_s"] else "requests/s"]
    header = ("", "devices", "formats", "USD" if alone else "USD/h", *load, *_times(document))
    return Block("Choices (latencies at p50/p95)", header=header, rows=rows, left=3)


def _row(label: str, deployment: Mapping[str, Any], document: Mapping[str, Any], alone: bool) -> list[str]:
    rate, cost = deployment["requests_per_s"], deployment["usd"]
    load = f"{deployment['utilisation']:.0%}" if document["service"]["requests_per_s"] else f"{rate:.3g}"
    loads = [] if alone else [f"{deployment['running']:.3g}", load]
    times = [deployment[name] for name in ("ttft_s", "tpot_s")[: len(_times(document))]]
    usd = cell(cost, ",.0f" if alone or (cost or 0) >= 100 else ",.2f")
    shown = [_together(found["p50"]["mid"], found["p95"]["mid"], "/") for found in times]
    return [label, _devices(deployment), deployment["formats"], usd, *loads, *shown]


def _times(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The times that requests have: those of a model that only encodes have one."""
    return ("latency",) if document["service"]["encodes"] else ("TTFT", "TPOT")


def _devices(deployment: Mapping[str, Any]) -> str:
    count = f"{deployment['replicas']} x" if deployment["replicas"] > 1 else ""
    return " ".join(filter(None, (count, deployment["hardware"], deployment["parallelism"])))


def _details(document: Mapping[str, Any]) -> Block:
    """Intervals of latencies, and energy per token, modelled and at TDP, each deployment once."""
    deployments = (choice[name] for choice in document["choices"] for name in ("best", "runner_up") if choice[name])
    rows = {(_devices(deployment), deployment["formats"]): deployment for deployment in deployments}
    service, cells = document["service"], []
    quantile = service["quantile"]
    for names, found in rows.items():
        times = [
            _together(found[f"{name}_s"][quantile]["low"], found[f"{name}_s"][quantile]["high"], " to ")
            for name in ("ttft", "tpot")[: len(_times(document))]
        ]
        cells.append([*names, *times, *(_joules(found, reading) for reading in ("modelled", "tdp"))])
    unit = "sequence" if service["encodes"] else "token"
    header = ("devices", "formats", *(f"{name} {quantile}" for name in _times(document)), f"J/{unit}", "at TDP")
    return Block(f"80% intervals, and joules per {unit}", header=header, rows=cells, left=2)


def _joules(deployment: Mapping[str, Any], reading: str) -> str:
    return cell(deployment[f"joules_per_token_{reading}"], _two_digits)


def _together(one: float, other: float, between: str) -> str:
    """Two times in the unit of the larger."""
    unit = seconds(other, 2).split()[1]
    scale = {"s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}[unit]
    return between.join(_two_digits(time / scale) for time in (one, other)) + f" {unit}"


def _two_digits(value: float) -> str:
    return f"{float(f'{value:.2g}'):g}"


def _changes(choice: Mapping[str, Any], document: Mapping[str, Any], alone: bool) -> list[str]:
    best, other = choice["best"], choice["runner_up"]
    better = {"cheapest": "is cheaper", "efficient": "is more efficient", "fewest": "needs fewer devices"}
    lines = []
    changes = {change["what"]: change["value"] for change in choice["changes"]}
    named = _apart(other, choice) if other is not None else ""
    word = better.get(choice["objective"], "is better")
    load = "requests in flight" if document["service"]["requests_per_s"] is None else "requests/s"
    if "load_above" in changes:
        lines.append(f"above {changes['load_above']:.3g} {load} {named} {word}")
    if "load_below" in changes:
        lines.append(f"at {changes['load_below']:.3g} {load} and just below, {named} {word}")
    if "price" in changes:
        unit = "USD" if alone else "USD/h"
        does = "costs less" if choice["objective"] == "fewest" else "is the choice"
        lines.append(f"{named} {does} below {changes['price']:,.4g} {unit} per device")
    if "price_ratio" in changes:
        ratio = f"{changes['price_ratio']:.3g}"
        under = "less than" if ratio == "1" else f"under {ratio} times"
        lines.append(f"{_named(other)} costs less if its device costs {under} the chosen one")
    if choice["runner_up_has_lower_modelled_energy"]:
        joules = [_joules(deployment, "modelled") for deployment in (other, best)]
        if joules[0] != joules[1]:
            lines.append(f"by modelled energy {named} is better: {' against '.join(joules)} J/token")
    verb = "misses" if alone or choice["objective"] == "fastest" else "needs more replicas for"
    names = ("ttft",) if document["service"]["encodes"] else ("tpot", "ttft")
    limits = " or ".join(f"{name.upper()} below {seconds(changes[name])}" for name in names)
    lines.append(f"{_apart(best, choice)} {verb} a target of {limits}")
    return [f"{choice['objective']}: {line}" for line in lines]


def _legend(document: Mapping[str, Any], alone: bool) -> list[str]:
    service = document["service"]
    targets = ", ".join(targets_text(service)) or "none"
    end = "middle" if document["at"] == "mid" else "pessimistic end"
    count = "" if alone else "3 x: 3 replicas; "
    notes = [
        f"targets: {targets} ({service['quantile']}), at the {end} of expected times",
        "latency: with waiting"
        if service["encodes"]
        else "TTFT: time to first token, with waiting; TPOT: time per output token after the first",
        f"{count}tp: tensor, dp: data, ep: expert, pp: pipeline parallelism",
        "awq: 4-bit weights; fp8: 8-bit weights; KV fp8: 8-bit KV cache; bf16: 16-bit weights",
        "J/token: modelled energy of active and idle time, where the spec has the figures; efficient: least at TDP",
    ]
    if not alone:
        notes += [
            "running: sequences of a replica on average; load: request rate over the largest sustainable one",
            "fewest: devices, then power; fastest: on 8 devices, or twice the fewest",
        ]
    if service["varied"]:
        notes.append(varied(service["generate"]))
    notes.append("tied: the 80% intervals could swap the two; prices are from dated specs or --price")
    if document["unpriced"]:
        names = document["unpriced"]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        notes.append(f"price unknown: {shown} (--price NAME=USD)")
    return notes


def _infeasible(document: Mapping[str, Any]) -> list[str]:
    binding, nearest, service = document["binding"], document["nearest"], document["service"]
    if binding == ["memory"]:
        needed = si(nearest["memory"], "B")
        return [
            "no deployment fits in memory: over the maximum number of devices, in the smallest format that --quality"
            f" allows, it needs at least {needed} per device"
        ]
    loaded = service["requests_per_s"] is not None or service["concurrency"] is not None
    lines = ["no deployment meets the targets" + (" at any load" if loaded else "")]
    for name in binding:
        target, least = (seconds(value, 4) for value in (service[f"{name}_s"], nearest[name]))
        over, by = nearest[name] / service[f"{name}_s"], ""
        if (closest := document["closest"].get(name)) is not None:
            words = (f"{closest['devices']} x {closest['hardware']}", closest["parallelism"], closest["formats"])
            by = f", by {', '.join(filter(None, words))}"
        lines.append(
            f"{name.upper()} is binding: the target is {target}, the lowest feasible {least} ({over:.3g} times){by}"
        )
    return lines


def prices(texts: list[str], alone: bool) -> dict[str, float]:
    """USD by hardware of texts NAME=USD: per device-hour, or to buy a device for one user. Raises RooflineError."""
    found = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        dimension = Dimension.MONEY if alone else Dimension.MONEY_RATE
        try:
            if not equals or not name:
                raise RooflineError("")
            plain = value.strip().removesuffix("USD/h").removesuffix("USD").strip()
            price = parse_quantity(f"{plain} {dimension.units[0]}", dimension).value
        except RooflineError:
            raise RooflineError(f"a price is written NAME=USD, such as h100-sxm=2.99, got {quote(text)}") from None
        found[hardware_name(name.strip())] = price
    return found


SIZING = Face(
    sizing_document,
    sizing_blocks,
    lambda document: [{"objective": choice["objective"], **choice["best"]} for choice in document["choices"]],
)
