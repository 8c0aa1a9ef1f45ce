"""Sizing: hardware, number of devices, parallelism, formats and batch for a service.

Every configuration is first checked at its bounds (`roofline.advisor.sizing.bounds`), and served under the load
(`roofline.serving`) only while it could still be among the best.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, Unpack, get_args

from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.options import requests
from roofline.advisor.search.goal import Quality, named, usd_per_hour
from roofline.advisor.sizing.bounds import REFERENCE
from roofline.advisor.sizing.configurations import Configuration, Given
from roofline.advisor.sizing.deployments import At, Choice, Deployment
from roofline.advisor.sizing.search import Progress, Search
from roofline.advisor.sizing.workload import Service
from roofline.core.checked import object_of
from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.options import Kind
from roofline.launch.repository import name_of
from roofline.scenario.argument import beside, parts_of
from roofline.scenario.fields import DEFAULT_PROMPT
from roofline.scenario.lengths import Lengths, longer
from roofline.scenario.options import DEGREES, OPTIONS, STATIC, find_option, read_options
from roofline.scenario.options.keywords import Deployment as DeploymentOptions
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import outcomes_at
from roofline.serving.load import ONE
from roofline.serving.options import LOAD_OPTIONS, by_own_name
from roofline.serving.outcome import Outcome, targets_or_usual
from roofline.serving.pools import tandem_of
from roofline.serving.ratios import Ratio, ratios_for
from roofline.specs.hardware import hardware_name, load_hardware
from roofline.specs.model import Model
from roofline.specs.modelspec import load_model
from roofline.whatif.command_line import serve_command
from roofline.whatif.solve.load import missed
from roofline.whatif.solve.targets import check_reading, listed_names, read_value

TRIED, ADDED = 4, 6
"""Pairs of layouts that are served, and replicas that are added until the targets are met."""


class Apart(Struct, frozen=True):
    """A ratio of prefill and decode that meets a service, under its load. `usd` an hour, None without a price."""

    ratio: Ratio
    outcome: Outcome
    usd: float | None
    command: str

    @property
    def devices(self) -> int:
        return self.ratio.devices


def apart_for(best: Deployment, at: At) -> Apart | None:
    """The pools on the fewest devices of a deployment's hardware, in its formats; None where none meets the service."""
    service = best.service
    if service.rate is None:
        raise RooflineError("prefill and decode apart are sized for a rate", options=["disaggregation"])
    scenario, load = best.configuration.scenario, service.load(1)
    targets = service.targets(at)
    found: list[tuple[Ratio, Outcome]] = []
    for ratio in ratios_for(scenario, load, service.rate, service.limits)[:TRIED]:
        for _ in range(ADDED):
            outcome = outcomes_at(tandem_of(scenario, load, ratio.pools), load, [service.rate])[0]
            late = missed(outcome, load, targets, service.quantile)
            if not late:
                found.append((ratio, outcome))
                break
            both = late == ("saturation",)  # one more replica of what is late
            prefills, decodes = ratio.prefills + (both or "ttft" in late), ratio.decodes + (both or "tpot" in late)
            ratio = replace(ratio, prefills=prefills, decodes=decodes)
    if not found:
        return None
    ratio, outcome = min(found, key=lambda each: each[0].devices)
    usd = None if best.price is None else best.price * ratio.devices
    plain = scenario.without("tp", "pp", "ep", "dp", "micro_batches", "nodes")
    command = f"{serve_command(plain, best.service.load(1))} --disaggregation {ratio.text}"
    return Apart(ratio, outcome, usd, command)


OF_A_SERVICE = ("rate", "concurrency", "prompt", "generate", "prefix_hits", "ttft", "tpot", "quantile")
"""Options that make a service; the others are options of a scenario."""

OF_A_SEARCH = ("model", "hw", "engine", "price", "prefix", *STATIC)
"""Options of a scenario that a sizing chooses itself, or has as arguments."""


class SizeOptions(DeploymentOptions, total=False):
    """A service: `rate` requests/s or `concurrency` requests in flight, else one user; lengths, and targets.

    `ttft` and `tpot` are seconds, or texts such as 30ms, of the `quantile`: 0.95, mean, ... Other options are those of
    a scenario, the same in all deployments.
    """

    prompt: int | str | Lengths
    generate: int | str | Lengths
    rate: float | str | None
    concurrency: int | None
    users: int | None
    prefix_hits: float | str | None
    ttft: float | str | None
    tpot: float | str | None
    quantile: str | float


def read_service(
    service: Service | None, given: Given | None, options: SizeOptions, model: str | os.PathLike[str] | Model
) -> tuple[Service, Given]:
    """The service and the fixed choices of keywords, or the objects in their place. Raises RooflineError."""
    asked = by_own_name(options)
    own = {name: asked.pop(name) for name in OF_A_SERVICE if name in asked}
    if own and service is not None:
        raise RooflineError(f"{beside(list(own))} a service: give one of them")
    if service is not None:
        object_of(service, Service, "a service is a Service, or keywords such as rate=4")
    else:
        ttft, tpot = (LOAD_OPTIONS[name].read(own.get(name)) for name in ("ttft", "tpot"))
        rate, users = requests(own.get("rate")), LOAD_OPTIONS["concurrency"].read(own.get("concurrency"))
        hits = LOAD_OPTIONS["prefix_hits"].read(own.get("prefix_hits") or 0.0)
        lengths = own.get("prompt", DEFAULT_PROMPT), own.get("generate", OPTIONS["generate"].usual)
        service = Service(rate, *lengths, ttft, tpot, str(own.get("quantile", "p95")), users, hits)
    if given is not None:
        if asked:
            raise RooflineError(f"{beside(list(asked))} fixed choices: give one of them")
        return service, given
    return service, _given(asked, None if isinstance(model, Model) else os.fspath(model))


def _given(asked: dict[str, Any], model: str | None) -> Given:
    for name in asked:
        if (found := find_option(name).name) in OF_A_SEARCH:
            raise RooflineError(f"{found} is no option that a sizing fixes")
    read = read_options(asked)
    ranks = {part: read.pop(name) for part, name in DEGREES.items() if name in read}
    return Given(ranks, read.pop("quant", None), tuple(read.pop("with", ())), model, read)


class Sizing(Result, Struct, frozen=True):
    """The answer: choices by objective, or the targets that nothing meets.

    `binding` are those targets (ttft, tpot or memory); `nearest` the least value of each, in seconds or bytes per
    device, that is feasible with the other targets unchanged (or of both times, if changing one is not enough).
    `closest` are the configurations that have these values. `apart` are pools of prefill and decode on the hardware of
    the first choice, where they were asked for and any meet the service. `beyond` is the share of requests that exceed
    the model's maximum context with their outputs; `budget` the most USD/h, or of a single user USD to buy.
    `considered` counts configurations, `capable` those whose bound meets the targets, `simulated` those simulated.
    """

    model: Model
    service: Service
    quality: Quality
    at: At
    choices: tuple[Choice, ...]
    binding: tuple[str, ...]
    nearest: Mapping[str, float]
    considered: int
    capable: int
    simulated: int
    unpriced: tuple[str, ...]
    beyond: float = 0.0
    closest: Mapping[str, Configuration] = MappingProxyType({})
    apart: Apart | None = None
    budget: float = math.inf

    @property
    def name(self) -> str:
        """The model's name, as it was asked for."""
        some = (*(each.best.configuration for each in self.choices), *self.closest.values())
        return name_of(some[0].scenario) if some else self.model.name

    @property
    def described(self) -> str:
        return f"{self.name}: {', '.join(found.best.hardware.name for found in self.choices) or 'nothing'}"

    @property
    def feasible(self) -> bool:
        """Whether anything meets the service."""
        return bool(self.choices)

    def choice(self, name: str) -> Choice:
        """The choice by an objective's name; raises UnknownNameError."""
        for found in self.choices:
            if found.objective.name == name:
                return found
        raise UnknownNameError("choice", name, [found.objective.name for found in self.choices])


def size(
    model: str | os.PathLike[str] | Model | Scenario,
    service: Service | None = None,
    hw: Sequence[str] | str | None = None,
    quality: str = Quality.CALIBRATED,
    price: Mapping[str, float] | None = None,
    engine: str | None = None,
    at: At = "mid",
    progress: Progress = lambda _done, _all: None,
    given: Given | None = None,
    most: int | None = None,
    disaggregation: bool = False,
    budget: float | str | None = None,
    **options: Unpack[SizeOptions],
) -> Sizing:
    """The deployments that meet a service: cheapest, fewest devices, fastest, most efficient.

    >>> from roofline import size
    >>> prices = {"l4": 0.8, "h100-sxm": 3.0}
    >>> found = size("llama-3.1-8b", rate=5, prompt=2000, generate=300, tpot="50ms", hw=list(prices), price=prices)
    >>> found.choice("cheapest").best.hardware.name
    'h100-sxm'

    The service is given by `options`: rate= or concurrency=, lengths and targets, without which the p95 of TTFT is at
    most 10 s and that of TPOT 100 ms; or as a `Service`, which has its own alone. `hw` are names,
    whose counts, as in 8xh100-sxm, are left out: the sizing finds how many; None is all hardware, for a single user all
    consumer hardware. `price` is USD per hour and device (to buy, for a
    single user) by name and overrides those of the specs. Targets must hold `at` expected mid or high. Further options
    of a scenario, such as tp=, quant= and techniques=, are fixed, or as a `Given`. With `most` it stops after so many
    choices, of which the cheapest is the first. A `Scenario` in place of the model has its hardware, unless `hw` is
    given, and its options are fixed. `disaggregation` also finds the ratio of prefill and decode apart on
    the fewest devices of the first choice's hardware. `budget` is the most rent of all devices, in USD/h or as in
    9000/month, or of a single user the most to buy them. Raises RooflineError.
    """
    if isinstance(model, Scenario):
        engine = model.given("engine") if engine is None else engine
        own: Any
        model, device, own = parts_of(model, without=("engine",))
        hw, options = [device] if hw is None else hw, {**own, **options}
    assert not isinstance(model, Scenario)
    object_of(model, (str, os.PathLike, Model), "a model is needed, such as 'llama-3.1-8b'")
    check_reading(at, get_args(At))
    asked_for = service is None
    service, given, model = *read_service(service, given, options, model), load_model(model)
    given_names = () if hw is None else listed_names("hw", hw)
    hardware = None if hw is None else list(dict.fromkeys(hardware_name(name, counted=True) for name in given_names))
    usd = object_of(price or {}, Mapping, "price maps names of hardware to USD, like {'h100-sxm': 3}")
    prices = {hardware_name(name): read_value(f"the price of {name}", Kind.NUMBER, cost) for name, cost in usd.items()}
    quality = named(Quality, quality)
    _check(model, service, hardware, prices)
    service = _completed(service, model, given, targets=asked_for)
    beyond = _beyond(model, service)
    if service.alone and isinstance(budget, str) and "/" in budget:
        raise RooflineError("for one user prices are those to buy: a budget in USD, such as 2000", options=["budget"])
    limit = usd_per_hour(budget)
    afforded = math.inf if limit is None else limit
    search = Search(model, service, hardware, quality, prices, engine, at, progress, given, afforded)
    choices = tuple(islice(search.choices(), most))
    if not choices and math.isfinite(afforded):
        _check_budget(Search(model, service, hardware, quality, prices, engine, at, progress, given), afforded)
    binding, nearest = ((), {}) if choices else search.nearest()
    counts, unpriced = (search.considered, len(search.capable), search.simulated), search.names(priced=False)
    found = Sizing(model, service, quality, at, choices, binding, nearest, *counts, tuple(sorted(unpriced)), beyond)
    apart = apart_for(choices[0].best, at) if disaggregation and choices else None
    return replace(found, closest=search.closest, apart=apart, budget=afforded)


def _completed(service: Service, model: Model, given: Given, *, targets: bool) -> Service:
    """The service with what the model makes of it: the usual targets if asked for, and the tokens of its inputs.

    Raises RooflineError for a request that is longer than the engine is set to run.
    """
    if targets and not service.alone:
        ttft, tpot = targets_or_usual(service.ttft, service.tpot, generates=model.task == "generate")
        service = replace(service, ttft=ttft, tpot=tpot)
    if model.task == "encode":
        service = replace(service, generate=ONE)
    elif model.tower_kind == "encoder" and model.audio_seconds is not None:  # which pads its input
        service = replace(service, prompt=float(model.tower_tokens or 0))
    elif seen := {name: given.options[name] for name in ("images", "image_size", "audio") if name in given.options}:
        scenario = Scenario(model, REFERENCE, **seen)
        service = replace(service, beside=int(scenario.images) * scenario.image_tokens)
    longest = given.options.get("max_model_len")
    if longest is not None and (needed := service.load(1).longest) > longest:
        raise RooflineError(f"the longest request, {needed:.0f} tokens, is longer than the limit of {longest}")
    return service


def _check_budget(unlimited: Search, budget: float) -> None:
    """Raise RooflineError with the cheapest deployment where it costs more than the budget, or has no known price."""
    cheapest = next(unlimited.choices(), None)
    if cheapest is not None:
        best, per, cost = cheapest.best, "" if unlimited.service.alone else "/h", cheapest.best.figures.cost
        if cost is None:
            told = f"a budget is of prices, and none of {best.hardware.name} is known: give it"
            raise RooflineError(told, options=["price"])
        raise RooflineError(
            f"nothing within {budget:,.4g} USD{per} meets the service: the cheapest, {best.devices} x"
            f" {best.hardware.name}, costs {cost:,.4g} USD{per}",
            options=["budget"],
        )


def _check(model: Model, service: Service, hardware: Sequence[str] | None, prices: Mapping[str, float]) -> None:
    """Raises RooflineError for a service that the model does not have, and for invalid hardware or prices."""
    if model.task == "generate" and service.answers.mean < 2:
        raise RooflineError("a service generates at least 2 tokens a request: the first has no TPOT")
    if model.task == "encode" and service.alone:
        raise RooflineError(f"{model.name} only encodes: say how many requests/s (--rate)", options=["rate"])
    if model.task == "encode" and service.tpot is not None:
        raise RooflineError(f"{model.name} only encodes: omit tpot", options=["tpot"])
    if hardware is not None and not hardware:
        raise RooflineError("no hardware to choose from")
    for name, price in prices.items():
        load_hardware(name)
        if hardware is not None and name not in hardware:
            raise RooflineError(f"{name} has a price but is not among the hardware to choose from")
        if not (price > 0 and math.isfinite(price)):
            raise RooflineError(f"the price of {name} must be above 0, got {price:g}")


MOST_BEYOND = 0.01
"""Share of requests beyond the maximum context from which a service is refused: a small tail is ordinary."""

FACTORS = tuple(digits / scale for scale in (100, 1000, 10_000) for digits in range(99, 9, -1))
"""Factors by which lengths are scaled down, largest first."""


def _beyond(model: Model, service: Service) -> float:
    """The share of requests longer than the model's maximum context; raises RooflineError from `MOST_BEYOND`."""
    if model.max_context is None or model.tower_kind == "encoder":
        return 0.0
    name, context, prompts, answers = model.name, model.max_context, service.prompts, service.answers
    alone = model.task == "encode"
    share = float(prompts.beyond(float(context))) if alone else longer(prompts, answers, context)
    if share < MOST_BEYOND:
        return share
    if not prompts.varies and not answers.varies:
        what = (
            f"{prompts.mean:.0f} tokens" if alone else f"prompt and answer of {prompts.mean + answers.mean:.0f} tokens"
        )
        raise RooflineError(f"{what} exceed the maximum context of {name}, {context}")
    raise RooflineError(
        f"{percent(share)} of requests with their answers exceed the maximum context of {name}, {context} tokens; fewer"
        f" than {MOST_BEYOND:.0%} may: {_nearest(prompts, answers, context)}"
    )


def percent(share: float) -> str:
    """A share as percent with two digits."""
    return f"{float(f'{100 * share:.2g}'):g}%"


def _nearest(prompts: Lengths, answers: Lengths, context: int) -> str:
    """Text: the scale of prompts, or else of answers, at which few enough requests exceed the context."""
    for what, scaled, other in (("prompts", prompts, answers), ("answers", answers, prompts)):

        def enough(factor: float, scaled: Lengths = scaled, other: Lengths = other) -> bool:
            return longer(scaled.times(factor), other, context) < MOST_BEYOND

        index = bisect_left(FACTORS, True, key=enough)
        if index < len(FACTORS):
            written, factor = scaled.times(FACTORS[index]).written, FACTORS[index]
            named = what if written == scaled.written else f"{what} of {written},"
            return f"{named} {factor:g} times as long{'' if named == what else ','} would do"
    return "neither shorter prompts nor shorter answers alone would do"
