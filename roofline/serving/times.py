"""Times of the steps of a replica at the lengths of a load: with n sequences and m prompts."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.serving.load import Load
from roofline.serving.replica import UNLIMITED, Replica
from roofline.serving.steps import Table, geometric
from roofline.specs.scheduler import PREFILL_FIRST

Array = NDArray[np.float64]

MOST = 4096
"""The most sequences whose distribution is computed."""

LENGTHS = 24
"""Prompt lengths of a distribution."""

SIZES = 3.0
"""Ratio of the numbers of sequences at which prompts are added."""

NOTHING = 1e-12
"""Seconds that stand for none, where times are divided."""

SPILL = 0.97
"""Fraction of the KV cache that running sequences fill before one is preempted or waits."""


class Times(Struct, frozen=True, dict=True):
    """Times of a replica's steps for 1 to N sequences of all ranks, at the lengths of a load.

    `decode` is s(n); `added` are the seconds that m prompts (columns) add to a step of n sequences (rows; prompts that
    go first: those of a step of their own). `own` are the seconds beyond the mean of a prompt with each length of the
    distribution, `most` is k, `steps` G, `unit` the mean square of these seconds over their squared mean: long prompts
    come as several. `received`: prompts take no time, since their KV cache comes from other devices.
    """

    decode: Array
    added: Table
    own: Table
    most: float
    steps: float
    unit: float
    alone: bool
    ranks: int
    received: bool = False

    @property
    def lengths(self) -> int:
        """The lengths of the distribution."""
        return int(self.own.columns.size)

    def at(self, number: Any) -> Array:
        """s(n), interpolated."""
        found: Array = np.interp(number, np.arange(1.0, self.decode.size + 1), self.decode)
        return found

    def adding(self, prompts: Any, number: Any) -> Array:
        """Seconds that some prompts add to a step of n sequences; beyond k, to full steps."""
        inside: Array = self.added(number, np.minimum(prompts, self.most))
        more: Array = np.maximum(prompts - self.most, 0.0) * self.full(number)
        return inside + more

    def slope(self, number: Any) -> Array:
        """Seconds that a further prompt adds to a step with one."""
        if self._upper <= 1:
            return self._column(number, 1.0)
        return np.maximum(self._column(number, self._upper) - self._column(number, 1.0), 0.0) / (self._upper - 1)

    def base(self, number: Any) -> Array:
        """Seconds that a prompt adds to a step beyond `slope`."""
        return self._column(number, 1.0) - self.slope(number)

    def full(self, number: Any) -> Array:
        """Seconds that a prompt adds in full steps."""
        return self._column(number, self.most) / self.most

    @property
    def _upper(self) -> float:
        return min(2.0, self.most)

    @cached_property
    def _columns(self) -> dict[float, Array]:
        """`added` of one, two and k prompts, at its rows."""
        return {prompts: self.added(self.added.rows, prompts) for prompts in (1.0, self._upper, self.most)}

    def _column(self, number: Any, prompts: float) -> Array:
        found: Array = np.interp(number, self.added.rows, self._columns[prompts])
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
    mean, cached = max(prompt * (1 - load.hits), 1.0), load.hits * prompt
    context = prompt + load.biased_output / 2
    decode = steps.seconds(np.maximum(np.arange(1.0, count + 1) / ranks, 1.0), context)
    generated = max(output - 1, 0.0) / steps.accepted
    if replica.received:
        nothing = Table(np.array([1.0, 2.0]), np.array([1.0, float(MOST)]), np.full((2, 2), NOTHING))
        return Times(
            decode, nothing, nothing._replace(seconds=np.zeros((2, 2))), MOST, generated, 1, False, ranks, True
        )
    sizes = geometric(1, count, SIZES)
    rows = np.maximum(sizes / ranks, 1.0)[:, np.newaxis, np.newaxis] * (0.0 if alone else 1.0)
    room = max(replica.budget - float(rows[rows.shape[0] // 2, 0, 0]) * steps.decode_tokens, 1.0)
    held = max(room / mean, 1.0)
    if replica.scheduler.whole:
        held, room = max(1.0, math.floor(held)), float(replica.budget + lengths.max())
    most = held * ranks
    whole = np.unique(np.concatenate([np.arange(1.0, min(most, 2 * ranks) + 1), np.round(np.geomspace(1.0, most, 9))]))
    counts = np.append(whole[whole < most], most)

    def adding(tokens: Array, prompts: Array) -> Array:
        """Seconds that prompts of these tokens add on the rank with the most; what exceeds a step takes more steps."""
        full = np.floor(tokens / room * (1 - 1e-9))
        rest = tokens - full * room
        average = [None if ranks == 1 else rows + part * prompts / busiest / ranks for part in (room, rest)]
        still = 0.0 if alone else steps.seconds(rows, context)
        each = np.minimum(busiest, np.maximum(rest / mean, 1.0))
        last = steps.seconds(rows, context, rest, cached + full * room / 2, each, average[1]) - still
        filled = steps.seconds(rows, context, room, cached, max(room / mean, 1.0), average[0]) - still
        found: Array = last + full * filled
        return found

    busiest = (counts if ranks == 1 else np.ceil(counts / ranks - 1e-9))[:, np.newaxis]
    # The tokens of m prompts deviate from their mean as those of one, times the root of m.
    tokens = np.maximum(busiest * mean + np.sqrt(busiest) * (lengths - lengths.mean()), np.minimum(lengths, mean))
    spread = np.maximum(adding(tokens, counts[:, np.newaxis]), 1e-9)
    added = np.maximum.accumulate(spread.mean(axis=2), axis=1)
    own = spread[:, 0] - added[:, :1]
    if counts.size == 1:
        counts, added = np.append(counts, 2 * counts), np.concatenate([added, 2 * added], axis=1)
    if sizes.size == 1:
        sizes, added, own = np.append(sizes, sizes + 1), np.concatenate([added, added]), np.concatenate([own, own])
    length = Table(
        sizes, np.arange(float(max(own.shape[1], 2))), own if own.shape[1] > 1 else np.repeat(own, 2, axis=1)
    )
    single = spread[spread.shape[0] // 2, 0]
    unit = float((single**2).mean() / single.mean() ** 2)
    return Times(decode, Table(sizes, counts, added), length, most, generated, unit, alone, ranks)


def _lengths(load: Load) -> Array:
    """Quantiles of the prompt's length."""
    shares = (np.arange(LENGTHS) + 0.5) / LENGTHS
    if load.trace is not None:
        return np.asarray(np.quantile(np.array(load.trace.prompt, float), shares), float)
    if not load.prompts.varies:
        return np.array([load.prompts.mean])
    found: Array = np.maximum(load.prompts.inverse(shares), 1.0)
    return found
