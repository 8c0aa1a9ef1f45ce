"""The questions of the live page: each is a function from set-ups to the document of the command that answers it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from roofline import Analysis, analyze
from roofline.advisor import advise
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.limits import MAX_LENGTH
from roofline.reports.documents.advice import advice_blocks
from roofline.reports.documents.analysis import analysis_document
from roofline.reports.documents.compare import compare_document
from roofline.reports.output.blocks import finite
from roofline.reports.view.graph import kept, roofs, rows_of
from roofline.reports.view.questions import (
    ADVICE,
    OF_A_BATCH,
    OF_SESSIONS,
    Answer,
    Question,
    first,
    given,
    goals,
    python,
    words,
)
from roofline.reports.view.setups import Read, Setup, Specs, changes, quantities
from roofline.reports.view.verdicts import better, run, verdict
from roofline.serving.curve import serve
from roofline.serving.options import LOAD_OPTIONS, load_values
from roofline.serving.sessions.options import SESSION_OPTIONS
from roofline.serving.sessions.profiles import PROFILES
from roofline.specs.names import taken
from roofline.whatif.explanation import Explanation
from roofline.whatif.explanation.operators import operator_at
from roofline.whatif.metrics import find_metric

BATCHES = tuple(2**power for power in range(11))
PROMPTS = tuple(2**power for power in range(7, 18))
"""Values of the curves, beside those of the set-up."""

TOP = 8
"""Changes that the advice shows."""

CHAT = "chat"
"""The profile of sessions where none is chosen."""

MOST_VALUES, MOST_SESSIONS = 6, 1024
LEAST_TURNS, OF_EACH, MOST_TURNS = 800, 8, 4000
"""Numbers of sessions on the page, and turns that it simulates: so many of each session, between limits."""

PARTS = 14
"""Operators of a waterfall; the others are summed."""


def answer(question: Question, specs: Specs) -> dict[str, Any]:
    """The document of `roofline analyze` for the first set-up, and what its drawings need beside it."""
    read = first(question, specs)
    analysis = analyze(read.scenario)
    phases = [phase for phase in (analysis.prefill, analysis.decode) if phase is not None]
    graphs = {phase.name: {"places": (places := kept(phase)), "sections": rows_of(phase, places)} for phase in phases}
    files = [{"name": file.name, "text": file.text} for file in read.files.values() if file.text is not None]
    return {
        "analysis": analysis_document(analysis),
        "graphs": graphs,
        "roofs": roofs(analysis),
        "hardware": list(quantities(read.scenario)),
        "files": files,
        "taken": list(taken()),
        "command": read.command(),
        "python": python(read.values, "analyze(Scenario(**@))", "from roofline import Scenario, analyze"),
    }


def curves(question: Question, specs: Specs) -> dict[str, Any]:
    """TTFT, TPOT and throughput against batch and against prompt: rows of `roofline sweep`, as one analysis each."""
    read = first(question, specs)
    scenario = read.scenario
    batch, prompt = given(scenario, "batch"), given(scenario, "prompt")
    longest = min(scenario.settings.longest or MAX_LENGTH, scenario.model.max_context or MAX_LENGTH)
    room = longest - given(scenario, "generate") - given(scenario, "prefix")
    values = {
        "batch": sorted({batch, *(value for value in BATCHES if value <= scenario.max_batch)}),
        "prompt": sorted({prompt, *(value for value in PROMPTS if value <= room)}),
    }
    return {name: _curve(read, name, points) for name, points in values.items()}


def _curve(read: Read, name: str, values: list[int]) -> dict[str, Any]:
    scenario = read.scenario
    analysis = analyze(scenario.at(**{name: np.array(values)}))
    readings = ("bound", "low", "mid", "high") if analysis.times_are_expected else ("bound",)
    rate = "sequences_per_s" if analysis.decode is None else "tokens_per_s"

    def figures(metric: str) -> dict[str, Any]:
        return {reading: _listed(analysis, f"{metric}.{reading}", len(values)) for reading in readings}

    names = ["ttft", *(["tpot"] if analysis.decode is not None else []), rate]
    fits = [bool(value) for value in _listed(analysis, "fits", len(values))]
    return {
        "here": given(scenario, name),
        "values": values,
        "fits": fits,
        "figures": {metric: figures(metric) for metric in names},
        **_swept(read, name, values, [f"{metric}.{reading}" for metric in names for reading in readings]),
    }


def _swept(read: Read, name: str, values: list[int], metrics: list[str]) -> dict[str, str]:
    """The command and the Python of a sweep over the option `name`."""
    listed, columns = ",".join(map(str, values)), ",".join((*metrics, "fits"))
    rest = replace(read, scenario=read.scenario.without(name))
    fixed = {option: value for option, value in read.values.items() if option != name}
    return {
        "command": rest.command("sweep", "--over", f"{name}={listed}", "--metrics", columns),
        "python": "from roofline.whatif.study import make_study\nfrom roofline.whatif.sweeps import sweep\n\n"
        f"answer = sweep(make_study({{{name!r}: {listed!r}}}, {columns!r}, **{fixed!r}))",
    }


def _listed(analysis: Analysis, metric: str, count: int) -> list[Any]:
    found = np.asarray(find_metric(metric, "bound").figure(analysis), dtype=float)
    listed: list[Any] = finite(np.broadcast_to(found, (count,)).tolist())
    return listed


def explain(question: Question, specs: Specs) -> dict[str, Any]:
    """The document of `roofline explain` for one operator of the first set-up."""
    read = first(question, specs)
    analysis = analyze(read.scenario)
    phase = {"prefill": analysis.prefill, "decode": analysis.decode}.get(question.phase)
    if phase is None or not 0 <= question.place < len(phase.ops):
        raise RooflineError("there is no such operator")
    subject, lines, margin, kernel = operator_at(analysis, phase, question.place)
    last = lines[-1]
    found = Explanation(subject, "", last.value, last.unit, tuple(lines), margin, kernel, (), (), analysis.scenario)
    name = shlex.quote(phase.ops[question.place].name)
    command = read.command(f"explain {name}", "--phase", phase.name)
    return {"explanation": found.to_dict(), "command": command}


def compare(question: Question, specs: Specs) -> dict[str, Any]:
    """The document of `roofline compare` for all set-ups."""
    found = [specs.read(setup) for setup in question.setups]
    if len(found) < 2:
        raise RooflineError("a comparison needs two set-ups")
    analyses = [analyze(read.scenario) for read in found]
    labels = [read.command().removeprefix("roofline analyze ") for read in found]
    return {
        "comparison": compare_document(analyses, labels, PARTS),
        "command": shlex.join(["roofline", "compare", *labels]),
        "python": python(
            [read.values for read in found],
            f"compare_document([analyze(Scenario(**one)) for one in @], {labels})",
            "from roofline import Scenario, analyze\nfrom roofline.reports.documents.compare import compare_document",
        ),
    }


def advice(question: Question, specs: Specs) -> dict[str, Any]:
    """The document of `roofline advise` for the first set-up, and the options that each change sets."""
    read = first(question, specs)
    setup = question.setups[0]
    chosen = {name: setup.get(f"advice.{name}", usual) for name, usual in ADVICE.items()}
    asked: dict[str, Any] = {**chosen, **goals(setup)}
    found = advise(read.scenario, top=TOP, **asked)
    trials = {entry.move.name: entry.trial for entry in (*found.recommendations, *found.engines, *found.hardware)}
    told = [*words(chosen), *words(goals(setup)), "--top", str(TOP)]
    document = found.to_dict()
    summary, *_ = advice_blocks(document)
    return {
        "advice": document,
        "summary": [summary.title, *summary.lines],
        "changes": {name: changes(read.scenario, trial.scenario) for name, trial in trials.items()},
        "plan": [changes(read.scenario, step.trial.scenario) for step in found.plan.steps],
        "command": read.command("advise", *told),
        "python": python(
            read.values, f"advise(Scenario(**@), top={TOP}, **{asked!r})", "from roofline import Scenario, advise"
        ),
    }


def load(question: Question, specs: Specs) -> dict[str, Any]:
    """The documents of `roofline serve` for all set-ups, under the load of the first."""
    setups = question.setups or [{}]
    setup = setups[0]
    kind = setup.get("load.by", "rate" if "asked.rate" in setup else "concurrency")
    if kind not in (kinds := ("concurrency", "rate", "sessions")):
        raise UnknownNameError("load", kind, kinds)
    if kind == "sessions":
        return _sessions(setup, [specs.read(setup) for setup in setups])
    options: dict[str, Any] = {
        "prefix_hits": LOAD_OPTIONS["prefix_hits"].number(setup.get("load.hits") or 0),
        **goals(setup),
    }
    reads = [replace(read, scenario=read.scenario.without(*OF_A_BATCH)) for read in map(specs.read, setups)]
    text = setup.get(f"load.{kind}") or (
        LOAD_OPTIONS[kind].example if kind == "concurrency" else _below_saturation(reads, options)
    )
    values = load_values(LOAD_OPTIONS[kind], text)
    options = {kind: values, **{name: value for name, value in options.items() if value}}
    read = reads[0]
    asked = [f"--{kind}", text, *words(goals(setup))]
    asked += ["--prefix-hits", f"{options['prefix_hits']!r}"] if "prefix_hits" in options else []
    arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
    return {
        "serving": [serve(one.scenario, **options).to_dict() for one in reads],
        "command": read.command("serve", *asked),
        "python": python(read.values, f"serve(Scenario(**@), {arguments})", "from roofline import Scenario, serve"),
    }


def _sessions(setup: Setup, reads: list[Read]) -> dict[str, Any]:
    """The documents of `roofline serve --sessions` for all set-ups, whose options are those of the first."""
    asked = {name: text for name in OF_SESSIONS if (text := setup.get(f"load.{name}", "").strip())}
    asked = {"sessions": SESSION_OPTIONS["sessions"].example, "profile": CHAT, **asked, **goals(setup)}
    if asked["profile"] not in PROFILES:  # a page reads no files
        raise UnknownNameError("profile of sessions", asked["profile"], PROFILES)
    values = load_values(SESSION_OPTIONS["sessions"], asked["sessions"])
    if len(values) > MOST_VALUES or max(values) > MOST_SESSIONS:
        raise RooflineError(f"the page has at most {MOST_VALUES} numbers of at most {MOST_SESSIONS} sessions")
    turns = int(min(max(LEAST_TURNS, OF_EACH * max(values)), MOST_TURNS))
    options: dict[str, Any] = {**asked, "simulate": turns}
    reads = [replace(read, scenario=read.scenario.without(*OF_A_BATCH, "prompt", "generate")) for read in reads]
    arguments = ", ".join(f"{name}={value!r}" for name, value in options.items())
    read = reads[0]
    fixed = {name: value for name, value in read.values.items() if name not in (*OF_A_BATCH, "prompt", "generate")}
    return {
        "sessions": [serve(one.scenario, **options).to_dict() for one in reads],
        "command": read.command("serve", *words({name: str(value) for name, value in options.items()})),
        "python": python(fixed, f"serve(Scenario(**@), {arguments})", "from roofline import Scenario, serve"),
    }


def _below_saturation(reads: list[Read], options: Mapping[str, Any]) -> str:
    """Rates up to nearly the largest that the fastest set-up sustains."""
    most = max(serve(read.scenario, rate=1.0, **options).outcomes[0].saturated_at or 0.0 for read in reads)
    return f"{most / 32:.2g}:{0.95 * most:.2g}:log9"


def dropped(question: Question, specs: Specs) -> dict[str, str | None]:
    """The option that a dropped file sets, and its spec."""
    option, file = specs.imported(question.name, question.text)
    return {"option": option, "name": file.name, "text": file.text}


ANSWERS: Mapping[str, Answer] = {
    found.__name__: found for found in (answer, verdict, better, curves, explain, compare, advice, load, run, dropped)
}
"""The questions by the name in their address."""
