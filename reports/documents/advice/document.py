"""The JSON documents of `roofline advise`: advice, and the list of rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import asdict

from roofline.advisor.advice import Advice, Recommendation
from roofline.advisor.fitting import Fit, what_fits
from roofline.advisor.rules import rules
from roofline.advisor.search.goal import Goal
from roofline.advisor.search.plan import Plan
from roofline.advisor.search.trials import Trial
from roofline.core.errors import RooflineError
from roofline.reports.documents.analysis import interval, scenario_header
from roofline.reports.output.blocks import finite, picked
from roofline.timing.intervals import Estimate
from roofline.whatif.metrics import find_metric

SCHEMA = "roofline.advice/1"

FIGURES = ("ttft", "tpot", "total", "tokens_per_s", "energy", "energy.tdp", "cost")
"""Metrics with a bound and an 80% interval."""

EXACT_FIGURES = ("memory", "gpus", "usd_per_hour")


def advice_document(advice: Advice) -> dict[str, Any]:
    """The JSON document of advice."""
    goal, base, plan = advice.case.goal, advice.base, advice.plan
    scenario = base.scenario
    load: dict[str, Any] | None = None
    fits: Sequence[Fit] = ()
    if goal.loaded and (served := goal.served(base.analysis).load) is not None:
        load = {"concurrency": served.concurrency, "requests_per_s": served.rate, "prefix_hits": served.hits}
        load["varied"] = served.outputs.is_scattered
    elif goal.loaded:
        load = picked(goal.demand, "sessions", "profile", "tiers", "routing")
    elif not base.fits and scenario.asked:
        most = goal.limits.gpus or scenario.settings.parallel.devices
        fits = [fit for fit in what_fits(scenario) if fit.scenario.settings.parallel.devices <= most]
    surest = None if plan.sure else advice.surest
    followed = {step.move.name for step in plan.steps if plan.sure}
    return {
        "schema": SCHEMA,
        **scenario_header(base.analysis.scenario),
        "objective": str(goal.objective),
        "metric": goal.metric.name,
        "unit": goal.metric.unit,
        "at": goal.at,
        "quality": str(goal.quality),
        "limits": dict(goal.limits.given),
        "default_limits": goal.default,
        "load": load,
        "command": base.command,
        "figures": _figures(base),
        "misses": _missed(base),
        "fits_with": [{"options": str(fit), "tokens_per_s": fit.tokens_per_s} for fit in fits],
        "findings": [
            {"rule": rule, **finite(picked(entry, "text", "share", "of", "evidence"))}
            for rule, entry in advice.bottlenecks
        ],
        "recommendations": [_recommendation(entry, base) for entry in advice.recommendations],
        "other_engines": [_recommendation(entry, base) for entry in advice.engines],
        "other_hardware": [_recommendation(entry, base) for entry in advice.hardware],
        "no_benefit": [
            finite(picked(entry, "move", "gain", "reason", "rule"))
            for entry in advice.no_benefit
            if entry.move not in followed and (entry.gain is None or base.fits)
        ],
        "cautions": [{"rule": rule, "text": text} for rule, text in advice.cautions],
        "not_possible": dict(advice.refused),
        "plan": _plan(plan, goal, base),
        "instead": None if surest is None else surest.move.name,
        "shown": advice.top,
    }


def _figures(trial: Trial) -> dict[str, Any]:
    """All known figures, at the bound and with their intervals; of goodput those under load, TTFT and TPOT at p95."""
    if trial.goal.loaded:
        served = trial.goal.served(trial.analysis)
        found: dict[str, Any] = {name: finite(interval(served.latency(name))) for name in ("ttft", "tpot")}
        found |= {"tokens_per_s": served.tokens, "goodput": served.value}
    else:
        readings = ("bound",) if trial.goal.at == "bound" else ("bound", "low", "mid", "high")
        each = {name: {reading: _value(trial, f"{name}.{reading}") for reading in readings} for name in FIGURES}
        found = {name: values for name, values in each.items() if values[readings[-1]] is not None}
    return found | {name: value for name in EXACT_FIGURES if (value := _value(trial, name)) is not None}


def _value(trial: Trial, name: str) -> Any:
    try:
        return finite(np.asarray(find_metric(name, "expected").figure(trial.analysis), float))
    except RooflineError:
        return None


def _missed(trial: Trial) -> dict[str, float | None]:
    """Figure over limit of every missed limit; None if there is no such figure, such as TPOT without decode."""
    return {name: finite(trial.used[name]) for name in trial.missed}


def _recommendation(entry: Recommendation, base: Trial) -> dict[str, Any]:
    return {
        "move": entry.move.name,
        "title": entry.move.title,
        "kind": str(entry.move.kind),
        "slot": entry.move.slot,
        "price": str(entry.price),
        "times_better": _gain(entry.better, base),
        "certain": entry.certain,
        "tied_with_previous": entry.tied,
        "same_effect": list(entry.same),
        "assumes": entry.move.assumes,
        "helps": [
            {"over": found.variable, "from": found.low, "to": found.high, "searched_to": found.most, "text": found.text}
            for found in entry.conditions
        ],
        "reasons": [{"rule": rule, "text": text} for rule, text in entry.reasons],
        "cautions": list(entry.cautions),
        "published": [asdict(found) for found in entry.published],
        "source": entry.move.source,
        "figures": _figures(entry.trial),
        "misses": _missed(entry.trial),
        "meets": [name for name in base.missed if name not in entry.trial.missed],
        "command": entry.command,
    }


def _gain(better: Estimate, over: Trial) -> Any:
    """A gain with its interval; None over a scenario that does not fit, since it has no speed."""
    return finite(interval(better)) if over.fits else None


def _plan(plan: Plan, goal: Goal, base: Trial) -> dict[str, Any]:
    limits, befores = goal.limits.given, (base, *(step.trial for step in plan.steps))
    return {
        "feasible": plan.feasible,
        "recommended": plan.sure,
        "times_better": None if plan.better is None else _gain(plan.better, base),
        "steps": [
            {
                "move": step.move.name,
                "title": step.move.title,
                "price": str(step.price),
                "times_better": _gain(step.better, before),
                "certain": step.certain,
                "figures": _figures(step.trial),
                "misses": _missed(step.trial),
                "command": step.command,
            }
            for before, step in zip(befores, plan.steps, strict=False)
        ],
        "stopped": plan.stopped,
        "interactions": [
            {"moves": list(entry.names), "first": entry.one, "second": entry.other, **picked(entry, "kind", "both")}
            for entry in plan.interactions
            if base.fits
        ],
        "nearest": {name: use * limits.get(name, 1.0) for name, use in plan.nearest.items()},
        "nearest_jointly": plan.jointly,
        "closest": None if plan.closest is None else _closest(plan.closest, limits),
        "pareto": [
            {
                "moves": sorted(move.name for move in choice.moves),
                "batch": choice.batch,
                "objective": choice.value,
                "share_of_memory": choice.used["capacity"],
            }
            for choice in plan.pareto
        ],
        "combinations_simulated": plan.tried,
    }


def _closest(trial: Trial, limits: Mapping[str, float]) -> dict[str, Any]:
    """The combination that comes nearest to the limits, with what it reaches of each that it misses."""
    return {
        "moves": list(trial.names),
        "figures": _figures(trial),
        "misses": _missed(trial),
        "reached": {name: finite(trial.used[name] * limits[name]) for name in trial.missed if name in limits},
        "command": trial.command,
    }


def rules_document() -> list[dict[str, Any]]:
    """Name, statement and sources of every rule."""
    return [{**picked(rule, "name", "statement"), "sources": list(rule.sources)} for rule in rules().values()]
