"""A case: one simulated scenario under advice, and what rules ask of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType

import numpy as np
from msgspec import Struct

from roofline.advisor.formats import Formats, Product, formats_of, product_of
from roofline.advisor.search.breakeven import BreakEven
from roofline.advisor.search.goal import Goal, Objective
from roofline.advisor.search.moves import BATCHES, FACT_SLOTS, Kind, Move, technique_move
from roofline.advisor.search.trials import Trial, Trials
from roofline.bound.roof import Bound
from roofline.core.errors import RooflineError
from roofline.core.units import si
from roofline.graph.op import Kind as OpKind
from roofline.scenario.analysis import Analysis, analyze
from roofline.scenario.breakdown import HIDDEN, HOST, Breakdown, decode_expected, prefill_expected, steps
from roofline.scenario.phase import OpFigures, Phase
from roofline.scenario.scenario import Scenario
from roofline.specs.hardware import Hardware, Span
from roofline.specs.model import Model
from roofline.specs.precision import Precision


class Case(Struct, frozen=True, dict=True):
    """A request and its goal, simulated once; `moves` are all that may be advised, by name.

    Shares are of the expected time of the whole generation, prefill and decode together.
    """

    trials: Trials
    moves: Mapping[str, Move]

    @property
    def goal(self) -> Goal:
        """What is wanted."""
        return self.trials.goal

    @property
    def base(self) -> Trial:
        """The request as it is."""
        return self.trials.base

    @property
    def analysis(self) -> Analysis:
        """The request, simulated."""
        return self.base.analysis

    @property
    def scenario(self) -> Scenario:
        """The scenario, techniques applied."""
        return self.analysis.scenario

    @property
    def model(self) -> Model:
        """The model, techniques applied."""
        return self.scenario.model

    @property
    def hardware(self) -> Hardware:
        """The device."""
        return self.scenario.hardware

    @property
    def precision(self) -> Precision:
        """The formats in use."""
        return self.analysis.precision

    @property
    def batch(self) -> int:
        """Sequences of the batch."""
        return int(self.scenario.batch)

    @cached_property
    def break_even(self) -> BreakEven:
        """Where moves stop to help."""
        return BreakEven(self.trials.request, self.goal)

    @cached_property
    def generates(self) -> bool:
        """Whether there are decode steps after the first token."""
        return steps(self.analysis) > 0

    @cached_property
    def decode_share(self) -> float:
        """The share of the whole time that decode steps take."""
        if not self.generates:
            return 0.0
        whole, first = self.analysis.expected.total.mid, self.analysis.expected.ttft.mid
        return float((whole - first) / whole)

    @property
    def prefill_share(self) -> float:
        """The share of the whole time that prefill takes."""
        return 1.0 - self.decode_share

    @property
    def decode(self) -> Phase:
        """The decode phase; only of a case that generates."""
        assert self.analysis.decode is not None
        return self.analysis.decode

    @cached_property
    def decode_parts(self) -> Breakdown:
        """Expected seconds of the mean decode step by operator."""
        return decode_expected(self.analysis)

    @cached_property
    def prefill_parts(self) -> Breakdown:
        """Expected seconds of prefill by operator."""
        return prefill_expected(self.analysis)

    @cached_property
    def host_share(self) -> float:
        """The share of a decode step in which no kernel runs: scheduling, sampling, gaps between kernels."""
        parts = self.decode_parts
        return parts.parts.get(HOST, 0.0) / parts.total if parts.total else 0.0

    def bound_share(self, phase: Phase, bound: Bound) -> float:
        """The share of a phase's bound time that operators under `bound` take."""
        return float(sum(op.share for op in phase.ops if op.bound == bound))

    def bytes_share(self, phase: Phase, role: str) -> float:
        """The share of a phase's bytes that is `weight`, `kv`, `activation` or `state`."""
        moved = sum(float(op.count * op.busy * op.bytes) for op in phase.ops)
        mine = sum(float(op.count * op.busy * getattr(op, f"{role}_bytes")) for op in phase.ops)
        return mine / moved if moved else 0.0

    def gain(self, name: str) -> float:
        """How many times better a single move makes the objective; NaN where it cannot be made."""
        move = self.moves.get(name)
        trial = None if move is None else self.trials.attempt([move])
        if trial is None:
            return float("nan")
        return float(np.asarray(self.goal.gain(self.base.value, trial.value)))

    def in_use(self, slot: str) -> bool:
        """Whether the request already has a technique of this slot."""
        from roofline.techniques import check_request

        return any(check_request(name).slot == slot for name in self.scenario.techniques)

    # --- what the rules of speed ask: what the objective hangs on, and what moves do to formats ---

    @cached_property
    def decode_stake(self) -> float:
        """How much of the objective is time of decode steps: all of TPOT, nothing of TTFT or memory."""
        stakes = {Objective.TTFT: 0.0, Objective.MEMORY: 0.0, Objective.TPOT: 1.0 if self.generates else 0.0}
        return stakes.get(self.goal.objective, self.decode_share)

    @property
    def prefill_stake(self) -> float:
        """How much of the objective is time of prefill."""
        stakes = {Objective.TTFT: 1.0, Objective.MEMORY: 0.0, Objective.TPOT: 0.0}
        return stakes.get(self.goal.objective, self.prefill_share)

    @cached_property
    def formats(self) -> Formats | None:
        """The formats in use, of the largest products with weights."""
        return formats_of(self.analysis)

    @cached_property
    def formats_after(self) -> Mapping[str, Formats]:
        """The formats that moves lead to which change those of weights, activations or cache."""
        found = {}
        for name, trial in self.trials_of("weight format", "KV format"):
            formats = formats_of(trial.analysis)
            if formats is not None:
                found[name] = formats
        return MappingProxyType(found)

    @cached_property
    def weight_only(self) -> Mapping[str, Formats]:
        """Moves that store weights in fewer bits and multiply them in arithmetic that is no faster."""
        return self._formats_where(lambda old, new: new.weights.bits < old.weights.bits and new.peak <= old.peak)

    @cached_property
    def faster_arithmetic(self) -> Mapping[str, Formats]:
        """Moves to formats whose products run under a higher roof."""
        return self._formats_where(lambda old, new: new.peak > old.peak)

    def _formats_where(self, holds: Callable[[Formats, Formats], bool]) -> Mapping[str, Formats]:
        old = self.formats
        if old is None:
            return MappingProxyType({})
        return MappingProxyType({name: new for name, new in self.formats_after.items() if holds(old, new)})

    def trials_of(self, *slots: str) -> Iterator[tuple[str, Trial]]:
        """The moves of slots that can be made, by name, each simulated alone."""
        for name, move in self.moves.items():
            if move.slot in slots and (trial := self.trials.attempt([move])) is not None:
                yield name, trial

    @cached_property
    def prefill_product(self) -> Product | None:
        """The largest product with weights of prefill."""
        return product_of(self.analysis.prefill)

    @cached_property
    def decode_product(self) -> Product | None:
        """The largest product with weights of a decode step; None where nothing is generated."""
        return product_of(self.decode) if self.generates else None

    def parts_share(self, phase: Phase, holds: Callable[[OpFigures], bool]) -> float:
        """The share of a phase's expected time that operators take for which something holds."""
        spent = [
            (float(op.count * found.time.mid), holds(op))
            for op, found in zip(phase.ops, phase.expected_ops, strict=True)
        ]
        whole = float(phase.expected.mid)
        return sum(time for time, held in spent if held) / whole if whole else 0.0

    # --- what the rules of structures, kernels and serving ask ---

    @cached_property
    def kind_shares(self) -> Mapping[str, float]:
        """The share of the whole expected time of each kind of operator, and of the host under `HOST`."""
        found: dict[str, float] = {}
        phases = [(self.prefill_share, self.analysis.prefill, self.prefill_parts)]
        if self.generates:
            phases.append((self.decode_share, self.decode, self.decode_parts))
        for share, phase, breakdown in phases:
            kinds = {op.name: op.kind for op in phase.ops}
            for name, spent in breakdown.parts.items():
                kind = kinds.get(name.rpartition(" ")[2], HOST)  # a draft's parts carry its label
                if name == HIDDEN:  # what is hidden is taken off what is sent
                    kind = OpKind.COLLECTIVE
                found[kind] = found.get(kind, 0.0) + share * spent / breakdown.total
        return found

    def spent(self, *kinds: str) -> float:
        """The share of the whole expected time of some kinds of operators."""
        return sum(self.kind_shares.get(kind, 0.0) for kind in kinds)

    def offered(self, *kinds: Kind) -> list[tuple[Move, Trial]]:
        """The moves of some kinds that can be made, simulated."""
        moves = [move for move in self.moves.values() if move.kind in kinds]
        return [(move, trial) for move in moves if (trial := self.trials.attempt([move])) is not None]

    @cached_property
    def best(self) -> tuple[Move, ...]:
        """Of each slot the technique or parallelism that gains most within limits and quality budget, best first.

        Of those with the same gain it is the first by name, as in the recommendations.
        """
        found: dict[str, tuple[float, Move]] = {}
        for move, trial in sorted(self.offered(Kind.TECHNIQUE, Kind.PARALLELISM), key=lambda entry: entry[0].name):
            held = len(trial.missed) <= len(self.base.missed) and self.goal.quality.allows(trial.price)
            entry = (self.gain(move.name), move)
            most = found.get(move.slot, (0.0, move))[0]
            if held and move.slot not in FACT_SLOTS and entry[0] > most * (1 + 1e-9):
                found[move.slot] = entry
        return tuple(move for _, move in sorted(found.values(), key=lambda entry: (-entry[0], entry[1].name)))

    def technique(self, written: str) -> Trial | None:
        """A technique, simulated whether or not it is offered; None where it cannot be."""
        from roofline.techniques import check_request

        move = self.moves.get(written) or technique_move(check_request(written), written)
        return self.trials.attempt([move])

    def at_batches(self, trial: Trial, batches: list[int]) -> Analysis | None:
        """A trial at other batches, as one grid; None where that cannot be."""
        try:
            return analyze(trial.request.scenario(batch=np.array(batches)))
        except RooflineError:
            return None

    @cached_property
    def most_batch(self) -> int:
        """The largest batch of those that are tried that fits in memory; the request's own where no larger one does."""
        found = self.at_batches(self.base, [self.batch, *(batch for batch in BATCHES if batch > self.batch)])
        if found is None:
            return self.batch
        return int(np.asarray(found.scenario.batch)[np.asarray(found.memory.fits)].max(initial=self.batch))


LITTLE = 0.1
"""What takes a smaller share than this is left aside by rules."""


def link_text(analysis: Analysis, span: Span) -> str:
    """The link that devices of a span talk over, and its bandwidth."""
    try:
        link = analysis.scenario.hardware.link(span)
    except RooflineError:
        return "a link"
    return f"{link.kind} at {si(link.bandwidth, 'B/s')}"
