"""A fleet of equal replicas over a day: autoscaling on a rate that varies, start-up, scale to zero, spot loss.

Between decisions each replica is in the steady state of `roofline.serving.steady` at its share of the rate; what
arrives beyond the largest sustainable rate waits in a queue of all. A request misses its targets where the steady state
does, or where the queue takes longer than the target of TTFT. The requests of a lost replica begin anew.
"""

from __future__ import annotations

import math
from collections import deque
from inspect import signature
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from roofline.core.checked import Checked, Fraction, NotNegative
from roofline.core.display import Result
from roofline.core.errors import RooflineError, quote
from roofline.scenario.argument import beside
from roofline.scenario.cost import HOUR, rent
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import Curve, serve, targets_of
from roofline.serving.load import Trace
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.sessions.options import SESSION_OPTIONS
from roofline.serving.sessions.served import SessionCurve
from roofline.serving.sessions.workload import parse_gaps
from roofline.serving.tables import Array
from roofline.serving.traces import read_trace

STEP, MEASURED, DAY = 10.0, 60.0, 86_400.0
"""Seconds between decisions of the autoscaler, over which it measures the rate, and of a run."""

PARTS = (0.02, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.94, 0.97)
"""Rates at which the steady state of a replica is computed, over its largest."""


class Scaling(Checked, frozen=True):
    """From `least` (0: none without requests) to `most` replicas, so many that each has `share` of its largest rate.

    A replica serves `startup` seconds after it is asked for, and goes when `hold` seconds had no need of it. `loss` are
    the replicas that are lost an hour, of one (spot devices); others are started in their place.
    """

    least: Annotated[int, Meta(ge=0, le=10_000)] = 1
    most: Annotated[int, Meta(ge=1, le=10_000)] = 10
    share: Fraction = 0.7
    startup: NotNegative = 300.0
    hold: NotNegative = 300.0
    loss: NotNegative = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise RooflineError(
                f"a fleet of {self.least} to {self.most} replicas has none: the smaller number is first"
            )
        if not self.share:
            raise RooflineError("the share of its largest rate that a replica is to have is above 0")


class Scaler:
    """The autoscaler of a run; `starts` are the times at which replicas that it asked for serve."""

    def __init__(self, scaling: Scaling) -> None:
        self.scaling, self.starts = scaling, list[float]()
        self._needs = deque[int](maxlen=max(round(scaling.hold / STEP), 1))

    def begun(self, now: float) -> int:
        """Those that begin to serve."""
        before = len(self.starts)
        self.starts = [at for at in self.starts if at > now]
        return before - len(self.starts)

    def stops(self, now: float, serving: int, wanted: float) -> int:
        """Ask for more where so many are wanted; of those that serve so many stop that had no use for long enough."""
        scaling, needs = self.scaling, self._needs
        needs.append(min(max(math.ceil(wanted - 1e-9), scaling.least), scaling.most))
        self.starts += [now + scaling.startup] * (needs[-1] - serving - len(self.starts))
        over = serving + len(self.starts) - max(needs) if len(needs) == needs.maxlen else 0
        if over <= 0:
            return 0
        kept = max(len(self.starts) - over, 0)
        stopped = over - (len(self.starts) - kept)
        self.starts = self.starts[:kept]
        return stopped


class FleetRun(Result, Struct, frozen=True):
    """A day of a fleet, by steps of STEP seconds: arrivals/s, replicas that serve and that start, requests that wait.

    `missed` are the requests of each step that miss their targets, `curve` the steady states of one replica, `most` its
    largest rate. `fixed`: replicas that the highest rate needs all day. Under sessions these come in place of requests,
    `most` is a number of them at a time, and of a step's new ones the part of all turns that misses is `missed`.
    """

    scenario: Scenario
    curve: Curve | SessionCurve
    most: float
    scaling: Scaling
    rate: Array
    serving: Array
    starting: Array
    queue: Array
    missed: Array
    lost: int
    fixed: int

    @property
    def devices(self) -> Array:
        """Devices that are rented in each step."""
        found: Array = (self.serving + self.starting) * self.curve.replica.devices
        return found

    @property
    def missed_share(self) -> float:
        """The fraction of the requests that miss their targets."""
        return float(self.missed.sum() / max(self.rate.sum() * STEP, 1e-12))

    @property
    def usd(self) -> tuple[float, float] | None:
        """The rent of the day, and that of `fixed` replicas; None without a price."""
        hourly = rent(self.curve.pools, self.scenario.price)
        if hourly is None:
            return None
        hours = float((self.serving + self.starting).sum()) * STEP / HOUR
        return hourly * hours, hourly * self.fixed * self.rate.size * STEP / HOUR


def scaling_of(
    replicas: int | str = "1:10",
    share: float = 0.7,
    startup: float | str = "5min",
    hold: float | str = "5min",
    loss: float = 0.0,
) -> Scaling:
    """The scaling of a number of replicas, or between LEAST:MOST, with times in seconds or as texts.

    Raises RooflineError.
    """
    ends = str(replicas).split(":")
    ends *= 1 + (len(ends) == 1)
    if len(ends) != 2 or not all(end.isascii() and end.isdigit() and len(end) < 6 for end in ends):
        raise RooflineError(f"replicas are LEAST:MOST such as 1:10, got {quote(replicas)}", options=["replicas"])
    starts, held = (float(parse_gaps(text).quantiles(0.5)) for text in (startup, hold))
    return Scaling(int(ends[0]), int(ends[1]), share, starts, held, loss)


def run_fleet(
    scenario: Scenario,
    scaling: Scaling | None = None,
    rate: float | str | None = None,
    low: float = 1.0,
    trace: Trace | str | Path | None = None,
    seed: int | None = None,
    **options: Any,
) -> FleetRun:
    """A day of a fleet at a `rate` (requests/s, at 15 h) that falls to `low` of it at night, a sine, or of a trace.

    The options are those of `scaling_of` in place of a `Scaling`, targets of TTFT and TPOT, of which one is needed, and
    those of a load with a rate. Requests have the lengths of the scenario, or the mean ones of the trace. With a
    `session_rate` in place of a rate, new ones a second at the peak, they are those of sessions. Raises RooflineError.
    """
    given = {name: options.pop(name) for name in signature(scaling_of).parameters if name in options}
    if scaling is not None and given:
        raise RooflineError(f"{beside(sorted(given))} a Scaling")
    scaling = scaling or scaling_of(**given)
    trace = read_trace(Path(trace)) if isinstance(trace, (str, Path)) else trace
    random = np.random.default_rng(LOAD_OPTIONS["seed"].read(seed) or 0)
    if (new := options.pop("session_rate", None)) is not None:
        most = SESSION_OPTIONS["session_rate"].number(new)
        return _of_sessions(scenario, scaling, most, low, rate or trace, random, options)
    peak = None if rate is None else LOAD_OPTIONS["rate"].number(str(rate).removesuffix("/s"))
    rates = _rates(peak, low, trace)
    if trace is not None:
        prompt, output = (max(round(float(np.mean(lengths))), 1) for lengths in (trace.prompt, trace.output))
        scenario = scenario.with_(prompt=prompt, generate=output)
    saturated = serve(scenario, rate=1e-3, untold=False, **options).outcomes[0].saturated_at
    assert saturated is not None
    curve = serve(scenario, rate=[part * saturated for part in PARTS], untold=False, **options)
    if not any(map(math.isfinite, curve.targets)):
        raise RooflineError("a fleet needs a target, such as 2s of TTFT: requests miss it where replicas are too few")
    good = [(each.goodput or 0.0) / each.requests_per_second for each in curve.outcomes]
    running = [each.running for each in curve.outcomes]
    found = _run(rates, saturated, good, running, curve.targets[0], scaling, random)
    fixed = math.ceil(float(rates.max()) / saturated / scaling.share)
    return FleetRun(scenario, curve, saturated, scaling, rates, *found, fixed)


def _of_sessions(
    scenario: Scenario, scaling: Scaling, peak: float, low: float, beside: Any, random: Any, options: dict[str, Any]
) -> FleetRun:
    from roofline.serving.session_fleet import holding, run_sessions  # few ask for sessions

    targets = targets_of(options.pop("ttft", None), options.pop("tpot", None))
    if beside is not None or not any(map(math.isfinite, targets)):
        raise RooflineError(
            "a fleet of sessions has their rate alone, and a target such as 2s of TTFT",
            options=["session_rate", "ttft"],
        )
    rates, held = _rates(peak, low, None), holding(scenario, targets, options)
    found = run_sessions(rates, held, targets[0], scaling, random)
    fixed = math.ceil(float(rates.max()) * held.lasting / held.most / scaling.share)
    return FleetRun(scenario, held.curve, held.most, scaling, rates, *found, fixed)


def _rates(peak: float | None, low: float, trace: Trace | None) -> Array:
    """Mean arrivals/s in each step."""
    if (peak is None) == (trace is None):
        raise RooflineError("a day has the rate of its peak, or a trace: give one of both")
    if trace is not None:
        steps = np.bincount((np.asarray(trace.arrival) // STEP).astype(int))
        return np.asarray(steps / STEP, float)
    if not 0 <= low <= 1:
        raise RooflineError(f"the lowest rate of a day is a fraction of its peak, got {low}")
    hours = np.arange(0, DAY, STEP) / HOUR
    return float(peak or 0) * (low + (1 - low) * (1 + np.cos(2 * np.pi * (hours - 15) / 24)) / 2)


def _run(
    rates: Array, most: float, good: list[float], running: list[float], ttft: float, scaling: Scaling, random: Any
) -> tuple[Array, Array, Array, Array, int]:
    """Replicas that serve and start, the queue, and requests that miss their targets, in each step; replicas lost."""
    rows, queue, lost = np.zeros((4, rates.size)), 0.0, 0
    begin = math.ceil(float(rates[0]) / most / scaling.share)
    serving, scaler = min(max(begin, scaling.least), scaling.most), Scaler(scaling)
    seen = deque[float](maxlen=max(round(MEASURED / STEP), 1))
    arrivals = random.poisson(rates * STEP).astype(float)
    for step, came in enumerate(arrivals):
        now = step * STEP
        serving += scaler.begun(now)
        if scaling.loss and (gone := int(random.binomial(serving, -math.expm1(-scaling.loss * STEP / HOUR)))):
            each = min((came + queue) / STEP / max(serving, 1) / most, 1.0)
            queue += gone * float(np.interp(each, PARTS, running))
            serving, lost = serving - gone, lost + gone
        seen.append(came)
        queue += came
        served = min(queue, serving * most * STEP)
        queue -= served
        wait = queue / (serving * most) if serving else math.inf if queue else 0.0
        part = float(np.interp(served / STEP / serving / most, PARTS, good)) if serving else 0.0
        rows[:, step] = serving, len(scaler.starts), queue, rates[step] * STEP * (1 - part if wait <= ttft else 1.0)
        wanted = (sum(seen) / len(seen) / STEP + queue / MEASURED) / most / scaling.share
        serving -= scaler.stops(now, serving, wanted)
    return rows[0], rows[1], rows[2], rows[3], lost
