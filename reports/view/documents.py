"""The questions of the live page: each is a function from set-ups to the document of the command that answers it.

The headline is `roofline MODEL HW` of a set-up as it is: nothing is chosen for it, as the page opens with what the
answer chose.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec.structs import replace

from roofline import Analysis
from roofline.advisor import advise
from roofline.advisor.fitting import Fit
from roofline.advisor.options import requests
from roofline.advisor.planned import Candidate, Plan
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.limits import MAX_LENGTH
from roofline.launch import launch
from roofline.launch.bundle import Target
from roofline.reports.documents.advice import advice_blocks
from roofline.reports.documents.analysis import analysis_document
from roofline.reports.documents.answer import answer_document, fit_text
from roofline.reports.documents.compare import compare_document
from roofline.reports.documents.sentences import change_text
from roofline.reports.output.blocks import finite
from roofline.reports.view.graph import kept, roofs, rows_of
from roofline.reports.view.questions import (
    ADVICE,
    OF_A_BATCH,
    Answer,
    Question,
    first,
    first_setup,
    given,
    goals,
    of_pools,
    pools_of,
    python,
    words,
)
from roofline.reports.view.sessions import best_change, of_sessions, sessions, turns
from roofline.reports.view.setups import Read, Setup, Specs, changes, quantities
from roofline.scenario.analysis import analyze
from roofline.scenario.notes import generates
from roofline.scenario.options import STATIC
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import serve, targets_of
from roofline.serving.options import LOAD_OPTIONS, load_values
from roofline.serving.sessions.served import SessionCurve
from roofline.specs.names import taken
from roofline.verdict.asked import load_of
from roofline.verdict.verdict import Verdict
from roofline.whatif.explanation import Explanation
from roofline.whatif.explanation.operators import operator_at
from roofline.whatif.metrics import find_metric

WAYS = 4
"""Changes that are offered where a set-up does not fit."""


def verdict(question: Question, specs: Specs, better: bool = False, said: bool = True) -> dict[str, Any]:
    """The document of `roofline MODEL HW` for the first set-up and its load, on a page without the next best change.

    `ways` are the changes that make the set-up fit, each with the options that it sets. `unanswered` says why there is
    no verdict, as of a convention without expected times. `said`: whether the formats were asked for (`of_sessions`).
    """
    read, setup = first(question, specs), first_setup(question)
    try:
        found, curve = _verdict(read, setup)
        document = answer_document(found, better=better and curve is None)
    except RooflineError as error:
        return {"unanswered": specs.plain(str(error))}
    ways = () if found.fits else found.fits_with[:WAYS]
    if curve is not None:
        change = best_change(found, curve, setup) if better else None
        document = of_sessions(document, found, curve, _tiers(setup), change[0] if change else "", said)
    return {**document, "ways": [_way(found.scenario, fit) for fit in ways]}


def better(question: Question, specs: Specs) -> dict[str, Any]:
    """The next best change of the verdict with the options that it sets, in words and None where there is none."""
    setup = first_setup(question)
    found, curve = _verdict(first(question, specs), setup)
    if curve is not None:
        text, changed = best_change(found, curve, setup) or ("", None)
        return {"text": text, "set": changed} if changed else {"set": None}
    if (change := found.better) is None:
        return {"set": None}
    return {"text": change_text(found, change), "set": changes(found.scenario, change.scenario)}


def _way(scenario: Scenario, fit: Fit) -> dict[str, Any]:
    text = fit_text(scenario, fit)
    return {"text": text, "tokens_per_s": fit.tokens_per_s, "set": changes(scenario, fit.scenario)}


def _verdict(read: Read, setup: Setup) -> tuple[Verdict, SessionCurve | None]:
    """The verdict on a set-up as it is: of its users, or of requests that arrive.

    Of sessions that are asked for it is that of their turns as requests, with the sessions beside it. Encoders and
    options that only a static batch has cannot be served: it is that of one sequence.
    """
    scenario, told, apart, curve = read.scenario.without(*OF_A_BATCH), goals(setup), pools_of(setup), None
    fits = Candidate(scenario, {}).memory(1).fits
    if fits and _asked(setup, "sessions"):
        scenario, asked, curve = turns(scenario, setup)
        load = load_of(asked["concurrency"], None, asked["prefix_hits"])
    else:
        served = generates(analyze(scenario)) and not any(scenario.given(name) is not None for name in STATIC)
        users = _users(read, setup) if served else None
        alone = _rate(setup) or (users == 1 and not apart)
        load = load_of(None if alone else users, _rate(setup), setup.get("load.hits") or None)
    candidate = Candidate(scenario, {})
    plan = Plan(candidate, fits, (candidate,))
    return Verdict(plan, load, targets_of(told.get("ttft"), told.get("tpot")), apart if load else ""), curve


def _asked(setup: Setup, kind: str) -> str:
    """The users, the rate or the sessions that are asked for."""
    return setup.get(f"asked.{kind}", "").strip()


def _users(read: Read, setup: Setup) -> int:
    """The users, who wait where they are more than the sequences of the batch; by default as many."""
    asked = _asked(setup, "users")
    return int(LOAD_OPTIONS["concurrency"].number(asked)) if asked else given(read.scenario, "batch")


def _tiers(setup: Setup) -> str:
    """The tiers of the cache of sessions below the devices' memory."""
    return setup.get("load.tiers", "").strip()


def _rate(setup: Setup) -> float | None:
    """The requests/s that arrive, where they are asked for."""
    return requests(_asked(setup, "rate") or None)


def run(question: Question, specs: Specs) -> dict[str, Any]:
    """The bundle of `roofline launch` for the first set-up and its load."""
    read, setup = first(question, specs), first_setup(question)
    server, rate, apart = setup.get("run.engine", ""), _rate(setup), pools_of(setup)
    target = setup.get("run.as", Target.DYNAMO if apart else Target.SHELL)
    scenario = read.scenario.without(*OF_A_BATCH)
    if server and scenario.profile.name != server:
        scenario = scenario.with_(engine=server)
    load: dict[str, Any] = {"concurrency": _users(read, setup)} if rate is None else {"rate": rate}
    if _asked(setup, "sessions"):
        scenario, load, _ = turns(scenario, setup)
        load |= {"tiers": tiers} if (tiers := _tiers(setup)) else {}
    load |= goals(setup) | of_pools(apart)
    found = launch(scenario, server or None, target, **load)
    told = {name: str(value) for name, value in load.items()} | {"as": str(target)}
    asked = replace(read, scenario=scenario)
    return {
        **{name: value for name, value in found.to_dict().items() if name in ("benchmark", "memory", "notes")},
        "serve": "" if apart else found.command,
        "files": [{"name": name, "text": text} for name, text in found.files.items()],
        "server": server or scenario.profile.name,
        "command": asked.command("launch", *words(told)),
    }


BATCHES = tuple(2**power for power in range(11))
PROMPTS = tuple(2**power for power in range(7, 18))
"""Values of the curves, beside those of the set-up."""

TOP = 8
"""Changes that the advice shows."""

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
    usual = next((kind for kind in ("rate", "sessions") if _asked(setup, kind)), "concurrency")
    kind = setup.get("load.by", usual)
    if kind not in (kinds := ("concurrency", "rate", "sessions")):
        raise UnknownNameError("load", kind, kinds)
    if kind == "sessions":
        return sessions(setup, [*map(specs.read, setups)], [*map(pools_of, setups)])
    options: dict[str, Any] = {
        "prefix_hits": LOAD_OPTIONS["prefix_hits"].number(setup.get("load.hits") or 0),
        **goals(setup),
    }
    reads = [replace(read, scenario=read.scenario.without(*OF_A_BATCH)) for read in map(specs.read, setups)]
    pools = [*map(pools_of, setups)]
    text = setup.get(f"load.{kind}") or (
        LOAD_OPTIONS[kind].example if kind == "concurrency" else _below_saturation(reads, pools, options)
    )
    values = load_values(LOAD_OPTIONS[kind], text)
    options = {kind: values, **{name: value for name, value in options.items() if value}}
    read, apart = reads[0], of_pools(pools[0])
    asked = [f"--{kind}", text, *words(goals(setup)), *words(apart)]
    asked += ["--prefix-hits", f"{options['prefix_hits']!r}"] if "prefix_hits" in options else []
    arguments = ", ".join(f"{name}={value!r}" for name, value in {**options, **apart}.items())
    found = zip(reads, pools, strict=True)
    return {
        "serving": [serve(one.scenario, **options, **of_pools(own)).to_dict() for one, own in found],
        "command": read.command("serve", *asked),
        "python": python(read.values, f"serve(Scenario(**@), {arguments})", "from roofline import Scenario, serve"),
    }


def _below_saturation(reads: list[Read], pools: list[str], options: Mapping[str, Any]) -> str:
    """Rates up to nearly the largest that the fastest set-up sustains."""
    curves = (
        serve(read.scenario, rate=1.0, **options, **of_pools(own)) for read, own in zip(reads, pools, strict=True)
    )
    most = max(curve.outcomes[0].saturated_at or 0.0 for curve in curves)
    return f"{most / 32:.2g}:{0.95 * most:.2g}:log9"


def dropped(question: Question, specs: Specs) -> dict[str, str | None]:
    """The option that a dropped file sets, and its spec."""
    option, file = specs.imported(question.name, question.text)
    return {"option": option, "name": file.name, "text": file.text}


ANSWERS: Mapping[str, Answer] = {
    found.__name__: found for found in (answer, verdict, better, curves, explain, compare, advice, load, run, dropped)
}
"""The questions by the name in their address."""
