"""A replica under load: waiting times and batch of requests in steady state.

Requests arrive as a Poisson process with rate L. Each takes a prefill of p seconds, one at a time and ahead of decode
steps, and G decode steps; n <= c sequences that decode together take s(n) per step. Prefill takes the share r = L E[p]
of the time and decode the rest, so with n sequences requests complete at rate

    mu(n) = n (1 - r) / (G s(n)) for n <= c,        mu(n) = c / (G s(c) + c E[p]) beyond,

where each completion admits another request with its prefill; the latter is the largest stable rate. This is a
birth-death chain, P(n) ~ prod L / mu(i) (Kleinrock, Queueing Systems I, 1975, section 3.2). Sequences share the device
equally, so it holds for any distribution of lengths while none waits for a slot (Cohen 1979, generalised processor
sharing). By Little's law

    TPOT = E[min(n, c)] / (L G)             a decode step with the prefills between steps
    slot wait = E[(n - c)+] / L

A prompt waits for earlier prefills and the running step: non-preemptive priority (Cobham 1954), which without decode
is the Pollaczek-Khinchine formula,

    wait = (L E[p^2] + (1 - r) sum_n P(n) s(n)) / 2 / (1 - r),         TTFT = p + wait + slot wait

For quantile q, a sequence runs with at most n_q others. With z the normal quantile, and busy periods of prefill between
steps (Conway, Maxwell and Miller, Theory of Scheduling, 1967, chapter 8: their mean square is E[p^2] / (1 - r)^3),

    TPOT_q = s(n_q) / (1 - r) + z (L s(n_q) E[p^2] E[1/G] / (1 - r)^3)^(1/2)
    TTFT_q = p_q + step_q + queue_q + slot_q

where the remainder of a running step is uniform up to s(n_q), and the other waits have exponential tails,
P(wait > t) = share exp(-t / mean): the share r waits for prefills, E[p^2] / (2 E[p] (1 - r)) on average, and P(n >= c)
for a slot, 1 / (mu(c + 1) - L). Adding quantiles is conservative.

Against a step-by-step simulation (tests/advisor/test_sizing_queue.py) up to 0.8 of the largest stable rate, mean TPOT
is within 16%, mean TTFT within 15%, and the quantiles from 25% below to 40% above.
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

from roofline.core.search import bracket_root

Array = NDArray[np.float64]
NORMAL = NormalDist()


class Prefill(Struct, frozen=True):
    """Prefill seconds: mean, mean square, and the target quantile (or the mean)."""

    mean: float
    second: float
    quantile: float


class Replica(Struct, frozen=True, dict=True):
    """Service times of a replica: prefill, decode steps with 1 to N sequences, and steps per request.

    `steps` is the mean number of steps, `inverse` the mean of its reciprocal.
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
        """Largest stable requests/s with 1 to N slots: n / (G s(n) + n p)."""
        return np.maximum.accumulate(self.slots / (self.steps * self.step + self.slots * self.prefill.mean))

    @cached_property
    def completion_rate(self) -> Array:
        """Completions/s with 1 to N sequences without prefills, mu(n) / (1 - r).

        A batch with less throughput than a smaller one is not run.
        """
        return np.maximum.accumulate(self.slots / (self.steps * self.step))

    @cached_property
    def run_step(self) -> Array:
        """Step seconds of the batches that are run."""
        return self.slots / (self.steps * self.completion_rate)

    @cached_property
    def logs(self) -> Array:
        """Cumulative sums of log `completion_rate` over the first 0 to N."""
        return np.concatenate([[0.0], np.cumsum(np.log(self.completion_rate))])


class Load(Struct, frozen=True):
    """Times (s) and mean batch of a replica at a rate, for 1 to N slots; inf where unstable.

    `ttft` and `tpot` are means or quantiles.
    """

    ttft: Array
    tpot: Array
    batch: Array


def load(replica: Replica, rate: float, quantile: float | None = None) -> Load:
    """The load of a replica at `rate` requests/s, for each number of slots."""
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
    """The quantile of a wait with exponential tail, P(wait > t) = share exp(-t / mean)."""
    return mean * np.log(np.maximum(share / (1 - quantile), 1.0))


MIN_RATE = 1e-3
"""Least rate at which targets must hold to count as met, over the largest stable rate."""
RATE_STEP = 1e-3
"""Step of the series of rates, as a logarithm."""
TRIED_REPLICAS = 4
"""Numbers of replicas tried before the largest rate of one is searched for."""


@dataclass(frozen=True, eq=False)
class Targets:
    """Latency targets of a replica (s, infinite for none) at a quantile of the requests.

    Times rise with the rate. Rates are a geometric series up to the largest stable one, so that looser targets never
    yield a lower rate.
    """

    replica: Replica
    ttft: float
    tpot: float
    quantile: float | None = None
    _known: dict[int, float] = field(default_factory=dict, init=False, repr=False)

    def max_rate(self) -> float:
        """The largest requests/s at which some number of slots meets both targets; 0 if none does."""
        if (below := self._shortfall(0)) > 0:
            return 0.0
        number = LAST_RATE
        if (above := self._shortfall(LAST_RATE)) > 0:
            number = math.floor(
                bracket_root(lambda place: self._shortfall(math.floor(place)), 0, LAST_RATE, below, above, absolute=1)[
                    0
                ]
            )
        return self._rate(number)

    def min_replicas(self, rate: float) -> int:
        """The fewest replicas that meet both targets when they share a rate; 0 if no number does."""
        least = replicas_for(rate, self._rate(LAST_RATE))
        for count in range(least, least + TRIED_REPLICAS):
            number = math.ceil(LAST_RATE + math.log(rate / count * (1 - 1e-12) / self._rate(LAST_RATE)) / RATE_STEP)
            if self._shortfall(min(max(number, 0), LAST_RATE)) <= 0:
                return count
        largest = self.max_rate()
        return replicas_for(rate, largest) if largest else 0

    def slots(self, found: Load) -> int:
        """The most slots with which a load meets both targets; 0 if none does."""
        met = np.flatnonzero((found.ttft <= self.ttft) & (found.tpot <= self.tpot))
        return int(met[-1]) + 1 if met.size else 0

    def _rate(self, number: int) -> float:
        """The rate with this index in the series, 0 to `LAST_RATE`."""
        return float(self.replica.ceilings[-1]) * math.exp(-RATE_STEP * (LAST_RATE - number))

    def _shortfall(self, number: int) -> float:
        """The shortfall from the targets at the best number of slots: 1 - the smaller target over its time.

        Waits grow with 1 / (stable rate - rate), so their reciprocal is nearly linear in the rate.
        """
        if number not in self._known:
            found = load(self.replica, self._rate(number), self.quantile)
            stable = np.isfinite(found.ttft)
            met = np.minimum(self.ttft / found.ttft[stable], self.tpot / found.tpot[stable])
            self._known[number] = 1 - float(np.max(met, initial=0.0))
        return self._known[number]


LAST_RATE = math.ceil(-math.log(MIN_RATE) / RATE_STEP)
"""The index of the last rate of the series."""


def replicas_for(rate: float, most: float) -> int:
    """The fewest replicas that share a rate if one sustains `most` (both requests/s)."""
    return max(1, math.ceil(rate / most * (1 - 1e-12))) if most > 0 else 10**12
