"""The steady state of a replica under a load: for arrays of rates or concurrencies.

Symbols, with times in seconds: L requests/s arrive, n sequences decode, w tokens of prompts wait; a request takes G
decode steps; a step of n sequences and w tokens takes X(n, w), and s(n) = X(n, 0) (`roofline.serving.times`).

Steps. A step takes at most r(n) tokens of prompts: what n sequences leave of the engine's limit for a step. The tokens
that wait at the start of a step are a Markov chain, of a queue with bulk service (Bailey 1954),

    w' = max(w - r(n), 0) + tokens of Poisson(L X(n, min(w, r(n)))) prompts

(`roofline.serving.prompts`; a prompt longer than r takes several steps), whose stationary distribution gives the mean
step T(n). An engine that schedules a step while the one before still runs gives it what arrived in the one before that.
Data-parallel ranks are taken as alike and independent: each has its own chain, and a step lasts as long as that of the
rank with the most tokens. Where outputs have one length the ranks take requests in turn, and fewer prompts wait.

Sequences. With a step as the unit of time a sequence stays G, however long steps are. Their number n rises by batches,
whose size has the mean B, and crosses level n upwards as often as downwards (level crossing; Brill 2008):

    P(n + 1) min(n + 1, c) / G = L / B  sum over k <= n of P(k) T(k) Pr(batch > n - k)

P(n) is its distribution over steps, c the slots: the sequences that the engine runs at most, or that fit in the KV
cache (with few of them: `roofline.serving.few`). A step begins no more prompts than find room in it. The variance of a
batch is that of the prompts that begin in a step, times 2 E[min of two outputs] / E[output]: 1 for exponential outputs,
which the equation assumes, and 2 for equal ones. TPOT is the mean of T over the sequences, and the delay from prompts
that wait when a sequence begins (Poisson's equation of the chain). Requests beyond c wait for a slot, on average
E[(n - c)+] / L (Little's law). The largest stable rate is the largest n / (G T(n)) over n <= c at which a step has room
for n / G prompts, those of the sequences that follow. E2E latency is TTFT and a request's own steps.

TTFT. A request arrives in a step with probability proportional to its length, waits for its end, for steps that are
scheduled ahead, and for those that the tokens ahead of it and its own fill (`roofline.serving.waits`); this at three
numbers of sequences, the nodes of a Gauss-Hermite quadrature.

Bursty requests (gamma-distributed gaps of shape b < 1) are taken as a Poisson process of geometric batches. The mean
batch, at most (1 + 1 / b) / 2, follows from the renewal function of the gaps at the time that its prompts take.

Closed loops of C requests are simulated for a few rounds (`roofline.serving.closed_loop`), and L follows from
C = L (TTFT + G T) (Little). Of many rates or concurrencies some are solved, and those between are interpolated.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from roofline.core.errors import RooflineError
from roofline.serving.closed_loop import orbit_of
from roofline.serving.few import FEW, few_sequences
from roofline.serving.load import Arrivals, Load
from roofline.serving.prompts import Prompts, prompts_at, seconds
from roofline.serving.replica import Replica
from roofline.serving.tables import Array
from roofline.serving.times import TINY, Times, slots_of, times_of
from roofline.serving.waits import FRONT, NUMBER, P95, QUANTILES, SAMPLES, SLOT, delayed, ends, uniform, waits_of
from roofline.specs.scheduler import Scheduler

ORBITS, QUEUED = 24, 1.25
"""The most closed loops that are simulated for one series, and the most requests in flight of one, over the slots."""

RATES = 40
"""The most rates at which an open loop is solved for one series."""

APART = 20
"""The most closed loops that are simulated for each factor of e in requests in flight."""

NODES, WEIGHTS = (-math.sqrt(3), 0.0, math.sqrt(3)), (1 / 6, 5 / 6, 1.0)
"""Gauss-Hermite nodes, in standard deviations of the running sequences from their mean, and cumulative weights."""

ITERATIONS = 40
"""Rounds of the fixed point that finds the running sequences of an open loop."""

COUNTED, WITHIN = 400, 0.5
"""The most requests of a batch, and the part of its prompts' time in which they arrive (by event simulations)."""

CHECKED, NEGLIGIBLE = 16, 1e-20
"""The distribution of sequences ends where each CHECKED-th value is first NEGLIGIBLE beside the largest one."""

EXTENSIVE = ("rate", "running", "waiting", "queued", "cached", "saturation", "slots")
"""The fields of `Steady` that are sums over the copies of a replica; the others are the same of each."""


class Steady(NamedTuple):
    """Seconds and rates of each point; infinite where queues grow without bound.

    `ttft`, `tpot` and `e2e` have the mean and the QUANTILES along the first axis. `rate` is requests/s, `saturation`
    the largest stable one, `slots` the sequences that run at most, `samples` the TTFT of SAMPLES requests (samples,
    points). Of the requests inside, `running` are in prefill or decode, and `waiting` are not; `queued` of these wait
    for others to end. `cached` are tokens in the KV cache, `prefilling` is the share of time in steps with prompts.
    """

    ttft: Array
    tpot: Array
    e2e: Array
    rate: Array
    running: Array
    waiting: Array
    queued: Array
    cached: Array
    prefilling: Array
    saturation: float
    slots: float
    samples: Array


def largest_rate(replica: Replica, load: Load) -> float:
    """The largest stable rate of an open loop in requests/s, of all copies."""
    slots = slots_of(replica, load)
    return replica.copies * saturation_of(replica, load, times_of(replica, load, slots))


def saturation_of(replica: Replica, load: Load, times: Times) -> float:
    """The largest stable rate of one copy: the least of what its steps allow and what its front end allows."""
    each = replica.scheduler.front(load.means[0])
    return min(times.stable, 1 / each if each else math.inf)


def check_steps(parted: int) -> None:
    """Raise RooflineError for a `pause` or `piece` of a `Scheduler` above 0, which no steady state has here."""
    if parted:
        raise RooflineError(
            "a steady state has prompts in every step, and all of its tokens for them: say how many requests to"
            " simulate, such as 500",
            options=["simulate"],
        )


def steady(replica: Replica, load: Load, values: Any) -> Steady:
    """The steady state at each of `values`: concurrencies of a closed loop, else rates in requests/s.

    Raises RooflineError for rates as `check_steps` does.
    """
    if load.arrivals is not Arrivals.CLOSED:
        check_steps(replica.scheduler.pause or replica.scheduler.piece)
    copies, load = replica.copies, load.within(replica.kv_tokens)
    points = np.atleast_1d(np.asarray(values, float)) / copies
    slots = slots_of(replica, load)
    times = times_of(replica, load, slots)
    found = _closed if load.arrivals is Arrivals.CLOSED else open_loop
    one = found(replica, load, times, points, slots)
    if copies == 1:
        return one
    return one._replace(**{name: getattr(one, name) * copies for name in EXTENSIVE})


def _front(policy: Scheduler, prompt: float, rate: Array, step: Array, busy: Array) -> Array:
    """Seconds from a request's arrival to its place in the scheduler's queue, and back (samples, points).

    The front end takes one request, of a mean `prompt`, after the other: an M/D/1 queue, in which those that wait do so
    for an exponential time. While others run, with probability `busy`, the scheduler polls it between some steps only.
    """
    each = policy.front(prompt)
    used = np.minimum(rate * each, 0.95)
    wait = delayed(used, each / (1 - used) / 2, FRONT)
    front: Array = policy.received(prompt) + wait
    return front + (busy * (policy.poll - 1) / 2 + policy.stream - 1) * step


def summary(samples: Array) -> Array:
    """Mean and QUANTILES of samples (samples, points)."""
    return np.concatenate([samples.mean(axis=0)[np.newaxis], np.quantile(samples, QUANTILES, axis=0)])


def _tpot(times: Times, prompts: Prompts, rate: Array, step: Array, deviation: Array) -> Array:
    """Mean and QUANTILES of a normal TPOT (4, points), by `deviation` and that of the prompts in a request's steps."""
    each = np.maximum(prompts.mean - prompts.still, 0.0) / np.maximum(rate * prompts.mean, TINY)
    own = np.sqrt(prompts.dispersion * rate * step / max(times.steps, 1.0)) * each
    spread = np.hypot(own, deviation)
    return np.stack([step, *(step + z * spread for z in (0.0, P95, 2.326))])  # normal quantiles of QUANTILES


def _closed(replica: Replica, load: Load, times: Times, points: Array, slots: float) -> Steady:
    """A closed loop: simulated at some numbers of requests in flight, with those between them interpolated.

    Requests in flight beyond QUEUED times the slots all wait (Little).
    """
    most = math.ceil(QUEUED * slots)
    users = np.unique(np.clip(np.concatenate([np.floor(points), np.ceil(points)]), 1, most))
    count = min(ORBITS, 3 + int(APART * math.log(users[-1] / users[0])))
    if users.size > count:
        users = np.unique(np.geomspace(users[0], users[-1], count).round())
    found = [orbit_of(replica, load, slots, int(number)) for number in users]
    shares = (np.arange(SAMPLES) + 0.5) / SAMPLES
    samples = np.array([np.quantile(each.ttft, shares) for each in found])
    tpot = np.array([[each.token, *np.quantile(each.tpot, QUANTILES)] for each in found])
    e2e = np.array([np.quantile(each.e2e, QUANTILES) for each in found])
    if load.outputs.varies:  # long outputs end in a few rounds too seldom
        e2e = ends(load, samples.T, tpot.T).T
    rate = users / (samples.mean(axis=1) + times.tokens * tpot[:, 0])
    saturation = max(saturation_of(replica, load, times), float(rate.max()))
    queued = np.maximum(users - slots, [each.queued for each in found])
    kept = np.column_stack([samples, tpot, e2e, [each.prefilling for each in found]])
    inside = np.clip(points, 1, most)
    kept = np.array([np.interp(inside, users, column) for column in kept.T])
    counts = np.array([rate, [each.running for each in found], queued, [each.cached for each in found]])
    # Several copies may have less than one request each: these figures then fall to 0 with it.
    rate, running, queued, cached = (np.interp(points.clip(max=most), [0, *users], [0, *each]) for each in counts)
    queued = queued + points - inside.clip(max=points)
    samples, tpot, e2e = kept[:SAMPLES], kept[SAMPLES : SAMPLES + 4], kept[SAMPLES + 4 : -1]
    # C = L (TTFT + G T).
    left = np.maximum(points / rate - times.tokens * tpot[0] - samples.mean(axis=0), 0.0)
    e2e = np.stack([points / rate, *(e2e + left)])
    samples, waiting = samples + left, points - running
    return Steady(
        summary(samples), tpot, e2e, rate, running, waiting, queued, cached, kept[-1], saturation, slots, samples
    )


def _mean_step(times: Times, rate: Array, number: Array) -> Array:
    """The mean step X of n sequences if the one before it had as many arrivals as on average, L X: a fixed point."""
    decode, (base, slope) = times.at(number), times.base_and_slope(number)
    left = np.maximum(1 - rate * np.minimum(slope, times.full(number)), 1e-3)
    step = decode / left
    for _ in range(4):
        some = -np.expm1(-rate * step)
        step = (decode + some * base) / left
    return step


def open_loop(replica: Replica, load: Load, times: Times, points: Array, slots: float) -> Steady:
    """An open loop: the distribution of the running sequences at each rate, or at some of many, with others between."""
    saturation = saturation_of(replica, load, times)
    stable = points < saturation
    rate = np.where(stable, points, saturation * 0.5)
    place = np.log(rate / (saturation - rate))
    solved = _open
    if slots < FEW and times.steps and not times.received:
        solved = few_sequences
    if rate.size <= RATES:
        samples, columns = solved(replica, load, times, rate, slots)
    else:
        knots = np.linspace(place.min(), place.max(), RATES)
        samples, columns = solved(replica, load, times, saturation / (1 + np.exp(-knots)), slots)
        samples, columns = (np.array([np.interp(place, knots, row) for row in rows]) for rows in (samples, columns))
    ttft = np.where(stable, summary(samples), np.inf)
    columns = np.where(stable, columns, np.inf)
    tpot, late, (running, queued, cached, prefilling) = columns[:4], columns[4:7], columns[7:]
    # Little's law.
    e2e = np.stack([ttft[0] + (times.tokens * tpot[0] if times.tokens else 0.0), *late])
    rate = np.minimum(points, saturation)
    waiting = rate * e2e[0] - np.where(stable, running, 0.0)
    return Steady(ttft, tpot, e2e, rate, running, waiting, queued, cached, prefilling, saturation, slots, samples)


def _batch_of(times: Times, burstiness: float, rate: Array, number: Array) -> Array:
    """The mean size of the geometric batches that stand for bursty arrivals.

    In t seconds after a request M(t) others come, the renewal function (Cox 1962); with batches, L t and the rest of
    its own, which is so M(t) - L t. For gamma-distributed gaps of shape b it grows to (1 / b - 1) / 2. Here t is the
    part WITHIN of the time in which a batch's prompts are computed.
    """
    if burstiness >= 1:
        return np.ones_like(rate)
    from scipy.special import gammainc

    shape = burstiness * np.arange(1.0, COUNTED + 1)[:, np.newaxis]
    first = seconds(times, times.mean, number)
    each, batch = times.full(number), np.ones_like(rate)
    left = np.maximum(1 - rate * each, 0.03)
    for _ in range(4):
        gaps = rate * WITHIN * (first + (batch - 1) * each) / left
        more = gammainc(shape, burstiness * gaps).sum(axis=0) - gaps
        batch = 1 + np.clip(np.where(gaps > COUNTED / 2, np.inf, more), 0.0, (1 / burstiness - 1) / 2)
    return batch


class _Points(NamedTuple):
    """What is known of each point: its rate (requests/s), the mean number of sequences, the chain of prompts there.

    `late` are the steps by which prompts that wait when a request begins delay it. `ratio` is the mean step by the
    chain over `_mean_step`, at numbers of sequences `nodes` (both (nodes, points)). `long_run` is the index of
    dispersion of arrivals over many steps, 1 / b, over that of geometric batches of the mean m, 2 m - 1.
    """

    rate: Array
    number: Array
    prompts: Prompts
    late: Array
    nodes: Array
    ratio: Array
    long_run: Array


def _open(replica: Replica, load: Load, times: Times, rate: Array, slots: float) -> tuple[Array, Array]:
    """Samples of TTFT (samples, points), and further figures of each point (figures, points).

    The latter are mean and QUANTILES of TPOT, QUANTILES of E2E latency, the running and queued requests, the tokens in
    the KV cache, and the share of time in steps with prompts.
    """
    number = np.ones(rate.size)
    for _ in range(ITERATIONS):
        number = np.clip(np.sqrt(number * rate * times.steps * _mean_step(times, rate, number)), 1.0, slots)
    late, width, size = np.zeros(rate.size), np.sqrt(2 * number), rate.size
    for deviations in (NODES[1:2], NODES):
        # First at the mean number of sequences alone, which gives their deviation, then at all nodes.
        nodes = np.clip(number + np.array(deviations)[:, np.newaxis] * width, 1.0, slots)
        batch = _batch_of(times, load.burstiness, rate, number)
        long_run = 1 / (load.burstiness * (2 * batch - 1))
        chain = prompts_at(times, np.tile(rate, len(deviations)), nodes.ravel(), np.tile(batch, len(deviations)))
        chains = [Prompts(*(part[..., at : at + size] for part in chain)) for at in range(0, nodes.size, size)]
        prompts = chains[len(chains) // 2]
        ratio = np.array([each.mean for each in chains]) / _mean_step(times, rate, nodes)
        points = _Points(rate, number, prompts, late, nodes, ratio, long_run)
        level = _level(times, points, slots, load)
        busy = -np.expm1(-level.running)
        late = np.maximum(prompts.late / prompts.mean, -0.5)
        number, width = np.sqrt(number * np.maximum(level.running, 1.0)), level.width
    in_turn = times.ranks > 1 and not load.outputs.varies
    parts = [waits_of(times, rate, *node, busy, batch, in_turn) for node in zip(nodes, chains, strict=True)]
    chosen = np.searchsorted(WEIGHTS, uniform(NUMBER)[:, 0])
    samples = np.choose(chosen[:, np.newaxis], [waits for waits, _ in parts])
    policy, prompt = replica.scheduler, load.means[0]
    samples = samples + _front(policy, prompt, rate, prompts.mean, busy) + (batch - 1) * policy.front(prompt)
    samples = samples + delayed(level.full, level.slot, SLOT)
    # By Little's law L G T sequences decode, which are no more than there are slots.
    delay = late * prompts.mean / max(times.steps, 1.0)
    step = np.minimum(level.step + delay, slots / np.maximum(rate * times.steps, TINY))
    many = prompts._replace(dispersion=prompts.dispersion * points.long_run)
    # Drafts are accepted by chance, so that outputs of one length take different numbers of steps.
    drawn = step * math.sqrt(times.tokens * replica.steps.scatter) / max(times.steps, 1.0)
    tpot = _tpot(times, many, rate, step, np.hypot(level.deviation, drawn)) * times.steps / max(times.tokens, TINY)
    decoding = rate * times.steps * step
    queued, cached = level.full * level.slot * rate, decoding * load.held
    running = np.minimum(decoding + rate * parts[len(parts) // 2][1], slots)
    return samples, np.stack([*tpot, *ends(load, samples, tpot), running, queued, cached, prompts.busy])


class _Level(NamedTuple):
    """What the distribution of the running sequences gives at each point.

    `running` and `width` are their mean and deviation over time, `step` and `deviation` those of a sequence's steps in
    seconds; a request waits for a slot with probability `full`, and then `slot` seconds on average.
    """

    running: Array
    width: Array
    step: Array
    deviation: Array
    full: Array
    slot: Array


def _level(times: Times, points: _Points, slots: float, load: Load) -> _Level:
    """The distribution of the running sequences at each point, and what follows from it."""
    rate, steps = points.rate, times.steps + points.late + 1e-9
    grid = np.minimum(np.arange(1.0, times.decode.size + 1), slots)
    step = _steps(times, points, slots, grid)
    weight = _weights(times, points, load, grid, step, steps)
    states = weight.shape[0] - 1
    step, counts = step[:states], np.concatenate([[0.0], grid[:states]])[:, np.newaxis]
    # While requests wait, a slot is taken as soon as it is free: requests then leave as fast as at saturation.
    many = grid[states - 1 : states]
    last = np.minimum(step[-1], times.replaced(many)) if times.steps else step[-1]
    ratio = np.minimum(rate * np.minimum(last * steps / many, 1 / times.stable), 0.999)
    # States beyond the last fall off geometrically, and are counted in it.
    weight[-1] += weight[-1] * ratio / (1 - ratio)
    timed = np.concatenate([step[:1], step])
    running, width = _moments(weight * timed, counts)
    seen, deviation = _moments(weight * counts, timed)
    full = weight[-1] / weight.sum(axis=0)
    # TPOT averages over a request's steps. With T = T(1) + slope n, n has an autocorrelation of exp(-steps / time) with
    # a time of G T / T(1) steps; the factor is the deviation of a mean of such a process over G steps (Taylor 1921).
    back = np.clip(step[0] / seen, 0.05, 1.0)
    deviation = deviation * np.sqrt(2 * (back - 1 + np.exp(-back))) / back
    return _Level(running, width, seen, deviation, full, ratio / rate / (1 - ratio))


def _moments(weight: Array, values: Array) -> tuple[Array, Array]:
    """Mean and deviation of values over the first axis."""
    whole = weight.sum(axis=0)
    mean = (weight * values).sum(axis=0) / whole
    square = (weight * values**2).sum(axis=0) / whole
    return mean, np.sqrt(np.maximum(square - mean**2, 0.0))


def _steps(times: Times, points: _Points, slots: float, grid: Array) -> Array:
    """The mean step T(n) with each number of sequences of `grid` (states, points)."""
    number = grid[:, np.newaxis]
    # `_mean_step`, times its error at the nodes, interpolated between them.
    ratio = points.ratio[0]
    for (low, high), (one, other) in zip(pairwise(points.nodes), pairwise(points.ratio), strict=True):
        ratio = ratio + np.clip((number - low) / np.maximum(high - low, 1e-9), 0.0, 1.0) * (other - one)
    # A step has at most the prompts that find room in it, or that find a free slot.
    if times.alone:
        free = slots - number + number / np.maximum(times.steps, 1.0)
        most = times.at(number) + free * sum(times.base_and_slope(number))
    else:
        most = times.filled(number)
    return np.asarray(np.minimum(_mean_step(times, points.rate, number) * ratio, most))


def _weights(times: Times, points: _Points, load: Load, grid: Array, step: Array, steps: Array) -> Array:
    """P(n) of 0, 1, ... sequences (states, points), not normalised, by level crossing with geometric batches.

    Pr(batch > j) = g^j, with the index of dispersion of a branching process: requests that arrive while prompts are
    computed begin to decode together, their prompts delay the step in which others arrive, and so on.
    """
    rate, prompts = points.rate, points.prompts
    room = np.maximum(times.room_at(grid), 1.0)[:, np.newaxis]
    begun = step if times.alone else np.minimum(step, room / times.mean / np.maximum(rate, 1e-12))
    # 2 E[min of two outputs] / E[output] of the variance, by the module's theory.
    both = load.outputs.least_of_two / load.outputs.mean
    spread = 2 * both * (prompts.dispersion * points.long_run - 1)
    g = np.clip(spread / (2 + spread), 0.0, 0.99)
    upward = rate * (1 - g) * steps / grid[:, np.newaxis]
    columns = [
        _column(*each)
        for each in zip(g.tolist(), upward.T.tolist(), np.concatenate([begun[:1], begun]).T.tolist(), strict=True)
    ]
    weight = np.zeros((max(map(len, columns)), rate.size))
    for place, column in enumerate(columns):
        weight[: len(column), place] = column
    return weight


def _column(g: float, upward: list[float], begun: list[float]) -> list[float]:
    """P(n) of 0, 1, ... sequences at one point: in plain numbers, as arrays of one element would be slower."""
    weight, carried, peak = [1.0], 0.0, 1.0
    for level, up in enumerate(upward):
        carried = g * carried + weight[level] * begun[level]
        weight.append(up * carried)
        if level % CHECKED == 0:
            peak = max(peak, weight[-1])
            if peak > 1e100:
                weight, carried, peak = [each * 1e-100 for each in weight], carried * 1e-100, peak * 1e-100
            # P(n) has one peak and falls beyond it, so that no later value counts.
            if weight[-1] < NEGLIGIBLE * peak:
                break
    return weight
