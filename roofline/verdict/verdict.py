"""The verdict on a plan under a load: how fast it is, what limits it, what would help, and what starts it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.advice import Recommendation, advise
from roofline.advisor.chosen import plan_for, relaid
from roofline.advisor.fitting import Fit, written
from roofline.advisor.formats import no_narrower
from roofline.advisor.judged import as_served, judged, missed, unready
from roofline.advisor.judged import gain as times_better
from roofline.advisor.planned import Candidate, Plan
from roofline.advisor.search.moves import engine_techniques
from roofline.advisor.sizing.configurations import OFFERED
from roofline.advisor.sizing.sizing import size
from roofline.core.display import Result
from roofline.core.errors import RooflineError
from roofline.core.search import last_before_failure_scalar
from roofline.launch.bundle import refused
from roofline.scenario.analysis import Analysis, ExpectedGeneration, analyze, static_batch
from roofline.scenario.cost import hourly_rent, rent
from roofline.scenario.options import OPTIONS
from roofline.scenario.scenario import Scenario
from roofline.serving.curve import Curve, serve
from roofline.serving.layouts import Layout
from roofline.serving.load import Load
from roofline.serving.outcome import Outcome, Targets, targets_or_usual
from roofline.serving.replica import replica_of
from roofline.serving.steady import largest_rate
from roofline.specs.prices import rents
from roofline.specs.servers import SERVERS
from roofline.techniques.base import Price
from roofline.techniques.unsupported import not_started, unsupported
from roofline.verdict.limit import Limit, Part, limit_of
from roofline.verdict.run import run_command
from roofline.whatif.metrics import find_metric

GIVES_UP: Mapping[str, str] = {
    "weight format": "costs some accuracy",
    "KV format": "costs accuracy at long contexts",
    "speculative decoding": "needs a trained draft model",
    "overlap": "needs the engine to be set up for it",
}
"""The slots of techniques that an answer may propose, and what each gives up or needs."""

DRAFTS: Mapping[str, str] = {
    "prompt-lookup": "pays where outputs repeat their prompt",
    "lookahead": "pays where outputs repeat themselves",
    "multi-token-prediction": "uses its own MTP",
    "speculative-decoding": "needs the draft model's memory",
}
"""What the methods of speculation need that are no draft trained for the model."""

BUSY = 32
"""Sequences of the static batch that stands for a replica whose queue grows."""

CROWDED = 0.9
"""The share of the time of the front end from which it is the limit."""

AFFORDED = (Price.LOSSLESS, Price.ENGINEERING, Price.CALIBRATION)
"""What an answer may propose: nothing that needs training or loses quality by its design."""

TRIED = 4
"""Changes that are tried under load."""

REPLICAS = (2, 4, 8, 16, 32, 64)
"""Replicas of a plan that are tried to serve a load, before the numbers between them."""

WORTH = 1.05
"""The gain from which a change is proposed."""


class Change(Struct, frozen=True):
    """A change of the plan: its option, how many times better it gets, and what it gives up.

    Better are tokens/s, the mean latency of requests that arrive at a rate, or TTFT where that is missed (`late`).
    `meets`: whether the load and targets that the plan misses are met with it.
    """

    option: str
    gain: float
    gives_up: str
    meets: bool
    scenario: Scenario


class Verdict(Result, Struct, frozen=True, dict=True):
    """The answer: the plan, what it does for one user or under load, what limits it, and the next best change.

    `load` are requests in flight or a rate at which they arrive; None is one user. `asked` are the targets of TTFT and
    TPOT in seconds at p95, infinite without one. `apart` says in words how many replicas prefill and decode have
    where they are apart (`parse_pools`).
    """

    plan: Plan
    load: Load | None
    asked: Targets
    apart: str = ""

    @property
    def targets(self) -> Targets:
        """The targets that were asked, and of a load the usual ones in place of others."""
        return targets_or_usual(*self.asked, self.loaded, self.scenario.model.task == "generate")

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
        return self.load is not None

    @property
    def users(self) -> int | None:
        """Requests in flight; None for a rate or one user."""
        return None if self.load is None else self.load.concurrency

    @property
    def rate(self) -> float | None:
        """Requests/s that arrive; None for users."""
        return None if self.load is None else self.load.rate

    @cached_property
    def curve(self) -> Curve | None:
        """The plan under its load; None for a static batch of one, and where nothing can be served."""
        answers = self.fits and not self.too_long
        return self._served(self.scenario) if answers and self.load is not None else None

    def _served(self, scenario: Scenario) -> Curve:
        return serve(scenario, self.load, draft_limit=False, disaggregation=self.apart or None)

    @cached_property
    def too_long(self) -> str:
        """How many tokens the model takes, in a sentence, where the sequences have more; "" where they do not."""
        return analyze(self.scenario.at(batch=1)).too_long

    @cached_property
    def largest_rate(self) -> float | None:
        """The most sequences/s of a model that only encodes; None of others, and under a load."""
        if self.scenario.model.task != "encode" or self.loaded:
            return None
        try:
            load = Load(rate=1.0).of(self.scenario)
            return largest_rate(replica_of(self.scenario, load), load)
        except RooflineError:
            return None

    @property
    def outcome(self) -> Outcome | None:
        return None if self.curve is None else self.curve.outcomes[0]

    @cached_property
    def analysis(self) -> Analysis:
        """The static batch of one user, or of the requests that run on average."""
        running = 1.0 if self.outcome is None else self.outcome.running if self.outcome.stable else BUSY
        return static_batch(self.scenario, running)

    @property
    def alone(self) -> ExpectedGeneration:
        """What a user alone sees of the server."""
        return as_served(self.scenario, self.analysis.expected)

    @cached_property
    def context(self) -> int:
        """The most tokens of a sequence while those of all users are in memory, or as many as have room (`at_once`)."""
        longest, shared = self.plan.longest(self.at_once), self.scenario.given("ctx_size")
        return longest if shared is None else min(longest, shared // self.at_once)

    @cached_property
    def at_once(self) -> int:
        """The sequences that are in memory at once: `slots`, where they have room."""
        return max(1, self.plan.candidate.room(self.slots))

    @property
    def slots(self) -> int:
        """The requests that the server takes at once: the users, or of a rate as many as run for 98% of the time."""
        if self.users is not None or self.outcome is None or not self.outcome.stable:
            return self.users or 1
        most = self.scenario.profile.scheduler.sequences or math.inf  # as its server has them without being told
        return int(min(most, math.ceil(self.outcome.running + 2 * math.sqrt(self.outcome.running))))

    @cached_property
    def limit(self) -> Limit:
        if self.curve is not None and self.outcome is not None:
            used = self.outcome.requests_per_second * self.curve.replica.scheduler.front(self.curve.load.means[0])
            if used > CROWDED * self.curve.replica.copies:
                return Limit(Part.FRONT, min(used / self.curve.replica.copies, 1.0), Part.FRONT)
            if not self.outcome.stable and self.outcome.saturated_at:  # the prompts of the rate that is sustained
                share = float(self.analysis.prefill.expected.mid) / BUSY * self.outcome.saturated_at
                return limit_of(self.analysis, replace(self.outcome, prefill_share=min(share, 1.0)))
        return limit_of(self.analysis, self.outcome)

    @cached_property
    def command(self) -> str:
        """The command that starts it under the load."""
        load = None if self.curve is None else self.curve.load
        return run_command(self.scenario, self.context, load, self.at_once, self.apart)

    @property
    def missed(self) -> Mapping[str, float]:
        """The targets that are missed, each with the value at p95 (s), or that of one user."""
        return missed(self.outcome or self.alone, self.targets)

    @property
    def slow(self) -> bool:
        """Whether usual targets alone are missed, none that was asked."""
        return bool(self.missed) and not missed(self.outcome or self.alone, self.asked)

    @property
    def late(self) -> bool:
        """Whether TTFT of one user alone is missed, which no faster decoding mends."""
        return not self.loaded and self.missed.keys() == {"ttft"}

    @property
    def met(self) -> bool:
        """Whether the load is sustained within the targets."""
        return not self.too_long and not self.missed and (self.outcome is None or self.outcome.stable)

    @property
    def hourly(self) -> float | None:
        """USD per hour of all devices; None without a price."""
        if self.apart and self.curve is not None:
            return rent(self.curve.pools, self.scenario.price)
        each = hourly_rent(self.analysis)
        return None if each is None else each * self.devices

    @property
    def devices(self) -> int:
        """The devices of all replicas."""
        return sum(count for _, count in self.curve.pools) if self.apart and self.curve else self.plan.devices

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

        Where the plan misses the load or a target, one that meets them comes first. Of what the engine does not start,
        there is none.
        """
        if not self.fits or self.too_long or self.analysis.decode is None or not_started(self.scenario):
            return None
        changes = [*self._techniques(), *self._layouts(), *self._seats()]
        if not self.met and not any(change.meets for change in changes):
            changes += self._devices()
        found = [change for change in changes if math.isfinite(change.gain)]
        best = max(found, key=lambda change: (change.meets, change.gain / unready(change.scenario)), default=None)
        best = best and self._on_its_layout(best)
        return best if best is not None and (best.gain >= WORTH or best.meets > self.met) else None

    def _techniques(self) -> Iterator[Change]:
        """The best techniques of a static batch of the requests that run, each under the load."""
        scenario = self.scenario.with_(batch=int(self.analysis.scenario.batch)) if self.loaded else self.scenario
        moves = [move for move in engine_techniques(scenario) if move.slot in GIVES_UP and move.price in AFFORDED]
        try:
            advice = advise(scenario, moves=moves, objective="ttft" if self.late else "tpot", top=0)
        except RooflineError:
            return
        told = ((each, *self._as_said(each)) for each in advice.recommendations)
        for each, option, changed in islice((one for one in told if self._proposes(one[0], one[2])), TRIED):
            gives_up = DRAFTS.get(each.move.name.partition(":")[0], GIVES_UP[each.move.slot])
            yield from self._change(option, gives_up, changed, float(each.better.mid), each.trial.analysis.expected)

    def _as_said(self, recommended: Recommendation) -> tuple[str, Scenario]:
        """The option of a technique, and the scenario that has it."""
        name, changed = recommended.move.name, recommended.trial.scenario.without("batch")
        if name not in SCHEMES:
            return f"--with {name}", changed
        scheme = name.removeprefix("gguf:type=")
        scheme = OFFERED.get(scheme, scheme)
        with suppress(RooflineError):  # formats of its own, which no server is told
            changed = self.scenario.with_(quant=scheme)
        return f"--quant {scheme}", changed

    def serves(self, scenario: Scenario) -> bool:
        """Whether a scenario sustains the load within the targets; true of one user."""
        return self.load is None or judged(scenario, self.load, self.targets).served

    @cached_property
    def fits_with(self) -> tuple[Fit, ...]:
        """Changes with which the model fits, the fastest first; under load also devices that serve all of it."""
        fits = self.plan.fits_with
        enough = None if any(self.serves(fit.scenario) for fit in fits) else self._enough
        return fits if enough is None else tuple(sorted((*fits, enough), key=lambda fit: -fit.tokens_per_s))

    def started_with(self, fit: Fit) -> str:
        """The command that starts a change with which the model fits, for the load where that can be served."""
        candidate = Candidate(fit.scenario, dict(fit.options))
        load = None if self.apart or judged(fit.scenario, self.load, self.targets).value < 0 else self.load
        return Verdict(Plan(candidate, True, self.plan.tried, load, self.targets), load, self.asked).command

    @cached_property
    def _enough(self) -> Fit | None:
        """Devices of the same kind that serve the load, as `size` finds them; None without a load, or such devices."""
        asked, load = self.plan.tried[0].scenario, self.load
        if load is None or self.apart or asked.given("dp") is not None:
            return None
        ttft, tpot = (None if math.isinf(limit) else limit for limit in self.targets)
        service: dict[str, Any] = {"concurrency": load.concurrency, "rate": load.rate, "ttft": ttft, "tpot": tpot}
        service |= {"prefix_hits": load.hits} if load.hits else {}
        with suppress(RooflineError):
            for choice in size(asked, hw=[asked.hardware.name], most=1, **service).choices:
                best, own = choice.best, choice.best.configuration
                formats = {name: own.changes[name] for name in ("quant", "kv") if name in own.changes}
                laid_out = Layout(**own.degrees, copies=best.replicas).options(asked.model)
                if laid_out is None:  # replicas that divide experts are no options: as an answer lays them out
                    for count in (best.devices, 2 * best.devices):
                        hw = f"{count}x{asked.hardware.name}"
                        found = plan_for(asked.with_(hw=hw), load, self.targets).scenario
                        if self.serves(found):
                            (outcome,) = serve(found, load, draft_limit=False).outcomes
                            return Fit({"hw": hw}, found, outcome.output_tokens_per_second)
                    return None
                found = asked.with_(hw=asked.hardware.name, **formats, **laid_out)
                options = {"hw": f"{best.devices}x{asked.hardware.name}", **formats}
                return Fit(options, found, best.outcome.output_tokens_per_second * best.replicas)
        return None

    @cached_property
    def refused(self) -> str:
        """Why no command starts the engine's server so; "" where one does."""
        return refused(self.scenario, self.slots)

    @cached_property
    def instead(self) -> str:
        """An option or the devices nearest in rent, with which a server starts where the engine's does not."""
        given = self.scenario.given("kv")
        without: list[tuple[str, dict[str, Any]]] = [("without --kv", {"kv": None})] if given is not None else []
        others = [(f"with --engine {name}", {"engine": name}) for name in SERVERS if name != self.scenario.profile.name]
        rented, own = rents(), hourly_rent(self.analysis) or 0.0
        near = sorted(rented, key=lambda name: abs(rented[name] - own))
        count = f"{self.devices}x" if self.devices > 1 else ""
        elsewhere = [(f"on {count.replace('x', ' x ')}{name}", {"hw": f"{count}{name}"}) for name in near]
        started = not not_started(self.scenario)
        changes = [*without, *others, *([] if started else elsewhere)]
        for told, options in changes if not started or self.refused else []:
            with suppress(RooflineError):
                changed = self.scenario.with_(**options)
                if not unsupported(changed) and not refused(changed, self.slots) and analyze(changed).memory.fits:
                    return told
        return ""

    def _launches(self, scenario: Scenario) -> bool:
        """Whether a server runs a change; of plans that none runs, any change does."""
        return bool(self.refused) or not refused(scenario, self.slots)

    def _proposes(self, recommended: Recommendation, changed: Scenario) -> bool:
        """Whether a server runs a technique, and it is not another name of as many bits."""
        own, other = self.scenario.run_precision, changed.run_precision
        scheme = recommended.move.name.partition(":")[0]
        renames = recommended.move.slot == "weight format" and no_narrower(self.scenario.model, own, other, scheme)
        return not renames and self._launches(changed)

    @property
    def _laid_out(self) -> bool:
        """Whether the plan has the best of all layouts, since none was asked for."""
        return len(self.plan.tried) > 1 and bool(self.plan.tried[0].scenario.counted)

    def _layouts(self) -> Iterator[Change]:
        """The best other layout of the devices under load, where one was asked for: the plan has the best otherwise."""
        if self.load is None or self.apart or self.plan.devices == 1 or self._laid_out:
            return
        if (found := relaid(self.scenario, self.load, self.targets)) is not None:
            yield from self._change(written(found.options), _spread(found.scenario), found.scenario)

    def _on_its_layout(self, change: Change) -> Change:
        """A change of formats on the layout that is best with them, where none was asked for; other changes as are."""
        same = change.scenario.run_precision == self.scenario.run_precision
        if same or self.load is None or self.apart or not self._laid_out:
            return change
        if (found := relaid(change.scenario, self.load, self.targets)) is None:
            return change
        option = f"{change.option} {written(found.options)}"
        return next(self._change(option, change.gives_up, found.scenario), change)

    def _seats(self) -> Iterator[Change]:
        """As many requests at once as there are users, where fewer were asked."""
        seats = self.scenario.given("max_num_seqs")
        if seats is not None and self.users is not None and seats < self.users:
            with suppress(RooflineError):
                changed = self.scenario.with_(max_num_seqs=self.users)
                option = f"{OPTIONS['max_num_seqs'].flag} {self.users}"
                yield from self._change(option, "has more requests in each step", changed)

    def _devices(self) -> Iterator[Change]:
        """The fewest replicas of the plan that serve the load, each a part of it; none of those that divide experts."""
        parallel, load = self.scenario.settings.parallel, self.load
        if load is None or self.apart or (parallel.expert > 1 and parallel.data > 1):
            return
        whole, rate = load.concurrency, load.rate

        def serves(copies: int) -> bool:
            users = None if whole is None else math.ceil(whole / copies)
            part = replace(load, concurrency=users, rate=None if rate is None else rate / copies)
            return judged(self.scenario, part, self.targets).served

        enough = next((copies for copies in REPLICAS if serves(copies)), None)
        if enough is not None:
            copies = last_before_failure_scalar(lambda count: not serves(count), enough // 2, enough) + 1
            spread = Layout(parallel.tensor, parallel.pipeline, copies=copies * parallel.data, expert=parallel.expert)
            if (options := spread.options(self.scenario.model)) is not None:
                hw = {"hw": f"{copies * self.devices}x{self.scenario.hardware.name}"}
                with suppress(RooflineError):  # replicas that the plan's options exclude, as layers on a CPU
                    changed = self.scenario.with_(hw=self.scenario.hardware.name, **options)
                    yield from self._change(written(hw), "rents more", changed)

    def _change(
        self, option: str, gives_up: str, scenario: Scenario, gain: float = 1, alone: ExpectedGeneration | None = None
    ) -> Iterator[Change]:
        """A change with its gain: as simulated for one user (`alone`), or under the load, if it can be served."""
        found: Outcome | ExpectedGeneration | None = None if alone is None else as_served(scenario, alone)
        if self.load is not None and self.outcome is not None:
            try:
                found = outcome = self._served(scenario).outcomes[0]
            except RooflineError:
                return
            gain = times_better(outcome, self.outcome, self.load)
        if found is not None:
            meets = not missed(found, self.targets) and (not isinstance(found, Outcome) or found.stable)
            yield Change(option, gain, gives_up, meets, scenario)


def _spread(scenario: Scenario) -> str:
    """What a layout gives up."""
    parallel = scenario.settings.parallel
    if parallel.data > 1:
        copied, share = "attention's weights" if parallel.expert > 1 else "weights", parallel.devices // parallel.data
        return f"a copy of the {copied} on {'each device' if share == 1 else f'every {share} devices'}"
    return "devices exchange after every layer" if parallel.pipeline == 1 else "stages wait for each other"


SCHEMES = (*OFFERED, "gguf:type=q8_0", "gguf:type=q4_k_m")
"""Techniques that are also named as a scheme."""
