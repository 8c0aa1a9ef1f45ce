"""The short answer: at most eight lines of 80 columns, the verdict first, and its document."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

from roofline.advisor.fitting import Fit, in_cpu_memory
from roofline.advisor.options import TTFT_LIMIT
from roofline.core.units import count_text, seconds, si
from roofline.launch.command import needs_of, repository_of
from roofline.reports.documents.analysis import interval, memory_document, scenario_header
from roofline.reports.output.blocks import Block, Document, Face, finite
from roofline.reports.output.terminal import continued
from roofline.scenario.analysis import longest_context
from roofline.scenario.cost import billed_pools, price
from roofline.scenario.memory import hardware_name
from roofline.scenario.scenario import Scenario
from roofline.serving.outcome import Outcome
from roofline.specs.checkpoint import released_scheme
from roofline.specs.engine import GGUF_ENGINE
from roofline.specs.precision import PLAIN
from roofline.specs.servers import SERVERS, server_of
from roofline.techniques.unsupported import not_started, unsupported
from roofline.timing.intervals import Estimate
from roofline.verdict.limit import Part
from roofline.verdict.plan import MOST_UTILIZED, UTILIZATION, WEIGHT_OPTIONS
from roofline.verdict.run import run_command
from roofline.verdict.verdict import Change, Verdict
from roofline.whatif.metrics import find_metric

SCHEMA = "roofline.answer/1"
WIDTH = 80
LINES = 8
"""Columns and lines of an answer; a narrower terminal has as many more lines as it is narrower."""

RUN = "Run it: "
"""What the line of the command begins with."""

REMOTE = ("vllm ", "python3 -m sglang")
"""What commands begin with that run code of a repository where they are told so."""

PLACEHOLDER = "MODEL"
"""What a command says of a checkpoint whose repository the spec does not name (`roofline.launch.command`)."""

SHOWN_FITS = 3
"""Changes that are shown of those that make a model fit."""


def answer_document(verdict: Verdict, better: bool = True, width: int = WIDTH) -> dict[str, Any]:
    """The JSON document of a verdict: times in seconds, rates in tokens/s, `lines` as a terminal of a width has them.

    `better`: with the next best change, which takes longest to find.
    """
    plan, scenario = verdict.plan, verdict.scenario
    document = {
        "schema": SCHEMA,
        **scenario_header(scenario),
        "fits": verdict.fits,
        "not_known_to_run": list(not_started(scenario)),
        "devices": verdict.devices,
        "parallelism": {name: getattr(scenario.settings.parallel, name) for name in LAYOUTS},
        "weights": scenario.run_precision.weights.name,
        "kv": scenario.run_precision.kv.name,
        "chosen": {name: value for name, value in plan.candidate.options.items() if value is not None},
        "too_long": verdict.too_long or None,
        "users": verdict.users,
        "rate": verdict.rate,
        "memory": {key: value for key, value in memory_document(verdict.analysis).items() if key != "fits_with"},
    }
    if verdict.fits:
        change = verdict.better if better else None
        document |= {
            "context": verdict.context,
            "at_once": verdict.at_once,
            **_speed(verdict),
            "missed": dict(verdict.missed),
            "limit": {"part": str(verdict.limit.part), "roof": verdict.limit.roof, "share": verdict.limit.share},
            "better": change and {"option": change.option, "gain": change.gain, "gives_up": change.gives_up},
            "usd_per_hour": verdict.hourly,
            "usd_per_million_tokens": verdict.usd_per_million_tokens,
            "run": verdict.command,
        }
    else:
        document["fits_with"] = [{"options": str(fit), "tokens_per_s": fit.tokens_per_s} for fit in plan.fits_with]
    return {**finite(document), "lines": _lines(verdict, better, min(width, WIDTH))}


def _speed(verdict: Verdict) -> dict[str, Any]:
    """TTFT, TPOT and decode tokens/s of a user, with their intervals; under load also tokens/s of all."""
    if (outcome := verdict.outcome) is not None:
        return {
            "stable": outcome.stable,
            "ttft_s": {"p50": interval(outcome.ttft.p50), "p95": interval(outcome.ttft.p95)},
            "tpot_s": {"p50": interval(outcome.tpot.p50), "p95": interval(outcome.tpot.p95)},
            "decode_tokens_per_s_per_user": interval(inverse(outcome.tpot.p50)),
            "output_tokens_per_s": outcome.output_tokens_per_second,
            "sustainable_requests_per_s": outcome.saturated_at,
        }
    expected = verdict.analysis.expected
    decoded = {} if expected.tpot is None else {"decode_tokens_per_s_per_user": interval(inverse(expected.tpot))}
    tpot = None if expected.tpot is None else interval(expected.tpot)
    most = {} if verdict.largest_rate is None else {"sustainable_requests_per_s": verdict.largest_rate}
    return {"ttft_s": interval(expected.ttft), "tpot_s": tpot, **decoded, **most}


def inverse(time: Estimate) -> Estimate:
    """The rate of a time."""
    return Estimate(1 / time.high, 1 / time.mid, 1 / time.low)


def _lines(verdict: Verdict, better: bool, width: int) -> list[str]:
    """The lines of an answer, as full as `LINES` of a terminal of a width have room for."""
    if not verdict.fits:
        shown = range(min(SHOWN_FITS, len(verdict.plan.fits_with)), 0, -1)
        return _first_short((_failure(verdict, count) for count in shown), width) or _failure(verdict, 0)
    if verdict.too_long:
        return [_headline(verdict)]
    return _first_short((_answered(verdict, better, brief, width) for brief in Brief), width)


class Brief(IntEnum):
    """How short an answer is: all; without what the command or the list of prices say; two lines in one.

    Then without lengths and the share of the limit, without the reasons of the choices, and at last, beside the longest
    commands, without a change.
    """

    FULL = 0
    PLAIN = 1
    JOINED = 2
    TERSE = 3
    LEAST = 4
    BARE = 5


def _first_short(written: Iterable[list[str]], width: int) -> list[str]:
    """The first lines that `LINES` have room for, the last of which leave something out.

    In a narrower terminal, which has more lines, the shortest of the others come before those.
    """
    *whole, least = [*written] or [[]]
    for found in whole:
        if _height(found, width) <= LINES:
            return found
    shortest = min(whole, key=lambda found: _height(found, width), default=least)
    return shortest if _height(shortest, width) <= LINES * WIDTH // width else least


def _height(lines: Iterable[str], width: int) -> int:
    """The lines that lines take in a terminal of a width."""
    return sum(sum(1 for _ in _wrapped(line, width)) for line in lines)


def _wrapped(line: str, width: int) -> Iterable[str]:
    if line.startswith(RUN):
        return continued(line.removeprefix(RUN), width, len(RUN))
    return textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)


def _answered(verdict: Verdict, better: bool, brief: Brief, width: int) -> list[str]:
    """The lines of what runs."""
    change, carbon = verdict.better if better else None, _carbon(verdict)
    limit, cost = _limit(verdict, brief), f"{_cost(verdict, brief)}{carbon}"
    command = f"No command: {verdict.refused}" if verdict.refused else f"{RUN}{verdict.command}{_needed(verdict)}"
    lines = [
        _headline(verdict, brief, width),
        f"Chosen: {_chosen(verdict, brief)}",
        f"Speed: {_speed_text(verdict, brief)}",
        *([f"Limited by: {limit}"] if brief < Brief.JOINED else []),
        "" if change is None or brief == Brief.BARE else f"Better: {change_text(verdict, change, brief)}",
        f"Cost: {cost}" if brief < Brief.JOINED else f"Limited by: {limit}; {'cost: ' * (brief < Brief.TERSE)}{cost}",
        "" if not_started(verdict.scenario) else command,  # which the headline says
    ]
    return list(filter(None, lines))


def _needed(verdict: Verdict) -> str:
    """What the command needs as a comment: a checkpoint, the plugin of a device, or to run code of the repository."""
    if "  # " in verdict.command:
        return ""
    if f" {PLACEHOLDER} " in f"{verdict.command} ":
        return f"  # {PLACEHOLDER}: a checkpoint in {verdict.scenario.precision.weights.name}"
    name = verdict.scenario.profile.name
    if name in SERVERS and (plugin := server_of(name).plugin(verdict.scenario.hardware)):
        return f"  # with the plugin {plugin}"
    needs = needs_of(repository_of(verdict.scenario))
    runs_code = needs is not None and needs.tokenizer and verdict.command.startswith(REMOTE)
    return "  # add --trust-remote-code: its tokenizer is code" if runs_code else ""


def model_text(scenario: Scenario) -> str:
    """The model's name, or that of its own repository where the spec describes several models."""
    name, repository = scenario.model.name, repository_of(scenario).rpartition("/")[2].lower()
    return name if re.search(rf"{re.escape(name)}(?![\d.])", repository or name) else repository


def change_text(verdict: Verdict, change: Change, brief: Brief = Brief.FULL) -> str:
    """A change, what is gained, and what is given up."""
    shorter = verdict.late or verdict.rate is not None
    gained = f"{change.gain:.2g} times {'faster' if brief or shorter else 'the tokens/s'}"
    found = gained if verdict.met else "meets the target" if change.meets else f"{gained}, still too slow"
    return f"{change.option}, {found}; {change.gives_up}"


def devices_text(scenario: Scenario, count: int = 0) -> str:
    """The devices, such as 2 x rtx-4090, or a count of them."""
    count = count or scenario.settings.parallel.devices
    if scenario.settings.mixed:
        return hardware_name(scenario, " + ")
    return f"{count} x {scenario.hardware.name}" if count > 1 else scenario.hardware.name


def _headline(verdict: Verdict, brief: Brief = Brief.FULL, width: int = WIDTH) -> str:
    """Whether it runs, or meets the load and the targets.

    Where it is to be brief and too long otherwise, without the formats and the engine that other lines have.
    """
    if verdict.too_long:
        return f"No: {verdict.too_long}"
    how = f", {verdict.plan.candidate.formats} on {verdict.scenario.profile.name}"
    elsewhere = brief > Brief.FULL and not verdict.refused
    found = _verdict_text(verdict, how, " each" if brief == Brief.FULL else "")
    return _verdict_text(verdict, "", "") if elsewhere and len(found) > width else found


def _verdict_text(verdict: Verdict, how: str, each: str) -> str:
    model, where = model_text(verdict.scenario), devices_text(verdict.scenario, verdict.devices)
    queue = f" for {verdict.at_once} at once" if verdict.at_once < verdict.slots else ""
    kept = verdict.scenario.model.max_context is not None or float(verdict.analysis.memory.kv_cache) > 0
    each = queue or (each if verdict.at_once > 1 else "")
    context = f"{length(verdict.context)} context{each}" if kept else "a state for any context"
    outcome = verdict.outcome
    if missing := not_started(verdict.scenario) or (unsupported(verdict.scenario) if verdict.refused else ()):
        engine, parts = verdict.scenario.profile.name, ", ".join(missing)
        what = "" if missing[0].startswith("on ") else f" ({model} on {where})"
        instead = f"; it runs {verdict.instead}" if verdict.instead else ""
        return f"No: {engine} is not known to run {parts}{what}{instead}; the figures are those if it did"
    if outcome is not None and not outcome.stable:
        most = "" if outcome.saturated_at is None else f": it sustains {outcome.saturated_at:.3g}/s"
        return f"No: {model} on {where}{how}, cannot serve {verdict.rate:g} requests/s{most}"
    if missed := verdict.missed:
        targets = dict(zip(("ttft", "tpot"), verdict.targets, strict=True))
        told = " and ".join(
            f"{name.upper()} {seconds(targets[name])} ({seconds(value)}{' at p95' if verdict.loaded else ''})"
            for name, value in missed.items()
        )
        return f"No: {model} on {where}{how}, misses {told}"
    if verdict.loaded:
        rate, users = verdict.rate, verdict.users
        load = f"{users:,} user{'s' * (users != 1)}" if rate is None else f"{rate:g} request{'s' * (rate != 1)}/s"
        waits = outcome is not None and bool(queue) and outcome.ttft.p95.mid > TTFT_LIMIT
        return f"{'Not at once' if waits else 'Yes'}: {model} serves {load} on {where}{how}, {context}"
    return f"Yes: {model} runs on {where}{how}, {context}"


def length(tokens: int) -> str:
    """Tokens in thousands, rounded down."""
    return f"{tokens // 1000}k" if tokens >= 10_000 else f"{tokens:,}"


def _limit(verdict: Verdict, brief: Brief) -> str:
    """What limits it, with the share of its time."""
    limit, scenario = verdict.limit, verdict.scenario
    phase = "a pass" if verdict.analysis.decode is None else "a decode step"
    phase = "the time" if limit.part is Part.PROMPTS else phase
    if brief >= Brief.TERSE:
        return limit.roof
    if brief >= Brief.JOINED:
        return f"{limit.roof}, {limit.share:.0%} {limit.part.removeprefix('reading ').removeprefix('and writing ')}"
    split = scenario.profile.split_layers and scenario.settings.parallel.pipeline > 1
    if split:
        return f"{limit.roof} (split layers run in turn); {limit.share:.0%} is {limit.part}"
    return f"{limit.roof}; {limit.share:.0%} of {phase} is {limit.part}"


LLAMA_DEFAULTS = {"gpu": "GGUF files", "cpu": "CPUs"}
LAYOUTS = {"tensor": "TP", "pipeline": "PP", "expert": "EP", "data": "DP"}


def _chosen(verdict: Verdict, brief: Brief) -> str:
    """The choices, each with its reason in half a sentence, or without where there is no room."""
    plan, scenario = verdict.plan, verdict.scenario
    if brief >= Brief.LEAST:
        return "; ".join([f"{plan.candidate.formats} on {scenario.profile.name}", *_layout(verdict)])
    first = plan.tried[0]
    memory = first.memory(1)
    if plan.narrower and memory.fits and not plan.elsewhere:
        why = f"as {first.formats} has room for {first.room(verdict.slots)} of {verdict.slots} users at once"
    elif plan.narrower:
        why = f"as {first.formats} needs {size(memory.total)} of {size(memory.budget)} a device"
    elif plan.candidate.released and any(map(scenario.given, WEIGHT_OPTIONS)):
        why = "as asked"
    elif plan.candidate.released and scenario.library_format is not None:
        why = f"as {scenario.profile.title} stores it by default"
    else:
        stored = scenario.model.quantization
        same = stored is None or released_scheme(scenario.model, scenario.profile) != PLAIN
        why = "as released" if same else f"converted from {stored}"
    kv = plan.candidate.options.get("kv")
    released = f"{scenario.precision.weights.name} {why}, KV {kv} for more users at once"
    parts = [released if kv and not plan.narrower else f"{plan.candidate.formats} {why}"]
    if plan.elsewhere:
        missing = next(iter(unsupported(first.scenario)), "") if memory.fits else ""
        name = first.scenario.profile.name
        parts.append(
            f"{name} is not known to run {_here(scenario, missing)}" if missing else f"no format fits on {name}"
        )
    elif (unknown := unsupported(scenario)) and not not_started(scenario) and not verdict.refused:
        parts.append(f"{scenario.profile.name} is not known to run {_here(scenario, ' and '.join(unknown))}")
    elif scenario.profile.name == GGUF_ENGINE and "engine" not in scenario.options:
        own = "Apple silicon" if scenario.hardware.vendor == "Apple" else f"{scenario.hardware.vendor}'s APUs"
        parts.append(f"{GGUF_ENGINE} for {LLAMA_DEFAULTS.get(scenario.hardware.kind, own)}")
    if UTILIZATION in plan.candidate.options:
        parts.append(f"{MOST_UTILIZED:.0%} of the memory, as its default does not suffice")
    return "; ".join([*parts, *_layout(verdict)])


def _here(scenario: Scenario, missing: str) -> str:
    """What an engine does not run, on the hardware."""
    return missing if missing.endswith(f" on {scenario.hardware.name}") else f"{missing} here"


def _layout(verdict: Verdict) -> list[str]:
    """How the devices are used, where there are several."""
    parallel = verdict.scenario.settings.parallel
    names = {} if verdict.scenario.profile.split_layers else LAYOUTS
    degrees = {short: getattr(parallel, name) for name, short in names.items() if name != "data" or not verdict.apart}
    shown = " x ".join(f"{short} {degree}" for short, degree in degrees.items() if degree > 1)
    return list(filter(None, [shown, f"prefill and decode apart, {verdict.apart}" if verdict.apart else ""]))


def size(count: float) -> str:
    """Bytes with two digits."""
    return si(count, "B", 2 if count < 1e11 else 3)


def _speed_text(verdict: Verdict, brief: Brief) -> str:
    scenario, outcome = verdict.scenario, verdict.outcome
    count = int(scenario.images)
    images = f" + {count} {scenario.model.encoded}{'s' * (count > 1)}" if count else ""
    output = "" if scenario.model.task == "encode" else f" + {int(scenario.generate):,}"
    lengths = f"{int(scenario.prompt):,}{images}{output}"
    short = f" ({lengths})" if brief < Brief.TERSE else ""
    told = f" ({lengths} tokens)" if brief < Brief.TERSE else ""
    if outcome is not None:
        if not outcome.stable:
            return f"queues grow without end ({lengths} tokens); {_replicas(outcome, verdict.rate)}"
        user, late = inverse(outcome.tpot.p50), outcome.ttft.p95
        if scenario.model.task == "encode":
            most = "" if outcome.saturated_at is None else f" of at most {count_text(outcome.saturated_at)}"
            return (
                f"{count_text(outcome.requests_per_second)} sequences/s{most}; p95 latency {seconds(late.mid, 2)}"
                f" ({int(scenario.prompt)} tokens)"
            )
        return (
            f"{count_text(outcome.output_tokens_per_second)} tokens/s, {count_text(user.mid)} a user"
            f" ({_between(user, brief)}); p95 TTFT {seconds(late.mid, 2)}{short}"
        )
    expected = verdict.analysis.expected
    first = seconds(expected.ttft.mid, 2)
    if expected.tpot is None:
        if scenario.model.conditioning is not None or scenario.model.unet is not None:
            return f"{first} for one denoising step of {int(scenario.prompt)} latent positions"
        most = "" if verdict.largest_rate is None else f"; at most {count_text(verdict.largest_rate)} sequences/s"
        return f"{first} a pass of a sequence of {int(scenario.prompt)} tokens{most}"
    rate = inverse(expected.tpot)
    found = f"{count_text(rate.mid)} tokens/s ({_between(rate, brief)})"
    return f"{found}{' for one user' * (brief < Brief.TERSE)}; TTFT {first}{told}"


def _between(rate: Estimate, brief: Brief) -> str:
    """The interval of a rate; where it is to be terse, with two digits."""
    if brief < Brief.TERSE:
        return f"{count_text(rate.low)} to {count_text(rate.high)}"
    low, high = (float(f"{bound:.2g}") for bound in (rate.low, rate.high))
    return f"{low:,g}-{high:,g}"


def _replicas(outcome: Outcome, rate: float | None) -> str:
    """How many of the deployment sustain a rate."""
    count = math.ceil((rate or 0) / outcome.saturated_at) if outcome.saturated_at else 0
    return f"{count} of it sustain the rate" if count else "no number of it sustains the rate"


def _cost(verdict: Verdict, brief: Brief) -> str:
    hardware, devices = verdict.scenario.hardware, verdict.devices
    hourly, tokens = verdict.hourly, verdict.usd_per_million_tokens
    known = hardware.price
    if hourly is None:
        if known is not None and known.buy is not None:
            return f"no rent known; to buy, {known.buy * devices:,.0f} USD ({known.date})"
        if brief:
            return "no price known (--price)"
        unknown = next((each.name for each in billed_pools(verdict.analysis) if each.price is None), hardware.name)
        return f"no price known for {unknown}; --price gives one in USD/h"
    given = verdict.scenario.price
    rent = price(hardware, given)
    dated = "" if given is not None or known is None else f", {known.date}"
    each = f" ({rent:g} each{dated})" if devices > 1 else f" ({dated.lstrip(', ')})" if dated else ""
    each = "" if brief else each
    unstable = verdict.outcome is not None and not verdict.outcome.stable
    if verdict.curve is not None and verdict.outcome is not None and verdict.scenario.model.task == "encode":
        each_million = verdict.curve.cost(verdict.outcome, verdict.outcome.requests_per_second)
        return f"{hourly:,.4g} USD/h{each}; {_usd(each_million or 0.0)} per million sequences"
    if brief >= Brief.JOINED:
        return f"{hourly:,.4g} USD/h" + ("" if tokens is None or unstable else f", {_usd(tokens)}/M tokens")
    told = (
        ""
        if tokens is None or unstable
        else f"; {_usd(tokens)} per million tokens" + ("" if verdict.loaded else ", one user")
    )
    return f"{hourly:,.4g} USD/h{each}{told}"


def _carbon(verdict: Verdict) -> str:
    """The emissions of a million tokens, where the carbon intensity of their electricity is given."""
    if verdict.scenario.carbon is None:
        return ""
    if verdict.curve is not None and verdict.outcome is not None:
        grams = verdict.curve.carbon(verdict.outcome)
    else:
        grams = float(find_metric("carbon", "expected").figure(verdict.analysis))
    return "" if grams is None or math.isnan(grams) else f"; {grams:,.3g} g CO2e per million tokens"


def _usd(amount: float) -> str:
    """An amount with three digits, or all before its decimal point."""
    return f"{amount:,.0f} USD" if amount >= 1000 else f"{amount:.3g} USD"


def _failure(verdict: Verdict, shown: int) -> list[str]:
    """That nothing fits, what was tried, and as many changes as are shown of those with which it fits."""
    plan, scenario = verdict.plan, verdict.scenario
    memory = plan.candidate.memory(1)
    tried: dict[str, dict[str, None]] = {}
    for each in plan.tried:
        tried.setdefault(each.scenario.profile.name, {})[each.scenario.precision.weights.name] = None
    told = "; ".join(f"{', '.join(formats)} on {engine}" for engine, formats in tried.items())
    lines = [
        f"No: {model_text(scenario)} does not fit on {devices_text(verdict.scenario)}",
        f"Tried: {told}; the least needs {size(memory.total)} of {size(memory.budget)} a device",
    ]
    fits = plan.fits_with[:SHOWN_FITS]
    if not fits:
        return [*lines, "Nothing that was tried makes it fit: fewer bits, another engine, more devices, CPU memory"]
    owned = (fit for fit in fits if fit.scenario.settings.parallel.devices <= plan.devices)
    started = next(owned, fits[0])  # on what there is, though more devices are faster
    others = [fit for fit in fits if fit is not started][: shown - 1]
    kept = sorted((started, *others), key=lambda fit: -fit.tokens_per_s)
    lines += ["It fits, the fastest first, with"]
    lines += [f"  {fit_text(scenario, fit)}: {count_text(fit.tokens_per_s)} tokens/s" for fit in kept]
    return [*lines, f"{RUN}{run_command(started.scenario, longest_context(started.scenario, 1))}"]


def fit_text(asked: Scenario, fit: Fit) -> str:
    """A change that makes a model fit, in words."""
    found, options = fit.scenario, fit.options
    parts, beside = [], size(in_cpu_memory(found))
    if found.settings.parallel.devices != asked.settings.parallel.devices:
        parts.append(devices_text(found))
    parts.append(f"{found.precision.weights.name} on {found.profile.name}")
    if "kv" in options:
        parts.append(f"KV {options['kv']}")
    if "n_gpu_layers" in options:
        parts.append(f"{options['n_gpu_layers']} of {found.model.layers} layers on the GPU")
    if "with" in options and (host := found.settings.host) is not None:
        parts.append(f"experts, {host.memory:.0%} of the weights ({beside}), in CPU memory")
    if "offload" in options:
        parts.append(f"{found.settings.offload.weights:.0%} of the weights ({beside}) in CPU memory")
    parts += [f"{name} {options[name]:,}" for name in ("batch", "prompt") if name in options]
    return ", ".join(parts)


def verdict_blocks(document: Document) -> list[Block]:
    """The lines of an answer as a block, and its command, which continues with backslashes."""
    lines = [line for line in document["lines"] if not line.startswith(RUN)]
    commands = [line.removeprefix(RUN) for line in document["lines"] if line.startswith(RUN)]
    return [Block(lines=lines, width=WIDTH), *([Block(commands=commands, width=WIDTH, lead=RUN)] if commands else [])]


def verdict_rows(document: Document) -> list[Mapping[str, Any]]:
    """The document as one row."""
    return [{key: value for key, value in document.items() if key != "lines"}]


VERDICT = Face(answer_document, verdict_blocks, verdict_rows, lambda document: document["lines"], LINES)
"""How a verdict is shown."""
