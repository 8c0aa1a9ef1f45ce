"""The sentences of an answer to what runs: a property each, in the order of its lines."""

from __future__ import annotations

import math
from enum import IntEnum

from msgspec import Struct

from roofline.advisor.chosen import WEIGHT_OPTIONS
from roofline.advisor.formats import no_narrower
from roofline.advisor.planned import CONTEXT
from roofline.core.units import count_text, rate_text, seconds, si, target_text
from roofline.launch.command import needs_of
from roofline.launch.repository import maker, name_of, published, repository_of
from roofline.scenario.analysis import longest_context
from roofline.scenario.cost import billed_pools, price
from roofline.scenario.memory import UTILIZATION, UTILIZED, hardware_name
from roofline.scenario.notes import unmeasured_kernels
from roofline.scenario.scenario import Scenario
from roofline.specs.checkpoint import precision_of, released_scheme
from roofline.specs.engine import GGUF_ENGINE
from roofline.specs.precision import PLAIN
from roofline.specs.servers import SERVERS, server_of
from roofline.techniques.unsupported import Lack, not_started, unsupported
from roofline.timing.intervals import Estimate
from roofline.verdict.limit import Part
from roofline.verdict.verdict import Change, Verdict
from roofline.whatif.metrics import find_metric
from roofline.whatif.odds import SURE

WIDTH = 80
"""Columns of an answer, at the most."""

RUN = "Run it: "
"""What the line of the command begins with."""

REMOTE = ("vllm ", "python3 -m sglang")
"""What commands begin with that run code of a repository where they are told so."""

PLACEHOLDER = "MODEL"
"""What a command says of a checkpoint whose repository the spec does not name (`roofline.launch.command`)."""

LLAMA_DEFAULTS = {"gpu": "GGUF files", "cpu": "CPUs"}
LAYOUTS = {"tensor": "TP", "pipeline": "PP", "expert": "EP", "data": "DP"}


SHORT = {Part.WEIGHTS: "GEMMs", Part.CACHE: "attention"}


class Brief(IntEnum):
    """How short an answer is: all; without what the command or the list of prices say; two lines in one.

    Then without lengths and the share of the limit, without the reasons of the choices, beside the longest commands
    without a change, and at last all but the command in one paragraph.
    """

    FULL = 0
    PLAIN = 1
    JOINED = 2
    TERSE = 3
    LEAST = 4
    BARE = 5
    PARAGRAPH = 6


def load_text(verdict: Verdict) -> str:
    """The users or the rate of a load."""
    rate, users = verdict.rate, verdict.users
    return f"{users:,} user{'s' * (users != 1)}" if rate is None else rate_text(rate)


class Sentences(Struct, frozen=True):
    """The sentences on a verdict, as short as `brief` says; `better`: with the next best change.

    `said`: false where the formats of the scenario were chosen before it was made, so that nobody asked for them.
    """

    verdict: Verdict
    better: bool = True
    brief: Brief = Brief.FULL
    width: int = WIDTH
    said: bool = True

    @property
    def scenario(self) -> Scenario:
        return self.verdict.scenario

    @property
    def lines(self) -> list[str]:
        """All of them."""
        limit, cost = [f"Limited by: {self.limit}"], f"Cost: {self.cost}"
        if self.brief >= Brief.JOINED:
            cost = f"{limit.pop()}; {'cost: ' * (self.brief < Brief.TERSE)}{self.cost}"
        choice = [f"Chosen: {self.chosen}", f"Speed: {self.speed}"]
        run = [] if not_started(self.scenario) else [self.run]  # of what does not start the headline says so
        if self.brief == Brief.PARAGRAPH:
            return [f"{self.headline}; {self.chosen}; {self.speed}; {cost[0].lower()}{cost[1:]}", *run]
        return [self.headline, *choice, *limit, *self.change, cost, *run]

    @property
    def headline(self) -> str:
        """Whether it runs, or meets the load and the targets.

        Where it is to be brief and too long otherwise, without the formats and the engine that other lines have.
        """
        if self.verdict.too_long:
            return f"No: {self.verdict.too_long}"
        how = f", {self.verdict.plan.candidate.formats} on {self.scenario.profile.name}"
        found = self._judged(how)
        shorter = self.brief > Brief.FULL and not self.verdict.refused and len(found) > self.width
        return self._judged("") if shorter else found

    def _judged(self, how: str) -> str:
        """The headline with the formats and the engine; of several requests at once the context is that of each."""
        verdict, scenario, outcome = self.verdict, self.scenario, self.verdict.outcome
        model, where = name_of(scenario), devices_text(scenario, verdict.devices)
        queue = verdict.at_once < verdict.slots
        kept = scenario.model.max_context is not None or float(verdict.analysis.memory.kv_cache) > 0
        each = f"{verdict.at_once} x " if verdict.at_once > 1 or queue else ""
        context = f"{each}{length(verdict.context)} context" if kept else "a state for any context"
        context += " at once" if queue else ""
        if missing := not_started(scenario) or (unsupported(scenario) if verdict.refused else ()):
            what = f" ({model} on {where})" if missing[0].part else ""
            instead = f"; it runs {verdict.instead}" if verdict.instead else ""
            unknown = f"{scenario.profile.name} is not known to run {', '.join(map(str, missing))}"
            return f"No: {unknown}{what}{instead}; the figures are those if it did"
        if outcome is not None and verdict.rate is not None and not outcome.stable:
            most = "" if outcome.saturated_at is None else f": it sustains {outcome.saturated_at:.3g}/s"
            return f"No: {model} on {where}{how}, cannot serve {rate_text(verdict.rate)}{most}"
        if (missed := verdict.missed) and not verdict.slow:
            targets = dict(zip(("ttft", "tpot"), verdict.targets, strict=True))
            told = " and ".join(
                f"{name.upper()} {target_text(targets[name])} ({seconds(value)}{' at p95' if verdict.loaded else ''})"
                for name, value in missed.items()
            )
            return f"No: {model} on {where}{how}, misses {told}"
        if verdict.loaded:
            waits = queue and "ttft" in verdict.missed
            head = "Not at once" if waits else "Slowly" if verdict.slow else "Yes"
            return f"{head}: {model} serves {load_text(verdict)} on {where}{how}, {context}"
        return f"Yes: {model} runs on {where}{how}, {context}"

    @property
    def chosen(self) -> str:
        """The choices, each with its reason in half a sentence, or without where there is no room."""
        plan, scenario, options = self.verdict.plan, self.scenario, self.verdict.plan.candidate.options
        formats, engine = plan.candidate.formats, scenario.profile.name
        if self.brief >= Brief.LEAST:
            return "; ".join([f"{formats} on {engine}", *self._layout])
        kv = options.get("kv")
        if kv and not plan.narrower:
            wide = {name: value for name, value in options.items() if name != "kv"}
            others = (each for each in plan.tried if each.options == wide)
            as_many = any(each.room(self.verdict.slots) >= self.verdict.at_once for each in others)
            reason = "as it is less to read" if as_many else "for more users at once"
            parts = [f"{scenario.precision.weights.name} {self._why}".rstrip() + f", KV {kv} {reason}"]
        else:
            parts = [f"{formats} {self._why}".rstrip()]
        first, unknown = plan.tried[0], unsupported(scenario)
        if plan.elsewhere:
            missing = unsupported(first.scenario)[:1] if first.memory(1).fits else ()
            name = first.scenario.profile.name
            short = any(each.memory(1).fits for each in plan.tried if each.scenario.profile.name == name)
            none = f"no format has room for {CONTEXT:,} tokens on {name}" if short else f"no format fits on {name}"
            parts.append(_not_known(name, missing) if missing else none)
        elif unknown and not not_started(scenario) and not self.verdict.refused:
            parts.append(_not_known(engine, unknown))
        elif engine == GGUF_ENGINE and "engine" not in scenario.options:
            own = "Apple silicon" if scenario.hardware.vendor == "Apple" else f"{scenario.hardware.vendor}'s APUs"
            parts.append(f"{GGUF_ENGINE} for {LLAMA_DEFAULTS.get(scenario.hardware.kind, own)}")
        if UTILIZATION in options:
            parts.append(f"{UTILIZED:.0%} of the memory, as its default does not suffice")
        if engine in SERVERS and (newer := server_of(engine).newer(scenario.profile.version)):
            parts.append(newer)
        if (half := plan.halved) is not None and not self._narrows:
            parts[0] += f" ({half[0]}, for which half of the devices would do, is {half[1]:.2g} times as fast)"
        if (faster := plan.faster) is not None:
            name, found = faster
            likely = "" if found.probability <= 1 - SURE and found.measured else "likely "
            parts.append(f"{name} is {likely}{1 / float(found.gain.mid):.2g} times as fast")
        return "; ".join([*parts, *self._layout])

    @property
    def _why(self) -> str:
        """Why the weights are in their format."""
        plan, scenario, first = self.verdict.plan, self.scenario, self.verdict.plan.tried[0]
        memory = first.memory(1)
        if plan.narrower and memory.fits and not plan.elsewhere:
            if missing := unsupported(first.scenario)[:1]:
                return f"as {_not_known(scenario.profile.name, missing)}"
            slots = self.verdict.slots
            if not self.verdict.loaded:
                return f"as {first.formats} has room for {length(longest_context(first.scenario, 1))} tokens"
            return f"as {first.formats} has room for {first.room(slots)} of {slots} users at once"
        if plan.narrower:
            of_each = " a device" if plan.devices > 1 else ""
            return f"as {first.formats} needs {size(memory.total)} of {size(memory.budget)}{of_each}"
        if plan.candidate.released and any(map(scenario.given, WEIGHT_OPTIONS)):
            if not self.said:
                return ""
            stored, scheme = scenario.model.quantization, scenario.given("quant")
            if stored and scheme:
                own = precision_of(scenario.model, scenario.hardware, scenario.profile)
                if no_narrower(scenario.model, own, scenario.run_precision, scheme):
                    return f"as asked, no narrower than {stored} as released"
            found = published(scenario, scheme) if scheme else None
            return "as asked" if found is None else f"as asked; --quant {found[0]} is published"
        if plan.candidate.released and scenario.library_format is not None:
            return f"as {scenario.profile.title} stores it by default"
        stored, base = scenario.model.quantization, scenario.precision.base.name
        if stored is None and base != scenario.model.dtype:  # hardware or an engine without the checkpoint's own
            return "as asked" if scenario.given("dtype") else f"in place of {scenario.model.dtype}"
        same = stored is None or released_scheme(scenario.model, scenario.profile) != PLAIN
        return "as released" if same else f"converted from {stored}"

    @property
    def _layout(self) -> list[str]:
        """How the devices are used, where there are several."""
        parallel, apart = self.scenario.settings.parallel, self.verdict.apart
        if self.scenario.profile.split_layers:
            turns = f" of {parallel.pipeline} devices" if parallel.pipeline > 1 else ""
            return [f"{parallel.data} replicas{turns}"] if parallel.data > 1 else []
        degrees = {short: getattr(parallel, name) for name, short in LAYOUTS.items() if name != "data" or not apart}
        shown = " x ".join(f"{short} {degree}" for short, degree in degrees.items() if degree > 1)
        if shown and not apart and (rival := self.verdict.plan.rival) is not None:
            other, found = rival
            degrees = {short: getattr(other.settings.parallel, name) for name, short in LAYOUTS.items()}
            beside = " x ".join(f"{short} {degree}" for short, degree in degrees.items() if degree > 1)
            close = found.confidence == "open"
            if self.brief >= Brief.LEAST:
                shown += f" or {beside}" if close and self.brief < Brief.PARAGRAPH else ""
            else:
                sure = "too close to call with" if close else f"likely ({found.probability:.0%}) before"
                shown += f", {sure} {beside}"
        exchange = self.verdict.plan.candidate.options.get("all_to_all")
        if exchange and self.brief < Brief.LEAST:
            shown += f", experts exchange by {exchange}"
        return list(filter(None, [shown, f"prefill and decode apart, {apart}" if apart else ""]))

    @property
    def _narrows(self) -> bool:
        """Whether the next best change is to narrower weights."""
        found = self.verdict.better if self.better else None
        return found is not None and found.option.startswith("--quant")

    @property
    def speed(self) -> str:
        """Tokens/s and TTFT of one user, or of all under load; of an encoder its passes."""
        scenario, outcome, terse = self.scenario, self.verdict.outcome, self.brief >= Brief.TERSE
        encodes, prompt, count = scenario.model.task == "encode", int(scenario.prompt), int(scenario.images)
        images = f" + {count} {scenario.model.encoded}{'s' * (count > 1)}" if count else ""
        lengths = f"{prompt:,}{images}" + ("" if encodes else f" + {int(scenario.generate):,}")
        if outcome is not None:
            first = seconds(outcome.ttft.p95.mid, 2)
            if not outcome.stable:
                replicas = math.ceil((self.verdict.rate or 0) / outcome.saturated_at) if outcome.saturated_at else 0
                enough = f"{replicas or 'no number of'} such deployments sustain the rate"
                return f"queues grow without end ({lengths} tokens); {enough}"
            if encodes:
                most = "" if outcome.saturated_at is None else f" of at most {count_text(outcome.saturated_at)}"
                rate = f"{count_text(outcome.requests_per_second)} sequences/s{most}"
                return f"{rate}; p95 latency {first} ({prompt} tokens)"
            user, found = inverse(outcome.tpot.p50), f"{count_text(outcome.output_tokens_per_second)} tokens/s"
            found += "" if math.isnan(user.mid) else f", {count_text(user.mid)} a user ({self._between(user)})"
            found += f"; p95 {self._late}"
            return found if terse else f"{found} ({lengths})"
        expected = self.verdict.alone
        first = seconds(expected.ttft.mid, 2)
        if expected.tpot is not None:
            user = inverse(expected.tpot)
            found = f"{count_text(user.mid)} tokens/s ({self._between(user)})"
            return f"{found}; TTFT {first}" if terse else f"{found} for one user; TTFT {first} ({lengths} tokens)"
        if scenario.model.conditioning is not None or scenario.model.unet is not None:
            return f"{first} for one denoising step of {prompt} latent positions"
        largest = self.verdict.largest_rate
        limit = "" if largest is None else f"; at most {count_text(largest)} sequences/s"
        return f"{first} a pass of a sequence of {prompt} tokens{limit}"

    @property
    def _late(self) -> str:
        """TTFT and TPOT at p95 of a load, each with its target; no TPOT of a single token, or met where it is terse."""
        verdict, times = self.verdict, self.verdict.outcome
        assert times is not None
        told = {"ttft": times.ttft.p95.mid, "tpot": times.tpot.p95.mid}
        targets = dict(zip(told, verdict.targets, strict=True))
        brief = "tpot" not in verdict.missed and self.brief >= Brief.TERSE
        shown = ["ttft"] if brief or math.isnan(told["tpot"]) else [*told]
        return ", ".join(
            f"{name.upper()} {_beside(told[name], targets[name])} of {target_text(targets[name])}" for name in shown
        )

    def _between(self, rate: Estimate) -> str:
        """The interval of a rate; where it is to be terse, with two digits."""
        if self.brief < Brief.TERSE:
            return f"{count_text(rate.low)} to {count_text(rate.high)}"
        low, high = (float(f"{bound:.2g}") for bound in (rate.low, rate.high))
        return f"{low:,g}-{high:,g}"

    @property
    def limit(self) -> str:
        """What limits it, with the share of its time."""
        limit, scenario = self.verdict.limit, self.scenario
        if self.brief >= Brief.TERSE:
            return limit.roof
        unsure = " (slow kernels, not measured)" if unmeasured_kernels(self.verdict.analysis) else ""
        if self.brief >= Brief.JOINED:
            part = SHORT.get(limit.part, limit.part.removeprefix("reading and writing "))
            return f"{limit.roof}, {limit.share:.0%} {part}{unsure}"
        if scenario.profile.split_layers and scenario.settings.parallel.pipeline > 1:
            return f"{limit.roof} (split layers run in turn); {limit.share:.0%} is {limit.part}"
        phase = "a pass" if self.verdict.analysis.decode is None else "a decode step"
        phase = "the time" if limit.part is Part.PROMPTS else phase
        return f"{limit.roof}; {limit.share:.0%} of {phase} is {limit.part}{unsure}"

    @property
    def change(self) -> list[str]:
        """The next best change, where there is one and room for it."""
        found = self.verdict.better if self.better and self.brief < Brief.BARE else None
        return [] if found is None else [f"Better: {change_text(self.verdict, found, self.brief)}"]

    @property
    def cost(self) -> str:
        """The rent of all devices and the cost of tokens, and their emissions where an intensity is given."""
        return f"{self._price}{self._carbon}"

    @property
    def _price(self) -> str:
        verdict, hardware, devices = self.verdict, self.scenario.hardware, self.verdict.devices
        outcome, tokens, known, given = (
            verdict.outcome,
            verdict.usd_per_million_tokens,
            hardware.price,
            self.scenario.price,
        )
        if verdict.hourly is None:
            if known is not None and known.buy is not None:
                return f"no rent known; to buy, {known.buy * devices:,.0f} USD ({known.date})"
            if self.brief:
                return "no price known (--price)"
            unknown = next((each.name for each in billed_pools(verdict.analysis) if each.price is None), hardware.name)
            return f"no price known for {unknown}; --price gives one in USD/h"
        hourly = f"{verdict.hourly:,.4g} USD/h"
        if not self.brief:
            dated = "" if given is not None or known is None else f"{known.date}"
            each = f"{price(hardware, given):g} each" if devices > 1 else ""
            told = ", ".join(filter(None, (each, dated)))
            hourly += f" ({told})" if told else ""
        if verdict.curve is not None and outcome is not None and self.scenario.model.task == "encode":
            million = verdict.curve.cost(outcome, outcome.requests_per_second)
            return f"{hourly}; {usd(million or 0.0)} per million sequences"
        if tokens is None or (outcome is not None and not outcome.stable):
            return hourly
        if self.brief >= Brief.JOINED:
            return f"{hourly}, {usd(tokens)}/M tokens"
        return f"{hourly}; {usd(tokens)} per million tokens{'' if verdict.loaded else ', one user'}"

    @property
    def _carbon(self) -> str:
        """The emissions of a million tokens, where the carbon intensity of their electricity is given."""
        verdict = self.verdict
        if self.scenario.carbon is None:
            return ""
        if verdict.curve is not None and verdict.outcome is not None:
            grams = verdict.curve.carbon(verdict.outcome)
        else:
            grams = float(find_metric("carbon", "expected").figure(verdict.analysis))
        return "" if grams is None or math.isnan(grams) else f"; {grams:,.3g} g CO2e per million tokens"

    @property
    def run(self) -> str:
        """The command that starts it, or why there is none."""
        verdict = self.verdict
        return f"No command: {verdict.refused}" if verdict.refused else f"{run_text(verdict.command, self.scenario)}"


def run_text(command: str, scenario: Scenario) -> str:
    """A command, with what it needs as a comment: a checkpoint, a device's plugin, or to run the repository's code."""
    name, needs = scenario.profile.name, needs_of(repository_of(scenario))
    needed = ""
    if "  # " in command:
        pass
    elif f" {PLACEHOLDER} " in f"{command} ":
        scheme = scenario.given("quant") or scenario.precision.weights.name
        made = f", which {made} makes" if (made := maker(scenario, scheme)) else ""
        needed = f"  # {PLACEHOLDER}: a checkpoint in {scenario.precision.weights.name}{made}"
    elif name in SERVERS and (plugin := server_of(name).plugin(scenario.hardware)):
        needed = f"  # with the plugin {plugin}"
    elif needs is not None and needs.tokenizer and command.startswith(REMOTE):
        needed = "  # add --trust-remote-code: its tokenizer is code"
    return f"{RUN}{command}{needed}"


def change_text(verdict: Verdict, change: Change, brief: Brief = Brief.FULL) -> str:
    """A change, what is gained, and what is given up."""
    shorter = verdict.late or verdict.rate is not None
    gained = f"{change.gain:.2g} times {'faster' if brief or shorter else 'the tokens/s'}"
    found = gained if verdict.met else "meets the target" if change.meets else f"{gained}, still too slow"
    return f"{change.option}, {found}; {change.gives_up}"


def _beside(found: float, target: float) -> str:
    """A duration beside its target: with two digits, or as many as tell them apart."""
    apart = (digits for digits in (2, 3, 4) if seconds(found, digits) != seconds(target, digits))
    return seconds(found, next(apart, 2))


def _not_known(engine: str, missing: tuple[Lack, ...]) -> str:
    """That an engine is not known to run parts, with the hardware where no part names it."""
    here = "" if missing[-1].device else " here"
    return f"{engine} is not known to run {' and '.join(map(str, missing))}{here}"


def inverse(time: Estimate) -> Estimate:
    """The rate of a time."""
    return Estimate(1 / time.high, 1 / time.mid, 1 / time.low)


def devices_text(scenario: Scenario, count: int = 0) -> str:
    """The devices, such as 2 x rtx-4090, or a count of them."""
    count = count or scenario.settings.parallel.devices
    if scenario.settings.mixed:
        return hardware_name(scenario, " + ")
    return f"{count} x {scenario.hardware.name}" if count > 1 else scenario.hardware.name


def length(tokens: int) -> str:
    """Tokens in thousands, rounded down."""
    return f"{tokens // 1000}k" if tokens >= 10_000 else f"{tokens:,}"


def size(count: float) -> str:
    """Bytes with two digits."""
    return si(count, "B", 2 if count < 1e11 else 3)


def usd(amount: float) -> str:
    """An amount with three digits, or all before its decimal point."""
    return f"{amount:,.0f} USD" if amount >= 1000 else f"{amount:.3g} USD"
