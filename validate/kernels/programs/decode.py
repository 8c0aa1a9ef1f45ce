"""Split-KV flash decoding over a paged cache, and the kernel that combines the splits.

One program attends with all query heads that share a key and value head, for one sequence and one part (split) of its
keys, so that a few sequences keep a whole device busy. Splits leave an unnormalised softmax: a weighted mean of values
and the base-2 logarithm of its weights' sum. The second kernel adds those up, always in the same order.
A cache in another format (fp8) is converted as it is read.
"""
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-any-unimported, unused-ignore"
# ruff: noqa: N803 (compile-time constants are in capitals)

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from roofline.validate.kernels.tools import interpreted

LOWEST = tl.constexpr(-1.0e30)
"""Where the running maximum starts: finite, so that rows which see nothing stay free of NaN."""

RESIDENT = 2
"""Programs that a multiprocessor runs at once, roughly: registers and shared memory of a tile allow two."""

MOST_SPLITS = 128
"""More than this is never needed to fill a device and makes the second kernel dear."""

LEAST_KEYS = 128
"""A split of fewer keys costs more to start and combine than it reads."""


def _config(columns: int, warps: int, stages: int) -> Any:
    return triton.Config({"BLOCK_N": columns}, num_warps=warps, num_stages=stages)


CONFIGS = (
    [_config(16, 4, 1)]
    if interpreted()
    else [
        _config(128, 8, 2),
        _config(128, 4, 2),
        _config(64, 4, 4),
        _config(64, 4, 3),
        _config(64, 4, 2),
        _config(32, 4, 4),
        _config(32, 4, 2),
        _config(16, 4, 2),
    ]
)
"""Tiles to choose from; those that do not fit a device's shared memory drop out when they are tried."""


@triton.autotune(
    configs=CONFIGS,
    key=["batch", "q_len", "heads", "kv_heads", "table_width", "window", "splits", "HEAD_DIM", "PAGE", "CONVERT"],
)
@triton.jit(do_not_specialize=["batch", "q_len", "heads", "kv_heads", "table_width", "window", "splits"])
def _decode(
    query: tl.tensor,
    key_cache: tl.tensor,
    value_cache: tl.tensor,
    block_table: tl.tensor,
    lengths: tl.tensor,
    output: tl.tensor,
    partial: tl.tensor,
    logarithms: tl.tensor,
    batch: tl.tensor,  # noqa: ARG001 (tuned for)
    q_len: tl.tensor,
    heads: tl.tensor,
    kv_heads: tl.tensor,
    table_width: tl.tensor,
    window: tl.tensor,
    splits: tl.tensor,
    scale: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    PAGE: tl.constexpr,
    WINDOWED: tl.constexpr,
    CONVERT: tl.constexpr,
    SPLIT: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
) -> None:
    group = heads // kv_heads
    kv_head = tl.program_id(0) % kv_heads
    tiles = tl.cdiv(q_len * group, BLOCK_M)
    tile = (tl.program_id(0) // kv_heads) % tiles
    sequence = tl.program_id(0) // kv_heads // tiles
    split = tl.program_id(1)

    # Rows are (query, head of the group): heads of a group are neighbours in memory.
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, HEAD_PAD)
    own = row < q_len * group
    place = (tl.cast(sequence, tl.int64) * q_len + row // group) * heads + kv_head * group + row % group
    held = own[:, None] & (width < HEAD_DIM)[None, :]
    queries = tl.load(query + place[:, None] * HEAD_DIM + width[None, :], mask=held, other=0.0)

    if WIDEN:
        queries = queries.to(tl.float32)

    length = tl.load(lengths + sequence)
    position = length - q_len + row // group
    begin = 0
    if WINDOWED:
        begin = tl.maximum(length - q_len - window + 1, 0)
    part = tl.cdiv(tl.cdiv(length - begin, splits), BLOCK_N) * BLOCK_N
    begin += split * part
    end = tl.minimum(begin + part, length)

    accumulator = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    highest = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    inside = tl.arange(0, BLOCK_N)
    table = block_table + tl.cast(sequence, tl.int64) * table_width
    corner = kv_head * HEAD_DIM + width
    # The pages of a block are looked up one block ahead, so that its keys and values can be fetched ahead as well.
    page = tl.load(table + (begin + inside) // PAGE, mask=begin + inside < end, other=0)
    for start in range(begin, end, BLOCK_N):
        key_position = start + inside
        there = key_position < end
        slot = tl.cast(page, tl.int64) * PAGE + key_position % PAGE
        address = (slot * (kv_heads * HEAD_DIM))[:, None] + corner[None, :]
        stored = there[:, None] & (width < HEAD_DIM)[None, :]
        key = tl.load(key_cache + address, mask=stored, other=0.0)
        value = tl.load(value_cache + address, mask=stored, other=0.0)
        following = key_position + BLOCK_N
        page = tl.load(table + following // PAGE, mask=following < end, other=0)
        if CONVERT:
            key = key.to(query.dtype.element_ty)
            value = value.to(query.dtype.element_ty)
        if WIDEN:
            key = key.to(tl.float32)
        scores = tl.dot(queries, tl.trans(key))
        seen = there[None, :] & (key_position[None, :] <= position[:, None])
        if WINDOWED:
            seen = seen & (key_position[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores * scale, LOWEST)
        higher = tl.maximum(highest, tl.max(scores, 1))
        weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
        shrink = tl.exp2(highest - higher)
        total = total * shrink + tl.sum(weights, 1)
        accumulator = accumulator * shrink[:, None]
        weights = weights.to(value.dtype)
        if WIDEN:
            weights, value = weights.to(tl.float32), value.to(tl.float32)
        accumulator = tl.dot(weights, value, accumulator)
        highest = higher

    # Rows without keys, in an empty split or past the causal edge: zeros, with the logarithm of nothing.
    some = total > 0
    mean = accumulator / tl.where(some, total, 1.0)[:, None]
    if SPLIT:
        place = place * splits + split
        logarithm = tl.where(some, highest + tl.log2(tl.where(some, total, 1.0)), float("-inf"))
        tl.store(logarithms + place, logarithm, mask=own)
        tl.store(partial + place[:, None] * HEAD_DIM + width[None, :], mean, mask=held)
    else:
        target = output + place[:, None] * HEAD_DIM + width[None, :]
        tl.store(target, mean.to(output.dtype.element_ty), mask=held)


@triton.jit(do_not_specialize=["splits"])
def _combine(
    partial: tl.tensor,
    logarithms: tl.tensor,
    output: tl.tensor,
    splits: tl.tensor,
    HEAD_DIM: tl.constexpr,
    HEAD_PAD: tl.constexpr,
    SPLITS_PAD: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """One row of (batch, q_len, heads): the mean of its splits, weighted by their sums."""
    row = tl.cast(tl.program_id(0), tl.int64)
    width = tl.arange(0, HEAD_PAD)
    every = tl.arange(0, SPLITS_PAD)
    mine = tl.load(logarithms + row * splits + every, mask=every < splits, other=float("-inf"))
    highest = tl.max(mine, 0)
    highest = tl.where(highest == float("-inf"), 0.0, highest)
    total = tl.sum(tl.exp2(mine - highest), 0)
    accumulator = tl.zeros([HEAD_PAD], tl.float32)
    for start in range(0, splits, BLOCK):
        some = start + tl.arange(0, BLOCK)
        weight = tl.exp2(tl.load(logarithms + row * splits + some, mask=some < splits, other=float("-inf")) - highest)
        held = (some < splits)[:, None] & (width < HEAD_DIM)[None, :]
        address = (row * splits + some)[:, None] * HEAD_DIM + width[None, :]
        accumulator += tl.sum(weight[:, None] * tl.load(partial + address, mask=held, other=0.0), 0)
    mean = accumulator / tl.where(total > 0, total, 1.0)
    tl.store(output + row * HEAD_DIM + width, mean.to(output.dtype.element_ty), mask=width < HEAD_DIM)


@lru_cache(maxsize=16)
def _multiprocessors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a token few of the CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def splits_for(programs: int, keys: int, multiprocessors: int) -> int:
    """Parts to cut the keys of a sequence into, for `programs` programs a part.

    The fewest whose last wave of programs leaves the device nearly as busy as any number could, since every part
    costs a write and a read of its result.
    """
    most = max(1, min(MOST_SPLITS, keys // LEAST_KEYS))

    def busy(splits: int) -> float:
        waves = programs * splits / (multiprocessors * RESIDENT)
        return waves / math.ceil(waves)

    best = max(busy(splits) for splits in range(1, most + 1))
    return next(splits for splits in range(1, most + 1) if busy(splits) >= 0.85 * best)


def decode(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    output: torch.Tensor,
    window: int = 0,
    splits: int | None = None,
) -> None:
    """Attention of the last q_len tokens of each sequence to a paged cache that already holds them.

    `query` and `output` (batch, q_len, heads, head_dim); the caches (pages, page, kv_heads, head_dim); `block_table`
    (batch, pages a sequence) of int32 names the pages of each sequence in order; `lengths` (batch) of int32 counts
    its tokens, new ones included. All contiguous; the page's size is a power of two. A query sees the last `window`
    keys up to its own, or all of them with 0; one that sees none gets zeros. `splits` defaults to what keeps the
    device busy with the longest sequence that the table can hold; nothing is read back from the device, so that the
    call can be captured in a CUDA graph (after one call that tunes it).
    """
    operands = (query, key_cache, value_cache, block_table, lengths, output)
    assert all(tensor.is_contiguous() for tensor in operands)
    batch, q_len, heads, head_dim = query.shape
    _, page, kv_heads, _ = key_cache.shape
    rows = q_len * (heads // kv_heads)
    tile = min(64, max(16, triton.next_power_of_2(rows)))
    programs = batch * kv_heads * triton.cdiv(rows, tile)
    if splits is None:
        keys = block_table.shape[1] * page
        keys = min(keys, window + q_len - 1) if window else keys
        splits = splits_for(programs, keys, _multiprocessors(query.device))
    padded = max(16, triton.next_power_of_2(head_dim))
    if splits > 1:
        partial = query.new_empty((batch, q_len, heads, splits, head_dim), dtype=torch.float32)
        logarithms = query.new_empty((batch, q_len, heads, splits), dtype=torch.float32)
    else:
        partial = logarithms = output
    _decode[(programs, splits)](
        query,
        key_cache,
        value_cache,
        block_table,
        lengths,
        output,
        partial,
        logarithms,
        batch,
        q_len,
        heads,
        kv_heads,
        block_table.shape[1],
        window,
        splits,
        math.log2(math.e) / math.sqrt(head_dim),
        HEAD_DIM=head_dim,
        HEAD_PAD=padded,
        PAGE=page,
        WINDOWED=window > 0,
        CONVERT=key_cache.dtype != query.dtype,
        SPLIT=splits > 1,
        WIDEN=interpreted() and query.dtype == torch.bfloat16,
        BLOCK_M=tile,
    )
    if splits > 1:
        block = min(16, triton.next_power_of_2(splits))
        _combine[(batch * q_len * heads,)](
            partial,
            logarithms,
            output,
            splits,
            HEAD_DIM=head_dim,
            HEAD_PAD=padded,
            SPLITS_PAD=triton.next_power_of_2(splits),
            BLOCK=block,
            num_warps=4,
        )
