"""A case: one simulated scenario under advice, and the figures that rules inspect."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

import numpy as np
from msgspec import Struct

from roofline.advisor.formats import Formats, WeightGemm, formats_of, largest_gemm
from roofline.advisor.search.breakeven import BreakEven
from roofline.advisor.search.combine import within_budget
from roofline.advisor.search.goal import Goal, Objective
from roofline.advisor.search.moves import BATCHES, FACT_SLOTS, Kind, Move, technique_move
from roofline.advisor.search.trials import Trial, Trials
from roofline.bound.roof import Bound
from roofline.core.errors import RooflineError
from roofline.core.units import si
from roofline.graph.op import Kind as OpKind
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.breakdown import HIDDEN, HOST, Breakdown, decode_breakdown, prefill_breakdown, steps
from roofline.scenario.phase import OpFigures, Phase
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import Hardware, Span
from roofline.specs.model import Model
from roofline.specs.precision import Precision
from roofline.techniques import check_request


class Case(Struct, frozen=True, dict=True):
    """A simulated request with its goal; `moves` are all that may be advised, by name.

    Shares are of the expected time of the whole generation, prefill and decode together.
    """

    trials: Trials
    moves: Mapping[str, Move]

    @property
    def goal(self) -> Goal:
        return self.trials.goal

    @property
    def base(self) -> Trial:
        return self.trials.base

    @property
    def analysis(self) -> Analysis:
        return self.base.analysis

    @property
    def scenario(self) -> Scenario:
        return self.analysis.scenario

    @property
    def model(self) -> Model:
        return self.scenario.model

    @property
    def hardware(self) -> Hardware:
        return self.scenario.hardware

    @property
    def precision(self) -> Precision:
        return self.analysis.precision

    @property
    def batch(self) -> int:
        return int(self.scenario.batch)

    @cached_property
    def break_even(self) -> BreakEven:
        """Finds where moves stop helping."""
        return BreakEven(self.trials.scenario, self.goal)

    @cached_property
    def generates(self) -> bool:
        return steps(self.analysis) > 0

    @cached_property
    def decode_share(self) -> float:
        if not self.generates:
            return 0.0
        whole, first = self.analysis.expected.total.mid, self.analysis.expected.ttft.mid
        return float((whole - first) / whole)

    @property
    def prefill_share(self) -> float:
        return 1.0 - self.decode_share

    @property
    def decode(self) -> Phase:
        assert self.analysis.decode is not None
        return self.analysis.decode

    @cached_property
    def decode_breakdown(self) -> Breakdown:
        return decode_breakdown(self.analysis, "expected")

    @cached_property
    def prefill_breakdown(self) -> Breakdown:
        return prefill_breakdown(self.analysis, "expected")

    @cached_property
    def host_share(self) -> float:
        """The share of a decode step without a kernel: scheduling, sampling, gaps between kernels."""
        breakdown = self.decode_breakdown
        return breakdown.parts.get(HOST, 0.0) / breakdown.total if breakdown.total else 0.0

    def bound_share(self, phase: Phase, bound: Bound) -> float:
        """The share of a phase's expected time in operators with this bound."""
        return self.time_share(phase, lambda op: op.bound == bound)

    def bytes_share(self, phase: Phase, role: str) -> float:
        """The share of a phase's bytes of a role: `weight`, `kv`, `activation` or `state`."""
        moved = sum(float(op.count * op.busy * op.bytes) for op in phase.ops)
        of_role = sum(float(op.count * op.busy * getattr(op, f"{role}_bytes")) for op in phase.ops)
        return of_role / moved if moved else 0.0

    @property
    def fits(self) -> bool:
        return bool(self.base.fits)

    def gain(self, name: str) -> float:
        """How many times better a single move makes the objective; NaN if it cannot be applied."""
        move = self.moves.get(name)
        trial = None if move is None else self.trials.attempt([move])
        if trial is None:
            return float("nan")
        return float(np.asarray(self.goal.gain(self.base.value, trial.value)))

    @cached_property
    def decode_stake(self) -> float:
        """The fraction of the objective that is decode time: 1 for TPOT, 0 for TTFT and memory."""
        stakes = {Objective.TTFT: 0.0, Objective.MEMORY: 0.0, Objective.TPOT: 1.0 if self.generates else 0.0}
        return stakes.get(self.goal.objective, self.decode_share)

    @property
    def prefill_stake(self) -> float:
        """The fraction of the objective that is prefill time."""
        stakes = {Objective.TTFT: 1.0, Objective.MEMORY: 0.0, Objective.TPOT: 0.0}
        return stakes.get(self.goal.objective, self.prefill_share)

    @cached_property
    def formats(self) -> Formats | None:
        return formats_of(self.analysis)

    @cached_property
    def formats_after(self) -> Mapping[str, Formats]:
        """The formats after each move that changes those of weights, activations or KV cache."""
        found = ((name, formats_of(trial.analysis)) for name, trial in self.placed_of("weight format", "KV format"))
        return {name: formats for name, formats in found if formats is not None}

    @cached_property
    def weight_only(self) -> Mapping[str, Formats]:
        """Moves to narrower weights in arithmetic that is no faster."""
        return self._moves_where(lambda old, new: new.weights.bits < old.weights.bits and new.peak <= old.peak)

    @cached_property
    def faster_arithmetic(self) -> Mapping[str, Formats]:
        """Moves to formats with a higher compute peak."""
        return self._moves_where(lambda old, new: new.peak > old.peak)

    def _moves_where(self, predicate: Callable[[Formats, Formats], bool]) -> Mapping[str, Formats]:
        old = self.formats
        return {} if old is None else {name: new for name, new in self.formats_after.items() if predicate(old, new)}

    def trials_of(self, *slots: str) -> Iterator[tuple[str, Trial]]:
        tried = ((name, self.trials.attempt([move])) for name, move in self.moves.items() if move.slot in slots)
        return ((name, trial) for name, trial in tried if trial is not None)

    def placed_of(self, *slots: str) -> Iterator[tuple[str, Trial]]:
        moves = ((name, frozenset({move})) for name, move in self.moves.items() if move.slot in slots)
        return ((name, trial) for name, move in moves if (trial := self.trials.placed(move)) is not None)

    @cached_property
    def decode_gemm(self) -> WeightGemm | None:
        return largest_gemm(self.decode) if self.generates else None

    def time_share(self, phase: Phase, predicate: Callable[[OpFigures], bool]) -> float:
        """The share of a phase's expected time in operators that satisfy a predicate."""
        pairs = zip(phase.ops, phase.expected_ops, strict=True)
        time = sum(float(op.count * expected.time.mid) for op, expected in pairs if predicate(op))
        whole = float(phase.expected.mid)
        return time / whole if whole else 0.0

    @cached_property
    def kind_shares(self) -> Mapping[str, float]:
        found: dict[str, float] = {}
        phases = [(self.prefill_share, self.analysis.prefill, self.prefill_breakdown)]
        if self.generates:
            phases.append((self.decode_share, self.decode, self.decode_breakdown))
        for share, phase, breakdown in phases:
            kinds = {op.name: op.kind for op in phase.ops}
            for name, time in breakdown.parts.items():
                kind = kinds.get(name.rpartition(" ")[2], HOST)  # parts of a draft carry its label
                if name == HIDDEN:  # hidden communication is negative
                    kind = OpKind.COLLECTIVE
                found[kind] = found.get(kind, 0.0) + share * time / breakdown.total
        return found

    def kind_share(self, *kinds: str) -> float:
        """The share of the total expected time of some kinds of operators."""
        return sum(self.kind_shares.get(kind, 0.0) for kind in kinds)

    def offered(self, *kinds: Kind) -> list[tuple[Move, Trial]]:
        """The applicable moves of some kinds within the quality budget, each simulated alone."""
        quality = self.goal.quality
        moves = [
            move for move in self.moves.values() if move.kind in kinds and within_budget(self.trials, move, quality)
        ]
        return [(move, trial) for move in moves if (trial := self.trials.attempt([move])) is not None]

    @cached_property
    def best(self) -> tuple[Move, ...]:
        """Per slot the technique or parallelism that gains most within limits and quality budget, best first.

        Equal gains are ordered by name, as in the recommendations.
        """
        found: dict[str, tuple[float, Move]] = {}
        for move, trial in sorted(self.offered(Kind.TECHNIQUE, Kind.PARALLELISM), key=lambda entry: entry[0].name):
            allowed = len(trial.missed) <= len(self.base.missed)
            entry = (self.gain(move.name), move)
            most = found.get(move.slot, (0.0, move))[0]
            if allowed and move.slot not in FACT_SLOTS and entry[0] > most * (1 + 1e-9):
                found[move.slot] = entry
        return tuple(move for _, move in sorted(found.values(), key=lambda entry: (-entry[0], entry[1].name)))

    def technique(self, written: str) -> Trial | None:
        """A technique simulated alone, offered or not; None if it cannot be applied."""
        move = self.moves.get(written) or technique_move(check_request(written), written)
        return self.trials.attempt([move])

    def at_batches(self, trial: Trial, batches: list[int]) -> Analysis | None:
        try:
            return analyze(trial.scenario.at(batch=np.array(batches)))
        except RooflineError:
            return None

    @cached_property
    def max_batch(self) -> int:
        """The largest of the tried batches that fits in memory; the request's own if no larger one does."""
        most = self.base.scenario.max_batch
        larger = (batch for batch in BATCHES if self.batch < batch <= most)
        found = self.at_batches(self.base, [self.batch, *larger])
        if found is None:
            return self.batch
        return int(np.asarray(found.scenario.batch)[np.asarray(found.memory.fits)].max(initial=self.batch))


NEGLIGIBLE = 0.1
"""Share below which rules ignore a part."""


def link_text(analysis: Analysis, span: Span) -> str:
    """The link over which devices of a span communicate, with its bandwidth."""
    try:
        link = analysis.scenario.hardware.link(span)
    except RooflineError:
        return "a link"
    return f"{link.kind} at {si(link.bandwidth, 'B/s')}"
