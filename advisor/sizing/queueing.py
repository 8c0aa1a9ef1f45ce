"""A replica under load: how long requests wait, and how many run together, in steady state.

Requests come at random (Poisson) with rate L. A replica gives each a prefill of p seconds, one after the other and
before any decode step, and G decode steps; n sequences that decode together take s(n) a step, at most c of them.
Prefill takes the share r = L E[p] of the time and decode has the rest, so that with n sequences requests end with

    mu(n) = n (1 - r) / (G s(n)) for n <= c,        mu(n) = c / (G s(c) + c E[p]) beyond,

where each that ends lets one in, prefill and all; the latter is the rate with which a replica just keeps up. That is a
birth-death chain, P(n) ~ prod L / mu(i) (Kleinrock, Queueing Systems I, 1975, section 3.2). Sequences share the device
equally, and so it holds for any distribution of lengths while none waits for a slot (Cohen 1979, generalised processor
sharing). By Little's law

    TPOT = E[min(n, c)] / (L G)             time of a decode step, with the prefills between
    slot wait = E[(n - c)+] / L

A prompt waits for prefills before it and for the step that runs: non-preemptive priority (Cobham 1954), which without
decoding is the formula of Pollaczek and Khinchine,

    wait = (L E[p^2] + (1 - r) sum_n P(n) s(n)) / 2 / (1 - r),         TTFT = p + wait + slot wait

Quantiles q: a sequence meets at most n_q others. With z normal, and the busy periods of prefill that fall in between
steps (Conway, Maxwell and Miller, Theory of Scheduling, 1967, chapter 8: their mean square is E[p^2] / (1 - r)^3),

    TPOT_q = s(n_q) / (1 - r) + z (L s(n_q) E[p^2] E[1/G] / (1 - r)^3)^(1/2)
    TTFT_q = p_q + step_q + queue_q + slot_q

where the rest of a running step is anything up to s(n_q), and the other waits have exponential tails,
P(wait > t) = share exp(-t / mean): the share r waits for prefills, E[p^2] / (2 E[p] (1 - r)) on average, and P(n >= c)
for a slot, 1 / (mu(c + 1) - L). Adding quantiles is on the safe side.

Against a simulation of every step (tests/advisor/test_sizing_queue.py) up to 0.8 of the rate that a replica just keeps
up with, the mean TPOT is within 16%, the mean TTFT within 15%, and the quantiles from 25% below to 40% above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from statistics import NormalDist
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from roofline.core.search import narrowed

Array = NDArray[np.float64]
NORMAL = NormalDist()


class Prefill(Struct, frozen=True):
    """Seconds that prompts take: mean, mean square, and what the promised share does not exceed (or the mean)."""

    mean: float
    second: float
    quantile: float


class Replica(Struct, frozen=True, dict=True):
    """What a replica is to its queue: prefill, a decode step with 1 to N sequences, and the steps of a request.

    `steps` is their mean, `inverse` the mean of one over them.
    """

    prefill: Prefill
    step: Array
    steps: float
    inverse: float

    @cached_property
    def slots(self) -> Array:
        """1 to N."""
        return np.arange(1.0, self.step.size + 1)

    @cached_property
    def ceilings(self) -> Array:
        """Requests a second up to which a replica with 1 to N slots is stable: n / (G s(n) + n p), no step wasted."""
        return np.maximum.accumulate(self.slots / (self.steps * self.step + self.slots * self.prefill.mean))

    @cached_property
    def ending(self) -> Array:
        """Requests a second that end with 1 to N sequences were there no prefills, mu(n) / (1 - r).

        A batch that is slower than a smaller one is not run: throughput never falls.
        """
        return np.maximum.accumulate(self.slots / (self.steps * self.step))

    @cached_property
    def run_step(self) -> Array:
        """Seconds of a step of the batches that are run."""
        return self.slots / (self.steps * self.ending)

    @cached_property
    def logs(self) -> Array:
        """Sums of the logarithms of `ending` over the first 0 to N."""
        return np.concatenate([[0.0], np.cumsum(np.log(self.ending))])


class Load(Struct, frozen=True):
    """A replica at a rate, for 1 to N slots: seconds, and sequences that decode on average; inf where it is unstable.

    `ttft` and `tpot` are means or quantiles, as asked for.
    """

    ttft: Array
    tpot: Array
    batch: Array


def load(replica: Replica, rate: float, quantile: float | None = None) -> Load:
    """What a replica's requests meet at `rate` a second, for each number of slots up to that of `replica.step`."""
    slots, steps, prefill, step = replica.slots, replica.steps, replica.prefill, replica.run_step
    busy = rate * prefill.mean
    ceilings = replica.ceilings
    stable = rate < ceilings
    if not stable.any():
        return Load(*(np.full(step.size, np.inf) for _ in range(3)))
    logs = np.arange(step.size + 1) * math.log(rate / (1 - busy)) - replica.logs
    weights = np.exp(logs - logs.max())
    ratio = np.where(stable, rate / ceilings, 0.0)
    tail = weights[1:] * ratio / (1 - ratio)
    total = np.cumsum(weights)[1:] + tail
    unsaturated = np.cumsum(weights[1:] * slots)
    running = unsaturated + slots * tail
    with np.errstate(divide="ignore", invalid="ignore"):
        batch = running / total
        if quantile is None:
            stepping = (np.cumsum(weights[1:] * step) + step * tail) / total
            wait = (rate * prefill.second + (1 - busy) * stepping) / 2 / (1 - busy)
            ttft = prefill.quantile + wait + tail / (1 - ratio) / total / rate
            tpot = batch / (rate * steps)
        else:
            inside = np.searchsorted(unsaturated, quantile * running)
            slow = step[np.minimum(inside, np.arange(step.size))]
            queued = _tail(busy, prefill.second / (2 * prefill.mean * (1 - busy)), quantile)
            full = (weights[1:] + tail) / total
            decoding = 1 - weights[0] / total
            begun = slow * np.maximum(1 - (1 - quantile) / decoding, 0.0)
            ttft = prefill.quantile + begun + queued + _tail(full, 1 / (ceilings - rate), quantile)
            spread = np.sqrt(rate * slow * prefill.second * replica.inverse / (1 - busy) ** 3)
            tpot = slow / (1 - busy) + NORMAL.inv_cdf(quantile) * spread
    stable &= total > 0
    return Load(*(np.where(stable, value, np.inf) for value in (ttft, tpot, batch)))


def _tail(share: Any, mean: Any, quantile: float) -> Any:
    """The quantile of a wait that a share has, exponential with that mean: P(wait > t) = share exp(-t / mean)."""
    return mean * np.log(np.maximum(share / (1 - quantile), 1.0))


LEAST = 1e-3
"""The rate that a replica must carry at least for its targets to count as met, of the rate at which it is stable."""
CLOSE = 1e-3
TRIED = 4
"""Numbers of replicas that are tried before the largest rate of one is looked for."""


@dataclass(frozen=True, eq=False)
class Promise:
    """What a replica promises: its targets (seconds, infinite where there is none) for a share of the requests.

    Times rise with the rate. Rates that it may carry are a series with equal ratios, up to the largest at which it is
    stable, so that looser targets never lead to less.
    """

    replica: Replica
    ttft: float
    tpot: float
    quantile: float | None = None
    _known: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def largest(self) -> float:
        """The requests a second up to which some number of slots meets both targets; 0 where none does."""
        if (below := self._missing(0)) > 0:
            return 0.0
        number = LAST
        if (above := self._missing(LAST)) > 0:
            number = math.floor(
                narrowed(lambda place: self._missing(math.floor(place)), 0, LAST, below, above, absolute=1)[0]
            )
        return self._rate(number)

    def fewest(self, rate: float) -> int:
        """The fewest replicas that meet both targets when they share a rate; 0 where no number does."""
        least = replicas_for(rate, self._rate(LAST))
        for count in range(least, least + TRIED):
            number = math.ceil(LAST + math.log(rate / count * (1 - 1e-12) / self._rate(LAST)) / CLOSE)
            if self._missing(min(max(number, 0), LAST)) <= 0:
                return count
        largest = self.largest()
        return replicas_for(rate, largest) if largest else 0

    def slots(self, found: Load) -> int:
        """The most slots with which both targets are met at a load; 0 where none does."""
        met = np.flatnonzero((found.ttft <= self.ttft) & (found.tpot <= self.tpot))
        return int(met[-1]) + 1 if met.size else 0

    def _rate(self, number: int) -> float:
        """The rate of the series with this number, 0 to `LAST`."""
        return float(self.replica.ceilings[-1]) * math.exp(-CLOSE * (LAST - number))

    def _missing(self, number: int) -> float:
        """What is missing to the nearer target, as a share of it, at the best number of slots; at most 1.

        Waits grow with one over what is left to the rate at which the replica is stable: one over them falls evenly.
        """
        if number not in self._known:
            found = load(self.replica, self._rate(number), self.quantile)
            stable = np.isfinite(found.ttft)
            met = np.minimum(self.ttft / found.ttft[stable], self.tpot / found.tpot[stable])
            self._known[number] = 1 - float(np.max(met, initial=0.0))
        return self._known[number]


LAST = math.ceil(-math.log(LEAST) / CLOSE)
"""The number of the last rate of the series."""


def replicas_for(rate: float, most: float) -> int:
    """The fewest replicas that share a rate of which one carries `most` (both in requests a second)."""
    return max(1, math.ceil(rate / most * (1 - 1e-12))) if most > 0 else 10**12
