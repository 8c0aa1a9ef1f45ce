"""Combinations of moves, searched and simulated, never summed.

Few combinations are all tried. Of many the search tries moves alone and in pairs, then keeps, step by step, the best
combination for the objective, and the best for each of the other figures that a limit may be set on. It looks back:
from every one kept, replacing a move is tried as adding one is, and from that for the objective dropping one.
Limits play no part in what is tried, only in what is chosen, and a larger quality budget tries all that a smaller one
does and more, as does a larger number of devices: loosening a limit or the budget can never worsen the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from math import prod

from msgspec import Struct, field

from roofline.advisor.search.goal import QUALITIES, Quality
from roofline.advisor.search.moves import Move, price_of
from roofline.advisor.search.outcomes import Outcomes
from roofline.advisor.search.trials import GUIDES, NOTHING, Moves, Trial, Trials, names

EXHAUSTIVE = 16
"""Combinations that are all tried where there are no more: those of four moves that exclude none of the others."""

DEPTH = 8
"""Moves of a plan at most."""

LEAST = 1.005
"""A move that gains less than this is not worth a step."""


class Searched(Struct, frozen=True):
    """All that a search tried, and why it stopped."""

    outcomes: Outcomes
    stopped: str


def search(trials: Trials, moves: Sequence[Move], depth: int = DEPTH, exhaustive: int = EXHAUSTIVE) -> Searched:
    """Combinations of `moves` up to `depth`, at every batch where the goal lets it vary; all, if few enough.

    `trials` evaluates at the request's own batch, or at the grid that `batch_grid` gives it. Each budget and number of
    devices starts from all that the next smaller budget tried, and from all that fewer devices did: what it tries does
    not depend on anything else, so that it is the same whether more is asked for or not. Where other numbers of devices
    may be had, the present one is searched by itself too, as it is where they may not.
    """
    stopped = ""
    counts = sorted({move.devices for move in moves if move.devices}) or [0]
    present = trials.base.analysis.scenario.settings.parallel.devices
    tried = _Tried(trials, depth, exhaustive)
    seen: dict[Moves, Trial] = {}
    fewer: Leaders
    trials.together(frozenset({move}) for move in moves if trials.goal.quality.allows(move.price))
    for quality in QUALITIES[: QUALITIES.index(trials.goal.quality) + 1]:
        allowed = [move for move in moves if within_budget(trials, move, quality)]
        seen, fewer = {NOTHING: trials.base}, ()
        for index, count in enumerate(counts):
            if count == present and index:
                alone = {NOTHING: trials.base}
                tried.extend(alone, (count,), allowed, quality)
                seen |= alone
            stopped = tried.extend(seen, tuple(counts[: index + 1]), allowed, quality, fewer)
            fewer = _leaders(seen)
    fitting = [trial for trial in seen.values() if trial.fits.any()]
    outcomes = Outcomes(fitting)
    if outcomes.best is None:  # what does not fit either says how near one gets
        simulated = (trials.attempt(moves) for moves, trial in seen.items() if not trial.fits.any())
        outcomes = Outcomes([*fitting, *(trial for trial in simulated if trial is not None)])
    return Searched(outcomes, stopped)


class _Tried(Struct, frozen=True):
    """What a search tried so far, by the numbers of devices that it could have."""

    trials: Trials
    depth: int
    exhaustive: int
    found: dict[tuple[int, ...], dict[Moves, Trial]] = field(default_factory=dict)

    def extend(
        self,
        seen: dict[Moves, Trial],
        devices: tuple[int, ...],
        allowed: Iterable[Move],
        quality: Quality,
        fewer: Leaders = (),
    ) -> str:
        """Add to `seen` what a smaller budget tried with these numbers of devices, and what this one does.

        Says why it stopped; `fewer` led with fewer devices.
        """
        seen |= self.found.get(devices, {})
        offered = [move for move in allowed if not move.devices or move.devices in devices]
        slots = _slots(offered)
        if prod(len(members) + 1 for members in slots.values()) <= self.exhaustive:
            stopped = _all(self.trials, slots, quality, seen)
        else:
            stopped = _climb(self.trials, offered, self.depth, quality, seen, fewer)
        self.found[devices] = dict(seen)
        return stopped


def within_budget(trials: Trials, move: Move, quality: Quality) -> bool:
    """Whether a move is within the budget, as far as that can be told of it alone: another engine may run it."""
    if not quality.allows(move.price):  # what it leads to may make it dearer, never cheaper
        return False
    trial = trials.fitting(frozenset({move}))
    if trial is None:
        return not move.runs_on(trials.request.engine_name)
    return quality.allows(price_of(move, trial.analysis.scenario))


def _tried(trials: Trials, combinations: Iterable[Moves], quality: Quality) -> dict[Moves, Trial]:
    """The trials of combinations, of those that can be and are within the budget; see `Trials.fitting`."""
    combinations = list(dict.fromkeys(combinations))
    trials.together(combinations)
    found = {moves: trials.fitting(moves) for moves in combinations}
    return {moves: trial for moves, trial in found.items() if trial is not None and quality.allows(trial.price)}


Leaders = tuple[Moves, ...]
"""The best combination for each figure of `Trial.scores`: for the objective, then for each guide."""


def _climb(
    trials: Trials, moves: Sequence[Move], depth: int, quality: Quality, seen: dict[Moves, Trial], fewer: Leaders
) -> str:
    """Tries combinations and adds them to `seen`; says why it stopped.

    It tries every move alone, goes on from the best that was seen, and from those that led with `fewer` devices, on as
    many as it may have. What is useless alone may help others: where no move that is useful alone goes on, every move
    is tried on the combination that is best for the objective, and those that help there join in. So no single change
    makes the answer better.
    """
    useful, whole = _useful(trials, moves), False
    most = max((move.devices for move in moves), default=0)

    def tried(followings: Iterable[Moves]) -> dict[Moves, Trial]:
        found = _tried(trials, (following for following in followings if len(following) <= depth), quality)
        seen.update(found)
        return found

    tried(frozenset({move}) for move in moves)
    pairs = combinations(useful, 2)  # two that help each other may lie where no step of one leads
    tried(frozenset(pair) for pair in pairs if pair[0].slot != pair[1].slot)
    grown = [move for move in useful if move.devices == most]
    tried(_with(state, move) for state in dict.fromkeys(fewer) for move in grown)
    leaders = _leaders(seen)
    while True:  # it ends: every round but the last makes one of the leaders better
        useful += [move for state in leaders for move in state if move not in useful]
        best, found = leaders[0], {state: seen[state] for state in leaders}
        found |= tried(_following(best, moves if whole else useful))
        if not whole:
            for state in dict.fromkeys(leaders[1:]):
                found |= tried(_with(state, move) for move in useful)
        before, leaders = leaders, _leaders(found)
        if whole and not _better(before, leaders, seen):
            return f"none of {len(moves)} moves made any combination of at most {depth} better"
        whole = not whole and set(leaders) <= set(before)


def _better(before: Leaders, after: Leaders, seen: Mapping[Moves, Trial]) -> bool:
    """Whether any figure's leader got better: not by rounding, and not by another of the same figure."""
    return any(
        seen[new].scores[figure] < seen[old].scores[figure] * (1 - 1e-9)
        for figure, (old, new) in enumerate(zip(before, after, strict=True))
    )


def _slots(moves: Iterable[Move]) -> dict[str, list[Move]]:
    slots: dict[str, list[Move]] = {}
    for move in moves:
        slots.setdefault(move.slot, []).append(move)
    return slots


def _all(trials: Trials, slots: Mapping[str, list[Move]], quality: Quality, seen: dict[Moves, Trial]) -> str:
    """Tries every combination."""
    everything = product(*([None, *members] for members in slots.values()))
    seen |= _tried(trials, (frozenset(move for move in chosen if move is not None) for chosen in everything), quality)
    return "every combination was tried"


def _with(state: Moves, move: Move) -> Moves:
    """The combination with a move more, or with it in the place of another of its slot."""
    return frozenset({other for other in state if other.slot != move.slot} | {move})


def _following(state: Moves, moves: Iterable[Move]) -> Iterator[Moves]:
    """One move more, one replaced by another of its slot, or one fewer."""
    for move in moves:
        if move not in state:
            yield _with(state, move)
    if len(state) > 1:
        for move in state:
            yield state - {move}


def _useful(trials: Trials, moves: Sequence[Move]) -> list[Move]:
    """Of each slot the best move for the objective and for each guide, where it is better than nothing."""
    found: dict[Move, None] = {}
    stuck: list[list[Move]] = []
    for members in _slots(moves).values():
        alone = [(trial, move) for move in members if (trial := trials.fitting(frozenset({move}))) is not None]
        scored = [(trial.scores, move) for trial, move in alone]
        for figure, least in enumerate(trials.base.scores):
            best = min(scored, key=lambda entry: (entry[0][figure], entry[0], entry[1].name), default=None)
            if best is not None and best[0][figure] * LEAST <= least:
                found[best[1]] = None
        if not (trials.base.fits.any() or any(trial.fits.any() for trial, _ in alone)):
            stuck.append([move for _, move in alone])
    trials.together((frozenset({move}) for members in stuck for move in members), fitting=False)
    for members in stuck:
        found |= dict.fromkeys(_promising(trials, members))
    return list(found)


def _promising(trials: Trials, moves: Iterable[Move]) -> Iterator[Move]:
    """Of moves of a slot the best for the objective if there were memory for it: a move of another may make room."""
    alone = [(trial.promise, move.name, move) for move in moves if (trial := trials.attempt({move})) is not None]
    if alone:
        promise, _, move = min(alone, key=lambda entry: entry[:2])
        yield from [move] if promise * LEAST <= trials.base.promise else []


def _leaders(tried: Mapping[Moves, Trial]) -> Leaders:
    """The best combinations: of equals for a figure the better ones for the objective, then those of fewer moves."""
    scores = {moves: trial.scores for moves, trial in tried.items()}
    return tuple(
        min(scores, key=lambda moves: (scores[moves][figure], scores[moves][0], len(moves), names(moves)))
        for figure in range(1 + len(GUIDES))
    )
