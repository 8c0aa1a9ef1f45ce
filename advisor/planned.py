"""A plan beside the candidates of which it was chosen: its best rival, a faster engine, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cached_property
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.fitting import Fit, what_fits
from roofline.advisor.formats import weight_bits
from roofline.advisor.judged import compared, judged
from roofline.advisor.search.moves import is_consumer
from roofline.bound.memory import Memory
from roofline.core.errors import RooflineError
from roofline.core.search import last_before_failure_scalar
from roofline.launch.bundle import refused
from roofline.scenario.analysis import analyze, longest_context
from roofline.scenario.kv_capacity import startable
from roofline.scenario.scenario import Scenario
from roofline.serving.load import Load
from roofline.serving.outcome import NO_TARGETS, Targets
from roofline.specs.engine import GGUF_ENGINE
from roofline.techniques.unsupported import unsupported
from roofline.whatif.odds import HEDGED, Odds

CONVERTED = 1.15
"""The most bits of a weight over those of the checkpoint from which it is converted: of FP8 Q8_0 has 1.06."""

ENGINES = ("vllm", "sglang", "tensorrt-llm", GGUF_ENGINE, "mlx")
"""Engines that are compared with the one of the checkpoint's form: those with a server of their own."""

NOTED = 1.05
"""The speed of narrower weights over that of those as released from which it is said."""

CONTEXT = 4096
"""The tokens that one user has room for where no option says how long a sequence is."""

LAYOUT = ("tp", "pp", "dp", "ep", "enable_expert_parallel", "all_to_all")
"""Options that say how the model is spread over devices."""


class Candidate(Struct, frozen=True, dict=True):
    """A way to run what was asked: a scenario of one sequence, and the options that were chosen for it."""

    scenario: Scenario
    options: dict[str, Any]

    @cached_property
    def supported(self) -> bool:
        """Whether documents of the engine say that it runs all of it, or there are none.

        An engine that was chosen in the place of another one also has to start.
        """
        return not unsupported(self.scenario) and not ("engine" in self.options and refused(self.scenario))

    @cached_property
    def bits(self) -> float:
        """Effective bits of a weight."""
        return weight_bits(self.scenario.model, self.scenario.run_precision)

    @property
    def released(self) -> bool:
        """Whether the weights are as released, or as they were said."""
        return "quant" not in self.options

    @property
    def unlaid(self) -> dict[str, Any]:
        """The options without those of the layout, and the sequences with which it starts."""
        return {name: value for name, value in self.options.items() if name not in (*LAYOUT, "max_num_seqs")}

    @property
    def formats(self) -> str:
        """The formats of weights and, where it was chosen, of the KV cache."""
        kv = f", KV {self.options['kv']}" if "kv" in self.options else ""
        return f"{self.scenario.precision.weights.name}{kv}"

    def memory(self, users: int) -> Memory:
        """The memory with so many sequences at once."""
        return analyze(self.scenario.at(batch=min(users, self.scenario.max_batch))).memory

    @cached_property
    def roomy(self) -> bool:
        """Whether one sequence has room for a context that is of use."""
        scenario = self.scenario
        if scenario.model.task != "generate":
            return True
        least = min(CONTEXT, scenario.settings.longest_of(scenario.model) or CONTEXT)
        prompt = max(1, least - int(scenario.generate))
        return bool(analyze(scenario.at(batch=1, prompt=prompt)).memory.fits)

    def room(self, users: int) -> int:
        """How many sequences of so many users are in memory at once; 0 where not even one fits."""
        most = min(users, self.scenario.max_batch)
        if self.memory(most).fits:
            return most
        return last_before_failure_scalar(lambda count: bool(self.memory(count).fits), 1, most)


class Plan(Struct, frozen=True, dict=True):
    """The candidate that was chosen, after others that do not fit.

    `fits` is false where none does; then it is the one with the least memory over what there is. `load` is None for a
    single user. `narrower` and `elsewhere`: whether the formats as released, and the default engine, do not fit.
    """

    candidate: Candidate
    fits: bool
    tried: tuple[Candidate, ...]
    load: Load | None = None
    targets: Targets = NO_TARGETS

    @cached_property
    def rival(self) -> tuple[Scenario, Odds] | None:
        """The best other layout in the same formats, and how sure the chosen one is; None where it is sure, or alone.

        For one user only pipelines are compared: other layouts are taken in an order that is known to be fast.
        """
        parallel, chosen = self.scenario.settings.parallel, self.candidate
        if not self.fits or self.scenario.profile.split_layers or (self.load is None and parallel.pipeline == 1):
            return None
        others = [each for each in self.tried if each.unlaid == chosen.unlaid and each.supported]
        users = (self.load.concurrency if self.load is not None else None) or 1
        at_once = users if chosen.memory(users).fits else 1
        fitting = [each.scenario for each in others if each.memory(at_once).fits]
        plain = replace(parallel, exchange="")  # a layout is no rival of itself with another exchange
        return self._surely([each for each in fitting if replace(each.settings.parallel, exchange="") != plain])

    def _surely(self, others: list[Scenario]) -> tuple[Scenario, Odds] | None:
        """The best of others, and how sure it is that the chosen one is better; None where it is."""
        best = max(others, key=lambda each: judged(each, self.load, self.targets)[:3], default=None)
        found = None if best is None else compared(self.scenario, best, self.load, self.targets)
        return None if best is None or found is None or found.confidence == "sure" else (best, found)

    @cached_property
    def faster(self) -> tuple[str, Odds] | None:
        """Another engine that runs the weights in formats as wide, and that likely is faster; None where none is."""
        given, model = self.scenario.given, self.scenario.model
        if not self.fits or given("engine") is not None or self.scenario.techniques or model.task != "generate":
            return None
        others = []
        for name in ENGINES:
            if name == GGUF_ENGINE and self.load is not None and not is_consumer(self.scenario.hardware):
                continue  # no server of many users
            with suppress(RooflineError):
                candidate = Candidate(self.scenario.with_(engine=name), {"engine": name})
                wide = candidate.bits / self.candidate.bits
                if 1 / CONVERTED < wide < CONVERTED and candidate.supported and candidate.memory(1).fits:
                    others.append(candidate.scenario)
        found = self._surely([each for each in others if each.profile.name != self.scenario.profile.name])
        if found is None or found[1].probability > 1 - HEDGED:
            return None
        return found[0].profile.name, found[1]

    @cached_property
    def halved(self) -> tuple[str, float] | None:
        """Narrower weights than as released, with which half of the devices do, and their speed here over that.

        None where as released does, too, or is as fast.
        """
        chosen, memory = self.candidate, self.candidate.memory(1)
        if not self.fits or self.narrower or self.devices == 1 or 2 * memory.weights <= memory.budget:
            return None
        layout = {name: value for name, value in chosen.options.items() if name in LAYOUT}
        same = [each for each in self.tried if each.options == {**layout, "quant": each.options.get("quant")}]
        for each in same:
            needed = each.memory(1)
            if each.supported and needed.total + needed.weights <= needed.budget:
                own, other = (judged(one.scenario, self.load, self.targets).value for one in (chosen, each))
                return (each.formats, other / own) if own > 0 and other > NOTED * own else None
        return None

    @property
    def scenario(self) -> Scenario:
        return self.candidate.scenario

    @property
    def narrower(self) -> bool:
        return self.candidate.bits < self.tried[0].bits

    @property
    def elsewhere(self) -> bool:
        return self.scenario.profile.name != self.tried[0].scenario.profile.name

    @property
    def devices(self) -> int:
        return self.scenario.settings.parallel.devices

    def longest(self, users: int) -> int:
        """The most tokens of a sequence while so many are in memory at once, up to the model's maximum context."""
        return longest_context(startable(self.scenario), min(users, self.scenario.max_batch))

    def _under_load(self, fit: Fit) -> Fit:
        """A change that makes it fit, with the tokens/s of its load; of one sequence where it cannot be served."""
        if self.load is None or (served := judged(fit.scenario, self.load, self.targets)).value < 0:
            return fit
        tokens = served.value
        if (rate := self.load.rate) is not None:  # whose value is a latency, or the largest rate
            tokens = (rate if served.sustained else served.value) * self.load.of(fit.scenario).outputs.mean
        return Fit(fit.options, fit.scenario, tokens)

    @cached_property
    def fits_with(self) -> tuple[Fit, ...]:
        """Changes that make it fit, the fastest first: with the fewest devices, and one of each other kind.

        Those that the engine's documents know come alone where there are any.
        More devices come a second time on another engine where that is faster with more of them.
        """
        starts = [self.tried[0], *(min(own, key=lambda each: each.bits) for own in by_engine(self.tried))]
        found: dict[tuple[str, ...], Fit] = {}
        fits = [(start, fit) for start in starts for fit in what_fits(start.scenario)]
        known = [(start, fit) for start, fit in fits if not unsupported(fit.scenario)]
        for start, fit in known or fits:
            options = {**start.options, **fit.options}
            devices = fit.scenario.settings.parallel.devices
            grows = devices > self.devices
            kind = tuple(sorted(fit.options.keys() - {"engine", "quant"}))
            fit = self._under_load(fit)
            key = ("devices", fit.scenario.profile.name) if grows else kind
            other = found.get(key)
            fewer = other is not None and grows and devices < other.scenario.settings.parallel.devices
            as_many = other is None or not grows or devices == other.scenario.settings.parallel.devices
            if other is None or fewer or (as_many and fit.tokens_per_s > other.tokens_per_s):
                found[key] = Fit(options, fit.scenario, fit.tokens_per_s)
        kept: list[Fit] = []
        for fit in sorted(found.values(), key=lambda fit: -fit.tokens_per_s):
            devices = fit.scenario.settings.parallel.devices
            if devices <= self.devices or all(devices < each.scenario.settings.parallel.devices for each in kept):
                kept.append(fit)
        return tuple(kept)


def by_engine(tried: tuple[Candidate, ...]) -> Iterator[list[Candidate]]:
    """The candidates of each engine, in the order in which the engines are tried."""
    for name in dict.fromkeys(candidate.scenario.profile.name for candidate in tried):
        yield [candidate for candidate in tried if candidate.scenario.profile.name == name]
