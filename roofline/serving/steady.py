"""The steady state of a replica under a load: for arrays of rates or concurrencies.

Open loops.

Steps. A step of n decoding sequences with w tokens of prompts takes X(n, w) seconds, s(n) = X(n, 0) (`Times`, from
`StepTimes`); it takes at most r(n) tokens of prompts, what the sequences leave of the budget. Requests arrive at rate
L, so that the tokens waiting at the start of a step are a Markov chain

    w' = max(w - r(n), 0) + tokens of Poisson(L X(n, min(w, r(n)))) prompts

(`roofline.serving.prompts`; a prompt longer than r takes several steps), whose stationary distribution gives the mean
step T(n). Steps that are scheduled ahead take those that arrived in the one before the last. Data-parallel ranks are
alike and independent: each has its own chain, and the step is that of the one with the most tokens, the others' by
their stationary distribution. With outputs of one length ranks take requests in turn, and fewer prompts wait.

Sequences. A request takes G steps. In steps as the unit of time a sequence stays G, whatever the steps take; the number
n that runs changes by batches of mean B, at level n upwards as often as downwards (level crossing; Brill 2008):

    P(n + 1) min(n + 1, c) / G = L / B  sum over k <= n of P(k) T(k) Pr(batch > n - k)

with c slots: the sequences that the engine runs at most, or that fit in the KV cache (with few of them:
`roofline.serving.few`); a step begins no more prompts than find room in it. Batches have the variance of the prompts
that begin in a step, times 2 E[min] / E of two outputs: 1 for exponential ones, as here, and 2 for equal ones. TPOT is
the mean of T over the sequences, and what the prompts that wait when a sequence begins delay its steps, by Poisson's
equation of the chain. Those beyond c wait for a slot, E[(n - c)+] / L on average (Little). The largest stable rate is
the largest n / (G T), of the n <= c whose successors' prompts, n / G a step, find room.

E2E latency is TTFT and a request's own steps; running are the requests in prefill or decode, all others wait (Little).

TTFT. A request arrives in a step with probability proportional to its length, waits for its rest, for steps that are
scheduled ahead, and for those that the tokens ahead and its own fill, with few, some and many sequences.

Bursty requests (gamma-distributed gaps of shape b < 1) come as a Poisson process of geometric batches, as large as
their renewal function has it in the time that the prompts of a batch take, at most (1 + 1 / b) / 2.

Closed loops are followed step by step for a few rounds (`roofline.serving.closed_loop`), with L from C = L (TTFT + G T)
(Little). Of a long series of rates or concurrencies some are solved, and those between them are interpolated.
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
from roofline.serving.times import NOTHING, Times, slots_of, times_of
from roofline.serving.waits import P95, QUANTILES, SAMPLES, cube, ends, waits_of
from roofline.specs.scheduler import Scheduler

ORBITS, QUEUED = 24, 1.25
"""Closed loops that are followed at most, and the most requests in flight of one, over the slots."""

RATES = 40
"""Rates of an open loop at which it is solved at most."""

APART = 20
"""Closed loops that are followed for a factor e in requests in flight, at most."""

NODES, WEIGHTS = (-math.sqrt(3), 0.0, math.sqrt(3)), (1 / 6, 5 / 6, 1.0)
"""Deviations of the running sequences from their mean at which requests wait, and their cumulative weights."""

ITERATIONS = 40
"""Rounds that find the running sequences of an open loop."""

CHECKED, NEGLIGIBLE = 16, 1e-20
"""Numbers of sequences between two looks at their probabilities, and what is negligible of the largest."""


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


EXTENSIVE = ("rate", "running", "waiting", "queued", "cached", "saturation", "slots")
"""What copies add up."""


def largest_rate(replica: Replica, load: Load) -> float:
    """The largest stable rate of an open loop in requests/s, of all copies."""
    slots = slots_of(replica, load)
    return replica.copies * saturation_of(replica, load, times_of(replica, load, slots))


def saturation_of(replica: Replica, load: Load, times: Times) -> float:
    """The largest stable rate: of the steps, with some number of sequences, and of the front end."""
    each = replica.scheduler.front(load.means[0])
    return min(times.stable, 1 / each if each else math.inf)


def check_steps(parted: int) -> None:
    """Raise RooflineError where prompts wait for steps of theirs, or have a part of one."""
    if parted:
        raise RooflineError(
            "a steady state has prompts in every step, and all of its tokens for them: say how many requests to"
            " simulate, such as 500",
            options=["simulate"],
        )


def steady(replica: Replica, load: Load, values: Any) -> Steady:
    """The steady state at each of `values`: concurrencies of a closed loop, else rates in requests/s.

    Raises RooflineError for rates where prompts wait for steps of theirs, or have a part of one.
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
    """Seconds outside the scheduler, samples of them, and steps between two polls while others run.

    The front end takes one request, of a mean `prompt`, after the other (M/D/1, with an exponential wait of those that
    wait).
    """
    each = policy.front(prompt)
    used = np.minimum(rate * each, 0.95)
    wait = np.log(np.maximum(used / (1 - cube()[:, 6:7]), 1.0)) * each / (1 - used) / 2
    front: Array = policy.received(prompt) + wait
    return front + (busy * (policy.poll - 1) / 2 + policy.stream - 1) * step


def summary(samples: Array) -> Array:
    """Mean and QUANTILES of samples (samples, points)."""
    return np.concatenate([samples.mean(axis=0)[np.newaxis], np.quantile(samples, QUANTILES, axis=0)])


def _tpot(times: Times, prompts: Prompts, rate: Array, step: Array, deviation: Array) -> Array:
    """Mean and percentiles of TPOT, whose deviation is that of sequences and of the prompts in a request's steps."""
    each = np.maximum(prompts.mean - prompts.still, 0.0) / np.maximum(rate * prompts.mean, NOTHING)
    own = np.sqrt(prompts.dispersion * rate * step / max(times.steps, 1.0)) * each
    spread = np.hypot(own, deviation)
    return np.stack([step, *(step + z * spread for z in (0.0, P95, 2.326))])


def _closed(replica: Replica, load: Load, times: Times, points: Array, slots: float) -> Steady:
    """A closed loop: the orbits of some numbers of requests in flight, with those between them interpolated.

    With many more of them than run, the others wait (Little).
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
    if load.outputs.varies:  # a few rounds have less of the long ones
        e2e = ends(load, samples.T, tpot.T).T
    rate = users / (samples.mean(axis=1) + times.tokens * tpot[:, 0])
    saturation = max(saturation_of(replica, load, times), float(rate.max()))
    queued = np.maximum(users - slots, [each.queued for each in found])
    kept = np.column_stack([samples, tpot, e2e, [each.prefilling for each in found]])
    inside = np.clip(points, 1, most)
    kept = np.array([np.interp(inside, users, column) for column in kept.T])
    counts = np.array([rate, [each.running for each in found], queued, [each.cached for each in found]])
    # Less than one request of each of several copies.
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
    """The mean time between decode tokens of n sequences, with arrivals at their mean."""
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


COUNTED, WITHIN = 400, 0.5
"""Requests that arrive together at most, and the part of the time of their prompts in which they do (simulations)."""


def _together(times: Times, burstiness: float, rate: Array, number: Array) -> Array:
    """The mean size of the geometric batches in which bursty requests arrive, as those see that wait for a step.

    In the t seconds after a request come L t others and the rest of its batch, or of a renewal process M(t), the
    renewal function (Cox 1962); of gamma-distributed gaps with shape b, M(t) - L t grows to (1 / b - 1) / 2. Here t is
    half the time in which a batch's prompts are computed.
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
    """Rates, the sequences there, their prompts, and the steps by which others delay a request.

    `ratio` is the mean step over `_mean_step` at `nodes`, with fewer and more sequences (nodes, points), `longer` the
    index of dispersion of arrivals over many steps, 1 / b, over that of batches of the mean m, 2 m - 1.
    """

    rate: Array
    number: Array
    prompts: Prompts
    more: Array
    nodes: Array
    ratio: Array
    longer: Array


def _open(replica: Replica, load: Load, times: Times, rate: Array, slots: float) -> tuple[Array, Array]:
    """Samples of TTFT (samples, points), and columns by point.

    These are mean and QUANTILES of TPOT, QUANTILES of E2E latency, the running and queued requests, the tokens in the
    KV cache, and the share of time in steps with prompts.
    """
    number = np.ones(rate.size)
    for _ in range(ITERATIONS):
        number = np.clip(np.sqrt(number * rate * times.steps * _mean_step(times, rate, number)), 1.0, slots)
    more, width, size = np.zeros(rate.size), np.sqrt(2 * number), rate.size
    for deviations in (NODES[1:2], NODES):
        # First with the mean of the sequences, then with few, some and many: the nodes of Gauss and Hermite.
        nodes = np.clip(number + np.array(deviations)[:, np.newaxis] * width, 1.0, slots)
        batch = _together(times, load.burstiness, rate, number)
        longer = 1 / (load.burstiness * (2 * batch - 1))
        chain = prompts_at(times, np.tile(rate, len(deviations)), nodes.ravel(), np.tile(batch, len(deviations)))
        chains = [Prompts(*(part[..., at : at + size] for part in chain)) for at in range(0, nodes.size, size)]
        prompts = chains[len(chains) // 2]
        ratio = np.array([each.mean for each in chains]) / _mean_step(times, rate, nodes)
        points = _Points(rate, number, prompts, more, nodes, ratio, longer)
        level = _level(times, points, slots, load)
        busy = -np.expm1(-level.running)
        more = np.maximum(prompts.late / prompts.mean, -0.5)
        number, width = np.sqrt(number * np.maximum(level.running, 1.0)), level.width
    dealt = times.ranks > 1 and not load.outputs.varies
    parts = [waits_of(times, rate, *node, busy, batch, dealt) for node in zip(nodes, chains, strict=True)]
    chosen = np.searchsorted(WEIGHTS, cube()[:, 7])
    samples = np.choose(chosen[:, np.newaxis], [waits for waits, _ in parts])
    policy, prompt = replica.scheduler, load.means[0]
    samples = samples + _front(policy, prompt, rate, prompts.mean, busy) + (batch - 1) * policy.front(prompt)
    samples = samples + np.log(np.maximum(level.full / (1 - cube()[:, 5:6]), 1.0)) * level.slot
    # No more decode than there are slots (Little).
    late = more * prompts.mean / max(times.steps, 1.0)
    step = np.minimum(level.step + late, slots / np.maximum(rate * times.steps, NOTHING))
    many = prompts._replace(dispersion=prompts.dispersion * points.longer)
    # Drafts are accepted by chance.
    drawn = step * math.sqrt(times.tokens * replica.steps.scatter) / max(times.steps, 1.0)
    tpot = _tpot(times, many, rate, step, np.hypot(level.deviation, drawn)) * times.steps / max(times.tokens, NOTHING)
    decoding = rate * times.steps * step
    queued, cached = level.full * level.slot * rate, decoding * load.held
    running = np.minimum(decoding + rate * parts[len(parts) // 2][1], slots)
    return samples, np.stack([*tpot, *ends(load, samples, tpot), running, queued, cached, prompts.busy])


class _Level(NamedTuple):
    """The running sequences and the mean step over them, with deviations; the probability and mean of a slot's wait."""

    running: Array
    width: Array
    step: Array
    deviation: Array
    full: Array
    slot: Array


def _level(times: Times, points: _Points, slots: float, load: Load) -> _Level:
    """The running sequences at each point."""
    rate, steps = points.rate, times.steps + points.more + 1e-9
    grid = np.minimum(np.arange(1.0, times.decode.size + 1), slots)
    step = _steps(times, points, slots, grid)
    weight = _weights(times, points, load, grid, step, steps)
    states = weight.shape[0] - 1
    step, counts = step[:states], np.concatenate([[0.0], grid[:states]])[:, np.newaxis]
    # Of all slots, those that become free are taken at once; while requests wait, they leave as fast as at saturation.
    many = grid[states - 1 : states]
    last = np.minimum(step[-1], times.replaced(many)) if times.steps else step[-1]
    ratio = np.minimum(rate * np.minimum(last * steps / many, 1 / times.stable), 0.999)
    # Those beyond count as the last state.
    weight[-1] += weight[-1] * ratio / (1 - ratio)
    timed = np.concatenate([step[:1], step])
    running, width = _moments(weight * timed, counts)
    seen, deviation = _moments(weight * counts, timed)
    full = weight[-1] / weight.sum(axis=0)
    # The mean of a request over its steps: with T = a + b n, numbers of sequences are correlated over G T / a steps.
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
    """The mean step with each number of sequences (states, points)."""
    number = grid[:, np.newaxis]
    # By the chain of prompts over that of arrivals at their mean, between the nodes.
    ratio = points.ratio[0]
    for (low, high), (one, other) in zip(pairwise(points.nodes), pairwise(points.ratio), strict=True):
        ratio = ratio + np.clip((number - low) / np.maximum(high - low, 1e-9), 0.0, 1.0) * (other - one)
    # Prompts are at most those that find room, or those that find a slot, of which one ends a step.
    if times.alone:
        free = slots - number + number / np.maximum(times.steps, 1.0)
        most = times.at(number) + free * sum(times.base_and_slope(number))
    else:
        most = times.filled(number)
    return np.asarray(np.minimum(_mean_step(times, points.rate, number) * ratio, most))


def _weights(times: Times, points: _Points, load: Load, grid: Array, step: Array, steps: Array) -> Array:
    """The probabilities of 0, 1, ... sequences over the steps (states, points), not normalised, up to negligible ones.

    Batches are geometric, P(batch > j) = g^j, with the index of dispersion of a branching process: requests that arrive
    while prompts are computed begin to decode together, those prompts delay others, and so on.
    """
    rate, prompts = points.rate, points.prompts
    room = np.maximum(times.held(grid), 1.0)[:, np.newaxis]
    begun = step if times.alone else np.minimum(step, room / times.mean / np.maximum(rate, 1e-12))
    # Half of it is left where services are exponential, as here, all where they are equal, and E[min] / E otherwise.
    both = load.outputs.least_of_two / load.outputs.mean
    spread = 2 * both * (prompts.dispersion * points.longer - 1)
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
    """The probabilities of 0, 1, ... sequences at one point: plain numbers, of which few make an array slow."""
    weight, carried, peak = [1.0], 0.0, 1.0
    for level, up in enumerate(upward):
        carried = g * carried + weight[level] * begun[level]
        weight.append(up * carried)
        if level % CHECKED == 0:
            peak = max(peak, weight[-1])
            if peak > 1e100:
                weight, carried, peak = [each * 1e-100 for each in weight], carried * 1e-100, peak * 1e-100
            # They fall beyond their largest: none of those that follow counts.
            if weight[-1] < NEGLIGIBLE * peak:
                break
    return weight
