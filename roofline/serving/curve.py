"""A deployment under loads: the answer of `roofline serve`."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.checked import object_of
from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.scenario.argument import beside
from roofline.scenario.cost import HOUR, MILLION, rent
from roofline.scenario.energy import KWH
from roofline.scenario.options import MEANT, OPTIONS
from roofline.scenario.scenario import Scenario
from roofline.serving.disaggregated import simulated_outcome, steady_outcomes_of
from roofline.serving.load import Arrivals, Load, Rollouts, Trace, finite_number, served_scenario
from roofline.serving.options import (
    FCFS,
    LOAD,
    LOAD_OPTIONS,
    PLACEMENT,
    SPELLINGS,
    LoadOptions,
    by_own_name,
    load_values,
    shares_of,
    spellings,
)
from roofline.serving.outcome import NO_TARGETS, Outcome, Targets, outcome_of, steady_outcomes
from roofline.serving.placement import best_placement
from roofline.serving.policies import AMONG_TENANTS, simulate
from roofline.serving.pools import Pools, Tandem, behind_encoders, encoder_of, parse_pools, tandem_of
from roofline.serving.replica import Replica, replica_of
from roofline.serving.replicas import ROUTERS
from roofline.serving.rollouts import parse_rollouts
from roofline.serving.sessions.options import SESSION_OPTIONS, SessionShape
from roofline.serving.sessions.workload import parse_gaps
from roofline.serving.steady import steady
from roofline.serving.traces import read_trace
from roofline.serving.unequal import replicas_beside
from roofline.specs.hardware import Hardware
from roofline.specs.scheduler import Scheduler

if TYPE_CHECKING:
    from roofline.serving.sessions.served import SessionCurve


class Curve(Result, Struct, frozen=True):
    """The outcomes of a replica at each of `values`: concurrencies, rates in requests/s, or a single run.

    With prefill and decode apart, `tandem` has both, and `replica` is one of decode. `targets` are those of goodput:
    TTFT and TPOT in seconds, infinite without one.
    """

    replica: Replica
    load: Load
    values: tuple[float, ...]
    outcomes: tuple[Outcome, ...]
    simulated: bool
    tandem: Tandem | None = None
    targets: Targets = NO_TARGETS

    @property
    def scenario(self) -> Scenario:
        """The deployment."""
        return self.replica.scenario if self.tandem is None else self.tandem.scenario

    @property
    def pools(self) -> tuple[tuple[Hardware, int], ...]:
        """Hardware and devices: of prefill and decode where they are apart."""
        return (self.tandem or self.replica).pools

    def cost(self, outcome: Outcome, per_second: float | None = None) -> float | None:
        """USD per million output tokens, or of what an outcome has `per_second`; None without a price."""
        hourly = rent(self.pools, self.scenario.price)
        amount = outcome.output_tokens_per_second if per_second is None else per_second
        return None if hourly is None or not amount else hourly / HOUR / amount * MILLION

    def energy(self, outcome: Outcome) -> float | None:
        """Joules per output token with all devices at TDP; None without a TDP."""
        power = sum((hardware.tdp or math.nan) * devices for hardware, devices in self.pools)
        if math.isnan(power) or not outcome.output_tokens_per_second:
            return None
        return power / outcome.output_tokens_per_second

    def carbon(self, outcome: Outcome) -> float | None:
        """Grams of CO2e of a million output tokens with all devices at TDP; None without a TDP or an intensity."""
        energy, intensity = self.energy(outcome), self.scenario.carbon
        return None if energy is None or intensity is None else energy * MILLION / KWH * intensity


class SessionLoad(SessionShape, total=False):
    """The keywords beside a number of sessions, or a rate of new ones."""

    simulate: int | None
    seed: int | None
    disaggregation: str | Pools | None
    ttft: float | str | None
    tpot: float | str | None


@overload
def serve(
    scenario: Scenario,
    load: Load | None = None,
    values: Sequence[float] | None = None,
    *,
    scheduler: Scheduler | None = None,
    draft_limit: bool = True,
    **options: Unpack[LoadOptions],
) -> Curve: ...
@overload
def serve(
    scenario: Scenario, *, sessions: int | str | Sequence[int], **options: Unpack[SessionLoad]
) -> SessionCurve: ...
@overload
def serve(
    scenario: Scenario, *, session_rate: float | str | Sequence[float], **options: Unpack[SessionLoad]
) -> SessionCurve: ...
def serve(
    scenario: Scenario,
    load: Load | None = None,
    values: Sequence[float] | None = None,
    *,
    scheduler: Scheduler | None = None,
    draft_limit: bool = True,
    **options: Any,
) -> Curve | SessionCurve:
    """The outcomes of a scenario's deployment under load, at one or several concurrencies or rates.

    >>> from roofline import Scenario, serve
    >>> curve = serve(Scenario("llama-3.1-8b", "h100-sxm", prompt=1024, generate=256), concurrency=[1, 16, 64])
    >>> tokens = [outcome.output_tokens_per_second for outcome in curve.outcomes]
    >>> tokens == sorted(tokens)
    True

    The load is given by keywords, the options of `roofline.serving.options`: `concurrency`, `rate` (requests/s),
    `offline` or `trace`, by default 1 to 256 requests in flight. Or it is a `Load`, at some `values` of it. Lengths are
    the scenario's. Steady states by default; `simulate` simulates that many requests for each value, and traces,
    offline loads and closed loops with `rounds` are always simulated. `disaggregation` are replicas of prefill and of
    decode; one of each for a scenario with `decode_hardware`.

    The engine's default limit of requests that run at once with drafts holds, unless the scenario says `max_num_seqs`;
    without `draft_limit` it does not, as for a server that is told how many to run.

    With `sessions` or a `session_rate` the load is sessions of many turns with a simulated prefix cache, with options
    of `roofline.serving.sessions.options`. Raises RooflineError where the model or no request fits.
    """
    spelled = {name: name for name in SESSION_OPTIONS} | spellings(SESSION_OPTIONS)
    of_sessions = {spelled[name]: options.pop(name) for name in sorted(spelled.keys() & options)}
    if any(value is not None for value in of_sessions.values()):
        return _of_sessions(scenario, of_sessions, {"load": load, "values": values, "scheduler": scheduler, **options})
    scenario = served_scenario(scenario)
    given = _read(options)
    asked = {name: LOAD_OPTIONS[name].usual for name in LOAD_OPTIONS} | given
    load, values = _load_asked(load, values, asked, given.keys())
    load = load.of(scenario)
    requests, seed = asked["simulate"], asked["seed"]
    targets = (asked["ttft"] or math.inf, asked["tpot"] or math.inf)
    if scenario.model.task == "encode" and math.isfinite(targets[1]):
        raise RooflineError(f"{scenario.model.name} only encodes: omit tpot", options=["tpot"])
    points = _points(load, values)
    if load.arrivals is Arrivals.CLOSED:
        scenario = scenario.laid_out_for(max(points))
    steady_state = load.arrivals in VARIED and requests is None and load.rounds is None
    _check_simulated(load, requests, seed, steady_state)
    if scheduler is not None:
        object_of(scheduler, Scheduler, "a scheduler is a Scheduler of roofline.specs.scheduler")
    elif draft_limit and scenario.draft_limit:
        each = max(scenario.draft_limit // scenario.settings.parallel.data, 1)
        scheduler = replace(scenario.profile.scheduler, sequences=each)
    if load.policy == PLACEMENT:
        scenario, load = best_placement(scenario, _at(load, points[-1]), requests or DEFAULT_REQUESTS, seed, targets)
    deployment = deployment_of(scenario, load, pools_of(asked["disaggregation"]), scheduler)
    if (written := asked["beside"]) is not None:
        if isinstance(deployment, Tandem) or steady_state:
            raise RooflineError(
                "unequal replicas are simulated with prefill and decode together: omit disaggregation, and say how many"
                " requests to simulate, such as 500",
                options=["beside", "simulate"],
            )
        deployment = replace(deployment, beside=replicas_beside(scenario, written, load, scheduler))
    if steady_state:
        found = outcomes_at(deployment, load, points, targets)
    else:
        count = requests or DEFAULT_REQUESTS
        found = tuple(_simulated(deployment, _at(load, value), count, seed, targets) for value in points)
    if isinstance(deployment, Tandem):
        return Curve(deployment.decode, load, points, found, not steady_state, deployment, targets)
    return Curve(deployment, load, points, found, not steady_state, targets=targets)


def _of_sessions(scenario: Scenario, sessions: Mapping[str, Any], load: Mapping[str, Any]) -> SessionCurve:
    """The outcomes under sessions, with the options of a load that they have, too."""
    from roofline.serving.sessions.served import serve_sessions  # few ask for sessions

    given = {name: value for name, value in load.items() if value is not None}
    if beyond := sorted(given.keys() - SessionLoad.__annotations__.keys()):
        _read({name: None for name in beyond if name not in ("load", "values", "scheduler")})
        raise RooflineError(f"{' and '.join(beyond)} and sessions are two kinds of load: give one of them")
    read = _read(given)
    return serve_sessions(
        scenario,
        targets=(read.get("ttft", math.inf), read.get("tpot", math.inf)),
        simulate=read.get("simulate"),
        seed=read.get("seed") or 0,
        disaggregation=read.get("disaggregation"),
        **sessions,
    )


Deployment = Replica | Tandem


def pools_of(asked: Pools | str | None) -> Pools | None:
    """The pools of an object or of a text. Raises RooflineError."""
    if asked is None or isinstance(asked, str):
        return None if asked is None else parse_pools(asked)
    return object_of(asked, Pools, "pools are a Pools, or a text such as prefills=2,decodes=1")


def deployment_of(
    scenario: Scenario, load: Load, pools: Pools | None = None, scheduler: Scheduler | None = None
) -> Deployment:
    """The replica of a scenario, or its replicas of prefill and decode where these are apart."""
    if pools is None and scenario.settings.decode_hardware is None:
        return replica_of(scenario, load, scheduler)
    pools, beside = pools or Pools(), tuple[tuple[Hardware, int], ...]()
    if pools.encoders:
        beside = ((encoder_of(scenario, pools), pools.encoders),)
        scenario, scheduler = behind_encoders(scenario, load, pools, scheduler or scenario.profile.scheduler)
    if not pools.prefills:
        return replace(replica_of(scenario, load, scheduler), encoders=beside)
    return replace(tandem_of(scenario, load, pools, scheduler), encoders=beside)


def outcomes_at(deployment: Deployment, load: Load, values: Any, targets: Targets = NO_TARGETS) -> tuple[Outcome, ...]:
    """The steady states of a deployment at some rates or concurrencies."""
    if isinstance(deployment, Tandem):
        return steady_outcomes_of(deployment, load, values, targets)
    return steady_outcomes(deployment, load, steady(deployment, load, values), targets)


def _simulated(deployment: Deployment, load: Load, requests: int, seed: int, targets: Targets) -> Outcome:
    load = load.within((deployment.decode if isinstance(deployment, Tandem) else deployment).kv_tokens)
    if isinstance(deployment, Tandem):
        if load.policy not in (FCFS, *ROUTERS) or load.tenants or load.rollouts:
            raise RooflineError(
                f"prefill and decode apart serve in order of arrival, and route by {', '.join(ROUTERS)}: omit other"
                " policies, tenants and rollouts",
                options=["policy"],
            )
        if load.policy in ROUTERS and max(deployment.prefills, deployment.decodes) < 2:
            raise RooflineError(
                f"{load.policy} is among replicas: give prefills=2 or decodes=2, or more", options=["policy"]
            )
        return simulated_outcome(deployment, load, requests, seed, targets)
    return outcome_of(deployment, load, simulate(deployment, load, requests, seed), targets)


def targets_of(ttft: float | str | None, tpot: float | str | None) -> Targets:
    """Targets of TTFT and TPOT in seconds, infinite without one."""
    read = _read({"ttft": ttft, "tpot": tpot})
    return read.get("ttft", math.inf), read.get("tpot", math.inf)


USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Requests in flight where no load is given."""

ARRIVALS = frozenset(name for name, option in LOAD_OPTIONS.items() if option.group == LOAD) - {
    *("simulate", "seed", "disaggregation", "beside")
}
"""Options that make a load."""


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options; one of numbers may have several, and objects of the library stay."""
    found: dict[str, Any] = {}
    for name in (SPELLINGS.get(given, given) for given in options):
        if name not in LOAD_OPTIONS:
            meant = MEANT.get(name, f"{name} is an option of the scenario" if name in OPTIONS else "")
            hint = f"; {meant}" if meant else ""
            known = () if hint else (*LOAD_OPTIONS, *SESSION_OPTIONS)
            raise UnknownNameError("option of a load", name, known, hint=hint)
    for name, value in by_own_name(options).items():
        option = LOAD_OPTIONS[name]
        if name in ("concurrency", "rate") and isinstance(value, str):
            values = load_values(option, value)
            found[name] = option.number(values[0]) if len(values) == 1 else values
        elif name in ("concurrency", "rate") and isinstance(value, Iterable):
            found[name] = [option.number(entry) for entry in value]
        elif isinstance(value, (Trace, Pools, Rollouts)) or name == "tenants":
            found[name] = value
        else:
            found[name] = option.read(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return found


def _load_asked(
    load: Load | None, values: Sequence[float] | None, asked: Mapping[str, Any], given: Set[str]
) -> tuple[Load, Sequence[float] | None]:
    """The load and its values: those of options, of which some were `given`, or an object without such options."""
    if load is None:
        if values is not None:
            raise RooflineError("values are those of a Load: give concurrency or rate itself a list of them")
        return _load_of(asked)
    if both := sorted(ARRIVALS & given):
        raise RooflineError(f"{beside(both)} a load")
    return object_of(load, Load, "a load is a Load, or keywords such as concurrency=4"), values


def _load_of(asked: Mapping[str, Any]) -> tuple[Load, Sequence[float] | None]:
    """The load of options, and its values where it has several."""
    values = None
    given = {name: asked[name] for name in ("concurrency", "rate", "offline", "trace") if asked[name] is not None}
    if not given:
        given = {"concurrency": USERS}
    for name in ("concurrency", "rate"):
        if name in given and not isinstance(given[name], (int, float)):
            values = list(given[name])
            given[name] = values[0] if values else None
    if isinstance(given.get("trace"), str):
        given["trace"] = read_trace(Path(given["trace"]))
    asked = {**asked, "startup": float(parse_gaps(asked["startup"], "startup").quantiles(0.5))}
    if isinstance(asked["rollouts"], str):
        asked["rollouts"] = parse_rollouts(asked["rollouts"])
    own = {name: asked[name] for name in ("burstiness", "rounds", "policy", "models", "loss", "startup", "rollouts")}
    return Load(**given, **own, hits=asked["prefix_hits"], tenants=shares_of(asked["tenants"])), values


DEFAULT_REQUESTS = 2000
"""Requests of a simulation."""


def _at(load: Load, value: float) -> Load:
    if load.arrivals is Arrivals.CLOSED:
        return replace(load, concurrency=max(1, round(value)))
    return replace(load, rate=value) if load.arrivals is Arrivals.OPEN else load


VARIED = (Arrivals.CLOSED, Arrivals.OPEN)
"""Arrivals that have values, and steady states."""


def _points(load: Load, values: Sequence[float] | None) -> tuple[float, ...]:
    """The values of a load, its own without others. Raises RooflineError for those that no load has."""
    if values is None:
        requests = 0 if load.trace is None else len(load.trace.prompt)
        return (float(load.concurrency or load.rate or load.offline or requests),)
    if load.arrivals not in VARIED:
        raise RooflineError(f"values are rates or requests in flight, which a load with {load.arrivals} has not")
    whole = load.arrivals is Arrivals.CLOSED
    least, noun = (1.0, "whole numbers of at least 1") if whole else (0.0, "numbers above 0")
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise RooflineError(f"the values of a load are a list of {noun}, got {quote(values)}")
    points = tuple(map(finite_number, values))
    if not points or not all(least <= point and point > 0 for point in points):
        raise RooflineError(f"the values of a {load.arrivals} load must be {noun}, got {list(points)}")
    if whole and any(point % 1 for point in points):
        raise RooflineError(f"requests in flight must be {noun}, got {list(points)}")
    return points


def _check_simulated(load: Load, requests: int | None, seed: int, steady_state: bool) -> None:
    """Raise RooflineError for options of a simulation that the run of a load does not have."""
    if requests is not None and (load.arrivals not in VARIED or load.rounds is not None):
        other = "rounds" if load.rounds is not None else load.arrivals
        raise RooflineError(f"{other} says how many requests are simulated: omit simulate", options=["simulate"])
    if load.policy in AMONG_TENANTS and len(load.tenants) < 2:
        raise RooflineError(
            f"{load.policy} is a policy among tenants: give the shares of two or more", options=["tenants"]
        )
    if len(load.tenants) == 1:
        raise RooflineError("one tenant sends all requests: give the shares of two or more", options=["tenants"])
    if steady_state and (load.policy != FCFS or load.tenants or load.loss):
        given = "policy" if load.policy != FCFS else "tenants" if load.tenants else "loss"
        raise RooflineError(
            f"a steady state has no {given}: say how many requests to simulate, such as 500", options=["simulate"]
        )
    if seed and (steady_state or load.trace is not None):
        why = "a steady state" if steady_state else "a trace"
        raise RooflineError(
            f"{why} draws no requests: omit seed, or simulate a number of them", options=["seed", "simulate"]
        )
