"""Times of the steps of a replica at the lengths of a load: with n sequences and some tokens of prompts.

Symbols are those of `roofline.serving.steady`; n counts all ranks. Prompts are without what the prefix cache has.
"""

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
from roofline.serving.tables import Array, Interpolation, geometric
from roofline.specs.scheduler import PREFILL_FIRST

MOST = 4096
"""The most sequences that are told apart: no replica has more slots here."""

LENGTHS = 24
"""Quantiles that stand for a distribution of prompt lengths."""

TINY = 1e-12
"""In place of 0 in a denominator, in seconds, tokens or a probability."""

SPILL = 0.97
"""Fraction of the KV cache that running sequences fill on average when the first is preempted, or waits."""

PLACES, PACKED = 12, 48
"""Sizes of a step's room for which prompts are packed into steps, and the prompts that are packed for each."""

DEALT = 128
"""Random draws, for each number of prompts, of how they are spread over data-parallel ranks."""

UNEVEN = 0.75
"""Sequences that the data-parallel rank with the most has beyond the mean (event simulations): half of one by rounding
up to a whole number, the rest since requests go to the rank with the least and leave at random."""


class Times(Struct, frozen=True, dict=True):
    """Times of a replica's steps for 1 to N sequences of all ranks, at the lengths of a load.

    `decode` is s(n) and `room` the tokens of prompts of all ranks that a step beside n sequences takes, both of shape
    (N,). `added(n, tokens)` are the seconds that tokens of prompts of all ranks add to such a step, or, where prompts
    have steps of their own, those of such a step; `step(n, most, mean)` are the seconds of a step with `most` tokens of
    prompts on the rank with the most, and a `mean` over all. Neither is interpolated over tokens: steps jump at the
    limit of CUDA graphs. `lengths` are quantiles of a prompt's tokens, of equal weight; `steps` is G, for the `tokens`
    of an output after the first; `lag` steps are scheduled ahead, and at most `slots` sequences run.

    `alone`: no sequence decodes in a step with prompts (the engine computes prompts first). `apart`: the same of each
    of several data-parallel `ranks`, while the others decode. `received`: prompts take no time, since their KV cache
    comes from other devices. Where prompts that fit are taken whole, a step takes `cut` tokens of a longer one.
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
    def square(self) -> float:
        """E[l^2] / E[l]^2 of the tokens l of a prompt: one plus the squared coefficient of variation."""
        return float((self.lengths**2).mean()) / self.mean**2

    def at(self, number: Any) -> Array:
        """s(n), interpolated."""
        return np.asarray(np.interp(number, self._numbers, self.decode))

    def room_at(self, number: Any) -> Array:
        """Tokens of prompts of all ranks that find room in a step beside n sequences, interpolated."""
        return np.asarray(np.interp(number, self._numbers, self.room))

    def taken(self, tokens: Any, number: Any) -> Array:
        """Tokens that a step takes of those that wait on one data-parallel rank, beside n sequences of all ranks."""
        room = self.room_at(number) / self.ranks
        if self.cut < self.lengths.max():
            room = np.where(tokens > self.lengths.max(), room, np.minimum(room, self.cut))
        return np.asarray(np.minimum(tokens, room))

    def base_and_slope(self, number: Any) -> tuple[Array, Array]:
        """Seconds that k prompts add to a step are about base + slope k, by those of one and of two."""
        base, slope = (np.asarray(np.interp(number, self._rows, column)) for column in self._columns)
        return base, slope

    def full(self, number: Any) -> Array:
        """Seconds that a prompt of mean length adds where steps are full of prompts."""
        return np.asarray(np.interp(number, self._rows, self._full))

    def filled(self, number: Any) -> Array:
        """Seconds of a step of n sequences with as many tokens of prompts as find room in it."""
        added = self.full(number) * np.maximum(self.room_at(number), 1.0) / self.mean
        return np.asarray(added if self.alone else self.at(number) + added)

    @cached_property
    def stable(self) -> float:
        """The largest stable rate in requests/s: the most that steps of any number n of sequences serve, n / (G T(n)).

        Of n sequences n / G end in a step, and as many prompts take their places: n is at most what they fit beside.
        """
        number = np.minimum(self._numbers, self.slots)
        if not self.steps:
            return float(np.max(1 / self.full(number)))
        number = number[(number * self.mean <= self.steps * self.room_at(number)) | (number == 1)]
        return float(np.max(number / (self.steps * self.replaced(number))))

    def replaced(self, number: Array) -> Array:
        """The mean step T(n) in seconds with the prompts of n / G sequences, which follow those that end in it."""
        prompts = number / self.steps
        some = -np.expm1(-prompts)
        added = some * self.added(number, np.minimum(prompts * self.mean / some, self.room_at(number)))
        return np.asarray(self.at(number) + np.maximum(added, prompts * self.full(number)))

    @cached_property
    def _numbers(self) -> Array:
        """The numbers of sequences, 1 to N, of `decode` and `room`."""
        return np.arange(1.0, self.decode.size + 1)

    @cached_property
    def _rows(self) -> Array:
        """Numbers of sequences beside which prompts find room."""
        return np.asarray(self._numbers[self.room >= TINY + self.room[0] / 1e4])

    @cached_property
    def _full(self) -> Array:
        """Seconds that a prompt adds in full steps beside the sequences of `_rows`."""
        return self.added(self._rows, self.room_at(self._rows)) * self.mean / self.room_at(self._rows)

    @cached_property
    def _columns(self) -> tuple[Array, Array]:
        """The base and slope of `base_and_slope` at `_rows`."""
        one = self._of(1.0)
        slope = np.maximum(self._of(2.0) - one, 0.0)
        return one - slope, slope

    def _of(self, prompts: float) -> Array:
        """Seconds that so many prompts of mean length add, in several steps where they do not fit in one."""
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
        received = partial(made, added=lambda _, tokens: np.full_like(tokens, TINY, dtype=float), received=True)
        return received(room=room, lengths=np.ones(1), alone=False, step=step)
    room = ranks * _room(replica, lengths, number / ranks, first or alone)
    part = _dealt(max(room[0], 64.0), lengths, ranks, load.outputs.varies) if ranks > 1 else None
    biased = np.minimum((lengths**2).mean() / lengths.mean(), replica.budget)  # of the prompt of a random token

    def timed(beside: Any, most: Any, mean: Any) -> Array:
        """Seconds of a step beside some sequences of all ranks, with tokens of prompts of the rank with the most."""
        beside = np.asarray(beside) / ranks * (0.0 if alone else 1.0)
        tokens = None if ranks == 1 else beside * steps.decode_tokens + mean
        # A prompt of several steps attends to its own tokens of earlier steps: half of them on average.
        before = cached + np.maximum(lengths.mean() - np.interp(beside * ranks, number, room) / ranks, 0.0) / 2
        return steps.seconds(beside, context, most, before, np.maximum(most / biased, 1.0), tokens)

    def added(beside: Any, tokens: Any) -> Array:
        """Seconds that tokens of prompts of all ranks add to a step beside some sequences (`Times.added`)."""
        most, still = tokens, 0.0 if alone else np.interp(beside, number, decode)
        if part is not None:
            most = np.maximum(tokens * part(tokens), np.minimum(tokens, lengths.mean()))
            most = np.minimum(most, np.maximum(np.interp(beside, number, room) / ranks, 1.0))
        if first and not alone:  # only the sequences of ranks with prompts, one step for each, do not decode
            still = still * (1 - np.clip(tokens / min(lengths.mean(), replica.budget), 1, ranks) / ranks)
        return np.asarray(np.maximum(timed(beside, most, tokens / ranks) - still, TINY))

    cut = float(replica.budget) if replica.scheduler.whole else math.inf
    return made(added=added, room=room, lengths=lengths, alone=alone, step=timed, cut=cut, apart=first and not alone)


def _room(replica: Replica, lengths: Array, number: Array, alone: bool) -> Array:
    """Tokens of prompts that a step of one rank takes beside `number` sequences of it, where enough wait."""
    policy = replica.scheduler
    budget = min(replica.budget, MAX_TOKENS)
    left = np.maximum(budget - number * (not alone) * replica.steps.decode_tokens, 0.0)
    if not policy.whole:
        return left
    places = np.linspace(left[-1], left[0], PLACES)
    prompts = np.random.default_rng(0).permutation(np.resize(lengths, PACKED)).tolist()
    return np.asarray(np.interp(left, places, [_packed(budget, place, prompts) for place in places.tolist()]))


def _packed(budget: float, left: float, prompts: list[float]) -> float:
    """Mean tokens of prompts in a step with room for `left` of its `budget`, where prompts that fit are taken whole."""
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
    # The first step, which has no rest of a prompt, and the last, which may not be full, do not count.
    return sum(steps[1:-1]) / (len(steps) - 2) if len(steps) > 2 else sum(prompts)


def _dealt(most: float, lengths: Array, ranks: int, varied: bool) -> Interpolation:
    """The part that the data-parallel rank with the most has of the tokens of prompts of all ranks, by their number.

    A prompt goes to the rank with the fewest requests. Where outputs have one length these are the ranks in turn; where
    they `varied`, it is between that and a random rank: half of the draws are of each, as in the event simulation.
    """
    random, tokens = np.random.default_rng(0), geometric(16, most, 1.4)  # close enough to interpolate between
    count = np.unique(np.round(np.geomspace(1, max(tokens[-1] / lengths.mean(), 2.0), 16)))
    sums = np.zeros((2, tokens.size))
    for number in count.astype(int):
        each = random.choice(lengths, (DEALT, number))
        rank = np.tile(np.arange(number) % ranks, (DEALT, 1))
        if varied:
            rank[::2] = random.integers(ranks, size=rank[::2].shape)
        on_rank = np.stack([(each * (rank == place)).sum(axis=1) for place in range(ranks)])
        # The mean over the draws with about as many tokens: few tokens are of few prompts, whatever their lengths.
        near = np.digitize(each.sum(axis=1), np.sqrt(tokens[1:] * tokens[:-1]))
        parts = (np.ones(DEALT), on_rank.max(axis=0) / on_rank.sum(axis=0))
        sums += [np.bincount(near, part, tokens.size) for part in parts]
    some = sums[0] > 0
    return Interpolation(tokens[some], sums[1, some] / sums[0, some])


def _lengths(load: Load) -> Array:
    """LENGTHS quantiles of the tokens of a prompt, or the one length that all have."""
    shares = (np.arange(LENGTHS) + 0.5) / LENGTHS
    if load.trace is not None:
        return load.beside + np.asarray(np.quantile(np.array(load.trace.prompt, float), shares), float)
    if not load.prompts.varies:
        return np.array([load.means[0]])
    return load.beside + np.asarray(np.maximum(load.prompts.inverse(shares), 1.0))
