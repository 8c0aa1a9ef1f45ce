"""The headline of the page, and how to start what it answers: the functions of `roofline MODEL HW` and of `launch`.

A set-up is answered as it is, and nothing is chosen for it: the page opens with what the answer chose.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from roofline.advisor.fitting import Fit
from roofline.advisor.options import requests
from roofline.core.errors import RooflineError
from roofline.launch import launch
from roofline.launch.bundle import Target
from roofline.reports.documents.answer import answer_document, change_text, fit_text
from roofline.reports.view.questions import OF_A_BATCH, Question, first, first_setup, given, goals, words
from roofline.reports.view.setups import Read, Setup, Specs, changes
from roofline.scenario.analysis import analyze
from roofline.scenario.notes import generates
from roofline.scenario.options import STATIC
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import targets_of
from roofline.verdict.plan import Candidate, Plan
from roofline.verdict.verdict import Verdict, load_of

WAYS = 4
"""Changes that are offered where a set-up does not fit."""


def verdict(question: Question, specs: Specs) -> dict[str, Any]:
    """The document of `roofline MODEL HW` for the first set-up and its load, without the next best change.

    `ways` are the changes that make the set-up fit, each with the options that it sets. `unanswered` says why there is
    no verdict, as of a convention without expected times.
    """
    read = first(question, specs)
    try:
        return _document(_verdict(read, first_setup(question)))
    except RooflineError as error:
        return {"unanswered": specs.plain(str(error))}


def _document(found: Verdict) -> dict[str, Any]:
    ways = () if found.fits else found.plan.fits_with[:WAYS]
    return {**answer_document(found, better=False), "ways": [_way(found.scenario, fit) for fit in ways]}


def better(question: Question, specs: Specs) -> dict[str, Any]:
    """The next best change of the verdict with the options that it sets, in words and None where there is none."""
    found = _verdict(first(question, specs), first_setup(question))
    change = found.better
    if change is None:
        return {"set": None}
    return {"text": change_text(found, change), "set": changes(found.scenario, change.scenario)}


def _way(scenario: Scenario, fit: Fit) -> dict[str, Any]:
    text = fit_text(scenario, fit)
    return {"text": text, "tokens_per_s": fit.tokens_per_s, "set": changes(scenario, fit.scenario)}


def _verdict(read: Read, setup: Setup) -> Verdict:
    """The verdict on a set-up as it is: of as many users as its batch has sequences, or of requests that arrive.

    Encoders and options that only a static batch has cannot be served: it is that of one sequence.
    """
    scenario, told = read.scenario.without(*OF_A_BATCH), goals(setup)
    candidate = Candidate(scenario, {})
    served = generates(analyze(scenario)) and not any(scenario.given(name) is not None for name in STATIC)
    users = given(read.scenario, "batch") if served else None
    load = load_of(None if _rate(setup) or users == 1 else users, _rate(setup), setup.get("load.hits") or None)
    plan = Plan(candidate, candidate.memory(1).fits, (candidate,))
    return Verdict(plan, load, targets_of(told.get("ttft"), told.get("tpot")))


def _rate(setup: Setup) -> float | None:
    """The requests/s that arrive, where they are asked for."""
    return requests(setup.get("asked.rate", "").strip() or None)


def run(question: Question, specs: Specs) -> dict[str, Any]:
    """The bundle of `roofline launch` for the first set-up and its load."""
    read, setup = first(question, specs), first_setup(question)
    target, server, rate = setup.get("run.as", Target.SHELL), setup.get("run.engine", ""), _rate(setup)
    scenario = read.scenario.without(*OF_A_BATCH)
    if server and scenario.profile.name != server:
        scenario = scenario.with_(engine=server)
    load: dict[str, Any] = {"concurrency": given(read.scenario, "batch")} if rate is None else {"rate": rate}
    load |= goals(setup)
    found = launch(scenario, server or None, target, **load)
    told = {name: str(value) for name, value in load.items()} | {"as": str(target)}
    asked = replace(read, scenario=scenario)
    return {
        **{name: value for name, value in found.to_dict().items() if name in ("benchmark", "memory", "notes")},
        "serve": found.command,
        "files": [{"name": name, "text": text} for name, text in found.files.items()],
        "server": server or scenario.profile.name,
        "command": asked.command("launch", *words(told)),
    }
