"""The tokens of prompts that wait at the start of a step: a Markov chain (`roofline.serving.steady`)."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.serving.times import NOTHING, Times

Array = NDArray[np.float64]

STATES, BLOCK = 80, 16
"""Numbers of waiting tokens that are told apart, and points at once."""

LAGGED = 3
"""Rounds that find in what steps prompts arrived that are scheduled ahead."""

FULL = 0.97
"""The part of the room for prompts that they use at most, where the chain has a stationary distribution."""


class Prompts(NamedTuple):
    """The stationary distribution of the tokens that wait at the start of a step, at each point.

    `length` are the seconds of a step in each state (states, points), `share` the states' probabilities, `unit` the
    tokens that a state stands for, `room` those that a step takes, `mean` the time from one decode token to the next,
    `waiting` the mean prompts waiting, and `cycle` the time from one step without prompts to the next.
    """

    length: Array
    share: Array
    unit: Array
    room: Array
    mean: Array
    waiting: Array
    cycle: Array


def prompts_at(times: Times, rate: Array, number: Array) -> Prompts:
    """The distribution at each rate, with each number of sequences that decode."""
    parts = [
        _prompts_of(times, rate[start : start + BLOCK], number[start : start + BLOCK])
        for start in range(0, rate.size, BLOCK)
    ]
    return Prompts(*(np.concatenate(values, axis=-1) for values in zip(*parts, strict=True)))


def seconds(times: Times, tokens: Any, number: Any) -> Array:
    """Seconds of a step of n sequences with some tokens of prompts, or none."""
    decode = times.at(number)
    found: Array = np.where(tokens > 0, times.added(number, tokens) + (0.0 if times.alone else decode), decode)
    return found


def _prompts_of(times: Times, rate: Array, number: Array) -> Prompts:
    """The chain of waiting tokens: what a step leaves, and a compound Poisson number of those that arrive in it."""
    states = np.arange(float(STATES))
    room = np.maximum(times.held(number), 1.0)
    lengths = times.lengths
    full = seconds(times, room, number)
    # Beyond the room the chain has no stationary distribution.
    rate = np.minimum(rate, FULL * room / (times.mean * full))
    used = rate * times.mean * full / room
    expected = rate * times.mean * (times.at(number) + times.base(number)) / (1 - used)
    expected = expected + used / (1 - used) * (times.mean * times.unit + room) / 4
    unit = (6 * expected + 2 * lengths.max()) / STATES
    if lengths.size == 1:  # a whole number of states
        unit = np.where(unit < times.mean, times.mean / np.maximum(np.floor(times.mean / unit), 1.0), unit)
    tokens = states * unit[:, np.newaxis]  # (points, states)
    taken = np.minimum(tokens, np.maximum(times.taken(tokens, number[:, np.newaxis]), 1.0))
    length = seconds(times, taken, number[:, np.newaxis])
    if not times.steps:  # Nothing decodes, and without prompts the next request is awaited.
        length[:, 0] = 1 / np.maximum(rate, 1e-9)
    # Fourier transforms of the prompts' tokens, each split between the two states next to it.
    place = lengths / unit[:, np.newaxis]
    phase = -2j * np.pi * np.arange(STATES + 1) / (2 * STATES)
    turn = np.exp(phase[:, np.newaxis] * np.arange(2 * STATES))
    one = _split(place) @ turn.T  # (points, frequencies)
    left = (tokens - taken) / unit[:, np.newaxis]
    left = np.where((left > 1e-9) & (left < 1), 1.0, left)  # what is left, however little, takes a step
    part = (left - np.floor(left))[..., np.newaxis]
    begin = turn.T[np.floor(left).astype(int)]
    begin = begin * (1 - part + part * turn[:, 1])
    share = _stationary(times, begin, one, rate[:, np.newaxis] * length)
    mean = np.maximum((share * length).sum(axis=1), times.at(number) * share[:, 0])
    cycle = mean / np.maximum(share[:, 0], 1e-9)
    waiting = (share * tokens).sum(axis=1) / times.mean
    return Prompts(length.T, share.T, unit, room, cycle if times.alone else mean, waiting, cycle)


def _stationary(times: Times, begin: Any, one: Any, arriving: Array) -> Array:
    """The probabilities of states (points, states) from the transforms of what a step leaves and of a prompt.

    With steps that are scheduled ahead, those that come to a step arrived in the one before the last, with prompts with
    some probability that depends on the state: found in a few rounds.
    """
    if not times.lag or not times.alone or not times.steps:
        arrive = np.exp(arriving[..., np.newaxis] * (one - 1)[:, np.newaxis])
        if not times.steps:
            arrive[:, 0] = one
        return _solved(_rows(begin * arrive))
    least = arriving[:, :1]
    none = _rows(begin * np.exp(least * (one - 1))[:, np.newaxis])
    most = least + arriving[:, 1:2]
    after = np.full(arriving.shape, 0.5)[..., np.newaxis]
    for _ in range(LAGGED):
        some = _rows(begin * np.exp(most * (one - 1))[:, np.newaxis])
        rows = (1 - after) * none + after * some
        share = _solved(rows)
        joint = (share[:, 1:, np.newaxis] * rows[:, 1:]).sum(axis=1)
        after = np.clip(joint / np.maximum(share, 1e-15), 0.0, 1.0)[..., np.newaxis]
        most = (share * arriving)[:, 1:].sum(axis=1, keepdims=True) / np.maximum(1 - share[:, :1], NOTHING)
    return share


def _rows(transform: Any) -> Array:
    """Transition probabilities; what is beyond the last state stays in it."""
    rows = np.maximum(np.fft.irfft(transform, 2 * STATES, axis=2), 0.0)
    rows[..., STATES - 1] += rows[..., STATES:].sum(axis=2)
    found: Array = rows[..., :STATES] / rows[..., :STATES].sum(axis=2, keepdims=True)
    return found


def _solved(rows: Array) -> Array:
    """The stationary distributions of transition matrices."""
    system = np.swapaxes(rows, 1, 2) - np.eye(STATES)
    system[:, -1] = 1.0
    share = np.linalg.solve(system, np.broadcast_to(np.eye(STATES)[:, -1:], (rows.shape[0], STATES, 1)))[..., 0]
    share = np.maximum(share, 0.0)
    return np.asarray(share / share.sum(axis=1, keepdims=True))


def _split(place: Array) -> Array:
    """The distribution of prompts over states (points, 2 STATES) that lie at some places (points, lengths)."""
    found = np.zeros((place.shape[0], 2 * STATES))
    low = np.floor(place).astype(int)
    point = np.arange(place.shape[0])[:, np.newaxis]
    np.add.at(found, (point, low), (1 - place + low) / place.shape[1])
    np.add.at(found, (point, low + 1), (place - low) / place.shape[1])
    return found
