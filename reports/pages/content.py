"""What a report says, on either page: sections of lines and tables, the answer first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace as changed

from roofline import Analysis, __version__, analyze
from roofline.advisor import Goal, advise
from roofline.core.errors import RooflineError
from roofline.core.units import seconds, si
from roofline.reports.documents.advice import advice_blocks, advice_document
from roofline.reports.documents.analysis import analysis_document, rates_document
from roofline.reports.documents.explain import definitions
from roofline.reports.output.blocks import Block
from roofline.reports.output.export import (
    BASES,
    encodes,
    op_rows,
    phase_line,
    rate_interval,
    rate_of,
    rate_text,
    rates_of,
    spread,
    summary_lines,
)
from roofline.reports.pages.controls import has_flash, quantised, schemes
from roofline.reports.pages.subjects import Subject
from roofline.scenario.phase import Phase
from roofline.timing.calibration import Fit, Match
from roofline.whatif.command_line import command_line
from roofline.whatif.explain.grounds import assumptions
from roofline.whatif.request import Request
from roofline.whatif.study import source_digest

Progress = Callable[[str], None]

TOP = 5
"""Single changes of the advice that are shown."""

MOST_ROWS = 200
"""Operators of a table: of more, those that take longest."""


class Section(Struct, frozen=True):
    """A part of the page under a heading of its own; `anchor` is its place in links."""

    anchor: str
    title: str
    blocks: Sequence[Block]


class Content(Struct, frozen=True):
    """All that is said: the answer, the operators of each phase by scenario, and what it rests on."""

    title: str
    lead: Sequence[str]
    answer: Section
    operators: Section
    rest: Sequence[Section]


def content(subjects: Sequence[Subject], title: str | None, advice: bool, progress: Progress) -> Content:
    """The content of a report about these scenarios. Raises RooflineError."""
    progress("scenarios")
    documents = [analysis_document(subject.analysis) for subject in subjects]
    several = len(subjects) > 1
    rest = [Section("what-if", "What if: quantisation and FlashAttention", list(_each(subjects, _what_if)))]
    if advice:
        progress("advice")
        rest.append(Section("advice", "Advice and plan", list(_each(subjects, _advice))))
    rest += [
        Section("accuracy", "How far off the expected times are", list(_each(subjects, _accuracy))),
        Section("definitions", "What every figure means", [changed(block, title="") for block in definitions()]),
        Section("reproduce", "To have it again", list(_reproduce(subjects))),
    ]
    lines = [
        Block(subject.label if several else "", summary_lines(document))
        for subject, document in zip(subjects, documents, strict=True)
    ]
    beside = [_beside(subjects, documents)] if several else []
    return Content(
        title=title or _title(subjects),
        lead=[
            f"{subject.label}: {_answer(document)}" if several else _answer(document)
            for subject, document in zip(subjects, documents, strict=True)
        ],
        answer=Section("answer", "The answer", [*beside, *lines]),
        operators=Section("operators", "Operators", list(_operators(subjects, documents))),
        rest=rest,
    )


def _each(subjects: Sequence[Subject], say: Callable[[Subject], Iterator[Block]]) -> Iterator[Block]:
    """What is said of every scenario, under its label where there are several."""
    for subject in subjects:
        if len(subjects) > 1:
            yield Block(subject.label)
        yield from say(subject)


def _title(subjects: Sequence[Subject]) -> str:
    names = list(dict.fromkeys(subject.name for subject in subjects))
    return names[0] if len(names) == 1 else f"{len(subjects)} scenarios side by side"


def _answer(document: dict[str, Any]) -> str:
    """Does it fit, how fast is it, what bounds it: in a sentence or two."""
    memory, generation = document["memory"], document["generation"]
    verdict = "Fits" if memory["fits"] else "Does not fit"
    room = f"{si(memory['total_bytes'], 'B')} of {si(memory['capacity_bytes'], 'B')}"
    bounds = ", ".join(f"{name} is {phase['bound']}-bound" for name, phase in document["phases"].items())
    return f"{verdict} ({room}). {'; '.join(_speeds(generation))}. Mostly, {bounds}."


def _speeds(generation: dict[str, Any]) -> Iterator[str]:
    expected = "expected_time_s" in generation
    decodes = bool(generation["generated"])
    if not expected:
        tpot = generation["tpot_s"]
        yield f"At the bound TTFT {seconds(generation['ttft_s'])}" + ("" if tpot is None else f", TPOT {seconds(tpot)}")
        return
    yield f"TTFT {spread(generation['expected_ttft_s'])}" if decodes else spread(generation["expected_time_s"])
    if generation["expected_tpot_s"] is not None and decodes:
        yield f"TPOT {spread(generation['expected_tpot_s'])}"
    rate, unit = rate_of(generation)
    yield f"{rate_interval(generation[f'expected_{rate}'])} {unit}"


# --- side by side -----------------------------------------------------------------------------------------------------


Row = tuple[str, list[str], dict[str, Any], list[str]]
"""A setting of a table: its label, does it fit and how fast is it, its rates, and what bounds it."""


def _row(label: str, answer: Analysis) -> Row:
    """The figures of a setting. Raises RooflineError where it has none."""
    memory = answer.memory
    cells = ["yes" if memory.fits else "NO", si(float(memory.total), "B")]
    if answer.times_are_expected:
        expected = answer.expected
        tpot = "-" if expected.tpot is None or answer.decode is None else _spread(expected.tpot)
        cells += [_spread(expected.ttft), tpot]
    else:
        generation = answer.generation
        cells += [seconds(generation.ttft), "-" if generation.tpot is None else seconds(generation.tpot)]
    bounds = [str(answer.prefill.bound), "-" if answer.decode is None else str(answer.decode.bound)]
    return label, cells, rates_document(answer), bounds


def _speeds_block(title: str, first: str, rows: Sequence[Row]) -> Block:
    """A table of settings, with the times and rates that matter: where nothing is generated, prefill is all."""
    rates = rates_of(found for _, _, found, _ in rows)
    phases = {"TTFT": "prefill", "TPOT": "decode"}
    if all(encodes(found) for _, _, found, _ in rows):
        phases = {"total": "bound"}
    count = len(phases)
    lines = [
        [label, *cells[: 2 + count], *(_rate_cell(found, name) for name in rates), *bounds[:count]]
        for label, cells, found, bounds in rows
    ]
    return Block(title, header=(first, "fits", "memory", *phases, *rates.values(), *phases.values()), rows=lines)


def _rate_cell(rates: dict[str, Any], name: str) -> str:
    if rates[name] is None:
        return "-"
    expected = rates.get(f"expected_{name}")
    return rate_text(rates[name]) if expected is None else rate_interval(expected)


def _spread(estimate: Any) -> str:
    return spread({"low": estimate.low, "mid": estimate.mid, "high": estimate.high})


def _beside(subjects: Sequence[Subject], documents: Sequence[dict[str, Any]]) -> Block:
    read = "expected times with the interval of 8 of 10 measurements"
    if not all("expected_time_s" in document["generation"] for document in documents):
        read = "times at the bound"
    rows = [_row(subject.label, subject.analysis) for subject in subjects]
    return _speeds_block(f"Side by side: {read}", "scenario", rows)


# --- what if ----------------------------------------------------------------------------------------------------------


def _what_if(subject: Subject) -> Iterator[Block]:
    """Every quantisation with and without FlashAttention, all else as asked."""
    request, rows, failed = subject.request, [], []
    for label, scheme in schemes(request):
        formats = request if scheme is None else quantised(request, scheme)
        for flash in (True, False):
            others = tuple(name for name in request.options.get("fusions") or () if name != "attention")
            fusions = ("attention", *others) if flash else others
            asked = " (asked for)" if scheme is None and flash is has_flash(request) else ""
            name = f"{label}, {'with' if flash else 'without'} FlashAttention"
            try:
                answer = analyze(formats.with_options(fusions=fusions).scenario())
                rows.append(_row(f"{name}{asked}", answer))
            except RooflineError as error:
                failed.append(f"{name}: {error}")
    yield _speeds_block("", "setting", rows)
    if failed:
        yield Block(lines=failed)


# --- advice -----------------------------------------------------------------------------------------------------------


def _advice(subject: Subject) -> Iterator[Block]:
    """What the advisor says of the whole time, with its plan."""
    try:
        yield from advice_blocks(advice_document(advise(subject.request, Goal(), top=TOP), TOP))
    except RooflineError as error:
        yield Block(lines=[f"There is no advice for this scenario: {error}."])


# --- operators --------------------------------------------------------------------------------------------------------


def _operators(subjects: Sequence[Subject], documents: Sequence[dict[str, Any]]) -> Iterator[Block]:
    for subject, document in zip(subjects, documents, strict=True):
        for name, phase in document["phases"].items():
            shown = sorted(phase["ops"], key=lambda op: -op["share"])[:MOST_ROWS]
            names = {id(op) for op in shown}
            cut = {**phase, "ops": [op for op in phase["ops"] if id(op) in names]}
            header, rows = op_rows(cut)
            title = f"{subject.label}: {name}" if len(subjects) > 1 else name.capitalize()
            lines = phase_line(phase).split("\n")
            if len(phase["ops"]) > len(shown):
                lines.append(f"of {len(phase['ops'])} operators the {len(shown)} that take longest")
            yield Block(title, lines)
            yield Block(header=header, rows=rows)


# --- what it rests on -------------------------------------------------------------------------------------------------


class Used(Struct, frozen=True):
    """Constants that kernels of a scenario rest on, and the operators that those kernels compute."""

    match: Match
    operators: tuple[str, ...]

    @property
    def fit(self) -> Fit:
        """The constants."""
        return self.match.fit


def used(answer: Analysis) -> list[Used]:
    """The fits behind the expected times, in the order in which they are first needed."""
    found: dict[tuple[str, str, str], tuple[Match, dict[str, None]]] = {}
    for phase in (answer.prefill, answer.decode):
        if phase is None:
            continue
        for run in phase.passes:
            kernels = phase.timed(run)
            for entry in kernels.kernels:
                names = [kernels.placement.ops[part][0].name for part in entry.parts]
                for match in _spoken(entry.matches.values(), phase):
                    key = (match.fit.op, match.fit.format, match.calibration)
                    found.setdefault(key, (match, {}))[1].update(dict.fromkeys(names))
    return [Used(match, tuple(names)) for match, names in found.values()]


def _spoken(matches: Any, phase: Phase | None) -> Iterator[Match]:
    """The matches of a kernel that a phase needs: attention has one for each."""
    other = "attention_decode" if phase is not None and phase.name == "prefill" else "attention_prefill"
    yield from (match for match in matches if match.fit.op != other)


_RESIDUALS = ("kernel", "format", "computes", "basis", "measurements", "low", "middle", "high", "times wider")


def _accuracy(subject: Subject) -> Iterator[Block]:
    """The grounds of expected times, and what the fits of its kernels left over."""
    answer = subject.analysis
    yield Block(lines=list(assumptions(answer)))
    if not answer.times_are_expected:
        return
    rows = []
    for entry in used(answer):
        left = entry.fit.residuals.get("all")
        cells = ["-"] * 3 if left is None else [f"{value:.3g}" for value in (left.low, left.mid, left.high)]
        basis = BASES[entry.match.basis] if entry.fit.rows else "a prior"
        wider = "" if entry.match.widening == 1 else f"{entry.match.widening:.3g}"
        names = ", ".join(entry.operators[:6]) + (", ..." if len(entry.operators) > 6 else "")
        rows.append([entry.fit.op, entry.fit.format, names, basis, f"{entry.fit.rows:,}", *cells, wider])
    yield Block(
        lines=[
            "What the fits left over: measured over predicted time of kernels kept aside, 10th, 50th and 90th"
            " percentile over all shapes; constants of other hardware or formats widen the interval"
        ]
    )
    yield Block(header=_RESIDUALS, rows=rows, left=4)


def _reproduce(subjects: Sequence[Subject]) -> Iterator[Block]:
    """The commands, and the versions of what they read."""
    commands = []
    for subject in subjects:
        try:
            commands += [command_line(subject.request, name) for name in ("report", "analyze", "advise")]
        except RooflineError as error:
            yield Block(lines=[str(error)])
    yield Block(lines=["The commands that give these figures:"], commands=commands)
    rows = [["roofline", __version__, ""]]
    for request in (subject.request for subject in subjects):
        rows += _versions(request)
    yield Block(lines=["The versions that they rest on:"])
    yield Block(header=("what", "version", "source"), rows=list(map(list, dict.fromkeys(map(tuple, rows)))), left=3)


def _versions(request: Request) -> Iterator[list[str]]:
    """What a request reads, each with a digest of what it says."""
    scenario = request.scenario()
    yield [f"model {scenario.model.name}", source_digest("model", request.model_name), scenario.model.source or ""]
    hardware = scenario.hardware
    sources = "; ".join(list(dict.fromkeys(hardware.sources.values()))[:3])
    yield [f"hardware {hardware.name} and its calibration", source_digest("hw", request.hardware_name), sources]
    engine = scenario.profile
    yield [f"engine {engine.name}", source_digest("engine", request.engine_name), "; ".join(engine.sources)]
