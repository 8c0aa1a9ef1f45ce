"""The steady state of a replica under a load, without simulating requests: for arrays of rates or concurrencies.

Steps. A step of n decoding sequences with m prompts takes X(n, m) = s(n) + b + p m, and s(n) without prompts (`Times`,
from `StepTimes`); at most k prompts fit. Requests arrive at rate L, so that the prompts waiting at the start of a step
are a Markov chain

    m' = max(m - k, 0) + Poisson(L X(n, m))

whose stationary distribution gives the mean step T(n) and the batches in which requests begin to decode.

Sequences. A request takes G steps. In steps as the unit of time a sequence stays G, whatever the steps take; the number
n that runs changes by batches of mean B, at level n upwards as often as downwards (level crossing; Brill 2008):

    P(n + 1) min(n + 1, c) / G = L / B  sum over k <= n of P(k) T(k) Pr(batch > n - k)

with c slots: the sequences that the engine runs at most, or that fit in the KV cache. TPOT is the mean of T over the
sequences, and those beyond c wait for a slot, E[(n - c)+] / L on average (Little). The largest stable rate is that of
full steps, c / (G s(c) + c (X(c, k) - s(c)) / k). In a closed loop of C requests L is the root of C = L (TTFT + G T),
where a request sees the prompts of the C - 1 others (arrival theorem; Reiser and Lavenberg 1980), but at most the
largest stable rate, at which the others wait. Phases are taken as independent: where all outputs have one length, the
requests of a burst stay together, which `roofline.serving.simulation` shows.

TTFT. A request arrives in a step with probability proportional to its length, waits for its rest, for the steps that
the prompts ahead fill, and for its own step with all prompts in it.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.serving.load import Arrivals, Load
from roofline.serving.prompts import BLOCK, STATES, Prompts, prompts_at
from roofline.serving.replica import Replica
from roofline.serving.times import Times, slots_of, times_of

Array = NDArray[np.float64]

REFINEMENTS = 4
"""Rounds that find the throughput of a closed loop."""

ITERATIONS = 40
"""Rounds that find the running sequences of an open loop."""

QUANTILES = (0.5, 0.95, 0.99)

SAMPLES = 256
"""Requests that sample the distribution of TTFT."""

CHECKED, NEGLIGIBLE = 16, 1e-20
"""Numbers of sequences between two looks at their probabilities, and what is negligible of the largest."""

SATURATED = 3
"""Numbers of sequences, the largest, at which the largest stable rate is looked for."""


class Steady(NamedTuple):
    """Seconds and rates of each point; infinite where queues grow without bound.

    `ttft` and `tpot` have the mean and the QUANTILES along the first axis. `rate` is requests/s, `saturation` the
    largest stable one, `slots` the sequences that run at most, `samples` the TTFT of SAMPLES requests (samples,
    points).
    """

    ttft: Array
    tpot: Array
    rate: Array
    running: Array
    waiting: Array
    prefilling: Array
    saturation: float
    slots: float
    samples: Array


def saturation_of(replica: Replica, load: Load, times: Times, slots: float) -> float:
    """The largest stable rate: of the steps, with some number of sequences, and of the front end."""
    each = front_seconds(replica, load)
    return min(_stable(times, slots), 1 / each if each else math.inf)


def _stable(times: Times, slots: float) -> float:
    """The largest rate at which, with some number of sequences, steps yield tokens as fast as requests ask for them.

    Below the rate of full steps, prompts come in smaller batches that take more of the time. Where prompts share steps
    with decode, at most k come for each step, and k G sequences run.
    """
    slots = slots if times.alone else min(slots, max(times.most * times.steps, 1.0))
    number = np.minimum(np.arange(1.0, times.decode.size + 1), slots)
    most = float(np.max(number / (times.steps * times.decode + number * times.full(number))))
    if not times.steps:
        return most
    sizes = np.unique(np.append(times.added.rows[times.added.rows < slots], slots))[-SATURATED:]
    shares = np.linspace(1.0, 0.2, 33)
    rate, size = (grid.ravel() for grid in np.meshgrid(most * shares, sizes, indexing="ij"))
    spent = (
        (rate * times.steps * prompts_at(times, rate, size).mean / size).reshape(shares.size, sizes.size).min(axis=1)
    )
    stable = spent < 1
    if not stable.any():
        return 0.2 * most
    first = int(np.argmax(stable))
    if first == 0:
        return most
    share = float(np.interp(1.0, [spent[first], spent[first - 1]], [shares[first], shares[first - 1]]))
    return share * most


def steady(replica: Replica, load: Load, values: Any) -> Steady:
    """The steady state at each of `values`: concurrencies of a closed loop, else rates in requests/s."""
    copies = replica.copies
    points = np.atleast_1d(np.asarray(values, float)) / copies
    slots = slots_of(replica, load)
    times = times_of(replica, load, max(2, math.ceil(slots)))
    found = _closed if load.arrivals is Arrivals.CLOSED else open_loop
    one = found(replica, load, times, points, slots)
    if copies == 1:
        return one
    whole = {name: getattr(one, name) * copies for name in ("rate", "running", "waiting", "saturation", "slots")}
    return one._replace(**whole)


def _front(replica: Replica, load: Load, rate: Array, step: Array, busy: Array) -> Array:
    """Seconds outside the scheduler, and steps that are scheduled ahead or between two polls while others run.

    The front end takes one request after the other (M/D/1).
    """
    policy, each = replica.scheduler, front_seconds(replica, load)
    used = np.minimum(rate * each, 0.95)
    front: Array = policy.latency + each * (1 + used / (1 - used) / 2)
    return front + (busy * (policy.lag + (policy.poll - 1) / 2) + policy.stream - 1) * step


def front_seconds(replica: Replica, load: Load) -> float:
    """Seconds that the front end takes for a request."""
    return replica.scheduler.request + replica.scheduler.prompt_token * load.means[0]


@cache
def _cube() -> Array:
    """Points of the unit cube, one a sample."""
    from scipy.stats import qmc  # takes half a second to import

    points: Array = qmc.Sobol(6, seed=0).random(SAMPLES)
    return points


def _inverse(share: Array, at: Array) -> NDArray[np.intp]:
    """The state of each sample (samples, 1) by the inverse of the distribution over the first axis."""
    steps = np.cumsum(share, axis=0)
    found: NDArray[np.intp] = (steps[np.newaxis] < at[:, :, np.newaxis] * steps[-1]).sum(axis=1)
    least: NDArray[np.intp] = np.minimum(found, share.shape[0] - 1)
    return least


def _poisson(mean: Array, at: Array) -> Array:
    """Quantiles of a Poisson distribution, by the cube-root normal approximation (Wilson and Hilferty)."""
    from scipy.special import ndtri

    z = ndtri(at)
    mean = np.maximum(mean, 1e-12)
    exact = np.where(at < np.exp(-mean), 0.0, 1.0)
    nine = 9 * np.maximum(mean, 0.05)
    approximate = np.floor(mean * np.maximum(1 - 1 / nine + z / np.sqrt(nine), 0.0) ** 3 + 0.35)
    found: Array = np.where(mean < 0.3, exact, np.maximum(approximate, exact))
    return found


def _waits(times: Times, rate: Array, number: Array, prompts: Prompts, busy: Array) -> tuple[Array, Array]:
    """Samples of TTFT without front end and slots, (samples, points), and the prompts that wait behind on average.

    `busy` is the probability that some sequence decodes.
    """
    blocks, behind = [], []
    for begin in range(0, rate.size, BLOCK):
        part = slice(begin, begin + BLOCK)
        length, share, unit = prompts.length[:, part], prompts.share[:, part], prompts.unit[part]
        weight = share * length
        state = _inverse(weight, _cube()[:, :1])
        step = np.take_along_axis(length[np.newaxis].repeat(SAMPLES, 0), state[:, np.newaxis], axis=1)[:, 0]
        if not times.steps:
            step = np.where(state > 0, step, 0.0)
        done = np.minimum(state, times.most / unit) * unit
        ahead = state * unit - done
        place = _cube()[:, 1:2]
        before = _poisson(rate[part] * step * place / unit, _cube()[:, 2:3]) * unit
        after = _poisson(rate[part] * step * (1 - place) / unit, _cube()[:, 3:4]) * unit
        queue = ahead + before
        steps = np.ceil((queue + 1) / times.most - 1e-9)
        others = np.minimum(after, steps * times.most - (queue + 1))
        still = 0.0 if times.alone or times.received else times.at(number[part])
        place_of = np.floor(_cube()[:, 4:5] * times.lengths)
        own = times.own.signed(number[part], place_of)
        mine = steps * still + times.adding(queue + 1 + others, number[part]) + own
        blocks.append((1 - place) * step * np.where(state > 0, 1.0, busy[part]) + mine)
        behind.append((after - others + rate[part] * mine).mean(axis=0))
    return np.concatenate(blocks, axis=1), np.concatenate(behind)


def _prefilling(prompts: Prompts) -> Array:
    """The share of time in steps with prompts."""
    spent = prompts.share * prompts.length
    found: Array = 1 - spent[0] / np.maximum(spent.sum(axis=0), 1e-12)
    return found


def summary(samples: Array) -> Array:
    """Mean and QUANTILES of samples (samples, points)."""
    return np.concatenate([samples.mean(axis=0)[np.newaxis], np.quantile(samples, QUANTILES, axis=0)])


def _tpot(times: Times, rate: Array, number: Array, step: Array, deviation: Array) -> Array:
    """Mean and percentiles of TPOT, whose deviation is that of sequences and of the prompts in a request's steps."""
    own = np.sqrt(rate * step * times.unit / max(times.steps, 1.0)) * times.slope(number)
    spread = np.hypot(own, deviation)
    return np.stack([step, *(step + z * spread for z in (0.0, 1.645, 2.326))])


def _closed(replica: Replica, load: Load, times: Times, points: Array, slots: float) -> Steady:
    """A closed loop. A request sees the prompts of the others: their rate is (C - 1) / C of the throughput."""
    inside = np.minimum(points, slots)
    others = 1 - 1 / np.maximum(inside, 1.0)
    saturation = saturation_of(replica, load, times, slots)
    decoding = inside if times.alone else np.minimum(inside, max(times.most * times.steps, 1.0))
    most = np.minimum(saturation, decoding / (times.steps * times.at(decoding) + decoding * times.full(decoding)))
    rate = most
    for _ in range(REFINEMENTS):
        seen = others * rate
        number = np.clip(rate * times.steps * _mean_step(times, seen, inside), 1.0, inside)
        prompts = prompts_at(times, seen, number)
        step = prompts.mean
        busy = -np.expm1(-seen * times.steps * step)
        samples, _ = _waits(times, seen, number, prompts, busy)
        samples = samples + _front(replica, load, seen, step, busy)
        ratio = inside / (samples.mean(axis=0) + times.steps * step) / rate
        rate = np.minimum(rate * np.sqrt(ratio), most)
    # What is left of C = L (TTFT + G T) at saturation (Little). Steps take more prompts, until they are full or all
    # sequences decode; the others wait.
    left = points / rate - samples.mean(axis=0)
    full = np.inf if times.alone else times.at(decoding) + times.most * times.full(decoding)
    spent = np.minimum(left, np.minimum(inside / rate, times.steps * full))
    step = np.maximum(step, spent / max(times.steps, 1e-9))
    queued = np.maximum(left - times.steps * step, 0.0)
    samples = samples + queued
    waiting = np.maximum(points - inside, np.where(rate < most, 0.0, np.minimum(queued * rate, points)))
    tpot = _tpot(times, rate, number, step, np.zeros(points.size)) / replica.steps.accepted
    running, prefilling = points - waiting, _prefilling(prompts)
    return Steady(summary(samples), tpot, rate, running, waiting, prefilling, saturation, slots, samples)


def _mean_step(times: Times, rate: Array, number: Array) -> Array:
    """The mean time between decode tokens of n sequences, with arrivals at their mean."""
    decode = times.at(number)
    left = np.maximum(1 - rate * np.minimum(times.slope(number), times.full(number)), 1e-3)
    base = times.base(number)
    step = decode / left
    for _ in range(4):
        some = -np.expm1(-rate * step)
        step = (decode + some * base) / left
    return step


def open_loop(replica: Replica, load: Load, times: Times, points: Array, slots: float) -> Steady:
    """An open loop: the distribution of the running sequences at each rate."""
    saturation = saturation_of(replica, load, times, slots)
    stable = points < saturation
    rate = np.where(stable, points, saturation * 0.5)
    number = np.ones(rate.size)
    for _ in range(ITERATIONS):
        number = np.clip(np.sqrt(number * rate * times.steps * _mean_step(times, rate, number)), 1.0, slots)
    for _ in range(3):
        prompts = prompts_at(times, rate, number)
        level, tail = _sequences(times, rate, number, prompts, slots, load)
        number = np.sqrt(number * np.maximum(level[0], 1.0))
    running, step, deviation = level
    busy = -np.expm1(-running)
    samples, behind = _waits(times, rate, number, prompts, busy)
    samples = samples + _front(replica, load, rate, prompts.mean, busy)
    # A sequence begins where others wait: their prompts, and those that arrive meanwhile, delay its first steps.
    usual = rate * prompts.mean
    further = times.slope(number)
    late = np.maximum(behind - usual, 0.0) * further / np.maximum(1 - rate * further, 0.05)
    step, running = step + late / max(times.steps, 1.0), running + rate * late
    full, slot = tail
    wait = np.log(np.maximum(full / (1 - _cube()[:, 5:6]), 1.0)) * slot
    samples = samples + wait
    ttft = summary(samples)
    tpot = _tpot(times, rate, number, step, deviation) / replica.steps.accepted
    prefilling = _prefilling(prompts)
    parts = (ttft, tpot, running, full * slot * rate, prefilling)
    ttft, tpot, running, waiting, prefilling = (np.where(stable, part, np.inf) for part in parts)
    return Steady(ttft, tpot, np.minimum(points, saturation), running, waiting, prefilling, saturation, slots, samples)


def _sequences(
    times: Times, rate: Array, number: Array, prompts: Prompts, slots: float, load: Load
) -> tuple[tuple[Array, Array, Array], tuple[Array, Array]]:
    """The running sequences: mean, mean step over sequences and its deviation; probability and mean of a slot's wait.

    Batches are geometric, P(batch > j) = g^j, with the index of dispersion of a branching process.
    """
    states = times.decode.size
    grid = np.minimum(np.arange(1.0, states + 1), slots)
    step = _mean_step(times, rate, grid[:, np.newaxis])
    step = step * (prompts.mean / _mean_step(times, rate, number))
    # Requests that arrive while prompts are computed begin to decode together, those prompts delay others, and so on.
    group = np.maximum((prompts.share * np.arange(float(STATES))[:, np.newaxis]).sum(axis=0) * prompts.unit, 1.0)
    ahead = times.adding(group + times.ranks, number) - times.adding(group, number)
    further = np.clip(rate * ahead / times.ranks, 0.0, 0.95)
    more = (
        times.unit / (1 - further) ** 2 - 1 + rate * (prompts.cycle if times.alone else prompts.mean)
    ) / load.burstiness
    g = np.clip(more / (2 + more), 0.0, 0.99)
    batches = rate * (1 - g)
    weight = np.zeros((states + 1, rate.size))
    weight[0] = 1.0
    carried = np.zeros(rate.size)
    upward, peak = batches * max(times.steps, 1e-9) / grid[:, np.newaxis], weight[0]
    for level in range(states):
        carried = g * carried + weight[level] * step[max(level - 1, 0)]
        weight[level + 1] = upward[level] * carried
        if level % CHECKED == 0:
            peak = np.maximum(peak, weight[level + 1])
            if (scale := np.where(peak > 1e100, 1e-100, 1.0)).min() < 1:
                weight[: level + 2] *= scale
                carried, peak = carried * scale, peak * scale
            # They fall beyond their largest: none of those that follow counts.
            if (weight[level + 1] < NEGLIGIBLE * peak).all():
                weight, step, grid = weight[: level + 2], step[: level + 1], grid[: level + 1]
                break
    counts = np.concatenate([[0.0], grid])[:, np.newaxis]
    ratio = np.minimum(rate * step[-1] * max(times.steps, 1e-9) / grid[-1], 0.999)
    tail = weight[-1] * ratio / (1 - ratio)
    total = weight.sum(axis=0) + tail
    timed = np.concatenate([step[:1], step])
    seconds = (weight * timed).sum(axis=0) + tail * step[-1]
    running = ((weight * timed * counts).sum(axis=0) + tail * step[-1] * grid[-1]) / seconds
    of_sequences = (weight * counts).sum(axis=0) + tail * grid[-1]
    seen = ((weight * counts * timed).sum(axis=0) + tail * grid[-1] * step[-1]) / of_sequences
    square = ((weight * counts * timed**2).sum(axis=0) + tail * grid[-1] * step[-1] ** 2) / of_sequences
    deviation = np.sqrt(np.maximum(square - seen**2, 0.0) / 2)
    full = (weight[-1] + tail) / total
    slot = step[-1] * times.steps / grid[-1] / (1 - ratio)
    return (running, seen, deviation), (full, slot)
