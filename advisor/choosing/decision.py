"""Decisions: the alternatives of one choice under one load, ranked by an objective, with a verdict and its flips.

Every alternative is served in steady state (`roofline.serving`) at the load and at loads around it
(`roofline.advisor.choosing.ranking`). The verdict compares the first two (`roofline.whatif.odds`); a flip is the
nearest load at which another comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Unpack

from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.choosing.alternatives import ALTERNATIVES, Alternative, Decided, disaggregations
from roofline.advisor.choosing.ranking import Ranking, amount_of
from roofline.advisor.choosing.rows import ApiPrice, Flip, Objective, Row, parse_api_price
from roofline.advisor.chosen import WEIGHT_OPTIONS, plan_for, settled
from roofline.advisor.options import requests
from roofline.advisor.planned import LAYOUT
from roofline.advisor.search.goal import named
from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.core.options import names_in
from roofline.core.units import MONTH
from roofline.scenario.analysis import static_batch
from roofline.scenario.argument import beside, parts_of, without_carbon
from roofline.scenario.lengths import Lengths
from roofline.scenario.options import DEGREES, missing
from roofline.scenario.options.keywords import Deployment as DeploymentOptions
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load, served_scenario
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.outcome import Targets, targets_or_usual
from roofline.serving.pools import DEGREES as PARTS
from roofline.whatif.odds import Odds


class Deployed(DeploymentOptions, total=False):
    """The options of all alternatives: lengths of requests in tokens, and how the model runs."""

    prompt: int | str | Lengths
    generate: int | str | Lengths


class Decision(Result, Struct, frozen=True):
    """The answer: `rows` from the best on, the verdict on the first and its rival, and the flips above and below.

    The verdict is None where one alternative alone runs and meets the limits. `limits` are seconds of TTFT and TPOT
    at p95, infinite for none; `hours` a month. `api` is a price to compare with, `break_even` the requests a month from
    which renting the first costs less.
    """

    decided: Decided
    scenario: Scenario
    load: Load
    objective: Objective
    limits: Targets
    hours: float
    rows: tuple[Row, ...]
    verdict: Odds | None
    flips: tuple[Flip, ...]
    api: ApiPrice | None = None
    break_even: float | None = None

    @property
    def best(self) -> Row:
        return self.rows[0]

    @property
    def amount(self) -> float:
        """Requests/s, or requests in flight."""
        return amount_of(self.load)


def choose(
    decided: str,
    model: str | Scenario,
    hw: str | Sequence[str] | None = None,
    users: int | None = None,
    *,
    rate: float | str | None = None,
    objective: str | None = None,
    ttft: float | str | None = None,
    tpot: float | str | None = None,
    prefix_hits: float | str | None = None,
    hours: float = MONTH,
    api_price: str | ApiPrice | None = None,
    progress: Callable[[str], None] = lambda _: None,
    **options: Unpack[Deployed],
) -> Decision:
    """The alternatives of a layout, format, engine, hardware, speculation, disaggregation, offload or API, ranked.

    >>> from roofline import choose
    >>> found = choose("engine", "gpt-oss-120b", "ryzen-ai-max-395")
    >>> found.best.label
    'llama.cpp'

    A `Scenario` in place of model and hardware has its own. The load are `users` (or `concurrency`) with a request in
    flight each (1 by default), or a `rate` in requests/s; lengths and further `options` are those of a scenario.
    `objective` is throughput (of a device; the default of several users), latency (of requests; of one user or a rate),
    ttft, tpot or cost (of hardware and API). `ttft` and `tpot` are limits at p95, of users or a rate USUAL_TARGETS by
    default. What is neither said nor decided is that of `answer` (`settled`). Raises RooflineError where nothing runs.
    """
    if decided not in list(Decided):
        raise UnknownNameError("choice", decided, map(str, Decided))
    what = Decided(decided)
    told: dict[str, Any] = {**options}
    users = told.pop("concurrency", users)
    scenario, names, given = _asked(what, model, hw, told)
    load, said = _load_of(scenario, users, rate, prefix_hits)
    if not 0 < hours <= 744:
        raise RooflineError(f"a month has at most 744 hours, got {hours:g}", options=["hours"])
    price = _price_of(what, api_price)
    goal = named(Objective, objective) if objective is not None else _usual(what, load)
    limits = targets_or_usual(LOAD_OPTIONS["ttft"].read(ttft), LOAD_OPTIONS["tpot"].read(tpot), said)
    if price is not None and goal is not Objective.COST:
        raise RooflineError(f"an API has costs and no {goal}: omit the objective", options=["objective"])
    ranking = Ranking(load, goal, limits, hours)
    if what not in (Decided.HARDWARE, Decided.ENGINE):
        scenario = settled(scenario, load if said else None, limits, DECIDES.get(what, ())).scenario
    alternatives = _alternatives(what, scenario, names, load, limits, given)
    if what is Decided.ENGINE:
        alternatives = [_fitted(each, load if said else None, limits) for each in alternatives]
    ranking.add(alternatives, progress)
    rows = ranking.ranked()
    judged, even = ranking.odds(rows), None
    if price is not None:
        judged, even = ranking.against(rows[0], price)
        rows = sorted((*rows, *ranking.bought), key=lambda row: row.rank)
    flips = ranking.flips(rows) if len(rows) > 1 and rows[1].fits else []
    return Decision(what, scenario, ranking.load, goal, limits, hours, tuple(rows), judged, tuple(flips), price, even)


DECIDES: Mapping[Decided, Sequence[str]] = MappingProxyType(
    {
        Decided.LAYOUT: LAYOUT,
        Decided.DISAGGREGATION: LAYOUT,
        Decided.API: LAYOUT,
        Decided.FORMAT: (*WEIGHT_OPTIONS, "kv"),
    }
)
"""Options that a decision varies."""


def _asked(
    what: Decided, model: str | Scenario, hw: str | Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[Scenario, Sequence[str], Mapping[str, Any]]:
    """The deployment on the first hardware, the names of all hardware, and the options beside model and hardware."""
    named_model: Any = model
    given = options
    if isinstance(model, Scenario):
        if options:
            raise RooflineError(f"{beside(sorted(options))} a scenario: give Scenario() all options")
        named_model, device, given = parts_of(model)
        hw = hw or [device]
    names = names_in(hw) if isinstance(hw, str) else list(hw or ())
    if not names:
        every = "to choose from, as in h200-sxm,b200-sxm; 'roofline size' finds the cheapest of all"
        raise RooflineError(f"name the hardware {every}" if what is Decided.HARDWARE else missing("hw"), options=["hw"])
    if len(names) > 1 and what is not Decided.HARDWARE:
        raise RooflineError(f"choose {what} takes one kind of hardware, got {', '.join(names)}", options=["hw"])
    scenario = served_scenario(Scenario(named_model, names[0], **given))
    without_carbon(scenario, "alternatives")
    if scenario.model.task != "generate":
        raise RooflineError(f"{scenario.model.name} only encodes: choices are of models that generate")
    return scenario, names, given


def _load_of(
    scenario: Scenario, users: int | None, rate: float | str | None, prefix_hits: float | str | None
) -> tuple[Load, bool]:
    """The load of users or of a rate (requests/s), by default of one user, and whether either was said."""
    if users is not None and users < 1:
        raise RooflineError(f"there must be at least one user, got {users}", options=["users"])
    count, arrivals = LOAD_OPTIONS["concurrency"].read(users), requests(rate)
    if count is not None and arrivals is not None:
        raise RooflineError("a load has users or a rate, not both", options=["users", "rate"])
    hits = LOAD_OPTIONS["prefix_hits"].read(prefix_hits) or 0.0
    if arrivals is not None:
        return Load(rate=arrivals, hits=hits).of(scenario), True
    return Load(concurrency=1 if count is None else count, hits=hits).of(scenario), count is not None


def _price_of(what: Decided, asked: str | ApiPrice | None) -> ApiPrice | None:
    """The price of an API, which a choice of an API needs and no other one has."""
    price = parse_api_price(asked) if isinstance(asked, str) else asked
    if price is None and what is Decided.API:
        told = "choose api compares with a price: give it, in USD per million tokens, such as 0.25/1"
        raise RooflineError(told, options=["api_price"])
    if price is not None and what is not Decided.API:
        raise RooflineError(f"choose {what} compares no API: omit it", options=["api_price"])
    return price


def _usual(what: Decided, load: Load) -> Objective:
    if what in (Decided.HARDWARE, Decided.API):
        return Objective.COST
    return Objective.THROUGHPUT if (load.concurrency or 0) > 1 else Objective.LATENCY


def _alternatives(
    what: Decided, scenario: Scenario, names: Sequence[str], load: Load, limits: Targets, options: Mapping[str, Any]
) -> list[Alternative]:
    if what is Decided.DISAGGREGATION:
        return list(disaggregations(scenario, load, limits))
    if what is not Decided.HARDWARE:
        return list(ALTERNATIVES[what](scenario))
    if len(names) < 2:
        raise RooflineError("name two or more hardware to choose from, as in h200-sxm,b200-sxm", options=["hw"])
    found: list[Alternative] = []
    for name in names:
        each = _deployed(Scenario(scenario.model_name, name, **options), name, load, limits, options)
        if (each.scenario, each.copies) not in [(other.scenario, other.copies) for other in found]:
            found.append(each)  # 4090 is 2x4090 where the model needs two
    return found


def _fitted(alternative: Alternative, load: Load | None, targets: Targets) -> Alternative:
    """An engine in the layout and with the slots that an answer chooses for it, and in its formats where needed.

    Formats are those of the question where they fit.
    """
    scenario = alternative.scenario
    with suppress(RooflineError):
        if scenario is not None and static_batch(scenario, 1).memory.fits:
            chosen = settled(scenario, load, targets, DECIDES[Decided.FORMAT]).scenario
            counts = {name: getattr(chosen.settings.parallel, part) for name, part in PARTS.items()}
            degrees = " ".join(f"{name.upper()} {count}" for name, count in counts.items() if count > 1)
            return replace(alternative, label=f"{alternative.label}, {degrees}".rstrip(", "), scenario=chosen)
        if scenario is not None:
            plan = plan_for(scenario, load, targets)
            if plan.fits:
                changed = plan.candidate.formats if plan.narrower else "more of the memory"
                return replace(alternative, label=f"{alternative.label}, {changed}", scenario=plan.scenario)
    return alternative


def _deployed(scenario: Scenario, name: str, load: Load, limits: Targets, options: Mapping[str, Any]) -> Alternative:
    """The cheapest deployment on a kind of hardware that `size` finds, of as many devices as are named with it."""
    from roofline.advisor.sizing.sizing import size
    from roofline.advisor.sizing.workload import Service

    service = Service(load.rate, load.prompts, load.outputs, *limits, concurrency=load.concurrency, hits=load.hits)
    fixed = {key: value for key, value in options.items() if key not in ("prompt", "generate", "price", "engine")}
    counted = scenario.counted and scenario.settings.parallel.devices > 1
    if counted:
        fixed |= {DEGREES[part]: count for part, count in scenario.question.degrees.items() if count > 1}
    kind = scenario.hardware.name if counted else scenario.hardware_name
    usd = {} if scenario.price is None else {kind: scenario.price}
    sized = size(scenario.model_name, service, [kind], price=usd, engine=options.get("engine"), most=1, **fixed)
    if sized.choices:
        best = sized.choices[0].best  # the cheapest, or without a price the fewest devices
        found, replicas = best.configuration, 1 if counted else best.replicas
    elif sized.closest:
        found, replicas = next(iter(sized.closest.values())), 1
    else:
        return Alternative(name if counted else f"1 x {name}", scenario)
    split = f" {found.split}" if found.split and not counted else ""
    label = f"{name if counted else f'{found.devices * replicas} x {name}'}{split}, {found.formats}"
    return Alternative(label, found.scenario.with_(price=scenario.price), replicas)
