"""The verdict on a model, hardware and a load, and the answer that finds it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from roofline.advisor.advice import advise
from roofline.advisor.search.goal import Price
from roofline.advisor.search.moves import engine_techniques
from roofline.advisor.sizing.configurations import OFFERED
from roofline.core.display import Result
from roofline.core.errors import RooflineError
from roofline.core.options import Option
from roofline.launch.table import SERVERS, Server, server_of
from roofline.scenario.analysis import Analysis, ExpectedGeneration, static_batch
from roofline.scenario.cost import hourly_rent
from roofline.scenario.options import STATIC, missing
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import Curve, serve
from roofline.serving.options import LOAD_OPTIONS
from roofline.serving.outcome import NO_TARGETS, Outcome, Targets
from roofline.verdict.limit import Limit, limit_of
from roofline.verdict.plan import Plan, choose
from roofline.verdict.run import run_command
from roofline.whatif.metrics import find_metric

if TYPE_CHECKING:
    from roofline.specs.hardware import Hardware
    from roofline.specs.model import Model

GIVES_UP: Mapping[str, str] = {
    "weight format": "costs some accuracy",
    "KV format": "costs accuracy at long contexts",
    "speculative decoding": "needs a draft model as published",
    "overlap": "needs the engine to be set up for it",
}
"""The slots of techniques that an answer may propose, and what each gives up or needs."""

BUSY = 32
"""Sequences of the static batch that stands for a replica whose queue grows."""

AFFORDED = (Price.LOSSLESS, Price.ENGINEERING, Price.CALIBRATION)
"""What an answer may propose: nothing that needs training or loses quality by its design."""

TRIED = 4
"""Changes that are tried under load."""

WORTH = 1.05
"""The gain from which a change is proposed."""


class Change(Struct, frozen=True):
    """A change of the plan: its option, how many times better it gets, and what it gives up.

    Better are tokens/s, or the mean latency of requests that arrive at a rate. `meets`: whether the load and targets
    that the plan misses are met with it.
    """

    option: str
    gain: float
    gives_up: str
    meets: bool
    scenario: Scenario


class Verdict(Result, Struct, frozen=True, dict=True):
    """The answer: the plan, what it does for one user or under load, what limits it, and the next best change.

    `users` are the requests in flight, and `rate` requests/s that arrive; one user without both. `targets` are TTFT
    and TPOT in seconds at p95, infinite without one.
    """

    plan: Plan
    users: int | None
    rate: float | None
    targets: Targets
    hits: float = 0.0

    @property
    def scenario(self) -> Scenario:
        return self.plan.scenario

    @property
    def fits(self) -> bool:
        """Whether the model runs on the hardware."""
        return self.plan.fits

    @property
    def loaded(self) -> bool:
        """Whether the answer is that of a load, not of one user."""
        return self.users is not None or self.rate is not None

    def served(self, scenario: Scenario) -> Curve:
        """A deployment under the load."""
        options: dict[str, Any] = {"concurrency": self.users} if self.rate is None else {"rate": self.rate}
        ttft, tpot = (None if math.isinf(target) else target for target in self.targets)
        return serve(scenario, **options, prefix_hits=self.hits, ttft=ttft, tpot=tpot)

    @cached_property
    def curve(self) -> Curve | None:
        """The plan under its load; None for one user."""
        return self.served(self.scenario) if self.fits and self.loaded else None

    @property
    def outcome(self) -> Outcome | None:
        return None if self.curve is None else self.curve.outcomes[0]

    @cached_property
    def analysis(self) -> Analysis:
        """The static batch of one user, or of the requests that run on average."""
        running = 1.0 if self.outcome is None else self.outcome.running if self.outcome.stable else BUSY
        return static_batch(self.scenario, running)

    @cached_property
    def context(self) -> int:
        """The most tokens of a sequence while those of all users are in memory."""
        return self.plan.longest(self.at_once)

    @property
    def at_once(self) -> int:
        """The sequences that are in memory at once."""
        return 1 if self.outcome is None or not self.outcome.stable else max(1, math.ceil(self.outcome.running))

    @cached_property
    def limit(self) -> Limit:
        return limit_of(self.analysis, self.outcome)

    @cached_property
    def command(self) -> str:
        """The command that starts it under the load."""
        return run_command(self.scenario, self.context, None if self.curve is None else self.curve.load)

    @property
    def missed(self) -> Mapping[str, float]:
        """The targets that are missed, each with the value at p95 (s), or that of one user."""
        return _missed(self.outcome or self.analysis.expected, self.targets)

    @property
    def met(self) -> bool:
        """Whether the load is sustained within the targets."""
        return not self.missed and (self.outcome is None or self.outcome.stable)

    @property
    def hourly(self) -> float | None:
        """USD per hour of all devices; None without a price."""
        rent = hourly_rent(self.analysis)
        return None if rent is None else rent * self.plan.devices

    @property
    def usd_per_million_tokens(self) -> float | None:
        """USD per million output tokens, of one user or under the load; None without a price."""
        if self.hourly is None:
            return None
        if self.curve is not None and self.outcome is not None:
            return self.curve.cost(self.outcome)
        found = float(find_metric("cost.mid", "expected").figure(self.analysis))
        return None if math.isnan(found) else found

    @cached_property
    def better(self) -> Change | None:
        """The change of formats, speculation, overlap or layout that gains most; None where none gains 5%.

        Where the plan misses the load or a target, one that meets them comes first.
        """
        if not self.fits or self.analysis.decode is None:
            return None
        found = [change for change in (*self._techniques(), *self._layouts()) if math.isfinite(change.gain)]
        best = max(found, key=lambda change: (change.meets, change.gain), default=None)
        return best if best is not None and (best.gain >= WORTH or best.meets > self.met) else None

    def _techniques(self) -> Iterator[Change]:
        """The best techniques of a static batch of the requests that run, each under the load."""
        scenario = self.scenario.with_(batch=int(self.analysis.scenario.batch)) if self.loaded else self.scenario
        moves = [move for move in engine_techniques(scenario) if move.slot in GIVES_UP and move.price in AFFORDED]
        try:
            advice = advise(scenario, moves=moves, objective="tpot", top=0)
        except RooflineError:
            return
        server = own_server(self.scenario)
        for each in advice.recommendations[:TRIED]:
            name, scheme = each.move.name, each.move.name.removeprefix("gguf:type=")
            if server is not None and technique_missing(server, name):
                continue
            option = f"--quant {OFFERED.get(scheme, scheme)}" if name in SCHEMES else f"--with {name}"
            changed = each.trial.scenario.without("batch")
            gain, expected = float(each.better.mid), each.trial.analysis.expected
            yield from self._change(option, GIVES_UP[each.move.slot], changed, gain, expected)

    def _layouts(self) -> Iterator[Change]:
        """Replicas in place of devices that share every layer, under load: with experts spread over all of them."""
        devices, parallel, profile = self.plan.devices, self.scenario.settings.parallel, self.scenario.profile
        if not self.loaded or devices == 1 or parallel.tensor * parallel.pipeline < devices or profile.split_layers:
            return
        experts = bool(self.scenario.model.experts)
        spread: dict[str, Any] = {"tp": 1, "pp": 1, "dp": devices, "enable_expert_parallel": experts or None}
        option = f"--dp {devices}{' --enable-expert-parallel' if experts else ''}"
        with suppress(RooflineError):
            changed = self.scenario.with_(**spread)
            yield from self._change(option, f"{'attention' if experts else 'weights'} on every device", changed)

    def _change(
        self, option: str, gives_up: str, scenario: Scenario, gain: float = 1, alone: ExpectedGeneration | None = None
    ) -> Iterator[Change]:
        """A change with its gain: as simulated for one user (`alone`), or under the load, if it can be served."""
        found: Outcome | ExpectedGeneration | None = alone
        if self.outcome is not None:
            try:
                found = outcome = self.served(scenario).outcomes[0]
            except RooflineError:
                return
            gain = _speed(outcome, self.rate) / _speed(self.outcome, self.rate) if self.outcome.stable else 1
        if found is not None:
            meets = not _missed(found, self.targets) and (not isinstance(found, Outcome) or found.stable)
            yield Change(option, gain, gives_up, meets, scenario)


def _missed(found: Outcome | ExpectedGeneration, targets: Targets) -> dict[str, float]:
    """The targets that are missed, each with the value at p95 of a load, or that of one user (s)."""
    if isinstance(found, Outcome):
        values = {"ttft": found.ttft.p95.mid, "tpot": found.tpot.p95.mid}
    else:
        values = {"ttft": found.ttft.mid, "tpot": 0.0 if found.tpot is None else found.tpot.mid}
    pairs = zip(values.items(), targets, strict=True)
    return {name: float(value) for (name, value), target in pairs if math.isfinite(target) and not value <= target}


def _speed(outcome: Outcome, rate: float | None) -> float:
    """What a change improves: tokens/s of a closed loop, or one over the latency of requests that arrive at a rate."""
    if rate is None:
        return outcome.output_tokens_per_second
    return 1 / outcome.e2e.mean.mid if outcome.stable else math.nan


def own_server(scenario: Scenario) -> Server | None:
    """The server of an engine that runs on the devices of a vendor alone (MLX); None for others."""
    name = scenario.profile.name
    server = server_of(name) if name in SERVERS else None
    return server if server is not None and server.vendors else None


def technique_missing(server: Server, technique: str) -> bool:
    """Whether a server neither reads what a technique makes, nor has it."""
    return technique not in server.drafts and technique.partition(":")[0] not in server.loads


SCHEMES = (*OFFERED, "gguf:type=q8_0", "gguf:type=q4_k_m")
"""Techniques that are also named as a scheme."""


ASKED = ("concurrency", "rate", "ttft", "tpot", "prefix_hits")
"""Options of a load that an answer takes; `users` is another name of the concurrency."""


def answer(
    model: str | os.PathLike[str] | Model | None = None,
    hw: str | os.PathLike[str] | Hardware | None = None,
    /,
    **options: Any,
) -> Verdict:
    """Whether a model runs on hardware, how fast, what limits it, what would help and what it costs.

    >>> from roofline import answer
    >>> found = answer("llama-3.3-70b", "2x4090")
    >>> found.fits, found.scenario.profile.name, found.scenario.given("quant")
    (True, 'vllm', 'awq')

    `options` are those of a scenario, but for a static batch's, and `users` (or `concurrency`), `rate`, `ttft`, `tpot`
    and `prefix_hits` of a load. Engine, formats and layout are chosen where they are not given (`Plan`). Raises
    RooflineError for options that no scenario has, and where the engine cannot run the model at all.
    """
    given = {"model": model, "hw": hw, **options}
    if "users" in given:
        given["concurrency"] = given.pop("users")
    load = {name: _read(LOAD_OPTIONS[name], given.pop(name, None)) for name in ASKED}
    if load["concurrency"] is not None and load["rate"] is not None:
        raise RooflineError("users and rate are two loads: give one of them")
    for name in ("model", "hw"):
        if given[name] is None:
            raise RooflineError(missing(name), options=["hw"] if name == "hw" else [])
    if static := [name for name in STATIC if given.get(name) is not None]:
        raise RooflineError(f"{static[0]} is of a static batch, which 'roofline analyze' has; here it is users or rate")
    targets = tuple(NO_TARGETS[0] if load[name] is None else load[name] for name in ("ttft", "tpot"))
    users = load["concurrency"]
    asked = Scenario(**{name: value for name, value in given.items() if value is not None})
    schemes: Sequence[str] = ()
    if (server := own_server(asked)) is not None:
        server.check_vendor(asked.hardware.vendor)
        schemes = server.loads
    plan = choose(asked, users or 1, schemes)
    return Verdict(
        plan, users if users != 1 else None, load["rate"], (targets[0], targets[1]), load["prefix_hits"] or 0
    )


def _read(option: Option, value: Any) -> Any:
    """The value of an option of a load: one, as an answer is that of one load."""
    if option.name == "rate" and isinstance(value, str):
        value = value.strip().removesuffix("/s")
    return option.read(value)
