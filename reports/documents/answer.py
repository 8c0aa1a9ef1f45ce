"""The short answer: at most eight lines of 80 columns, the verdict first; what fits in place of what does not."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from typing import Any

from roofline.advisor.fitting import Fit, in_cpu_memory, of_means
from roofline.core.units import count_text
from roofline.launch.repository import name_of
from roofline.reports.documents.analysis import interval, memory_document, scenario_header
from roofline.reports.documents.odds import odds_document
from roofline.reports.documents.sentences import (
    LAYOUTS,
    RUN,
    WIDTH,
    Brief,
    Sentences,
    devices_text,
    inverse,
    load_text,
    run_text,
    size,
)
from roofline.reports.output.blocks import Block, Document, Face, finite
from roofline.reports.output.terminal import continued
from roofline.scenario.analysis import analyze
from roofline.scenario.notes import unmeasured_kernels, without_effect
from roofline.scenario.scenario import Scenario
from roofline.techniques.unsupported import not_started
from roofline.verdict.verdict import Verdict

SCHEMA = "roofline.answer/1"

SHOWN_FITS = 3
"""Changes that are shown of those that make a model fit."""

LINES = 8
"""Lines of an answer."""


def answer_document(verdict: Verdict, better: bool = True, width: int = WIDTH) -> dict[str, Any]:
    """The JSON document of a verdict: times in seconds, rates in tokens/s, `lines` as a terminal of a width has them.

    `better`: with the next best change, which takes longest to find.
    """
    plan, scenario = verdict.plan, verdict.scenario
    document = {
        "schema": SCHEMA,
        **scenario_header(scenario),
        "fits": verdict.fits,
        "unmeasured_kernels": unmeasured_kernels(verdict.analysis),
        "not_known_to_run": list(map(str, not_started(scenario))),
        "devices": verdict.devices,
        "parallelism": _layout(scenario),
        "weights": scenario.run_precision.weights.name,
        "kv": scenario.run_precision.kv.name,
        "chosen": {name: value for name, value in plan.candidate.options.items() if value is not None},
        "too_long": verdict.too_long or None,
        "without_effect": _without_effect(verdict),
        "users": verdict.users,
        "rate": verdict.rate,
        "memory": {key: value for key, value in memory_document(verdict.analysis).items() if key != "fits_with"},
    }
    if verdict.fits:
        change = verdict.better if better else None
        document |= {
            "faster_engine": plan.faster and {"engine": plan.faster[0], **odds_document(plan.faster[1])},
            "rival_layout": plan.rival and {**_layout(plan.rival[0]), **odds_document(plan.rival[1])},
            "context": verdict.context,
            "at_once": verdict.at_once,
            **_speed(verdict),
            "targets": {"ttft_s": verdict.targets[0], "tpot_s": verdict.targets[1]},
            "missed": dict(verdict.missed),
            "limit": {"part": str(verdict.limit.part), "roof": verdict.limit.roof, "share": verdict.limit.share},
            "better": change and {"option": change.option, "gain": change.gain, "gives_up": change.gives_up},
            "usd_per_hour": verdict.hourly,
            "usd_per_million_tokens": verdict.usd_per_million_tokens,
            "run": verdict.command,
        }
    else:
        document["fits_with"] = [{"options": str(fit), "tokens_per_s": fit.tokens_per_s} for fit in verdict.fits_with]
    return {**finite(document), "lines": _lines(verdict, better, min(width, WIDTH))}


def _without_effect(verdict: Verdict) -> list[str]:
    """The options that change nothing, a sentence each."""
    if verdict.too_long:
        return []
    return list(without_effect(analyze(of_means(verdict.scenario)), verdict.loaded))


def _layout(scenario: Scenario) -> dict[str, int]:
    return {name: getattr(scenario.settings.parallel, name) for name in LAYOUTS}


def _speed(verdict: Verdict) -> dict[str, Any]:
    """TTFT of a server, TPOT and decode tokens/s of a user, with their intervals; under load also tokens/s of all."""
    if (outcome := verdict.outcome) is not None:
        return {
            "stable": outcome.stable,
            "ttft_s": {"p50": interval(outcome.ttft.p50), "p95": interval(outcome.ttft.p95)},
            "tpot_s": {"p50": interval(outcome.tpot.p50), "p95": interval(outcome.tpot.p95)},
            "decode_tokens_per_s_per_user": interval(inverse(outcome.tpot.p50)),
            "output_tokens_per_s": outcome.output_tokens_per_second,
            "sustainable_requests_per_s": outcome.saturated_at,
        }
    expected = verdict.alone
    decoded = {} if expected.tpot is None else {"decode_tokens_per_s_per_user": interval(inverse(expected.tpot))}
    tpot = None if expected.tpot is None else interval(expected.tpot)
    most = {} if verdict.largest_rate is None else {"sustainable_requests_per_s": verdict.largest_rate}
    return {"ttft_s": interval(expected.ttft), "tpot_s": tpot, **decoded, **most}


def _lines(verdict: Verdict, better: bool, width: int) -> list[str]:
    """The lines of an answer, as full as `LINES` of a terminal of a width have room for."""
    if verdict.too_long:
        return [Sentences(verdict).headline]
    if not verdict.fits:
        most = min(SHOWN_FITS, len(verdict.fits_with))
        told = [(count, False) for count in range(most, 1, -1)]
        told += [(2, True)] if most > 1 else []  # more devices beside what there is, before what was tried
        told += [(min(most, 1), brief) for brief in (False, True)]
        return first_short((failure(verdict, *each) for each in told), width)
    return first_short((Sentences(verdict, better, brief, width).lines for brief in Brief), width)


def failure(verdict: Verdict, shown: int, brief: bool = False) -> list[str]:
    """That nothing fits, what was tried (not if `brief`), and as many changes as are shown with which it fits."""
    plan, scenario = verdict.plan, verdict.scenario
    memory = plan.candidate.memory(1)
    tried: dict[str, dict[str, None]] = {}
    for each in plan.tried:
        tried.setdefault(each.scenario.profile.name, {})[each.scenario.precision.weights.name] = None
    of_each = " a device" if plan.devices > 1 else ""
    told = "; ".join(f"{', '.join(formats)} on {engine}" for engine, formats in tried.items())
    headline = f"No: {name_of(scenario)} does not fit on {devices_text(verdict.scenario)}"
    needed = f"{size(memory.total)} of {size(memory.budget)}{of_each}"
    lines = [f"{headline}: {needed}"] if brief else [headline, f"Tried: {told}; the least needs {needed}"]
    fits = verdict.fits_with[:SHOWN_FITS]
    if not fits:
        return [*lines, "Nothing that was tried makes it fit: fewer bits, another engine, more devices, CPU memory"]
    owned = (fit for fit in fits if fit.scenario.settings.parallel.devices <= plan.devices)
    serving = (fit for fit in fits if verdict.loaded and verdict.serves(fit.scenario))
    started = next(serving, None) or next(owned, fits[0])  # on what there is, though more devices are faster
    others = [fit for fit in fits if fit is not started][: shown - 1]
    kept = sorted((started, *others), key=lambda fit: -fit.tokens_per_s)
    lines += [
        f"It fits, the fastest first, with tokens/s {'of all requests' if verdict.loaded else 'of a whole request'}"
    ]
    for fit in kept:
        late = "" if verdict.serves(fit.scenario) else f", too slow for {load_text(verdict)}"
        lines.append(f"  {fit_text(scenario, fit)}: {count_text(fit.tokens_per_s)} tokens/s{late}")
    return [*lines, run_text(verdict.started_with(started), started.scenario)]


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
        parts.append(f"experts in CPU memory ({host.memory:.0%} of the weights, {beside})")
    if "offload" in options:
        parts.append(f"{found.settings.offload.weights:.0%} of the weights ({beside}) in CPU memory")
    parts += [f"{name} {options[name]:,}" for name in ("batch", "prompt") if name in options]
    return ", ".join(parts)


def first_short(written: Iterable[list[str]], width: int) -> list[str]:
    """The first lines that `LINES` have room for, the last of which leave most out; else the shortest.

    No more of them are written than it takes.
    """
    long = []
    for lines in written:
        if (height := _height(lines, width)) <= LINES:
            return lines
        long.append((height, lines))
    return min(long, key=lambda each: each[0])[1]


def _height(lines: Iterable[str], width: int) -> int:
    """The lines that lines take in a terminal of a width."""
    wrapped = (
        continued(line.removeprefix(RUN), width, len(RUN))
        if line.startswith(RUN)
        else textwrap.wrap(line, width, subsequent_indent="  ", break_on_hyphens=False)
        for line in lines
    )
    return sum(1 for parts in wrapped for _ in parts)


def verdict_blocks(document: Document) -> list[Block]:
    """The lines of an answer as a block, and its command, which continues with backslashes."""
    lines = [line for line in document["lines"] if not line.startswith(RUN)]
    commands = [line.removeprefix(RUN) for line in document["lines"] if line.startswith(RUN)]
    return [Block(lines=lines, width=WIDTH), *([Block(commands=commands, width=WIDTH, lead=RUN)] if commands else [])]


VERDICT = Face(
    answer_document,
    verdict_blocks,
    lambda document: [{key: value for key, value in document.items() if key != "lines"}],
    lambda document: document["lines"],
    LINES,
)
