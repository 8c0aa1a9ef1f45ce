"""The blocks of `roofline advise`: the answer first, then its evidence; and the table of rules."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import PRICES, Objective
from roofline.core.units import amount, count_text, target_text
from roofline.reports.documents.analysis import subject
from roofline.reports.documents.summary import is_encoder
from roofline.reports.output.blocks import WIDTH, Block
from roofline.reports.output.cells import cell
from roofline.techniques.base import Price

OBJECTIVES = {
    Objective.TOTAL: "total time",
    Objective.TTFT: "TTFT",
    Objective.TPOT: "TPOT",
    Objective.THROUGHPUT: "throughput",
    Objective.MEMORY: "memory per device",
    Objective.COST: "cost per million tokens",
    Objective.ENERGY: "energy per token",
    Objective.GOODPUT: "goodput per device",
}

LIMITS = {
    "capacity": "device memory",
    "memory": "the memory limit",
    "ttft": "the TTFT limit",
    "tpot": "the TPOT limit",
    "total": "the total time limit",
    "gpus": "the device limit",
    "budget": "the budget",
    "rate": "the rate it can serve",
}


def advice_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The answer in three lines, the plan, single changes, other engines and hardware, findings, and a legend."""
    lists = (
        ("Bottlenecks", [_finding(entry) for entry in _ordered(document["findings"])[1:]]),
        ("Changes without benefit", list(_no_benefit(document["no_benefit"]))),
        ("Caveats", [_finding(entry) for entry in document["cautions"]]),
        ("Legend", _legend(document)),
    )
    return [
        _text(_headline(document), _answer(document)),
        *_plan_blocks(document),
        *_single_blocks(document),
        *_other_blocks(document),
        *(_text(title, lines) for title, lines in lists if lines),
    ]


def _text(title: str, lines: Iterable[str], commands: Sequence[str] = ()) -> Block:
    return Block(title, list(lines), commands=commands, width=WIDTH)


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    """A table whose first two columns are text."""
    return Block(title, header=header, rows=rows, left=2, width=WIDTH)


def _finding(entry: Mapping[str, Any]) -> str:
    return f"{_sentence_case(entry['text'])} [{entry['rule']}]."


FIRST = ("hardware-fit", "memory-bound-decode", "compute-bound-prefill", "launch-bound", "tensor-parallelism")
"""Rules that name the bottleneck of a scenario: their findings come before shares of time."""


def _ordered(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Findings with the bottleneck first; otherwise in the given order, by share of time."""
    return sorted(findings, key=lambda entry: entry["rule"] not in FIRST)


def _headline(document: Mapping[str, Any]) -> str:
    plan, name = document["plan"], subject(document)
    if not plan["feasible"]:
        return f"{name}: no configuration meets all limits{_closest(document)}"
    objective, instead = OBJECTIVES[Objective(document["objective"])], _instead(document)
    if _unfit(document):
        reached = _amount(_objective(document, plan["steps"][-1]["figures"]), document["unit"])
        fits = [f"{entry['options']} ({count_text(entry['tokens_per_s'])} tokens/s)" for entry in document["fits_with"]]
        first = f"it fits with {fits[0]}; " if fits else ""
        return f"{name}: does not fit as it is; {first}with {_steps(plan)}, {objective} is {reached}"
    if plan["recommended"]:
        worse = _given_up(document, plan["steps"][-1]["figures"], [step["price"] for step in plan["steps"]])
        return f"{name}: {_times(plan['times_better'])} times better by {_steps(plan)}{worse}"
    if instead is not None:
        worse = _given_up(document, instead["figures"], [instead["price"]])
        return f"{name}: {_times(instead['times_better'])} times better by {_short(instead['move'])}{worse}"
    return f"{name}: no change {'is certain to improve' if _uncertain(plan) else 'improves'} {objective}"


WORSE = 1.5
"""How many times longer a latency gets before it is given up."""

COSTS = {"engineering": "engineering", "calibration": "some accuracy", "lossy": "quality", "retraining": "training"}
"""What the changes of a plan require, in words."""


def _given_up(document: Mapping[str, Any], after: Mapping[str, Any], prices: Sequence[str]) -> str:
    """What a plan gives up: latencies that get longer, and the dearest that its changes require."""
    before, reading = document["figures"], document["at"]
    lost = []
    for name in ("ttft", "tpot"):
        pair = [figures.get(name, {}).get(reading) for figures in (before, after)]
        if None not in pair and pair[1] > WORSE * pair[0]:
            lost.append(f"{name.upper()} of {_amount(pair[1], 's')} in place of {_amount(pair[0], 's')}")
    dearest = max(prices, key=lambda price: PRICES.index(Price(price)), default="")
    lost += [COSTS[dearest]] if dearest in COSTS else []
    return f", for {_listed(lost)}" if lost else ""


def _closest(document: Mapping[str, Any]) -> str:
    """The combination nearest to the limits, and by how much it misses."""
    closest = document["plan"]["closest"]
    if closest is None or not closest["reached"]:
        return ""
    limits = document["limits"]
    missed = [
        f"{LIMITS[name]} of {_limit(name, limits[name])} by {_limit(name, value - limits[name])}"
        for name, value in closest["reached"].items()
    ]
    by = _listed(list(map(_short, closest["moves"]))) or "the request as it is"
    return f"; the nearest, {by}, misses {_listed(missed)}"


def _unfit(document: Mapping[str, Any]) -> bool:
    """Whether the scenario as it is exceeds the memory: it has no speed, so that nothing gains over it."""
    return "capacity" in document["misses"]


def _instead(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The single change recommended in place of a plan whose gain is uncertain."""
    return next((entry for entry in document["recommendations"] if entry["move"] == document["instead"]), None)


def _steps(plan: Mapping[str, Any]) -> str:
    return _listed([_short(step["move"]) for step in plan["steps"]])


def _uncertain(plan: Mapping[str, Any]) -> bool:
    """Whether there is a plan whose interval includes no gain."""
    return bool(plan["steps"]) and not plan["recommended"] and plan["times_better"]["low"] <= 1


def _answer(document: Mapping[str, Any]) -> Iterator[str]:
    """The change of the objective, the bottleneck, and the missed limits."""
    plan, objective = document["plan"], OBJECTIVES[Objective(document["objective"])]
    reading = " at the bound" if document["at"] == "bound" else ""

    def value(figures: Mapping[str, Any]) -> str:
        return _amount(_objective(document, figures), document["unit"])

    before, end = value(document["figures"]), plan["steps"][-1] if plan["steps"] else None
    best = _instead(document) or (end if plan["recommended"] else None)
    if not plan["feasible"]:
        binding = _listed(sorted({LIMITS[name] for name in document["misses"]})) or "the limits together"
        yield f"Binding: {binding}; {_nearest(plan)}."
    elif _unfit(document):
        yield f"{_sentence_case(objective)} is {value(plan['steps'][-1]['figures'])}{reading} with the plan."
    elif best is not None:
        given = document["limits"].items() if document["default_limits"] else ()
        limits = [f"{name.upper()} {_limit(name, value)}" for name, value in given if name in LIMITS]
        within = f" within {_listed(limits)} (by default)" if document["default_limits"] else ""
        yield f"{_sentence_case(objective)} goes from {before} to {value(best['figures'])}{reading}{within}."
    elif end is not None and plan["times_better"]["mid"] > HELPS:
        change = f"from {before} to {value(end['figures'])}{reading}, {_times(plan['times_better'])} times better"
        yield f"With {_steps(plan)} {objective} goes {change}; the gain is uncertain."
    else:
        yield f"{_sentence_case(objective)} stays at {before}{reading}."
    if document["findings"]:
        yield f"Currently, {_ordered(document['findings'])[0]['text']}."
    else:
        yield f"Currently, {objective} is {before}{reading}."
    if document["misses"]:
        over = document["misses"].items()
        uses = [f"{LIMITS[name]} {f'by {use - 1:.1%}' if use < 1.1 else f'({use:.3g} times)'}" for name, use in over]
        yield f"The request exceeds {_listed(uses)}."


def _nearest(plan: Mapping[str, Any]) -> str:
    """The lowest feasible limits: each alone with the others unchanged, or all binding ones together."""
    jointly = plan["nearest_jointly"]

    def feasible(name: str, value: float) -> str:
        if name == "capacity":
            return f"a device would need {value:.3g} times its memory"
        if name == "rate":
            return f"the rate asked for is {value:.3g} times what can be served"
        return f"{LIMITS[name]} {'at' if jointly else 'can be'} {_limit(name, value)}{'' if jointly else ' at best'}"

    lowest = [feasible(name, value) for name, value in plan["nearest"].items()]
    if jointly and lowest:
        return f"jointly feasible: {_listed(lowest)}"
    return "; ".join(lowest) or "no configuration comes near"


def _sentence_case(text: str) -> str:
    return text[0].upper() + text[1:]


def _objective(document: Mapping[str, Any], figures: Mapping[str, Any]) -> Any:
    base, _, reading = document["metric"].rpartition(".")
    return figures[base][reading] if base in figures else figures.get(document["metric"])


def _limit(name: str, value: float) -> str:
    unit = {"memory": "B", "gpus": "devices", "budget": "USD/h"}.get(name)
    return target_text(value) if unit is None else amount(value, unit)


def _amount(value: Any, unit: str) -> str:
    return "-" if value is None else amount(value, unit)


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def _gain(interval: Mapping[str, float] | None, tied: str = "") -> str:
    """The cell of a gain, with a question mark if it is uncertain; '-' over what does not fit."""
    if interval is None:
        return "-"
    return f"{_times(interval)}{tied}{' ?' if interval['low'] <= 1 < interval['high'] else ''}"


def _times(interval: Mapping[str, float]) -> str:
    """A gain with its interval, unless that is a point."""
    low, mid, high = (interval[name] for name in ("low", "mid", "high"))
    return _ratio(mid) if high - low < 1e-6 * mid else f"{_ratio(mid)} ({_ratio(low)} to {_ratio(high)})"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= value < 100 else f"{value:.2g}" if value < 1 else f"{value:.0f}"


_COLUMNS = {"ttft": ("TTFT", "s"), "tpot": ("TPOT", "s"), "tokens_per_s": ("tokens/s", ""), "memory": ("memory", "B")}

_TOTAL = ("total", "s")


def _columns(document: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Title and unit of the figures in a table, the objective among them; encoders have only the total time."""
    columns = {"total": _TOTAL, "memory": _COLUMNS["memory"]} if is_encoder(document["figures"]) else dict(_COLUMNS)
    match document["objective"]:
        case Objective.COST:
            columns["cost"] = ("USD/Mtok", "")
        case Objective.ENERGY:
            columns[document["metric"].rpartition(".")[0]] = ("J/token", "")
        case Objective.TOTAL:
            columns["total"] = _TOTAL
        case Objective.GOODPUT:
            columns["goodput"] = ("requests/s", "")
            columns |= {"ttft": ("TTFT p95", "s"), "tpot": ("TPOT p95", "s")}
        case _:
            return columns
    columns.pop("tokens_per_s", None)
    return columns


def _cells(document: Mapping[str, Any], figures: Mapping[str, Any]) -> list[str]:
    cells = []
    for name, (_, unit) in _columns(document).items():
        value = figures.get(name)
        value = value.get(document["at"]) if isinstance(value, Mapping) else value
        cells.append(_amount(value, unit) if unit else cell(value, ",.4g"))
    return cells


def _header(document: Mapping[str, Any], first: str) -> tuple[str, ...]:
    return (first, "requires", "times better", *(title for title, _ in _columns(document).values()))


def _plan_blocks(document: Mapping[str, Any]) -> Iterator[Block]:
    plan = document["plan"]
    if not plan["steps"]:
        if (closest := plan["closest"]) is None:
            yield _text("Plan", [f"No step: {plan['stopped']}."])
        else:
            yield _text("Plan", ["None meets all limits. To reproduce the nearest:"], [closest["command"]])
        return
    title = "Plan: the gain of each step includes the steps before it"
    simulated = f"({plan['combinations_simulated']} combinations simulated)"
    if not plan["recommended"] and plan["times_better"]["mid"] <= HELPS:
        worth = "uncertain" if _uncertain(plan) else "negligible"
        best = f"the gain of the best combination, {_steps(plan)}, is {worth}: {_times(plan['times_better'])} times"
        yield _text("Plan", [f"No step: {best} {simulated}."])
        return
    if not plan["recommended"]:
        title = f"Best combination, with an uncertain gain of {_times(plan['times_better'])} times, step by step"
    baseline = "baseline (does not fit)" if _unfit(document) else "baseline"
    rows = [[baseline, "", "", *_cells(document, document["figures"])]]
    rows += [_row(document, step) for step in plan["steps"]]
    yield _table(title, _header(document, "step"), rows)
    lines = [f"The plan stops here: {plan['stopped']} {simulated}."]
    for entry in plan["interactions"]:
        both, alone = map(_short, entry["moves"]), f"{entry['first']:.3g} and {entry['second']:.3g} times alone"
        lines.append(f"{' and '.join(both)} {entry['kind']}: {alone}, {entry['both']:.3g} together.")
    yield _text("", [*lines, "To reproduce:"], [plan["steps"][-1]["command"]])


def _single_blocks(document: Mapping[str, Any]) -> Iterator[Block]:
    found = _shown(document["recommendations"], document["shown"])
    if not found:
        yield Block("Single changes", ["No single change improves it within the limits and the quality budget."])
        return
    rows = [_row(document, entry) for entry in found]
    yield _table("Single changes, each alone", _header(document, "change"), rows)
    yield _text("", [line for entry in found for line in _details(entry)])
    yield _text("", ["To reproduce:"], [entry["command"] for entry in found])


def _shown(entries: Sequence[Mapping[str, Any]], top: int) -> list[Mapping[str, Any]]:
    """The best one of batch, parallelism and engine, and the best two techniques of each slot."""
    count: dict[str, int] = {}
    found = []
    for entry in entries:
        seen = count[entry["slot"]] = count.get(entry["slot"], 0) + 1
        if seen <= (2 if entry["kind"] == "technique" else 1):
            found.append(entry)
    return found[:top]


def _row(document: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    gain = _gain(entry["times_better"], " ~" if entry.get("tied_with_previous") else "")
    return [_short(entry["move"]), entry["price"], gain, *_cells(document, entry["figures"])]


SHORT = 20
"""Maximum length of a move that is shown with its parameters."""


def _short(name: str) -> str:
    """A move, without its parameters if it is long; the command has them."""
    return name if len(name) <= SHORT else name.partition(":")[0]


ASSUMPTION_SLOTS = ("speculative decoding", "prompt", "output", "prefix", "retrieval", "cascade", "neurons", "depth")
"""Slots whose gain depends on assumptions about the workload or the model."""


def _details(entry: Mapping[str, Any]) -> Iterator[str]:
    """Title, conditions, limits, reasons, assumptions, caveats and published effect of a change."""
    same = f" (same effect: {', '.join(entry['same_effect'])})" if entry["same_effect"] else ""
    yield f"{_short(entry['move'])}: {entry['title']}{same}."
    if entry["helps"]:
        yield f"  helps {'; '.join(found['text'] for found in entry['helps'])}"
    if entry["meets"]:
        yield f"  meets {_listed([LIMITS[name] for name in entry['meets']])}, which the request exceeds"
    for known, verb in ((True, "exceeds"), (False, "has no figure for")):
        limits = [LIMITS[name] for name, use in entry["misses"].items() if (use is not None) == known]
        if limits:
            yield f"  {verb} {_listed(limits)}"
    for found in entry["reasons"][:2]:
        yield f"  why: {found['text']} [{found['rule']}]"
    if entry["assumes"] and entry["slot"] in ASSUMPTION_SLOTS:
        yield f"  assumes: {entry['assumes']}"
    for text in entry["cautions"][:2]:
        yield f"  caveat: {text}"
    if entry["published"]:
        best = entry["published"][0]
        yield f"  published: {best['effect']} ({best['source']})"


def _other_blocks(document: Mapping[str, Any]) -> Iterator[Block]:
    engines = "Other engines, with gains within the uncertainty: measure them"
    for kind, key, title in (
        ("engine", "other_engines", engines),
        ("hardware", "other_hardware", "Other hardware, all else unchanged"),
    ):
        if found := document[key]:
            rows = [[entry["move"].partition("=")[2], *_row(document, entry)[1:]] for entry in found]
            yield _table(title, _header(document, kind), rows)
            caveats = dict.fromkeys(text for entry in found for text in entry["cautions"])
            if caveats:
                yield _text("", [f"caveat: {text}" for text in caveats])


def _no_benefit(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """The changes without benefit and why; reasons that differ only in numbers share a line."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        alike.setdefault((entry["rule"], re.sub(r"\d[\d.,]*", "#", entry["reason"])), []).append(entry)
    for first, *others in alike.values():
        line = f"{_short(first['move'])}: {_effect(first['gain'])}; {first['reason']} [{first['rule']}]"
        also = _listed([f"{_short(entry['move'])} ({_effect(entry['gain'])})" for entry in others])
        yield f"{line}; likewise {also}." if also else f"{line}."


def _effect(gain: float | None) -> str:
    if gain is None:
        return "not possible here"
    if abs(gain - 1) < 5e-4:
        return "no effect"
    if 2 - HELPS <= gain <= HELPS:
        return "negligible effect"
    return f"{gain:.3g} times better" if gain > 1 else f"{1 / gain:.3g} times worse"


def _legend(document: Mapping[str, Any]) -> list[str]:
    times = "TTFT: time to first token. TPOT: time per output token after the first. "
    lines = [f"{'' if is_encoder(document['figures']) else times}Memory: of the fullest device."]
    if document["load"] is not None:
        load = document["load"]
        kind = "requests of the largest rate within the limits"
        if load.get("concurrency"):
            kind = f"requests in flight{', whose outputs vary by up to a ninth' if load['varied'] else ''}"
        kind = f"turns of {load['sessions']} sessions" if "sessions" in load else kind
        lines.append(f"Under load (roofline serve), {kind}; requests/s: per device.")
    if "cost" in _columns(document):
        lines.append("USD/Mtok: US dollars per million generated tokens.")
    if document["at"] != "bound":
        lines.append(
            "In parentheses: the 80% interval of a gain, without errors common to both scenarios. '?': the interval"
            " includes no gain. '~': within the uncertainty of the row before."
        )
    lines.append(
        f"Engine {document['engine']}; changes up to the quality '{document['quality']}'. In brackets: the rule"
        " (roofline advise --list-rules)."
    )
    return lines


def rules_blocks(documents: Sequence[Mapping[str, Any]]) -> list[Block]:
    """The table of rules, and a legend of their sources."""
    rows = [[entry["name"], entry["statement"], ", ".join(entry["sources"])] for entry in documents]
    sources = (
        "yuan: Yuan et al. 2024 (LLM-Viewer) and Park et al. 2024, R1 to R29; zhou: Zhou et al. 2024, 1 to 34; miao:"
        " Miao et al. 2023, D1 to D26; numbered as in this project's notes on them."
    )
    table = Block(f"{len(rows)} rules of the advisor", header=("rule", "statement", "sources"), rows=rows, left=3)
    return [table, _text("", [sources])]
