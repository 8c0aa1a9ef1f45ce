"""The analysis of a scenario: prefill and decode operator by operator, the whole generation, and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from roofline.bound.memory import Memory
from roofline.core.display import Result
from roofline.core.errors import RooflineError, UnsupportedError
from roofline.core.search import last_before_failure
from roofline.graph.convention import Convention
from roofline.graph.extents import Step, spread
from roofline.graph.network import Build, Network
from roofline.graph.parallel import Parallelism
from roofline.scenario.argument import scenario_of
from roofline.scenario.generation import smooth_contexts, sum_smooth, sum_steps
from roofline.scenario.memory import scenario_memory
from roofline.scenario.passes import Pass
from roofline.scenario.phase import Phase
from roofline.scenario.scenario import Scenario
from roofline.scenario.schedule import Schedule
from roofline.scenario.speculation import iterations
from roofline.timing.chains import Calibrate, engine_calibration
from roofline.timing.evaluation import Deferred, gather, prefetch, resolve
from roofline.timing.intervals import Estimate, Reading
from roofline.timing.intervals.estimate import locked
from roofline.timing.intervals.passes import with_spread
from roofline.timing.intervals.releases import with_errors


class Generation(Struct, frozen=True):
    """A static batch from prompt to last token; times in seconds.

    `ttft` is the prefill time. `tpot` is the mean decode step (None when only one token is generated, NaN in arrays).
    `total` is ttft plus generated - 1 decode steps. `tokens_per_second` counts the tokens of all sequences.
    """

    batch: Any
    prompt: Any
    generated: Any
    ttft: Any
    tpot: Any
    total: Any
    tokens_per_second: Any


class ExpectedGeneration(NamedTuple):
    """`Generation` with expected times: estimates with an 80% interval; `decode` is the time of all decode steps."""

    ttft: Estimate
    decode: Estimate
    tpot: Estimate | None
    total: Estimate
    tokens_per_second: Estimate


class Analysis(Result):
    """The analysis of a scenario; phases, generation and memory are computed lazily.

    FLOPs, bytes and memory are those of one of `parallel.devices` devices. `decode` is one iteration, which yields
    `tokens_per_iteration` tokens per sequence; it is None for a model that only encodes.
    """

    def __init__(self, scenario: Scenario, calibrate: Calibrate = engine_calibration) -> None:
        precision = scenario.run_precision
        self.scenario = scenario
        self.precision = precision
        self.fusions = scenario.fusions
        logits = scenario.profile.prompt_logits and self.times_are_expected
        build = Build(self.fusions, scenario.convention, every_position=logits)
        self.schedule = Schedule.of(scenario.model, scenario.hardware, precision, build, scenario.settings)
        self._calibrate = calibrate
        self._engine = with_errors(scenario.profile, scenario.model, scenario.hardware, scenario.settings.parallel)
        self._expected: ExpectedGeneration | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        phases = [phase for phase in (self.prefill, self.decode) if phase is not None]
        known = self._expected, [phase._expected for phase in phases]
        return Analysis, (self.scenario, self._calibrate), known  # times of a batch of scenarios differ in rounding

    def __setstate__(self, known: tuple[ExpectedGeneration | None, list[Estimate | None]]) -> None:
        self._expected = known[0]
        for phase, expected in zip((self.prefill, self.decode), known[1], strict=False):
            if phase is not None:
                phase._expected = expected

    @cached_property
    def prefill(self) -> Phase:
        """The passes of all prompts."""
        passes = self.schedule.prefill(self.scenario.prefill_step, self.scenario.tower_step)
        return Phase("prefill", passes, self.scenario.shape, self._engine, self._calibrate)

    @cached_property
    def decode(self) -> Phase | None:
        """One iteration; None for a model that only encodes."""
        encodes = self.scenario.model.task != "generate"
        return None if encodes else self.decode_phase(self.scenario.decode_step, self.scenario.shape)

    def decode_phase(self, step: Step, shape: tuple[int, ...] = ()) -> Phase:
        """A decode iteration at `step`, whose grid has `shape`."""
        return Phase("decode", self.schedule.decode(step), shape, self._engine, self._calibrate)

    @property
    def network(self) -> Network:
        """The graph of prefill."""
        return self.schedule.networks[0]

    @property
    def times_are_expected(self) -> bool:
        """Whether expected times exist: the LLM-Viewer convention omits operators that real kernels run."""
        return self.scenario.convention is Convention.PHYSICAL

    @property
    def parallel(self) -> Parallelism:
        """The parallelism on the hardware of prefill."""
        return self.scenario.settings.parallel.on(self.scenario.hardware)

    @property
    def tokens_per_iteration(self) -> float:
        """Tokens per decode iteration and sequence."""
        return self.schedule.tokens_per_iteration

    @cached_property
    def memory(self) -> Memory:
        """Memory of the fullest device at the end of the generation, with what the engine reserves for its passes."""
        decode = self.decode.passes if self.decode else ()
        found = scenario_memory(self.scenario, self.schedule, self.prefill.passes, decode)
        locked(*astuple(found))
        return found

    @property
    def beyond_max_context(self) -> bool:
        """Whether any sequence grows beyond the model's maximum context."""
        return bool(self.too_long)

    @property
    def too_long(self) -> str:
        """How many tokens the model takes, in a sentence, where any sequence has more; "" where none has."""
        scenario, model = self.scenario, self.scenario.model
        last, tower, limit = scenario.last_step, scenario.model.tower, scenario.settings.longest_of(scenario.model)
        longest = scenario.prompt_tokens if self.decode is None else last.cached + last.queries
        counted = "prompt" if self.decode is None else "prompt + output"
        if tower is not None and model.tower_kind == "encoder":
            if tower.max_context is None:
                longest = np.maximum(longest, scenario.prompt)
            elif np.max(scenario.prompt) > tower.max_context:
                longest, limit, counted = scenario.prompt, tower.max_context, "prompt"
            else:
                counted = "output"
        if limit is None or np.max(longest) <= limit:
            return ""
        output = scenario.generate if counted == "output" else scenario.first_cached + scenario.generate
        asked = int(np.max(longest if counted == "prompt" else output))
        set_by = "" if scenario.settings.longest is None else " as it is set"
        return f"{model.name} takes at most {limit:,} tokens{set_by} ({counted}), not {asked:,}"

    @cached_property
    def generation(self) -> Generation:
        """The whole static batch at bound times: prefill, then generate - 1 further tokens."""
        scenario, steps = self.scenario, self._steps
        ttft = self.prefill.bound_time
        decode = (
            self._step_sum(lambda run: run.placement.total_time(run.placement.values(run.step)), steps)
            if self.decode
            else steps
        )
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
        rate = scenario.batch * generated * scenario.settings.useful / total
        return Generation(*locked(scenario.batch, scenario.prompt, generated, ttft, tpot, total, rate))

    @property
    def expected(self) -> ExpectedGeneration:
        """The whole static batch at expected times."""
        return resolve(self.deferred())

    def check_reading(self, reading: Reading) -> None:
        """Raise UnsupportedError for an expected time in a convention that has none."""
        if reading != "bound" and not self.times_are_expected:
            raise UnsupportedError("the llm-viewer convention has no expected times, only the bound", options=["at"])

    def figure(self, name: str, reading: Reading) -> Any:
        """A field of `Generation` or, at a percentile, of `ExpectedGeneration`; raises UnsupportedError."""
        self.check_reading(reading)
        found = getattr(self.generation if reading == "bound" else self.expected, name)
        return found if reading == "bound" or found is None else getattr(found, reading)

    def deferred(self) -> Deferred[ExpectedGeneration]:
        """`expected` as a generator that yields requests for kernel times, to evaluate many scenarios at once."""
        if self._expected is None:
            steps = self._steps
            parts = [self.prefill.deferred(), *([self._deferred_decode(steps)] if self.decode else [])]
            ttft, decode = [*(yield from gather(parts)), Estimate(steps, steps, steps)][:2]
            self._expected = self._generated(ttft, decode, steps)
        return self._expected

    def _generated(self, ttft: Estimate, decode: Estimate, steps: Any) -> ExpectedGeneration:
        """The whole batch, from the times of prefill and of all decode `steps`; none is below its bound.

        The quadrature of a bound with bends in the context may miss its exact sum by parts in a million.
        """
        scenario, bound = self.scenario, self.generation
        shaped = (lambda flat: flat.reshape(scenario.shape)) if scenario.shape else (lambda flat: float(flat[0]))
        rest = Estimate(*map(shaped, decode)).at_least(bound.total - bound.ttft)
        total = (ttft + rest).at_least(bound.total)
        with np.errstate(invalid="ignore"):
            per_token = Estimate(*(shaped(part / steps) for part in decode))
        generated = scenario.generate if self.decode else 0
        tokens = scenario.batch * generated * scenario.settings.useful
        rate = Estimate(*locked(tokens / total.high, tokens / total.mid, tokens / total.low))
        tpot = None if bound.tpot is None else per_token.at_least(bound.tpot)
        return ExpectedGeneration(ttft, rest, tpot, total, rate)

    def _deferred_decode(self, steps: Any) -> Deferred[Estimate]:
        """Expected seconds of all decode steps, for each point of the flattened grid."""
        scenario, phase = self.scenario, self.decode
        assert phase is not None
        batch, source = self._flat(scenario.batch), self._flat(scenario.decode_step.source)
        cached = smooth_contexts(self._flat(scenario.first_cached), steps)
        size = cached.size // batch.size  # several contexts of each point at once
        step = Step(np.tile(batch, size), np.ones(cached.size), cached, np.tile(source, size))
        passes, total = self.schedule.decode(step), Estimate(0.0, 0.0, 0.0)
        flats = yield from gather(phase.deferred_pass(run) for run in passes)
        for run, flat in zip(passes, flats, strict=True):
            total += flat * run.repeat
        found = Estimate(*(sum_smooth(part, steps) for part in total)) * (1 / self._kept(steps))
        error = 0.0 if scenario.settings.speculation is None else scenario.settings.speculation.error
        return with_spread(found.mid, found.mid - found.low, found.high - found.mid, (1 - error, 1 + error))

    def _kept(self, steps: Any) -> Any:
        """Tokens of an iteration that are wanted, on average over a generation of so many after the first.

        A stated context is one within a longer generation, of which no token is lost.
        """
        if self.scenario.context is not None:
            return np.full(np.shape(steps), self.tokens_per_iteration)
        with np.errstate(invalid="ignore"):
            return np.where(steps > 0, steps / iterations(steps, self.tokens_per_iteration), self.tokens_per_iteration)

    @property
    def kept_per_iteration(self) -> float:
        """Tokens of an iteration that are wanted, on average: the last one yields more (a single scenario)."""
        return float(self._kept(self._steps)[0])

    def _flat(self, value: Any) -> Any:
        return spread(np.asarray(value, float), self.scenario.shape).reshape(-1)

    @property
    def _steps(self) -> Any:
        scenario = self.scenario
        return self._flat(scenario.generate) - 1 if self.decode else np.zeros(self._flat(scenario.batch).size)

    def decode_summed(self, coefficients: Callable[[Pass], Any]) -> Any:
        """The sum over all decode steps of a count that is linear in a pass's monomials, given its coefficients."""
        scenario = self.scenario
        if self.decode is None:
            return np.zeros(scenario.shape) if scenario.shape else 0.0
        rows: dict[int, Any] = {}  # by placement: the schedule returns the same placements at every step

        def count(run: Pass) -> Any:
            key = id(run.placement)
            if key not in rows:
                rows[key] = coefficients(run)
            return rows[key] @ run.placement.values(run.step) * run.busy

        flat = self._step_sum(count, self._steps)
        return flat.reshape(scenario.shape) if scenario.shape else float(flat[0])

    def _step_sum(self, count: Callable[[Pass], Any], steps: Any) -> Any:
        """The sum of a count over the passes of all decode steps, for each point of the flattened grid."""
        scenario, schedule = self.scenario, self.schedule
        first, batch = self._flat(scenario.first_cached), self._flat(scenario.batch)
        source = self._flat(scenario.decode_step.source)

        def of_step(cached: Any, points: Any) -> Any:
            step = Step(batch[points], 1.0, cached, source[points])
            counts = [run.repeat * count(run) for run in schedule.decode(step)]
            return counts[0] if len(counts) == 1 else np.sum(counts, axis=0)

        saturation_points = {
            saturation_point
            for run in schedule.decode(scenario.decode_step)
            for saturation_point in run.placement.network.saturation_points
        }
        return sum_steps(of_step, first, first + steps - 1, saturation_points) / self._kept(steps)


def prefetch_expected(parts: Iterable[Analysis | Phase]) -> None:
    """Computes the expected times of several scenarios or phases in batches, faster than one after the other.

    Errors are raised later, where the expected times are read.
    """
    prefetch(part.deferred() for part in parts)


def analyze(scenario: Scenario, calibrate: Calibrate = engine_calibration) -> Analysis:
    """The analysis of `scenario`, with the constants of kernels that `calibrate` finds.

    >>> from roofline import Scenario, analyze
    >>> answer = analyze(Scenario("llama-3.1-8b", "h100-sxm", batch=8, prompt=2048))
    >>> str(answer.decode.bound), answer.memory.fits
    ('memory', True)

    Raises UnsupportedError where the hardware cannot compute in the requested formats, and RooflineError for lengths
    that are distributions, and where the engine would not start.
    """
    for name, drawn in zip(("prompt", "generate"), scenario_of(scenario).drawn, strict=True):
        if drawn is not None and drawn.varies and scenario.asked:
            raise RooflineError(f"{name} of a static batch is one length; {drawn.written} is a distribution under load")
    if scenario.asked:
        scenario.check_lengths()
    answer = Analysis(scenario, calibrate)
    _ = answer.prefill, answer.decode  # which raise what is said above
    if scenario.settings.longest is not None:
        _check_start(answer)
    return answer


def static_batch(scenario: Scenario, sequences: float) -> Analysis:
    """The analysis of a static batch of so many sequences, rounded; of one where their number is not finite."""
    count = round(sequences) if np.isfinite(sequences) else 1
    return analyze(scenario.at(batch=max(1, min(count, scenario.max_batch))))


def filled(scenario: Scenario, sequences: int, tokens: Any) -> Memory:
    """The memory with sequences of so many tokens each, at their longest, which the scenario's limits do not check."""
    counts = {"batch": sequences, "prompt": np.maximum(tokens - 1, 1), "generate": 1, "prefix": 0, "images": 0}
    return Analysis(scenario.changed(**counts, context=None)).memory


UNLIMITED = 10**6
"""Tokens up to which a model without a maximum context is tried."""


def longest_context(scenario: Scenario, sequences: int) -> int:
    """The most tokens of a sequence, prompt and output, while so many are in memory at once.

    At most the model's maximum context; 0 where not even one token fits.
    """
    limit = scenario.model.max_context or UNLIMITED
    return last_before_failure(lambda tokens: filled(scenario, sequences, tokens).fits, 1, limit)


def _check_start(answer: Analysis) -> None:
    """Raise RooflineError where the engine would not start: the longest sequence that it is set to run does not fit."""
    scenario, longest = answer.scenario, answer.scenario.settings.longest
    whole = filled(scenario, answer.parallel.data, longest)
    if np.all(answer.memory.fits) and not np.all(whole.fits):
        raise RooflineError(
            f"{scenario.profile.name} does not start: a sequence of max_model_len {longest} does not fit in memory"
        )
