"""The prompts that the steps of a rank carry, and how long these steps take.

The prompts that arrive while a step runs are in the next one. A step with k prompts of X tokens takes T(k, X) seconds,
so that their numbers are a Markov chain, k' ~ Poisson(L T(k, X)), with L prompts a second on the rank (a queue with
bulk service; Bailey 1954). Prompts that take several steps are one state for all of these. T is not linear in k:
prompts share the reading of weights and the host's time for a step, and steps of more tokens than CUDA graphs are
captured for take longer. Data-parallel ranks have their own numbers of prompts, and a step lasts as long as that of the
slowest rank. With F the distribution function of T on one of n ranks, taken as independent, a rank whose own step takes
t seconds has one of

    E[max(t, M)] = t + integral over x > t of 1 - F(x)^(n - 1) dx,      M the longest of the other ranks
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from roofline.serving.tables import Array

COUNTS = np.array([1, 2, 3, 4, 5, 6, 7, 8, 11, 14, 19, 24, 33, 42, 57, 72, 99, 126, 171, 216])
"""Numbers of prompts that are told apart; one between two of them counts as the nearest."""

EDGES = np.append((COUNTS[:-1] + COUNTS[1:]) // 2, 1e9)
"""The largest number that counts as each of COUNTS."""

DRAWS = 16
"""Samples of each number of prompts, and strata: parts of all prompts by length, each with one prompt of a sample."""

MATTERS, LEAST = 1e-3, 0.02
"""The part of steps with prompts from which a number is computed, and the least part of all steps that decodes."""


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
    """The probabilities (`chances`) that a rank's steps begin with no prompt and with each of COUNTS.

    `each` are mean seconds from one decode token to the next, `part` the part of a rank's steps that have prompts.
    """

    chances: Array
    each: float = 0.0
    part: float = 0.0

    @property
    def most(self) -> int:
        """The largest number of prompts of a step to be told apart: the one after those that matter beside the others.

        Few steps have prompts where each takes as long as a thousand decode steps, and all time may go into these few.
        """
        some = self.chances[1:].sum()
        known = np.flatnonzero(self.chances[1:] > MATTERS * some)
        return int(COUNTS[min(known[-1] + 1 if known.size else 0, COUNTS.size - 1)])

    def of(self, counts: int) -> Array:
        """The chances of none and of so many of COUNTS."""
        return np.append(self.chances[: counts + 1], np.zeros(max(counts + 1 - self.chances.size, 0)))

    def a_prompt(self, values: Array) -> float:
        """The mean of `values` per prompt, which are sums over the prompts of a step (counts, draws)."""
        chances = self.of(len(values))[1:]
        number = float(chances @ COUNTS[: len(values)])
        return float(chances @ values.mean(axis=1)) / number if number > 1e-6 else float(values[0].mean())

    def following(self, step: float, spent: Array, steps: Array, decoding: Array, rate: float, ranks: int) -> Batches:
        """One step of the chain: the batches of the steps that follow, on one of `ranks` with `rate` prompts a second.

        A step without prompts takes `step` seconds (0: the rank then waits for a prompt). For each number of prompts,
        (counts, draws), `spent` are seconds, `steps` how many steps they take, and `decoding` those that also decode.
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
        if not step:  # an idle rank begins with the next prompt alone
            found[:2] += np.array([-weights[0], weights[0]])
        total, decoded = float(weights @ lengths), float(weights @ np.append(1.0, decoding.ravel()))
        each_token = float(weights @ times) / max(decoded, LEAST * total)
        return Batches(found / found.sum(), each_token, 1 - float(chances[0]) / total)
