"""The prompts that wait at the start of a step: a Markov chain (`roofline.serving.steady`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.serving.times import Times

Array = NDArray[np.float64]

STATES, ROUNDS, BLOCK = 28, 40, 256
"""Waiting prompts that are told apart, multiplications that find their distribution, and points at once."""


class Prompts(NamedTuple):
    """The stationary distribution of the prompts waiting at the start of a step, at each point.

    `length` are the seconds of a step in each state (states, points), `share` the states' probabilities, `unit` the
    prompts that a state stands for, `mean` the time from one decode token to the next, and `cycle` that from one step
    without prompts to the next.
    """

    length: Array
    share: Array
    unit: Array
    mean: Array
    cycle: Array


def prompts_at(times: Times, rate: Array, number: Array) -> Prompts:
    """The distribution at each rate, with each number of sequences that decode."""
    parts = [
        _prompts_of(times, rate[start : start + BLOCK], number[start : start + BLOCK])
        for start in range(0, rate.size, BLOCK)
    ]
    return Prompts(*(np.concatenate(values, axis=-1) for values in zip(*parts, strict=True)))


def _prompts_of(times: Times, rate: Array, number: Array) -> Prompts:
    """The chain of waiting prompts, by repeated multiplication from its mean."""
    from scipy.special import gammaln

    decode = times.at(number)
    expected = rate * (decode + times.base(number)) / np.maximum(1 - rate * times.full(number), 0.02)
    unit = np.maximum(times.unit, np.ceil(expected / (STATES / 4)))
    most = times.most / unit
    state = np.arange(float(STATES))[:, np.newaxis]
    added = times.adding(np.minimum(state, most) * unit, number)
    length = np.where(state > 0, added + (0.0 if times.alone else decode), decode)
    if not times.steps:  # Nothing decodes, and without prompts the next request is awaited.
        length[0] = 1 / np.maximum(rate, 1e-9)
    arriving = np.maximum(rate / unit * length, 1e-300)
    log = np.log(arriving)
    left = np.maximum(state - most, 0.0)
    share = np.zeros((STATES, rate.size))
    share[0] = 1.0
    # transition[j, i]: from state i to j; arrivals beyond the last state stay in it. A prompt of which a part is left
    # is left whole with the probability of that part.
    more = state[:, np.newaxis] - np.floor(left)[np.newaxis]
    come = np.maximum(more, 0.0)
    transition = np.where(more >= 0, np.exp(come * log[np.newaxis] - arriving[np.newaxis] - gammaln(come + 1)), 0.0)
    part = (left - np.floor(left))[np.newaxis]
    transition[1:] = (1 - part) * transition[1:] + part * transition[:-1]
    transition[:1] *= 1 - part
    transition[-1] += np.maximum(1 - transition.sum(axis=0), 0.0)
    if not times.steps:
        transition[:, 0] = np.eye(STATES)[1][:, np.newaxis]
    transition = np.moveaxis(transition, 2, 0)
    vector = np.moveaxis(share, 1, 0)[..., np.newaxis]
    for _ in range(ROUNDS):
        vector = transition @ vector
    share = vector[..., 0].T / vector[..., 0].T.sum(axis=0)
    mean = np.maximum((share * length).sum(axis=0), decode * share[0])
    cycle = mean / np.maximum(share[0], 1e-9)
    return Prompts(length, share, unit, cycle if times.alone else mean, cycle)
