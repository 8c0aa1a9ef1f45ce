"""The question of an answer: its options, the load that they say, and what is chosen where they say nothing."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from roofline.advisor import chosen
from roofline.advisor.chosen import plan_for
from roofline.advisor.options import requests
from roofline.advisor.planned import Candidate
from roofline.core.errors import RooflineError
from roofline.scenario.argument import parts_of, scenario_of
from roofline.scenario.options import STATIC, missing
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import targets_of
from roofline.serving.load import Load
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.pools import Pools, parse_pools
from roofline.verdict.verdict import Verdict

if TYPE_CHECKING:
    from roofline.specs.hardware import Hardware
    from roofline.specs.model import Model

ASKED = ("concurrency", "rate", "ttft", "tpot", "prefix_hits", "disaggregation")
"""Options of a load that an answer takes; `users` is another name of the concurrency."""


def answer(
    model: str | os.PathLike[str] | Model | Scenario | None = None,
    hw: str | os.PathLike[str] | Hardware | None = None,
    /,
    **options: Any,
) -> Verdict:
    """Whether a model runs on hardware, how fast, what limits it, what would help and what it costs.

    >>> from roofline import answer
    >>> found = answer("llama-3.3-70b", "2x4090")
    >>> found.fits, found.scenario.profile.name, found.scenario.given("quant")
    (True, 'vllm', 'awq')

    `options` are those of a scenario, but for a static batch's (one user has a `context`), and `users` (or
    `concurrency`), `rate`, `ttft`, `tpot`, `prefix_hits` and `disaggregation` of a load. A `Scenario` in place of the
    model has its own, which those beside it replace. Engine, formats and layout are chosen where they are not given
    (`Plan`). Raises RooflineError for options that no scenario has, and where the engine cannot run the model at all.
    """
    if isinstance(model, Scenario):
        model, device, own = parts_of(model)
        hw, options = hw or device, {**own, **options}
    given = {"model": model, "hw": hw, **options}
    if "users" in given:
        given["concurrency"] = given.pop("users")
    told = {name: given.pop(name, None) for name in ASKED}
    load = load_of(told["concurrency"], told["rate"], told["prefix_hits"])
    if load is None and told["prefix_hits"] is not None:
        raise RooflineError("cached prefixes are of a load: give users or rate", options=["prefix_hits"])
    for name in ("model", "hw"):
        if given[name] is None:
            raise RooflineError(missing(name), options=["hw"] if name == "hw" else [])
    alone = ("context",) if load is None else ()
    if load is not None and given.get("prompt") is None and given.get("context") is not None:
        given["prompt"] = given.pop("context")  # what each request has before its output, as that of one user
    if static := [name for name in STATIC if given.get(name) is not None and name not in alone]:
        if static[0] == "context":
            raise RooflineError(
                "under load a context is the prompt of each request: give one of both", options=["context"]
            )
        raise RooflineError(f"{static[0]} is of a static batch, which 'roofline analyze' has; here it is users or rate")
    asked = scenario_of(Scenario(**{name: value for name, value in given.items() if value is not None}), single=True)
    targets, apart = targets_of(told["ttft"], told["tpot"]), str(told["disaggregation"] or "")
    if apart and load is None:
        raise RooflineError("prefill and decode apart serve a load: give users or rate", options=["rate"])
    asked = _divided(asked, parse_pools(apart)) if apart else asked
    return Verdict(plan_for(asked, None if apart else load, targets), load, targets, apart)


def settled(scenario: Scenario, **load: Any) -> Candidate:
    """The scenario with what an answer chooses under a load, in the options of `answer`, where it is not said."""
    with suppress(RooflineError):  # a load that is refused is for who launches it to say
        apart = str(load.get("disaggregation") or "")
        return _chosen(_divided(scenario, parse_pools(apart)) if apart else scenario, load)
    return Candidate(scenario, {})


def fitted(scenario: Scenario, **load: Any) -> Candidate:
    """A scenario as it was asked where it fits, or else with what an answer chooses (`settled`).

    Its devices are those of each replica of pools, as `serve` has them.
    """
    asked = Candidate(scenario, {})
    with suppress(RooflineError):
        if not asked.memory(1).fits:
            return _chosen(scenario, load)
    return asked


def _chosen(scenario: Scenario, load: Mapping[str, Any]) -> Candidate:
    """What an answer chooses under a load; for pools that of a replica. Raises RooflineError."""
    apart = load.get("disaggregation")
    served = None if apart else load_of(load.get("concurrency"), load.get("rate"), load.get("prefix_hits"))
    return chosen.settled(scenario, served, targets_of(load.get("ttft"), load.get("tpot")))


def _divided(asked: Scenario, pools: Pools) -> Scenario:
    """The scenario whose devices, where they were counted alone, are divided evenly among the replicas of pools.

    Raises RooflineError.
    """
    devices, replicas = asked.settings.parallel.devices, pools.prefills + pools.decodes
    if not (asked.counted and pools.prefills):
        return asked
    if devices % replicas:
        raise RooflineError(f"{devices} devices do not divide among {replicas} replicas: give tp", options=["tp"])
    return asked.with_(tp=devices // replicas)


def load_of(users: Any, rate: Any, hits: Any = None) -> Load | None:
    """The load of users or of a rate, as numbers or texts; None where neither is said. Raises RooflineError."""
    count, arriving = replace(LOAD_OPTIONS["concurrency"], name="users").read(users), requests(rate)
    share = LOAD_OPTIONS["prefix_hits"].read(hits) or 0.0
    if count is not None and arriving is not None:
        raise RooflineError("users and rate are two loads: give one of them", options=["rate"])
    if arriving is None and count is None:
        return None
    return Load(concurrency=count, rate=arriving, hits=share)
