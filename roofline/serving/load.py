"""The load of a deployment: how requests arrive, and their lengths.

    closed    a fixed number of requests in flight: each completion sends the next (`concurrency`)
    open      a rate of requests/s; the gaps are gamma-distributed with a coefficient of variation `burstiness`^(-1/2),
              so that 1 is a Poisson process and less is burstier (vLLM's benchmark has the same parameter)
    offline   all requests at once
    trace     arrival times and lengths of a file (`roofline.serving.traces`)

A benchmark of a closed loop sends its first `concurrency` requests at once; `rounds` is its number of requests over the
concurrency, None a loop without end.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple, force_setattr, replace
from numpy.typing import NDArray

from roofline.core.errors import RooflineError, UnknownNameError, quote
from roofline.core.limits import MAX_CONCURRENCY, MAX_RATE
from roofline.scenario.argument import scenario_of
from roofline.scenario.lengths import Lengths, as_number, parse_lengths
from roofline.scenario.options import MEANT, OPTIONS, STATIC
from roofline.scenario.scenario import Scenario
from roofline.serving.tables import Array


class Arrivals(StrEnum):
    """How requests arrive."""

    CLOSED = "closed"
    OPEN = "open"
    OFFLINE = "offline"
    TRACE = "trace"


OF_ARRIVALS = {"burstiness": "rate", "rounds": "concurrency", "ramp": "concurrency"}
"""Fields of a load that are of one kind of arrivals."""

OF_A_BATCH = tuple(name for name in STATIC if name != "prefix")
"""Options of a static batch; a cached prefix is one of each request as well."""

LENGTHS = ("prompt", "generate", "prefix")

STARTUP = 120.0
"""Seconds until an instance serves in the place of a lost one, by default."""

ONE = parse_lengths(1, "generate")
"""The output of a request to a model that only encodes."""


def told(scenario: Scenario, names: Iterable[str]) -> list[str]:
    """The options among `names` that a scenario was given, other than with their default."""
    return [name for name in names if scenario.asked and OPTIONS[name].differs(scenario.given(name))]


def served_scenario(scenario: object) -> Scenario:
    """The scenario that a verb serves under load. Raises RooflineError for options of a static batch."""
    found = scenario_of(scenario)
    if own := told(found, OF_A_BATCH):
        means, them = ("mean", "them") if len(own) > 1 else ("means", "it")
        raise RooflineError(f"{' and '.join(own)} {means} nothing under load: omit {them}", options=own)
    return found.laid_out_for(math.inf)


class Trace(Struct, frozen=True):
    """Requests of a trace: arrival in seconds from the first, prompt and output tokens, cached prompt tokens."""

    arrival: tuple[float, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    cached: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.arrival)
        lengths = [len(column) for column in (self.prompt, self.output, self.cached or self.arrival)]
        if not count or any(length != count for length in lengths):
            raise RooflineError("a trace needs at least one request, and as many values in each of its columns")
        ordered = list(self.arrival) == sorted(self.arrival)
        if not ordered or min(self.arrival) < 0 or not all(map(math.isfinite, self.arrival)):
            raise RooflineError("the arrivals of a trace must be seconds from 0 on, in order")
        if min(self.prompt) < 1 or min(self.output) < 1:
            raise RooflineError("the requests of a trace must have at least one token of prompt and of output")
        if any(not 0 <= kept <= tokens for kept, tokens in zip(self.cached, self.prompt, strict=False)):
            raise RooflineError("the cached tokens of a trace must be between 0 and those of the prompt")

    @property
    def tokens(self) -> list[int]:
        """Tokens of prompt and output of each request."""
        return [prompt + output for prompt, output in zip(self.prompt, self.output, strict=True)]


class Rollouts(Struct, frozen=True):
    """So many `steps`, requests begun over those that a step waits for, and seconds in which weights come."""

    steps: int = 1
    over: float = 1.0
    sync: float = 0.0


class _ByName(type(Struct)):  # type: ignore[misc]
    """Its classes refuse the names of fields that they lack as scenarios refuse unknown options."""

    def __call__(cls, *values: Any, **named: Any) -> Any:
        for name in named.keys() - set(cls.__struct_fields__):
            hint = f"; {MEANT[name]}" if name in MEANT else ""
            raise UnknownNameError("option of a load", name, () if hint else cls.__struct_fields__, hint=hint)
        return super().__call__(*values, **named)


class Load(Struct, frozen=True, metaclass=_ByName):
    """The requests of a deployment: exactly one of `concurrency`, `rate`, `offline` (requests) and `trace`.

    `prompt` and `generate` are lengths in tokens as of `parse_lengths`; None are the scenario's (`of`). `hits` is the
    fraction of a prompt that is in the prefix cache. `beside` are the tokens of images and audio that every prompt has
    besides those of `prompt`. `tenants`: the shares of requests by tenant, () for one; `policy`: which request is next
    (`roofline.serving.policies`) or where it goes (`roofline.serving.replicas`), of which only simulations know. `loss`
    are the instances that are lost an hour, of one, and `startup` the seconds until another serves. `models` of
    tenants are on each replica where these share them (None: all). `rollouts`: an offline load is one step of several.
    Raises RooflineError.
    """

    prompt: float | str | Lengths | None = None
    generate: float | str | Lengths | None = None
    concurrency: int | None = None
    rate: float | None = None
    offline: int | None = None
    trace: Trace | None = None
    burstiness: float = 1.0
    hits: float = 0.0
    rounds: float | None = None
    ramp: float = 0.0
    beside: int = 0
    tenants: tuple[float, ...] = ()
    policy: str = "fcfs"
    loss: float = 0.0
    startup: float = STARTUP
    models: int | None = None
    rollouts: Rollouts | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("concurrency", "rate", "offline", "trace") if getattr(self, name) is not None]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise RooflineError(f"a load is one of concurrency, rate, offline and trace, got {found}")
        for name in ("concurrency", "offline"):
            count = getattr(self, name)
            if count is not None and not (type(count) is int and 1 <= count <= MAX_CONCURRENCY):
                raise RooflineError(f"{name} must be an integer from 1 to {MAX_CONCURRENCY}, got {quote(count)[1:-1]}")
        for name in ("rate", "burstiness", "rounds"):
            value = getattr(self, name)
            if value is not None and not (finite_number(value) > 0):
                raise RooflineError(f"{name} must be above 0, got {quote(value)[1:-1]}")
        if not (finite_number(self.ramp) >= 0):
            raise RooflineError(f"the seconds between the first requests must be at least 0, got {quote(self.ramp)}")
        if not 0 <= finite_number(self.hits) < 1:
            raise RooflineError(f"prefix_hits must be at least 0 and below 1, got {quote(self.hits)[1:-1]}")
        if not all(1 / MAX_RATE <= finite_number(share) <= MAX_RATE for share in self.tenants):
            shares = quote(",".join(map(str, self.tenants)))
            raise RooflineError(f"tenants are shares from 1e-06 to {MAX_RATE:g}, got {shares}", options=["tenants"])
        if self.startup != STARTUP and not self.loss:
            raise RooflineError("startup is that of instances that are lost: say how many an hour", options=["loss"])
        if self.models is not None and not 1 <= self.models <= len(self.tenants):
            raise RooflineError(
                f"a replica has 1 to {len(self.tenants)} models, those of the tenants", options=["models"]
            )
        if self.rollouts is not None and self.offline is None:
            raise RooflineError("rollouts are steps of an offline load: say how many requests", options=["offline"])
        for name, kind in OF_ARRIVALS.items():
            if kind not in given and getattr(self, name) not in (None, 1.0 if name == "burstiness" else 0.0):
                raise RooflineError(f"{name} is for a load with {kind}: omit it with {given[0]}", options=[name])
        for name in ("prompt", "generate"):
            if (lengths := getattr(self, name)) is not None:
                if self.trace is not None:
                    raise RooflineError(f"a trace has its own lengths: omit {name}", options=[name])
                force_setattr(self, name, parse_lengths(lengths, name))

    def of(self, scenario: Scenario) -> Load:
        """The load with the lengths of a scenario, whose cached prefix is in the prefix cache, and outputs that vary.

        Raises RooflineError for lengths that both have, and differ.
        """
        if scenario.shape:
            raise RooflineError("a load is served by one deployment: the scenario's workload must not be an array")
        beside = int(scenario.images * scenario.image_tokens)
        if self.trace is not None:
            if given := told(scenario, LENGTHS):
                raise RooflineError(f"a trace has its own lengths: omit {' and '.join(given)}", options=given)
            return replace(self, beside=beside)
        lengths = dict(zip(("prompt", "generate"), scenario.lengths, strict=True))
        if scenario.model.task == "encode":
            if told(scenario, ("generate",)):
                raise RooflineError(f"{scenario.model.name} only encodes: omit generate", options=["generate"])
            self = replace(self, generate=ONE)
            lengths["generate"] = ONE
        for name, own in lengths.items():
            found = getattr(self, name)
            known = scenario.asked and scenario.given(name) is not None
            if found is not None and known and found not in (own, own.scattered):
                raise RooflineError(f"{name} is {own.written} in the scenario and {found.written} in the load")
        prompt, generate = self.prompt or lengths["prompt"], self.generate or lengths["generate"]
        prefix = int(scenario.prefix)
        if not prefix or self.prompt is not None:
            return replace(self, prompt=prompt, generate=generate, beside=beside).apart
        if self.hits or lengths["prompt"].varies:
            raise RooflineError(
                "a cached prefix beside prefix_hits or a distribution of prompts: give prefix_hits alone"
            )
        whole = float(prefix + scenario.prompt)
        hits = prefix / (whole + beside)
        return replace(self, prompt=whole, generate=generate, hits=hits, beside=beside).apart

    @property
    def apart(self) -> Load:
        """The load as users send it: outputs of a closed loop that are written as a number vary about it.

        Requests in flight of exactly one length (`fixed:500`) end together, and so their prompts are computed together:
        a lockstep that real requests do not have. Arrivals at a rate have none, and requests at once are one batch.
        """
        return self if self.concurrency is None else replace(self, generate=self.outputs.scattered)

    def within(self, room: float) -> Load:
        """The load; where outputs longer than a number would not fit into so many tokens, all have that length."""
        if self.trace is not None or (number := as_number(self.outputs.written)) is None:
            return self
        longest = self.longest + self.outputs.quantile(1.0) - number
        return self if longest <= room else replace(self, generate=parse_lengths(number, "generate"))

    @property
    def arrivals(self) -> Arrivals:
        """How requests arrive."""
        if self.concurrency is not None:
            return Arrivals.CLOSED
        if self.rate is not None:
            return Arrivals.OPEN
        return Arrivals.OFFLINE if self.offline is not None else Arrivals.TRACE

    @property
    def prompts(self) -> Lengths:
        """The lengths of prompts."""
        assert isinstance(self.prompt, Lengths), "the load has those of a scenario"
        return self.prompt

    @property
    def means(self) -> tuple[float, float]:
        """Mean tokens of prompt and output."""
        if self.trace is not None:
            return self.beside + float(np.mean(self.trace.prompt)), float(np.mean(self.trace.output))
        return self.beside + self.prompts.mean, self.outputs.mean

    @property
    def biased_output(self) -> float:
        """The length-biased mean of outputs, E[x^2] / E[x]: of the sequences that run at a random moment."""
        if self.trace is None:
            return self.outputs.biased
        tokens = np.array(self.trace.output, float)
        return float((tokens**2).mean() / tokens.mean())

    @property
    def held(self) -> float:
        """Mean tokens in the KV cache of a sequence that decodes."""
        return self.means[0] + self.biased_output / 2

    @property
    def longest(self) -> float:
        """Tokens of the longest request: its prompt and output, at the 99.9th percentile of a distribution."""
        if self.trace is not None:
            return float(self.beside + max(self.trace.tokens))
        return self.beside + self.prompts.ends[1] + self.outputs.ends[1]

    @property
    def shortest(self) -> float:
        """Tokens of the shortest request."""
        if self.trace is not None:
            return float(self.beside + min(self.trace.tokens))
        return self.beside + self.prompts.ends[0] + self.outputs.ends[0]

    @property
    def outputs(self) -> Lengths:
        """The lengths of outputs."""
        assert isinstance(self.generate, Lengths), "the load has those of a scenario"
        return self.generate


def share_of(load: Load, copies: int) -> Load:
    """The load of one of several equal replicas."""
    if load.trace is not None:
        return replace(load, trace=Trace(*(column[::copies] for column in astuple(load.trace))))
    if load.rate is not None:
        return replace(load, rate=load.rate / copies)
    if load.concurrency is not None:
        return replace(load, concurrency=math.ceil(load.concurrency / copies))
    assert load.offline is not None
    return replace(load, offline=math.ceil(load.offline / copies))


def equal_shares(load: Load, copies: int) -> float:
    """How many such shares the load is: fewer than the replicas where requests in whole numbers leave some idle."""
    whole = load.concurrency or load.offline
    return copies if whole is None else whole / math.ceil(whole / copies)


def finite_number(value: object) -> float:
    """A finite number; NaN for anything else."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    return float(value) if real and math.isfinite(value) else math.nan  # type: ignore[arg-type]


class Requests(NamedTuple):
    """Requests in order of arrival.

    Times are in seconds, 0 for the first of a closed loop; `prompt` are tokens to compute, `cached` those that are not.
    """

    arrival: Array
    prompt: NDArray[np.int64]
    output: NDArray[np.int64]
    cached: NDArray[np.int64]


def count_of(load: Load, requests: int) -> int:
    """The requests of a run: all of an offline load, `rounds` of a closed loop, else `requests`."""
    if load.concurrency is not None and load.rounds is not None:
        return max(1, round(load.rounds * load.concurrency))
    return load.offline or requests


def draw(load: Load, count: int, seed: int = 0) -> Requests:
    """`count` requests of a load, all of a trace; equal seeds draw equal requests."""
    if load.trace is not None:
        trace = load.trace
        cached = np.array(trace.cached or np.zeros(len(trace.prompt)), np.int64)
        prompt = np.array(trace.prompt, np.int64) + load.beside
        hits = np.maximum(cached, np.floor(load.hits * prompt).astype(np.int64))
        return computed(np.array(trace.arrival, float), prompt, np.array(trace.output, np.int64), hits)
    random = np.random.default_rng(seed)
    prompt, output = (
        np.maximum(np.round(lengths.inverse(random.random(count))), 1).astype(np.int64) + beside
        for lengths, beside in ((load.prompts, load.beside), (load.outputs, 0))
    )
    gaps = np.zeros(count)
    if load.concurrency is not None:
        gaps[1 : load.concurrency] = load.ramp
    if load.rate is not None:
        gaps = random.gamma(load.burstiness, 1 / (load.burstiness * load.rate), count)
        gaps[0] = 0.0
    return computed(np.cumsum(gaps), prompt, output, np.floor(load.hits * prompt).astype(np.int64))


def computed(arrival: Array, prompt: NDArray[np.int64], output: NDArray[np.int64], hits: NDArray[np.int64]) -> Requests:
    """The requests, of which at least one token of the prompt is computed."""
    cached = np.minimum(hits, prompt - 1)
    return Requests(arrival, prompt - cached, output, cached)
