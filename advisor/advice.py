"""Advice: what holds a scenario back, what to change and what it gains, what is in vain, and a plan.

>>> from advisor import Goal, Objective, advise
>>> from roofline import load_hardware, load_model
>>> from roofline.whatif.request import Request
>>> request = Request(load_model("llama-2-13b"), load_hardware("a6000"), options={"prompt": 128})
>>> advice = advise(request, Goal(Objective.TPOT))
>>> advice.recommendations[0].move.slot
'drafting'
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.case import Case
from roofline.advisor.desk import consumer
from roofline.advisor.rules import Caution, Finding, Hint, Rule, Vain, rules
from roofline.advisor.search.breakeven import HELPS, Condition
from roofline.advisor.search.goal import Goal, Price
from roofline.advisor.search.moves import (
    FACT_SLOTS,
    Kind,
    Move,
    elsewhere,
    engine_moves,
    engine_techniques,
    hardware_move,
    parallel_moves,
    technique_moves,
)
from roofline.advisor.search.plan import Plan, batch_grid, batch_moves, planned
from roofline.advisor.search.trials import Trial, Trials, better, certain, level, sure
from roofline.core.errors import RooflineError
from roofline.scenario.analysis import analyze
from roofline.specs.hardware import list_hardware, load_hardware
from roofline.techniques import check_request
from roofline.techniques.base import Published
from roofline.timing.estimate import Estimate
from roofline.whatif.command_line import command_line
from roofline.whatif.request import Request

Progress = Callable[[str], None]
"""Told what is being worked out, in a few words."""


class Recommendation(Struct, frozen=True):
    """A move that makes the objective better, simulated.

    `better` is how many times, with the interval of the gain; `tied` whether the interval could swap it with the one
    before it. `because` are rules with what they say here; `same` other moves to the same effect, `conditions` where
    it helps.
    """

    move: Move
    trial: Trial
    price: Price
    better: Estimate
    tied: bool
    because: tuple[tuple[str, str], ...]
    cautions: tuple[str, ...]
    published: tuple[Published, ...]
    same: tuple[str, ...]
    conditions: tuple[Condition, ...]

    @property
    def certain(self) -> bool:
        """Whether the whole interval of the gain is one."""
        return certain(self.better)

    @property
    def command(self) -> str:
        """The command that reproduces its figures."""
        return command_line(self.trial.request)

    def figure(self, name: str) -> float:
        """A metric after the move."""
        return float(np.asarray(self.trial.figure(name)))


class Futile(Struct, frozen=True):
    """A tempting move that does not help: its gain as simulated, None where it cannot be made, and why."""

    move: str
    gain: float | None
    because: str
    rule: str


class Advice(Struct, frozen=True, dict=True):
    """The answer for one request and goal. `findings` and `cautions` come with the name of their rule.

    `engines` are those that may be better as well as worse, by what is uncertain about either: they are to be measured,
    and no plan changes to them.
    """

    case: Case
    findings: tuple[tuple[str, Finding], ...]
    recommendations: tuple[Recommendation, ...]
    engines: tuple[Recommendation, ...]
    hardware: tuple[Recommendation, ...]
    futile: tuple[Futile, ...]
    cautions: tuple[tuple[str, str], ...]
    refused: Mapping[str, str]
    _plan: Callable[[], Plan]

    @cached_property
    def plan(self) -> Plan:
        """The best combination found, step by step."""
        return self._plan()

    @property
    def base(self) -> Trial:
        """The request as it is."""
        return self.case.base

    @property
    def surest(self) -> Recommendation | None:
        """The best single change whose gain is sure, whatever facts the request leaves out."""
        surely = (found for found in self.recommendations if found.move.slot not in FACT_SLOTS and sure(found.better))
        return next(surely, None)

    def recommendation(self, name: str) -> Recommendation | None:
        """The recommendation of a move, also where it is told under another of the same effect."""
        for found in (*self.recommendations, *self.engines, *self.hardware):
            if name == found.move.name or name in found.same:
                return found
        return None


def advise(
    request: Request,
    goal: Goal | None = None,
    moves: Sequence[Move] | None = None,
    research: bool = False,
    top: int = 5,
    progress: Progress = lambda _: None,
) -> Advice:
    """What to change in `request` for `goal`.

    `moves` are what may be advised; None is everything: the techniques that the request's engine runs, with `research`
    all of the catalogue, parallelism over as many devices as the limits let it have (those it has, without a limit),
    engines, the best batch and hardware. Break-even points are worked out for the first `top`. Raises RooflineError
    where the request itself cannot be simulated.
    """
    goal = (Goal() if goal is None else goal).on(request.hardware)
    trials = Trials(request, goal)
    goal.check(trials.base.analysis)  # what cannot be simulated, or has no such figure, is told at once
    grid = trials
    if goal.batch_varies:
        grid = Trials(request.with_options(batch=batch_grid(request.options.get("batch", 1))), goal)
    offered = tuple(moves) if moves is not None else (*all_moves(request, goal, research), *batch_moves(grid))
    case = Case(trials, {move.name: move for move in offered})
    progress("single changes")
    if goal.timed:
        trials.together(frozenset({move}) for move in offered)
    tried = [trial for move in offered if (trial := trials.attempt([move])) is not None]
    said = [(rule, entry) for rule in rules().values() for entry in rule.look(case)]
    helping = _ranked(_grouped(_helping(case, tried)))
    apart: dict[bool, list[list[Trial]]] = {True: [], False: []}
    for group in helping:
        apart[_sure(case, group[0])].append(group)
    progress("break-even points")
    recommendations = tuple(_recommended(case, said, apart[True], top))
    engines = tuple(_recommendation(case, said, group, None, detailed=False) for group in apart[False])
    progress("other hardware")
    devices = _hardware(case, said) if moves is None else ()

    def plan() -> Plan:
        progress("combinations")
        alone = {move: trials.attempt([move]) for move in offered if move.kind is Kind.ENGINE}
        surely = [move for move, trial in alone.items() if trial is not None and _sure(case, trial)]
        further = () if moves is not None or research else elsewhere(request, surely)
        plain = [move for move in offered if move.kind in _COMBINED]
        combined = [move for move in (*plain, *surely, *further) if move.slot not in FACT_SLOTS]
        return planned(trials, grid, combined)

    findings = sorted(
        ((rule.name, entry) for rule, entry in said if isinstance(entry, Finding)), key=lambda entry: -entry[1].share
    )
    return Advice(
        case,
        tuple(findings),
        recommendations,
        engines,
        devices,
        tuple(_futile(case, said, {name for found in recommendations for name in (found.move.name, *found.same)})),
        tuple((rule.name, entry.text) for rule, entry in said if isinstance(entry, Caution) and not entry.moves),
        {move.name: why for move in offered if (why := trials.refusal(move))},
        plan,
    )


_COMBINED = (Kind.TECHNIQUE, Kind.PARALLELISM)


def _sure(case: Case, trial: Trial) -> bool:
    """Whether a change is one to make: of another engine, only where the whole interval of its gain is one.

    Engines differ by host time, launches and fusions that were measured on few machines; most lie within what is
    uncertain about each other.
    """
    return all(move.kind is not Kind.ENGINE for move in trial.moves) or certain(better(case.base, trial))


def all_moves(request: Request, goal: Goal, research: bool = False) -> Iterator[Move]:
    """Everything that may be advised for a request, but other batches and hardware."""
    yield from technique_moves() if research else engine_techniques(request)
    yield from parallel_moves(request, device_counts(request, goal))
    yield from engine_moves(request)


def device_counts(request: Request, goal: Goal) -> list[int]:
    """How many devices a plan may have: as many as now, or with a limit every power of two up to it."""
    present = request.scenario().settings.parallel.devices
    limit = goal.limits.gpus
    if limit is None:
        return [present]
    powers = [1 << power for power in range(11) if 1 << power <= limit]
    return sorted({*powers, limit, *([present] if present <= limit else [])})


def _helping(case: Case, tried: Iterable[Trial]) -> Iterator[Trial]:
    """Trials that make the objective better, or meet limits that the request misses; within the quality budget.

    What is missed already may not be missed by more.
    """
    missed = case.base.missed
    for trial in tried:
        if not case.goal.quality.allows(trial.price):
            continue
        ratio = float(case.goal.gain(case.base.value, trial.value))
        worse = any(trial.used[name] > case.base.used[name] * (1 + 1e-9) for name in missed)
        if len(trial.missed) < len(missed) or (ratio > HELPS and set(trial.missed) <= set(missed) and not worse):
            yield trial


def _grouped(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Trials of one slot with the same figures: methods that lead to the same formats are as fast as each other."""
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        (move,) = trial.moves
        key = (move.slot, trial.price, float(trial.cost), float(level(trial.figure("memory"))))
        groups.setdefault(key, []).append(trial)
    return [sorted(group, key=lambda trial: trial.names) for group in groups.values()]


def _ranked(groups: list[list[Trial]]) -> list[list[Trial]]:
    """Those that meet most limits first, then by gain, then by price."""

    def rank(group: list[Trial]) -> tuple[object, ...]:
        trial = group[0]
        return (len(trial.missed), trial.cost, list(Price).index(trial.price), trial.names)

    return sorted(groups, key=rank)


def _recommended(
    case: Case, said: Sequence[tuple[Rule, object]], groups: Sequence[list[Trial]], top: int
) -> Iterator[Recommendation]:
    """One recommendation a group; the first of the first slots have their break-even points worked out."""
    before: Trial | None = None
    slots: Counter[str] = Counter()
    for group in groups:
        (move,) = group[0].moves
        slots[move.slot] += 1
        detailed = slots[move.slot] <= (2 if move.kind is Kind.TECHNIQUE else 1) and len(slots) <= top
        yield _recommendation(case, said, group, before, detailed)
        before = group[0]


def _recommendation(
    case: Case, said: Sequence[tuple[Rule, object]], group: list[Trial], before: Trial | None, detailed: bool
) -> Recommendation:
    trial = group[0]
    (move,) = trial.moves
    entry = check_request(move.name) if move.kind is Kind.TECHNIQUE else None
    return Recommendation(
        move,
        trial,
        trial.price,
        better(case.base, trial),
        detailed and before is not None and len(before.missed) == len(trial.missed) and _tied(before, trial),
        tuple(
            (rule.name, said_here.because)
            for rule, said_here in said
            if isinstance(said_here, Hint) and _concerns(said_here.moves, move)
        ),
        tuple(
            said_here.text
            for _, said_here in said
            if isinstance(said_here, Caution) and _concerns(said_here.moves, move)
        ),
        () if entry is None else entry.published,
        tuple(name for other in group[1:] for name in other.names),
        case.break_even.conditions(move) if detailed and move.kind in _COMBINED else (),
    )


def _concerns(names: Iterable[str], move: Move) -> bool:
    return any(name in (move.name, move.slot, move.name.partition(":")[0]) for name in names)


def _tied(one: Trial, other: Trial) -> bool:
    """Whether the interval of the gain of one over the other holds both orders."""
    ratio = better(other, one)
    return bool(ratio.low < 1 < ratio.high)


def _futile(case: Case, said: Sequence[tuple[Rule, object]], advised: set[str]) -> Iterator[Futile]:
    """What rules call vain and the simulator does not contradict."""
    told: set[str] = set()
    for rule, entry in said:
        if not isinstance(entry, Vain):
            continue
        for move in case.moves.values():
            if not _concerns(entry.moves, move) or move.name in told or move.name in advised:
                continue
            ratio = case.gain(move.name)
            if ratio > HELPS:
                continue
            told.add(move.name)
            yield Futile(move.name, ratio if np.isfinite(ratio) else None, entry.because, rule.name)


SHOWN_DEVICES = 3
TRIED_DEVICES = 8


def _hardware(case: Case, said: Sequence[tuple[Rule, object]]) -> tuple[Recommendation, ...]:
    """The best other devices of the same kind: the best at the bound are simulated at expected times.

    In the place of what stands on a desk, only what is sold for one.
    """
    request, present = case.trials.request, case.hardware
    bound = replace(case.goal, at="bound", limits=replace(case.goal.limits, ttft=None, tpot=None, total=None))
    promising, least = [], float(case.base.analysis.memory.total) / 2  # no hardware has the formats in less
    for name in list_hardware():
        device = load_hardware(name)
        if device.kind != present.kind or device.name == present.name or device.memory_capacity < least:
            continue
        if consumer(present) and not consumer(device):
            continue
        try:
            analysis = analyze(request.on(device).scenario())
            if analysis.memory.fits:
                promising.append((float(bound.gain(1.0, bound.value(analysis))), name))
        except RooflineError:
            continue
    best = [name for _, name in sorted(promising, reverse=True)[:TRIED_DEVICES]]
    trials = [
        trial for name in best if (trial := case.trials.attempt([hardware_move(load_hardware(name))])) is not None
    ]
    groups = _ranked([[trial] for trial in _helping(case, trials)])[:SHOWN_DEVICES]
    before: Trial | None = None
    found = []
    for group in groups:
        found.append(_recommendation(case, said, group, before, detailed=True))
        before = group[0]
    return tuple(found)
