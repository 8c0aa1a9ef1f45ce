"""Times of the steps of a replica at the lengths of a load: with n sequences and some tokens of prompts."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.serving.load import Load
from roofline.serving.replica import UNLIMITED, Replica
from roofline.serving.steps import MAX_TOKENS, Table, geometric
from roofline.specs.scheduler import PREFILL_FIRST

Array = NDArray[np.float64]

MOST = 4096
"""The most sequences whose distribution is computed."""

LENGTHS = 24
"""Prompt lengths of a distribution."""

SIZES, TOKENS = 2.0, 1.4
"""Ratios of the numbers of sequences, and of the tokens of prompts, at which steps are tabulated."""

NOTHING = 1e-12
"""Seconds that stand for none, where times are divided."""

SPILL = 0.97
"""Fraction of the KV cache that running sequences fill before one is preempted or waits."""

PLACES, PACKED = 12, 48
"""Sequences at which whole prompts are packed, and prompts that are."""

WAITING = 8
"""Prompts a data-parallel rank that wait at most where the ranks that have some are tabulated."""

DEALT = 128
"""Prompts dealt to data-parallel ranks at random that give the most of a rank."""

UNEVEN = 0.75
"""Sequences of the data-parallel rank with the most beyond the mean.

Requests go to the rank with the least, and leave at random: half a sequence is that of whole numbers.
"""


class Times(Struct, frozen=True, dict=True):
    """Times of a replica's steps for 1 to N sequences of all ranks, at the lengths of a load.

    `decode` is s(n). `added` are the seconds that tokens of prompts of all ranks (columns) add to a step of n sequences
    (rows; prompts that go first: those of a step of their own), and `room` the tokens that such a step takes of
    prompts. `lengths` are tokens of prompts of equal weight, `steps` is G, `lag` the steps that are scheduled ahead.
    `received`: prompts take no time, since their KV cache comes from other devices. `side` is the part of the
    data-parallel ranks (columns: waiting tokens) that have prompts.
    """

    decode: Array
    added: Table
    room: Array
    lengths: Array
    steps: float
    alone: bool
    ranks: int
    lag: int = 0
    received: bool = False
    side: Table | None = None

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
        found: Array = np.interp(number, np.arange(1.0, self.decode.size + 1), self.decode)
        return found

    def held(self, number: Any) -> Array:
        """Tokens of prompts that find room in a step beside n sequences, interpolated."""
        found: Array = np.interp(number, np.arange(1.0, self.decode.size + 1), self.room)
        return found

    def taken(self, tokens: Any, number: Any) -> Array:
        """Those of some waiting tokens that a step beside n sequences takes."""
        room = self.held(number)
        if self.side is not None:
            room = room * self.side(0.0, tokens)
        return np.asarray(np.minimum(tokens, room))

    def slope(self, number: Any) -> Array:
        """Seconds that a further prompt adds to a step with one."""
        return np.asarray(np.maximum(self._column(number, 2.0) - self._column(number, 1.0), 0.0))

    def base(self, number: Any) -> Array:
        """Seconds that a prompt adds to a step beyond `slope`."""
        return np.asarray(self._column(number, 1.0) - self.slope(number))

    def full(self, number: Any) -> Array:
        """Seconds that a prompt adds in full steps."""
        return self._column(number, 0.0)

    @cached_property
    def _rows(self) -> Array:
        """Numbers of sequences beside which prompts find room."""
        number: Array = np.arange(1.0, self.decode.size + 1)
        found: Array = number[self.room >= NOTHING + self.room[0] / 1e4]
        return found

    @cached_property
    def _columns(self) -> dict[float, Array]:
        """Seconds of one and two prompts, in several steps where they do not fit in one, and of one in full steps."""
        rows = self._rows
        found = {}
        for prompts in (1.0, 2.0):
            room = self.taken(prompts * self.mean, rows)
            full = self.added(rows, room)
            steps = np.floor(prompts * self.mean / room * (1 - 1e-9))
            found[prompts] = steps * full + self.added(rows, prompts * self.mean - steps * room)
        room = self.held(rows)
        found[0.0] = self.added(rows, room) * self.mean / room
        return found

    def _column(self, number: Any, prompts: float) -> Array:
        found: Array = np.interp(number, self._rows, self._columns[prompts])
        return found


def slots_of(replica: Replica, load: Load) -> float:
    """The sequences that run at most: by the engine's limit, and those that fit in the KV cache.

    Without reservation, sequences of all ages fill the cache; with it, each holds the reserved part of its output.
    """
    prompt, output = load.means
    held = prompt + max(load.biased_output / 2, replica.scheduler.reserved * output)
    share = 1.0 if replica.scheduler.reserved >= 1 else SPILL
    fitting = share * replica.kv_tokens / held if replica.kv_tokens < UNLIMITED else float(UNLIMITED)
    return max(1.0, min(float(replica.sequences), fitting, float(MOST)))


def times_of(replica: Replica, load: Load, count: int) -> Times:
    """The times of steps of 1 to `count` sequences."""
    steps, ranks = replica.steps, replica.data
    alone = replica.scheduler.order == PREFILL_FIRST
    prompt, output = load.means
    lengths = np.maximum(_lengths(load) * (1 - load.hits), 1.0)
    cached, context = load.hits * prompt, prompt + load.biased_output / 2
    number = np.arange(1.0, count + 1)
    busiest = number if ranks == 1 else number / ranks + UNEVEN
    decode = steps.seconds(np.maximum(busiest, 1.0), context)
    generated = max(output - 1, 0.0) / steps.accepted
    if replica.received:
        nothing = Table(np.array([1.0, 2.0]), np.array([0.0, 1.0]), np.full((2, 2), NOTHING))
        return Times(
            decode,
            nothing,
            np.full(count, float(MOST)),
            np.ones(1),
            generated,
            False,
            ranks,
            received=True,
            lag=replica.scheduler.lag,
        )
    room = ranks * _room(replica, lengths, number / ranks)
    columns = np.unique(np.append(geometric(16, max(room[0], 64.0), TOKENS), min(lengths.mean(), room[0])))
    rows = geometric(1, max(count, 2), SIZES)
    beside = (rows / ranks)[:, np.newaxis] * (0.0 if alone else 1.0)
    # A prompt that takes several steps has half of the others' tokens before it on average.
    before = cached + np.maximum(lengths.mean() - np.interp(rows, number, room)[:, np.newaxis] / ranks, 0.0) / 2
    most, side = columns, None
    if ranks > 1:
        # More wait than a step takes where prompts take several: until all ranks have some.
        longest = max(columns[-1], WAITING * ranks * lengths.mean())
        wait = np.union1d(columns, np.geomspace(columns[-1], longest, PLACES))
        part, busy = _dealt(wait, lengths, ranks, load.outputs.varies)
        most = np.maximum(columns * np.interp(columns, wait, part), np.minimum(columns, lengths.mean()))
        most = np.minimum(most, np.maximum(np.interp(rows, number, room)[:, np.newaxis] / ranks, 1.0))
        side = Table(np.arange(2.0), np.append(wait, UNLIMITED), np.tile(np.append(busy, busy[-1]), (2, 1)))
    prompts = np.maximum(most / np.minimum((lengths**2).mean() / lengths.mean(), replica.budget), 1.0)
    mean = (
        None if ranks == 1 else (0.0 if alone else rows[:, np.newaxis] * steps.decode_tokens / ranks) + columns / ranks
    )
    still = 0.0 if alone else np.interp(rows, number, decode)[:, np.newaxis]
    added = np.maximum(steps.seconds(beside, context, most, before, prompts, mean) - still, NOTHING)
    added = np.maximum.accumulate(added, axis=1)
    # No tokens add nothing, but the first of them what a step with prompts takes in addition.
    table = Table(rows, np.append(0.0, columns), np.concatenate([added[:, :1], added], axis=1))
    return Times(decode, table, room, lengths, generated, alone, ranks, replica.scheduler.lag, side=side)


def _room(replica: Replica, lengths: Array, number: Array) -> Array:
    """Tokens of prompts that find room in a step of a rank with n sequences, where others wait."""
    policy = replica.scheduler
    budget = min(replica.budget, MAX_TOKENS)
    left = np.maximum(budget - number * (policy.order != PREFILL_FIRST) * replica.steps.decode_tokens, 0.0)
    if not policy.whole:
        return left
    places = np.linspace(left[-1], left[0], PLACES)
    prompts = np.random.default_rng(0).permutation(np.resize(lengths, PACKED)).tolist()
    found: Array = np.interp(left, places, [_packed(budget, place, prompts) for place in places.tolist()])
    return found


def _packed(budget: float, left: float, prompts: list[float]) -> float:
    """Tokens of whole prompts in a step: the first, those that fit beside it, and what the step before left of one."""
    if left <= 0:
        return 0.0
    steps, rest, place = 0, 0.0, 0
    while place < len(prompts) or rest:
        room = left - min(rest, budget)
        rest -= min(rest, budget)
        some = False
        while room > 0 and place < len(prompts) and not (some and prompts[place] > room):
            taken = min(prompts[place], budget)
            rest += prompts[place] - taken
            room, place, some = room - taken, place + 1, True
        steps += 1
    return sum(prompts) / steps


def _dealt(tokens: Array, lengths: Array, ranks: int, varied: bool) -> tuple[Array, Array]:
    """Of some tokens of prompts: the part that the data-parallel rank with the most has, and that of ranks with any.

    They come to the ranks with the fewest requests: one after the other where all outputs have one length, and where
    they vary between that and at random, as sequences end: in the event simulation the rank with the most has the mean
    of both.
    """
    random = np.random.default_rng(0)
    count = np.unique(np.round(np.geomspace(1, max(tokens[-1] / lengths.mean(), 2.0), 16)))
    sums = np.zeros((3, tokens.size))
    for number in count.astype(int):
        each = random.choice(lengths, (DEALT, number))
        rank = np.tile(np.arange(number) % ranks, (DEALT, 1))
        if varied:
            rank[::2] = random.integers(ranks, size=rank[::2].shape)
        on_rank = np.stack([(each * (rank == place)).sum(axis=1) for place in range(ranks)])
        # Few tokens are of few prompts: the mean over those with about as many.
        near = np.digitize(each.sum(axis=1), np.sqrt(tokens[1:] * tokens[:-1]))
        parts = (np.ones(DEALT), on_rank.max(axis=0) / on_rank.sum(axis=0), (on_rank > 0).mean(axis=0))
        sums += [np.bincount(near, part, tokens.size) for part in parts]
    some = sums[0] > 0
    part, busy = (np.interp(tokens, tokens[some], each[some] / sums[0, some]) for each in sums[1:])
    return part, busy


def _lengths(load: Load) -> Array:
    """Quantiles of the prompt's length."""
    shares = (np.arange(LENGTHS) + 0.5) / LENGTHS
    if load.trace is not None:
        return np.asarray(np.quantile(np.array(load.trace.prompt, float), shares), float)
    if not load.prompts.varies:
        return np.array([load.prompts.mean])
    found: Array = np.maximum(load.prompts.inverse(shares), 1.0)
    return found
