"""Seconds of an engine's step: decode tokens and chunks of prompts in one pass.

A kernel whose time depends on the number of tokens alone (GEMMs, experts, norms, collectives) runs once over all of
them. Attention, recurrent layers and what only one of the phases computes (the projections of absorbed MLA) run apart
for the sequences that decode and for the chunks. A step of b sequences with c cached tokens, d tokens each, and chunks
of together q tokens in k prompts takes

    kernels   K = shared(d b + q) + head(d b + k) + decode(b, c) + k prefill(q / k, p)
    step      T = max(K + gap N, [no CUDA graph] issue N) + host, draft_step of each draft (`roofline.specs.engine`)
              with prompts beyond `captured` tokens, `dispatch` of the scheduler in the place of a shorter `issue`;
              with fewer, that of LAUNCHES a layer

with p tokens cached before a chunk; an engine that computes the logits of all prompt tokens runs head(d b + q). b, q
and k are those of one data-parallel rank, the one whose step takes longest; the kernels of experts, whose tokens come
from all ranks, take the mean over ranks. Loads of experts are log-normal, so that fewer are reached than by even ones.
Where n ranks divide the experts, the one with the most rows decides: with t tokens to e experts each, and u the
variance of the loads of experts over their number, it has 1 + z ((n - 1) (1 / (e t) + u))^(1/2) times the mean, z the
expected largest of n deviates.

Images of prompts are encoded in the step of the chunk that has their tokens: tower(q density) more seconds. A model
that only encodes has chunks alone. The prompts of an encoder-decoder are those of its encoder, beside which its decoder
computes one token.

A pipeline of p stages under load has m batches in flight, p unless a number of micro-batches is set: while one is in a
stage, the others are in other stages, so that no stage waits. A step is then a round in which each of the batches, with
1 / m of the sequences and of the chunks, passes all stages: max(1, m / p) T, and not less than the host times of all m.
Fewer requests than m are as many batches. Of unequal stages the slowest decides, with its part of T in place of 1 / p.
Each term is tabulated once for a deployment from the kernels of the two graphs, on geometric grids, and interpolated
linearly: attention is bilinear in sequences and context.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from roofline.core.errors import UnsupportedError
from roofline.core.numeric import maximum, minimum, where
from roofline.graph.extents import Step
from roofline.graph.network import HEAD
from roofline.graph.op import Kind
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.passes import Pass
from roofline.scenario.phase import Phase
from roofline.scenario.scenario import Scenario
from roofline.serving.ranks import busiest, grouped, under_load, uneven
from roofline.serving.tables import Array, Interpolation, Table, geometric
from roofline.specs.engine import Engine
from roofline.timing.evaluation import resolve
from roofline.timing.intervals import Estimate
from roofline.timing.intervals.releases import unsure
from roofline.timing.passes import Timing

TOKENS, BATCHES, CHUNKS, CONTEXTS = 1.08, 1.3, 1.2, 1.6
"""Ratios of the grids."""

MAX_TOKENS, MOST_BATCH = 2**18, 4096
"""The most tokens of a step, and sequences of a data-parallel rank."""

TYPICAL = Step(np.array([8.0]), np.array([1.0]), np.array([1000.0]))
"""The step at which the stages of a pipeline are compared."""

LAUNCHES = 2
"""What the host launches of a layer where the pieces between attention are replayed: one of these, and attention."""

PROBED = 64.0
"""Tokens that tell kernels of tokens from others."""


DECODES, ROWS = 48, 64
"""Contexts, equidistant, and at least so many numbers of sequences at which decode steps are tabulated at once."""


def _names(timing: Timing) -> list[tuple[str, ...]]:
    """The section and operators of each kernel."""
    ops = timing.placement.ops
    return [(kernel.section, *(ops[part][0].name for part in kernel.parts)) for kernel in timing.kernels]


def _by_tokens(timing: Timing, tokens: float = PROBED) -> NDArray[np.bool_]:
    """Kernels whose time depends on the number of tokens alone, of so many."""
    # Three times so many: of as many sequences, of one, and with a longer context.
    step = Step(np.array([tokens, 1.0, tokens]), np.array([1.0, tokens, 1.0]), np.array([1000.0, 1000.0, 3000.0]))
    spent = timing.spent(timing.detail(step))
    return np.asarray(np.isclose(spent, spent[:, :1], rtol=1e-6).all(axis=1), bool)


class StepTimes:
    """The seconds of a step of a scenario's deployment, for any mix of decode and prefill.

    `context` and `chunk` are the longest context and chunk in tokens that the tables cover, `density` the tiles of
    images for each token of prompts. Raises UnsupportedError for a model of no text.
    """

    def __init__(self, scenario: Scenario, context: float = 32768, chunk: float = 32768, density: float = 0.0) -> None:
        if not scenario.model.vocabulary:
            raise UnsupportedError(f"serving is simulated for models of text, which {scenario.model.name} is not")
        if scenario.settings.decode_hardware is not None:
            raise UnsupportedError(
                "prefill and decode on devices of their own are taken by serve, by solve max-rate and max-concurrency,"
                " and by advise for goodput; here one device does both"
            )
        if scenario.settings.ping_pong:
            raise UnsupportedError("experts on devices of their own are taken by analyze, compare and sweep")
        asked = scenario.settings.parallel
        settings = replace(scenario.settings, chunk=None, step_tokens=None, parallel=replace(asked, micro_batches=1))
        single = scenario.changed(batch=1, prompt=1, generate=2, prefix=0, images=0, context=None, settings=settings)
        self.scenario = scenario
        self._covered, self.density = (context, chunk, density), density
        self.encodes, self.pair = scenario.model.task == "encode", scenario.model.tower_kind == "encoder"
        self._source = float(scenario.prompt) if self.pair else 0.0
        self._answer = analyze(under_load(single))
        self.engine = self._answer.prefill.engine
        parallel = self._answer.parallel
        self.errors = unsure(scenario.profile, scenario.model, scenario.hardware, parallel)
        self.data, self.ring = parallel.data, parallel.sequence
        in_stages = parallel.pipeline if asked.micro_batches == 1 else asked.micro_batches
        mixed, self.slowest = scenario.settings.mixed, 1 / parallel.pipeline
        self.flight = 1 if parallel.pipeline == 1 or self.engine.split_layers else in_stages
        if any(stage.tensor for stage in mixed):
            self.flight = len(mixed)
        speculation = scenario.settings.speculation
        self.decode_tokens = 1 if speculation is None else speculation.verified + 1
        self.accepted = self._answer.tokens_per_iteration
        self.scatter = 0.0 if speculation is None else speculation.scatter
        batches, contexts = geometric(1, MOST_BATCH, BATCHES), geometric(16, context, CONTEXTS)
        chunks, before = geometric(1, chunk, CHUNKS), np.append(0.0, geometric(256, context, CONTEXTS))
        decode = () if self.encodes else self._runs(batches, contexts, decode=True)
        prefill = self._runs(chunks, before, decode=False)
        self._tabulate(decode, prefill, (batches, contexts), (chunks, before))
        self._encode(scenario, chunk)
        self._rows, self._stride = list[list[float]](), float(self.decode.columns[-1]) / (DECODES - 1)

    def __reduce__(self) -> tuple[Any, ...]:
        return StepTimes, (self.scenario, *self._covered)  # tables are faster to make than to store

    @property
    def weights(self) -> float:
        """Bytes of the weights of a device."""
        return float(self._answer.memory.weights)

    def _phase(self, *, decode: bool) -> Phase:
        answer: Analysis = self._answer
        return answer.decode if decode and answer.decode is not None else answer.prefill

    def _encode(self, scenario: Scenario, chunk: float) -> None:
        """Tabulate the seconds in which the tower encodes the tiles of chunks."""
        self.tower = Interpolation(np.array([0.0, 1.0]), np.zeros(2))
        step = scenario.changed(batch=1).tower_step
        if not self.density or step is None:
            return
        tiles = geometric(1, max(chunk * self.density, 2.0), BATCHES)
        own = Step(tiles, np.full_like(tiles, step.queries), np.zeros_like(tiles))
        run = self._answer.schedule.prefill(Step(1, 1, 0), own)[0]
        seconds = resolve(self._phase(decode=False).timed(run).deferred(run.step, "prefill", "none")).mid
        self.tower = Interpolation(np.append(0.0, tiles), np.append(0.0, seconds))

    def _runs(self, rows: Array, columns: Array, *, decode: bool) -> tuple[Pass, ...]:
        """The passes of decode steps of `rows` sequences a rank, or of chunks of `rows` tokens."""
        row, column = (grid.ravel() for grid in np.meshgrid(rows, columns, indexing="ij"))
        schedule, one = self._answer.schedule, np.ones(row.size)
        if decode and not self.encodes:
            return schedule.decode(Step(row * self.data, one, np.maximum(column - self._source, 0), self._source))
        if self.pair:
            own = Step(one * self.data, row, 0 * row)
            return schedule.prefill(Step(one * self.data, one, 0 * row, row, row), own)
        return schedule.prefill(Step(one * self.data, row, 0 * row if self.encodes else column), None)

    def _tabulate(
        self,
        decode: Iterable[Pass],
        prefill: Iterable[Pass],
        sequences: tuple[Array, Array],
        pieces: tuple[Array, Array],
    ) -> None:
        prompts = {run.part: run for run in prefill if run.part is not None}
        mains = {run.part: run for run in decode if run.part is not None} or prompts
        before = [run for run in decode if all(run is not main for main in mains.values())]
        ahead = [run for run in prefill if all(run is not prompt for prompt in prompts.values())]
        self.tokens, shape = geometric(1, MAX_TOKENS, TOKENS), (sequences[0].size, sequences[1].size)
        if self.data > 1:  # of all ranks, the tokens of one sequence are less than one of each
            self.tokens = np.append(geometric(1, self.data - 1, TOKENS) / self.data, self.tokens)
        nothing = Interpolation(self.tokens, np.zeros_like(self.tokens))
        self.local = self.experts = self.head = self.late = self.late_experts = nothing
        self.sums: Interpolation | None = None  # what ranks take longer to exchange the tokens of a step with prompts
        self.tail = max((group.layer.tail for group in self.scenario.model.groups), default=0)
        of_decode, of_prefill = np.zeros(shape), np.zeros((pieces[0].size, pieces[1].size))
        spent, whole = list[float](), sum(float(np.max(main.repeat)) for main in mains.values())
        self.kernels = 0.0
        for part, main in mains.items():
            one = self._phase(decode=True).timed(main)
            names = _names(one)
            head = np.array([name[0] == HEAD for name in names])
            shared, prompt, other = np.zeros_like(head), prompts.get(part), one
            if prompt is not None:
                other = self._phase(decode=False).timed(prompt)
                by_tokens = {name for name, alone in zip(_names(other), _by_tokens(other), strict=True) if alone}
                shared = np.array([name in by_tokens for name in names]) & _by_tokens(one) & ~head
                common = {name for name, is_shared in zip(names, shared, strict=True) if is_shared}
                own = np.array([name not in common and name[0] != HEAD for name in _names(other)])
                of_prefill = of_prefill + self._seconds(prompt, of_prefill.shape, own, decode=False)
            self._add_shared_times(one, main, shared, head)
            if self.data > 1 and main.placement.network.exchange is not None:
                longer = (self._sent(other) - self._sent(one)) * float(np.max(main.repeat))
                self.sums = (self.sums or nothing) + longer if longer.any() else self.sums
            self.kernels += one.number * float(np.max(main.repeat)) / whole
            if decode:
                of_decode = of_decode + self._seconds(main, shape, ~shared & ~head, decode=True)
            if self.scenario.settings.mixed:
                spent.append(float(one.spent(one.detail(TYPICAL)).sum() * np.max(main.repeat)))
        self.slowest = max(spent) / sum(spent) if spent else self.slowest
        drafts = [
            (float(np.max(run.repeat)), self._phase(decode=True).timed(run)) for run in before if run.host == "draft"
        ]
        self.drafts = sum(repeat for repeat, _ in drafts)
        self.draft_kernels = sum(repeat * timing.number for repeat, timing in drafts)
        for run in before:
            of_decode = of_decode + self._seconds(run, shape, decode=True)
        for run in ahead:
            of_prefill = of_prefill + self._seconds(run, of_prefill.shape, decode=False)
        self.decode, self.prefill = Table(*sequences, of_decode), Table(*pieces, of_prefill)

    def _add_shared_times(self, timing: Timing, run: Pass, shared: Any, head: Any) -> None:
        """Add the kernels of tokens to the tables: on one rank, of experts, and of the head.

        Those of layers that run the last tokens of a prompt alone are `late`.
        """
        tokens = self.tokens
        parts = run.placement.network.overlap_batches
        step = Step(tokens / parts, np.ones_like(tokens), np.full_like(tokens, 0.0 if self.encodes else 100.0))
        detail = timing.detail(step)
        spent = timing.spent(detail) * float(np.max(run.repeat))
        hidden = timing.hidden(detail, step, "decode") * float(np.max(run.repeat))
        ops = timing.placement.ops
        parts_of = [[ops[part][0] for part in kernel.parts] for kernel in timing.kernels]
        routed = np.array([any(op.kind is Kind.MOE for op in found) for found in parts_of])
        sent = np.array([any(op.is_all_to_all for op in found) for found in parts_of]) & ~routed
        late = shared & ~_by_tokens(timing, 2.0 * self.tail) if self.tail else np.zeros_like(shared)
        alone = shared & ~routed & ~sent
        self.local = self.local + spent[alone & ~late].sum(axis=0)
        self.late = self.late + spent[alone & late].sum(axis=0)
        parallel, specs = self._answer.parallel, self.scenario.model.experts
        chosen = min((spec.top_k for spec in specs), default=1)
        variance = math.expm1(uneven(parallel) ** 2)
        per_expert = max((variance / spec.experts for spec in specs), default=0.0)
        of_groups = max((grouped(spec, parallel.expert) for spec in specs if variance), default=0.0)
        most = busiest(tokens * self.data, parallel.expert, chosen, per_expert, of_groups) / self.data
        of_experts, of_late = (
            np.interp(most, tokens, spent[among & routed].sum(axis=0)) + spent[among & sent].sum(axis=0)
            for among in (shared & ~late, late)
        )
        self.experts, self.late_experts = self.experts + (of_experts - hidden), self.late_experts + of_late
        self.head = self.head + spent[head].sum(axis=0)

    def _sent(self, timing: Timing) -> Array:
        """Seconds in which expert ranks exchange so many tokens of each."""
        step = Step(self.tokens, np.ones_like(self.tokens), np.full_like(self.tokens, 100.0))
        ops = timing.placement.ops
        sent = [any(ops[part][0].is_all_to_all for part in kernel.parts) for kernel in timing.kernels]
        return np.asarray(timing.spent(timing.detail(step))[np.array(sent)].sum(axis=0))

    def _seconds(self, run: Pass, shape: tuple[int, ...], rows: Any = slice(None), *, decode: bool) -> Array:
        """Seconds of the kernels `rows` of a pass, at each point of a grid."""
        timing = self._phase(decode=decode).timed(run)
        seconds = timing.spent(timing.detail(run.step))[rows].sum(axis=0) * run.repeat
        return np.broadcast_to(seconds, np.broadcast_shapes(np.shape(seconds), run.step.shape)).reshape(shape)

    def kernel_seconds(
        self, batch: Any, context: Any, chunk: Any = 0.0, cached: Any = 0.0, prompts: Any = 1.0, mean: Any = None
    ) -> Any:
        """Seconds of the kernels of a step: `batch` sequences with `context` cached tokens, `chunk` of `prompts`.

        All are of the rank whose step takes longest; `mean` are the tokens of a rank on average (None: the same).
        Arrays that broadcast, or plain numbers.
        """
        prompts, decoded, computed = maximum(prompts, 1e-9), batch * self.decode_tokens, chunk / self.ring
        own = prompts * (chunk > 0)
        tokens = decoded + (own if self.pair else computed)
        ends = decoded + self.engine.logits_of(own, computed)
        others = tokens if mean is None else mean
        seconds = self.local(tokens) + self.head(ends) + self.experts(others)
        if self.sums is not None:
            seconds = seconds + self.sums(others) * (chunk > 0)
        if self.tail:  # of each prompt the last tokens alone
            kept = decoded + minimum(chunk, prompts * self.tail)
            seconds = seconds + self.late(kept) + self.late_experts(others * kept / maximum(tokens, 1e-9))
        return seconds + self.decode(batch, context) * (batch > 0) + own * self.prefill(chunk / prompts, cached)

    def seconds(
        self, batch: Any, context: Any, chunk: Any = 0.0, cached: Any = 0.0, prompts: Any = 1.0, mean: Any = None
    ) -> Array:
        """Seconds of a step, of a pipeline those of a round; arguments as of `kernel_seconds`."""
        asked = (batch, context, chunk, cached, prompts, mean)
        return np.asarray(self.single(*(None if value is None else np.asarray(value, float) for value in asked)))

    def single(self, batch: Any, context: Any, chunk: Any, cached: Any, prompts: Any, mean: Any = None) -> Any:
        """The same of plain numbers, without the overhead of arrays."""
        if self.flight == 1:
            return self.pass_seconds(batch, context, chunk, cached, prompts, mean)
        flight, (step, sequence) = self.flight, self.host
        one, shared = where(batch > 0, maximum(batch / flight, 1.0), 0.0), None if mean is None else mean / flight
        rounds = maximum(1.0, minimum(batch + prompts, flight) * self.slowest)
        found = rounds * self.pass_seconds(one, context, chunk / flight, cached, prompts / flight, shared)
        return maximum(found, flight * step + sequence * (batch + prompts))

    def pass_seconds(
        self, batch: Any, context: Any, chunk: Any = 0.0, cached: Any = 0.0, prompts: Any = 1.0, mean: Any = None
    ) -> Any:
        """Seconds in which one batch passes all stages; arguments as of `kernel_seconds`."""
        gap, issue, (slower, in_prefill), captured, replayed, drafting = self._of_engine
        (step, sequence), kernels = self.host, self.kernel_seconds(batch, context, chunk, cached, prompts, mean)
        some, decodes, decoded = chunk > 0, batch > 0, batch * self.decode_tokens
        share, launched = chunk / maximum(decoded + chunk, 1e-9), self.kernels + self.draft_kernels * decodes
        kernels = kernels * ((1 - share) * slower + share * in_prefill) + gap * launched
        issued = self.dispatched * (batch > replayed) if replayed else issue * launched
        eager = decoded + chunk / self.ring > captured
        busy = maximum(kernels, where(some, where(eager, self.dispatched, maximum(self.pieces, issued)), issued))
        busy = busy + self.tower(chunk * self.density) if self.density else busy
        work = sequence * (batch + prompts * some)
        wait = maximum(work - busy, 0.0) if self.engine.overlap else work
        return busy + wait + step + drafting * decodes

    def waiting(self, chunk: float) -> float:
        """Seconds that a prompt's last chunk is on its way beyond its share of a round."""
        if self.flight == 1:
            return 0.0
        return (1 - max(1 / self.flight, self.slowest)) * float(self.pass_seconds(0.0, 0.0, chunk))

    @cached_property
    def host(self) -> tuple[float, float]:
        """Host seconds of a step, and of a sequence in it."""
        engine, policy = self.engine, self.engine.scheduler
        return policy.step or engine["step"], (policy.sequence or engine["sequence"]) * engine.handled

    @cached_property
    def dispatched(self) -> float:
        """Host seconds of the kernels of a step with prompts."""
        engine = self.engine
        issue = engine["issue"] * ("prefill" not in engine.graphs)
        return max(issue, engine.scheduler.dispatch) * engine["launches"] * self.kernels

    @cached_property
    def pieces(self) -> float:
        """Host seconds of the graphs of pieces of a step with prompts, and of attention between them."""
        layers = sum(group.count for group in self.scenario.model.groups)
        return self.dispatched * min(LAUNCHES * layers / max(self.kernels, 1.0), 1.0)

    @cached_property
    def _of_engine(self) -> tuple[Any, ...]:
        """Of the profile what each step reads: seconds a kernel, slowdowns, limits of graphs, and seconds of drafts."""
        engine, graphs = self.engine, "decode" in self.engine.graphs
        slower = engine.kernel_slowdown("decode"), engine.kernel_slowdown("prefill")
        captured, sequences = engine.scheduler.captured, self.scenario.settings.sequences
        if sequences:  # graphs are of no more than twice the tokens that decode (vLLM, _set_cudagraph_sizes)
            captured = min(captured, 2 * sequences * self.decode_tokens)
        limits = captured, engine.replayed * graphs
        return engine["gap"], engine["issue"] * (not graphs), slower, *limits, self.drafts * engine["draft_step"]

    def of(self, engine: Engine) -> StepTimes:
        """The same kernels with the host times of another profile."""
        found = copy(self)
        found.engine, found._rows = engine, []
        for name in ("host", "dispatched", "pieces", "_of_engine"):
            found.__dict__.pop(name, None)
        return found

    @cached_property
    def spread(self) -> tuple[Table, Table, Table, Table]:
        """p10 and p90 over the expected time of a decode step (rows: sequences), and of a chunk (rows: tokens).

        Errors that no kernel has are apart (`errors`): a scheduler's spread does not multiply them.
        """
        found = []
        columns = np.array([256.0, 2048.0, 16384.0])
        for name, rows in (("decode", geometric(1, 1024, 4)), ("prefill", geometric(64, 16384, 4))):
            decode, total = name == "decode", Estimate(0.0, 0.0, 0.0)
            phase = self._phase(decode=decode)
            for run in self._runs(rows, columns, decode=decode):
                timing = phase.timed(run, replace(phase.engine, spread=self.scenario.profile.spread))
                total += resolve(timing.deferred(run.step, name)) * run.repeat
            found += [Table(rows, columns, (end / total.mid).reshape(rows.size, -1)) for end in (total.low, total.high)]
        return found[0], found[1], found[2], found[3]

    def decode_of(self, batch: int, mean: float | None = None) -> Callable[[float], float]:
        """The seconds of a step of `batch` sequences of a rank by their mean context; `mean` as of `seconds`."""
        rows, stride = self._rows, self._stride
        if batch >= len(rows):
            number = np.arange(float(len(rows)), float(max(batch + 1, 2 * len(rows), ROWS)))
            # A new list: threads that share the table add rows at the same time.
            rows = [*rows, *self.seconds(number[:, np.newaxis], np.arange(DECODES) * stride).tolist()]
            self._rows = rows
        row, fewer = rows[batch], 0.0
        if mean is not None and self.flight == 1:
            routed = self.experts(batch * self.decode_tokens) - self.experts(mean)
            fewer = routed * self.engine.kernel_slowdown("decode")

        def seconds(context: float) -> float:
            place = context / stride
            low = min(int(place), DECODES - 2)
            return row[low] + (place - low) * (row[low + 1] - row[low]) - fewer

        return seconds
