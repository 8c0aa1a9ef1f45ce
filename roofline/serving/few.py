"""Open loops of few sequences: each number of them as a closed loop (`roofline.serving.steady`).

Where few sequences fill the KV cache, requests wait for room, and no prompt is computed while all slots decode. A
closed loop of k requests has a throughput of X(k) requests/s. An open loop of L requests/s is taken to serve as many
while k requests are inside, up to c slots (flow equivalence; Chandy, Herzog and Woo 1975), so that k are inside with
probability

    P(k) = P(k - 1) L / X(min(k, c))

A request that finds k others has the TTFT of the loop of k + 1. One that finds all slots taken waits for one, which
takes 1 / (X(c) - L) on average where services are exponential (M/M/c), and (1 / b + v) / 2 times as long here: b is the
burstiness of arrivals and v the squared coefficient of variation of prompts (Kingman 1961). In a closed loop sequences
with outputs of one length would stay together, which they do not in an open one: the loops have exponential outputs.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from msgspec.structs import replace

from roofline.scenario.lengths import Lengths, parse_lengths
from roofline.serving.closed_loop import orbit_of
from roofline.serving.load import Load
from roofline.serving.replica import Replica
from roofline.serving.tables import Array
from roofline.serving.times import Times
from roofline.serving.waits import NUMBER, PLACE, QUANTILES, SAMPLES, SLOT, STEP, delayed, ends, uniform

FEW = 5
"""Slots below which an open loop is one of few sequences."""

LONGEST = 1 - 1e-4
"""The quantile of a length that stands for the longest one, since exponential lengths have no largest."""

STABLE = 0.999
"""The largest L / X(c): at 1 the queue would grow without bound."""


@cache
def _exponential(mean: int) -> Lengths:
    """Exponential lengths: the same object for each mean, by which the cache of `orbit_of` finds its loop again."""
    return parse_lengths(f"exponential:mean={mean}")


def few_sequences(replica: Replica, load: Load, times: Times, rate: Array, slots: float) -> tuple[Array, Array]:
    """Samples of TTFT (samples, points) and further figures of each point, as of `steady._open`."""
    output = load.outputs
    if not output.varies:
        varied = _exponential(round(output.mean))
        # Where outputs longer than those that are asked for do not fit, all have the length asked for.
        if load.prompts.inverse(LONGEST) + varied.inverse(LONGEST) <= replica.kv_tokens:
            output = varied
    closed = replace(load, rate=None, concurrency=1, generate=output)
    users = np.arange(1, int(slots) + 1)
    loops = [orbit_of(replica, closed, slots, int(number)) for number in users]
    through = users / [loop.ttft.mean() + times.tokens * loop.token for loop in loops]
    through = np.maximum.accumulate(through)[:, np.newaxis]
    # P(0) to P(c) (states, points), the last with all beyond it, which fall off as a geometric series.
    chance = np.concatenate([np.ones((1, rate.size)), np.cumprod(rate / through, axis=0)])
    used = np.minimum(rate / through[-1], STABLE)
    chance[-1] /= 1 - used
    chance /= chance.sum(axis=0)
    spent = chance[1:] * through
    tpot = np.array([[loop.token, *np.quantile(loop.tpot, QUANTILES)] for loop in loops]).T @ (
        spent / spent.sum(axis=0)
    )
    found = chance[:-1].copy()
    found[-1] += chance[-1]
    loop = (np.cumsum(found, axis=0)[np.newaxis] < uniform(NUMBER)[..., np.newaxis]).sum(axis=1)
    ttft = np.array([np.quantile(each.ttft, (np.arange(SAMPLES) + 0.5) / SAMPLES) for each in loops])
    place = (uniform(STEP) * SAMPLES).astype(int)
    slot = (1 / load.burstiness + times.square - 1) / 2 / (through[-1] * (1 - used))
    samples = ttft[np.minimum(loop, users.size - 1), place]
    samples = samples + delayed(chance[-1], slot, SLOT)
    running, cached, share = np.array([(each.running, each.cached, each.prefilling) for each in loops]).T @ chance[1:]
    # A request of a closed loop arrives at the end of a step, one of an open loop waits for the rest of it, too.
    full = times.filled(slots)
    samples = samples + uniform(PLACE) * (share * full + (1 - share) * times.at(slots))
    return samples, np.stack([*tpot, *ends(load, samples, tpot), running, chance[-1] * slot * rate, cached, share])
