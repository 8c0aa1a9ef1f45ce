"""A deployment under loads: the answer of `roofline serve`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnknownNameError
from roofline.scenario.cost import HOUR, MILLION, price
from roofline.scenario.scenario import Scenario
from roofline.serving.disaggregated import simulated_outcome, steady_outcomes_of
from roofline.serving.load import Arrivals, Load, Trace
from roofline.serving.options import LOAD_OPTIONS, LoadOptions
from roofline.serving.outcome import NO_TARGETS, Outcome, Targets, outcome_of, steady_outcomes
from roofline.serving.pools import Pools, Tandem, parse_pools, tandem_of
from roofline.serving.replica import Replica, replica_of
from roofline.serving.simulation import simulate
from roofline.serving.steady import steady
from roofline.serving.traces import read_trace
from roofline.specs.hardware import Hardware
from roofline.specs.scheduler import Scheduler

if TYPE_CHECKING:
    from typing import Unpack


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
        if self.tandem is not None:
            return self.tandem.pools
        return ((self.scenario.hardware, self.replica.devices),)

    def cost(self, outcome: Outcome) -> float | None:
        """USD per million output tokens; None without a price."""
        rents = [(price(hardware, self.scenario.price), devices) for hardware, devices in self.pools]
        hourly = sum(rent * devices for rent, devices in rents if rent is not None)
        if any(rent is None for rent, _ in rents) or not outcome.output_tokens_per_second:
            return None
        return hourly / HOUR / outcome.output_tokens_per_second * MILLION

    def energy(self, outcome: Outcome) -> float | None:
        """Joules per output token with all devices at TDP; None without a TDP."""
        power = sum((hardware.tdp or math.nan) * devices for hardware, devices in self.pools)
        if math.isnan(power) or not outcome.output_tokens_per_second:
            return None
        return power / outcome.output_tokens_per_second


def serve(
    scenario: Scenario,
    load: Load | None = None,
    values: Sequence[float] | None = None,
    *,
    scheduler: Scheduler | None = None,
    **options: Unpack[LoadOptions],
) -> Curve:
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
    decode; one of each for a scenario with `decode_hardware`. Raises RooflineError where the model or no request fits.
    """
    asked = {name: LOAD_OPTIONS[name].usual for name in LOAD_OPTIONS} | _read(options)
    if load is None:
        load, values = _load_of(asked, values)
    elif given := sorted(ARRIVALS & {name for name, value in options.items() if value is not None}):
        raise RooflineError(f"{' and '.join(given)} are given beside a load")
    load = load.of(scenario)
    kind, requests, seed = load.arrivals, asked["simulate"], asked["seed"]
    targets = targets_of(asked["ttft"], asked["tpot"])
    points = tuple(float(value) for value in (values if values is not None else [_own(load)]))
    _check_run(load, points)
    quick = kind in (Arrivals.CLOSED, Arrivals.OPEN) and requests is None and load.rounds is None
    pools = asked["disaggregation"]
    if pools is not None or scenario.settings.decode_hardware is not None:
        pools = parse_pools(pools) if isinstance(pools, str) else pools or Pools()
        tandem, count = tandem_of(scenario, load, pools, scheduler), requests or DEFAULT_REQUESTS
        found = (
            steady_outcomes_of(tandem, load, points, targets)
            if quick
            else tuple(simulated_outcome(tandem, _at(load, value), count, seed, targets) for value in points)
        )
        return Curve(tandem.decode, load, points, found, not quick, tandem, targets)
    replica = replica_of(scenario, load, scheduler)
    if quick:
        found = steady_outcomes(replica, load, steady(replica, load, points), targets)
        return Curve(replica, load, points, found, simulated=False, targets=targets)
    outcomes = []
    for value in points:
        changed = _at(load, value)
        served = simulate(replica, changed, requests or DEFAULT_REQUESTS, seed)
        outcomes.append(outcome_of(replica, changed, served, targets))
    return Curve(replica, load, points, tuple(outcomes), simulated=True, targets=targets)


def targets_of(ttft: float | str | None, tpot: float | str | None) -> Targets:
    """Targets of TTFT and TPOT in seconds, infinite without one."""
    read = _read({"ttft": ttft, "tpot": tpot})
    return read.get("ttft", math.inf), read.get("tpot", math.inf)


USERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Requests in flight where no load is given."""

ARRIVALS = frozenset({"concurrency", "rate", "offline", "trace", "burstiness", "prefix_hits", "rounds"})
"""Options that make a load."""


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    """The values of options; one of numbers may have several, and objects of the library stay."""
    found: dict[str, Any] = {}
    for name, value in options.items():
        if name not in LOAD_OPTIONS:
            raise UnknownNameError("option of a load", name, LOAD_OPTIONS)
        if value is None:
            continue
        option = LOAD_OPTIONS[name]
        if name in ("concurrency", "rate") and not isinstance(value, (int, float, str)):
            found[name] = [option.number(entry) for entry in value]
        elif isinstance(value, (Trace, Pools)):
            found[name] = value
        else:
            found[name] = option.read(os.fspath(value) if isinstance(value, os.PathLike) else value)
    return found


def _load_of(asked: Mapping[str, Any], values: Sequence[float] | None) -> tuple[Load, Sequence[float] | None]:
    """The load of options, and its values."""
    given = {name: asked[name] for name in ("concurrency", "rate", "offline", "trace") if asked[name] is not None}
    if not given:
        given = {"concurrency": USERS}
    for name in ("concurrency", "rate"):
        if name in given and not isinstance(given[name], (int, float)):
            values = list(given[name])
            given[name] = values[0] if values else None
    if isinstance(given.get("trace"), str):
        given["trace"] = read_trace(Path(given["trace"]))
    hits, rounds = asked["prefix_hits"], asked["rounds"]
    return Load(**given, burstiness=asked["burstiness"], hits=hits, rounds=rounds), values


DEFAULT_REQUESTS = 2000
"""Requests of a simulation."""


def _at(load: Load, value: float) -> Load:
    if load.arrivals is Arrivals.CLOSED:
        return replace(load, concurrency=max(1, round(value)))
    return replace(load, rate=value) if load.arrivals is Arrivals.OPEN else load


def _own(load: Load) -> float:
    """The concurrency, rate or number of requests of a load."""
    if load.trace is not None:
        return float(len(load.trace.prompt))
    return float(load.concurrency or load.rate or load.offline or 0)


def _check_run(load: Load, points: tuple[float, ...]) -> None:
    """Raise RooflineError for values that no load has."""
    whole = load.arrivals is Arrivals.CLOSED
    least, noun = (1.0, "whole numbers of at least 1") if whole else (0.0, "numbers above 0")
    own = load.arrivals in (Arrivals.CLOSED, Arrivals.OPEN)
    if not points or (own and not all(least <= point < math.inf and point > 0 for point in points)):
        raise RooflineError(f"the values of a {load.arrivals} load must be {noun}, got {list(points)}")
    if whole and any(point % 1 for point in points):
        raise RooflineError(f"requests in flight must be {noun}, got {list(points)}")
