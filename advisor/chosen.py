"""What is chosen where it is not said, by every answer: engine, formats, memory and layout, until the model fits.

As released, also in more of the memory than the engine's default, then fewer bits, each on every layout of the devices;
on the default engine of the checkpoint and the hardware, then on that of GGUF files where nothing fits. Where requests
of all users do not fit at once as released, formats in which some queue are compared under the load. Of the layouts
that fit, one that meets the targets is chosen: with the most tokens/s of users, or the least latency at a rate.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import product
from typing import Any

from msgspec import Struct

from roofline.advisor.fitting import Fit, what_fits
from roofline.advisor.formats import weight_bits
from roofline.advisor.judged import compared, judged
from roofline.advisor.search.goal import Price, Quality
from roofline.advisor.search.moves import is_consumer
from roofline.advisor.sizing.configurations import formats_for
from roofline.bound.memory import Memory
from roofline.core.errors import RooflineError
from roofline.core.search import last_before_failure_scalar
from roofline.launch.bundle import refused
from roofline.launch.repository import repository_of
from roofline.scenario.analysis import analyze, longest_context
from roofline.scenario.kv_capacity import startable
from roofline.scenario.memory import more_memory
from roofline.scenario.options import FORMATS, of_group
from roofline.scenario.scenario import Scenario
from roofline.serving.layouts import layouts_on
from roofline.serving.load import Load
from roofline.serving.outcome import NO_TARGETS, Targets, targets_or_usual
from roofline.specs.checkpoint import released_scheme
from roofline.specs.engine import GGUF_ENGINE, load_engine
from roofline.specs.model_names import quantized_repositories
from roofline.specs.precision import PLAIN
from roofline.specs.schemes import GGUF_SCHEMES
from roofline.techniques import check_request
from roofline.techniques.support import is_documented, runs_gguf
from roofline.techniques.unsupported import unsupported
from roofline.whatif.odds import HEDGED, NODES, SURE, Odds

WEIGHT_OPTIONS = tuple(name for name in of_group(FORMATS) if name not in ("kv", "dtype"))
"""Options that say in which format the weights are."""

UNDOCUMENTED = "w8a16"
"""The scheme that is tried on engines whose formats no document states: 8-bit weights, computed as released."""

CONVERTED = 1.15
"""The most bits of a weight over those of the checkpoint from which it is converted: of FP8 Q8_0 has 1.06."""

ENGINES = ("vllm", "sglang", "tensorrt-llm", GGUF_ENGINE, "mlx")
"""Engines that are compared with the one of the checkpoint's form: those with a server of their own."""

LENGTHS, CONTEXT = ("prompt", "generate", "context"), 4096
"""Options that say how long a sequence is, and the tokens that one user has room for where none does."""

LAYOUT = ("tp", "pp", "dp", "ep", "enable_expert_parallel")
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
        """The options without those of the layout."""
        return {name: value for name, value in self.options.items() if name not in LAYOUT}

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

    `fits` is false where none does; then it is the one with the least memory over what there is. `narrower` and
    `elsewhere`: whether the formats as released, and the default engine, do not fit.
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
        others = [each for each in self.tried if each.unlaid == chosen.unlaid and each.supported and each is not chosen]
        users = (self.load.concurrency if self.load is not None else None) or 1
        at_once = users if chosen.memory(users).fits else 1
        return self._surely([each.scenario for each in others if each.memory(at_once).fits])

    def _surely(self, others: list[Scenario]) -> tuple[Scenario, Odds] | None:
        """The best of others, and how sure it is that the chosen one is better; None where it is."""
        best = max(others, key=lambda each: judged(each, self.load, self.targets)[:3], default=None)
        found = None if best is None else compared(self.scenario, best, self.load, self.targets)
        return None if best is None or found is None or found.probability >= SURE else (best, found)

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
                return (each.formats, other / own) if other > own > 0 else None
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

    @cached_property
    def fits_with(self) -> tuple[Fit, ...]:
        """Changes that make it fit, the fastest first: with the fewest devices, and one of each other kind.

        Those that the engine's documents know come alone where there are any.
        More devices come a second time on another engine where that is faster with more of them.
        """
        starts = [self.tried[0], *(min(own, key=lambda each: each.bits) for own in _by_engine(self.tried))]
        found: dict[tuple[str, ...], Fit] = {}
        fits = [(start, fit) for start in starts for fit in what_fits(start.scenario)]
        known = [(start, fit) for start, fit in fits if not unsupported(fit.scenario)]
        for start, fit in known or fits:
            options = {**start.options, **fit.options}
            devices = fit.scenario.settings.parallel.devices
            grows = devices > self.devices
            kind = tuple(sorted(fit.options.keys() - {"engine", "quant"}))
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


def plan_for(
    asked: Scenario, load: Load | None = None, targets: Targets = NO_TARGETS, schemes: Sequence[str] = ()
) -> Plan:
    """The first candidate of a scenario that fits with the sequences of all users, or else with one of a useful length.

    `load` are users or a rate, None for a single user; the `targets` of a load are the usual ones where none is given.
    `schemes` are those that a server reads besides the formats as released where the engine's documents name none.
    Candidates that the engine is documented to run come first, and under a load the layout that serves it best. Raises
    RooflineError where none can be simulated.
    """
    _check_released(asked)
    targets = targets_or_usual(*targets, load is not None, asked.model.task == "generate")
    users = (load.concurrency if load is not None else None) or 1
    changes = list(_changes(asked, load is not None, schemes))
    here = _candidates(asked, [each for each in changes if "engine" not in each])
    if more := more_memory(asked):
        here = _with_headroom(asked, here, users, more)
    tried = [*here, *_candidates(asked, [each for each in changes if "engine" in each])]
    if not tried:
        asked.with_(**changes[0])  # raises why there is no way to run it
        analyze(asked)
        raise RooflineError("there is no way to run it")
    unsaid = load is None and all(asked.given(name) is None for name in LENGTHS)
    for documented, roomy in product((True, False), (True, False) if unsaid else (False,)):
        running = tuple(each for each in tried if each.supported or not documented)
        for own in _by_engine(running):
            if fitting := [each for each in own if each.memory(1).fits and (each.roomy or not roomy)]:
                chosen = fitting[0] if load is None else _serving(fitting, users, load, targets)
                return Plan(chosen, True, tuple(tried), load, targets)
    return Plan(max(tried, key=lambda each: each.memory(1).headroom), False, tuple(tried))


def _check_released(asked: Scenario) -> None:
    """Raise RooflineError for a checkpoint in MLX's groups where MLX does not run: converting it back is no answer."""
    stored = asked.precision.weights.name
    if asked.as_released and stored.startswith("affine") and asked.given("engine") is None and unsupported(asked):
        name, hardware = asked.model.name, asked.hardware.name
        raise RooflineError(
            f"weights in {stored} are for MLX, which does not run on {hardware}: name the model as it was released,"
            f" {name}, or one in a format of {asked.profile.name}"
        )


def _with_headroom(asked: Scenario, here: list[Candidate], users: int, wider: dict[str, Any]) -> list[Candidate]:
    """Candidates, with those of more of the memory: as released where all users fit in it, all where nothing fits."""
    released = [each for each in here if each.released]
    if any(each.supported and each.memory(users).fits for each in released):
        return here
    more = _candidates(asked, [{**each.options, **wider} for each in here])
    others = [each for each in here if not each.released]
    found = [*released, *(each for each in more if each.released and each.memory(users).fits), *others]
    return found if any(each.supported and each.memory(1).fits for each in found) else [*found, *more]


def _serving(fitting: Sequence[Candidate], users: int, load: Load, targets: Targets) -> Candidate:
    """What serves a load best of an engine's candidates that fit one sequence, in the order in which they are tried.

    Released formats in which all users fit at once; or else the formats that serve the load best with a queue, among
    them the widest in which all fit; and of these the layout.
    """
    together = next((each for each in fitting if each.memory(users).fits), None)
    if together is not None and load.rate is not None:
        same = _best([each for each in fitting if each.unlaid == together.unlaid], load, targets)
        sustained = judged(same.scenario, load, targets).sustained  # else a smaller cache may
        contenders = [together] if sustained else [together, *(each for each in fitting if each.released)]
    elif together is not None:
        contenders = [together] if together.released else [*(each for each in fitting if each.released), together]
    else:
        contenders = list(fitting)
    firsts: list[Candidate] = []
    for each in contenders:
        if all(each.unlaid != other.unlaid for other in firsts):
            firsts.append(each)
    best = _best(firsts, load, targets)
    if not best.released and judged(best.scenario, load, targets)[:2] < (True, 0):  # fewer bits still may meet them
        best = _best(list({str(each.unlaid): each for each in reversed(fitting)}.values()), load, targets)
    at_once = users if best.memory(users).fits else 1
    laid_out = [each for each in fitting if each.unlaid == best.unlaid and each.memory(at_once).fits]
    return _best(laid_out, load, targets)


def _candidates(asked: Scenario, changes: Iterable[dict[str, Any]]) -> list[Candidate]:
    """The candidates of some changes that can be simulated."""
    found = []
    for options in changes:
        with suppress(RooflineError):
            candidate = Candidate(asked.with_(**options), options)
            candidate.memory(1)
            found.append(candidate)
    return found


def _best(some: Sequence[Candidate], load: Load, targets: Targets) -> Candidate:
    """The candidate that serves a load best; the first of equal ones.

    No pipeline within a node is measured: one is chosen that is better by more than the error of those over nodes.
    """

    def key(each: Candidate) -> tuple[bool, int, float]:
        parallel, profile = each.scenario.settings.parallel, each.scenario.profile
        inside = parallel.devices <= each.scenario.hardware.node_devices
        staged = parallel.pipeline > 1 and inside and not profile.split_layers
        sustained, met, value, _ = judged(each.scenario, load, targets)
        return sustained, met, value / (1 + NODES) if staged else value

    return max(some, key=key) if len(some) > 1 else some[0]


def _changes(asked: Scenario, loaded: bool, schemes: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The options of the candidates, in the order in which they are tried; the first changes nothing."""
    said = any(asked.given(name) is not None for name in WEIGHT_OPTIONS) or any(
        check_request(name).slot == "weight format" for name in asked.techniques
    )
    engines: list[str | None] = [None]
    if asked.given("engine") is None and asked.precision.weights.name in GGUF_SCHEMES:
        engines = [GGUF_ENGINE]
    elif asked.given("engine") is None and asked.profile.name != GGUF_ENGINE and not said and not asked.techniques:
        engines += [GGUF_ENGINE] if asked.hardware.kind in ("gpu", "soc") else []
    for engine in engines:
        own = {"engine": engine} if engine else {}
        for formats in _formats(asked, engine, said, schemes):
            for layout in _layouts(asked, engine, loaded):
                yield {**own, **formats, **layout}


def _formats(asked: Scenario, engine: str | None, said: bool, schemes: Sequence[str]) -> list[dict[str, Any]]:
    """As released, then narrower formats, the widest first; those that were said alone.

    Of formats as wide, those in which the model has a repository come first.
    """
    profile = asked.profile if engine is None else load_engine(engine)
    offered = list(formats_for(asked.model, asked.hardware, profile, Quality.CALIBRATED, "" if said else None))
    if schemes and not any(scheme for scheme, _, _ in offered):
        return [{}, *([] if said else ({"quant": scheme} for scheme in sorted(schemes, reverse=True)))]
    if not said and not is_documented(profile.name):
        offered.append((UNDOCUMENTED, "", Price.CALIBRATION))
    reads = is_documented(profile.name) and not runs_gguf(profile.name) and not said
    listed = quantized_repositories(asked.model.name, repository_of(asked)) if reads else {}
    caches = dict.fromkeys(kv for _, kv, _ in offered)
    more = listed.keys() - {scheme for scheme, _, _ in offered}
    offered += [(scheme, kv, Price.CALIBRATION) for scheme in sorted(more) for kv in caches]
    kv_said = asked.given("kv") is not None
    found = [
        {name: value for name, value in (("quant", scheme), ("kv", kv)) if value}
        for scheme, kv, _ in offered
        if not (kv and kv_said)
    ]
    bits = {index: _bits(asked, engine, formats) for index, formats in enumerate(found)}
    released = max((bits[index] for index, formats in enumerate(found) if "quant" not in formats), default=math.inf)

    def width(index: int) -> tuple[bool, int, bool, float]:
        scheme = found[index].get("quant")
        return scheme is not None, -round(bits[index]), scheme not in listed, -bits[index]

    order = sorted(bits, key=width)
    stored = asked.model.quantization
    if stored is not None and asked.as_released and released_scheme(asked.model, profile) == PLAIN:
        # An engine that does not read the checkpoint has it in as many bits, and not in 16 again.
        most = CONVERTED * _bits(asked, engine, {"quant": stored})
        if as_many := [found[index] for index in order if "quant" in found[index] and bits[index] <= most]:
            return as_many
    return [found[index] for index in order if "quant" not in found[index] or bits[index] < released]


def _bits(asked: Scenario, engine: str | None, formats: dict[str, Any]) -> float:
    options: dict[str, Any] = {**formats, **({"engine": engine} if engine else {})}
    try:
        changed = asked.with_(**options)
    except RooflineError:
        return 0.0
    return weight_bits(changed.model, changed.run_precision)


def _layouts(asked: Scenario, engine: str | None, loaded: bool) -> Iterator[dict[str, Any]]:
    """As asked; and the layouts of devices that were named with their count, of one user those of one server alone."""
    own, model = asked.settings.parallel, asked.model
    yield {}
    if not asked.counted or (asked.profile if engine is None else load_engine(engine)).split_layers:
        return
    for layout in layouts_on(asked, own.devices):
        degrees = (layout.tensor, layout.pipeline, layout.data * layout.copies, layout.expert)
        options = layout.options(model)
        asked_for = loaded or layout.data * layout.copies == 1
        if options is not None and asked_for and degrees != (own.tensor, own.pipeline, own.data, own.expert):
            yield options


def _by_engine(tried: tuple[Candidate, ...]) -> Iterator[list[Candidate]]:
    for name in dict.fromkeys(candidate.scenario.profile.name for candidate in tried):
        yield [candidate for candidate in tried if candidate.scenario.profile.name == name]
