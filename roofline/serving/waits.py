"""What requests of an open loop wait for in the scheduler: samples of TTFT (`roofline.serving.steady`)."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from roofline.serving.prompts import BLOCK, Prompts, seconds
from roofline.serving.times import Times

Array = NDArray[np.float64]

SAMPLES = 256
"""Requests that sample the distribution of TTFT."""


@cache
def cube() -> Array:
    """Evenly spread points of the unit cube, one a sample: Roberts's sequence, of x^11 = x + 1."""
    root = 2.0
    for _ in range(50):
        root = (1 + root) ** (1 / 11)
    points: Array = (0.5 + np.arange(1, SAMPLES + 1)[:, np.newaxis] / root ** np.arange(1.0, 11)) % 1
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


def waits_of(times: Times, rate: Array, number: Array, prompts: Prompts, busy: Array) -> tuple[Array, Array]:
    """Samples of TTFT without front end and slots, (samples, points), and the prompts that wait behind on average.

    `busy` is the probability that some sequence decodes. A request waits for the end of the step in which it arrives,
    and those scheduled ahead, which take tokens before it; what its own last step has left is for those that follow.
    """
    blocks, behind = [], []
    mean = times.mean
    for begin in range(0, rate.size, BLOCK):
        part = slice(begin, begin + BLOCK)
        length, room, many, come = prompts.length[:, part], prompts.room[part], number[part], rate[part]
        state = _inverse(prompts.share[:, part] * length, cube()[:, :1])
        step = length[state, np.arange(state.shape[1])]
        place = cube()[:, 1:2]
        still = 1.0 if times.steps else 0.0
        step = np.where(state > 0, step, still * busy[part] * step)
        before = mean * _poisson(come * step * place, cube()[:, 2:3])
        after = mean * _poisson(come * step * (1 - place), cube()[:, 3:4])
        waiting = state * prompts.unit[part]
        ahead = waiting - times.taken(waiting, many) + before
        wait = (1 - place) * step
        lagged = np.zeros_like(wait)
        for _ in range(times.lag):
            # Those of the step before the arrival, which are scheduled now.
            state = _inverse(prompts.share[:, part], cube()[:, 8:9])
            step = length[state, np.arange(state.shape[1])]
            step = step * (times.steps > 0)
            left = ahead - before + mean * _poisson(come * step, cube()[:, 9:10])
            taken = times.taken(left, many)
            lagged = lagged + seconds(times, taken, many) * np.where(left > 0, 1.0, still * busy[part])
            ahead = left - taken + before
        own = times.lengths[np.floor(cube()[:, 4:5] * times.lengths.size).astype(int)]
        # Of those ahead, each data-parallel rank has its part.
        rank, on_rank = room / times.ranks, own + ahead / times.ranks
        full = np.ceil(on_rank / rank - 1e-9) - 1
        taken = np.maximum(times.taken(ahead + own + after, many), 1.0)
        each = seconds(times, taken, many)
        after = after + full * come * mean * each
        rest = np.maximum(ahead + own + after - full * taken, on_rank - full * rank)
        taken = np.maximum(times.taken(rest, many), 1.0)
        last = seconds(times, taken, many)
        mine = lagged + full * each + last
        blocks.append(wait + (lagged if times.received else mine))
        behind.append((np.maximum(rest - taken, 0.0) / mean + come * (lagged + last)).mean(axis=0))
    return np.concatenate(blocks, axis=1), np.concatenate(behind)
