"""From a scenario to its answer: both phases operator by operator, the generation, and the memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from roofline.bound.memory import Memory, activation_peak, kept_bytes, viewer_weight_bytes, weight_bytes
from roofline.graph.convention import Convention
from roofline.graph.extents import Step, on_grid, spread
from roofline.graph.network import Build, Network
from roofline.graph.parallel import Parallelism, stages
from roofline.graph.tensor import Role
from roofline.scenario.generation import smooth_contexts, sum_smooth, sum_steps
from roofline.scenario.phase import Phase
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Pass, Schedule
from roofline.timing.batches import Asking, answered, beside, together
from roofline.timing.calibration import Calibrations
from roofline.timing.estimate import Estimate


class Generation(Struct, frozen=True):
    """A static batch from prompt to last token.

    `ttft`: time to first token, the prefill. `tpot`: time per output token after the first, the mean decode step
    (None when only one token is generated, NaN in arrays). `total`: ttft plus generated - 1 decode steps.
    `tokens_per_second`: generated tokens of all sequences over `total`. Times in seconds.
    """

    batch: Any
    prompt: Any
    generated: Any
    ttft: Any
    tpot: Any
    total: Any
    tokens_per_second: Any


class ExpectedGeneration(NamedTuple):
    """A static batch at expected times, in seconds: see `Generation`. `tpot` is None where one token is generated."""

    ttft: Estimate
    tpot: Estimate | None
    total: Estimate
    tokens_per_second: Estimate


class Analysis:
    """The answer to a scenario. Phases, generation and memory are worked out when they are asked for.

    Figures of operators, FLOPs, bytes and memory are those of one device; `parallel.devices` share the work. `decode`
    is one iteration, which yields `tokens_per_iteration` tokens a sequence; it is None for a model that only encodes.
    """

    def __init__(self, scenario: Scenario, calibrations: Calibrations | None = None) -> None:
        precision = scenario.run_precision
        assert isinstance(scenario.convention, Convention)
        self.scenario = scenario
        self.precision = precision
        self.fusions = tuple(scenario.fusions or ())
        self._convention = scenario.convention
        self._schedule = Schedule(
            scenario.model,
            scenario.hardware,
            precision,
            Build(self.fusions, scenario.convention),
            scenario.settings,
        )
        passes = self._schedule.prefill(scenario.prefill_step, scenario.tower_step)
        self._calibrations = Calibrations() if calibrations is None else calibrations
        self.prefill = Phase("prefill", passes, scenario.shape, scenario.profile, self._calibrations)
        self.decode: Phase | None = None
        if scenario.model.task == "generate":
            self.decode = self.decoding(scenario.decode_step, scenario.shape)
        self._expected: ExpectedGeneration | None = None

    def decoding(self, step: Step, shape: tuple[int, ...] = ()) -> Phase:
        """One decode iteration at another step, of a grid of such a shape."""
        return Phase("decode", self._schedule.decode(step), shape, self.scenario.profile, self._calibrations)

    @property
    def network(self) -> Network:
        """The graph of prefill."""
        return self._schedule.networks[0]

    @property
    def schedule(self) -> Schedule:
        """The passes that its phases are made of."""
        return self._schedule

    @property
    def times_are_expected(self) -> bool:
        """Whether expected times mean anything: the LLM-Viewer paper's counting leaves out what kernels do."""
        return self._convention is Convention.PHYSICAL

    @property
    def parallel(self) -> Parallelism:
        """How many devices share the work, and how, on the hardware of prefill."""
        return self.scenario.settings.parallel.on(self.scenario.hardware)

    @property
    def tokens_per_iteration(self) -> float:
        """Tokens that a decode iteration yields for each sequence."""
        return self._schedule.tokens_per_iteration

    @cached_property
    def memory(self) -> Memory:
        """Memory of the fullest device at the end of the generation; activations at the worst of all passes."""
        scenario, convention = self.scenario, self._convention
        model, parallel, precision = scenario.model, self.parallel, self.precision
        prefill, decode = self._schedule.networks
        layers = stages(model, parallel.pipeline) if parallel.pipeline > 1 else ()
        weights = weight_bytes(prefill, layers) + model.extra_parameters * precision.base.bytes
        if convention is Convention.LLM_VIEWER:
            weights = viewer_weight_bytes(prefill)
        settings, schedule = scenario.settings, self._schedule
        if model.tower is not None:
            weights += weight_bytes(self._schedule.tower) + model.tower.extra_parameters * precision.base.bytes
        runs = [run for phase in (self.prefill, self.decode) if phase for run in phase.passes]
        peaks = [self._shaped(_most_alive(run, convention), run.step) for run in runs]
        peak = peaks[0]
        for more in peaks[1:]:
            peak = np.maximum(peak, more)
        last = self._schedule.kept_step(scenario.last_step)
        cache = self._shaped(kept_bytes(decode, Role.KV, last, layers), last)
        state = self._shaped(kept_bytes(decode, Role.STATE, last, layers), last)
        for shared in schedule.shared_steps(scenario.prefill_step, last):
            cache = cache - self._shaped(kept_bytes(decode, Role.KV, shared, layers), shared)
        weights *= 1 - settings.offload.weights
        cache = cache * (1 - settings.offload.kv)
        if settings.host is not None:
            kept = settings.host.memory if settings.host.kv is None else settings.host.kv
            weights, cache = weights * (1 - settings.host.memory), cache * (1 - kept)
        for graph in schedule.others:
            weights += weight_bytes(graph)
            cache = cache + self._shaped(kept_bytes(graph, Role.KV, last), last)
            state = state + self._shaped(kept_bytes(graph, Role.STATE, last), last)
        if model.task == "encode":
            cache = cache * 0.0
        plain = (lambda value: value) if scenario.shape else float
        capacity = min(pool.memory_capacity for pool in (scenario.hardware, schedule.decoder))
        return Memory(weights, plain(cache), plain(state), plain(peak), capacity)

    @property
    def beyond_max_context(self) -> bool:
        """Whether any sequence grows longer than the model was made for."""
        scenario, limit = self.scenario, self.scenario.model.max_context
        last = scenario.last_step
        longest = scenario.prompt_tokens if self.decode is None else last.cached + last.queries
        if scenario.model.tower_kind == "encoder":
            longest = np.maximum(longest, scenario.prompt)
        return bool(limit is not None and np.max(longest) > limit)

    def _shaped(self, flat: Any, step: Step) -> Any:
        return on_grid(flat, step, self.scenario.shape)

    @cached_property
    def generation(self) -> Generation:
        """The whole static batch: prefill, then generate - 1 further tokens."""
        scenario = self.scenario
        ttft = self.prefill.bound_time
        steps = self._flat(scenario.generate) - 1 if self.decode else np.zeros(self._flat(scenario.batch).size)
        decode = self._decode_sum(steps) if self.decode else steps
        with np.errstate(invalid="ignore"):
            per_token = decode / steps
        tpot: Any
        if not scenario.shape:
            total = ttft + float(decode[0])
            tpot = float(per_token[0]) if steps[0] else None
        else:
            total = ttft + decode.reshape(scenario.shape)
            tpot = per_token.reshape(scenario.shape)
        generated = scenario.generate if self.decode else 0
        return Generation(
            batch=scenario.batch,
            prompt=scenario.prompt,
            generated=generated,
            ttft=ttft,
            tpot=tpot,
            total=total,
            tokens_per_second=scenario.batch * generated * scenario.settings.useful / total,
        )

    @property
    def expected(self) -> ExpectedGeneration:
        """The whole static batch at expected times."""
        return answered(self.expecting())

    def expecting(self) -> Asking[ExpectedGeneration]:
        """The same, asking for the times of its kernels."""
        if self._expected is None:
            scenario = self.scenario
            steps = self._flat(scenario.generate) - 1 if self.decode else np.zeros(self._flat(scenario.batch).size)
            parts = [self.prefill.expecting(), *([self._expecting_decode(steps)] if self.decode else [])]
            ttft, decode = [*(yield from beside(parts)), Estimate(steps, steps, steps)][:2]
            self._expected = self._generated(ttft, decode, steps)
        return self._expected

    def _generated(self, ttft: Estimate, decode: Estimate, steps: Any) -> ExpectedGeneration:
        """The whole batch, from the time of its prefill and that of all its `steps`."""
        scenario = self.scenario
        shaped = (lambda flat: flat.reshape(scenario.shape)) if scenario.shape else (lambda flat: float(flat[0]))
        total = ttft.plus(Estimate(*map(shaped, decode)))
        with np.errstate(invalid="ignore"):
            per_token = Estimate(*(shaped(part / steps) for part in decode))
        generated = scenario.generate if self.decode else 0
        tokens = scenario.batch * generated * scenario.settings.useful
        rate = Estimate(tokens / total.high, tokens / total.mid, tokens / total.low)
        tpot = None if not scenario.shape and not steps[0] else per_token
        return ExpectedGeneration(ttft, tpot, total, rate)

    def _expecting_decode(self, steps: Any) -> Asking[Estimate]:
        """Seconds of decoding after the first token, for each point of the flattened grid."""
        scenario, phase = self.scenario, self.decode
        assert phase is not None
        batch, source = self._flat(scenario.batch), self._flat(scenario.decode_step.source)
        cached = smooth_contexts(self._flat(scenario.first_cached), steps)
        size = cached.size // batch.size  # several contexts of each point at once
        step = Step(np.tile(batch, size), np.ones(cached.size), cached, np.tile(source, size))
        passes, total = self._schedule.decode(step), Estimate(0.0, 0.0, 0.0)
        flats = yield from beside(phase.timed(run).expecting(run.step, "decode") for run in passes)
        for run, flat in zip(passes, flats, strict=True):
            total = total.plus(flat.times(run.repeat))
        return Estimate(*(sum_smooth(part, steps) for part in total)).times(1 / self.tokens_per_iteration)

    def _flat(self, value: Any) -> Any:
        return spread(np.asarray(value, float), self.scenario.shape).reshape(-1)

    def _decode_sum(self, steps: Any) -> Any:
        """Seconds of decoding after the first token, for each point of the flattened grid.

        Each token takes its share of an iteration at the context that it finds.
        """
        return self._step_sum(lambda run: run.placement.total_time(run.placement.values(run.step)), steps)

    def decode_summed(self, weigh: Callable[[Pass], Any]) -> Any:
        """The sum over all decode steps after the first token of a count that is linear in a pass's monomials.

        `weigh` gives the coefficients of a pass; 0 where nothing is decoded.
        """
        scenario = self.scenario
        if self.decode is None:
            return np.zeros(scenario.shape) if scenario.shape else 0.0
        rows: dict[int, Any] = {}  # by placement: the schedule keeps its placements from step to step

        def count(run: Pass) -> Any:
            key = id(run.placement)
            if key not in rows:
                rows[key] = weigh(run)
            return rows[key] @ run.placement.values(run.step) * run.busy

        flat = self._step_sum(count, self._flat(scenario.generate) - 1)
        return flat.reshape(scenario.shape) if scenario.shape else float(flat[0])

    def _step_sum(self, count: Callable[[Pass], Any], steps: Any) -> Any:
        """The sum of a count of passes over all decode steps, for each point of the flattened grid."""
        scenario, schedule = self.scenario, self._schedule
        first, batch = self._flat(scenario.first_cached), self._flat(scenario.batch)
        source = self._flat(scenario.decode_step.source)

        def of_step(cached: Any, points: Any) -> Any:
            step = Step(batch[points], 1.0, cached, source[points])
            counts = [run.repeat * count(run) for run in schedule.decode(step)]
            return counts[0] if len(counts) == 1 else np.sum(counts, axis=0)

        knees = {knee for run in schedule.decode(scenario.decode_step) for knee in run.placement.network.knees}
        return sum_steps(of_step, first, first + steps - 1, knees) / self.tokens_per_iteration


def _most_alive(run: Pass, convention: Convention) -> Any:
    """The most bytes of activations alive at once in a pass: of all batches that take turns in it."""
    graph = run.placement.network
    return activation_peak(graph, run.step, convention) * graph.turns


def expect(parts: Iterable[Analysis | Phase]) -> None:
    """Works out the expected times of several scenarios, or phases, side by side: sooner than one after the other.

    One that has none raises its RooflineError where it is asked for them.
    """
    together(part.expecting() for part in parts)


def analyze(scenario: Scenario, calibrations: Calibrations | None = None) -> Analysis:
    """Place `scenario` on the roofline; `calibrations` are those that were loaded already.

    >>> from roofline import Scenario, analyze, load_hardware, load_model
    >>> answer = analyze(Scenario(load_model("llama-3.1-8b"), load_hardware("h100-sxm"), batch=8, prompt=2048))
    >>> str(answer.decode.bound), answer.memory.fits
    ('memory', True)

    Raises UnsupportedError where the hardware cannot compute in the formats asked for.
    """
    return Analysis(scenario, calibrations)
