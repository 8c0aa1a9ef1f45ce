"""What requests of an open loop wait for in the scheduler: samples of TTFT (`roofline.serving.steady`)."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from roofline.serving.load import Load
from roofline.serving.prompts import BLOCK, FULL, Prompts
from roofline.serving.tables import Array
from roofline.serving.times import NOTHING, Times

QUANTILES, P95 = (0.5, 0.95, 0.99), NormalDist().inv_cdf(0.95)

SAMPLES, COORDINATES = 512, 16
"""Requests that sample the distribution of TTFT, and what is random of each."""


IRREGULAR = 0.67
"""Variance of the turns between two requests of a rank without load, over that of ranks at random.

In event simulations with outputs of one length 0.4 to 0.5 at 0.3 of the largest rate and 0.2 to 0.4 at 0.85. What is
irregular evens out over as many requests as there are ranks, and queues near saturation hold more.
"""


@cache
def cube() -> Array:
    """Points of the unit cube, one a sample, with evenly spread coordinates in random order (a Latin hypercube)."""
    places = np.tile(np.arange(SAMPLES), (COORDINATES, 1))
    return np.asarray((np.random.default_rng(0).permuted(places, axis=1).T + 0.5) / SAMPLES)


@cache
def normal() -> Array:
    """The standard normal quantile of each coordinate of the cube."""
    values = np.array([NormalDist().inv_cdf((place + 0.5) / SAMPLES) for place in range(SAMPLES)])
    return np.asarray(values[np.floor(cube() * SAMPLES).astype(int)])


def ends(load: Load, samples: Array, tpot: Array) -> Array:
    """QUANTILES of E2E latency (quantiles, points): of samples of TTFT, and normal TPOT by mean and p95."""
    tokens = np.maximum(load.outputs.inverse(cube()[:, 10:11]) - 1, 0.0)
    each = tpot[0] + (tpot[2] - tpot[0]) / P95 * normal()[:, 11:12]
    return np.asarray(np.quantile(samples + tokens * each, QUANTILES, axis=0))


def _inverse(share: Array, at: Array) -> NDArray[np.intp]:
    """The state of each sample (samples, 1) by the inverse of the distribution over the first axis."""
    steps = np.cumsum(share, axis=0)
    found = np.stack([np.searchsorted(each, at[:, 0] * each[-1]) for each in steps.T], axis=1)
    return np.asarray(np.minimum(found, share.shape[0] - 1))


def _poisson(mean: Array, coordinate: int) -> Array:
    """Quantiles of a Poisson distribution, by the cube-root normal approximation (Wilson and Hilferty)."""
    at, z = (each[:, coordinate : coordinate + 1] for each in (cube(), normal()))
    mean = np.maximum(mean, 1e-12)
    exact = np.where(at < np.exp(-mean), 0.0, 1.0)
    nine = 9 * np.maximum(mean, 0.05)
    approximate = np.floor(mean * np.maximum(1 - 1 / nine + z / np.sqrt(nine), 0.0) ** 3 + 0.35)
    return np.asarray(np.where(mean < 0.3, exact, np.maximum(approximate, exact)))


def regular(arrivals: float | Array, unit: float, used: Array) -> Array:
    """Waits of arrivals with a squared coefficient of variation over those of random ones, of servers in use so far.

    `unit` is one plus the service's (Kraemer and Langenbach-Belz, Approximate Formulae for the Delay in the Queueing
    System GI/G/1, 1976).
    """
    both, used = arrivals + unit - 1, np.clip(used, NOTHING, FULL)
    return np.asarray(both / unit * np.exp(-2 * (1 - used) / (3 * used) * (1 - arrivals) ** 2 / both))


def _in_turn(times: Times, rate: Array, number: Array) -> Array:
    """The tokens that wait on a data-parallel rank that takes requests in turn, over those where they come at random.

    Requests of one length end in the order in which they came, so that the rank with the fewest takes its next one
    after nearly as many others as there are ranks.
    """
    room = times.held(number)
    used = np.clip(rate * times.mean * times.filled(number) / np.maximum(room, 1.0), NOTHING, FULL)
    return regular(1 / times.ranks + IRREGULAR * (1 - used) * (1 - 1 / times.ranks), times.unit, used)


def waits_of(
    times: Times, rate: Array, number: Array, prompts: Prompts, busy: Array, batch: Array, dealt: bool = False
) -> tuple[Array, Array]:
    """Samples of TTFT without front end and slots, (samples, points), and the mean seconds of prefill.

    `busy` is the probability that some sequence decodes; `dealt`: data-parallel ranks take requests in turn. A request
    waits for the end of the step in which it arrives, and those scheduled ahead, which take tokens before it; what its
    own last step has left is for those that follow.
    """
    blocks, prefill = [], []
    mean, ranks, decoding = times.mean, times.ranks, busy * (times.steps > 0)
    for begin in range(0, rate.size, BLOCK):
        part = slice(begin, begin + BLOCK)
        some = Prompts(*(each[..., part] for each in prompts))
        length, room, many, come = some.length, some.room, number[part], rate[part] / ranks
        # Those that arrive with it before it, and as many after it, are geometric as their batch is.
        size = 1 + (batch[part] - 1) / ranks
        beside = np.log(cube()[:, 14:16, np.newaxis]) / np.log(np.maximum(1 - 1 / size, NOTHING))
        beside = np.where(size > 1, np.floor(beside), 0.0)
        state = _inverse(some.share * length, cube()[:, :1])
        step = length[state, np.arange(state.shape[1])]
        place = cube()[:, 1:2]
        step = np.where(state > 0, step, some.without(cube()[:, 12:13], decoding[part], biased=True))
        before = mean * (beside[:, 0] + size * _poisson(come * step * place / size, 2))
        after = mean * (beside[:, 1] + size * _poisson(come * step * (1 - place) / size, 3))
        waiting = state * some.unit * (_in_turn(times, rate[part], many) if dealt else 1.0)
        ahead = waiting - times.taken(waiting, many) + before
        wait = (1 - place) * step
        lagged = np.zeros_like(wait)
        for _ in range(times.lag):
            # Those of the step before the arrival, which are scheduled now.
            state = _inverse(some.share, cube()[:, 8:9])
            step = length[state, np.arange(state.shape[1])]
            step = step * (times.steps > 0)
            left = ahead - before + mean * _poisson(come * step, 9)
            idle = some.without(cube()[:, 13:14], decoding[part], biased=False)
            lagged = lagged + np.where(left > 0, some.seconds(left), idle)
            ahead = left - times.taken(left, many) + before
        own = times.lengths[np.floor(cube()[:, 4:5] * times.lengths.size).astype(int)]
        full = np.ceil((own + ahead) / room - 1e-9) - 1
        taken = np.maximum(times.taken(ahead + own + after, many), 1.0)
        each = some.seconds(ahead + own + after)
        after = after + full * come * mean * each
        rest = np.maximum(ahead + own + after - full * taken, own + ahead - full * room)
        last = some.seconds(rest)
        mine = lagged + full * each + last
        blocks.append(wait + (lagged if times.received else mine))
        prefill.append((np.minimum(full, own / room) * each + last).mean(axis=0))
    spent = np.concatenate(prefill) * (not times.received)
    return np.concatenate(blocks, axis=1), spent
