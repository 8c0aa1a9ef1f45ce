"""The hit rates of a cache that evicts what was used longest ago, in closed form.

Of L turns a second each leaves S tokens of its own context in the cache. They are in use for R seconds, the service of
the turn, and then idle for G, the gap and the wait until the next turn is admitted; a turn that waits for sub-agents
has their service in its gap. G is infinite after the last turn, and before one whose prefix the cache does not know. In
the g seconds after a turn the other turns touch

    X(g) = L E[S (R + min(G, g))]        (Little's law)

tokens on average, with the variance of as many independent contexts. A session has one context of its own at a time, so
that the number of those is known, and of a known trace their size; of sub-agents there are as many as there happen to
be. Eviction begins at the end of a context, so that of U tokens that a turn could reuse a cache of K tokens still has
E[min(max((K - X(g)) / U, 0), 1)] U, g the turn's own idle time. Without the variance it is the characteristic-time
approximation of LRU: a hit if g < T, with X(T) = K (Fagin 1977; Che, Tung and Wang 2002; Fricker, Robert and Roberts
2012). The size of a lower tier that takes what is evicted is added to K; that of one that takes copies replaces K where
it is larger.

Where a hit needs a snapshot of recurrent states or windows, of w tokens, each context touched has one more, and so has
each that a turn replaces. The blocks of a context are evicted before its snapshot, so that a turn finds all or nothing:
all with probability P(X(g) <= K - U - w). A pool of states alone is likewise, with numbers of states for tokens.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np

from roofline.serving.sessions.sample import Turns
from roofline.serving.sessions.store import Store
from roofline.serving.sessions.workload import Workload
from roofline.serving.tables import Array

GRID, GAPS = 32, 8
"""Times at which X is computed, and quantiles of the time from one use of a shared prefix to the next."""

BELOW, ABOVE = 6.0, 12.0
"""Standard deviations below and above the mean, beyond which a gamma-distributed number lies in less than a thousandth
of the cases."""

MANY = 10.0
"""The grid of X(g) ends at this factor times the longest idle time of the sample."""


class LeastRecent:
    """The tiers of a cache under turns of a workload, of which `turns` are a sample.

    `sizes` are tokens of each tier with those above it.
    """

    def __init__(self, store: Store, work: Workload, turns: Turns) -> None:
        self.store, self.work, self.turns = store, work, turns
        self.weights = [0.0 if store.states is not None else store.snapshot, *[store.snapshot] * len(store.tiers)]
        sizes, sum_ = [store.tokens], store.tokens
        for level in store.levels:
            if not level.refuses:  # one that never evicts is at last full of sessions that have ended
                sum_ = max(sum_, level.blocks) if level.through else sum_ + level.blocks
            sizes.append(sum_)
        self.sizes = tuple(sizes)
        finite = turns.idle[turns.idle > 0]
        top = MANY * float(finite.max(initial=1.0)) + 1e4
        self.grid = np.concatenate([[0.0], np.geomspace(1e-2, top, GRID)])
        # The kinds of contexts: a session's own, by the trace where it is known, and those of sub-agents.
        kind = np.where(turns.main > 0, np.minimum(turns.lane, work.traces), -1.0)
        kinds, self.kind = np.unique(kind, return_inverse=True)
        self.shares, self.fixed = np.eye(kinds.size)[self.kind] / kind.size, kinds >= 0

    @cached_property
    def known(self) -> Array:
        """Tokens of each turn (1, turns) that an endless cache has, of its own context and the shared prefix."""
        reusable = self.turns.marked if self.store.snapshot else self.turns.reusable
        own = np.minimum(reusable + self.turns.shared, self.turns.prompt - 1)
        return np.maximum(own, 0.0)[np.newaxis] // self.store.block * self.store.block

    def hits(self, rate: float, use: Array, outside: Array, computed: float, agent: float) -> Array:
        """The fractions of known tokens that each tier has, by turn (tiers, turns).

        Of `rate` turns a second; `use` and `outside` are seconds by turn: R, and the wait before it; `agent` those of a
        sub-agent's turn. `computed` are mean tokens without a hit.
        """
        turns, shared, groups = self.turns, float(self.work.shared), self.work.groups
        gap = turns.gap + turns.agents * agent + outside
        within = np.minimum(gap, self.grid[:, np.newaxis])  # (grid, turns)
        running = rate * float(use.mean())
        living = np.where(np.isfinite(gap), use + gap, use)
        live = rate * living @ self.shares
        ends, time = ~np.isfinite(gap), use + within
        contexts = np.maximum(rate * (living + ends * within) @ self.shares, 1.0)
        away, own = turns.idle + turns.before * agent + outside, np.maximum(turns.reusable, 1.0)
        number = rate * time.mean(axis=1)  # of contexts touched, with a snapshot, beside those that turns replaced
        snapshots = number + rate * float((turns.reusable > 0).mean()) * self.grid + running
        if shared:
            idle_group = math.exp(-running / groups)  # none of its requests runs
            gaps = -np.log1p(-(np.arange(GAPS) + 0.5) / GAPS) * groups / max(rate, 1e-12)
            # Since its last use: the turn's own away, or another's gap, whichever is shorter.
            since = np.concatenate([np.where(turns.reusable > 0, away, math.inf), gaps])
            sooner = since[: own.size, np.newaxis] < gaps
        found = []
        for tier, (size, weight) in enumerate(zip(self.sizes, self.weights, strict=True)):
            if math.isinf(size):
                found.append(np.ones(own.size))
                continue
            left = turns.left + weight
            touched = rate * (time @ left) / left.size
            sure = ((rate * (left * time) @ self.shares) ** 2 / contexts) @ self.fixed
            deviation = np.sqrt(np.maximum(rate * (time @ left**2) / left.size - sure, 1.0))
            # A session's own context is one of those of its kind that live; of those that ended it is none.
            own_part = rate * (left * (time - ends * within)) @ self.shares / np.maximum(live, 1.0)
            touched += weight * (snapshots - number - running) + self.store.own * running * (tier == 0)
            if self.store.left and not tier:
                touched += rate * self.store.left * (computed + float(turns.output.mean())) * self.grid
            if shared:
                touched += groups * (shared + weight) * -np.expm1(-rate * self.grid / groups)
            others, level = touched[:, np.newaxis] - own_part, np.empty(own.size)
            for kind in range(self.fixed.size):
                rows = self.kind == kind
                level[rows] = np.interp(away[rows], self.grid, others[:, kind])
            part = self._part(size, level, np.interp(away, self.grid, deviation), own, weight)
            if shared:  # touched by the other sessions of its group, too
                level, around = np.interp(since, self.grid, touched), np.interp(since, self.grid, deviation)
                near = self._part(size, level, around, np.full(level.shape, shared), weight)
                near = np.where(sooner, near[: own.size, np.newaxis], near[own.size :]).mean(axis=1)
                near = 1 - idle_group * (1 - near)
                part = (part * turns.reusable + near * turns.shared) / np.maximum(turns.reusable + turns.shared, 1.0)
            if not tier and self.store.states is not None:
                others = np.interp(away, self.grid, snapshots)
                part = np.minimum(part, _clipped(self.store.states, others, np.sqrt(others), np.ones(own.size)))
            found.append(part)
        return np.diff(np.array(found), axis=0, prepend=0.0).clip(0.0, 1.0)

    def _part(self, size: float, mean: Array, deviation: Array, own: Array, weight: float) -> Array:
        """Of contexts of `own` tokens, the part that a tier still has; with snapshots all or nothing."""
        if self.store.snapshot:
            return _clipped(size - own - weight + 1, mean, deviation, np.ones(own.shape))
        return _clipped(size, mean, deviation, own)


def _clipped(room: Any, mean: Array, deviation: Array, size: Array) -> Array:
    """E[min(max((room - X) / size, 0), 1)] of gamma-distributed X, by E[(k - X)+] = k F(k) - E[X] F'(k).

    F' is the distribution that is weighted by X: gamma with a shape a of one more, F(x) - x^a e^-x / a! of unit scale.
    """
    from scipy.special import gammainc, gammaln  # here, since it takes a third of the time of all imports

    mean = np.maximum(mean, 1e-9)
    deviation = np.maximum(deviation, 1e-5 * mean)
    found = ((room - mean) / size).clip(0.0, 1.0)
    # Most turns find all or nothing whatever the others do: the tail above the mean falls as an exponential.
    near = (room - mean > -BELOW * deviation) & (room - size - mean < ABOVE * deviation)
    room, mean, deviation, size = (np.broadcast_to(each, near.shape)[near] for each in (room, mean, deviation, size))
    shape = mean**2 / deviation**2
    factorial = gammaln(shape + 1)

    def short(most: Array) -> Array:
        most = np.maximum(most, 1e-9 * mean)
        place = most * shape / mean
        weighted = np.exp(shape * np.log(place) - place - factorial)
        return np.asarray((most - mean) * gammainc(shape, place) + mean * weighted)

    found[near] = (short(room) - short(room - size)) / size
    return np.asarray(found)
