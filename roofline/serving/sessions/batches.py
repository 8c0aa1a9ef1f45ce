"""The prompts that the steps of a rank carry, and how long these steps take.

What comes while a step runs is in the next one. With k prompts of X tokens a step takes T(k, X), and the numbers are a
Markov chain, k' ~ Poisson(L T(k, X)), L the prompts of the rank a second; prompts that take several steps are one state
with all of these. T is no linear function of k: prompts share the reading of weights and what the host takes for a
step, and beyond the tokens that CUDA graphs are captured for a step is another one. Data-parallel ranks have their own
numbers, and a step is as long as that of the rank that takes longest: with F the distribution of T over the steps of
one of n, as if they were independent of each other,

    E[max(t, M)] = t + integral over x > t of 1 - F(x)^(n - 1)
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from roofline.serving.tables import Array

COUNTS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 11, 14, 19, 24, 33, 42, 57, 72, 99, 126, 171, 216])
"""Numbers of prompts that are told apart; those between, an even number, count as the nearest."""

EDGES = np.append((COUNTS[:-1] + COUNTS[1:]) // 2, 1e9)
"""The largest number that counts as each of them."""

DRAWS = 16
"""Samples of the prompts of each number: one of each of so many parts of all, by length."""

MATTERS, LEAST = 1e-3, 0.02
"""The least chance of a number that matters, and the least part of steps that decode, where prompts go first."""


class Samples:
    """Samples of 1, 2, ... of so many turns, evenly by their first column."""

    def __init__(self, turns: int) -> None:
        random, strata = np.random.default_rng(0), min(DRAWS, turns)
        self.first = np.arange(strata) * turns // strata
        self.sizes = np.diff(self.first, append=turns)
        self.places = np.array([random.permutation(strata) for _ in range(COUNTS[-1])])

    def sums(self, columns: Array, most: float) -> Array:
        """Sums of columns (columns, turns) over each of COUNTS up to `most` (columns, counts, draws)."""
        counts = COUNTS[: max(int(np.searchsorted(COUNTS, most, "right")), 1)]
        strata = np.add.reduceat(columns[:, np.argsort(columns[0])], self.first, axis=1) / self.sizes
        return np.asarray(np.cumsum(strata[:, self.places[: counts[-1]]], axis=1)[:, counts - 1])


class Batches(Struct, frozen=True):
    """The chances that a rank's steps begin with no prompt and with each of COUNTS.

    `each` are mean seconds from one decode token to the next, `part` the part of a rank's steps that have prompts.
    """

    chances: Array
    each: float = 0.0
    part: float = 0.0

    @property
    def most(self) -> int:
        """The largest number of prompts of a step to be told apart: the one after those that matter."""
        return int(COUNTS[min(np.flatnonzero(self.chances > MATTERS)[-1], COUNTS.size - 1)])

    def of(self, counts: int) -> Array:
        """The chances of none and of so many of COUNTS."""
        return np.append(self.chances[: counts + 1], np.zeros(max(counts + 1 - self.chances.size, 0)))

    def a_prompt(self, values: Array) -> float:
        """What steps have for each prompt in them, of what those of each number have in all (counts, draws)."""
        chances = self.of(len(values))[1:]
        number = float(chances @ COUNTS[: len(values)])
        return float(chances @ values.mean(axis=1)) / number if number > 1e-6 else float(values[0].mean())

    def following(self, step: float, spent: Array, steps: Array, decoding: Array, rate: float, ranks: int) -> Batches:
        """Those that follow on one of so many ranks, at its rate of prompts.

        A step without prompts takes `step` seconds (0: there is none). `spent` are seconds, `steps` the steps and
        `decoding` those that decode, of each number of prompts (counts, draws).
        """
        from scipy.special import pdtr

        draws, chances = spent.shape[1], self.of(len(spent))
        lengths, times = np.append(1.0, steps.ravel()), np.append(step, spent.ravel())
        weights = np.append(chances[0], np.repeat(chances[1:] / draws, draws))
        if ranks > 1:
            order = np.argsort(times / lengths)
            each, passed = (times / lengths)[order], np.cumsum((weights * lengths)[order])
            longer = (1 - (passed / passed[-1])[:-1] ** (ranks - 1)) * np.diff(each)
            times[order] += lengths[order] * np.append(np.cumsum(longer[::-1])[::-1], 0.0)
        below = pdtr(np.append(0.0, EDGES[: len(spent) - 1])[:, np.newaxis], rate * times)
        found = np.diff(below, axis=0, prepend=0.0, append=1.0) @ weights
        if not step:  # the next one comes alone
            found[:2] += np.array([-weights[0], weights[0]])
        total, decoded = float(weights @ lengths), float(weights @ np.append(1.0, decoding.ravel()))
        each_token = float(weights @ times) / max(decoded, LEAST * total)
        return Batches(found / found.sum(), each_token, 1 - float(chances[0]) / total)
