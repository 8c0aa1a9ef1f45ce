"""How benchmarks of experts route tokens: the loads of the busiest of several devices.

Served models route at random (`roofline.timing.kernels.moe.uniform`). Public benchmarks deal a batch instead. Under
`balanced` routing tokens take turns, so the first device has the most pairs; under `power_law_a` the loads of experts
are drawn from a density falling as x^-a, from 1 to 0.8 tokens, or from 0.01 to 2 where there are fewer pairs than
experts. The pairs that rounding leaves go to the emptiest expert of each device in turn, or (`consecutive`) to the
emptiest of all, those of one device after the other: with few tokens the busiest device has some pairs, or all.

Some benchmarks take only the tokens with an expert on the device (`arriving`), which are then the tokens of the launch
and of the permutation. Their pairs with experts elsewhere are computed with the first expert here (`clamped`), or they
choose anew among the experts here (`rerouted`); others compute none of them.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from roofline.core.errors import UnsupportedError, quote
from roofline.timing.kernels import Array
from roofline.timing.kernels.moe import Loads

OPTIONS = ("consecutive", "arriving", "clamped", "rerouted")
"""Columns of benchmarks of several devices, 0 by default and 1 where it is so (see above)."""

PARTS = 16
"""Number of equal parts of a device's experts, sorted by load."""

DRAWS = 4
"""Draws of a benchmark's routing that are averaged."""

MOST = 4096
"""Most experts of a benchmark, for each of which a random number is drawn beforehand."""

_UNIFORM = np.random.default_rng(0).random((DRAWS, MOST))


def routing_exponent(routing: str) -> float | None:
    """The exponent of a power-law routing; None for balanced and uniform routing."""
    if routing in ("balanced", "uniform"):
        return None
    try:
        return float(routing.removeprefix("power_law_"))
    except ValueError:
        message = f"unknown routing {quote(routing)}; known: balanced, uniform, power_law_<exponent>"
        raise UnsupportedError(message) from None


class Dealt(NamedTuple):
    """The loads of the busiest device, and how many tokens have an expert there."""

    loads: Loads
    arriving: Array


def dealt(
    tokens: Array, top_k: Array, experts: Array, ep: Array, routing: str, consecutive: Array, rerouted: Array
) -> Dealt:
    """The loads of benchmarks with a balanced or a power-law routing; arrays of one length."""
    rows = np.stack((tokens, top_k, experts, ep, consecutive, rerouted)).astype(np.int64)
    return _loads_by_row(rows.tobytes(), routing_exponent(routing))


@lru_cache(maxsize=512)
def _loads_by_row(rows: bytes, exponent: float | None) -> Dealt:
    """The loads of rows, as the arguments of `_busiest_device`, of a benchmark; `exponent` None is balanced routing."""
    found = [_busiest_device(*row, exponent) for row in np.frombuffer(rows, dtype=np.int64).reshape(6, -1).T.tolist()]
    loads, reached, arriving = (np.array(column).T for column in zip(*found, strict=True))
    return Dealt(Loads(loads, reached), arriving)


@lru_cache(maxsize=65536)
def _busiest_device(
    tokens: int, top_k: int, experts: int, ep: int, consecutive: int, rerouted: int, exponent: float | None
) -> tuple[Array, Array, float]:
    """The loads of the busiest device: tokens and share of experts reached, (PARTS,) each; and its arriving tokens."""
    experts = min(experts, MOST)
    local = max(1, experts // ep)
    shape = tokens, top_k, experts, local
    counts, arriving = _balanced(*shape) if exponent is None else _power_law(*shape, exponent, consecutive)
    if rerouted and ep > 1:
        return _busiest_device(max(1, round(arriving)), top_k, local, 1, consecutive, 0, exponent)
    each = PARTS * ceil(local / PARTS)
    parts = counts[:, np.arange(each) * local // each].reshape(len(counts), PARTS, -1)
    reached = np.mean(parts > 0, axis=(0, 2))
    loads = np.maximum(np.mean(parts, axis=(0, 2)) / np.maximum(reached, 1e-9), 1.0)
    return loads, reached, arriving


def _balanced(tokens: int, top_k: int, experts: int, local: int) -> tuple[Array, float]:
    """Tokens of the first device's experts where tokens take turns, (1, local), and how many tokens these are.

    A token goes to every `stride`th expert.
    """
    stride = ceil(experts / top_k)
    turn = np.arange(local, dtype=np.float64)[None] % stride
    if tokens >= stride:
        counts = np.asarray(tokens // stride + (turn < tokens % stride), dtype=np.float64)
    else:
        first, last = np.ceil(turn * tokens / stride), np.ceil((turn + 1.0) * tokens / stride)
        counts = np.minimum(last - first, 1.0)
    return counts, min(float(counts.sum()), tokens)


def _power_law(
    tokens: int, top_k: int, experts: int, local: int, exponent: float, consecutive: int
) -> tuple[Array, float]:
    """Tokens of the busiest device's experts, most first, drawn from a power law DRAWS times, (DRAWS, local).

    Rounding leaves some pairs, full experts others: devices take turns to get one for their emptiest expert, or
    (`consecutive`) the emptiest experts of all do, those of the last devices first. Also how many tokens these are.
    """
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    power = 1.0 - exponent
    drawn = (low**power + _UNIFORM[:, :experts] * (high**power - low**power)) ** (1.0 / power)
    share = np.round(drawn / drawn.sum(axis=1, keepdims=True) * tokens * top_k)
    devices = max(1, experts // local)
    deal = _to_emptiest_experts if consecutive else _to_devices_in_turn
    counts = np.array([deal(row, tokens, tokens * top_k, devices) for row in share])
    places = np.arange(devices * local).reshape(-1, local)
    busiest = places[counts[:, places].sum(axis=2).argmax(axis=1)]
    arriving = float(np.mean([_arriving(loads, here, tokens) for loads, here in zip(counts, busiest, strict=True)]))
    return -np.sort(-np.take_along_axis(counts, busiest, axis=1), axis=1), arriving


def _to_emptiest_experts(counts: Array, most: int, pairs: int, _devices: int) -> Array:
    """Tokens of each expert, `most` at most, where pairs that rounding left go to the emptiest experts of all."""
    over, counts = np.maximum(counts - most, 0.0).sum(), np.minimum(counts, most)
    order = np.argsort(-counts, kind="stable")[::-1]
    room = np.minimum(np.cumsum(most - counts[order]), over)
    counts[order] += np.diff(room, prepend=0.0)
    left = int(pairs - counts.sum())
    order = np.argsort(-counts, kind="stable")[::-1]
    if left > 0:
        counts[order[counts[order] < most][:left]] += 1.0
    else:
        filled = counts[order[:-left]] > 0
        counts[order[:-left][filled]] -= 1.0
        counts[counts.argmax()] -= (~filled).sum()
    return counts


def _to_devices_in_turn(counts: Array, most: int, pairs: int, devices: int) -> Array:
    """Tokens of each expert, `most` at most, where pairs that rounding left go to one device after the other."""
    counts = np.minimum(counts, most)
    rows = counts[: len(counts) // devices * devices].reshape(devices, -1)
    left = pairs - counts.sum()
    shares = np.floor((abs(left) + devices - 1 - np.arange(devices)) / devices)[:, None]
    sign = 1.0 if left > 0 else -1.0
    ordered = np.sort(sign * rows, axis=1)
    filled = ordered * np.arange(1, ordered.shape[1] + 1) - np.cumsum(ordered, axis=1)  # to lift all before to this one
    many = np.maximum((filled <= shares).sum(axis=1, keepdims=True), 1)
    level = (np.take_along_axis(np.cumsum(ordered, axis=1), many - 1, axis=1) + shares) / many
    whole = np.floor(level)
    lifted = np.maximum(ordered, whole)
    more = shares - (lifted - ordered).sum(axis=1, keepdims=True)
    lifted[np.arange(lifted.shape[1]) < more] += 1.0
    return np.asarray(np.clip(sign * lifted, 0.0, most).reshape(-1))


def _arriving(counts: Array, here: NDArray[np.int64], tokens: int) -> float:
    """Tokens with one of the experts `here`: each takes the next ones of a circle of tokens, the fullest first."""
    order = np.argsort(-counts, kind="stable")
    begin = np.empty(len(counts))
    begin[order] = (np.cumsum(counts[order]) - counts[order]) % tokens
    begin, end = begin[here], begin[here] + counts[here]
    begin, end = np.append(begin, np.zeros(len(end))), np.append(np.minimum(end, tokens), end - tokens)
    order = np.argsort(begin, kind="stable")
    begin, end = begin[order], end[order]
    before = np.append(0.0, np.maximum.accumulate(end)[:-1])
    return float(np.maximum(end - np.maximum(begin, before), 0.0).sum())
