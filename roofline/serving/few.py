"""Open loops of few sequences: each number of them as a closed loop (`roofline.serving.steady`).

Where few sequences fill the KV cache, requests wait for room, and no prompt is computed while all slots decode. A
closed loop of k requests has the throughput X(k), and an open one of rate L with k requests inside is like it (flow
equivalence; Chandy, Herzog and Woo 1975), up to c slots:

    P(k) = P(k - 1) L / X(min(k, c))

A request that finds k others has the TTFT of the loop of k + 1. Those that find all slots taken wait for one, which
takes 1 / (X(c) - L) on average where services are exponential, and (1 / b + v) / 2 of it here, with b the burstiness of
arrivals and v the squared coefficient of variation of prompts (Kingman 1961). Sequences of a closed loop with outputs
of one length stay together, and those of an open one do not: loops have exponential outputs.
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
from roofline.serving.waits import QUANTILES, SAMPLES, cube, ends

FEW = 5
"""Slots below which an open loop is one of few sequences."""

LONGEST = 1 - 1e-4
"""The share of lengths that are no longer than the longest that are simulated."""

STABLE = 0.999
"""The largest rate over that of all slots."""


@cache
def _exponential(mean: int) -> Lengths:
    """The same object each time, by which orbits are found again."""
    return parse_lengths(f"exponential:mean={mean}")


def few_sequences(replica: Replica, load: Load, times: Times, rate: Array, slots: float) -> tuple[Array, Array]:
    """Samples of TTFT and the further columns of `steady._open`."""
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
    # Probabilities of 0 to c requests (states, points); more than c are as c.
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
    loop = (np.cumsum(found, axis=0)[np.newaxis] < cube()[:, 7, np.newaxis, np.newaxis]).sum(axis=1)
    ttft = np.array([np.quantile(each.ttft, (np.arange(SAMPLES) + 0.5) / SAMPLES) for each in loops])
    place = (cube()[:, :1] * SAMPLES).astype(int)
    slot = (1 / load.burstiness + times.unit - 1) / 2 / (through[-1] * (1 - used))
    samples = ttft[np.minimum(loop, users.size - 1), place]
    samples = samples + np.log(np.maximum(chance[-1] / (1 - cube()[:, 5:6]), 1.0)) * slot
    running, cached, share = np.array([(each.running, each.cached, each.prefilling) for each in loops]).T @ chance[1:]
    # The rest of the step in which they arrive: those of a closed loop arrive at its end.
    full = times.filled(slots)
    samples = samples + cube()[:, 1:2] * (share * full + (1 - share) * times.at(slots))
    return samples, np.stack([*tpot, *ends(load, samples, tpot), running, chance[-1] * slot * rate, cached, share])
