"""The content of a report in both formats: sections of lines and tables, the summary first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace as changed

from roofline import Analysis, __version__, analyze
from roofline.advisor import Goal, advise
from roofline.core.errors import RooflineError
from roofline.core.units import count_text, seconds, si
from roofline.reports.documents import summary
from roofline.reports.documents.advice import advice_blocks
from roofline.reports.documents.analysis import analysis_document, interval, rates_document
from roofline.reports.documents.explain import definitions
from roofline.reports.output.blocks import Block
from roofline.reports.output.cells import cell
from roofline.reports.pages.subjects import Subject
from roofline.scenario.options import FORMATS, of_group
from roofline.scenario.scenario import Scenario
from roofline.techniques.support import runs_gguf
from roofline.timing.calibration import Match
from roofline.whatif.command_line import command_line
from roofline.whatif.explanation.assumptions import assumptions
from roofline.whatif.study import source_digest


def schemes(scenario: Scenario) -> list[tuple[str, str | None]]:
    """(label, scheme) of the requested or released formats, then of common formats that the hardware supports."""
    given = {name: text for name, text in scenario.question.formats.items() if text is not None}
    precision = scenario.plain.precision
    own, plain = precision.weights.name, precision.base.name
    label = str(given["scheme"]) if list(given) == ["scheme"] else ", ".join(f"{k} {v}" for k, v in given.items())
    eight = "fp8" if scenario.hardware.supports("fp8") else "W8A8"
    four = "q4_k_m" if runs_gguf(scenario.profile.name) else "awq"
    last = "nvfp4" if scenario.hardware.supports("nvfp4") else "W4A16KV8"
    others = [("W16", plain), *((scheme, scheme) for scheme in (eight, four, last))]
    found: list[tuple[str, str | None]] = [(label or own, None)]
    known = {(label or own).lower()}
    for scheme, name in others:
        if name.lower() not in known:
            found.append((name, scheme))
            known.add(name.lower())
    return found


Progress = Callable[[str], None]

TOP = 5
"""Number of single changes in the advice."""

MAX_ROWS = 200
"""Maximum number of operators of a table; those that take longest are kept."""


class Section(Struct, frozen=True):
    """A section of the page; `anchor` is its id in links."""

    anchor: str
    title: str
    blocks: Sequence[Block]


class Content(Struct, frozen=True):
    """The summary, the operators of each phase by scenario, and the other sections."""

    title: str
    lead: Sequence[str]
    answer: Section
    operators: Section
    rest: Sequence[Section]


def content(subjects: Sequence[Subject], title: str | None, advice: bool, progress: Progress) -> Content:
    """The content of a report on these scenarios. Raises RooflineError."""
    progress("scenarios")
    documents = [analysis_document(subject.analysis) for subject in subjects]
    several = len(subjects) > 1
    rest = [Section("what-if", "What if: quantization and FlashAttention", list(_each(subjects, _what_if)))]
    if advice:
        progress("advice")
        rest.append(Section("advice", "Advice and plan", list(_each(subjects, _advice))))
    rest += [
        Section("accuracy", "Accuracy of the expected times", list(_each(subjects, _accuracy))),
        Section("definitions", "Definitions", [changed(block, title="") for block in definitions()]),
        Section("reproduce", "Reproduce", list(_reproduce(subjects))),
    ]
    names = list(dict.fromkeys(subject.name for subject in subjects))
    lines = [
        Block(subject.label if several else "", summary.summary_lines(document))
        for subject, document in zip(subjects, documents, strict=True)
    ]
    beside = []
    if several:
        expected = all("expected_time_s" in document["generation"] for document in documents)
        times = "expected times with 80% intervals" if expected else "times at the bound"
        settings = [_row(subject.label, subject.analysis) for subject in subjects]
        beside = [_speeds_block(f"Side by side: {times}", "scenario", settings)]
    return Content(
        title=title or (names[0] if len(names) == 1 else f"{len(subjects)} scenarios side by side"),
        lead=[
            f"{subject.label}: {_answer(document)}" if several else _answer(document)
            for subject, document in zip(subjects, documents, strict=True)
        ],
        answer=Section("answer", "Summary", [*beside, *lines]),
        operators=Section("operators", "Operators", list(_operators(subjects, documents))),
        rest=rest,
    )


def _each(subjects: Sequence[Subject], blocks: Callable[[Subject], Iterator[Block]]) -> Iterator[Block]:
    """The blocks of every scenario, under its label if there are several."""
    for subject in subjects:
        if len(subjects) > 1:
            yield Block(subject.label)
        yield from blocks(subject)


def _answer(document: dict[str, Any]) -> str:
    """Memory, latency, throughput and bounds in a few sentences."""
    memory, generation = document["memory"], document["generation"]
    verdict = "Fits in memory" if memory["fits"] else "Does not fit in memory"
    bounds = ", ".join(f"{name} is mostly {phase['bound']}-bound" for name, phase in document["phases"].items())
    return f"{verdict} ({summary.used_of(memory)}). {'; '.join(_speeds(generation))}. {bounds[0].upper()}{bounds[1:]}."


def _speeds(generation: dict[str, Any]) -> Iterator[str]:
    if "expected_time_s" not in generation:
        tpot = generation["tpot_s"]
        yield f"At the bound TTFT {seconds(generation['ttft_s'])}" + ("" if tpot is None else f", TPOT {seconds(tpot)}")
        return
    if not generation["generated"]:
        yield summary.time_interval(generation["expected_time_s"])
    else:
        yield f"TTFT {summary.time_interval(generation['expected_ttft_s'])}"
        if generation["expected_tpot_s"] is not None:
            yield f"TPOT {summary.time_interval(generation['expected_tpot_s'])}"
    rate, unit = summary.rate_of(generation)
    yield f"{summary.rate_interval(generation[f'expected_{rate}'])} {unit}"


Row = tuple[str, list[str], dict[str, Any], list[str]]
"""A setting of a table: its label; whether it fits, memory and latencies; its throughputs; its bounds."""


def _row(label: str, answer: Analysis) -> Row:
    """The row of a setting. Raises RooflineError if it cannot be simulated."""
    memory = answer.memory
    cells = ["yes" if memory.fits else "NO", si(float(memory.total), "B")]
    if answer.times_are_expected:
        times = answer.expected.ttft, None if answer.decode is None else answer.expected.tpot
        cells += [cell(time, lambda found: summary.time_interval(interval(found))) for time in times]
    else:
        cells += [cell(time, seconds) for time in (answer.generation.ttft, answer.generation.tpot)]
    bounds = [str(answer.prefill.bound), "-" if answer.decode is None else str(answer.decode.bound)]
    return label, cells, rates_document(answer), bounds


def _speeds_block(title: str, first: str, rows: Sequence[Row]) -> Block:
    """A table of settings; encoders have only prefill."""
    rates = summary.rate_columns(found for _, _, found, _ in rows)
    phases = {"TTFT": "prefill", "TPOT": "decode"}
    if all(summary.is_encoder(found) for _, _, found, _ in rows):
        phases = {"total": "bound"}
    count = len(phases)
    lines = []
    for label, cells, found, bounds in rows:
        expected = {name: found.get(f"expected_{name}") for name in rates}
        shown = [
            cell(one or found[name], summary.rate_interval if one else count_text) for name, one in expected.items()
        ]
        lines.append([label, *cells[: 2 + count], *shown, *bounds[:count]])
    return Block(title, header=(first, "fits", "memory", *phases, *rates.values(), *phases.values()), rows=lines)


def _what_if(subject: Subject) -> Iterator[Block]:
    """Every quantization with and without FlashAttention, all else as requested."""
    scenario, rows, failed = subject.scenario, [], []
    fused = "attention" in scenario.plain.fusions
    for label, scheme in schemes(scenario):
        formats = scenario if scheme is None else scenario.without(*of_group(FORMATS)).with_(quant=scheme)
        for flash in (True, False):
            requested = " (requested)" if scheme is None and flash is fused else ""
            name = f"{label}, {'with' if flash else 'without'} FlashAttention"
            try:
                rows.append(_row(f"{name}{requested}", analyze(formats.with_(flash=flash))))
            except RooflineError as error:
                failed.append(f"{name}: {error}")
    yield _speeds_block("", "setting", rows)
    if failed:
        yield Block(lines=failed)


def _advice(subject: Subject) -> Iterator[Block]:
    """Advice on the total time, with a plan."""
    try:
        yield from advice_blocks(advise(subject.scenario, Goal(), top=TOP).to_dict())
    except RooflineError as error:
        yield Block(lines=[f"No advice for this scenario: {error}."])


def _operators(subjects: Sequence[Subject], documents: Sequence[dict[str, Any]]) -> Iterator[Block]:
    for subject, document in zip(subjects, documents, strict=True):
        for name, phase in document["phases"].items():
            shown = sorted(phase["ops"], key=lambda op: -op["share"])[:MAX_ROWS]
            names = {id(op) for op in shown}
            cut = {**phase, "ops": [op for op in phase["ops"] if id(op) in names]}
            title = f"{subject.label}: {name}" if len(subjects) > 1 else name.capitalize()
            lines = summary.phase_line(phase).split("\n")
            if len(phase["ops"]) > len(shown):
                lines.append(f"the {len(shown)} of {len(phase['ops'])} operators that take longest")
            yield Block(title, lines)
            yield Block("", (), *summary.op_rows(cut))


def used_fits(answer: Analysis) -> list[tuple[Match, tuple[str, ...]]]:
    """The fits behind the expected times in order of first use, each with the operators of its kernels."""
    found: dict[tuple[str, str, str], tuple[Match, dict[str, None]]] = {}
    for phase in filter(None, (answer.prefill, answer.decode)):
        other = "attention_decode" if phase.name == "prefill" else "attention_prefill"  # of the same kernel
        for run in phase.passes:
            kernels = phase.timed(run)
            for entry in kernels.kernels:
                names = [kernels.placement.ops[part][0].name for part in entry.parts]
                for match in (match for match in entry.matches.values() if match.fit.op != other):
                    key = (match.fit.op, match.fit.format, match.calibration)
                    found.setdefault(key, (match, {}))[1].update(dict.fromkeys(names))
    return [(match, tuple(names)) for match, names in found.values()]


_RESIDUALS = ("kernel", "format", "computes", "basis", "measurements", "p10", "p50", "p90", "widened by")


def _accuracy(subject: Subject) -> Iterator[Block]:
    """The assumptions of the expected times, and the residuals of the fits of the kernels."""
    answer = subject.analysis
    yield Block(lines=list(assumptions(answer)))
    if not answer.times_are_expected:
        return
    rows = []
    for match, operators in used_fits(answer):
        fit, residuals = match.fit, match.fit.residuals.get("all")
        cells = ["-"] * 3 if residuals is None else [f"{getattr(residuals, end):.3g}" for end in ("low", "mid", "high")]
        basis = summary.BASES[match.basis] if fit.rows else "prior"
        widening = "" if match.widening == 1 else f"{match.widening:.3g}"
        names = ", ".join(operators[:6]) + (", ..." if len(operators) > 6 else "")
        rows.append([fit.op, fit.format, names, basis, f"{fit.rows:,}", *cells, widening])
    yield Block(
        lines=[
            "Residuals of the fits: measured over predicted time of held-out kernels, p10, p50 and p90 over all shapes;"
            " constants of other hardware or formats widen the interval"
        ]
    )
    yield Block(header=_RESIDUALS, rows=rows, left=4)


def _reproduce(subjects: Sequence[Subject]) -> Iterator[Block]:
    """The commands, and the versions of the specs that they read."""
    commands = []
    for subject in subjects:
        try:
            commands += [command_line(subject.scenario, name) for name in ("report", "analyze", "advise")]
        except RooflineError as error:
            yield Block(lines=[str(error)])
    yield Block(lines=["Commands:"], commands=commands)
    rows = {("roofline", __version__, ""): None}
    for scenario in (subject.scenario for subject in subjects):
        model, hardware, engine = scenario.model, scenario.hardware, scenario.profile
        sources = "; ".join(list(dict.fromkeys(hardware.sources.values()))[:3])
        for name, kind, written, source in (
            (f"model {model.name}", "model", scenario.model_name, model.source or ""),
            (f"hardware {hardware.name} and its calibration", "hw", scenario.hardware_name, sources),
            (f"engine {engine.label}", "engine", scenario.engine_name, "; ".join(engine.sources)),
        ):
            rows[name, source_digest(kind, written), source] = None
    yield Block(lines=["Versions:"])
    yield Block(header=("input", "version", "source"), rows=list(rows), left=3)
