"""The extents of one forward pass: the only way in which the workload enters the graph.

A forward pass runs `queries` new tokens for each of `batch` sequences that already have `cached` tokens: many queries
on an empty cache (or a cached prefix) in prefill, one query on a full cache in decode. Rules derive further extents:
visible keys and query-key pairs (`AttentionMask`), and the experts that a batch of tokens touches (`Pool`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import cached_property, lru_cache, reduce
from operator import mul
from statistics import NormalDist
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from msgspec.structs import replace

from roofline.core import numeric as np
from roofline.graph.size import Size, as_size, symbol, total

BATCH = symbol("batch")
QUERIES = symbol("queries")
TOKENS = BATCH * QUERIES


FARTHEST = 2 * 10**9
"""The largest number of cached tokens of a workload: prompt and generation."""


class Step(NamedTuple):
    """One forward pass: sequences, new and cached tokens per sequence; numbers or arrays.

    `source` is the length of the encoder output in cross attention; `encoded` is the part of it that this pass projects
    to keys and values, all or nothing.
    """

    batch: Any
    queries: Any
    cached: Any
    source: Any = 0
    encoded: Any = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the extents broadcast to; () for a single pass."""
        shapes = [value.shape for value in self if isinstance(value, np.ndarray)]
        return np.broadcast_shapes(*shapes) if shapes else ()

    @property
    def points(self) -> list[tuple[float, ...]]:
        """The numbers of each point of the flattened grid."""
        if not self.shape:
            return [tuple(self)]
        rows = np.stack(np.broadcast_arrays(*self), axis=-1)
        return list(map(tuple, rows.reshape(-1, len(self)).tolist()))


class Rule(Protocol):
    """A rule that derives extents from a step."""

    def values(self, step: Step) -> dict[str, Any]: ...


LAST = " of the last {}"
"""Ends the name of an extent of layers that run the last tokens of a pass alone."""


class AttentionMask(Struct, frozen=True, dict=True):
    """The keys that the queries of a layer see, as `roofline.specs.model.Attention` describes them.

    With a `ratio` they also see one entry for every `ratio` tokens of the sequence, all that are complete or the
    `selected` best of them; without a window, entries alone.

    With a `tail` its extents are those of the last so many queries of a pass (`Tail`).

    Sequence parallelism divides the queries in a `ring` of ranks through which all keys pass (ring attention), or the
    keys into `shards`. Either way the KV cache is divided among the ranks; it alone is where `split` ranks gather it.
    """

    window: int | None = None
    extra: int = 0
    selected: int | None = None
    kept: int | None = None
    causal: bool = True
    cross: bool = False
    ring: int = 1
    shards: int = 1
    chunk: int | None = None
    ratio: int | None = None
    split: int = 1
    tail: int = 0

    @cached_property
    def suffix(self) -> str:
        """The suffix that distinguishes the extents of different masks."""
        names = ("window", "extra", "chunk", "selected", "kept", "ratio")
        numbers = ((name, getattr(self, name)) for name in names)
        parts = [
            *(f"{name} {number}" for name, number in numbers if number),
            *([] if self.causal else ["bidirectional"]),
            *(["source"] if self.cross else []),
            *([f"ring of {self.ring}"] if self.ring > 1 else []),
            *([f"{self.shards} shards"] if self.shards > 1 else []),
            *([f"split in {self.split}"] if self.split > 1 else []),
        ]
        return (f"[{', '.join(parts)}]" if parts else "") + (LAST.format(self.tail) if self.tail else "")

    @property
    def rule(self) -> Rule:
        """The rule that gives its extents."""
        return Tail(self.tail, replace(self, tail=0)) if self.tail else self

    @property
    def keys(self) -> Size:
        """Distinct keys of one sequence that its queries read."""
        return symbol(f"keys{self.suffix}", self.rule)

    @property
    def pairs(self) -> Size:
        """Query-key pairs of one sequence that the mask leaves."""
        return symbol(f"pairs{self.suffix}", self.rule)

    @property
    def held(self) -> Size:
        """Tokens of one sequence in the KV cache after the pass."""
        return symbol(f"held{self.suffix}", self.rule)

    @property
    def reach(self) -> int | None:
        """The maximum number of keys that one query sees; None without limit."""
        limits = [self.window + self.extra] if self.window is not None else []
        limits += [limit for limit in (self.selected, self.chunk) if limit is not None]
        return min(limits, default=None)

    @property
    def pieces(self) -> Size:
        """Queries over those of the longest chunk; a chunk is a sequence of its own to a kernel, which ends with it."""
        return symbol(f"pieces{self.suffix}", self.rule)

    @property
    def piece_queries(self) -> Size:
        """Queries in the longest chunk."""
        return symbol(f"piece_queries{self.suffix}", self.rule)

    @property
    def piece_keys(self) -> Size:
        """Keys of a chunk with these queries at its end, by its mean query-key pairs."""
        return symbol(f"piece_keys{self.suffix}", self.rule)

    @property
    def saturation_points(self) -> tuple[int | range, ...]:
        """Cached tokens at which an extent stops growing during decode; a range where it starts anew at each chunk."""
        if self.chunk is not None:
            return (range(self.chunk, FARTHEST, self.chunk),)
        limits: list[int | range] = [self.kept] if self.kept is not None else []
        limits += [self.window + self.extra - 1] if self.window is not None else []
        limits += [self.selected * (self.ratio or 1) - 1] if self.selected is not None else []
        return tuple(limits)

    def values(self, step: Step) -> dict[str, Any]:
        """Keys, pairs and held tokens for `step`.

        Query i (from 0) of a sequence with c cached tokens sees min(c + i + 1, reach) keys; without causality each
        query sees all keys up to `reach`. In chunks it sees (c + i) mod chunk + 1, those of its own chunk so far.
        """
        _, queries, cached, source, _ = step
        queries = queries * self.ring
        if self.chunk is not None:
            return self._chunked(self.chunk, queries, cached)
        if self.ratio is not None:
            return self._compressed(self.ratio, step)
        if self.cross:
            return self._named(source, queries * source, source)
        past = cached if self.kept is None else np.minimum(cached, self.kept)
        behind = past if self.window is None else np.minimum(past, self.window + self.extra - 1)
        keys = behind + queries
        if self.selected is not None:
            keys = np.minimum(keys, queries * self.selected)
        reach = self.reach
        if not self.causal:
            everything = past + queries
            pairs = queries * (everything if reach is None else np.minimum(everything, reach))
        elif reach is None:
            pairs = queries * past + queries * (queries + 1) / 2
        else:
            growing = np.maximum(np.minimum(reach - past, queries), 0)  # queries that see fewer keys than the limit
            pairs = growing * past + growing * (growing + 1) / 2 + (queries - growing) * reach
        held = past + queries
        if self.window is not None:
            held = np.minimum(held, self.window + self.extra)
        return self._named(keys, pairs, held)

    def _chunked(self, chunk: int, queries: Any, cached: Any) -> dict[str, Any]:
        """The extents where tokens attend within chunks of `chunk` tokens, counted from the start of the sequence.

        The cache holds one chunk at most: earlier ones are freed (vLLM's ChunkedLocalAttentionSpec). vLLM runs each
        chunk as a sequence of its own, a virtual batch.
        """
        behind = cached % chunk
        pairs = _within(chunk, behind + queries) - _within(chunk, behind)
        held = np.minimum(cached + queries, chunk)
        first = np.minimum(queries, chunk - behind)
        each = np.maximum(np.maximum(first, np.minimum(queries - first, chunk)), 1)
        pieces = queries / each
        seen = pairs / np.maximum(queries, 1) + (each - 1) / 2
        ranks, suffix = self.ring * self.shards, self.suffix
        return self._named(behind + queries, pairs, held) | {
            f"pieces{suffix}": pieces,
            f"piece_queries{suffix}": each / self.ring,
            f"piece_keys{suffix}": seen / ranks if self.shards > 1 else seen,
        }

    def _compressed(self, ratio: int, step: Step) -> dict[str, Any]:
        """The extents over a window and over entries of `ratio` tokens: the t-th token sees t // ratio of them."""
        queries, before = step.queries, step.cached
        after, most = before + queries, math.inf if self.selected is None else self.selected
        entries = np.floor(after / ratio)
        pairs = _entries_seen(ratio, most, after) - _entries_seen(ratio, most, before)
        keys, held = np.minimum(entries, queries * most), entries
        if self.window is not None:
            window = AttentionMask(window=self.window)
            near = window.values(step)
            keys, pairs, held = (
                own + near[f"{name}{window.suffix}"] for own, name in ((keys, "keys"), (pairs, "pairs"), (held, "held"))
            )
        return self._named(keys, pairs, held)

    def _named(self, keys: Any, pairs: Any, held: Any) -> dict[str, Any]:
        ranks, suffix = self.ring * self.shards, self.suffix
        return {
            f"keys{suffix}": keys / self.shards if self.shards > 1 else keys,
            f"pairs{suffix}": pairs / ranks if ranks > 1 else pairs,
            f"held{suffix}": held / (ranks * self.split) if ranks * self.split > 1 else held,
        }


def _entries_seen(ratio: int, most: float, tokens: Any) -> Any:
    """Entries that the first `tokens` of a sequence see in all: sum over t of min(most, floor(t / ratio))."""
    growing = np.minimum(tokens, ratio * most - 1)
    whole = np.floor(growing / ratio)
    seen = ratio * whole * (whole - 1) / 2 + whole * (growing - ratio * whole + 1)
    return seen if math.isinf(most) else seen + most * (tokens - growing)


def _within(chunk: int, tokens: Any) -> Any:
    """Query-key pairs of the first `tokens` of a sequence, each with the tokens of its chunk up to itself."""
    rest = tokens % chunk
    return (tokens - rest) * (chunk + 1) / 2 + rest * (rest + 1) / 2


COPIES = " x{}"
"""Ends the name of an extent of blocks with copies."""

PARTS = 32
"""Equal parts of blocks with log-normal loads that stand for all."""


class Pool(Struct, frozen=True):
    """A set of `size` weight blocks (experts, or MLP neurons) of which each token uses `used`.

    With probability p_e that a token uses block e, T tokens touch sum of 1 - (1 - p_e)^T blocks; uniform routing has
    p_e = used / size. `skew` > 0 makes p_e proportional to rank^-skew, at most 1, and `uneven` > 0 those of `routed`
    blocks (experts) log-normal with that deviation of the logarithm. `spread` is the number of ranks whose tokens the
    blocks serve. The tokens of one of `sequences` use the same blocks (adapters). There are so many `copies` of each
    block, of which a token uses one (adapters of experts).
    """

    size: int
    used: float
    skew: float = 0.0
    spread: int = 1
    sequences: bool = False
    copies: int = 1
    routed: bool = False
    uneven: float = 0.0

    @property
    def suffix(self) -> str:
        """The suffix that distinguishes the extents of different pools."""
        skew = f", skew {self.skew:g}" if self.skew else ""
        skew += ", by sequence" if self.sequences else ", routed" if self.routed else ""
        spread = f", {self.spread} ranks" if self.spread > 1 else ""
        copies = COPIES.format(self.copies) if self.copies > 1 else ""
        return f"[{self.used:g} of {self.size}{skew}{spread}]{copies}"

    @property
    def touched(self) -> Size:
        """Distinct blocks that the tokens of the pass use."""
        return symbol(f"touched{self.suffix}", self)

    def values(self, step: Step) -> dict[str, Any]:
        """The expected number of distinct blocks that the tokens of `step` touch."""
        tokens = step.batch * self.spread if self.sequences else step.batch * step.queries * self.spread
        if self.copies > 1 and self.skew:  # each copy has its part of the tokens
            found = self.copies * touched(self.size, self.used, tokens / self.copies, self.skew)
        else:
            found = touched(self.size * self.copies, self.used, tokens, self.skew, self.uneven)
        return {f"touched{self.suffix}": found}


class Tail(Struct, frozen=True):
    """The extents of layers that run the last `tokens` of each sequence in a pass alone, by the `rule` of others."""

    tokens: int
    rule: Rule | None = None

    def values(self, step: Step) -> dict[str, Any]:
        """Every extent but the batch, for the last tokens of `step`."""
        queries = np.minimum(step.queries, self.tokens)
        last = step._replace(queries=queries, cached=step.cached + step.queries - queries)
        found = extents(last, [] if self.rule is None else [self.rule])
        return {name + LAST.format(self.tokens): value for name, value in found.items() if name != "batch"}


def of_last(tokens: int, size: Size) -> Size:
    """A size of a layer that runs the last `tokens`, with its own extents in place of those of the pass."""

    def last(name: str) -> Size:
        own = Tail(tokens, getattr(name, "rule", None))
        return BATCH if name == "batch" else symbol(name + LAST.format(tokens), own)

    return total(reduce(mul, map(last, names), as_size(value)) for names, value in size.terms.items())


class Scan(Struct, frozen=True):
    """A state-space scan in chunks of `chunk` tokens of a pass: token pairs within chunks, and state updates between.

    A single token updates the state and reads it, without pairs.
    """

    chunk: int

    @property
    def pairs(self) -> Size:
        """Pairs of a token and one of its chunk up to itself, of one sequence."""
        return symbol(f"scan_pairs[chunk {self.chunk}]", self)

    @property
    def updates(self) -> Size:
        """Updates of the state of one sequence: one a chunk."""
        return symbol(f"scan_updates[chunk {self.chunk}]", self)

    def values(self, step: Step) -> dict[str, Any]:
        """Pairs and updates for `step`."""
        pairs = np.where(np.asarray(step.queries) > 1, _within(self.chunk, step.queries), 0.0)
        updates = np.ceil(step.queries / self.chunk)
        return {f"scan_pairs[chunk {self.chunk}]": pairs, f"scan_updates[chunk {self.chunk}]": updates}


class Convolution(Struct, frozen=True):
    """A causal convolution as long as the sequence, computed directly or by three FFTs, whichever is cheaper.

    Directly, token i takes i + 1 multiply-adds. Each FFT is over N points, twice the (padded) sequence, at 5 N log2 N
    FLOPs, amortised over the new tokens.
    """

    @property
    def flops(self) -> Size:
        """FLOPs per token and channel."""
        return symbol("convolution", self)

    @property
    def past(self) -> Size:
        """Tokens of a sequence before the pass."""
        return symbol("past", self)

    def values(self, step: Step) -> dict[str, Any]:
        """FLOPs per new token and channel, and the tokens before."""
        length = step.cached + step.queries
        direct = 2.0 * step.cached + step.queries + 1
        transformed = 3 * 5 * 2 * length * np.log2(2.0 * length) / step.queries
        return {"convolution": np.minimum(direct, transformed), "past": step.cached}


def touched(size: int, used: float, tokens: Any, skew: float = 0.0, uneven: float = 0.0) -> Any:
    """Expected number of distinct blocks among `size` that `tokens` tokens use, each using `used` of them."""
    if used >= size:
        return size * np.minimum(tokens, 1.0)
    if not skew and not uneven:
        return size * -np.expm1(tokens * math.log1p(-used / size))
    parts = size if skew else min(size, PARTS)
    shares = popularity(parts, used / size * parts, skew, uneven)
    missed = np.exp(np.multiply.outer(tokens, np.log1p(-np.minimum(shares, 1 - 1e-15))))
    return (1 - missed).sum(axis=-1) * (size / parts)


@lru_cache(maxsize=64)
def popularity(size: int, used: float, skew: float, uneven: float = 0.0) -> Any:
    """Probability that a token uses each block, at most 1, summing to `used`.

    Proportional to rank^-skew, or without it to the means of so many equal parts of a log-normal law whose logarithm
    deviates by `uneven`.
    """
    weights = np.arange(1, size + 1, dtype=np.float64) ** -skew
    if uneven and not skew:
        normal = NormalDist()
        less = [normal.cdf(normal.inv_cdf(place / size) - uneven) for place in range(1, size)]
        weights = np.diff(np.array([0.0, *less, 1.0]))[::-1]
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
    values = {"batch": step.batch, "queries": step.queries, "encoded": step.encoded}
    values["encoding"] = np.minimum(step.encoded, 1)
    for rule in rules:
        values |= rule.values(step)
    return values


def spread(value: Any, shape: tuple[int, ...]) -> Any:
    """`value` broadcast to `shape`."""
    return value if np.shape(value) == shape else np.broadcast_to(value, shape)


def on_grid(flat: Any, step: Step, shape: tuple[int, ...]) -> Any:
    """Figures of a step's points, flat in their last axis, broadcast to the grid's `shape`."""
    if not shape:
        return flat[..., 0]
    rows, own = flat.shape[:-1], step.shape
    leading = (1,) * (len(shape) - len(own))  # broadcast after the axes of rows
    return spread(flat.reshape(*rows, *leading, *own), (*rows, *shape))
