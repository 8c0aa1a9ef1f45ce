"""The tokens of prompts that wait at the start of a step: a Markov chain, as `roofline.serving.steady` describes it.

State i stands for i times `unit` tokens. In each step some are taken, and a compound Poisson number arrives (by Fourier
transform). Axes of arrays are points (a rate and a number of sequences each), states, and the states that follow.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from roofline.serving.tables import Array
from roofline.serving.times import TINY, Times

STATES, BLOCK = 96, 4
"""States of the chain, and points computed at once: as many as have transforms that fit in the cache of a core."""

COARSE = 4
"""Where the room of a step is fewer states than this, it is made a whole number of them."""

ROUNDS, MOST_OF = 3, (0.0, 0.25, 0.5, 0.75, 0.9, 0.97)
"""Rounds that find what the other data-parallel ranks take, and quantiles between which the most of one is sampled."""

LAGGED = 3
"""Rounds that find whether the step had prompts in which those arrived that are scheduled ahead."""

FULL = 0.97
"""The part of the room for prompts that they use at most, where the chain has a stationary distribution."""


class Prompts(NamedTuple):
    """The stationary distribution of the tokens that wait at the start of a step on a data-parallel rank.

    `length` are the seconds of a step in each state and `share` the states' probabilities, both (states, points); all
    else is by point. `unit` are the tokens of one state, `room` those that a step takes at most. In seconds, `mean` is
    the time from one decode token to the next, `still` that of a step without prompts, and `late` the delay of a
    sequence since it begins where prompts wait. `waiting` are the mean prompts waiting on all ranks, `busy` is the
    share of time in steps with prompts, `none` the probability that the other ranks have none, and `dispersion` the
    variance over the mean of prompts that begin to decode in a step.
    """

    length: Array
    share: Array
    unit: Array
    room: Array
    mean: Array
    waiting: Array
    busy: Array
    still: Array
    none: Array
    dispersion: Array
    late: Array

    def seconds(self, tokens: Array) -> Array:
        """Seconds of a step with some waiting tokens (samples, points)."""
        place = np.minimum(np.where(tokens > 0, np.maximum(tokens / self.unit, 1.0), 0.0), STATES - 1.0)
        low, point = np.minimum(place.astype(int), STATES - 2), np.arange(self.unit.size)
        one = self.length[low, point]
        return np.asarray(one + (place - low) * (self.length[low + 1, point] - one))

    def without(self, at: Array, decoding: Array, biased: bool) -> Array:
        """Seconds of a step without prompts of this rank (samples, points), at quantiles `at` (samples, 1).

        Other ranks may have prompts; else it takes time only while some sequence decodes, `decoding` of the time.
        `biased`: the step is drawn in proportion to its length, as one in which a request arrives.
        """
        # Of few requests the idle time between them is most of both means, whose difference then says nothing.
        others = np.maximum(self.length[0] - self.none * self.still, 0.0) / np.maximum(1 - self.none, TINY)
        alone = self.none * (self.still / self.length[0] if biased else 1.0)
        return np.where(at < alone - 1e-9, decoding * self.still, others)


def prompts_at(times: Times, rate: Array, number: Array, batch: Array) -> Prompts:
    """The distribution at each rate (requests/s), number of decoding sequences, and mean batch of arrivals."""
    parts = [
        _prompts_of(times, *(each[start : start + BLOCK] for each in (rate, number, batch)))
        for start in range(0, rate.size, BLOCK)
    ]
    return Prompts(*(np.concatenate(values, axis=-1) for values in zip(*parts, strict=True)))


def seconds(times: Times, tokens: Any, number: Any) -> Array:
    """Seconds of a step of n sequences with some tokens of prompts of all ranks, or none."""
    decode = times.at(number)
    return np.asarray(np.where(tokens > 0, times.added(number, tokens) + (0.0 if times.alone else decode), decode))


def _prompts_of(times: Times, rate: Array, number: Array, batch: Array) -> Prompts:
    """The chain of waiting tokens; prompts arrive in batches, whose sizes are geometric with the mean `batch`."""
    room = np.maximum(times.room_at(number), 1.0)
    ranks = times.ranks
    batch = 1 + (batch - 1) / ranks
    full, decode, (base, slope) = times.filled(number), times.at(number), times.base_and_slope(number)
    # At the utilisation `used` of 1 or more the chain has no stationary distribution.
    rate = np.minimum(rate, FULL * room / (times.mean * full))
    used = rate * times.mean * full / room
    room = room / ranks
    unit = _unit(times, rate, batch, used, room, decode + base)
    tokens = np.arange(float(STATES)) * unit[:, np.newaxis]  # (points, states)
    taken = np.minimum(tokens, np.maximum(times.taken(tokens, number[:, np.newaxis]), 1.0))
    one = _transforms(times, unit, batch)
    left = (tokens - taken) / unit[:, np.newaxis]
    # What is left, however little, takes a step; of a state that takes several, what is left on average.
    left = np.where((left > 1e-9) & (left < 1) & (unit < room * (1 + 1e-9))[:, np.newaxis], 1.0, left)
    # A replica that only prefills waits for the next request instead of decoding.
    still: Array = decode if times.steps else 1 / np.maximum(rate, 1e-9)
    share, each = np.zeros_like(tokens), (rate / ranks / batch)[:, np.newaxis]
    share[:, 0] = 1.0
    for _ in range(ROUNDS if ranks > 1 else 0):
        share = _solved(_rows(left, _arriving(one, each * _length(times, taken, number, share, still))))
    length = _length(times, taken, number, share, still)
    share, free, rows, plain = _stationary(times, left, one, each * length)
    none = share[:, 0] ** ranks
    mean = np.maximum((share * length).sum(axis=1), still * none)
    cycle = mean / np.maximum(none, 1e-9)  # from one step without prompts to the next
    waiting = ranks * (share * tokens).sum(axis=1) / times.mean
    busy = 1 - none * still / mean
    others = share[:, 0] ** (ranks - 1)
    late = np.zeros(rate.size)
    if times.steps:
        ended = _count(times, tokens, unit) - _count(times, left * unit[:, np.newaxis], unit)
        # The last state of a prompt, where it takes several steps, is left when the prompt ends.
        last = (left > 0) & (left < 1)
        ended[:, 0] = np.where(last, free * ended, 0.0).sum(axis=1) / np.maximum(free[:, 0], TINY)
        ended[last] = 0.0
        parts = (free, plain, ended, length, *([others] if times.alone else []))
        late = _late(None, *parts)
        if (several := unit > room * (1 + 1e-9)).any():
            # Prompts of so many steps outlast the sequence: of the steps that follow only those of the sequence count.
            steps = times.steps / (none[several].min() if times.alone else 1.0)
            late[several] = _late(round(steps), *(each[several] for each in parts))
    # Prompts that arrive while prompts are computed delay others, and so on: a branching process of this mean.
    further = np.clip(rate * np.minimum(slope, times.full(number)), 0.0, 0.95)
    # A rank that computes prompts first decodes only in steps without prompts of its own.
    token = cycle if times.alone else mean / np.maximum(share[:, 0], 1e-9) if times.apart else mean
    dispersion = times.square / (1 - further) ** 2 + rate * token
    if times.alone and ranks == 1 and times.steps:
        dispersion = np.maximum(_dispersion(rows, taken / times.mean) - (times.square - 1), 1.0)
    return Prompts(length.T, share.T, unit, room, token, waiting, busy, still, others, dispersion, late)


def _unit(times: Times, rate: Array, batch: Array, used: Array, room: Array, step: Array) -> Array:
    """The tokens of a state by point, of rates below saturation.

    `used` is the utilisation, `room` the most tokens of a step of one rank, and `step` its seconds with few of them.
    """
    lengths, ranks = times.lengths, times.ranks
    # The states reach to about six times the mean queue of an M/G/1, of one rank.
    expected = rate / ranks * times.mean * step / (1 - used)
    expected = expected + used / (1 - used) * (times.mean * (times.square + 2 * batch - 2) + room) / 4
    expected = expected + times.mean * (batch - 1)
    wide = np.minimum((6 * expected + 2 * lengths.max()) / STATES, times.mean)
    unit = np.minimum(wide, room)
    if lengths.size == 1:  # a prompt is a whole number of states
        wide, unit = (times.mean / np.ceil(times.mean / each - 1e-9) for each in (wide, unit))
    # So is a step's room, where it is few states.
    unit = np.where(room < COARSE * unit, room / np.ceil(room / unit - 1e-9), unit)
    # Where the room is so little that a prompt would be beyond the last state, a state takes several steps.
    return np.asarray(np.where(lengths.max() < STATES * unit, unit, wide))


def _transforms(times: Times, unit: Array, batch: Array) -> Any:
    """Fourier transforms of the tokens of a batch of prompts (points, frequencies), in states of `unit` tokens.

    Each prompt is split between the two states next to it; batches are geometric with the mean `batch`.
    """
    place = np.maximum(times.lengths / unit[:, np.newaxis], 1.0)  # a prompt, however short, takes a step
    whole = (times.mean / unit - 1) / np.maximum(place.mean(axis=1) - 1, TINY)
    place = 1 + (place - 1) * np.minimum(whole, 1.0)[:, np.newaxis]
    one: Any = np.fft.rfft(_split(place))
    many = batch[:, np.newaxis]
    return one / (many - (many - 1) * one)


def _count(times: Times, tokens: Array, unit: Array) -> Array:
    """The prompts that some waiting tokens are of: at least one, but of a part of a state that part of one."""
    return np.minimum(np.maximum(tokens / times.mean, 1.0), tokens / unit[:, np.newaxis])


def _late(
    steps: int | None, share: Array, rows: Array, prompts: Array, length: Array, others: Array | None = None
) -> Array:
    """The seconds by which the `steps` that follow a prompt's last one exceed mean ones; by default all that follow.

    It is the solution of Poisson's equation of the chain `rows`, with its stationary `share` and the seconds `length`
    of steps, averaged over the `prompts` that end in each state. Where prompts are computed first, it is in seconds
    between steps without prompts of any rank; `others` is the probability that the other ranks have none.
    """
    usual = (share * length).sum(axis=1, keepdims=True)
    if others is not None:
        idle = np.zeros_like(share)
        idle[:, 0] = others
        usual = idle * usual / np.maximum((share * idle).sum(axis=1, keepdims=True), 1e-9)
    more = length - usual
    if steps is None:
        system = np.eye(STATES) - rows + share[:, np.newaxis]
        later = np.linalg.solve(system, more[..., np.newaxis])[..., 0] - more
    else:
        later = _following(rows, more[..., np.newaxis], steps)[..., 0]
    weight = share * prompts
    return np.asarray((weight * later).sum(axis=1) / np.maximum(weight.sum(axis=1), TINY))


def _following(rows: Array, values: Array, steps: int) -> Array:
    """The expected sum of values of states over so many steps that follow each, by doubling."""
    found, power = np.zeros_like(values), np.broadcast_to(np.eye(STATES), rows.shape)
    for bit in f"{steps:b}":
        found, power = found + power @ found, power @ power
        if bit == "1":
            found, power = rows @ (values + found), power @ rows
    return found


def _dispersion(rows: Array, prompts: Array) -> Array:
    """Variance over the mean of the prompts from one step without any to the next, by moments of first passage."""
    later, some, first = rows[:, 1:, 1:], prompts[:, 1:, np.newaxis], rows[:, :1, 1:]
    system = np.eye(STATES - 1) - later
    mean = np.linalg.solve(system, some)
    square = np.linalg.solve(system, some * (some + 2 * later @ mean))
    mean, square = ((first @ each)[:, 0, 0] for each in (mean, square))
    return np.asarray(square / mean - mean)


def _length(times: Times, taken: Array, number: Array, share: Array, still: Array) -> Array:
    """Mean seconds of a step in which one rank takes `taken` tokens (points, states), and the others by their `share`.

    Ranks are alike and independent, so that the most that any of the others takes has the distribution function of one
    rank to the power of their number.
    """
    number = number[:, np.newaxis]
    if times.ranks == 1:
        length = seconds(times, taken, number)
        length[:, 0] = still
        return length
    below, others = np.cumsum(share, axis=1), times.ranks - 1
    spent = np.cumsum(share * taken, axis=1) / np.maximum(below, 1e-15)  # the mean of those that take at most so many
    none = below[:, :1] ** others

    def step(most: Array, rest: Array) -> Array:
        mean = (taken + most + (others - 1) * rest) / times.ranks
        return np.asarray(np.maximum(times.step(number, np.maximum(np.maximum(taken, most), 1.0), mean), TINY))

    length = none * np.where(taken > 0, step(np.zeros_like(none), np.zeros_like(none)), still[:, np.newaxis])
    for low, high in zip(MOST_OF, (*MOST_OF[1:], 1.0), strict=True):
        # The most that the others take, between two quantiles where one of them has prompts.
        share_of = none + (1 - none) * (low + high) / 2
        at = np.minimum((below**others < share_of - 1e-12).sum(axis=1), taken.shape[1] - 1)[:, np.newaxis]
        most, rest = (np.take_along_axis(each, at, axis=1) for each in (taken, spent))
        length += (1 - none) * (high - low) * step(most, rest)
    return length


def _stationary(times: Times, left: Array, one: Any, arriving: Array) -> tuple[Array, ...]:
    """The probabilities of states (points, states) and of transitions (points, states, states), each twice.

    The second of each are without steps that are scheduled ahead. With them, a step takes what arrived in the one
    before the last, which had prompts with a probability that depends on the state and is found in a few rounds. `left`
    is what a step leaves, `one` the transform of a prompt's tokens, `arriving` the prompts that arrive in a step.
    """
    arrive = _arriving(one, arriving)
    if not times.steps and times.ranks == 1:
        arrive = np.concatenate([_densities(one[:, np.newaxis]), _of_states(arrive)[:, 1:]], axis=1)
    rows = _rows(left, arrive)
    share = _solved(rows)
    if not times.lag or not times.alone or not times.steps:
        return share, share, rows, rows
    free, plain = share, rows
    none, some = _rows(left, arrive[:, :1]), _of_states(arrive)[:, 1:]
    after = np.broadcast_to(1 - share[:, :1], share.shape)[..., np.newaxis]
    for _ in range(LAGGED):
        with_prompts = share[:, np.newaxis, 1:] / np.maximum(1 - share[:, :1, np.newaxis], TINY)
        rows = (1 - after) * none + after * _rows(left, with_prompts @ some)
        share = _solved(rows)
        joint = (share[:, 1:, np.newaxis] * rows[:, 1:]).sum(axis=1)
        after = np.clip(joint / np.maximum(share, 1e-15), 0.0, 1.0)[..., np.newaxis]
    return share, free, rows, plain


def _arriving(one: Any, arriving: Array) -> Array:
    """The distributions of the tokens of a Poisson number of prompts (points, states, 2 STATES).

    The last states, whose steps are full, have the same distribution, which is computed once.
    """
    differ = int((arriving != arriving[:, -1:]).any(axis=0).sum())
    return _densities(np.exp(arriving[:, : differ + 1, np.newaxis] * (one - 1)[:, np.newaxis]))


def _densities(transforms: Any) -> Array:
    """The distributions of some transforms, over the last axis."""
    found = np.maximum(np.fft.irfft(transforms, 2 * STATES, axis=2), 0.0)
    return np.asarray(found / found.sum(axis=2, keepdims=True))


def _of_states(arrive: Array) -> Array:
    """The distributions of all states, where the last ones have the same."""
    return arrive[:, np.minimum(np.arange(STATES), arrive.shape[1] - 1)]


def _rows(left: Array, arrive: Array) -> Array:
    """Transition probabilities by what a step leaves and the distributions of what arrives in it.

    Arrivals are shifted by what is left, which is split between two states. What is beyond the last state stays in it.
    """
    whole = np.floor(left).astype(int)[..., np.newaxis]
    part, state = left[..., np.newaxis] - whole, np.minimum(np.arange(STATES), arrive.shape[1] - 1)[:, np.newaxis]
    place = state * 2 * STATES + (np.arange(-1, STATES - 1) - whole) % (2 * STATES)
    points = left.shape[0]
    each = np.take_along_axis(arrive.reshape(points, -1), place.reshape(points, -1), axis=1).reshape(place.shape)
    rows = np.empty(place.shape)
    rows[..., :-1] = (1 - part) * each[..., 1:] + part * each[..., :-1]
    rows[..., -1] = np.maximum(1 - rows[..., :-1].sum(axis=2), 0.0)
    return rows


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
