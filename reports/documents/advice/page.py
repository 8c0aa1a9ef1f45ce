"""A document of advice as a page: the answer first, then what it rests on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from roofline.advisor.search.breakeven import HELPS
from roofline.advisor.search.goal import Objective
from roofline.core.units import seconds, si
from roofline.reports.output.blocks import WIDTH, Block
from roofline.reports.output.export import encodes

OBJECTIVES = {
    Objective.TOTAL: "the whole time",
    Objective.TTFT: "the time to first token",
    Objective.TPOT: "the time per output token",
    Objective.THROUGHPUT: "the throughput",
    Objective.MEMORY: "the memory of a device",
    Objective.COST: "the cost of a million tokens",
    Objective.ENERGY: "the energy of a token",
}

LIMITS = {
    "capacity": "the memory of a device",
    "memory": "the limit of memory",
    "ttft": "the limit of TTFT",
    "tpot": "the limit of TPOT",
    "total": "the limit of the whole time",
    "gpus": "the limit of devices",
    "budget": "the budget",
}


def advice_blocks(document: Mapping[str, Any]) -> list[Block]:
    """The answer in three lines, then the plan, single changes, other engines and hardware, and what is in vain."""
    return [
        _text(_headline(document), _answer(document)),
        *_plan_blocks(document),
        *_single_blocks(document),
        *_other_blocks(document),
        *_told("What holds it back", [_told_by(entry) for entry in _ordered(document["findings"])[1:]]),
        *_told("What will not help", list(_futile(document["in_vain"]))),
        *_told("What to mind", [_told_by(entry) for entry in document["cautions"]]),
        _text("What the figures mean", _meaning(document)),
    ]


def _told(title: str, lines: Sequence[str]) -> Iterator[Block]:
    """A titled list, where there is anything to tell."""
    if lines:
        yield _text(title, lines)


def _text(title: str, lines: Iterable[str], commands: Sequence[str] = ()) -> Block:
    return Block(title, list(lines), commands=commands, width=WIDTH)


def _table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> Block:
    """A table whose first two columns are text."""
    return Block(title, header=header, rows=rows, left=2, width=WIDTH)


def _told_by(entry: Mapping[str, Any]) -> str:
    """What a rule says, with its name."""
    return f"{_sentence_case(entry['text'])} [{entry['rule']}]."


FIRST = ("hardware-fit", "memory-bound-decode", "compute-bound-prefill", "launch-bound", "tensor-parallelism")
"""Rules whose findings say what a scenario waits for: they are told before shares of time and phases."""


def _ordered(findings: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Findings, what it waits for first; each lot is in the order of the shares concerned."""
    return sorted(findings, key=lambda entry: entry["rule"] not in FIRST)


def _headline(document: Mapping[str, Any]) -> str:
    plan, name = document["plan"], f"{document['model']} on {document['hardware']}"
    if not plan["feasible"]:
        return f"{name}: nothing meets all limits"
    what, instead = OBJECTIVES[Objective(document["objective"])], _instead(document)
    if plan["sure"]:
        return f"{name}: {_times(plan['times_better'])} times better by {_steps(plan)}"
    if instead is not None:
        return f"{name}: {_times(instead['times_better'])} times better by {_short(instead['move'])}"
    return f"{name}: nothing {'is sure to make' if _unsure(plan) else 'makes'} {what} better"


def _instead(document: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The single change that is sure, where the plan is not."""
    return next((entry for entry in document["recommendations"] if entry["move"] == document["instead"]), None)


def _steps(plan: Mapping[str, Any]) -> str:
    return _listed([_short(step["move"]) for step in plan["steps"]])


def _unsure(plan: Mapping[str, Any]) -> bool:
    """Whether there is a plan that may be better and may not."""
    return bool(plan["steps"]) and not plan["sure"] and plan["times_better"]["low"] <= 1


def _answer(document: Mapping[str, Any]) -> Iterator[str]:
    """What gets better, what holds the request back, and which limits are missed."""
    plan, unit = document["plan"], document["unit"]
    before = _objective(document, document["figures"])
    what = OBJECTIVES[Objective(document["objective"])]
    if plan["feasible"]:
        instead = _instead(document)
        best = instead or (plan["steps"][-1] if plan["sure"] else None)
        if best is None and plan["steps"] and plan["times_better"]["mid"] > HELPS:
            after, gain = _objective(document, plan["steps"][-1]["figures"]), _times(plan["times_better"])
            change = f"from {_amount(before, unit)} to {_amount(after, unit)}{_reading(document)}"
            yield f"By {_steps(plan)} {what} goes {change}, {gain} times better, which may be no gain."
        elif best is None:
            yield f"{_sentence_case(what)} stays at {_amount(before, unit)}{_reading(document)}."
        else:
            after = _objective(document, best["figures"])
            change = f"goes from {_amount(before, unit)} to {_amount(after, unit)}"
            yield f"{_sentence_case(what)} {change}{_reading(document)}."
    else:
        broken = _listed(sorted({LIMITS[name] for name in document["misses"]})) or "the limits together"
        yield f"In the way: {broken}; {_nearest(plan)}."
    if document["findings"]:
        yield f"Now {_ordered(document['findings'])[0]['text']}."
    else:
        yield f"Now {what} is {_amount(before, unit)}{_reading(document)}."
    if document["misses"]:
        uses = [f"{LIMITS[name]} ({use:.3g} times)" for name, use in document["misses"].items()]
        yield f"As it is, it exceeds {_listed(uses)}."


def _nearest(plan: Mapping[str, Any]) -> str:
    """The least that limits can be: each with the others as they are, or all that are in the way together."""
    jointly = plan["nearest_jointly"]

    def told(name: str, value: float) -> str:
        if name == "capacity":
            return f"a device would need {value:.3g} times its memory"
        return f"{LIMITS[name]} {'at' if jointly else 'can be'} {_limit(name, value)}{'' if jointly else ' at best'}"

    near = [told(name, value) for name, value in plan["nearest"].items()]
    if jointly and near:
        return f"nearest to all is {_listed(near)}"
    return "; ".join(near) or "nothing comes near"


def _sentence_case(text: str) -> str:
    return text[0].upper() + text[1:]


def _reading(document: Mapping[str, Any]) -> str:
    return " at the bound" if document["at"] == "bound" else ""


def _objective(document: Mapping[str, Any], figures: Mapping[str, Any]) -> Any:
    base, _, reading = document["metric"].rpartition(".")
    if base in figures:
        return figures[base][reading]
    return figures.get(document["metric"])


def _limit(name: str, value: float) -> str:
    unit = {"memory": "B", "gpus": "devices", "budget": "USD/h"}.get(name, "s")
    return _amount(value, unit)


def _amount(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    match unit:
        case "s":
            return seconds(value, 3)
        case "B":
            return si(value, "B", 3)
    return f"{value:,.3g} {unit}" if abs(value) < 100 else f"{value:,.0f} {unit}"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""


def _times(interval: Mapping[str, float]) -> str:
    """A gain with its interval where it has one."""
    low, mid, high = (interval[name] for name in ("low", "mid", "high"))
    return _ratio(mid) if high - low < 1e-6 * mid else f"{_ratio(mid)} ({_ratio(low)} to {_ratio(high)})"


def _ratio(value: float) -> str:
    return f"{value:.2f}" if 0.1 <= value < 100 else f"{value:.2g}" if value < 1 else f"{value:.0f}"


_COLUMNS = {"ttft": ("TTFT", "s"), "tpot": ("TPOT", "s"), "tokens_per_s": ("tokens/s", ""), "memory": ("memory", "B")}

_TOTAL = ("total", "s")


def _columns(document: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """The figures of a table: the usual ones, and the objective's; of a model that only encodes the whole time."""
    columns = {"total": _TOTAL, "memory": _COLUMNS["memory"]} if encodes(document["figures"]) else dict(_COLUMNS)
    match document["objective"]:
        case Objective.COST:
            columns["cost"] = ("USD/Mtok", "")
        case Objective.ENERGY:
            columns[document["metric"].rpartition(".")[0]] = ("J/token", "")
        case Objective.TOTAL:
            columns["total"] = _TOTAL
        case _:
            return columns
    columns.pop("tokens_per_s", None)
    return columns


def _cells(document: Mapping[str, Any], figures: Mapping[str, Any]) -> list[str]:
    reading = document["at"]
    cells = []
    for name, (_, unit) in _columns(document).items():
        value = figures.get(name)
        value = value.get(reading) if isinstance(value, Mapping) else value
        cells.append("-" if value is None else f"{value:,.4g}" if not unit else _amount(value, unit))
    return cells


def _header(document: Mapping[str, Any], first: str) -> tuple[str, ...]:
    return (first, "asks for", "times better", *(title for title, _ in _columns(document).values()))


def _plan_blocks(document: Mapping[str, Any]) -> Iterator[Block]:
    plan = document["plan"]
    if not plan["steps"]:
        yield _text("Plan", [f"No step: {plan['stopped']}."])
        return
    title = "Plan: each step's gain is given those before it"
    if not plan["sure"] and plan["times_better"]["mid"] <= HELPS:
        worth = "may be no gain" if _unsure(plan) else "is next to nothing"
        best = f"the best found, {_steps(plan)}, is {_times(plan['times_better'])} times as good, which {worth}"
        yield _text("Plan", [f"No step: {best} ({plan['combinations_tried']} combinations simulated)."])
        return
    if not plan["sure"]:
        title = f"The best found, {_times(plan['times_better'])} times as good, may be no better: step by step"
    rows = [["as it is", "", "", *_cells(document, document["figures"])]]
    for step in plan["steps"]:
        gain = f"{_times(step['times_better'])}{_doubt(step['times_better'])}"
        rows.append([_short(step["move"]), step["price"], gain, *_cells(document, step["figures"])])
    yield _table(title, _header(document, "step"), rows)
    lines = [f"It stops there: {plan['stopped']} ({plan['combinations_tried']} combinations simulated)."]
    for entry in plan["interactions"]:
        both, alone = map(_short, entry["moves"]), f"{entry['first']:.3g} and {entry['second']:.3g} times alone"
        lines.append(f"{' and '.join(both)} {entry['kind']}: {alone}, {entry['both']:.3g} together.")
    yield _text("", [*lines, "To see it:"], [plan["steps"][-1]["command"]])


def _single_blocks(document: Mapping[str, Any]) -> Iterator[Block]:
    found = _shown(document["recommendations"], document["shown"])
    if not found:
        yield Block("Single changes", ["No single change makes it better within the limits and the quality budget."])
        return
    rows = [_row(document, entry) for entry in found]
    yield _table("Single changes, each alone", _header(document, "change"), rows)
    yield _text("", [line for entry in found for line in _about(entry)])
    yield _text("", ["To see them:"], [entry["command"] for entry in found])


def _shown(entries: Sequence[Mapping[str, Any]], top: int) -> list[Mapping[str, Any]]:
    """The first of each kind of batch, parallelism and engine, and the first two of any other slot."""
    count: dict[str, int] = {}
    found = []
    for entry in entries:
        seen = count[entry["settles"]] = count.get(entry["settles"], 0) + 1
        if seen <= (2 if entry["kind"] == "technique" else 1):
            found.append(entry)
    return found[:top]


def _row(document: Mapping[str, Any], entry: Mapping[str, Any]) -> list[str]:
    tied = " ~" if entry["tied_with_the_one_before"] else ""
    gain = f"{_times(entry['times_better'])}{tied}{_doubt(entry['times_better'])}"
    return [_short(entry["move"]), entry["price"], gain, *_cells(document, entry["figures"])]


def _doubt(interval: Mapping[str, float]) -> str:
    """The mark of a gain that may be none."""
    return " ?" if interval["low"] <= 1 < interval["high"] else ""


SHORT = 20
"""Letters of a move that is named with its parameters."""


def _short(name: str) -> str:
    """A move without its parameters, which the command has, where they are long."""
    return name if len(name) <= SHORT else name.partition(":")[0]


FACTS = ("drafting", "prompt", "output", "prefix", "retrieval", "cascade", "neurons", "depth")
"""Slots whose gain hangs on facts of the workload or the model that the simulation takes as given."""


def _about(entry: Mapping[str, Any]) -> Iterator[str]:
    """What to know of a change: what it is, where it helps, why, and what it takes as given."""
    same = f" (as fast: {', '.join(entry['same_effect'])})" if entry["same_effect"] else ""
    yield f"{_short(entry['move'])}: {entry['title']}{same}."
    if entry["helps"]:
        yield f"  helps {'; '.join(found['text'] for found in entry['helps'])}"
    if entry["meets"]:
        yield f"  meets {_listed([LIMITS[name] for name in entry['meets']])}, which the request exceeds"
    for known, what in ((True, "exceeds"), (False, "has no figure for")):
        limits = [LIMITS[name] for name, use in entry["misses"].items() if (use is not None) == known]
        if limits:
            yield f"  {what} {_listed(limits)}"
    for found in entry["because"][:2]:
        yield f"  why: {found['text']} [{found['rule']}]"
    if entry["assumes"] and entry["settles"] in FACTS:
        yield f"  taken as given: {entry['assumes']}"
    for text in entry["cautions"][:2]:
        yield f"  mind: {text}"
    if entry["published"]:
        best = entry["published"][0]
        yield f"  published: {best['effect']} ({best['source']})"


def _other_blocks(document: Mapping[str, Any]) -> Iterator[Block]:
    """Other engines and other hardware."""
    titles = {
        "engine": "Other engines, better or worse within what is uncertain: to be measured",
        "hardware": "Other hardware, all else as it is",
    }
    for what, found in (("engine", document["other_engines"]), ("hardware", document["other_hardware"])):
        if found:
            rows = [[entry["move"].partition("=")[2], *_row(document, entry)[1:]] for entry in found]
            yield _table(titles[what], _header(document, what), rows)
            minded = dict.fromkeys(text for entry in found for text in entry["cautions"])
            if minded:
                yield _text("", [f"mind: {text}" for text in minded])


def _futile(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """What is in vain and why; what is so for the same reason, but for its numbers, is told with the first."""
    alike: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        alike.setdefault((entry["rule"], re.sub(r"\d[\d.,]*", "#", entry["because"])), []).append(entry)
    for first, *others in alike.values():
        said = f"{_short(first['move'])}: {_vain(first['gain'])}; {first['because']} [{first['rule']}]"
        also = _listed([f"{_short(entry['move'])} ({_vain(entry['gain'])})" for entry in others])
        yield f"{said}; likewise {also}." if also else f"{said}."


def _vain(gain: float | None) -> str:
    if gain is None:
        return "cannot be had here"
    if abs(gain - 1) < 5e-4:
        return "changes nothing"
    if 2 - HELPS <= gain <= HELPS:
        return "changes next to nothing"
    return f"{gain:.3g} times better" if gain > 1 else f"{1 / gain:.3g} times worse"


def _meaning(document: Mapping[str, Any]) -> Iterator[str]:
    times = (
        ""
        if encodes(document["figures"])
        else "TTFT: time to first token. TPOT: time per output token after the first. "
    )
    yield f"{times}Memory: of the fullest device."
    if "cost" in _columns(document):
        yield "USD/Mtok: US dollars a million generated tokens."
    if document["at"] != "bound":
        yield (
            "In parentheses: the 80% interval of a gain, errors that both scenarios share left out. '?': it may be"
            " none. '~': it may change places with the one before."
        )
    yield (
        f"Engine {document['engine']}; changes up to the quality '{document['quality']}'. In brackets: the rule"
        " (roofline advise --list-rules)."
    )
