"""The steady state of sessions on a replica in closed form: hit rates of the tiers and the load, as a fixed point.

Cache. Of L turns a second each leaves S tokens of its own context in the cache. They are in use for R seconds, the
service of the turn, and then idle for G, the gap and the wait until the next turn is admitted; G is infinite after the
last turn, and before one whose prefix the cache does not know. In the g seconds after a turn the other turns touch

    X(g) = L E[S (R + min(G, g))]        (Little's law)

tokens on average, with the variance of as many independent contexts. Eviction begins at the end of a context, so that
of U tokens that a turn could reuse a cache of K tokens still has E[min(max((K - X(g)) / U, 0), 1)] U, g the turn's own
idle time. Without the variance it is the characteristic-time approximation of LRU: a hit if g < T, with X(T) = K
(Fagin 1977; Che, Tung and Wang 2002; Fricker, Robert and Roberts 2012). The size of a lower tier that takes what is
evicted is added to K; that of one that takes copies replaces K where it is larger.

Where a hit needs a snapshot of recurrent states or windows, of w tokens, each context touched has one more, and so has
each that a turn replaces. The blocks of a context are evicted before its snapshot, so that a turn finds all or nothing:
all with probability P(X(g) <= K - U - w). A pool of states alone is likewise, with numbers of states for tokens.

Load. The N sessions are a closed queueing network, solved by approximate mean value analysis (Bard 1979; Schweitzer
1979). Its stations are a queue of prompts, whose work is what is not in the cache; decoding, in steps that last by the
prompts in them (`roofline.serving.sessions.batches`); the links of the tiers; and the gaps. Where the contexts in use
would exceed the pool, or prompts the time there is, turns wait outside for the rest of their cycle.

Hits lower the work, less work shortens waits, and short waits keep contexts in the cache: the fixed point has up to two
stable branches. They are found from a cache that always hits and from one that never does. Between the numbers of
sessions at which they part and meet again, it is a matter of chance whether a deployment thrashes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from roofline.scenario.speculation import iterations
from roofline.serving.sessions.batches import COUNTS, Batches, Samples
from roofline.serving.sessions.deployed import Deployed
from roofline.serving.sessions.routing import SESSION
from roofline.serving.sessions.sample import Turns, turns_of
from roofline.serving.sessions.workload import Workload
from roofline.serving.steps import MAX_TOKENS
from roofline.serving.tables import Array
from roofline.specs.scheduler import PREFILL_FIRST
from roofline.timing.waits import largest

ROUNDS, DAMPING, SETTLE, CLOSE = 150, 0.4, 30, 0.15
"""The most rounds of the fixed point, the weight of each new value in the next, and how near two rounds must be.

After each SETTLE rounds the weight is a half, a third and so on of DAMPING: near a cliff of the hit rate waits and
hits would else go around a point for ever. A point is found when the relative change of a round, over the weight, is
below CLOSE over the number of rounds.
"""

GROWTH = (0.25, 0.5, 0.7, 0.85)
"""Parts of the sessions at which the branch of the warm cache is solved before all: each begins from the one before."""

GRID, GAPS = 32, 8
"""Times at which X is computed, and quantiles of the time from one use of a shared prefix to the next."""

DRAWN = 4096
"""Random draws that find the mean duration of the longest of several sub-agents."""

FULL = 0.97
"""The part of the pool that contexts in use fill on average when others begin to wait."""

BELOW, ABOVE = 6.0, 12.0
"""Standard deviations below and above the mean, beyond which a gamma-distributed number lies in less than a thousandth
of the cases."""

MANY = 10.0
"""The grid of X(g) ends at this factor times the longest idle time of the sample."""


class State(Struct, frozen=True):
    """A steady state: turns/s, the fraction of prompt tokens that hit in each tier, mean TTFT and TPOT in seconds.

    `pinned` is the part of the pool of KV cache that running requests use.
    """

    turns_per_second: float
    hits: tuple[float, ...]
    ttft: float
    tpot: float
    pinned: float


class Load:
    """The variables of the fixed point: at first where it is sought from, after `Theory.solve` where it was found.

    `hits` are fractions of known tokens (tiers, turns), `rate` turns/s, `number` the decoding sequences, `busy` the
    utilisation of the prompts' queue, `wait` and `outside` seconds in it and before admission, and `loads` and `queues`
    the utilisation of each link, and the wait for it.
    """

    def __init__(self, hits: float, tiers: int, turns: int) -> None:
        self.hits = np.zeros((tiers, turns))
        self.hits[0] = hits
        self.rate, self.number, self.busy, self.wait, self.outside = 0.0, 1.0, 0.0, 0.0, 0.0
        self.batches = Batches(np.ones(1))
        self.loads, self.queues = np.zeros(tiers - 1), np.zeros(tiers - 1)

    def of(self, turns: int) -> Load:
        """The same for a sample of other turns: each of them hits as its own turns do on average."""
        found = copy(self)
        found.hits = np.tile(self.hits.mean(axis=1, keepdims=True), turns)
        return found


class Spent(NamedTuple):
    """What prompts take of the steps of their rank.

    `work`: the seconds that the prompt of each turn adds to them; `steps`: their mean number for a prompt; `step`: the
    seconds of one without prompts; `beside`: those of the tokens that decode in the steps of a prompt.
    """

    work: Array
    steps: float
    step: float
    beside: float
    batches: Batches


class Branches(Struct, frozen=True):
    """The states that are reached from a full cache and from an empty one: equal where there is one alone."""

    warm: State
    cold: State

    @property
    def thrashes(self) -> bool:
        """Whether the two differ in throughput by more than a tenth: which one holds is then a matter of chance."""
        return self.warm.turns_per_second > 1.1 * self.cold.turns_per_second


def _longest(work: Workload) -> float:
    """The mean duration of the longest of several parallel sub-agents over the sum of all of theirs.

    An agent lasts for all its turns, each in proportion to its output; the sum of these is taken as gamma-distributed.
    """
    if work.branch_turns is None or work.branch_agents == 1:
        return 1.0
    random, size = np.random.default_rng(0), (DRAWN, work.branch_agents)
    turns, square = work.branch_turns.inverse(random.random(size)), (work.output.deviation / work.output.mean) ** 2
    times = np.maximum(np.asarray(turns, float), 1.0)
    times = random.gamma(times / square) * square if square > 0 else times
    return float(times.max(axis=1).sum() / times.sum())


class Theory:
    """The model of a deployment for any number of sessions; `turns` are a sample, by default of sessions without end.

    With a `tandem` the replica is a worker of its prefill, and decodes on a share of its others.
    """

    varied = 0.0  # a deviation of hit rates by the contexts that are drawn: a run without end sees all

    def __init__(self, deployed: Deployed, turns: Turns | None = None) -> None:
        replica, store, self.work, tandem = deployed.replica, deployed.store, deployed.workload, deployed.tandem
        self.replica, self.store, self.tandem, self.decode = replica, store, tandem, deployed.decode
        self.hashed = deployed.routing == SESSION
        self.turns = turns_of(self.work) if turns is None else turns
        apart = store.states is not None
        self.weights = [0.0 if apart else store.snapshot, *[store.snapshot] * len(store.tiers)]
        self.most = min(replica.sequences, store.states / store.slots if store.states is not None else math.inf)
        sizes, sum_ = [store.tokens], store.tokens
        for level in store.levels:
            if not level.refuses:  # one that never evicts is at last full of sessions that have ended
                sum_ = max(sum_, level.blocks) if level.through else sum_ + level.blocks
            sizes.append(sum_)
        self.sizes = tuple(sizes)
        finite = self.turns.idle[self.turns.idle > 0]
        top = MANY * float(finite.max(initial=1.0)) + 1e4
        self.grid = np.concatenate([[0.0], np.geomspace(1e-2, top, GRID)])
        scheduler = replica.scheduler
        self.alone = scheduler.order == PREFILL_FIRST
        self.chunk = float(min(replica.budget, scheduler.piece or MAX_TOKENS, MAX_TOKENS))
        self.budget, self.between, self.lag = float(min(replica.budget, MAX_TOKENS)), scheduler.pause, scheduler.lag
        self.samples = Samples(self.turns.prompt.size)
        # A session whose turns wait for its sub-agents has one turn at a time: its own, or of the longest of those.
        joined = self.work.waits(self.turns.lane < self.work.traces)
        self.serial = np.where(joined & (self.turns.main == 0), _longest(self.work), self.turns.main)
        self.front = scheduler.received(self.turns.prompt)
        accepted = self.decode.steps.accepted
        self.decodes = np.asarray(iterations(np.maximum(self.turns.output - 1, 0.0), accepted), float)
        self.sent = 0.0 if tandem is None else tandem.transfer(self.turns.prompt)
        self.main = float(self.turns.main.mean())

    def at(self, sessions: float) -> Branches:
        """The steady states of so many sessions."""
        cold = self.solve(sessions, self.load(0.0), ROUNDS)
        return Branches(self.warm(sessions), cold)

    def warm(self, sessions: float) -> State:
        """The steady state that a growing number of sessions reaches."""
        load = self.load(1.0)
        for part in GROWTH:
            self.solve(sessions * part, load, ROUNDS // 6)
        return self.solve(sessions, load, ROUNDS)

    def growing(self) -> Callable[[float], State]:
        """The steady states of numbers of sessions that grow, each from the one before."""
        load = self.load(1.0)
        return lambda sessions: self.solve(sessions, load, ROUNDS)

    def load(self, hits: float) -> Load:
        """The first load, of a cache that hits so often."""
        return Load(hits, len(self.sizes), self.turns.prompt.size)

    def solve(self, sessions: float, load: Load, rounds: int) -> State:
        """The fixed point that rounds from `load` lead to; `load` then has its variables."""
        turns = self.turns
        count, ranks = turns.prompt.size, self.replica.data
        hits, rate, number, busy = load.hits, load.rate, load.number, load.busy
        wait, outside = load.wait, load.outside
        loads, queues, close, states, found = load.loads, load.queues, CLOSE / rounds, list[Array](), False
        for round_ in range(rounds):
            before, slower = (rate, number, wait, outside), 1 + round_ // SETTLE
            weight = DAMPING / slower
            keep = self.known * hits
            base = keep.sum(axis=0)
            computed = np.maximum(turns.prompt - base, 1.0)
            spent = self._spent(computed, base, load, sessions)
            work, step, load.batches = spent.work, spent.step, spent.batches
            stalled, load_wait = np.zeros((2, count))
            for place, (row, tier) in enumerate(zip(keep[1:], self.store.tiers, strict=True)):
                times = row * self.store.read(tier) / tier.bandwidth + (row > 0) * tier.latency
                if tier.stalls:  # all sequences wait for the transfer, as they do for a prompt
                    work, stalled = work + times, stalled + times
                    continue
                loads[place] = min(rate * times.mean(), 0.999)
                queues[place] = _wait(rate, times, loads[place], sessions)
                load_wait += np.maximum(times - tier.overlap * work, 0.0) + queues[place] * (times > 0)
            served = (work + spent.beside - stalled) / ranks + stalled  # a rank's prompts are one of the others'
            each = step if self.tandem else load.batches.each / max(1 - rate * float(stalled.mean()), 1 - FULL)
            decode = self.decodes * each
            # A prompt waits for the end of the step in which it comes, for those that are scheduled ahead, and for the
            # prompts of other ranks; in its own steps other sequences decode.
            begin = each * (0.5 + self.lag) * min(number * (sessions - 1) / sessions, 1.0) if sessions > 1 else 0.0
            begin += (1 - 1 / ranks) * rate * float((work**2).mean()) / 2 / spent.steps
            begin = begin * (1 - load.batches.part) if self.alone else begin + step * spent.steps
            pauses = self.between * step * (np.floor(computed / self.chunk) + 0.5) + (0 if self.tandem else begin)
            inside = self.front + wait + pauses + load_wait + work + decode + self.sent
            cycle = (self.serial * (inside + turns.pause)).mean() / self.main
            # Prompts take no more than all time of their server, in the rounds before the last one too.
            asked, most = sessions / cycle / self.main, 0.98 / float(served.mean())
            new_rate, rate = min(asked, most), min(rate, most)
            use = load_wait + work + (0.0 if self.tandem else decode)
            own, groups = float(((turns.left + self.store.own) * use).mean()), self.work.groups
            once = self.work.shared * -groups * math.expm1(-new_rate * float(use.mean()) / groups)
            held = new_rate * own + once
            slots = new_rate * use.mean()
            room = min((FULL * self.store.tokens - once) / max(new_rate * own, 1e-9), self.most / slots)
            new_rate *= min(room, 1.0)
            capped = new_rate < 0.999 * sessions / cycle / self.main
            rate = rate + weight * (new_rate - rate) if rate else new_rate
            busy = rate * served.mean()
            queue = _wait(rate / ranks, work + spent.beside, min(busy, 0.999), sessions / ranks, wait)
            wait = wait + weight * (queue - wait)
            waits = max(sessions / (rate * self.main) - cycle, 0.0) if capped else 0.0
            outside += weight * (waits - outside)
            number = number + weight * (max(rate * decode.mean(), 1e-3) - number)
            load.rate, load.number = rate, number
            mean = float((self.front + outside + wait + pauses + load_wait + work + self.sent).mean())
            hits += weight * (self._hits(rate, use, self.front + outside + wait, float(computed.mean())) - hits)
            after, within = (rate, number, wait, outside), close / slower
            near = all(abs(one - two) <= within * abs(two) + 1e-9 for one, two in zip(before, after, strict=True))
            found = round_ > min(rounds // 6, 10) and near
            if found or round_ >= rounds // 2:
                tpot = float(decode.sum() / np.maximum(turns.output - 1, 1).sum())
                shares = (self.known * hits).mean(axis=1) / turns.prompt.mean()
                states.append(np.array([rate, mean, tpot, min(held / self.store.tokens, 1.0), *shares]))
            if found:
                break
        load.busy, load.wait, load.outside = busy, wait, outside
        # Where the rounds do not settle they go around the fixed point: it is taken as their mean.
        rate, ttft, tpot, pinned, *shares = (states[-1] if found else np.mean(states, axis=0)).tolist()
        return State(rate, tuple(shares), ttft, tpot, pinned)

    @cached_property
    def known(self) -> Array:
        """Tokens of each turn (1, turns) that an endless cache has, of its own context and the shared prefix."""
        reusable = self.turns.marked if self.store.snapshot else self.turns.reusable
        own = np.minimum(reusable + self.turns.shared, self.turns.prompt - 1)
        return np.maximum(own, 0.0)[np.newaxis] // self.store.block * self.store.block

    def _hits(self, rate: float, use: Array, outside: Array, computed: float) -> Array:
        """The fractions of known tokens that each tier has, by turn (tiers, turns).

        `use` and `outside` are seconds by turn: R, and the wait before it. `computed` are mean tokens without a hit.
        """
        turns, shared, groups = self.turns, float(self.work.shared), self.work.groups
        within = np.minimum(turns.gap + outside, self.grid[:, np.newaxis])  # (grid, turns)
        running = rate * float(use.mean())
        live = rate * np.where(np.isfinite(turns.gap), use + turns.gap + outside, use).mean()
        ends, time, count = np.isinf(turns.gap), use + within, use.size
        dead = rate * (within @ ends) / count
        away, own = turns.idle + outside, np.maximum(turns.reusable, 1.0)
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
            touched = rate * (time @ left) / count
            deviation = np.sqrt(
                np.maximum(rate * (time @ left**2) / count - touched**2 / np.maximum(live + dead, 1.0), 1.0)
            )
            # A session's own context is one of those that live; of those that ended it is none.
            own_part = (touched - rate * (within @ (left * ends)) / count) / max(live, 1.0)
            touched += weight * (snapshots - number - running) + self.store.own * running * (tier == 0)
            if self.store.left and not tier:
                touched += rate * self.store.left * (computed + float(turns.output.mean())) * self.grid
            if shared:
                touched += groups * (shared + weight) * -np.expm1(-rate * self.grid / groups)
            part = self._part(
                size, np.interp(away, self.grid, touched - own_part), np.interp(away, self.grid, deviation), own, weight
            )
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

    def _spent(self, computed: Array, base: Array, load: Load, sessions: float) -> Spent:
        """What the `computed` tokens of each turn, which follow its cached ones (`base`), take of its rank's steps."""
        steps, ranks, tandem = self.replica.steps, self.replica.data, self.tandem
        # A sequence sees the steady state of the network with one session less (arrival theorem).
        others = 1 - 1 / max(sessions, 1.0)
        number, rate = 1 + load.number * others, load.rate * others / ranks
        number /= ranks if tandem is None else self.decode.data * tandem.decodes / tandem.prefills
        batch = max(number, 1.0)
        if self.decode.data > 1 and self.hashed:  # all wait for the rank with the most
            batch += largest(self.decode.data) * math.sqrt(number * (1 - 1 / self.decode.data))
        context = float((self.turns.prompt + self.turns.output / 2).mean())
        step = float(self.decode.steps.seconds(batch, context, mean=self.decode.routed(number)))
        still, beside = (0.0, 0.0) if self.alone or tandem is not None else (step, batch)
        # Experts have the tokens of all ranks: beside one with a prompt the others have those that come in a step.
        around = 0.0 if tandem is not None else number * steps.decode_tokens
        around += (ranks - 1) / ranks * rate * load.batches.each * float(computed.mean())

        def added(chunk: Array, cached: Array, prompts: Array) -> Array:
            """Seconds that some chunks add to a step."""
            mean = None if ranks == 1 else around + chunk / ranks
            return np.maximum(steps.seconds(beside, context, chunk, cached, prompts, mean) - still, 1e-9)

        # The last pieces of all prompts and then the whole ones of those that have some, asked at once.
        full = np.floor(computed / self.chunk)
        rest, late, whole = np.maximum(computed - full * self.chunk, 1.0), base + full * self.chunk, full > 0
        pieces = full[whole]
        chunk = np.append(rest, np.full(pieces.size, self.chunk))
        alone = added(chunk, np.append(late, base[whole] + (pieces - 1) / 2 * self.chunk), np.ones(chunk.size))
        wholes = np.zeros(rest.size)
        wholes[whole] = pieces * alone[rest.size :]
        work = alone[: rest.size] + wholes
        # Prompts that come within a step share it.
        columns = np.stack([rest, rest * late, full, wholes, work])
        tokens, cached, before, longer, own = self.samples.sums(columns, min(sessions / ranks, load.batches.most))
        parts = np.maximum(np.ceil(tokens / self.budget), 1.0)
        prompts = COUNTS[: len(tokens), np.newaxis] / parts
        spent = np.concatenate([own[:1], (longer + parts * added(tokens / parts, cached / tokens, prompts))[1:]])
        work *= load.batches.a_prompt(spent) / float(work.mean())
        parts += before
        shared = still * load.batches.a_prompt(parts)
        apart = tandem is not None  # no step is without prompts
        between = np.full(spent.shape, 0.0 if apart else self.between)
        times, decoding = parts + between, between if self.alone and not apart else parts + between
        spent = spent + parts * still + between * step
        batches = load.batches.following(0.0 if apart else step, spent, times, decoding, rate, ranks)
        return Spent(work, float(full.mean()) + 1, step, shared, batches)


def _wait(rate: float, times: Array, busy: float, sessions: float, before: float | None = None) -> float:
    """The mean wait in seconds for a server of a closed network: Pollaczek-Khinchine, with one session less."""
    mean = float(times.mean())
    if mean <= 0:
        return 0.0
    residual = busy * float((times**2).mean()) / (2 * mean)
    one_less = max(sessions - 1, 0.0) / max(sessions, 1.0)
    if before is None:
        return one_less * residual / (1 - min(busy, 0.95))
    return one_less * (rate * before * mean + residual)


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
