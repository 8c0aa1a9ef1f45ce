"""The extents of one forward pass: the only way in which the workload enters the graph.

A forward pass runs `queries` new tokens for each of `batch` sequences that already have `cached` tokens. Prefill is
many queries on an empty cache (or on a cached prefix), decode is one query on a full one: the same graph, other
numbers. What the sizes of the graph depend on beside batch and queries is derived from them by a few named rules:
what a query sees (`View`), and how many experts a batch of tokens touches (`Pool`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from roofline.graph.size import Size, symbol
from roofline.specs.model import Attention, LatentAttention

BATCH = symbol("batch")
QUERIES = symbol("queries")
TOKENS = BATCH * QUERIES


class Step(NamedTuple):
    """One forward pass: sequences, new tokens of each, tokens of each already cached; numbers or arrays.

    `source` is the length of the encoder's output that cross attention sees, `encoded` how much of it is projected to
    keys and values in this pass: all or nothing.
    """

    batch: Any
    queries: Any
    cached: Any
    source: Any = 0
    encoded: Any = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The grid that they broadcast to; () for a single pass."""
        shapes = {value.shape for value in self if isinstance(value, np.ndarray)}
        if len(shapes) > 1:
            return np.broadcast_shapes(*shapes)
        return next(iter(shapes), ())

    @property
    def points(self) -> list[bytes]:
        """What stands for each point of the grid, flattened: equal where all of its numbers are."""
        rows = np.empty((*self.shape, len(self)))
        for column, value in enumerate(self):
            rows[..., column] = value
        points: list[bytes] = rows.view(f"V{rows.shape[-1] * rows.itemsize}").reshape(-1).tolist()
        return points


class Rule(Protocol):
    """Something that turns a step into extents."""

    def values(self, step: Step) -> dict[str, Any]:
        """The extents by name."""


class View(Struct, frozen=True):
    """What the queries of a layer see, as `roofline.specs.model.Attention` describes it.

    Sequence parallelism: in a `ring` each rank has its share of the queries and meets all keys, which travel round;
    with `shards` each has all queries and its share of the keys. Either way a rank keeps its share of the cache.
    """

    window: int | None = None
    extra: int = 0
    selected: int | None = None
    kept: int | None = None
    causal: bool = True
    cross: bool = False
    ring: int = 1
    shards: int = 1

    @property
    def suffix(self) -> str:
        """Tells this view's extents from those of others."""
        parts = [
            *([] if self.window is None else [f"window {self.window}"]),
            *([f"extra {self.extra}"] if self.extra else []),
            *([] if self.selected is None else [f"selected {self.selected}"]),
            *([] if self.kept is None else [f"kept {self.kept}"]),
            *([] if self.causal else ["bidirectional"]),
            *(["source"] if self.cross else []),
            *([f"ring of {self.ring}"] if self.ring > 1 else []),
            *([f"{self.shards} shards"] if self.shards > 1 else []),
        ]
        return f"[{', '.join(parts)}]" if parts else ""

    @property
    def keys(self) -> Size:
        """Keys of one sequence that its queries read between them."""
        return symbol(f"keys{self.suffix}")

    @property
    def pairs(self) -> Size:
        """Query-key pairs of one sequence that are multiplied."""
        return symbol(f"pairs{self.suffix}")

    @property
    def held(self) -> Size:
        """Tokens of one sequence whose keys and values are in memory after the pass."""
        return symbol(f"held{self.suffix}")

    @property
    def reach(self) -> int | None:
        """Most keys that one query can see; None without limit."""
        limits = [self.window + self.extra] if self.window is not None else []
        limits += [self.selected] if self.selected is not None else []
        return min(limits, default=None)

    @property
    def knees(self) -> tuple[int, ...]:
        """Cached tokens at which an extent stops growing during decode."""
        limits = [self.kept] if self.kept is not None else []
        limits += [self.window + self.extra - 1] if self.window is not None else []
        limits += [self.selected - 1] if self.selected is not None else []
        return tuple(limits)

    def values(self, step: Step) -> dict[str, Any]:
        """Keys, pairs and held tokens for `step`.

        Query i (from 0) of a sequence with c cached tokens sees min(c + i + 1, reach) keys; without the causal mask
        every query is counted against all keys that any sees.
        """
        _, queries, cached, source, _ = step
        queries = queries * self.ring
        least, most = (np.minimum, np.maximum) if _is_array(queries, cached) else (min, max)
        if self.cross:
            return self._named(source, queries * source, source)
        past = cached if self.kept is None else least(cached, self.kept)
        behind = past if self.window is None else least(past, self.window + self.extra - 1)
        keys = behind + queries
        if self.selected is not None:
            keys = least(keys, queries * self.selected)
        reach = self.reach
        if not self.causal:
            everything = past + queries
            pairs = queries * (everything if reach is None else least(everything, reach))
        elif reach is None:
            pairs = queries * past + queries * (queries + 1) / 2
        else:
            growing = most(least(reach - past, queries), 0)  # queries whose view the limit does not cut yet
            pairs = growing * past + growing * (growing + 1) / 2 + (queries - growing) * reach
        held = past + queries
        if self.window is not None:
            held = least(held, self.window + self.extra)
        return self._named(keys, pairs, held)

    def _named(self, keys: Any, pairs: Any, held: Any) -> dict[str, Any]:
        ranks, suffix = self.ring * self.shards, self.suffix
        return {
            f"keys{suffix}": keys / self.shards if self.shards > 1 else keys,
            f"pairs{suffix}": pairs / ranks if ranks > 1 else pairs,
            f"held{suffix}": held / ranks if ranks > 1 else held,
        }


def view_of(attention: Attention, cross: bool = False, ring: int = 1, shards: int = 1) -> View:
    """The view of a softmax attention."""
    if cross:
        return View(cross=True, causal=False)
    limits = (attention.window, attention.extra, attention.selected, attention.kept)
    return View(*limits, causal=attention.causal, ring=ring, shards=shards)


def latent_view(attention: LatentAttention) -> View:
    """The view of a latent attention: with an indexer, only what it selects."""
    return View(selected=attention.indexer.selected if attention.indexer else None)


class Pool(Struct, frozen=True):
    """A set of `size` weights blocks of which every token uses `used`: experts, or neurons that are active.

    With probability p_e that a token uses block e, T tokens touch sum of 1 - (1 - p_e)^T blocks; uniform routing has
    p_e = used / size. `skew` > 0 makes p_e proportional to rank^-skew, at most 1. `spread`: the blocks serve the tokens
    of so many ranks.
    """

    size: int
    used: float
    skew: float = 0.0
    spread: int = 1

    @property
    def suffix(self) -> str:
        """Tells this pool's extents from those of others."""
        skew = f", skew {self.skew:g}" if self.skew else ""
        spread = f", {self.spread} ranks" if self.spread > 1 else ""
        return f"[{self.used:g} of {self.size}{skew}{spread}]"

    @property
    def touched(self) -> Size:
        """Distinct blocks that the tokens of the pass use between them."""
        return symbol(f"touched{self.suffix}")

    def values(self, step: Step) -> dict[str, Any]:
        """The distinct blocks touched, for the tokens of `step`."""
        tokens = step.batch * step.queries * self.spread
        return {f"touched{self.suffix}": touched(self.size, self.used, tokens, self.skew)}


class Convolution(Struct, frozen=True):
    """A causal convolution as long as the sequence: summed directly, or by three fast Fourier transforms.

    Directly, token i takes i + 1 multiply-adds. A transform is over twice the sequence, so that it does not wrap, at
    5 N log2 N FLOPs for N points, and its cost is shared by the new tokens.
    """

    def values(self, step: Step) -> dict[str, Any]:
        """FLOPs a new token and channel, and the tokens before them."""
        length = step.cached + step.queries
        direct = 2.0 * step.cached + step.queries + 1
        transformed = 3 * 5 * 2 * length * np.log2(2.0 * length) / step.queries
        return {"convolution": np.minimum(direct, transformed), "past": step.cached}


def touched(size: int, used: float, tokens: Any, skew: float = 0.0) -> Any:
    """Expected number of distinct blocks among `size` that `tokens` tokens use, each using `used` of them."""
    if used >= size:
        return size * np.minimum(tokens, 1.0) if _is_array(tokens) else size * min(tokens, 1.0)
    if not skew:
        kept = tokens * math.log1p(-used / size)
        return size * -(np.expm1(kept) if _is_array(tokens) else math.expm1(kept))
    shares = popularity(size, used, skew)
    missed = np.exp(np.multiply.outer(tokens, np.log1p(-np.minimum(shares, 1 - 1e-15))))
    hit = (1 - missed).sum(axis=-1)
    return hit if _is_array(tokens) else float(hit)


@lru_cache(maxsize=64)
def popularity(size: int, used: float, skew: float) -> Any:
    """Probability that a token uses each block: proportional to rank^-skew, at most 1, summing to `used`."""
    weights = np.arange(1, size + 1, dtype=np.float64) ** -skew
    certain = 0  # the most popular blocks, used by every token
    while True:
        rest = weights[certain:]
        shares = (used - certain) * rest / rest.sum()
        if not shares.size or shares[0] <= 1:
            break
        certain += 1
    return np.concatenate([np.ones(certain), shares])


def extents(step: Step, rules: Iterable[Rule]) -> dict[str, Any]:
    """The value of every extent for `step`."""
    encoding = np.minimum(step.encoded, 1) if _is_array(step.encoded) else min(step.encoded, 1)
    values = {"batch": step.batch, "queries": step.queries, "encoded": step.encoded, "encoding": encoding}
    for rule in rules:
        values |= rule.values(step)
    return values


def spread(value: Any, shape: tuple[int, ...]) -> Any:
    """A number or an array in a grid's shape: the array itself where it has that already."""
    return value if np.shape(value) == shape else np.broadcast_to(value, shape)


def on_grid(flat: Any, step: Step, shape: tuple[int, ...]) -> Any:
    """Figures of a step's points, flat in their last axis, in the shape of the grid that holds them."""
    if not shape:
        return flat[..., 0]
    rows, own = flat.shape[:-1], step.shape
    leading = (1,) * (len(shape) - len(own))  # so that it broadcasts after the axes of rows
    return spread(flat.reshape(*rows, *leading, *own), (*rows, *shape))


def _is_array(*values: Any) -> bool:
    return any(isinstance(value, np.ndarray) for value in values)
