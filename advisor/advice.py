"""Advice: what limits a scenario, what to change and what it gains, what has no benefit, and a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Unpack

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from roofline.advisor.case import Case
from roofline.advisor.fitting import of_means
from roofline.advisor.options import GoalOptions, read_goal
from roofline.advisor.rules import Bottleneck, Caution, Finding, Hint, NoBenefit, rules
from roofline.advisor.search.breakeven import HELPS, Condition
from roofline.advisor.search.combine import within_budget
from roofline.advisor.search.goal import Demand, Goal, Objective
from roofline.advisor.search.moves import (
    FACT_SLOTS,
    Kind,
    Move,
    context_moves,
    elsewhere,
    engine_moves,
    engine_techniques,
    exchange_moves,
    hardware_move,
    is_consumer,
    parallel_moves,
    technique_moves,
)
from roofline.advisor.search.plan import Plan, batch_grid, batch_moves, make_plan
from roofline.advisor.search.trials import Gain, Trial, Trials, better, certain, level, sure
from roofline.core.checked import object_of
from roofline.core.display import Result
from roofline.core.errors import RooflineError
from roofline.core.options import Kind as OptionKind
from roofline.scenario.analysis import analyze
from roofline.scenario.argument import scenario_of, without_carbon
from roofline.scenario.scenario import Scenario
from roofline.serving.load import served_scenario
from roofline.specs.hardware import load_hardware, searched_hardware
from roofline.techniques import check_request
from roofline.techniques.base import Price, Published
from roofline.whatif.solve.targets import read_value

Progress = Callable[[str], None]
"""Called with the name of each stage of the work."""

Findings = Sequence[tuple[str, Finding]]
"""Findings with the names of their rules."""

COMBINED = (Kind.TECHNIQUE, Kind.PARALLELISM)
"""Kinds of moves that every plan may combine."""

SHOWN_DEVICES, TRIED_DEVICES = 3, 8
"""Other hardware that advice shows, and that it simulates: those with the best bounds, not all of which help."""


class Recommendation(Gain, frozen=True):
    """A move that improves the objective, simulated.

    `tied`: whether the interval of its gain could swap it with the previous one. `reasons` are rules with their
    findings, `same` other moves with the same effect, `conditions` where it helps.
    """

    price: Price
    tied: bool
    reasons: tuple[tuple[str, str], ...]
    cautions: tuple[str, ...]
    published: tuple[Published, ...]
    same: tuple[str, ...]
    conditions: tuple[Condition, ...]

    def figure(self, name: str) -> float:
        """A metric after the move."""
        return float(np.asarray(self.trial.figure(name)))


class IneffectiveMove(Struct, frozen=True):
    """A tempting move without benefit: its simulated gain (None if it cannot be applied), the reason and the rule."""

    move: str
    gain: float | None
    reason: str
    rule: str


class Advice(Result, Struct, frozen=True, dict=True):
    """The answer for one scenario and goal; `bottlenecks` and `cautions` come with the names of their rules.

    `engines` are those whose gain is uncertain: they should be measured, and no plan changes to them. `top` is the
    number of single changes to show.
    """

    case: Case
    bottlenecks: tuple[tuple[str, Bottleneck], ...]
    recommendations: tuple[Recommendation, ...]
    engines: tuple[Recommendation, ...]
    hardware: tuple[Recommendation, ...]
    no_benefit: tuple[IneffectiveMove, ...]
    cautions: tuple[tuple[str, str], ...]
    refused: Mapping[str, str]
    top: int
    _plan: Callable[[], Plan]

    def __reduce__(self) -> tuple[Any, ...]:
        *found, _ = (getattr(self, name) for name in self.__struct_fields__)
        return Advice, (*found, partial(_made, self.plan))  # the plan itself: its search reports to a callback

    @property
    def scenario(self) -> Scenario:
        """The unchanged scenario."""
        return self.base.scenario

    @cached_property
    def plan(self) -> Plan:
        """The best combination found, step by step."""
        return self._plan()

    @property
    def base(self) -> Trial:
        """The unchanged scenario."""
        return self.case.base

    @property
    def surest(self) -> Recommendation | None:
        """The best single change with a sure gain that needs no facts about the workload."""
        surely = (found for found in self.recommendations if found.move.slot not in FACT_SLOTS and sure(found.better))
        return next(surely, None)

    def recommendation(self, name: str) -> Recommendation | None:
        """The recommendation of a move, or of another with the same effect."""
        for found in (*self.recommendations, *self.engines, *self.hardware):
            if name == found.move.name or name in found.same:
                return found
        return None


def advise(
    scenario: Scenario,
    goal: Goal | None = None,
    moves: Sequence[Move] | None = None,
    research: bool = False,
    top: int = 5,
    progress: Progress = lambda _: None,
    **options: Unpack[GoalOptions],
) -> Advice:
    """What to change in `scenario` for a goal: its `options`, such as objective="tpot" and ttft="500ms", or a `Goal`.

    >>> from roofline import Scenario, advise
    >>> advice = advise(Scenario("llama-2-13b", "a6000", prompt=128), objective="tpot", ttft="500ms")
    >>> sorted(step.move.slot for step in advice.plan.steps)
    ['speculative decoding', 'weight format']

    `moves` limits what may be advised; None is everything: the techniques that the scenario's engine runs, with
    `research` the whole catalogue, parallelism within the device limit, engines, the best batch and hardware.
    Throughput, cost and energy have the limits of an interactive service where options set none of a time.
    Break-even points are computed for the first `top`. Raises RooflineError if the scenario itself cannot be simulated.
    """
    without_carbon(scenario_of(scenario, single=True), "advice")
    asked, goal = goal, read_goal(goal, options).on(scenario.hardware)
    research = read_value("research", OptionKind.SWITCH, research)
    if (top := read_value("top", OptionKind.INTEGER, top)) < 0:
        raise RooflineError(f"top must be at least 0, got {top}")
    for move in moves or ():
        object_of(move, Move, "moves are those of roofline.advisor.search.moves")
    if goal.loaded:
        scenario, goal = _batch_under_load(scenario, goal)
    trials = Trials(scenario, goal)
    goal.check(trials.base.analysis)  # fails early
    if asked is None and (limited := goal.limited(trials.base.analysis)) is not goal:
        goal, trials = limited, Trials(scenario, limited)
    grid = trials
    if goal.batch_varies:
        grid = Trials(scenario.with_(batch=batch_grid(scenario)), goal)
    offered = tuple(moves) if moves is not None else (*all_moves(scenario, goal, research), *batch_moves(grid))
    case = Case(trials, {move.name: move for move in offered})
    tried = _attempted(trials, [move for move in offered if within_budget(trials, move, goal.quality)], progress)
    findings = [(rule.name, finding) for rule in rules().values() for finding in rule.look(case)]
    helping = _ranked(_grouped(_helping(case, tried)))
    progress("break-even points")
    recommendations = tuple(
        _recommended(case, findings, [group for group in helping if _adoptable(case, group[0])], top)
    )
    uncertain = [group for group in helping if not _adoptable(case, group[0])]
    engines = tuple(_recommendation(case, findings, group, None, detailed=False) for group in uncertain)
    progress("other hardware")
    devices = _hardware(case, findings) if moves is None else ()
    bottlenecks = [(rule, finding) for rule, finding in findings if isinstance(finding, Bottleneck)]
    return Advice(
        case,
        tuple(sorted(bottlenecks, key=lambda entry: -entry[1].share)),
        recommendations,
        engines,
        devices,
        tuple(_ineffective(case, findings, recommendations)),
        tuple((rule, found.text) for rule, found in findings if isinstance(found, Caution) and not found.moves),
        {move.name: why for move in offered if (why := trials.refusal(move))},
        top,
        partial(_best_plan, case, grid, moves is None and not research, progress),
    )


def _batch_under_load(scenario: Scenario, goal: Goal) -> tuple[Scenario, Goal]:
    """The static batch that rules and intervals look at under the goal's load, and the goal with varied lengths."""
    served_scenario(scenario)
    if any(drawn is not None and drawn.varies for drawn in scenario.drawn):
        goal = replace(goal, demand=replace(goal.demand or Demand(), lengths=scenario.lengths))
        scenario = of_means(scenario)
    return scenario.with_(**goal.served(analyze(scenario)).batch), goal


def _attempted(trials: Trials, moves: Sequence[Move], progress: Progress) -> list[Trial]:
    """The simulated trials of single moves, but of those that cannot be applied."""
    if trials.goal.timed:
        trials.prefetch(frozenset({move}) for move in moves)
    tried = []
    for index, move in enumerate(moves):
        progress(f"change {index + 1} of {len(moves)}")
        if (trial := trials.attempt([move])) is not None:
            tried.append(trial)
    return tried


def _made(plan: Plan) -> Plan:
    return plan


def _best_plan(case: Case, grid: Trials, other_engines: bool, progress: Progress) -> Plan:
    """The plan of a case; with `other_engines` also of what only surely better engines run."""
    progress("combinations")
    trials, offered = case.trials, tuple(case.moves.values())
    alone = {move: trials.attempt([move]) for move in offered if move.kind is Kind.ENGINE}
    surely = [move for move, trial in alone.items() if trial is not None and _adoptable(case, trial)]
    further = elsewhere(trials.scenario, surely) if other_engines else ()
    plain = [move for move in offered if move.kind in COMBINED]
    return make_plan(trials, grid, [move for move in (*plain, *surely, *further) if move.slot not in FACT_SLOTS])


def _adoptable(case: Case, trial: Trial) -> bool:
    """Whether a plan may adopt a change; another engine only if the whole interval is a gain.

    Engines differ by host time, launches and fusions that were measured on few machines; most lie within each other's
    uncertainty.
    """
    return all(move.kind is not Kind.ENGINE for move in trial.moves) or certain(better(case.base, trial))


def all_moves(scenario: Scenario, goal: Goal, research: bool = False) -> Iterator[Move]:
    """Everything that may be advised for a scenario except batches and hardware."""
    yield from technique_moves() if research else engine_techniques(scenario)
    yield from parallel_moves(scenario, device_counts(scenario, goal))
    yield from exchange_moves(scenario)
    yield from context_moves(scenario)
    yield from engine_moves(scenario)


def device_counts(scenario: Scenario, goal: Goal) -> list[int]:
    """Device counts of plans: the present one, or with a limit every power of two up to it."""
    present = scenario.settings.parallel.devices
    limit = goal.limits.gpus
    if limit is None:
        return [present]
    powers = [1 << power for power in range(11) if 1 << power <= limit]
    return sorted({*powers, limit, *([present] if present <= limit else [])})


def _helping(case: Case, tried: Iterable[Trial]) -> Iterator[Trial]:
    """Trials within the quality budget that improve the objective or meet limits that the scenario misses.

    Limits missed already may not be missed by more; what does not fit has no speed, so that only less memory improves
    on it.
    """
    missed, memory = case.base.missed, case.goal.objective is Objective.MEMORY
    for trial in tried:
        if not case.goal.quality.allows(trial.price) or not (trial.fits or case.fits or memory):
            continue
        ratio = float(case.goal.gain(case.base.value, trial.value))
        worse = any(trial.used[name] > case.base.used[name] * (1 + 1e-9) for name in missed)
        if len(trial.missed) < len(missed) or (ratio > HELPS and set(trial.missed) <= set(missed) and not worse):
            yield trial


def _grouped(trials: Iterable[Trial]) -> list[list[Trial]]:
    """Trials grouped by slot and figures: methods with the same formats are equally fast."""
    groups: dict[tuple[object, ...], list[Trial]] = {}
    for trial in trials:
        (move,) = trial.moves
        key = (move.slot, trial.price, float(trial.cost), float(level(trial.figure("memory"))))
        groups.setdefault(key, []).append(trial)
    return [sorted(group, key=lambda trial: trial.names) for group in groups.values()]


def _ranked(groups: list[list[Trial]]) -> list[list[Trial]]:
    """Groups ordered by limits missed, then gain, then price."""

    def rank(group: list[Trial]) -> tuple[object, ...]:
        trial = group[0]
        return (len(trial.missed), trial.cost, list(Price).index(trial.price), trial.names)

    return sorted(groups, key=rank)


def _recommended(case: Case, findings: Findings, groups: Sequence[list[Trial]], top: int) -> Iterator[Recommendation]:
    """One recommendation per group; the first moves of the first slots have break-even points."""
    slots: Counter[str] = Counter()
    for before, group in zip([None, *(group[0] for group in groups)], groups, strict=False):
        (move,) = group[0].moves
        slots[move.slot] += 1
        detailed = slots[move.slot] <= (2 if move.kind is Kind.TECHNIQUE else 1) and len(slots) <= top
        yield _recommendation(case, findings, group, before, detailed)


def _recommendation(
    case: Case, findings: Findings, group: list[Trial], before: Trial | None, detailed: bool
) -> Recommendation:
    trial = group[0]
    (move,) = trial.moves
    concerned = [(rule, found) for rule, found in findings if _concerns(found, move)]
    near = detailed and before is not None and len(before.missed) == len(trial.missed)
    tied = near and before is not None and (ratio := better(trial, before)).low < 1 < ratio.high
    return Recommendation(
        move,
        trial,
        better(case.base, trial),
        trial.price,
        tied,
        tuple((rule, found.text) for rule, found in concerned if isinstance(found, Hint)),
        tuple(found.text for _, found in concerned if isinstance(found, Caution)),
        check_request(move.name).published if move.kind is Kind.TECHNIQUE else (),
        tuple(name for other in group[1:] for name in other.names),
        case.break_even.conditions(move) if detailed and move.kind in COMBINED and not case.goal.loaded else (),
    )


def _concerns(found: Finding, move: Move) -> bool:
    """Whether a finding names a move or its slot."""
    names = {move.name, move.slot, move.name.partition(":")[0]}
    return not isinstance(found, Bottleneck) and not names.isdisjoint(found.moves)


def _ineffective(
    case: Case, findings: Findings, recommendations: Iterable[Recommendation]
) -> Iterator[IneffectiveMove]:
    """Moves that rules find without benefit and whose simulation agrees."""
    done = {name for found in recommendations for name in (found.move.name, *found.same)}
    for rule, found in findings:
        if not isinstance(found, NoBenefit):
            continue
        for move in case.moves.values():
            if move.name in done or not _concerns(found, move) or (ratio := case.gain(move.name)) > HELPS:
                continue
            done.add(move.name)
            yield IneffectiveMove(move.name, ratio if np.isfinite(ratio) else None, found.text, rule)


def _hardware(case: Case, findings: Findings) -> tuple[Recommendation, ...]:
    """The best other devices of the same kind; those with the best bounds are simulated at expected times.

    For consumer hardware only consumer hardware is considered.
    """
    scenario, present = case.trials.scenario, case.hardware
    limits = replace(case.goal.limits, ttft=None, tpot=None, total=None)
    objective = Objective.THROUGHPUT if case.goal.loaded else case.goal.objective
    bound = replace(case.goal, objective=objective, at="bound", limits=limits, demand=None)
    memory = case.base.analysis.memory
    promising, least = [], float(memory.weights + memory.kv_cache) / 2  # no device stores the formats in less
    for name in searched_hardware():
        device = load_hardware(name)
        if device.kind != present.kind or device.name == present.name or device.memory_capacity < least:
            continue
        if is_consumer(present) and not is_consumer(device):
            continue
        try:
            analysis = analyze(scenario.with_(hw=device))
            if analysis.memory.fits:
                promising.append((float(bound.gain(1.0, bound.value(analysis))), name))
        except RooflineError:
            continue
    best = [name for _, name in sorted(promising, reverse=True)[:TRIED_DEVICES]]
    tried = (case.trials.attempt([hardware_move(load_hardware(name))]) for name in best)
    helping = _helping(case, (trial for trial in tried if trial is not None))
    groups = _ranked([[trial] for trial in helping])[:SHOWN_DEVICES]
    pairs = zip([None, *(group[0] for group in groups)], groups, strict=False)
    return tuple(_recommendation(case, findings, group, before, detailed=True) for before, group in pairs)
