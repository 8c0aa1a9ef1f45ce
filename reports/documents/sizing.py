"""Sizings as documents and pages: what to buy or rent, at what load it runs, and what would change the choice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from roofline.advisor.sizing.choices import Choice
from roofline.advisor.sizing.deployments import Setup
from roofline.advisor.sizing.sizing import Sizing, percent
from roofline.core.errors import RooflineError, quote
from roofline.core.units import Dimension, parse_quantity, seconds, si
from roofline.reports.output.blocks import WIDTH, Block, finite
from roofline.timing.estimate import Estimate

SCHEMA = "roofline.size/1"

TOLD_BEYOND = 1e-4
"""The least share of requests beyond the maximum context that is told."""


def sizing_document(found: Sizing) -> dict[str, Any]:
    """The JSON document of a sizing."""
    service = found.service
    return {
        "schema": SCHEMA,
        "model": found.model.name,
        "service": {
            "requests_per_s": service.rate,
            "prompt": service.prompts.written,
            "prompt_mean": finite(service.prompts.mean),
            "generate": service.answers.written,
            "generate_mean": finite(service.answers.mean),
            "ttft_s": service.ttft,
            "tpot_s": service.tpot,
            "quantile": service.quantile,
        },
        "quality": str(found.quality),
        "at": found.at,
        "max_context": found.model.max_context,
        "beyond_context": finite(found.beyond),
        "feasible": found.feasible,
        "choices": [_choice(entry) for entry in found.choices],
        "binding": list(found.binding),
        "nearest": finite(found.nearest),
        "considered": found.considered,
        "capable": found.capable,
        "simulated": found.simulated,
        "unpriced": list(found.unpriced),
    }


def _choice(choice: Choice) -> dict[str, Any]:
    return {
        "aim": choice.aim.name,
        "by": choice.aim.meaning,
        "best": _setup(choice.best),
        "runner_up": None if choice.runner_up is None else _setup(choice.runner_up),
        "differs": list(choice.differs),
        "tied": choice.tied,
        "otherwise_modelled": choice.otherwise_modelled,
        "changes": [{"what": change.what, "value": finite(change.value)} for change in choice.changes],
    }


def _setup(setup: Setup) -> dict[str, Any]:
    configuration, figures = setup.configuration, setup.figures
    price = setup.hardware.price
    return {
        "hardware": configuration.request.hardware_name,
        "devices": setup.devices,
        "replicas": setup.replicas,
        "devices_per_replica": configuration.devices,
        "parallelism": configuration.split,
        "formats": configuration.formats,
        "quality_price": str(configuration.price),
        "engine": configuration.engine.name,
        "slots": setup.slots,
        "batch": finite(setup.batch),
        "utilisation": finite(setup.utilisation),
        "most_requests_per_s": finite(setup.most),
        "ttft_s": _interval(setup.ttft),
        "tpot_s": _interval(setup.tpot),
        "usd": finite(figures.cost),
        "usd_per_device": finite(setup.price),
        "price_date": None if setup.price is None or price is None else price.date.isoformat(),
        "joules_per_token_at_most": finite(figures.energy),
        "joules_per_token_modelled": finite(setup.modelled_energy),
        "step_s": _interval(setup.step),
        "command": setup.command,
        "prefill_s": _interval(setup.prefill),
        "prefill_command": setup.prefill_command,
    }


def _interval(estimate: Estimate) -> dict[str, Any]:
    return {name: finite(value) for name, value in zip(Estimate._fields, estimate, strict=True)}


def sizing_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The page: the answer in a line a choice, figures, what would change them, commands, and what the words mean."""
    service = document["service"]
    alone = service["requests_per_s"] is None
    who = "one user" if alone else f"{service['requests_per_s']:g} requests/s"
    title = f"size: {document['model']} for {who}, {service['prompt']} + {service['generate']} tokens"
    if not document["feasible"]:
        return [Block(title, [*_infeasible(document), *_beyond(document)], width=WIDTH)]
    lines = [_answer(entry, alone) for entry in document["choices"]]
    return [
        Block(title, [*lines, *_beyond(document)], width=WIDTH),
        _table(document, alone),
        _energy(document),
        Block(
            "What would change a choice",
            [line for entry in document["choices"] for line in _changes(entry, alone)],
            width=WIDTH,
        ),
        Block("To have the figures again", commands=_commands(document)),
        Block("What it says", _notes(document, alone), width=WIDTH),
    ]


def _beyond(document: Mapping[str, Any]) -> Iterator[str]:
    """Where some requests are longer than the model takes, how many."""
    share = document["beyond_context"]
    if share >= TOLD_BEYOND:
        yield (
            f"note: {percent(share)} of requests are longer, with their answers, than the maximum context of"
            f" {document['model']}, {document['max_context']} tokens: they are counted as if they were served"
        )


def _answer(choice: Mapping[str, Any], alone: bool) -> str:
    best = choice["best"]
    figure = _money(best, alone)
    if choice["aim"] == "efficient":
        modelled = best["joules_per_token_modelled"]
        figure = f"at most {_joules(best, 'at_most')} J/token"
        figure += "" if modelled is None else f", {_joules(best, 'modelled')} as modelled"
    said = f"{choice['aim']}: {_counted(best, choice)}, {best['formats']}, {figure}"
    if not choice["tied"]:
        return said
    other = _counted(choice["runner_up"], choice)
    return f"{said}; a tie with {other if _elsewhere(choice) else ', '.join((other, choice['runner_up']['formats']))}"


def _elsewhere(choice: Mapping[str, Any]) -> bool:
    """Whether the hardware tells the runner-up from the best."""
    return not choice["differs"] or "hardware" in choice["differs"]


def _parallelism(setup: Mapping[str, Any]) -> str:
    return setup["parallelism"] or "tp=1"


def _counted(setup: Mapping[str, Any], choice: Mapping[str, Any]) -> str:
    """Its devices, with the parallelism where the other of the two has the same hardware in another."""
    if _elsewhere(choice) or "parallelism" not in choice["differs"]:
        return _named(setup)
    replicas = "" if setup["replicas"] == 1 else f" ({setup['replicas']} replicas)"
    return f"{setup['devices']} x {setup['hardware']} {_parallelism(setup)}{replicas}"


def _apart(setup: Mapping[str, Any], choice: Mapping[str, Any]) -> str:
    """Its hardware, with what tells it from the other of the two where that is the same."""
    if _elsewhere(choice):
        return str(setup["hardware"])
    known = {"parallelism": _parallelism(setup), "formats": setup["formats"]}
    words = [word for name, word in known.items() if name in choice["differs"]]
    return f"{setup['hardware']} ({', '.join(words)})" if words else _named(setup)


def _named(setup: Mapping[str, Any]) -> str:
    each, replicas = setup["devices_per_replica"], setup["replicas"]
    count = f"{setup['devices']} x {setup['hardware']}"
    return count if each == 1 or replicas == 1 else f"{count} ({replicas} replicas of {each})"


def _money(setup: Mapping[str, Any], alone: bool) -> str:
    if setup["usd"] is None:
        return "price unknown"
    return f"{setup['usd']:,.0f} USD" if alone else f"{setup['usd']:,.2f} USD/h"


def _table(document: Mapping[str, Any], alone: bool) -> Block:
    rows = []
    for choice in document["choices"]:
        rows.append(_row(choice["aim"], choice["best"], alone))
        if choice["runner_up"] is not None:
            rows.append(_row("  next", choice["runner_up"], alone))
    load = [] if alone else ["batch", "load"]
    header = ("", "devices", "formats", *load, "TTFT", "TPOT (range)", "USD" if alone else "USD/h")
    return Block("Choices", header=header, rows=rows, left=3)


def _row(label: str, setup: Mapping[str, Any], alone: bool) -> list[str]:
    load = [] if alone else [f"{setup['batch']:.2g}", f"{setup['utilisation']:.0%}"]
    cost = setup["usd"]
    return [
        label,
        _devices(setup),
        setup["formats"],
        *load,
        "-" if setup["ttft_s"]["mid"] is None else seconds(setup["ttft_s"]["mid"], 2),
        _range(setup["tpot_s"]),
        "-" if cost is None else f"{cost:,.0f}" if alone or cost >= 100 else f"{cost:,.2f}",
    ]


def _devices(setup: Mapping[str, Any]) -> str:
    count = f"{setup['replicas']} x" if setup["replicas"] > 1 else ""
    return " ".join(filter(None, (count, setup["hardware"], setup["parallelism"])))


def _energy(document: Mapping[str, Any]) -> Block:
    """What a token draws in both readings, each setup once: a table of its own, since the other is wide enough."""
    setups = (choice[name] for choice in document["choices"] for name in ("best", "runner_up") if choice[name])
    rows = {(_devices(setup), setup["formats"]): setup for setup in setups}
    header = ("devices", "formats", "as modelled", "at most")
    return Block(
        "Joules a token",
        header=header,
        rows=[[*names, _joules(setup, "modelled"), _joules(setup, "at_most")] for names, setup in rows.items()],
        left=2,
    )


def _joules(setup: Mapping[str, Any], reading: str) -> str:
    value = setup[f"joules_per_token_{reading}"]
    return "-" if value is None else f"{float(f'{value:.2g}'):g}"


def _range(times: Mapping[str, float | None]) -> str:
    """An interval in the unit of its middle; a load that the pessimistic end cannot carry has no end."""
    middle = seconds(times["mid"] or 0.0, 2)
    unit = middle.split()[1]
    scale = next(factor for factor, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")) if name == unit)
    ends = ["?" if end is None else f"{float(f'{end / scale:.2g}'):g}" for end in (times["low"], times["high"])]
    return f"{middle} ({ends[0]}-{ends[1]})"


def _changes(choice: Mapping[str, Any], alone: bool) -> list[str]:
    best, other = choice["best"], choice["runner_up"]
    better = {"cheapest": "cheaper", "efficient": "more efficient", "fewest": "fewer devices"}
    said = []
    changes = {change["what"]: change["value"] for change in choice["changes"]}
    named = _apart(other, choice) if other is not None else ""
    word = better.get(choice["aim"], "better")
    if "rate_above" in changes:
        said.append(f"above {changes['rate_above']:.3g} requests/s {named} is {word}")
    if "rate_below" in changes:
        said.append(f"at {changes['rate_below']:.3g} requests/s and just below, {named} is {word}")
    if "price" in changes:
        unit = "USD" if alone else "USD/h"
        does = "costs less" if choice["aim"] == "fewest" else "is the choice"
        said.append(f"{named} {does} below {changes['price']:,.4g} {unit} a device")
    if "price_ratio" in changes:
        said.append(
            f"{_named(other)} costs less where its device costs under {changes['price_ratio']:.3g} times the chosen one"
        )
    if choice["otherwise_modelled"]:
        joules = [_joules(setup, "modelled") for setup in (other, best)]
        if joules[0] != joules[1]:
            said.append(f"as modelled {named} draws less, {' against '.join(joules)} J/token")
    verb = "no longer does" if alone else "needs more replicas"
    limits = " or ".join(f"{name.upper()} below {seconds(changes[name])}" for name in ("tpot", "ttft"))
    said.append(f"{_apart(best, choice)} {verb} for a target of {limits}")
    return [f"{choice['aim']}: {line}" for line in said]


def _commands(document: Mapping[str, Any]) -> list[str]:
    """Each command once: a decode step at the batch, and a prefill alone."""
    found: dict[str, None] = {}
    for choice in document["choices"]:
        for name in ("command", "prefill_command"):
            found[choice["best"][name]] = None
    return list(found)


def _promise(service: Mapping[str, Any]) -> str:
    if service["quantile"] is None:
        return "on average"
    return f"for {service['quantile'] * 100:.4g}% of requests"


_AT = {"low": "optimistic end", "mid": "middle", "high": "pessimistic end"}


def _notes(document: Mapping[str, Any], alone: bool) -> list[str]:
    service = document["service"]
    targets = [f"{name.upper()} {seconds(service[f'{name}_s'])}" for name in ("ttft", "tpot") if service[f"{name}_s"]]
    promise = "" if alone else f" {_promise(service)}"
    count = "" if alone else "3 x: 3 replicas; "
    notes = [
        f"targets: {', '.join(targets) or 'none'}{promise}, at the {_AT[document['at']]} of expected times",
        "TTFT: time to first token; TPOT: time per output token after it (range: of 8 in 10 measurements)",
        f"{count}tp: devices that share each layer; pp: pipeline stages, one a node; next: runner-up",
        "awq: 4-bit weights; fp8: 8-bit weights; KV fp8: an 8-bit cache of keys and values; bf16: 16 bits",
        "J/token: joules a generated token; efficient is the least at most, all devices at rated power (TDP)",
        "as modelled: what work and waiting draw, of devices whose spec has the figures (- where it has none)",
    ]
    if not alone:
        notes += [
            "batch: sequences that decode together on average; load: share of the highest rate kept up with",
            "TTFT and TPOT hold waits, and prefills between steps; the commands show a step and a prefill alone",
            "? as an end: at the pessimistic end of expected times the rate is not kept up with",
            "fewest: of devices, then of power; fastest: with at most 8 devices, or twice the fewest",
            "replicas are as few as meet the targets: with looser ones the fastest may be slower",
        ]
    notes.append("a tie: the intervals of the times could swap the two; prices are those of dated specs, or as given")
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
            f"nothing has the memory: divided over as many devices as are offered, in the smallest format of this"
            f" quality, at least {needed} a device is needed"
        ]
    lines = [
        "nothing meets the targets, " + ("whatever the load" if service["requests_per_s"] is None else "at any load")
    ]
    for name in binding:
        asked, least = (seconds(value, 4) for value in (service[f"{name}_s"], nearest[name]))
        lines.append(f"{name.upper()} binds: {asked} is asked for, the nearest that can be met is {least}")
    return lines


def prices(texts: list[str], alone: bool) -> dict[str, float]:
    """Prices written as NAME=USD, an hour of a device or, for one user, to buy it; raises RooflineError."""
    found = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        dimension = Dimension.MONEY if alone else Dimension.MONEY_RATE
        try:
            if not equals or not name:
                raise RooflineError("")
            plain = value.strip().removesuffix("USD/h").removesuffix("USD").strip()
            found[name.strip()] = parse_quantity(f"{plain} {dimension.units[0]}", dimension).value
        except RooflineError:
            raise RooflineError(f"a price is written NAME=USD, such as h100-sxm=2.99, got {quote(text)}") from None
    return found
