"""The steady state of sessions on a replica in closed form: hit rates of the tiers and the load, as a fixed point.

Cache. What turns leave is evicted by what others touch until it is used again (`roofline.serving.sessions.lru`).

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
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import astuple

from roofline.scenario.speculation import iterations
from roofline.serving.sessions.batches import COUNTS, Batches, Samples
from roofline.serving.sessions.deployed import Deployed
from roofline.serving.sessions.lru import LeastRecent
from roofline.serving.sessions.routing import SESSION
from roofline.serving.sessions.sample import Turns, turns_of
from roofline.serving.sessions.workload import Workload, waits
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

DRAWN = 4096
"""Random draws that find the mean duration of the longest of several sub-agents."""

FULL = 0.97
"""The part of the pool that contexts in use fill on average when others begin to wait."""

BUSIEST = 0.98
"""The largest part of all time in which prompts are computed."""


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
    the utilisation of each link, and the wait for it. `slower` is given: a factor on the time of all steps.
    """

    def __init__(self, hits: float, tiers: int, turns: int, slower: float) -> None:
        self.slower = slower
        self.hits = np.zeros((tiers, turns))
        self.hits[0] = hits
        self.rate, self.number, self.busy, self.wait, self.outside = 0.0, 1.0, 0.0, 0.0, 0.0
        self.batches = Batches(np.ones(1))
        self.loads, self.queues = np.zeros(tiers - 1), np.zeros(tiers - 1)

    @property
    def variables(self) -> tuple[float, ...]:
        """What settles last."""
        return self.rate, self.number, self.wait, self.outside

    def near(self, before: tuple[float, ...], within: float) -> bool:
        """Whether no variable differs by more than a part `within` from what it was `before`."""
        pairs = zip(before, self.variables, strict=True)
        return all(abs(one - two) <= within * abs(two) + 1e-9 for one, two in pairs)

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
        self.most = min(replica.sequences, store.states / store.slots if store.states is not None else math.inf)
        self.cache = LeastRecent(store, self.work, self.turns)
        self.sizes = self.cache.sizes
        scheduler = replica.scheduler
        self.alone = scheduler.order == PREFILL_FIRST
        self.chunk = float(min(replica.budget, scheduler.piece or MAX_TOKENS, MAX_TOKENS))
        self.budget, self.between, self.lag = float(min(replica.budget, MAX_TOKENS)), scheduler.pause, scheduler.lag
        self.samples = Samples(self.turns.prompt.size)
        # A session whose turns wait for its sub-agents has one turn at a time: its own, or of the longest of those.
        joined = waits(self.work, self.turns.lane < self.work.traces)
        self.serial = np.where(joined & (self.turns.main == 0), _longest(self.work), self.turns.main)
        self.front = scheduler.received(self.turns.prompt)
        accepted = self.decode.steps.accepted
        self.decodes = np.asarray(iterations(np.maximum(self.turns.output - 1, 0.0), accepted), float)
        self.sent = 0.0 if tandem is None else tandem.transfer(self.turns.prompt)
        self.main = float(self.turns.main.mean())
        self.agents = (self.turns.main == 0) / max(float((self.turns.main == 0).sum()), 1.0)

    def at(self, sessions: float) -> Branches:
        """The steady states of so many sessions."""
        cold = self.solve(sessions, self.load(0.0), ROUNDS)
        return Branches(self.warm(sessions), cold)

    def warm(self, sessions: float, slower: float = 1.0) -> State:
        """The steady state that a growing number of sessions reaches, with steps that take `slower` times as long."""
        load = self.load(1.0, slower)
        for part in GROWTH:
            self.solve(sessions * part, load, ROUNDS // 6)
        return self.solve(sessions, load, ROUNDS)

    def growing(self) -> Callable[[float], State]:
        """The steady states of numbers of sessions that grow, each from the one before."""
        load = self.load(1.0)
        return lambda sessions: self.solve(sessions, load, ROUNDS)

    def load(self, hits: float, slower: float = 1.0) -> Load:
        """The first load, of a cache that hits so often."""
        return Load(hits, len(self.sizes), self.turns.prompt.size, slower)

    def solve(self, sessions: float, load: Load, rounds: int) -> State:
        """The fixed point that rounds from `load` lead to; `load` then has its variables."""
        states = list[State]()
        for round_ in range(rounds):
            before, slower = load.variables, 1 + round_ // SETTLE
            state = self._round(sessions, load, DAMPING / slower)
            if round_ > min(rounds // 6, 10) and load.near(before, CLOSE / rounds / slower):
                return state
            if round_ >= rounds // 2:
                states.append(state)
        # Where the rounds do not settle they go around the fixed point: it is taken as their mean.
        columns = zip(*map(astuple, states), strict=True)
        rate, hits, ttft, tpot, pinned = (np.mean(column, axis=0).tolist() for column in columns)
        return State(rate, tuple(hits), ttft, tpot, pinned)

    def _round(self, sessions: float, load: Load, weight: float) -> State:
        """What turns do under a load, and the load that follows from it, which has a weight in the next one."""
        turns, ranks = self.turns, self.replica.data
        keep = self.cache.known * load.hits
        base = keep.sum(axis=0)
        computed = np.maximum(turns.prompt - base, 1.0)
        spent = self._spent(computed, base, load, sessions)
        load.batches = spent.batches
        stalled, loading = self._loaded(keep, spent.work, load, sessions)
        work = spent.work + stalled
        busy = (spent.work + spent.beside) / ranks + stalled  # a rank's prompts are one of the others'
        # All time of the prompts' server is the most that they take, in the rounds before the last one too.
        most = BUSIEST / float(busy.mean())
        load.rate = min(load.rate, most)
        each = load.batches.each / max(1 - load.rate * float(stalled.mean()), 1 - FULL)
        each = each if self.tandem is None else spent.step
        decode, pauses = self.decodes * each, self._pauses(work, computed, each, spent, load, sessions)
        inside = self.front + load.wait + pauses + loading + work + decode + self.sent
        agent = float((inside + load.outside) @ self.agents)
        pause = np.maximum(turns.pause - turns.agents * agent, 0.0)
        cycle = float((self.serial * (inside + pause)).mean()) / self.main
        asked = sessions / cycle / self.main
        use = loading + work + (0.0 if self.tandem else decode)
        admitted, held = self._admitted(min(asked, most), use)
        load.rate += (weight if load.rate else 1.0) * (admitted - load.rate)
        load.busy = load.rate * float(busy.mean())
        queue = _wait(load.rate / ranks, work + spent.beside, min(load.busy, 0.999), sessions / ranks, load.wait)
        load.wait += weight * (queue - load.wait)
        capped = admitted < 0.999 * asked
        outside = max(sessions / (load.rate * self.main) - cycle, 0.0) if capped else 0.0
        load.outside += weight * (outside - load.outside)
        load.number += weight * (max(load.rate * float(decode.mean()), 1e-3) - load.number)
        away = self.front + load.outside + load.wait
        load.hits += weight * (self.cache.hits(load.rate, use, away, float(computed.mean()), agent) - load.hits)
        shares = (self.cache.known * load.hits).mean(axis=1) / turns.prompt.mean()
        ttft = float((away + pauses + loading + work + self.sent).mean())
        tpot = float(decode.sum() / np.maximum(turns.output - 1, 1).sum())
        return State(load.rate, tuple(shares.tolist()), ttft, tpot, held)

    def _loaded(self, keep: Array, work: Array, load: Load, sessions: float) -> tuple[Array, Array]:
        """Seconds by turn that all wait for what lower tiers have (`keep`), and that the turn alone waits for it."""
        stalled, loading = np.zeros((2, work.size))
        for place, (row, tier) in enumerate(zip(keep[1:], self.store.tiers, strict=True)):
            times = row * self.store.read(tier) / tier.bandwidth + (row > 0) * tier.latency
            if tier.stalls:
                stalled = stalled + times
                continue
            load.loads[place] = min(load.rate * times.mean(), 0.999)
            load.queues[place] = _wait(load.rate, times, load.loads[place], sessions)
            loading += np.maximum(times - tier.overlap * (work + stalled), 0.0) + load.queues[place] * (times > 0)
        return stalled, loading

    def _pauses(self, work: Array, computed: Array, each: float, spent: Spent, load: Load, sessions: float) -> Array:
        """Seconds by turn from the queue of prompts to the first step of its own, and between its own steps."""
        pauses = self.between * spent.step * (np.floor(computed / self.chunk) + 0.5)
        if self.tandem is not None:
            return np.asarray(pauses)
        # A prompt waits for the end of the step in which it comes, for those that are scheduled ahead, and for the
        # prompts of other ranks; in its own steps other sequences decode.
        others = min(load.number * (1 - 1 / sessions), 1.0) if sessions > 1 else 0.0
        begin = each * (0.5 + self.lag) * others
        begin += (1 - 1 / self.replica.data) * load.rate * float((work**2).mean()) / 2 / spent.steps
        begin = begin * (1 - load.batches.part) if self.alone else begin + spent.step * spent.steps
        return np.asarray(pauses + begin)

    def _admitted(self, rate: float, use: Array) -> tuple[float, float]:
        """Of a rate of turns what the pool has room for, and the part of the pool that these hold."""
        own, seconds = float(((self.turns.left + self.store.own) * use).mean()), float(use.mean())
        shared = self.work.shared * -self.work.groups * math.expm1(-rate * seconds / self.work.groups)
        room = min((FULL * self.store.tokens - shared) / max(rate * own, 1e-9), self.most / (rate * seconds), 1.0)
        return rate * room, min((rate * room * own + shared) / self.store.tokens, 1.0)

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
        step = load.slower * float(self.decode.steps.seconds(batch, context, mean=self.decode.routed(number)))
        still, beside = (0.0, 0.0) if self.alone or tandem is not None else (step, batch)
        # Experts have the tokens of all ranks: beside one with a prompt the others have those that come in a step.
        around = 0.0 if tandem is not None else number * steps.decode_tokens
        around += (ranks - 1) / ranks * rate * load.batches.each * float(computed.mean())

        def added(chunk: Array, cached: Array, prompts: Array) -> Array:
            """Seconds that some chunks add to a step."""
            mean = None if ranks == 1 else around + chunk / ranks
            taken = load.slower * steps.seconds(beside, context, chunk, cached, prompts, mean)
            return np.maximum(taken - still, 1e-9)

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
