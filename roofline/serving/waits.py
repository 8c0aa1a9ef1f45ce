"""What requests of an open loop wait for in the scheduler: samples of TTFT (`roofline.serving.steady`)."""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from roofline.serving.load import Load
from roofline.serving.prompts import BLOCK, FULL, Prompts
from roofline.serving.tables import Array
from roofline.serving.times import TINY, Times

QUANTILES, P95, SAMPLES = (0.5, 0.95, 0.99), NormalDist().inv_cdf(0.95), 512
"""Reported quantiles of latencies, the normal quantile of the second, and the samples of the distribution of TTFT."""

STEP, PLACE, BEFORE, AFTER, PROMPT, SLOT, FRONT, NUMBER = range(8)
NEXT_STEP, NEXT_ARRIVALS, OUTPUT, TOKEN, OTHERS, NEXT_OTHERS, MATES_BEFORE, MATES_AFTER = range(8, 16)
"""What is random of a request, as coordinates of the unit cube: the step in which it arrives, its place in this step,
arrivals before and after it, its prompt, the waits for a slot and the front end, the number of sequences; the scheduled
step and the arrivals before that; its output, time per token, other ranks' prompts in both steps, and batch mates."""

IRREGULAR = 0.67
"""Variance of the gaps between two requests of a data-parallel rank without load, over that of random (Poisson) ones.

In event simulations with outputs of one length it is 0.4 to 0.5 at 0.3 of the largest rate, and 0.2 to 0.4 at 0.85:
the irregularity evens out over as many requests as there are ranks, and queues near saturation hold more.
"""


@cache
def _cube() -> Array:
    """Points of the unit cube, one for each sample, as a Latin hypercube (McKay, Beckman and Conover 1979)."""
    places = np.tile(np.arange(SAMPLES), (MATES_AFTER + 1, 1))
    return np.asarray((np.random.default_rng(0).permuted(places, axis=1).T + 0.5) / SAMPLES)


def uniform(coordinate: int) -> Array:
    """A coordinate of all samples (samples, 1), uniform between 0 and 1."""
    return _cube()[:, coordinate : coordinate + 1]


@cache
def _normal(coordinate: int) -> Array:
    """The standard normal quantiles of a coordinate (samples, 1)."""
    return np.array([[NormalDist().inv_cdf(place)] for place in uniform(coordinate)[:, 0].tolist()])


def delayed(chance: Array, mean: Array, coordinate: int) -> Array:
    """Quantiles of a wait (samples, points) that occurs with some `chance` and is then exponential with this `mean`."""
    return np.asarray(np.log(np.maximum(chance / (1 - uniform(coordinate)), 1.0)) * mean)


def ends(load: Load, samples: Array, tpot: Array) -> Array:
    """QUANTILES of E2E latency (quantiles, points): of samples of TTFT, and normal TPOT by its mean and p95."""
    tokens = np.maximum(load.outputs.inverse(uniform(OUTPUT)) - 1, 0.0)
    each = tpot[0] + (tpot[2] - tpot[0]) / P95 * _normal(TOKEN)
    return np.asarray(np.quantile(samples + tokens * each, QUANTILES, axis=0))


def _inverse(share: Array, at: Array) -> NDArray[np.intp]:
    """The state of each sample (samples, points) at quantiles `at` (samples, 1) of a distribution (states, points)."""
    steps = np.cumsum(share, axis=0)
    found = np.stack([np.searchsorted(each, at[:, 0] * each[-1]) for each in steps.T], axis=1)
    return np.asarray(np.minimum(found, share.shape[0] - 1))


def _poisson(mean: Array, coordinate: int) -> Array:
    """Quantiles of a Poisson distribution, by the cube-root normal approximation (Wilson and Hilferty), exact for 0."""
    at, z = uniform(coordinate), _normal(coordinate)
    mean = np.maximum(mean, 1e-12)
    exact = np.where(at < np.exp(-mean), 0.0, 1.0)
    nine = 9 * np.maximum(mean, 0.05)
    approximate = np.floor(mean * np.maximum(1 - 1 / nine + z / np.sqrt(nine), 0.0) ** 3 + 0.35)
    return np.asarray(np.where(mean < 0.3, exact, np.maximum(approximate, exact)))


def regular(arrivals: float | Array, square: float, used: Array) -> Array:
    """The mean wait in a GI/G/1 queue over that in an M/G/1 queue of the same utilisation `used`.

    `arrivals` is the squared coefficient of variation of the gaps between arrivals, `square` one plus that of services
    (Kraemer and Langenbach-Belz, Approximate Formulae for the Delay in the Queueing System GI/G/1, 1976).
    """
    both, used = arrivals + square - 1, np.clip(used, TINY, FULL)
    return np.asarray(both / square * np.exp(-2 * (1 - used) / (3 * used) * (1 - arrivals) ** 2 / both))


def _in_turn(times: Times, rate: Array, number: Array) -> Array:
    """The tokens that wait on a data-parallel rank that takes requests in turn, over those where they come at random.

    Requests of one length end in the order in which they came, so that the rank with the fewest takes its next one
    after nearly as many others as there are ranks.
    """
    room = times.room_at(number)
    used = np.clip(rate * times.mean * times.filled(number) / np.maximum(room, 1.0), TINY, FULL)
    return regular(1 / times.ranks + IRREGULAR * (1 - used) * (1 - 1 / times.ranks), times.square, used)


def _geometric(mean: Array, coordinate: int) -> Array:
    """Quantiles of the requests of a batch on one side of a given one: geometric, with a `mean` of 1 plus theirs."""
    found = np.floor(np.log(uniform(coordinate)) / np.log(np.maximum(1 - 1 / mean, TINY)))
    return np.asarray(np.where(mean > 1, found, 0.0))


def waits_of(
    times: Times, rate: Array, number: Array, prompts: Prompts, busy: Array, batch: Array, in_turn: bool = False
) -> tuple[Array, Array]:
    """Samples of TTFT without front end and slots, (samples, points), and the mean seconds of prefill.

    `busy` is the probability that some sequence decodes, `batch` the mean requests that arrive together; `in_turn`:
    data-parallel ranks take requests in turn. A request arrives in a step with a probability proportional to its length
    and waits for its end, and for the steps that are scheduled ahead, which take tokens before it. Then the tokens
    ahead of it and its own fill steps; what the last of these has room for is taken by those that follow.
    """
    blocks, prefill = [], []
    mean, ranks, decoding = times.mean, times.ranks, busy * (times.steps > 0)
    for begin in range(0, rate.size, BLOCK):
        part = slice(begin, begin + BLOCK)
        chain = Prompts(*(each[..., part] for each in prompts))
        length, room, sequences, rate_of_rank = chain.length, chain.room, number[part], rate[part] / ranks
        # A batch comes to all ranks: `size` is the mean of what one of them has of it.
        size = 1 + (batch[part] - 1) / ranks
        state = _inverse(chain.share * length, uniform(STEP))
        step = length[state, np.arange(state.shape[1])]
        place = uniform(PLACE)
        step = np.where(state > 0, step, chain.without(uniform(OTHERS), decoding[part], biased=True))
        before = mean * (_geometric(size, MATES_BEFORE) + size * _poisson(rate_of_rank * step * place / size, BEFORE))
        after = mean * (
            _geometric(size, MATES_AFTER) + size * _poisson(rate_of_rank * step * (1 - place) / size, AFTER)
        )
        waiting = state * chain.unit * (_in_turn(times, rate[part], sequences) if in_turn else 1.0)
        ahead = waiting - times.taken(waiting, sequences) + before
        wait = (1 - place) * step
        lagged = np.zeros_like(wait)
        for _ in range(times.lag):
            # The next step is already scheduled: it takes what had arrived before the present one began.
            state = _inverse(chain.share, uniform(NEXT_STEP))
            step = length[state, np.arange(state.shape[1])] * (times.steps > 0)
            left = ahead - before + mean * _poisson(rate_of_rank * step, NEXT_ARRIVALS)
            idle = chain.without(uniform(NEXT_OTHERS), decoding[part], biased=False)
            lagged = lagged + np.where(left > 0, chain.seconds(left), idle)
            ahead = left - times.taken(left, sequences) + before
        own = times.lengths[np.floor(uniform(PROMPT) * times.lengths.size).astype(int)]
        full = np.ceil((own + ahead) / room - 1e-9) - 1  # full steps before the one in which its prompt ends
        taken = np.maximum(times.taken(ahead + own + after, sequences), 1.0)
        each = chain.seconds(ahead + own + after)
        after = after + full * rate_of_rank * mean * each
        rest = np.maximum(ahead + own + after - full * taken, own + ahead - full * room)
        last = chain.seconds(rest)
        blocks.append(wait + (lagged if times.received else lagged + full * each + last))
        prefill.append((np.minimum(full, own / room) * each + last).mean(axis=0))
    spent = np.concatenate(prefill) * (not times.received)
    return np.concatenate(blocks, axis=1), spent
