"""FlashDecoding (split-KV attention) over a paged cache, and the kernel that combines the splits.

One program computes all query heads of one KV head, for one sequence and one split of its keys, so that a few sequences
fill the whole device. A split leaves its softmax-weighted mean of values and the base-2 log-sum-exp (LSE) of its
scores; the second kernel combines them, always in the same order. A cache in another format (fp8) is converted as it is
read.
"""
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-any-unimported, unused-ignore"
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False
# ruff: noqa: N803, ARG001 (compile-time constants are in capitals; the batch is a key of the tuning)

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from roofline.validate.kernels.tools import interpreted, multiprocessors
from roofline.validate.kernels.triton_kernels.launch import autotune, launch
from roofline.validate.kernels.triton_kernels.prefill import LOWEST, softmax_update, tiles_that_fit

PROGRAMS_PER_MULTIPROCESSOR = 2
"""Programs that a multiprocessor runs at once, roughly: registers and shared memory of a tile allow two."""

MAX_SPLITS = 128
"""More splits are never needed to fill a device and make the second kernel expensive."""

MIN_KEYS_PER_SPLIT = 128
"""A split of fewer keys costs more to launch and combine than to read."""


_TILES = ((16, 4, 1),) if interpreted() else (
    (128, 8, 2), (128, 4, 2), (64, 4, 4), (64, 4, 3), (32, 4, 4), (32, 4, 2), (16, 4, 2),
)  # fmt: skip
"""Columns, warps and stages to tune over; `tiles_that_fit` drops those that are too large for a head."""

CONFIGS = [triton.Config({"BLOCK_N": n}, num_warps=warps, num_stages=stages) for n, warps, stages in _TILES]


def _prune(configs: list[Any], arguments: Mapping[str, Any], **meta: Any) -> list[Any]:
    """The tiles whose stages of keys and values fit the shared memory."""
    element = arguments["key_cache"].element_size()
    return tiles_that_fit(configs, int(meta["BLOCK_M"]), int(meta["HEAD_PAD"]), element)


@triton.jit
def _split_range(length, q_len, window, split, splits, WINDOWED: tl.constexpr, BLOCK_N: tl.constexpr):
    """The first and one past the last key of a split, of those that any query sees."""
    begin = 0
    if WINDOWED:
        begin = tl.maximum(length - q_len - window + 1, 0)
    keys = tl.cdiv(tl.cdiv(length - begin, splits), BLOCK_N) * BLOCK_N
    begin += split * keys
    return begin, tl.minimum(begin + keys, length)


@triton.jit
def _attend_pages(
    queries, key_cache, value_cache, table, begin, end, position, window, kv_head, kv_heads, scale,
    DTYPE: tl.constexpr, HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, PAGE: tl.constexpr,
    WINDOWED: tl.constexpr, CONVERT: tl.constexpr, UPCAST: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The running softmax over keys `begin` to `end` of the pages in `table`."""
    accumulator = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    inside = tl.arange(0, BLOCK_N)
    column = tl.arange(0, HEAD_PAD)
    corner = kv_head * HEAD_DIM + column
    # The pages of a block are looked up one block ahead, so that its keys and values can be prefetched as well.
    page = tl.load(table + (begin + inside) // PAGE, mask=begin + inside < end, other=0)
    for start in range(begin, end, BLOCK_N):
        key_position = start + inside
        valid = key_position < end
        slot = tl.cast(page, tl.int64) * PAGE + key_position % PAGE
        address = (slot * (kv_heads * HEAD_DIM))[:, None] + corner[None, :]
        mask = valid[:, None] & (column < HEAD_DIM)[None, :]
        key = tl.load(key_cache + address, mask=mask, other=0.0)
        value = tl.load(value_cache + address, mask=mask, other=0.0)
        following = key_position + BLOCK_N
        page = tl.load(table + following // PAGE, mask=following < end, other=0)
        if CONVERT:
            key = key.to(DTYPE)
            value = value.to(DTYPE)
        if UPCAST:
            key = key.to(tl.float32)
        scores = tl.dot(queries, tl.trans(key))
        seen = valid[None, :] & (key_position[None, :] <= position[:, None])
        if WINDOWED:
            seen = seen & (key_position[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores * scale, LOWEST)
        new_max = tl.maximum(row_max, tl.max(scores, 1))
        weights = tl.where(seen, tl.exp2(scores - new_max[:, None]), 0.0)
        accumulator, row_sum = softmax_update(accumulator, row_sum, row_max, new_max, weights, value, UPCAST)
        row_max = new_max
    return accumulator, row_max, row_sum


@triton.jit
def _mean_and_lse(accumulator, row_max, row_sum):
    """Mean of values and LSE of a softmax; zeros and minus infinity for rows without keys.

    Those are rows of an empty split, or past the causal edge.
    """
    some = row_sum > 0
    whole = tl.where(some, row_sum, 1.0)
    return accumulator / whole[:, None], tl.where(some, row_max + tl.log2(whole), float("-inf"))


@autotune(
    CONFIGS,
    ["batch", "q_len", "heads", "kv_heads", "table_width", "window", "splits", "HEAD_DIM", "PAGE", "CONVERT"],
    _prune,
)
@triton.jit(do_not_specialize=["batch", "q_len", "heads", "kv_heads", "table_width", "window", "splits"])
def _decode(
    query, key_cache, value_cache, block_table, lengths, output, partial, lse, batch, q_len, heads, kv_heads,
    table_width, window, splits, scale,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, PAGE: tl.constexpr, WINDOWED: tl.constexpr,
    CONVERT: tl.constexpr, SPLIT: tl.constexpr, UPCAST: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    group = heads // kv_heads
    kv_head = tl.program_id(0) % kv_heads
    tiles = tl.cdiv(q_len * group, BLOCK_M)
    tile = (tl.program_id(0) // kv_heads) % tiles
    sequence = tl.program_id(0) // kv_heads // tiles
    split = tl.program_id(1)

    # Rows are (query, head of the group): heads of a group are neighbours in memory.
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.arange(0, HEAD_PAD)
    row_mask = row < q_len * group
    offset = (tl.cast(sequence, tl.int64) * q_len + row // group) * heads + kv_head * group + row % group
    mask = row_mask[:, None] & (column < HEAD_DIM)[None, :]
    queries = tl.load(query + offset[:, None] * HEAD_DIM + column[None, :], mask=mask, other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)

    length = tl.load(lengths + sequence)
    position = length - q_len + row // group
    begin, end = _split_range(length, q_len, window, split, splits, WINDOWED, BLOCK_N)
    table = block_table + tl.cast(sequence, tl.int64) * table_width
    accumulator, row_max, row_sum = _attend_pages(
        queries, key_cache, value_cache, table, begin, end, position, window, kv_head, kv_heads, scale,
        query.dtype.element_ty, HEAD_DIM, HEAD_PAD, PAGE, WINDOWED, CONVERT, UPCAST, BLOCK_M, BLOCK_N,
    )  # fmt: skip
    mean, row_lse = _mean_and_lse(accumulator, row_max, row_sum)
    if SPLIT:
        offset = offset * splits + split
        tl.store(lse + offset, row_lse, mask=row_mask)
        tl.store(partial + offset[:, None] * HEAD_DIM + column[None, :], mean, mask=mask)
    else:
        target = output + offset[:, None] * HEAD_DIM + column[None, :]
        tl.store(target, mean.to(output.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["splits"])
def _combine(
    partial, lse, output, splits,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, SPLITS_PAD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Combine the splits of one row of (batch, q_len, heads), weighted by their softmax sums."""
    row = tl.cast(tl.program_id(0), tl.int64)
    column = tl.arange(0, HEAD_PAD)
    every = tl.arange(0, SPLITS_PAD)
    split_lse = tl.load(lse + row * splits + every, mask=every < splits, other=float("-inf"))
    max_lse = tl.max(split_lse, 0)
    max_lse = tl.where(max_lse == float("-inf"), 0.0, max_lse)
    total = tl.sum(tl.exp2(split_lse - max_lse), 0)
    accumulator = tl.zeros([HEAD_PAD], tl.float32)
    for start in range(0, splits, BLOCK):
        split = start + tl.arange(0, BLOCK)
        weight = tl.exp2(tl.load(lse + row * splits + split, mask=split < splits, other=float("-inf")) - max_lse)
        mask = (split < splits)[:, None] & (column < HEAD_DIM)[None, :]
        address = (row * splits + split)[:, None] * HEAD_DIM + column[None, :]
        accumulator += tl.sum(weight[:, None] * tl.load(partial + address, mask=mask, other=0.0), 0)
    mean = accumulator / tl.where(total > 0, total, 1.0)
    tl.store(output + row * HEAD_DIM + column, mean.to(output.dtype.element_ty), mask=column < HEAD_DIM)


def splits_for(programs: int, keys: int, multiprocessors: int) -> int:
    """The number of splits of a sequence's keys, for `programs` programs a split.

    The fewest whose occupancy, with the last wave counted in full, is within 15% of the best of any number, since every
    split costs a write and a read of its result.
    """
    most = max(1, min(MAX_SPLITS, keys // MIN_KEYS_PER_SPLIT))

    def occupancy(splits: int) -> float:
        waves = programs * splits / (multiprocessors * PROGRAMS_PER_MULTIPROCESSOR)
        return waves / math.ceil(waves)

    best = max(occupancy(splits) for splits in range(1, most + 1))
    return next(splits for splits in range(1, most + 1) if occupancy(splits) >= 0.85 * best)


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
    """Attention of the last q_len tokens of each sequence over a paged cache that already holds them.

    `query` and `output` (batch, q_len, heads, head_dim); the caches (pages, page, kv_heads, head_dim), the page size a
    power of two; `block_table` (batch, pages a sequence) of int32 lists the pages of each sequence in order; `lengths`
    (batch) of int32 counts its tokens, new ones included. All contiguous. A query sees the last `window` keys up to its
    own, or all of them with 0; one that sees none gets zeros. `splits` defaults to what fills the device with the
    longest sequence that the table can hold; nothing is read back from the device, so that the call can be captured in
    a CUDA graph (after one call that tunes it).
    """
    assert all(t.is_contiguous() for t in (query, key_cache, value_cache, block_table, lengths, output))
    batch, q_len, heads, head_dim = query.shape
    _, page, kv_heads, _ = key_cache.shape
    rows = q_len * (heads // kv_heads)
    tile = min(64, max(16, triton.next_power_of_2(rows)))
    programs = batch * kv_heads * triton.cdiv(rows, tile)
    if splits is None:
        keys = block_table.shape[1] * page
        keys = min(keys, window + q_len - 1) if window else keys
        splits = splits_for(programs, keys, multiprocessors(str(query.device)))
    padded = max(16, triton.next_power_of_2(head_dim))
    partial = lse = output
    if splits > 1:
        partial = query.new_empty((batch, q_len, heads, splits, head_dim), dtype=torch.float32)
        lse = query.new_empty((batch, q_len, heads, splits), dtype=torch.float32)
    scale = math.log2(math.e) / math.sqrt(head_dim)
    launch(
        _decode,
        (programs, splits),
        *(query, key_cache, value_cache, block_table, lengths, output, partial, lse),
        *(batch, q_len, heads, kv_heads, block_table.shape[1], window, splits, scale),
        HEAD_DIM=head_dim,
        HEAD_PAD=padded,
        PAGE=page,
        WINDOWED=window > 0,
        CONVERT=key_cache.dtype != query.dtype,
        SPLIT=splits > 1,
        UPCAST=interpreted() and query.dtype == torch.bfloat16,
        BLOCK_M=tile,
    )
    if splits > 1:
        block, pad = min(16, triton.next_power_of_2(splits)), triton.next_power_of_2(splits)
        sizes = {"HEAD_DIM": head_dim, "HEAD_PAD": padded, "SPLITS_PAD": pad, "BLOCK": block}
        launch(_combine, (batch * q_len * heads,), partial, lse, output, splits, **sizes, num_warps=4)
