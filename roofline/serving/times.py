"""Times of the steps of a replica at the lengths of a load: with n sequences and some tokens of prompts."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, lru_cache, partial
from typing import Any

import numpy as np
from msgspec import Struct

from roofline.scenario.speculation import iterations
from roofline.serving.load import Load
from roofline.serving.replica import UNLIMITED, Replica
from roofline.serving.steps import MAX_TOKENS
from roofline.serving.tables import Array, Curve, geometric
from roofline.specs.scheduler import PREFILL_FIRST

MOST = 4096
"""The most sequences whose distribution is computed."""

LENGTHS = 24
"""Prompt lengths of a distribution."""

NOTHING = 1e-12
"""Seconds that stand for none, where times are divided."""

SPILL = 0.97
"""Fraction of the KV cache that running sequences fill before one is preempted or waits."""

PLACES, PACKED = 12, 48
"""Sequences at which whole prompts are packed, and prompts that are."""

DEALT = 128
"""Prompts dealt to data-parallel ranks at random that give the most of a rank."""

UNEVEN = 0.75
"""Sequences of the data-parallel rank with the most beyond the mean.

Requests go to the rank with the least, and leave at random: half a sequence is that of whole numbers.
"""


class Times(Struct, frozen=True, dict=True):
    """Times of a replica's steps for 1 to N sequences of all ranks, at the lengths of a load.

    `decode` is s(n). `added` gives the seconds that some tokens of prompts of all ranks add to a step of n sequences
    (where prompts go first, those of a step of their own), and `room` has the tokens of prompts that such a step takes.
    Neither `added` nor `step` is interpolated: steps on both sides of the limit of CUDA graphs are apart. `lengths` are
    tokens of prompts of equal weight, `steps` is G for `tokens` after the first, `lag` the steps that are scheduled
    ahead. `apart`: beside the prompts of a data-parallel rank the others decode, and it does not. `received`: prompts
    take no time, since their KV cache comes from other devices. `step` gives the seconds of a step of n sequences, with
    the tokens of prompts of the data-parallel rank with the most, and of all on average. At most `slots` sequences run.
    Of a longer prompt alone a step takes `cut` tokens, where prompts that fit are taken whole.
    """

    decode: Array
    added: Callable[[Any, Any], Array]
    room: Array
    lengths: Array
    steps: float
    tokens: float
    alone: bool
    ranks: int
    lag: int
    step: Callable[..., Any]
    slots: float
    received: bool = False
    apart: bool = False
    cut: float = math.inf

    @cached_property
    def mean(self) -> float:
        """Mean tokens of a prompt."""
        return float(self.lengths.mean())

    @cached_property
    def unit(self) -> float:
        """The mean square of prompts over their squared mean: long prompts come as several."""
        return float((self.lengths**2).mean()) / self.mean**2

    def at(self, number: Any) -> Array:
        """s(n), interpolated."""
        return np.asarray(np.interp(number, self._numbers, self.decode))

    def held(self, number: Any) -> Array:
        """Tokens of prompts that find room in a step beside n sequences, interpolated."""
        return np.asarray(np.interp(number, self._numbers, self.room))

    def taken(self, tokens: Any, number: Any) -> Array:
        """Those of some tokens that wait on a data-parallel rank that a step beside n sequences of all takes."""
        room = self.held(number) / self.ranks
        if self.cut < self.lengths.max():
            room = np.where(tokens > self.lengths.max(), room, np.minimum(room, self.cut))
        return np.asarray(np.minimum(tokens, room))

    def base_and_slope(self, number: Any) -> tuple[Array, Array]:
        """Seconds that a further prompt adds to a step with one (`slope`), and those that the first adds beyond it."""
        base, slope = (np.asarray(np.interp(number, self._rows, column)) for column in self._columns)
        return base, slope

    def full(self, number: Any) -> Array:
        """Seconds that a prompt adds in full steps."""
        return np.asarray(np.interp(number, self._rows, self._full))

    def filled(self, number: Any) -> Array:
        """Seconds of a step of n sequences with as many tokens of prompts as find room in it."""
        added = self.full(number) * np.maximum(self.held(number), 1.0) / self.mean
        return np.asarray(added if self.alone else self.at(number) + added)

    @cached_property
    def stable(self) -> float:
        """The largest rate at which, with some number of sequences, steps yield tokens as fast as requests ask.

        Of n sequences n / G end in a step, and as many prompts take their places, at most those that fit in it.
        """
        number = np.minimum(self._numbers, self.slots)
        if not self.steps:
            return float(np.max(1 / self.full(number)))
        number = number[(number * self.mean <= self.steps * self.held(number)) | (number == 1)]
        return float(np.max(number / (self.steps * self.replaced(number))))

    def replaced(self, number: Array) -> Array:
        """The mean step of n sequences, of which n / G end in it, with the prompts of those that take their places."""
        prompts = number / self.steps
        some = -np.expm1(-prompts)
        added = some * self.added(number, np.minimum(prompts * self.mean / some, self.held(number)))
        return np.asarray(self.at(number) + np.maximum(added, prompts * self.full(number)))

    @cached_property
    def _numbers(self) -> Array:
        """Numbers of sequences, of which `decode` and `room` are."""
        return np.arange(1.0, self.decode.size + 1)

    @cached_property
    def _rows(self) -> Array:
        """Numbers of sequences beside which prompts find room."""
        return np.asarray(self._numbers[self.room >= NOTHING + self.room[0] / 1e4])

    @cached_property
    def _full(self) -> Array:
        """Seconds that a prompt adds in full steps beside the sequences of `_rows`."""
        return self.added(self._rows, self.held(self._rows)) * self.mean / self.held(self._rows)

    @cached_property
    def _columns(self) -> tuple[Array, Array]:
        """Seconds of a prompt beyond those that a further one adds, and the latter."""
        one = self._of(1.0)
        slope = np.maximum(self._of(2.0) - one, 0.0)
        return one - slope, slope

    def _of(self, prompts: float) -> Array:
        """Seconds that so many prompts add, in several steps where they do not fit in one."""
        rows, ranks = self._rows, min(prompts, self.ranks)
        each = prompts * self.mean / ranks
        room = self.taken(each, rows)
        steps = np.floor(each / room * (1 - 1e-9))
        found = self.added(rows, ranks * (each - steps * room))
        return found + steps * self.added(rows, ranks * room) if steps.any() else found


def slots_of(replica: Replica, load: Load) -> float:
    """The sequences that run at most: by the engine's limit, and those that fit in the KV cache.

    Without reservation, sequences of all ages fill the cache; with it, each holds the reserved part of its output. A
    sequence beside which no prompt finds room in a step runs alone.
    """
    if replica.crowded:
        return float(replica.data)
    prompt, output = load.means
    held = prompt + max(load.biased_output / 2, replica.scheduler.reserved * output)
    share = 1.0 if replica.scheduler.reserved >= 1 else SPILL
    fitting = share * replica.kv_tokens / held if replica.kv_tokens < UNLIMITED else float(UNLIMITED)
    return max(1.0, min(float(replica.sequences), fitting, float(MOST)))


@lru_cache(maxsize=8)  # a search asks for many rates of one load
def times_of(replica: Replica, load: Load, slots: float) -> Times:
    """The times of steps of 1 to `slots` sequences, of at least two."""
    count = max(2, math.ceil(slots))
    steps, ranks = replica.steps, replica.data
    first = replica.scheduler.order == PREFILL_FIRST
    alone = replica.crowded or (first and ranks == 1)
    prompt, output = load.means
    lengths = np.maximum(_lengths(load) * (1 - load.hits), 1.0)
    cached, context = load.hits * prompt, load.held
    number = np.arange(1.0, count + 1)
    busiest = number if ranks == 1 else number / ranks + UNEVEN
    decode = steps.seconds(np.maximum(busiest, 1.0), context, mean=replica.routed(number / ranks))
    tokens = max(output - 1, 0.0)
    generated = float(iterations(tokens, steps.accepted))
    lag = replica.scheduler.lag
    made = partial(Times, decode=decode, steps=generated, tokens=tokens, ranks=ranks, lag=lag, slots=slots)
    if replica.received:
        room, step = np.full(count, float(MOST)), lambda n, *_: np.interp(n, number, decode)
        received = partial(made, added=lambda _, tokens: np.full_like(tokens, NOTHING, dtype=float), received=True)
        return received(room=room, lengths=np.ones(1), alone=False, step=step)
    room = ranks * _room(replica, lengths, number / ranks, first or alone)
    part = _dealt(max(room[0], 64.0), lengths, ranks, load.outputs.varies) if ranks > 1 else None
    longest = np.minimum((lengths**2).mean() / lengths.mean(), replica.budget)

    def timed(beside: Any, most: Any, mean: Any) -> Array:
        """Seconds of a step of some sequences with some tokens of prompts on one rank, and on average."""
        beside = np.asarray(beside) / ranks * (0.0 if alone else 1.0)
        tokens = None if ranks == 1 else beside * steps.decode_tokens + mean
        # A prompt that takes several steps has half of the others' tokens before it on average.
        before = cached + np.maximum(lengths.mean() - np.interp(beside * ranks, number, room) / ranks, 0.0) / 2
        return steps.seconds(beside, context, most, before, np.maximum(most / longest, 1.0), tokens)

    def added(beside: Any, tokens: Any) -> Array:
        """Seconds that some tokens of prompts of all ranks add to a step of some sequences."""
        most, still = tokens, 0.0 if alone else np.interp(beside, number, decode)
        if part is not None:
            most = np.maximum(tokens * part(tokens), np.minimum(tokens, lengths.mean()))
            most = np.minimum(most, np.maximum(np.interp(beside, number, room) / ranks, 1.0))
        if first and not alone:  # only ranks with prompts wait with their sequences, a step for each
            still = still * (1 - np.clip(tokens / min(lengths.mean(), replica.budget), 1, ranks) / ranks)
        return np.asarray(np.maximum(timed(beside, most, tokens / ranks) - still, NOTHING))

    cut = float(replica.budget) if replica.scheduler.whole else math.inf
    return made(added=added, room=room, lengths=lengths, alone=alone, step=timed, cut=cut, apart=first and not alone)


def _room(replica: Replica, lengths: Array, number: Array, alone: bool) -> Array:
    """Tokens of prompts that find room in a step of a rank with n sequences, where others wait."""
    policy = replica.scheduler
    budget = min(replica.budget, MAX_TOKENS)
    left = np.maximum(budget - number * (not alone) * replica.steps.decode_tokens, 0.0)
    if not policy.whole:
        return left
    places = np.linspace(left[-1], left[0], PLACES)
    prompts = np.random.default_rng(0).permutation(np.resize(lengths, PACKED)).tolist()
    return np.asarray(np.interp(left, places, [_packed(budget, place, prompts) for place in places.tolist()]))


def _packed(budget: float, left: float, prompts: list[float]) -> float:
    """Tokens of whole prompts in a step: the first, those that fit beside it, and what the step before left of one."""
    if left <= 0:
        return 0.0
    rest, place, steps = 0.0, 0, list[float]()
    while place < len(prompts):
        first = min(rest, budget)
        room, rest, some = left - first, rest - first, False
        while room > 0 and place < len(prompts) and not (some and prompts[place] > room):
            taken = min(prompts[place], budget)
            rest += prompts[place] - taken
            room, place, some = room - taken, place + 1, True
        steps.append(left - room)
    # Those between the first and the last, which are not as full.
    return sum(steps[1:-1]) / (len(steps) - 2) if len(steps) > 2 else sum(prompts)


def _dealt(most: float, lengths: Array, ranks: int, varied: bool) -> Curve:
    """The part that the data-parallel rank with the most has of some tokens of prompts.

    They come to the ranks with the fewest requests: one after the other where all outputs have one length, and where
    they vary between that and at random, as sequences end: in the event simulation the rank with the most has the mean
    of both.
    """
    random, tokens = np.random.default_rng(0), geometric(16, most, 1.4)
    count = np.unique(np.round(np.geomspace(1, max(tokens[-1] / lengths.mean(), 2.0), 16)))
    sums = np.zeros((2, tokens.size))
    for number in count.astype(int):
        each = random.choice(lengths, (DEALT, number))
        rank = np.tile(np.arange(number) % ranks, (DEALT, 1))
        if varied:
            rank[::2] = random.integers(ranks, size=rank[::2].shape)
        on_rank = np.stack([(each * (rank == place)).sum(axis=1) for place in range(ranks)])
        # Few tokens are of few prompts: the mean over those with about as many.
        near = np.digitize(each.sum(axis=1), np.sqrt(tokens[1:] * tokens[:-1]))
        parts = (np.ones(DEALT), on_rank.max(axis=0) / on_rank.sum(axis=0))
        sums += [np.bincount(near, part, tokens.size) for part in parts]
    some = sums[0] > 0
    return Curve(tokens[some], sums[1, some] / sums[0, some])


def _lengths(load: Load) -> Array:
    """Quantiles of the prompt's length."""
    shares = (np.arange(LENGTHS) + 0.5) / LENGTHS
    if load.trace is not None:
        return load.beside + np.asarray(np.quantile(np.array(load.trace.prompt, float), shares), float)
    if not load.prompts.varies:
        return np.array([load.means[0]])
    return load.beside + np.asarray(np.maximum(load.prompts.inverse(shares), 1.0))
