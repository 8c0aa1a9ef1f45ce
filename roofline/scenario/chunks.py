"""Chunked prefill: the passes over the prompts of a batch with a budget of tokens per pass.

The budget is that of an iteration, over all sequences (Agrawal et al. 2024, Sarathi-Serve; vLLM's
max_num_batched_tokens). Prompts are computed in turn, and a pass that ends one goes on with the next: B prompts of P
tokens take N = ceil(B P / budget) passes. Between the points where a layer saturates, the cost of a pass is linear in
the tokens cached before it, so that the mean pass stands for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from roofline.graph.extents import Step


class Prompts(NamedTuple):
    """The tokens of `batch` prompts at positions `start` to `end` but those of the last pass, from `last` on."""

    batch: Any
    start: Any
    end: Any
    last: Any

    def between(self, low: Any, high: Any) -> tuple[Any, Any]:
        """The tokens at positions `low` to `high`, and the sum of their positions."""
        cut = np.clip(self.last, low, high)
        tokens = self.batch * (high - low) - (high - cut)
        return tokens, self.batch * _sum(low, high) - _sum(cut, high)

    def offsets(self, low: Any, high: Any, period: int) -> Any:
        """The sum of the positions in their period of the tokens at positions `low` to `high`, multiples of it."""
        cut = np.clip(self.last, low, high)
        rest = (high - cut) % period  # of the last pass, before its whole periods
        whole = self.batch * (high - low) - (high - cut) + rest
        return whole / period * _sum(0, period) - _sum(period - rest, period)


def chunks(step: Step, budget: int, saturation_points: Iterable[int | range] = ()) -> list[tuple[Step, Any]]:
    """The kinds of passes over the prompts of `step`, each with its count; the last pass is the last one.

    Counts, tokens and query-key pairs are exact where the budget divides the prompts and the saturation points. A
    prompt below the budget is not cut: budget / prompt sequences are computed in a pass.
    """
    prompt, start = step.queries, step.cached
    tokens = step.batch * prompt
    number = np.ceil(tokens / budget)
    rest = tokens - (number - 1) * budget  # tokens of the last pass
    short = prompt <= budget
    # The last pass ends a prompt; if prompts are short, it stands for any part of one.
    behind = np.maximum(prompt - rest, 0) / np.where(short, 2, 1)
    last = step._replace(
        batch=np.maximum(rest / prompt, 1.0),
        queries=np.minimum(rest, prompt),
        cached=start + behind,
        encoded=np.where(short, step.encoded, 0)[()],
    )
    if np.all(number == 1):
        return [(last, 1.0)]
    several = number > 1  # of a grid, some points may have a single pass
    full = step._replace(
        batch=np.where(several, np.maximum(budget / prompt, 1.0), last.batch)[()],
        queries=np.where(several, np.minimum(budget, prompt), last.queries)[()],
    )
    if np.all(short):
        return [(full, number - 1), (last, 1.0)]
    prompts = Prompts(step.batch, start, start + prompt, start + prompt - rest)
    found = [
        (full._replace(cached=np.where(short, start, cached)[()]), np.where(short, 0.0, runs)[()])
        for cached, runs in _means(prompts, budget, tuple(saturation_points))
        if np.any(runs > 0)
    ]
    if np.any(short):
        found.append((full._replace(cached=start), np.where(short, number - 1, 0.0)))
    return [*found, (last, 1.0)]


def _means(prompts: Prompts, budget: int, points: tuple[int | range, ...]) -> Iterator[tuple[Any, Any]]:
    """Tokens cached before the mean pass of each stretch between saturation points, and the passes of the stretch.

    Where attention in chunks starts anew in every period, two periods stand for all whole ones, with the mean position
    in a period and the mean period.
    """
    start, end = prompts.start, prompts.end
    period = next((point.step for point in points if isinstance(point, range)), None)
    whole = [np.ceil(start / period) * period, np.floor(end / period) * period] if period else []
    saturated = (start + np.ceil((point + 1 - start) / budget) * budget for point in points if isinstance(point, int))
    cuts = np.stack(np.broadcast_arrays(*(np.clip(cut, start, end) for cut in (start, *saturated, *whole, end))))
    ordered = np.sort(cuts, axis=0)
    for low, high in pairwise(ordered):
        tokens, positions = prompts.between(low, high)
        cached = np.where(tokens > 0, positions / np.maximum(tokens, 1) - (budget - 1) / 2, low)
        if period is None:
            yield cached, tokens / budget
            continue
        periodic = (low >= whole[0]) & (high <= whole[1])
        within = np.maximum(prompts.offsets(low, high, period) / np.maximum(tokens, 1) - (budget - 1) / 2, 0)
        index = np.maximum((cached - within) / period, 0)
        share = np.where(periodic, index % 1, 0.0)
        first = np.where(periodic, np.floor(index) * period + within, cached)
        yield first, tokens / budget * (1 - share)
        yield first + period, tokens / budget * share


def _sum(low: Any, high: Any) -> Any:
    return (high * (high - 1) - low * (low - 1)) / 2
