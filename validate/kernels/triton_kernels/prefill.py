"""FlashAttention forward: causal, with a cached prefix, GQA and sliding windows.

One program computes a block of queries of one head. It iterates over the keys that any of its queries sees, keeps the
running maximum and sum of the softmax in fp32 (base 2: the scale holds log2 e), and never writes a score. Blocks of
keys that no query sees are skipped; only blocks at the diagonal and at the window's edge are masked.
"""
# mypy: disable-error-code="import-untyped, import-not-found, untyped-decorator, no-any-unimported, unused-ignore"
# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False, disallow-incomplete-defs=False
# ruff: noqa: N803, ARG001 (compile-time constants are in capitals; the batch is a key of the tuning)

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl

from roofline.validate.kernels.tools import interpreted
from roofline.validate.kernels.triton_kernels.launch import autotune, launch

LOWEST = tl.constexpr(-1.0e30)
"""The score of a masked key. It is finite, so that a row that has seen no key yet stays free of NaN: what such a row
accumulates is multiplied by exp2(LOWEST - maximum) = 0 when it sees its first key."""

TRITON_DTYPES = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
"""The formats of queries, to which a cache in another format is converted."""


_TILES = ((32, 16, 4, 1),) if interpreted() else (
    (128, 128, 8, 3), (128, 128, 8, 2), (128, 64, 8, 3), (128, 64, 8, 2), (128, 64, 4, 3), (128, 32, 8, 2),
    (64, 128, 4, 2), (64, 64, 8, 2), (64, 64, 4, 2), (64, 32, 8, 3), (64, 32, 4, 2),
    (32, 64, 4, 3), (16, 64, 4, 3), (16, 32, 4, 2),
)  # fmt: skip
"""Rows, columns, warps and stages to tune over; `_prune` drops those that are too large for a head."""

SHARED_MEMORY = 227 * 1024
"""Bytes of shared memory of a program on A100's successors (CUDA C++ Programming Guide, compute capability 9.0)."""

ACCUMULATORS = 120
"""Most 32-bit registers of a thread for sums and scores: from 128 of 255 on, addresses and softmax spill (ptxas)."""

CONFIGS = [
    triton.Config({"BLOCK_M": m, "BLOCK_N": n}, num_warps=warps, num_stages=stages) for m, n, warps, stages in _TILES
]


def _prune(configs: list[Any], arguments: dict[str, Any], **meta: Any) -> list[Any]:
    """The tiles of at most q_len and at least min(q_len, 64) rows whose sums and scores fit the registers."""
    most = max(16, triton.next_power_of_2(arguments["q_len"]))
    padded = int(meta["HEAD_PAD"])

    def fits(config: Any) -> bool:
        rows, columns = int(config.kwargs["BLOCK_M"]), int(config.kwargs["BLOCK_N"])
        registers = rows * (padded + columns) // int(32 * config.num_warps)
        return min(64, most) <= rows <= most and registers <= ACCUMULATORS

    chosen = [config for config in configs if fits(config)]
    return tiles_that_fit(chosen or configs[-1:], None, padded, arguments["keys"].element_size())


def tiles_that_fit(configs: list[Any], rows: int | None, head: int, element: int) -> list[Any]:
    """The tiles whose queries, and stages of keys and values of `element` bytes, fit the shared memory; at least one.

    `rows` are those of all tiles, None for each tile's own.
    """

    def shared(config: Any) -> int:
        own = int(config.kwargs["BLOCK_M"]) if rows is None else rows
        columns = int(config.num_stages) * int(config.kwargs["BLOCK_N"])
        return head * (2 * own + 2 * columns * max(2, element))

    fitting = [config for config in configs if shared(config) <= SHARED_MEMORY]
    return fitting or [min(configs, key=shared)]


@triton.jit
def softmax_update(accumulator, row_sum, row_max, new_max, weights, value, UPCAST: tl.constexpr):
    """Rescale the accumulator and sum of the online softmax to a new maximum, and add a block of keys."""
    rescale = tl.exp2(row_max - new_max)
    row_sum = row_sum * rescale + tl.sum(weights, 1)
    accumulator = accumulator * rescale[:, None]
    weights = weights.to(value.dtype)
    if UPCAST:
        weights, value = weights.to(tl.float32), value.to(tl.float32)
    return tl.dot(weights, value, accumulator), row_sum


@triton.jit
def _load_keys(
    keys, tile, valid,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, MASKED: tl.constexpr, CONVERT: tl.constexpr,
):  # fmt: skip
    """A block of keys or values in the queries' format; rows that are not `valid` are zero where `MASKED`."""
    column = tl.arange(0, HEAD_PAD)
    if MASKED:
        block = tl.load(keys + tile, mask=valid[:, None] & (column < HEAD_DIM)[None, :], other=0.0)
    elif HEAD_DIM == HEAD_PAD:
        block = tl.load(keys + tile)
    else:
        block = tl.load(keys + tile, mask=(column < HEAD_DIM)[None, :], other=0.0)
    if CONVERT is not None:
        block = block.to(CONVERT)
    return block


@triton.jit
def _attend(
    accumulator, row_max, row_sum, query, keys, values, begin, end, position, kv_len, window, stride, scale,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, WINDOWED: tl.constexpr, MASKED: tl.constexpr,
    CONVERT: tl.constexpr, UPCAST: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Add keys `begin` to `end`, in blocks, to a running softmax."""
    inside = tl.arange(0, BLOCK_N)
    tile = inside[:, None] * stride + tl.arange(0, HEAD_PAD)[None, :]
    keys += tl.cast(begin, tl.int64) * stride
    values += tl.cast(begin, tl.int64) * stride
    for start in range(begin, end, BLOCK_N):
        key_position = start + inside
        key = _load_keys(keys, tile, key_position < kv_len, HEAD_DIM, HEAD_PAD, MASKED, CONVERT)
        value = _load_keys(values, tile, key_position < kv_len, HEAD_DIM, HEAD_PAD, MASKED, CONVERT)
        if UPCAST:
            key = key.to(tl.float32)
        scores = tl.dot(query, tl.trans(key))
        if MASKED:
            seen = key_position[None, :] <= position[:, None]
            if WINDOWED:
                seen = seen & (key_position[None, :] > position[:, None] - window)
            scores = tl.where(seen, scores * scale, LOWEST)
            new_max = tl.maximum(row_max, tl.max(scores, 1))
            weights = tl.exp2(scores - new_max[:, None])
        else:
            new_max = tl.maximum(row_max, tl.max(scores, 1) * scale)
            weights = tl.exp2(scores * scale - new_max[:, None])
        accumulator, row_sum = softmax_update(accumulator, row_sum, row_max, new_max, weights, value, UPCAST)
        row_max = new_max
        keys += BLOCK_N * tl.cast(stride, tl.int64)
        values += BLOCK_N * tl.cast(stride, tl.int64)
    return accumulator, row_max, row_sum


@triton.jit
def _key_ranges(first, q_len, kv_len, window, WINDOWED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """`begin`, `left`, `right`, `end` of the keys of a block of queries.

    Some query sees each of begin..end, and every query sees all of left..right: those blocks need no mask.
    """
    earliest = first + (kv_len - q_len)
    latest = earliest + BLOCK_M - 1
    end = tl.minimum(latest + 1, kv_len)
    begin = 0
    left = 0
    if WINDOWED:
        begin = tl.maximum(earliest - window + 1, 0) // BLOCK_N * BLOCK_N
        left = tl.minimum(tl.cdiv(tl.maximum(latest - window + 1, 0), BLOCK_N), tl.cdiv(end, BLOCK_N)) * BLOCK_N
    return begin, left, tl.maximum((earliest + 1) // BLOCK_N * BLOCK_N, left), end


@autotune(CONFIGS, ["batch", "q_len", "kv_len", "heads", "kv_heads", "window", "HEAD_DIM", "CONVERT"], _prune)
@triton.jit(do_not_specialize=["batch", "q_len", "kv_len", "heads", "kv_heads", "window"])
def _prefill(
    query, keys, values, output, batch, q_len, kv_len, heads, kv_heads, window, scale,
    HEAD_DIM: tl.constexpr, HEAD_PAD: tl.constexpr, WINDOWED: tl.constexpr, CONVERT: tl.constexpr,
    UPCAST: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Blocks of a head run together to share its keys in L2, the longest first to keep the tail short.
    blocks = tl.cdiv(q_len, BLOCK_M)
    block = blocks - 1 - tl.program_id(0) % blocks
    head = (tl.program_id(0) // blocks) % heads
    sequence = tl.cast(tl.program_id(0) // blocks // heads, tl.int64)
    kv_head = head // (heads // kv_heads)

    first = block * BLOCK_M
    rows = tl.arange(0, BLOCK_M)
    column = tl.arange(0, HEAD_PAD)
    mask = (first + rows < q_len)[:, None] & (column < HEAD_DIM)[None, :]
    corner = ((sequence * q_len + first) * heads + head) * HEAD_DIM
    tile = rows[:, None] * (heads * HEAD_DIM) + column[None, :]
    queries = tl.load(query + corner + tile, mask=mask, other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)
    stride = kv_heads * HEAD_DIM
    keys += (sequence * kv_len * kv_heads + kv_head) * HEAD_DIM
    values += (sequence * kv_len * kv_heads + kv_head) * HEAD_DIM

    begin, left, right, end = _key_ranges(first, q_len, kv_len, window, WINDOWED, BLOCK_M, BLOCK_N)
    accumulator = tl.zeros([BLOCK_M, HEAD_PAD], tl.float32)
    row_max = tl.full([BLOCK_M], LOWEST, tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    position = first + (kv_len - q_len) + rows
    if WINDOWED:
        accumulator, row_max, row_sum = _attend(
            accumulator, row_max, row_sum, queries, keys, values, begin, left, position, kv_len, window, stride, scale,
            HEAD_DIM, HEAD_PAD, WINDOWED, True, CONVERT, UPCAST, BLOCK_N,
        )  # fmt: skip
    accumulator, row_max, row_sum = _attend(
        accumulator, row_max, row_sum, queries, keys, values, left, right, position, kv_len, window, stride, scale,
        HEAD_DIM, HEAD_PAD, WINDOWED, False, CONVERT, UPCAST, BLOCK_N,
    )  # fmt: skip
    accumulator, row_max, row_sum = _attend(
        accumulator, row_max, row_sum, queries, keys, values, right, end, position, kv_len, window, stride, scale,
        HEAD_DIM, HEAD_PAD, WINDOWED, True, CONVERT, UPCAST, BLOCK_N,
    )  # fmt: skip
    result = accumulator / row_sum[:, None]
    tl.store(output + corner + tile, result.to(output.dtype.element_ty), mask=mask)


def prefill(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, output: torch.Tensor, window: int = 0
) -> None:
    """Causal attention of the last q_len of kv_len tokens.

    `query` and `output` (batch, q_len, heads, head_dim), `keys` and `values` (batch, kv_len, kv_heads, head_dim), all
    contiguous; a query sees the last `window` keys up to its own, or all of them with 0.
    """
    assert all(tensor.is_contiguous() for tensor in (query, keys, values, output))
    batch, q_len, heads, head_dim = query.shape
    _, kv_len, kv_heads, _ = keys.shape
    scale = math.log2(math.e) / math.sqrt(head_dim)
    launch(
        _prefill,
        lambda meta: (batch * heads * triton.cdiv(q_len, meta["BLOCK_M"]),),
        *(query, keys, values, output, batch, q_len, kv_len, heads, kv_heads, window, scale),
        HEAD_DIM=head_dim,
        HEAD_PAD=max(16, triton.next_power_of_2(head_dim)),
        WINDOWED=window > 0,
        CONVERT=None if keys.dtype == query.dtype else TRITON_DTYPES[query.dtype],
        UPCAST=interpreted() and query.dtype == torch.bfloat16,
    )
