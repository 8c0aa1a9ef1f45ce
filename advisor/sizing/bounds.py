"""Bounds of a replica's times and throughput, by which configurations are ruled out before they are simulated.

There are three levels, each tighter and slower to compute than the one before (`Candidate`):

    roof        FLOPs at the highest peak, bytes at full bandwidth, and the host's time of a step; a model's FLOPs and
                bytes in given formats and parallelism are the same on all hardware, and counted once
    decoding    decode steps at expected times, all else at the roofline
    expected    decode steps and prompts at expected times

A step of n sequences takes at least s(n) seconds, and at least p for each prompt in it. With G decode steps a request a
replica serves at most n / max(G s(n), n p) requests/s; where a request's prompt takes part in at most k steps, the
others have none, and it serves at most

    1 / (p + (G / n - k) s(n)),     k = 1 + computed tokens / (token limit of a step - n)

since in a step with prompts either one of them ends, as it does once, or they fill what the sequences leave.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.advisor.sizing.configurations import Configuration
from roofline.advisor.sizing.workload import SHARES, Service
from roofline.core.errors import RooflineError
from roofline.core.numeric import maximum
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.kv_capacity import Capacity, kv_capacity
from roofline.scenario.lengths import NORMAL
from roofline.scenario.phase import Phase
from roofline.scenario.scenario import Scenario
from roofline.serving.ranks import under_load
from roofline.serving.replica import Replica, budget_of, replica_of
from roofline.serving.tables import Array, Interpolation
from roofline.serving.times import MOST
from roofline.specs.formats import PROMOTIONS
from roofline.specs.hardware import Hardware, load_hardware
from roofline.specs.reserve import Reserve, visible_memory
from roofline.timing.launches import kernel_count

BATCHES = np.array([1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, MOST])
"""Numbers of sequences whose decode steps are evaluated; those between them are interpolated linearly."""

COUNTS = 48
"""The most numbers of sequences at which a candidate has bounds."""

NEGLIGIBLE = 1e-300
"""In place of 0 in a denominator."""

WAITING = 4.0
"""The largest TTFT over its bound for which `Bounds.loaded` holds in a closed loop."""

REFERENCE = "h100-sxm"
"""Hardware on which FLOPs and bytes are counted, which do not depend on it: any that has all links would do."""

FITTING = 0.99
"""A configuration is left out if a request fits in its KV cache with less than this probability."""


class Bounds(Struct, frozen=True, dict=True):
    """Lower bounds of the times of a service's replica in seconds, and upper ones of its requests/s.

    `step` are seconds of a decode step with each of `counts` sequences, which yields `accepted` tokens of each; `rate`
    are the requests/s of at most as many. `prompt` is a step with a prompt of mean length, `ttft` the TTFT of one whose
    length is the quantile of the targets.
    """

    service: Service
    counts: Array
    step: Array
    rate: Array
    prompt: float
    ttft: float
    accepted: float

    @cached_property
    def _step_of(self) -> Interpolation:
        """The decode step of some sequences."""
        return Interpolation(self.counts, self.step)

    def tpot(self, rate: Any) -> Any:
        """A lower bound of TPOT at a rate of L requests/s, a number or an array.

        It is a fixed point: by Little's law L G TPOT sequences decode, and a step of X seconds is followed by one with
        a prompt, which is longer, with probability 1 - exp(-L X).
        """
        step_of, found, steps = self._step_of, float(self.step[0]), self.service.steps / self.accepted
        exp, expm1 = (math.exp, math.expm1) if isinstance(rate, float) else (np.exp, np.expm1)
        for _ in range(4):
            step = step_of(rate * steps * found)
            longer = maximum(step, self.prompt)
            some = -expm1(-rate * step)
            some = some / maximum(some + exp(-rate * longer), NEGLIGIBLE)
            found = step + some * (longer - step)
        return found / self.accepted

    @cached_property
    def most(self) -> float:
        """An upper bound of the load that a replica serves within the targets: requests/s, or requests in flight.

        Requests in flight are those that decode, at most L G TPOT, and those that wait for their first token, L TTFT.
        """
        service = self.service
        tpot, ttft, slots = service.tpot or np.inf, service.ttft, float(self.counts[-1])
        rates = float(self.rate[-1]) * np.linspace(0.0, 1.0, COUNTS)
        met = np.flatnonzero(self.tpot(rates) <= tpot)
        if not met.size or self.ttft > (ttft or np.inf):
            return 0.0
        rate = float(rates[min(int(met[-1]) + 1, COUNTS - 1)])
        if service.rate is not None:
            return rate
        return slots if ttft is None else min(slots, rate * service.steps * tpot) + rate * ttft

    def closed(self, users: float) -> float:
        """An upper bound of the requests/s of a closed loop: C = L (TTFT + G TPOT), of which TPOT rises with L."""
        spent, some = self.ttft + self.service.steps * float(self.step[0]) / self.accepted, 1 - 1 / max(users, 1)
        # Each round turns a bound from above into one from below, and back: after an even number it is from above.
        for _ in range(4 if self.service.answers.varies else 0):
            spent = self.ttft + self.service.steps * self.tpot(users / spent * some)
        return users / spent

    def loaded(self, replicas: float) -> float:
        """A lower bound of TPOT on some replicas; in a closed loop, if TTFT is at most WAITING times its bound."""
        service = self.service
        share = service.share(replicas)
        if service.rate is not None:
            return float(self.tpot(share))
        found = float(self.step[0]) / self.accepted
        for _ in range(4):
            rate = share / (WAITING * self.ttft + service.steps * found)
            # Where outputs are equal, all prompts may come in steps in which others end, and delay no decode step.
            alone = self._step_of(rate * service.steps * found) / self.accepted
            found = self.tpot(rate * (1 - 1 / max(share, 1))) if service.answers.varies else alone
        return found


class WorkloadCost:
    """FLOPs, bytes and memory of the service in given formats and parallelism, on any hardware: here on REFERENCE.

    `decode` are the FLOPs and bytes of steps with BATCHES sequences (2, batches), `prompt` those of prompts of the two
    `lengths`, the mean and the targets' quantile (2, 2). `needed` are bytes on a device.
    Raises RooflineError if the model does not allow this parallelism.
    """

    def __init__(self, scenario: Scenario, service: Service) -> None:
        share, mean = SHARES[service.quantile], service.prompts.mean
        lengths = [mean, mean if share is None else service.prompts.quantile(share)]
        self.lengths: NDArray[np.int64] = np.maximum(np.round(lengths), 1).astype(np.int64)
        context = {} if scenario.model.task == "encode" else {"context": round(service.context)}
        answer = Analysis(under_load(scenario.at(batch=BATCHES, **context)))
        computed = np.maximum(np.round(self.lengths * (1 - service.hits)), 1).astype(int)
        prompts = Analysis(under_load(scenario.at(prompt=computed, prefix=self.lengths - computed)))
        nothing = np.zeros((2, BATCHES.size))
        self.parallel = scenario.plain.settings.parallel
        self.accepted = answer.tokens_per_iteration
        self.kernels = kernels_of(answer)
        self.decode = np.array([answer.decode.flops, answer.decode.bytes]) if answer.decode is not None else nothing
        self.prompt = np.array([prompts.prefill.flops, prompts.prefill.bytes])
        self.needed = float(analyze(scenario).memory.total)
        self._scenario, self._cached = scenario, service.hits > 0
        self._capacities: dict[Reserve, Capacity] = {}

    def capacity(self, hardware: Hardware, reserve: Reserve) -> Capacity:
        """The KV cache capacity of a device by the engine's settings; only the budget depends on the hardware."""
        if reserve not in self._capacities:
            scenario = self._scenario
            model = replace(scenario.model, max_context=scenario.settings.longest_of(scenario.model))
            self._capacities[reserve] = kv_capacity(
                model,
                scenario.hardware,
                scenario.run_precision,
                scenario.settings.parallel,
                reserve,
                speculation=scenario.settings.speculation,
                cached=self._cached,
            )
        found, visible = self._capacities[reserve], visible_memory(hardware)
        budget = reserve.budget(visible, found.weights, found.activations, found.context)
        return replace(found, visible=visible, budget=float(budget))


class Candidate(Struct, frozen=True, dict=True):
    """A configuration with its bounds, and its replica."""

    configuration: Configuration
    counted: WorkloadCost
    service: Service
    arithmetic: str

    @property
    def hardware(self) -> Hardware:
        return self.configuration.hardware

    @property
    def devices(self) -> int:
        """Devices of a replica."""
        return self.counted.parallel.devices

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, each with its KV cache."""
        return self.counted.parallel.data

    @cached_property
    def slots(self) -> int:
        """An upper bound of the sequences that run at once; 0 if the model or a long request does not fit."""
        settings = self.configuration.settings
        reserve = settings.reserved(self.configuration.engine.memory.on(self.hardware), self.configuration.base.model)
        capacity = self.counted.capacity(self.hardware, reserve)
        if capacity.cache <= 0:
            return 0
        prompts, answers = self.service.prompts, self.service.answers
        running = settings.sequences or self.configuration.engine.scheduler.sequences
        limit = min(running * self.ranks or MOST, MOST)
        longest = prompts.mean + answers.mean
        longest += NORMAL.inv_cdf(FITTING) * float(np.hypot(prompts.deviation, answers.deviation))
        at_once = capacity.sequences_of(self.service.context) * self.ranks
        return 0 if capacity.sequences_of(longest) < 1 else math.ceil(min(limit, at_once))

    @property
    def fitting(self) -> Candidate | None:
        """The candidate, with a larger share of memory if the engine's default is too small; None if it never fits."""
        if self.slots:
            return self
        if self.counted.needed > visible_memory(self.hardware):
            return None
        wider = self.configuration.with_more_memory()
        found = None if wider is None else replace(self, configuration=wider)
        return found if found is not None and found.slots else None

    @cached_property
    def counts(self) -> Array:
        """The numbers of sequences of the bounds."""
        return _counts(self.slots)

    @cached_property
    def roof(self) -> Bounds:
        """The bounds at the roofline."""
        counted, counts, ranks = self.counted, self.counts, self.ranks
        compute, memory = self._decode_times
        first, tail = np.transpose(self._times(*counted.prompt))
        steps, work = self.service.steps / counted.accepted, float(first[0]) / ranks
        rate = 1 / np.maximum(steps * compute / counts + work, steps * memory / counts)
        found = self._bounds(self._roof_step, work, float(first.max()), float(tail.max()), counted.kernels)
        return replace(found, rate=np.minimum(found.rate, np.maximum.accumulate(rate)))

    @cached_property
    def _decode_times(self) -> tuple[Array, Array]:
        """Seconds of arithmetic and of memory at the roofline in decode steps with each of `counts` sequences."""
        return self._times(*(np.interp(self.counts, BATCHES, row) for row in self.counted.decode))

    @property
    def _roof_step(self) -> Array:
        """Seconds of the kernels of decode steps at the roofline."""
        return np.maximum(*self._decode_times)

    def _bounds(self, step: Array, work: float, prompt: float, ttft: float, kernels: float) -> Bounds:
        """The bounds with the host's time, from seconds of kernels alone.

        `step` are those of decode steps with each of `counts` sequences, `prompt` and `ttft` those of a prompt on each
        rank at once, divided here among the ranks; `work` are those of one prompt in a pass full of them.
        """
        engine = self.configuration.engine
        policy, step = engine.scheduler, self._host(step)
        host = policy.step or engine["step"]
        prompt = max(prompt / self.ranks, policy.dispatch * kernels) + host
        ttft = max(ttft / self.ranks, policy.dispatch * kernels) + host + policy.latency + policy.request
        rate = np.maximum.accumulate(self._served(step, work))
        return Bounds(self.service, self.counts, step, rate, prompt, ttft, self.counted.accepted)

    def _served(self, step: Array, work: float) -> Array:
        """The requests/s with steps of each of `counts` sequences and the work of a prompt (the module's formulas)."""
        steps = self.service.steps / self.counted.accepted / self.counts
        found: Array = 1 / np.maximum(np.maximum(steps * step, work + self._steps_alone * step), NEGLIGIBLE)
        return found

    def _host(self, step: Array) -> Array:
        """Seconds of decode steps with the host's time, from those of the kernels, by `counts`."""
        engine, policy = self.configuration.engine, self.configuration.engine.scheduler
        sequence = (policy.sequence or engine["sequence"]) / self.ranks * self.counts
        return (np.maximum(step, sequence) if engine.overlap else step + sequence) + (policy.step or engine["step"])

    @property
    def alike(self) -> tuple[tuple[Any, ...], ...]:
        """What candidates with similar kernels share: the hardware, then also the layout, then also the scheme."""
        name, layout = self.hardware.name, tuple(self.configuration.layout.items())
        return (name,), (name, layout), (name, layout, self.configuration.scheme)

    @property
    def beyond_roof(self) -> float:
        """Mean seconds by which a kernel of a decode step of one sequence exceeds the roofline."""
        return float(self._decoded[0] - self._roof_step[0]) / self.counted.kernels

    def above_roof(self, seconds: float) -> Bounds:
        """The bounds at the roofline with so many seconds more for each kernel of a decode step."""
        return self._stepping(self._host(self._roof_step + seconds * self.counted.kernels))

    def _stepping(self, step: Array) -> Bounds:
        """The bounds at the roofline, with other decode steps and the requests/s that these allow."""
        roof, (first, _) = self.roof, self._times(*self.counted.prompt)
        served = self._served(step, float(first[0]) / self.ranks)
        return replace(roof, step=step, rate=np.minimum(roof.rate, np.maximum.accumulate(served)))

    def _times(self, flops: Array, moved: Array) -> tuple[Array, Array]:
        """Seconds of FLOPs at the highest peak of the linear layers' inputs, and of bytes."""
        formats = {"bf16", "fp16", *PROMOTIONS[self.arithmetic]}
        hardware = self.hardware
        peaks = [unit[name] for unit in (hardware.tensor, hardware.vector) for name in formats if name in unit]
        return flops / (max(peaks) if peaks else np.inf), moved / hardware.memory_bandwidth

    @cached_property
    def analysis(self) -> Analysis:
        """Decode steps of `_batches` sequences, then prompts: as many as fill a pass, one, one of the tail's length.

        Raises RooflineError if the hardware cannot run it.
        """
        service, (mean, tail) = self.service, self.counted.lengths
        scenario = self.configuration.scenario
        whole = max(round(mean * (1 - service.hits)), 1)
        filling = max((budget_of(scenario, self.configuration.engine.scheduler) or whole) // whole, 1) * self.ranks
        lengths = np.append(np.full(self._batches.size + 2, mean), tail)
        computed = np.maximum(np.round(lengths * (1 - service.hits)), 1).astype(int)
        grid: dict[str, Any] = {
            "batch": np.append(self._batches, [filling, 1, 1]),
            "prompt": computed,
            "prefix": lengths - computed,
        }
        if scenario.model.task == "generate":
            grid["context"] = round(service.context)
        return Analysis(under_load(_whole(scenario).at(**grid)))

    @cached_property
    def _batches(self) -> NDArray[np.int64]:
        """The BATCHES below `slots`, and these."""
        return np.append(BATCHES[self.slots > BATCHES], self.slots)

    def phase(self, level: str) -> Phase:
        """What is evaluated for the bounds of a level; raises RooflineError if the hardware cannot run it."""
        decode = self.analysis.decode
        return decode if level == "decoding" and decode is not None else self.analysis.prefill

    @cached_property
    def decoding(self) -> Bounds:
        """The bounds with decode steps at expected times; raises RooflineError if the hardware cannot run it."""
        return self._stepping(np.maximum(self._host(self._decoded), self.roof.step))

    @cached_property
    def expected(self) -> Bounds:
        """The bounds at expected times; raises RooflineError if the hardware cannot run it."""
        answer = self.analysis
        prefill = answer.prefill.expected.mid - self.configuration.engine["step"]
        work = float(prefill[-3]) / float(answer.scenario.batch[-3])
        return self._bounds(self._decoded, work, float(prefill[-2]), float(prefill[-1]), kernels_of(answer))

    @cached_property
    def _steps_alone(self) -> Array:
        """The least steps without prompts per request, by `counts`: G / n - k of the module's theory."""
        configuration, steps = self.configuration, self.service.steps / self.counted.accepted
        budget = budget_of(configuration.base, configuration.engine.scheduler) or np.inf
        filled = self.counted.lengths[0] * (1 - self.service.hits) / np.maximum(budget - self.counts, NEGLIGIBLE)
        found: Array = np.maximum(steps / self.counts - 1 - filled, 0.0)
        return found

    @property
    def _decoded(self) -> Array:
        """Seconds of the kernels of decode steps with each of `counts` sequences; none of a model that only encodes."""
        if (phase := self.analysis.decode) is None:
            return np.zeros(self.counts.size)
        decode = phase.expected.mid - self.configuration.engine["step"]
        found: Array = np.interp(self.counts, self._batches, decode[:-3])
        return found

    @cached_property
    def replica(self) -> Replica:
        """The replica of the configuration; raises RooflineError as `replica_of` does."""
        return replica_of(self.configuration.scenario, self.service.load(1))


@lru_cache(maxsize=1024)
def _counts(slots: int) -> Array:
    """Whole numbers up to `slots`, geometrically spaced."""
    return np.unique(np.geomspace(1, slots, COUNTS).round())


def _whole(scenario: Scenario) -> Scenario:
    """The scenario with each prompt in one pass, whatever a step takes: bounds are of a prompt's work."""
    return scenario.without("max_num_batched_tokens")


def kernels_of(answer: Analysis) -> float:
    """Kernels of a decode pass, or of a pass of a model that only encodes."""
    phase = answer.decode or answer.prefill
    last = phase.passes[-1].placement
    return kernel_count(last.network, phase.engine.on(last.hardware))


workload_cost = lru_cache(maxsize=128)(WorkloadCost)
"""One object for equal arguments: a choice among hardware sizes the same service for each kind."""


class Candidates:
    """Candidates of a service; FLOPs and bytes are counted once for all hardware."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.refused: RooflineError | None = None
        self._costs: dict[Any, WorkloadCost | None] = {}
        self._arithmetic: dict[tuple[str, str], str] = {}

    def of(self, configuration: Configuration) -> Candidate | None:
        """The candidate of a configuration; None if the model does not allow its parallelism."""
        key = configuration.key
        if key not in self._costs:
            try:
                scenario = _whole(configuration.scenario).with_(hw=load_hardware(REFERENCE))
                self._costs[key] = workload_cost(scenario, self.service)
            except RooflineError as error:
                self._costs[key], self.refused = None, error
        if (counted := self._costs[key]) is None:
            return None
        computed = configuration.base.hardware_name, configuration.scheme  # neither layout nor KV cache changes it
        if computed not in self._arithmetic:
            self._arithmetic[computed] = configuration.scenario.run_precision.activations.arithmetic
        return Candidate(configuration, counted, self.service, self._arithmetic[computed])
